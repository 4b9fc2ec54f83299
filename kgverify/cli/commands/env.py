"""`kgverify env`: compare environments, record one, and show a saved comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    write_json,
    write_result,
)
from kgverify.comparison.result import Divergence
from kgverify.environments.render import print_report, render_html
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


DRIVE: Final = options.of_record("Run", 1)


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
    html: str | None = None,
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
        html: Write one self-contained HTML page; - for standard output.
    """
    for path in (html, pytest):
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
    return _show(report, html, [step])


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


def show(folder: Path, /, *, divergence: int | None = None, html: str | None = None) -> None:
    """Show a saved comparison of environments again, or render it as a page.

    Args:
        folder: The folder that `kgverify env diff --save` wrote.
        divergence: Show the rows around this divergence, counted from 1, instead of the first one.
        html: Write one self-contained HTML page; - for standard output.
    """
    report = read_comparison(folder)
    _show(report, html, [], None if divergence is None else choose_divergence(report.divergences, divergence))


def _show(
    report: EnvironmentReport, html: str | None, steps: Sequence[NextStep], chosen: Divergence | None = None
) -> int:
    """Print the report, write the page, and return the exit code."""
    console = make_console_beside([] if html is None else [html], "-")
    steps = steps if report.divergences else []
    print_report(report, console, divergence=chosen, next_commands=name_commands(steps))
    if html is not None:
        write_result(render_html(report), html)
    write_json(report, steps)
    return EXIT_CODES[report.verdict]


COMMANDS: Final = {"diff": diff, "record": record, "show": show}
