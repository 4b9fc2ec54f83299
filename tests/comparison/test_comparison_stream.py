"""Traces on disk and the same traces in memory have the same report, whatever differs and however they are stored."""

import json
import shutil
from itertools import pairwise, product
from pathlib import Path

import h5py
import msgspec
import numpy as np
import pytest
import xxhash
from comparison_traces import (
    TRACES,
    as_other,
    column_of,
    compare,
    judge,
    with_candidates,
    with_column,
    with_columns,
    with_element,
)
from trace_changes import CHANGES, base_trace, cut_steps, lose, rewrite, shuffle, store, tie

import kgverify
from kgverify import Trace, UserError, Verdict

UNVERIFIED = ("verified while comparing", "checked in the")
GOLDEN = sorted(path.name for path in TRACES.glob("*.h5"))
LEVELS = ["digests", "compact", "steps"]
# A deep trace is one of level `steps` but for what its stages gave.
PAIRS = [*product(LEVELS, LEVELS), ("deep", "deep"), ("steps", "deep"), ("deep", "compact"), ("digests", "deep")]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small trace has many."""
    monkeypatch.setattr("kgverify.comparison.stored_columns.PIECE_BYTES", 512)
    monkeypatch.setattr("kgverify.trace.read.data_file.BLOCK_STEPS", 12)
    monkeypatch.setattr("kgverify.comparison.stored_columns.BLOCK_STEPS", 12)


def read(path: Path) -> Trace:
    return kgverify.open_trace(path).load()


def assert_same_report(expected: Path, actual: Path) -> kgverify.Report:
    """Compare two traces on disk, and require what the comparison in memory finds; return the report."""
    streamed, loaded = kgverify.compare(expected, actual), kgverify.compare(read(expected), read(actual))
    documents = [json.loads(msgspec.json.encode(each)) for each in (streamed, loaded)]
    for document in documents:
        document["notes"] = [note for note in document["notes"] if not note.startswith(UNVERIFIED)]
    assert documents[0] == documents[1]
    return streamed


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [0, 5, 11, 14, 20, 21])
def test_a_streamed_report_is_that_of_the_comparison_in_memory(seed: int, tmp_path: Path):
    random = np.random.default_rng(seed)
    expected = actual = base_trace(score_error=float(random.choice([0.0, 1e-5, 10.0])))
    for i in range(int(random.integers(0, 3)) + (seed < len(CHANGES))):
        change = CHANGES[seed] if seed < len(CHANGES) and not i else random.choice(np.array(CHANGES, object))
        changed = change(actual, random)
        if random.random() < 0.2:
            expected = change(expected, random)
        actual = changed
    paths = [
        store(
            trace,
            tmp_path / name,
            level=level,
            shard_steps=int(random.integers(5, 80)) if random.random() < 0.5 else 1 << 40,
            is_chunked=random.random() < 0.3,
            is_archived=random.random() < 0.3,
        )
        for name, trace, level in zip("ab", (expected, actual), PAIRS[seed % len(PAIRS)], strict=True)
    ]
    assert_same_report(*paths)


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", CHANGES[::2], ids=lambda change: change.__name__)
def test_each_change_alone_is_found_alike_in_either_direction(change, tmp_path: Path):
    trace = base_trace(score_error=10.0 if change is tie else 1e-5)
    changed = change(trace, np.random.default_rng(5))
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b", shard_steps=30)
    for expected, actual in ((first, second), (second, first)):
        streamed = compare(expected, actual, verifies_content=False)
        in_memory = compare(read(expected), read(actual))
        assert streamed == msgspec.structs.replace(in_memory, notes=streamed.notes)
        assert compare(expected, actual, kept=1).divergences == streamed.divergences[:1]
    assert (
        compare(first, changed).divergences == compare(trace, second).divergences == compare(trace, changed).divergences
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("levels", PAIRS[1::4], ids="-".join)
def test_equal_traces_of_any_levels_agree_however_they_lie(levels: tuple[str, str], tmp_path: Path):
    trace = base_trace()
    first, theirs = store(trace, tmp_path / "a", level=levels[0]), as_other(trace)
    others = (
        store(theirs, tmp_path / "b", level=levels[1], is_archived=True),
        # At level deep, the small chunks would be too many.
        store(theirs, tmp_path / "c", level=levels[1], is_chunked=levels[1] != "deep"),
        store(shuffle(theirs, np.random.default_rng(1)), tmp_path / "d", level=levels[1], shard_steps=60),
    )
    for other in others:
        report = assert_same_report(first, other)
        assert (report.verdict, report.level) == (Verdict.AGREE, None)
        # The goals of a compact trace may be rebuilt.
        assert "compact" in levels or ("digests.sequence" in report.coverage.fields) == ("digests" in levels)
        assert report.coverage.steps == len(trace.columns.steps.depth)


@pytest.mark.parametrize("level", ["compact", "digests"])
def test_goals_without_stored_digests_are_compared_with_digests(level: str, tmp_path: Path):
    trace = base_trace()
    changed = with_element(trace, "steps.choice", 7, lambda value: value + 1)
    first = store(trace, tmp_path / "a", level=level)
    for each, verdict in ((trace, Verdict.AGREE), (changed, Verdict.DIVERGE)):
        rewrite(store(each, tmp_path / "b"), tmp_path / "c", digests__sequence=None)
        for pair in ((first, tmp_path / "c"), (tmp_path / "c", first)):
            assert compare(*pair).verdict is verdict


def test_compact_traces_that_differ_are_compared_goal_by_goal(tmp_path: Path):
    trace = base_trace()
    changed = cut_steps(lose(trace, np.random.default_rng(2)), np.random.default_rng(3))
    paths = [store(each, tmp_path / name, level="compact") for name, each in (("a", trace), ("b", changed))]
    fields = assert_same_report(*paths).coverage.fields
    assert "steps.goal_atoms" in fields
    assert "digests.sequence" not in fields


@pytest.mark.sample(1)
@pytest.mark.parametrize("names", [*pairwise(GOLDEN)][::2], ids="-".join)
def test_golden_traces_of_every_level_stream_as_in_memory(names: tuple[str, str]):
    assert_same_report(*(TRACES / name for name in names))


def test_scores_of_other_bits_beside_a_near_tie_are_no_bits_of_it(tmp_path: Path):
    trace = base_trace(2, score_error=1e-3)
    tied = tie(trace, np.random.default_rng(2))
    jittered = with_column(tied, "resolvents.score", tied.columns.resolvents.score + 1e-9)
    for each in (tied, jittered):
        a, b = store(trace, tmp_path / "a"), store(each, tmp_path / "b")
        comparison = compare(a, b, verifies_content=False)
        assert comparison == msgspec.structs.replace(compare(trace, each), notes=comparison.notes)
        assert comparison.near_ties
    assert comparison.level == "bits"


def test_damage_is_found_by_the_comparison_itself(tmp_path: Path):
    """Damage a byte on both sides, on one side, and where the traces order their candidates otherwise."""
    trace = base_trace()
    paths = [store(trace, tmp_path / name) for name in "ab"]
    contents = [path.read_bytes() for path in paths]
    place = contents[0].index(trace.columns.resolvents.atoms[:40].tobytes()) + 100
    for damaged in ((0,), (1,), (0, 1)):
        for i, path in enumerate(paths):
            content = bytearray(contents[i])
            content[place] ^= 4 * (i in damaged)
            path.write_bytes(content)
        for verifies_content in (False, True):
            with pytest.raises(UserError, match="the data were altered") as caught:
                compare(*paths, verifies_content=verifies_content)
            assert "resolvents/atoms" in caught.value.where
    others = (
        store(shuffle(trace, np.random.default_rng(3)), tmp_path / "c"),
        store(trace, tmp_path / "d", shard_steps=60),
    )
    for other in others:
        with pytest.raises(UserError, match="the data were altered"):
            compare(other, paths[1], verifies_content=False)


def seal(file: h5py.File) -> None:
    """Give a trace the checksum of the checksums of its datasets."""
    checks = []
    file.visititems(lambda n, node: checks.append((n, int(node.attrs["xxh3"]))) if "xxh3" in node.attrs else None)
    total = b"".join(n.encode() + b"\0" + value.to_bytes(8, "little") for n, value in sorted(checks))
    file.attrs["xxh3"] = np.uint64(xxhash.xxh3_64_intdigest(total))


@pytest.mark.parametrize("verifies_content", [False, True])
def test_a_wrong_checksum_of_an_empty_column_is_found(tmp_path: Path, verifies_content: bool):
    trace = with_candidates(base_trace(), [])
    idle = base_trace().columns.candidates
    idle = idle._replace(num_steps=np.zeros_like(idle.num_steps))
    paths = [store(with_columns(trace, trace.columns._replace(candidates=idle)), tmp_path / name) for name in "ab"]
    with h5py.File(paths[1], "r+") as file:
        assert file["steps/choice"].shape == (0,)
        file["steps/choice"].attrs["xxh3"] += np.uint64(1)
        seal(file)
    with pytest.raises(UserError, match="the data were altered") as caught:
        compare(*paths, verifies_content=verifies_content)
    assert "steps/choice" in caught.value.where


def test_digests_that_are_not_those_of_their_columns_are_found_however_large_the_trace(tmp_path: Path):
    trace = base_trace()
    first = store(trace, tmp_path / "a", level="digests")
    wrong = with_element(trace, "steps.outcome", 7, lambda value: (value + 1) % 3)
    for columns, digests in ((wrong, trace), (trace, wrong)):
        rewrite(store(columns, tmp_path / "b"), tmp_path / "c", digests__sequence=digests.digests.sequence)
        for expected in (first, store(trace, tmp_path / "whole")):
            if columns is trace or expected == first:
                with pytest.raises(UserError, match="has digest"):
                    compare(expected, tmp_path / "c", verifies_content=False)


def test_candidates_between_two_whose_counts_differ_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A piece has one row.
    monkeypatch.setattr("kgverify.comparison.stored_columns.PIECE_BYTES", 4)
    trace = base_trace()
    num_steps = trace.columns.candidates.num_steps.copy()
    first = int(np.flatnonzero((num_steps[:-2] > 1) & (num_steps[1:-1] > 1))[0])
    num_steps[[first, first + 2]] += np.array([-1, 1]).astype(num_steps.dtype)
    other = with_column(trace, "candidates.num_steps", num_steps)
    paths = [store(each, tmp_path / name) for name, each in (("a", trace), ("b", other))]
    for verifies_content in (False, True):
        found = compare(*paths, verifies_content=verifies_content).divergences
        assert found == compare(trace, other).divergences
        assert [each.candidate for each in found] == [first, first + 1, first + 2]


def test_what_is_not_listed_is_counted():
    trace = base_trace()
    wrong = with_column(trace, "resolvents.score", column_of(trace, "resolvents.score") + 1.0)
    whole, few = compare(trace, wrong), compare(trace, wrong, kept=3)
    num = len(whole.divergences)
    assert num > 3
    assert few.divergences == whole.divergences[:3]
    assert f"{num:,} divergences were found, and the first 3 are listed" in few.notes
    assert (few.level, few.coverage) == (whole.level, whole.coverage)
    # Candidates that one side lacks count among them.
    assert len(compare(with_candidates(trace, np.arange(1, 25)), wrong, kept=1).divergences) == 1


def test_progress_counts_the_bytes_of_both(tmp_path: Path):
    path = store(base_trace(), tmp_path / "a")
    passed: list[int] = []
    compare(path, path, progress=passed.append)
    columns = base_trace().columns
    digests = 8 * len(columns.steps.depth)
    assert sum(passed) == 2 * (sum(column.nbytes for level in columns[:3] for column in level) + digests)


def test_a_missing_and_a_doubled_shard_are_inconclusive_and_named(tmp_path: Path):
    trace = base_trace()
    whole, other = store(trace, tmp_path / "a"), store(trace, tmp_path / "b", shard_steps=60)
    shard = other / "shard-00001.h5"
    shutil.copy(other / "shard-00002.h5", shard)
    for what in ("states that it is shard-00002.h5", "is missing"):
        for pair in ((whole, other), (other, whole), (other, other)):
            report = judge(*pair)
            assert report.verdict is Verdict.INCONCLUSIVE
            assert "shard-00001.h5" in report.reasons[0]
            assert what in report.reasons[0]
            assert not report.divergences
        shard.unlink(missing_ok=True)
