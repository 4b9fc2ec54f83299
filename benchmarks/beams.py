"""The speed of beams against that of single derivations, on one GPU."""

from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks import make_parser, print_header, print_row, time_in_turn
from benchmarks.speed import PUBLISHED, draw
from kgverify.api.compare import compare
from kgverify.engines.plain.engine import PlainEngine
from kgverify.engines.policy import make_two_tower
from kgverify.engines.protocol import Workload
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Dialect, Limits
from kgverify.prover.evaluator import Evaluator
from kgverify.runs.run import Run, build_trace

NUM_CHECKED = 2
"""The queries, and the corruptions a side, of the comparison with the plain evaluator."""


def load(graph: str, limits: Limits, queries: int, corruptions: int) -> Run:
    """Return a run with the published sizes of the policy."""
    loaded = load_graph(graph)
    policy = make_two_tower(loaded.program, limits, seed=0, **PUBLISHED)
    return Run(loaded, limits, policy, num_queries=queries, num_corruptions=corruptions)


def build(run: Run, num: int, device: str) -> Any:
    """Build the evaluator for a number of candidates."""
    made = Evaluator(mode="eager" if device == "cpu" else "auto", device=device, work=Workload(lambda _: num, num))
    return made(run.graph.program, run.limits, run.policy)


def check(run: Run, device: str) -> str:
    """Compare a few candidates with the plain evaluator, step by step."""
    candidates = draw(run)
    sides = PlainEngine(run.graph.program, run.limits, run.policy), build(run, len(candidates.query), device)
    report = compare(*(build_trace(run, side, side.prove(candidates), None) for side in sides))
    return f"{len(report.divergences)} divergences, {len(report.near_ties)} near-ties"


def run_beams(words: list[str]) -> None:
    """Beams against the single derivations of the same candidates: the ratio of their times, for each path of a full beam.

        python -m benchmarks beams
        python -m benchmarks beams --device cpu --queries 1 --corruptions 2 --graph family --sizes 8

    Beams have scores in float64, single derivations in float32. Each is warmed up; the least time of some repeats counts.
    """
    parser = make_parser(run_beams)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--graph", nargs="+", default=["family", "wn18rr"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--corruptions", type=int, default=100, help="a side")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args(words)
    print_header(
        "graph", "k", "candidates", "greedy, µs", "beam, µs", "beam / (k x greedy)", "against the plain evaluator"
    )
    for name, size in product(options.graph, options.sizes):
        beam = Limits(dialect=Dialect(search=f"beam({size})"))
        found = check(load(name, beam, NUM_CHECKED, NUM_CHECKED), options.device)
        times = []
        for limits in (Limits(), beam):
            run = load(name, limits, options.queries, options.corruptions)
            candidates = draw(run)
            engine = build(run, len(candidates.query), options.device)
            seconds = time_in_turn({"": partial(evaluate, engine, candidates)}, options.repeats + 1)[""]
            times.append(min(seconds) / len(candidates.query))
            del engine
        greedy, searched = times
        ratio = f"{searched / size / greedy:.2f}"
        print_row(
            name, size, f"{len(candidates.query):,}", f"{1e6 * greedy:.2f}", f"{1e6 * searched:.2f}", ratio, found
        )


def evaluate(engine: Any, candidates: Any) -> None:
    """Evaluate candidates, and wait for the device."""
    engine.evaluate(candidates)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
