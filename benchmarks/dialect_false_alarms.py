"""Judge correct engines of many dialects, and engines that differ from their dialect in one switch.

    python benchmarks/dialect_false_alarms.py --problems 10000 --laws 500 --corpus build/dialects
    python benchmarks/dialect_false_alarms.py --problems 0 --laws 0 --planted 4096
    python benchmarks/dialect_false_alarms.py --problems 0 --laws 0 --planted 0 --shares 1000

The first form compares the reference, in each of 20 dialects, with an engine of the same dialect that was written apart from it
(tests/dialects), and checks the laws that hold in the dialect. Each difference is a false alarm. Both resume from the corpus.
The second judges, in two dialects, engines of dialects that differ in one switch, and prints the first problem that
shows it. The third prints the share of problems in which each switch matters. Exit code 1 for a false alarm or a
difference that is not found.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from kgverify.laws.catalogue import LAWS
from kgverify.laws.law import Law, check_laws
from kgverify.program.limits import FILTERS, OURS, VALUES, Dialect
from kgverify.runs.engine_makers import EngineSpec, as_maker
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.checking.check import Checker, prepare_batches
from kgverify.testing.problems.decode import adapt_problem, decode_problem, draw_bytes, draw_problems, put_in_dialect
from kgverify.testing.problems.merge import merge

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "dialects"))

from random_dialects import random_dialect
from second_engine import SecondEngine, engine_of_dialect, make_prover
from second_prover import number_variables

FOLDER: Final = Path(__file__).parents[1] / "tests" / "dialects"
BATCHED: Final = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    exempts_terminal=True,
    stopping="where_no_terminal",
    ties="random",
)
"""The dialect of a batched engine in docs/semantics.md."""
PLAIN: Final = Dialect(exclusion="never", filters=("max_atoms", "max_resolvents"), memory="none")
"""The dialect of plain resolution: nothing is pruned, visited or excluded."""
SEED: Final = 21
PART: Final = 256
"""Problems of one check of laws, and most problems that a planted difference is sought in at once."""

UNSEEN: Final = {
    "exempts_terminal": "no goal without atoms is visited in a derivation",
    "unproved": "no step shows it, only ranks",
    "ties": "no step shows it, only ranks",
    "exclusion always positives_only": "no corruption is a fact",
    "close before revisit": "an empty list becomes FALSE after either",
}
"""The switches that make no difference in the steps of any derivation."""


def list_dialects(num: int) -> list[Dialect]:
    """Return the published dialects and others that are drawn at random, half of them close to the default one."""
    rng = random.Random(SEED)
    found = [OURS, BATCHED, PLAIN]
    while len(found) < num:
        drawn = random_dialect(rng, make_dialect, rng.choice((2, 13)))
        if drawn not in found:
            found.append(drawn)
    return found[:num]


def make_dialect(**switches: Any) -> Dialect:
    """Return a dialect of switches with the reference's values."""
    plain = {name: value if isinstance(value, bool) else str(value) for name, value in switches.items()}
    if "filters" in switches:
        plain["filters"] = tuple(map(str, switches["filters"]))
    return Dialect(**plain)


def list_flips(dialect: Dialect) -> Iterator[tuple[str, Dialect]]:
    """Yield every dialect that differs in one switch, in one filter, or in the order of two neighbouring filters."""
    for name, values in VALUES.items():
        now = getattr(dialect, name)
        for value in values:
            if value != now:
                yield f"{name} {now} {value}", msgspec.structs.replace(dialect, **{name: value})
    filters = dialect.filters
    for i, name in enumerate(filters):
        yield f"without {name}", msgspec.structs.replace(dialect, filters=filters[:i] + filters[i + 1 :])
        if i:
            swapped = (*filters[: i - 1], name, filters[i - 1], *filters[i + 1 :])
            yield f"{name} before {filters[i - 1]}", msgspec.structs.replace(dialect, filters=swapped)
    for name in FILTERS:
        if name not in filters:
            yield f"with {name}", msgspec.structs.replace(dialect, filters=(*filters, name))


def count_false_alarms(dialects: list[Dialect], num_problems: int, num_for_laws: int, corpus: Path, jobs: int) -> int:
    """Print and return the false alarms of fuzzing and of laws."""
    print(
        "| dialect | problems | steps | differ | laws | problems | broken | seconds |\n|---|---|---|---|---|---|---|---|"
    )
    num_alarms = 0
    engine = EngineSpec(f"{FOLDER / 'second_engine.py'}:SecondEngine")
    for number, dialect in enumerate(dialects):
        begun = time.monotonic()
        num_steps = num_tried = num_differing = 0
        if num_problems:
            campaign = Campaign(
                corpus=corpus / str(number),
                engine=engine,
                seed=number,
                examples=num_problems,
                dialect=dialect,
                jobs=jobs,
                minimum={},
            )
            result = run_campaign(campaign)
            num_steps, num_tried, num_differing = result.num_steps, result.num_problems, result.num_differing
            num_differing += len(result.divergences)
        laws = [law for law in LAWS.values() if law.holds_in(dialect)]
        broken = check_all_laws(number, dialect, laws, num_for_laws, corpus / f"{number}-laws.json")
        num_alarms += num_differing + len(broken)
        print(
            f"| {dialect} | {num_tried:,} | {num_steps:,} | {num_differing} | {len(laws)} | {num_for_laws:,} |"
            f" {', '.join(broken) or 0} | {time.monotonic() - begun:,.0f} |",
            flush=True,
        )
    print(f"\nfalse alarms: {num_alarms} in {len(dialects)} dialects")
    return num_alarms


def check_all_laws(number: int, dialect: Dialect, laws: list[Law], num: int, kept: Path) -> list[str]:
    """Return the names of the laws that the engine breaks, resuming from the file that says how many problems were checked."""
    num_checked, broken = (
        msgspec.json.decode(kept.read_bytes(), type=tuple[int, list[str]]) if kept.exists() else (0, [])
    )
    drawn = islice(draw_problems(1000 + number, 0, dialect), num_checked, None)
    while num_checked < num:
        part = list(islice(drawn, min(PART, num - num_checked)))
        broken += [each.law for each in check_laws(as_maker(SecondEngine), part, laws, most=1)]
        num_checked += len(part)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(msgspec.json.encode((num_checked, broken)))
    return broken


def find_planted(base: Dialect, most: int) -> int:
    """Print the first problem that shows each single difference from a dialect; return how many are not found."""
    print(f"\njudged in: {base}\n\n| the engine's dialect differs | problems until it is found |\n|---|---|")
    waiting = dict(list_flips(base))
    found: dict[str, str] = {}
    for name in list(waiting):
        reason = next((reason for key, reason in UNSEEN.items() if _covers(key, name)), "")
        if reason:
            found[name] = f"none: {reason}"
            del waiting[name]
    drawn, begin, size = draw_problems(SEED, 0, base), 0, 8
    while waiting and begin < most:
        part = list(islice(drawn, min(size, most - begin)))
        batches = prepare_batches(part)
        for name, other in list(waiting.items()):
            maker = as_maker(engine_of_dialect(other))
            suspects = [each.number for batch in batches for each in Checker(maker).find_suspects(batch)]
            if suspects:
                found[name] = f"{begin + min(suspects) + 1:,}"
                del waiting[name]
        begin += len(part)
        size = min(2 * size, PART)
    for name, _ in list_flips(base):
        print(f"| {name} | {found.get(name, f'NOT FOUND in {most:,}')} |")
    num_seen = sum(not each.startswith("none") for each in found.values())
    print(f"\nfound: {num_seen} of {num_seen + len(waiting)}", flush=True)
    return len(waiting)


def _covers(key: str, name: str) -> bool:
    """Return whether a difference is one of a switch without effect, or of its values, in either direction."""
    words = name.split()
    return words[0] == key if " " not in key else set(words) == set(key.split())


def print_shares(base: Dialect, num: int) -> None:
    """Print, for each single difference from a dialect, the share of problems whose outcome, or anything else, changes."""
    flips = list(list_flips(base))
    counts = {name: [0, 0, 0, 0] for name, _ in flips}
    for index in range(num):
        plain = decode_problem(draw_bytes(SEED, index))
        for at, problem in enumerate((adapt_problem(plain, base, SEED, index), put_in_dialect(plain, base))):
            expected = _prove(problem, base)
            for name, other in flips:
                actual = _prove(problem, other)
                counts[name][2 * at] += [each[-1] for each in expected] != [each[-1] for each in actual]
                counts[name][2 * at + 1] += expected != actual
    print(f"\nproblems drawn in: {base}\n\n| the switch | outcome | anything | without shapes: outcome | anything |")
    print("|---|---|---|---|---|")
    for name, each in counts.items():
        print(f"| {name} | {' | '.join(f'{count / num:.1%}' for count in each)} |", flush=True)


def _prove(problem: Any, dialect: Dialect) -> list[list[Any]]:
    """Return the steps and the outcome of each query of a problem, outside of a ranking."""
    program, limits = merge([problem]).graph.program, problem.limits
    prover = make_prover(program, limits, dialect)
    found = []
    for query in (*problem.queries, *problem.unranked):
        moves = prover.prove(tuple(program.symbols.encode(query)))
        steps: list[Any] = [
            (
                number_variables(move.goal),
                [(each.kind, number_variables(each.atoms), *each[2:]) for each in move.offers],
                *move[2:8],
                move.is_uncounted,
            )
            for move in moves
        ]
        found.append([*steps, moves[-1].outcome])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialects", type=int, default=20)
    parser.add_argument("--problems", type=int, default=2000, help="compared in each dialect")
    parser.add_argument("--laws", type=int, default=PART, help="problems on which laws are checked in each dialect")
    parser.add_argument("--planted", type=int, default=2048, help="most problems to find a planted difference")
    parser.add_argument("--shares", type=int, default=0, help="problems for the shares")
    parser.add_argument("--corpus", type=Path, help="the folder from which an interrupted run resumes")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    num_bad = 0
    if arguments.problems or arguments.laws:
        dialects = list_dialects(arguments.dialects)
        with tempfile.TemporaryDirectory() as folder:
            corpus = arguments.corpus or Path(folder)
            num_bad += count_false_alarms(dialects, arguments.problems, arguments.laws, corpus, arguments.jobs)
    if arguments.planted:
        num_bad += sum(find_planted(base, arguments.planted) for base in (OURS, BATCHED))
    if arguments.shares:
        for base in (OURS, BATCHED):
            print_shares(base, arguments.shares)
    return int(bool(num_bad))


if __name__ == "__main__":
    sys.exit(main())
