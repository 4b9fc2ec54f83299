"""Traces with counts and values beyond what 8, 16 and 32 bits hold are read as they were written, in every way.

The columns of a candidate follow from its number alone, by a formula. So the same formula gives what any range, selection or
order of candidates must be, without the code that joins, selects and reads columns.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kgverify as kv
from kgverify import Candidates, Clauses, Columns, Header, PolicyInfo, Rankings, Storage, Symbols, TraceFile
from kgverify.trace.model.column_reader import BLOCK_STEPS
from kgverify.trace.model.columns import Resolvents, Steps
from kgverify.trace.model.digests import compute_digests, compute_sequence, root_digest

SYMBOLS = Symbols(("p", "q"), ("a", "b", "c"))
FACTS = np.array([[i % 2, i % 3, 2] for i in range(24)], np.int32)
HEADER = Header(kv.EngineInfo("known"), kv.Limits(max_depth=9), PolicyInfo("known"), "")
RANKINGS = Rankings(
    np.array([0, 70_000], np.int32),
    np.array([1, 0], np.int8),
    np.array([3, 70_000], np.uint32),
    np.array([1.0, 65_537.0]),
    np.array([2.5, 70_000.0]),
)
NUM_STEPS = np.array([2, 0, 300, 1, 3, 70, 1, 5, BLOCK_STEPS + 100, 1, 2, 0, 4])
"""The steps of each candidate: more than a byte counts, more than one block has, and none."""
LONG = 2
"""A candidate of more steps than a byte counts."""
LARGE = 8
"""A candidate of more steps than one block has."""
_WIDE = 5
"""A candidate whose first step has more resolvents than 16 bits count, and a goal of more atoms than a byte counts."""
_NUM_WIDE = (1 << 16) + 3
MOST = 1 << 31
"""The values from 0 on that a number of 32 bits has."""
_UINT32 = 1 << 32


def make_columns(numbers: Iterable[int]) -> Columns:
    """Return the columns of the candidates with these numbers, in this order."""
    of = np.fromiter(numbers, np.int64)
    candidates = Candidates(
        query=(of * 400_000_009 % MOST).astype(np.int32),
        side=(of % 3).astype(np.int8),
        atom=np.column_stack((of % 5, of * 100_000_007 % MOST, -1 - of)).astype(np.int32),
        num_steps=NUM_STEPS[of].astype(np.uint32),
        outcome=(of % 4).astype(np.int8),
        is_limited=(of // 4 % 2).astype(np.uint8),
        log_probability=of / -3,
    )
    return Columns(candidates, *make_steps(*_expand(of, NUM_STEPS[of])))


def make_steps(candidate: NDArray[np.int64], step: NDArray[np.int64]) -> tuple[Steps, Resolvents]:
    """Return steps by their candidate and their place in it, with their resolvents."""
    key = candidate * 20_011 + step
    is_wide = (candidate == _WIDE) & (step == 0)
    num_atoms = np.where(is_wide, 300, 1 + key % 2)
    num_resolvents = np.where(is_wide, _NUM_WIDE, key % 3)
    owner, ordinal = _expand(key, num_resolvents)
    row = owner * 70_001 + ordinal
    kind = np.where(ordinal < 3, row % 3, 1)
    origin_kind = row // 3 % 3
    num_made = np.where(kind == 0, 1 + row % 2, 0)
    return (
        Steps(
            depth=(step % (1 << 16)).astype(np.uint16),
            num_atoms=num_atoms.astype(np.uint16),
            num_resolvents=num_resolvents.astype(np.uint32),
            dropped_atoms=(key * 2_654_435_761 % _UINT32).astype(np.uint32),
            dropped_resolvents=(key // 3 * 40_503 % _UINT32).astype(np.uint32),
            choice=(key * 7_919 % MOST).astype(np.int32),
            outcome=(key // 2 % 4).astype(np.int8),
            goal_atoms=_make_atoms(key, num_atoms),
        ),
        Resolvents(
            kind=kind.astype(np.uint8),
            num_atoms=num_made.astype(np.uint16),
            origin_kind=origin_kind.astype(np.uint8),
            origin=np.where(origin_kind == 0, 0, row * 16_807 % len(FACTS)).astype(np.int32),
            score=(row % 1_000_003 / -7),
            atoms=_make_atoms(row, num_made),
        ),
    )


def _expand(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each of the rows that counts count its key, and its place among those of that key."""
    ends = counts.cumsum()
    return np.repeat(keys, counts), np.arange(counts.sum()) - np.repeat(ends - counts, counts)


def _make_atoms(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    owner, ordinal = _expand(keys, counts)
    number = owner * 3 + ordinal
    return np.column_stack((number % 3, number * 1_000_003 % MOST, -1 - number % 70_001)).astype(np.int32)


NUMBERS = [0, 1, LONG, 3, 5, 6, 7, 4, 10, LARGE, 9, 11, 12]
"""The numbers of the candidates, from which every column follows."""
BATCHES = ((0, 3), (3, 4), (4, 5), (5, 6), (6, 8), (8, 9), (9, 11), (11, 13))
"""The third and the seventh of these fill a shard."""
STARTS = [0, 5, 11, 13]


def columns_of(rows: Iterable[int]) -> Any:
    return make_columns([NUMBERS[row] for row in rows])


def assert_same(found: Iterable[Any], expected: Iterable[Any]) -> None:
    for group, other in zip(found, expected, strict=True):
        for name, column, right in zip(group._fields, group, other, strict=True):
            assert column.dtype == right.dtype, name
            np.testing.assert_array_equal(column, right, err_msg=name)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    path = tmp_path_factory.mktemp("wide") / "shards"
    with kv.TraceWriter(
        path, HEADER, SYMBOLS, clauses=Clauses(FACTS), storage=Storage(shard_steps=303, commit_seconds=1e9)
    ) as writer:
        for number, (begin, end) in enumerate(BATCHES):
            columns = columns_of(range(begin, end))
            writer.append(columns, compute_sequence(columns) if number % 2 else None)
        writer.set_rankings(RANKINGS)
    return TraceFile(path)


def test_the_whole_trace_is_read(file: TraceFile):
    whole = columns_of(range(len(NUMBERS)))
    assert max(NUM_STEPS) > BLOCK_STEPS
    assert whole.steps.num_resolvents.max() > 1 << 16
    trace = file.load()
    assert_same(trace.columns[:3], whole[:3])
    assert_same([trace.digests, trace.rankings], [compute_digests(whole), RANKINGS])
    assert trace.symbols == SYMBOLS
    file.verify_content()
    assert trace.root == file.compute_root() == root_digest(whole.candidates, compute_sequence(whole))


def test_ranges_are_read_at_before_and_behind_the_edges_of_files(file: TraceFile):
    edges = sorted({row for start in STARTS for row in (start - 1, start, start + 1) if 0 <= row <= len(NUMBERS)})
    for begin, end in [*zip(edges, edges, strict=True), *pairwise(edges), *zip(edges, edges[2:], strict=False)]:
        known = columns_of(range(begin, end))
        assert_same([file.candidate_columns(begin, end)], [known.candidates])
        assert_same(file.read_candidates(begin, end)[:3], known[:3])


@pytest.mark.parametrize("rows", [[5, 11, 12, 0], [0, 0, 12], [], [row * 5 % 13 for row in range(13)]], ids=str)
def test_candidates_of_several_files_are_gathered_in_any_order(file: TraceFile, rows: list[int]):
    known = columns_of(rows)
    assert_same(file.gather_candidates(np.array(rows, np.int64))[:3], known[:3])
    for name, column in known.candidates._asdict().items():
        found = file.gather_column(f"candidates/{name}", np.array(rows, np.int64))
        assert found.dtype == column.dtype
        np.testing.assert_array_equal(found, column)


def test_each_element_belongs_to_its_candidate_and_each_last_step_is_read(file: TraceFile):
    ends = dict.fromkeys(
        ("candidates/query", "steps/depth", "steps/goal_atoms", "resolvents/kind", "resolvents/atoms"), 0
    )
    for row, number in enumerate(NUMBERS):
        columns = columns_of([row])
        for name, begin in ends.items():
            group, column = name.split("/")
            ends[name] = end = begin + len(getattr(getattr(columns, group), column))
            assert {file.candidate_of(name, element) for element in (begin, end - 1) if begin < end} <= {row}
        own = compute_sequence(columns)
        np.testing.assert_array_equal(np.concatenate([*file.read_digests(row, row + 1)]), own)
        last = int(NUM_STEPS[number]) - 1
        if last >= 0:
            step, digests = file.read_step(row, last)
            known = make_steps(np.array([number]), np.array([last]))
            assert_same(step[:3], [columns.candidates, *known])
            assert digests.tolist() == own[last:].tolist()


def test_blocks_end_with_files_and_hold_a_limited_number_of_steps(file: TraceFile):
    blocks = list(file.split())
    edges = [*(begin for begin, _ in blocks), len(NUMBERS)]
    assert blocks == [*pairwise(edges)]
    assert {*STARTS} <= {*edges}
    counts = file.candidate_columns().num_steps
    assert max(int(counts[begin:end].sum()) for begin, end in blocks if end - begin > 1) <= BLOCK_STEPS


def test_digests_alone_of_more_candidates_than_a_block_has_are_read(tmp_path: Path):
    num = BLOCK_STEPS + 1
    columns = make_columns(3 - np.arange(num) % 2 * 2)
    sequence = np.arange(len(columns.steps.depth), dtype=np.uint64) << np.uint64(40)
    storage = Storage("digests", shard_steps=1)
    with kv.TraceWriter(tmp_path / "digests", HEADER, SYMBOLS, storage=storage) as writer:
        writer.append(columns, sequence)
    file = TraceFile(tmp_path / "digests")
    assert [*file.split()] == [(0, num - 1), (num - 1, num)]
    assert file.compute_root() == root_digest(columns.candidates, sequence)
    np.testing.assert_array_equal(file.load().digests.sequence, sequence)


@pytest.mark.deep
@pytest.mark.parametrize(("mode", "num"), [("eager", 33_000), ("native", 66_000)])
def test_a_step_of_more_resolvents_than_15_or_16_bits_count_is_recorded(mode: str, num: int, tmp_path: Path):
    (tmp_path / "train.txt").write_text("".join(f"p(a, b{i}).\n" for i in range(num)) + "q(b0, c).\n")
    (tmp_path / "test.txt").write_text("r(a, c).\n")
    (tmp_path / "rules.txt").write_text("r(X, Z) :- p(X, Y), q(Y, Z)\n")
    report = kv.verify(
        str(tmp_path),
        kv.Evaluator(mode=mode, device="cpu", slots=1),
        queries=1,
        corruptions=1,
        limits=kv.Limits(max_depth=3, max_resolvents=num),
        equality=kv.Equality(determinism=False, minimum={"proved": 1}),
    )
    assert report.verdict is kv.Verdict.AGREE
    assert report.coverage.resolvents > num
