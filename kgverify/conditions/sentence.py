"""Conditions in words."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Experiment, TriedTest
from kgverify.conditions.features import Feature, Scale
from kgverify.conditions.instances import Cases, Unit
from kgverify.conditions.search import Condition, Relation, Term, list_separating

MOST_TRIED: Final = 20
"""The tests of single features to list."""

FEWEST_BITS: Final = 7
"""The smallest power of two that is pointed out."""

_OF_STEP: Final = re.compile("with |without |that |whose longest ")
"""The beginnings of the words of steps, which do not follow the noun of a part of a step."""

_COUNTED: Final = re.compile(r"\{\} (?:\w+ )?\w+s\b")
"""A number of things."""

_PLURAL_OF_ONE: Final = re.compile(r"\b(1) ((?:fewer |new |body |significant )?\w+?)(?:(?<=ch)es|s)\b")


def describe_test(test: Term, features: Sequence[Feature]) -> str:
    """Return a test in words that follow the noun of an instance: `with 3 or more atoms`."""
    feature = features[test.feature]
    if feature.scale is Scale.FLAG:
        return feature.phrase if bool(test.value) == (test.relation is Relation.EQUAL) else feature.opposite
    if test.relation is Relation.SAME:
        return f"whose {feature.name} equals the {features[test.other].name}"
    if not test.value and test.relation in feature.zeros:
        return feature.zeros[test.relation]
    if feature.negative and test.value < 0 and test.relation in (Relation.EQUAL, Relation.AT_MOST):
        relation = Relation.AT_LEAST if test.relation is Relation.AT_MOST else Relation.EQUAL
        test, feature = test._replace(value=-test.value, relation=relation), feature._replace(phrase=feature.negative)
    if test.relation is Relation.REMAINDER:
        words = f"{describe_number(test.value)} modulo {describe_number(test.high)}"
        return f"whose {feature.name} is {('even', 'odd')[int(test.value)] if test.high == 2 else words}"
    text = feature.phrase.replace("{}", _describe_value(test, feature))
    is_one = test.relation in (Relation.EQUAL, Relation.AT_MOST)
    return _PLURAL_OF_ONE.sub(r"\1 \2", text) if is_one else text


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
    """Return a number as text, without a fraction if it is whole."""
    return f"{int(value):,}" if value == value and abs(value) < 1 << 62 and value == int(value) else f"{value:.6g}"


def describe_tests(tests: Sequence[Term], features: Sequence[Feature], cases: Cases) -> str:
    """Return a conjunction of tests with the noun of its instances: `facts at position 50 (from 0) or later ...`."""
    of_steps = [Unit.STEP in features[test.feature].of for test in tests]
    is_part = cases.unit in (Unit.FACT, Unit.RULE, Unit.RESOLVENT)
    # Those of the instances themselves come first: `facts at position 3 of steps with a proof`.
    order = sorted(range(len(tests)), key=lambda i: is_part and of_steps[i])
    words = [describe_test(tests[i], features) for i in order]
    if is_part:
        words = [f"of steps {w}" if of_steps[i] and _OF_STEP.match(w) else w for i, w in zip(order, words, strict=True)]
    text = f"{cases.unit.value}s {' and '.join(words)}"
    own = {Unit.RULE: " of a rule ", Unit.CANDIDATE: " of candidates "}.get(cases.unit)
    return text if own is None else text.replace(own, " ")


def describe_condition(condition: Condition, features: Sequence[Feature], cases: Cases) -> str:
    """Return a condition in words, of which one part or the other holds."""
    return ", or the ".join(describe_tests(part.tests, features, cases) for part in condition.parts)


def describe_tried(
    stage: str,
    cases: Cases,
    features: Sequence[Feature],
    values: NDArray[np.float64],
    is_wrong: NDArray[np.bool_],
) -> tuple[TriedTest, ...]:
    """Return the best test of each feature in words, those with the highest F1 score first."""
    best: dict[int, tuple[float, TriedTest]] = {}
    num_wrong = int(is_wrong.sum())
    for test, _ in list_separating(features, values, is_wrong, stage):
        inside = test.holds(values)
        both, num = int((inside & is_wrong).sum()), int(inside.sum())
        score = 2 * both / max(1, num + num_wrong)
        if score > best.get(test.feature, (0.0,))[0]:
            words = describe_tests((test,), features, cases)
            best[test.feature] = score, TriedTest(words, both / max(1, num), both / max(1, num_wrong))
    ordered = sorted(best.values(), key=lambda each: -each[0])
    return tuple(each for _, each in ordered[:MOST_TRIED])


def describe_counts(cases: Cases, wrong: tuple[int, int], right: tuple[int, int]) -> str:
    """Return the counts of a condition: those inside of all that went wrong, and of all that did not."""
    others = f"{right[0]:,} of {right[1]:,} {cases.right}" if right[1] else f"none {cases.right} in the run"
    return f"{wrong[0]:,} of {wrong[1]:,} {cases.wrong}, {others}"


def describe_boundary(tests: Sequence[Term], features: Sequence[Feature]) -> str:
    """Return what the instances leave open of a boundary; empty if they leave nothing open."""
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
        unseen = f"nothing between {describe_number(low)} and {describe_number(high)} was seen"
        parts.append(f'the true bound of "{name}" may be any {bounds}: {unseen}')
    return "; ".join(parts)


def describe_experiment(experiment: Experiment) -> str:
    """Return an experiment in words, with the problems on both sides of the boundary."""
    num = f"{experiment.num_predicted:,} of {experiment.num_tried:,}"
    if experiment.verdict == "refuted":
        return f"{num} constructed instances went as predicted, and not {' or '.join(experiment.pair)}"
    wrong, right = experiment.pair
    return f"confirmed by experiment, {num} as predicted: wrong at {wrong}, and right at {right}"
