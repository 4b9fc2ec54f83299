"""The check of an evaluation: what is wrong in draw, model, parts, ranks or metrics is found, and named by a candidate."""

import itertools
import math
import zlib
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
from kgverify.evaluation import joins, judge
from kgverify.evaluation.closure import check_model
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.judge import choose_single, hash_results, judge_sample, report_evaluation
from kgverify.evaluation.parts import PartResult, join_results
from kgverify.laws import draw_problems
from kgverify.program.program import Program
from kgverify.ranking import draw
from kgverify.runs.run import Pipeline, Run, reference_pipeline

RUN: dict[str, Any] = {"queries": 4, "corruptions": 9}
NATIVE = kv.Evaluator(mode="native")


# Engines.


class OwnScores(ReferenceEngine):
    """An engine that follows scores of its own. offset: the error of each, relative to the one before."""

    offset = 0.0

    def __init__(self, program: Program, limits: kv.Limits, policy: kv.Policy) -> None:
        def score(goal: Any, resolvents: Any) -> list[float]:
            hashed = [zlib.crc32(repr(each).encode()) / 2**32 for each in resolvents]
            return [each + self.offset * i for i, each in enumerate(hashed)]

        super().__init__(program, limits, kv.Policy.of_function(score))

    @property
    def info(self) -> kv.EngineInfo:
        mode = "python, choices by kgverify from its scores"
        return kv.EngineInfo(name=type(self).__name__, mode=mode, precision="float32")


def test_other_results_of_an_engine_with_scores_of_its_own_are_no_evidence_of_a_fault() -> None:
    report = kv.evaluate("countries", OwnScores, **RUN)
    assert report.check is not None
    assert not report.check.is_equal
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert report.ranked_by.endswith("float32), choices by the scores of OwnScores")
    (reason,) = report.reasons
    assert "reference ENGINE" in reason


@pytest.mark.parametrize(("offset", "verdict"), [(2**-20, "AGREE"), (1.5, "DIVERGE")])
def test_an_engine_with_scores_of_its_own_is_checked_by_another_one_up_to_rounding(offset: float, verdict: str) -> None:
    engine = type("Other", (OwnScores,), {"offset": offset})
    report = kv.evaluate("countries", engine, reference=OwnScores, **RUN)
    assert report.verdict == kv.Verdict[verdict], str(report)


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
    found = [each for each in report.check.differences if each.expected.endswith("nats")]
    assert {(each.atom, each.expected != each.actual) for each in found} == {(name, True)}


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
@pytest.mark.parametrize(("corruptions", "ranks_alone"), [(9, False), ("all", True)])
def test_a_small_evaluation_is_checked_whole(corruptions: int | str, ranks_alone: bool) -> None:
    options = kv.EvaluationOptions(rank_only=ranks_alone, check=2048)
    report = kv.evaluate("countries", NATIVE, queries=4, corruptions=corruptions, options=options)
    assert report.is_sound
    assert report.check is not None
    rankings, model = report.check.rankings, report.check.model
    assert (rankings.num_checked, rankings.num_equal, rankings.num_near_ties) == (8, 8, 0)
    assert (rankings.strength.chance, rankings.strength.share) == (1.0, 1 / 8)
    assert (model is not None) == ranks_alone
    assert model is None or (model.num_missing, model.num_unsupported, model.is_complete) == (0, 0, True)


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


@pytest.mark.parametrize("query", [0, 3])
def test_scores_that_are_not_finite_are_refused_and_the_fix_shows_them(query: int) -> None:
    class Nan(ReferenceEngine):
        def prove(self, *given: Any) -> kv.Columns:
            columns = super().prove(*given)
            ends = columns.candidates
            scores = np.where(ends.query == query, np.nan, ends.log_probability)
            return columns._replace(candidates=ends._replace(log_probability=scores))

    with pytest.raises(kv.UserError, match="is not finite") as caught:
        kv.evaluate("countries", Nan, queries=6, corruptions=3, options=replace(UNCHECKED, part_size=8))
    assert int(caught.value.fix.partition("kgverify diff --queries ")[2]) > query


@needs_compiler
@needs_data
@pytest.mark.parametrize("corruptions", [20, "all"])
def test_an_atom_that_the_least_model_lacks_is_found(monkeypatch: pytest.MonkeyPatch, corruptions: int | str) -> None:
    # The model is the facts, without conclusions.
    monkeypatch.setattr("kgverify.prover.program.least_model.LeastModel._apply", lambda model, rules: False)
    run: dict[str, Any] = {"queries": 2, "corruptions": corruptions, "limits": kv.Limits(max_depth=6)}
    report = kv.evaluate("countries_s3", NATIVE, **run, options=kv.EvaluationOptions(rank_only=True))
    assert not report.is_sound
    assert report.check is not None
    assert report.check.model is not None
    assert report.check.model.num_missing > 0
    first = report.check.differences[0]
    assert (first.actual, first.expected[:6]) == ("not in the least model", "proved")


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


def alter_last(column: NDArray[Any], change: Callable[[Any], Any]) -> NDArray[Any]:
    changed = column.copy()
    changed[-1] = change(changed[-1])
    return changed


@pytest.mark.parametrize(
    ("name", "change", "is_ranking"),
    [
        ("optimistic", lambda rank: rank + 1, True),
        ("pessimistic", lambda rank: rank + 1, True),
        ("num_ranked", lambda num: num + 1, True),
        ("drawn", lambda hashed: hashed ^ np.uint64(1), True),
        ("outcome", lambda outcome: outcome % 3 + 1, True),
        ("log_probability", lambda value: value - 1e-3, True),
        ("num_outcomes", lambda counts: np.roll(counts, 1), True),
        ("num_outcomes", lambda counts: counts[[0, 1, 3, 2]], True),
        ("num_limited", lambda num: num + 1, True),
        ("outcome", lambda column: (column % 3 + 1).astype(np.int8), False),
        ("is_limited", lambda column: 1 - column, False),
        ("log_probability", lambda column: column - 1e-3, False),
    ],
)
def test_a_wrong_value_of_a_ranking_or_of_the_sampled_candidates_is_found(
    run: Run, pipeline: Pipeline, result: EvaluationResult, name: str, change: Callable[[Any], Any], is_ranking: bool
) -> None:
    def apply(part: PartResult) -> PartResult:
        if is_ranking:
            return part._replace(**{name: alter_last(getattr(part, name), change)})
        candidates = part.sample.candidates
        candidates = candidates._replace(**{name: change(getattr(candidates, name))})
        return part._replace(sample=part.sample._replace(candidates=candidates))

    altered = alter(result, apply)
    report = report_evaluation(run, altered, pipeline)
    assert not report.is_sound
    check = report.check
    assert check is not None
    if is_ranking:
        assert hash_results(altered) != hash_results(result)
        assert (check.rankings.num_equal, check.rankings.num_near_ties) == (7, 0)
        assert check.differences[-1].query == 3
    else:
        assert check.num_equal < check.num_checked
        assert check.rankings.num_equal == 8


def test_a_lost_query_is_found(run: Run, pipeline: Pipeline, result: EvaluationResult) -> None:
    def lose(part: PartResult) -> PartResult:
        return PartResult(*(column[:-2] for column in part[:-2]), *part[-2:])

    report = report_evaluation(run, alter(result, lose), pipeline)
    assert not report.is_sound
    assert "8 rankings were asked for and 6 were computed; the first: query 3, side 0" in report.wrong_figures[0]


def test_figures_that_do_not_follow_from_the_rankings_are_found(
    run: Run, pipeline: Pipeline, result: EvaluationResult
) -> None:
    report, results = report_evaluation(run, result, pipeline), join_results(result.results.values())

    def find(changed: Any = report, ranked: Any = results) -> list[str]:
        return [*judge.find_wrong_figures(run, ranked, changed, report.metrics)]

    assert not find()
    names = [
        "num_candidates",
        "num_limited",
        "num_left_out",
        "num_queries",
        "num_rankings",
        "num_choices",
        "num_rescored",
    ]
    changes: list[dict[str, Any]] = [{name: getattr(report, name) + 1} for name in names]
    changes.append({"smallest_gap": (report.smallest_gap or 0.0) + 1})
    for name in ("metrics", "outcomes", "true_outcomes"):
        values = getattr(report, name)
        changes += [{name: values | {key: value + 1}} for key, value in values.items()]
    for change in changes:
        assert find(msgspec.structs.replace(report, **change)), change
    for name, row, value in (("query", 0, 9), ("side", -1, 0), ("optimistic", 0, 0.5), ("pessimistic", -1, 99.0)):
        column = getattr(results, name).copy()
        column[row] = value
        assert find(ranked=results._replace(**{name: column})), name


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
    for strata, strength in (([(10**9, 459)], (0.99, 0.01)), ([], (1, 0)), ([(100, 0)], (0, 1))):
        found = judge_sample(strata)
        assert (found.chance, found.share) == pytest.approx(strength, abs=1e-3)


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
    monkeypatch.setattr(joins, "CHUNK", chunk)
    num_removed = num_added = 0
    for each in islice(draw_problems(7), 12):
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
    assert num_removed > 30
    assert num_added > 1


def test_a_model_that_is_too_large_is_not_called_closed() -> None:
    program = kv.load_graph("countries").program
    found = check_model(program, find_keys(program), most_rows=1000)
    assert (found.is_complete, found.is_closed) == (False, False)
