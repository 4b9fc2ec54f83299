"""Problems: what is one, what they become, and that many in one run are what each is alone."""

from itertools import islice

import numpy as np
import pytest

from kgverify import Limits, Problem, UserError
from kgverify.engines.protocol import Sizes
from kgverify.laws import draw_problems
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Side
from kgverify.program.program import NamedRule
from kgverify.ranking.draw import ALL
from kgverify.runs.run import reference_pipeline
from kgverify.testing.checking.check import prepare_batches
from kgverify.testing.problems.decode import SIZE, decode_problem
from kgverify.testing.problems.merge import group_problems, merge
from kgverify.testing.problems.problem import MAX_SPREAD, PolicySpec, Spread

X, Y = Variable("X"), Variable("Y")
FACT = NamedAtom("p", "a", "b")
RULE = NamedRule(NamedAtom("q", X, Y), (NamedAtom("p", X, Y),))


def draw(count: int, seed: int = 0) -> list[Problem]:
    return list(islice(draw_problems(seed), count))


def test_the_size_counts_facts_rules_and_body_atoms():
    assert Problem(facts=(FACT, FACT), rules=(RULE,), queries=(FACT,), spread=Spread(9, 9, 0)).size == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": ()},
        {"queries": (NamedAtom("p", X, "b"),)},
        {"facts": (NamedAtom("p", X, X),)},
        {"rules": (NamedRule(FACT, ()),)},
        {"num_corruptions": -2},
        {"policy": PolicySpec("longest")},
        {"sizes": Sizes(slots=0)},
        {"spread": Spread(-1, 0, 0)},
        {"spread": Spread(MAX_SPREAD + 1, 0, 0)},
        {"spread": Spread(0, MAX_SPREAD + 1, 0)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_is_no_problem_is_refused(wrong):
    with pytest.raises(UserError, match="fix:"):
        Problem(**{"queries": (FACT,), **wrong})


def test_a_spread_may_have_as_many_symbols_as_sixteen_bits_count():
    spread = Spread(1 << 16, 1 << 16, 1 << 17)
    assert Problem(queries=(FACT,), spread=spread).spread == spread


def test_a_problem_alone_keeps_its_names_and_declares_its_domain():
    problem = Problem(facts=(FACT,), rules=(RULE,), queries=(NamedAtom("q", "a", "c"),), constants=("d",))
    graph = merge([problem]).graph
    assert graph.program.symbols.constants == ("a", "b", "c", "d")
    assert graph.test == problem.queries
    assert graph.argument_domain(0, Side.TAIL).tolist() == [0, 1, 2, 3]


def test_a_spread_pushes_ids_apart_and_is_never_drawn():
    problem = Problem(
        facts=(FACT, NamedAtom("p", "c", "~d")), queries=(FACT,), spread=Spread(300, 5, 1), num_corruptions=ALL
    )
    symbols = merge([problem]).graph.program.symbols
    assert symbols.constant_ids["c"] - symbols.constant_ids["b"] == 301
    assert len(symbols.predicates) == 7
    merged = merge([problem])
    pipeline = merged.with_unranked(reference_pipeline(merged.run))
    drawn = pipeline.draw(merged.run.graph, "test", merged.run.queries, ALL, 0)
    assert {symbols.constants[i] for i in drawn.atom[:, 1:].flatten()} == {"a", "b", "c", "~d"}


def test_a_problem_without_ranked_queries_has_the_unranked_ones_alone():
    problem = Problem(unranked=(NamedAtom("p", X, X), NamedAtom("q", "a", Y)))
    (batch,) = prepare_batches([problem])
    candidates = batch.expected.columns.candidates
    assert candidates.side.tolist() == [Side.NONE, Side.NONE]
    assert not len(batch.expected.rankings.query)


def test_problems_of_different_settings_are_not_merged():
    problems = [Problem(queries=(FACT,)), Problem(queries=(FACT,), limits=Limits(max_depth=3))]
    assert group_problems([*problems, problems[0]]) == [[0, 2], [1]]
    with pytest.raises(UserError, match="several"):
        merge(problems)


def test_a_problem_derives_in_company_what_it_derives_alone():
    drawn = [p for p in draw(300) if p.queries]
    problems = [p for p in drawn if p.num_corruptions in (0, ALL)]
    problems += [Problem(**{**vars(p), "num_corruptions": ALL}) for p in drawn if p.policy.name == "two_tower"]
    assert {p.policy.name for p in problems} == {"shortest", "two_tower"}
    for batch in prepare_batches(problems):
        owner = batch.merged.owner[batch.expected.columns.candidates.query]
        for place, problem in enumerate(batch.merged.problems):
            (alone,) = prepare_batches([problem])
            rows = np.flatnonzero(owner == place)
            own, together = alone.expected.columns.candidates, batch.expected.columns.candidates
            for column in ("side", "num_steps", "outcome", "is_limited"):
                assert np.array_equal(getattr(own, column), getattr(together, column)[rows]), problem
            assert np.allclose(own.log_probability, together.log_probability[rows], rtol=0, atol=1e-9)


def test_the_domains_of_a_merged_graph_are_those_of_its_problems():
    for group in group_problems(problems := draw(60)):
        merged = merge([problems[i] for i in group])
        graph = merged.run.graph
        queries = graph.queries("test")
        for query in np.flatnonzero(merged.is_ranked).tolist():
            owner = int(merged.owner[query])
            for side in (Side.HEAD, Side.TAIL):
                domain = graph.argument_domain(int(queries[query, 0]), side)
                names = {graph.program.symbols.constants[i].removeprefix(f"{owner}:") for i in domain.tolist()}
                assert names == set(merged.problems[owner].domain)


def test_every_string_of_bytes_is_a_problem_and_no_other_length_is():
    for value in range(256):
        decode_problem(bytes([value]) * SIZE)
    assert decode_problem(bytes(SIZE)).size == 0
    with pytest.raises(UserError, match="bytes"):
        decode_problem(b"")


def test_a_seed_gives_the_same_problems_from_any_place_on():
    assert draw(20)[7:] == list(islice(draw_problems(0, 7), 13))
    assert draw(20) != draw(20, seed=1)
