"""The check of an evaluation: what is wrong in draw, model, parts, ranks or metrics is found, and named by a candidate."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from run_engines import TieBreakingEngine, countries_run, needs_compiler, needs_data
from saved_parts import UNCHECKED

import kgreference
import kgverify as kv
from kgverify.dialects import ReferenceEngine
from kgverify.engines.reference.engine import build_reference_program
from kgverify.evaluation import closure, judge, rank_only
from kgverify.evaluation.closure import check_model
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.judge import choose_single, hash_results, judge_sample, report_evaluation
from kgverify.evaluation.parts import PartResult, join_results
from kgverify.laws import draw_problems
from kgverify.program.program import Program
from kgverify.prover.program.least_model import LeastModel
from kgverify.ranking import draw
from kgverify.runs.run import Pipeline, Run, reference_pipeline

RUN: dict[str, Any] = {"queries": 4, "corruptions": 9}
NATIVE = kv.Evaluator(mode="native")


# Engines.


class Wrong(ReferenceEngine):
    """An engine with another outcome for one atom."""

    atom: tuple[int, ...] = ()

    def prove(self, *given: Any) -> kv.Columns:
        columns = super().prove(*given)
        candidates = columns.candidates
        row = len(candidates.outcome) // 2
        Wrong.atom = Wrong.atom or tuple(candidates.atom[row].tolist())
        is_it = (candidates.atom == Wrong.atom).all(1)
        outcome = np.where(is_it, (candidates.outcome + 1) % 4, candidates.outcome).astype(np.int8)
        return columns._replace(candidates=candidates._replace(outcome=outcome))


@pytest.mark.parametrize("most", [1, 4096])
def test_a_wrong_candidate_is_named_with_both_endings(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_MOST_REPEATED", most)
    report = kv.evaluate("countries", Wrong, **RUN)
    assert not report.is_sound
    assert report.check is not None
    symbols = kv.load_graph("countries").program.symbols
    predicate, first, second = Wrong.atom
    name = f"{symbols.predicates[predicate]}({symbols.constants[first]}, {symbols.constants[second]})"
    of_candidates = [each for each in report.check.differences if each.expected.endswith("nats")]
    assert of_candidates
    assert {(each.atom, each.expected != each.actual) for each in of_candidates} == {(name, True)}


@needs_compiler
@pytest.mark.parametrize("ranks_alone", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_a_fault_of_the_evaluator_is_found(ranks_alone: bool) -> None:
    engine = kv.Evaluator(mode="eager", device="cpu", faults="fact-cap", slots=64)
    options = kv.EvaluationOptions(rank_only=ranks_alone, check=60)
    report = kv.evaluate("countries", engine, queries=4, corruptions=9, options=options)
    assert not report.is_sound
    assert report.check is not None
    lost = [each for each in report.check.differences if each.expected.startswith("proved")]
    assert lost
    assert all(each.actual.startswith("failed") for each in lost)
    assert report.check.num_equal < report.check.num_checked
    assert report.check.rankings.num_equal < report.check.rankings.num_checked


@pytest.mark.parametrize(("declared", "bound", "is_sound"), [(1e-6, 1e-6, True), (0, 1e-6, False), (1e-6, 0, False)])
def test_a_derivation_that_differs_within_the_accepted_error_is_a_near_tie(
    monkeypatch: pytest.MonkeyPatch, declared: float, bound: float, is_sound: bool
) -> None:
    """Scores of `shortest` are exact, so that its bound is 0 but in this test."""

    def make(program: kv.Program, limits: kv.Limits, policy: kv.Policy) -> kv.Engine:
        run: Any = SimpleNamespace(graph=SimpleNamespace(program=program), limits=limits)
        return TieBreakingEngine(run, 1e-6, declared=declared)

    if bound:
        monkeypatch.setattr("kgverify.trace.model.score_tolerance.bound_score_error", lambda policy, precision: bound)
    options = kv.EvaluationOptions(check=400)
    report = kv.evaluate("countries", make, queries=6, corruptions=40, options=options)
    assert report.check is not None
    assert report.is_sound == is_sound
    assert (report.check.num_near_ties > 0) == is_sound


@needs_compiler
@pytest.mark.parametrize("ranks_alone", [False, True])
@pytest.mark.parametrize("corruptions", [9, "all"])
def test_a_small_evaluation_is_checked_whole(corruptions: int | str, ranks_alone: bool) -> None:
    options = kv.EvaluationOptions(rank_only=ranks_alone)
    report = kv.evaluate("countries", NATIVE, queries=4, corruptions=corruptions, options=options)
    check = report.check
    assert check is not None
    assert report.is_sound
    assert (check.rankings.num_checked, check.rankings.num_equal, check.rankings.num_near_ties) == (8, 8, 0)
    assert (check.rankings.strength.chance, check.rankings.strength.share) == (1.0, 1 / 8)
    assert (check.model is not None) == ranks_alone
    if check.model is not None:
        assert (check.model.num_missing, check.model.num_unsupported, check.model.is_complete) == (0, 0, True)


@pytest.mark.deep
def test_queries_beyond_255_are_checked() -> None:
    rng = np.random.default_rng(3)

    def triples(num: int) -> tuple[kv.NamedAtom, ...]:
        return tuple(kv.NamedAtom("p", f"c{a}", f"c{b}") for a, b in rng.integers(0, 40, (num, 2)))

    graph = kv.KnowledgeGraph("many", train=triples(300), test=triples(300))
    options = kv.EvaluationOptions(minimum={}, part_size=5)
    report = kv.evaluate(graph, corruptions=1, limits=kv.Limits(max_depth=2), seed=2**33, options=options)
    assert (report.is_sound, report.num_rankings) == (True, 600)
    assert report.num_parts > 256


def test_scores_that_are_not_finite_are_refused() -> None:
    class Nan(ReferenceEngine):
        def prove(self, *given: Any) -> kv.Columns:
            columns = super().prove(*given)
            nan = np.full_like(columns.candidates.log_probability, np.nan)
            return columns._replace(candidates=columns.candidates._replace(log_probability=nan))

    with pytest.raises(kv.UserError, match="is not finite"):
        kv.evaluate("countries", Nan, **RUN, options=UNCHECKED)


@needs_compiler
@needs_data
@pytest.mark.parametrize("corruptions", [20, "all"])
def test_an_atom_that_the_least_model_lacks_is_found(monkeypatch: pytest.MonkeyPatch, corruptions: int | str) -> None:
    class Lacking(LeastModel):
        """The facts, without conclusions."""

        def _apply(self, rules: Any) -> bool:
            return False

    monkeypatch.setattr(rank_only, "build_model", lambda run, device, *_: Lacking(run.graph.program, device=device))
    options = kv.EvaluationOptions(rank_only=True)
    limits = kv.Limits(max_depth=6)
    report = kv.evaluate("countries_s3", NATIVE, queries=2, corruptions=corruptions, limits=limits, options=options)
    assert not report.is_sound
    assert report.check is not None
    assert report.check.model is not None
    assert report.check.model.num_missing > 0
    assert report.check.differences[0].actual == "not in the least model"
    assert report.check.differences[0].expected.startswith("proved")


# Altered results.


@pytest.fixture(scope="module")
def run() -> Run:
    return countries_run(num_queries=4, num_corruptions=9)


@pytest.fixture(scope="module")
def pipeline(run: Run) -> Pipeline:
    return reference_pipeline(run)


@pytest.fixture(scope="module")
def result(run: Run, pipeline: Pipeline) -> EvaluationResult:
    found = evaluate(run, pipeline, EvaluationSettings(part_size=30))
    assert found is not None
    return found


def alter(result: EvaluationResult, change: Callable[[PartResult], PartResult]) -> EvaluationResult:
    """Return the results with another last part."""
    last = max(result.results)
    return replace(result, results={**result.results, last: change(result.results[last])})


def alter_column(name: str, change: Callable[[Any], Any]) -> Callable[[PartResult], PartResult]:
    """Change the last value of a column."""

    def apply(part: PartResult) -> PartResult:
        column = getattr(part, name).copy()
        column[-1] = change(column[-1])
        return part._replace(**{name: column})

    return apply


def alter_sample(name: str, change: Callable[[Any], Any]) -> Callable[[PartResult], PartResult]:
    def apply(part: PartResult) -> PartResult:
        candidates = part.sample.candidates
        column = change(getattr(candidates, name))
        return part._replace(sample=part.sample._replace(candidates=candidates._replace(**{name: column})))

    return apply


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("optimistic", lambda rank: rank + 1),
        ("pessimistic", lambda rank: rank + 1),
        ("num_ranked", lambda num: num + 1),
        ("drawn", lambda hashed: hashed ^ np.uint64(1)),
        ("outcome", lambda outcome: outcome % 3 + 1),
        ("log_probability", lambda value: value - 1e-3),
        ("num_outcomes", lambda counts: np.roll(counts, 1)),
        ("num_limited", lambda num: num + 1),
    ],
)
def test_a_wrong_value_of_one_ranking_is_found(
    run: Run, pipeline: Pipeline, result: EvaluationResult, name: str, change: Callable[[Any], Any]
) -> None:
    altered = alter(result, alter_column(name, change))
    assert hash_results(altered) != hash_results(result)
    report = report_evaluation(run, altered, pipeline)
    assert not report.is_sound
    assert report.check is not None
    assert (report.check.rankings.num_equal, report.check.rankings.num_near_ties) == (7, 0)
    assert report.check.differences[-1].query == 3


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("outcome", lambda column: (column % 3 + 1).astype(np.int8)),
        ("is_limited", lambda column: 1 - column),
        ("log_probability", lambda column: column - 1e-3),
    ],
)
def test_a_wrong_ending_of_a_sampled_candidate_is_found(
    run: Run, pipeline: Pipeline, result: EvaluationResult, name: str, change: Callable[[Any], Any]
) -> None:
    report = report_evaluation(run, alter(result, alter_sample(name, change)), pipeline)
    assert not report.is_sound
    assert report.check is not None
    assert report.check.num_equal < report.check.num_checked
    assert report.check.rankings.num_equal == 8


def test_a_lost_query_is_found(run: Run, pipeline: Pipeline, result: EvaluationResult) -> None:
    def lose(part: PartResult) -> PartResult:
        return PartResult(*(column[:-2] for column in part[:-2]), *part[-2:])

    report = report_evaluation(run, alter(result, lose), pipeline)
    assert not report.is_sound
    assert "8 rankings were asked for and 6 were computed; the first: query 3, side 0" in report.wrong_figures[0]


def test_figures_that_do_not_follow_from_the_rankings_are_found(
    run: Run, pipeline: Pipeline, result: EvaluationResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = judge.compute_metrics
    with monkeypatch.context() as patch:
        patch.setattr(judge, "compute_metrics", lambda rankings: right(rankings) | {"both.realistic.hits_at_3": 0.25})
        report = report_evaluation(run, result, pipeline)
    assert not report.is_sound
    assert report.wrong_figures[0].startswith("both.realistic.hits_at_3 is 0.25, by the reference ")
    report, results = report_evaluation(run, result, pipeline), join_results(result.results.values())
    assert not judge.find_wrong_figures(run, results, report, report.metrics)
    names = (
        "num_candidates",
        "num_limited",
        "num_left_out",
        "num_queries",
        "num_rankings",
        "num_choices",
        "num_rescored",
    )
    changes: list[dict[str, Any]] = [{name: getattr(report, name) + 1} for name in names]
    changes.append({"smallest_gap": (report.smallest_gap or 0.0) + 1})
    for name in ("metrics", "outcomes", "true_outcomes"):
        values = getattr(report, name)
        changes += [{name: values | {key: value + 1}} for key, value in values.items()]
    for change in changes:
        assert judge.find_wrong_figures(run, results, msgspec.structs.replace(report, **change), report.metrics), change
    for name, row, value in (("query", 0, 9), ("side", -1, 0), ("optimistic", 0, 0.5), ("pessimistic", -1, 99.0)):
        column = getattr(results, name).copy()
        column[row] = value
        assert judge.find_wrong_figures(run, results._replace(**{name: column}), report, report.metrics), name


@pytest.mark.parametrize("bits", [32, 8])
def test_a_draw_that_shortens_the_seed_is_found_and_named(bits: int) -> None:
    run = replace(countries_run(num_queries=2, num_corruptions=9), seed=2**40 + 300)
    pipeline = reference_pipeline(run)
    other = pipeline._replace(draw=lambda *given: draw.draw_candidates(*given[:-1], given[-1] % 2**bits))
    found = evaluate(run, other, EvaluationSettings(part_size=30))
    assert found is not None
    report = report_evaluation(run, found, other)
    assert not report.is_sound
    assert report.check is not None
    symbols, drawn = run.graph.program.symbols, other.draw_for(run)
    names = {
        (query, f"{symbols.predicates[p]}({symbols.constants[a]}, {symbols.constants[b]})")
        for query, (p, a, b) in zip(drawn.query.tolist(), drawn.atom.tolist(), strict=True)
    }
    missing = {(each.query, each.atom) for each in report.check.differences if each.actual == "not drawn"}
    assert missing
    assert not missing & names


# The sample.


def test_the_sample_depends_on_every_result_and_half_of_it_are_true_triples(result: EvaluationResult) -> None:
    again = evaluate(countries_run(num_queries=4, num_corruptions=9), reference_pipeline(countries_run(num_queries=4)))
    assert again is not None
    assert hash_results(result) != hash_results(again)
    assert hash_results(result) == hash_results(replace(result, results=dict(result.results)))
    results = join_results(result.results.values())
    for num, num_true in ((5, 2), (6, 3), (30, 8)):
        sample = choose_single(results, hash_results(result), num)
        assert (len(sample.is_true), int(sample.is_true.sum())) == (num, num_true)
    keys = [choose_single(results, key, 10).candidates.atom.tolist() for key in (1, 2)]
    assert keys[0] != keys[1]


def find_chance(strata: list[tuple[int, int]], num: int) -> float:
    """The least chance to see one of `num` defective members, over all ways to spread them."""
    ways = itertools.product(*(range(members + 1) for members, _ in strata))
    missed = [
        math.prod(
            math.comb(members - bad, drawn) / math.comb(members, drawn)
            for (members, drawn), bad in zip(strata, way, strict=True)
        )
        for way in ways
        if sum(way) == num
    ]
    return 1 - max(missed)


@pytest.mark.parametrize(
    "strata", [[(40, 9)], [(30, 30)], [(20, 5), (15, 14)], [(12, 0), (9, 9)], [(1, 1), (30, 3)], [(230, 40), (20, 0)]]
)
def test_chance_and_share_are_those_of_the_hardest_spread(strata: list[tuple[int, int]]) -> None:
    members = sum(each for each, _ in strata)
    found = judge_sample(strata)
    assert found.chance == pytest.approx(find_chance(strata, math.ceil(members / 100)), abs=1e-9)
    enough = [num for num in range(1, members + 1) if find_chance(strata, num) >= 0.99 - 1e-12]
    assert found.share == pytest.approx(enough[0] / members)


def test_the_strength_of_samples_of_everything_and_of_nothing() -> None:
    assert judge_sample([(10**9, 459)]).chance == pytest.approx(0.99, abs=1e-3)
    assert judge_sample([(10**9, 459)]).share == pytest.approx(0.01, abs=1e-4)
    found = [judge_sample(strata) for strata in ([], [(100, 0)])]
    assert [(each.chance, each.share) for each in found] == [(1.0, 0.0), (0.0, 1.0)]


# The least model.


def find_keys(program: Program) -> NDArray[np.int64]:
    """The keys of the reference's model."""
    size = max(1, len(program.symbols.constants))
    atoms = np.array(sorted(kgreference.least_model(build_reference_program(program))), np.int64).reshape(-1, 3)
    return (atoms[:, 0] * size + atoms[:, 1]) * size + atoms[:, 2]


@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_an_atom_that_the_model_lacks_or_has_without_a_reason_is_found(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closure, "_CHUNK", chunk)
    num_removed = num_added = 0
    for each in islice(draw_problems(7), 30):
        program = Program.from_names(each.facts, each.rules, (*each.queries, *each.unranked))
        keys, size = find_keys(program), max(1, len(program.symbols.constants))
        split = partial(lambda key, size: [key // size**2, key // size % size, key % size], size=size)
        whole = check_model(program, keys)
        assert (len(whole.missing), len(whole.unsupported), whole.is_closed) == (0, 0, True)
        assert whole.num_atoms == len(keys)
        for removed in keys[:: max(1, len(keys) // 4)][:4]:
            found = check_model(program, keys[keys != removed])
            assert split(removed) in found.missing.tolist()
            assert not found.is_closed
            num_removed += 1
        heads = {rule.clause_head.predicate for rule in program.rules}
        others = np.setdiff1d(np.arange(len(program.symbols.predicates) * size**2), keys)
        for added in [int(key) for key in others if key // size**2 not in heads][:1]:
            assert split(added) in check_model(program, np.append(keys, added)).unsupported.tolist()
            num_added += 1
    assert num_removed > 80
    assert num_added > 5


def test_a_model_that_is_too_large_is_not_called_closed() -> None:
    program = kv.load_graph("countries").program
    found = check_model(program, find_keys(program), most_rows=1000)
    assert (found.is_complete, found.is_closed) == (False, False)
