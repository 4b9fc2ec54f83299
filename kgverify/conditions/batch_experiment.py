"""The test of a condition of candidates by intervention: the same candidates in other runs, alone, shuffled or reversed."""

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.conditions.candidates import CandidateReader
from kgverify.conditions.experiment import Tried, read_values
from kgverify.conditions.features import Feature
from kgverify.conditions.instances import Cases, Instance, Unit
from kgverify.conditions.search import Condition

FEWEST_IN_RUN: Final = 96
MOST_IN_RUN: Final = 320
"""The candidates of a further run: two for each slot, within these bounds."""


class Rerun(NamedTuple):
    """A further run of some candidates.

    wrong:      those that differ, by their number in the run
    candidates: reads them
    own:        the features that the engine declares for this run
    """

    wrong: Collection[int]
    candidates: CandidateReader
    own: Sequence[Feature]


RunAgain = Callable[[NDArray[np.int64]], Rerun | None]
"""A function that runs rows of the candidates in a given order; None if the engine returns other candidates."""


def try_batches(
    cases: Cases,
    features: Sequence[Feature],
    condition: Condition,
    run_again: RunAgain,
    *,
    num_slots: int,
    hidden: Collection[int],
    seed: int = 0,
) -> Tried | None:
    """Run candidates anew, in other numbers and orders, and compare them with what a condition predicts.

    hidden: rows that go wrong by another cause; None if the engine returns other candidates than it was given
    """
    rng = Random(seed)
    known = [each.candidate.row for each in cases.instances if each.candidate.row not in hidden]
    wrong = [each.candidate.row for each in cases.instances if each.is_wrong]
    size = min(len(known), max(FEWEST_IN_RUN, min(MOST_IN_RUN, 2 * num_slots)))
    some = sorted(rng.sample(known, size))
    orders = [
        [wrong[rng.randrange(len(wrong))]],
        some[::-1],
        rng.sample(some, rng.randint(min(2, len(some)), len(some))),
    ]
    instances, values = [], []
    for rows in orders if len(known) > 1 else ():
        again = run_again(np.array(rows, np.int64))
        if again is None:
            return None
        own = {each.name: each for each in again.own}
        current = [own.get(each.name, each) for each in features]
        found = [
            Instance(Unit.CANDIDATE, i in again.wrong, (seed, len(rows), i), again.candidates.read(i))
            for i in range(len(rows))
        ]
        read = read_values(current, condition, found)
        if read is None:
            return None
        instances += found
        values.append(read)
    if not instances:
        return None
    observed = np.array([each.is_wrong for each in instances], np.bool_)
    return Tried(cases._replace(instances=tuple(instances)), condition.holds(np.concatenate(values)), observed)
