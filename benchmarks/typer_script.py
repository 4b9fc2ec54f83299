"""Running a measurement that takes the options of `kgverify` commands."""

import sys
from collections.abc import Callable

import typer

from kgverify.errors import UserError


def make_app(command: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    return app


def run_script(command: Callable[..., None]) -> None:
    try:
        make_app(command)()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
