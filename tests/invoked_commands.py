"""Running a command in this process, with its exit code and what it prints."""

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from kgverify.cli.app import run

SMALL = ("--queries", "1", "--corruptions", "2")
EAGER = ("--mode", "eager", "--device", "cpu", "--tune", "slots=8")


class Invoked(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def invoke(words: str | Iterable[object], folder: Path | str = ".", *, typed: str = "", **variables: str) -> Invoked:
    """Run `kgverify` with some words in a folder, with further variables of the environment."""
    words = shlex.split(words) if isinstance(words, str) else map(str, words)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True) for _ in range(2))
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, variables),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), encoding="utf-8")),
        mock.patch.object(sys, "argv", ["kgverify", *words]),
    ):
        code = run()
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Invoked(int(code), *texts)
