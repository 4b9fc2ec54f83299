"""What all tests of the folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import Browser, find_chromium
from report_runs import countries_verification, hostile_verification

from kgverify.verification.verify import Verification


@pytest.fixture(autouse=True, scope="package")
def single_thread() -> Iterator[None]:
    """The tensors of these tests are too small to share among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def faulty(single_thread: None) -> Verification:
    return countries_verification(fault="fact-cap")


@pytest.fixture(scope="package")
def agreeing(single_thread: None) -> Verification:
    return countries_verification()


@pytest.fixture(scope="package")
def in_lockstep(single_thread: None) -> Verification:
    return countries_verification(fault="fact-cap", lockstep=True)


@pytest.fixture(scope="package")
def hostile(single_thread: None) -> Verification:
    return hostile_verification()


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no chromium is installed")
    profile: Path = tmp_path_factory.mktemp("profile")
    with Browser(chromium, profile) as opened:
        yield opened
