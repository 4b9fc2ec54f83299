"""Decompression: whole files of each format are unpacked, bombs and damaged ones are refused."""

import bz2
import gzip
import io
import lzma
import random
import sys
import tracemalloc
import zipfile
import zlib
from contextlib import suppress

import pytest

from kgverify import UserError
from kgverify.files.reading import MIN_EXPANDED_BYTES, decompress, is_packed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b"".join(b"knows\tperson%d\tperson%d\n" % (i, i * 7919 % 1000) for i in range(5_000))


def _zstd_stream(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zstd.ZstdFile(packed, "w") as writer:
        writer.write(content)
    return packed.getvalue()


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
@pytest.mark.parametrize("content", [b"", b"a", TEXT], ids=["empty", "short", "long"])
def test_packed_files_are_unpacked(packer: str, content: bytes) -> None:
    pack = PACKERS[packer]
    assert is_packed(pack(content))
    assert decompress(pack(content), where="a") == content
    if packer != "zip":
        assert decompress(pack(content) + pack(b"more"), where="a") == content + b"more"


def test_other_files_are_returned_as_they_are() -> None:
    assert decompress(TEXT, where="a") is TEXT
    assert decompress(b"", where="a") == b""
    assert decompress(b"BZh9 knows\ta\tb\n", where="a") == b"BZh9 knows\ta\tb\n"


def test_zeros_may_follow_gzip_and_many_short_members_are_read_in_time_that_their_size_explains() -> None:
    assert decompress(gzip.compress(b"a") + bytes(10_000) + gzip.compress(b"b") + bytes(7), where="a") == b"ab"
    assert decompress(gzip.compress(b"a") * 5_000, where="a") == b"a" * 5_000


@pytest.mark.parametrize("packer", PACKERS)
def test_bombs_are_refused(packer: str) -> None:
    bomb = PACKERS[packer](bytes(MIN_EXPANDED_BYTES + 1))
    with pytest.raises(UserError, match=r"unpack to more than 16,777,216") as caught:
        decompress(bomb, where="a.gz")
    assert caught.value.where == "a.gz"
    with pytest.raises(UserError, match="unpack to more than 100"):
        decompress(PACKERS[packer](TEXT), where="a.gz", max_bytes=100)


def test_a_frame_that_asks_for_gigabytes_of_memory_is_refused() -> None:
    packed = io.BytesIO()
    with zstd.ZstdFile(packed, "w", options={zstd.CompressionParameter.window_log: 29}) as writer:
        writer.write(b"a")
    with pytest.raises(UserError, match="does not unpack"):
        decompress(packed.getvalue(), where="a")


@pytest.mark.parametrize("packer", PACKERS)
def test_damaged_files_are_refused(packer: str) -> None:
    packed = PACKERS[packer](TEXT)
    numbers = random.Random(7)
    # Shorter ones of bzip2 may be a text.
    for length in (len(packed) - 1, len(packed) // 2, 14, *(numbers.randrange(14, len(packed)) for _ in range(30))):
        with pytest.raises(UserError, match="does not unpack"):
            decompress(packed[:length], where="a")
    for _ in range(100):
        damaged = bytearray(packed)
        damaged[numbers.randrange(4, len(packed))] ^= 1 << numbers.randrange(8)
        # A zstd frame without a checksum may hold another text.
        with suppress(UserError):
            decompress(bytes(damaged), where="a")


def test_a_bzip2_block_of_46_megabytes_is_not_unpacked_at_once() -> None:
    bomb = bz2.compress(bytes(92_000_000))
    assert len(bomb) < 200
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="unpack to more than 16,777,216"):
            decompress(bomb, where="a")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MIN_EXPANDED_BYTES


def test_an_xz_stream_that_asks_for_gigabytes_of_memory_is_refused() -> None:
    packed = bytearray(lzma.compress(b"a"))
    # The header of the block follows that of the file: its size, two flags, the size of the properties, then the window.
    end = 12 + 4 * packed[12]
    packed[16] = 39
    packed[end : end + 4] = zlib.crc32(packed[12:end]).to_bytes(4, "little")
    with pytest.raises(UserError, match=r"does not unpack.*limit"):
        decompress(bytes(packed), where="a")


def test_a_zip_holds_one_file_packed_in_the_usual_way() -> None:
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


def test_a_python_without_a_format_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = bz2.compress(b"a")
    monkeypatch.setitem(sys.modules, "bz2", None)
    with pytest.raises(UserError, match="this Python lacks the module bz2"):
        decompress(packed, where="a")
