"""The error that the evaluator declares of its scores bounds the one that it makes."""

import pytest
import torch

from kgverify.engines.compiled.precision import estimate_score_error
from kgverify.engines.policy import SHORTEST
from kgverify.fuzz.check import judge
from kgverify.fuzz.problem import PolicySpec, Problem
from kgverify.harness.run import load_policy
from kgverify.kg.load import load_graph
from kgverify.logic.atoms import NamedAtom, Variable
from kgverify.logic.limits import Limits
from kgverify.logic.program import NamedRule

X, Y, Z = map(Variable, "XYZ")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_a_norm_over_units_that_are_nearly_equal_makes_no_divergence(seed: int, hidden: int):
    problem = Problem(
        rules=(NamedRule(NamedAtom("p", X, Y), (NamedAtom("p", Z, Y),)),),
        queries=(NamedAtom("p", "a", "a"),),
        policy=PolicySpec("two_tower", seed, 2, hidden, 1),
    )
    assert judge(problem) is None


def test_of_usual_weights_the_error_is_small():
    cpu = torch.device("cpu")
    policy = load_policy("trained", load_graph("countries"), Limits(), 0)
    assert 0 < estimate_score_error(policy, 6, cpu) < 1e-3
    assert estimate_score_error(SHORTEST, 6, cpu) == 0
