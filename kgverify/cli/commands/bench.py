"""`kgverify bench`: the reference and every mode, first whether they agree, then how fast they are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgverify.bench.compare import compare_runs
from kgverify.bench.plot import render_plot
from kgverify.bench.result import BenchResult, encode_result, read_result
from kgverify.bench.sizes import FOR_GPUS, find_size
from kgverify.bench.spread import LEAST_BAND
from kgverify.bench.table import render_comparison, render_result
from kgverify.cli import options
from kgverify.cli.options import naming_options
from kgverify.cli.progress import (
    check_writable,
    make_error_console,
    make_result_console,
    print_lines,
    show_phase,
    write_result,
)
from kgverify.cli.run_options import GraphOptions, ProofOptions, RunOptions, with_run_options
from kgverify.errors import UserError
from kgverify.faults.catalogue import find_faults
from kgverify.faults.plant import compiled_pipeline_with_faults, plant_faults
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Run

if TYPE_CHECKING:
    from kgverify.bench.modes import Build, Plan
    from kgverify.engines.compiled.state import Layout
    from kgverify.engines.protocol import Engine

NOT_COMPARED = 3
"""Exit code where `--fail-slower` asks what a comparison cannot tell."""


@with_run_options()
def bench(
    *,
    size: Annotated[
        str, typer.Option(help="small, medium, large or extreme (for GPUs); docs/benchmarking.md.")
    ] = "small",
    modes: Annotated[
        str | None,
        typer.Option(
            metavar="MODE,...",
            help="Of the compiled evaluator: eager, default, reduce-overhead, max-autotune, fused; all that make a"
            " difference on the device if not given. With --strategies: eager, loop, regional, while_loop, unrolled, captured-N.",
        ),
    ] = None,
    strategies: Annotated[
        bool, typer.Option("--strategies", help="Measure the ways to compile a search instead of the modes.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="With --strategies: ticks of the search; 20.")] = None,
    source: GraphOptions,
    queries: Annotated[int | None, typer.Option(min=1, help="Instead of the size's.")] = None,
    corruptions: Annotated[str | None, typer.Option(help="Instead of the size's; `all` for every entity.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Instead of the size's.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Candidates that the reference proves, instead of the size's.")
    ] = None,
    proofs: ProofOptions,
    device: options.Device = "auto",
    precision: options.Precision = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Calls of the steady state, at most.")] = 10,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="After so many of the steady state no further call is begun; instead of the size's."),
    ] = None,
    fresh_cache: Annotated[
        bool, typer.Option("--fresh-cache", help="Compile with empty caches on disk; --strategies always does.")
    ] = False,
    fault: options.Faults = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with a run that was saved by --json.")
    ] = None,
    across: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ASPECT",
            help="With --compare: what may differ: machine, torch, graph, size, policy, limits, precision or faults.",
        ),
    ] = None,
    band: Annotated[
        float, typer.Option(min=0, help="With --compare: the noise band reaches so far to both sides of 1 at least.")
    ] = LEAST_BAND,
    fail_slower: Annotated[
        bool,
        typer.Option("--fail-slower", help="With --compare: exit code 1 where something is slower beyond its band."),
    ] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the medians.")] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Measure the reference and the compiled evaluator in every mode; a speed is shown only of what agrees.

    Ctrl-C ends it early, and what was measured until then is shown and written.
    """
    if compare is None and (fail_slower or across):
        raise UserError(
            "has nothing to compare with",
            where="--fail-slower" if fail_slower else "--across",
            fix="give --compare FILE as well",
        )
    if strategies and precision != "float32":
        raise UserError(
            "is for the modes, and strategies are measured in float32",
            where="--precision",
            fix="leave it or --strategies out",
        )
    if steps is not None and not strategies:
        raise UserError("is for strategies", where="--steps", fix="give --strategies as well")
    saved = None if compare is None else read_result(compare)
    check_writable(json_path)
    check_writable(None if plot is None else str(plot))
    chosen = find_size(size)
    chosen = chosen._replace(
        queries=queries or chosen.queries,
        slots=slots or chosen.slots,
        sample=sample or chosen.sample,
        seconds=chosen.seconds if seconds is None else seconds,
    )
    run = RunOptions(source, chosen.queries, corruptions or str(chosen.corruptions), proofs).build()
    faults = tuple(each.name for each in find_faults(fault or ()))
    with naming_options():
        from kgverify.bench.modes import Plan

        plan = Plan(
            name=size,
            size=chosen,
            modes=None if modes is None else tuple(filter(None, map(str.strip, modes.split(",")))),
            device=device,
            precision=precision,
            repeats=repeats,
            has_fresh_cache=fresh_cache,
            faults=faults,
        )
        _warn_of_size(plan)
        result = _measure_strategies(run, plan, steps) if strategies else _measure_modes(run, plan)
    console = make_result_console(json_path)
    print_lines(console, render_result(result))
    compared = None if saved is None else compare_runs(saved, result, across=across or (), least_band=band)
    if compared is not None:
        print_lines(console, ["", *render_comparison(compared, str(compare))])
    if plot is not None:
        write_result(render_plot(result).encode(), str(plot))
    if json_path is not None:
        write_result(encode_result(result), json_path)
    if not result.is_complete:
        raise KeyboardInterrupt
    if not result.is_right or (fail_slower and compared is not None and compared.is_slower):
        raise typer.Exit(1)
    if fail_slower and compared is not None and not compared.is_compared:
        raise typer.Exit(NOT_COMPARED)


def _measure_modes(run: Run, plan: "Plan") -> BenchResult:
    from kgverify.bench.modes import measure_modes

    return measure_modes(run, plan, _build_with_faults(run, plan), show_phase)


def _measure_strategies(run: Run, plan: "Plan", steps: int | None) -> BenchResult:
    from kgverify.bench.strategies import STEPS, measure_strategies

    if plan.faults:
        raise UserError(
            "is for the modes: strategies are compared with eager, which would have it too",
            where="--fault",
            fix="leave it or --strategies out",
        )
    return measure_strategies(run, plan, steps=steps or STEPS, names=plan.modes, phase=show_phase)


def _build_with_faults(run: Run, plan: "Plan") -> "Build | None":
    """What builds the evaluator with the plan's faults; None without any. UserError for one that is not of the prover."""
    if not plan.faults:
        return None
    planted = plant_faults(run, find_faults(plan.faults))
    if planted.draw is not draw_candidates or planted.rank is not rank_candidates:
        raise UserError(
            "is of the candidates or the ranks, and what is timed are proofs",
            where="--fault",
            fix="choose one of another stage: kgverify faults list",
        )

    def build(mode: str, layout: "Layout") -> "Engine":
        return compiled_pipeline_with_faults(
            run, plan.faults, mode=mode, device=plan.device, layout=layout, precision=plan.precision
        ).engine

    return build


def _warn_of_size(plan: "Plan") -> None:
    from kgverify.engines.compiled.execution.device import resolve_device

    if plan.name in FOR_GPUS and resolve_device(plan.device).type == "cpu":
        make_error_console().print(
            f"warning: size {plan.name} is for GPUs and takes hours on a CPU; Ctrl-C keeps what was measured",
            style="yellow",
            markup=False,
            highlight=False,
        )
