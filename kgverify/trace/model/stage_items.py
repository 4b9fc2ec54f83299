"""The outputs of the stages of a step, as values and as the columns of a trace of level `deep`."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin, Stage
from kgverify.trace.model.columns import FIELD_OF, Columns, StageItems, starts_of
from kgverify.trace.model.offsets import refuse_first

StageOutputs: TypeAlias = dict[Stage, Any]
"""The output of each stage of one step, as ids, in the order of the stages; an engine leaves out what it does not know.

`select`: an atom. `match_rules`, `match_facts`: indices of the clauses. `resolve` to `revisit`: (origin kind, origin,
atoms) of each resolvent, up to `prune` with variables renumbered canonically, since their numbers are meaningless before
`rename`. `close`: the same, preceded by the goal's kind. `limit`: the same, and the two dropped counts. `score`: the
scores. `choose`: the index. `advance`: the next goal's kind and atoms, and the depth. `finish`: the outcome.
"""

_NUMBER_OF: Final[dict[Stage, int]] = {stage: number for number, stage in enumerate(STEP_STAGES, 1)}
_SINGLE: Final = (Stage.SELECT, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)

_WITH_ATOMS: Final = tuple(STEP_STAGES[STEP_STAGES.index(Stage.RESOLVE) : STEP_STAGES.index(Stage.LIMIT) + 1])

_HAVING: Final = {
    "kind": (Stage.CLOSE, Stage.LIMIT, Stage.ADVANCE),
    "origin_kind": (Stage.MATCH_RULES, Stage.MATCH_FACTS, *_WITH_ATOMS),
    "origin": (Stage.MATCH_RULES, Stage.MATCH_FACTS, *_WITH_ATOMS),
    "number": (Stage.SCORE, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH),
    "num_atoms": (Stage.SELECT, *_WITH_ATOMS, Stage.ADVANCE),
}
"""The stages whose items have a value in a column; items of other stages have 0 there."""

_Item: TypeAlias = tuple[int, int, int, float, Sequence[Sequence[int]]]
"""Kind, origin kind, origin, number, atoms."""


def encode_stage_outputs(outputs: Iterable[StageOutputs]) -> StageItems:
    """Encode the outputs of steps, one after the other, as columns."""
    told: list[int] = []
    num_items: list[int] = []
    stages: list[int] = []
    items: list[_Item] = []
    for step in outputs:
        known = [stage for stage in STEP_STAGES if stage in step]
        first = len(items)
        for stage in known:
            given = _items_of(stage, step[stage])
            items += given
            stages += [_NUMBER_OF[stage]] * len(given)
        told.append(sum(1 << (_NUMBER_OF[stage] - 1) for stage in known))
        num_items.append(len(items) - first)
    kinds, origin_kinds, origins, numbers, atoms = zip(*items, strict=True) if items else ((), (), (), (), ())
    values = told, num_items, stages, kinds, origin_kinds, origins, numbers, [len(each) for each in atoms]
    columns: list[Any] = [
        np.array(column, FIELD_OF[f"stages/{name}"].dtypes[0])
        for name, column in zip(StageItems._fields, values, strict=False)
    ]
    columns.append(np.array([atom for each in atoms for atom in each], np.int32).reshape(-1, 3))
    return StageItems(*columns)


def _items_of(stage: Stage, given: Any) -> list[_Item]:
    if stage is Stage.SELECT:
        return [(0, 0, 0, 0.0, [given])]
    if stage in (Stage.MATCH_RULES, Stage.MATCH_FACTS):
        origin_kind = Origin.RULE if stage is Stage.MATCH_RULES else Origin.FACT
        return [(0, origin_kind, clause, 0.0, ()) for clause in given]
    if stage is Stage.SCORE:
        return [(0, 0, 0, score, ()) for score in given]
    if stage in (Stage.CHOOSE, Stage.FINISH):
        return [(0, 0, 0, given, ())]
    if stage is Stage.ADVANCE:
        kind, atoms, depth = given
        return [(kind, 0, 0, depth, atoms)]
    if stage is Stage.LIMIT:
        given = given[0]
    with_kind = (item if len(item) == 4 else (GoalKind.GOAL, *item) for item in given)
    return [(kind, origin_kind, origin, 0.0, atoms) for kind, origin_kind, origin, atoms in with_kind]


def read_step_outputs(columns: Columns) -> StageOutputs:
    """Return the stage outputs that follow from a single recorded step, without the stages before `limit` and `advance`."""
    steps, resolvents = columns.steps, columns.resolvents
    atoms, starts = resolvents.atoms.tolist(), starts_of(resolvents.num_atoms).tolist()
    goals = (tuple(map(tuple, atoms[begin:end])) for begin, end in pairwise(starts))
    made_by = resolvents.kind.tolist(), resolvents.origin_kind.tolist(), resolvents.origin.tolist()
    limited = tuple(zip(*made_by, goals, strict=True))
    return {
        Stage.LIMIT: (limited, int(steps.dropped_atoms[0]), int(steps.dropped_resolvents[0])),
        Stage.SCORE: tuple(resolvents.score.tolist()),
        Stage.CHOOSE: int(steps.choice[0]),
        Stage.FINISH: int(steps.outcome[0]),
    }


def ends_alike(outputs: StageOutputs, own: StageOutputs, tolerance: float) -> bool:
    """Return whether a probe ends as a step did: known outputs from `limit` on are equal, and scores within the tolerance."""

    def is_same(stage: Stage) -> bool:
        left, right = outputs[stage], own[stage]
        if stage is not Stage.SCORE:
            return bool(left == right)
        return len(left) == len(right) and bool(np.allclose(left, right, rtol=0, atol=tolerance, equal_nan=True))

    last = STEP_STAGES[STEP_STAGES.index(Stage.LIMIT) :]
    return all(is_same(stage) for stage in last if stage in outputs and stage in own)


class StageReader:
    """A reader of the stage outputs of single steps in some columns."""

    def __init__(self, columns: Columns) -> None:
        self._items = columns.stages
        self._steps = columns.steps

    @property
    def has_stages(self) -> bool:
        """True if stage outputs were recorded at all."""
        return len(self._items.told) > 0

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return starts_of(self._items.num_items)

    @cached_property
    def _atom_starts(self) -> NDArray[np.int64]:
        return starts_of(self._items.num_atoms)

    def read(self, row: int) -> StageOutputs:
        """Return the known outputs of the step in a row of the step columns."""
        if not self.has_stages:
            return {}
        told = int(self._items.told[row])
        begin, end = self._starts[row : row + 2].tolist()
        stages = self._items.stage[begin:end]
        outputs: StageOutputs = {}
        for stage, number in _NUMBER_OF.items():
            if told >> (number - 1) & 1:
                low, high = np.searchsorted(stages, [number, number + 1]).tolist()
                outputs[stage] = self._output(stage, row, begin + low, begin + high)
        return outputs

    def _output(self, stage: Stage, row: int, begin: int, end: int) -> Any:
        items = self._items
        if stage in (Stage.MATCH_RULES, Stage.MATCH_FACTS):
            return tuple(items.origin[begin:end].tolist())
        if stage is Stage.SCORE:
            return tuple(items.number[begin:end].tolist())
        if stage in (Stage.CHOOSE, Stage.FINISH):
            return int(items.number[begin])
        goals = [self._goal(i) for i in range(begin, end)]
        if stage is Stage.SELECT:
            return goals[0][0]
        if stage is Stage.ADVANCE:
            return int(items.kind[begin]), goals[0], int(items.number[begin])
        made_by = items.origin_kind[begin:end].tolist(), items.origin[begin:end].tolist()
        if stage not in (Stage.CLOSE, Stage.LIMIT):
            return tuple(zip(*made_by, goals, strict=True))
        listed = tuple(zip(items.kind[begin:end].tolist(), *made_by, goals, strict=True))
        if stage is Stage.CLOSE:
            return listed
        return listed, int(self._steps.dropped_atoms[row]), int(self._steps.dropped_resolvents[row])

    def _goal(self, item: int) -> tuple[tuple[int, ...], ...]:
        begin, end = self._atom_starts[item : item + 2].tolist()
        return tuple(map(tuple, self._items.atoms[begin:end].tolist()))


def check_stage_items(items: StageItems, where: str) -> None:
    """Raise a UserError unless the items of each known stage are possible. The caller has checked lengths and counts."""
    num_steps = len(items.told)
    owner = np.repeat(np.arange(num_steps), items.num_items)
    stage = items.stage.astype(np.int64)
    _check(stage, (stage < 1) | (stage > len(STEP_STAGES)), "stage", "the number of a stage, 1 to 13", where)
    falls = np.zeros(len(stage), np.bool_)
    falls[1:] = (stage[1:] < stage[:-1]) & (owner[1:] == owner[:-1])
    _check(stage, falls, "stage", "ascending numbers within a step", where)
    _check(items.told, items.told >> len(STEP_STAGES) > 0, "told", "a bit for each of 13 stages", where)
    is_untold = (items.told[owner].astype(np.int64) >> (stage - 1) & 1) == 0
    _check(stage, is_untold, "stage", "a stage whose bit is set in `told`", where)
    for each in _SINGLE:
        number = _NUMBER_OF[each]
        given = np.bincount(owner[stage == number], minlength=num_steps)
        is_wrong = given != (items.told.astype(np.int64) >> (number - 1) & 1)
        _check(given, is_wrong, "num_items", f"one item of `{each.value}` where its bit in `told` is set", where)
    _check(
        items.num_atoms, (stage == _NUMBER_OF[Stage.SELECT]) & (items.num_atoms != 1), "num_atoms", "one atom", where
    )
    whole = np.isin(stage, [_NUMBER_OF[each] for each in (Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)])
    with np.errstate(invalid="ignore"):
        is_wrong = whole & ~((np.abs(items.number) < 1 << 31) & (np.trunc(items.number) == items.number))
    _check(items.number, is_wrong, "number", "a whole number", where)
    _check_unused(items, where)


def _check_unused(items: StageItems, where: str) -> None:
    """Raise a UserError for a nonzero value in a column that the item's stage does not use: it would never be compared."""
    for name, stages in _HAVING.items():
        values = getattr(items, name)
        has_it = np.isin(items.stage, [_NUMBER_OF[stage] for stage in stages])
        _check(values, ~has_it & (values != 0), name, "0, since the stage of this item has no such value", where)
    for stage, kind in ((Stage.MATCH_RULES, Origin.RULE), (Stage.MATCH_FACTS, Origin.FACT)):
        is_wrong = (items.stage == _NUMBER_OF[stage]) & (items.origin_kind != kind)
        _check(
            items.origin_kind, is_wrong, "origin_kind", f"{kind.value}, the code of what `{stage.value}` lists", where
        )


def _check(values: NDArray[Any], is_wrong: NDArray[np.bool_], name: str, expected: str, where: str) -> None:
    refuse_first(
        is_wrong,
        f"is {{}}, expected {expected}",
        values,
        where=f"{where}:stages/{name}",
        fix="write what docs/traces.md prescribes for the stages",
    )
