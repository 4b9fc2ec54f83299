"""Every evaluation counts what it finished, samples what it leaves out, names what is wrong, and locks its folder."""

import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import altered_results
import msgspec
import numpy as np
import pytest
from run_engines import ForeignEngine, countries_run, eager_pipeline
from torch.distributed import HashStore

from kgverify import UserError
from kgverify.evaluation import closure, judge
from kgverify.evaluation.closure import check_model
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, _Worker, evaluate
from kgverify.evaluation.judge import ComparedCandidates, Endings, choose_rankings, derive_endings, report_evaluation
from kgverify.evaluation.parts import (
    ChoiceStatistics,
    PartFolder,
    join_results,
    list_columns,
    opened_folder,
    summarize_part,
)
from kgverify.evaluation.proving import ProcessGroup, Share, join_process_group
from kgverify.evaluation.rank_only import DrawnCorruptions, choose_num_outside
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Outcome
from kgverify.program.program import NamedRule, Program
from kgverify.prover.execution import device
from kgverify.ranking.rank import RANK_TOLERANCE, take_candidates
from kgverify.runs.run import Run, plan_parts, reference_pipeline
from kgverify.trace.model.columns import Candidates, Columns

X, Y, Z, W = (Variable(name) for name in "XYZW")


def keys_of(program: Program, atoms: list[tuple[str, str, str]]) -> np.ndarray:
    names, size = program.symbols, len(program.symbols.constants)
    ids = [(names.predicates.index(p), names.constants.index(a), names.constants.index(b)) for p, a, b in atoms]
    return np.array([(p * size + a) * size + b for p, a, b in ids], np.int64)


def test_a_join_keeps_no_variable_that_nothing_needs() -> None:
    star = [("p", "a", f"z{i}") for i in range(20)] + [("r", f"z{i}", "b") for i in range(20)]
    facts = [*star, *(("s", "b", f"y{i}") for i in range(20))]
    rule = NamedRule(NamedAtom("h", X, Y), (NamedAtom("p", X, Z), NamedAtom("r", Z, W), NamedAtom("s", W, Y)))
    program = Program.from_names([NamedAtom(*each) for each in facts], [rule])
    found = check_model(program, keys_of(program, [*facts, *(("h", "a", f"y{i}") for i in range(20))]))
    assert found.is_closed
    # Of the 20 paths from a to b, one is extended.
    assert found.num_rows == 60


def test_a_head_with_new_variables_is_not_instantiated_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closure, "_CHUNK", 8)
    facts = [NamedAtom("p", f"c{i}", f"c{i}") for i in range(40)]
    program = Program.from_names(facts, [NamedRule(NamedAtom("h", X, Y), (NamedAtom("p", Z, Z),))])
    found = check_model(program, keys_of(program, [(p, str(a), str(b)) for p, a, b in facts]), most_rows=100)
    assert not found.is_complete
    assert 100 < found.num_rows <= 200


def test_a_folder_is_locked_and_its_files_are_fetched_where_requested(tmp_path: Path) -> None:
    with opened_folder(tmp_path / "run", is_locked=True) as first:
        assert first.fetch("missing") == tmp_path / "run" / "missing"
        with opened_folder(tmp_path / "run", is_locked=False) as second:
            assert second.path == first.path
        with pytest.raises(UserError, match="wait until it ends"), opened_folder(tmp_path / "run", is_locked=True):
            pass
    fetched: list[str] = []
    remote: Any = SimpleNamespace(join=lambda name: SimpleNamespace(fetch=lambda _: fetched.append(name)))
    (tmp_path / "there").touch()
    for name in ("there", "elsewhere"):
        assert PartFolder(tmp_path, remote).fetch(name) == tmp_path / name
    assert fetched == ["elsewhere"]


def test_processes_that_form_no_team_evaluate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    teams = iter([None, (HashStore(), 1, 2)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(device, "join_team", lambda: next(teams))
    assert [(group.index, group.size) for group in (join_process_group(), join_process_group())] == [(0, 1), (1, 2)]


def test_what_a_model_lacks_is_a_candidate_of_both_sides() -> None:
    run = countries_run(num_queries=1, num_corruptions=2)
    results: Any = SimpleNamespace(query=np.array([0, 0]))
    model: Any = SimpleNamespace(missing=run.triples.astype(np.int64))
    found = judge.find_missing_candidates(run, results, model)
    assert found.side.tolist() == [0, 1]
    assert found.query.tolist() == [0, 0]
    assert found.atom.tolist() == run.triples[:1].tolist() * 2


def test_the_candidates_of_other_processes_are_reported_once() -> None:
    reported: list[int] = []
    worker: Any = SimpleNamespace(_group=SimpleNamespace(add=lambda name, num: 30), _num_own=10, _num_reported=5)
    for _ in range(2):
        _Worker._report_others(worker, reported.append)
    assert reported == [15, 0]


def evaluated(run: Run, **options: Any) -> EvaluationResult:
    found = evaluate(run, eager_pipeline(run, slots=256), EvaluationSettings(part_size=30, **options))
    assert found is not None
    return found


def test_what_is_finished_is_counted_and_timed() -> None:
    run, turns = countries_run(num_queries=4, num_corruptions=9), iter((False, True, True, True, True))
    began = time.monotonic()
    found = evaluated(run, should_stop=lambda: next(turns))
    assert found.missing
    finished = [part for part in found.plan.parts if part.number in found.results]
    assert found.num_candidates == sum(part.num_candidates for part in finished) > 0
    assert 0 <= found.warm_up_seconds <= found.warm_up_seconds + found.seconds <= time.monotonic() - began


def test_the_order_of_candidates_changes_no_result_of_a_part() -> None:
    run = countries_run(num_queries=3, num_corruptions=9)
    pipeline = reference_pipeline(run)
    candidates = pipeline.engine.prove(pipeline.draw_for(run)).candidates
    choices = ChoiceStatistics()
    rng = np.random.default_rng(1)
    results = []
    for rows in (np.arange(len(candidates.query)), rng.permutation(len(candidates.query))):
        given = take_candidates(candidates, rows)
        rankings = pipeline.rank(candidates, run.triples, RANK_TOLERANCE)
        results.append(list_columns(summarize_part(given, rankings, run.triples, 5, choices)))
    for name, left in results[0].items():
        assert np.array_equal(left, results[1][name]), name


def test_some_candidates_outside_of_the_model_are_proved_all_the_same() -> None:
    run = countries_run(num_queries=2, num_corruptions=40)
    (part,) = plan_parts(run, "cpu").parts
    true = {tuple(each) for each in run.triples.tolist()}

    def contains(atoms: np.ndarray) -> np.ndarray:
        return np.array([tuple(each) in true for each in atoms.tolist()], np.bool_)

    model: Future[Any] = Future()
    model.set_result(SimpleNamespace(contains=contains))
    source = DrawnCorruptions(run, model)
    drawn = source.draw(part)
    nothing = np.zeros(len(drawn.query), np.bool_)
    blocks = list(source.draw_blocks(drawn, nothing, np.zeros(len(nothing)), Share(ProcessGroup(), 0)))
    num = sum(int((~contains(each.candidates.atom)).sum()) for each in blocks)
    assert 0 < num == choose_num_outside(part.num_candidates)


def test_a_ranking_that_costs_far_more_than_the_check_may_is_not_chosen() -> None:
    run = countries_run(num_queries=3, num_corruptions=9)
    found = evaluated(run)
    results = join_results(found.results.values())
    sizes = {num: len(choose_rankings(run, results, 7, num)[0]) for num in (2, 8, 1000)}
    assert (sizes[2], sizes[8], sizes[1000]) == (0, 1, 6)


@pytest.mark.parametrize(("error", "is_unclear"), [(0.0, False), (0.45, False), (0.5, True), (0.6, True)])
def test_a_choice_is_unclear_within_twice_the_errors(
    error: float, is_unclear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = countries_run(num_queries=1, num_corruptions=1)
    monkeypatch.setattr(judge, "find_smallest_gaps", lambda columns: np.ones(len(columns.candidates.query)))
    endings = derive_endings(run, reference_pipeline(run), run.triples[:1], error, lambda _: None)
    assert endings.is_unclear.tolist() == [is_unclear]


class _Judge:
    """Compares a sample with the endings that it was made of."""

    def __init__(self, sample: Candidates) -> None:
        self._sample, self.num = sample, 0
        self.scores: set[float] = set()

    def find_endings(self, atoms: np.ndarray) -> Endings:
        unclear: Any = SimpleNamespace(is_unclear=np.zeros(len(atoms), np.bool_))
        return unclear

    def compare_single(self, other: Candidates) -> Any:
        self.num += 1
        differs = np.zeros(len(other.outcome), np.bool_)
        for left, right in zip(self._sample, other, strict=True):
            differs |= (left != right).reshape(len(differs), -1).any(1)
        assert differs.sum() == 1
        self.scores.update(other.log_probability.tolist())
        return SimpleNamespace(wrong=np.flatnonzero(differs))


@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_the_first_and_the_last_candidate_of_a_sample_are_altered(num: int) -> None:
    arrays: Any = [np.ones((num, 3) if name == "atom" else num, np.float64) for name in Candidates._fields]
    sample, trues = Candidates(*arrays), np.ones(num, np.bool_)
    comparing: Any = _Judge(sample)
    compared = ComparedCandidates(trues, ~trues, trues * 0.0, trues * 0.5, None)  # type: ignore[arg-type]
    assert altered_results.find_altered_candidates(comparing, sample, compared) == comparing.num == 4 * min(num, 2)
    # The bound is 0.5: scores at twice that distance, and a little more, must differ.
    assert sorted(comparing.scores) == (pytest.approx([-1e-6, 1, 2 + 1e-6]) if num > 1 else ANY)


def test_every_gap_is_altered_in_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    run, given = countries_run(num_queries=1, num_corruptions=3), []
    found = evaluated(run)
    report = report_evaluation(run, found, eager_pipeline(run, slots=256))
    assert list(report.outcomes) == list(report.true_outcomes) == ["proved", "failed", "depth_limit", "open"]
    monkeypatch.setattr(altered_results, "find_wrong_figures", lambda *given_: given.append(given_[2]) or ["wrong"])
    for gap in (None, 0.0, 1.0):
        given.clear()
        altered_results.find_altered_figures(
            run,
            join_results(found.results.values()),
            msgspec.structs.replace(report, smallest_gap=gap),
            dict(report.metrics),
        )
        assert sum(each.smallest_gap != gap for each in given) == 1


@pytest.mark.parametrize("most", [1, 4096])
def test_a_wrong_candidate_is_named_with_both_endings(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_MOST_REPEATED", most)
    run = countries_run(num_queries=2, num_corruptions=9)
    pipeline = reference_pipeline(run)
    drawn = pipeline.draw_for(run)
    atom = drawn.atom[len(drawn.query) // 2]

    def spoil(columns: Columns) -> Columns:
        is_it = (columns.candidates.atom == atom).all(1)
        outcome = np.where(is_it, (columns.candidates.outcome + 1) % len(Outcome), columns.candidates.outcome)
        return columns._replace(candidates=columns.candidates._replace(outcome=outcome.astype(np.int8)))

    engine = pipeline._replace(engine=ForeignEngine(run, spoil))
    report = report_evaluation(run, evaluate(run, engine, EvaluationSettings(part_size=30)), engine)
    assert not report.is_sound
    assert report.check is not None
    names = run.graph.program.symbols
    wrong = f"{names.predicates[atom[0]]}({names.constants[atom[1]]}, {names.constants[atom[2]]})"
    of_candidates = [each for each in report.check.differences if each.expected.endswith("nats")]
    assert of_candidates
    for each in of_candidates:
        assert (each.atom, each.expected != each.actual) == (wrong, True)


def test_what_is_called_not_drawn_is_not_drawn() -> None:
    run = replace(countries_run(num_queries=2, num_corruptions=9), seed=2**40 + 300)
    right = eager_pipeline(run, slots=256)
    other = right._replace(draw=lambda graph, split, queries, num, seed: right.draw(graph, split, queries, num, 300))
    report = report_evaluation(run, evaluate(run, other, EvaluationSettings(part_size=30)), other)
    assert report.check is not None
    names = run.graph.program.symbols
    drawn = other.draw_for(run)
    redrawn = {
        (query, f"{names.predicates[p]}({names.constants[a]}, {names.constants[b]})")
        for query, (p, a, b) in zip(drawn.query.tolist(), drawn.atom.tolist(), strict=True)
    }
    missing = [each for each in report.check.differences if each.actual == "not drawn"]
    assert missing
    assert not [each for each in missing if (each.query, each.atom) in redrawn]
