"""Try mutants of the reference, the compiled stages and the differ on the project's own checks.

python tests/mutants/run_mutants.py --jobs 16
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

import msgspec
from mutant import PARTS, Mutant, generate, sample, select
from mutant_judges import NUM_PROBLEMS
from mutant_review import check_review, read_review
from mutant_run import read_results, run_part
from mutant_trial import KILLED, SURVIVED, TIMED_OUT, Result


def main() -> int:
    """Try what the results file has not; print a table; 1 if a survivor is not explained, or an explanation is stale."""
    options = _parse()
    entries = read_review()
    every = [mutant for part in PARTS for mutant in generate(part)]
    chosen = {part: _choose(part, options, {entry.key for entry in entries}) for part in options.part or PARTS}
    if options.fresh:
        options.results.unlink(missing_ok=True)
    results = read_results(options.results)
    for part, mutants in chosen.items():
        left = [each for each in mutants if each.digest not in results]
        if left:
            _run(part, left, results, options)
    _print_table(chosen, results)
    survivors = [each for mutants in chosen.values() for each in mutants if results[each.digest].status == SURVIVED]
    problems = check_review(entries, survivors, every)
    print(*problems, sep="\n")
    return 1 if problems else 0


def _choose(part: str, options: argparse.Namespace, listed: set[tuple[str, ...]]) -> list[Mutant]:
    every = generate(part)
    mutants = [each for each in (every if options.all else select(every)) if options.only in str(each)]
    if options.sample is None:
        return mutants
    return sample([each for each in mutants if each.key not in listed], options.sample)


def _run(part: str, mutants: list[Mutant], results: dict[str, Result], options: argparse.Namespace) -> None:
    num_done = 0

    def tell(result: Result) -> None:
        nonlocal num_done
        num_done += 1
        results[result.digest] = result
        with options.results.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        # pytest has the standard output.
        text = f"{result.status:9}  {result.mutant}   {result.judge}"
        print(f"{part} {num_done}/{len(mutants)} {result.seconds:6.1f} s  {text}", file=sys.stderr, flush=True)

    is_whole = options.sample is None
    run_part(part, mutants, options.jobs, tell, num_problems=options.problems, with_original=is_whole)


def _print_table(chosen: dict[str, list[Mutant]], results: dict[str, Result]) -> None:
    statuses = (KILLED, TIMED_OUT, SURVIVED)
    print(f"{'part':12}{'mutants':>10}" + "".join(f"{status:>12}" for status in statuses))
    for part, mutants in chosen.items():
        count = Counter(results[each.digest].status for each in mutants)
        print(f"{part:12}{len(mutants):10}" + "".join(f"{count[status]:12}" for status in statuses))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--part", action="append", choices=PARTS, help="one part; may be repeated")
    parser.add_argument(
        "--all", action="store_true", help="every mutant, not the fixed choice whose survivors are reviewed"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose description holds the text")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of each part, none that is known to survive")
    parser.add_argument("--problems", type=int, default=NUM_PROBLEMS, metavar="N", help="generated problems to stand")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="appended to, and gone on with")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
