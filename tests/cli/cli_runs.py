"""Running the command in this process, with what it prints and its exit code."""

import sys
from dataclasses import dataclass
from typing import Any

import pytest

from kgverify.cli.app import run

SMALL = ("--queries", "1", "--corruptions", "2")
EAGER = ("--mode", "eager", "--device", "cpu", "--slots", "8")


@dataclass(frozen=True)
class Finished:
    code: Any
    out: str
    err: str


class Command:
    """`command("diff", "--queries", 2)`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Finished:
        self._monkeypatch.setattr(sys, "argv", ["kgverify", *map(str, arguments)])
        self._capsys.readouterr()
        code = run()
        printed = self._capsys.readouterr()
        return Finished(code, printed.out, printed.err)
