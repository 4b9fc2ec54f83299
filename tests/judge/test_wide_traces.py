"""Traces with counts and values beyond what 8, 16 and 32 bits hold are read as they were written, in every way."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_formula import LARGE, LONG, NUM_STEPS, make_columns, make_steps

import kgverify as kv
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import Rankings
from kgverify.trace.model.digests import compute_digests, compute_sequence, root_digest
from kgverify.trace.model.header import Header, PolicyInfo
from kgverify.trace.read.data_file import BLOCK_STEPS
from kgverify.trace.read.trace_file import TraceFile
from kgverify.trace.write.writer import Clauses, Storage

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
NUMBERS = [0, 1, LONG, 3, 5, 6, 7, 4, 10, LARGE, 9, 11, 12]
"""The numbers of the candidates, from which every column follows."""
BATCHES = ((0, 3), (3, 4), (4, 5), (5, 6), (6, 8), (8, 9), (9, 11), (11, 13))
"""The third and the seventh of these fill a shard."""
STARTS = [0, 5, 11, 13]


def columns_of(rows: Iterable[int]) -> Any:
    return make_columns([NUMBERS[row] for row in rows], num_clauses=len(FACTS))


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
        np.testing.assert_array_equal(
            np.concatenate([part["sequence"] for part in file.read_digests(row, row + 1)]), own
        )
        last = int(NUM_STEPS[number]) - 1
        if last >= 0:
            step, digests = file.read_step(row, last)
            known = make_steps(np.array([number]), np.array([last]), num_clauses=len(FACTS))
            assert_same(step[:3], [columns.candidates, *known[1:3]])
            assert digests["sequence"].tolist() == own[last:].tolist()


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
