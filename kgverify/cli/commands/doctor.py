"""`kgverify doctor`: what is installed, and what is missing for which feature."""

from typing import Annotated

import typer
from rich.table import Table

from kgverify.cli import options
from kgverify.cli.progress import make_result_console, write_json
from kgverify.report.render.fitted_table import fit_rows


def doctor(
    json_path: options.JsonPath = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Prove the embedded graph by every evaluator, and find planted faults.")
    ] = False,
) -> None:
    """List what is installed, what is missing for which feature, caches and GPUs. Exit code 2 if something is broken."""
    from kgverify.api.doctor import State, examine_installation
    from kgverify.api.self_test import describe_last_test, try_installation

    findings = examine_installation()
    findings += try_installation() if self_test else [describe_last_test()]
    table = Table("name", "state", "detail", "fix", box=None)
    styles = {State.PRESENT: "green", State.ABSENT: "dim", State.BROKEN: "bold red"}
    rows = [(found.name, found.state.value, found.detail, found.fix) for found in findings]
    make_result_console(json_path).print(fit_rows(table, rows, [styles[found.state] for found in findings]))
    write_json(findings, json_path)
    if any(found.state is State.BROKEN for found in findings):
        raise typer.Exit(2)
