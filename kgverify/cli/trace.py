"""`kgverify trace`: what is done to recorded traces."""

import typer

from kgverify.cli.trace_convert import convert
from kgverify.cli.trace_export import export

app = typer.Typer(help="Convert and export recorded traces.", no_args_is_help=True)
app.command()(convert)
app.command()(export)
