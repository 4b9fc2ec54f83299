"""Fixtures of all tests of the folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from report_runs import countries_verification, hostile_verification

from kgverify.verification.verify import Verification


@pytest.fixture(scope="package")
def faulty() -> Verification:
    return countries_verification(fault="fact-cap")


@pytest.fixture(scope="package")
def agreeing() -> Verification:
    return countries_verification()


@pytest.fixture(scope="package")
def in_lockstep() -> Verification:
    return countries_verification(fault="fact-cap", lockstep=True)


@pytest.fixture(scope="package")
def hostile() -> Verification:
    return hostile_verification()


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no chromium is installed")
    profile: Path = tmp_path_factory.mktemp("profile")
    with Browser(chromium, profile) as opened:
        yield opened
