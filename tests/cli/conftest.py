"""Fixtures of all tests of the folder."""

from collections.abc import Callable

import pytest
from invoked_commands import Invoked, invoke


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Invoked]:
    """`command("diff", "--queries", 2)`, 120 columns wide."""
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words, **how: invoke(words, **how)
