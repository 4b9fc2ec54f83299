"""The evaluator against the published design, on one GPU, as one Markdown table: first whether it is right, then how fast it is.

    python benchmarks/evaluator.py --device cuda
    python benchmarks/evaluator.py --device cuda --only family,wn18rr
    python benchmarks/evaluator.py --device cpu --tiny

Both sides of a ratio are measured in the same run, on the same candidates and weights, each warmed up, the best of some repeats.
Sections: agreement, family, million, wn18rr, trace, policy, launches, rank-only, cold.
"""

import argparse

import torch
from sections import SECTIONS, tell_first_result
from workloads import Bench, MarkdownTable

from kgverify.prover.execution.device import resolve_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mode", default="auto", help="as of the engine")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baseline-slots", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--graph", default="family")
    parser.add_argument("--large-graph", default="wn18rr")
    parser.add_argument("--tiny", action="store_true", help="a few candidates of each, to see that it runs")
    parser.add_argument("--first-result", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
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
    if options.first_result:
        tell_first_result(bench)
        return
    device = torch.cuda.get_device_name() if bench.is_cuda else "CPU"
    print(f"{device}, torch {torch.__version__}, best of {bench.repeats}\n")
    table = MarkdownTable()
    for name in sections:
        SECTIONS[name](bench, table)


if __name__ == "__main__":
    main()
