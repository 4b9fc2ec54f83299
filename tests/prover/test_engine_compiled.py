"""`torch.compile` changes nothing, compiles the whole tick once and never again.

One program holds all parts, since each engine compiles its tick for the sizes of its program.
"""

import shutil
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from engine_checks import assert_identical, difference, near_ties, owners, small_layout
from merged_programs import Merged
from torch._dynamo.utils import counters

from kgverify.engines.policy import SHORTEST, Policy, make_two_tower
from kgverify.engines.protocol import positions_of
from kgverify.program.outcomes import Outcome
from kgverify.prover.engine import CompiledEngine
from kgverify.trace.model.columns import Columns, select_candidates

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler"),
    # Inductor's own import of torch.utils.mkldnn.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

LOG_PROBABILITY_ERROR = 1e-12
"""A compiled float64 log-sum-exp adds in another order."""


class Compiled(NamedTuple):
    """An engine after its first run, with what the run gave, and what it left in the compiler's counters."""

    engine: CompiledEngine
    eager: CompiledEngine
    columns: Columns
    num_graphs: int
    graph_breaks: dict[str, int]


def build(merged: Merged, policy: Policy) -> Compiled:
    layout = small_layout(merged.limits, slots=32, match_window=512, score_window=256, pool=150)
    engine, eager = (
        CompiledEngine(merged.program, merged.limits, policy, mode=mode, device="cpu", layout=layout)
        for mode in ("default", "eager")
    )
    before = counters["stats"]["unique_graphs"]
    counters["graph_break"].clear()
    columns = engine.prove(merged.candidates)
    num_graphs = counters["stats"]["unique_graphs"] - before
    return Compiled(engine, eager, columns, num_graphs, dict(counters["graph_break"]))


@pytest.fixture(scope="module")
def shortest(merged: Merged) -> Compiled:
    return build(merged, SHORTEST)


@pytest.fixture(scope="module")
def two_tower(merged: Merged) -> Compiled:
    return build(merged, make_two_tower(merged.program, merged.limits, seed=7, embedding=16, hidden=16))


@pytest.fixture
def no_compilation() -> Iterator[None]:
    """Any further compilation is an error."""
    before = counters["stats"]["unique_graphs"]
    with torch.compiler.set_stance("fail_on_recompile"):
        yield
    assert counters["stats"]["unique_graphs"] == before


@pytest.mark.deep
def test_the_tick_is_one_graph_without_breaks(shortest: Compiled) -> None:
    assert shortest.num_graphs == 1
    assert shortest.graph_breaks == {}


@pytest.mark.exhaustive
def test_the_tick_of_two_tower_is_one_graph_without_breaks(two_tower: Compiled) -> None:
    assert two_tower.num_graphs == 1
    assert two_tower.graph_breaks == {}


@pytest.mark.deep
def test_the_merged_program_has_every_outcome_and_waits_for_windows(shortest: Compiled) -> None:
    candidates, steps = shortest.columns.candidates, shortest.columns.steps
    assert set(candidates.outcome.tolist()) == {Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT}
    assert steps.dropped_atoms.any()
    assert steps.dropped_resolvents.any()
    assert len(candidates.query) > shortest.engine.layout.pool > shortest.engine.layout.slots


@pytest.mark.deep
def test_compiled_equals_eager_bit_by_bit(shortest: Compiled, merged: Merged) -> None:
    assert_identical(shortest.eager.prove(merged.candidates), shortest.columns, LOG_PROBABILITY_ERROR)


@pytest.mark.usefixtures("no_compilation")
@pytest.mark.deep
def test_compiled_equals_eager_in_lockstep(shortest: Compiled) -> None:
    positions = positions_of(shortest.columns)
    assert_identical(shortest.eager.step(positions), shortest.engine.step(positions), LOG_PROBABILITY_ERROR)


@pytest.mark.usefixtures("no_compilation")
@pytest.mark.deep
def test_other_candidates_in_another_number_compile_nothing(shortest: Compiled, merged: Merged) -> None:
    others = merged.other_candidates
    assert len(others.query) != len(merged.candidates.query)
    assert_identical(shortest.eager.prove(others), shortest.engine.prove(others), LOG_PROBABILITY_ERROR)
    assert_identical(shortest.columns, shortest.engine.prove(merged.candidates))


@pytest.mark.exhaustive
def test_two_tower_compiled_takes_the_steps_of_eager_but_for_near_ties(two_tower: Compiled, merged: Merged) -> None:
    margin = 2 * two_tower.engine.info.score_error
    expected, actual = two_tower.eager.prove(merged.candidates), two_tower.columns
    is_near = near_ties(expected, margin)
    is_clear = np.ones(len(merged.candidates.query), np.bool_)
    is_clear[owners(expected)[is_near]] = False
    assert is_clear.mean() > 0.8
    rows = np.flatnonzero(is_clear)
    assert not difference(select_candidates(expected, rows), select_candidates(actual, rows), margin)


@pytest.mark.usefixtures("no_compilation")
@pytest.mark.exhaustive
def test_two_tower_compiled_scores_like_eager_in_lockstep(two_tower: Compiled) -> None:
    margin = 2 * two_tower.engine.info.score_error
    positions = positions_of(two_tower.columns)
    expected, actual = two_tower.eager.step(positions), two_tower.engine.step(positions)
    rows = np.flatnonzero(~near_ties(expected, margin))
    assert len(rows) > 0.9 * len(positions.depth)
    assert not difference(select_candidates(expected, rows), select_candidates(actual, rows), margin)
