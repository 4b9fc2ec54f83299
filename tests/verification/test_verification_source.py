"""Each cause names the engine's own code of its stage, with its file and line, if that is known."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from problem_text import graph_of

import kgverify as kv
from kgverify.prover.faults.step_faults import cap_facts

GRAPH = graph_of("p(a, b); p(b, c); p(c, d); p(a, d); q(X, Z) <- p(X, Y), p(Y, Z); ! q(a, c)", "letters")


class DropsFacts(kv.StagedEngine):
    def resolve(self, goal, excluded):
        found = [each for each in self.clauses_for(goal, excluded) if each.body]
        return [(each, [*each.body, *goal[1:]]) for each in found]


class ForgetsNames(DropsFacts):
    """Inherits the function of its stage."""


def drop_facts(clauses):
    return [each for each in clauses if each.body]


class Adapts(DropsFacts):
    made_of = drop_facts


@kv.engine_of
def fails(goal, clauses):
    return []


class Decides(kv.OutcomeEngine):
    def decide(self, query):
        return False


@pytest.mark.parametrize(
    ("engine", "function"),
    [
        (DropsFacts, DropsFacts.resolve),
        (ForgetsNames, DropsFacts.resolve),
        (Adapts, drop_facts),
        (fails, fails.made_of),
        (Decides, Decides.decide),
    ],
)
def test_a_cause_names_the_function_that_the_author_wrote(engine: Any, function: Callable[..., Any]):
    report = kv.verify(GRAPH, engine, queries=1, corruptions=2, equality=kv.Equality(determinism=False))
    source = report.causes[0].source
    lines, line = inspect.getsourcelines(function)
    assert source is not None
    assert (source.file.rpartition("/")[2], source.line, source.name) == (
        "test_verification_source.py",
        line,
        function.__qualname__,
    )
    assert source.text[-1].strip() == lines[-1].strip()
    assert f"code: {source.file}:{line}, {function.__qualname__}" in str(report)


def test_a_cause_names_the_planted_function_of_a_stage():
    engine = kv.Evaluator(mode="eager", device="cpu", faults="fact-cap")
    equality = kv.Equality(determinism=False)
    report = kv.verify("countries", engine, queries=1, corruptions=2, equality=equality)
    assert report.causes[0].source.name == cap_facts.__name__
