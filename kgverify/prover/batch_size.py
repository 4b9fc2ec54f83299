"""The batch of an evaluation: the largest sizes that keep within the memory."""

from typing import Final, NamedTuple

import torch

from kgverify.engines.policy import Policy
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.prover.execution.compilation import FUSED
from kgverify.prover.execution.device import free_memory
from kgverify.prover.execution_choice import why_not_fused
from kgverify.prover.layout import choose_layout
from kgverify.prover.program.tables import round_up
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import build_stages
from kgverify.prover.state import Layout

SHARE: Final = 0.5
"""The share of the free memory that is used where no budget is given."""

MOST_SLOTS: Final = {"cuda": 131_072, "cpu": 512}
WINDOWS: Final = {"cuda": (64, 48), "cpu": (16, 8)}
"""Rows of the match window and of the score window for each slot; measured on family (docs/performance.md)."""

RECORDING_SLOTS: Final = 65_536
RECORDING_WINDOW: Final = 32
"""The most slots of a GPU that records every step, and the rows of its score window for each: the log has a copy of both."""

POOL: Final = {"cuda": 1 << 20, "cpu": 1 << 14}
"""The most candidates handed to the device at once."""


def estimate_bytes(layout: Layout, limits: Limits, policy: Policy, *, is_fused: bool = False) -> int:
    """Estimate the bytes of the buffers and intermediate results of an evaluation, program and policy excluded.

    For fused ticks: every buffer, with three precisions, and the temporaries of filling them; neither records nor digests.
    For ticks of stages run eagerly, with measured factors (float32, int64 intermediates); compiled, they take less.
    """
    atoms, resolvents = layout.atoms, layout.resolvents
    has_products = policy.name != "shortest"
    hidden, embedding = (int(n) for n in policy.weights["input.weight"].shape) if has_products else (0, 0)
    if is_fused:
        # The towers of goals are in float32, as wide as the kernels take them.
        padded = max(32, round_up(hidden)) if has_products else 0
        slot = (
            12 * atoms * (limits.max_depth + 1)
            + 48 * atoms * limits.max_depth
            + 16 * (resolvents + 1)
            + 512
            + 4 * padded
        )
        # The input layer's outputs for goals and rows take two bytes each.
        slot, row = slot + 2 * padded, 12 * atoms + 24 + 2 * padded
        return layout.slots * slot + layout.score_window * row + layout.pool * 80
    slot = 24 * atoms * (limits.max_depth + 2) + 56 * (resolvents + 1) + 256
    item = 240 * atoms + 128
    row = 180 * atoms + 64 + 12 * atoms * embedding + 16 * hidden
    return layout.slots * slot + layout.match_window * item + layout.score_window * row + layout.pool * 64


class Demand(NamedTuple):
    """The demands on a batch.

    memory:  bytes; a share of the free memory if not given
    slots:   as many as the device makes use of if not given
    mode:    of the engine
    records: whether every step is recorded
    """

    memory: int | None = None
    slots: int | None = None
    mode: str = "auto"
    records: bool = False


NO_DEMAND: Final = Demand()


def choose_evaluation_layout(
    program: Program,
    limits: Limits,
    policy: Policy,
    device: torch.device,
    num_candidates: int,
    demand: Demand = NO_DEMAND,
) -> Layout:
    """Choose sizes for a number of candidates that keep within the memory; they change nothing in any derivation.

    UserError if the least sizes, or those for the given slots, take more.
    """
    kind = "cuda" if device.type == "cuda" else "cpu"
    stages = build_stages(SCORES[policy.name])
    obstacle = why_not_fused(program, limits, policy, choose_layout(limits, slots=1), stages, device)
    is_fused = demand.mode in ("auto", FUSED) and kind == "cuda" and obstacle is None
    budget = int(SHARE * free_memory(device)) if demand.memory is None else demand.memory
    most, (of_match, of_score) = MOST_SLOTS[kind], WINDOWS[kind]
    if demand.records and kind == "cuda":
        most, of_score = RECORDING_SLOTS, RECORDING_WINDOW
    num = min(most, max(1, num_candidates)) if demand.slots is None else demand.slots
    while True:
        try:
            layout = choose_layout(
                limits,
                slots=num,
                match_window=max(1024, of_match * num),
                score_window=max(limits.max_resolvents, of_score * num),
                pool=max(1, min(POOL[kind], num_candidates)),
            )
            needed = estimate_bytes(layout, limits, policy, is_fused=is_fused)
            if demand.records and is_fused:
                from kgverify.prover.fused.record import count_least_bytes

                needed += count_least_bytes(layout)
            if needed <= budget:
                return layout
            raise UserError(
                f"{num} slots need {needed / 2**20:,.0f} MiB, and {budget / 2**20:,.0f} MiB are available",
                where="memory",
                fix="give more memory or fewer slots with --tune, or lower max_resolvents or max_depth of --limits",
            )
        except UserError:
            # The memory, or what an engine's buffers may take whatever the memory.
            if num == 1 or demand.slots is not None:
                raise
            num = max(1, num // 2)
