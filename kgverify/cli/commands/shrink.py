"""`kgverify shrink`: from a divergence of a saved run to a reproducer that fits on a screen."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from kgverify.api.shrink import shrink as shrink_run
from kgverify.cli import options
from kgverify.cli.commands.replay import print_new_test
from kgverify.cli.progress import (
    check_writable,
    make_error_console,
    make_result_console,
    print_lines,
    replay_command,
)
from kgverify.errors import count_of
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import SUFFIX
from kgverify.testing.shrinking.shrink import MAX_SECONDS
from kgverify.testing.shrinking.shrink_run import MAX_RUN_CALLS


@dataclass(frozen=True)
class EffortOptions:
    """The effort of a shrinker.

    Attributes:
        max_calls: Maximum runs of the engine.
        seconds: Maximum seconds.
    """

    max_calls: Annotated[int, Parameter(alias="--calls", validator=validators.Number(gte=0))] = MAX_RUN_CALLS
    seconds: Annotated[float, Parameter(validator=validators.Number(gte=0))] = MAX_SECONDS


def shrink(
    folder: Path,
    /,
    *,
    divergence: int = 1,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE")] = None,
    pytest_file: Annotated[Path | None, Parameter(name="--pytest", metavar="FILE")] = None,
    effort: Annotated[EffortOptions, options.OWN] = EffortOptions(),
    engines: Annotated[options.OtherEngineOptions, options.OWN] = options.OtherEngineOptions(),
    source: Annotated[options.GraphOptions, options.of_record("Graph of the run, if it has moved")] = (
        options.GraphOptions()
    ),
) -> None:
    """Shrink a divergence of a saved run to a minimal problem that diverges in the same way.

    Args:
        folder: The folder that `kgverify diff --save` wrote.
        divergence: The divergence of the run, counted from 1.
        output: The reproducer to write; by default in the folder of the run.
        pytest_file: Write a test as well, and run it once.
    """
    is_run = folder.is_dir()
    output = output or folder / f"divergence-{divergence}{SUFFIX}"
    if is_run or output.parent != folder:
        check_writable(str(output))
    if pytest_file is not None:
        check_writable(str(pytest_file))
    shrunk = shrink_run(
        folder,
        divergence,
        graph=source.load_moved(),
        engine=engines.engine,
        reference=engines.reference,
        max_calls=effort.max_calls,
        seconds=effort.seconds,
        progress=_show_progress,
        trust=engines.trust,
    )
    console = make_result_console()
    print_lines(console, *str(shrunk).split("\n"), "")
    for path, what in zip(shrunk.save_pair(output), ("both sides differ", "both sides agree"), strict=False):
        again = replay_command(path, engines.engine, engines.reference, trust=engines.trust)
        print_lines(console, f"written: {path}, where {what}   run it again: {again}")
    if pytest_file is not None:
        print_new_test(console, shrunk.reproducer, pytest_file)


def _show_progress(name: str, problem: Problem, calls: int) -> None:
    console = make_error_console()
    if console.is_terminal:
        size = f"{count_of(len(problem.facts), 'fact')}, {count_of(len(problem.rules), 'rule')}"
        console.print(f"  {name.replace('_', ' '):<18} {size}   {count_of(calls, 'run')}", style="dim")
