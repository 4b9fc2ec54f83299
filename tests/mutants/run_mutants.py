"""Try mutants of the reference, the compiled stages and the differ on the project's own checks.

python tests/mutants/run_mutants.py --jobs 16
python tests/mutants/run_mutants.py --jobs 16 --tier default

The first command judges by generated problems and by the default and deep tests of the part. The second judges by the
default tests of the part alone, then tries the survivors as the first does and lists those that are killed.
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
from mutant_run import DEEP_TIER, DEFAULT_TIER, read_results, run_part
from mutant_trial import KILLED, SURVIVED, TIMED_OUT, Result

Chosen = dict[str, list[Mutant]]


def main() -> int:
    """Try mutants without a result and print a table; return 1 if the review list lacks a survivor or is stale."""
    options = _parse()
    entries = read_review()
    every = [mutant for part in PARTS for mutant in generate(part)]
    listed = {entry.key for entry in entries}
    chosen = {part: _choose(part, options, listed) for part in options.part or PARTS}
    if options.tier == "default":
        chosen = _try_default_tier(chosen, listed, options)
    results = _try(chosen, options, options.results, is_default_tier=False)
    _print_table(chosen, results)
    if options.tier == "default":
        _print_kills(chosen, results)
    problems = check_review(entries, _survivors(chosen, results), every)
    print(*problems, sep="\n")
    return 1 if problems else 0


def _choose(part: str, options: argparse.Namespace, listed: set[tuple[str, ...]]) -> list[Mutant]:
    every = generate(part)
    mutants = [each for each in (every if options.all else select(every)) if options.only in str(each)]
    if options.sample is None:
        return mutants
    return sample([each for each in mutants if each.key not in listed], options.sample)


def _try_default_tier(chosen: Chosen, listed: set[tuple[str, ...]], options: argparse.Namespace) -> Chosen:
    """Judge by the default tier alone; return the survivors that the review list does not explain."""
    unexplained = {part: [each for each in mutants if each.key not in listed] for part, mutants in chosen.items()}
    path = options.results.with_stem(f"{options.results.stem}-default")
    results = _try(unexplained, options, path, is_default_tier=True)
    print("the default tier alone:")
    _print_table(unexplained, results)
    print("its survivors, judged by generated problems and deep tests as well:")
    survivors = set(_survivors(unexplained, results))
    return {part: [each for each in mutants if each in survivors] for part, mutants in unexplained.items()}


def _try(
    chosen: Chosen, options: argparse.Namespace, results_path: Path, *, is_default_tier: bool
) -> dict[str, Result]:
    """Try the mutants that the file has no results of, appending theirs; return all results."""
    if options.fresh:
        results_path.unlink(missing_ok=True)
    results = read_results(results_path)
    for part, mutants in chosen.items():
        left = [each for each in mutants if each.digest not in results]
        num_done = 0

        def note(result: Result, part: str = part, num_left: int = len(left)) -> None:
            nonlocal num_done
            num_done += 1
            results[result.digest] = result
            with results_path.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
            # pytest has the standard output.
            text = f"{result.status:9}  {result.mutant}   {result.judge}"
            print(f"{part} {num_done}/{num_left} {result.seconds:6.1f} s  {text}", file=sys.stderr, flush=True)

        if left:
            run_part(
                part,
                left,
                options.jobs,
                note,
                num_problems=0 if is_default_tier else options.problems,
                markers=DEFAULT_TIER if is_default_tier else DEEP_TIER,
                with_original=options.sample is None,
            )
    return results


def _survivors(chosen: Chosen, results: dict[str, Result]) -> list[Mutant]:
    return [each for mutants in chosen.values() for each in mutants if results[each.digest].status == SURVIVED]


def _print_kills(chosen: Chosen, results: dict[str, Result]) -> None:
    for mutant in (each for mutants in chosen.values() for each in mutants):
        result = results[mutant.digest]
        if result.status != SURVIVED:
            print(f"only a deeper tier kills: {mutant}   {result.judge}")


def _print_table(chosen: Chosen, results: dict[str, Result]) -> None:
    statuses = (KILLED, TIMED_OUT, SURVIVED)
    print(f"{'part':12}{'mutants':>10}" + "".join(f"{status:>12}" for status in statuses))
    for part, mutants in chosen.items():
        count = Counter(results[each.digest].status for each in mutants)
        print(f"{part:12}{len(mutants):10}" + "".join(f"{count[status]:12}" for status in statuses))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--part", action="append", choices=PARTS, help="one part; may be repeated")
    parser.add_argument("--tier", choices=["default"], help="judge by the default tests alone first")
    parser.add_argument(
        "--all", action="store_true", help="every mutant, not the fixed choice whose survivors are reviewed"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose description contains the text")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants of each part, none of them a known survivor")
    parser.add_argument("--problems", type=int, default=NUM_PROBLEMS, metavar="N", help="number of generated problems")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="appended to; a later run resumes")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
