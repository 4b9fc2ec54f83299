"""The state of a certificate: a file with a line for each block done, from which an interrupted run is taken up again."""

import json
from pathlib import Path

import msgspec

from kgverify.errors import UserError
from kgverify.testing.exhaustive.work import Block


class Opening(msgspec.Struct, frozen=True):
    """The first line of a state file."""

    format: int
    scope: str
    programs_at_once: int
    engine: dict[str, str]


def open_state(path: Path, opening: Opening) -> dict[int, Block]:
    """The blocks that a state file has; a new file is begun. A last line that was not finished is cut off."""
    try:
        content = path.read_bytes() if path.exists() else b""
        end = content.rfind(b"\n") + 1
        if not end:
            if content and not msgspec.json.encode(opening).startswith(content):
                raise unusable(str(path), "it is no state of a certificate")
            path.write_bytes(msgspec.json.encode(opening) + b"\n")
            return {}
        first, *lines = content[:end].splitlines()
        try:
            found = msgspec.json.decode(first, type=Opening)
            blocks = [msgspec.json.decode(line, type=Block) for line in lines]
        except msgspec.DecodeError as error:
            raise unusable(str(path), f"it is no state of a certificate: {error}") from None
        for name, what in (
            ("format", "format"),
            ("scope", "scope"),
            ("programs_at_once", "block size"),
            ("engine", "engine"),
        ):
            if getattr(found, name) != getattr(opening, name):
                expected, actual = (json.dumps(getattr(each, name)) for each in (opening, found))
                raise unusable(str(path), f"it is of another {what}: expected {expected}, found {actual}")
        if end < len(content):
            with path.open("r+b") as file:
                file.truncate(end)
    except OSError as error:
        raise UserError(f"cannot be used: {error.strerror}", where=str(path), fix="give another path") from None
    return {block.block: block for block in blocks}


def append_block(path: Path, block: Block) -> None:
    """Note a block that is done."""
    try:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(block) + b"\n")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path), fix="give another path") from None


def unusable(where: str, message: str) -> UserError:
    """The error about a state file that does not fit."""
    return UserError(message, where=where, fix="give a new path, or delete the file")
