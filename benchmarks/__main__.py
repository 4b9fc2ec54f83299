"""Run a benchmark: python -m benchmarks NAME [options]. Run it in the root of the repository.

`--output FILE` adds the tables to a JSON file, with date, machine, revision and options, or replaces those of the same command.
`python -m benchmarks tables` renders benchmarks/results.json as benchmarks/TABLES.md. `python -m benchmarks NAME --help`
describes the options of a benchmark.
"""

import argparse
import datetime
import importlib
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import OUTPUTS, describe_machine, read_results, render_tables, save_results

BENCHMARKS: Final = {
    "evaluator": ("evaluator", "the evaluator against the published design, on one GPU"),
    "gpus": ("evaluator", "one evaluation by several GPUs of one host"),
    "beams": ("beams", "beams against single derivations, on one GPU"),
    "cpu": ("speed", "the evaluators on CPU cores, against the reference"),
    "first-run": ("evaluator", "the time of the first command, cold and warm"),
    "comparison": ("traces", "the cost of recording, comparing and looking up traces"),
    "growth": ("speed", "time and memory against facts, rules, queries and depth"),
    "large-graph": ("traces", "the time and memory of reading a large graph"),
    "durability": ("durability", "killed writers and full disks"),
    "damage": ("durability", "damaged traces"),
    "hostile-files": ("hostile_files", "every command that reads a file, with files from strangers"),
    "scoreboard": ("scoreboard", "planted faults: verdict, first step, stage and class"),
    "conditions": ("conditions", "the conditions of causes"),
    "audit": ("audit", "the audit of a step, on miscompiles, correct steps and planted faults"),
    "provers": ("third_party", "the answers of other people's provers"),
    "taps": ("taps", "taps in compiled engines of other styles, with planted faults"),
    "coverage": ("coverage", "how often the intervals between two evaluations contain the true difference"),
    "rankers": ("third_party", "the ranks of other people's evaluators"),
    "watch": ("watch", "the slow-down of an engine that is watched"),
    "record-environment": ("record_environment", "the slow-down of a training loop whose environment is recorded"),
    "environments": ("environments.measure", "planted faults in environments and updates, and pairs of right ones"),
    "searches": ("searches.measure", "planted faults in searches with several paths, and right ones"),
    "train": ("training", "the training of a policy's weights, for any graph"),
    "hunt": ("fuzzing", "generated problems up to the first that shows a planted fault, or on which a law fails"),
}
"""The module and one line of help of each benchmark, whose function is `run_NAME`."""
TITLES: Final = {name: text for name, (_, text) in BENCHMARKS.items()}


def load(name: str) -> Callable[[list[str]], int | None]:
    """Return the function of a benchmark."""
    function: Callable[[list[str]], int | None] = getattr(
        importlib.import_module(f"benchmarks.{BENCHMARKS[name][0]}"), f"run_{name.replace('-', '_')}"
    )
    return function


def main() -> int:
    """Run one benchmark."""
    width = max(map(len, BENCHMARKS))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{listed}\n\n  {'tables':{width}}  write benchmarks/TABLES.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", choices=(*BENCHMARKS, "tables"))
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results to this JSON file")
    # The options after the name belong to the benchmark, except for the file of results.
    words = sys.argv[1:]
    first = next((i for i, word in enumerate(words) if word in (*BENCHMARKS, "tables")), len(words))
    own, rest = parser.parse_args(words[: first + 1]), words[first + 1 :]
    output = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    output.add_argument("--output", type=Path, default=own.output)
    saved, rest = output.parse_known_args(rest)
    if own.name is None:
        parser.print_help()
        return 0
    if own.name == "tables":
        OUTPUTS[1].write_text(render_tables(read_results(), TITLES), encoding="utf-8")
        return 0
    benchmark = load(own.name)
    machine, date, began = describe_machine(), datetime.datetime.now(datetime.UTC).date(), time.monotonic()
    code = int(benchmark(rest) or 0)
    seconds = round(time.monotonic() - began, 1)
    if saved.output is not None:
        command = shlex.join([own.name, *rest])
        save_results(saved.output, command, date=date.isoformat(), seconds=seconds, exit_code=code, machine=machine)
    return code


if __name__ == "__main__":
    sys.exit(main())
