"""The search for conditions, on numbers whose condition is known, and its judgement of chance."""

from itertools import combinations

import numpy as np
import pytest

from kgverify.conditions.features import Feature, Scale
from kgverify.conditions.search import Relation, Search, Term, chance_of
from kgverify.conditions.sentence import describe_boundary

pytestmark = pytest.mark.usefixtures("experiments")


def feature(name: str, scale: Scale = Scale.COUNT, unit: str = "") -> Feature:
    return Feature(name, unit, frozenset(), scale, "with {}", lambda instance: None)


def numbers(num: int = 400, seed: int = 0) -> np.ndarray:
    """Five columns: two counts to 100, one count to 8, and two flags."""
    random = np.random.default_rng(seed)
    return np.column_stack([random.integers(0, high, num) for high in (100, 100, 8, 2, 2)]).astype(np.float64)


FEATURES = (
    feature("a", unit="things"),
    feature("b", unit="things"),
    feature("c"),
    feature("d", Scale.FLAG),
    feature("e", Scale.FLAG),
)


def find(values: np.ndarray, is_wrong: np.ndarray) -> list[tuple[Term, ...]]:
    return [each.tests for each in Search(FEATURES, values, is_wrong, "limit").find_exact()]


@pytest.mark.parametrize(
    ("label", "relation", "value", "high"),
    [
        (lambda v: v[:, 0] >= 50, Relation.AT_LEAST, 50, 0),
        (lambda v: v[:, 1] <= 7, Relation.AT_MOST, 7, 0),
        (lambda v: v[:, 2] == 3, Relation.EQUAL, 3, 0),
        (lambda v: v[:, 2] != 3, Relation.OTHER, 3, 0),
        (lambda v: v[:, 3] == 1, Relation.EQUAL, 1, 0),
        (lambda v: (v[:, 0] >= 20) & (v[:, 0] <= 40), Relation.BETWEEN, 20, 40),
        (lambda v: v[:, 0] % 2 == 1, Relation.REMAINDER, 1, 2),
        (lambda v: v[:, 0] % 16 == 15, Relation.REMAINDER, 15, 16),
    ],
)
def test_a_single_test_is_found_exactly(label, relation, value, high):
    values = numbers(3_000)
    (best,), *_ = find(values, label(values))
    assert (best.relation, best.value, best.high) == (relation, value, high)


def test_equal_features_are_found():
    values = numbers(5_000)
    (best,), *_ = find(values, values[:, 0] == values[:, 1])
    assert (best.relation, best.feature, best.other) == (Relation.SAME, 0, 1)


@pytest.mark.parametrize("num", [2, 3])
def test_conjunctions_are_found_and_hold_for_exactly_what_went_wrong(num: int):
    values = numbers(3_000)
    is_wrong = (values[:, 0] >= 30) & (values[:, 3] == 1)
    if num == 3:
        is_wrong &= values[:, 2] <= 4
    best = find(values, is_wrong)[0]
    assert len(best) == num
    holds = np.all([test.holds(values) for test in best], axis=0)
    assert (holds == is_wrong).all()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda v: v[:, 0] >= 90, lambda v: v[:, 1] % 7 == 5),
        (lambda v: (v[:, 0] >= 30) & (v[:, 0] <= 60), lambda v: (v[:, 1] >= 50) & (v[:, 3] == 1)),
        (lambda v: (v[:, 2] >= 5) & (v[:, 3] == 1), lambda v: (v[:, 0] >= 80) & (v[:, 4] == 0)),
    ],
    ids=["single tests", "an interval and two tests", "two tests each"],
)
def test_two_conditions_are_found_where_one_or_the_other_holds(first, second):
    values = numbers(3_000)
    parts = first(values), second(values)
    search = Search(FEATURES, values, parts[0] | parts[1], "limit")
    best = search.find_two()[0]
    assert (best.holds(values) == (parts[0] | parts[1])).all()
    held = {part.holds(values).tobytes() for part in best.parts}
    assert held == {part.tobytes() for part in parts}


def test_a_bound_names_the_nearest_value_on_its_other_side():
    values = numbers()
    values = values[(values[:, 0] < 44) | (values[:, 0] > 52)]
    (best,), *_ = find(values, values[:, 0] >= 50)
    assert (best.value, best.beyond) == (53, 43)


@pytest.mark.parametrize(("beyond", "named"), [(200, "2^8 = 256"), (255, "2^8 = 256"), (256, ""), (300, "")])
def test_a_power_of_two_is_pointed_out_only_if_the_bound_may_be_it(beyond: int, named: str):
    text = describe_boundary([Term(0, Relation.AT_LEAST, 400, beyond=beyond)], FEATURES)
    assert text.partition("such as ")[2].partition(":")[0] == named


def test_instances_that_are_alike_and_differ_in_class_have_no_exact_condition():
    values = np.repeat(numbers(20), 2, axis=0)
    assert find(values, np.arange(len(values)) % 2 == 0) == []


@pytest.mark.parametrize("seed", range(6))
def test_what_acts_at_random_has_no_exact_condition_that_chance_does_not_explain(seed: int):
    values = numbers(600, seed)
    is_wrong = np.random.default_rng(seed + 1_000).random(600) < 0.01
    if not is_wrong.any():
        return
    search = Search(FEATURES, values, is_wrong, "limit")
    for found in search.find_exact():
        assert chance_of(int(is_wrong.sum()), int((~is_wrong).sum()), int(is_wrong.sum()), 0, found.num_tried) > 0.01


@pytest.mark.parametrize(("num_wrong", "num_right", "inside"), [(2, 5, 3), (3, 4, 3), (1, 6, 2), (3, 3, 4)])
def test_the_closed_form_of_chance_is_the_share_of_all_permutations(num_wrong: int, num_right: int, inside: int):
    num = num_wrong + num_right
    choices = [sum(i < inside for i in chosen) for chosen in combinations(range(num), num_wrong)]
    for least in range(max(0, num_wrong - (num - inside)), min(num_wrong, inside) + 1):
        share = sum(hits >= least for hits in choices) / len(choices)
        assert chance_of(num_wrong, num_right, least, inside - least, 1) == pytest.approx(min(1.0, share))


def test_the_condition_with_the_best_f1_is_found_where_none_is_exact():
    values = numbers(2_000)
    is_wrong = values[:, 0] >= 50
    is_wrong[:3] = ~is_wrong[:3]
    search = Search(FEATURES, values, is_wrong, "limit")
    assert search.find_exact() == []
    found = search.find_inexact(values, is_wrong)
    assert found is not None
    assert [(test.feature, test.relation, test.value) for test in found.tests] == [(0, Relation.AT_LEAST, 50)]
