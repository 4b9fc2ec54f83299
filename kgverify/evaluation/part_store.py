"""Where the parts of an evaluation are kept: a folder that can be gone on with, or memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from kgverify.errors import UserError
from kgverify.evaluation.part_file import DamagedError, PartResult, read_part, write_part
from kgverify.evaluation.parts import Identity, Part, list_differences
from kgverify.trace.files.manifest import write_at_once
from kgverify.verification.save import check_folder

RUN: Final = "run.json"
SUMMARY: Final = "summary.json"

Say = Callable[[str], None]


class Store(Protocol):
    """missing: numbers of the parts that `open` found not to be there."""

    missing: list[int]

    def open(self, parts: Sequence[Part], say: Say) -> None:
        """Find what is there."""
        ...

    def put(self, part: Part, result: PartResult) -> None:
        """Keep what came of a part."""
        ...

    def collect(self, parts: Sequence[Part], say: Say) -> dict[int, PartResult]:
        """What there is, by part."""
        ...


class MemoryStore:
    """Gone with the process."""

    def __init__(self) -> None:
        self.missing: list[int] = []
        self._results: dict[int, PartResult] = {}

    def open(self, parts: Sequence[Part], say: Say) -> None:
        """Nothing is there."""
        self.missing = [part.number for part in parts]

    def put(self, part: Part, result: PartResult) -> None:
        """Keep it."""
        self._results[part.number] = result

    def collect(self, parts: Sequence[Part], say: Say) -> dict[int, PartResult]:
        """All of it."""
        return self._results


class FolderStore:
    """A folder with `run.json`, the evaluation's identity, and a file for each part that is done."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.missing: list[int] = []
        self._folder, self._identity = folder, identity
        self._sha256 = identity.sha256

    def open(self, parts: Sequence[Part], say: Say) -> None:
        """Begin the folder, or find what it holds. UserError for a folder of another evaluation, or of other files."""
        check_folder(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / RUN
        if path.exists():
            self._check_identity(path)
        elif any(self._folder.iterdir()):
            raise UserError(
                f"holds files, and no {RUN}: no evaluation to go on with",
                where=str(self._folder),
                fix="give another --save folder",
            )
        else:
            encoded = msgspec.json.format(msgspec.json.encode(self._identity), indent=2) + b"\n"
            write_at_once(path, lambda temporary: _write(temporary, encoded))
        there = self.collect(parts, say)
        self.missing = [part.number for part in parts if part.number not in there]

    def put(self, part: Part, result: PartResult) -> None:
        """Write the part's file."""
        try:
            write_part(self._folder / part.name, result, self._sha256)
        except OSError as error:
            raise UserError(
                f"cannot be written: {error.strerror}",
                where=str(self._folder / part.name),
                fix="make room, or see to the folder's permissions; then give the same command again",
            ) from None

    def collect(self, parts: Sequence[Part], say: Say) -> dict[int, PartResult]:
        """The parts whose files are whole."""
        results = {}
        for part in parts:
            path = self._folder / part.name
            if not path.exists():
                continue
            try:
                results[part.number] = read_part(path, part, self._sha256)
            except DamagedError as error:
                say(f"{path} {error}; the part is done again")
        return results

    def _check_identity(self, path: Path) -> None:
        try:
            there = msgspec.json.decode(path.read_bytes(), type=Identity)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UserError(
                f"not the {RUN} of an evaluation: {error}", where=str(path), fix="give another --save folder"
            ) from None
        different = list_differences(there, self._identity)
        if different:
            raise UserError(
                f"is of another evaluation: {'; '.join(different)}",
                where=str(self._folder),
                fix="give the options that it was begun with, or another --save folder",
            )


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
