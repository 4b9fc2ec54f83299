"""JSON and TOML from strangers: of another type, nested without end, too long, or slow to read."""

from pathlib import Path

import msgspec
import pytest

from kgverify import UserError
from kgverify.errors import suggest
from kgverify.files.reading import MAX_JSON_BYTES, read_json, read_toml


class _Record(msgspec.Struct):
    number: int
    other: dict[str, object] = {}


def test_json_and_toml_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text('{"number": 7}')
    assert read_json(path, _Record, purpose="a record", fix="-") == _Record(7)
    path.write_text("a.b = 1")
    assert read_toml(path, purpose="a table", fix="-") == {"a": {"b": 1}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"number": "7"}',
        b'{"number": 7, "other": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"number": 7, "unknown": ' + b"[" * 100_000,
        b"[" * 100_000,
        b"\xff",
        b'{"number": ' + b"9" * 5000 + b"}",
    ],
)
def test_other_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json: is not a record: ") as caught:
        read_json(path, _Record, purpose="a record", fix="write a record")
    assert caught.value.fix == "write a record"


def test_long_json_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(UserError, match="expected at most"):
        read_json(path, _Record, purpose="a record", fix="write a record")


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 5_000,
        b"a = [\n" + b"[\n" * 50_000,
        b"a" + b".a" * 100_000 + b" = 1",
        b"a = " + b"9" * 5_000,
        b"a = \xff",
        b"a",
    ],
)
def test_other_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.toml: ") as caught:
        read_toml(path, purpose="a table", fix="write a table")
    assert caught.value.fix


def test_errors_are_short_and_hints_are_quick_whatever_a_file_holds() -> None:
    error = UserError("found " + "a" * 1_000_000 + "!", where="b" * 10_000, fix="say")
    assert len(str(error)) < 20_000
    assert error.message.startswith("found aaa")
    assert error.message.endswith("aaa!")
    assert suggest("a" * 1_000_000, ["a" * 999_999]) == ""
    assert suggest("name", ["n" * 1_000_000, "names"]) == "did you mean 'names'?"
