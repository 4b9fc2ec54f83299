"""Determinism and precision of the compiled evaluator, on the states that a run really comes to."""

from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from kgverify.audit.environment import describe_environment
from kgverify.audit.evaluator.subject import evaluator_subject
from kgverify.audit.numerics.batch import audit_batch
from kgverify.audit.numerics.order import audit_choose, audit_conventions
from kgverify.audit.numerics.precision_ladder import climb_ladder
from kgverify.audit.numerics.repetition import audit_repetition
from kgverify.audit.numerics.report import NumericsReport
from kgverify.audit.numerics.settings import audit_settings
from kgverify.audit.numerics.states import ChoiceStates, choice_states
from kgverify.audit.numerics.values import Look, check_modes
from kgverify.audit.properties.scatters import audit_scatters
from kgverify.audit.subject import Subject
from kgverify.engines.compiled.engine import CompiledEngine
from kgverify.engines.compiled.execution.device import on_device, resolve_device
from kgverify.engines.compiled.layout import choose_layout
from kgverify.engines.compiled.stages.choose import SCORES, build_parameters
from kgverify.engines.compiled.stages.stage_functions import Stages, build_stages
from kgverify.engines.compiled.state import PAD
from kgverify.program.atoms import decode_variable, is_variable
from kgverify.program.program import Program
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Run

SLOTS: Final = {"cpu": 64, "cuda": 4096}
WATCHED: Final = 64
"""Candidates that are proved under the watch over scatters, and under each setting."""
ROWS: Final = 2048
"""Scores that are made alone and in batches."""


def audit_evaluator(
    run: Run,
    *,
    device: str = "auto",
    mode: str | None = "default",
    repetitions: int = 3,
    most_flips: int = 20,
    stages: Stages | None = None,
    phase: Phase = silent_phase,
) -> NumericsReport:
    """Every audit of numerics on the evaluator.

    mode:       of `torch.compile`, that is looked at beside eager; None for eager alone
    most_flips: listed of each precision
    stages:     instead of the evaluator's own
    UserError where the run has no candidates, or for a mode that is none.
    """
    on = resolve_device(device)
    modes = ("eager",) if mode in (None, "eager") else ("eager", str(mode))
    check_modes(modes)
    compiled = None if len(modes) == 1 else modes[1]
    stages = build_stages(SCORES[run.policy.name]) if stages is None else stages
    with phase("ties and NaN", 0), on_device(on, has_products=True):
        conventions, look = audit_conventions(on, mode=compiled)
        look = look.join(audit_choose(stages.choose, device=on, mode=compiled))
    with phase("the same input twice", 0), on_device(on, has_products=True):
        subject = evaluator_subject(run, device=device, slots=SLOTS[on.type], stages=stages)
        look = look.join(audit_repetition(subject, modes=modes, repetitions=repetitions, batch_axis=None))
    engine = _build_engine(run, on, stages)
    drawn = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    few = drawn.take(slice(0, WATCHED))
    with phase("scatters", 0):
        look = look.join(audit_scatters(partial(engine.prove, few), "a run"))
    with phase("settings of products", 0):
        look = look.join(audit_settings(lambda: engine.evaluate(few).results, "a run", device=on, is_pinned=True))
    with phase("proving", len(drawn.query)) as progress:
        columns = engine.prove(drawn, progress)
    states = choice_states(columns, run.limits.max_atoms)
    with phase("batch sizes", 0), on_device(on, has_products=True):
        look = look.join(audit_score_batches(run, states, stages, on, engine.info.score_error))
    with phase("precisions", 0):
        name = partial(name_goal, run.graph.program)
        rungs, of_ladder = climb_ladder(
            run.policy, states, on, name, max_atoms=run.limits.max_atoms, most_flips=most_flips
        )
    look = look.join(of_ladder)
    return NumericsReport(
        subject=f"compiled evaluator on {run.graph.name}",
        findings=look.findings,
        unmeasured=look.unmeasured,
        measures=look.measures | {"candidates": float(len(drawn.query)), "choices": float(len(states.goal))},
        environment=describe_environment(on.type, modes=", ".join(modes), score_error=f"{engine.info.score_error:.3g}"),
        conventions=conventions,
        rungs=rungs,
    )


def _build_engine(run: Run, device: torch.device, stages: Stages) -> CompiledEngine:
    """Eager, so that every operation can be watched and its line told."""
    layout = choose_layout(run.limits, slots=SLOTS[device.type])
    return CompiledEngine(
        run.graph.program, run.limits, run.policy, mode="eager", device=device.type, layout=layout, stages=stages
    )


def audit_score_batches(run: Run, states: ChoiceStates, stages: Stages, device: torch.device, error: float) -> Look:
    """The scores of states of a run, alone and in larger batches, against their declared error."""
    parameters = build_parameters(run.policy, device, torch.float32)
    num = min(ROWS, len(states.resolvent))
    goals = torch.as_tensor(states.goal[states.slot[:num]], device=device)
    resolvents = torch.as_tensor(states.resolvent[:num], device=device)

    def score(goals: torch.Tensor, resolvents: torch.Tensor) -> torch.Tensor:
        slot = torch.arange(len(goals), device=goals.device)
        return stages.score(parameters, goals, resolvents, slot)

    subject = Subject("score", score, lambda call: (goals, resolvents), calls=1)
    look = audit_batch(subject, error=error)
    return look._replace(measures=look.measures | {"score_error": error})


def name_goal(program: Program, atoms: NDArray[np.int32]) -> str:
    """A padded goal as a person reads it."""
    symbols = program.symbols

    def argument(value: int) -> str:
        return f"X{decode_variable(value)}" if is_variable(value) else symbols.constants[value]

    goal = (row for row in atoms.tolist() if row[0] != PAD)
    return ", ".join(f"{symbols.predicates[p]}({argument(a)}, {argument(b)})" for p, a, b in goal)
