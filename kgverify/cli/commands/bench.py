"""`kgverify bench`: the agreement and the speed of the evaluator in each mode, or of another engine."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

from cyclopts import Parameter
from rich.table import Table

from kgverify.api.inputs import make_pipeline
from kgverify.bench import (
    Agreement,
    BenchResult,
    Contender,
    Measurement,
    Size,
    State,
    find_size,
    measure_engines,
)
from kgverify.cli import options
from kgverify.cli.progress import make_result_console, print_lines, show_phase, write_json
from kgverify.engines.plain.choice import has_torch
from kgverify.engines.table import COMPILED, find_class, make_entry
from kgverify.errors import UserError, check_known, count_of
from kgverify.report.render.screen import FittedTable
from kgverify.runs.job import choose_reference
from kgverify.runs.run import Run

if TYPE_CHECKING:
    from kgverify.engines.protocol import Engine

ON_CPU = ("eager", "default", "native")
ON_CUDA = ("eager", "default", "reduce-overhead", "max-autotune", "fused")


def bench(
    *,
    size: Annotated[tuple[str, ...], Parameter(metavar="NAME|KEY=VALUE,...")] = (),
    modes: Annotated[str | None, Parameter(metavar="MODE,...")] = None,
    engines: Annotated[options.EngineOptions, options.OWN] = options.EngineOptions(),
    source: Annotated[options.GraphOptions, options.GRAPH] = options.GraphOptions(),
    proofs: Annotated[options.ProofOptions, options.PROOFS] = options.ProofOptions(),
    evaluator: Annotated[options.EvaluatorOptions, options.BENCH_EVALUATOR] = options.EvaluatorOptions(),
) -> int:
    """Measure the compiled evaluator in every mode, or another engine; only engines that agree have a speed.

    Args:
        size: small if not given, medium, large or extreme; docs/evaluating.md. queries=5, corruptions=10 or all, and
            seconds=2, the time of the repetitions of each engine, replace numbers of the size.
        modes: Modes of the compiled evaluator; if not given, those that make a difference on the device.
    """
    name, measured, corruptions = choose_size(size)
    engine, reference = engines.engine, choose_reference(engines.reference)
    named = check_modes(modes, engine)
    options.SideOptions(engines, evaluator).make()
    chosen = options.QueryOptions(measured.queries, measured.corruptions if corruptions is None else corruptions)
    run = options.JobOptions(source, chosen, proofs).make().make_run()

    def make(name: str, where: str, mode: str, is_faulty: bool) -> "Engine":
        given = evaluator.options | {"mode": mode}
        planted = given.pop("faults", ()) if is_faulty else ()
        made = make_entry(COMPILED, **given | {"faults": planted}) if name == COMPILED else name
        return make_pipeline(made, run, where=where).engine

    expected = Contender(reference, partial(make, reference, "reference", "eager", engine != COMPILED))
    contenders = [Contender(engine, partial(make, engine, "engine", "eager", False))]
    if engine == COMPILED:
        compared = named or (ON_CUDA if has_cuda(evaluator.device) else ON_CPU)
        contenders = [Contender(mode, partial(make, engine, "engine", mode, True), True) for mode in compared]
    result = measure_engines(run, expected, contenders, size=measured, phase=show_phase)
    first = result.measurements[1]
    if all(each.state is State.UNAVAILABLE for each in result.measurements[1:]):
        raise UserError(first.reason, where=f"modes {first.name}", fix=first.fix)
    console = make_result_console()
    print_lines(console, *describe_bench(result, run, name))
    console.print(tabulate(result))
    write_json(result)
    return 0 if result.is_right else 1


def choose_size(texts: Sequence[str]) -> tuple[str, Size, str | None]:
    """Return the name of a size, the size with other numbers, and other corruptions. UserError for an unknown name or key."""
    words = [word for text in texts for word in text.split(",")]
    name = next((word for word in words if "=" not in word), "small")
    pairs = options.parse_pairs([word for word in words if "=" in word], options.SIZED, "size")
    corruptions = pairs.pop("corruptions", None)
    size = find_size(name)._replace(**pairs)
    return name, size._replace(queries=max(1, size.queries)), corruptions


def check_modes(modes: str | None, engine: str) -> tuple[str, ...]:
    """Return the modes of a list, each once. UserError for an unknown one, and for those of another engine."""
    named = tuple(dict.fromkeys(filter(None, map(str.strip, (modes or "").split(",")))))
    if named and engine != COMPILED:
        raise UserError(
            f"are of the compiled evaluator, which is not measured: {engine}", where="modes", fix="leave it out"
        )
    known = list_modes()
    for mode in named:
        check_known(mode, known, "mode", "modes")
    return named


def list_modes() -> tuple[str, ...]:
    """Return the modes of the evaluator, except the choice of one."""
    return tuple(mode for mode in get_args(get_type_hints(find_class(COMPILED))["mode"]) if mode != "auto")


def has_cuda(device: str) -> bool:
    """Return whether the evaluator runs on CUDA. UserError for a device that does not exist here."""
    return has_torch() and make_entry(COMPILED, device=device).uses_cuda()


def describe_bench(result: BenchResult, run: Run, size: str) -> list[str]:
    """Return the lines above the table."""
    corruptions = "all" if result.num_corruptions < 0 else f"{result.num_corruptions:,}"
    machine = result.machine
    names = ("gpu", "processor", "cpus", "threads", "torch", "python", "kgverify")
    return [
        f"{'MEASURED' if result.is_right else 'WRONG'}   {count_of(result.num_candidates, 'candidate')}, size {size}",
        f"  {result.graph}, at most {run.num_queries:,} queries of {result.split} ({result.num_queries:,} found),"
        f" {corruptions} corruptions, policy {result.policy}, seed {result.seed}",
        f"  {', '.join(f'{name} {machine[name]}' for name in names if name in machine)}",
    ]


def tabulate(result: BenchResult) -> object:
    """Return the table of the measurements, which fits its terminal."""
    titles = ("engine", "candidates", "µs/candidate", "quartiles", "repeats", "warm-up s", "peak MiB", "results")
    return FittedTable(Table(*titles, box=None), [_row(each) for each in result.measurements])


def _row(found: Measurement) -> tuple[str, ...]:
    quartiles = found.quartiles
    low, median, high = ("", "", "") if quartiles is None else (f"{1e6 * each:,.4g}" for each in quartiles)
    results = [found.reason] if found.reason else []
    results += map(_describe_agreement, found.agreements)
    return (
        found.name,
        f"{found.num_candidates:,}",
        median,
        f"{low} to {high}" if median else "",
        str(len(found.seconds) or ""),
        "" if found.warm_up_seconds is None else f"{found.warm_up_seconds:,.3g}",
        "" if found.peak_bytes is None else f"{found.peak_bytes / (1 << 20):,.1f}",
        "; ".join(results if found.state is State.TIMED else [found.state.value.upper(), *results]),
    )


def _describe_agreement(agreement: Agreement) -> str:
    ties = f", {count_of(agreement.num_near_ties, 'near-tie')} left out" if agreement.num_near_ties else ""
    if agreement.num_differing:
        return f"{agreement.num_differing:,} of {agreement.num_compared:,} differ from {agreement.against}{ties}"
    return f"{agreement.num_compared:,} as {agreement.against}{ties}"
