"""The prover's speed: against the published design on a GPU, on several GPUs, on CPU cores, at first, and as work grows."""

import gc
import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch

from benchmarks import make_parser, print_header, print_row, run_apart, time_in_turn
from benchmarks.baseline import PaddedEvaluator
from benchmarks.scoreboard import Remembering
from benchmarks.traces import draw_chain, draw_graph
from kgverify.comparison.equality import Equality
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.engines.protocol import Results
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.proving import join_process_group, prove_candidates
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.evaluator import Evaluator
from kgverify.prover.execution.device import resolve_device
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.program.least_model import LeastModel
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.fan_out import reference_over
from kgverify.runs.run import Pipeline, Run, describe_work, reference_pipeline
from kgverify.trace.model.columns import CandidateSet
from kgverify.verification.verify import verify

Result = TypeVar("Result")

SLOTS: Final = 65536
MATCHED_PER_SLOT: Final = 64
SCORED_PER_SLOT: Final = 32
LIMITS: Final = Limits()
PUBLISHED: Final = {"embedding": 250, "hidden": 256, "blocks": 8}
SMALL: Final = {"embedding": 16, "hidden": 32, "blocks": 1}


def draw(run: Run) -> CandidateSet:
    """Draw the candidates of a run."""
    return draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)


# The published design


@dataclass(frozen=True)
class Bench:
    """The settings of a measurement.

    tiny: everything is small, to check on a CPU that it runs; the times then mean nothing
    """

    device: str
    mode: str
    tiny: bool
    repeats: int
    baseline_slots: tuple[int, ...]

    @property
    def is_cuda(self) -> bool:
        """True if the device is a GPU, which has to be waited for."""
        return self.device.startswith("cuda")

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions of the policy's products."""
        return ("float32", "bf16", "bf16x3", "fp16") if self.is_cuda else ("float32",)

    def load(self, graph: str, num_queries: int, num_corruptions: int) -> Run:
        """Return a run with the published sizes of the policy: 8 blocks of 256, embeddings of 250."""
        loaded = load_graph(graph)
        policy = make_two_tower(loaded.program, LIMITS, seed=0, **(SMALL if self.tiny else PUBLISHED))
        if self.tiny:
            num_queries, num_corruptions = 2, 3
        return Run(loaded, LIMITS, policy, num_queries=num_queries, num_corruptions=num_corruptions)

    def build(self, run: Run, num: int, precision: str = "float32") -> CompiledEngine:
        """Build our engine for pools of a number of candidates."""
        slots = 16 if self.tiny else min(SLOTS, num)
        layout = choose_layout(
            run.limits,
            slots=slots,
            match_window=MATCHED_PER_SLOT * slots,
            score_window=max(run.limits.max_resolvents, SCORED_PER_SLOT * slots),
            pool=num,
        )
        settings = {"mode": self.mode, "device": self.device, "layout": layout, "precision": precision}
        return CompiledEngine(run.graph.program, run.limits, run.policy, **settings)

    def build_baseline(self, run: Run, num: int, slots: int, *, recomputes: bool = True) -> PaddedEvaluator:
        """Build the published design."""
        slots = 8 if self.tiny else slots
        settings = {"slots": slots, "capacity": num, "recomputes": recomputes}
        program = run.graph.program
        return PaddedEvaluator(program, run.limits, run.policy, mode=self.mode, device=self.device, **settings)

    def measure(self, work: Callable[[], Result], repeats: int) -> tuple[Result, float]:
        """Return the result of the work and its least time in seconds, waiting for the device. Warm up before."""
        results: list[Result] = []

        def run() -> None:
            results.append(work())
            self.wait()

        self.wait()
        seconds = time_in_turn({"": run}, repeats)[""]
        return results[-1], min(seconds)

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def forget(self) -> None:
        """Free the memory of unused engines, and reset the peak of memory."""
        gc.collect()
        torch._dynamo.reset()
        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def add_row(self, name: str, what: str, num: int = 0, seconds: float = 0.0, note: str = "") -> None:
        """Print a row; a number that is 0 is left out."""
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.is_cuda and seconds else 0.0
        print_row(
            name,
            what,
            f"{num:,}" if num else "",
            f"{seconds:.4g}" if seconds else "",
            f"{seconds / num * 1e6:.3g}" if num and seconds else "",
            f"{peak:.2f}" if peak else "",
            note,
        )


def count_outside(bench: Bench, run: Run, candidates: CandidateSet, results: Results) -> int:
    """Count the proofs of what does not follow from the program."""
    model = LeastModel(run.graph.program, device=bench.device)
    return int((~model.contains(candidates.atom[results.outcome == Outcome.PROVED])).sum())


def describe_difference(expected: Any, actual: Any) -> str:
    """Describe the difference of two `Results`."""
    differs = expected.outcome != actual.outcome
    gap = np.abs(expected.log_probability - actual.log_probability)[~differs].max(initial=0.0)
    return f"{int(differs.sum())} outcomes differ, log-probabilities by up to {gap:.1e} where they do not"


def measure_agreement(bench: Bench, run: Run) -> None:
    """Compare every step with the reference, with `shortest` and in every precision of the policy."""
    shortest = Run(run.graph, run.limits, SHORTEST, num_queries=len(run.queries), num_corruptions=run.num_corruptions)
    for each in (shortest, run):
        with reference_over(each, jobs=1 if bench.tiny else (os.cpu_count() or 1)) as reference:
            expected = reference._replace(engine=Remembering(reference.engine))
            for precision in ("float32",) if each is shortest else bench.precisions:
                bench.forget()
                pipeline = Pipeline(bench.build(each, 4096, precision), draw_candidates, rank_candidates)
                report = verify(each, expected, pipeline, equality=Equality(determinism=False)).report
                what = f"reference against {each.policy.name}, {precision}"
                note = f"{report.verdict.value}: {report.coverage.steps:,} steps, {len(report.near_ties)} near-ties"
                bench.add_row(run.graph.name, what, report.coverage.candidates, note=note)


def measure_ours(bench: Bench, run: Run, candidates: CandidateSet) -> tuple[dict[str, float], Results]:
    """Measure our engine in every precision; return the seconds, and the results in float32."""
    num, name = len(candidates.query), run.graph.name
    ours: dict[str, float] = {}
    expected: Results | None = None
    for precision in bench.precisions:
        bench.forget()
        engine = bench.build(run, num, precision)
        began = time.perf_counter()
        engine.evaluate(candidates)
        note = f"first run {time.perf_counter() - began:.1f} s; "
        evaluation, ours[precision] = bench.measure(partial(engine.evaluate, candidates), bench.repeats)
        if expected is None:
            expected = evaluation.results
            outside = count_outside(bench, run, candidates, expected)
            proved = int((expected.outcome == Outcome.PROVED).sum())
            note += f"{proved:,} proved, {outside} of them outside of the least model"
        else:
            note += f"{describe_difference(expected, evaluation.results)}; "
            note += f"{evaluation.num_rescored:,} choices made again"
        bench.add_row(name, f"ours, {precision}", num, ours[precision], note)
        del engine
    assert expected is not None
    return ours, expected


def measure_against_baseline(bench: Bench, run: Run) -> None:
    """Measure ours in every precision, and the baseline at several numbers of slots."""
    candidates = draw(run)
    num, name = len(candidates.query), run.graph.name
    ours, expected = measure_ours(bench, run, candidates)
    theirs: dict[str, float] = {}

    def measure_baseline(what: str, slots: int, recomputes: bool) -> None:
        bench.forget()
        evaluator = bench.build_baseline(run, num, slots, recomputes=recomputes)
        results = evaluator.evaluate(candidates)
        _, theirs[what] = bench.measure(partial(evaluator.evaluate, candidates), min(2, bench.repeats))
        proved = int((results.outcome == Outcome.PROVED).sum())
        note = describe_difference(expected, results) if recomputes else f"{proved} proved"
        note += f"; {evaluator.num_steps} steps, {evaluator.num_engine_calls} calls of the engine"
        bench.add_row(name, what, num, theirs[what], note)

    for slots in bench.baseline_slots:
        measure_baseline(f"baseline, {slots} slots", slots, True)
    best = min(theirs, key=theirs.__getitem__)
    if bench.is_cuda:
        torch.set_float32_matmul_precision("high")
        measure_baseline(f"{best}, tf32", bench.baseline_slots[list(theirs).index(best)], True)
        torch.set_float32_matmul_precision("highest")
    published = "baseline as published, 256 slots"
    measure_baseline(published, 256, False)
    for precision, seconds in ours.items():
        right, as_published = theirs[best] / seconds, theirs[published] / seconds
        note = f"{right:.1f} x the right baseline at its best, {as_published:.1f} x as published"
        bench.add_row(name, f"ratio, {precision}", note=note)


def run_evaluator(words: list[str]) -> None:
    """Compare the evaluator with the published design on one GPU: first whether it is right, then how fast it is.

        python -m benchmarks evaluator --device cuda
        python -m benchmarks evaluator --device cpu --tiny

    Both sides of a ratio are measured in the same run, on the same candidates and weights (100 queries, 100 corruptions a
    side), each warmed up, the best of some repeats.
    """
    parser = make_parser(run_evaluator)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mode", default="auto", help="as of the engine")
    parser.add_argument("--only", choices=("agreement", "speed"), help="one of the two")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baseline-slots", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--graph", default="family")
    parser.add_argument("--large-graph", default="wn18rr", help="of the agreement alone")
    parser.add_argument("--tiny", action="store_true", help="a few candidates of each, to see that it runs")
    options = parser.parse_args(words)
    slots = tuple(options.baseline_slots[:1] if options.tiny else options.baseline_slots)
    device = resolve_device(options.device).type
    bench = Bench(device, options.mode, options.tiny, options.repeats, slots)
    shown = torch.cuda.get_device_name() if bench.is_cuda else "CPU"
    print(f"{shown}, torch {torch.__version__}, best of {bench.repeats}\n")
    print_header("set", "what", "candidates", "seconds", "µs/candidate", "peak GiB", "note")
    if options.only != "speed":
        for name in (options.graph, options.large_graph):
            measure_agreement(bench, bench.load(name, 50, 100))
    if options.only != "agreement":
        measure_against_baseline(bench, bench.load(options.graph, 100, 100))


# CPU cores


COLUMNS: Final = {
    "graph": "",
    "policy": "",
    "prover": "",
    "slots": "",
    "candidates": ",",
    "s": ".2f",
    "µs/candidate": ".0f",
    "times the reference": ".1f",
    "recorded: times": ".1f",
    "log-probabilities differ by": ".0e",
}
"""The columns, and their formats."""


def run_cpu(words: list[str]) -> None:
    """The evaluators on this machine's CPU cores against the reference, per candidate, as a Markdown table.

        KGVERIFY_DATA=... python -m benchmarks cpu --graph countries family

    Each evaluator proves all candidates, with every step recorded and without; the reference, on one core, some of
    them. What the evaluator gives for these is compared.
    """
    parser = make_parser(run_cpu)
    parser.add_argument("--graph", nargs="+", default=["countries", "family"])
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--slots", type=int, nargs="+", default=[256], help="of the modes that have slots")
    parser.add_argument("--sample", type=int, default=16, help="the reference proves one candidate of this number")
    parser.add_argument("--modes", nargs="+", default=["native", "default"])
    options = parser.parse_args(words)
    print_header(*COLUMNS)
    for name in options.graph:
        graph = load_graph(name)
        for label, policy in (
            ("`shortest`", SHORTEST),
            ("`two_tower`, 2 × 64", make_two_tower(graph.program, LIMITS, seed=0)),
            ("`two_tower`, 8 × 256", make_two_tower(graph.program, LIMITS, seed=0, **PUBLISHED)),
        ):
            run = Run(graph, LIMITS, policy, num_queries=options.queries, num_corruptions=50)
            settings = [(mode, slots) for mode in options.modes for slots in options.slots]
            measure_on_cpu(run, label, settings, options.sample)


def measure_on_cpu(run: Run, label: str, settings: list[tuple[str, int]], sample: int) -> None:
    """Print a row for the reference, and one for the evaluator in each mode with each number of slots."""

    def show(*cells: object) -> None:
        print_row(*map(format, (run.graph.name, label, *cells), COLUMNS.values()))

    candidates = draw(run)
    num = len(candidates.query)
    some = np.arange(0, num, sample)
    reference = reference_pipeline(run).engine
    began = time.perf_counter()
    expected = reference.prove(candidates.take(some)).candidates
    each = (time.perf_counter() - began) / len(some)
    show("reference", "", len(some), each * len(some), each * 1e6, 1, 1, 0)
    for mode, slots in settings:
        engine = Evaluator(mode=mode, device="cpu", slots=slots)(run.graph.program, run.limits, run.policy)
        prove_candidates(engine, candidates.take(some))
        engine.prove(candidates.take(some))
        began = time.perf_counter()
        results = prove_candidates(engine, candidates)[0]
        seconds = time.perf_counter() - began
        engine.prove(candidates)
        recorded = time.perf_counter() - began - seconds
        assert (results.outcome[some] == expected.outcome).all(), "outcomes differ"
        gap = float(np.abs(results.log_probability[some] - expected.log_probability).max())
        times = [each * num / taken for taken in (seconds, recorded)]
        size = slots if engine.info.layout else ""
        show(engine.info.mode, size, num, seconds, seconds / num * 1e6, *times, gap)


# Several GPUs


def run_gpus(words: list[str]) -> None:
    """One large evaluation by several GPUs of one host: the time, and whether the metrics are those of one GPU.

        torchrun --nproc-per-node 1 -m benchmarks gpus --save /tmp/one
        torchrun --nproc-per-node 4 -m benchmarks gpus --save /tmp/four
        torchrun --nproc-per-node 4 -m benchmarks gpus --save /tmp/ranks --rank-only

    Each prints its seconds, after all processes have started and warmed up, and a digest of all ranks and outcomes,
    which must not depend on the number of GPUs.
    """
    parser = make_parser(run_gpus)
    parser.add_argument("--save", type=Path, required=True, help="an empty folder for the parts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graph", default="family")
    parser.add_argument("--corruptions", type=int, default=900, help="a side; 900 of family are 10 million candidates")
    parser.add_argument("--rank-only", action="store_true", help="every rank, among all corruptions, and no more")
    parser.add_argument("--part-size", type=int, help="candidates of a part")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--tiny", action="store_true", help="two queries and a small policy, to see that it runs")
    options = parser.parse_args(words)
    team = join_process_group()
    graph = load_graph(options.graph)
    policy = make_two_tower(graph.program, LIMITS, seed=0, **(SMALL if options.tiny else PUBLISHED))
    num_queries = 2 if options.tiny else len(graph.queries("test"))
    num_corruptions = ALL if options.rank_only else options.corruptions
    run = Run(graph, LIMITS, policy, num_queries=num_queries, num_corruptions=num_corruptions)
    work = describe_work(run, options.part_size, rank_only=options.rank_only)
    pipeline = evaluator_pipeline(run, device=options.device, work=work, precision=options.precision)
    # Processes start one after the other; the evaluation's time begins when all have.
    team.add("started", 1)
    while team.add("started", 0) < team.size:
        time.sleep(0.001)
    settings = {"part_size": options.part_size, "rank_only": options.rank_only}
    harvest = evaluate(run, pipeline, EvaluationSettings(folder=options.save, group=team, **settings))
    if harvest is None:
        return
    digest = hashlib.sha256()
    results = [harvest.results[part.number] for part in harvest.plan.parts]
    columns = list(zip(*(result.rankings for result in results), strict=True))
    # With ranks alone, what is proved beyond them depends on the parts.
    columns += [] if options.rank_only else [tuple(result.num_outcomes for result in results)]
    for column in columns:
        digest.update(np.concatenate(column).tobytes())
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        f"{team.size} x {where}: {harvest.num_candidates:,} candidates in {harvest.seconds:.2f} s, after"
        f" {harvest.warm_up_seconds:.1f} s of warming up; digest {digest.hexdigest()[:16]}",
        flush=True,
    )


# The first command


FIRST_COMMAND = [sys.executable, "-m", "kgverify", "diff", "--queries", "20"]
NUM_WARM = 3


def time_command(cache: str) -> float:
    environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache, KGVERIFY_CACHE=cache)
    began = time.perf_counter()
    subprocess.run(FIRST_COMMAND, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def run_first_run(words: list[str]) -> None:
    """The time of the first command: cold (nothing compiled before) and warm, whole processes.

        python -m benchmarks first-run

    Targets on 2 CPU cores: cold under 15 s, warm under 4 s.
    """
    parser = make_parser(run_first_run)
    parser.parse_args(words)
    with tempfile.TemporaryDirectory() as cache:
        print(f"cold {time_command(cache):.1f} s", flush=True)
        warm = [time_command(cache) for _ in range(NUM_WARM)]
        print(f"warm {statistics.median(warm):.1f} s (median of {NUM_WARM})")


# Growth


POINTS: Final = {
    "facts": (20_000, 80_000, 320_000, 1_280_000),
    "rules": (25, 50, 100, 200, 400),
    "candidates": (1_010, 4_040, 16_160, 64_640),
    "depth": (8, 16, 32, 64, 128),
    "slots": (32, 64, 128, 256),
}
TINY: Final = {"facts": (200, 400), "rules": (2, 4), "candidates": (22, 44), "depth": (2, 4), "slots": (4, 8)}
MEASURED: Final = {"setup": "set-up, s", "each": "µs a candidate", "memory": "peak memory, MB"}


class Point(NamedTuple):
    """A measurement. setup: seconds; each: microseconds; memory: MB; ends: a digest of the ends of all candidates."""

    setup: float
    each: float
    memory: float
    ends: str


def draw_alike(graph: KnowledgeGraph, base: KnowledgeGraph, num: int) -> CandidateSet:
    """Draw candidates in a graph, and return them in the ids of another one that has the same names."""
    num_queries = min(len(base.test), max(1, num // 101))
    drawn = draw_candidates(base, "test", range(num_queries), num // num_queries // 2, 0)
    source, target = base.program.symbols, graph.program.symbols
    predicates = np.array([target.predicate_ids[name] for name in source.predicates], np.int32)
    constants = np.array([target.constant_ids[name] for name in source.constants], np.int32)
    atoms = np.stack([predicates[drawn.atom[:, 0]], constants[drawn.atom[:, 1]], constants[drawn.atom[:, 2]]], 1)
    return drawn._replace(atom=atoms).take(np.arange(min(num, len(atoms))))


def measure_point(axis: str, value: int, smallest: int, mode: str, is_tiny: bool) -> Point:
    """Measure one point of an axis; smallest: its first value."""
    num_facts, num_rules, num = (200, 4, 44) if is_tiny else (20_000, 50, 4_040)
    limits = Limits(max_depth=value) if axis == "depth" else Limits()
    if axis == "depth":
        base = graph = draw_chain(2 * max(POINTS["depth"]))
    else:
        base = draw_graph(smallest if axis == "facts" else num_facts, value if axis == "rules" else num_rules)
        graph = draw_graph(smallest, num_rules, value // smallest) if axis == "facts" else base
    num = value if axis == "candidates" else num // 10 if axis == "slots" else num
    began = time.process_time()
    graph.program  # noqa: B018  made once, by the first who asks
    numbered = time.process_time() - began
    candidates = draw_alike(graph, base, num)
    began = time.process_time()
    settings = {"mode": "eager", "slots": value} if axis == "slots" else {"mode": mode}
    engine = Evaluator(device="cpu", **settings)(graph.program, limits, SHORTEST)
    setup = numbered + time.process_time() - began
    seconds = time_in_turn({"": partial(engine.evaluate, candidates)}, 3, clock=time.process_time)[""]
    results = engine.evaluate(candidates).results
    digest = hashlib.sha256(results.outcome.tobytes() + results.log_probability.tobytes()).hexdigest()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return Point(setup, min(seconds) / len(candidates.query) * 1e6, memory, digest)


def fit_exponent(values: Sequence[float], measured: Sequence[float]) -> float:
    """Return the slope of the logarithm of what was measured against that of the values."""
    return float(np.polyfit(np.log(values), np.log(np.maximum(measured, 1e-9)), 1)[0])


def run_growth(words: list[str]) -> None:
    """Time and memory against facts, rules, candidates, depth and slots, with fitted exponents.

        python -m benchmarks growth

    Each point is a process of its own. Times are CPU seconds, the least of three repeats; an exponent is the slope of a
    line through the logarithms. More facts are copies of the same graph, so that what matches stays equal: all ends are
    compared.
    """
    parser = make_parser(run_growth)
    parser.add_argument("--mode", default="native", help="of the evaluator; slots are measured in mode eager")
    parser.add_argument("--axes", nargs="+", choices=tuple(POINTS), default=list(POINTS))
    parser.add_argument("--tiny", action="store_true", help="small values, to see that it runs")
    options = parser.parse_args(words)
    values = TINY if options.tiny else POINTS
    points: dict[str, dict[int, Point]] = {}
    titles = [title for label in MEASURED.values() for title in (label, "exponent")]
    print_header("against", "from", "to", *titles)
    for axis in options.axes:
        points[axis] = {
            value: run_apart(measure_point, axis, value, values[axis][0], options.mode, options.tiny)
            for value in values[axis]
        }
        if axis in ("facts", "slots") and len({each.ends for each in points[axis].values()}) > 1:
            sys.exit(f"{axis}: the ends of the candidates differ")
        cells = []
        for name in MEASURED:
            measured = [getattr(each, name) for each in points[axis].values()]
            cells += [f"{measured[0]:,.3g} to {measured[-1]:,.3g}", f"{fit_exponent(values[axis], measured):.2f}"]
        print_row(axis, f"{values[axis][0]:,}", f"{values[axis][-1]:,}", *cells)
