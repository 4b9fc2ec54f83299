"""`kgverify doctor`: what is installed, and what is missing for which feature."""

from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from kgverify.cli.progress import make_result_console, write_json
from kgverify.report.render.screen import FittedTable


def doctor(*, self_test: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List what is installed, what is missing for which feature, caches and GPUs. Exit code 2 if something is broken.

    Args:
        self_test: Import every package, prove the embedded graph by every evaluator, and find planted faults.
    """
    from kgverify.api.doctor import State, describe_last_test, examine_installation, try_installation

    findings = examine_installation(imports=self_test)
    findings += try_installation() if self_test else [describe_last_test()]
    table = Table("name", "state", "detail", "fix", box=None)
    styles = {State.PRESENT: "green", State.ABSENT: "dim", State.BROKEN: "bold red"}
    rows = [(found.name, found.state.value, found.detail, found.fix) for found in findings]
    make_result_console().print(FittedTable(table, rows, styles=[styles[found.state] for found in findings]))
    write_json(findings)
    return 2 if any(found.state is State.BROKEN for found in findings) else 0
