"""The speed of beams on a GPU, against that of single derivations: `python -m benchmarks.beams`."""

import argparse
import time
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

import kgverify.prover.search as search_module
from benchmarks.speed import PUBLISHED, draw
from kgverify.api.compare import compare
from kgverify.engines.plain.engine import PlainEngine
from kgverify.engines.policy import make_two_tower
from kgverify.engines.protocol import Workload
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Dialect, Limits
from kgverify.prover.evaluator import Evaluator
from kgverify.runs.run import Run, build_trace, load_policy


def timed(work: Any, repeats: int) -> tuple[Any, float]:
    """Return the result and the least seconds of some repeats, after one run that warms up."""
    result = work()
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return result, min(seconds)


def build(run: Run, limits: Limits, num: int, mode: str = "auto", precision: str = "float32") -> Any:
    """Build the evaluator for a number of candidates."""
    made = Evaluator(mode=mode, device="auto", precision=precision, work=Workload(lambda _: num, num))
    return made(run.graph.program, limits, run.policy)


def check(name: str, policy_name: str, dialect: Dialect, size: int) -> None:
    """Compare the columns and the endings of a few candidates with those of the plain evaluator, except after near-ties."""
    graph, limits = load_graph(name), Limits(dialect=dialect)
    policy = load_policy(policy_name, graph, limits, 0)
    run = Run(graph, limits, policy, num_queries=size, num_corruptions=size, seed=3)
    candidates = draw(run)
    plain, engine = PlainEngine(graph.program, limits, policy), build(run, limits, len(candidates.query))
    expected, actual = plain.prove(candidates), engine.prove(candidates)
    ends = engine.evaluate(candidates).results
    report = compare(build_trace(run, plain, expected, None), build_trace(run, engine, actual, None))
    differ = [int((ends[i] != actual.candidates[4 + i]).sum()) for i in range(2)]
    gap = np.abs(ends.log_probability - actual.candidates.log_probability).max()
    print(
        f"check {name} {policy_name} {dialect}: {engine.info.mode}, {len(candidates.query)} candidates,"
        f" {len(expected.steps.depth)} rows: {len(report.divergences)} divergences, {len(report.near_ties)} near-ties;"
        f" endings of evaluate and prove: {differ} differ, sums by {gap:.1e}",
        flush=True,
    )


def profile(engine: Any, candidates: Any) -> None:
    """Print the seconds of each part of a search, each waited for, and the numbers of paths and children."""
    seconds: dict[str, float] = {}
    searcher, restored = engine._searcher, []

    def watch(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            torch.cuda.synchronize()
            began = time.perf_counter()
            result = function(*arguments, **options)
            torch.cuda.synchronize()
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
            return result

        restored.append((owner, name, function))
        setattr(owner, name, watched)

    for name in ("_resolve", "_scores", "_select", "_advance", "_take_level", "aggregate"):
        watch(searcher, name)
    for name in ("add_exponentials",):
        watch(search_module, name)
    queries = torch.as_tensor(np.array(candidates.atom), device="cuda")
    num_paths = num_children = num_levels = 0
    for beams, level, _ in searcher.run(searcher.begin(queries), len(queries), counts_all=False):
        num_paths, num_children, num_levels = (
            num_paths + len(beams.place),
            num_children + len(level.path),
            num_levels + 1,
        )
    searcher.aggregate()
    for owner, name, function in restored:
        setattr(owner, name, function)
    print(
        f"  {num_levels} levels, {num_paths:,} paths, {num_children:,} children scored in float64;",
        end=" ",
    )
    print(", ".join(f"{name} {value:.3f} s" for name, value in seconds.items()), flush=True)


def main() -> None:
    """Check, then time, then print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", nargs="+", default=["family", "wn18rr"])
    parser.add_argument("--sizes", nargs="+", default=["8:100", "64:40"], help="k:queries")
    parser.add_argument("--corruptions", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--no-check", action="store_true")
    options = parser.parse_args()
    if not options.no_check:
        check("family", "two_tower", Dialect(search="beam(8)"), 2)
        check("wn18rr", "two_tower", Dialect(search="beam(8)", merge="max", aggregate="sum"), 2)
    rows = []
    for name, each in product(options.graph, options.sizes):
        size, queries = map(int, each.split(":"))
        graph = load_graph(name)
        policy = make_two_tower(graph.program, Limits(), seed=0, **PUBLISHED)
        run = Run(graph, Limits(), policy, num_queries=queries, num_corruptions=options.corruptions)
        candidates = draw(run)
        num = len(candidates.query)
        greedy = {}
        for precision in ("float32",):
            engine = build(run, Limits(), num, precision=precision)
            _, greedy[precision] = timed(partial(engine.evaluate, candidates), 3)
            print(f"{name} greedy {precision}: {num} candidates {greedy[precision] / num * 1e6:.2f} us", flush=True)
            del engine
        limits = Limits(dialect=Dialect(search=f"beam({size})"))
        engine = build(run, limits, num)
        found, seconds = timed(partial(engine.evaluate, candidates), options.repeats)
        ratios = [seconds / size / greedy[precision] for precision in ("float32",)]
        screen, engine._searcher._screen = engine._searcher._screen, None
        exact, slow = timed(partial(engine.evaluate, candidates), 1)
        engine._searcher._screen = screen
        differ = [int((left != right).sum()) for left, right in zip(exact.results, found.results, strict=True)]
        gap = np.abs(exact.results.log_probability - found.results.log_probability).max()
        print(f"  without the screen {slow / num * 1e6:.2f} us; outcome, limited, sum differ {differ}, by {gap:.1e}")
        print(f"  margin of the screen {screen.margin:.3g}", flush=True)
        counts = np.bincount(found.results.outcome, minlength=4).tolist()
        peak = torch.cuda.max_memory_allocated() / 2**30
        rows.append((name, num, size, greedy["float32"] / num, seconds / num, *ratios))
        print(
            f"{name} beam({size}): {seconds / num * 1e6:.2f} us, ratios {ratios}, {counts}, {peak:.1f} GiB", flush=True
        )
        profile(engine, candidates)
        del engine, found
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    print("| graph | candidates | k | greedy float32, us | beam, us | beam / (k x greedy) |")
    for name, num, size, first, beam, ratio in rows:
        print(f"| {name} | {num} | {size} | {first * 1e6:.2f} | {beam * 1e6:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
