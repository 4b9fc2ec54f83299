"""Running a command in this process, with its exit code and what it prints."""

import contextlib
import io
import sys
from collections.abc import Iterable
from typing import NamedTuple
from unittest import mock

from kgverify.cli.app import run


class Invoked(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def invoke(words: Iterable[object]) -> Invoked:
    """Run `kgverify` with some words."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["kgverify", *map(str, words)]),
    ):
        code = run()
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Invoked(code, *texts)
