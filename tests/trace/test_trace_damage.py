"""Flipped bits and cut files: an error, or the very same data."""

import numpy as np
import pytest
from hostile_traces import copy_as_plain_h5py
from trace_builders import FACTS, HEADER, RANKINGS, SYMBOLS, assert_same_trace, make_columns, open_writer, write_file

from kgverify import UserError
from kgverify.trace.hdf5.stored_array import translate_hdf5_errors
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.read.trace_file import TraceFile, read_trace


def read_or_refuse(path):
    try:
        return read_trace(path)
    except UserError as error:
        refusal = error
    assert refusal.where
    assert refusal.fix
    return None


@pytest.fixture(params=["kgverify", "plain"])
def path(request, tmp_path):
    path = tmp_path / "a.trace"
    write_file(path, HEADER, SYMBOLS, make_columns(1, 12), RANKINGS, facts=FACTS)
    if request.param == "plain":
        copy_as_plain_h5py(path, tmp_path / "b.trace")
        return tmp_path / "b.trace"
    return path


@pytest.mark.sample(1)
def test_a_flipped_bit_is_an_error_or_changes_nothing(path):
    expected, content = read_trace(path), path.read_bytes()
    random = np.random.default_rng(7)
    num_refused = 0
    for position in random.choice(8 * len(content), 500, replace=False):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        trace = read_or_refuse(path)
        if trace is None:
            num_refused += 1
        else:
            assert_same_trace(trace, expected)
    assert num_refused > 50


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError("no room\nand more"), "no room"), (KeyError(), "KeyError"), (ValueError("x"), "x")]
)
def test_the_first_line_of_an_hdf5_error_is_the_reason(error, reason):
    with pytest.raises(UserError) as caught, translate_hdf5_errors("a.trace"):
        raise error
    assert caught.value.message.endswith(f"damaged: {reason}")


def test_a_cut_file_is_an_error(path):
    content = path.read_bytes()
    for length in [*range(0, len(content), len(content) // 150), len(content) - 1]:
        path.write_bytes(content[:length])
        assert read_or_refuse(path) is None


def test_a_flipped_bit_in_a_folder_is_an_error_or_changes_nothing(tmp_path):
    path = tmp_path / "a.trace"
    columns = make_columns(2, 12)
    with open_writer(path, HEADER, SYMBOLS, shard_steps=5) as writer:
        for i in range(12):
            writer.append(select_candidates(columns, np.array([i])))
    expected = read_trace(path)
    random = np.random.default_rng(3)
    files = sorted(path.iterdir())
    for file in [*files[:2], path / "manifest.json"] * 60:
        content = file.read_bytes()
        position = int(random.integers(8 * len(content)))
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        trace = read_or_refuse(path)
        if trace is not None:
            assert file.name == "manifest.json"
            assert_same_trace(trace, expected)
        file.write_bytes(content)


def test_damage_of_what_a_group_keeps_of_itself_is_found_in_memory_and_mapped(tmp_path):
    """A group of many datasets keeps their names in a heap, whose free room is not looked at to find one of them."""
    path = tmp_path / "a.trace"
    columns = make_columns(1, 12, has_stages=True)
    write_file(path, HEADER, SYMBOLS, columns, RANKINGS, facts=FACTS, level="deep")
    content = path.read_bytes()
    # The header of a manager of free room, by HDF5's file format specification.
    header = content.index(b"FSHD")
    num_refused = 0
    for byte in range(header, header + 82):
        damaged = bytearray(content)
        damaged[byte] ^= 4
        path.write_bytes(damaged)
        outcomes = set()
        for look in (read_trace, TraceFile):
            try:
                look(path)
            except UserError:
                outcomes.add("refused")
            else:
                outcomes.add("read")
        assert len(outcomes) == 1, byte
        num_refused += outcomes == {"refused"}
    assert num_refused == 82
