"""Engines with a fixed vocabulary: faults that depend on sizes shrink to a few clauses, and refusals are counted and quoted."""

from dataclasses import replace
from functools import lru_cache

import pytest
import sized_engines
from problem_text import problem_of
from sized_engines import FAULTY, PREDICATES, Named, Table, make_graph

import kgverify as kv
from kgverify import UserError, Verdict, Vocabulary
from kgverify.conformance import NotConforming, check_engine
from kgverify.laws import render_reproducer
from kgverify.testing.checking.failure import Signature
from kgverify.testing.reproducers.text_format import parse_reproducer

SIGNATURE = Signature("match_facts", "", "missing")
DEFAULT = ("PredicateBits", "RuleBits")
"""The faults that are tried whenever the tests run, one of each way in which an engine is as large as its graph."""
graph_of_size = lru_cache(make_graph)


def shrink_fault(name: str) -> tuple[kv.ShrunkRun, kv.KnowledgeGraph]:
    """Return the divergence of an engine, shrunk."""
    graph = graph_of_size(FAULTY[getattr(sized_engines, name)])
    queries = kv.Queries(24, corruptions=1)
    report = kv.verify(graph, f"sized_engines:{name}", queries=queries, equality=kv.Equality(determinism=False))
    assert report.verdict is Verdict.DIVERGE
    return kv.shrink(report, graph=graph), graph


@pytest.mark.parametrize(
    "name",
    [pytest.param(each.__name__, marks=[] if each.__name__ in DEFAULT else pytest.mark.exhaustive) for each in FAULTY],
)
def test_a_fault_that_depends_on_sizes_shrinks_to_a_few_clauses(name):
    shrunk, graph = shrink_fault(name)
    problem = shrunk.problem
    assert len(problem.facts) + len(problem.rules) <= 4
    assert shrunk.shrunk.is_finished
    again = kv.replay(parse_reproducer(render_reproducer(shrunk.reproducer)))
    assert again.is_same
    assert shrunk.reproducer.signature == again.failure.signature
    elsewhere = replace(shrunk, signature=shrunk.signature._replace(stage="match_facts"))
    for each in (shrunk, elsewhere):
        is_other = f"match_facts in the run, {again.failure.signature.stage} here" in str(each)
        assert is_other == (each.signature.stage != again.failure.signature.stage)
    if "unused" in str(problem.vocabulary):
        # With one symbol fewer, the fault is gone.
        assert f"needs      {problem.vocabulary}" in str(shrunk)
        untried = replace(shrunk, shrunk=replace(shrunk.shrunk, needs_vocabulary=False))
        assert f"has        {problem.vocabulary}" in str(untried)
        assert len(problem.vocabulary) <= sum(map(len, (PREDICATES, graph.program.symbols.constants)))
    else:
        assert isinstance(getattr(sized_engines, name), type(Named))
    if shrunk.shrunk.refusals:
        num = f"refused {len(shrunk.shrunk.refusals):,} of {shrunk.shrunk.num_judged:,}: "
        assert num in str(shrunk)


class Declared(Named):
    """Knows the names of one graph, and declares them."""

    num_constants = 60
    support = replace(
        Table.support,
        vocabulary=Vocabulary(tuple(PREDICATES), tuple(f"e{i}" for i in range(60)), is_closed=True),
    )


class Forgetful(Declared):
    """Finds no fact of the last predicate."""

    def find(self, p, a, b):
        return [] if p == len(PREDICATES) - 1 else super().find(p, a, b)


class Undeclared(Named):
    """Knows the names of one graph, and does not declare them."""

    num_constants = 60


class Particular(Table):
    """Supports rules of one or two atoms, and declares it."""

    support = replace(Table.support, max_body_atoms=2)

    def number(self, symbols):
        super().number(symbols)
        if not all(self.support.allows(rule) for rule in self.program.named_rules):
            raise NotImplementedError("a rule of another form")


def test_generated_problems_have_the_names_and_rules_that_an_engine_declares():
    used = set()

    class Watching(Declared):
        def __init__(self, program, limits, policy):
            super().__init__(program, limits, policy)
            used.update(fact.predicate for fact in program.named_facts)

    found = check_engine(Watching, examples=40, laws=(), minimum={})
    assert (found.verdict, found.num_skipped) == (Verdict.AGREE, found.refusals.get("the policy two_tower", 0))
    assert {PREDICATES[0], PREDICATES[-1]} < used
    every = check_engine(Particular, examples=40, laws=(), minimum={})
    assert (every.num_skipped, every.num_problems) == (
        every.refusals.get("the policy two_tower", 0),
        40 - every.num_skipped,
    )


def test_an_engine_that_refuses_every_problem_is_inconclusive_with_advice():
    found = check_engine(Undeclared, examples=8, laws=())
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "nothing was checked, refused 8 of 8: unknown name" in str(found)
    assert "declare its names and rules as `support = kgverify.Support(...)`, or give its graph" in str(found)
    result = kv.fuzz("test_testing_sizes:Undeclared", examples=8)
    assert (result.verdict, result.divergences) == (Verdict.INCONCLUSIVE, [])
    assert "refused 8 of 8: unknown name" in str(result)
    assert "every problem; declare its names" in str(result)


@pytest.mark.deep
def test_the_names_of_a_graph_are_those_that_an_engine_knows():
    graph = make_graph(60)
    found = check_engine(Undeclared, graph=graph, examples=10, laws=(), minimum={})
    assert (found.verdict, found.num_skipped) == (Verdict.AGREE, found.refusals.get("the policy two_tower", 0))
    kv.assert_equivalent(Undeclared, graph, queries=2, minimum={})
    with pytest.raises(NotConforming, match="match_facts"):
        kv.assert_equivalent(Forgetful, graph, queries=2, minimum={})


@pytest.mark.parametrize(("where", "is_refusal"), [("number", True), ("find", False)])
def test_a_key_error_is_a_refusal_only_while_the_engine_is_made(where, is_refusal):
    def fail(self, *arguments):
        raise KeyError("p")

    failing = type("Failing", (Table,), {where: fail})
    found = check_engine(failing, problems=[problem_of("p(a, b); ? p(a, X)")], laws=())
    assert bool(found.num_skipped) == is_refusal
    assert (found.verdict is Verdict.INCONCLUSIVE) == is_refusal


def test_a_key_error_for_something_else_is_a_crash():
    def fail(self, symbols):
        raise KeyError("weights")

    failing = type("Failing", (Table,), {"number": fail})
    with pytest.raises(UserError, match="making the engine failed"):
        check_engine(failing, problems=[problem_of("p(a, b); ? p(a, X)")], laws=())


def test_a_reproducer_names_the_graph_that_has_its_symbols(tmp_path):
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "train.txt").write_text("a\tp\tb\nb\tq\tc\n", encoding="utf-8")
    ids = Vocabulary.of(kv.load_graph(folder))
    problem = problem_of("q(b, c); ? q(b, X)", vocabulary=ids)
    assert (len(ids), ids.symbols.predicates) == (5, ("p", "q"))
    text = render_reproducer(kv.Reproducer(problem=problem, signature=SIGNATURE))
    assert parse_reproducer(text).problem == problem
    assert len(text) < 1000
    with pytest.raises(UserError, match="was read from a URL"):
        parse_reproducer(text.replace(str(folder), "s3://bucket/graph"))
    (folder / "train.txt").write_text("b\tq\tc\na\tp\tb\n", encoding="utf-8")
    with pytest.raises(UserError, match="has other symbols than before"):
        parse_reproducer(text.replace(str(folder), f"{folder}/"))
