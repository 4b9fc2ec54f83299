"""Columns of a run that is too large for memory: appended block by block to temporary files, and mapped when complete."""

import mmap
import os
import tempfile
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.files.manifest import bytes_of, write_all
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Columns, Digests


class Spool(ExitStack):
    """A context with temporary files of candidates with their steps, and the digests of the steps.

    What was read stays mapped after the context; the system deletes the files when nothing uses them.

    where: the name of the columns in errors
    """

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self._files: dict[str, tuple[IO[bytes], NDArray[Any]]] = {}

    def append(self, columns: Columns, digests: Digests) -> None:
        """Add some candidates with all their steps. UserError if there is no room for them."""
        for group, level in {**columns._asdict(), "digests": digests}.items():
            for name, values in level._asdict().items():
                self._append(f"{group}/{name}", values)

    def read(self) -> tuple[Columns, Digests]:
        """Return all candidates with their steps, mapped into memory."""
        rows = dict.fromkeys((*KNOWLEDGE_GRAPH.groups, *(each.rows for each in KNOWLEDGE_GRAPH.own)))
        columns: Columns = KNOWLEDGE_GRAPH.build(rows, lambda path, _: self._read(path))
        return columns, Digests(*(self._read(f"digests/{name}") for name in Digests._fields))

    def _append(self, path: str, values: NDArray[Any]) -> None:
        try:
            if path not in self._files:
                new: IO[bytes] = self.enter_context(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115  this is the context
                self._files[path] = new, np.zeros_like(values, shape=(0, *values.shape[1:]))
            file, like = self._files[path]
            if like.dtype != values.dtype:
                raise UserError(
                    f"dtype is {values.dtype}, expected {like.dtype} as before",
                    where=f"{self._where}:{path}",
                    fix="return values of one type",
                )
            write_all(file.fileno(), [bytes_of(values)], file.seek(0, os.SEEK_END))
        except OSError as error:
            raise UserError(
                f"the steps of a large run cannot be written: {error.strerror}",
                where=tempfile.gettempdir(),
                fix="free space there, or set TMPDIR to a folder with more space",
            ) from error

    def _read(self, path: str) -> NDArray[Any]:
        file, like = self._files[path]
        if not file.seek(0, os.SEEK_END):
            return like
        # torch warns of arrays that cannot be written. Nothing is written to them.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return np.frombuffer(mapped, like.dtype).reshape(-1, *like.shape[1:])
