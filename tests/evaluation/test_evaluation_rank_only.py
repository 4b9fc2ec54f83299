"""The result of a part, and the candidates that ranks alone need: all values are those of a loop over single candidates."""

from collections import Counter
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from formula_engine import FormulaEngine, list_groups, make_pipeline, make_run
from run_engines import needs_compiler

import kgreference
import kgverify as kv
from kgverify.engines.protocol import STOPPED
from kgverify.errors import InternalError
from kgverify.evaluation import rank_only
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.parts import SALT, SAMPLED, PartResult, join_results, list_columns
from kgverify.evaluation.rank_only import AllCorruptions, RankOnly, build_model, build_rank_only
from kgverify.progress import no_progress
from kgverify.ranking.draw import ALL
from kgverify.runs.run import Run, plan_parts

FEW = 3
NATIVE = kv.Evaluator(mode="native")
BLOCK_SIZE = 58
"""The corruptions that are proved at once for ranks alone: those of four or five kinds."""


@pytest.fixture(autouse=True)
def narrow_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_only, "BLOCK_SIZE", BLOCK_SIZE)


def evaluate_formula(run: Run, engine: FormulaEngine, *, ranks_alone: bool, part_size: int = 1 << 20) -> PartResult:
    settings = EvaluationSettings(part_size=part_size, rank_only=ranks_alone)
    found = evaluate(run, make_pipeline(engine), settings)
    assert found is not None
    return join_results(found.results.values())


def mix(*numbers: int) -> int:
    mixed = 0
    for number in numbers:
        mixed = kgreference.mix(mixed ^ number)
    return mixed


@pytest.mark.parametrize(
    ("num_corruptions", "ranks_alone", "takes_floors", "part_size"),
    [
        (ALL, False, False, 1 << 20),
        (FEW, False, False, 500),
        (ALL, True, False, 1 << 20),
        (ALL, True, True, 1 << 20),
        (ALL, True, True, 500),
        (FEW, True, False, 1 << 20),
    ],
)
def test_every_value_is_that_of_a_loop_over_single_candidates(
    num_corruptions: int, ranks_alone: bool, takes_floors: bool, part_size: int
) -> None:
    run = make_run(num_corruptions)
    engine = FormulaEngine(run.graph, takes_floors=takes_floors)
    result = evaluate_formula(run, engine, ranks_alone=ranks_alone, part_size=part_size)
    groups, num_stopped, num_all = list_groups(run), 0, 0
    assert list(zip(result.query.tolist(), result.side.tolist(), strict=True)) == [group[:2] for group in groups]
    of_group = {}
    for row, (query, side, atoms) in enumerate(groups):
        of_group[query, side] = ends = {tuple(atom): engine.end(tuple(atom)) for atom in atoms}
        true, *others = every = [*ends.values()]
        num_all += sum(each.num_choices for each in every)
        above = sum(each.score > true.score + 0.25 for each in others)
        tied = sum(abs(each.score - true.score) < 0.25 for each in others)
        expected = [len(atoms), 1 + above, 1 + above + tied, true.outcome, true.log_probability]
        columns = (result.num_ranked, result.optimistic, result.pessimistic, result.outcome, result.log_probability)
        assert [column[row] for column in columns] == expected, (query, side)
        if not (ranks_alone and num_corruptions == ALL):
            assert result.drawn[row] == sum(kgreference.mix(atom[1 + side]) for atom in atoms) % 2**64
        counts, counted = Counter(each.outcome for each in every), result.num_outcomes[row].tolist()
        assert counted[1] == counts[1]
        assert sum(counted) <= len(atoms)
        if not ranks_alone or true.outcome != 1 or true.log_probability < -100:
            # A candidate that is stopped neither ties with the true triple nor ranks above it.
            least = [each for each in every if not takes_floors or each.score > true.score - 0.25]
            of_least = Counter(each.outcome for each in least)
            assert all(of_least[outcome] <= counted[outcome] <= counts[outcome] for outcome in range(4))
            limited = [sum(each.is_limited for each in of) for of in (least, every)]
            assert limited[0] <= result.num_limited[row] <= limited[1]
            num_stopped += len(atoms) - sum(counted)
    assert (num_stopped > 0) == takes_floors
    assert (result.num_outcomes.sum() < result.num_ranked.sum()) == ranks_alone
    # The first call warms the engine up.
    choices, rescored, gaps = zip(*engine.choices[1:], strict=True)
    assert result.choices == (sum(choices), sum(rescored), min(gaps))
    assert ranks_alone or sum(choices) == num_all
    for part in plan_parts(run, "cpu", 500).parts:
        assert part.num_candidates == result.num_ranked[np.isin(result.query, part.queries)].sum()
    if ranks_alone and num_corruptions == ALL and part_size > 500:
        assert_proved_once(engine)
    assert_sample(run, result, of_group, is_whole=not ranks_alone and part_size > 500)


def assert_proved_once(engine: FormulaEngine) -> None:
    """Fail if a candidate is proved twice, unless it was stopped. What follows is proved to its end."""
    asked = np.concatenate([np.column_stack(each[1:]) for each in engine.asked]).tolist()
    ended: dict[tuple[int, ...], list[int]] = {}
    for row, outcome in zip(map(tuple, asked), np.concatenate(engine.ends).tolist(), strict=True):
        ended.setdefault(row, []).append(outcome)
    for row, found in ended.items():
        assert row[1:] not in engine.model or found[-1] != STOPPED
        assert STOPPED in found[:-1] or len(found) == 1 or len(set(found)) == 1
    assert any(STOPPED in found for found in ended.values()) == engine.takes_floors


def assert_sample(run: Run, result: PartResult, of_group: dict[Any, Any], *, is_whole: bool) -> None:
    sample, seen = result.sample, set()
    candidates = sample.candidates
    for query, side, atom, is_true, *ending in zip(
        candidates.query.tolist(),
        candidates.side.tolist(),
        map(tuple, candidates.atom.tolist()),
        sample.is_true.tolist(),
        candidates.outcome.tolist(),
        candidates.is_limited.tolist(),
        candidates.log_probability.tolist(),
        strict=True,
    ):
        assert list(of_group[query, side][atom][:3]) == ending
        assert is_true == (atom == tuple(run.triples[query].tolist()))
        seen.add((query, side, atom))
    assert len(seen) == len(candidates.query)
    assert int(sample.is_true.sum()) == len(of_group) < len(seen)
    if is_whole:
        # A priority depends only on the seed, the query, the side and the entity; the lowest are kept.
        key = mix((run.seed ^ SALT) % 2**64)
        lowest = sorted(
            kgreference.mix(kgreference.mix(key ^ (query << 2 | side)) ^ atom[1 + side])
            for (query, side), ends in of_group.items()
            for atom in [*ends][1:]
        )
        assert sorted(sample.priority[~sample.is_true].tolist()) == lowest[:SAMPLED]


def test_no_result_depends_on_the_time_that_the_least_model_takes() -> None:
    """The corruptions of true triples that are not PROVED do not wait for the model."""
    run = make_run(ALL)
    (part,) = plan_parts(run, "cpu", 10**9, rank_only=True).parts
    model = build_model(run, FormulaEngine(run.graph))
    results, num_blocks = [], []
    for num_before in (0, 3):
        built: Future[Any] = Future()
        engine = FormulaEngine(run.graph, takes_floors=True)
        if num_before == 0:
            built.set_result(model)
        prove = engine.evaluate

        def prove_and_build(*given: Any, **options: Any) -> Any:
            if len(engine.asked) == num_before and not built.done():  # noqa: B023  used in this turn of the loop
                built.set_result(model)  # noqa: B023
            return prove(*given, **options)  # noqa: B023

        engine.evaluate = prove_and_build  # type: ignore[method-assign]
        work = RankOnly(run, make_pipeline(engine), AllCorruptions(run, built, BLOCK_SIZE), BLOCK_SIZE)
        results.append(list_columns(work.summarize(part, work.prove(part, work.draw(part), no_progress))))
        num_blocks.append(len(engine.asked))
    assert num_blocks[0] == num_blocks[1] > 4
    for name, column in results[0].items():
        np.testing.assert_array_equal(column, results[1][name], err_msg=name)


def test_a_model_that_is_too_large_ends_the_work_before_the_other_corruptions_are_proved() -> None:
    run, built = make_run(ALL), Future[Any]()
    built.set_exception(kv.UserError("too large", where="rank_only"))
    (part,) = plan_parts(run, "cpu", 10**9, rank_only=True).parts
    engine = FormulaEngine(run.graph, takes_floors=True)
    work = RankOnly(run, make_pipeline(engine), AllCorruptions(run, built, BLOCK_SIZE), BLOCK_SIZE)
    with pytest.raises(kv.UserError, match="too large"):
        work.prove(part, work.draw(part), no_progress)
    whole = FormulaEngine(run.graph, takes_floors=True)
    evaluate_formula(run, whole, ranks_alone=True)
    assert 0 < len(engine.asked) < len(whole.asked)


def test_an_engine_that_stops_above_a_floor_is_refused() -> None:
    run = make_run(ALL)
    with pytest.raises(InternalError, match="not below its floor"):
        evaluate_formula(run, FormulaEngine(run.graph, takes_floors=True, raised=0.5), ranks_alone=True)


def test_ranks_alone_are_refused_for_another_draw_or_other_ranks() -> None:
    run = make_run(FEW)
    pipeline = make_pipeline(FormulaEngine(run.graph))
    for other in (
        pipeline._replace(draw=lambda *given: pipeline.draw(*given)),
        pipeline._replace(rank=lambda *given: pipeline.rank(*given)),
    ):
        with pytest.raises(kv.UserError, match="draws and ranks by itself"):
            build_rank_only(run, other)


@pytest.mark.parametrize("num_corruptions", [ALL, FEW])
def test_scores_that_are_not_finite_are_refused_for_ranks_alone(num_corruptions: int) -> None:
    run = make_run(num_corruptions)
    engine = FormulaEngine(run.graph)
    ending = engine.end
    engine.end = lambda atom: ending(atom)._replace(log_probability=np.nan)  # type: ignore[method-assign]
    with pytest.raises(kv.UserError, match="is not finite"):
        evaluate_formula(run, engine, ranks_alone=True)


@pytest.mark.parametrize("ranks_alone", [False, True])
def test_running_out_of_memory_names_the_options_that_need_less(ranks_alone: bool) -> None:
    class Failing(FormulaEngine):
        """Proves one candidate; more are too many."""

        info = kv.EngineInfo("formula", device="cpu", layout={"slots": 16})

        def evaluate(self, candidates: Any, *given: Any, **options: Any) -> Any:
            if len(candidates.query) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.50 GiB. GPU 0 has a total.\nmore")
            return super().evaluate(candidates, *given, **options)

    run = make_run(FEW)
    with pytest.raises(kv.UserError, match=r"16 slots \(CUDA out of memory\. Tried to allocate 9\.50 GiB\)") as caught:
        evaluate_formula(run, Failing(run.graph), ranks_alone=ranks_alone)
    assert (caught.value.where, "fewer slots" in caught.value.fix) == ("memory", True)


@needs_compiler
def test_a_floor_that_is_too_high_is_found_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    options = kv.EvaluationOptions(rank_only=True, check=4000)
    run: dict[str, Any] = {"queries": 8, "corruptions": "all", "limits": kv.Limits(max_depth=3), "options": options}
    assert kv.evaluate("countries", NATIVE, **run).is_sound
    monkeypatch.setattr(rank_only, "MARGIN", -2.0)
    assert not kv.evaluate("countries", NATIVE, **run).is_sound


@needs_compiler
def test_a_least_model_that_costs_more_than_it_saves_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = rank_only.choose_most_work
    for corruptions, is_given_up in ((9, True), ("all", True), ("all", False)):
        warnings: list[str] = []
        monkeypatch.setattr(rank_only, "choose_most_work", (lambda run, engine: 1) if is_given_up else choose)
        options = kv.EvaluationOptions(rank_only=True, warn=warnings.append)
        report = kv.evaluate("countries", NATIVE, queries=4, corruptions=corruptions, options=options)
        assert (report.is_sound, report.num_left_out == 0) == (True, is_given_up)
        assert [each.partition(":")[0] for each in warnings] == ["--rank-only skipped nothing"] * is_given_up
