"""Before AGREE is given, the comparison proves that it can still see, and a comparison that cannot gives no verdict."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from judge_answers.answers import (
    check_known_differences,
    check_known_pairs,
)
from judge_answers.conditions import check_known_conditions
from judge_answers.files import check_known_files
from judge_answers.runs import check_known_runs, check_traces_of_runs
from known_judge import exercise_known, judge_known
from run_engines import UNEXPLAINED, ForeignEngine, TieBreakingEngine, countries_run, foreign_pipeline

from kgverify.comparison import block, compare, equal_columns, locate, rankings, stored_columns
from kgverify.comparison.result import Comparison, Verdict
from kgverify.conditions import experiment, features, find, instances
from kgverify.errors import InternalError
from kgverify.report.render.terminal import report_text
from kgverify.report.report import Report, encode_report
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.model import digests
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.levels import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.write.encode import Clauses
from kgverify.trace.write.writer import Storage, TraceWriter
from kgverify.verification import lockstep
from kgverify.verification.self_testing.planted_runs import check_attribution, check_consistency
from kgverify.verification.self_testing.second_opinion import check_sample
from kgverify.verification.self_testing.self_test import check_digests
from kgverify.verification.verify import compare_recorded, verify

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def run() -> Run:
    return countries_run()


@pytest.fixture(scope="module")
def trace(run: Run) -> Trace:
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    return build_trace(run, pipeline.engine, columns, pipeline.rank_finite(run, columns.candidates))


def verified(run: Run, **options: Any) -> Report:
    pipeline = reference_pipeline(run)
    return verify(run, pipeline, pipeline, check_determinism=False, **options).report


def again(trace: Trace) -> Trace:
    """The same trace, as another engine would have recorded it."""
    engine = msgspec.structs.replace(trace.header.engine, mode="again")
    return replace(trace, header=msgspec.structs.replace(trace.header, engine=engine))


def store(trace: Trace, path: Path, level: TraceLevel, shard_steps: int = 1 << 40) -> Path:
    clauses, storage = Clauses(trace.facts, trace.fact_lines, trace.rules), Storage(level, shard_steps=shard_steps)
    with TraceWriter(path, trace.header, trace.symbols, clauses=clauses, storage=storage) as writer:
        for rows in np.array_split(np.arange(len(trace.columns.candidates.query)), 4):
            writer.append(select_candidates(trace.columns, rows))
        if trace.rankings is not None:
            writer.set_rankings(trace.rankings)
    return path


@pytest.mark.parametrize("lockstep_", [False, True], ids=["free", "lockstep"])
def test_agree_names_the_changes_that_were_seen(run: Run, lockstep_: bool):
    report = verified(run, lockstep=lockstep_)
    tested = report.self_test
    assert report.verdict is Verdict.AGREE
    assert tested is not None
    assert tested.columns == 22
    assert tested.perturbations > 4 * tested.columns
    text = f"22 columns: {tested.perturbations:,} perturbations, all seen"
    assert text in report_text(report)
    assert msgspec.json.decode(encode_report(report))["self_test"] == msgspec.to_builtins(tested)


def test_the_page_names_them_as_well(run: Run, tmp_path: Path):
    pipeline = reference_pipeline(run)
    verification = verify(run, pipeline, pipeline, check_determinism=False)
    page = verification.report.with_traces(verification).to_html(tmp_path / "report.html").read_text()
    assert "22 columns: " in page
    assert "perturbations, all seen" in page


@pytest.mark.parametrize("level", [TraceLevel.DIGESTS, TraceLevel.COMPACT, TraceLevel.STEPS])
def test_traces_on_disk_are_tested_as_they_are_stored(trace: Trace, tmp_path: Path, level: TraceLevel):
    first = store(trace, tmp_path / "a", level)
    tested = [
        compare_recorded(first, each).report.self_test
        for each in (store(again(trace), tmp_path / "b", level), store(trace, tmp_path / "c", level, 60), again(trace))
    ]
    assert all(each is not None and each.columns > 6 for each in tested)
    # The ends of files are places to change as well.
    assert tested[1].perturbations > tested[0].perturbations


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (block.BlockComparer, "_gap_of_choices", lambda *given: 0.0),
        (block, "is_close", lambda expected, actual, tolerance: not abs(expected - actual) > tolerance),
        (equal_columns, "has_equal_sums", lambda *given: True),
        (compare, "highest_level", lambda levels: None),
    ],
)
def test_known_pairs_have_their_known_answers(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any]
):
    # Before an engine agrees, the comparison is tested without what explains differences.
    checks = (
        partial(check_known_differences, exercise_known),
        partial(check_known_pairs, judge_known, is_recorded=False),
    )
    for check in checks:
        check()
    check_known_differences.cache_clear()
    check_known_pairs.cache_clear()
    monkeypatch.setattr(owner, name, wrong)
    for check in checks:
        with pytest.raises(InternalError, match="known pair"):
            check()


def test_the_known_answers_are_those_of_all_known_pairs(run: Run):
    check_known_pairs(judge_known, is_recorded=True)
    check_known_files(judge_known)
    check_known_runs(verify)
    check_traces_of_runs(judge_known)
    check_known_conditions(verify)


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (find, "chance_of", lambda *given: 0.0),
        (features._VALUES, "depth", lambda instance: 0),
        (find, "describe_counts", lambda *given: ""),
        (instances.SeenStep, "limited", property(lambda step: {})),
        (experiment, "_differs", lambda *given: False),
    ],
)
def test_a_wrong_condition_is_found_by_the_known_conditions(
    owner: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
):
    check_known_conditions.cache_clear()
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, name, wrong)
    else:
        monkeypatch.setattr(owner, name, wrong)
    features.read_features.cache_clear()
    try:
        with pytest.raises(InternalError, match="known pair 'conditions: "):
            check_known_conditions(verify)
    finally:
        features.read_features.cache_clear()


def test_a_second_comparison_sees_what_is_reported_elsewhere(trace: Trace):
    columns = trace.columns
    choice = columns.steps.choice.copy()
    choice[-1] += 7
    changed = columns._replace(steps=columns.steps._replace(choice=choice))
    comparer = compare.Comparer(trace, replace(trace, columns=changed, digests=digests.compute_digests(changed)))
    found = comparer.compare()
    check_sample(comparer)
    for wrong in ({"step": 0}, {"field": "steps.outcome"}, {"candidate": 0}):
        moved = tuple(msgspec.structs.replace(each, **wrong) for each in found.divergences)
        comparer.comparison = msgspec.structs.replace(found, divergences=moved)
        with pytest.raises(InternalError, match="a second comparison finds"):
            check_sample(comparer)


def test_no_other_verdict_is_tested(run: Run):
    def spoil(columns: Any) -> Any:
        return columns._replace(steps=columns.steps._replace(choice=columns.steps.choice + 1))

    judged = foreign_pipeline(run, ForeignEngine(run, spoil))
    report = verify(run, reference_pipeline(run), judged, effort=UNEXPLAINED).report
    assert report.verdict is Verdict.DIVERGE
    assert report.self_test is None


class _Blind:
    """Returns what a wrong edit returns in place of a function."""

    @staticmethod
    def to_the_last_value(x: np.ndarray, y: np.ndarray) -> bool:
        return x.dtype == y.dtype and x[:-1].tobytes() == y[:-1].tobytes()

    @staticmethod
    def to_clauses(expected: Any, actual: Any, *rest: Any) -> Any:
        return _locate(expected, actual._replace(resolvents=expected.resolvents), *rest)

    @staticmethod
    def to_scores(expected: np.ndarray, actual: np.ndarray, tolerance: float) -> tuple[bool, bool]:
        return True, False

    @staticmethod
    def to_high_bits(values: np.ndarray) -> np.ndarray:
        return _words(np.asarray(values).astype(np.int64) & 0xFF)

    @staticmethod
    def to_ends(self: Any, candidate: int) -> None:
        return None

    @staticmethod
    def to_ranks(found: Any) -> Any:
        return {}


_locate, _words = locate.locate_difference, digests.words_of


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (equal_columns, "has_same_bytes", _Blind.to_the_last_value),
        (equal_columns, "has_equal_scores", _Blind.to_scores),
        (block, "locate_difference", _Blind.to_clauses),
        (block.BlockComparer, "_compare_whole", _Blind.to_ends),
        (digests, "words_of", _Blind.to_high_bits),
        (rankings, "_by_group", _Blind.to_ranks),
    ],
)
def test_a_comparison_that_does_not_see_gives_no_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any]
):
    check_digests.cache_clear()
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(InternalError, match="self-test, so there is no verdict"):
        verified(run)


def test_what_lies_behind_near_ties_must_count(run: Run, monkeypatch: pytest.MonkeyPatch):
    error = {"score_error": 1e-3} if "score_error" in (verify.__kwdefaults__ or {}) else {}
    ties = foreign_pipeline(run, TieBreakingEngine(run, 1e-3))
    right = verify(run, reference_pipeline(run), ties, check_determinism=False, **error).report
    assert right.near_ties
    assert right.self_test is not None
    monkeypatch.setattr(lockstep, "_add", lambda comparison, found, **changes: comparison)
    with pytest.raises(InternalError, match="behind a near-tie"):
        verify(run, reference_pipeline(run), ties, check_determinism=False, **error)


def test_rows_that_were_not_compared_are_missed(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = [store(each, tmp_path / name, TraceLevel.STEPS) for name, each in (("a", trace), ("b", again(trace)))]
    pieces = stored_columns._split_column
    monkeypatch.setattr(stored_columns, "PIECE_BYTES", 64)
    monkeypatch.setattr(stored_columns, "_split_column", lambda *given: list(pieces(*given))[:-1])
    with pytest.raises(InternalError, match="self-test"):
        compare_recorded(*paths)


def test_candidates_that_were_not_compared_are_missed(trace: Trace, monkeypatch: pytest.MonkeyPatch):
    split = compare.Comparer._split
    monkeypatch.setattr(
        compare.Comparer,
        "_split",
        lambda self, *given: ((rows[:-1], others[:-1]) for rows, others in split(self, *given)),
    )
    with pytest.raises(InternalError, match="steps were compared"):
        compare_recorded(trace, again(trace))


def test_numbers_that_do_not_follow_are_refused(run: Run, trace: Trace):
    def spoil(columns: Any) -> Any:
        sums = columns.candidates.log_probability.copy()
        sums[0] -= 300.0
        return columns._replace(candidates=columns.candidates._replace(log_probability=sums))

    verification = verify(run, reference_pipeline(run), foreign_pipeline(run, ForeignEngine(run, spoil)))
    report = verification.report
    assert report.attribution is not None
    more = msgspec.structs.replace(report.attribution, actual=report.attribution.actual - 0.1)
    with pytest.raises(InternalError, match="the shares of the loss"):
        check_attribution(more, verification.expected, verification.actual)
    fields = {name: getattr(report, name) for name in Comparison.__struct_fields__}
    for changes, message in (
        ({"verdict": Verdict.AGREE}, "AGREE with"),
        ({"divergences": report.divergences * 2}, "a cause counts"),
    ):
        with pytest.raises(InternalError, match=message):
            check_consistency(Comparison(**{**fields, **changes}), report.causes, [], has_engines=True)


def test_a_trace_that_declares_no_error_is_compared_without_one(trace: Trace, monkeypatch: pytest.MonkeyPatch):
    comparer = compare.Comparer(trace, replace(trace))
    comparer.score_tolerance = 1e-3
    monkeypatch.setattr(compare, "Comparer", compare.Comparer)
    from kgverify.verification.self_testing.self_test import run_self_test

    comparer.compare()
    with pytest.raises(InternalError, match="the tolerance is"):
        run_self_test(comparer)
