"""Searches of the compiled evaluator, against the plain engine."""

import random

import numpy as np
import pytest
import torch

import kgverify as kv
from kgverify.dialects import Dialect
from kgverify.engines.beams import read_beams
from kgverify.engines.plain.engine import PlainEngine
from kgverify.laws import draw_problems
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.search import GoalScores, Screen
from kgverify.prover.state import Layout
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run, build_trace, load_policy
from kgverify.testing.problems.merge import merge

SIZES = (1, 2, 3, 5, 8, 20)


def draw_dialect(rng: random.Random) -> Dialect:
    """Draw a search that the compiled evaluator supports."""
    return Dialect(
        search=f"{rng.choice(('beam', 'beam', 'all'))}({rng.choice(SIZES)})",
        merge=rng.choice(("none", "max", "sum", "sum")),
        aggregate=rng.choice(("max", "sum", "noisy_or")),
    )


@pytest.mark.parametrize("num", [12, pytest.param(3_000, marks=pytest.mark.exhaustive)])
def test_tensors_and_the_plain_engine_search_alike(num: int):
    num_merged = num_cut = num_split = 0
    for index in range(num):
        rng = random.Random(f"tensors:{index}")
        problem = next(draw_problems(4, index, draw_dialect(rng)))
        merged = merge([problem])
        run = merged.run
        candidates = merged.with_unranked(merged.expected).draw_for(run)
        evaluator = kv.Evaluator(mode="eager", device="cpu", slots=rng.choice((1, 4, 64)))
        engine = evaluator(run.graph.program, run.limits, run.policy)
        plain = PlainEngine(run.graph.program, run.limits, run.policy)
        expected, actual = plain.prove(candidates), engine.prove(candidates)
        # The comparison follows near-ties: the two engines add exponentials in another order.
        report = kv.compare(build_trace(run, plain, expected, None), build_trace(run, engine, actual, None))
        assert not report.divergences, f"problem {index}: {report.divergences[0]}"
        ends = engine.evaluate(candidates).results
        np.testing.assert_array_equal(ends.outcome, actual.candidates.outcome)
        np.testing.assert_array_equal(ends.is_limited, actual.candidates.is_limited)
        np.testing.assert_allclose(ends.log_probability, actual.candidates.log_probability, rtol=1e-9, atol=1e-9)
        left, right = (each.take_beams(*read_beams(expected)) for each in (plain, engine))
        np.testing.assert_array_equal(left.paths.place, right.paths.place)
        np.testing.assert_array_equal(left.paths.parent, right.paths.parent)
        for first, second in zip(left.resolvents, right.resolvents, strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-9, atol=1e-9)
        num_merged += bool((expected.paths.child < -1).any())
        num_cut += bool((expected.paths.child == -1).any())
        num_split += len(expected.steps.depth) > engine.layout.slots
    assert min(num_merged, num_cut, num_split) > num // 50


class RoughScores:
    """Scores of which the difference of two is wrong by up to a margin."""

    def __init__(self, exact: GoalScores, margin: float) -> None:
        self.exact, self.margin = exact, margin

    def __call__(self, *arguments: torch.Tensor) -> torch.Tensor:
        scores = self.exact(*arguments)
        return scores + (torch.rand_like(scores) - 0.5) * self.margin


@pytest.mark.parametrize("margin", [1e-6, 0.3, 2.0])
def test_a_screen_by_rough_scores_changes_no_ending(margin: float):
    graph, limits = kv.load_graph("countries"), kv.Limits(dialect=Dialect(search="beam(3)"))
    run = Run(graph, limits, load_policy("two_tower", graph, limits, 0), num_queries=1, num_corruptions=2)
    candidates = draw_candidates(graph, run.split, run.queries, run.num_corruptions, run.seed)
    engine = kv.Evaluator(mode="eager", device="cpu")(graph.program, limits, run.policy)
    expected = engine.evaluate(candidates).results
    searcher = engine._searcher
    searcher._screen = Screen(RoughScores(searcher._scores, margin), margin)
    for left, right in zip(expected, engine.evaluate(candidates).results, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("mode", "dialect"),
    [
        ("eager", Dialect(search="sample(4, 0)")),
        ("eager", Dialect(search="beam(4)", skips_unary=True)),
        ("default", Dialect(search="beam(4)")),
        ("native", Dialect(search="beam(4)")),
    ],
)
def test_a_mode_refuses_a_search_that_it_does_not_support(mode: str, dialect: Dialect):
    graph, limits = kv.load_graph("countries"), kv.Limits(dialect=dialect)
    with pytest.raises(kv.UserError, match=r"dialect|follows a single derivation"):
        kv.Evaluator(mode=mode)(graph.program, limits, load_policy("shortest", graph, limits, 0))


@pytest.mark.deep
def test_levels_that_take_several_ticks_keep_the_resolvents_of_each():
    limits = kv.Limits(max_depth=3, max_resolvents=6, dialect=Dialect(search="beam(6)", aggregate="sum"))
    graph = kv.load_graph("random:3")
    run = Run(graph, limits, load_policy("two_tower", graph, limits, 0), num_queries=2, num_corruptions=2)
    candidates = draw_candidates(graph, run.split, run.queries, run.num_corruptions, run.seed)
    plain = PlainEngine(graph.program, limits, run.policy)
    # Six paths with up to six resolvents each do not fit into a window of eight.
    layout = Layout(slots=16, atoms=6, resolvents=6, match_window=16, score_window=8, pool=64)
    engine = CompiledEngine(graph.program, limits, run.policy, layout=layout, mode="fused", device="cpu")
    expected, actual = plain.prove(candidates), engine.prove(candidates)
    report = kv.compare(build_trace(run, plain, expected, None), build_trace(run, engine, actual, None))
    assert not report.divergences, report.divergences[0]
    assert report.coverage.steps > 30
    left, right = (each.take_beams(*read_beams(expected)) for each in (plain, engine))
    for name, one, other in zip(left.resolvents._fields, left.resolvents, right.resolvents, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=name)
