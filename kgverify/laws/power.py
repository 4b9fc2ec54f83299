"""Which laws an engine breaks, and on which problem first: what the laws are worth, measured on engines with faults."""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from kgverify.laws.law import Law, find_violations
from kgverify.testing.checking.pipelines import MakePipeline
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.merge import group_problems

FIRST_ROUND: Final = 64
"""Problems of the first round; each further one has twice as many, up to `LARGEST_ROUND`."""
LARGEST_ROUND: Final = 512
MOST_PROBLEMS: Final = 2000


def find_breakers(
    make_pipeline: MakePipeline, laws: Sequence[Law], *, seed: int = 0, most_problems: int = MOST_PROBLEMS
) -> dict[str, int]:
    """For each law that is broken, how many decoded problems of a seed it took.

    The problems are drawn in growing rounds; the first round in which some law is broken, of those that compute
    nothing again if there are such, is the last.
    """
    found: dict[str, int] = {}
    done, size = 0, FIRST_ROUND
    decisive = {law.name for law in laws if not law.is_replica} or {law.name for law in laws}
    while done < most_problems and not found.keys() & decisive:
        problems = list(islice(draw_problems(seed, done), min(size, most_problems - done)))
        for places in group_problems(problems):
            part = [problems[i] for i in places]
            for violation in find_violations(make_pipeline, part, laws, places):
                number = done + violation.index + 1
                found[violation.law] = min(number, found.get(violation.law, number))
        done, size = done + len(problems), min(2 * size, LARGEST_ROUND)
    return found
