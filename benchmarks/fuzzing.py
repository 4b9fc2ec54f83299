"""Print what generated problems exercise, and how many of them it takes to find each fault of the catalogue.

    python benchmarks/fuzzing.py --distribution 10000
    python benchmarks/fuzzing.py --hunt 5

The first form prints how often each feature occurs in 10,000 problems of seed 0. The second prints, for each fault, the
number of problems up to the first that fails, over 5 seeds. Neither depends on a clock.
"""

import argparse
import gc
import statistics
import sys
from itertools import islice

from distribution import measure_distribution
from fault_search import ProblemStream

from kgverify.prover.faults.plant import FAULTS
from kgverify.testing.problems.decode import draw_problems


def hunt_all(num_seeds: int) -> None:
    """Print the examples that each fault takes, those that take most first, and how many are found within how many."""
    streams = [ProblemStream(seed) for seed in range(num_seeds)]
    taken: dict[str, list[int]] = {}
    for name in FAULTS:
        hunts = [stream.search_fault(name) for stream in streams]
        taken[name] = [each.examples if each.is_found else sys.maxsize for each in hunts]
        print(f"{name:28} {' '.join(map(show, taken[name]))}", flush=True)
    medians = {name: statistics.median(examples) for name, examples in taken.items()}
    worst = {name: max(examples) for name, examples in taken.items()}
    print(f"\n{'fault':28} {'median':>7} {'worst':>7}")
    for name in sorted(taken, key=lambda name: (-medians[name], -worst[name])):
        print(f"{name:28} {show(medians[name])} {show(worst[name])}")
    print(f"\n{'within':>8} {'by median':>10} {'by worst':>10}   of {len(taken)}")
    for limit in (1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000):
        num = [sum(each <= limit for each in counts.values()) for counts in (medians, worst)]
        print(f"{limit:8,} {num[0]:10} {num[1]:10}")
    found = sum(each < sys.maxsize for examples in taken.values() for each in examples)
    print(
        f"\nfound: {found} of {len(taken) * num_seeds} hunts; median of the medians {show(statistics.median(medians.values()))}"
    )


def show(examples: float) -> str:
    """The number, or a dash where the fault is not found."""
    return f"{'-':>7}" if examples >= sys.maxsize else f"{examples:7,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distribution", type=int, metavar="PROBLEMS", default=0)
    parser.add_argument("--hunt", type=int, metavar="SEEDS", default=0)
    arguments = parser.parse_args()
    # Many small tuples and no cycles.
    gc.disable()
    if arguments.distribution:
        print(measure_distribution(list(islice(draw_problems(0), arguments.distribution))).render())
    if arguments.hunt:
        hunt_all(arguments.hunt)


if __name__ == "__main__":
    main()
