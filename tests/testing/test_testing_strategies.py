"""The strategies: bounded, broad, and each drawn problem judged without an error."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, assume, find, given, settings
from hypothesis import strategies as st

import kgreference
import kgverify as kv
from kgverify import PolicySpec, Problem, Sizes, Vocabulary, strategies

quick = settings(max_examples=30, database=None, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def structured_problems(draw):
    """Draw whole problems piece by piece: any limits, names and layouts."""
    program = draw(strategies.programs())
    constants = program.symbols.constants
    derived = draw(st.lists(strategies.derivations(program), max_size=1))
    ranked = draw(st.lists(strategies.queries(program, ground=True), max_size=1))
    unranked = draw(st.lists(strategies.queries(program), min_size=not (derived or ranked), max_size=2))
    network = st.builds(
        PolicySpec, st.just("two_tower"), st.integers(0, 9), st.just(8), st.sampled_from((2, 8)), st.integers(0, 2)
    )
    # Some steps exceed a window, and some problems a pool; unused symbols push ids past 8 bits.
    return Problem(
        facts=(*program.named_facts, *(fact for _, proof in derived for fact in proof)),
        rules=program.named_rules,
        queries=(*(query for query, _ in derived), *ranked),
        unranked=tuple(unranked),
        constants=draw(st.just(()) | st.lists(st.sampled_from(constants), max_size=3, unique=True).map(tuple)),
        limits=draw(strategies.limits()),
        policy=draw(st.just(PolicySpec()) | network),
        num_corruptions=draw(st.sampled_from((0, 1, 2, -1) if len(constants) <= 10 else (0, 1, 2))),
        seed=draw(st.sampled_from((0, 1, 2**64 - 1))),
        sizes=draw(
            st.builds(
                Sizes,
                slots=st.integers(1, 6),
                atoms=st.integers(0, 2),
                resolvents=st.integers(0, 3),
                match_window=st.sampled_from((3, 8, 16, 128)),
                score_window=st.sampled_from((1, 4, 16, 128)),
                pool=st.sampled_from((2, 8, 32)),
            )
        ),
        vocabulary=draw(
            st.just(Vocabulary())
            | st.builds(Vocabulary, st.sampled_from(((), (1,), (256,))), st.sampled_from(((1,), (254,), (256,))))
        ),
    )


@pytest.mark.deep
@given(structured_problems())
@settings(quick, max_examples=20)
def test_the_evaluator_agrees_on_structured_problems(problem):
    kv.assert_agrees("compiled", problem, lockstep=False)


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


def named(atom):
    """Return an atom as the reference names it."""
    return (atom.predicate, *(term if isinstance(term, str) else kgreference.Variable(term.name) for term in atom[1:]))


@given(strategies.programs().flatmap(lambda p: st.tuples(st.just(p), strategies.derivations(p))))
@quick
def test_a_derivation_is_one(drawn):
    program, (query, proof) = drawn
    assume(len(program.symbols.constants) <= 10)
    rules = [(named(rule.clause_head), [named(atom) for atom in rule.body]) for rule in program.named_rules]
    whole = kgreference.Program.from_names(map(named, (*program.named_facts, *proof)), rules, [named(query)])
    assert whole.encode(named(query)) in kgreference.least_model(whole)


@pytest.mark.deep
def test_a_cap_on_facts_is_within_reach():
    def is_bulk(block):
        return len(set(block)) > 50

    assert is_bulk(find(strategies.symbols().flatmap(strategies.facts), is_bulk, settings=quick))


def test_decoded_problems_shrink():
    ruled = find(strategies.problems(), lambda problem: problem.rules, settings=settings(quick, max_examples=100))
    assert ruled.size <= 6


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("import kgverify, kgverify.cli.app, kgverify.laws, sys; print('hypothesis' in sys.modules)", "False"),
        (
            "import sys; sys.modules['hypothesis'] = None\n"
            "from kgverify.errors import UserError\n"
            "try:\n    import kgverify.strategies\n"
            "except UserError as error:\n    print(error)",
            "pip install 'kgverify[fuzz]'",
        ),
    ],
)
def test_nothing_else_loads_hypothesis_and_without_it_the_error_says_how_to_install_it(code, output):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output in done.stdout
