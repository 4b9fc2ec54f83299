"""A ledger of finished work: an interrupted job reads it and resumes where it stopped."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from kgverify.errors import UserError
from kgverify.files.code_identity import Code, list_changes
from kgverify.files.reading import NOT_JSON, read_file
from kgverify.files.writing import append_to_file, open_in_place, write_file

R = TypeVar("R", bound=msgspec.Struct)

FIX = "give another path, or delete the file"
_MAX_BYTES: Final = 256 << 20


class WorkIdentity(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="kgverify work 1"):
    """The base of identities of work: the code, and the code changes that the user accepted, in words."""

    code: Code = {}
    accepted: tuple[str, ...] = ()


class Ledger(Generic[R]):
    """Records of finished work in a file: a line that identifies the work, then a JSON line for each record.

    If the last line is incomplete, its process was killed while writing it; the line is cut off.

    records:  the records of earlier runs and those added since, in order
    accepted: the changes of code between the records that the user accepted, in words
    changed:  the changes of code that caused earlier records to be dropped, in words
    """

    def __init__(
        self,
        path: Path,
        identity: WorkIdentity,
        kind: type[R],
        *,
        title: str,
        accept_changed: Collection[str] = (),
    ) -> None:
        """Open a ledger, or begin one.

        Args:
            path: The file.
            identity: The work; records of work with another identity are refused.
            kind: The type of the records.
            title: The name of the file's content in errors, such as "log of a campaign".
            accept_changed: The names of changed code whose records are resumed nevertheless; if others changed, all records
                are dropped.

        Raises:
            UserError: The file cannot be used, is not such a ledger, or is that of other work.
        """
        self.path = path
        self.records: list[R] = []
        self.accepted: tuple[str, ...] = ()
        self.changed: tuple[str, ...] = ()
        self._title = title
        try:
            content = read_file(path, purpose=f"the {title}", max_bytes=_MAX_BYTES) if path.exists() else b""
            end = content.rfind(b"\n") + 1
            if end:
                first, *lines = content[:end].splitlines(keepends=True)
                changes = self._check(first, identity)
                if not changes.keys() <= {*accept_changed}:
                    self.changed, self.accepted, lines = tuple(changes.values()), (), []
                else:
                    self.accepted = tuple(dict.fromkeys((*self.accepted, *changes.values())))
                self._decode(lines, kind)
                if changes:
                    identity = msgspec.structs.replace(identity, accepted=self.accepted)
                    write_file(path, b"".join([msgspec.json.encode(identity), b"\n", *lines]))
                elif end < len(content):
                    descriptor = open_in_place(path, os.O_WRONLY)
                    try:
                        os.ftruncate(descriptor, end)
                    finally:
                        os.close(descriptor)
            else:
                first = msgspec.json.encode(identity)
                if not first.startswith(content):
                    raise self._mismatch(f"is not the {title}")
                write_file(path, first + b"\n")
        except OSError as error:
            raise UserError(f"cannot be used: {error.strerror}", where=str(path), fix="give another path") from None

    def add(self, record: R) -> None:
        """Append a record. UserError if the file cannot be written."""
        self.records.append(record)
        append_to_file(self.path, msgspec.json.encode(record) + b"\n")

    def _decode(self, lines: list[bytes], kind: type[R]) -> None:
        try:
            self.records = [msgspec.json.decode(line, type=kind) for line in lines]
        except NOT_JSON as error:
            raise self._mismatch(f"is not the {self._title}: {error}") from None

    def _check(self, line: bytes, identity: WorkIdentity) -> dict[str, str]:
        """Return the changes of code since the file was begun. UserError if it belongs to other work."""
        try:
            found = msgspec.json.decode(line, type=type(identity))
        except NOT_JSON as error:
            raise self._mismatch(f"is not the {self._title}: {error}") from None
        for name in {*identity.__struct_fields__} - {*WorkIdentity.__struct_fields__}:
            expected, actual = (msgspec.json.encode(getattr(each, name)).decode() for each in (identity, found))
            if expected != actual:
                words = name.replace("_", " ")
                raise self._mismatch(f"is the {self._title} with another {words}: expected {expected}, found {actual}")
        self.accepted = found.accepted
        return list_changes(found.code, identity.code)

    def _mismatch(self, message: str) -> UserError:
        return UserError(message, where=str(self.path), fix=FIX)
