"""The strategies: bounded, broad, valid for readers and writers, and each drawn problem judged without an error."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from render_graphs import render_rules, render_triples

from kgreference.model import least_model
from kgverify import Problem, strategies
from kgverify.engines.protocol import Sizes
from kgverify.engines.reference.engine import build_reference_program
from kgverify.graphs.rules import parse_rules
from kgverify.graphs.triples import parse_triples
from kgverify.program.program import Program
from kgverify.ranking.draw import ALL
from kgverify.testing.checking.check import Checker
from kgverify.testing.problems.decode import BULK
from kgverify.testing.problems.problem import PolicySpec, Spread

once = settings(max_examples=100, database=None, deadline=None, suppress_health_check=list(HealthCheck))
quick = settings(max_examples=40, database=None, deadline=None, suppress_health_check=list(HealthCheck))


@given(strategies.symbols().flatmap(strategies.facts))
@quick
def test_facts_survive_being_written_and_read(facts):
    assert parse_triples(render_triples(facts).encode(), "facts").atoms == facts


@given(strategies.symbols().flatmap(strategies.rules))
@quick
def test_rules_survive_being_written_and_read(rules):
    def shape(rule):
        return [(atom.predicate, *(t if isinstance(t, str) else None for t in atom[1:])) for atom in atoms_of(rule)]

    read = parse_rules(render_rules(rules), "rules").rules
    assert list(map(shape, read)) == list(map(shape, rules))


def atoms_of(rule):
    return (rule.clause_head, *rule.body)


POLICIES = st.just(PolicySpec()) | st.builds(
    PolicySpec,
    st.just("two_tower"),
    st.integers(0, 9),
    st.sampled_from((1, 8)),
    st.sampled_from((2, 8)),
    st.integers(0, 2),
)
# Some steps exceed a window, and some problems a pool.
LAYOUTS = st.builds(
    Sizes,
    slots=st.integers(1, 6),
    atoms=st.integers(0, 2),
    resolvents=st.integers(0, 3),
    match_window=st.sampled_from((*range(3, 17), 128)),
    score_window=st.sampled_from((*range(1, 17), 128)),
    pool=st.sampled_from((*range(1, 9), 32)),
)
# Unused symbols push ids past 8 bits, after the first facts.
SPREADS = st.just(Spread()) | st.builds(
    Spread, st.sampled_from((1, 254, 255, 256)), st.sampled_from((0, 1, 256)), st.integers(0, 3)
)


@st.composite
def structured_problems(draw):
    """Draw whole problems piece by piece: any limits, names and layouts."""
    program = draw(strategies.programs())
    constants = program.symbols.constants
    derived = draw(st.lists(strategies.derivations(program), max_size=1))
    ranked = draw(st.lists(strategies.queries(program, ground=True), max_size=1))
    unranked = draw(st.lists(strategies.queries(program), min_size=not (derived or ranked), max_size=2))
    return Problem(
        facts=(*program.named_facts, *(fact for _, proof in derived for fact in proof)),
        rules=program.named_rules,
        queries=(*(query for query, _ in derived), *ranked),
        unranked=tuple(unranked),
        constants=draw(st.just(()) | st.lists(st.sampled_from(constants), max_size=3, unique=True).map(tuple)),
        limits=draw(strategies.limits()),
        policy=draw(POLICIES),
        num_corruptions=draw(st.sampled_from((0, 1, 2, 5, ALL) if len(constants) <= BULK else (0, 1, 2))),
        seed=draw(st.sampled_from((0, 1, 2**64 - 1))),
        sizes=draw(LAYOUTS),
        spread=draw(SPREADS),
    )


@given(structured_problems())
@quick
@pytest.mark.deep
def test_the_evaluator_agrees_on_structured_problems(problem):
    assert Checker().judge(problem) is None


@given(st.data())
@quick
def test_candidates_are_of_their_program(data):
    program = data.draw(strategies.programs(data.draw(strategies.symbols())).filter(lambda p: p.symbols.predicates))
    candidates = data.draw(strategies.candidate_sets(program))
    assert len(candidates.query) == len(candidates.atom) <= 12
    assert (candidates.atom[:, 0] < len(program.symbols.predicates)).all()
    assert (candidates.atom[:, 1:] < len(program.symbols.constants)).all()


@given(strategies.graphs())
@quick
def test_graphs_have_test_triples_and_programs(graph):
    assert 1 <= len(graph.test) <= 6
    assert len(graph.queries("test")) == len(graph.test)


@given(strategies.programs().flatmap(lambda p: st.tuples(st.just(p), strategies.derivations(p))))
@quick
def test_a_derivation_is_one(drawn):
    program, (query, proof) = drawn
    assume(len(program.symbols.constants) <= 10)
    whole = Program.from_names((*program.named_facts, *proof), program.named_rules, (query,))
    assert tuple(whole.symbols.encode(query)) in set(map(tuple, least_model(build_reference_program(whole))))


@pytest.mark.deep
def test_a_cap_on_facts_is_within_reach():
    def is_bulk(block):
        return len(set(block)) > BULK

    assert is_bulk(find(strategies.symbols().flatmap(strategies.facts), is_bulk, settings=once))


@pytest.mark.exhaustive
def test_structured_problems_shrink_to_the_trivial_one():
    problems = structured_problems()
    trivial = find(problems, lambda problem: True, settings=once)
    assert (trivial.size, trivial.limits.max_depth, trivial.sizes.slots) == (0, 1, 1)


def test_decoded_problems_shrink():
    ruled = find(strategies.problems(), lambda problem: problem.rules, settings=once)
    assert ruled.size <= 6


def test_nothing_else_loads_hypothesis():
    code = "import kgverify, kgverify.cli.app, kgverify.testing.checking.check, sys; print('hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_hypothesis_the_error_says_how_to_install_it():
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from kgverify.errors import UserError\n"
        "try:\n    import kgverify.strategies\n"
        "except UserError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kgverify[fuzz]'" in done.stdout


def test_policies_and_layouts_stay_in_bounds():
    with pytest.raises(NoSuchExample):
        find(
            LAYOUTS,
            lambda sizes: sizes.slots > 6 or min(sizes.match_window, sizes.pool) < 1,
            settings=once,
        )
    with pytest.raises(NoSuchExample):
        find(POLICIES, lambda spec: np.prod(spec[2:4]) > 64, settings=once)
