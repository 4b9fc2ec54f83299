"""`kgverify bench`: the agreement and the speed of the reference and of every mode."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from kgverify.api.inputs import make_pipeline
from kgverify.bench.compare import compare_runs
from kgverify.bench.plan import FOR_GPUS, Plan, Size, find_size
from kgverify.bench.plot import render_plot
from kgverify.bench.result import encode_result, read_result
from kgverify.bench.table import render_comparison, render_result
from kgverify.cli import options
from kgverify.cli.progress import (
    check_writable,
    make_result_console,
    print_lines,
    print_warning,
    show_phase,
    write_encoded,
    write_result,
)
from kgverify.engines.table import COMPILED, REFERENCE, make_entry
from kgverify.errors import UserError
from kgverify.prover.faults.catalogue import find_faults
from kgverify.prover.faults.plant import plant_faults
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.job import Queries
from kgverify.runs.run import Run

if TYPE_CHECKING:
    from kgverify.bench.modes import Build
    from kgverify.engines.protocol import Engine
    from kgverify.prover.state import Layout

NOT_COMPARED = 3
"""Exit code of `--fail-slower` where no ratio could be compared."""


def bench(
    *,
    size: Annotated[str, Parameter(metavar="NAME,KEY=VALUE,...")] = "small",
    modes: Annotated[str | None, Parameter(metavar="MODE,...")] = None,
    engines: Annotated[options.EngineOptions, options.OWN] = options.EngineOptions(),
    source: Annotated[options.GraphOptions, options.GRAPH] = options.GraphOptions(),
    proofs: Annotated[options.ProofOptions, options.PROOFS] = options.ProofOptions(),
    evaluator: Annotated[options.EvaluatorOptions, options.BENCH_EVALUATOR] = options.EvaluatorOptions(),
    repeats: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 10,
    compare: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    fail_slower: Annotated[bool, Parameter(negative="")] = False,
    plot: Annotated[Path | None, Parameter(metavar="FILE.svg")] = None,
) -> int:
    """Measure a reference and an engine, or the compiled evaluator in every mode; only results that agree have a speed.

    Ctrl-C ends it early; the measurements so far are shown and written.

    Args:
        size: small, medium, large or extreme, with numbers to replace, such as small,queries=5: queries, corruptions, slots,
            sample and seconds; docs/benchmarking.md.
        modes: Modes of the compiled evaluator: eager, default, reduce-overhead, max-autotune, fused; all that make a
            difference on the device if not given.
        repeats: Calls of the steady state, at most.
        compare: Compare with a run saved by --json.
        fail_slower: With --compare: exit code 1 where a mode is slower beyond its band.
        plot: Draw the medians.
    """
    from kgverify.bench.modes import Rivals, measure_modes

    if options.prints_catalogue(evaluator):
        return 0
    if compare is None and fail_slower:
        raise UserError("has nothing to compare with", where="fail_slower", fix="give --compare FILE as well")
    saved = None if compare is None else read_result(compare)
    check_writable(None if plot is None else str(plot))
    name, chosen = choose_size(size)
    faults = tuple(evaluator.faults)
    queries = Queries(chosen.queries, chosen.corruptions)
    run = options.make_job(source, queries, proofs).make_run()
    plan = Plan(
        name=name,
        size=chosen,
        modes=None if modes is None else tuple(filter(None, map(str.strip, modes.split(",")))),
        device=evaluator.device,
        precision=evaluator.precision,
        repeats=repeats,
        has_fresh_cache=evaluator.fresh_cache,
        faults=tuple(each.name for each in find_faults(faults)),
    )
    rivals = None
    engine, reference = engines.engine, engines.reference
    if (engine, reference) != (COMPILED, REFERENCE):
        if engine != COMPILED and modes is not None:
            raise UserError(
                f"are of the compiled evaluator, which is not measured: {engine}", where="modes", fix="leave it out"
            )
        options.make_engines(engines, evaluator)
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
    console = make_result_console()
    width = console.width if console.is_terminal else 0
    print_lines(console, render_result(result, width))
    compared = None
    if saved is not None:
        compared = compare_runs(saved, result)
        print_lines(console, ["", *render_comparison(compared, str(compare), width)])
    if plot is not None:
        write_result(render_plot(result).encode(), str(plot))
    write_encoded(encode_result(result))
    if not result.is_complete:
        raise KeyboardInterrupt
    if not result.is_right:
        return 1
    if fail_slower and compared is not None and (compared.is_slower or not compared.is_compared):
        return 1 if compared.is_slower else NOT_COMPARED
    return 0


def choose_size(text: str) -> tuple[str, Size]:
    """Return a size and its name, with the numbers that replace its own. UserError for an unknown name or key."""
    name, _, replaced = text.partition(",")
    if "=" in name:
        name, replaced = "small", text
    size = find_size(name)
    numbers: dict[str, Any] = {}
    for key, value in options.parse_pairs([replaced] if replaced else [], Size._fields, "size").items():
        try:
            numbers[key] = float(value) if key == "seconds" else int(value)
        except ValueError:
            raise UserError(f"expected a number, found {value!r}", where=f"--size {key}", fix="give another") from None
        if numbers[key] < (key not in ("seconds", "corruptions")):
            raise UserError(f"expected 1 or more, found {value}", where=f"--size {key}", fix="give another number")
    return name, size._replace(**numbers)


def _make_engine(run: Run, engine: str, where: str, faults: tuple[str, ...] = ()) -> "Engine":
    if engine == COMPILED:
        return make_pipeline(make_entry(COMPILED, mode="eager", faults=faults), run, where=where).engine
    return make_pipeline(engine, run, where=where).engine


def _build_with_faults(run: Run, plan: Plan) -> "Build | None":
    """Return a builder of the evaluator with the plan's faults; None without faults. UserError for a fault outside the prover."""
    if not plan.faults:
        return None
    planted = plant_faults(run.limits, run.policy, find_faults(plan.faults))
    if planted.draw is not draw_candidates or planted.rank is not rank_candidates:
        raise UserError(
            "concerns the candidates or the ranks, and only proofs are timed",
            where="--fault",
            fix="choose one of another stage: --fault list prints them",
        )

    def build(mode: str, layout: "Layout") -> "Engine":
        from kgverify.prover.engine import CompiledEngine

        return CompiledEngine(
            run.graph.program,
            run.limits,
            run.policy,
            mode=mode,
            device=plan.device,
            precision=plan.precision,
            layout=layout,
            stages=planted.stages,
            faults=tuple(plan.faults),
        )

    return build


def _warn_of_size(plan: Plan) -> None:
    from kgverify.prover.execution.device import resolve_device

    if plan.name in FOR_GPUS and resolve_device(plan.device).type == "cpu":
        print_warning(f"size {plan.name} is for GPUs and takes hours on a CPU; Ctrl-C keeps the measurements so far")
