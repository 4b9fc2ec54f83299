"""The evaluators on this machine's CPU cores against the reference, per candidate, as a Markdown table.

    KGVERIFY_DATA=... python benchmarks/cpu.py --graph countries family

Each evaluator proves all candidates, with every step recorded and without; the reference, on one core, some of them. What the
evaluator gives for these is compared.
"""

import argparse
import time

import numpy as np
from workloads import LIMITS, PUBLISHED, draw

from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.evaluation.proving import prove_candidates
from kgverify.graphs.load import load_graph
from kgverify.prover.evaluator import Evaluator
from kgverify.runs.run import Run, reference_pipeline

HEADER = (
    "| graph | policy | prover | slots | candidates | s | µs/candidate | times the reference | recorded: times"
    " | log-probabilities differ by |"
)
ROW = "| {} | {} | {} | {} | {:,} | {:.2f} | {:.0f} | {:.1f} | {:.1f} | {:.0e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", nargs="+", default=["countries", "family"])
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--slots", type=int, nargs="+", default=[256], help="of the modes that have slots")
    parser.add_argument(
        "--sample", type=int, default=16, help="one candidate of this number is proved by the reference"
    )
    parser.add_argument("--modes", nargs="+", default=["native", "default"])
    options = parser.parse_args()
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for name in options.graph:
        graph = load_graph(name)
        for label, policy in (
            ("`shortest`", SHORTEST),
            ("`two_tower`, 2 × 64", make_two_tower(graph.program, LIMITS, seed=0)),
            ("`two_tower`, 8 × 256", make_two_tower(graph.program, LIMITS, seed=0, **PUBLISHED)),
        ):
            run = Run(graph, LIMITS, policy, num_queries=options.queries, num_corruptions=50)
            candidates = draw(run)
            num = len(candidates.query)
            some = np.arange(0, num, options.sample)
            reference = reference_pipeline(run).engine
            began = time.perf_counter()
            expected = reference.prove(candidates.take(some)).candidates
            each = (time.perf_counter() - began) / len(some)
            print(
                ROW.format(name, label, "reference", "", len(some), each * len(some), each * 1e6, 1, 1, 0), flush=True
            )
            for mode, slots in ((mode, n) for mode in options.modes for n in options.slots):
                engine = Evaluator(mode=mode, device="cpu", slots=slots)(graph.program, LIMITS, policy)
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
                cells = (name, label, engine.info.mode, size, num, seconds, seconds / num * 1e6, *times, gap)
                print(ROW.format(*cells), flush=True)


if __name__ == "__main__":
    main()
