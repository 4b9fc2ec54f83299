"""The trajectory of a vectorised environment as columns: the second schema, beside that of derivations.

A candidate is a slot: the place of one environment in a batch, with the seed of its first episode. A step is a row that tells
what one call returned to the slot: RESET for the first observation of an episode, STEP for what followed an action. The row of
the step that ends an episode holds the observation that ended it, and a RESET row follows, so that the rows do not depend on
the mode of autoreset. Every number is a float64; a whole number that has more than 53 bits is kept as two.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import select_steps, starts_of
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
    num = sum(len(each.slots) for each in calls)
    owner = np.concatenate([np.zeros(0, np.int64), *(each.slots for each in calls)])
    order = np.argsort(owner, kind="stable")

    def gather(name: str, dtype: Any) -> NDArray[Any]:
        parts = [np.asarray(each.values.get(name, np.zeros(len(each.slots))), dtype) for each in calls]
        return np.concatenate([np.zeros(0, dtype), *parts])[order]

    counted = {}
    numbers = {}
    for group, count in GROUPS.items():
        per_call = [each.numbers.get(group, np.zeros((len(each.slots), 0))) for each in calls]
        widths = [np.full(len(each), each.shape[1], np.uint32) for each in per_call]
        counted[count] = np.concatenate([np.zeros(0, np.uint32), *widths])[order]
        rows = [row for each in per_call for row in each]
        numbers[group] = Numbers(
            np.concatenate([np.zeros(0), *(rows[i] for i in order.tolist())]) if num else np.zeros(0)
        )
    kinds = [np.full(len(each.slots), each.kind, np.uint8) for each in calls]
    steps = Steps(
        kind=np.concatenate([np.zeros(0, np.uint8), *kinds])[order],
        log_probability=gather("log_probability", np.float64),
        value=gather("value", np.float64),
        reward=gather("reward", np.float64),
        terminated=gather("terminated", np.uint8),
        truncated=gather("truncated", np.uint8),
        overwritten=gather("overwritten", np.uint8),
        **counted,
    )
    per_slot = np.bincount(owner, minlength=len(seeds)).astype(np.uint32)
    start = np.zeros(len(seeds), np.uint32)
    return Trajectories(Slots(seeds, slots, start, per_slot), steps, *(numbers[group] for group in GROUPS))


def first_actions(columns: Trajectories, num: int) -> Trajectories:
    """Return the rows up to the given number of actions in each slot, without a reset that follows the last one."""
    candidates, steps = columns.candidates, columns.steps
    is_step = steps.kind == StepKind.STEP
    owner = np.repeat(np.arange(len(candidates.slot)), candidates.num_steps)
    taken = np.cumsum(is_step)
    first = starts_of(candidates.num_steps)[:-1]
    number = taken - (taken[first] - is_step[first])[owner] if len(owner) else taken
    kept = np.flatnonzero((number < num) | ((number == num) & is_step))
    counts = np.bincount(owner[kept], minlength=len(candidates.slot)).astype(np.uint32)
    return select_steps(columns, kept, ENVIRONMENT)._replace(candidates=candidates._replace(num_steps=counts))


def without_resets(columns: Trajectories) -> Trajectories:
    """Return the same rows without the numbers of RESET rows."""
    steps: Any = columns.steps
    groups: Any = {}
    is_reset = steps.kind == StepKind.RESET
    for group, count in GROUPS.items():
        counts = getattr(steps, count)
        groups[group] = Numbers(getattr(columns, group).number[np.repeat(~is_reset, counts)])
        steps = steps._replace(**{count: np.where(is_reset, 0, counts).astype(np.uint32)})
    return columns._replace(steps=steps, **groups)


def cut_at_actions(columns: Trajectories) -> Trajectories:
    """Return the same rows with a candidate for each action: its row, and that of the reset that follows."""
    candidates, steps = columns.candidates, columns.steps
    owner = np.repeat(np.arange(len(candidates.slot)), candidates.num_steps)
    first = np.concatenate(([True], owner[1:] != owner[:-1])) if len(owner) else np.zeros(0, np.bool_)
    begins = np.flatnonzero(first | (steps.kind == StepKind.STEP))
    actions = np.cumsum(steps.kind == StepKind.STEP)
    before = (actions - (steps.kind == StepKind.STEP))[begins]
    of_slot = (
        before - actions[np.flatnonzero(first)][owner[begins]] + (steps.kind == StepKind.STEP)[first][owner[begins]]
    )
    cut = Slots(
        candidates.seed[owner[begins]],
        candidates.slot[owner[begins]],
        (of_slot + (steps.kind[begins] == StepKind.STEP)).astype(np.uint32),
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
