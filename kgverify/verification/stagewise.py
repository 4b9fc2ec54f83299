"""Stages at fault behind the first one: those whose output is wrong for their own input.

The earliest stage whose output differs hides the later ones, whose inputs differ from then on. A later stage is also at fault
if its input is the same item by item, or if its output does not follow from the actual engine's own input.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from kgverify.comparison.locate import is_close
from kgverify.engines.protocol import StageOutputs
from kgverify.program.limits import Limits
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Stage
from kgverify.step.plain_step import find_outcome


class StageFault(NamedTuple):
    """A stage that is wrong by itself: its correct output, as far as it can be inferred, and its actual output."""

    stage: Stage
    expected: Any
    actual: Any


def find_later_faults(
    culprit: Stage, expected: StageOutputs, actual: StageOutputs, limits: Limits, tolerance: float
) -> Iterator[StageFault]:
    """Yield the stages after the culprit that are at fault themselves. tolerance: of scores, absolute."""
    given = _Given(expected, actual, limits, tolerance)
    for stage in STEP_STAGES[STEP_STAGES.index(culprit) + 1 :]:
        if stage not in _JUDGES or stage not in expected:
            continue
        judge, read = _JUDGES[stage]
        # Not every engine shows every stage.
        if not all(each in side for side in ((actual,) if is_own(stage) else (expected, actual)) for each in read):
            continue
        fault = judge(given)
        if fault is not None:
            yield StageFault(stage, *fault)


def is_own(stage: Stage) -> bool:
    """Return whether a stage is judged by the actual engine's outputs alone."""
    return stage in (Stage.CLOSE, Stage.LIMIT, Stage.CHOOSE, Stage.FINISH)


class _Given(NamedTuple):
    """The outputs of both engines in one step."""

    expected: StageOutputs
    actual: StageOutputs
    limits: Limits
    tolerance: float


_Judgement = tuple[Any, Any] | None


def _judge_match_facts(given: _Given) -> _Judgement:
    """Judge the matching facts, which do not depend on the matching rules."""
    return _unless_equal(given.expected[Stage.MATCH_FACTS], given.actual[Stage.MATCH_FACTS])


def _judge_items(stage: Stage, before: Stage | None) -> Callable[[_Given], _Judgement]:
    """Return the judge of a stage that maps resolvents one to one: it compares those with the same clause and input."""

    def judge(given: _Given) -> _Judgement:
        left, right = _by_clause(given.expected[stage]), _by_clause(given.actual[stage])
        shared = [clause for clause in left if clause in right]
        if before is not None:
            inputs = [_by_clause(side[before]) for side in (given.expected, given.actual)]
            shared = [clause for clause in shared if inputs[0].get(clause) == inputs[1].get(clause)]
        differing = [clause for clause in shared if left[clause] != right[clause]]
        if not differing:
            return None
        return tuple(tuple((*clause, side[clause]) for clause in differing) for side in (left, right))  # type: ignore[return-value]

    return judge


def _judge_revisit(given: _Given) -> _Judgement:
    """Judge the resolvents that remain, among those of both engines. An empty one remains, so pruning counts as well."""
    sides = given.expected, given.actual
    named, pruned, left = (
        [_by_clause(side[stage]) for side in sides] for stage in (Stage.RENAME, Stage.PRUNE, Stage.REVISIT)
    )
    shared = [
        clause
        for clause in named[0]
        if all(outputs[1].get(clause, None) == outputs[0][clause] for outputs in (named, pruned))
    ]
    kept = [tuple((*clause, named[0][clause]) for clause in shared if clause in side) for side in left]
    return _unless_equal(*kept)


def _judge_close(given: _Given) -> _Judgement:
    """Judge `close`: a resolvent that pruning emptied replaces all others by TRUE; no resolvent at all becomes FALSE."""
    pruned, left = _by_clause(given.actual[Stage.PRUNE]), given.actual[Stage.REVISIT]
    proof = next((item for item in left if pruned.get(item[:2]) == ()), None)
    if proof is not None:
        wanted: tuple[Any, ...] = ((int(GoalKind.TRUE), *proof[:2], ()),)
    elif not left:
        wanted = ((int(GoalKind.FALSE), 0, 0, ()),)
    else:
        wanted = tuple((int(GoalKind.GOAL), *item) for item in left)
    return _unless_equal(wanted, tuple(tuple(item) for item in given.actual[Stage.CLOSE]))


def _judge_limit(given: _Given) -> _Judgement:
    """Judge `limit`: it keeps the first resolvents with few enough atoms, or FALSE. The output of a wrong `close` is skipped."""
    if _judge_close(given) is not None:
        return None
    closed = given.actual[Stage.CLOSE]
    if any(item[0] != GoalKind.GOAL for item in closed):
        return _unless_equal((closed, 0, 0), given.actual[Stage.LIMIT])
    fitting = [item for item in closed if len(item[3]) <= given.limits.max_atoms]
    kept = tuple(fitting[: given.limits.max_resolvents]) or ((int(GoalKind.FALSE), 0, 0, ()),)
    dropped = len(closed) - len(fitting), max(0, len(fitting) - given.limits.max_resolvents)
    return _unless_equal((kept, *dropped), given.actual[Stage.LIMIT])


def _judge_score(given: _Given) -> _Judgement:
    """Judge the scores of the resolvents that both engines have."""
    sides = []
    for outputs in (given.expected, given.actual):
        listed, scores = outputs[Stage.LIMIT][0], outputs[Stage.SCORE]
        if len(listed) != len(scores):
            return None
        sides.append(dict(zip(((item[0], item[3]) for item in listed), scores, strict=True)))
    left, right = sides
    differing = [item for item in left if item in right and not is_close(left[item], right[item], given.tolerance)]
    if not differing:
        return None
    return tuple(left[item] for item in differing), tuple(right[item] for item in differing)


def _judge_choose(given: _Given) -> _Judgement:
    """Judge the choice: the first of the engine's own highest scores."""
    scores = given.actual[Stage.SCORE]
    if not scores or any(map(math.isnan, scores)):
        return None
    return _unless_equal(scores.index(max(scores)), given.actual[Stage.CHOOSE])


def _judge_finish(given: _Given) -> _Judgement:
    """Judge the outcome by the engine's own chosen resolvent and depth."""
    listed, choice = given.actual[Stage.LIMIT][0], given.actual[Stage.CHOOSE]
    if not 0 <= choice < len(listed):
        return None
    wanted = find_outcome(given.limits, GoalKind(listed[choice][0]), given.actual[Stage.ADVANCE][2])
    return _unless_equal(int(wanted), int(given.actual[Stage.FINISH]))


_JUDGES: Final[dict[Stage, tuple[Callable[[_Given], _Judgement], tuple[Stage, ...]]]] = {
    Stage.MATCH_FACTS: (_judge_match_facts, (Stage.MATCH_FACTS,)),
    Stage.RESOLVE: (_judge_items(Stage.RESOLVE, None), (Stage.RESOLVE,)),
    Stage.PRUNE: (_judge_items(Stage.PRUNE, Stage.RESOLVE), (Stage.RESOLVE, Stage.PRUNE)),
    Stage.RENAME: (_judge_items(Stage.RENAME, Stage.PRUNE), (Stage.PRUNE, Stage.RENAME)),
    Stage.REVISIT: (_judge_revisit, (Stage.PRUNE, Stage.RENAME, Stage.REVISIT)),
    Stage.CLOSE: (_judge_close, (Stage.PRUNE, Stage.REVISIT, Stage.CLOSE)),
    Stage.LIMIT: (_judge_limit, (Stage.PRUNE, Stage.REVISIT, Stage.CLOSE, Stage.LIMIT)),
    Stage.SCORE: (_judge_score, (Stage.LIMIT, Stage.SCORE)),
    Stage.CHOOSE: (_judge_choose, (Stage.SCORE, Stage.CHOOSE)),
    Stage.FINISH: (_judge_finish, (Stage.LIMIT, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)),
}
"""The judge of each stage, and the outputs that it reads."""


def _by_clause(items: Any) -> dict[tuple[int, int], Any]:
    return {(kind, origin): goal for kind, origin, goal in items}


def _unless_equal(expected: Any, actual: Any) -> _Judgement:
    return None if expected == actual else (expected, actual)
