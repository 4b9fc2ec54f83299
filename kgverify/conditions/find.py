"""The search for the condition of one cause among the instances of its units."""

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.conditions.features import Feature, features_of, read_values
from kgverify.conditions.instances import Cases, Instance, Unit
from kgverify.conditions.search import MOST_CHANCE, NOTHING, Condition, Relation, Search, Term, chance_of
from kgverify.program.outcomes import DifferenceClass, Stage

FEWEST_ALWAYS: Final = 10
"""The number of different wrong instances, with no right one among them, needed to report that every instance is wrong."""

LEAST_PRECISION: Final = 0.95
LEAST_RECALL: Final = 0.95
"""The lowest precision and recall of a condition that is not exact."""

FEWEST_EXPLAINED: Final = 2
"""The fewest instances that each test must exclude, or each of two conditions explain: one may be a coincidence."""

AS_SHORT: Final = 3.0
"""The largest difference in description length, in bits, at which another exact condition is part of the sentence."""

MOST_NAMED: Final = 3
"""The most clauses that are named one by one, if there are too few to say what they have in common."""

OF_WHOLE_STEPS: Final = (Stage.CLOSE, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)
"""The stages that decide on a whole step."""


class Table(NamedTuple):
    """The instances of a unit as numbers.

    features:   the features of the unit
    values:     float64 [n, F]; NaN in the column of a feature that is unknown for some instance
    is_wrong:   bool [n]
    identities: int64 [n]  the number of the identity of each instance
    steps:      int64 [n]  the number of the goal of its step
    candidates: int64 [n]  the number of its candidate
    queries:    int64 [n]  the number of its query
    shapes:     int64 [n]  the number of its shape: the depth, and the predicates and variables of its goal
    """

    features: tuple[Feature, ...]
    values: NDArray[np.float64]
    is_wrong: NDArray[np.bool_]
    identities: NDArray[np.int64]
    steps: NDArray[np.int64]
    candidates: NDArray[np.int64]
    queries: NDArray[np.int64]
    shapes: NDArray[np.int64]

    def take(self, rows: NDArray[np.bool_]) -> "Table":
        """Return some instances."""
        return Table(self.features, *(column[rows] for column in self[1:]))  # type: ignore[arg-type]

    def identities_for(self, condition: Condition) -> NDArray[np.int64]:
        """Return the identities that matter for a condition: those of steps or candidates if it tests their features."""
        used = [self.features[i] for i in condition.used]
        if any(each.is_of_query for each in used):
            return self.queries
        if any(Unit.CANDIDATE in each.of for each in used):
            return self.candidates
        if any(each.is_of_match for each in used):
            return _number(list(zip(self.identities.tolist(), self.steps.tolist(), strict=True)))
        return self.steps if any(Unit.STEP in each.of for each in used) else self.identities

    def clusters_for(self, condition: Condition) -> list[NDArray[np.int64]]:
        """Return the numbers of the coincidences that a condition may rest on, int64 [n] each: instances of one happen together.

        A condition on steps and on clauses may rest on steps, or on clauses: a clause that is always wrong or always right
        shows no more in many steps than in one.
        """
        found = self.identities_for(condition)
        units = [self.features[i].of for i in condition.used]
        if found is not self.steps or all(Unit.STEP in each for each in units):
            return [found]
        is_mixed = np.isin(self.identities, self.identities[self.is_wrong])
        is_mixed &= np.isin(self.identities, self.identities[~self.is_wrong])
        steps = np.where(is_mixed, self.steps, -1)
        return [found, _number(list(zip(self.identities.tolist(), steps.tolist(), strict=True)))]

    def predict(self, condition: Condition, instances: Sequence[Instance]) -> NDArray[np.bool_] | None:
        """Return a mask of the instances for which a condition holds: bool [n]. None if a feature that it tests is unknown."""
        values = read_values(self.features, instances, condition.used)
        return None if np.isnan(values[:1, condition.used]).any() else condition.holds(values)

    def count_classes(self, is_inside: NDArray[np.bool_]) -> tuple[int, int]:
        """Count the instances in a mask that went wrong, and those that did not."""
        return int((is_inside & self.is_wrong).sum()), int((is_inside & ~self.is_wrong).sum())

    def num_identities(self, is_inside: NDArray[np.bool_]) -> int:
        """Return the number of different identities among the instances in a mask."""
        return len(np.unique(self.identities[is_inside]))


def build_table(cases: Cases, features: Sequence[Feature], begun: Table | None = None) -> Table:
    """Return the instances of a unit as numbers.

    begun: the table of the first of these instances, whose values are not read again
    """
    instances = cases.instances
    hides_steps = {Unit.STEP, Unit.CANDIDATE} if cases.is_by_itself else set()
    columns = [i for i, feature in enumerate(features) if not feature.of & hides_steps]
    if begun is None:
        values = read_values(features, instances, columns)
    else:
        num_read, is_known = len(begun.values), ~np.isnan(begun.values[0])
        further = read_values(features, instances[num_read:], [i for i in columns if is_known[i]])
        values = np.concatenate((begun.values, further))
        values[:, np.isnan(values).any(0)] = math.nan
    return Table(
        tuple(features),
        values,
        np.array([each.is_wrong for each in instances], np.bool_),
        _number([each.identity for each in instances]),
        _number([each.identity if each.unit is Unit.LEVEL else each.step and each.step.goal for each in instances]),
        # The same candidate in another run counts as another instance.
        _number([each.identity if cases.unit is Unit.CANDIDATE else each.candidate.row for each in instances]),
        _number([each.candidate.query for each in instances]),
        _number([each.identity if each.unit is Unit.LEVEL else each.step and each.step.shape for each in instances]),
    )


def _number(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return a number for each key, the same for equal keys: int64 [n]."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


class Found(NamedTuple):
    """A condition with the instances among which it was found.

    others:     further exact conditions
    is_exact:   whether it holds for every instance that went wrong and for no other
    is_partial: whether it only identifies the steps that go wrong, not what goes wrong in them
    is_cut:     whether the search ended before all conditions were tried
    exceptions: problems for which an experiment has shown that it does not hold
    start:      the instances of the smallest unit with a condition without tests, from which experiments may start
    """

    cases: Cases
    table: Table
    condition: Condition
    others: tuple[Condition, ...]
    is_exact: bool
    chance: float
    is_partial: bool = False
    is_cut: bool = False
    exceptions: tuple[str, ...] = ()
    start: "Found | None" = None

    @property
    def unstated(self) -> "Found":
        """The same instances without a condition."""
        return self.start or self._replace(condition=NOTHING, others=(), is_exact=False)


def find_condition(
    stage: str, kind: DifferenceClass, every: Iterable[Cases], own: tuple[Feature, ...] = ()
) -> Found | None:
    """Return the simplest condition of a cause, without tests if none is stated; None if no instance went wrong.

    every: the instances of each unit, the smallest unit first
    own:   further features, which the engine declares

    A condition of a smaller unit is preferred: differences between steps often just follow from differences between facts.
    """
    best: Found | None = None
    whole: Found | None = None
    start: Found | None = None
    is_open = is_mixed = False
    for cases in every:
        if not any(each.is_wrong for each in cases.instances):
            continue
        table = build_table(
            cases, (*features_of(cases.unit, stage, kind), *(each for each in own if cases.unit in each.of))
        )
        start = start or Found(cases, table, NOTHING, (), False, 1.0)
        found, has_exact = find_in(stage, cases, table)
        if found is not None and stage in OF_WHOLE_STEPS and _is_of_steps(found):
            # The same condition on whole steps takes fewer words.
            whole = found
            continue
        if found is not None and (not is_open or (found.is_exact and found.condition.tests)):
            is_partial = cases.unit is Unit.STEP and is_mixed and bool(found.condition.tests)
            best = min(filter(None, (best, found._replace(is_partial=is_partial))), key=_rank)
            if not any(_rank(best)):
                # No condition of a larger unit is better.
                break
        # An exact but uncertain condition must not be replaced with an inexact condition of a larger unit.
        is_open |= has_exact
        is_mixed |= stage not in OF_WHOLE_STEPS and _is_mixed(cases)
    found = best or whole or start
    return None if found is None else found._replace(start=start)


def settle(found: Found, tried: Sequence[Instance] = ()) -> Found:
    """Return the condition if each test excludes at least two different instances, and each part explains at least two.

    tried: instances of experiments, which count like those of the run

    Otherwise, return another exact condition if no experiment was made, or the condition without these tests, as inexact.
    Without experiments, the goals of a condition on steps must differ in more than constants: similar derivations take
    similar steps, and together are a single coincidence.
    """
    table, condition = found.table, found.condition
    if not tried and condition.tests and _chance_of_shapes(table, condition) > MOST_CHANCE:
        return found.unstated
    if not found.is_exact or not condition.tests:
        return found
    kept = _drop_resting(table, condition)
    if kept is condition:
        return found
    if tried:
        cases = found.cases._replace(instances=(*found.cases.instances, *tried))
        whole = build_table(cases, table.features, table)
        if not np.isnan(whole.values[0, condition.used]).any() and _drop_resting(whole, condition) is condition:
            return found
    else:
        for i, other in enumerate(found.others):
            if _drop_resting(table, other) is other:
                return found._replace(condition=other, others=(condition, *found.others[:i], *found.others[i + 1 :]))
    return weaken(found._replace(condition=kept))


def weaken(found: Found) -> Found:
    """Return a condition as inexact; without tests if it holds for too many right instances, or too few wrong ones."""
    table, condition = found.table, found.condition
    inside = condition.holds(table.values)
    # If everything went wrong in the run, chance was judged with the instances of experiments.
    chance = found.chance if table.is_wrong.all() else chance_for(table, condition)
    if not condition.tests or not is_nearly(inside, table.is_wrong) or chance > MOST_CHANCE:
        return found.unstated
    return found._replace(is_exact=False, chance=chance, others=())


def take_part(found: Found, part: Condition, other: Condition) -> Found:
    """Return one of two conditions, without the instances that only the other one explains."""
    table = found.table
    keeps = part.holds(table.values) | ~other.holds(table.values) | ~table.is_wrong
    some = table.take(keeps)
    cases = found.cases._replace(instances=tuple(compress(found.cases.instances, keeps)))
    return found._replace(cases=cases, table=some, condition=part, others=(), chance=chance_for(some, part))


def is_nearly(inside: NDArray[np.bool_], is_wrong: NDArray[np.bool_]) -> bool:
    """Return whether a condition reaches the lowest accepted precision and recall."""
    both = (inside & is_wrong).sum()
    return bool(both and both >= LEAST_PRECISION * inside.sum() and both >= LEAST_RECALL * is_wrong.sum())


def _drop_resting(table: Table, condition: Condition) -> Condition:
    """Return a condition without the tests and parts that rest on too few instances; unchanged if all rest on enough."""
    identities = table.identities_for(condition)

    def rests(rows: NDArray[np.bool_]) -> bool:
        return len(np.unique(identities[rows])) < FEWEST_EXPLAINED

    held = [part.holds(table.values) for part in condition.parts]
    parts = []
    for i, part in enumerate(condition.parts):
        elsewhere = held[1 - i] if len(held) > 1 else np.zeros_like(table.is_wrong)
        if len(held) > 1 and rests(table.is_wrong & held[i] & ~elsewhere):
            continue
        tests = list(part.tests)
        for test in part.tests if len(part.tests) > 1 else ():
            others = [each.holds(table.values) for each in part.tests if each is not test]
            if rests(np.logical_and.reduce(others) & ~test.holds(table.values) & ~table.is_wrong & ~elsewhere):
                tests.remove(test)
        parts.append(part if len(tests) == len(part.tests) else part._replace(tests=tuple(tests)))
    if parts == list(condition.parts):
        return condition
    parts = [part for part in parts if part.tests]
    if not parts:
        return NOTHING
    return parts[0]._replace(either=parts[1] if len(parts) > 1 else None)


def _is_of_steps(found: Found) -> bool:
    """Return whether a condition on parts of steps only tests features of their steps."""
    used = [found.table.features[i].of for i in found.condition.used]
    return found.cases.unit is not Unit.STEP and bool(used) and all(Unit.STEP in each for each in used)


def _is_mixed(cases: Cases) -> bool:
    """Return whether some step contains a part that went wrong and a part that did not."""
    if cases.unit is Unit.STEP:
        return False
    wrong = {id(each.step) for each in cases.instances if each.is_wrong}
    return any(id(each.step) in wrong for each in cases.instances if not each.is_wrong)


def _rank(found: Found) -> tuple[bool, bool, bool]:
    """Return a sort key that puts the best condition first: an exact one, then one that not every instance meets."""
    return not found.is_exact or found.is_partial, found.is_partial, not found.condition.tests


def find_in(stage: str, cases: Cases, table: Table, *, is_whole: bool = False) -> tuple[Found | None, bool]:
    """Return the simplest condition of a unit's instances that chance does not explain, and whether any is exact.

    is_whole: whether instances of experiments are included: a condition that rests on one of them is then the last resort
    """
    wrong, found = table.is_wrong, Found(cases, table, NOTHING, (), True, 0.0)
    if wrong.all():
        return (found if table.num_identities(wrong) >= FEWEST_ALWAYS else None), False
    search = Search(table.features, table.values, wrong, stage)
    exact = [each for each in search.find_exact() if not _is_hidden(cases, table, each)]
    found = found._replace(is_cut=search.is_cut)
    likely = [(each, chance) for each in exact if (chance := chance_for(table, each)) <= MOST_CHANCE]
    resting = [is_whole and _drop_resting(table, each) is not each for each, _ in likely]
    rests = bool(likely) and all(resting)
    # No experiment can test a condition of a draw, so only the simplest are stated.
    is_drawn = stage == Stage.CORRUPT
    two = _find_two(found, search, is_firm=rests) if (rests or not likely) and not is_drawn else None
    if two is not None:
        return two, True
    if likely:
        order = sorted(range(len(likely)), key=resting.__getitem__)
        (condition, chance), *rest = (likely[i] for i in order)
        return found._replace(condition=condition, others=tuple(each for each, _ in rest), chance=chance), True
    if exact:
        return _name_clauses(cases, table, exact), True
    return None if is_drawn else _find_inexact(found, search), False


def _find_inexact(found: Found, search: Search) -> Found | None:
    """Return a condition that holds for most instances that went wrong and few others; None if chance explains it."""
    table = found.table
    inexact = search.find_inexact(table.values, table.is_wrong)
    if inexact is None or _is_hidden(found.cases, table, inexact):
        return None
    chance = chance_for(table, inexact)
    is_stated = is_nearly(inexact.holds(table.values), table.is_wrong) and chance <= MOST_CHANCE
    return found._replace(condition=inexact, is_exact=False, chance=chance) if is_stated else None


def _find_two(found: Found, search: Search, *, is_firm: bool) -> Found | None:
    """Return the shortest pair of conditions that chance does not explain. is_firm: whether few instances are not enough."""
    pairs = search.find_two()
    for two in pairs:
        # A much shorter but uncertain pair may be the true one, so do not state a longer one.
        if two.cost > pairs[0].cost + AS_SHORT:
            break
        is_resting = is_firm and _drop_resting(found.table, two) is not two
        if is_resting or _is_hidden(found.cases, found.table, two):
            continue
        if (chance := _chance_of_two(found.table, two)) <= MOST_CHANCE:
            return found._replace(condition=two, chance=chance)
    return None


def _chance_of_two(table: Table, two: Condition) -> float:
    """Return the largest of three chances: of both parts together, and of each where the other one explains nothing."""
    chances = [chance_for(table, two._replace(num_tried=math.prod(part.num_tried for part in two.parts)))]
    for own, other in (two.parts, two.parts[::-1]):
        is_open = ~other.holds(table.values) | own.holds(table.values)
        chances.append(chance_for(table.take(is_open), own))
    return max(chances)


def _is_hidden(cases: Cases, table: Table, condition: Condition) -> bool:
    """Return whether a condition holds mostly for instances that another cause hides: it may belong to that cause."""
    if not cases.hidden or not condition.tests:
        return False
    holds = table.predict(condition, cases.hidden)
    if holds is None:
        return True
    held = {each.identity for each in compress(cases.hidden, holds)}
    return len(held) > table.num_identities(table.is_wrong & condition.holds(table.values))


def _name_clauses(cases: Cases, table: Table, exact: Sequence[Condition]) -> Found | None:
    """Return a condition that names a few clauses, if these always go wrong and no property of them is certain."""
    if cases.unit not in (Unit.FACT, Unit.RULE):
        return None
    index = next(i for i, feature in enumerate(table.features) if feature.name == "index")
    values = np.unique(table.values[table.is_wrong, index])
    if len(values) > MOST_NAMED:
        return None
    low, high = float(values[0]), float(values[-1])
    test = Term(index, Relation.EQUAL, low) if low == high else Term(index, Relation.BETWEEN, low, high)
    condition = Condition((test,), 0.0, exact[0].num_tried)
    num_wrong, num_right = table.count_classes(np.ones_like(table.is_wrong))
    chance = chance_of(num_wrong, num_right, num_wrong, 0, condition.num_tried)
    if (condition.holds(table.values) != table.is_wrong).any() or chance > MOST_CHANCE:
        return None
    return Found(cases, table, condition, tuple(exact), True, chance)


def _chance_of_shapes(table: Table, condition: Condition) -> float:
    """Return the chance of a condition on steps among goals of different shapes; 0 unless shapes decide what goes wrong."""
    is_mixed = len(np.intersect1d(table.shapes[table.is_wrong], table.shapes[~table.is_wrong])) > 0
    if is_mixed or table.is_wrong.all() or table.identities_for(condition) is not table.steps:
        return 0.0
    return chance_for(table._replace(steps=table.shapes), condition)


def chance_for(table: Table, condition: Condition) -> float:
    """Return the chance of a condition among the coincidences that it may rest on."""
    return max(_chance_among(table, condition, identities) for identities in table.clusters_for(condition))


def _chance_among(table: Table, condition: Condition, identities: NDArray[np.int64]) -> float:
    """Return the chance of a condition among different identities, int64 [n]. One that is sometimes wrong counts as wrong."""
    inside = condition.holds(table.values)
    wrong = np.unique(identities[table.is_wrong])
    right = np.setdiff1d(identities[~table.is_wrong], wrong)
    held = np.unique(identities[inside])
    wrong_inside, right_inside = len(np.intersect1d(wrong, held)), len(np.intersect1d(right, held))
    if not len(right) or (wrong_inside == len(wrong) and right_inside == len(right)):
        # The same instance is sometimes wrong and sometimes right, so every occurrence counts.
        return chance_of(*table.count_classes(np.ones_like(inside)), *table.count_classes(inside), condition.num_tried)
    return chance_of(len(wrong), len(right), wrong_inside, right_inside, condition.num_tried)
