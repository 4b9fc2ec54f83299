"""The line of a report on the environment: whether the self-test passed in it, and what CI does not test."""

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

import kgverify as kv
from kgverify.runs import environment


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KGVERIFY_CACHE", str(tmp_path))
    environment.find_result.cache_clear()
    yield tmp_path
    environment.find_result.cache_clear()


def make_report() -> kv.Report:
    return kv.verify("countries", "reference", queries=1, corruptions=2)


def test_a_report_says_whether_the_self_test_passed_here(cache: Path) -> None:
    assert "reported; kgverify doctor --self-test has not passed here" in str(make_report())
    path = environment.find_result()
    assert path is not None
    path.write_text("passed\n")
    assert "reported; kgverify doctor --self-test passed here" in str(make_report())


def test_a_report_names_the_versions_that_ci_does_not_test(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = platform.python_version()
    monkeypatch.setitem(environment.TESTED, "Python", here)
    assert "CI does not test Python" not in make_report().environment.self_test
    monkeypatch.setitem(environment.TESTED, "Python", "2.7")
    assert f"; CI does not test Python {here}" in make_report().environment.self_test
