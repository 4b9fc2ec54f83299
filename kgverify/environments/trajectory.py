"""The trajectory of a vectorised environment as columns: the second schema, beside that of derivations.

A candidate is a slot: the place of one environment in a batch, with the seed of its first episode. A step is a row that tells
what one call returned to the slot: RESET for the first observation of an episode, STEP for what followed an action. The row of
the step that ends an episode holds the observation that ended it, and a RESET row follows, so that the rows do not depend on
the mode of autoreset. Every number is a float64; a whole number that has more than 53 bits is kept as two.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import count_where, select_steps, starts_of
from kgverify.trace.model.schema import Schema, TraceLevel, column


class StepKind(IntEnum):
    """The kind of a row."""

    RESET = 0
    STEP = 1


class Overwritten(IntEnum):
    """The array returned by a call of `step` or `reset`, or given to it, that the next call, or the call itself, changed."""

    NOTHING = 0
    OBSERVATION = 1
    FINAL_OBSERVATION = 2
    MASK = 3
    REWARD = 4
    END = 5
    ACTION = 6

    def __str__(self) -> str:
        """Return it in words: `the mask of the call before`."""
        name = self.name.lower().replace("_", " ")
        return f"the {name}" if self is Overwritten.ACTION else f"the {name} of the call before"


class Stage(StrEnum):
    """A stage of an environment, of the policy in it, or of the update that follows.

    A call of `step` runs from `choose` to `mask`; `autoreset` and `reset` begin an episode, in a call of `step` or outside.
    """

    RESET = "reset"
    CHOOSE = "choose"
    TRANSITION = "transition"
    REWARD = "reward"
    END = "end"
    AUTORESET = "autoreset"
    OBSERVE = "observe"
    MASK = "mask"
    ADVANTAGE = "advantage"
    LOSS = "loss"
    GRADIENT = "gradient"
    UPDATE = "update"


class Slots(NamedTuple):
    """The slots of an environment.

    seed:      int64  [N]  the seed of the first episode
    slot:      int32  [N]
    start:     uint32 [N]  0; in lockstep, where a candidate is a single action, its number in the slot, from 1
    num_steps: uint32 [N]  rows
    """

    seed: NDArray[np.int64]
    slot: NDArray[np.int32]
    start: NDArray[np.uint32]
    num_steps: NDArray[np.uint32]


class Steps(NamedTuple):
    """The values that each call returned to each slot.

    The numbers of a RESET row are 0, except the observation and the mask; in mode `next_step`, its reward and flags are what
    the call returned.

    kind:            uint8   [T]  a `StepKind`
    num_actions:     uint32  [T]  numbers of the action
    log_probability: float64 [T]  of the action, in nats
    value:           float64 [T]  the policy's estimate of the return from the observation before
    num_hidden:      uint32  [T]  numbers of the policy's hidden state after the choice
    num_states:      uint32  [T]  numbers of the environment's state
    reward:          float64 [T]
    terminated:      uint8   [T]
    truncated:       uint8   [T]
    num_observed:    uint32  [T]  numbers of the observation; 0 if the call did not return it
    num_masked:      uint32  [T]  actions of the mask
    overwritten:     uint8   [T]  an `Overwritten`: users who keep what was returned have other numbers now
    """

    kind: NDArray[np.uint8]
    num_actions: NDArray[np.uint32]
    log_probability: NDArray[np.float64]
    value: NDArray[np.float64]
    num_hidden: NDArray[np.uint32]
    num_states: NDArray[np.uint32]
    reward: NDArray[np.float64]
    terminated: NDArray[np.uint8]
    truncated: NDArray[np.uint8]
    num_observed: NDArray[np.uint32]
    num_masked: NDArray[np.uint32]
    overwritten: NDArray[np.uint8]


class Numbers(NamedTuple):
    """The numbers that a column of counts counts: float64 [n]."""

    number: NDArray[np.float64]


class Trajectories(NamedTuple):
    """The slots of a run with all their rows."""

    candidates: Slots
    steps: Steps
    actions: Numbers
    hidden: Numbers
    states: Numbers
    observations: Numbers
    masks: Numbers


_STEPS: Final = TraceLevel.STEPS
GROUPS: Final = {
    "actions": "num_actions",
    "hidden": "num_hidden",
    "states": "num_states",
    "observations": "num_observed",
    "masks": "num_masked",
}
"""The groups of numbers, with the columns of steps that count them."""

_GROUP_OF: Final = {count: group for group, count in GROUPS.items()}

_STAGE_OF: Final = {
    "actions": Stage.CHOOSE,
    "hidden": Stage.CHOOSE,
    "states": Stage.TRANSITION,
    "observations": Stage.OBSERVE,
    "masks": Stage.MASK,
}


def _counted(group: str) -> Any:
    return column(f"steps/{GROUPS[group]}", "<u4", counts=group, stage=_STAGE_OF[group], is_required=False)


def _number(name: str, dtype: str, stage: Stage) -> Any:
    return column(f"steps/{name}", dtype, stage=stage, is_required=False)


ENVIRONMENT: Final = Schema(
    "kgverify-trajectories",
    Trajectories,
    (
        column("candidates/seed", "<i8", is_identity=True),
        column("candidates/slot", "<i4", is_identity=True),
        column("candidates/start", "<u4", is_identity=True),
        column("candidates/num_steps", "<u4", counts="steps", stage=Stage.AUTORESET),
        column("steps/kind", "<u1", stage=Stage.AUTORESET, codes=StepKind),
        _counted("actions"),
        _number("log_probability", "<f8", Stage.CHOOSE),
        _number("value", "<f8", Stage.CHOOSE),
        _counted("hidden"),
        _counted("states"),
        _number("reward", "<f8", Stage.REWARD),
        _number("terminated", "<u1", Stage.END),
        _number("truncated", "<u1", Stage.END),
        _counted("observations"),
        _counted("masks"),
        column("steps/overwritten", "<u1", stage=Stage.OBSERVE, codes=Overwritten, is_required=False),
        *(
            column(f"{group}/number", "<f8", stage=stage, is_required=False, level=_STEPS)
            for group, stage in _STAGE_OF.items()
        ),
    ),
    stages=tuple(Stage),
)
"""The schema of trajectories."""


class Rows(NamedTuple):
    """Rows of some slots, one for each, as a call returned them.

    slots: int64 [n]  strictly ascending
    kind:  the kind of all of them
    values: the columns of `Steps` that the rows have, [n] each
    numbers: the numbers of each group that the rows have, float64 [n, width]
    """

    slots: NDArray[np.int64]
    kind: StepKind
    values: Mapping[str, NDArray[Any]] = {}
    numbers: Mapping[str, NDArray[np.float64]] = {}


def assemble(seeds: NDArray[np.int64], slots: NDArray[np.int32], calls: Sequence[Rows]) -> Trajectories:
    """Return the rows of all calls, slot by slot.

    seeds, slots: int64 and int32 [N], what identifies the slots that the rows name by their index
    """
    owner = np.concatenate([np.zeros(0, np.int64), *(each.slots for each in calls)])
    order = np.argsort(owner, kind="stable")

    def gather(name: str) -> NDArray[Any]:
        group = _GROUP_OF.get(name, "")
        parts = [np.zeros(0)]
        for call in calls:
            default = call.numbers[group].shape[1] if group in call.numbers else call.kind if name == "kind" else 0
            parts.append(call.values.get(name, np.full(len(call.slots), default)))
        return np.concatenate(parts).astype(ENVIRONMENT.column_of[f"steps/{name}"].dtypes[0])[order]

    numbers = []
    for group in GROUPS:
        rows = [row for each in calls for row in each.numbers.get(group, np.zeros((len(each.slots), 0)))]
        numbers.append(Numbers(np.concatenate([np.zeros(0), *(rows[i] for i in order.tolist())])))
    per_slot = np.bincount(owner, minlength=len(seeds)).astype(np.uint32)
    candidates = Slots(seeds, slots, np.zeros(len(seeds), np.uint32), per_slot)
    return Trajectories(candidates, Steps(*map(gather, Steps._fields)), *numbers)


def number_actions(columns: Trajectories) -> NDArray[np.int64]:
    """Return the number of each row's action in its slot, from 1: int64 [T]. A RESET row has that of the action before, or 0."""
    is_step = columns.steps.kind == StepKind.STEP
    taken = np.cumsum(is_step)
    slot = np.repeat(columns.candidates.slot, columns.candidates.num_steps)
    begins = np.flatnonzero(np.diff(slot, prepend=-1))
    numbers: NDArray[np.int64] = taken - np.repeat((taken - is_step)[begins], np.diff(begins, append=len(slot)))
    return numbers


def first_actions(columns: Trajectories, num: int) -> Trajectories:
    """Return the rows up to the given number of actions in each slot, without a reset that follows the last one."""
    candidates, number = columns.candidates, number_actions(columns)
    is_kept = (number < num) | ((number == num) & (columns.steps.kind == StepKind.STEP))
    counts = count_where(is_kept, starts_of(candidates.num_steps)).astype(np.uint32)
    kept = select_steps(columns, np.flatnonzero(is_kept), ENVIRONMENT)
    return kept._replace(candidates=candidates._replace(num_steps=counts))


def without_numbers(columns: Trajectories, names: Iterable[str], rows: NDArray[np.bool_]) -> Trajectories:
    """Return the same rows without the numbers of some groups in some rows: bool [T]."""
    steps: Any = columns.steps
    groups: Any = {}
    for group in names:
        counts = getattr(steps, GROUPS[group])
        groups[group] = Numbers(getattr(columns, group).number[np.repeat(~rows, counts)])
        steps = steps._replace(**{GROUPS[group]: np.where(rows, 0, counts).astype(np.uint32)})
    return columns._replace(steps=steps, **groups)


def cut_at_actions(columns: Trajectories) -> Trajectories:
    """Return the same rows with a candidate for each action: its row, and that of the reset that follows."""
    candidates, steps = columns.candidates, columns.steps
    owner = np.repeat(np.arange(len(candidates.slot)), candidates.num_steps)
    begins = np.flatnonzero((np.diff(owner, prepend=-1) > 0) | (steps.kind == StepKind.STEP))
    cut = Slots(
        candidates.seed[owner[begins]],
        candidates.slot[owner[begins]],
        number_actions(columns)[begins].astype(np.uint32),
        np.diff(begins, append=len(owner)).astype(np.uint32),
    )
    return columns._replace(candidates=cut)


def as_numbers(values: Any) -> NDArray[np.float64]:
    """Return an array of any type as float64 [n, width]; whole numbers beyond 2^53 as their upper and lower 32 bits each.

    -0.0 becomes 0.0, and every NaN the same one, so that equal numbers have equal bits.
    """
    array = np.asarray(values)
    flat = array.reshape(len(array), int(np.prod(array.shape[1:])))
    if flat.dtype.kind in "iu" and flat.dtype.itemsize == 8 and flat.size:
        most = max(abs(int(flat.min())), abs(int(flat.max())))
        if most > 1 << 53:
            halves = np.stack((flat >> 32, flat & np.array(0xFFFFFFFF, flat.dtype)), axis=2)
            return halves.reshape(len(flat), -1).astype(np.float64)
    numbers = flat.astype(np.float64) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    return numbers
