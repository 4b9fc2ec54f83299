"""Try mutants of the modules that a verdict or a reported number rests on, on the project's own checks.

python tests/mutants/run_mutants.py --jobs 16 --minutes 9
python tests/mutants/run_mutants.py --jobs 16 --minutes 9 --tier deep
python tests/mutants/run_mutants.py --part trace --tests trace comparison --only digests

The first command records which lines each default test executes, then tries each mutant on the tests that execute its
statement, and its survivors on the type checker. It stops after 9 minutes; the same command resumes. The second tries the
survivors of the first on the deep tests as well. The third tries the mutants of one file on the tests of two folders.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
from mutant import PARTS, Mutant, generate, sample, select
from mutant_judges import NUM_PROBLEMS
from mutant_review import check_review, read_review
from mutant_run import TIERS, Plan, read_results, run_mutants
from mutant_trial import KILLED, SURVIVED, TIMED_OUT, Result
from mutant_types import JUDGE, find_type_error

Chosen = dict[str, list[Mutant]]


def main() -> int:
    """Try mutants without a result and print a table; return 1 if the review list lacks a survivor or is stale."""
    options = _parse()
    entries = read_review()
    listed = {entry.key for entry in entries}
    chosen = {part: _choose(part, options, listed) for part in options.part or PARTS}
    results = _results_of(options)
    if options.tier == "deep":
        earlier = read_results(_path_of(options, "default"))
        results = {digest: each for digest, each in earlier.items() if each.status != SURVIVED} | results
    _try(chosen, options, results, listed)
    _print_table(chosen, results)
    every = [mutant for part in PARTS for mutant in generate(part)]
    tried = [each for mutants in chosen.values() for each in mutants if each.digest in results]
    survivors = [each for each in tried if results[each.digest].status == SURVIVED]
    problems = check_review(entries, survivors, every)
    print(*problems, sep="\n")
    num_left = sum(map(len, chosen.values())) - len(tried)
    if num_left:
        print(f"{num_left} mutants are left: give the same command again")
    return 1 if problems or num_left else 0


def _choose(part: str, options: argparse.Namespace, listed: set[tuple[str, ...]]) -> list[Mutant]:
    every = generate(part)
    chosen = (each for each in every if each.is_change) if options.all else select(every)
    mutants = [each for each in chosen if options.only in str(each)]
    if options.listed:
        wanted = set(options.listed.read_text().split())
        mutants = [each for each in mutants if each.digest in wanted]
    index, count = options.shard
    mutants = [each for each in mutants if int(each.digest, 16) % count == index - 1]
    if options.sample is None:
        return mutants
    return sample([each for each in mutants if each.key not in listed], options.sample)


def _path_of(options: argparse.Namespace, tier: str) -> Path:
    path: Path = options.results
    return path if tier == "default" else path.with_stem(f"{path.stem}-{tier}")


def _results_of(options: argparse.Namespace) -> dict[str, Result]:
    path = _path_of(options, options.tier)
    if options.fresh:
        path.unlink(missing_ok=True)
    return read_results(path)


def _try(chosen: Chosen, options: argparse.Namespace, results: dict[str, Result], listed: set[tuple[str, ...]]) -> None:
    """Try the mutants that have no result, and append theirs to the file."""
    left = {part: [each for each in mutants if each.digest not in results] for part, mutants in chosen.items()}
    num_left = sum(map(len, left.values()))
    if not num_left:
        return
    num_done = 0

    def note(text: str) -> None:
        # pytest has the standard output.
        print(text, file=sys.stderr, flush=True)

    def on_result(result: Result) -> None:
        nonlocal num_done
        num_done += 1
        results[result.digest] = result
        with _path_of(options, options.tier).open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        if not options.quiet or result.status == SURVIVED or num_done % 100 == 0:
            text = f"{result.status:9}  {result.mutant}   {result.judge}"
            note(f"{num_done}/{num_left} {result.seconds:6.1f} s {result.num_covering:5} tests  {text}")

    plan = Plan(
        jobs=options.jobs,
        tier=options.tier,
        tests=options.tests,
        coverage=options.results.with_name(f"{options.results.stem}-coverage.jsonl"),
        num_problems=options.problems,
        test_seconds=options.test_seconds,
        earlier=tuple(results.values()),
        deadline=time.monotonic() + 60 * options.minutes,
    )
    run_mutants(left, plan, on_result, note)
    for mutant in (each for mutants in left.values() for each in mutants if each.key not in listed):
        result = results.get(mutant.digest)
        if result is None or result.status != SURVIVED or time.monotonic() > plan.deadline:
            continue
        if error := find_type_error(mutant, options.results.with_name("mypy-cache").resolve()):
            on_result(msgspec.structs.replace(result, status=KILLED, judge=f"{JUDGE}: {error}"))


def _print_table(chosen: Chosen, results: dict[str, Result]) -> None:
    columns = (KILLED, TIMED_OUT, SURVIVED, "no test", "not tried")
    print(f"{'part':14}{'mutants':>10}" + "".join(f"{name:>12}" for name in columns))
    total: Counter[str] = Counter()
    rows = []
    for part, mutants in chosen.items():
        tried = [results[each.digest] for each in mutants if each.digest in results]
        count = Counter(result.status for result in tried)
        count["no test"] = sum(1 for result in tried if result.status == SURVIVED and not result.num_covering)
        count["not tried"] = len(mutants) - len(tried)
        count["mutants"] = len(mutants)
        total += count
        rows.append((part, count))
    for part, count in [*rows, ("all", total)]:
        print(f"{part:14}{count['mutants']:10}" + "".join(f"{count[name]:12}" for name in columns))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--part", action="append", choices=PARTS, help="one part; may be repeated")
    parser.add_argument("--tier", choices=TIERS, default="default", help="the tests that judge")
    parser.add_argument("--tests", nargs="+", default=(), metavar="PATH", help="only tests of these paths below tests/")
    parser.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="K/N", help="one of N equal shares of the mutants"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), metavar="N", help="begin nothing after N minutes"
    )
    parser.add_argument(
        "--all", action="store_true", help="every mutant, not the fixed choice whose survivors are reviewed"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose description contains the text")
    parser.add_argument("--listed", type=Path, metavar="FILE", help="mutants whose digest is a word of the file")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants of each part, none of them a known survivor")
    parser.add_argument("--problems", type=int, default=NUM_PROBLEMS, metavar="N", help="number of generated problems")
    parser.add_argument(
        "--test-seconds", type=float, default=60.0, metavar="N", help="begin no test after N CPU seconds"
    )
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="appended to; a later run resumes")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--quiet", action="store_true", help="list survivors only")
    return parser.parse_args()


def _shard(text: str) -> tuple[int, int]:
    index, count = map(int, text.split("/"))
    if not 1 <= index <= count:
        raise argparse.ArgumentTypeError(f"expected K/N with 1 <= K <= N, found {text}")
    return index, count


if __name__ == "__main__":
    sys.exit(main())
