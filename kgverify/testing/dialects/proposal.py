"""The proposed dialect of an engine, with the experiments that support it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgverify.comparison.result import Verdict
from kgverify.errors import count_of
from kgverify.escaping import make_visible
from kgverify.files.writing import write_file
from kgverify.program.limits import Dialect, render_dialect, show_value
from kgverify.testing.problems.problem import Problem

_WIDTH: Final = 16


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An experiment, as it was put to the engine.

    about:       the switch, and the filters
    expected:    the answer for each value of the switch, with the proposed values of all other switches
    proposed:    the proposed value
    answer:      the engine's answer
    num_fitting: the number of programs, of `num_asked`, for which the engine answers like the proposed dialect
    is_used:     whether it decided anything
    """

    about: str
    program: tuple[str, ...]
    question: str
    expected: dict[str, str]
    proposed: str
    answer: str
    num_fitting: int
    num_asked: int
    is_used: bool = True

    @property
    def refuted(self) -> frozenset[tuple[str, str]]:
        """The values whose answers differ from the proposed value's, each with the subject of the experiment."""
        right = self.expected.get(self.proposed)
        return frozenset((self.about, value) for value, answer in self.expected.items() if answer != right)

    def lines(self) -> Iterator[str]:
        """Yield the program, the question, and the answers."""
        yield from (f"      {line}" for line in self.program)
        yield f"      {self.question}"
        answers: dict[str, list[str]] = {}
        for value, answer in self.expected.items():
            answers.setdefault(answer, []).append(value)
        for answer, values in answers.items():
            yield f"         {', '.join(values):<28} {answer}"
        yield f"         {'the engine':<28} {self.answer}   ({self.num_fitting} of {self.num_asked} programs fit)"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The proposed value of a switch.

    others: other values that fit, too; for decided filters, orders that make no difference
    reason: the reason why it is undecided; empty if it is decided
    """

    switch: str
    value: Any
    others: tuple[str, ...] = ()
    reason: str = ""
    trials: tuple[Trial, ...] = ()

    @property
    def is_decided(self) -> bool:
        """True if there is no reason to leave it undecided."""
        return not self.reason

    def describe(self) -> str:
        """Return the reason with the other values."""
        return f"{self.reason} ({', '.join(self.others)})" if self.others else self.reason


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The comparison of the engine with the reference in the proposed dialect, on generated problems.

    text: the report; empty if both agree
    """

    verdict: Verdict = Verdict.INCONCLUSIVE
    num_problems: int = 0
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The dialect proposed for an engine.

    `print` shows it; `save` writes it for `--limits dialect=FILE`.

    has_steps: whether steps decided, not only outcomes
    findings:  a finding for each switch
    lessons:   generated problems that decided questions that the experiments left open
    notes:     oddities of the engine
    """

    engine: str
    dialect: Dialect
    has_steps: bool
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    lessons: tuple[Problem, ...] = ()
    verified: Verified = Verified()

    @property
    def undecided(self) -> tuple[Finding, ...]:
        """The switches that are undecided."""
        return tuple([each for each in self.findings if not each.is_decided])

    @property
    def verdict(self) -> Verdict:
        """AGREE if the engine agrees with the reference in this dialect; otherwise the verdict of the comparison."""
        return self.verified.verdict

    def render_file(self) -> str:
        """Return the dialect as TOML, with undecided switches as comments."""
        comments = [f"# Proposed for {self.engine} by `kgverify dialect`: {self._verification()}."]
        comments += [f"# undecided: {each.switch}: {each.describe()}" for each in self.undecided]
        return "\n".join(map(make_visible, comments)) + "\n" + render_dialect(self.dialect)

    def save(self, path: str | Path) -> None:
        """Write the dialect as a TOML file. UserError if it cannot be written."""
        write_file(path, self.render_file())

    def __str__(self) -> str:
        """Return every switch with an experiment that decides it, the undecided switches, and the comparison."""
        return "\n".join(map(make_visible, self._lines()))

    def _verification(self) -> str:
        found = self.verified
        if not found.num_problems:
            return "not compared with the reference"
        how = {Verdict.AGREE: "agrees with", Verdict.DIVERGE: "differs from"}.get(
            found.verdict, "is not comparable with"
        )
        return f"{how} the reference in this dialect on {count_of(found.num_problems, 'generated problem')}"

    def _lines(self) -> Iterator[str]:
        num = len(self.findings) - len(self.undecided)
        yield f"DIALECT   {self.engine}   {num} of {len(self.findings)} switches decided"
        for note in self.notes:
            yield f"   note   {note}"
        for finding in self.findings:
            yield ""
            yield f"{finding.switch:<{_WIDTH}} {show_value(finding.value)}"
            if not finding.is_decided:
                yield f"   could not decide: {finding.describe()}"
            elif finding.others:
                yield f"   no experiment shows a difference: {', '.join(finding.others)}"
            refuted: set[tuple[str, str]] = set()
            for trial in finding.trials:
                if trial.is_used and not trial.refuted <= refuted:
                    refuted |= trial.refuted
                    yield from trial.lines()
            for trial in finding.trials:
                if trial.is_used and trial.num_fitting < trial.num_asked:
                    yield "   does not fit:"
                    yield from trial.lines()
        for problem in self.lessons:
            yield ""
            yield "decided by a generated problem, on which dialects that fit the experiments differ:"
            yield from (f"      {line}" for line in str(problem).splitlines())
        yield ""
        yield f"{self.verdict.value}   the engine {self._verification()}"
        yield from (f"   {line}" for line in self.verified.text.splitlines())
