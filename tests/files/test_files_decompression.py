"""Decompression: whole files of gzip and zstd are unpacked, bombs and damaged ones are refused."""

import gzip
import io
import random
from contextlib import suppress

import pytest
import zstandard

from kgverify.errors import UserError
from kgverify.files.decompression import decompress, is_packed
from kgverify.files.reading import MIN_EXPANDED_BYTES

TEXT = b"".join(b"knows\tperson%d\tperson%d\n" % (i, i * 7919 % 1000) for i in range(5_000))


def _zstd_stream(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as writer:
        writer.write(content)
    return packed.getvalue()


PACKERS = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "zstd without its size": _zstd_stream,
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("content", [b"", b"a", TEXT], ids=["empty", "short", "long"])
def test_packed_files_are_unpacked(packer: str, content: bytes) -> None:
    pack = PACKERS[packer]
    assert is_packed(pack(content))
    assert decompress(pack(content), where="a") == content
    assert decompress(pack(content) + pack(b"more"), where="a") == content + b"more"


def test_other_files_are_returned_as_they_are() -> None:
    assert decompress(TEXT, where="a") is TEXT
    assert decompress(b"", where="a") == b""


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
    parameters = zstandard.ZstdCompressionParameters(window_log=29, write_content_size=False)
    packed = io.BytesIO()
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(packed, closefd=False) as writer:
        writer.write(b"a")
    with pytest.raises(UserError, match="does not unpack"):
        decompress(packed.getvalue(), where="a")


@pytest.mark.parametrize("packer", PACKERS)
def test_damaged_files_are_refused(packer: str) -> None:
    packed = PACKERS[packer](TEXT)
    numbers = random.Random(7)
    for length in (len(packed) - 1, len(packed) // 2, 5, *(numbers.randrange(4, len(packed)) for _ in range(30))):
        with pytest.raises(UserError, match="does not unpack"):
            decompress(packed[:length], where="a")
    for _ in range(100):
        damaged = bytearray(packed)
        damaged[numbers.randrange(4, len(packed))] ^= 1 << numbers.randrange(8)
        # A zstd frame without a checksum may hold another text.
        with suppress(UserError):
            decompress(bytes(damaged), where="a")
