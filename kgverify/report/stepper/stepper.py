"""The stepper through the divergences of a saved run: its position, and the moves."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kgverify.comparison.result import NO_CANDIDATE, Divergence
from kgverify.errors import UserError
from kgverify.report.content import ReportContent
from kgverify.report.derivations import Derivation, DerivationReader
from kgverify.report.proof_tree import Tree
from kgverify.report.stepper.stage_walk import StageLine, walk_stages
from kgverify.report.wording import describe_kind
from kgverify.trace.model.trace import Trace

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


class StepDocument(NamedTuple):
    """A step of a derivation, as every renderer shows it.

    derivation: both sides beside each other; None if the divergence is not in a derivation
    stages:     its stages on both sides; empty if it is not a step
    """

    step: int
    derivation: Derivation | None
    stages: tuple[StageLine, ...]


class Stepper:
    """Moves through the divergences of a report. UserError for a report without divergences, and for an unknown number.

    stepped: as in `DerivationReader`
    """

    def __init__(self, report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None) -> None:
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
        self._of_step: dict[tuple[int, int], list[Divergence]] = defaultdict(list)
        for each in report.divergences:
            if each.step >= 0:
                self._of_step[each.candidate, each.step].append(each)
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
        lacks = self.divergence.expected == NO_CANDIDATE
        return (0, 0) if lacks else self.reader.num_steps(self.divergence.candidate)

    def document(self) -> StepDocument:
        """Return the current step side by side, and stage by stage."""
        at = self.divergence.candidate, self.position.step
        is_divergent = at[1] == self.divergence.step
        # In lockstep other steps of the candidate may be divergences of their own.
        found = self._of_step.get(at, [])
        own = self.divergence if is_divergent else next(iter(found), None)
        derivation = self.reader.read(self.divergence) if is_divergent else self.reader.read_step(*at)
        stages: tuple[StageLine, ...] = ()
        if at[1] >= 0 and max(self.num_steps):
            stages = walk_stages(self.reader, *at, own, [each for each in found if each is not own])
        return StepDocument(at[1], derivation, stages)

    def trees(self) -> tuple[Tree, Tree]:
        """Return the proof tree of each side; empty where a tree does not help."""
        return self.reader.trees(self.divergence.candidate) if max(self.num_steps) else ((), ())

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
