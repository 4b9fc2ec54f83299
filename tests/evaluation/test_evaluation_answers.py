"""The ranks of answers: those of the reference on drawn problems, and errors for searches that lose answers."""

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import kgreference
import kgverify as kv
from kgverify.dialects import ReferenceEngine
from kgverify.engines.plain.engine import PlainEngine
from kgverify.engines.policy import SHORTEST
from kgverify.engines.reference.engine import build_reference_dialect
from kgverify.engines.reference.ranking import ReferenceDraw
from kgverify.evaluation.answers import rank_run, score_answers
from kgverify.laws import draw_problems
from kgverify.program.atoms import parse_atoms
from kgverify.program.limits import VALUES
from kgverify.program.program import parse_rules
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.run import reference_triples
from kgverify.step.clauses import Clauses
from kgverify.testing.problems.merge import merge
from kgverify.trace.model.columns import CandidateSet

KEPT = ("prune", "revisit", "max_atoms", "max_resolvents")


def draw_dialect(rng):
    size = rng.choice((1, 2, 5, 20))
    switches = {
        "search": rng.choice((f"beam({size})", f"all({size})", f"sample({size}, {size})")),
        "aggregate": rng.choice(("max", "sum", "noisy_or")),
        "filters": rng.choice((KEPT, KEPT, KEPT[1:])),
    }
    return kv.Dialect(**switches, **{name: rng.choice(values) for name, values in VALUES.items() if rng.random() < 0.3})


def answer_by_reference(run, program, query):
    limits = run.limits
    searched = kgreference.search(
        program,
        kgreference.Limits(limits.max_depth, limits.max_atoms, limits.max_resolvents, limits.exclude_query),
        kgreference.Shortest(),
        kgreference.Atom(*query),
        build_reference_dialect(limits.dialect),
    )
    return kgreference.score_answers(searched)


@pytest.mark.parametrize("num", [50, pytest.param(5000, marks=pytest.mark.exhaustive)])
def test_ranks_and_scores_of_answers_are_those_of_the_reference(num):
    num_reached = num_several = num_tied = 0
    for index in range(num):
        problem = next(draw_problems(8, index, draw_dialect(random.Random(f"answers:{index}"))))
        run = replace(merge([problem]).run, policy=SHORTEST)
        given = run.graph.program, run.limits, run.policy
        program = ReferenceEngine(*given).program
        draw = ReferenceDraw(run.graph, run.split, -1, run.seed)
        expected, searches = [], {}
        for query, triple in enumerate(run.triples[: len(run.queries)].tolist()):
            for side in (0, 1):
                asked = tuple([-1 if i == 1 + side else term for i, term in enumerate(triple)])
                scores = searches.setdefault(asked, None) or answer_by_reference(run, program, asked)
                searches[asked] = scores
                entity, *others = [atom[1 + side] for atom in draw.draw(query, side)]
                ranks = kgreference.rank_answers(scores, entity, others, RANK_TOLERANCE)
                expected.append((query, side, ranks.optimistic, ranks.pessimistic))
                num_reached += entity in scores
                num_several += len(scores) > 1
                num_tied += ranks.optimistic < ranks.pessimistic
        engine = PlainEngine(*given, triples=reference_triples(run))
        found = rank_run(run, engine).rankings
        columns = found.query, found.side, found.optimistic, found.pessimistic
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected, index
        atoms = np.array([*searches], np.int32).reshape(-1, 3)
        numbers = np.zeros(len(atoms), np.int32)
        proved = engine.prove(CandidateSet(numbers, numbers.astype(np.int8), atoms))
        clauses = Clauses(run.graph.program, exclude_query=run.limits.exclude_query, dialect=run.limits.dialect)
        for own, scores in zip(score_answers(proved, run.limits, clauses), searches.values(), strict=True):
            assert own == pytest.approx(scores, rel=1e-9, abs=1e-9)
    assert min(num_reached, num_several, num_tied) > num // 5


def rank(graph, engine="reference", search="beam(8)", filters=KEPT, **switches):
    dialect = kv.Dialect(search=search, filters=filters, **switches)
    return kv.rank_answers(graph, engine, limits=kv.Limits(dialect=dialect))


def make_graph(rules):
    facts = parse_atoms("q(a,a) r(a,b) r(a,c) t(d,e)")
    return kv.KnowledgeGraph("small", train=facts, test=parse_atoms("p(a,c)"), rules=tuple(parse_rules(rules)))


def read_tail(ranked):
    (row,) = np.flatnonzero(ranked.rankings.side == 1)
    return ranked.rankings.num_ranked[row], ranked.rankings.optimistic[row], ranked.rankings.pessimistic[row]


def test_a_proof_that_leaves_the_variable_free_reaches_every_entity():
    ranked = rank(make_graph("p(X,Y) q(X,X)"))
    assert read_tail(ranked) == (5, 1, 5)


def test_entities_that_no_proof_reaches_come_last_and_tie():
    assert read_tail(rank(make_graph("p(X,Y) r(X,Y)"))) == (5, 1, 2)
    assert read_tail(rank(make_graph("p(X,Y) r(X,Y)"), search="all(1)")) == (5, 2, 5)


def test_the_answers_of_countries_are_ranked_alike_by_two_engines():
    limits = kv.Limits(dialect=kv.Dialect(search="beam(16)", filters=KEPT, aggregate="noisy_or"))
    reference, plain = (
        kv.rank_answers("countries", engine, queries=3, limits=limits)
        for engine in ("reference", kv.Evaluator(mode="plain"))
    )
    assert reference.metrics == plain.metrics
    assert reference.metrics["tail.optimistic.hits_at_1"] == 1.0


@pytest.mark.parametrize(
    "switches",
    [{"filters": (*KEPT, "close")}, {"filters": ("duplicates", *KEPT)}, {"merge": "max"}, {"search": "greedy"}],
)
def test_a_search_that_loses_answers_is_refused_with_one_that_does_not(switches):
    with pytest.raises(kv.UserError, match="keep one of several answers") as error:
        rank(make_graph("p(X,Y) r(X,Y)"), **switches)
    assert str(kv.Dialect(**{"search": "beam(8)", "filters": KEPT} | switches)) in str(error.value)
    limits = eval(error.value.fix.removeprefix("give limits="), {"kv": kv})
    assert (
        kv.rank_answers(make_graph("p(X,Y) r(X,Y)"), "reference", limits=limits).metrics["tail.realistic.hits_at_3"]
        == 1
    )


def test_an_engine_that_does_not_know_its_clauses_is_refused():
    class Nameless(PlainEngine):
        def __init__(self, program, limits, policy):
            super().__init__(program, limits, policy)
            self.info = msgspec.structs.replace(self.info, unknown=("resolvents.origin",))

    with pytest.raises(kv.UserError, match=r"answers need resolvents\.origin, unknown"):
        rank(make_graph("p(X,Y) r(X,Y)"), Nameless)


def test_a_clause_that_does_not_resolve_its_goal_is_an_error():
    class Wrong(PlainEngine):
        def __init__(self, program, limits, policy):
            super().__init__(program, limits, policy)

        def prove(self, candidates, *further):
            columns = super().prove(candidates, *further)
            wrong = np.zeros_like(columns.resolvents.origin)
            return columns._replace(resolvents=columns.resolvents._replace(origin=wrong))

    with pytest.raises(kv.UserError, match=r"clause .* does not resolve"):
        rank(make_graph("p(X,Y) r(X,Y)"), Wrong)
