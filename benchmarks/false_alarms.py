"""Evaluate many small graphs, each with its checks, and count those that are called wrong although nothing is.

    python benchmarks/false_alarms.py --evaluations 1000 --jobs 2
    python benchmarks/false_alarms.py --evaluations 100 --device cuda

Graphs, numbers of corruptions, policies, limits, layouts and the ways to rank are drawn from the seed. A line names each
evaluation that is not sound or raises; the exit code is 1 if there is one. `kgverify fuzz` is the same measure for generated
problems. No minimum is asked for, since many of the graphs prove nothing.
"""

import argparse
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any


def draw_arguments(device: str, mode: str, seed: int) -> dict[str, Any]:
    """Return the arguments of one evaluation."""
    import kgverify as kv

    rng = random.Random(seed)
    return {
        "graph": rng.choice([f"random:{seed}", f"random:{seed}", f"random:{seed}", "countries"]),
        "queries": rng.choice([1, 2, 3, 5, 9, None]),
        "corruptions": rng.choice([0, 1, 3, 7, 20, "all"]),
        "seed": rng.choice([seed, seed + (1 << 33)]),
        "policy": rng.choice(["shortest", "two_tower"]),
        "limits": kv.Limits(
            max_depth=rng.choice([1, 2, 3, 5, 8]),
            max_atoms=rng.choice([2, 3, 6]),
            max_resolvents=rng.choice([2, 5, 20, 120]),
        ),
        "engine": kv.Evaluator(mode=mode, device=device, slots=rng.choice([None, 1, 3, 16, 64])),
        "options": kv.EvaluationOptions(
            part_size=rng.choice([None, None, 1, 10, 100]),
            rank_only=rng.random() < 0.5,
            check=rng.choice([0, 16, 256]),
            minimum={},
        ),
    }


def evaluate(device: str, mode: str, seed: int) -> str:
    """Return what is wrong with one evaluation; empty if it is sound."""
    import kgverify as kv

    arguments = draw_arguments(device, mode, seed)
    try:
        report = kv.evaluate(**arguments)
    except kv.UserError as error:
        # Not every random graph has enough triples or constants: such a draw is refused, in words.
        return f"refused: {error}".splitlines()[0]
    except Exception as error:
        return f"seed {seed}: {arguments}: {type(error).__name__}: {error}"
    return "" if report.is_sound else f"seed {seed}: {arguments}: not sound"


def main() -> int:
    """Evaluate, print what is wrong, and return 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="auto")
    options = parser.parse_args()
    begin = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.evaluations)
    one = partial(evaluate, options.device, options.mode)
    refused: set[str] = set()
    num_refused = num_wrong = 0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for number, text in enumerate(pool.map(one, seeds) if options.jobs > 1 else map(one, seeds), 1):
            if text.startswith("refused"):
                refused.add(text)
                num_refused += 1
            elif text:
                print(text, flush=True)
                num_wrong += 1
            if number % 100 == 0 or number == len(seeds):
                seconds = time.monotonic() - begin
                print(
                    f"{number - num_refused} evaluations, {num_wrong} called wrong, {num_refused} refused, {seconds:.0f} s",
                    flush=True,
                )
    print(*sorted(refused), sep="\n")
    return bool(num_wrong)


if __name__ == "__main__":
    sys.exit(main())
