"""Run every law on generated problems, on the reference and the eager evaluator, and count the false alarms.

    python benchmarks/laws.py --problems 100000 --engine eager
    python benchmarks/laws.py --faults --problems 2000

The second form plants each fault of the catalogue and names the laws that it breaks, and the first problem on which it does.
"""

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from fault_search import REPLICAS, find_breakers

from kgverify.laws.case import Case, Finding
from kgverify.laws.catalogue import LAWS, find_law
from kgverify.laws.law import Law, find_violations
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.engine_makers import MakePipeline, compiled_maker
from kgverify.runs.run import Pipeline, Run, reference_pipeline
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.merge import group_problems

PART = 1024
"""Problems that share their runs."""


def make_reference(run: Run, sizes: object) -> Pipeline:
    return reference_pipeline(run)


def timed(law: Law, seconds: Counter[str]) -> Law:
    """The law, adding up the time that it takes beyond the run that all laws look at."""

    def find(case: Case) -> Iterator[Finding]:
        at = time.monotonic()
        found = list(law.find(case))
        seconds[law.name] += time.monotonic() - at
        return iter(found)

    return replace(law, find=find)


def count_alarms(make_pipeline: MakePipeline, laws: Sequence[Law], seed: int, first: int, num: int) -> None:
    """Print the violations of an engine that has no fault, and the seconds that each law took."""
    alarms: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    done = 0
    begun = time.monotonic()
    laws = [timed(law, seconds) for law in laws]
    # Many small tuples and no cycles: looking for these takes longer than the laws do.
    gc.disable()
    while done < num:
        problems = list(islice(draw_problems(seed, first + done), min(PART, num - done)))
        for places in group_problems(problems):
            part = [problems[i] for i in places]
            for violation in find_violations(make_pipeline, part, laws, [first + done + i for i in places]):
                alarms[violation.law] += 1
                if alarms[violation.law] <= 3:
                    print(f"{violation}\n", flush=True)
        done += len(problems)
        gc.collect()
        rate = done / (time.monotonic() - begun)
        print(f"{done:,} problems, {sum(alarms.values())} alarms, {rate:.0f} a second", file=sys.stderr, flush=True)
    print(f"{done:,} problems, {done / (time.monotonic() - begun):.0f} a second with all laws")
    print(f"{'law':24}{'problems':>10}{'false alarms':>14}{'seconds':>10}")
    for law in laws:
        print(f"{law.name:24}{done:10,}{alarms[law.name]:14,}{seconds[law.name]:10.1f}")


def print_power(laws: Sequence[Law], faults: Sequence[str], seed: int, num: int) -> None:
    """Print, for each fault, the laws that catch it within `num` problems."""
    caught = without_replica = 0
    for fault in faults:
        breakers = find_breakers(compiled_maker(faults=[fault]), laws, seed=seed, most_problems=num)
        names = sorted(breakers, key=lambda name: (name in REPLICAS, breakers[name]))
        caught += bool(names)
        without_replica += any(name not in REPLICAS for name in names)
        told = ", ".join(f"{name} ({breakers[name]})" for name in names[:4]) or "-"
        print(f"{fault:26}{told}{f' and {len(names) - 4} more' if len(names) > 4 else ''}", flush=True)
    print(
        f"{caught} of {len(faults)} faults caught; {without_replica} without the laws that compute resolvents or scores again"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="place of the first problem in the seed's sequence")
    parser.add_argument("--engine", choices=("eager", "reference"), default="eager")
    parser.add_argument("--laws", nargs="*", default=list(LAWS))
    parser.add_argument("--faults", nargs="*", help="measure the power instead; all faults unless some are named")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    laws = [find_law(name) for name in arguments.laws]
    if arguments.faults is not None:
        print_power(laws, arguments.faults or list(FAULTS), arguments.seed, arguments.problems)
    else:
        make = make_reference if arguments.engine == "reference" else compiled_maker()
        count_alarms(make, laws, arguments.seed, arguments.first, arguments.problems)


if __name__ == "__main__":
    main()
