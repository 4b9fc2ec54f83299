"""`kgverify bench`: the agreement and the speed of the evaluator in each mode, or of another engine."""

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from kgverify.api.inputs import make_pipeline
from kgverify.bench import (
    SIZES,
    Agreement,
    BenchResult,
    Contender,
    Measurement,
    Size,
    State,
    find_size,
    measure_engines,
)
from kgverify.cli import completion, options
from kgverify.cli.options import EngineOptions, ProofOptions, RunOptions, SourceOptions, with_run_options
from kgverify.cli.progress import check_writable, make_result_console, print_lines, show_phase, write_json
from kgverify.engines.table import COMPILED, REFERENCE, make_entry
from kgverify.errors import UserError, count_of, suggest
from kgverify.report.render.fitted_table import fit_rows
from kgverify.runs.run import Run

if TYPE_CHECKING:
    from kgverify.engines.protocol import Engine

ON_CPU = ("eager", "default", "native")
ON_CUDA = ("eager", "default", "reduce-overhead", "max-autotune", "fused")


@dataclass(frozen=True)
class SizeOptions:
    """The size of the benchmark."""

    size: Annotated[
        str,
        typer.Option(help="small, medium, large or extreme.", autocompletion=completion.one_of(SIZES)),
    ] = "small"
    queries: Annotated[int | None, typer.Option(min=1, help="Replaces the number of the size.")] = None
    corruptions: Annotated[
        str | None, typer.Option(help="Replaces the number of the size; `all` for every entity.")
    ] = None
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Time of the repetitions of each engine; replaces that of the size.")
    ] = None

    def choose(self) -> Size:
        """Return the size, with its own corruptions. UserError for an unknown one."""
        chosen = find_size(self.size)
        return chosen._replace(
            queries=self.queries or chosen.queries,
            seconds=chosen.seconds if self.seconds is None else self.seconds,
        )


@with_run_options()
def bench(
    *,
    sizes: SizeOptions,
    modes: Annotated[
        str | None,
        typer.Option(
            metavar="MODE,...",
            help="Modes of the compiled evaluator; if not given, those that make a difference on the device.",
            autocompletion=completion.several_of(completion.MODES[1:]),
        ),
    ] = None,
    engine: options.Engine = COMPILED,
    reference: options.ReferenceOption = REFERENCE,
    source: SourceOptions,
    proofs: ProofOptions,
    device: options.Device = "auto",
    precision: options.Precision = "float32",
    slots: options.Slots = None,
    fault: options.Faults = None,
    json_path: options.JsonPath = None,
) -> None:
    """Measure the compiled evaluator in every mode, or another engine; only engines that agree have a speed."""
    check_writable(json_path)
    size = sizes.choose()
    named = check_modes(modes, engine)
    evaluator: dict[str, Any] = {"device": device, "precision": precision, "slots": slots}
    faults = tuple(fault or ())
    EngineOptions(device, precision=precision, slots=slots, fault=list(faults)).engines(engine, reference)
    run = RunOptions(source, size.queries, sizes.corruptions or str(size.corruptions), proofs).build()

    def make(name: str, where: str, mode: str, is_faulty: bool) -> "Engine":
        planted = faults if is_faulty else ()
        made = make_entry(COMPILED, mode=mode, faults=planted, **evaluator) if name == COMPILED else name
        return make_pipeline(made, run, where=where).engine

    expected = Contender(reference, partial(make, reference, "--reference", "eager", engine != COMPILED))
    contenders = [Contender(engine, partial(make, engine, "--engine", "eager", False))]
    if engine == COMPILED:
        chosen = named or (ON_CUDA if has_cuda(device) else ON_CPU)
        contenders = [Contender(mode, partial(make, engine, "--engine", mode, True), True) for mode in chosen]
    result = measure_engines(run, expected, contenders, size=size, phase=show_phase)
    first = result.measurements[1]
    if all(each.state is State.UNAVAILABLE for each in result.measurements[1:]):
        raise UserError(first.reason, where=f"--modes {first.name}", fix=first.fix)
    console = make_result_console(json_path)
    print_lines(console, describe_bench(result, run, sizes.size))
    console.print(tabulate(result))
    write_json(result, json_path)
    if not result.is_right:
        raise typer.Exit(1)


def check_modes(modes: str | None, engine: str) -> tuple[str, ...]:
    """Return the modes of a list, each once. UserError for an unknown one, and for those of another engine."""
    named = tuple(dict.fromkeys(filter(None, map(str.strip, (modes or "").split(",")))))
    if named and engine != COMPILED:
        raise UserError(
            f"are of the compiled evaluator, which is not measured: {engine}", where="--modes", fix="leave it out"
        )
    known = completion.MODES[1:]
    for mode in named:
        if mode not in known:
            fix = suggest(mode, known) or f"choose from {', '.join(known)}"
            raise UserError(f"unknown mode {mode!r}", where="--modes", fix=fix)
    return named


def has_cuda(device: str) -> bool:
    """Return whether the evaluator runs on CUDA. UserError for a device that does not exist here."""
    if find_spec("torch") is None:
        return False
    return make_entry(COMPILED, device=device).uses_cuda()


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
    return fit_rows(Table(*titles, box=None), [_row(each) for each in result.measurements])


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
