"""Traces on disk and the same traces in memory have the same report, whatever differs and however they are stored."""

import shutil

import h5py
import msgspec
import numpy as np
import pytest
import xxhash
from comparison_traces import small_lockstep_trace, with_column, with_columns, with_element
from stream_pairs import CHANGES, base_trace, chunk, shuffle, store, tie

from kgverify import UserError, Verdict
from kgverify.comparison import stored_columns
from kgverify.comparison.compare import SKIPPED, Comparer, compare
from kgverify.comparison.recorded.evidence import SAMPLED
from kgverify.comparison.result import Level
from kgverify.report.report import encode_report
from kgverify.trace.model.columns import empty_columns, select_candidates
from kgverify.trace.read import data_file as content
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.recorded import compare_recorded


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """So that a small trace has many."""
    monkeypatch.setattr(stored_columns, "PIECE_BYTES", 512)
    monkeypatch.setattr(content, "BLOCK_STEPS", 12)
    monkeypatch.setattr("kgverify.comparison.stored_columns.BLOCK_STEPS", 12)


def reports(expected, actual, *, verifies_content):
    """Return the report of traces on disk, without the note on what was not verified, and the report of traces in memory."""
    streamed = compare_recorded(expected, actual, verifies_content=verifies_content).report
    notes = tuple(note for note in streamed.notes if note != SKIPPED and not note.startswith(SAMPLED))
    assert verifies_content or notes != streamed.notes
    loaded = compare_recorded(read_trace(expected), read_trace(actual)).report
    return msgspec.structs.replace(streamed, notes=notes), loaded


@pytest.mark.sample(2, deep=3)
@pytest.mark.parametrize("seed", range(16))
def test_a_streamed_report_is_that_of_the_comparison_in_memory(seed, tmp_path):
    random = np.random.default_rng(seed)
    score_error = float(random.choice([0.0, 1e-5, 10.0]))
    expected = actual = base_trace(score_error=score_error)
    for i in range(int(random.integers(0, 3)) + (seed < len(CHANGES))):
        change = CHANGES[seed] if seed < len(CHANGES) and not i else random.choice(CHANGES)
        changed = change(actual, random)
        if random.random() < 0.2:
            expected = change(expected, random)
        actual = changed
    paths = []
    for name, trace in (("expected", expected), ("actual", actual)):
        is_sharded = random.random() < 0.5
        path = store(
            trace,
            tmp_path / name,
            shard_steps=int(random.integers(5, 80)) if is_sharded else 1 << 40,
            is_chunked=random.random() < 0.3,
        )
        paths.append(path)
    streamed, loaded = reports(*paths, verifies_content=bool(seed % 2))
    assert msgspec.json.decode(encode_report(streamed)) == msgspec.json.decode(encode_report(loaded))


@pytest.mark.sample(2, deep=3)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_change_alone_in_either_direction(change, tmp_path):
    trace = base_trace(score_error=10.0 if change is tie else 1e-5)
    changed = change(trace, np.random.default_rng(5))
    first, second = store(trace, tmp_path / "a"), store(changed, tmp_path / "b", shard_steps=30)
    for pair in ((first, second), (second, first)):
        streamed, loaded = reports(*pair, verifies_content=False)
        assert encode_report(streamed) == encode_report(loaded)


def test_equal_traces_agree_however_they_are_divided_or_stored(tmp_path):
    trace = base_trace()
    first = store(trace, tmp_path / "a")
    others = [
        store(trace, tmp_path / "b", shard_steps=7),
        store(shuffle(trace, np.random.default_rng(1)), tmp_path / "c", shard_steps=50),
        store(trace, tmp_path / "d", is_chunked=True),
    ]
    for other in others:
        comparison = compare(first, other, verifies_content=False)
        assert comparison.verdict is Verdict.AGREE
        assert comparison.coverage == compare(trace, trace).coverage
        assert comparison.level is None


def test_lockstep_traces_are_compared_position_by_position(tmp_path):
    trace = small_lockstep_trace()
    wrong = with_element(trace, "steps.choice", 9, lambda value: value + 1)
    paths = [store(each, tmp_path / name) for name, each in (("a", trace), ("b", wrong))]
    streamed = compare(*paths, lockstep=True)
    loaded = compare(*map(read_trace, paths), lockstep=True)
    assert streamed == loaded
    assert streamed.divergences


def test_scores_of_other_bits_beside_a_near_tie_are_no_bits_of_it(tmp_path):
    trace = base_trace(score_error=1e-3)
    tied = tie(trace, np.random.default_rng(2))
    jittered = with_column(tied, "resolvents.score", tied.columns.resolvents.score + 1e-9)
    for each in (tied, jittered):
        a, b = store(trace, tmp_path / "a"), store(each, tmp_path / "b")
        comparison = compare(a, b, verifies_content=False)
        assert comparison == msgspec.structs.replace(compare(trace, each), notes=comparison.notes)
        assert comparison.near_ties
    assert comparison.level is Level.BITS


def test_damage_is_found_by_the_comparison_itself(tmp_path):
    """Damage a byte on both sides, on one side, and in a column that is not compared."""
    trace = base_trace()
    paths = [store(trace, tmp_path / name) for name in "ab"]
    contents = [path.read_bytes() for path in paths]
    name = b"resolvents/atoms"
    needle = trace.columns.resolvents.atoms[:40].tobytes()
    place = contents[0].index(needle) + 100
    for damaged in ((0,), (1,), (0, 1)):
        for i, path in enumerate(paths):
            content = bytearray(contents[i])
            content[place] ^= 4 * (i in damaged)
            path.write_bytes(content)
        for verifies_content in (False, True):
            with pytest.raises(UserError, match="the data were altered") as caught:
                compare(*paths, verifies_content=verifies_content)
            assert name.decode() in caught.value.where


def test_damage_is_found_in_traces_of_other_order_too(tmp_path):
    trace = base_trace()
    first = store(trace, tmp_path / "a")
    second = store(shuffle(trace, np.random.default_rng(3)), tmp_path / "b")
    content = bytearray(second.read_bytes())
    content[content.index(trace.columns.resolvents.score[:4].tobytes()) + 5] ^= 1
    second.write_bytes(content)
    with pytest.raises(UserError, match="the data were altered"):
        compare(first, second, verifies_content=False)


def seal(file):
    """Give a trace the checksum of the checksums of its datasets."""
    checks = []
    file.visititems(lambda n, node: checks.append((n, int(node.attrs["xxh3"]))) if "xxh3" in node.attrs else None)
    total = b"".join(n.encode() + b"\0" + value.to_bytes(8, "little") for n, value in sorted(checks))
    file.attrs["xxh3"] = np.uint64(xxhash.xxh3_64_intdigest(total))


@pytest.mark.parametrize("verifies_content", [False, True])
def test_a_wrong_checksum_of_an_empty_column_is_found(tmp_path, verifies_content):
    columns = base_trace().columns
    idle = columns.candidates._replace(num_steps=np.zeros_like(columns.candidates.num_steps))
    trace = with_columns(base_trace(), empty_columns()._replace(candidates=idle))
    paths = [store(trace, tmp_path / name) for name in "ab"]
    with h5py.File(paths[1], "r+") as file:
        assert file["steps/choice"].shape == (0,)
        file["steps/choice"].attrs["xxh3"] += np.uint64(1)
        seal(file)
    with pytest.raises(UserError, match="the data were altered") as caught:
        compare(*paths, verifies_content=verifies_content)
    assert "steps/choice" in caught.value.where


def test_candidates_between_two_whose_counts_differ_are_compared(tmp_path, monkeypatch):
    # A piece has one row.
    monkeypatch.setattr(stored_columns, "PIECE_BYTES", 4)
    trace = base_trace()
    num_steps = trace.columns.candidates.num_steps.copy()
    first = int(np.flatnonzero((num_steps[:-2] > 1) & (num_steps[1:-1] > 1))[0])
    num_steps[first] -= 1
    num_steps[first + 2] += 1
    other = with_column(trace, "candidates.num_steps", num_steps)
    paths = [store(each, tmp_path / name) for name, each in (("a", trace), ("b", other))]
    for verifies_content in (False, True):
        found = compare(*paths, verifies_content=verifies_content).divergences
        assert found == compare(trace, other).divergences
        assert [each.candidate for each in found] == [first, first + 1, first + 2]


def test_the_counterparts_of_candidates_are_found_whether_both_traces_order_them_alike_or_not(tmp_path):
    trace = base_trace()
    num = len(trace.columns.candidates.query)
    rows = np.array([3, 0, 5])
    for order in (np.arange(num), np.arange(num)[::-1]):
        other = with_columns(trace, select_candidates(trace.columns, order))
        comparer = Comparer(
            *(store(each, tmp_path / f"{order[0]}{name}") for name, each in (("a", trace), ("b", other)))
        )
        comparer.compare()
        atoms = [trace.columns.candidates.atom[rows], other.columns.candidates.atom[comparer.counterparts(rows)]]
        assert np.array_equal(*atoms)


def test_wrong_digests_of_a_step_that_agrees_are_found_where_they_differ(tmp_path):
    trace = base_trace()
    paths = [store(trace, tmp_path / name) for name in "ab"]
    with h5py.File(paths[1], "r+") as file:
        data = file["digests/sequence"]
        data[5] += np.uint64(1)
        data.attrs["xxh3"] = np.uint64(xxhash.xxh3_64_intdigest(data[()].tobytes()))
        seal(file)
    with pytest.raises(UserError, match="has digest"):
        compare(*paths, verifies_content=False)


@pytest.mark.deep
def test_a_missing_and_a_doubled_shard_are_inconclusive_and_named(tmp_path):
    trace = base_trace()
    whole, other = store(trace, tmp_path / "a"), store(trace, tmp_path / "b", shard_steps=20)
    shard = other / "shard-00001.h5"
    content = shard.read_bytes()
    shutil.copy(other / "shard-00002.h5", shard)
    for what in ("states that it is shard-00002.h5", "is missing"):
        for pair in ((whole, other), (other, whole), (other, other)):
            report = compare_recorded(*pair).report
            assert report.verdict is Verdict.INCONCLUSIVE
            assert "shard-00001.h5" in report.reasons[0]
            assert what in report.reasons[0]
            assert not report.divergences
        shard.unlink(missing_ok=True)
    shard.write_bytes(content)
    assert compare_recorded(whole, other).report.verdict is Verdict.AGREE


def test_what_is_not_listed_is_counted(tmp_path):
    trace = base_trace()
    score = trace.columns.resolvents.score + 1.0
    paths = [
        store(each, tmp_path / name)
        for name, each in (("a", trace), ("b", with_column(trace, "resolvents.score", score)))
    ]
    whole, few = compare(*paths), compare(*paths, kept=3)
    num = len(whole.divergences)
    assert num > 3
    assert few.divergences == whole.divergences[:3]
    assert f"{num:,} divergences were found, and the first 3 are listed" in few.notes
    assert (few.level, few.coverage) == (whole.level, whole.coverage)


def test_a_chunked_trace_is_the_same_trace(tmp_path):
    path = store(base_trace(), tmp_path / "a")
    before = read_trace(path)
    chunk(path)
    assert read_trace(path).root == before.root
    assert compare(path, path, verifies_content=True).verdict is Verdict.AGREE


def test_progress_counts_the_bytes_of_both(tmp_path):
    path = store(base_trace(), tmp_path / "a")
    passed = []
    compare(path, path, progress=passed.append)
    columns = base_trace().columns
    digests = 8 * len(columns.steps.depth)
    assert sum(passed) == 2 * (sum(column.nbytes for level in columns[:3] for column in level) + digests)
