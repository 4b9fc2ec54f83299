"""`kgverify faults`: the catalogue of planted faults."""

import typer
from rich.table import Table

from kgverify.cli import options
from kgverify.cli.progress import make_result_console, write_json
from kgverify.prover.faults.catalogue import COMPOSITES, FAULTS
from kgverify.report.render.fitted_table import fit_rows

app = typer.Typer(
    help="The catalogue of faults that `--fault` plants in the compiled evaluator.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _options() -> None:
    pass


@app.command("list")
def list_faults(json_path: options.JsonPath = None) -> None:
    """List every fault: its stage, what it breaks, and where it was seen."""
    table = Table("name", "stage", "breaks", "seen in", title=f"{len(FAULTS)} faults", row_styles=("", "dim"))
    rows = [(fault.name, fault.stage.value, fault.breaks, fault.seen_in) for fault in FAULTS.values()]
    composites = Table("name", "faults", "breaks", "seen in", title=f"{len(COMPOSITES)} composites")
    composed_rows = [(each.name, ", ".join(each.parts), each.breaks, each.seen_in) for each in COMPOSITES.values()]
    make_result_console(json_path).print(fit_rows(table, rows), fit_rows(composites, composed_rows))
    shown = "name", "stage", "breaks", "seen_in", "expected_kind", "needs"
    faults = [{name: getattr(fault, name) for name in shown} for fault in FAULTS.values()]
    of_composites = "name", "parts", "breaks", "seen_in"
    composed = [{name: getattr(each, name) for name in of_composites} for each in COMPOSITES.values()]
    write_json({"faults": faults, "composites": composed}, json_path)
