"""`kgverify dialect`: propose the dialect of an engine by experiments."""

from pathlib import Path
from typing import Annotated

import typer

from kgverify.api.dialect import EXAMPLES, propose_dialect
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import check_writable, make_result_console, print_lines, show_phase, write_json
from kgverify.engines.table import COMPILED


def dialect(
    engine: options.Engine = COMPILED,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The TOML file to write, for --dialect.", show_default=False
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, help="Generated problems on which the engine and the reference are compared.")
    ] = EXAMPLES,
    seed: Annotated[int, typer.Option(help="The seed of these problems.")] = 0,
    json_path: options.JsonPath = None,
) -> None:
    """Propose the dialect of an engine by experiments, and compare it with the reference in this dialect."""
    for path in (json_path, None if output is None else str(output)):
        check_writable(path)
    with show_phase("experiments", 0) as phase:
        proposal = propose_dialect(engine, examples=examples, seed=seed, progress=phase)
    console = make_result_console(json_path)
    print_lines(console, str(proposal).splitlines())
    if output is not None:
        proposal.save(output)
        print_lines(console, [f"written: {output}"])
    write_json(proposal, json_path)
    raise typer.Exit(EXIT_CODES[proposal.verdict])
