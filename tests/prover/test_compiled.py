"""`torch.compile` changes nothing, compiles the whole tick once and never again."""

import shutil
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import pytest
import torch
from engine_checks import assert_same
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from kgverify import CandidateSet, Columns, Limits, PolicySpec
from kgverify.engines.protocol import positions_of
from kgverify.laws import draw_problems
from kgverify.program.outcomes import Outcome
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution_choice import choose_layout
from kgverify.runs.run import reference_pipeline
from kgverify.testing.problems.merge import merge

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler"),
    # Inductor's own import of torch.utils.mkldnn.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

LIMITS = Limits(max_depth=8, max_atoms=4, max_resolvents=24)
"""Tight enough for every outcome, and for both kinds of drop, to occur."""


class Compiled(NamedTuple):
    """An engine after its first run, with the eager one, and the traces of this run in the compiler's counters."""

    engine: CompiledEngine
    eager: CompiledEngine
    candidates: CandidateSet
    columns: Columns
    num_graphs: int
    graph_breaks: dict[str, int]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    settings = {"limits": LIMITS, "policy": PolicySpec("shortest"), "num_corruptions": 1, "seed": 0}
    run = merge([replace(each, **settings) for each in islice(draw_problems(7), 40)]).run
    candidates = reference_pipeline(run).draw_for(run)
    layout = choose_layout(LIMITS, slots=32, match_window=512, score_window=256, pool=100)
    engine, eager = (
        CompiledEngine(run.graph.program, LIMITS, run.policy, mode=mode, device="cpu", layout=layout)
        for mode in ("default", "eager")
    )
    before = counters["stats"]["unique_graphs"]
    counters["graph_break"].clear()
    with fresh_cache():
        columns = engine.prove(candidates)
    num_graphs = counters["stats"]["unique_graphs"] - before
    return Compiled(engine, eager, candidates, columns, num_graphs, dict(counters["graph_break"]))


def test_the_tick_is_one_graph_that_equals_eager_and_other_candidates_compile_nothing(compiled: Compiled) -> None:
    assert (compiled.num_graphs, compiled.graph_breaks) == (1, {})
    engine, eager, candidates, columns, *_ = compiled
    assert {Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT} == {*columns.candidates.outcome.tolist()}
    assert columns.steps.dropped_atoms.any()
    assert columns.steps.dropped_resolvents.any()
    assert len(candidates.query) > engine.layout.pool > engine.layout.slots
    assert_same(eager.prove(candidates), columns)
    before = counters["stats"]["unique_graphs"]
    with torch.compiler.set_stance("fail_on_recompile"):
        positions = positions_of(columns)
        assert_same(eager.step(positions), engine.step(positions))
        others = candidates.take(slice(3, None, 2))
        assert_same(eager.prove(others), engine.prove(others))
    assert counters["stats"]["unique_graphs"] == before
