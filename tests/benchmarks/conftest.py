"""Benchmarks are scripts: what they import lies beside them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "benchmarks"), str(_ROOT / "tests" / "bench")]


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    """The tensors of these tests are too small to share among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
