"""`kgverify bench`: the agreement and the speed of the reference and of every mode."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgverify.api.inputs import check_compiled_options, make_pipeline
from kgverify.bench.compare import ASPECTS, LEAST_BAND, compare_runs
from kgverify.bench.plan import FOR_GPUS, SIZES, Plan, Size, find_size
from kgverify.bench.plot import render_plot
from kgverify.bench.result import encode_result, read_result
from kgverify.bench.table import render_comparison, render_result
from kgverify.cli import completion, options
from kgverify.cli.options import ProofOptions, RunOptions, SourceOptions, with_run_options
from kgverify.cli.progress import (
    check_writable,
    make_result_console,
    print_lines,
    print_warning,
    show_phase,
    write_result,
)
from kgverify.errors import UserError
from kgverify.faults.catalogue import find_faults
from kgverify.faults.plant import compiled_pipeline_with_faults, plant_faults
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Run
from kgverify.testing.checking.engine_makers import COMPILED, REFERENCE

if TYPE_CHECKING:
    from kgverify.bench.modes import Build
    from kgverify.engines.compiled.state import Layout
    from kgverify.engines.protocol import Engine

NOT_COMPARED = 3
"""Exit code of `--fail-slower` where no ratio could be compared."""


@dataclass(frozen=True)
class SizeOptions:
    """The size of the benchmark."""

    size: Annotated[
        str,
        typer.Option(
            help="small, medium, large or extreme (for GPUs); docs/benchmarking.md.",
            autocompletion=completion.one_of(SIZES),
        ),
    ] = "small"
    queries: Annotated[int | None, typer.Option(min=1, help="Replaces the number of the size.")] = None
    corruptions: Annotated[
        str | None, typer.Option(help="Replaces the number of the size; `all` for every entity.")
    ] = None
    slots: Annotated[int | None, typer.Option(min=1, help="Replaces the number of the size.")] = None
    sample: Annotated[
        int | None, typer.Option(min=1, help="Candidates that the reference proves; replaces the number of the size.")
    ] = None
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Time limit of the steady state; replaces that of the size.")
    ] = None

    def choose(self) -> Size:
        """Return the size with its replacements. UserError for an unknown one."""
        chosen = find_size(self.size)
        return chosen._replace(
            queries=self.queries or chosen.queries,
            slots=self.slots or chosen.slots,
            sample=self.sample or chosen.sample,
            seconds=chosen.seconds if self.seconds is None else self.seconds,
        )


@dataclass(frozen=True)
class CompareOptions:
    """The comparison with a saved run. UserError for options that need --compare without it."""

    compare: Annotated[Path | None, typer.Option(metavar="FILE", help="Compare with a run saved by --json.")] = None
    across: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ASPECT",
            help="With --compare: an aspect that may differ: machine, torch, graph, size, policy, limits, precision or faults.",
            autocompletion=completion.one_of(ASPECTS),
        ),
    ] = None
    band: Annotated[float, typer.Option(min=0, help="With --compare: the smallest noise band, to both sides of 1.")] = (
        LEAST_BAND
    )
    fail_slower: Annotated[
        bool,
        typer.Option("--fail-slower", help="With --compare: exit code 1 where a mode is slower beyond its band."),
    ] = False

    def __post_init__(self) -> None:
        if self.compare is None and (self.fail_slower or self.across):
            raise UserError(
                "has nothing to compare with",
                where="--fail-slower" if self.fail_slower else "--across",
                fix="give --compare FILE as well",
            )


@with_run_options()
def bench(
    *,
    sizes: SizeOptions,
    modes: Annotated[
        str | None,
        typer.Option(
            metavar="MODE,...",
            help="Modes of the compiled evaluator: eager, default, reduce-overhead, max-autotune, fused; all that make a"
            " difference on the device if not given.",
            autocompletion=completion.several_of(completion.MODES[1:-1]),
        ),
    ] = None,
    engine: options.Engine = COMPILED,
    reference: options.Reference = REFERENCE,
    source: SourceOptions,
    proofs: ProofOptions,
    device: options.Device = "auto",
    precision: options.Precision = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Calls of the steady state, at most.")] = 10,
    fresh_cache: Annotated[bool, typer.Option("--fresh-cache", help="Compile with empty caches on disk.")] = False,
    fault: options.Faults = None,
    comparing: CompareOptions,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the medians.")] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Measure a reference and an engine, or the compiled evaluator in every mode; only results that agree have a speed.

    Ctrl-C ends it early; the measurements so far are shown and written.
    """
    from kgverify.bench.modes import Rivals, measure_modes

    saved = None if comparing.compare is None else read_result(comparing.compare)
    check_writable(json_path)
    check_writable(None if plot is None else str(plot))
    chosen = sizes.choose()
    run = RunOptions(source, chosen.queries, sizes.corruptions or str(chosen.corruptions), proofs).build()
    plan = Plan(
        name=sizes.size,
        size=chosen,
        modes=None if modes is None else tuple(filter(None, map(str.strip, modes.split(",")))),
        device=device,
        precision=precision,
        repeats=repeats,
        has_fresh_cache=fresh_cache,
        faults=tuple(each.name for each in find_faults(fault or ())),
    )
    rivals = None
    if (engine, reference) != (COMPILED, REFERENCE):
        changed = {"device": device, "precision": precision, "slots": sizes.slots, "faults": fault or ()}
        if engine != COMPILED and modes is not None:
            raise UserError(
                f"are of the compiled evaluator, which is not measured: {engine}", where="--modes", fix="leave it out"
            )
        check_compiled_options(engine, reference, **changed)
        make = partial(_make_engine, run)
        in_reference = () if engine == COMPILED else plan.faults
        rivals = Rivals(reference, partial(make, reference, "--reference", in_reference))
        if engine != COMPILED:
            rivals = rivals._replace(engine=engine, make_engine=partial(make, engine, "--engine"))
        # What cannot be made is an error before anything is measured.
        rivals.make_reference()
        if rivals.make_engine is not None:
            rivals.make_engine()
    _warn_of_size(plan)
    result = measure_modes(run, plan, _build_with_faults(run, plan), show_phase, rivals)
    console = make_result_console(json_path)
    width = console.width if console.is_terminal else 0
    print_lines(console, render_result(result, width))
    compared = None
    if saved is not None:
        compared = compare_runs(saved, result, across=comparing.across or (), least_band=comparing.band)
        print_lines(console, ["", *render_comparison(compared, str(comparing.compare), width)])
    if plot is not None:
        write_result(render_plot(result).encode(), str(plot))
    if json_path is not None:
        write_result(encode_result(result), json_path)
    if not result.is_complete:
        raise KeyboardInterrupt
    if not result.is_right:
        raise typer.Exit(1)
    if comparing.fail_slower and compared is not None and (compared.is_slower or not compared.is_compared):
        raise typer.Exit(1 if compared.is_slower else NOT_COMPARED)


def _make_engine(run: Run, engine: str, where: str, faults: tuple[str, ...] = ()) -> "Engine":
    if engine == COMPILED:
        return make_pipeline(engine, run, where=where, mode="eager", faults=faults).engine
    return make_pipeline(engine, run, where=where).engine


def _build_with_faults(run: Run, plan: Plan) -> "Build | None":
    """Return a builder of the evaluator with the plan's faults; None without faults. UserError for a fault outside the prover."""
    if not plan.faults:
        return None
    planted = plant_faults(run, find_faults(plan.faults))
    if planted.draw is not draw_candidates or planted.rank is not rank_candidates:
        raise UserError(
            "concerns the candidates or the ranks, and only proofs are timed",
            where="--fault",
            fix="choose one of another stage: kgverify faults list",
        )

    def build(mode: str, layout: "Layout") -> "Engine":
        return compiled_pipeline_with_faults(
            run, plan.faults, mode=mode, device=plan.device, layout=layout, precision=plan.precision
        ).engine

    return build


def _warn_of_size(plan: Plan) -> None:
    from kgverify.engines.compiled.execution.device import resolve_device

    if plan.name in FOR_GPUS and resolve_device(plan.device).type == "cpu":
        print_warning(f"size {plan.name} is for GPUs and takes hours on a CPU; Ctrl-C keeps the measurements so far")
