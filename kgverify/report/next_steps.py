"""The steps that lead on from a result: commands that show more, and the code to read. Text and JSON list the same."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kgverify.comparison.result import NO_CANDIDATE, Cause, Divergence
from kgverify.report.content import ReportContent
from kgverify.report.wording import describe_location, number_of_first


class NextStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that leads on: a command to run, or lines to read.

    does:    the purpose, in words
    command: the command, word by word; absent for lines to read
    file, line, last_line: the lines; `file` is relative to the folder in which the comparison ran, or as it is imported
    """

    does: str
    command: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    last_line: int = 0

    @property
    def text(self) -> str:
        """The command, quoted for a shell."""
        return shlex.join(self.command)


def name_commands(steps: Iterable[NextStep]) -> dict[str, str]:
    """Return the commands of some steps, quoted for a shell, with the purpose of each."""
    return {each.text: each.does for each in steps if each.command}


def read_source(cause: Cause) -> list[NextStep]:
    """Return the step that reads the engine's code of a cause, if it is known."""
    at = cause.source
    does = f"read the engine's code of the stage {cause.stage}"
    return [] if at is None else [NextStep(does=does, file=at.file, line=at.line, last_line=at.last_line)]


def read_first_source(report: ReportContent) -> list[NextStep]:
    """Return the step that reads the engine's code of the cause of the first divergence, if it is known."""
    first = report.first_cause
    return [] if first is None or not 0 <= first.cause < len(report.causes) else read_source(report.causes[first.cause])


def show_run(folder: str | Path) -> NextStep:
    """Return the step that shows a saved run."""
    return NextStep(does="step through it", command=("kgverify", "show", str(folder)))


def show_first(report: ReportContent) -> tuple[NextStep, ...]:
    """Return the steps that show the first divergence, in the folder of the run, if it has one."""
    if report.first_cause is None:
        return ()
    return show_divergence(report.first_cause, number_of_first(report), None)


def show_divergence(
    divergence: Divergence, number: int, actual_candidate: int | None, folder: str | Path = "."
) -> tuple[NextStep, ...]:
    """Return the steps that show a divergence of a saved run, and shrink it. number: its number in the report, from 1."""

    def list_commands() -> Iterator[tuple[str, list[str]]]:
        yield "show both sides", ["show", str(folder), "--divergence", str(number)]
        sides = {
            "expected": divergence.candidate if divergence.expected != NO_CANDIDATE else -1,
            "actual": -1 if actual_candidate is None else actual_candidate,
        }
        step = ["--step", str(divergence.step)] if divergence.step >= 0 else []
        for side, candidate in sides.items():
            if candidate >= 0:
                trace = str(Path(folder, f"{side}.h5"))
                yield f"show the {side} side alone", ["show", trace, "--candidate", str(candidate), *step]
        yield "a minimal example as code that runs alone", [
            "shrink", str(folder), "--divergence", str(number), "--python",
        ]  # fmt: skip

    return tuple(NextStep(does=does, command=("kgverify", *words)) for does, words in list_commands())


def show_cause(report: ReportContent, number: int, folder: str | Path) -> NextStep:
    """Return the step that shows the first divergence of a cause of a saved run."""
    first = report.causes[number].first
    does = f"show cause {number + 1} of {len(report.causes)}: {describe_location(report.divergences[first])}"
    return NextStep(does=does, command=("kgverify", "show", str(folder), "--divergence", str(first + 1)))


def shrink_cause(report: ReportContent, number: int, folder: str | Path) -> NextStep:
    """Return the step that shrinks the first divergence of a cause of a saved run."""
    words = ("kgverify", "shrink", str(folder), "--divergence", str(report.causes[number].first + 1))
    does = "writes a minimal problem of it, and one like it on which both sides agree"
    return NextStep(does=does, command=words)
