"""The confirmation of a condition by experiments, and its repair where they refute it.

Instances that contradict a condition join those of the run, and the search is repeated. So a boundary that the run left open
is found, and of two conditions that the run does not tell apart the right one stays.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from kgverify.comparison.result import Experiment
from kgverify.conditions.experiment import Tried, choose_pair, read_values
from kgverify.conditions.find import Found, build_table, search_in
from kgverify.conditions.instances import Cases, Instance
from kgverify.conditions.search import Condition, Term

MOST_ROUNDS: Final = 5
"""The experiments with one cause, each with other problems."""

CONFIRMED: Final = "confirmed"
REFUTED: Final = "refuted"
NOT_TESTABLE: Final = "not testable"


def confirm(
    stage: str,
    found: Found,
    test: Callable[[Found, int], Tried | str],
    describe: Callable[[Instance], str],
) -> tuple[Found, Experiment]:
    """Test a condition, and return what is left of it, with the last experiment.

    A condition without tests is a start: it is looked for among the instances of the run and of experiments.

    test:     constructs problems for a condition, from a seed, and returns what went wrong in them, or why it cannot
    describe: returns the problem of an instance in words
    """
    experiment = Experiment(verdict=NOT_TESTABLE, reason="nothing distinguishes what goes wrong")
    known = found.cases
    for seed in range(MOST_ROUNDS):
        tried = test(found, seed)
        if isinstance(tried, str):
            return found, Experiment(verdict=NOT_TESTABLE, reason=tried)
        if not found.condition.tests:
            # The run alone says nothing; what is constructed may.
            known = known._replace(instances=(*known.instances, *tried.cases.instances))
            again = _search_again(stage, found, known)
            if again is None:
                return found, experiment
            found = again
            continue
        is_as_predicted = tried.predicted == tried.observed
        counted = Experiment(
            verdict=CONFIRMED, num_tried=len(tried.predicted), num_predicted=int(is_as_predicted.sum())
        )
        if is_as_predicted.all():
            if tried.predicted.all() or not tried.predicted.any():
                reason = "no problem on the other side of its boundary could be constructed"
                return found, replace(counted, verdict=NOT_TESTABLE, reason=reason)
            pair = choose_pair(tried, found.table.features, found.condition)
            texts = tuple(map(describe, pair))
            return _keep_alike(found, tried), replace(counted, pair=texts)
        wrong = [each for each, is_right in zip(tried.cases.instances, is_as_predicted, strict=True) if not is_right]
        experiment = replace(counted, verdict=REFUTED, pair=tuple(map(describe, wrong[:1])))
        if not found.is_exact:
            return found, experiment
        known = known._replace(instances=(*known.instances, *tried.cases.instances))
        again = _search_again(stage, found, known)
        if again is None:
            return found, experiment
        found = again
    return found, experiment


def _search_again(stage: str, found: Found, known: Cases) -> Found | None:
    """Return the condition that holds for the instances of the run and of the experiments, with the table of the run."""
    table = build_table(known, found.own)
    better = search_in(stage, known, table)
    if better is None or not better.is_exact or not better.condition.tests:
        return None
    places = {feature.name: i for i, feature in enumerate(found.table.features)}
    numbers = [places[feature.name] for feature in table.features]

    def move(condition: Condition) -> Condition:
        either = None if condition.either is None else move(condition.either)
        return condition._replace(tests=tuple(_move(test, numbers) for test in condition.tests), either=either)

    return found._replace(
        condition=move(better.condition), is_exact=True, others=tuple(map(move, better.others)), chance=better.chance
    )


def _move(test: Term, numbers: Sequence[int]) -> Term:
    other = numbers[test.other] if test.other >= 0 else test.other
    return test._replace(feature=numbers[test.feature], other=other)


def _keep_alike(found: Found, tried: Tried) -> Found:
    """Return a condition without the others that the experiment refutes."""
    others = []
    for each in found.others:
        values = read_values(found.table.features, each, tried.cases.instances)
        if values is not None and np.array_equal(each.holds(values), tried.observed):
            others.append(each)
    return found._replace(others=tuple(others))
