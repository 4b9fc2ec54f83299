"""Traces are checked and compared block by block: the result is that of the whole trace, and the memory does not grow."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kgverify as kv
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.model.columns import number_rows

NUM_CONSTANTS = 50


def record(path: Path, num: int, engine: str = "one", *, shard_steps: int = 1_000_000) -> Path:
    """Record derivations of two steps. Every seventh candidate is recorded twice; every eleventh is OPEN at its end."""
    rng = np.random.default_rng(0)
    names = {"predicates": ["p", "q"], "constants": [f"c{i}" for i in range(NUM_CONSTANTS)]}
    with kv.LoopWriter(
        path, engine=engine, policy="shortest", limits={"max_depth": 9}, shard_steps=shard_steps, **names
    ) as writer:
        for begin in range(0, num, 500):
            rows = np.arange(begin, min(num, begin + 500))
            row = np.where(rows % 7 == 6, rows - 1, rows)
            atom = np.stack([row % 2, row // NUM_CONSTANTS % NUM_CONSTANTS, row % NUM_CONSTANTS], 1)
            goal = np.stack([rng.integers(0, high, 2 * len(rows)) for high in (2, NUM_CONSTANTS, NUM_CONSTANTS)], 1)
            goal[::2] = atom
            atoms = np.roll(goal, -1, 0)
            count = np.full(2 * len(rows), 2)
            writer.append(
                {
                    "query": row // 20,
                    "side": row // 10 % 2,
                    "atom": atom,
                    "num_steps": np.full(len(rows), 2),
                    "outcome": np.where(rows % 11 == 10, 0, 1),
                    "is_limited": np.zeros(len(rows), int),
                    "log_probability": np.full(len(rows), 2 * np.log(0.5)),
                },
                {
                    "depth": np.tile([0, 1], len(rows)),
                    "num_atoms": np.ones_like(count),
                    "num_resolvents": count,
                    "dropped_atoms": 0 * count,
                    "dropped_resolvents": 0 * count,
                    "choice": 0 * count,
                    "outcome": np.tile([0, 1], len(rows)),
                    "goal_atoms": goal,
                },
                {
                    "kind": np.tile([0, 0, 1, 0], len(rows)),
                    "num_atoms": np.tile([1, 1, 0, 1], len(rows)),
                    "origin_kind": np.full(4 * len(rows), 2),
                    "origin": np.zeros(4 * len(rows), int),
                    "score": np.full(4 * len(rows), -0.5),
                    "atoms": np.concatenate([atoms[::2], atoms[::2], atoms[::2]], 1).reshape(-1, 3),
                },
            )
    return path


@pytest.mark.parametrize("shard_steps", [1_000_000, 600])
def test_a_check_in_small_blocks_reports_what_a_check_of_the_whole_trace_reports(
    shard_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = record(tmp_path / "trace", 1_500, shard_steps=shard_steps)
    whole = check_trace(path)
    assert path.is_dir() == (shard_steps == 600)
    assert sum("recorded more than once" in note for note in whole.notes) == 10
    assert any("candidates end OPEN" not in note and "(first: candidate 10)" in note for note in whole.notes)
    for name, size in (
        ("model.column_reader.ColumnReader.block_steps", 100),
        ("maintain.check._BLOCK", 70),
        ("maintain.check._SEARCHED", 40),
    ):
        monkeypatch.setattr(f"kgverify.trace.{name}", size)
    assert check_trace(path) == whole


def measure_peak(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.deep
def test_the_memory_of_a_check_and_of_a_comparison_does_not_grow_with_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("_BLOCK", "_SEARCHED"):
        monkeypatch.setattr(f"kgverify.trace.maintain.check.{name}", 1 << 10)
    monkeypatch.setattr("kgverify.trace.model.column_reader.ColumnReader.block_steps", 1 << 12)
    peaks = []
    # The first comparison also loads modules.
    for num in (10_000, 10_000, 30_000):
        one, other = (record(tmp_path / f"{engine}-{len(peaks)}", num, engine) for engine in ("one", "other"))
        peaks.append((measure_peak(partial(check_trace, one)), measure_peak(partial(kv.compare, one, other))))
    # The larger traces have 40,000 more steps, and a step takes about 100 bytes on disk.
    assert all(large - small < 1 << 20 for _, small, large in zip(*peaks, strict=True)), peaks


@given(st.data())
def test_rows_have_the_numbers_of_their_order_among_different_rows(data: st.DataObject):
    scale = data.draw(st.sampled_from([1, 1 << 20, 1 << 40]))
    width = data.draw(st.integers(1, 4))
    row = st.tuples(*[st.integers(-2, 2)] * width)
    left, right = (np.array(data.draw(st.lists(row, max_size=8)), np.int64).reshape(-1, width) * scale for _ in "ab")
    found = np.concatenate(number_rows([*left.T], [*right.T]))
    expected = np.unique(np.concatenate([left, right]), axis=0, return_inverse=True)[1].reshape(-1)
    assert np.array_equal(np.unique(found, return_inverse=True)[1], expected)
