"""`kgverify audit`: is it the compiler, and which property was lost?"""

import typer

from kgverify.cli.audit_compile import audit_compile
from kgverify.cli.audit_modes import modes, traps

app = typer.Typer(
    help="Is it the compiler? Look at the compiled evaluator mode by mode and property by property.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(modes)
app.command("compile")(audit_compile)
app.command()(traps)
