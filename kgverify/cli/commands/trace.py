"""`kgverify trace`: import, check, repair, join, convert and export recorded traces."""

import shlex
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer

from kgverify.cli import completion, options
from kgverify.cli.progress import (
    check_writable,
    make_error_console,
    make_result_console,
    print_lines,
    print_text,
    write_json,
)
from kgverify.errors import UserError, count_of
from kgverify.report.export import export_trace, parse_selection
from kgverify.report.tables import TABLES
from kgverify.trace.lines.import_lines import import_lines
from kgverify.trace.maintain.check import WHOLE, CheckReport, check_trace
from kgverify.trace.maintain.convert import convert_trace
from kgverify.trace.maintain.join import unite
from kgverify.trace.maintain.repair import RepairReport, repair_trace
from kgverify.trace.model.levels import TraceLevel, parse_level
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.rebuild import rebuild_goals


class TraceExit(IntEnum):
    """The exit codes of `kgverify trace`; 2 if there is no trace at all."""

    WHOLE = 0
    FAULTY = 1


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Import, check, repair, join, convert and export recorded traces.",
    epilog="Exit codes: 0 whole, 1 something is wrong, missing, lost or unfinished, 2 no trace, or nothing can be kept.",
)

Place = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, or a folder of shards.")]


@app.command(short_help="Convert a trace to another level or packing.")
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A trace: a file, or a folder of shards.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The path of the converted trace.")],
    level: Annotated[
        str | None,
        typer.Option(
            help="digests, compact, steps or deep; replay raises a compact trace to steps. [default: its own]",
            autocompletion=completion.complete_level,
        ),
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Pack it as small as HDF5's filters can.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing trace.")] = False,
) -> None:
    """Convert a trace to another level or packing, or from an earlier version of the schema."""
    wanted = None if level is None else parse_level(level, "--level")
    if target.exists() and not force:
        raise UserError("already exists", where=str(target), fix="choose another path, or overwrite it with --force")
    if not target.absolute().parent.is_dir():
        raise UserError("its folder does not exist", where=str(target), fix=f"create {target.absolute().parent} first")
    done = convert_trace(source, target, wanted, is_archived=archive, rebuild=rebuild_goals, overwrites=force)
    per_step = f", {done.num_bytes_written / done.num_steps:.1f} bytes a step" if done.num_steps else ""
    print_text(
        make_result_console(None),
        f"{target}: {count_of(done.num_candidates, 'candidate')}, {count_of(done.num_steps, 'step')},"
        f" {done.num_bytes_written:,} bytes of {done.num_bytes_read:,}{per_step}",
    )
    if done.dropped:
        names = ", ".join(done.dropped)
        print_text(
            make_error_console(), f"warning: not kept, because they are not plain arrays: {names}", style="yellow"
        )


@app.command("import", short_help="Make a trace of steps printed as JSON lines.")
def import_(
    source: Annotated[
        Path, typer.Argument(metavar="LINES", help="JSON lines that a prover printed; - for standard input.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The path of the trace.")],
    level: Annotated[
        str, typer.Option(help="digests, compact or steps.", autocompletion=completion.complete_level)
    ] = "steps",
    archive: Annotated[bool, typer.Option("--archive", help="Pack it as small as HDF5's filters can.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing trace.")] = False,
) -> None:
    """Turn the steps that a prover in any language printed, one JSON object on each line, into a trace.

    docs/trace-lines.md describes the lines. Whatever they leave out is unknown, and not compared.
    """
    if output.exists() and not force:
        raise UserError("already exists", where=str(output), fix="choose another path, or overwrite it with --force")
    done = import_lines(
        source, output, level=parse_level(level, "--level").value, is_archived=archive, overwrites=force
    )
    unknown = f"; unknown: {', '.join(done.unknown)}" if done.unknown else ""
    print_text(
        make_result_console(None),
        f"{output}: {count_of(done.num_candidates, 'candidate')}, {count_of(done.num_steps, 'step')}{unknown}",
    )


@app.command(short_help="Export a table of candidates in names.")
def export(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace: a file, or a folder of shards.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="A name ending in .jsonl, .csv, .npz or .parquet.")],
    candidates: Annotated[
        str, typer.Option(help="The candidates: all, or numbers and ranges such as 0,5,10-20.")
    ] = "all",
    table: Annotated[
        str,
        typer.Option(
            help="steps, candidates, resolvents or rankings; .npz has all columns.",
            autocompletion=completion.one_of(TABLES),
        ),
    ] = "steps",
    rebuild: Annotated[
        bool, typer.Option(help="Rebuild the goals of a compact trace by replay; otherwise leave them out.")
    ] = True,
) -> None:
    """Export a table of some candidates in names, by default one row per step; for .npz, the columns unchanged."""
    trace = read_trace(path)
    rows = parse_selection(candidates, len(trace.columns.candidates.query), "--candidates")
    if rebuild and trace.header.level == TraceLevel.COMPACT:
        trace = rebuild_goals(trace)
    export_trace(trace, rows, to, table=table)
    num_steps = int(trace.columns.candidates.num_steps[rows].sum(dtype=int))
    print_text(make_result_console(None), f"{to}: {count_of(len(rows), 'candidate')}, {count_of(num_steps, 'step')}")


@app.command(short_help="Verify checksums, digests, counts and structure.")
def check(path: Place, json_path: options.JsonPath = None) -> None:
    """Verify checksums, digests, counts and structure, and report the state of every part.

    Exit code 0: whole; 1: damaged, or its recording did not finish; 2: no trace.
    """
    check_writable(json_path)
    report = check_trace(path)
    print_lines(make_result_console(json_path), _render_check(report))
    write_json(report, json_path, indent=None)
    raise typer.Exit(TraceExit.WHOLE if report.state == WHOLE else TraceExit.FAULTY)


@app.command(short_help="Recover what is intact in a damaged trace.")
def repair(path: Place, json_path: options.JsonPath = None) -> None:
    """Recover a trace up to the last commit, and report the losses; the original is kept if anything is lost.

    Exit code 0: nothing was lost; 1: something was; 2: no trace, or nothing of it can be kept.
    """
    check_writable(json_path)
    report = repair_trace(path)
    print_lines(make_result_console(json_path), _render_repair(report))
    write_json(report, json_path, indent=None)
    raise typer.Exit(TraceExit.FAULTY if report.losses else TraceExit.WHOLE)


@app.command(short_help="Join the traces of several writers.")
def join(
    paths: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Complete traces of one run.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The path of the joined trace.")],
    like: Annotated[
        Path | None, typer.Option("--like", metavar="TRACE", help="A trace with exactly the expected candidates.")
    ] = None,
    drop_rankings: Annotated[
        bool, typer.Option("--drop-rankings", help="Leave out rankings, if several traces rank one query.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing trace.")] = False,
    json_path: options.JsonPath = None,
) -> None:
    """Join the traces of several writers (processes, ranks or machines) into one.

    Missing and duplicate parts and candidates are reported by name.
    """
    if output.exists() and not force:
        raise UserError("already exists", where=str(output), fix="choose another path, or overwrite it with --force")
    check_writable(json_path)
    manifest = unite(paths, output, like=like, drop_rankings=drop_rankings, overwrites=force)
    counts = f"{count_of(manifest.num_candidates, 'candidate')}, {count_of(manifest.num_steps, 'step')}"
    line = f"{output}: {counts}, root {manifest.root}"
    print_lines(make_result_console(json_path), [line])
    write_json(manifest, json_path, indent=None)


def _render_check(report: CheckReport) -> list[str]:
    width = max((len(part.name) for part in report.parts), default=0)
    lines = []
    for part in report.parts:
        counts = "" if part.num_candidates is None else f", {_count(part.num_candidates, part.num_steps)}"
        lines.append(f"{part.name:{width}}  {part.problem or 'ok'}{counts}")
    lines += [f"note: {note}" for note in report.notes]
    root = f", root {report.root}" if report.root else ""
    lines.append(f"{report.path}: {report.state}, {_count(report.num_candidates, report.num_steps)} readable{root}")
    if report.state != WHOLE and not report.root:
        lines.append(f"see what can be recovered: kgverify trace repair {shlex.quote(str(report.path))}")
    return lines


def _render_repair(report: RepairReport) -> list[str]:
    lines = []
    for loss in report.losses:
        lost = "an unknown amount" if loss.num_candidates is None else _count(loss.num_candidates, loss.num_steps)
        lines.append(f"lost from {loss.name}: {lost} ({loss.reason})")
    lines += [f"note: {note}" for note in report.notes]
    what = "repaired" if report.is_changed else "nothing to repair"
    lines.append(f"{report.path}: {what}, {_count(report.num_candidates, report.num_steps)} kept")
    if report.is_changed and not report.losses:
        lines.append("nothing that was committed is lost")
    if report.original:
        lines.append(f"the unrepaired trace: {report.original}")
    if report.is_resumable:
        lines.append("to resume it, run the command that recorded it again with --resume")
    return lines


def _count(num_candidates: int, num_steps: int | None) -> str:
    steps = "" if num_steps is None else f", {count_of(num_steps, 'step')}"
    return f"{count_of(num_candidates, 'candidate')}{steps}"
