"""The generated problems that show a planted fault, or on which a law fails."""

import gc
import statistics
import sys
from collections.abc import Sequence

from benchmarks import ROOT, make_parser, print_header, print_row

sys.path.extend(str(ROOT / "tests" / folder) for folder in ("testing",))

from fault_search import MOST_PROBLEMS, REPLICAS, ProblemStream, find_breakers

from kgverify.laws.catalogue import LAWS
from kgverify.program.limits import OURS
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.engine_makers import compiled_maker


def hunt_all(num_seeds: int, faults: Sequence[str]) -> None:
    """Print the examples that each fault takes with each seed, and the number of searches that find it."""
    dialects = dict.fromkeys(FAULTS[name].dialect for name in faults)
    streams = {each: [ProblemStream(seed, dialect=each) for seed in range(num_seeds)] for each in dialects}
    taken: dict[str, list[int]] = {}
    print_header("fault", *(f"seed {seed}" for seed in range(num_seeds)), "median")
    for name in faults:
        hunts = [stream.search_fault(name) for stream in streams[FAULTS[name].dialect]]
        taken[name] = [each.examples if each.is_found else sys.maxsize for each in hunts]
        print_row(name, *map(render_examples, [*taken[name], statistics.median(taken[name])]))
    print_header("searches", f"find the fault within {MOST_PROBLEMS:,} problems", "within 200")
    counts = [each for examples in taken.values() for each in examples]
    print_row(len(counts), *(sum(each <= limit for each in counts) for limit in (MOST_PROBLEMS, 200)))


def render_examples(examples: float) -> str:
    """The number, or a dash where the fault is not found."""
    return "-" if examples >= sys.maxsize else f"{examples:,.0f}"


def print_power(faults: Sequence[str]) -> None:
    """Print the laws that each fault breaks, with the number of problems that it took."""
    caught = without_replica = 0
    print_header("fault", "laws", "others")
    for fault in (name for name in faults if FAULTS[name].dialect == OURS):
        breakers = find_breakers(compiled_maker(faults=[fault]), list(LAWS.values()))
        names = sorted(breakers, key=lambda name: (name in REPLICAS, breakers[name]))
        caught += bool(names)
        without_replica += any(name not in REPLICAS for name in names)
        shown = ", ".join(f"{name} ({breakers[name]})" for name in names[:4]) or "-"
        print_row(fault, shown, max(0, len(names) - 4))
    print_header("faults", "found by a law", "without the laws that compute anything again")
    print_row(len(faults), caught, without_replica)


def run_hunt(words: list[str]) -> None:
    """Plant every fault of the catalogue, and count the generated problems up to the first that fails.

        python -m benchmarks hunt --seeds 5

    The figures do not depend on a clock. `--laws` looks for broken laws instead, which need no reference; those that
    compute resolvents or scores again are counted apart.
    """
    parser = make_parser(run_hunt)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--laws", action="store_true", help="search for the laws that each fault breaks")
    parser.add_argument("--fault", action="append", help="a fault to find; repeatable; all if not given")
    arguments = parser.parse_args(words)
    # Many small tuples and no cycles.
    gc.disable()
    faults = arguments.fault or list(FAULTS)
    if arguments.laws:
        print_power(faults)
    else:
        hunt_all(arguments.seeds, faults)
