"""A step stage by stage, as far as the traces of a saved run show it.

A trace of level `deep` contains the output of each stage. Any other trace contains the result of the step, from which the
outputs of some stages can be inferred. The stage at fault shows the values of the divergence, from the replay if there was
one. A replay has shown that the stages before it agree. Differences of stages after it are consequences.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from kgverify.comparison.locate import is_close, is_same_output, render_output
from kgverify.comparison.result import Divergence
from kgverify.comparison.step_view import Names, StepView, canonical, outcome_name
from kgverify.errors import count_of
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import STEP_STAGES, Stage
from kgverify.report.derivations import SidesReader
from kgverify.report.wording import clip, value_lines
from kgverify.trace.model.stage_items import StageOutputs

INPUT: Final = "(input)"
"""The first line of a walk: the goal that the step begins with. It is not a stage."""


class Mark(StrEnum):
    """The result of comparing a stage of both sides."""

    AGREES = "agrees"
    DIFFERS = "differs"
    FOLLOWS = "follows"
    NOT_HELD = "not held"


class StageLine(NamedTuple):
    """A stage of a step.

    expected, actual: the output of each side's stage, item by item; empty if a trace does not contain it
    note:             the source of the lines, or the reason why they are missing
    is_culprit:       whether the divergence was found here
    """

    stage: str
    mark: Mark
    expected: tuple[str, ...]
    actual: tuple[str, ...]
    note: str
    is_culprit: bool = False


class _Side(NamedTuple):
    """One side's step, with the data from which its stages are inferred.

    following: the next step, if the trace contains it
    outputs:   the outputs of its stages, as far as they were recorded
    """

    step: StepView
    following: StepView | None
    names: Names
    fields: frozenset[str]
    outputs: StageOutputs


class _Read(NamedTuple):
    """The output of a stage on one side: the key to compare, and the lines to show."""

    key: Any
    lines: tuple[str, ...]


def walk_stages(
    reader: SidesReader, candidate: int, step: int, divergence: Divergence | None, others: Sequence[Divergence] = ()
) -> tuple[StageLine, ...]:
    """Return the stages of a step, its input first.

    divergence: the one found at this step, if any
    others:     further divergences of the step, in lockstep: of other stages at fault
    """
    expected, actual, is_same_way = reader.read(candidate, step)
    if expected is None or actual is None:
        return tuple(_of_divergence(divergence)) if divergence else ()
    following = reader.read(candidate, step + 1)
    is_own_run = not reader.has_stepped
    outputs = reader.outputs(candidate, step)
    sides = (
        _Side(expected, following.expected, reader.names[0], reader.expected_fields, outputs[0]),
        _Side(actual, following.actual if is_own_run else None, reader.names[1], reader.actual_fields, outputs[1]),
    )
    # Other steps of the actual engine say nothing about the step that diverged.
    has_actual = is_same_way or divergence is None
    return tuple(_walk(sides, divergence, others, is_same_way, has_actual, reader.score_tolerance))


def _walk(
    sides: tuple[_Side, _Side],
    divergence: Divergence | None,
    others: Sequence[Divergence],
    is_same_way: bool,
    has_actual: bool,
    tolerance: float,
) -> Iterator[StageLine]:
    culprit = _index_of_culprit(divergence, sides[0].step.goal == sides[1].step.goal)
    was_replayed = divergence is not None and divergence.is_replayed
    is_of_step = culprit <= len(STEP_STAGES)
    has_differed = not is_same_way or not is_of_step
    also_wrong = {each.stage: each for each in others}
    # A replay has shown that the stages before the first one at fault agree.
    first = min([culprit, *(STEP_STAGES.index(Stage(s)) + 1 for s in also_wrong if s in STEP_STAGES)])
    for index, stage in enumerate((INPUT, *STEP_STAGES)):
        note, is_same, reads = _read(stage, sides, tolerance)
        if not has_actual:
            note, is_same, reads = (
                "the saved traces do not contain the actual side of this step",
                False,
                (reads[0], None),
            )
        lines = tuple(each.lines if each else () for each in reads)
        mark = Mark.AGREES
        if index == culprit and divergence is not None:
            yield from _of_divergence(divergence, stage)
            has_differed = True
            continue
        if stage in also_wrong:
            (line,) = _of_divergence(also_wrong[stage])
            yield line._replace(is_culprit=False, note=f"at fault as well, a divergence of its own; {line.note}")
            has_differed = True
            continue
        if was_replayed and is_of_step and stage != INPUT and index < first:
            note = "both outputs were equal when the step was replayed"
        elif stage in sides[0].outputs and stage in sides[1].outputs:
            if not is_same:
                mark = Mark.FOLLOWS if has_differed else Mark.DIFFERS
                has_differed = True
        elif stage == Stage.SELECT or reads[0] is None or reads[1] is None:
            mark = Mark.NOT_HELD
        elif not is_same and index < culprit and is_of_step:
            mark, note = Mark.NOT_HELD, "a later stage causes the difference; a trace does not show more of this one"
        elif not is_same:
            mark = Mark.FOLLOWS if has_differed else Mark.DIFFERS
            has_differed = True
        yield StageLine(stage, mark, lines[0], lines[1], note)
    if divergence is not None and not is_of_step:
        yield from _of_divergence(divergence)


def _index_of_culprit(divergence: Divergence | None, is_same_goal: bool) -> int:
    """Return the index of the culprit in a walk: -1 without one, and after the last if it is not a stage of a step."""
    if divergence is None:
        return -1
    if divergence.stage == Stage.ADVANCE and (not is_same_goal or divergence.field.startswith("steps.")):
        # The step before made the goal that this one begins with.
        return 0
    names = [stage.value for stage in STEP_STAGES]
    return names.index(divergence.stage) + 1 if divergence.stage in names else len(STEP_STAGES) + 1


def _of_divergence(divergence: Divergence, shown_as: str = "") -> Iterator[StageLine]:
    note = "inferred from the traces; only the differences"
    if divergence.field.startswith("stage."):
        note = "recorded; only the differences"
    if divergence.is_replayed and divergence.field.startswith("stage."):
        note = "replayed; only the differences"
    elif divergence.is_replayed:
        note = "replayed alone, the step is as expected: the fault depends on the steps that run beside it"
    if shown_as == INPUT:
        note = f"the output of {divergence.stage} in the step before; {note}"
    values = tuple(value_lines(divergence.expected)), tuple(value_lines(divergence.actual))
    yield StageLine(shown_as or divergence.stage, Mark.DIFFERS, *values, note=note, is_culprit=True)


def _read(
    stage: str, sides: tuple[_Side, _Side], tolerance: float
) -> tuple[str, bool, tuple[_Read | None, _Read | None]]:
    """Return the note, whether both sides are equal, and the output of each."""
    recorded = [side.outputs.get(Stage(stage)) if stage != INPUT else None for side in sides]
    if recorded[0] is not None and recorded[1] is not None:
        is_same = is_same_output(Stage(stage), recorded[0], recorded[1], tolerance)
        lines = (
            map(clip, render_output(Stage(stage), each, side.names)) for each, side in zip(recorded, sides, strict=True)
        )
        left, right = (_Read(None, tuple(each)) for each in lines)
        return "recorded", is_same, (left, right)
    if stage == Stage.SCORE:
        return _read_scores(sides, tolerance)
    reads = _infer(stage, sides[0]), _infer(stage, sides[1])
    is_same = reads[0] is not None and reads[1] is not None and reads[0].key == reads[1].key
    return _NOTES.get(stage, ""), is_same, reads


def _infer(stage: str, side: _Side) -> _Read | None:
    """Infer the output of a stage from the result of its step; None if the trace does not contain it."""
    step, names = side.step, side.names
    found = step.resolvents
    match stage:
        case Stage.SELECT:
            return _Read(step.goal[:1], tuple(clip(names.atom(atom)) for atom in step.goal[:1]))
        case Stage.MATCH_RULES | Stage.MATCH_FACTS if "resolvents.origin" in side.fields:
            kind = Origin.RULE if stage == Stage.MATCH_RULES else Origin.FACT
            clauses = [r.clause for r in found if r.origin_kind == kind]
            return _Read(clauses, tuple(clip(names.clause(*clause)) for clause in clauses))
        case Stage.RESOLVE:
            # The results of each clause, regardless of the names of variables and of the order.
            return _Read(Counter((r.kind, canonical(r.atoms), r.clause) for r in found), ())
        case Stage.RENAME:
            return _Read([(r.content, r.clause) for r in found], tuple(clip(names.resolvent(r)) for r in found))
        case Stage.CLOSE:
            text = _describe_closing(step)
            return _Read(text, (text,))
        case Stage.LIMIT if "steps.dropped_atoms" in side.fields:
            counts = step.dropped_atoms, step.dropped_resolvents
            return _Read(counts, (f"dropped {counts[0]:,} by max_atoms, {counts[1]:,} by max_resolvents",))
        case Stage.CHOOSE:
            text = "no resolvent" if step.chosen is None else clip(names.goal(step.chosen[1], step.chosen[0]))
            return _Read((step.choice, step.chosen), (f"{step.choice}: {text}",))
        case Stage.ADVANCE if side.following is not None:
            goal, depth = side.following.goal, side.following.depth
            return _Read((goal, depth), (clip(names.goal(goal)), f"depth {depth}"))
        case Stage.FINISH:
            return _Read(step.outcome, (outcome_name(step.outcome),))
        case _ if stage == INPUT:
            return _Read((step.goal, step.depth), (*(clip(names.atom(a)) for a in step.goal), f"depth {step.depth}"))
    return None


def _describe_closing(step: StepView) -> str:
    kinds = {r.kind for r in step.resolvents}
    if GoalKind.TRUE in kinds:
        return (
            "TRUE alone" if len(step.resolvents) == 1 else f"TRUE among {count_of(len(step.resolvents), 'resolvent')}"
        )
    if kinds == {GoalKind.FALSE} and not (step.dropped_atoms or step.dropped_resolvents):
        return "FALSE: no resolvent is left"
    return "nothing to close"


_NOTES: Final[dict[str, str]] = {
    INPUT: "the goal that the step begins with",
    Stage.SELECT: "a trace does not contain the selected atom; by definition it is the first one of the goal",
    Stage.MATCH_RULES: "the rules whose resolvents `limit` kept",
    Stage.MATCH_FACTS: "the facts whose resolvents `limit` kept",
    Stage.RESOLVE: "the resolvents below, compared regardless of their order and the names of their variables",
    Stage.PRUNE: "a trace does not contain the deleted atoms",
    Stage.RENAME: "the resolvents that `limit` kept",
    Stage.REVISIT: "a trace does not contain the resolvents that were dropped because they had been visited",
    Stage.CLOSE: "inferred from the kinds of the resolvents",
    Stage.ADVANCE: "the goal of the next step, if the trace contains one",
}


def _read_scores(sides: tuple[_Side, _Side], tolerance: float) -> tuple[str, bool, tuple[_Read | None, _Read | None]]:
    """Compare the scores of the resolvents that both sides have."""
    if not all("resolvents.score" in side.fields for side in sides):
        return "a trace does not contain scores", False, (None, None)
    scores: list[dict[Any, float]] = [{(r.content, r.clause): r.score for r in side.step.resolvents} for side in sides]
    shared = scores[0].keys() & scores[1].keys()
    reads = [
        _Read(None, tuple(f"{r.score!r} for {clip(side.names.goal(r.atoms, r.kind))}" for r in side.step.resolvents))
        for side in sides
    ]
    if not shared:
        return "the two sides have no resolvent in common", False, (None, None)
    is_same = all(is_close(scores[0][key], scores[1][key], tolerance) for key in shared)
    return f"compared for the {len(shared):,} resolvents that both sides have", is_same, (reads[0], reads[1])
