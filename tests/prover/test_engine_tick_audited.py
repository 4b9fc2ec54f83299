"""The evaluator's tick under the compiler, audited by stepaudit on states that a run reaches."""

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from kgverify import load_graph
from kgverify.prover.execution.device import on_device
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.program.tables import build_tables
from kgverify.prover.stages.choose import SCORES, build_parameters
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.tick.stage_ticks import build_unrecorded_tick
from kgverify.prover.tick.tick import Setting, empty_derivations, empty_pool, empty_work
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run

stepaudit = pytest.importorskip("stepaudit")

CPU = torch.device("cpu")
RUN = Run(load_graph("countries"), num_queries=2, num_corruptions=4)
TICKS = (0, 1, 2, 5)
"""The ticks of the run whose states are the arguments of calls: slots at different depths."""


@cache
def make_states() -> tuple[Any, list[tuple[Any, ...]]]:
    """Return the tick, and its arguments at some ticks of a run."""
    candidates = draw_candidates(RUN.graph, RUN.split, RUN.queries, RUN.num_corruptions, RUN.seed)
    layout = choose_layout(RUN.limits, slots=4, pool=len(candidates.query))
    take_tick = build_unrecorded_tick(Setting(Stages(SCORES[RUN.policy.name]), RUN.limits, layout))
    states = []
    with on_device(CPU, has_products=True):
        fixed = (
            build_tables(RUN.graph.program, layout.atoms, CPU, is_rounded=True),
            build_parameters(RUN.policy, CPU, torch.float32, is_rounded=True),
        )
        pool = empty_pool(layout, CPU)
        moving = empty_derivations(layout, RUN.limits.max_depth, CPU), empty_work(layout, CPU), pool
        pool.query.copy_(torch.as_tensor(np.ascontiguousarray(candidates.atom)))
        pool.size.fill_(len(candidates.query))
        for number in range(max(TICKS) + 1):
            if number in TICKS:
                states.append(deepcopy((*fixed, *moving)))
            moving = take_tick(*fixed, *moving)[:3]
    return take_tick, states


@pytest.mark.exhaustive
def test_the_compiled_tick_loses_no_property() -> None:
    take_tick, states = make_states()
    report = stepaudit.audit_step(
        take_tick, states[:2].__getitem__, calls=2, rungs=(), dynamic=False, keeps_outputs=False
    )
    assert report.findings == ()
    zeros = ("graph_breaks", "recompilations", "syncs_per_step", "colliding_scatters", "guard_holes")
    assert {name: report.measures[name] for name in zeros} == dict.fromkeys(zeros, 0)
    assert (report.measures["graphs"], report.measures["guard_perturbations"] >= 1) == (1, True)


@pytest.mark.exhaustive
def test_the_tick_deviates_on_no_rung() -> None:
    take_tick, states = make_states()
    rungs = ("backend-eager", "aot-eager", "aot-eager-decomposed", "default")
    report = stepaudit.audit_step(take_tick, states.__getitem__, calls=len(states), rungs=rungs, keeps_outputs=False)
    assert report.verdict == "AGREE"
    assert [(row["name"], row["deviations"]) for row in report.sections["rungs"].rows] == [(name, 0) for name in rungs]
