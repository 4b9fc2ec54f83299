"""Fixtures of all tests of the folder."""

import pytest
from cli_runs import Command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "120")
    return Command(monkeypatch, capsys)
