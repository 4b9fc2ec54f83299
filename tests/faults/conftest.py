"""Fixtures of this folder. The scoreboard lies in the repository's `benchmarks`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    """The tensors of these tests are too small to share among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
