"""Run a benchmark: python -m benchmarks NAME [options]. Run it in the root of the repository.

`--output FILE` writes the tables as JSON, with date, machine, revision and options. `python -m benchmarks NAME --help` describes
the options of a benchmark.
"""

import argparse
import datetime
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import Recorder, describe_machine

BENCHMARKS: Final = {
    "evaluator": ("evaluator", "the evaluator against the published design, on one GPU"),
    "gpus": ("evaluator", "one evaluation by several GPUs of one host"),
    "cpu": ("evaluator", "the evaluators on CPU cores, against the reference"),
    "first-run": ("evaluator", "the time of the first command, cold and warm"),
    "writing": ("traces", "the cost of writing a shard, against a raw write"),
    "comparison": ("traces", "the cost of comparing traces"),
    "growth": ("evaluator", "time and memory against facts, rules, candidates, depth and slots"),
    "large-graph": ("traces", "write a large graph"),
    "durability": ("durability", "killed writers and full disks"),
    "damage": ("durability", "damaged traces"),
    "hostile-files": ("hostile_files", "every command that reads a file, with files from strangers"),
    "scoreboard": ("scoreboard", "planted faults: verdict, first step, stage and class"),
    "conditions": ("conditions", "the conditions of causes"),
    "audit": ("audit", "the audit of a step, on miscompiles, correct steps and planted faults"),
    "provers": ("third_party", "the answers of other people's provers"),
    "rankers": ("third_party", "the ranks of other people's evaluators"),
    "hunt": ("fuzzing", "generated problems up to the first that shows a planted fault, or on which a law fails"),
    "steps": ("fuzzing", "small steps that torch may compile wrongly"),
    "dialects": ("fuzzing", "false alarms in other dialects"),
    "false-alarms": ("fuzzing", "evaluations that are called wrong although nothing is"),
}
"""The module and one line of help of each benchmark, whose function is `run_NAME`."""


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
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", choices=BENCHMARKS)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results to this JSON file")
    # Everything behind the name is the benchmark's, but for the file of results.
    words = sys.argv[1:]
    first = next((i for i, word in enumerate(words) if word in BENCHMARKS), len(words))
    own, rest = parser.parse_args(words[: first + 1]), words[first + 1 :]
    output = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    output.add_argument("--output", type=Path, default=own.output)
    saved, rest = output.parse_known_args(rest)
    if own.name is None:
        parser.print_help()
        return 0
    benchmark = load(own.name)
    recorder = sys.stdout = Recorder(sys.stdout)
    date, began = datetime.datetime.now(datetime.UTC), time.monotonic()
    code = int(benchmark(rest) or 0)
    seconds = round(time.monotonic() - began, 3)
    if saved.output is not None:
        results = {
            "format": "kgverify-benchmark",
            "version": 1,
            "benchmark": own.name,
            "options": rest,
            "date": date.isoformat("T", "seconds"),
            "seconds": seconds,
            "exit_code": code,
            "machine": describe_machine(),
            "tables": recorder.tables,
            "lines": recorder.lines,
        }
        saved.output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
