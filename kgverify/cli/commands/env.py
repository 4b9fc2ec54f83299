"""`kgverify env`: compare environments, record one, and show a saved comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from kgverify.api.verify_env import compare_sides_of, record_side
from kgverify.cli import options
from kgverify.cli.command_line import warnings_afterwards
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import (
    check_writable,
    make_console_beside,
    make_result_console,
    print_lines,
    print_note,
    show_phase,
    type_again,
    typed_command,
    write_github,
    write_json,
    write_result,
)
from kgverify.comparison.result import Divergence
from kgverify.environments.render import FORMATS, print_report, render_annotations, render_markdown
from kgverify.environments.report import EnvironmentReport
from kgverify.environments.saved import read_comparison
from kgverify.environments.verify import Comparing, parse_evidence
from kgverify.report.next_steps import NextStep, name_commands
from kgverify.report.render.terminal import choose_divergence


@dataclass(frozen=True)
class DriveOptions:
    """The size of a run.

    Attributes:
        slots: Number of slots: the environments of a batch.
        steps: Number of actions of each slot.
        seed: Seed of the first slot; the others count up from it.
    """

    slots: int = 16
    steps: int = 200
    seed: int = 0


@dataclass(frozen=True)
class FormatOptions:
    """Further renderings of the report.

    Attributes:
        html: Write one self-contained HTML page; - for standard output.
        junit: Write JUnit XML, one case per slot; - for standard output.
        github: Print annotations; append Markdown to $GITHUB_STEP_SUMMARY.
    """

    html: str | None = None
    junit: str | None = None
    github: Annotated[bool, Parameter(negative="")] = False


DRIVE: Final = options.of_record("Run", 1)
FORMAT: Final = options.of_record("Report", 3)


@warnings_afterwards()
def diff(
    expected: str,
    actual: str,
    /,
    *,
    drive: Annotated[DriveOptions, DRIVE] = DriveOptions(),
    lockstep: Annotated[bool | None, Parameter(negative="--free")] = None,
    tolerance: float | None = None,
    minimum: str | None = None,
    save: Path | None = None,
    pytest: Path | None = None,
    shown: Annotated[FormatOptions, FORMAT] = FormatOptions(),
) -> int:
    """Compare two environments that take the same actions, call by call.

    A side is gymnasium:ID, MODULE:NAME or FILE.py:NAME: an environment, or a function that makes one. Or it is a trace that
    `kgverify env record` wrote; the other side then takes its actions. docs/environments.md.

    Args:
        expected: The environment to compare with, or a recorded one.
        actual: The environment under test, or a recorded one.
        lockstep: Take each step from the expected state; --free: each side from its own. If not given, lockstep if both have
            a state that can be set.
        tolerance: The relative difference of two floats that counts as rounding, instead of a derived one.
        minimum: The evidence that AGREE requires: ended=1,resets=1 if not given, also truncated and rewards; or none.
        save: Save both trajectories and the report in a folder.
        pytest: Write a test of the shrunk difference: the fewest slots and actions that show it.
    """
    for path in (shown.html, shown.junit, pytest):
        check_writable(None if path is None else str(path))
    comparing = Comparing(
        drive.slots, drive.steps, drive.seed, (None, None), tolerance, lockstep, parse_evidence(minimum)
    )
    report = compare_sides_of(expected, actual, comparing, save=save, command=typed_command(), phase=show_phase)
    if pytest is not None and report.shrunk is not None:
        write_result(report.shrunk.render_test(expected, actual).encode(), str(pytest))
        print_note(f"wrote {pytest}")
    step = type_again("then look at it again: kgverify env show run", "--save", "run")
    if save is not None:
        step = NextStep(does="show it again", command=("kgverify", "env", "show", str(save)))
    return _show(report, shown, [step])


def record(
    environment: str,
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o", metavar="FILE.h5")],
    drive: Annotated[DriveOptions, DRIVE] = DriveOptions(),
) -> None:
    """Record what an environment returns, as a small trace to commit beside it.

    `kgverify env diff FILE.h5 ENVIRONMENT` compares an environment with it.

    Args:
        environment: The environment: gymnasium:ID, MODULE:NAME or FILE.py:NAME.
        output: The trace to write.
    """
    comparing = Comparing(drive.slots, drive.steps, drive.seed)
    path = record_side(environment, output, comparing, show_phase)
    size = sum(each.stat().st_size for each in ([path] if path.is_file() else path.iterdir()))
    print_lines(make_result_console(), f"{path}: {drive.slots:,} slots, {drive.steps:,} actions each, {size:,} bytes")


def show(
    folder: Path, /, *, divergence: int | None = None, shown: Annotated[FormatOptions, FORMAT] = FormatOptions()
) -> None:
    """Show a saved comparison of environments again, or render it as files.

    Args:
        folder: The folder that `kgverify env diff --save` wrote.
        divergence: Show the rows around this divergence, counted from 1, instead of the first one.
    """
    report = read_comparison(folder)
    _show(report, shown, [], None if divergence is None else choose_divergence(report.divergences, divergence))


def _show(
    report: EnvironmentReport, shown: FormatOptions, steps: Sequence[NextStep], chosen: Divergence | None = None
) -> int:
    """Print the report, write the files, and return the exit code."""
    given = {"html": shown.html, "junit": shown.junit}
    paths = {name: path for name, path in given.items() if path is not None}
    console = make_console_beside(paths.values(), "-")
    steps = steps if report.divergences else []
    print_report(report, console, divergence=chosen, next_commands=name_commands(steps))
    for name, path in paths.items():
        write_result(FORMATS[name](report), path)
    if shown.github:
        write_github(render_annotations(report), partial(render_markdown, report), to_error="-" in paths.values())
    write_json(report, steps)
    return EXIT_CODES[report.verdict]


COMMANDS: Final = {"diff": diff, "record": record, "show": show}
