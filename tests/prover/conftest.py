"""Graphs and candidates of the tests of this folder, and the path of `benchmarks`."""

import sys
from pathlib import Path

import numpy as np
import pytest
from merged_programs import Merged, merge_random_programs

from kgverify import load_graph
from kgverify.program.outcomes import Side
from kgverify.program.program import Program
from kgverify.trace.model.columns import CandidateSet

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="session")
def countries() -> tuple[Program, CandidateSet]:
    """Countries S3, its test triples and one corruption of each."""
    graph = load_graph("countries")
    true = graph.queries("test")
    corrupted = np.column_stack([true[:, :2], np.roll(true[:, 2], 1)])
    rows = np.concatenate([true, corrupted]).astype(np.int32)
    num = len(rows)
    query = (np.arange(num) % len(true)).astype(np.int32)
    return graph.program, CandidateSet(query, np.full(num, Side.TAIL, np.int8), rows)


@pytest.fixture(scope="session")
def merged() -> Merged:
    return merge_random_programs(num_programs=40)
