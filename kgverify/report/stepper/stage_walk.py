"""A step stage by stage, as far as the traces of a saved run show it.

A trace of level `deep` contains the output of each stage. Any other trace contains the result of the step, from which the
outputs of some stages can be inferred. The stage at fault shows the values of the divergence, from the replay if there was
one. A replay has shown that the stages before it agree. Differences of stages after it are consequences.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from kgverify.comparison.locate import is_close, is_same_output, render_output
from kgverify.comparison.result import Divergence
from kgverify.comparison.step_view import StepView, canonical, outcome_name
from kgverify.errors import count_of
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import STEP_STAGES, Stage
from kgverify.report.derivations import DerivationReader, SideStep
from kgverify.report.wording import clip, value_lines
from kgverify.trace.model.stage_items import StageOutputs

INPUT: Final = "(input)"
"""The first line of a walk: the goal that the step begins with. It is not a stage."""


RECORDED: Final = "recorded"
"""The note of outputs that both traces contain."""


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


def walk_stages(
    reader: DerivationReader,
    candidate: int,
    step: int,
    divergence: Divergence | None,
    others: Sequence[Divergence] = (),
) -> tuple[StageLine, ...]:
    """Return the stages of a step, its input first.

    divergence: the one found at this step, if any
    others:     further divergences of the step, in lockstep: of other stages at fault
    """
    expected, actual, is_same_way = reader.sides(candidate, step)
    if expected is None or actual is None:
        return (_of_divergence(divergence),) if divergence else ()
    following = reader.sides(candidate, step + 1)
    sides = (
        _Side(expected, following.expected, expected.read_outputs()),
        # In lockstep, the next actual step begins with the expected goal.
        _Side(actual, None if reader.has_stepped else following.actual, actual.read_outputs()),
    )
    culprit = _index_of_culprit(divergence, expected.view.goal == actual.view.goal)
    is_of_step = culprit <= len(STEP_STAGES)
    has_differed = not is_same_way or not is_of_step
    also_wrong = {each.stage: each for each in others}
    # A replay has shown that the stages before the first one at fault agree.
    first = min([culprit, *(STEP_STAGES.index(Stage(s)) + 1 for s in also_wrong if s in STEP_STAGES)])
    num_replayed = first if divergence is not None and divergence.is_replayed and is_of_step else 0
    lines = []
    for index, stage in enumerate((INPUT, *STEP_STAGES)):
        if index == culprit and divergence is not None:
            line = _of_divergence(divergence, stage)
        elif stage in also_wrong:
            line = _of_divergence(also_wrong[stage])
            line = line._replace(is_culprit=False, note=f"at fault as well, a divergence of its own; {line.note}")
        else:
            line = _compare(stage, sides, reader.score_tolerance)
            if divergence is not None and not is_same_way:
                # Other steps of the actual engine say nothing about the step that diverged.
                note = "the saved traces do not contain the actual side of this step"
                line = line._replace(mark=Mark.NOT_HELD, actual=(), note=note)
            if 0 < index < num_replayed:
                line = line._replace(mark=Mark.AGREES, note="both outputs were equal when the step was replayed")
            elif line.mark is Mark.DIFFERS and index < culprit and is_of_step and line.note != RECORDED:
                note = "a later stage causes the difference; a trace does not show more of this one"
                line = line._replace(mark=Mark.NOT_HELD, note=note)
            elif line.mark is Mark.DIFFERS and has_differed:
                line = line._replace(mark=Mark.FOLLOWS)
        has_differed |= line.mark is Mark.DIFFERS
        lines.append(line)
    if divergence is not None and not is_of_step:
        lines.append(_of_divergence(divergence))
    return tuple(lines)


class _Side(NamedTuple):
    """One side's step, the next one, if the trace contains it, and the recorded outputs of its stages."""

    step: SideStep
    following: SideStep | None
    outputs: StageOutputs


class _Output(NamedTuple):
    """The output of a stage on one side: the key to compare, and the lines to show."""

    key: Any
    lines: tuple[str, ...] = ()


def _index_of_culprit(divergence: Divergence | None, is_same_goal: bool) -> int:
    """Return the index of the culprit in a walk: -1 without one, and after the last if it is not a stage of a step."""
    if divergence is None:
        return -1
    if divergence.stage == Stage.ADVANCE and (not is_same_goal or divergence.field.startswith("steps.")):
        # The step before made the goal that this one begins with.
        return 0
    names = [stage.value for stage in STEP_STAGES]
    return names.index(divergence.stage) + 1 if divergence.stage in names else len(STEP_STAGES) + 1


def _of_divergence(divergence: Divergence, shown_as: str = "") -> StageLine:
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
    return StageLine(shown_as or divergence.stage, Mark.DIFFERS, *values, note=note, is_culprit=True)


def _compare(stage: str, sides: tuple[_Side, _Side], tolerance: float) -> StageLine:
    """Compare the outputs of a stage, as far as both sides recorded them, or as far as the traces show them."""
    recorded = [side.outputs.get(Stage(stage)) if stage != INPUT else None for side in sides]
    if recorded[0] is not None and recorded[1] is not None:
        is_same, note = is_same_output(Stage(stage), recorded[0], recorded[1], tolerance), RECORDED
        rendered = (render_output(Stage(stage), each, sides[i].step.names) for i, each in enumerate(recorded))
        left, right = (tuple(map(clip, lines)) for lines in rendered)
        return StageLine(stage, Mark.AGREES if is_same else Mark.DIFFERS, left, right, note)
    if stage == Stage.SCORE:
        return _compare_scores(sides, tolerance)
    outputs = [_infer(stage, side.step, side.following) for side in sides]
    known = [each for each in outputs if each is not None]
    mark = Mark.NOT_HELD
    if len(known) == len(outputs) and stage != Stage.SELECT:
        mark = Mark.AGREES if known[0].key == known[1].key else Mark.DIFFERS
    left, right = (each.lines if each else () for each in outputs)
    return StageLine(stage, mark, left, right, _NOTES.get(stage, ""))


def _infer(stage: str, side: SideStep, following: SideStep | None) -> _Output | None:
    """Infer the output of a stage from the result of its step; None if the trace does not contain it."""
    step, names = side.view, side.names
    found = step.resolvents
    match stage:
        case Stage.SELECT:
            return _Output(step.goal[:1], tuple(clip(names.atom(atom)) for atom in step.goal[:1]))
        case Stage.MATCH_RULES | Stage.MATCH_FACTS if "resolvents.origin" in side.fields:
            kind = Origin.RULE if stage == Stage.MATCH_RULES else Origin.FACT
            clauses = [r.clause for r in found if r.origin_kind == kind]
            return _Output(clauses, tuple(clip(names.clause(*clause)) for clause in clauses))
        case Stage.RESOLVE:
            # The results of each clause, regardless of the names of variables and of the order.
            return _Output(Counter((r.kind, canonical(r.atoms), r.clause) for r in found))
        case Stage.RENAME:
            return _Output([(r.content, r.clause) for r in found], tuple(clip(names.resolvent(r)) for r in found))
        case Stage.CLOSE:
            text = _describe_closing(step)
            return _Output(text, (text,))
        case Stage.LIMIT if "steps.dropped_atoms" in side.fields:
            counts = step.dropped_atoms, step.dropped_resolvents
            return _Output(counts, (f"dropped {counts[0]:,} by max_atoms, {counts[1]:,} by max_resolvents",))
        case Stage.CHOOSE:
            text = "no resolvent" if step.chosen is None else clip(names.goal(step.chosen[1], step.chosen[0]))
            return _Output((step.choice, step.chosen), (f"{step.choice}: {text}",))
        case Stage.ADVANCE if following is not None:
            goal, depth = following.view.goal, following.view.depth
            return _Output((goal, depth), (clip(names.goal(goal)), f"depth {depth}"))
        case Stage.FINISH:
            return _Output(step.outcome, (outcome_name(step.outcome),))
        case _ if stage == INPUT:
            return _Output((step.goal, step.depth), (*(clip(names.atom(a)) for a in step.goal), f"depth {step.depth}"))
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


def _compare_scores(sides: tuple[_Side, _Side], tolerance: float) -> StageLine:
    """Compare the scores of the resolvents that both sides have."""
    steps = [side.step for side in sides]
    scores: list[dict[Any, float]] = [{(r.content, r.clause): r.score for r in step.view.resolvents} for step in steps]
    shared = scores[0].keys() & scores[1].keys()
    if not all("resolvents.score" in step.fields for step in steps):
        return StageLine(Stage.SCORE, Mark.NOT_HELD, (), (), "a trace does not contain scores")
    if not shared:
        return StageLine(Stage.SCORE, Mark.NOT_HELD, (), (), "the two sides have no resolvent in common")
    is_same = all(is_close(scores[0][key], scores[1][key], tolerance) for key in shared)
    left, right = (
        tuple(f"{r.score!r} for {clip(step.names.goal(r.atoms, r.kind))}" for r in step.view.resolvents)
        for step in steps
    )
    note = f"compared for the {len(shared):,} resolvents that both sides have"
    return StageLine(Stage.SCORE, Mark.AGREES if is_same else Mark.DIFFERS, left, right, note)
