"""Reading JSON and TOML: what is not as it should be, or nested without end, is a UserError that names the file."""

import tomllib
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from kgverify.errors import UserError
from kgverify.files.reading import read_file

_Kind = TypeVar("_Kind")

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of the decoder for content that is not JSON, is not of the expected type, or is nested too deeply."""

MAX_JSON_BYTES: Final = 64 << 20
"""Bytes of a JSON file: decoded, it takes up to twenty times as much."""
_MAX_TOML_BYTES: Final = 1 << 20
_MAX_TOML_LINE: Final = 10_000
"""Bytes of a line: the time for a key with dots grows with the square of their number."""


def read_json(path: Path, kind: type[_Kind], *, purpose: str, fix: str, max_bytes: int = MAX_JSON_BYTES) -> _Kind:
    """Read a file of JSON that holds one value of a type. UserError for any other file.

    Args:
        path: The file.
        kind: The type of its content.
        purpose: What the file should be, such as "a report", for errors.
        fix: The advice if it is something else.
        max_bytes: Longer files are refused before they are read.
    """
    content = read_file(path, purpose=purpose, max_bytes=max_bytes)
    return decode_json(content, kind, where=str(path), purpose=purpose, fix=fix)


def decode_json(content: bytes, kind: type[_Kind], *, where: str, purpose: str, fix: str) -> _Kind:
    """Decode JSON to a value of a type. UserError for anything else."""
    try:
        return msgspec.json.decode(content, type=kind)
    except NOT_JSON as error:
        raise UserError(f"is not {purpose}: {error}", where=where, fix=fix) from error


def read_toml(path: Path, *, purpose: str, fix: str) -> dict[str, Any]:
    """Read a TOML file. UserError if it cannot be read, or is not TOML."""
    content = read_file(path, purpose=purpose, max_bytes=_MAX_TOML_BYTES)
    longest = max(map(len, content.split(b"\n")))
    if longest > _MAX_TOML_LINE:
        raise UserError(
            f"has a line of {longest:,} bytes, expected at most {_MAX_TOML_LINE:,}",
            where=str(path),
            fix="break the line",
        )
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text: {error}", where=str(path), fix="save the file in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"is not TOML: {error}", where=str(path), fix=fix) from error
