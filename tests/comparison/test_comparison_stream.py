"""Traces on disk and the same traces in memory have the same report, whatever differs and however they are stored."""

import json
import shutil
from itertools import product
from pathlib import Path

import h5py
import msgspec
import numpy as np
import pytest
import xxhash
from comparison_traces import (
    as_other,
    column_of,
    compare,
    judge,
    small_lockstep_trace,
    small_trace,
    with_candidates,
    with_column,
    with_columns,
    with_element,
    with_score_error,
)
from trace_changes import (
    CHANGES,
    STEP_CHANGES,
    Change,
    base_trace,
    compare_twice,
    cut_steps,
    rewrite,
    shuffle,
    store,
    tie,
)

import kgverify
from kgverify import Trace, UserError, Verdict

UNVERIFIED = ("verified while comparing", "checked in the")
LEVELS = ["digests", "steps"]
# A deep trace is one of level `steps` but for what its stages gave.
PAIRS = [*product(LEVELS, LEVELS), ("deep", "deep"), ("steps", "deep"), ("digests", "deep")]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small trace has many."""
    monkeypatch.setattr("kgverify.comparison.stored_columns.PIECE_BYTES", 512)
    monkeypatch.setattr("kgverify.comparison.stored_columns._GAP", 1)
    monkeypatch.setattr("kgverify.trace.model.column_reader.ColumnReader.block_steps", 12)


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


@pytest.mark.sample(2, deep=2)
@pytest.mark.parametrize("number", range(len(CHANGES)), ids=lambda number: CHANGES[number].__name__)
def test_a_streamed_report_is_that_of_the_comparison_in_memory(number: int, tmp_path: Path):
    random, change = np.random.default_rng(number), CHANGES[number]
    expected = base_trace(score_error=10.0 if change is tie else 1e-5 * (number % 3))
    actual = change(expected, random)
    if number % 2:
        actual = random.choice(np.array(CHANGES, object))(actual, random)
    paths = []
    for name, trace, level in zip("ab", (expected, actual), PAIRS[number % len(PAIRS)], strict=True):
        is_sharded, is_chunked, is_archived = random.random(3) < 0.4
        # At level deep, the small chunks would be too many.
        is_chunked &= level != "deep"
        how = {"shard_steps": 30 if is_sharded else 1 << 40, "is_chunked": is_chunked, "is_archived": is_archived}
        paths.append(store(trace, tmp_path / name, level=level, **how))
    assert_same_report(*paths)
    assert_same_report(*paths[::-1])
    streamed = compare(*paths, verifies_content=False)
    assert compare(paths[0], read(paths[1])).divergences == streamed.divergences
    assert compare(*paths, kept=1).divergences == streamed.divergences[:1]


@pytest.mark.parametrize("change", STEP_CHANGES, ids=lambda change: change.__name__)
def test_a_comparison_written_independently_finds_the_same(change: Change) -> None:
    verdicts = set()
    for seed in range(4):
        random, lockstep = np.random.default_rng(seed), seed % 3 == 2
        base = small_lockstep_trace() if lockstep else base_trace() if seed % 3 else small_trace()
        base = with_score_error(base, float(random.choice([0.0, 1e-5, 10.0])))
        # What both traces have in common is unusual as well.
        sides = [STEP_CHANGES[seed * 5 % len(STEP_CHANGES)](base, random)] * 2
        # A few of them in either trace.
        for each in (change, *random.choice(np.array(STEP_CHANGES, object), seed // 3)):
            side = int(random.random() < 0.7)
            sides[side] = each(sides[side], random)
        verdicts.add(compare_twice(*sides, lockstep=lockstep))
    assert Verdict.DIVERGE in verdicts


@pytest.mark.sample(1)
@pytest.mark.parametrize("levels", PAIRS[1::2], ids="-".join)
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
        assert ("digests.sequence" in report.coverage.fields) == ("digests" in levels)
        assert report.coverage.steps == len(trace.columns.steps.depth)


def test_goals_without_stored_digests_are_compared_with_digests(tmp_path: Path):
    trace = base_trace()
    changed = with_element(trace, "steps.choice", 7, lambda value: value + 1)
    first = store(trace, tmp_path / "a", level="digests")
    for each, verdict in ((trace, Verdict.AGREE), (changed, Verdict.DIVERGE)):
        rewrite(store(each, tmp_path / "b"), tmp_path / "c", digests__sequence=None)
        for pair in ((first, tmp_path / "c"), (tmp_path / "c", first)):
            assert compare(*pair).verdict is verdict


@pytest.mark.sample(1, deep=2)
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


def test_rounded_scores_beside_a_wrong_one_are_counted(tmp_path: Path):
    trace = base_trace(2, score_error=1e-3)
    scores = trace.columns.resolvents.score + 1e-9
    scores[5] += 1.0
    other = with_column(trace, "resolvents.score", scores)
    comparison = compare(store(trace, tmp_path / "a"), store(other, tmp_path / "b"), verifies_content=False)
    assert comparison == msgspec.structs.replace(compare(trace, other), notes=comparison.notes)
    assert len(comparison.divergences) == 1
    assert comparison.rounding is not None
    assert comparison.rounding.num_differing > len(scores) // 2


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


@pytest.mark.parametrize("name", ["resolvents/atoms", "resolvents/origin", "digests/sequence"])
def test_damage_is_found_in_traces_of_different_shapes(name: str, tmp_path: Path):
    trace = base_trace()
    first = store(trace, tmp_path / "a")
    second = store(cut_steps(trace, np.random.default_rng(3)), tmp_path / "b")
    with h5py.File(second) as file:
        place = file[name].id.get_offset() + 100
    content = bytearray(second.read_bytes())
    content[place] ^= 4
    second.write_bytes(content)
    with pytest.raises(UserError, match="the data were altered") as caught:
        compare(first, second, verifies_content=False)
    assert name in caught.value.where


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
