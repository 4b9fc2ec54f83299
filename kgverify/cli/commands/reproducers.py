"""`kgverify shrink` and `kgverify replay`: from a divergence of a saved run to a reproducer that fits on a screen, and back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from kgverify.api.replay import replay as replay_file
from kgverify.api.shrink import shrink as shrink_run
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.output import settings
from kgverify.cli.progress import (
    check_writable,
    make_error_console,
    make_result_console,
    print_lines,
    replay_again,
    write_json,
    write_result,
)
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import UserError, count_of
from kgverify.report.render.screen import Screen
from kgverify.runs.job import EngineLike
from kgverify.testing.campaigns.result import describe_signature
from kgverify.testing.checking.failure import LAW
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import SUFFIX, Reproducer, read_reproducer, write_test
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


@dataclass(frozen=True)
class CodeOptions:
    """The reproducer as code.

    Attributes:
        pytest_file: Write a test as well, and run it once.
        python: Print the problem and its check as Python that runs alone, and everything else on standard error.
    """

    pytest_file: Annotated[Path | None, Parameter(name="--pytest", metavar="FILE")] = None
    python: Annotated[bool, Parameter(negative="")] = False

    def check_writable(self) -> None:
        """Raise UserError, before a long run, if the test cannot be written."""
        check_writable(None if self.pytest_file is None else str(self.pytest_file))

    def emit(self, console: Screen, reproducer: Reproducer) -> None:
        """Write and print what was asked for."""
        if self.pytest_file is not None:
            first = write_test(reproducer, self.pytest_file)
            how = "it fails, as it must before the repair" if first.fails else f"IT DOES NOT FAIL: {first.message}"
            print_lines(console, f"written: {self.pytest_file}   run once: {how}")
        if self.python:
            write_result(reproducer.to_python().encode(), "-")


def shrink(
    folder: Path,
    /,
    *,
    divergence: int = 1,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE")] = None,
    code: Annotated[CodeOptions, options.OWN] = CodeOptions(),
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
    """
    is_run = folder.is_dir()
    output = output or folder / f"divergence-{divergence}{SUFFIX}"
    if is_run or output.parent != folder:
        check_writable(str(output))
    code.check_writable()
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
    console = make_result_console(is_beside_file=code.python)
    print_lines(console, *str(shrunk).split("\n"), "")
    steps = []
    for path, what in zip(shrunk.save_pair(output), ("both sides differ", "both sides agree"), strict=False):
        steps.append(replay_again(path, engines.engine, engines.reference, trust=engines.trust))
        print_lines(console, f"written: {path}, where {what}   {steps[-1].does}: {steps[-1].text}")
    code.emit(console, shrunk.reproducer)
    write_json(describe_signature(shrunk.reproducer.signature, output, shrunk.reproducer), steps)


def _show_progress(name: str, problem: Problem, calls: int) -> None:
    console = make_error_console()
    if console.is_terminal:
        size = f"{count_of(len(problem.facts), 'fact')}, {count_of(len(problem.rules), 'rule')}"
        console.print(f"  {name.replace('_', ' '):<18} {size}   {count_of(calls, 'run')}", style="dim")


def replay(
    file: Path,
    /,
    *,
    engines: Annotated[options.OtherEngineOptions, options.OWN] = options.OtherEngineOptions(),
    evaluator: Annotated[options.EvaluatorOptions, options.SMALL_EVALUATOR] = options.EvaluatorOptions(),
    code: Annotated[CodeOptions, options.OWN] = CodeOptions(),
) -> int:
    """Run a reproducer again, and report whether it still diverges in the same way.

    Args:
        file: A reproducer that `kgverify shrink` or `fuzz` wrote. Options replace what it names.
    """
    engine = _choose_engine(file, engines.engine, evaluator)
    found = replay_file(file, engine, reference=engines.reference, trust=engines.trust)
    reproducer = found.reproducer
    console = make_result_console(is_beside_file=code.python)
    print_lines(console, *([] if settings.is_quiet else [str(reproducer.sides)]), *str(found).split("\n"))
    if reproducer.neighbour and found.is_same:
        what = "the law holds" if reproducer.signature.kind == LAW else "both sides agree"
        print_lines(console, f"   {what} with one change: {reproducer.neighbour}")
    code.emit(console, reproducer)
    return EXIT_CODES[found.verdict]


def _choose_engine(file: Path, engine: str | None, evaluator: options.EvaluatorOptions) -> EngineLike | None:
    """Return the engine of the options; None for the file's own. UserError for options of an engine that does not run."""
    replaced = evaluator.options
    if not replaced:
        return engine
    recorded = read_reproducer(file).engine
    name = engine or (COMPILED if "faults" in replaced else recorded.name)
    if name != COMPILED:
        raise UserError(
            f"is an option of the compiled evaluator, which does not run: {name}",
            where=next(iter(replaced)),
            fix="leave it out, or use --engine compiled",
        )
    kept = {"mode": recorded.mode, "device": recorded.device, "faults": recorded.faults if engine is None else ()}
    return make_entry(COMPILED, **kept | replaced)
