"""The evaluator against the published design on one GPU, and the cost of recording its runs."""

import argparse
import gc
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch

from benchmarks.baseline import PaddedEvaluator
from benchmarks.shared import make_parser, print_header, print_row
from kgverify.comparison.equality import Equality
from kgverify.engines.policy import SHORTEST, Policy, make_two_tower
from kgverify.engines.protocol import Engine, Positions, Results
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.judge import report_evaluation
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.progress import Progress, no_progress
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution.compilation import FUSED
from kgverify.prover.execution.device import resolve_device
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.program.least_model import LeastModel
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import MRR, compute_metrics, rank_candidates
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.fan_out import reference_over
from kgverify.runs.run import Pipeline, Run, describe_work, load_policy, reference_pipeline
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Rankings
from kgverify.trace.model.digests import compute_digests, compute_sequence
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.read.trace_file import TraceFile
from kgverify.verification.record import SHARD_STEPS, RecordingOptions, record
from kgverify.verification.verify import verify

Result = TypeVar("Result")

SLOTS: Final = 65536
MATCHED_PER_SLOT: Final = 64
SCORED_PER_SLOT: Final = 32
LIMITS: Final = Limits()


@dataclass(frozen=True)
class Bench:
    """The settings of a measurement.

    tiny:    everything is small, to check on a CPU that it runs; the times then mean nothing
    seconds: the times of our engine in each precision on 100 queries x 100 corruptions, once measured
    """

    device: str
    mode: str
    tiny: bool
    repeats: int
    baseline_slots: tuple[int, ...]
    graph: str
    large_graph: str
    seconds: dict[str, float] = field(default_factory=dict)

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
        sizes = {"embedding": 16, "hidden": 32, "blocks": 2} if self.tiny else PUBLISHED
        policy = make_two_tower(loaded.program, LIMITS, seed=0, **sizes)
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
        return CompiledEngine(
            run.graph.program,
            run.limits,
            run.policy,
            mode=self.mode,
            device=self.device,
            layout=layout,
            precision=precision,
        )

    def build_baseline(self, run: Run, num: int, slots: int, *, recomputes: bool = True) -> PaddedEvaluator:
        """Build the published design."""
        return PaddedEvaluator(
            run.graph.program,
            run.limits,
            run.policy,
            slots=8 if self.tiny else slots,
            capacity=num,
            recomputes=recomputes,
            mode=self.mode,
            device=self.device,
        )

    def measure(self, work: Callable[[], Result], repeats: int | None = None) -> tuple[Result, float]:
        """Return the result of the work and its least time in seconds, waiting for the device. Warm up before."""
        times = []
        for _ in range(self.repeats if repeats is None else repeats):
            self.wait()
            began = time.perf_counter()
            result = work()
            self.wait()
            times.append(time.perf_counter() - began)
        return result, min(times)

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

    def peak(self) -> float:
        """Return the peak of device memory since `forget`, in GiB."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.is_cuda else 0.0


PUBLISHED: Final = {"embedding": 250, "hidden": 256, "blocks": 8}


def draw(run: Run) -> CandidateSet:
    """Draw the candidates of a run."""
    return draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)


def count_flops(policy: Policy, num_rows: int) -> float:
    """Count the operations of the blocks' products on a number of rows."""
    hidden = len(policy.weights["input.bias"])
    return num_rows * policy.num_blocks * 2.0 * hidden**2


def describe_difference(expected: Any, actual: Any) -> str:
    """Describe the difference of two `Results`."""
    differs = expected.outcome != actual.outcome
    gap = np.abs(expected.log_probability - actual.log_probability)[~differs]
    return (
        f"{int(differs.sum())} outcomes differ, log-probabilities by up to {gap.max(initial=0.0):.1e} where they do not"
    )


class MarkdownTable:
    """Printed row by row, so that what was measured is there even if the rest is not."""

    COLUMNS: Final = ("set", "what", "candidates", "seconds", "µs/candidate", "peak GiB", "note")

    def __init__(self) -> None:
        print_header(*self.COLUMNS)

    def add(
        self, name: str, what: str, num: int = 0, seconds: float = 0.0, *, peak: float = 0.0, note: str = ""
    ) -> None:
        """One row; a number that is 0 is left out."""
        cells = (
            name,
            what,
            f"{num:,}" if num else "",
            f"{seconds:.4g}" if seconds else "",
            f"{seconds / num * 1e6:.3g}" if num and seconds else "",
            f"{peak:.2f}" if peak else "",
            note,
        )
        print_row(*cells)


# Sections: each measures one thing, and adds its rows to the table.


PEAK_FLOPS = {"float32": 67e12, "bf16x3": 989e12, "bf16": 989e12, "fp16": 989e12}
"""An H200's, dense, as its maker states them; of bf16x3, which multiplies three times, too."""

NUM_POOLS = 10
"""The pools that are recorded in turn."""

WN18RR_SHARE = 512
"""The number of wn18rr's candidates given to the baseline: a segment has up to 34,796 facts."""


def count_outside(bench: Bench, run: Run, candidates: CandidateSet, results: Results) -> int:
    """Proofs of what does not follow from the program."""
    model = LeastModel(run.graph.program, device=bench.device)
    return int((~model.contains(candidates.atom[results.outcome == Outcome.PROVED])).sum())


def as_candidates(candidates: CandidateSet, outcome: Any, log_probability: Any) -> Candidates:
    zeros = np.zeros(len(candidates.query), np.uint32)
    return Candidates(*candidates, zeros, outcome.astype(np.int8), zeros.astype(np.uint8), log_probability)


def rank(run: Run, candidates: CandidateSet, results: Results) -> Rankings:
    ended = as_candidates(candidates, results.outcome, results.log_probability)
    return rank_candidates(ended, run.triples)


class Remembered:
    """An engine that proves the same candidates once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._columns: Columns | None = None

    @property
    def info(self) -> EngineInfo:
        """The engine's."""
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """The number of candidates of the first call."""
        if self._columns is None:
            self._columns = self._engine.prove(candidates, progress)
        return self._columns

    def step(self, positions: Positions) -> Columns:
        """The engine's."""
        return self._engine.step(positions)


def measure_agreement(bench: Bench, table: MarkdownTable) -> None:
    """Step by step against the reference, on both graphs, with `shortest` and in every precision of the policy."""
    for name in (bench.graph, bench.large_graph):
        run = bench.load(name, 50, 100)
        measure_agreement_on(bench, run, table)


def measure_agreement_on(bench: Bench, run: Run, table: MarkdownTable) -> None:
    """One graph's; the reference proves each candidate once."""
    shortest = Run(run.graph, run.limits, SHORTEST, num_queries=len(run.queries), num_corruptions=run.num_corruptions)
    for each in (shortest, run):
        with reference_over(each, jobs=1 if bench.tiny else (os.cpu_count() or 1)) as reference:
            expected = reference._replace(engine=Remembered(reference.engine))
            for precision in ("float32",) if each is shortest else bench.precisions:
                bench.forget()
                pipeline = Pipeline(bench.build(each, 4096, precision), draw_candidates, rank_candidates)
                report = verify(each, expected, pipeline, equality=Equality(determinism=False)).report
                coverage = report.coverage
                what = f"reference against {each.policy.name}, {precision}"
                note = f"{report.verdict.value}: {coverage.steps:,} steps, {len(report.near_ties)} near-ties"
                table.add(run.graph.name, what, coverage.candidates, note=note)


def measure_family(bench: Bench, table: MarkdownTable) -> None:
    """100 queries x 100 corruptions x 2 sides: ours in every precision, the baseline at several numbers of slots."""
    run = bench.load(bench.graph, 100, 100)
    candidates = draw(run)
    num, name = len(candidates.query), run.graph.name
    ours: dict[str, float] = {}
    expected: Results | None = None
    for precision in bench.precisions:
        bench.forget()
        engine = bench.build(run, num, precision)
        began = time.perf_counter()
        engine.evaluate(candidates)
        first = time.perf_counter() - began
        evaluation, ours[precision] = bench.measure(partial(engine.evaluate, candidates))
        note = f"first run {first:.1f} s"
        if expected is None:
            expected = evaluation.results
            outside = count_outside(bench, run, candidates, expected)
            proved = int((expected.outcome == Outcome.PROVED).sum())
            note += f"; {proved:,} proved, {outside} of them outside of the least model"
        else:
            note += (
                f"; {describe_difference(expected, evaluation.results)}; {evaluation.num_rescored:,} choices made again"
            )
        table.add(name, f"ours, {precision}", num, ours[precision], peak=bench.peak(), note=note)
        del engine
    assert expected is not None

    bench.seconds.update(ours)
    theirs: dict[str, float] = {}

    def measure_baseline(what: str, slots: int, recomputes: bool) -> None:
        bench.forget()
        evaluator = bench.build_baseline(run, num, slots, recomputes=recomputes)
        results = evaluator.evaluate(candidates)
        _, theirs[what] = bench.measure(partial(evaluator.evaluate, candidates), min(2, bench.repeats))
        proved = int((results.outcome == Outcome.PROVED).sum())
        note = describe_difference(expected, results) if recomputes else f"{proved} proved"
        note += f"; {evaluator.num_steps} steps, {evaluator.num_engine_calls} calls of the engine"
        table.add(name, what, num, theirs[what], peak=bench.peak(), note=note)

    for slots in bench.baseline_slots:
        measure_baseline(f"baseline, {slots} slots", slots, True)
    slots = min(bench.baseline_slots, key=lambda each: theirs[f"baseline, {each} slots"])
    if bench.is_cuda:
        torch.set_float32_matmul_precision("high")
        measure_baseline(f"baseline, {slots} slots, tf32", slots, True)
        torch.set_float32_matmul_precision("highest")
    best = min(theirs[f"baseline, {each} slots"] for each in bench.baseline_slots)
    measure_baseline("baseline as published, 256 slots", 256, False)
    as_published = theirs["baseline as published, 256 slots"]
    for precision, seconds in ours.items():
        note = f"{best / seconds:.1f} x the right baseline at its best, {as_published / seconds:.1f} x as published"
        table.add(name, f"ratio, {precision}", note=note)


def measure_million(bench: Bench, table: MarkdownTable) -> None:
    """Measure a run from the draw to the metrics."""
    run = bench.load(bench.graph, 5000, 100)
    candidates, seconds = bench.measure(partial(draw, run), 1)
    num, name = len(candidates.query), run.graph.name
    table.add(name, "draw of a million", num, seconds)
    for precision in bench.precisions[-1:]:
        bench.forget()
        engine = bench.build(run, num, precision)
        engine.evaluate(candidates.take(slice(0, 64)))

        (results, mrr), seconds = bench.measure(partial(rank_end_to_end, run, engine), min(2, bench.repeats))
        table.add(name, f"draw, evaluate, rank: {precision}", num, seconds, peak=bench.peak(), note=f"MRR {mrr:.4f}")
        evaluation, seconds = bench.measure(partial(engine.evaluate, candidates), min(2, bench.repeats))
        outside = count_outside(bench, run, candidates, evaluation.results)
        note = f"{evaluation.num_rescored:,} of {evaluation.num_choices:,} choices made again; {outside} proofs outside"
        table.add(name, f"of this, evaluate: {precision}", num, seconds, note=note)
        if engine.info.mode == FUSED:
            off = seconds
            engine.evaluate(candidates, has_digests=True)
            _, seconds = bench.measure(partial(engine.evaluate, candidates, has_digests=True), 2)
            table.add(name, f"the same with digests: {precision}", num, seconds, note=f"{seconds / off - 1:+.1%}")
        _, seconds = bench.measure(partial(rank, run, candidates, results), 1)
        table.add(name, "of this, rank", num, seconds)
        del engine


def rank_end_to_end(run: Run, engine: CompiledEngine) -> tuple[Results, float]:
    """The results, and the MRR."""
    candidates = draw(run)
    results = engine.evaluate(candidates).results
    return results, compute_metrics(rank(run, candidates, results))[MRR]


def measure_wn18rr(bench: Bench, table: MarkdownTable) -> None:
    """Segments of up to 34,796 facts; the baseline on fewer candidates."""
    run = bench.load(bench.large_graph, 100, 100)
    candidates = draw(run)
    num, name = len(candidates.query), run.graph.name
    ours: dict[str, float] = {}
    for precision in bench.precisions:
        bench.forget()
        engine = bench.build(run, num, precision)
        engine.evaluate(candidates)
        evaluation, seconds = bench.measure(partial(engine.evaluate, candidates))
        if not ours:
            expected = evaluation.results
        ours[precision] = seconds / num
        note = describe_difference(expected, evaluation.results)
        table.add(name, f"ours, {precision}", num, seconds, peak=bench.peak(), note=note)
        del engine
    bench.forget()
    rows = np.arange(0, num, max(1, num // WN18RR_SHARE))
    few = candidates.take(rows)
    evaluator = bench.build_baseline(run, len(rows), 256)
    results = evaluator.evaluate(few)
    _, seconds = bench.measure(partial(evaluator.evaluate, few), min(2, bench.repeats))
    note = describe_difference(Results(*(column[rows] for column in expected)), results)
    table.add(name, "baseline, 256 slots", len(rows), seconds, peak=bench.peak(), note=note)
    for precision, each in ours.items():
        table.add(name, f"ratio, {precision}", note=f"{seconds / len(rows) / each:.1f} x the right baseline")


def measure_trace(bench: Bench, table: MarkdownTable) -> None:
    """Measure the cost of digests and steps, from the pool to columns on the host, and the policy's products against the peak."""
    run = bench.load(bench.graph, 100, 100)
    candidates = draw(run)
    num, name = len(candidates.query), run.graph.name
    for precision in bench.precisions:
        bench.forget()
        engine = bench.build(run, num, precision)
        engine.evaluate(candidates)
        _, off = bench.measure(partial(engine.evaluate, candidates))
        engine.prove(candidates)
        columns, on = bench.measure(partial(engine.prove, candidates))
        num_rows = count_rows(columns)
        note = f"{on / off - 1:+.1%}; {len(columns.steps.depth):,} steps, {len(columns.resolvents.kind):,} resolvents"
        if engine.info.mode == FUSED:
            engine.evaluate(candidates, has_digests=True)
            evaluation, digesting = bench.measure(partial(engine.evaluate, candidates, has_digests=True))
            is_same = all(map(np.array_equal, evaluation.digests.digests, compute_digests(columns)))
            what = f"digests of every step, {precision}"
            digested = f"{digesting / off - 1:+.1%}; {'those of the steps' if is_same else 'WRONG'}"
            table.add(name, what, num, digesting, note=digested)
        table.add(name, f"every step, {precision}", num, on, peak=bench.peak(), note=note)
        measure_recording(bench, run, engine, precision, table)
        flops = count_flops(run.policy, num_rows) * (3 if precision == "bf16x3" else 1)
        share = flops / off / PEAK_FLOPS[precision]
        note = f"{num_rows:,} valid rows, {flops / 1e12:.2f} TFLOP: {share:.1%} of {PEAK_FLOPS[precision] / 1e12:.0f} TFLOPS"
        table.add(name, f"products, of all the time, {precision}", num, off, note=note)


def measure_recording(bench: Bench, run: Run, engine: CompiledEngine, precision: str, table: MarkdownTable) -> None:
    """Measure the cost of every step of several pools, each copied to the host while the next one is proved."""
    wider = replace(run, num_queries=min(len(run.graph.queries(run.split)), NUM_POOLS * run.num_queries))
    candidates = draw(wider)
    num = len(candidates.query)

    def record_in_turn(*, has_digests: bool) -> int:
        num_steps, waiting = 0, None
        for recorded in chain(engine.record(candidates, has_digests=has_digests), [None]):
            num_steps += 0 if waiting is None else len(waiting.read()[0].steps.depth)
            waiting = recorded
        return num_steps

    engine.evaluate(candidates)
    _, off = bench.measure(partial(engine.evaluate, candidates))
    for has_digests in (False, True):
        record_in_turn(has_digests=has_digests)
        num_steps, on = bench.measure(partial(record_in_turn, has_digests=has_digests))
        what = f"every step{' and digest' * has_digests}, pools of {engine.layout.pool:,} in turn, {precision}"
        table.add(run.graph.name, what, num, on, peak=bench.peak(), note=f"{on / off - 1:+.1%}; {num_steps:,} steps")


def count_rows(columns: Columns) -> int:
    """States that the policy has to see: resolvents, and the goal of each step that has some."""
    is_goal = columns.resolvents.kind == GoalKind.GOAL
    owner = np.repeat(np.arange(len(columns.steps.depth)), columns.steps.num_resolvents)
    return int(is_goal.sum()) + len(np.unique(owner[is_goal]))


def measure_rank_only(bench: Bench, table: MarkdownTable) -> None:
    """The full filtered ranking, without the candidates that the least model shows cannot matter."""
    graph = bench.load(bench.graph, 1, 1).graph
    for policy, precision in ((SHORTEST, "float32"), (bench.load(bench.graph, 1, 1).policy, bench.precisions[-1])):
        bench.forget()
        num_queries = 2 if bench.tiny else len(graph.queries("test"))
        run = Run(graph, LIMITS, policy, num_queries=num_queries, num_corruptions=ALL)
        pipeline = evaluator_pipeline(
            run,
            mode=bench.mode,
            device=bench.device,
            slots=16 if bench.tiny else None,
            precision=precision,
            work=describe_work(run, rank_only=True),
        )
        began = time.perf_counter()
        harvest = evaluate(run, pipeline, EvaluationSettings(rank_only=True))
        seconds = time.perf_counter() - began
        assert harvest is not None
        report = report_evaluation(run, harvest, pipeline, num_checked=0)
        note = f"{report.num_left_out:,} left out; MRR {report.metrics[MRR]:.4f}; warming up {harvest.warm_up_seconds:.1f} s"
        what = f"every rank, {policy.name}, {precision}"
        table.add(
            graph.name, what, report.num_candidates, seconds - harvest.warm_up_seconds, peak=bench.peak(), note=note
        )
        if bench.tiny:
            whole = evaluate(run, pipeline)
            assert whole is not None
            is_same = report_evaluation(run, whole, pipeline, num_checked=0).metrics == report.metrics
            table.add(graph.name, f"ranks of all, {policy.name}", note="the same" if is_same else "DIFFER")


SECTIONS = {
    "agreement": measure_agreement,
    "family": measure_family,
    "million": measure_million,
    "wn18rr": measure_wn18rr,
    "trace": measure_trace,
    "rank-only": measure_rank_only,
}


def run_evaluator(words: list[str]) -> None:
    """Compare the evaluator with the published design on one GPU: first whether it is right, then how fast it is.

        python -m benchmarks evaluator --device cuda
        python -m benchmarks evaluator --device cuda --only family,wn18rr
        python -m benchmarks evaluator --device cpu --tiny

    Both sides of a ratio are measured in the same run, on the same candidates and weights, each warmed up, the best of
    some repeats. Sections: agreement, family, million, wn18rr, trace, rank-only.
    """
    parser = make_parser(run_evaluator)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mode", default="auto", help="as of the engine")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baseline-slots", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--graph", default="family")
    parser.add_argument("--large-graph", default="wn18rr")
    parser.add_argument("--tiny", action="store_true", help="a few candidates of each, to see that it runs")
    options = parser.parse_args(words)
    sections = options.only.split(",")
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"unknown sections {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    bench = Bench(
        device=resolve_device(options.device).type,
        mode=options.mode,
        tiny=options.tiny,
        repeats=options.repeats,
        baseline_slots=tuple(options.baseline_slots[:1] if options.tiny else options.baseline_slots),
        graph=options.graph,
        large_graph=options.large_graph,
    )
    device = torch.cuda.get_device_name() if bench.is_cuda else "CPU"
    print(f"{device}, torch {torch.__version__}, best of {bench.repeats}\n")
    table = MarkdownTable()
    for name in sections:
        SECTIONS[name](bench, table)


# Recording of traces


OFF = "off | "

NO_RANKINGS = Rankings(
    np.zeros(0, np.int32),
    np.zeros(0, np.int8),
    np.zeros(0, np.uint32),
    np.zeros(0, np.float64),
    np.zeros(0, np.float64),
)


def drawn_before(engine: CompiledEngine, candidates: CandidateSet) -> Pipeline:
    """A pipeline that neither draws nor ranks."""

    def draw(*_: Any) -> CandidateSet:
        return candidates

    def rank(*_: Any) -> Rankings:
        return NO_RANKINGS

    return Pipeline(engine, draw, rank)


def size_of(path: Path) -> int:
    return sum(each.stat().st_size for each in (path.rglob("*") if path.is_dir() else (path,)))


def measure_levels(run: Run, precision: str, options: argparse.Namespace) -> None:
    pipeline = evaluator_pipeline(
        run,
        device=options.device,
        mode=options.mode,
        slots=options.slots,
        work=describe_work(run, records=True),
        precision=precision,
    )
    engine = pipeline.engine
    assert isinstance(engine, CompiledEngine)
    candidates = pipeline.draw_for(run)
    ready = drawn_before(engine, candidates)
    few = candidates.take(slice(0, options.checked))
    expected = compute_sequence(reference_pipeline(run).engine.prove(few))
    best: dict[str, float] = {}
    notes: dict[str, str] = {}
    roots = set()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        path = Path(name) / "trace.h5"
        # The first turn captures, and takes the memory.
        for turn in range(options.repeats + 1):
            began = time.perf_counter()
            engine.evaluate(candidates)
            seconds = {OFF: time.perf_counter() - began}
            for level, threads in itertools.product(options.levels, options.threads):
                side = f"{level.value} | {threads}"
                began = time.perf_counter()
                recording = record(
                    run,
                    ready,
                    path,
                    RecordingOptions(level=level, shard_steps=options.shard_steps),
                    append_threads=threads,
                )
                seconds[side] = time.perf_counter() - began
                if turn == 0:
                    trace = TraceFile(path)
                    roots.add(trace.compute_root())
                    stored = np.concatenate([each["sequence"] for each in trace.read_digests(0, len(few.query))])
                    is_right = np.array_equal(stored, expected)
                    size = size_of(path)
                    notes[side] = f"{size / recording.num_steps:.1f} bytes a step, {size / 2**20:,.0f} MiB"
                    notes[side] += "" if is_right else "; WRONG"
                    notes[OFF] = f"{recording.num_steps:,} steps"
                    del trace
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if turn:
                best = {each: min(best.get(each, np.inf), value) for each, value in seconds.items()}
    for each, value in best.items():
        more = "" if each == OFF else f"{value / best[OFF] - 1:+.1%}"
        rate = int(notes[OFF].split()[0].replace(",", "")) / value / 1e6
        print_row(precision, each, f"{value * 1e3:,.0f} ms", f"{rate:.2f}", more, notes[each])
    if len(roots) != 1:
        print(f"ROOTS DIFFER: {roots}")


def run_recording(words: list[str]) -> None:
    """Measure the cost of recording a trace of each level, against the same run of the evaluator without one.

        python -m benchmarks recording --graph family --queries 1000 --device cuda --folder /tmp --threads 1 2 3

    `off` is `evaluate`; `on` is what `kgverify record` does with the same candidates, drawn and ranked already:
    commits, checksums, digests and fsync. Both take turns in one run; the least of several. Every trace has the same
    root, and the digests of its first candidates are those of the reference. `threads`: parts that are appended at the
    same time.
    """
    parser = make_parser(run_recording)
    parser.add_argument("--graph", default="countries")
    parser.add_argument("--policy", default="two_tower")
    parser.add_argument("--large", action="store_true", help="two_tower of 8 blocks of 256")
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--corruptions", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--slots", type=int, default=None)
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--folder", default=None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="that append; each in turn")
    parser.add_argument(
        "--levels", type=TraceLevel, nargs="+", default=[TraceLevel.DIGESTS, TraceLevel.COMPACT, TraceLevel.STEPS]
    )
    parser.add_argument("--shard-steps", type=int, default=SHARD_STEPS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checked", type=int, default=100, help="candidates that the reference proves")
    options = parser.parse_args(words)
    graph, limits = load_graph(options.graph), Limits()
    policy = (
        make_two_tower(graph.program, limits, embedding=250, hidden=256, blocks=8, seed=0)
        if options.large
        else load_policy(options.policy, graph, limits, 0)
    )
    run = Run(graph, limits, policy, num_queries=options.queries, num_corruptions=options.corruptions)
    print(
        f"{options.graph}, {policy.name}, {options.queries} queries x {options.corruptions} corruptions, {options.device}"
    )
    print_header("precision", "level", "threads", "time", "M steps/s", "more than off", "")
    for precision in options.precision:
        measure_levels(run, precision, options)
