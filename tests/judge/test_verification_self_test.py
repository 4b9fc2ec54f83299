"""Before a verdict, the comparison shows that it can see; one that cannot, or whose figures do not add up, gives none."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kgreference
import kgverify as kv
from kgverify.comparison import block, compare, equal_columns, rankings
from kgverify.comparison.classify import group_causes
from kgverify.comparison.result import Comparison
from kgverify.dialects import ReferenceEngine
from kgverify.errors import InternalError
from kgverify.runs.run import Run, reference_pipeline
from kgverify.trace.model import digests
from kgverify.verification.planted_changes import check_attribution, check_causes, check_verdict, recount_causes
from kgverify.verification.verify import verify

LOSES_PROOFS = partial(
    ReferenceEngine, stages=kgreference.Stages(finish=lambda *given: max(2, kgreference.Stages().finish(*given)))
)
"""The reference with one fault: a derivation that reaches TRUE ends as FAILED."""


@pytest.mark.parametrize(("engine", "verdict"), [("reference", "AGREE"), (LOSES_PROOFS, "DIVERGE")])
@pytest.mark.parametrize("lockstep", [False, True], ids=["free", "lockstep"])
def test_a_report_says_how_many_planted_changes_were_seen(engine: Any, verdict: str, lockstep: bool, tmp_path: Path):
    equality = kv.Equality(determinism=False, lockstep=lockstep)
    report = kv.verify("countries", engine, queries=2, corruptions=5, equality=equality)
    assert (report.verdict.value, report.self_test.columns) == (verdict, 22)
    assert "a change planted in each of 22 columns was reported" in str(report)
    assert "planted in each of 22 columns" in report.to_html(tmp_path / "report.html").read_text()
    assert msgspec.json.decode(report.to_json(tmp_path / "report.json").read_bytes())["self_test"] == {"columns": 22}


@pytest.mark.parametrize(("level", "num"), [("digests", 8), ("steps", 22)])
def test_changes_are_planted_in_the_columns_that_traces_on_disk_have(level: str, num: int, tmp_path: Path):
    for name, engine in (("a", "reference"), ("b", kv.Evaluator(mode="native", device="cpu"))):
        options = kv.RecordingOptions(level=level, shard_steps=60)
        kv.record("countries", tmp_path / name, engine, queries=2, corruptions=5, options=options)
    assert kv.compare(tmp_path / "a", tmp_path / "b").self_test.columns == num


_locate, _split = block.locate_difference, compare.Comparer._split


@pytest.mark.parametrize(
    ("owner", "name", "blind", "message"),
    [
        (equal_columns, "has_same_bytes", lambda left, right: True, "self-test, so there is no verdict"),
        (
            equal_columns,
            "has_equal_scores",
            lambda left, right, tolerance: (True, False),
            "self-test, so there is no verdict",
        ),
        (
            block,
            "locate_difference",
            lambda left, right, *rest: _locate(left, right._replace(resolvents=left.resolvents), *rest),
            "self-test, so there is no verdict",
        ),
        (block.BlockComparer, "_compare_whole", lambda self, candidate: None, "self-test, so there is no verdict"),
        (rankings, "_by_group", lambda found: {}, "self-test, so there is no verdict"),
        (
            compare.Comparer,
            "_split",
            lambda self, *given: ((rows[:-1], others[:-1]) for rows, others in _split(self, *given)),
            "steps were compared",
        ),
    ],
    ids=["bytes", "scores", "resolvents", "ends", "ranks", "a candidate less"],
)
def test_a_comparison_that_does_not_see_gives_no_verdict(
    owner: Any, name: str, blind: Callable[..., Any], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(owner, name, blind)
    with pytest.raises(InternalError, match=message):
        kv.verify("countries", "reference", queries=2, corruptions=5)


@pytest.fixture(scope="module")
def judged() -> Any:
    """Return a verification in which proofs are lost."""
    run = Run(kv.load_graph("countries"), num_queries=2, num_corruptions=5)
    pipeline = reference_pipeline(run)
    engine = LOSES_PROOFS(run.graph.program, run.limits, run.policy)
    return verify(run, pipeline, pipeline._replace(engine=engine))


def test_the_first_divergence_of_each_cause_is_recounted(judged: Any):
    trace = judged.expected
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


def test_numbers_that_do_not_follow_are_refused(judged: Any):
    report = judged.report
    more = msgspec.structs.replace(report.attribution, actual=report.attribution.actual - 0.1)
    with pytest.raises(InternalError, match="the shares of the loss"):
        check_attribution(more, judged.expected, judged.actual)
    whole = compare.Comparer(judged.expected, judged.actual)
    whole.compare()
    fields = {name: getattr(report, name) for name in Comparison.__struct_fields__}
    with pytest.raises(InternalError, match="a part of the comparison is DIVERGE, and the whole is AGREE"):
        check_verdict(Comparison(**{**fields, "verdict": kv.Verdict.AGREE}), [whole])
    with pytest.raises(InternalError, match="a cause counts"):
        check_causes(Comparison(**{**fields, "divergences": report.divergences * 2}), report.causes)
