"""`kgverify audit compile`: the properties of the compiled tick and of the loop around it."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from kgverify.cli import options
from kgverify.cli.audit.deliver import deliver_reports
from kgverify.cli.options import RunOptions, with_run_options
from kgverify.cli.progress import check_writable, make_error_console
from kgverify.errors import UserError
from kgverify.escaping import make_visible
from kgverify.prover.faults.catalogue import find_faults
from kgverify.prover.faults.plant import plant_faults
from kgverify.report.render.screen import Text
from kgverify.runs.machine import describe_environment


@with_run_options(queries=2, corruptions="4")
def audit_compile(
    run_options: RunOptions,
    device: options.Device = "auto",
    mode: options.Mode = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Derivations in flight in the compiled evaluator.")] = 16,
    stages: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time limit for compiling each stage by itself; 0 skips it.")
    ] = 20.0,
    fresh: Annotated[
        bool,
        typer.Option(help="Ignore everything compiled earlier, so that compile times are those of a first start."),
    ] = True,
    fault: options.Faults = None,
    budget: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Limits, as TOML: max_graph_breaks = 0 and the like.")
    ] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Examine the compiled tick property by property: breaks, recompilations, guards, copies, aliases, waits, costs.

    Exit codes: 0 without findings, 1 with findings or over budget, 2 bad input.
    """
    from kgverify.audit.budget import read_budget
    from kgverify.audit.evaluator.audited_tick import build_tick_subject
    from kgverify.audit.evaluator.engine_loop import audit_loop
    from kgverify.audit.properties.compiled_run import CompileSetting
    from kgverify.audit.properties.step_audit import examine_properties
    from kgverify.audit.report import ReportBuilder
    from kgverify.prover.engine import CompiledEngine
    from kgverify.prover.execution.caches import fresh_caches
    from kgverify.prover.layout import choose_layout

    check_writable(json_path)
    limits = read_budget(budget) if budget is not None else {}
    run = run_options.build()
    plant = plant_faults(run.limits, run.policy, find_faults(fault or ()))
    console = make_error_console()
    with console.status("building the evaluator") as status:

        def announce(what: str) -> None:
            status.update(Text(make_visible(what)))

        candidates = plant.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
        num = len(candidates.query)
        layout = choose_layout(run.limits, slots=max(1, min(slots, num)), pool=max(1, num))
        planted: dict[str, Any] = {"stages": plant.stages, "faults": tuple(fault)} if fault else {}
        given = run.graph.program, run.limits, run.policy
        engine = CompiledEngine(*given, mode=mode, device=device, layout=layout, **planted)
        info = engine.info
        if info.mode == "eager":
            raise UserError(
                "nothing is compiled in mode eager",
                where="--mode",
                fix="use --mode default; on a CPU it needs a C++ compiler",
            )
        # Where the loop captures graphs of its own, the tick in it is compiled as in mode `default`.
        of_tick = "default" if info.device == "cuda" else info.mode
        subject = build_tick_subject(run, device=device, slots=slots, stages=plant.stages)

        # One cache for both, so that equal kernels are compiled once.
        with fresh_caches() if fresh else nullcontext():
            builder, setting = ReportBuilder(), CompileSetting(of_tick, False, {"cpp.threads": 1})
            is_cuda = examine_properties(
                subject, setting, builder, keeps_outputs=False, stage_seconds=stages, announce=announce
            )
            report = builder.build(
                subject.name,
                describe_environment(
                    "cuda" if is_cuda else "cpu",
                    mode=setting.mode,
                    dynamic=str(setting.dynamic),
                    cache="fresh" if fresh else "the process's own",
                ),
                budget={key: limit for key, limit in limits.items() if key not in _OF_LOOP},
            )
            loop = audit_loop(
                engine,
                candidates,
                budget={key: limit for key, limit in limits.items() if key in _OF_LOOP},
                announce=announce,
            )
    reports = [report, loop]
    is_clean = all(each.is_clean for each in reports)
    deliver_reports(reports, {"reports": reports, "is_clean": is_clean}, json_path)
    raise typer.Exit(0 if is_clean else 1)


_OF_LOOP = ("max_waits_per_replay", "max_launches_per_candidate")
