"""Judge the reference by everything here: `PYTHONPATH=reference:tests/reference python -m judges`.

Prints one line of JSON for each judge, with what it judged and its first finding, and exits with 1 if one finds something wrong.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from judges import answers, derivations, draws, models, ranks, searches
from judges.cases import draw_cases

Judge = Callable[[Counter[str]], list[str]]


def all_judges(num: int, seed: int = 0, kept: Path | None = None) -> Iterator[tuple[str, Judge]]:
    """Yield each installed judge by name, with ``num`` generated programs; the judge counts what occurred."""
    cases = list(islice(draw_cases(seed), num))
    yield "ranks", lambda seen: ranks.judge_ranks(list(islice(ranks.draw_rankings(seed), 2 * num)), seen)
    yield "draws", lambda seen: draws.judge_draws(list(islice(draws.draw_cases(seed), num // 4)), seen)
    yield "searches", lambda seen: searches.judge_searches(cases, seen, seed)
    yield "answers", lambda seen: answers.judge_answers(cases, seen, seed)
    if derivations.has_prolog():
        yield "beams", lambda seen: searches.judge_beams(cases, seen, kept)
        yield "derivations", lambda seen: derivations.judge_derivations(cases, seen, kept)
        yield "choices", lambda seen: derivations.judge_choices(cases[: num // 2], seen, kept)
    if models.has_clingo():
        yield (
            "models",
            lambda seen: models.judge_models([case for case in cases[: num // 2] if models.is_small(case)], seen),
        )


def main() -> int:
    """Run the judges."""
    parser = argparse.ArgumentParser(prog="judges", description=__doc__)
    parser.add_argument("--num", type=int, default=1000, help="number of generated programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the programs")
    parser.add_argument("--kept", type=Path, help="folder in which Prolog's answers are kept")
    parser.add_argument("--stop", action="store_true", help="stop after the first judge that finds something")
    arguments = parser.parse_args()
    is_right = True
    for name, judge in all_judges(arguments.num, arguments.seed, arguments.kept):
        seen: Counter[str] = Counter()
        wrong = judge(seen)
        is_right = is_right and not wrong
        print(
            json.dumps({"judge": name, "wrong": len(wrong), "first": wrong[0][-2000:] if wrong else "", "seen": seen})
        )
        if wrong and arguments.stop:
            break
    assert "kgverify" not in sys.modules, "the judges share no code with kgverify"
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
