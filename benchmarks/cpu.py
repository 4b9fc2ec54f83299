"""The compiled evaluator against the reference on this machine's CPU cores, per candidate, as a Markdown table.

    KGVERIFY_DATA=... python benchmarks/cpu.py

The evaluator proves all candidates, with every step recorded and without; the reference, on one core, some of them. What the
evaluator gives for these is compared.
"""

import argparse
import time

import numpy as np
from workloads import LIMITS, PUBLISHED, draw

from kgverify.engines.compiled.engine import CompiledEngine
from kgverify.engines.compiled.layout import choose_layout
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.graphs.load import load_graph
from kgverify.runs.run import Run, reference_pipeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="family")
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--slots", type=int, nargs="+", default=[256, 512])
    parser.add_argument(
        "--sample", type=int, default=16, help="one candidate of this number is proved by the reference"
    )
    parser.add_argument("--mode", default="auto")
    options = parser.parse_args()
    graph = load_graph(options.graph)
    print(
        "| policy | prover | slots | candidates | s | µs/candidate | times the reference | log-probabilities differ by |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for policy in (SHORTEST, make_two_tower(graph.program, LIMITS, seed=0, **PUBLISHED)):
        run = Run(graph, LIMITS, policy, num_queries=options.queries, num_corruptions=50)
        candidates = draw(run)
        some = np.arange(0, len(candidates.query), options.sample)
        reference = reference_pipeline(run).engine
        began = time.perf_counter()
        expected = reference.prove(candidates.take(some)).candidates
        each = (time.perf_counter() - began) / len(some)
        cells = (policy.name, "reference", "", len(some), each * len(some), each * 1e6, 1.0, 0.0)
        print("| {} | {} | {} | {:,} | {:.2f} | {:.0f} | {:.1f} | {:.0e} |".format(*cells), flush=True)
        for slots in options.slots:
            engine = CompiledEngine(
                graph.program,
                LIMITS,
                policy,
                mode=options.mode,
                device="cpu",
                layout=choose_layout(LIMITS, slots=slots),
            )
            engine.evaluate(candidates.take(some))
            began = time.perf_counter()
            results = engine.evaluate(candidates).results
            seconds = time.perf_counter() - began
            assert (results.outcome[some] == expected.outcome).all(), "outcomes differ"
            gap = float(np.abs(results.log_probability[some] - expected.log_probability).max())
            own = seconds / len(candidates.query)
            cells = (policy.name, engine.info.mode, slots, len(candidates.query), seconds, own * 1e6, each / own, gap)
            print("| {} | {} | {} | {:,} | {:.2f} | {:.0f} | {:.1f} | {:.0e} |".format(*cells), flush=True)


if __name__ == "__main__":
    main()
