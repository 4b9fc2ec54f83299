"""The confirmation of a condition by experiments, and its repair if they refute it.

Instances that contradict a condition are added to the instances of the run, and the search is repeated. In this way, a
boundary that the run left open is found, and if the run cannot distinguish two conditions, the correct one remains.
"""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from kgverify.comparison.result import Experiment
from kgverify.conditions.experiment import Tried, choose_pair
from kgverify.conditions.find import (
    Found,
    build_table,
    chance_for,
    find_in,
    is_nearly,
    settle,
    take_part,
    weaken,
)
from kgverify.conditions.instances import Cases, Instance, Unit
from kgverify.conditions.search import MOST_CHANCE, Condition, Term

MOST_ROUNDS: Final = 8
"""The most experiments for one cause, each with different problems."""

FEWEST_SURVIVED: Final = 2
"""The number of experiments in a row that an exact condition must survive. One is enough for candidates, since each of their
experiments costs a run of the engine."""

MOST_WRONG: Final = 2
"""The number of experiments after which to stop if they show nothing to compare with."""

MOST_UNCERTAIN: Final = 3
"""The number of further experiments if no condition is exact: one may become certain."""

CONFIRMED: Final = "confirmed"
REFUTED: Final = "refuted"
NOT_TESTABLE: Final = "not testable"


class Tested(NamedTuple):
    """A condition, the last experiment with it, and the instances constructed for this experiment."""

    found: Found
    experiment: Experiment | None = None
    tried: Tried | None = None


def confirm(
    stage: str, found: Found, test: Callable[[Found, int], Tried | str], describe: Callable[[Instance], str]
) -> Tested:
    """Test a condition by experiments, and repair it if they refute it.

    A condition without tests is only a start: the condition is then sought among instances of the run and of experiments.

    test:     a function that constructs problems for a condition, from a seed; it returns their results, or why it
              cannot construct any
    describe: a function that returns the problem of an instance in words
    """
    return _Confirmation(stage, found, test, describe).run()


class _Confirmation:
    """The experiments for one cause, each with the condition that remains after the earlier ones.

    known:  the instances of the run and of all experiments
    nearly: the condition that held for the largest share of an experiment, without being exact
    """

    def __init__(
        self,
        stage: str,
        found: Found,
        test: Callable[[Found, int], Tried | str],
        describe: Callable[[Instance], str],
    ) -> None:
        self._stage, self._test, self._describe = stage, test, describe
        self._found, self._known = found, found.cases
        self._nearly: Tested | None = None
        self._experiment = Experiment(verdict=NOT_TESTABLE, reason="nothing distinguishes what goes wrong")

    def run(self) -> Tested:
        """Return the condition that remains after the experiments."""
        last: Tried | None = None
        num_survived = 0
        for seed in range(MOST_ROUNDS):
            found = self._found
            # New goals are also made from the goals of experiments; candidates have other numbers in further runs.
            tried = self._test(found if found.cases.unit is Unit.CANDIDATE else found._replace(cases=self._known), seed)
            if isinstance(tried, str):
                return Tested(settle(found), Experiment(verdict=NOT_TESTABLE, reason=tried))
            last = tried
            self._known = self._known._replace(instances=(*self._known.instances, *tried.cases.instances))
            if found.condition.tests:
                self._experiment = judge(found, tried, self._describe)
            is_refuted = self._experiment.verdict == REFUTED
            is_kept = found.condition.tests and not is_refuted
            num_survived = num_survived + 1 if is_kept and found.is_exact else 0
            fewest = 1 if found.cases.unit is Unit.CANDIDATE else FEWEST_SURVIVED
            if 0 < num_survived < min(fewest, MOST_ROUNDS - seed):
                continue
            better = None if num_survived else _search_again(self._stage, found, self._known)
            if is_kept and (found.is_exact or (better is None and seed >= MOST_UNCERTAIN)):
                return self._keep(tried)
            self._weaken(tried, is_refuted)
            if better is not None and (better.is_exact or self._nearly is None):
                is_open = is_refuted and not better.is_exact
                self._found = better._replace(exceptions=self._experiment.pair) if is_open else better
            elif self._is_done(found, seed):
                break
        return self._nearly or Tested(self._found, self._experiment, last)

    def _is_done(self, found: Found, seed: int) -> bool:
        """Return whether further experiments are useless: everything went wrong in the first ones, or none helped.

        A condition that is inexact after the run gets more experiments than an exact one. Further runs of candidates are
        not adapted to show what is missing, and each costs a run of the engine.
        """
        is_first = found.is_exact if found.condition.tests else all(each.is_wrong for each in self._known.instances)
        most = MOST_WRONG - 1 if is_first else MOST_UNCERTAIN
        return seed >= most or (not found.condition.tests and self._known.unit is Unit.CANDIDATE)

    def _keep(self, tried: Tried) -> Tested:
        """Return the condition that an experiment has not refuted, without parts that rest on single instances."""
        found, experiment = self._found, self._experiment
        kept = settle(_keep_alike(found, tried), self._known.instances[len(found.cases.instances) :])
        if not kept.condition.tests and self._nearly is not None:
            return self._nearly
        if kept.condition != found.condition:
            experiment = _try_weak(kept, tried, self._describe)
        return Tested(kept, experiment, tried)

    def _weaken(self, tried: Tried, is_refuted: bool) -> None:
        """Note a condition that nearly holds in an experiment, if it holds for a larger share than earlier ones."""
        weak = weaken(self._found) if is_refuted else self._found
        # A refuted pair of conditions is not stated: it may have little in common with the true conditions.
        is_stated = weak.condition.tests and not (is_refuted and weak.condition.either is not None)
        if is_stated and is_nearly(tried.predicted, tried.observed):
            weak = weak._replace(exceptions=self._experiment.pair) if is_refuted else weak
            judged = judge(weak, tried, self._describe)
            if self._nearly is None or _share(judged) >= _share(self._nearly.experiment):
                self._nearly = Tested(weak, judged, tried)


def adopt(found: Found, others: Sequence[Found]) -> Found:
    """Return the exact condition of another cause if it holds here as well; otherwise, return `found`.

    One fault may show in several causes, and a cause may have too few instances to find its condition or its boundary.
    """
    for other in others:
        is_open = not (found.is_exact and found.condition.tests) or may_be_one(found.condition, other.condition)
        if is_open and (moved := transfer(found, other, len(others) + 1)) is not None:
            return moved
    return found


def transfer(found: Found, other: Found, num_tried: int = 1, most: float = MOST_CHANCE) -> Found | None:
    """Return the exact condition of another cause for the instances of this cause; None if it does not hold for them.

    most: the largest chance that it holds here by coincidence
    """
    if not other.is_exact or not other.condition.tests or len(other.condition.parts) > 1:
        return None
    for own in (found, found.start):
        if own is None or not own.cases.is_like(other.cases):
            continue
        if np.isnan(own.table.values[0, other.condition.used]).any():
            continue
        moved = other.condition._replace(num_tried=num_tried)
        chance = chance_for(own.table, moved)
        if (moved.holds(own.table.values) == own.table.is_wrong).all() and chance <= most:
            return own._replace(condition=moved, others=(), is_exact=True, chance=chance, start=found.start)
    return None


def may_be_one(condition: Condition, other: Condition) -> bool:
    """Return whether two conditions have the same tests, with bounds that both leave open where these differ."""
    pairs = [sorted(each.terms, key=lambda term: term[:2]) for each in (condition, other)]
    if len(condition.parts) != len(other.parts) or len(pairs[0]) != len(pairs[1]):
        return False
    return all(own == term or _overlap(own, term) for own, term in zip(*pairs, strict=True))


def _overlap(term: Term, other: Term) -> bool:
    """Return whether there is a true bound that fits two tests of one feature."""
    if (term.feature, term.relation) != (other.feature, other.relation) or term.beyond is None or other.beyond is None:
        return False
    (low, high), (least, most) = sorted((term.value, term.beyond)), sorted((other.value, other.beyond))
    return max(low, least) <= min(high, most)


def _share(experiment: Experiment | None) -> float:
    """Return the share of an experiment's instances that behaved as predicted."""
    return 0.0 if experiment is None else experiment.num_predicted / max(1, experiment.num_tried)


def _try_weak(weak: Found, tried: Tried, describe: Callable[[Instance], str]) -> Experiment:
    """Return the result of an experiment with a condition that has lost a test."""
    holds = weak.table.predict(weak.condition, tried.cases.instances)
    if holds is None or not weak.condition.tests:
        return Experiment(verdict=NOT_TESTABLE, reason="it rests on one instance")
    return judge(weak, tried._replace(predicted=holds), describe)


def judge(found: Found, tried: Tried, describe: Callable[[Instance], str]) -> Experiment:
    """Return the result of an experiment with a condition."""
    is_as_predicted = tried.predicted == tried.observed
    counted = Experiment(verdict=CONFIRMED, num_tried=len(tried.predicted), num_predicted=int(is_as_predicted.sum()))
    if not (is_as_predicted.all() if found.is_exact else is_nearly(tried.predicted, tried.observed)):
        wrong = [each for each, is_right in zip(tried.cases.instances, is_as_predicted, strict=True) if not is_right]
        return replace(counted, verdict=REFUTED, pair=tuple(map(describe, wrong[:1])))
    if tried.predicted.all() or not tried.predicted.any():
        reason = "no problem on the other side of its boundary could be constructed"
        return replace(counted, verdict=NOT_TESTABLE, reason=reason)
    if tried.is_one_sided:
        return replace(counted, verdict=NOT_TESTABLE, reason="another cause goes wrong in steps as well")
    return replace(counted, pair=tuple(map(describe, choose_pair(tried, found))))


def split(tested: Tested, describe: Callable[[Instance], str]) -> list[Tested]:
    """Return each of two confirmed conditions, without the instances that only the other one explains."""
    found, experiment, tried = tested
    assert tried is not None
    parts = []
    for part, other in (found.condition.parts, found.condition.parts[::-1]):
        own = take_part(found, part, other)
        holds, elsewhere = (found.table.predict(each, tried.cases.instances) for each in (part, other))
        if holds is not None and elsewhere is not None:
            cases = tried.cases._replace(instances=tuple(compress(tried.cases.instances, ~elsewhere)))
            experiment = judge(own, Tried(cases, holds[~elsewhere]), describe)
        parts.append(Tested(own, experiment))
    return parts


def _search_again(stage: str, found: Found, known: Cases) -> Found | None:
    """Search for a condition among the instances of the run and of the experiments; return it with the table of the run."""
    # The first instances are those of the run.
    better, _ = find_in(stage, known, build_table(known, found.table.features, found.table), is_whole=True)
    if better is None or not better.condition.tests:
        return None
    again = found._replace(
        condition=better.condition, is_exact=better.is_exact, others=better.others, chance=better.chance
    )
    if not again.is_exact and not is_nearly(again.condition.holds(found.table.values), found.table.is_wrong):
        return None
    return again


def _keep_alike(found: Found, tried: Tried) -> Found:
    """Return a condition without the alternative conditions that the experiment refutes."""
    holds = [found.table.predict(each, tried.cases.instances) for each in found.others]
    is_kept = [each is not None and np.array_equal(each, tried.observed) for each in holds]
    return found._replace(others=tuple(compress(found.others, is_kept)))
