"""The distribution of generated problems: every feature of the list occurs in a small sample."""

from itertools import islice

import pytest
from distribution import measure_distribution
from problem_features import ALL_FEATURES

from kgverify import Problem
from kgverify.laws import draw_problems
from kgverify.program.atoms import NamedAtom
from kgverify.testing.checking.check import prepare_alone
from kgverify.testing.problems.decode import runs_alone


@pytest.mark.exhaustive
def test_every_feature_occurs_in_500_decoded_problems():
    alone = [prepare_alone(0, i, i) for i in range(2048) if runs_alone(i)]
    distribution = measure_distribution(list(islice(draw_problems(0), 500)), alone)
    assert distribution.missing == ()
    table = distribution.render()
    assert table.startswith("628 problems, ")
    assert all(name in table for name in ALL_FEATURES)


def test_the_report_counts_problems_not_occurrences():
    fact = NamedAtom("p", "a", "b")
    distribution = measure_distribution([Problem(facts=(fact, fact), queries=(fact, fact)), Problem(queries=(fact,))])
    assert distribution.problems["a fact twice"] == 1
    assert distribution.problems["a query that is a fact"] == 1
    assert distribution.problems["FAILED"] == 2
    assert "PROVED" in distribution.missing
    assert distribution.sizes == (2, 0)


def test_no_problems_exercise_nothing():
    assert measure_distribution([]).missing == ALL_FEATURES
