"""Try semantic mutants on what a user runs, or on the tests.

python tests/mutants/run_semantic.py --jobs 16 --minutes 9
python tests/mutants/run_semantic.py --device cuda --jobs 16 --minutes 7
python tests/mutants/run_semantic.py recorder --jobs 16 --tests

The first command tries the mutants of every list on diffs, evaluations, a campaign and recorded traces; it stops after
9 minutes, and the same command resumes. The second tries those of what runs on a GPU, on a machine with one. The third
tries those of one list on the default tests.
"""

import argparse
import os
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from mutant_coverage import Coverage, read_runs, source_hash
from mutant_pool import Task, run_tasks
from semantic_mutant import SemanticMutant, read_lists
from semantic_trial import (
    CPU,
    CUDA,
    KERNELS,
    NOTICED,
    SILENT,
    WRONG,
    Command,
    Outcome,
    SemanticResult,
    commands,
    judge,
    run_commands,
    run_tests,
)

THIRD_PARTY = (
    "torch",
    "h5py",
    "jinja2",
    "rich.console",
    "rich.table",
    "safetensors.numpy",
    "typer",
    "xxhash",
    "triton",
)
"""Packages that are imported before the first fork."""
ENVIRONMENT: Final = {
    # Kernels run in Triton's interpreter, whatever device there is.
    CPU: {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    # A process that has started CUDA cannot be forked: devices are counted without it.
    CUDA: {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
}
"""The environment of a device, set before anything imports torch or Triton."""


def main() -> int:
    """Try mutants without a result and print a table; return 1 if some are left."""
    options = _parse()
    mutants = [each for each in read_lists() if not options.lists or each.list in options.lists]
    mutants = [each for each in mutants if not each.equivalent]
    mutants = [each for each in mutants if options.only in str(each)]
    if options.device == CUDA:
        mutants = [each for each in mutants if each.file.startswith(KERNELS)]
    if options.no_kernels:
        mutants = [each for each in mutants if not each.file.startswith(KERNELS)]
    index, count = map(int, options.shard.split("/"))
    mutants = [each for each in mutants if int(each.digest, 16) % count == index - 1]
    if options.fresh:
        options.results.unlink(missing_ok=True)
    results = _read_results(options.results)
    left = [each for each in mutants if each.digest not in results]
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "120", **ENVIRONMENT[options.device]}
    for name in THIRD_PARTY if left else ():
        try:
            __import__(name)
        except ImportError:
            print(f"not installed: {name}", file=sys.stderr)
    deadline = time.monotonic() + 60 * options.minutes

    def on_result(result: SemanticResult) -> None:
        results[result.digest] = result
        _append(options.results, result)
        print(
            f"{sum(each.digest in results for each in mutants)}/{len(mutants)} {result.seconds:6.1f} s"
            f"  {result.status:14} {result.by} {result.code or ''} {result.named}  {result.mutant}",
            flush=True,
        )

    if left:
        judging = _tests if options.tests else _commands
        run_tasks(judging(left, options, results, on_result), options.jobs, deadline)
    _print_table(
        [results[each.digest] for each in mutants if each.digest in results],
        {each.digest: each.hole for each in mutants if each.hole},
    )
    num_left = sum(each.digest not in results for each in mutants)
    if num_left:
        print(f"{num_left} mutants are left: give the same command again")
    return 1 if num_left else 0


def _commands(
    mutants: list[SemanticMutant], options: argparse.Namespace, results: dict[str, SemanticResult], on_result: Any
) -> list[Task]:
    every = commands(options.fuzz_seconds, options.device)
    chosen = [command for command in every if any(map(command.runs, mutants))]
    expected = _original(chosen, options, results)
    chosen = [command for command in chosen if command.name in expected]

    def end(mutant: SemanticMutant, answer: Any, code: int | None, seconds: float) -> None:
        outcomes = answer or [Outcome(command="process", code=code or -1, seconds=seconds)]
        on_result(judge(mutant, outcomes, chosen, expected, seconds))

    return [Task(partial(run_commands, each, chosen, expected), partial(end, each)) for each in mutants]


def _original(
    chosen: list[Command], options: argparse.Namespace, results: dict[str, SemanticResult]
) -> dict[str, Outcome]:
    """Return the outcomes of the original, tried first. SystemExit if one is not what it should be."""
    names = ", ".join(command.name for command in chosen)
    digest = f"original {source_hash()} {options.fuzz_seconds} {options.device} {names}"
    if digest not in results:
        found: list[Outcome] = []
        tasks = [
            Task(partial(run_commands, None, [command], {}), lambda answer, code, seconds: found.extend(answer or ()))
            for command in chosen
        ]
        run_tasks(tasks, options.jobs)
        is_sound = {command.name: command.is_sound for command in chosen}
        for each in found:
            print(
                f"original {each.seconds:6.1f} s  {each.command}: {each.code} {each.verdict} {' '.join(each.stages)}",
                flush=True,
            )
        wrong = [each for each in found if each.code != (0 if is_sound.get(each.command) else 1)]
        print("".join(f"wrong on the original: {each}\n" for each in wrong), end="", flush=True)
        if len(found) < len(chosen) or (wrong and (not options.leave_out_wrong or len(wrong) == len(found))):
            raise SystemExit("a command is wrong on the original" if wrong else "a command did not run")
        found = [each for each in found if each not in wrong]
        result = SemanticResult(
            digest=digest, mutant="original", list="", file="", status=SILENT, outcomes=tuple(found)
        )
        results[digest] = result
        _append(options.results, result)
    return {each.command: each for each in results[digest].outcomes}


def _tests(
    mutants: list[SemanticMutant], options: argparse.Namespace, results: dict[str, SemanticResult], on_result: Any
) -> list[Task]:
    coverage = Coverage(read_runs(options.coverage).values()) if options.coverage else None

    def chosen(mutant: SemanticMutant) -> list[str]:
        if coverage is None:
            return ["tests"]
        found = coverage.tests_of_lines(mutant.lines)
        return sorted(found, key=coverage.seconds.__getitem__)

    def end(mutant: SemanticMutant, answer: Any, code: int | None, seconds: float) -> None:
        judged_by = answer if answer is not None else f"the process ended with {code}"
        on_result(
            SemanticResult(
                digest=mutant.digest,
                mutant=str(mutant),
                list=mutant.list,
                file=mutant.file,
                status=NOTICED if judged_by else SILENT,
                by=judged_by,
                stage=mutant.stage,
                seconds=round(seconds, 2),
            )
        )

    markers = "not deep and not exhaustive"
    return [Task(partial(run_tests, each, chosen(each), markers), partial(end, each)) for each in mutants]


def _read_results(path: Path) -> dict[str, SemanticResult]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = {}
    for line in lines:
        try:
            result = msgspec.json.decode(line, type=SemanticResult)
        except msgspec.DecodeError:
            # The run was killed while it wrote this line.
            continue
        found[result.digest] = result
    return found


def _append(path: Path, result: SemanticResult) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def _print_table(results: list[SemanticResult], holes: dict[str, str]) -> None:
    statuses = (NOTICED, WRONG, SILENT)
    print(f"\n{'list':14}{'mutants':>9}" + "".join(f"{status:>16}" for status in statuses) + f"{'right stage':>16}")
    for name in [*dict.fromkeys(each.list for each in results), "all"]:
        of_list = [each for each in results if name in ("all", each.list)]
        count = Counter(each.status for each in of_list)
        placed = [each for each in of_list if each.status == NOTICED and each.stage and each.named]
        right = f"{sum(each.named in each.stage.split() for each in placed)} of {len(placed)}"
        print(f"{name:14}{len(of_list):9}" + "".join(f"{count[status]:16}" for status in statuses) + f"{right:>16}")
    by = Counter(each.by.partition("::")[0] for each in results if each.status == NOTICED)
    print("noticed by: " + ", ".join(f"{name} {num}" for name, num in by.most_common()))
    for each in results:
        if each.status != NOTICED:
            hole = f"   known: {holes[each.digest]}" if each.digest in holes else ""
            print(f"{each.status:14}  {each.mutant}" + (f"   {each.by}" if each.by else "") + hole)
    for each in results:
        if each.status == NOTICED and each.stage and each.named and each.named not in each.stage.split():
            print(f"named {each.named}, is {each.stage}   {each.mutant}   {each.by}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", help="names of lists; all of them if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose description contains the text")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="one of N equal shares of the mutants")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), metavar="N", help="begin nothing after N minutes"
    )
    parser.add_argument("--device", choices=(CPU, CUDA), default=CPU, help="where mutants run; cuda: those of kernels")
    parser.add_argument("--no-kernels", action="store_true", help="leave out mutants that --device cuda tries")
    parser.add_argument("--fuzz-seconds", type=int, default=10, metavar="N", help="time of the campaign")
    parser.add_argument(
        "--leave-out-wrong", action="store_true", help="go on without commands that fail on the original"
    )
    parser.add_argument("--tests", action="store_true", help="judge by the default tests instead of commands")
    parser.add_argument(
        "--coverage", type=Path, metavar="FILE", help="with --tests: lines that run_mutants.py recorded"
    )
    parser.add_argument("--results", type=Path, default=Path("semantic.jsonl"), help="appended to; a later run resumes")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
