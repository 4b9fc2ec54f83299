"""`kgverify replay`: run a reproducer again."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kgverify.api.replay import replay as replay_file
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.output import settings
from kgverify.cli.progress import make_result_console, print_lines
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import UserError
from kgverify.report.render.screen import Screen
from kgverify.runs.job import EngineLike
from kgverify.testing.checking.failure import LAW
from kgverify.testing.reproducers.text_format import Reproducer, read_reproducer, write_test


def replay(
    file: Path,
    /,
    *,
    engines: Annotated[options.OtherEngineOptions, options.OWN] = options.OtherEngineOptions(),
    evaluator: Annotated[options.EvaluatorOptions, options.SMALL_EVALUATOR] = options.EvaluatorOptions(),
    pytest_file: Annotated[Path | None, Parameter(name="--pytest", metavar="FILE")] = None,
) -> int:
    """Run a reproducer again, and report whether it still diverges in the same way.

    Args:
        file: A reproducer that `kgverify shrink` or `fuzz` wrote. Options replace what it names.
        pytest_file: Write a test as well, and run it once.
    """
    engine = _choose_engine(file, engines.engine, evaluator)
    found = replay_file(file, engine, reference=engines.reference, trust=engines.trust)
    reproducer = found.reproducer
    console = make_result_console()
    print_lines(console, *([] if settings.is_quiet else [str(reproducer.sides)]), *str(found).split("\n"))
    if reproducer.neighbour and found.is_same:
        what = "the law holds" if reproducer.signature.kind == LAW else "both sides agree"
        print_lines(console, f"   {what} with one change: {reproducer.neighbour}")
    if pytest_file is not None:
        print_new_test(console, reproducer, pytest_file)
    return EXIT_CODES[found.verdict]


def print_new_test(console: Screen, reproducer: Reproducer, path: Path) -> None:
    """Write a test of a reproducer, run it once, and print how that ended."""
    first = write_test(reproducer, path)
    how = "it fails, as it must before the repair" if first.fails else f"IT DOES NOT FAIL: {first.message}"
    print_lines(console, f"written: {path}   run once: {how}")


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
