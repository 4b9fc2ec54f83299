"""The labels of instances, and the judgement of experiments on them, on steps whose right label is known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kgverify import Limits
from kgverify.conditions.confirm import judge
from kgverify.conditions.experiment import Tried
from kgverify.conditions.features import Feature, Scale
from kgverify.conditions.find import Found, Table, chance_for
from kgverify.conditions.instances import Cases, Fault, Instance, Unit, _shows_all
from kgverify.conditions.search import Condition, Relation, Term
from kgverify.program.outcomes import DifferenceClass, Stage


@pytest.mark.parametrize(("is_exact", "verdict"), [(True, "refuted"), (False, "not testable")])
def test_one_instance_of_twenty_refutes_an_exact_condition_only(is_exact: bool, verdict: str):
    candidate: Any = None
    instances = tuple(Instance(Unit.CANDIDATE, i > 0, i, candidate) for i in range(20))
    cases, table, condition = Cases(Unit.CANDIDATE, "wrong", "right", instances), SimpleNamespace(), SimpleNamespace()
    found = Found(cases, table, condition, (), is_exact, 0.0)
    result = judge(found, Tried(cases, np.ones(20, bool)), lambda instance: f"number {instance.identity}")
    assert (result.verdict, result.num_predicted) == (verdict, 19)
    assert result.pair == (("number 0",) if is_exact else ())


@pytest.mark.parametrize(("score", "is_wrong"), [(1.0, False), (1.2, False), (1.3, True), (np.nan, True)])
def test_a_score_that_is_not_near_is_scored_wrongly(score: float, is_wrong: bool):
    sides = [{(0, 0): SimpleNamespace(score=each)} for each in (1.0, score)]
    expected = SimpleNamespace(goal=((0, 1, 2),))
    step = SimpleNamespace(sides=sides, made={(0, 0)}, expected=expected, number=0, candidate=None)
    cases, _ = Fault(Stage.SCORE, DifferenceClass.NUMBER, 0.25).collect([step])
    assert [each.is_wrong for each in cases.instances] == [is_wrong]


@pytest.mark.parametrize(("num", "shows_all"), [(1, True), (2, False), (3, False)])
def test_a_full_list_may_lack_resolvents(num: int, shows_all: bool):
    listed = SimpleNamespace(dropped_atoms=0, dropped_resolvents=0, resolvents=[SimpleNamespace(kind=0)] * num)
    step = SimpleNamespace(expected=listed, actual=None, run=SimpleNamespace(limits=Limits(max_resolvents=2)))
    assert _shows_all(step) is shows_all


@pytest.mark.parametrize(("first_wrong", "is_certain"), [(0, False), (20, True)])
def test_a_clause_that_always_goes_wrong_is_one_coincidence_in_all_its_steps(first_wrong: int, is_certain: bool):
    clause, step = (each.ravel().astype(np.float64) for each in np.meshgrid(np.arange(6), np.arange(40)))
    features = tuple(
        Feature(name, "", of, Scale.COUNT, "", lambda instance: None)
        for name, of in (("clause", frozenset({Unit.FACT})), ("step", frozenset({Unit.FACT, Unit.STEP})))
    )
    is_wrong = (clause == 5) & (step >= first_wrong)
    rows = np.arange(len(clause))
    table = Table(
        features, np.column_stack((clause, step)), is_wrong, clause.astype(int), step.astype(int), rows, rows, rows
    )
    tests = Term(0, Relation.AT_LEAST, 5.0), Term(1, Relation.AT_LEAST, float(first_wrong))
    assert (chance_for(table, Condition(tests, 0.0, 100.0)) <= 0.01) is is_certain
