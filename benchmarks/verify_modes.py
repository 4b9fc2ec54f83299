"""Is every compile mode right, and what does it cost? Verifies each against the reference, then times a second run.

    python benchmarks/verify_modes.py --device cuda --graph countries --graph family

Prints one row for each graph, policy and mode: verdict, coverage, seconds of the first (compiling) run and of a
warm one.
"""

import argparse
import sys
import time

from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, load_policy, reference_pipeline
from kgverify.verification.verify import verify


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graph", action="append")
    parser.add_argument("--policy", action="append")
    parser.add_argument("--mode", action="append")
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--slots", type=int, default=256)
    options = parser.parse_args()
    failures = 0
    print("graph policy mode verdict candidates steps near_ties first_s warm_s warm_us_per_candidate", flush=True)
    for graph in options.graph or ["countries"]:
        loaded, limits = load_graph(graph), Limits()
        for policy in options.policy or ["shortest", "two_tower"]:
            run = Run(loaded, limits, load_policy(policy, loaded, limits, 0), num_queries=options.queries)
            reference = reference_pipeline(run)
            for mode in options.mode or ["eager", "default", "reduce-overhead"]:
                judged = evaluator_pipeline(run, mode=mode, device=options.device, slots=options.slots)
                candidates = judged.draw(loaded, run.split, run.queries, run.num_corruptions, run.seed)
                began = time.perf_counter()
                judged.engine.prove(candidates)
                first = time.perf_counter() - began
                report = verify(run, reference, judged).report
                began = time.perf_counter()
                judged.engine.prove(candidates)
                warm = time.perf_counter() - began
                failures += report.verdict.value != "AGREE"
                coverage = f"{report.coverage.candidates} {report.coverage.steps} {len(report.near_ties)}"
                seconds = f"{first:.1f} {warm:.3f} {warm / len(candidates.query) * 1e6:.1f}"
                print(loaded.name, policy, mode, report.verdict.value, coverage, seconds, flush=True)
                if report.first_cause is not None:
                    print("   ", report.first_cause, flush=True)
    return min(1, failures)


if __name__ == "__main__":
    sys.exit(main())
