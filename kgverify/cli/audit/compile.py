"""`kgverify audit compile`: the properties of the compiled tick and of the loop around it."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kgverify.cli import options
from kgverify.cli.options import naming_options
from kgverify.cli.progress import check_writable, make_error_console, make_result_console, print_lines, write_json
from kgverify.cli.run_options import RunOptions, with_run_options
from kgverify.errors import UserError
from kgverify.faults.catalogue import find_faults
from kgverify.faults.plant import plant_faults
from kgverify.runs.run import compiled_pipeline

if TYPE_CHECKING:
    from kgverify.audit.finding import AuditReport


@with_run_options(queries=2, corruptions="4")
def audit_compile(
    run_options: RunOptions,
    device: options.Device = "auto",
    mode: options.Mode = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Derivations that the compiled evaluator has in flight.")] = 16,
    stages: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Most time for compiling each stage by itself; 0 leaves it.")
    ] = 20.0,
    fresh: Annotated[
        bool,
        typer.Option(help="Whether nothing compiled earlier is taken, so that compile times are those of a start."),
    ] = True,
    fault: options.Faults = None,
    budget: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Limits, as TOML: max_graph_breaks = 0 and the like.")
    ] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Look at the compiled tick property by property: breaks, recompilations, guards, copies, aliases, waits, costs.

    Exit codes: 0 nothing found, 1 findings or more than the budget allows, 2 bad input.
    """
    from kgverify.audit.budget import read_budget
    from kgverify.audit.evaluator.engine_loop import audit_loop, reset_compiler
    from kgverify.audit.evaluator.subject import evaluator_subject
    from kgverify.audit.properties.compiled_run import CompileSetting
    from kgverify.audit.properties.step_audit import audit_subject
    from kgverify.engines.compiled.execution.caches import fresh_caches
    from kgverify.engines.compiled.layout import choose_layout

    check_writable(json_path)
    limits = read_budget(budget) if budget is not None else {}
    run = run_options.build()
    plant = plant_faults(run, find_faults(fault or ()))
    console = make_error_console()
    with naming_options(), console.status("building the evaluator") as status:
        candidates = plant.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
        num = len(candidates.query)
        layout = choose_layout(run.limits, slots=max(1, min(slots, num)), pool=max(1, num))
        planted: dict[str, Any] = {"stages": plant.stages, "faults": tuple(fault)} if fault else {}
        engine = compiled_pipeline(run, mode=mode, device=device, layout=layout, **planted).engine
        info = engine.info
        if info.mode == "eager":
            raise UserError(
                "nothing is compiled in mode eager",
                where="--mode",
                fix="use --mode default; on a CPU it needs a C++ compiler",
            )
        # Where the loop captures graphs of its own, the tick in it is compiled as in mode `default`.
        of_tick = "default" if info.device == "cuda" else info.mode
        subject = evaluator_subject(plant.run, device=device, slots=slots, stages=plant.stages)

        def tell(what: str) -> None:
            status.update(what)

        # One for both, so that kernels that are the same are compiled once.
        with fresh_caches() if fresh else nullcontext():
            report = audit_subject(
                subject,
                CompileSetting(of_tick, False, {"cpp.threads": 1}),
                budget={key: limit for key, limit in limits.items() if key not in _OF_LOOP},
                keeps_outputs=False,
                has_fresh_cache=False,
                is_in_fresh_cache=fresh,
                stage_seconds=stages,
                tell=tell,
            )
            reset_compiler()
            loop = audit_loop(
                engine,
                candidates,
                budget={key: limit for key, limit in limits.items() if key in _OF_LOOP},
                tell=tell,
            )
    reports = [report, loop]
    out = make_result_console(json_path)
    for each in reports:
        print_audit(each, out)
    is_clean = all(each.is_clean for each in reports)
    write_json({"reports": reports, "is_clean": is_clean}, json_path)
    raise typer.Exit(0 if is_clean else 1)


_OF_LOOP = ("max_waits_per_replay", "max_launches_per_candidate")


def print_audit(report: "AuditReport", console: Console) -> None:
    """A report as tables: what was found, what was measured, what could not be."""
    verdict = "nothing found" if report.is_clean else f"{len(report.findings)} findings"
    if report.overruns:
        verdict += f", {len(report.overruns)} over budget"
    where = ", ".join(f"{key} {value}" for key, value in report.environment.items())
    console.print(f"\n{report.subject}: {verdict}", style="bold", markup=False, highlight=False)
    print_lines(console, [where])
    if not report.measures:
        return
    own = {key: value for key, value in report.measures.items() if not key.startswith("stages.")}
    table = Table("measure", "", title=f"{report.subject}: measures", row_styles=("", "dim"))
    for key, value in own.items():
        table.add_row(escape(key.replace("_", " ")), _show(key, value))
    console.print(table)
    _print_stages(report, console)
    for name, lines in report.details.items():
        if lines:
            print_lines(console, [f"{name.replace('_', ' ')}:", *(f"  {line}" for line in lines[:12])])
            if len(lines) > 12:
                print_lines(console, [f"  and {len(lines) - 12} more"])
    for overrun in report.overruns:
        print_lines(console, [f"over budget  {overrun.key}: {overrun.measured:g}, allowed {overrun.allowed:g}"])
    for found in report.findings:
        print_lines(
            console,
            [
                f"{found.audit}  {found.where}",
                f"  found      {found.finding}",
                f"  mechanism  {found.mechanism}",
                f"  remedy     {found.remedy}",
            ],
        )
    for each in report.unmeasured:
        print_lines(console, [f"not measured  {each.audit}: {each.reason}"])


def _print_stages(report: "AuditReport", console: Console) -> None:
    rows: dict[str, dict[str, float]] = {}
    for key, value in report.measures.items():
        if key.startswith("stages."):
            _, stage, measure = key.split(".")
            rows.setdefault(stage, {})[measure] = value
    if not rows:
        return
    columns: Sequence[str] = list(dict.fromkeys(measure for row in rows.values() for measure in row))
    table = Table("stage", *(column.replace("_", " ") for column in columns), title="each stage by itself")
    for stage, row in rows.items():
        table.add_row(escape(stage), *(_show(column, row[column]) if column in row else "" for column in columns))
    console.print(table)


def _show(key: str, value: Any) -> str:
    if "seconds" in key:
        return f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.3f} ms"
    if "bytes" in key:
        return f"{value / 1e6:,.2f} MB"
    return f"{value:,.0f}" if math.isclose(value, round(value)) else f"{value:,.2f}"
