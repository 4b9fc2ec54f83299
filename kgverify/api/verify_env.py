"""`kgverify.verify_env` and `kgverify.freeze_env`: compare two environments, and record one."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kgverify.arguments import checked
from kgverify.environments.adapters.open_environment import open_environment
from kgverify.environments.recording import read_side
from kgverify.environments.report import EnvironmentReport
from kgverify.environments.saved import save_comparison
from kgverify.environments.side import Side
from kgverify.environments.verify import (
    Comparing,
    GivenActions,
    Open,
    compare_environments,
    parse_evidence,
    record_environment,
)
from kgverify.errors import UserError
from kgverify.files.writing import check_folder
from kgverify.progress import Phase, silent_phase
from kgverify.verification.save import locked_run


@checked
def verify_env(
    expected: Any,
    actual: Any,
    *,
    slots: int = 16,
    steps: int = 200,
    seed: int = 0,
    policy: Any = None,
    actions: Any = None,
    states: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
    lockstep: bool | None = None,
    minimum: str | Mapping[str, int] | None = None,
    save: str | Path | None = None,
) -> EnvironmentReport:
    """Compare two environments that take the same actions, call by call, and name the stage of the first difference.

    Either side is a Gymnasium `Env` or `VectorEnv`, a torchrl `EnvBase`, an object whose `reset` and `step` work on batches
    of tensors, or a function that makes one of these; docs/environments.md. A single environment is run once for each slot.

    Args:
        expected: The environment to compare with; or its name, `"gymnasium:ID"`, `"module:name"` or `"file.py:name"`; or
            `kgverify.EnvironmentSpec(...)`, which declares what legitimately differs; or the path of a trace that
            `kgverify.freeze_env` wrote, whose actions the other side takes.
        actual: The environment under test, given in the same way.
        slots: Number of slots: the environments of a batch.
        steps: Number of actions of each slot.
        seed: Seed of the first slot; the others count up from it.
        policy: A function of the observation [slots, ...], and of the mask bool [slots, actions] if there is one, that
            returns an action for each slot [slots, ...], or a dictionary with `action`, and `log_probability`, `value` and
            `hidden` to compare them as well. Or a pair: the policy of the expected side, which chooses, and that of the
            actual side, which only shows its choice. Random legal actions if not given.
        actions: The actions themselves [steps, slots, ...], instead of `slots`, `steps` and `policy`.
        states: The states from which the first of these actions are taken, [slots, ...] each by name, if both sides have a
            state that can be set; those of the reset if not given.
        tolerance: The relative difference of two floats that counts as rounding. If not given, a bound is derived from the
            float types, and, in lockstep, from what a change of the state in the last place makes.
        lockstep: Whether each step is taken from the expected state, so that independent faults are listed apart. If not
            given, where both sides have a state that can be set.
        minimum: The evidence that AGREE requires: `"ended=1,resets=1"` if not given, also `truncated` and `rewards`; `{}`
            for none.
        save: A folder for both trajectories and the report, for `kgverify env show`.

    Returns:
        The report: `.verdict`, `.first_divergence`, `.causes`, `.to_html(path)`, `.to_json(path)`. `print(report)` prints it.

    Raises:
        UserError: If an argument is wrong, or an environment or the policy fails or returns what cannot be compared.

    Example:
        >>> import numpy as np
        >>> import kgverify as kv
        >>> class Walk:
        ...     '''Walks left or right, and ends 3 places from its start.'''
        ...     def __init__(self, slots, reward=1.0):
        ...         self.slots, self.reward = slots, reward
        ...     def reset(self, queries):
        ...         return {"at": np.zeros(self.slots, np.int64)}
        ...     def step(self, state, action):
        ...         at = state["at"] + np.where(action > 0, 1, -1)
        ...         done = np.abs(at) == 3
        ...         return {"at": at}, np.where(done, self.reward, 0.0), done
        >>> def make(reward):
        ...     return kv.EnvironmentSpec(lambda slots: Walk(slots, reward), autoreset="disabled", actions=2)
        >>> kv.verify_env(make(1.0), make(1.0)).verdict.value
        'AGREE'
        >>> report = kv.verify_env(make(1.0), make(2.0))
        >>> report.verdict.value, report.first_divergence.stage
        ('DIVERGE', 'reward')
    """
    policies = policy if isinstance(policy, tuple) else (policy, None)
    if len(policies) != 2:
        raise UserError("expected one policy or two", where="policy", fix="give (expected policy, actual policy)")
    comparing = Comparing(slots, steps, seed, policies, tolerance, lockstep, parse_evidence(minimum))
    return compare_sides_of(expected, actual, _with_actions(comparing, actions, states), save=save)


@checked
def freeze_env(
    environment: Any,
    path: str | Path,
    *,
    slots: int = 16,
    steps: int = 200,
    seed: int = 0,
    policy: Any = None,
    actions: Any = None,
) -> Path:
    """Record what an environment returns, as a small trace to commit: `kgverify.verify_env(path, environment)` compares with it.

    Args:
        environment: The environment, as for `kgverify.verify_env`.
        path: The file, which is overwritten if it is such a trace.
        slots: Number of slots.
        steps: Number of actions of each slot.
        seed: Seed of the first slot; the others count up from it.
        policy: The policy that chooses the actions, as for `kgverify.verify_env`.
        actions: The actions themselves [steps, slots, ...], instead of `slots`, `steps` and `policy`.

    Returns:
        The path of the file.

    Raises:
        UserError: As `kgverify.verify_env`, or if the file cannot be written.

    Example:
        >>> import kgverify as kv
        >>> path = kv.freeze_env("gymnasium:CartPole-v1", "cartpole.h5", slots=4, steps=50)
        >>> kv.verify_env(path, "gymnasium:CartPole-v1").verdict.value
        'AGREE'
    """
    comparing = _with_actions(Comparing(slots, steps, seed, (policy, None)), actions)
    return record_side(environment, Path(path), comparing)


def _with_actions(comparing: Comparing, actions: Any, states: Mapping[str, Any] | None = None) -> Comparing:
    if actions is None:
        if states is not None:
            raise UserError("states are given without actions", where="states", fix="give the actions that follow them")
        return comparing
    if comparing.policies != (None, None):
        raise UserError("actions are given as well as a policy", where="actions", fix="give one of them")
    given = GivenActions(actions, states)
    return replace(comparing, slots=given.slots, steps=given.steps, policies=(given, None))


def compare_sides_of(
    expected: Any,
    actual: Any,
    comparing: Comparing,
    *,
    save: str | Path | None = None,
    command: str = "",
    phase: Phase = silent_phase,
) -> EnvironmentReport:
    """Compare two environments or recorded runs, and save the result; see `verify_env`.

    Args:
        expected: As for `verify_env`.
        actual: As for `verify_env`.
        comparing: The size of the comparison, and its rules.
        save: A folder for both trajectories and the report.
        command: The command line that the report names as its origin.
        phase: A function of a title and a total that returns a context, which is called with the progress made.

    Returns:
        The report.

    Raises:
        UserError: As `verify_env`.
    """
    if save is not None:
        check_folder(Path(save))
    with locked_run(save):
        report, found = compare_environments(_open(expected), _open(actual), comparing, phase)
        report = msgspec.structs.replace(report, command=command)
        if save is not None:
            save_comparison(report, found, Path(save))
    return report


def record_side(environment: Any, path: Path, comparing: Comparing, phase: Phase = silent_phase) -> Path:
    """Record what an environment returns; see `freeze_env`."""
    opened = _open(environment)
    if isinstance(opened, Side):
        raise UserError("it is already recorded", where=str(environment), fix="give an environment")
    record_environment(opened, comparing, phase).write(path)
    return path


def _open(given: Any) -> Open | Side:
    if isinstance(given, Path) or (isinstance(given, str) and (given.endswith(".h5") or Path(given).exists())):
        side = read_side(given)
        return replace(side, name=f"{side.name} in {given}")
    return partial(open_environment, given)
