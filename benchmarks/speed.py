"""The prover's speed on CPU cores: against the reference, and as work grows."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import make_parser, print_header, print_row, run_apart
from benchmarks.traces import peak_mb, write_chain, write_graph
from kgverify.api.inputs import make_pipeline
from kgverify.engines.policy import make_two_tower
from kgverify.engines.protocol import Engine
from kgverify.engines.table import COMPILED, make_entry
from kgverify.evaluation.judge import find_smallest_gaps
from kgverify.evaluation.proving import prove_candidates
from kgverify.garbage_collection import without_garbage_collection
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run, load_policy
from kgverify.trace.model.columns import Candidates, CandidateSet

MIN_REPEATS: Final = 3
"""The minimum number of repetitions; fewer would not show the spread."""
PUBLISHED: Final = {"embedding": 250, "hidden": 256, "blocks": 8}
"""The sizes of the published policy."""


class Timing(NamedTuple):
    """The times of an engine.

    warm_up:   the seconds to make the engine and to prove the candidates twice, including compilation
    quartiles: the quartiles of the microseconds for each candidate
    """

    engine: Engine
    ends: Candidates
    warm_up: float
    quartiles: tuple[float, float, float]


def draw(run: Run) -> CandidateSet:
    """Draw the candidates of a run."""
    return draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)


def time_engine(run: Run, engine: Any, candidates: CandidateSet, seconds: float) -> Timing:
    """Time the proofs of candidates, at least `MIN_REPEATS` times, and for some seconds."""
    began = time.perf_counter()
    made = make_pipeline(engine, run).engine
    for _ in range(2):
        # The second call may compile again for the state that the first call left.
        ends = prove_candidates(made, candidates)[0]
    warm_up = time.perf_counter() - began
    timed: list[float] = []
    while len(timed) < MIN_REPEATS or sum(timed) < seconds:
        with without_garbage_collection():
            began = time.perf_counter()
            prove_candidates(made, candidates)
            timed.append(time.perf_counter() - began)
    low, median, high = (1e6 * each / len(candidates.query) for each in quantiles(timed, n=4, method="inclusive"))
    return Timing(made, ends, warm_up, (low, median, high))


def count_differing(reference: Engine, engine: Engine, sample: CandidateSet, ends: Candidates) -> int:
    """Count the candidates whose outcome or limit differs from the reference's, except at near-ties of scores."""
    expected = reference.prove(sample)
    is_equal = (expected.candidates.outcome == ends.outcome) & (expected.candidates.is_limited == ends.is_limited)
    error = reference.info.score_error + engine.info.score_error
    is_near: NDArray[np.bool_] = (find_smallest_gaps(expected) <= 2 * error) & (error > 0)
    return int((~is_equal & ~is_near).sum())


def run_cpu(words: list[str]) -> None:
    """The evaluators on this machine's CPU cores against the reference, per candidate.

        KGVERIFY_DATA=... python -m benchmarks cpu --graph countries family

    Each evaluator proves all candidates, and the reference a sample of them; an evaluator that differs on it has no speed.
    """
    parser = make_parser(run_cpu)
    parser.add_argument("--graph", nargs="+", default=["countries", "family"])
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--corruptions", type=int, default=50, help="a side")
    parser.add_argument("--sample", type=int, default=256, help="the candidates that the reference proves")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the repetitions of each engine")
    parser.add_argument("--modes", default="native,default")
    options = parser.parse_args(words)
    print_header("graph", "policy", "engine", "candidates", "µs/candidate, median", "quartiles", "times the reference")
    for name in options.graph:
        graph, limits = load_graph(name), Limits()
        for label, policy in (
            ("`shortest`", load_policy("shortest", graph, limits, 0)),
            ("`two_tower`, 2 × 64", load_policy("two_tower", graph, limits, 0)),
            ("`two_tower`, 8 × 256", make_two_tower(graph.program, limits, seed=0, **PUBLISHED)),
        ):
            run = Run(graph, limits, policy, num_queries=options.queries, num_corruptions=options.corruptions)
            candidates = draw(run)
            num = len(candidates.query)
            rows = np.sort(np.random.default_rng(run.seed).permutation(num)[: options.sample])
            sample = candidates.take(rows)
            # The reference remembers scores, so that its first pass is the one without memory.
            reference = make_pipeline("reference", run).engine
            began = time.perf_counter()
            reference.prove(sample)
            slow = 1e6 * (time.perf_counter() - began) / len(rows)
            print_row(name, label, "reference, first pass", len(rows), f"{slow:,.0f}", "", "1.0")
            for mode in options.modes.split(","):
                found = time_engine(run, make_entry(COMPILED, mode=mode, device="cpu"), candidates, options.seconds)
                ends = Candidates(*(column[rows] for column in found.ends))
                if num_differing := count_differing(reference, found.engine, sample, ends):
                    print_row(name, label, mode, f"{num:,}", f"{num_differing} of {len(rows)} DIFFER", "", "")
                    continue
                low, median, high = found.quartiles
                speed = f"{median:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{slow / median:.1f}"
                print_row(name, label, mode, f"{num:,}", *speed)


# Growth


BASE: Final = {"facts": 20_000, "rules": 50, "queries": 20, "max_depth": 20}
POINTS: Final = {
    "facts": (20_000, 80_000, 320_000, 1_280_000),
    "rules": (25, 50, 100, 200, 400),
    "queries": (10, 40, 160, 640),
    "max_depth": (8, 16, 32, 64, 128),
}
MEASURED: Final = ("warm-up, s", "µs/candidate", "peak memory, MB")


def measure_point(axis: str, value: int, mode: str) -> tuple[float, ...]:
    """Return the measured values of one point of an axis."""
    size = BASE | {axis: value}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph")
        if axis == "max_depth":
            write_chain(path, 2 * max(POINTS[axis]))
        else:
            write_graph(path, size["facts"], size["rules"], num_relations=40, seed=0)
        limits = Limits(max_depth=size["max_depth"])
        run = Run(load_graph(str(path)), limits, num_queries=size["queries"], num_corruptions=50)
        found = time_engine(run, make_entry(COMPILED, mode=mode, device="cpu"), draw(run), 0.0)
    return found.warm_up, found.quartiles[1], peak_mb()


def fit_exponent(values: Sequence[float], measured: Sequence[float]) -> float:
    """Return the slope of the logarithm of what was measured against that of the values."""
    return float(np.polyfit(np.log(values), np.log(np.maximum(measured, 1e-9)), 1)[0])


def run_growth(words: list[str]) -> None:
    """Time and memory of the evaluator against facts, rules, queries and depth, with fitted exponents.

        python -m benchmarks growth

    An exponent is the slope of a line through the logarithms. More facts are of more entities, with the same number of facts
    for each. The depth is measured on a chain, where every derivation takes all the steps that the limit allows.
    """
    parser = make_parser(run_growth)
    parser.add_argument("--mode", default="native", help="of the evaluator")
    parser.add_argument("--axes", nargs="+", choices=tuple(POINTS), default=list(POINTS))
    options = parser.parse_args(words)
    print_header("against", "from", "to", *(title for label in MEASURED for title in (label, "exponent")))
    for axis in options.axes:
        points = [run_apart(measure_point, axis, value, options.mode) for value in POINTS[axis]]
        cells = []
        for measured in zip(*points, strict=True):
            cells += [f"{measured[0]:,.3g} to {measured[-1]:,.3g}", f"{fit_exponent(POINTS[axis], measured):.2f}"]
        print_row(axis, f"{POINTS[axis][0]:,}", f"{POINTS[axis][-1]:,}", *cells)
