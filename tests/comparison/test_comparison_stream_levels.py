"""Traces of any two levels and packings have the same report on disk and in memory."""

from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from comparison_traces import with_element, with_header
from stream_pairs import CHANGES, base_trace, cut_steps, lose, rename_constants, shuffle, store, tie

import kgverify
from kgverify import UserError, Verdict
from kgverify.comparison import stored_columns
from kgverify.comparison.compare import SKIPPED, compare
from kgverify.comparison.recorded.evidence import SAMPLED
from kgverify.comparison.result import DIGEST
from kgverify.report.report import encode_report
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.model.schema import TraceLevel, has_goals
from kgverify.trace.read import data_file as content
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.save import read_run, save_verification

LEVELS = [level.value for level in TraceLevel if level is not TraceLevel.DEEP]
# A deep trace is one of level `steps` but for what its stages gave.
PAIRS = [*product(LEVELS, LEVELS), ("deep", "deep"), ("steps", "deep"), ("deep", "compact"), ("digests", "deep")]
TRACES = Path(kgverify.__file__).parents[1] / "traces"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """So that a small trace has many."""
    monkeypatch.setattr(stored_columns, "PIECE_BYTES", 512)
    monkeypatch.setattr(content, "BLOCK_STEPS", 12)
    monkeypatch.setattr("kgverify.comparison.stored_columns.BLOCK_STEPS", 12)


def assert_same_report(expected, actual, *, verifies_content=None):
    """Streaming says what the comparison in memory says, less the note on what it did not verify; returns the report."""
    streamed = compare_recorded(expected, actual, verifies_content=verifies_content).report
    notes = tuple(note for note in streamed.notes if note != SKIPPED and not note.startswith(SAMPLED))
    loaded = compare_recorded(read_trace(expected), read_trace(actual)).report
    streamed = msgspec.structs.replace(streamed, notes=notes)
    assert msgspec.json.decode(encode_report(streamed)) == msgspec.json.decode(encode_report(loaded))
    return streamed


@pytest.mark.sample(2, deep=1)
@pytest.mark.parametrize("levels", PAIRS, ids="-".join)
@pytest.mark.parametrize("seed", range(3))
def test_a_streamed_report_is_that_of_the_comparison_in_memory(seed, levels, tmp_path):
    random = np.random.default_rng([seed, PAIRS.index(levels)])
    trace = base_trace(score_error=float(random.choice([0.0, 1e-5, 10.0])))
    changed = trace
    for _ in range(int(random.integers(0, 3))):
        changed = random.choice(CHANGES)(changed, random)
    paths = []
    for name, each, level in zip("ab", (trace, changed), levels, strict=True):
        shard_steps = int(random.integers(5, 80)) if random.random() < 0.5 else 1 << 40
        is_archived = random.random() < 0.3
        paths.append(store(each, tmp_path / name, level=level, shard_steps=shard_steps, is_archived=is_archived))
    assert_same_report(*paths, verifies_content=bool(seed % 2))


@pytest.mark.parametrize("levels", [("digests", "steps"), ("steps", "digests")], ids="-".join)
def test_digests_agree_with_goals_whose_constants_are_numbered_otherwise(levels, tmp_path):
    trace = base_trace()
    changed = rename_constants(trace, np.random.default_rng(0))
    paths = [
        store(each, tmp_path / name, level=level)
        for name, each, level in zip("ab", (trace, changed), levels, strict=True)
    ]
    report = compare_recorded(*paths).report
    assert report.verdict is Verdict.AGREE


@pytest.mark.sample(3, deep=1)
@pytest.mark.parametrize(
    ("change", "levels"),
    # Every change, and every pair of levels, with a third of the others.
    [
        pytest.param(change, levels, id=f"{change.__name__}-{'-'.join(levels)}")
        for i, change in enumerate(CHANGES)
        for j, levels in enumerate(PAIRS)
        if (i + j) % 3 == 0
    ],
)
def test_each_change_alone_at_any_levels(change, levels, tmp_path):
    trace = base_trace(score_error=10.0 if change is tie else 1e-5)
    changed = change(trace, np.random.default_rng(5))
    first = store(trace, tmp_path / "a", level=levels[0])
    second = store(changed, tmp_path / "b", level=levels[1], shard_steps=30)
    assert_same_report(first, second, verifies_content=False)


@pytest.mark.sample(1, deep=1)
@pytest.mark.parametrize("levels", PAIRS, ids="-".join)
def test_equal_traces_of_any_levels_agree_however_they_lie(levels, tmp_path):
    trace = base_trace()
    first = store(trace, tmp_path / "a", level=levels[0])
    for name, options in {"b": {}, "c": {"is_archived": True}, "d": {"shard_steps": 20}}.items():
        second = store(with_header(trace, engine={"mode": name}), tmp_path / name, level=levels[1], **options)
        report = assert_same_report(first, second)
        assert report.verdict is Verdict.AGREE
        assert (DIGEST in report.coverage.fields) == (not all(map(has_goals, levels)))
        assert report.coverage.steps == len(trace.columns.steps.depth)
    other_order = store(shuffle(trace, np.random.default_rng(1)), tmp_path / "e", level=levels[1], is_archived=True)
    assert assert_same_report(first, other_order).verdict is Verdict.AGREE


def test_a_trace_with_goals_is_verified_where_its_digests_are_all_that_is_compared(tmp_path):
    """A digest that is not that of its columns does not vouch for them, however large the trace."""
    trace = base_trace()
    wrong = with_element(trace, "steps.outcome", 7, lambda value: (value + 1) % 3)
    first = store(trace, tmp_path / "a", level="digests")
    honest = store(wrong, tmp_path / "b")
    assert compare(first, honest, verifies_content=False).verdict is Verdict.DIVERGE
    arrays = DataFile(honest).load_arrays() | {"digests/sequence": trace.digests.sequence}
    write_arrays(tmp_path / "c", arrays, "test")
    with pytest.raises(UserError, match="has digest"):
        compare(first, tmp_path / "c", verifies_content=False)


@pytest.mark.parametrize("level", ["compact", "digests"])
def test_goals_without_stored_digests_are_compared_with_digests(level, tmp_path):
    trace = base_trace()
    changed = with_element(trace, "steps.choice", 7, lambda value: value + 1)
    first = store(trace, tmp_path / "a", level=level)
    for each, verdict in ((trace, Verdict.AGREE), (changed, Verdict.DIVERGE)):
        arrays = DataFile(store(each, tmp_path / "b")).load_arrays()
        del arrays["digests/sequence"]
        write_arrays(tmp_path / "c", arrays, "test")
        assert assert_same_report(first, tmp_path / "c").verdict is verdict
        assert assert_same_report(tmp_path / "c", first).verdict is verdict


def test_compact_traces_that_differ_are_compared_goal_by_goal_and_saved_so(tmp_path):
    trace = base_trace()
    changed = cut_steps(lose(trace, np.random.default_rng(2)), np.random.default_rng(3))
    paths = [store(each, tmp_path / name, level="compact") for name, each in (("a", trace), ("b", changed))]
    report = assert_same_report(*paths)
    assert "steps.goal_atoms" in report.coverage.fields
    assert "digests.sequence" not in report.coverage.fields
    recorded = compare_recorded(*paths)
    save_verification(recorded, tmp_path / "run")
    run = read_run(tmp_path / "run")
    for found in (run.expected, recorded.expected):
        np.testing.assert_array_equal(found.columns.steps.goal_atoms, trace.columns.steps.goal_atoms)


@pytest.mark.sample(2, deep=2)
@pytest.mark.parametrize("levels", PAIRS, ids="-".join)
@pytest.mark.parametrize("row", [0, 3, 40])
def test_the_first_divergence_is_of_the_step_that_was_changed(row, levels, tmp_path):
    trace = base_trace()
    changed = with_element(trace, "steps.choice", row, lambda value: value + 1)
    first, second = (
        store(each, tmp_path / name, level=level, is_archived=True)
        for name, each, level in zip("ab", (trace, changed), levels, strict=True)
    )
    (divergence,) = compare(first, second).divergences
    ends = np.cumsum(trace.columns.candidates.num_steps)
    candidate = int(np.searchsorted(ends, row, side="right"))
    step = row - int(ends[candidate] - trace.columns.candidates.num_steps[candidate])
    assert (divergence.candidate, divergence.step) == (candidate, step)
    assert compare(first, first).verdict is Verdict.AGREE


NAMES = sorted(path.name for path in TRACES.glob("*.h5"))


@pytest.mark.sample(3, deep=6)
@pytest.mark.parametrize(("expected", "actual"), [(a, b) for a in NAMES for b in NAMES if a != b])
def test_golden_traces_of_both_versions_stream_as_in_memory(expected, actual):
    """Version 1 has all three digests, version 2 that of the sequence."""
    report = assert_same_report(TRACES / expected, TRACES / actual)
    assert report.verdict is Verdict.AGREE
