"""Parts of a verification against their definitions: recorded ranks, steps taken alone, inferred stages, steps taken again."""

from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from run_engines import countries_run

from kgverify import KnowledgeGraph, Limits, Stage, Verdict
from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import Comparison
from kgverify.comparison.step_view import Names, StepReader
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import find_positives, positions_of
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.limits import DeclaredLimits
from kgverify.program.outcomes import Side
from kgverify.program.program import NamedRule
from kgverify.ranking.draw import ALL
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.ranking.rules import Counts, RankingRule, Ranks, RuleRanker, Ties, give_ranks
from kgverify.runs.retake import describe_left, retake_steps
from kgverify.runs.run import Run, build_trace, reference_pipeline, reference_triples
from kgverify.trace.model.trace import Trace
from kgverify.verification.lockstep import restore_candidates
from kgverify.verification.recorded_ranks import _Recognition, recognise_ranks
from kgverify.verification.replay import Explainer


@pytest.fixture(scope="module")
def trace() -> Trace:
    run = countries_run(num_queries=2, num_corruptions=5)
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    return build_trace(run, pipeline.engine, columns, pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE))


def test_the_rule_of_a_side_without_ranks_is_the_other_sides(trace: Trace):
    for has_ranks in product((False, True), repeat=2):
        pair = [trace if has else replace(trace, rankings=None) for has in has_ranks]
        outcomes = trace.columns.candidates.outcome.copy()
        outcomes[1] = 3 - outcomes[1]
        candidates = trace.columns.candidates._replace(outcome=outcomes)
        pair[1] = replace(pair[1], columns=trace.columns._replace(candidates=candidates))
        comparer = Comparer(*pair)
        found = recognise_ranks(comparer.compare(), comparer)
        assert found is not None
        assert found.rules is not None
        assert (found.rules.expected.is_recorded, found.rules.actual.is_recorded) == has_ranks
        assert found.rules.expected.rule == found.rules.actual.rule


@pytest.mark.parametrize("labelled", [0, 1])
def test_labels_of_either_side_say_more_than_what_the_candidates_show(trace: Trace, labelled: int):
    candidates = trace.columns.candidates
    groups = candidates.query.astype(int) * 4 + candidates.side
    # The last of each group, which nothing but the label makes a true triple.
    last = np.flatnonzero(np.append(np.diff(groups) != 0, True))
    labels = np.zeros(len(groups), np.uint8)
    labels[last] = 1
    truth = _Recognition((trace, trace), [labels if side == labelled else None for side in (0, 1)], 0.0)._truth
    assert truth.how[0] == "as labelled"
    assert truth.atom.tolist() == candidates.atom[last].tolist()


def test_an_unrecorded_rule_is_one_that_explains_the_other_sides_ranks():
    for own in ((1, 0), (0, 1)):
        rules = [("own", each) for each in ("a", "b")]
        recognition = SimpleNamespace(_recorded=[None, object()])
        unexplained = [{}, dict(zip(rules, own, strict=True))]
        best = min(rules, key=dict(zip(rules, own, strict=True)).get)
        assert _Recognition._choose(recognition, unexplained) == (best, best)
        recognition._recorded.reverse()
        assert _Recognition._choose(recognition, unexplained[::-1]) == (best, best)


def test_the_offset_of_a_rank_is_what_was_recorded_beyond_the_rules_rank(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    counts = Counts(np.array([1, 4, 6]), np.full(3, 9), rng.integers(0, 5, 3), rng.integers(0, 3, 3))
    own = give_ranks(counts, Ties.BOUNDS)
    recorded = Ranks(np.array([0, 4, 6]), np.full(3, 9), np.array([9.0, 5.0, 7.0]), np.array([9.0, 8.0, 7.5]))
    monkeypatch.setattr(RuleRanker, "_count", lambda ranker, candidates: counts)
    nothing: Any = None
    assert RuleRanker(RankingRule(), nothing, nothing, recorded, nothing).offsets == {
        4: (5.0 - own.optimistic[1], 8.0 - own.pessimistic[1]),
        6: (7.0 - own.optimistic[2], 7.5 - own.pessimistic[2]),
    }


@pytest.mark.parametrize("tied", range(4))
def test_rankings_with_a_near_tie_need_a_true_triple(tied: int):
    keys = np.array([0, 1, 4, 5])
    candidates = SimpleNamespace(query=keys // 4, side=(keys % 4).astype(np.int8))
    ranks = Ranks(keys, *(np.ones(4) for _ in range(3)))
    comparison = SimpleNamespace(divergences=(), near_ties=(SimpleNamespace(candidate=tied),))
    for known in keys:
        recognition = SimpleNamespace(
            _recorded=[ranks, ranks], _candidates=[candidates], _truth=SimpleNamespace(key=np.array([known]))
        )
        assert _Recognition._find_unlabelled(recognition, comparison) == int(known != keys[tied])


def test_steps_beyond_those_requested_belong_to_the_last_candidate(trace: Trace):
    owner = np.array([3, 3, 8])
    outcomes = trace.columns.candidates.outcome.copy()
    outcomes[0] = 3 - outcomes[0]
    columns = trace.columns._replace(candidates=trace.columns.candidates._replace(outcome=outcomes))
    (divergence,) = Comparer(trace, replace(trace, columns=columns)).compare().divergences
    found = tuple(msgspec.structs.replace(divergence, candidate=each) for each in range(5))
    comparison = Comparison(
        verdict=Verdict.DIVERGE, coverage=Comparer(trace, trace).compare().coverage, divergences=found
    )
    named, views = restore_candidates(comparison, {(each, 0): each for each in range(5)}, owner)
    assert [each.candidate for each in named.divergences] == [3, 3, 8, 8, 8]
    assert set(views) == {(3, 0), (8, 0)}


@pytest.mark.parametrize("has_origins", [False, True])
def test_origins_count_in_a_step_alone_where_both_engines_know_them(trace: Trace, has_origins: bool):
    step = StepReader(trace.columns).read(0)
    other = step._replace(resolvents=tuple(r._replace(origin=r.origin + 1) for r in step.resolvents))
    comparer = SimpleNamespace(
        expected=SimpleNamespace(fields=trace.fields),
        actual=SimpleNamespace(fields=trace.fields),
        has_origins=has_origins,
        has_scores=True,
    )
    explainer = SimpleNamespace(_comparer=comparer, _names=Names(trace), _tolerance=0.0)
    assert Explainer._is_same(explainer, step, step)
    assert Explainer._is_same(explainer, step, other) is not has_origins


def test_a_probe_repeats_a_step_within_both_tolerances(trace: Trace):
    divergence = SimpleNamespace(candidate=0, step=0)
    step = StepReader(trace.columns).read(0)
    explainer = SimpleNamespace(_views={(0, 0): (step, step)}, _modulo=frozenset(), _tolerance=1e-3)
    for apart, is_same in ((0.0, True), (1.5e-3, True), (2.5e-3, False)):
        outputs = step.outputs
        outputs[Stage.SCORE] = tuple(score + apart for score in outputs[Stage.SCORE])
        assert Explainer._repeats(explainer, outputs, divergence, 0) is is_same
    assert not Explainer._repeats(explainer, step.outputs, divergence, 1)


def test_steps_taken_again_have_the_types_of_recorded_ones_and_the_limits_declared(trace: Trace):
    for declared in (DeclaredLimits(), DeclaredLimits(max_resolvents=2), DeclaredLimits(max_depth=3, max_atoms=2)):
        retaken, num_left = retake_steps(trace, ReferenceEngine, declared)
        assert not num_left
        known = {name: value for name, value in msgspec.structs.asdict(declared).items() if value is not None}
        wanted = msgspec.structs.replace(trace.header.limits, **known)
        for name in known:
            assert getattr(retaken.header.limits, name) == getattr(wanted, name)
        assert [each.dtype for each in retaken.columns.candidates] == [each.dtype for each in trace.columns.candidates]


def test_positives_are_the_queries_themselves_and_what_belongs_to_none():
    run = countries_run(num_queries=4, num_corruptions=5)
    limits = msgspec.structs.replace(run.limits, dialect=Dialect(exclusion="positives_only"))
    pipeline = reference_pipeline(replace(run, limits=limits))
    drawn = pipeline.draw_for(run)
    triples = run.triples
    assert sum(find_positives("positives_only", drawn, triples)) == 8
    for query, side in ((drawn.query, drawn.side), (drawn.query + 1, drawn.side), (drawn.query, drawn.side * 0 + 2)):
        found = find_positives("positives_only", drawn._replace(query=query, side=side), triples)
        assert found == [
            int(s) == Side.NONE or (q < len(triples) and triples[q].tolist() == atom)
            for q, s, atom in zip(query.tolist(), side.tolist(), drawn.atom.tolist(), strict=True)
        ]


def test_candidates_are_ranked_only_if_every_log_probability_is_finite(trace: Trace):
    run = countries_run(num_queries=2, num_corruptions=5)
    pipeline, candidates = reference_pipeline(run), trace.columns.candidates
    ranked = pipeline.rank_finite(run, candidates)
    assert ranked is not None
    assert trace.rankings is not None
    assert all(map(np.array_equal, ranked, trace.rankings))
    for unknown in (np.nan, -np.inf):
        for at in (0, -1):
            sums = candidates.log_probability.copy()
            sums[at] = unknown
            assert pipeline.rank_finite(run, candidates._replace(log_probability=sums)) is None


def test_steps_that_are_left_are_counted_in_words():
    assert describe_left(1) == "1 recorded step starts from a goal with a hole or without atoms, and was not judged"
    assert describe_left(2) == "2 recorded steps start from a goal with a hole or without atoms, and were not judged"


def test_a_graph_with_an_empty_split_has_positives():
    run = countries_run(num_queries=1, num_corruptions=1)
    limits = msgspec.structs.replace(run.limits, dialect=Dialect(exclusion="positives_only"))
    without = replace(run, limits=limits, graph=replace(run.graph, valid=()))
    assert reference_triples(without).tolist() == run.triples.tolist()
    assert reference_triples(replace(without, limits=run.limits)) is None


def test_steps_retaken_alone_keep_the_depth_at_which_they_were_recorded(trace: Trace):
    alone = replace(trace, columns=lockstep_columns(trace.columns), rankings=None)
    depth, num_atoms = alone.columns.steps.depth, alone.columns.steps.num_atoms
    assert ((depth > 0) & (num_atoms > 1)).any()
    assert ((depth > 0) & (num_atoms == 1)).any()
    retaken, _ = retake_steps(alone, ReferenceEngine, DeclaredLimits())
    assert retaken.columns.steps.depth.tolist() == depth.tolist()


@pytest.mark.parametrize("max_depth", [2, 3])
def test_a_step_from_goals_visited_counts_as_it_did_in_the_derivation(max_depth: int):
    x, y = Variable("X"), Variable("Y")
    names = [f"p{i}" for i in range(12)]
    rules = tuple(
        NamedRule(NamedAtom(one, x, y), (NamedAtom(other, x, y), *([NamedAtom("q", x, x)] * (number % 5 == 4))))
        for number, (one, other) in enumerate(pairwise(names))
    )
    facts = tuple(NamedAtom(name, "a", "a") for name in (names[-1], "q"))
    graph = KnowledgeGraph("chain", train=facts, test=(NamedAtom(names[0], "a", "b"),), rules=rules)
    run = Run(graph, Limits(max_depth=max_depth, dialect=Dialect(skips_unary=True)), SHORTEST, num_corruptions=ALL)
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    assert columns.candidates.num_steps.max() > 2 * max_depth
    alone = pipeline.engine.step(positions_of(columns))
    assert alone.steps.outcome.tolist() == columns.steps.outcome.tolist()
    assert alone.steps.choice.tolist() == columns.steps.choice.tolist()
    retaken, num_left = retake_steps(
        build_trace(run, pipeline.engine, columns, None), ReferenceEngine, DeclaredLimits()
    )
    assert num_left == 0
    assert retaken.columns.steps.depth.tolist() == columns.steps.depth.tolist()
