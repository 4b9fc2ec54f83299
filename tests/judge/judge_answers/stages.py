"""Known stages: outputs of the stages of a step with known mistakes, and the stages that are found at fault.

Every stage is altered in several ways, alone and together with each later stage, in steps with proofs, ties, dropped resolvents
and the depth limit.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final

from judge_answers.answers import Answer

from kgverify import Limits, Stage
from kgverify.comparison.locate import first_difference, name_stage
from kgverify.comparison.result import Divergence, Level
from kgverify.comparison.step_view import Names
from kgverify.program.outcomes import STEP_STAGES, DifferenceClass, Outcome
from kgverify.trace.model.stage_items import StageOutputs
from kgverify.trace.model.trace import Trace
from kgverify.verification.replay import find_later_faults

LIMITS: Final = Limits(max_depth=4, max_atoms=2, max_resolvents=3)

_OF_ITEMS: Final = (Stage.RESOLVE, Stage.PRUNE, Stage.RENAME, Stage.REVISIT)
_TOLERANCE: Final = 2.0**-10
_GOALS: Final = (
    ((0, 3, -1), (1, -1, 4)),
    ((0, 3, 5), (1, 5, -1)),
    ((1, -1, 4),),
    ((0, -1, -2), (1, -2, 4), (2, -1, 6)),
    ((2, 7, 8),),
)


def known_steps() -> Iterator[tuple[str, StageOutputs]]:
    """Yield the outputs of right steps: of resolvents that are kept and dropped, of proofs, and of none."""
    clauses = ((1, 0), (1, 1), (2, 0), (2, 3), (2, 4))
    rules, facts = tuple(n for kind, n in clauses if kind == 1), tuple(n for kind, n in clauses if kind == 2)
    resolved = tuple((*clause, goal) for clause, goal in zip(clauses, _GOALS, strict=True))
    proofs = tuple((*clause, () if clause[1] >= 3 else goal) for clause, goal in zip(clauses, _GOALS, strict=True))
    goals = tuple((0, *item) for item in resolved)
    true, false = (1, *proofs[3]), (2, 0, 0, ())
    of_goals = (goals[0], goals[1], goals[2]), 1, 1
    for name, pruned, left, closed, limited, scores, goal, depth, outcome in (
        ("goals", resolved, resolved, goals, of_goals, (-1.0, -0.5, -0.5), _GOALS[1], 3, Outcome.OPEN),
        ("the last depth", resolved, resolved, goals, of_goals, (-0.5, -0.5, -9.0), _GOALS[0], 4, Outcome.DEPTH_LIMIT),
        ("proofs", proofs, proofs, (true,), ((true,), 0, 0), (0.0,), (), 2, Outcome.PROVED),
        ("no resolvent", (), (), (false,), ((false,), 0, 0), (0.0,), (), 1, Outcome.FAILED),
        ("revisited", resolved, resolved[:1], goals[:1], (goals[:1], 0, 0), (-1.0,), _GOALS[0], 1, Outcome.OPEN),
        ("all too long", resolved[3:4], resolved[3:4], goals[3:4], ((false,), 1, 0), (0.0,), (), 1, Outcome.FAILED),
    ):
        choice = scores.index(max(scores))
        yield (
            name,
            {
                Stage.SELECT: (0, 3, -1),
                Stage.MATCH_RULES: rules if pruned else (),
                Stage.MATCH_FACTS: facts if pruned else (),
                Stage.RESOLVE: resolved if pruned else (),
                Stage.PRUNE: pruned,
                Stage.RENAME: pruned,
                Stage.REVISIT: left,
                Stage.CLOSE: closed,
                Stage.LIMIT: limited,
                Stage.SCORE: scores,
                Stage.CHOOSE: choice,
                Stage.ADVANCE: (limited[0][choice][0], goal, depth),
                Stage.FINISH: int(outcome),
            },
        )


def _alter(stage: Stage, output: Any) -> Iterator[Any]:
    """Yield other outputs of a stage."""
    if stage in (Stage.CHOOSE, Stage.FINISH):
        yield output + 1
    elif stage is Stage.SELECT:
        yield 1, *output[1:]
    elif stage is Stage.ADVANCE:
        yield output[0], ((0, 9, 9),), output[2]
        yield output[0], output[1], output[2] + 1
    elif stage is Stage.SCORE:
        yield (output[0] + 0.9 * _TOLERANCE, *output[1:])
        yield (*output[:-1], output[-1] + 0.5)
        yield (*output[:-1], math.nan)
    elif stage is Stage.LIMIT:
        for items in _alter_items(output[0]):
            yield items, *output[1:]
        yield output[0], output[1] + 1, output[2]
        yield output[0], output[1], output[2] + 1
    else:
        yield from _alter_items(output)


def _alter_items(items: tuple[Any, ...]) -> Iterator[Any]:
    if not items:
        return
    yield items[1:]
    yield items[:-1]
    if len(items) > 1:
        yield items[::-1]
    if isinstance(items[0], tuple):
        yield (*items[:-1], (*items[-1][:-1], items[-1][-1][1:]))
        yield ((*items[0][:-1], ((0, 9, 9), *items[0][-1])), *items[1:])


def known_stage_answers(trace: Trace) -> Iterator[tuple[str, Answer]]:
    """Yield what is found in each known step; the trace gives the names."""
    names = Names(trace)
    for name, outputs in known_steps():
        found: list[Any] = []
        for altered in _alter_one_or_two(outputs):
            first = first_difference(outputs, altered, _TOLERANCE)
            if first is None:
                found.append(None)
                continue
            named = name_stage(_DIVERGENCE, first, outputs[first], altered[first], names)
            later = find_later_faults(first, outputs, altered, LIMITS, _TOLERANCE)
            found.append((named.stage, named.field, named.expected, named.actual, list(later)))
        digest = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
        yield f"stages: {name}", Answer("stages", len(found), 0, 0, digest)


def _alter_one_or_two(outputs: StageOutputs) -> Iterator[StageOutputs]:
    for number, stage in enumerate(STEP_STAGES):
        # Not every engine shows every stage.
        shown = {each: output for each, output in outputs.items() if each is not stage}
        for later in STEP_STAGES[number + 1 :]:
            for other in list(_alter(later, shown[later]))[:1]:
                yield {**shown, Stage.MATCH_RULES: (), later: other}
        for output in _alter(stage, outputs[stage]) if stage in outputs else ():
            altered = {**outputs, stage: output}
            yield altered
            # What goes wrong in one stage is handed on by the next ones.
            handed_on = [each for each in _OF_ITEMS if stage in _OF_ITEMS and outputs[each] == outputs[stage]]
            yield {**altered, **{each: output for each in handed_on if STEP_STAGES.index(each) > number}}
            for later in STEP_STAGES[number + 1 :]:
                for other in list(_alter(later, altered[later]))[:2]:
                    yield {**altered, later: other}


_DIVERGENCE: Final = Divergence(
    candidate=0,
    atom="",
    query=0,
    side="head",
    step=1,
    stage=Stage.SELECT.value,
    field="steps.choice",
    level=Level.CHOICE,
    expected=0,
    actual=1,
    kind=DifferenceClass.UNCLASSIFIED,
)
