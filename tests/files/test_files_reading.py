"""Files from strangers: irregular, too long, almost empty on disk, packed, nested without end, or of another type."""

import bz2
import gzip
import io
import lzma
import os
import random
import re
import socket
import sys
import tracemalloc
import zipfile
import zlib
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from kgverify import UserError
from kgverify.errors import suggest
from kgverify.files.reading import (
    MAX_BYTES,
    MAX_JSON_BYTES,
    MIN_EXPANDED_BYTES,
    decompress,
    is_packed,
    open_file,
    read_file,
    read_json,
    read_toml,
)
from kgverify.graphs.formats.reading import read_text

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def _refused(path: Path, max_bytes: int = MAX_BYTES) -> str:
    with pytest.raises(UserError) as caught:
        read_file(path, purpose="a budget", max_bytes=max_bytes)
    assert caught.value.where == str(path)
    assert caught.value.fix
    return caught.value.message


def test_files_links_to_files_and_resources_of_a_package_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to("a")
    assert read_file(tmp_path / "b", purpose="a budget", max_bytes=7) == b"content"
    assert read_file(files("kgverify").joinpath("py.typed"), purpose="a mark") == b""
    with open_file(tmp_path / "a", purpose="a budget") as file:
        assert os.pread(file.fileno(), 3, 1) == b"ont"
        assert file.read() == b"content"
    assert _refused(tmp_path / "a", max_bytes=6) == "takes 7 bytes, expected at most 6"


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "circle").symlink_to("circle")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(tmp_path / "socket"))
        for name, found in {
            "pipe": "a pipe",
            "link": "a pipe",
            ".": "a folder",
            "circle": "cannot be read: ",
            "socket": "cannot be read: ",
            "none": "cannot be read: ",
            "a\0b": "NUL",
            "/dev/zero": "a device",
        }.items():
            assert found in _refused(tmp_path / name)


@pytest.mark.skipif(sys.platform != "linux", reason="these files are Linux's")
def test_files_that_the_system_makes_are_refused() -> None:
    for path in ("/proc/self/environ", "/proc/kcore", "/proc/self/maps", "/sys/kernel/mm/ksm/run"):
        assert not os.access(path, os.R_OK) or "on disk" in _refused(Path(path))


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="holes cannot be found on this system")
def test_files_that_are_almost_empty_on_disk_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.write(b"content")
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="almost empty"), open_file(path, purpose="a trace"):
        pass
    honest = bytes(MIN_EXPANDED_BYTES + 1)
    path.write_bytes(honest)
    assert read_file(path, purpose="a trace") == honest


def test_a_dash_is_standard_input_only_where_the_user_may_have_typed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"typed")))
    assert "No such file" in _refused(Path("-"))
    assert read_file(Path("-"), purpose="a trace", standard_input=True) == b"typed"
    for given, match in ((io.TextIOWrapper(io.BytesIO(b"typed")), "more than 4 bytes"), (None, "closed")):
        monkeypatch.setattr(sys, "stdin", given)
        with pytest.raises(UserError, match=match):
            read_file(Path("-"), purpose="a trace", standard_input=True, max_bytes=4)


OWN_FILES = {
    *("conditions/features.py", "prover/native/library.py", "prover/faults/plant.py", "report/render/template.py"),
    *("prover/execution/device.py", "api/versions.py", "cli/entries.py"),
    *("comparison/recorded/evidence.py", "testing/campaigns/campaign.py", "api/watch_judge.py"),
}
"""The modules that read resources of packages, files of the system, and files that were read or written before, and a
template of a script."""


def test_every_input_is_opened_in_one_place() -> None:
    package = Path(str(files("kgverify")))
    opening = re.compile(r"\.read_(text|bytes)\(|\.open\(\"r|np\.load\(|json\.load\(|tomllib\.load\(")
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if opening.search(path.read_text())}
    assert {name for name in found if not name.startswith("files/")} == OWN_FILES


def test_a_line_of_a_graph_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"a\tb\tc\n" + b"9" * (17 << 20))
    with pytest.raises(UserError, match=r"train\.txt:2: expected a shorter line"):
        read_text(path)


class _Record(msgspec.Struct):
    number: int
    other: dict[str, object] = {}


NESTED = b"[" * 100_000


JSON = [
    *(b"", b"{}", b'{"number": "7"}', b"\xff", NESTED),
    b'{"number": 7, "other": {"a": ' + NESTED + b"]" * 100_000 + b"}}",
    b'{"number": 7, "unknown": ' + NESTED,
    b'{"number": ' + b"9" * 5000 + b"}",
]
TOML = [
    *(b"a", b"a = \xff", b"a = " + NESTED[:5_000], b"a = [\n" + b"[\n" * 50_000),
    *(b"a" + b".a" * 100_000 + b" = 1", b"a = " + b"9" * 5_000),
]


def test_other_json_and_toml_are_refused(tmp_path: Path) -> None:
    record, table = tmp_path / "a.json", tmp_path / "a.toml"
    record.write_text('{"number": 7}')
    table.write_text("a.b = 1")
    assert read_json(record, _Record, purpose="a record", fix="-") == _Record(7)
    assert read_toml(table, purpose="a table", fix="-") == {"a": {"b": 1}}
    for content in JSON:
        record.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.json: is not a record: ") as caught:
            read_json(record, _Record, purpose="a record", fix="write a record")
        assert caught.value.fix == "write a record"
    with record.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(UserError, match="expected at most"):
        read_json(record, _Record, purpose="a record", fix="write a record")
    for content in TOML:
        table.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.toml: ") as caught:
            read_toml(table, purpose="a table", fix="write a table")
        assert caught.value.fix


def test_errors_are_short_and_hints_are_quick_whatever_a_file_holds() -> None:
    error = UserError("found " + "a" * 1_000_000 + "!", where="b" * 10_000, fix="say")
    assert len(str(error)) < 20_000
    assert error.message.startswith("found aaa")
    assert error.message.endswith("aaa!")
    assert suggest("a" * 1_000_000, ["a" * 999_999]) == ""
    assert suggest("name", ["n" * 1_000_000, "names"]) == "did you mean 'names'?"


TEXT = b"".join(b"knows\tperson%d\tperson%d\n" % (i, i * 7919 % 1000) for i in range(5_000))


def _zstd_stream(content: bytes, **options: object) -> bytes:
    """Pack a content whose size the header does not state."""
    packer = zstd.ZstdCompressor(**options)
    return packer.compress(content) + packer.flush()


def _zip(content: bytes, method: int = zipfile.ZIP_DEFLATED, names: tuple[str, ...] = ("train.txt",)) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name in names:
            archive.writestr(name, content)
    return packed.getvalue()


PACKERS = {
    "gzip": gzip.compress,
    "zstd": zstd.compress,
    "zstd without its size": _zstd_stream,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": _zip,
}


@pytest.mark.parametrize("packer", PACKERS)
def test_packed_files_are_unpacked_and_bombs_and_damaged_ones_are_refused(packer: str) -> None:
    pack = PACKERS[packer]
    for content in (b"", b"a", TEXT):
        assert is_packed(pack(content))
        assert decompress(pack(content), where="a") == content
        if packer != "zip":
            assert decompress(pack(content) + pack(b"more"), where="a") == content + b"more"
    with pytest.raises(UserError, match=r"unpack to more than 16,777,216") as caught:
        decompress(pack(bytes(MIN_EXPANDED_BYTES + 1)), where="a.gz")
    assert caught.value.where == "a.gz"
    with pytest.raises(UserError, match="unpack to more than 100"):
        decompress(pack(TEXT), where="a.gz", max_bytes=100)
    packed, numbers = pack(TEXT), random.Random(7)
    # Shorter ones of bzip2 may be a text.
    for length in (len(packed) - 1, len(packed) // 2, 14, *(numbers.randrange(14, len(packed)) for _ in range(20))):
        with pytest.raises(UserError, match="does not unpack"):
            decompress(packed[:length], where="a")
    for _ in range(50):
        damaged = bytearray(packed)
        damaged[numbers.randrange(4, len(packed))] ^= 1 << numbers.randrange(8)
        # A zstd frame without a checksum may hold another text.
        with suppress(UserError):
            decompress(bytes(damaged), where="a")


def test_other_files_are_returned_as_they_are() -> None:
    for content in (TEXT, b"", b"BZh9 knows\ta\tb\n"):
        assert decompress(content, where="a") is content
    # Zeros may follow gzip, and many short members are read in linear time.
    assert decompress(gzip.compress(b"a") + bytes(10_000) + gzip.compress(b"b") + bytes(7), where="a") == b"ab"
    assert decompress(gzip.compress(b"a") * 5_000, where="a") == b"a" * 5_000


def test_a_stream_that_asks_for_gigabytes_of_memory_is_refused() -> None:
    with pytest.raises(UserError, match="does not unpack"):
        decompress(_zstd_stream(b"a", options={zstd.CompressionParameter.window_log: 29}), where="a")
    packed = bytearray(lzma.compress(b"a"))
    # The header of the block follows that of the file: its size, two flags, the size of the properties, then the window.
    end = 12 + 4 * packed[12]
    packed[16] = 39
    packed[end : end + 4] = zlib.crc32(packed[12:end]).to_bytes(4, "little")
    with pytest.raises(UserError, match=r"does not unpack.*limit"):
        decompress(bytes(packed), where="a")
    bomb = bz2.compress(bytes(92_000_000))
    assert len(bomb) < 200
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="unpack to more than 16,777,216"):
            decompress(bomb, where="a")
        assert tracemalloc.get_traced_memory()[1] < 3 * MIN_EXPANDED_BYTES
    finally:
        tracemalloc.stop()


def test_a_zip_holds_one_file_packed_in_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = _zip(b"a", names=("graph/", "graph/train.txt", "__MACOSX/graph/._train.txt"))
    assert decompress(folders, where="a") == b"a"
    assert decompress(_zip(b"a", zipfile.ZIP_STORED), where="a") == b"a"
    encrypted = bytearray(_zip(b"a"))
    encrypted[encrypted.rindex(b"PK\1\2") + 8] |= 1
    for content, found in {
        _zip(b"", names=()): "is a zip of 0 files, expected one: none",
        _zip(b"a", names=("train.txt", "test.txt")): "is a zip of 2 files, expected one: 'train.txt', 'test.txt'",
        _zip(b"a", names=tuple(map(str, range(1_001)))): "is a zip of more than 1,000 files, expected one",
        _zip(b"a", zipfile.ZIP_LZMA): "'train.txt' in it is encrypted, or packed in an unusual way",
        bytes(encrypted): "'train.txt' in it is encrypted, or packed in an unusual way",
    }.items():
        with pytest.raises(UserError) as caught:
            decompress(content, where="a")
        assert found in str(caught.value)
    packed = bz2.compress(b"a")
    monkeypatch.setitem(sys.modules, "bz2", None)
    with pytest.raises(UserError, match="this Python lacks the module bz2"):
        decompress(packed, where="a")
