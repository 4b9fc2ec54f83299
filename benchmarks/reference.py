"""The steps per second of the reference prover on one core, in CPU time: python benchmarks/reference.py [REPEATS]"""

import sys
import time
from typing import Final

from kgverify.engines.policy import make_two_tower
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.runs.run import Run, load_policy, reference_pipeline

CASES: Final = [
    ("family", "shortest", 20, 50),
    ("family", "two_tower", 6, 20),
    ("family", "8 × 256", 6, 20),
    ("countries_s3", "shortest", 20, 50),
    ("countries_s3", "two_tower", 5, 20),
    ("wn18rr", "shortest", 5, 50),
    ("wn18rr", "two_tower", 2, 20),
]
"""Graph under $KGVERIFY_DATA, policy, queries, corruptions for each query and side; 8 × 256 is a larger `two_tower`."""


def measure(graph: str, policy: str, queries: int, corruptions: int, repeats: int) -> tuple[int, int, float]:
    """Candidates, steps, and the least CPU seconds of the repeats; nothing is remembered from one to the next."""
    loaded = load_graph(graph)
    if policy == "8 × 256":
        weights = make_two_tower(loaded.program, Limits(), seed=0, embedding=250, hidden=256, blocks=8)
    else:
        weights = load_policy(policy, loaded, Limits(), 0)
    run = Run(loaded, policy=weights, num_queries=queries, num_corruptions=corruptions)
    candidates = reference_pipeline(run).draw_for(run)
    seconds = []
    for _ in range(repeats):
        engine = reference_pipeline(run).engine
        begin = time.process_time()
        columns = engine.prove(candidates)
        seconds.append(time.process_time() - begin)
    return len(candidates.query), len(columns.steps.depth), min(seconds)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print("| graph | policy | candidates | steps | CPU, s | steps/s | ms/candidate |\n|---|---|---|---|---|---|---|")
    for graph, policy, queries, corruptions in CASES:
        candidates, steps, seconds = measure(graph, policy, queries, corruptions, repeats)
        print(
            f"| {graph} | {policy} | {candidates:,} | {steps:,} | {seconds:.2f} | {steps / seconds:,.0f} "
            f"| {1000 * seconds / candidates:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
