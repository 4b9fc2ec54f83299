"""The declaration of an environment: what it is made of, and what legitimately differs from other environments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kgverify.environments.protocol import Autoreset, Seeding
from kgverify.errors import UserError, suggest


@dataclass(frozen=True)
class EnvironmentSpec:
    """An environment, and what cannot be read from it.

    make:      an environment; a function of the number of slots, or of nothing, that makes one; `gymnasium:ID`,
               `MODULE:NAME` or `FILE.py:NAME`
    autoreset: `same_step`, `next_step` or `disabled`; None for what the environment itself tells
    state:     the name of the attribute that holds the state, several names, or a pair of functions: get(environment)
               returns the state, and set(environment, state) sets it. For an environment that is a single one, the
               functions take that one; otherwise arrays with a row for each slot
    seeds:     `slot`, `episode`, `run` or `own`, as in `Seeding`; None for what the environment allows
    queries:   the rows that a batched environment's `reset` takes in place of seeds, an array or a tensor [M, ...]: a slot
               begins with the row of its seed, modulo M, and takes other ones later
    actions:   the space of actions: a number of them, or a space of Gymnasium; None for what the environment itself tells
    reward_dtype: the float type in which rewards are computed, if they are returned in a finer one
    reuses_buffers: True if the environment documents that it overwrites what it returned, as `copy=False` in Gymnasium
    name:      its name in reports

    Example:
        EnvironmentSpec(make_envs, autoreset="same_step", state=("state", "steps"))
    """

    make: Any
    autoreset: str | None = None
    state: str | Sequence[str] | tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None = None
    seeds: str | None = None
    queries: Any = None
    actions: Any = None
    reward_dtype: str | None = None
    reuses_buffers: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        for field, kinds in (("autoreset", Autoreset), ("seeds", Seeding)):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, parse_choice(getattr(self, field), kinds, field))
        if self.reward_dtype is not None and str(self.reward_dtype) not in ("float16", "float32", "float64"):
            raise UserError(
                f"no float type {self.reward_dtype!r}", where="reward_dtype", fix="give 'float32' or 'float64'"
            )
        parts = (self.state,) if isinstance(self.state, str) else self.state
        is_pair = isinstance(parts, tuple) and len(parts) == 2 and all(map(callable, parts))
        is_names = isinstance(parts, Sequence) and len(parts) and all(isinstance(each, str) and each for each in parts)
        if parts is not None and not is_pair and not is_names:
            raise UserError(
                f"expected names of attributes, or a pair of functions, found {self.state!r}",
                where="state",
                fix="give 'state', ('state', 'steps'), or (get, set): get(environment) and set(environment, state)",
            )
        if self.queries is not None and not (hasattr(self.queries, "shape") and len(self.queries)):
            raise UserError("expected an array or a tensor with a row for each query", where="queries", fix="give rows")


def parse_choice(value: Any, kinds: type[StrEnum], where: str) -> Any:
    """Return the member of an enumeration for a text, or for a member of another library's enumeration of the same values.

    UserError for any other value.
    """
    text = str(getattr(value, "value", value)).lower().replace("nextstep", "next_step").replace("samestep", "same_step")
    if text in list(kinds):
        return kinds(text)
    names = ", ".join(kinds)
    raise UserError(
        f"expected {names}, found {value!r}", where=where, fix=suggest(text, kinds) or f"give one of {names}"
    )
