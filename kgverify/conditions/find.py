"""The condition of one cause, found among the instances of its units."""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Condition as ShownCondition
from kgverify.comparison.result import Experiment, FeatureValue
from kgverify.conditions.chance import MOST_CHANCE, chance_of
from kgverify.conditions.features import Feature, features_of
from kgverify.conditions.instances import Cases, Instance, Unit
from kgverify.conditions.search import Condition, Relation, Search, Term
from kgverify.conditions.sentence import (
    describe_boundary,
    describe_condition,
    describe_counts,
    describe_experiment,
    describe_test,
    describe_tests,
    describe_tried,
)
from kgverify.program.stages import Stage

FEWEST_ALWAYS: Final = 10
"""The different instances that all went wrong, from which on it is said that every one does."""

LEAST_PRECISION: Final = 0.95
LEAST_RECALL: Final = 0.95
"""The least precision and recall of a condition that is not exact."""

FEWEST_EXPLAINED: Final = 2
"""The different instances that each test must exclude, or each of two conditions explain: one may be a coincidence."""

AS_SHORT: Final = 3.0
"""The difference in description length, in bits, up to which another exact condition is part of the sentence."""

MOST_NAMED: Final = 3
"""The clauses that are named one by one, where there are too few to say what they have in common."""

MOST_OTHERS: Final = 5
MOST_EXAMPLES: Final = 3
MOST_BARS: Final = 60
"""The other conditions, the counter-examples, and the values of a feature to list."""

OF_WHOLE_STEPS: Final = (Stage.CLOSE, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)
"""The stages that decide on a whole step."""


class Table(NamedTuple):
    """The instances of a unit as numbers.

    features:   those known for every instance
    values:     float64 [n, F]
    is_wrong:   bool [n]
    identities: int64 [n]  the number of the identity of each instance
    steps:      int64 [n]  the number of the goal that it occurs at
    candidates: int64 [n]  its candidate
    queries:    int64 [n]  its query
    shapes:     int64 [n]  the number of its goal's predicates and variables, at its depth
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
        """Return the identities that count for a condition: those of steps or candidates if it tests features of these."""
        if any(self.features[i].is_of_query for i in condition.used):
            return self.queries
        used = [self.features[i].of for i in condition.used]
        if any(Unit.CANDIDATE in each for each in used):
            return self.candidates
        if any(self.features[i].is_of_match for i in condition.used):
            return _number(list(zip(self.identities.tolist(), self.steps.tolist(), strict=True)))
        return self.steps if any(Unit.STEP in each for each in used) else self.identities

    def num_identities(self, is_inside: NDArray[np.bool_]) -> int:
        """Return the number of different identities among some instances."""
        return len(np.unique(self.identities[is_inside]))


def build_table(cases: Cases, own: Sequence[Feature] = (), begun: Table | None = None) -> Table:
    """Return the instances of a unit as numbers, without features that are unknown for some of them.

    begun: the table of the first of these instances, whose features are not read again
    """
    features, columns, instances = [], [], cases.instances
    num_read = 0 if begun is None else len(begun.values)
    for place, feature in enumerate(_features_for(cases, own) if begun is None else begun.features):
        column = _read_column(feature, instances[num_read:])
        if column is not None:
            features.append(feature)
            columns.append(column if begun is None else np.concatenate((begun.values[:, place], column)))
    goals = [None if each.step is None else each.step.goal for each in instances]
    return Table(
        tuple(features),
        np.column_stack(columns) if columns else np.zeros((len(instances), 0)),
        np.array([each.is_wrong for each in instances], np.bool_),
        _number([each.identity for each in instances]),
        _number(goals),
        # The same candidate in another run is another instance.
        _number([each.identity if cases.unit is Unit.CANDIDATE else each.candidate.row for each in instances]),
        _number([each.candidate.query for each in instances]),
        _number([None if each.step is None else each.step.shape for each in instances]),
    )


def _features_for(cases: Cases, own: Sequence[Feature]) -> Iterator[Feature]:
    """Yield the features of a unit, those that the user declared included."""
    for feature in (*features_of(cases.unit), *(each for each in own if cases.unit in each.of)):
        if not (cases.is_by_itself and feature.of & {Unit.STEP, Unit.CANDIDATE}):
            yield feature


def _number(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return the number of each key among the different ones: int64 [n]."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _read_column(feature: Feature, instances: Sequence[Instance]) -> NDArray[np.float64] | None:
    """Return the values of a feature, or None if one is unknown; those of a step or a candidate are computed once."""
    is_of_step, is_of_candidate = Unit.STEP in feature.of, Unit.CANDIDATE in feature.of
    known: dict[int, float | None] = {}
    values = np.empty(len(instances))
    for row, instance in enumerate(instances):
        key = id(instance.candidate) if is_of_candidate else id(instance.step) if is_of_step else -1
        if key in known:
            value = known[key]
        else:
            found = feature.value(instance)
            value = None if found is None else float(found)
            if key != -1:
                known[key] = value
        if value is None or value != value:
            return None
        values[row] = value
    return values


class Found(NamedTuple):
    """A condition with the instances that it was found among.

    others:     further exact conditions
    is_exact:   whether it holds for every instance that went wrong and for no other one
    is_partial: whether it tells apart the steps that go wrong, and not what goes wrong in them
    is_cut:     whether the search ended before all conditions were tried
    own:        the features that the engine declares
    exceptions: problems for which an experiment has shown that it does not hold
    start:      the instances of the smallest unit with a condition without tests, from which experiments may begin
    is_adopted: whether it is the condition of another cause
    """

    cases: Cases
    table: Table
    condition: Condition
    others: tuple[Condition, ...]
    is_exact: bool
    chance: float
    is_partial: bool = False
    is_cut: bool = False
    own: tuple[Feature, ...] = ()
    exceptions: tuple[str, ...] = ()
    start: "Found | None" = None
    is_adopted: bool = False


def find_condition(stage: str, every: Iterable[Cases], own: tuple[Feature, ...] = ()) -> Found | None:
    """Return the simplest condition of a cause, without tests if none is stated; None without instances that went wrong.

    every: the instances of each unit, the smallest unit first
    own:   further features, which the engine declares

    One of a smaller unit is preferred: what distinguishes steps is at best a consequence of what distinguishes facts.
    """
    best: Found | None = None
    whole: Found | None = None
    first: tuple[Cases, Table] | None = None
    is_open = is_mixed = False
    for cases in every:
        if not any(each.is_wrong for each in cases.instances):
            continue
        table = build_table(cases, own)
        first = first or (cases, table)
        found, has_exact = _find_in(Search(table.features, table.values, table.is_wrong, stage), cases, table)
        if found is not None and stage in OF_WHOLE_STEPS and _is_of_steps(found):
            # It says the same of the steps, in fewer words.
            whole = found
            continue
        if found is not None and (not is_open or (found.is_exact and found.condition.tests)):
            if cases.unit is Unit.STEP and is_mixed and found.condition.tests:
                found = found._replace(is_partial=True)
            best = found if best is None or _rank(found) < _rank(best) else best
        # An exact condition that is not certain must not be replaced by one of a larger unit that is not exact.
        is_open |= has_exact
        is_mixed |= stage not in OF_WHOLE_STEPS and cases.unit is not Unit.STEP and _is_mixed(cases)
    if first is None:
        return None
    start = Found(*first, Condition((), 0.0, 1.0), (), False, 1.0, own=own)
    return (best or whole or start)._replace(own=own, start=start)


def search_in(stage: str, cases: Cases, table: Table) -> Found | None:
    """Return the simplest condition of instances of one unit that chance does not explain."""
    return _find_in(Search(table.features, table.values, table.is_wrong, stage), cases, table, is_whole=True)[0]


def settle(found: Found, tried: Sequence[Instance] = ()) -> Found:
    """Return a condition of which each test excludes two different instances or more, and each part explains as many.

    tried: instances of experiments, which count like those of the run

    Otherwise it is another exact condition, if no experiment was made; or one without these tests, which is not exact.
    Without experiments the goals of a condition of steps must differ in more than their constants: alike derivations take
    alike steps, and are one coincidence.
    """
    table, condition = found.table, found.condition
    if not tried and condition.tests and _chance_of_shapes(table, condition) > MOST_CHANCE:
        return found.start or found._replace(condition=Condition((), 0.0, 1.0), others=(), is_exact=False)
    if not found.is_exact or not condition.tests:
        return found
    kept = _drop_resting(table, condition)
    if kept is condition:
        return found
    if tried:
        cases = found.cases._replace(instances=(*found.cases.instances, *tried))
        whole = build_table(cases, found.own, found.table)
        places = places_in(found.table, whole)
        if all(i in places for i in condition.used):
            moved = condition.moved([places.get(i, -1) for i in range(len(table.features))])
            if _drop_resting(whole, moved) is moved:
                return found
    else:
        for i, other in enumerate(found.others):
            if _drop_resting(table, other) is other:
                return found._replace(condition=other, others=(condition, *found.others[:i], *found.others[i + 1 :]))
    return weaken(found._replace(condition=kept))


def weaken(found: Found) -> Found:
    """Return a condition as one that is not exact; without tests if it holds for too many others, or for too few."""
    table, condition = found.table, found.condition
    inside = condition.holds(table.values)
    # Where everything went wrong in the run, chance was judged with the instances of experiments.
    chance = found.chance if table.is_wrong.all() else chance_for(table, condition)
    chance = chance if condition.tests else 1.0
    if not is_nearly(inside, table.is_wrong) or chance > MOST_CHANCE:
        return found.start or found._replace(condition=Condition((), 0.0, 1.0), others=(), is_exact=False)
    return found._replace(is_exact=False, chance=chance, others=())


def take_part(found: Found, part: Condition, other: Condition) -> Found:
    """Return one of two conditions, without the instances that the other one alone explains."""
    table = found.table
    keeps = part.holds(table.values) | ~other.holds(table.values) | ~table.is_wrong
    some = table.take(keeps)
    cases = found.cases._replace(instances=tuple(compress(found.cases.instances, keeps)))
    return found._replace(cases=cases, table=some, condition=part, others=(), chance=chance_for(some, part))


def is_nearly(inside: NDArray[np.bool_], is_wrong: NDArray[np.bool_]) -> bool:
    """Return whether a condition holds with the least precision and recall."""
    both = (inside & is_wrong).sum()
    return bool(both and both >= LEAST_PRECISION * inside.sum() and both >= LEAST_RECALL * is_wrong.sum())


def places_in(table: Table, other: Table) -> dict[int, int]:
    """Return the place of each feature of a table in another one."""
    names = {feature.name: i for i, feature in enumerate(other.features)}
    return {i: names[feature.name] for i, feature in enumerate(table.features) if feature.name in names}


def _drop_resting(table: Table, condition: Condition) -> Condition:
    """Return a condition without the tests and parts that rest on too few different instances; itself if it has none."""
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
        return Condition((), 0.0, 1.0)
    return parts[0]._replace(either=parts[1] if len(parts) > 1 else None)


def _is_of_steps(found: Found) -> bool:
    """Return whether a condition of parts of steps tests nothing but their steps."""
    used = found.condition.used
    return (
        found.cases.unit is not Unit.STEP and bool(used) and all(Unit.STEP in found.table.features[i].of for i in used)
    )


def _is_mixed(cases: Cases) -> bool:
    """Return whether a step in which something went wrong has something that did not."""
    wrong = {id(each.step) for each in cases.instances if each.is_wrong}
    return any(id(each.step) in wrong for each in cases.instances if not each.is_wrong)


def _rank(found: Found) -> tuple[bool, bool, bool]:
    """Return a key by which the best condition comes first: an exact one, then one that not every instance fulfils."""
    return not found.is_exact or found.is_partial, found.is_partial, not found.condition.tests


def _find_in(search: Search, cases: Cases, table: Table, *, is_whole: bool = False) -> tuple[Found | None, bool]:
    """Return the simplest condition of instances of one unit that chance does not explain, and whether any is exact.

    is_whole: whether instances of experiments are included: what rests on one of them is then the last resort
    """
    wrong = table.is_wrong
    if wrong.all():
        is_enough = table.num_identities(wrong) >= FEWEST_ALWAYS
        every = Found(cases, table, Condition((), 0.0, 1.0), (), True, 0.0)
        return (every if is_enough else None), False
    exact = [each for each in search.find_exact() if not _is_hidden(cases, table, each)]
    is_cut = search.is_cut
    likely = [(each, chance) for each in exact if (chance := chance_for(table, each)) <= MOST_CHANCE]
    if is_whole:
        likely.sort(key=lambda each: _drop_resting(table, each[0]) is not each[0])
    rests = bool(likely) and is_whole and _drop_resting(table, likely[0][0]) is not likely[0][0]
    pairs = search.find_two() if rests or not likely else []
    for two in pairs:
        # A much shorter pair that is not certain may be the true one.
        if two.cost > pairs[0].cost + AS_SHORT:
            break
        if (rests and _drop_resting(table, two) is not two) or _is_hidden(cases, table, two):
            continue
        if (chance := _chance_of_two(table, two)) <= MOST_CHANCE:
            return Found(cases, table, two, (), True, chance, is_cut=is_cut), True
    if likely:
        (condition, chance), *rest = likely
        return Found(cases, table, condition, tuple(each for each, _ in rest), True, chance, is_cut=is_cut), True
    if exact:
        return _name_clauses(cases, table, exact), True
    inexact = search.find_inexact(table.values, wrong)
    if inexact is None or _is_hidden(cases, table, inexact):
        return None, False
    chance = chance_for(table, inexact)
    if not is_nearly(inexact.holds(table.values), wrong) or chance > MOST_CHANCE:
        return None, False
    return Found(cases, table, inexact, (), False, chance, is_cut=is_cut), False


def _chance_of_two(table: Table, two: Condition) -> float:
    """Return the largest chance of three: of both parts together, and of each among what the other one does not explain."""
    chances = [chance_for(table, two._replace(num_tried=math.prod(part.num_tried for part in two.parts)))]
    for own, other in (two.parts, two.parts[::-1]):
        rows = ~(other.holds(table.values) & ~own.holds(table.values))
        some = table.take(rows)
        chances.append(chance_for(some, own))
    return max(chances)


def _is_hidden(cases: Cases, table: Table, condition: Condition) -> bool:
    """Return whether a condition holds mostly for instances that another cause hides: it may be that cause's own."""
    if not cases.hidden or not condition.tests:
        return False
    used = condition.used
    columns = [_read_column(table.features[i], cases.hidden) for i in used]
    if any(column is None for column in columns):
        return True
    values = np.zeros((len(cases.hidden), len(table.features)))
    for i, column in zip(used, columns, strict=True):
        values[:, i] = column
    held = {each.identity for each, is_held in zip(cases.hidden, condition.holds(values), strict=True) if is_held}
    return len(held) > table.num_identities(table.is_wrong & condition.holds(table.values))


def _name_clauses(cases: Cases, table: Table, exact: Sequence[Condition]) -> Found | None:
    """Return the condition that names one clause, where it always goes wrong, and no property of it is certain."""
    names = [i for i, feature in enumerate(table.features) if feature.name == "index"]
    if cases.unit not in (Unit.FACT, Unit.RULE) or not names:
        return None
    values = np.unique(table.values[table.is_wrong, names[0]])
    if len(values) > MOST_NAMED:
        return None
    low, high = float(values[0]), float(values[-1])
    test = Term(names[0], Relation.EQUAL, low) if low == high else Term(names[0], Relation.BETWEEN, low, high)
    condition = Condition((test,), 0.0, exact[0].num_tried)
    inside = condition.holds(table.values)
    num = int(table.is_wrong.sum()), int((~table.is_wrong).sum())
    chance = chance_of(*num, num[0], 0, condition.num_tried)
    if (inside != table.is_wrong).any() or chance > MOST_CHANCE:
        return None
    return Found(cases, table, condition, tuple(exact), True, chance)


def _chance_of_shapes(table: Table, condition: Condition) -> float:
    """Return the chance of a condition of steps among goals of different shapes; 0 unless the shape tells what goes wrong."""
    is_mixed = len(np.intersect1d(table.shapes[table.is_wrong], table.shapes[~table.is_wrong])) > 0
    if is_mixed or table.is_wrong.all() or table.identities_for(condition) is not table.steps:
        return 0.0
    return chance_for(table._replace(steps=table.shapes), condition)


def chance_for(table: Table, condition: Condition) -> float:
    """Return the chance of a condition among different instances; one that is wrong at times counts as wrong."""
    inside, identities = condition.holds(table.values), table.identities_for(condition)
    wrong = np.unique(identities[table.is_wrong])
    right = np.setdiff1d(identities[~table.is_wrong], wrong)
    held = np.unique(identities[inside])
    wrong_inside, right_inside = len(np.intersect1d(wrong, held)), len(np.intersect1d(right, held))
    if not len(right) or (wrong_inside == len(wrong) and right_inside == len(right)):
        # One and the same instance is wrong at times and right at others: the instances themselves are compared.
        wrong_inside, right_inside = int((inside & table.is_wrong).sum()), int((inside & ~table.is_wrong).sum())
        num = int(table.is_wrong.sum()), int((~table.is_wrong).sum())
        return chance_of(*num, wrong_inside, right_inside, condition.num_tried)
    return chance_of(len(wrong), len(right), wrong_inside, right_inside, condition.num_tried)


def show(stage: str, found: Found, experiment: Experiment | None = None) -> ShownCondition:
    """Return a condition as the report has it, with its experiment. One that is refuted is not stated."""
    if not found.is_exact and not found.condition.tests:
        return _show_none(stage, found.cases, found.table)
    if experiment is not None and experiment.verdict == "refuted":
        return _show_refuted(stage, found, experiment)
    cases, table, tests = found.cases, found.table, found.condition.tests
    inside = found.condition.holds(table.values)
    wrong = int((inside & table.is_wrong).sum()), int(table.is_wrong.sum())
    right = int((inside & ~table.is_wrong).sum()), int((~table.is_wrong).sum())
    what = describe_condition(found.condition, table.features, cases)
    counts = describe_counts(cases, wrong, right)
    if not tests:
        size = f"{wrong[1]:,} of {wrong[1]:,}"
        sentence = f"every {cases.unit.value} seen is {cases.wrong}: {size}, so there is nothing to compare with"
        if table.features and cases.unit in (Unit.FACT, Unit.RULE):
            x = table.values[:, 0]
            span = Term(0, Relation.BETWEEN, float(x.min()), float(x.max()))
            sentence += f"; all are {describe_test(span, table.features)}"
    elif found.is_exact:
        open_between = describe_boundary([t for part in found.condition.parts for t in part.tests], table.features)
        claim = f"in this run, the {what} are {cases.wrong}: {counts}"
        if found.is_partial:
            claim = f"no condition found of what goes wrong in a step, but of the steps: {claim}"
        alike = next(_describe_alike(found), "")
        adopted = "another cause has the same condition" if found.is_adopted else ""
        sentence = "; ".join(filter(None, (claim, adopted, open_between, alike and f"on these the same as {alike}")))
    else:
        precision = wrong[0] / max(1, wrong[0] + right[0])
        sentence = f"mostly the {what} are {cases.wrong}: {counts} (precision {precision:.3f}, recall {wrong[0] / wrong[1]:.3f})"
        sentence += "".join(f"; exception: {each}" for each in _list_examples(found, inside)[:1])
    if experiment is not None and experiment.verdict == "confirmed":
        sentence += f"; {describe_experiment(experiment)}"
    return ShownCondition(
        sentence=sentence,
        unit=cases.unit.value,
        tests=tuple(describe_test(test, table.features) for part in found.condition.parts for test in part.tests),
        features=tuple(table.features[i].name for i in _in_order(found.condition)),
        num_conditions=len(found.condition.parts),
        is_exact=found.is_exact and not found.is_partial,
        is_partial=found.is_partial,
        is_cut=found.is_cut,
        num_wrong=wrong[1],
        num_right=right[1],
        wrong_inside=wrong[0],
        right_inside=right[0],
        chance=found.chance,
        num_tried=int(math.prod(part.num_tried for part in found.condition.parts)),
        others=_describe_others(found),
        counter_examples=_list_examples(found, inside),
        values=_count_values(table, tests) if tests else (),
        tried=describe_tried(stage, cases, table.features, table.values, table.is_wrong),
        experiment=experiment,
    )


def _in_order(condition: Condition) -> list[int]:
    """Return the indices of the features that a condition tests, in the order of its tests."""
    tests = [test for part in condition.parts for test in part.tests]
    return list(dict.fromkeys(i for test in tests for i in (test.feature, test.other) if i >= 0))


def _show_refuted(stage: str, found: Found, experiment: Experiment) -> ShownCondition:
    cases, table = found.cases, found.table
    num = int(table.is_wrong.sum()), int((~table.is_wrong).sum())
    what = describe_condition(found.condition, table.features, cases)
    sentence = (
        f"no condition found: {num[0]:,} {cases.unit.value}{'s' * (num[0] != 1)} {cases.wrong}, {num[1]:,} {cases.right};"
        f" an experiment refutes that these are the {what}: {describe_experiment(experiment)}"
    )
    return ShownCondition(
        sentence=sentence,
        unit=cases.unit.value,
        num_wrong=num[0],
        num_right=num[1],
        num_tried=int(found.condition.num_tried),
        tried=describe_tried(stage, cases, table.features, table.values, table.is_wrong),
        experiment=experiment,
    )


def _describe_alike(found: Found) -> Iterator[str]:
    """Yield the first other condition, in words, if it is about as short: nothing in the run decides between the two."""
    used = {test.feature for test in found.condition.tests}
    near = [each for each in found.others if each.cost <= found.condition.cost + AS_SHORT]
    for each in near:
        if not used & {test.feature for test in each.tests}:
            yield describe_tests(each.tests, found.table.features, found.cases)
            return


def _describe_others(found: Found) -> tuple[str, ...]:
    """Return the other exact conditions in words: the shortest one of the same features alone."""
    texts = {frozenset(test.feature for test in found.condition.tests): ""}
    for each in found.others:
        key = frozenset(test.feature for test in each.tests)
        texts.setdefault(key, describe_tests(each.tests, found.table.features, found.cases))
    return tuple(filter(None, texts.values()))[:MOST_OTHERS]


def _show_none(stage: str, cases: Cases, table: Table) -> ShownCondition:
    num_wrong, num_right = int(table.is_wrong.sum()), int((~table.is_wrong).sum())
    search = Search(table.features, table.values, table.is_wrong, stage)
    sizes = (
        f"{num_wrong:,} {cases.unit.value}{'s' * (num_wrong != 1)} {cases.wrong}, {num_right:,} {cases.right},"
        f" {search.num_single:,} conditions tried"
    )
    has_exact = bool(num_right and search.find_exact())
    reason = "too few to rule out chance" if has_exact or not num_right else "none tells them apart"
    return ShownCondition(
        sentence=f"no condition found: {sizes}, {reason}",
        unit=cases.unit.value,
        num_wrong=num_wrong,
        num_right=num_right,
        num_tried=search.num_single,
        tried=describe_tried(stage, cases, table.features, table.values, table.is_wrong),
    )


def _list_examples(found: Found, inside: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return the first problems and instances for which a condition does not hold as stated."""
    table, examples = found.table, list(found.exceptions)
    for row in np.flatnonzero(inside != table.is_wrong)[:MOST_EXAMPLES].tolist():
        instance = found.cases.instances[row]
        word = found.cases.wrong if instance.is_wrong else found.cases.right
        at = f"candidate {instance.candidate.row}" + (f", step {instance.step.number}" if instance.step else "")
        used = found.condition.used
        values = ", ".join(f"{table.features[i].name} {table.values[row, i]:g}" for i in used)
        examples.append(f"{word} at {at}: {values}")
    return tuple(examples[:MOST_EXAMPLES])


def _count_values(table: Table, tests: Sequence[Term]) -> tuple[FeatureValue, ...]:
    """Return how many instances of each class have each value of the first feature, in about `MOST_BARS` bars.

    No bar holds values on both sides of a bound.
    """
    feature = tests[0].feature
    x = table.values[:, feature]
    unique = np.unique(x)
    if len(unique) > MOST_BARS:
        edges = unique[:: -(-len(unique) // MOST_BARS)]
        bounds = [test.value for test in tests if test.feature == feature]
        unique = np.intersect1d(unique, [*edges.tolist(), *bounds])
    rows = np.searchsorted(unique, x, side="right") - 1
    wrong = np.bincount(rows[table.is_wrong], minlength=len(unique)).tolist()
    right = np.bincount(rows[~table.is_wrong], minlength=len(unique)).tolist()
    return tuple(map(FeatureValue, unique.tolist(), wrong, right))
