"""A step stage by stage, as far as the traces of a saved run show it.

A trace of level `deep` contains the output of each stage. Any other trace contains the result of the step, from which the
outputs of some stages can be inferred. The stage at fault shows the values of the divergence, from the replay if there was
one. A replay has shown that the stages before it agree. Differences of stages after it are consequences.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from kgverify.comparison.locate import is_close, is_same_output, render_output
from kgverify.comparison.result import NO_CANDIDATE, Divergence
from kgverify.comparison.step_view import StepView, canonical, outcome_name
from kgverify.errors import UserError, count_of
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin, Stage
from kgverify.report.derivations import Derivation, DerivationReader, SideStep
from kgverify.report.proof_tree import Tree
from kgverify.report.report import Report
from kgverify.report.wording import clip, describe_kind, value_lines
from kgverify.trace.model.stage_items import StageOutputs
from kgverify.trace.model.trace import Trace

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


_WALK: Final = (INPUT, *STEP_STAGES)


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
    # In lockstep, the next actual step begins with the expected goal.
    sides = (expected, following.expected), (actual, None if reader.has_stepped else following.actual)
    outputs = expected.read_outputs(), actual.read_outputs()
    culprit = _index_of_culprit(divergence, expected.view.goal == actual.view.goal)
    is_of_step = culprit < len(_WALK)
    faults = {each.stage: _of_divergence(each) for each in others}
    for stage, line in faults.items():
        faults[stage] = line._replace(is_culprit=False, note=f"at fault as well, a divergence of its own; {line.note}")
    num_replayed = 0
    if divergence is not None and is_of_step:
        faults[_WALK[culprit]] = _of_divergence(divergence, _WALK[culprit])
        # A replay has shown that the stages before the first one at fault agree.
        num_replayed = min(map(_WALK.index, faults.keys() & set(_WALK))) if divergence.is_replayed else 0
    has_differed = not is_same_way or not is_of_step
    lines = []
    for index, stage in enumerate(_WALK):
        line = faults.get(stage) or _compare(stage, sides, outputs, reader.score_tolerance)
        if stage not in faults:
            if divergence is not None and not is_same_way:
                # Other steps of the actual engine say nothing about the step that diverged.
                line = _hide(line, "the saved traces do not contain the actual side of this step")._replace(actual=())
            if 0 < index < num_replayed:
                line = line._replace(mark=Mark.AGREES, note="both outputs were equal when the step was replayed")
            elif line.mark is Mark.DIFFERS and index < culprit and is_of_step and line.note != RECORDED:
                line = _hide(line, "a later stage causes the difference; a trace does not show more of this one")
            elif line.mark is Mark.DIFFERS and has_differed:
                line = line._replace(mark=Mark.FOLLOWS)
        has_differed |= line.mark is Mark.DIFFERS
        lines.append(line)
    if divergence is not None and not is_of_step:
        lines.append(_of_divergence(divergence))
    return tuple(lines)


_Sides = tuple[tuple[SideStep, SideStep | None], ...]
"""The step of each side, with the next one if the trace contains it."""


def _hide(line: StageLine, note: str) -> StageLine:
    return line._replace(mark=Mark.NOT_HELD, note=note)


def _index_of_culprit(divergence: Divergence | None, is_same_goal: bool) -> int:
    """Return the index of the culprit in a walk: -1 without one, and after the last if it is not a stage of a step."""
    if divergence is None:
        return -1
    if divergence.stage == Stage.ADVANCE and (not is_same_goal or divergence.field.startswith("steps.")):
        # The step before made the goal that this one begins with.
        return 0
    return _WALK.index(divergence.stage) if divergence.stage in _WALK else len(_WALK)


def _of_divergence(divergence: Divergence, shown_as: str = "") -> StageLine:
    is_of_stage = divergence.field.startswith("stage.")
    note = f"{'recorded' if is_of_stage else 'inferred from the traces'}; only the differences"
    if divergence.is_replayed:
        note = "replayed alone, the step is as expected: the fault depends on the steps that run beside it"
        note = "replayed; only the differences" if is_of_stage else note
    if shown_as == INPUT:
        note = f"the output of {divergence.stage} in the step before; {note}"
    values = tuple(value_lines(divergence.expected)), tuple(value_lines(divergence.actual))
    return StageLine(shown_as or divergence.stage, Mark.DIFFERS, *values, note=note, is_culprit=True)


def _compare(stage: str, sides: _Sides, outputs: Sequence[StageOutputs], tolerance: float) -> StageLine:
    """Compare the outputs of a stage, as far as both sides recorded them, or as far as the traces show them."""
    left, right = (each.get(Stage(stage)) if stage != INPUT else None for each in outputs)
    if left is not None and right is not None:
        is_same, note = is_same_output(Stage(stage), left, right, tolerance), RECORDED
        shown = [
            tuple(map(clip, render_output(Stage(stage), each, side.names)))
            for each, (side, _) in zip((left, right), sides, strict=True)
        ]
        return StageLine(stage, Mark.AGREES if is_same else Mark.DIFFERS, shown[0], shown[1], note)
    if stage == Stage.SCORE:
        return _compare_scores([side for side, _ in sides], tolerance)
    inferred = [_infer(stage, *side) for side in sides]
    keys = [each[0] for each in inferred if each is not None]
    mark = Mark.NOT_HELD
    if len(keys) == len(inferred) and stage != Stage.SELECT:
        mark = Mark.AGREES if keys[0] == keys[1] else Mark.DIFFERS
    shown = [each[1] if each else () for each in inferred]
    return StageLine(stage, mark, shown[0], shown[1], _NOTES.get(stage, ""))


def _infer(stage: str, side: SideStep, following: SideStep | None) -> tuple[Any, tuple[str, ...]] | None:
    """Infer the output of a stage from the result of its step: a key to compare, and lines. None if the trace lacks it."""
    step, names = side.view, side.names
    found = step.resolvents
    match stage:
        case Stage.SELECT:
            return step.goal[:1], tuple(clip(names.atom(atom)) for atom in step.goal[:1])
        case Stage.MATCH_RULES | Stage.MATCH_FACTS if "resolvents.origin" in side.fields:
            kind = Origin.RULE if stage == Stage.MATCH_RULES else Origin.FACT
            clauses = [r.clause for r in found if r.origin_kind == kind]
            return clauses, tuple(clip(names.clause(*clause)) for clause in clauses)
        case Stage.RESOLVE:
            # The results of each clause, regardless of the names of variables and of the order.
            return Counter((r.kind, canonical(r.atoms), r.clause) for r in found), ()
        case Stage.RENAME:
            return [(r.content, r.clause) for r in found], tuple(clip(names.resolvent(r)) for r in found)
        case Stage.CLOSE:
            text = _describe_closing(step)
            return text, (text,)
        case Stage.LIMIT if "steps.dropped_atoms" in side.fields:
            counts = step.dropped_atoms, step.dropped_resolvents
            return counts, (f"dropped {counts[0]:,} by max_atoms, {counts[1]:,} by max_resolvents",)
        case Stage.CHOOSE:
            text = "no resolvent" if step.chosen is None else clip(names.goal(step.chosen[1], step.chosen[0]))
            return (step.choice, step.chosen), (f"{step.choice}: {text}",)
        case Stage.ADVANCE if following is not None:
            goal, depth = following.view.goal, following.view.depth
            return (goal, depth), (clip(names.goal(goal)), f"depth {depth}")
        case Stage.FINISH:
            return step.outcome, (outcome_name(step.outcome),)
        case _ if stage == INPUT:
            return (step.goal, step.depth), (*(clip(names.atom(a)) for a in step.goal), f"depth {step.depth}")
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


def _compare_scores(sides: Sequence[SideStep], tolerance: float) -> StageLine:
    """Compare the scores of the resolvents that both sides have."""
    scores = [{(r.content, r.clause): r.score for r in side.view.resolvents} for side in sides]
    shared = scores[0].keys() & scores[1].keys()
    if not all("resolvents.score" in side.fields for side in sides):
        return StageLine(Stage.SCORE, Mark.NOT_HELD, (), (), "a trace does not contain scores")
    if not shared:
        return StageLine(Stage.SCORE, Mark.NOT_HELD, (), (), "the two sides have no resolvent in common")
    is_same = all(is_close(scores[0][key], scores[1][key], tolerance) for key in shared)
    left, right = (
        tuple(f"{r.score!r} for {clip(side.names.goal(r.atoms, r.kind))}" for r in side.view.resolvents)
        for side in sides
    )
    note = f"compared for the {len(shared):,} resolvents that both sides have"
    return StageLine(Stage.SCORE, Mark.AGREES if is_same else Mark.DIFFERS, left, right, note)


class StepDocument(NamedTuple):
    """A step of a derivation, as every renderer shows it.

    derivation: both sides beside each other; None if the divergence is not in a derivation
    stages:     its stages on both sides; empty if it is not a step
    """

    step: int
    derivation: Derivation | None
    stages: tuple[StageLine, ...]


def read_document(reader: DerivationReader, divergence: Divergence, step: int) -> StepDocument:
    """Return a step of the derivation to which a divergence belongs, side by side and stage by stage."""
    at = divergence.candidate, step
    is_divergent = step == divergence.step
    # In lockstep other steps of the candidate may be divergences of their own.
    found = reader.divergences_at.get(at, [])
    own = divergence if is_divergent else next(iter(found), None)
    derivation = reader.read(divergence) if is_divergent else reader.read_step(*at)
    stages: tuple[StageLine, ...] = ()
    if step >= 0 and max(count_steps(reader, divergence)):
        stages = walk_stages(reader, *at, own, [each for each in found if each is not own])
    return StepDocument(step, derivation, stages)


def read_trees(reader: DerivationReader, divergence: Divergence) -> tuple[Tree, Tree]:
    """Return the proof tree of each side; empty where a tree does not help."""
    return reader.trees(divergence.candidate) if max(count_steps(reader, divergence)) else ((), ())


def count_steps(reader: DerivationReader, divergence: Divergence) -> tuple[int, int]:
    """Return the number of steps of the candidate on each side; zeros if the expected side lacks it."""
    return (0, 0) if divergence.expected == NO_CANDIDATE else reader.num_steps(divergence.candidate)


MOVES: Final = {
    "n": "next divergence",
    "p": "previous divergence",
    "f": "forward: next step of the derivation",
    "b": "back: previous step",
    "s": "next stage of the step",
    "S": "previous stage",
    "o": "out: the whole divergent step again",
    "t": "the derivation as a proof tree, and back",
    "d": "divergence N, from 1 (`d 3`)",
    "c": "first divergence of cause N, from 1 (`c 2`)",
}
"""The moves and what each does; `d` and `c` take a number."""

SEARCH: Final = "/"
"""The command before the words of a search; `n` and `p` then go through the divergences that contain them."""


class Position(NamedTuple):
    """The position of a stepper.

    divergence: index in the report
    step:       of its candidate's derivation; -1 if the divergence is not in a step
    stage:      index in the walk through the step; -1 for the whole step
    is_tree:    whether the proof tree is shown instead of the step
    """

    divergence: int
    step: int
    stage: int = -1
    is_tree: bool = False


class Stepper:
    """Moves through the divergences of a report. UserError for a report without divergences, and for an unknown number.

    stepped: as in `DerivationReader`
    """

    def __init__(self, report: Report, expected: Trace, actual: Trace, stepped: Trace | None = None) -> None:
        if not report.divergences:
            raise UserError(
                f"the run has no divergences to step through: {report.verdict.value}",
                where=expected.source,
                fix="show a trace of it: kgverify show RUN_DIR/expected.h5",
            )
        self.report = report
        self.reader = DerivationReader(
            expected, actual, report.divergences, lockstep=report.lockstep, stepped=stepped, modulo=report.modulo
        )
        self.position = Position(0, report.divergences[0].step)
        self.words = ""
        self._found: list[int] | None = None

    @property
    def divergence(self) -> Divergence:
        """The current divergence, to whose derivation the current step belongs."""
        return self.report.divergences[self.position.divergence]

    @property
    def num_steps(self) -> tuple[int, int]:
        """The number of steps of the candidate on each side; zeros if the expected side lacks it."""
        return count_steps(self.reader, self.divergence)

    def document(self) -> StepDocument:
        """Return the current step side by side, and stage by stage."""
        return read_document(self.reader, self.divergence, self.position.step)

    def trees(self) -> tuple[Tree, Tree]:
        """Return the proof tree of each side; empty where a tree does not help."""
        return read_trees(self.reader, self.divergence)

    def to_divergent_stage(self) -> None:
        """Go to the stage at which the current step diverges, if it diverges at one."""
        stage = next((i for i, line in enumerate(self.document().stages) if line.is_culprit), -1)
        self.position = self.position._replace(stage=stage, is_tree=False)

    def search(self, words: str) -> str:
        """Restrict `n` and `p` to the divergences that contain every word, and go to the next one. Return the result.

        Case does not matter. No words lift the restriction.
        """
        self.words, self._found = words, None
        wanted = words.lower().split()
        if not wanted:
            return "n and p go through all divergences again"
        texts = map(search_text, self.report.divergences)
        found = [i for i, text in enumerate(texts) if all(word in text for word in wanted)]
        if not found:
            self.words = ""
            return "no divergence contains all these words"
        self._found = found
        at = next((i for i in found if i >= self.position.divergence), found[0])
        self.go_to(at + 1)
        return f"{len(found):,} of {len(self.report.divergences):,} divergences; n and p go through these"

    def go_to(self, number: int) -> None:
        """Go to a divergence; numbers begin at 1. UserError for an unknown number."""
        num = len(self.report.divergences)
        if not 1 <= number <= num:
            raise UserError(
                f"expected a divergence from 1 to {num}, found {number}", where="divergence", fix="choose one of these"
            )
        self.position = Position(number - 1, self.report.divergences[number - 1].step)

    def move(self, name: str, number: int | None = None) -> str:
        """Make a move of `MOVES`, with a number for `d` and `c`. Return why the move is impossible, or an empty text."""
        position = self.position
        match name:
            case "d" | "c":
                return self._jump(name, number)
            case "n" | "p":
                return self._to_divergence(forward=name == "n")
            case "f" | "b":
                return self._to_step(position.step + (1 if name == "f" else -1))
            case "s" | "S":
                return self._to_stage(1 if name == "s" else -1)
            case "t" if not position.is_tree and not any(self.trees()):
                return "a tree would show no more than the steps"
            case "t":
                self.position = position._replace(
                    is_tree=not position.is_tree, stage=-1 if position.is_tree else position.stage
                )
            case _:
                self.position = Position(position.divergence, self.divergence.step)
        return ""

    def data(self) -> dict[str, Any]:
        """Return the current divergence, the step side by side, and its stages, for JSON."""
        document = _as_data(self.document())
        return {"number": self.position.divergence + 1, "divergence": self.divergence} | {
            name: document[name] for name in ("derivation", "stages")
        }

    def _jump(self, name: str, number: int | None) -> str:
        causes = self.report.causes
        num = len(causes) if name == "c" else len(self.report.divergences)
        what = "cause" if name == "c" else "divergence"
        if not num:
            return "the divergences were not grouped into causes"
        if number is None or not 1 <= number <= num:
            return f"{name} needs the number of a {what}, 1 to {num}"
        self.go_to(causes[number - 1].first + 1 if name == "c" else number)
        return ""

    def _to_divergence(self, *, forward: bool) -> str:
        listed: Sequence[int] = range(len(self.report.divergences)) if self._found is None else self._found
        after = bisect_right(listed, self.position.divergence)
        index = after if forward else bisect_left(listed, self.position.divergence) - 1
        if not 0 <= index < len(listed):
            return f"this is the {'last' if forward else 'first'} divergence"
        self.go_to(listed[index] + 1)
        return ""

    def _to_step(self, step: int) -> str:
        if step >= max(self.num_steps):
            return "neither side has a further step"
        if step < min(0, self.divergence.step):
            return "this is the first step"
        self.position = Position(self.position.divergence, step)
        return ""

    def _to_stage(self, by: int) -> str:
        stages = self.document().stages
        if not stages:
            return "both sides have no step here"
        stage = self.position.stage + by if self.position.stage >= 0 or by > 0 else len(stages) - 1
        if stage >= len(stages):
            return "this is the last stage; f goes to the next step"
        self.position = self.position._replace(stage=max(-1, stage), is_tree=False)
        return ""


def search_text(divergence: Divergence) -> str:
    """Return the text in which a search looks: that of the list in the page."""
    each = divergence
    words = (each.atom, each.stage, describe_kind(each), each.side, each.level.value)
    return f"{' '.join(words)} candidate {each.candidate} query {each.query}".lower()


def _as_data(value: Any) -> Any:
    """Convert named tuples to objects, recursively."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _as_data(each) for name, each in value._asdict().items()}
    return [_as_data(each) for each in value] if isinstance(value, tuple) else value
