"""Fixtures of all tests of the folder."""

from collections.abc import Iterator

import pytest
from browser import Browser, find_chromium
from report_runs import SavedRun, hostile_graph, save_run


@pytest.fixture(scope="package")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return save_run(tmp_path_factory.mktemp("runs") / "faulty", fault="fact-cap")


@pytest.fixture(scope="package")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return save_run(tmp_path_factory.mktemp("runs") / "agreeing")


@pytest.fixture(scope="package")
def in_lockstep(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return save_run(
        tmp_path_factory.mktemp("runs") / "in_lockstep", fault="fact-cap", is_lockstep=True, queries=2, corruptions=5
    )


@pytest.fixture(scope="package")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return save_run(tmp_path_factory.mktemp("runs") / "hostile", hostile_graph(), "fact-cap", queries=1, corruptions=3)


@pytest.fixture(params=["faulty", "agreeing", "in_lockstep", "hostile"])
def any_run(request: pytest.FixtureRequest) -> SavedRun:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no chromium is installed")
    with Browser(chromium, tmp_path_factory.mktemp("profile")) as opened:
        yield opened
