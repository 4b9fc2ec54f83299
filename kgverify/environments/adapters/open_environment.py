"""Opening an environment: from the object itself, a function that makes it, a name, or a declaration."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from kgverify.engines.load_engine import describe_raised, load_factory
from kgverify.environments.adapters.interfaces import (
    BatchedEnvironment,
    SeparateEnvironments,
    TensorDictEnvironment,
    ask,
)
from kgverify.environments.adapters.spec import EnvironmentSpec
from kgverify.environments.adapters.vector import VectorAdapter
from kgverify.environments.protocol import Environment
from kgverify.errors import UserError

SIGNATURE: Final = "an environment, or a function of the number of slots, or of nothing, that makes one"
_NUMBERS: Final = ("num_slots", "num_envs")
"""The optional parameters that take the number of slots."""


def open_environment(spec: Any, num_slots: int) -> Environment:
    """Return an environment of some slots.

    spec: an environment of Gymnasium (a single one, which is made or copied for each slot, or a vectorised one), of torchrl,
          or a batched one of `reset(queries)` and `step(state, action)`; a function that makes one; a name, `gymnasium:ID`,
          `MODULE:NAME` or `FILE.py:NAME`; or an `EnvironmentSpec` of any of these

    UserError for anything else, and for an environment of another number of slots.
    """
    declared = spec if isinstance(spec, EnvironmentSpec) else EnvironmentSpec(spec)
    make: Any = _load(declared.make) if isinstance(declared.make, str) else declared.make
    name = declared.name or (declared.make if isinstance(declared.make, str) else "")
    if isinstance(make, EnvironmentSpec):
        return open_environment(dataclasses.replace(make, name=make.name or name), num_slots)
    if _is_environment(make):
        return _adapt(make, functools.partial(copy.deepcopy, make), declared, name, num_slots, is_made=False)
    where = name or getattr(make, "__name__", type(make).__name__)
    if not callable(make):
        raise UserError("expected an environment", where=where, fix=f"give {SIGNATURE}")
    call = functools.partial(ask, _bind(make, num_slots, where), where, f"repair it; expected {SIGNATURE}")
    return _adapt(call(), call, declared, name, num_slots, is_made=True)


def _adapt(
    first: Any, more: Callable[[], Any], declared: EnvironmentSpec, name: str, num_slots: int, *, is_made: bool
) -> Environment:
    """Return the adapter of an environment. A single one is made, or copied, for each slot."""
    is_torchrl = hasattr(first, "batch_size") and hasattr(first, "full_action_spec")
    # torchrl forwards unknown attributes to environments that may not have started.
    known = "" if is_torchrl else getattr(getattr(first, "spec", None), "id", "") or getattr(first, "name", "")
    name = name or known or type(first).__name__
    if not _is_environment(first):
        raise UserError("made an object without reset and step", where=name, fix=f"give {SIGNATURE}")
    vector: Any = first
    if is_torchrl and tuple(first.batch_size):
        vector = TensorDictEnvironment(first)
    elif isinstance(first, Environment) or (not is_torchrl and hasattr(first, "single_action_space")):
        pass
    elif not is_torchrl and len(_list_required(first.step)) > 1:
        vector = BatchedEnvironment(first, num_slots, declared)
    else:
        try:
            every = [first if is_made else more(), *(more() for _ in range(num_slots - 1))]
        except Exception as error:
            if is_made:
                raise
            message = f"the environment cannot be copied for each of {num_slots} slots: {describe_raised(error)}"
            raise UserError(message, where=name, fix="give a function that makes it, not the environment") from error
        vector = SeparateEnvironments([TensorDictEnvironment(each) for each in every] if is_torchrl else every)
        is_made = True
    num = first.num_slots if isinstance(first, Environment) else vector.num_envs
    if num != num_slots:
        fix = f"give slots={num}, or a function of the number of slots, which can also make fewer"
        raise UserError(f"the environment has {num} slots, expected {num_slots}", where=name, fix=fix)
    return first if isinstance(first, Environment) else VectorAdapter(vector, declared, name, is_owned=is_made)


def _load(name: str) -> Any:
    module, _, identifier = name.partition(":")
    if module != "gymnasium" or identifier.isidentifier():
        return load_factory(name, "environment", SIGNATURE)
    return functools.partial(load_factory("gymnasium:make", "environment", SIGNATURE), identifier)


def _is_environment(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "reset") and hasattr(value, "step")


def _bind(make: Any, num_slots: int, where: str) -> Callable[[], Any]:
    """Return a function of nothing that makes the environment: with the number of slots, if the given one takes it."""
    # A metaclass may hide the signature of a class.
    function = functools.partial(getattr(make, "__init__"), None) if isinstance(make, type) else make  # noqa: B009
    required = _list_required(function)
    if len(required) > 1:
        fix = "give a function of the number of slots, or of nothing"
        raise UserError(f"it takes {', '.join(required)}", where=where, fix=fix)
    named = [each for each in _NUMBERS if not required and each in _parameters_of(function)]
    return functools.partial(make, *[num_slots][: len(required)], **dict.fromkeys(named[:1], num_slots))


def _parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def _list_required(function: Any) -> list[str]:
    """Return the parameters without a default that take one argument each; none if the signature is unknown."""
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = _parameters_of(function).items()
    return [name for name, each in parameters if each.default is each.empty and each.kind not in several]
