"""`kgverify trace convert`: write a trace at another level, packed differently, or in this version of the schema."""

from pathlib import Path
from typing import Annotated

import typer

from kgverify.cli.progress import make_error_console, make_result_console
from kgverify.errors import UserError
from kgverify.trace.maintain.convert import convert_trace
from kgverify.trace.model.levels import parse_level
from kgverify.verification.rebuild import rebuild_goals


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A trace: a file, or a folder of shards.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The path of the converted trace.")],
    level: Annotated[
        str | None,
        typer.Option(
            help="digests, compact, steps or deep; replay raises a compact trace to steps. [default: its own]"
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
    done = convert_trace(source, target, wanted, is_archived=archive, rebuild=rebuild_goals)
    per_step = f", {done.num_bytes_written / done.num_steps:.1f} bytes a step" if done.num_steps else ""
    make_result_console(None).print(
        f"{target}: {done.num_candidates:,} candidates, {done.num_steps:,} steps,"
        f" {done.num_bytes_written:,} bytes of {done.num_bytes_read:,}{per_step}",
        highlight=False,
        markup=False,
    )
    if done.dropped:
        make_error_console().print(
            f"warning: not kept, because they are not plain arrays: {', '.join(done.dropped)}",
            style="yellow",
            markup=False,
            highlight=False,
        )
