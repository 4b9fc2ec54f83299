"""The `kgverify audit` commands: is it the compiler, and which property was lost?"""

import typer

from kgverify.cli.audit.cache import audit_cache
from kgverify.cli.audit.compile import audit_compile
from kgverify.cli.audit.modes import modes
from kgverify.cli.audit.step import audit_step
from kgverify.cli.help import GroupedCommand

app = typer.Typer(
    help="Is it the compiler? Examine your own step, or the compiled evaluator, mode by mode and property by property.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("step", short_help="Compare your compiled step with eager on every rung.")(audit_step)
app.command(cls=GroupedCommand, short_help="Compare the evaluator's tick with eager on every rung.")(modes)
app.command("compile", cls=GroupedCommand, short_help="Examine the compiled tick, property by property.")(audit_compile)
app.command("cache", short_help="Save or load the compiler's caches.")(audit_cache)
