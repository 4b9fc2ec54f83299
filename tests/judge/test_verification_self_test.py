"""Before a verdict is given, the comparison shows that it can see, and a comparison that cannot gives no verdict."""

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
from run_engines import UNEXPLAINED, ForeignEngine, countries_run, foreign_pipeline

from kgverify import Equality, Report, TraceWriter, Verdict
from kgverify.comparison import block, columns, compare, equal_columns, locate, rankings
from kgverify.comparison.classify import group_causes
from kgverify.comparison.result import Comparison
from kgverify.conditions import experiment, features, find, instances, sentence
from kgverify.errors import InternalError
from kgverify.report.report import encode_report
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.model import digests
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.write.writer import Clauses, Storage
from kgverify.verification.planted_changes import check_attribution, check_causes, check_verdict, recount_causes
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.verify import verify


@pytest.fixture(scope="module")
def run() -> Run:
    return countries_run()


@pytest.fixture(scope="module")
def trace(run: Run) -> Trace:
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    return build_trace(run, pipeline.engine, columns, pipeline.rank_finite(run, columns.candidates))


def verified(run: Run, *, lockstep: bool = False) -> Report:
    pipeline = reference_pipeline(run)
    return verify(run, pipeline, pipeline, equality=Equality(determinism=False, lockstep=lockstep)).report


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


@pytest.mark.parametrize("lockstep", [False, True], ids=["free", "lockstep"])
def test_agree_names_the_changes_that_were_seen(run: Run, lockstep: bool):
    report = verified(run, lockstep=lockstep)
    assert report.verdict is Verdict.AGREE
    assert report.self_test is not None
    assert report.self_test.columns == 22
    assert "a change planted in each of 22 columns was reported" in str(report)
    assert msgspec.json.decode(encode_report(report))["self_test"] == {"columns": 22}


def test_the_page_names_them_as_well(run: Run, tmp_path: Path):
    pipeline = reference_pipeline(run)
    verification = verify(run, pipeline, pipeline, equality=Equality(determinism=False))
    page = verification.report.with_traces(verification).to_html(tmp_path / "report.html").read_text()
    assert "planted in each of 22 columns" in page


@pytest.mark.parametrize(
    ("level", "num"), [(TraceLevel.DIGESTS, 8), (TraceLevel.COMPACT, 19), (TraceLevel.STEPS, 22)], ids=str
)
def test_changes_are_planted_in_the_columns_of_traces_on_disk(
    trace: Trace, tmp_path: Path, level: TraceLevel, num: int
):
    first = store(trace, tmp_path / "a", level)
    for actual in (
        store(again(trace), tmp_path / "b", level),
        store(trace, tmp_path / "c", level, 60),
        again(trace),
    ):
        tested = compare_recorded(first, actual).report.self_test
        assert tested is not None
        assert tested.columns == num


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (block.BlockComparer, "_gap_of_choices", lambda *given: 0.0),
        (columns, "agree", lambda *given: (True, False) if np.isnan(given[2]).any() else equal_columns.agree(*given)),
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
        with pytest.raises(InternalError, match="failed its self-test"):
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
        (sentence, "describe_counts", lambda *given: ""),
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


def test_the_first_divergence_of_each_cause_is_recounted(trace: Trace):
    choice = trace.columns.steps.choice.copy()
    choice[-1] += 7
    changed = trace.columns._replace(steps=trace.columns.steps._replace(choice=choice))
    comparer = compare.Comparer(
        trace, replace(trace, columns=changed, digests=digests.compute_digests(changed)), compare.Options(explains=True)
    )
    found = comparer.compare()
    divergences, causes = group_causes(found.divergences, comparer.findings)
    recount_causes([comparer], divergences, causes)
    for wrong in ({"step": 0}, {"candidate": 0}):
        moved = tuple(msgspec.structs.replace(each, **wrong) for each in divergences)
        comparer.comparison = msgspec.structs.replace(found, divergences=moved)
        with pytest.raises(InternalError, match="the reference's comparison finds"):
            recount_causes([comparer], moved, causes)


def test_every_verdict_is_tested(run: Run):
    def spoil(columns: Any) -> Any:
        return columns._replace(steps=columns.steps._replace(choice=columns.steps.choice + 1))

    judged = foreign_pipeline(run, ForeignEngine(run, spoil))
    report = verify(run, reference_pipeline(run), judged, effort=UNEXPLAINED).report
    assert report.verdict is Verdict.DIVERGE
    assert report.self_test is not None
    assert report.self_test.columns == 22


class _Blind:
    """Returns what a wrong edit returns in place of a function."""

    @staticmethod
    def to_everything(x: np.ndarray, y: np.ndarray) -> bool:
        return True

    @staticmethod
    def to_clauses(expected: Any, actual: Any, *rest: Any) -> Any:
        return _locate(expected, actual._replace(resolvents=expected.resolvents), *rest)

    @staticmethod
    def to_scores(expected: np.ndarray, actual: np.ndarray, tolerance: float) -> tuple[bool, bool]:
        return True, False

    @staticmethod
    def to_ends(self: Any, candidate: int) -> None:
        return None

    @staticmethod
    def to_ranks(found: Any) -> Any:
        return {}


_locate = locate.locate_difference


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (equal_columns, "has_same_bytes", _Blind.to_everything),
        (equal_columns, "has_equal_scores", _Blind.to_scores),
        (block, "locate_difference", _Blind.to_clauses),
        (block.BlockComparer, "_compare_whole", _Blind.to_ends),
        (rankings, "_by_group", _Blind.to_ranks),
    ],
)
def test_a_comparison_that_does_not_see_gives_no_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any]
):
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(InternalError, match="self-test, so there is no verdict"):
        verified(run)


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
    whole = compare.Comparer(verification.expected, verification.actual)
    whole.compare()
    fields = {name: getattr(report, name) for name in Comparison.__struct_fields__}
    with pytest.raises(InternalError, match="a part of the comparison is DIVERGE, and the whole is AGREE"):
        check_verdict(Comparison(**{**fields, "verdict": Verdict.AGREE}), [whole])
    with pytest.raises(InternalError, match="a cause counts"):
        check_causes(Comparison(**{**fields, "divergences": report.divergences * 2}), report.causes)
