"""The strength of a sample is that of the hypergeometric distribution, with the defect where it is hardest to see."""

import itertools
import math

import pytest

from kgverify.evaluation.judge import judge_sample
from kgverify.report.evaluation import Strength


def find_chance(strata: list[tuple[int, int]], num: int) -> float:
    """The least chance to see one of `num` defective members, over all ways to spread them."""
    ways = itertools.product(*(range(members + 1) for members, _ in strata))
    missed = [
        math.prod(
            math.comb(members - bad, drawn) / math.comb(members, drawn)
            for (members, drawn), bad in zip(strata, way, strict=True)
        )
        for way in ways
        if sum(way) == num
    ]
    return 1 - max(missed)


@pytest.mark.parametrize(
    "strata", [[(40, 9)], [(30, 30)], [(20, 5), (15, 14)], [(12, 0), (9, 9)], [(1, 1), (30, 3)], [(5, 5), (0, 0)]]
)
def test_chance_and_share_are_those_of_the_hardest_spread(strata: list[tuple[int, int]]):
    members = sum(each for each, _ in strata)
    found = judge_sample(strata)
    assert found.chance == pytest.approx(find_chance(strata, math.ceil(members / 100)), abs=1e-9)
    enough = [num for num in range(1, members + 1) if find_chance(strata, num) >= 0.99 - 1e-12]
    assert found.share == pytest.approx(enough[0] / members)


def test_459_of_very_many_see_a_defect_in_one_of_a_hundred():
    assert judge_sample([(10**9, 459)]).chance == pytest.approx(0.99, abs=1e-3)
    assert judge_sample([(10**9, 459)]).share == pytest.approx(0.01, abs=1e-4)


def test_nothing_is_a_defect_of_nothing():
    assert judge_sample([]) == Strength(1.0, 0.0)
    assert judge_sample([(100, 0)]) == Strength(0.0, 1.0)
