"""The interface of a vectorised environment, behind which kgverify drives any of them."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.environments.trajectory import as_numbers
from kgverify.errors import UserError

Leaves = Mapping[str, NDArray[Any]]
"""The arrays of an observation, [n, ...] each, by name; the name of a flat observation is empty."""


class Autoreset(StrEnum):
    """The treatment of a slot whose episode ended, in Gymnasium's words.

    same_step: the call that ends it also begins the next one, and returns its observation; the last one is apart
    next_step: the next call begins it, and ignores the action
    disabled:  the caller resets the slot
    """

    SAME_STEP = "same_step"
    NEXT_STEP = "next_step"
    DISABLED = "disabled"


class Seeding(StrEnum):
    """The random numbers with which episodes begin. Two sides begin alike if both have the same one, except `own`.

    slot:    each slot's first episode has the slot's seed, and its later ones continue the same random stream
    episode: each episode of each slot has a seed of its own
    run:     one seed for all slots
    own:     as in `run`, but the environment draws in its own way, so that its episodes begin like nobody else's
    """

    SLOT = "slot"
    EPISODE = "episode"
    RUN = "run"
    OWN = "own"


@dataclass(frozen=True)
class ActionSpace:
    """The actions of one slot.

    shape: the shape of an action; () for a single number
    dtype: its type
    low, high: int64 or float64 [shape]  the least and the greatest numbers, both included
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: NDArray[Any]
    high: NDArray[Any]

    @property
    def is_discrete(self) -> bool:
        """True if the numbers of an action are whole."""
        return self.dtype.kind in "iub"

    @classmethod
    def discrete(cls, num: int) -> "ActionSpace":
        """Return the space of the actions 0 to num - 1."""
        return cls((), np.dtype(np.int64), np.array(0), np.array(num - 1))


class Observed(NamedTuple):
    """An observation of some slots.

    leaves: its arrays
    mask:   bool [n, A]  the legal actions; None if the environment has no mask
    states: the arrays of the state of the environment, [n, ...] each; None if it does not show its state
    overwritten: uint8 [n]  an `Overwritten`: the array of the call before that this call changed; None if unknown
    """

    leaves: Leaves
    mask: NDArray[np.bool_] | None = None
    states: Leaves | None = None
    overwritten: NDArray[np.uint8] | None = None


class Called(NamedTuple):
    """The values that a call of `step` returned.

    observed:   the observation of each slot: of the next episode if the mode is `same_step` and the episode ended
    reward:     [n], of the environment's own type
    terminated: bool [n]
    truncated:  bool [n]
    final:      the observation that ended an episode, in mode `same_step`; None if no slot has one
    has_final:  bool [n]  the slots that have one
    """

    observed: Observed
    reward: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final: Leaves | None = None
    has_final: NDArray[np.bool_] | None = None


class Environment(ABC):
    """A vectorised environment as kgverify drives it. What it returns must not change afterwards: adapters copy.

    name:        its name in reports
    num_slots:   the number of slots
    actions:     the space of actions of a slot
    autoreset:   what it does when an episode ends
    has_states:  whether its state can be read and set
    seeding:     how its episodes begin
    """

    name: str
    num_slots: int
    actions: ActionSpace
    autoreset: Autoreset = Autoreset.DISABLED
    has_states: bool = False
    seeding: Seeding = Seeding.SLOT

    @abstractmethod
    def reset(self, seeds: NDArray[np.int64]) -> Observed:
        """Begin an episode in every slot, each with its seed."""

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> Called:
        """Take an action in every slot; the action of a slot that is to be reset is ignored."""

    def reset_slots(self, which: NDArray[np.bool_]) -> Observed:
        """Begin the next episode in some slots: bool [N]. Only for the mode `disabled`; other rows are not read."""
        raise NotImplementedError

    def set_states(self, states: Leaves) -> None:
        """Set the state of every slot. Only if `has_states`."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most environments hold nothing
        """Release what it holds."""


def flatten(value: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a nested observation in the order of their names; tensors become arrays of their own memory."""
    for name, each in walk(value):
        yield name, to_array(each)


def walk(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays and tensors of a nested value themselves in the order of their names; None has none."""
    parts = _parts_of(value)
    if parts is None:
        if value is not None:
            yield name, value
        return
    for key, each in (
        parts.items() if isinstance(value, tuple) else sorted(parts.items(), key=lambda item: str(item[0]))
    ):
        yield from walk(each, _join(name, key))


def rebuild(template: Any, leaves: Leaves, name: str = "") -> Any:
    """Return a value of the structure, types and devices of a template with other numbers: the inverse of `flatten`."""
    parts = _parts_of(template)
    if parts is None:
        return None if template is None else _fill(template, leaves[name])
    built = {key: rebuild(each, leaves, _join(name, key)) for key, each in parts.items()}
    if hasattr(template, "_replace"):
        return template._replace(**built)
    if isinstance(template, tuple):
        return tuple(built.values())
    copied = copy.copy(template)
    if is_dataclass(template):
        for key, each in built.items():
            object.__setattr__(copied, key, each)  # also in a frozen one
    else:
        copied.update(built)
    return copied


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _parts_of(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a nested value by key; None for an array, a tensor or a number."""
    if isinstance(value, Mapping) or hasattr(value, "keys"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118 - a TensorDict iterates over rows
    if hasattr(value, "_asdict"):
        return dict(value._asdict())
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return dict(enumerate(value)) if isinstance(value, tuple) else None


def _fill(template: Any, array: NDArray[Any]) -> Any:
    if hasattr(template, "new_tensor"):
        return template.new_tensor(array)
    if isinstance(template, list):
        return [rebuild(each, {"": row}) for each, row in zip(template, array, strict=True)]
    if isinstance(template, np.ndarray):
        return np.array(array, template.dtype)
    return type(template)(array.item())


def to_array(value: Any) -> NDArray[Any]:
    """Return an array, a tensor on any device, or a sequence as an array that shares no memory with it."""
    if hasattr(value, "detach"):
        value = value.detach()
        # NumPy has no bfloat16.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        value = value.cpu().numpy()
    return np.array(value)


def join_leaves(leaves: Leaves) -> NDArray[np.float64]:
    """Return the numbers of some arrays, one after the other: float64 [n, width]."""
    return np.concatenate([as_numbers(each) for each in leaves.values()], axis=1)


def describe_numbers(group: str, leaves: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the name and the type of each number of a group, such as `observations`, given its arrays or tensors.

    The names are those of a row of `join_leaves`: `observation.position[2]`.
    """
    names, types = [], []
    for name, array in leaves.items():
        whole, row = ".".join(filter(None, (group.removesuffix("s"), name))), to_array(array[:1])
        num, shape = as_numbers(row).shape[1], row.shape[1:]
        indices = [np.unravel_index(i % max(1, math.prod(shape)), shape) for i in range(num)]
        several = [f"{whole}[{', '.join(str(int(i)) for i in index)}]" for index in indices]
        names += several if shape or num > 1 else [whole]
        types += [str(array.dtype).removeprefix("torch.")] * num
    return names, types


def check_rows(leaves: Mapping[str, Any], num_slots: int, where: str) -> None:
    """Raise a UserError unless each array has a row for each slot."""
    for name, array in leaves.items():
        if not array.ndim or len(array) != num_slots:
            raise UserError(
                f"{name or 'the observation'} has the shape {list(array.shape)}, expected {num_slots} rows first",
                where=where,
                fix="return one row for each slot",
            )


class Policy(ABC):
    """A policy that acts in an environment."""

    @abstractmethod
    def act(self, slots: NDArray[np.int64], numbers: NDArray[np.int64], observed: Observed) -> "Acted":
        """Choose an action for some slots.

        slots:   int64 [n]
        numbers: int64 [n]  actions taken in the slot so far
        observed: the rows of these slots
        """


class Acted(NamedTuple):
    """The choice of a policy for some slots.

    actions: the actions, [n, *shape]
    log_probability: float64 [n], in nats; None if the policy does not tell it
    value:   float64 [n]; None likewise
    hidden:  the arrays of the hidden state after the choice; None likewise
    states:  the states from which the environment is to take them, [n, ...] each; None for its own
    """

    actions: NDArray[Any]
    log_probability: NDArray[np.float64] | None = None
    value: NDArray[np.float64] | None = None
    hidden: Leaves | None = None
    states: Leaves | None = None


class RandomPolicy(Policy):
    """Uniformly random legal actions, a stream for each slot, so that each slot's actions depend on it alone."""

    def __init__(self, space: ActionSpace, seeds: Sequence[int]) -> None:
        self._space = space
        self._streams = [np.random.default_rng([max(0, seed), slot]) for slot, seed in enumerate(seeds)]

    def act(self, slots: NDArray[np.int64], numbers: NDArray[np.int64], observed: Observed) -> Acted:
        """Draw an action for each slot; among the legal ones if there is a mask."""
        return Acted(self.draw(slots, observed.mask))

    def draw(self, slots: NDArray[np.int64], mask: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return an action for each slot: [n, *shape]."""
        drawn = []
        for row, slot in enumerate(slots.tolist()):
            stream = self._streams[slot]
            if mask is not None and mask[row].any():
                drawn.append(self._space.low + stream.choice(np.flatnonzero(mask[row])))
            elif self._space.is_discrete:
                drawn.append(stream.integers(self._space.low, self._space.high, endpoint=True))
            else:
                low, high = np.maximum(self._space.low, -1e3), np.minimum(self._space.high, 1e3)
                drawn.append(stream.uniform(low, high))
        return np.array(drawn).astype(self._space.dtype).reshape(-1, *self._space.shape)
