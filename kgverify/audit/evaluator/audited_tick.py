"""The tick of the compiled evaluator as a subject, with its stages as parts, on states that a run reaches."""

from copy import deepcopy

import numpy as np
import torch

from kgverify.audit.audited_function import Inputs, Subject
from kgverify.errors import UserError
from kgverify.prover.execution.device import on_device, resolve_device
from kgverify.prover.layout import choose_layout
from kgverify.prover.probe import watch_stages
from kgverify.prover.program.tables import build_tables
from kgverify.prover.stages.choose import SCORES, build_parameters
from kgverify.prover.stages.stage_functions import Stages, build_stages
from kgverify.prover.state import OPEN, Layout
from kgverify.prover.tick.slots import empty_derivations, empty_pool, empty_work
from kgverify.prover.tick.stage_ticks import build_unrecorded_tick
from kgverify.prover.tick.tick import Setting
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.run import Run
from kgverify.trace.model.columns import CandidateSet

TICKS = (0, 1, 2, 5, 9, 14)
"""The ticks of a run whose states are the inputs of calls: the first ones, and later ones with slots at different depths."""


def lay_out_candidates(run: Run, slots: int) -> tuple[CandidateSet, Layout]:
    """Draw the candidates of a run, and choose sizes with at most `slots` slots. UserError for a run without candidates."""
    candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    num = len(candidates.query)
    if num == 0:
        raise UserError("there is nothing to prove", where=f"{run.graph.name} {run.split}", fix="choose another split")
    return candidates, choose_layout(run.limits, slots=min(slots, num), pool=num)


def build_tick_subject(
    run: Run, *, device: str = "auto", slots: int = 64, stages: Stages | None = None, name: str = "tick"
) -> Subject:
    """Build a subject of recycling and a tick, on the candidates of a run; its stages are the parts, with their arguments.

    stages: replace the evaluator's own. UserError where the run has no candidates.
    """
    on = resolve_device(device)
    stages = build_stages(SCORES[run.policy.name]) if stages is None else stages
    candidates, layout = lay_out_candidates(run, slots)
    watched, calls = watch_stages(stages, deepcopy)
    with on_device(on, has_products=True):
        tables = build_tables(run.graph.program, layout.atoms, on, is_rounded=True)
        parameters = build_parameters(run.policy, on, torch.float32, is_rounded=True)
        derivations, work = empty_derivations(layout, run.limits.max_depth, on), empty_work(layout, on)
        pool = empty_pool(layout, on)
        pool.query.copy_(torch.as_tensor(np.ascontiguousarray(candidates.atom), device=on))
        pool.size.fill_(len(candidates.query))
        take_tick = build_unrecorded_tick(Setting(watched, run.limits, layout))
        states: list[Inputs] = []
        of_stages: dict[str, list[Inputs]] = {}
        for number in range(max(TICKS) + 1):
            state = tables, parameters, derivations, work, pool
            kept = deepcopy(state) if number in TICKS else None
            calls.clear()
            derivations, work, pool, *_ = take_tick(*state)
            if kept is not None:
                states.append(kept)
                for stage, call in calls.items():
                    of_stages.setdefault(stage, []).append(call.arguments)
            if len(states) > 1 and not bool((derivations.outcome == OPEN).any()):
                break
    parts = {
        stage: Subject(stage, getattr(stages, stage), inputs.__getitem__, calls=len(inputs))
        for stage, inputs in of_stages.items()
    }
    function = build_unrecorded_tick(Setting(stages, run.limits, layout))
    return Subject(name, function, states.__getitem__, parts, calls=len(states))
