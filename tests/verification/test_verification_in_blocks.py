"""A run that is too large for memory has the same report as the same run in memory."""

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_engines import ForeignEngine, TieBreakingEngine, countries_run, foreign_pipeline

import kgverify as kv
from kgverify import Columns, Equality, Report, UserError, Verdict
from kgverify.report.report import encode_report
from kgverify.runs.run import reference_pipeline
from kgverify.trace.model.columns import Digests
from kgverify.trace.write.spool import Spool
from kgverify.verification.verify import verify


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that makes blocks tiny."""

    def cut_blocks() -> None:
        monkeypatch.setattr("kgverify.verification.verify.BLOCK", 7)
        monkeypatch.setattr("kgverify.trace.model.column_reader.MemoryReader.block_steps", 12)

    return cut_blocks


def assert_same_report(make: Callable[[], tuple[Report, Any]], cut: Callable[[], None]) -> Report:
    """Make a report in memory and in blocks, and require that they are equal; return the report."""
    whole, traces = make()
    stepped = traces.stepped
    assert not is_mapped(traces.expected.columns.steps.depth)
    cut()
    blocks, traces = make()
    assert is_mapped(traces.expected.columns.steps.depth)
    assert is_mapped(traces.actual.columns.resolvents.atoms)
    # torch warns of other arrays.
    assert traces.expected.columns.steps.depth.flags.writeable
    assert (stepped is None) == (traces.stepped is None)
    assert stepped is None or stepped.root == traces.stepped.root
    assert encode_report(blocks) == encode_report(whole)
    return blocks


def is_mapped(array: np.ndarray[Any, Any]) -> bool:
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(getattr(owner, "obj", owner), mmap.mmap)


@pytest.mark.parametrize("lockstep", [False, True], ids=["free", "lockstep"])
@pytest.mark.parametrize("faults", [(), "fact-cap"])
def test_engines_compared_in_blocks_have_the_report_of_a_comparison_in_memory(
    faults: str | tuple[str, ...], lockstep: bool, cut: Callable[[], None]
):
    engine = kv.Evaluator(mode="plain", faults=faults)

    def make() -> tuple[Report, Any]:
        report = kv.verify("countries", engine, queries=3, corruptions=5, equality=Equality(lockstep=lockstep))
        return report, report.traces

    report = assert_same_report(make, cut)
    assert report.verdict is (Verdict.DIVERGE if faults else Verdict.AGREE)


def test_rounding_and_the_steps_after_near_ties_do_not_depend_on_blocks(cut: Callable[[], None]):
    def make() -> tuple[Report, Any]:
        run = countries_run(num_corruptions=12)
        sides = reference_pipeline(run), foreign_pipeline(run, TieBreakingEngine(run, 1e-7))
        found = verify(run, *sides, equality=Equality(score_error=1e-7))
        return found.report, found

    report = assert_same_report(make, cut)
    assert report.rounding is not None
    assert report.rounding.num_differing
    assert report.near_ties


def test_scores_of_another_type_in_a_later_block_are_refused(cut: Callable[[], None]):
    calls = []

    def change(columns: Columns) -> Columns:
        calls.append(columns)
        scores = columns.resolvents.score.astype(np.float32 if len(calls) > 1 else np.float64)
        return columns._replace(resolvents=columns.resolvents._replace(score=scores))

    cut()
    run = countries_run(num_corruptions=12)
    with pytest.raises(
        UserError, match=r"engine foreign:resolvents/score: dtype is float32, expected float64 as before"
    ):
        verify(run, reference_pipeline(run), foreign_pipeline(run, ForeignEngine(run, change)))


def test_a_full_disk_is_an_error_that_says_how_to_fix_it(monkeypatch: pytest.MonkeyPatch):
    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kgverify.trace.write.spool.write_all", fill)
    run = countries_run()
    columns = reference_pipeline(run).engine.prove(reference_pipeline(run).draw_for(run))
    nothing = np.zeros(0, np.uint64)
    with Spool("engine foreign") as spool, pytest.raises(UserError, match="No space left on device") as caught:
        spool.append(columns, Digests(nothing, nothing, nothing))
    assert "TMPDIR" in str(caught.value.fix)


def test_a_large_run_is_saved_in_blocks(cut: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    cut()
    monkeypatch.setattr("kgverify.trace.write.writer._MOST_AT_ONCE", 24)
    report = kv.verify("countries", "reference", queries=3, corruptions=5, save=tmp_path)
    for name in ("expected", "actual"):
        stored, trace = kv.open_trace(tmp_path / f"{name}.h5"), getattr(report.traces, name)
        assert stored.path.is_dir()
        assert len(stored.shards) > 1
        loaded = stored.load()
        assert loaded.root == trace.root
        assert loaded.rankings is not None
    assert kv.compare(tmp_path / "expected.h5", tmp_path / "actual.h5").verdict is Verdict.AGREE
