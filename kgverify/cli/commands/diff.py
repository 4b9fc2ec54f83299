"""`kgverify diff`: compare two engines, two recorded traces, or files of ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

from kgverify.api.inputs import names_engine, names_trace
from kgverify.api.verify import verify_job
from kgverify.cli import options
from kgverify.cli.command_line import warnings_afterwards
from kgverify.cli.output import is_typed
from kgverify.cli.progress import make_result_console, show_phase, show_work, type_again, typed_command, write_json
from kgverify.comparison.equality import Equality
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.files.writing import check_folder
from kgverify.ranking.rank_file import holds_text
from kgverify.report.next_steps import NextStep, name_commands, read_first_source, show_run
from kgverify.report.render.terminal import print_report
from kgverify.report.report import Report
from kgverify.runs.job import Reference

EXIT_CODES = {Verdict.AGREE: 0, Verdict.DIVERGE: 1, Verdict.INCONCLUSIVE: 3}


@warnings_afterwards()
def diff(
    expected: Path | None = None,
    actual: Path | None = None,
    /,
    *,
    sides: Annotated[options.SideOptions, options.OWN] = options.SideOptions(),
    job: Annotated[options.JobOptions, options.OWN] = options.JobOptions(),
    equality: Annotated[Equality, options.EQUALITY] = Equality(),
    work: Annotated[Reference, options.OWN] = Reference(),
    save: Path | None = None,
) -> int:
    """Compare two engines, or two recorded traces, step by step.

    By default the compiled evaluator is compared with the reference prover. `kgverify diff reference TRACE.h5` judges a recorded
    trace: the reference takes each of its steps again. `kgverify diff --reference TRACE.h5 --engine ENGINE` judges an engine,
    which proves the candidates of the trace. Either may also be a file of ranks; docs/evaluating.md.

    Args:
        expected: The trace or file to compare with; or an engine, which takes each step of the other trace again.
        actual: The trace or file to judge; or an engine, which proves the candidates of the other trace.
        save: Save both traces and the report in a folder.
    """
    judged: Any = actual
    stored = sides.engines.reference
    is_stored = expected is None and stored is not None and names_trace(stored)
    if is_stored and stored is not None:
        expected, judged = Path(stored), sides.make(work).engine
    if expected is not None:
        if judged is None:
            raise UserError(
                "expected two traces, found one", where=str(expected), fix="kgverify diff EXPECTED.h5 ACTUAL.h5"
            )
        files = [each for each in (expected, judged) if isinstance(each, Path) and not names_engine(str(each))]
        is_judged, has_ranks = len(files) < 2, any(map(holds_text, files))
        _refuse_unused(is_judged=is_judged, has_ranks=has_ranks, is_stored=is_stored)
        from kgverify.api.compare import compare

        with show_comparison(*files) as progress:
            queries = job.queries if is_typed("--corruptions") else replace(job.queries, corruptions="all")
            needs_graph = job.source.is_given or (is_judged and has_ranks)
            made = replace(job, queries=queries).make() if needs_graph else None
            report = compare(
                str(expected),
                str(judged) if isinstance(judged, Path) else judged,
                save=save,
                equality=equality,
                limits=job.proofs.given_limits() if is_judged and not has_ranks else None,
                progress=progress,
                job=made,
            )
    else:
        if save is not None:
            check_folder(save)
        report = verify_job(job.make(sides.make(work), equality), save=save, command=typed_command(), phase=show_phase)
    return show_result(report, save, sides.engines, has_lockstep=expected is None and not equality.lockstep)


def show_result(report: Report, save: Path | None, engines: options.EngineOptions, *, has_lockstep: bool) -> int:
    """Print a report with the steps that lead on, and return the exit code."""
    steps = _lead_on(report, save, has_lockstep=has_lockstep)
    if save is not None and report.verdict is Verdict.DIVERGE and report.job is not None:
        names = (engines.engine, engines.reference or "")
        words = ("kgverify", "shrink", str(save), "--python", *["--trust"] * any(":" in each for each in names))
        steps.append(NextStep(does="a minimal example as code that runs alone", command=words))
    print_report(report, make_result_console(), next_commands=name_commands(steps))
    write_json(report, steps)
    return EXIT_CODES[report.verdict]


def _refuse_unused(*, is_judged: bool, has_ranks: bool, is_stored: bool) -> None:
    """Raise UserError for a typed option that a comparison of recorded traces or of files of ranks does not use.

    is_judged: whether one side is an engine; is_stored: whether a trace takes the place of the reference
    """
    records: list[type] = [Reference] if is_stored else [options.EngineOptions, options.EvaluatorOptions, Reference]
    records += [options.QueryOptions] * (not has_ranks) + [options.GraphOptions] * (not (has_ranks or is_judged))
    names = ["lockstep", *["limits"] * (not is_judged), *["policy"] * (not (is_judged and has_ranks))]
    if name := options.find_typed([*names, *(field.name for record in records for field in fields(record))]):
        raise UserError(
            "applies only if kgverify runs both engines", where=name, fix="leave it out, or leave out the two traces"
        )


@contextmanager
def show_comparison(*paths: Path) -> Iterator[Callable[[int], None]]:
    """Show the progress of a comparison in MiB of both traces; the function it yields takes bytes."""
    files = [file for path in paths for file in (path.rglob("*.h5") if path.is_dir() else [path]) if file.is_file()]
    num_passed, total = 0, sum(file.stat().st_size for file in files)
    with show_work("comparing, MiB", total >> 20) as advance:

        def advance_bytes(num_bytes: int) -> None:
            nonlocal num_passed
            # Packed columns are larger than their file, and those that differ are read twice.
            before, num_passed = num_passed >> 20, min(total, num_passed + num_bytes)
            if num_passed >> 20 > before:
                advance((num_passed >> 20) - before)

        yield advance_bytes


def _lead_on(report: Report, save: Path | None, *, has_lockstep: bool) -> list[NextStep]:
    """Return the steps that show more: code to read, the same command with other options, or `kgverify show`."""
    if not report.divergences:
        return []
    saving = type_again("then step through it: kgverify show run", "--save", "run")
    steps = [*read_first_source(report), saving if save is None else show_run(save)]
    return [*steps, *[type_again("every independent fault", "--lockstep")] * has_lockstep]
