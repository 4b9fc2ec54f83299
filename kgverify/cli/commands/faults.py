"""`kgverify faults`: the catalogue of planted faults."""

import typer
from rich.table import Table

from kgverify.cli import options
from kgverify.cli.progress import make_result_console, write_json
from kgverify.engines.table import COMPILED, make_entry
from kgverify.report.render.fitted_table import fit_rows

app = typer.Typer(
    help="The catalogue of faults that `--fault` plants in kgverify's own evaluator.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _options() -> None:
    pass


@app.command("list")
def list_faults(json_path: options.JsonPath = None) -> None:
    """List every fault: its stage, what it breaks, where it was seen, and the evaluators that carry it."""
    faults, composites = make_entry(COMPILED).catalogue()
    table = Table(
        "name", "stage", "breaks", "seen in", "carried by", title=f"{len(faults)} faults", row_styles=("", "dim")
    )
    rows = [
        (fault.name, fault.stage.value, fault.breaks, fault.seen_in, ", ".join(carriers)) for fault, carriers in faults
    ]
    composed_table = Table("name", "faults", "breaks", "seen in", title=f"{len(composites)} composites")
    composed_rows = [(each.name, ", ".join(each.parts), each.breaks, each.seen_in) for each in composites]
    make_result_console(json_path).print(fit_rows(table, rows), fit_rows(composed_table, composed_rows))
    shown = "name", "stage", "breaks", "seen_in", "expected_kind", "needs"
    listed = [{name: getattr(fault, name) for name in shown} | {"carried_by": carriers} for fault, carriers in faults]
    of_composites = "name", "parts", "breaks", "seen_in"
    composed = [{name: getattr(each, name) for name in of_composites} for each in composites]
    write_json({"faults": listed, "composites": composed}, json_path)
