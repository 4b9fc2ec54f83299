"""Plant every fault on several graphs and score the report: verdict, first step, stage, class and false alarms.

    python -m benchmarks.scoreboard --graph countries --graph random:4 --log scoreboard.jsonl

Run it in the repository's root. The page goes to standard output, the figures to standard error; the exit code is 0 if every
figure meets its target.
"""

import argparse
import os
import sys
from pathlib import Path

import msgspec

from kgverify.prover.faults.plant import FAULTS, find_faults

from .page import figures, render_page
from .trials import num_trials, run_scoreboard

DEFAULT_GRAPHS = ("countries", "random:1", "random:4")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard", description="Score the report on faults.")
    parser.add_argument("--graph", action="append", help="a graph to plant faults on; repeatable")
    parser.add_argument("--fault", action="append", help="a fault to plant; repeatable; all if none is given")
    parser.add_argument("--sound", type=int, default=200, help="configurations to try without a fault")
    parser.add_argument("--pairs", type=int, default=50, help="pairs of faults to look for in lockstep")
    parser.add_argument("--seed", type=int, default=0, help="seed of the configurations and the pairs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--log", type=Path, help="a file of finished trials; those found in it are not run again")
    parser.add_argument("--json", type=Path, help="write the scores to this file")
    given = parser.parse_args()
    graphs, names = (
        tuple(given.graph or DEFAULT_GRAPHS),
        tuple(fault.name for fault in find_faults(given.fault or tuple(FAULTS))),
    )
    total = num_trials(graphs, names, given.sound, given.pairs)
    done = 0

    def show(num: int) -> None:
        nonlocal done
        done += num
        print(f"\r{done} of {total} trials", end="", file=sys.stderr, flush=True)

    scores = run_scoreboard(
        graphs, names, num_sound=given.sound, num_pairs=given.pairs, seed=given.seed, jobs=given.jobs, log=given.log,
        progress=show,
    )  # fmt: skip
    print(file=sys.stderr)
    measured = figures(scores)
    for each in measured:
        print(f"{each.name}: {each.text}, target {each.target:.0%}{'' if each.is_met else ' MISSED'}", file=sys.stderr)
    sys.stdout.write(render_page(scores))
    if given.json is not None:
        given.json.write_bytes(msgspec.json.encode(scores))
    return 0 if all(each.is_met for each in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
