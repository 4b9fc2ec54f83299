"""Files of parts that somebody else made: only plain arrays of the right types, no larger than the file, are read."""

import io
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kgverify.evaluation.parts import (
    _OF_RANKINGS,
    _OF_SAMPLES,
    SAMPLED,
    ChoiceStatistics,
    DamagedError,
    PartResult,
    Sample,
    _lowest,
    _read_arrays,
    build_result,
    hash_result,
    list_columns,
    read_part,
    write_part,
)
from kgverify.runs.run import Part
from kgverify.trace.model.columns import Candidates


def _make(**changed: np.ndarray) -> PartResult:
    rankings = [np.zeros((1, *shape), kind) for kind, shape in _OF_RANKINGS.values()]
    priority, is_true, *columns = (np.zeros((1, *shape), kind) for kind, shape in _OF_SAMPLES.values())
    candidates = Candidates(*columns[:3], np.zeros(1, np.uint32), *columns[3:])
    result = PartResult(*rankings, Sample(priority, is_true, candidates), ChoiceStatistics())
    return build_result(list_columns(result) | changed)


PART = Part(0, range(1), 4)


def _npy(description: str, content: bytes = b"") -> bytes:
    header = description.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def _shaped(shape: str, kind: str = "<f8", content: bytes = b"") -> bytes:
    return _npy(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}", content)


def _repack(path: Path, kind: int, changed: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()} | {f"{name}.npy": c for name, c in changed.items()}
    with zipfile.ZipFile(path, "w", kind) as new:
        for name, content in members.items():
            new.writestr(name, content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_part(tmp_path / PART.name, _make(), "identity")
    return tmp_path / PART.name


def test_a_sound_part_is_read(path: Path) -> None:
    found = read_part(path, PART, "identity")
    assert hash_result(found, "") == hash_result(_make(), "")


def test_a_packed_part_is_refused_before_it_is_unpacked(path: Path) -> None:
    _repack(path, zipfile.ZIP_DEFLATED, {"optimistic": _shaped("(1048576,)", content=bytes(8 << 20))})
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DamagedError, match="unpacks to more bytes than it has"):
        read_part(path, PART, "identity")


@pytest.mark.parametrize(
    "content",
    [
        _shaped("(1000000000000000,)"),
        _shaped("(1000000000000000,)", "|V0"),
        _shaped(f"({10**30},)"),
        _shaped("(-1,)"),
        _shaped("(1,)", "|O", b"cos\nsystem\n(S'exit 3'\ntR."),
        _npy("__import__('os')._exit(3)"),
        _npy("(" * 9000 + ")" * 9000),
        b"nothing",
        b"",
    ],
)
def test_arrays_that_lie_are_refused(path: Path, content: bytes) -> None:
    _repack(path, zipfile.ZIP_STORED, {"optimistic": content})
    with pytest.raises(DamagedError):
        read_part(path, PART, "identity")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("side", np.zeros(1, np.int64)),
        ("side", np.zeros(2, np.int8)),
        ("num_outcomes", np.zeros((1, 3), np.uint32)),
        ("sample_atom", np.zeros((1, 1, 3), np.int32)),
    ],
)
def test_arrays_of_another_type_or_length_are_refused_though_their_checksum_is_right(
    path: Path, name: str, array: np.ndarray
) -> None:
    result = _make(**{name: array})
    write_part(path, result, "identity")
    assert hash_result(result, "identity")
    with pytest.raises(DamagedError, match=f"a column {name} of another type or length"):
        read_part(path, PART, "identity")


def test_a_closeness_of_choices_with_rows_is_refused(path: Path) -> None:
    _repack(path, zipfile.ZIP_STORED, {"smallest_gap": _shaped("(1,)", content=bytes(8))})
    with pytest.raises(DamagedError, match="a column smallest_gap of another type or length"):
        read_part(path, PART, "identity")


def test_a_plain_array_and_a_pickle_are_refused(path: Path) -> None:
    plain = io.BytesIO()
    np.save(plain, np.zeros(3))
    for content in (plain.getvalue(), b"cos\nsystem\n(S'exit 3'\ntR.", b"PK\x03\x04", b""):
        path.write_bytes(content)
        with pytest.raises(DamagedError):
            read_part(path, PART, "identity")


def test_the_lowest_priorities_are_taken_whether_many_or_few_pass_the_first_limit() -> None:
    rng = np.random.default_rng(0)
    spread = rng.integers(0, 2**64, 8 * SAMPLED, np.uint64, endpoint=False)
    high = spread // np.uint64(2) + np.uint64(2**63)
    for priority in (spread, high):
        of = rng.random(len(priority)) < 0.9
        wanted = sorted(np.flatnonzero(of).tolist(), key=lambda row: int(priority[row]))[:SAMPLED]
        assert _lowest(priority, of).tolist() == wanted


def test_a_part_that_claims_more_bytes_than_its_file_has_is_damaged():
    class Claiming:
        """A file of one byte a member, none of which can be opened."""

        def getinfo(self, name: str) -> zipfile.ZipInfo:
            member = zipfile.ZipInfo(name)
            member.file_size = 1
            return member

    num = len(list_columns(_make())) + 2
    with pytest.raises(DamagedError, match="unpacks to more bytes than it has"):
        _read_arrays(cast(Any, Claiming()), num - 1)
    with pytest.raises(AttributeError, match="open"):
        _read_arrays(cast(Any, Claiming()), num)
