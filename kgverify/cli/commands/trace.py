"""`kgverify trace`: import, check, repair, join, convert and export recorded traces."""

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from kgverify.cli.progress import make_result_console, print_lines, write_json
from kgverify.errors import UserError, count_of
from kgverify.report.next_steps import NextStep
from kgverify.report.tables import TABLES, export_trace, parse_selection
from kgverify.trace.lines.import_lines import import_lines
from kgverify.trace.maintain.check import WHOLE, CheckReport, check_trace
from kgverify.trace.maintain.join import unite
from kgverify.trace.maintain.repair import RepairReport, convert_trace, repair_trace
from kgverify.trace.model.schema import LevelName, TraceLevel
from kgverify.trace.read.trace_file import read_trace

Output = Annotated[Path, Parameter(alias="-o", metavar="OUT")]
Switch = Annotated[bool, Parameter(negative="")]


def convert(
    source: Path,
    target: Path,
    /,
    *,
    level: LevelName | None = None,
    archive: Switch = False,
    overwrite: Switch = False,
) -> None:
    """Convert a trace to another level or packing.

    Args:
        source: A trace: a file, or a folder of shards.
        target: The path of the converted trace.
        level: Its own level if not given, or a lower one.
        archive: Pack it as small as HDF5's filters can.
        overwrite: Overwrite an existing trace.
    """
    _refuse_existing(target, overwrite)
    if not target.absolute().parent.is_dir():
        raise UserError("its folder does not exist", where=str(target), fix=f"create {target.absolute().parent} first")
    wanted = None if level is None else TraceLevel(level)
    done = convert_trace(source, target, wanted, is_archived=archive, overwrites=overwrite)
    per_step = f", {done.num_bytes_written / done.num_steps:.1f} bytes a step" if done.num_steps else ""
    print_lines(
        make_result_console(),
        f"{target}: {_count(done.num_candidates, done.num_steps)},"
        f" {done.num_bytes_written:,} bytes of {done.num_bytes_read:,}{per_step}",
    )


def import_(
    source: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    output: Output,
    level: LevelName = "steps",
    archive: Switch = False,
    overwrite: Switch = False,
) -> None:
    """Turn the steps that a prover in any language printed, one JSON object on each line, into a trace.

    docs/traces.md describes the lines. Whatever they leave out is unknown, and not compared.

    Args:
        source: JSON lines that a prover printed; - for standard input.
        output: The path of the trace.
        level: The level of the trace.
        archive: Pack it as small as HDF5's filters can.
        overwrite: Overwrite an existing trace.
    """
    _refuse_existing(output, overwrite)
    done = import_lines(source, output, level=level, is_archived=archive, overwrites=overwrite)
    unknown = f"; unknown: {', '.join(done.unknown)}" if done.unknown else ""
    print_lines(make_result_console(), f"{output}: {_count(done.num_candidates, done.num_steps)}{unknown}")


def export(
    path: Path,
    /,
    *,
    to: Annotated[Path, Parameter(metavar="FILE")],
    candidates: str = "all",
    table: Annotated[str, Parameter(choices=tuple(TABLES))] = "steps",
) -> None:
    """Export a table of some candidates in names, by default one row per step; for .npz, the columns unchanged.

    Args:
        path: A trace: a file, or a folder of shards.
        to: A name ending in .jsonl, .csv, .npz or .parquet.
        candidates: The candidates: all, or numbers and ranges such as 0,5,10-20.
        table: The table; .npz has all columns.
    """
    trace = read_trace(path)
    rows = parse_selection(candidates, len(trace.columns.candidates.query), "--candidates")
    export_trace(trace, rows, to, table=table)
    num_steps = int(trace.columns.candidates.num_steps[rows].sum(dtype=int))
    print_lines(make_result_console(), f"{to}: {_count(len(rows), num_steps)}")


def check(path: Path, /) -> int:
    """Verify checksums, digests, counts and structure, and report the state of every part.

    Exit code 0: whole; 1: damaged, or its recording did not finish; 2: no trace.

    Args:
        path: A trace: a file, or a folder of shards.
    """
    report = check_trace(path)
    words = ("kgverify", "trace", "repair", str(report.path))
    is_damaged = report.state != WHOLE and not report.root
    steps = [NextStep(does="see what can be recovered", command=words)] * is_damaged
    print_lines(make_result_console(), *_render_check(report), *(f"{each.does}: {each.text}" for each in steps))
    write_json(report, steps, indent=None)
    return 0 if report.state == WHOLE else 1


def repair(path: Path, /) -> int:
    """Recover a trace up to the last commit, and report the losses; the original is kept if anything is lost.

    Exit code 0: nothing was lost; 1: something was; 2: no trace, or nothing of it can be kept.

    Args:
        path: A trace: a file, or a folder of shards.
    """
    report = repair_trace(path)
    print_lines(make_result_console(), *_render_repair(report))
    write_json(report, indent=None)
    return 1 if report.losses else 0


def join(
    paths: list[Path],
    /,
    *,
    output: Output,
    drop_rankings: Switch = False,
    overwrite: Switch = False,
) -> None:
    """Join the traces of several writers (processes, ranks or machines) into one.

    Missing and duplicate parts and candidates are reported by name.

    Args:
        paths: Complete traces of one run.
        output: The path of the joined trace.
        drop_rankings: Leave out rankings, if several traces rank one query.
        overwrite: Overwrite an existing trace.
    """
    _refuse_existing(output, overwrite)
    manifest = unite(paths, output, drop_rankings=drop_rankings, overwrites=overwrite)
    counts = _count(manifest.num_candidates, manifest.num_steps)
    print_lines(make_result_console(), f"{output}: {counts}, root {manifest.root}")
    write_json(manifest, indent=None)


COMMANDS: Final = {
    "convert": convert,
    "import": import_,
    "export": export,
    "check": check,
    "repair": repair,
    "join": join,
}


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise UserError("already exists", where=str(path), fix="choose another path, or overwrite it with --overwrite")


def _render_check(report: CheckReport) -> list[str]:
    width = max((len(part.name) for part in report.parts), default=0)
    counts = [
        "" if part.num_candidates is None else f", {_count(part.num_candidates, part.num_steps)}"
        for part in report.parts
    ]
    root = f", root {report.root}" if report.root else ""
    lines = [
        *(
            f"{part.name:{width}}  {part.problem or 'ok'}{held}"
            for part, held in zip(report.parts, counts, strict=True)
        ),
        *(f"note: {note}" for note in report.notes),
        f"{report.path}: {report.state}, {_count(report.num_candidates, report.num_steps)} readable{root}",
    ]
    return lines


def _render_repair(report: RepairReport) -> list[str]:
    lost = [
        "an unknown amount" if loss.num_candidates is None else _count(loss.num_candidates, loss.num_steps)
        for loss in report.losses
    ]
    what = "repaired" if report.is_changed else "nothing to repair"
    is_whole = report.is_changed and not report.losses
    return [
        *(f"lost from {loss.name}: {num} ({loss.reason})" for loss, num in zip(report.losses, lost, strict=True)),
        *(f"note: {note}" for note in report.notes),
        f"{report.path}: {what}, {_count(report.num_candidates, report.num_steps)} kept",
        *(["nothing that was committed is lost"] if is_whole else []),
        *([f"the unrepaired trace: {report.original}"] if report.original else []),
        *(["to resume it, run the command that recorded it again with --resume"] if report.is_resumable else []),
    ]


def _count(num_candidates: int, num_steps: int | None) -> str:
    steps = "" if num_steps is None else f", {count_of(num_steps, 'step')}"
    return f"{count_of(num_candidates, 'candidate')}{steps}"
