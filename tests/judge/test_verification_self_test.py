"""Before a verdict, the comparison shows that it can see; one that cannot, or whose figures do not add up, gives none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_engines import UNEXPLAINED, ForeignEngine, countries_run, foreign_pipeline

import kgverify as kv
from kgverify.comparison import block, compare, equal_columns, rankings
from kgverify.comparison.classify import group_causes
from kgverify.comparison.result import Comparison
from kgverify.errors import InternalError
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.model import digests
from kgverify.trace.model.trace import Trace
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


def again(trace: Trace) -> Trace:
    """Return the same trace, as another engine would have recorded it."""
    engine = msgspec.structs.replace(trace.header.engine, mode="again")
    return replace(trace, header=msgspec.structs.replace(trace.header, engine=engine))


@pytest.mark.parametrize("lockstep", [False, True], ids=["free", "lockstep"])
def test_a_report_says_how_many_planted_changes_were_seen(lockstep: bool, tmp_path: Path):
    equality = kv.Equality(determinism=False, lockstep=lockstep)
    report = kv.verify("countries", "reference", queries=2, corruptions=5, equality=equality)
    assert report.verdict is kv.Verdict.AGREE
    assert report.self_test is not None
    assert report.self_test.columns == 22
    assert "a change planted in each of 22 columns was reported" in str(report)
    assert "planted in each of 22 columns" in report.to_html(tmp_path / "report.html").read_text()
    assert msgspec.json.decode(report.to_json(tmp_path / "report.json").read_bytes())["self_test"] == {"columns": 22}


@pytest.mark.parametrize(("level", "num"), [("digests", 8), ("compact", 19), ("steps", 22)])
def test_changes_are_planted_in_the_columns_that_traces_on_disk_have(level: str, num: int, tmp_path: Path):
    for name, engine in (("a", "reference"), ("b", kv.Evaluator(mode="native", device="cpu"))):
        options = kv.RecordingOptions(level=level, shard_steps=60)
        kv.record("countries", tmp_path / name, engine, queries=2, corruptions=5, options=options)
    report = kv.compare(tmp_path / "a", tmp_path / "b")
    assert report.self_test is not None
    assert report.self_test.columns == num


def test_a_divergence_is_given_after_the_same_test(run: Run):
    def spoil(columns: Any) -> Any:
        return columns._replace(steps=columns.steps._replace(choice=columns.steps.choice + 1))

    judged = foreign_pipeline(run, ForeignEngine(run, spoil))
    report = verify(run, reference_pipeline(run), judged, effort=UNEXPLAINED).report
    assert report.verdict is kv.Verdict.DIVERGE
    assert report.self_test is not None
    assert report.self_test.columns == 22


_locate = block.locate_difference


@pytest.mark.parametrize(
    ("owner", "name", "blind"),
    [
        (equal_columns, "has_same_bytes", lambda left, right: True),
        (equal_columns, "has_equal_scores", lambda left, right, tolerance: (True, False)),
        (
            block,
            "locate_difference",
            lambda left, right, *rest: _locate(left, right._replace(resolvents=left.resolvents), *rest),
        ),
        (block.BlockComparer, "_compare_whole", lambda self, candidate: None),
        (rankings, "_by_group", lambda found: {}),
    ],
    ids=["bytes", "scores", "resolvents", "ends", "ranks"],
)
def test_a_comparison_that_does_not_see_gives_no_verdict(
    owner: Any, name: str, blind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(owner, name, blind)
    with pytest.raises(InternalError, match="self-test, so there is no verdict"):
        kv.verify("countries", "reference", queries=2, corruptions=5)


def test_candidates_that_were_not_compared_are_missed(trace: Trace, monkeypatch: pytest.MonkeyPatch):
    split = compare.Comparer._split
    monkeypatch.setattr(
        compare.Comparer,
        "_split",
        lambda self, *given: ((rows[:-1], others[:-1]) for rows, others in split(self, *given)),
    )
    with pytest.raises(InternalError, match="steps were compared"):
        compare_recorded(trace, again(trace))


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


def test_numbers_that_do_not_follow_are_refused(run: Run):
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
        check_verdict(Comparison(**{**fields, "verdict": kv.Verdict.AGREE}), [whole])
    with pytest.raises(InternalError, match="a cause counts"):
        check_causes(Comparison(**{**fields, "divergences": report.divergences * 2}), report.causes)
