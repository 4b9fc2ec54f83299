"""The audit of determinism and precision of the compiled evaluator, on the states that a run reaches."""

from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.numerics.arithmetic import audit_batch, audit_colliding_writes, audit_repetition, audit_settings
from benchmarks.numerics.choose_stage import audit_choose
from benchmarks.numerics.precision_ladder import ChoiceStates, climb_precisions, collect_choice_states
from kgverify.audit.audited_function import COMPILE_MODES, Subject, check_names
from kgverify.audit.evaluator.audited_tick import build_tick_subject
from kgverify.audit.report import AuditReport, ReportBuilder
from kgverify.program.atoms import decode_variable, is_variable
from kgverify.program.program import Program
from kgverify.progress import Phase, silent_phase
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution.device import on_device, resolve_device
from kgverify.prover.layout import choose_layout
from kgverify.prover.stages.choose import SCORES, build_parameters
from kgverify.prover.stages.stage_functions import Stages, build_stages
from kgverify.prover.state import PAD
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.machine import describe_environment
from kgverify.runs.run import Run

SLOTS: Final = {"cpu": 64, "cuda": 4096}
WATCHED: Final = 64
"""Candidates that are proved while writes are watched, and under each setting."""
ROWS: Final = 2048
"""Scores that are computed alone and in batches."""


def audit_evaluator(
    run: Run,
    *,
    device: str = "auto",
    mode: str | None = "default",
    repetitions: int = 3,
    most_flips: int = 20,
    stages: Stages | None = None,
    phase: Phase = silent_phase,
) -> AuditReport:
    """Run every audit of numerics on the evaluator.

    mode:       of `torch.compile`, examined beside eager; None for eager alone
    most_flips: listed of each precision
    stages:     replace the evaluator's own
    UserError where the run has no candidates, or for an unknown mode.
    """
    on = resolve_device(device)
    compiled = None if mode in (None, "eager") else str(mode)
    modes = ("eager",) if compiled is None else ("eager", compiled)
    check_names("mode", modes, ("eager", *COMPILE_MODES))
    stages = build_stages(SCORES[run.policy.name]) if stages is None else stages
    report = ReportBuilder()
    with phase("ties and NaN", 0), on_device(on, has_products=True):
        audit_choose(report, stages.choose, device=on, mode=compiled)
    with phase("the same input twice", 0), on_device(on, has_products=True):
        subject = build_tick_subject(run, device=device, slots=SLOTS[on.type], stages=stages)
        audit_repetition(subject, report, modes=modes, repetitions=repetitions, axis=None)
    # Eager, so that every operation can be watched and its line found.
    layout = choose_layout(run.limits, slots=SLOTS[on.type])
    engine = CompiledEngine(
        run.graph.program, run.limits, run.policy, mode="eager", device=on.type, layout=layout, stages=stages
    )
    drawn = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    few = drawn.take(slice(0, WATCHED))
    with phase("colliding writes", 0):
        audit_colliding_writes(partial(engine.prove, few), "a run", report)
    with phase("settings of products", 0):
        audit_settings(lambda: engine.evaluate(few).results, "a run", report, device=on, is_pinned=True)
    with phase("proving", len(drawn.query)) as progress:
        columns = engine.prove(drawn, progress)
    states = collect_choice_states(columns, run.limits.max_atoms)
    error = engine.info.score_error
    with phase("batch sizes", 0), on_device(on, has_products=True):
        audit_score_batches(run, states, stages, report, on, error)
    with phase("precisions", 0):
        name = partial(name_goal, run.graph.program)
        climb_precisions(run.policy, states, on, name, report, max_atoms=run.limits.max_atoms, most_flips=most_flips)
    report.measures |= {"candidates": float(len(drawn.query)), "choices": float(len(states.goal))}
    environment = describe_environment(on.type, modes=", ".join(modes), score_error=f"{error:.3g}")
    return report.build(f"compiled evaluator on {run.graph.name}", environment)


def audit_score_batches(
    run: Run, states: ChoiceStates, stages: Stages, report: ReportBuilder, device: torch.device, error: float
) -> None:
    """Compare the scores of states of a run, alone and in larger batches, with their declared error."""
    parameters = build_parameters(run.policy, device, torch.float32)
    num = min(ROWS, len(states.resolvent))
    goals = torch.as_tensor(states.goal[states.slot[:num]], device=device)
    resolvents = torch.as_tensor(states.resolvent[:num], device=device)

    def score(goals: torch.Tensor, resolvents: torch.Tensor) -> torch.Tensor:
        slot = torch.arange(len(goals), device=goals.device)
        return stages.score(parameters, goals, resolvents, slot)

    audit_batch(Subject("score", score, lambda call: (goals, resolvents), calls=1), report, error=error)
    report.measures["score_error"] = error


def name_goal(program: Program, atoms: NDArray[np.int32]) -> str:
    """Write a padded goal as readable text."""
    symbols = program.symbols

    def argument(value: int) -> str:
        return f"X{decode_variable(value)}" if is_variable(value) else symbols.constants[value]

    goal = (row for row in atoms.tolist() if row[0] != PAD)
    return ", ".join(f"{symbols.predicates[p]}({argument(a)}, {argument(b)})" for p, a, b in goal)
