"""Conditions in words, as reports show them."""

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from kgverify.comparison.result import Condition as ShownCondition
from kgverify.comparison.result import Experiment, FeatureValue, TriedTest
from kgverify.conditions.features import Feature, Scale
from kgverify.conditions.find import AS_SHORT, Found, Table
from kgverify.conditions.instances import TIED, Cases, Unit
from kgverify.conditions.search import MOST_CHANCE, Condition, Relation, Search, Term, chance_of, f1, list_separating

MOST_TRIED: Final = 20
MOST_OTHERS: Final = 5
MOST_EXAMPLES: Final = 3
MOST_BARS: Final = 60
"""The most tests of single features, other conditions, counter-examples, and values of a feature to list."""

FEWEST_BITS: Final = 7
"""The exponent of the smallest power of two that is pointed out."""

_OF_STEP: Final = re.compile("with |without |that |whose longest ")
"""The beginnings of phrases about steps that cannot directly follow the noun of a part of a step."""

_OF_OWN_UNIT: Final = {
    Unit.RULE: ((" of a rule ", " "), (" of a clause ", " "), (" of no rule with ", " without ")),
    Unit.CANDIDATE: ((" of candidates ", " "),),
}
"""Words that repeat the noun of a unit, and what stands for them after it."""

_OF_TIES: Final = frozenset(("gap of the scores", "resolvents of the highest score"))
"""The features whose tests say that scores tie."""

_COUNTED: Final = re.compile(r"\{\} (?:\w+ )?(?:\w+s|children)\b")
"""A count of things in a phrase."""

_PLURAL_OF_ONE: Final = re.compile(r"\b(1) ((?:\w+ )??\w+?)(?:(?<=ch)es|s|(?<=ild)ren)\b")


def describe_test(test: Term, features: Sequence[Feature]) -> str:
    """Describe a test in words that follow the noun of an instance: `with 3 or more atoms`."""
    feature = features[test.feature]
    if feature.scale is Scale.FLAG:
        return feature.phrase if bool(test.value) == (test.relation is Relation.EQUAL) else feature.opposite
    if test.relation is Relation.SAME:
        left, right = (_as_number(each.name) for each in (feature, features[test.other]))
        return f"for which the {left} equals the {right}"
    if test.relation is Relation.OTHER and test.value == -1 and feature.negative and "{}" not in feature.negative:
        # A value of -1 stands for "none" here.
        test = test._replace(relation=Relation.AT_LEAST, value=0.0)
    if not test.value and test.relation in feature.zeros:
        return feature.zeros[test.relation]
    if feature.negative and test.value < 0 and test.relation is not Relation.BETWEEN:
        relation = {Relation.AT_MOST: Relation.AT_LEAST, Relation.AT_LEAST: Relation.AT_MOST}.get(
            test.relation, test.relation
        )
        test, feature = test._replace(value=-test.value, relation=relation), feature._replace(phrase=feature.negative)
    if test.relation is Relation.REMAINDER:
        words = f"{describe_number(test.value)} modulo {describe_number(test.high)}"
        words = ("even", "odd")[int(test.value)] if test.high == 2 else words
        if feature.every:
            return feature.every.format(describe_number(test.high), describe_number(test.value))
        name = _as_number(feature.name)
        return f"whose {name} is {words}" if name == feature.name else f"for which the {name} is {words}"
    text = feature.phrase.replace("{}", _describe_value(test, feature))
    is_one = test.relation in (Relation.EQUAL, Relation.AT_MOST, Relation.OTHER)
    return _PLURAL_OF_ONE.sub(r"\1 \2", text) if is_one else text


def _as_number(name: str) -> str:
    """Return the name of a feature after "the": one that counts things is their number."""
    counted = f"number of {name}" if name.partition(" ")[0].endswith("s") else name
    return counted.replace(" its ", " their ")


def _describe_value(test: Term, feature: Feature) -> str:
    is_ordinal = feature.phrase.startswith("at ")
    low, high = describe_number(test.value), describe_number(test.high)
    return {
        Relation.AT_LEAST: f"{low} or {'later' if is_ordinal else 'more'}",
        Relation.AT_MOST: f"at most {low}"
        if _COUNTED.search(feature.phrase)
        else f"{low} or {'earlier' if is_ordinal else 'less'}",
        Relation.EQUAL: low,
        Relation.OTHER: f"other than {low}",
        Relation.BETWEEN: f"{low} to {high}",
    }[test.relation]


def describe_number(value: float) -> str:
    """Render a number as text, without a fraction if it is whole."""
    return f"{int(value):,}" if value == value and abs(value) < 1 << 62 and value == int(value) else f"{value:.6g}"


def describe_tests(tests: Sequence[Term], features: Sequence[Feature], cases: Cases) -> str:
    """Describe a conjunction of tests with the noun of its instances: `facts at position 50 (from 0) or later ...`."""
    of_steps = [Unit.STEP in features[test.feature].of for test in tests]
    is_part = cases.unit in (Unit.FACT, Unit.RULE, Unit.RESOLVENT)
    # Tests of the instances themselves come first: `facts at position 3 of steps with a proof`.
    order = sorted(range(len(tests)), key=lambda i: is_part and of_steps[i])
    words = [describe_test(tests[i], features) for i in order]
    if is_part:
        words = [f"of steps {w}" if of_steps[i] and _OF_STEP.match(w) else w for i, w in zip(order, words, strict=True)]
    says_scope = cases.scope == TIED and not _OF_TIES.isdisjoint(features[test.feature].name for test in tests)
    text = f"{cases.unit.value}s {'' if says_scope else cases.scope}{' and '.join(words)}"
    for repeated, own in _OF_OWN_UNIT.get(cases.unit, ()):
        text = text.replace(repeated, own)
    return text


def describe_condition(condition: Condition, features: Sequence[Feature], cases: Cases) -> str:
    """Describe a condition in words, with its parts joined by "or"."""
    return ", or the ".join(describe_tests(part.tests, features, cases) for part in condition.parts)


def _describe_tried(cases: Cases, table: Table) -> tuple[TriedTest, ...]:
    """Describe the best test of each feature, the tests with the highest F1 score first."""
    best: dict[int, tuple[float, TriedTest]] = {}
    for test in list_separating(table.features, table.values, table.is_wrong):
        inside = test.holds(table.values)
        score = f1(inside, table.is_wrong)
        if score > best.get(test.feature, (0.0,))[0]:
            both, num, num_wrong = (int(x.sum()) for x in (inside & table.is_wrong, inside, table.is_wrong))
            words = describe_tests((test,), table.features, cases)
            best[test.feature] = score, TriedTest(words, both / max(1, num), both / max(1, num_wrong))
    ordered = sorted(best.values(), key=lambda each: -each[0])
    return tuple(each for _, each in ordered[:MOST_TRIED])


def describe_counts(cases: Cases, wrong: tuple[int, int], right: tuple[int, int]) -> str:
    """Describe for how many of the instances that went wrong a condition holds, and for how many of those that did not."""
    others = f"and {right[0]:,} of the {right[1]:,} {cases.right}" if right[1] else f"none is {cases.right} in the run"
    return f"{wrong[0]:,} of the {wrong[1]:,} {cases.wrong}, {others}"


def describe_boundary(tests: Sequence[Term], features: Sequence[Feature]) -> str:
    """Describe the values that the instances leave open for a boundary; return an empty text if they leave nothing open."""
    parts = []
    for test in tests:
        if test.beyond is None or features[test.feature].scale is not Scale.COUNT or abs(test.value - test.beyond) <= 1:
            continue
        low, high = sorted((test.value, test.beyond))
        name = features[test.feature].name
        first, last = (low, high - 1) if test.relation is Relation.AT_MOST else (low + 1, high)
        power = max(int(last), 1).bit_length() - 1
        such_as = f", such as 2^{power} = {1 << power:,}" if power >= FEWEST_BITS and first <= 1 << power else ""
        bounds = f"from {describe_number(first)} to {describe_number(last)}{such_as}"
        among = " among what meets the other tests" if len(tests) > 1 else ""
        unseen = f"nothing between {describe_number(low)} and {describe_number(high)} was seen{among}"
        parts.append(f'the true bound of "{name}" may be any {bounds}: {unseen}')
    return "; ".join(parts)


def describe_experiment(experiment: Experiment) -> str:
    """Describe an experiment, with the problems on both sides of the boundary."""
    num = f"{experiment.num_predicted:,} of {experiment.num_tried:,}"
    if experiment.verdict == "refuted":
        return f"{num} constructed instances went as predicted, but not {' or '.join(experiment.pair)}"
    wrong, right = experiment.pair
    return f"confirmed by experiment, {num} as predicted: wrong at {wrong}, and right at {right}"


def show(stage: str, found: Found, experiment: Experiment | None = None) -> ShownCondition:
    """Return a condition as the report shows it, with its experiment. A refuted condition is not stated."""
    cases, table, condition = found.cases, found.table, found.condition
    inside = condition.holds(table.values)
    num_wrong, num_right = table.count_classes(np.ones_like(inside))
    unit = f"{cases.unit.value}{'s' * (num_wrong != 1)}"
    shown = ShownCondition(
        sentence=f"no condition found: {num_wrong:,} {unit} {cases.wrong}, {num_right:,} {cases.right}"
        + " (a sample)" * cases.is_sample,
        unit=cases.unit.value,
        is_sample=cases.is_sample,
        num_wrong=num_wrong,
        num_right=num_right,
        num_tried=int(condition.num_tried),
        tried=_describe_tried(cases, table),
        experiment=experiment,
    )
    if not found.is_exact and not condition.tests:
        search = Search(table.features, table.values, table.is_wrong, stage)
        exact = search.find_exact()
        reason = "too few to rule out chance" if exact or not num_right else "none tells them apart"
        if exact and chance_of(num_wrong, num_right, num_wrong, 0, exact[0].num_tried) <= MOST_CHANCE:
            fits = describe_tests(exact[0].tests, table.features, cases)
            reason = f"they are of too few kinds to rule out chance; what fits so far: {fits}"
        sentence = f"{shown.sentence}, {search.num_single:,} conditions tried, {reason}"
        return replace(shown, sentence=sentence, num_tried=search.num_single, experiment=None)
    if experiment is not None and experiment.verdict == "refuted":
        what = describe_condition(condition, table.features, cases).rstrip(",")
        refuted = f"an experiment refutes that these are the {what}: {describe_experiment(experiment)}"
        return replace(shown, sentence=f"{shown.sentence}; {refuted}")
    sentence = _state(found)
    if experiment is not None and condition.tests:
        is_confirmed = experiment.verdict == "confirmed"
        tested = describe_experiment(experiment) if is_confirmed else f"not tested by experiment: {experiment.reason}"
        sentence += f"; {tested}"
    wrong_inside, right_inside = table.count_classes(inside)
    values = [_count_values(table, condition.tests, feature) for feature in condition.used]
    return replace(
        shown,
        sentence=sentence,
        tests=tuple(describe_test(test, table.features) for test in condition.terms),
        features=tuple(table.features[i].name for i in condition.used),
        num_conditions=len(condition.parts),
        is_exact=found.is_exact and not found.is_partial,
        is_partial=found.is_partial,
        is_cut=found.is_cut,
        wrong_inside=wrong_inside,
        right_inside=right_inside,
        chance=found.chance,
        num_tried=int(math.prod(part.num_tried for part in condition.parts)),
        others=_describe_others(found),
        counter_examples=_list_examples(found),
        values=values[0] if values else (),
        more_values=tuple(values[1:]),
    )


def _state(found: Found) -> str:
    """Return the sentence of a condition, without its experiment."""
    cases, table, condition = found.cases, found.table, found.condition
    inside = condition.holds(table.values)
    (num_wrong, num_right), (wrong, right) = table.count_classes(np.ones_like(inside)), table.count_classes(inside)
    if not condition.tests:
        size = f"{num_wrong:,} of {num_wrong:,}"
        sentence = f"every {cases.unit.value} seen is {cases.wrong}: {size}, so there is nothing to compare with"
        known = np.flatnonzero(~np.isnan(table.values[0])).tolist()
        if known and cases.unit in (Unit.FACT, Unit.RULE):
            x = table.values[:, known[0]]
            span = Term(known[0], Relation.BETWEEN, float(x.min()), float(x.max()))
            sentence += f"; all are {describe_test(span, table.features)}"
        return sentence
    counts = describe_counts(cases, (wrong, num_wrong), (right, num_right))
    claim = f"the {describe_condition(condition, table.features, cases)} are {cases.wrong}: {counts}"
    if not found.is_exact:
        shares = f"in the run, precision {wrong / max(1, wrong + right):.3f}, recall {wrong / num_wrong:.3f}"
        where = " in an experiment" * bool(found.exceptions)
        exceptions = (f"; exception{where}: {each}" for each in _list_examples(found)[:1])
        return f"mostly {claim} ({shares}){''.join(exceptions)}"
    alike, only = _describe_alike(found), _describe_only(found)
    parts = (
        "no condition found of what goes wrong in a step, but of the steps: " * found.is_partial
        + f"in {'a sample of ' * cases.is_sample}this run, {claim}",
        describe_boundary(condition.terms, table.features),
        f"on these the same as {alike}" if alike else "",
        f"all of them {only}, so another property of it may be the reason" if only else "",
    )
    return "; ".join(filter(None, parts))


def _describe_alike(found: Found) -> str:
    """Describe the first other condition that is about as short or names a symbol: nothing seen decides between the two."""
    used, features = {test.feature for test in found.condition.tests}, found.table.features
    for each in found.others:
        names_symbol = len(each.tests) == 1 and features[each.tests[0].feature].scale is Scale.ID
        is_short = each.cost <= found.condition.cost + AS_SHORT or names_symbol
        if is_short and not used & {test.feature for test in each.tests}:
            return describe_tests(each.tests, found.table.features, found.cases)
    return ""


def _describe_only(found: Found) -> str:
    """Describe what all instances that went wrong have in common, and not all others: a clause, a selected atom or a query."""
    groups = [(each.is_wrong, each.groups) for each in found.cases.instances]
    for words in groups[0][1]:
        wrong = {group[words] for is_wrong, group in groups if is_wrong}
        if len(wrong) == 1 and any(group[words] not in wrong for _, group in groups):
            return words
    return ""


def _describe_others(found: Found) -> tuple[str, ...]:
    """Describe the other exact conditions: only the shortest one for each set of features."""
    texts = {frozenset(test.feature for test in found.condition.tests): ""}
    for each in found.others:
        key = frozenset(test.feature for test in each.tests)
        texts.setdefault(key, describe_tests(each.tests, found.table.features, found.cases))
    return tuple(filter(None, texts.values()))[:MOST_OTHERS]


def _list_examples(found: Found) -> tuple[str, ...]:
    """Describe the first problems and instances for which a condition does not hold as stated."""
    table, examples = found.table, list(found.exceptions)
    for row in np.flatnonzero(found.condition.holds(table.values) != table.is_wrong)[:MOST_EXAMPLES].tolist():
        instance = found.cases.instances[row]
        word = found.cases.wrong if instance.is_wrong else found.cases.right
        values = ", ".join(f"{table.features[i].name} {table.values[row, i]:g}" for i in sorted(found.condition.used))
        examples.append(f"{word} at {instance.location}: {values}")
    return tuple(examples[:MOST_EXAMPLES])


def _count_values(table: Table, tests: Sequence[Term], feature: int) -> tuple[FeatureValue, ...]:
    """Count the instances of each class by the value of a feature, in about `MOST_BARS` bars.

    No bar contains values on both sides of a bound.
    """
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
