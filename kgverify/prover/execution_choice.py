"""The choice of device, mode, precision and batch size, each with its reason."""

from collections.abc import Callable
from typing import Final, NamedTuple, TypedDict

import torch

from kgverify.engines.policy import Policy
from kgverify.errors import UserError
from kgverify.files.code_identity import find_compiler
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.prover.execution.compilation import FUSED, resolve_mode
from kgverify.prover.execution.device import free_memory, resolve_device
from kgverify.prover.native.choice import why_not_compiled, why_not_native
from kgverify.prover.program.tables import round_up
from kgverify.prover.stages.choose import SCORES, score_two_tower
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import Layout
from kgverify.prover.tower.launch import FLOAT32, PRECISIONS
from kgverify.prover.tower.portable import EXACT


class Execution(NamedTuple):
    """The device, mode and precision chosen, and the reason for each in words."""

    device: torch.device
    mode: str
    precision: str
    reasons: tuple[str, ...]


class Wanted(TypedDict, total=False):
    """The requested way to run. Missing values are `auto`, `float32` for the precision, and True.

    compiles: whether `auto` compiles ticks, where it takes no fused ones
    """

    mode: str
    device: str
    precision: str
    compiles: bool


def choose_execution(
    limits: Limits,
    policy: Policy,
    stages: Stages,
    find_obstacle: Callable[[torch.device], str | None],
    *,
    mode: str = "auto",
    device: str = "auto",
    precision: str = FLOAT32,
    compiles: bool = True,
) -> Execution:
    """Choose a value for each `auto`, and check the given values.

    UserError for anything not available here.

    find_obstacle: the obstacle to mode `fused` on a device
    """
    on = resolve_device(device)
    obstacle = find_obstacle(on)
    how = resolve_mode(mode, on, obstacle)
    searches = limits.dialect.searching.kind != "greedy"
    if mode == "auto" and how != FUSED and (searches or not compiles):
        how = "eager"
    products = resolve_precision(precision, policy, stages, on)
    if searches and (how not in ("eager", FUSED) or products != FLOAT32):
        raise UserError(
            f"mode {how!r} in precision {products!r} follows a single derivation of each candidate",
            where="mode",
            fix=f"use --mode eager or {FUSED} without a precision, or --limits search=greedy",
        )
    reason = _mode_reason(mode, how, on, obstacle)
    if mode == "auto" and on.type == "cpu":
        # None if an engine on tensors is made directly.
        replaced = None if stages == Stages(SCORES[policy.name]) else stages
        not_native = why_not_native("cpu", precision, limits, policy, replaced)
        if not_native is not None and not_native not in reason:
            reason = f"not native, since {not_native}; {reason}"
    reasons = (
        f"device {on.type}: {_device_reason(device, on)}",
        f"mode {how}: {reason}",
        f"precision {EXACT}: the paths of a search are compared by sums of scores"
        if searches
        else f"precision {products}: {_precision_reason(precision, products)}",
    )
    return Execution(on, how, EXACT if searches else products, reasons)


def _device_reason(asked: str, device: torch.device) -> str:
    if asked != "auto":
        return "as requested"
    return "torch found one" if device.type == "cuda" else "torch found no CUDA device"


def _mode_reason(asked: str, mode: str, device: torch.device, obstacle: str | None) -> str:
    if asked != "auto":
        return "as requested"
    if mode == FUSED:
        return "the fused kernels support this run"
    reason = "compiling would take longer than it saves"
    if device.type == "cuda":
        why = reason if mode == "eager" else "captured graphs leave no gaps between launches"
        return f"not fused, since {obstacle}; {why}"
    if mode == "eager":
        return why_not_compiled() or (reason if find_compiler() else "no C++ compiler is on the PATH")
    return "compiled loops are faster than eager ones, and a C++ compiler was found"


def _precision_reason(asked: str, precision: str) -> str:
    if asked != precision:
        return f"not {asked}, since the policy has no products"
    return (
        "the precision in which scores are compared"
        if precision == FLOAT32
        else "as requested; close choices are made again in a higher one"
    )


def why_not_fused(
    program: Program, limits: Limits, policy: Policy, layout: Layout, stages: Stages, device: torch.device
) -> str | None:
    """Return the obstacle to ticks of fused kernels, which replace sound stages of bounded sizes; None without one."""
    if stages != Stages(SCORES[policy.name]):
        return "there is a fault in one of the stages that it replaces"
    try:
        import triton

        from kgverify.prover.fused.resolve_kernels import MOST_ATOMS, MOST_RESOLVENTS, MOST_VARIABLES
        from kgverify.prover.tower.launch import MOST_WIDE, can_run
    except ImportError:
        return "Triton is not installed"
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        return "it needs a CUDA device"
    if layout.atoms > MOST_ATOMS:
        return f"it takes goals of at most {MOST_ATOMS} atoms"
    arguments = (term for rule in program.rules for atom in (rule.clause_head, *rule.body) for term in atom[1:])
    if 2 * layout.atoms - min((term for term in arguments if term < 0), default=0) > MOST_VARIABLES:
        return f"it takes at most {MOST_VARIABLES} variables of a goal and a rule together"
    if limits.max_resolvents > MOST_RESOLVENTS:
        return f"it takes at most {MOST_RESOLVENTS} resolvents of a step"
    if policy.name == "two_tower" and not can_run(policy):
        return f"it takes hidden widths of at most {MOST_WIDE}"
    return None


def resolve_precision(precision: str, policy: Policy, stages: Stages, device: torch.device) -> str:
    """Return the precision to use: `shortest` has no products, so its scores are exact in float32.

    UserError for a precision that is not available.
    """
    if precision not in PRECISIONS:
        raise UserError(
            f"unknown precision {precision!r}", where="precision", fix=f"choose one of {', '.join(PRECISIONS)}"
        )
    if precision == FLOAT32 or policy.name != "two_tower":
        return FLOAT32
    if device.type != "cuda":
        raise UserError(
            f"precision {precision!r} needs a CUDA device", where="precision", fix=f"use --tune precision={FLOAT32}"
        )
    if stages.score is not score_two_tower:
        raise UserError(
            f"precision {precision!r} replaces the stage `score`, in which there is a fault",
            where="precision",
            fix=f"use --tune precision={FLOAT32} with this fault",
        )
    from kgverify.prover.tower.launch import MOST_WIDE, can_run

    if not can_run(policy):
        raise UserError(
            f"precision {precision!r} supports hidden widths of at most {MOST_WIDE}",
            where="precision",
            fix=f"use --tune precision={FLOAT32} with these weights",
        )
    return precision


MEMORY_BUDGET: Final = 8 << 30
"""The largest number of bytes that the buffers of an engine may take."""


def choose_layout(
    limits: Limits,
    *,
    slots: int = 256,
    atoms: int | None = None,
    resolvents: int | None = None,
    match_window: int | None = None,
    score_window: int | None = None,
    pool: int = 16384,
) -> Layout:
    """Return a layout for the limits; sizes not given follow from them. UserError as in `check_layout`."""
    layout = Layout(
        slots=slots,
        atoms=limits.max_atoms if atoms is None else atoms,
        resolvents=limits.max_resolvents if resolvents is None else resolvents,
        match_window=max(1024, 16 * slots) if match_window is None else match_window,
        score_window=max(limits.max_resolvents, 8 * slots) if score_window is None else score_window,
        pool=pool,
    )
    check_layout(layout, limits)
    return layout


def check_layout(layout: Layout, limits: Limits) -> None:
    """Raise UserError if a size is too small for the limits, or the buffers would take too much memory."""
    least = Layout(1, limits.max_atoms, limits.max_resolvents, 1, limits.max_resolvents, 1)
    for name, size, needed in zip(layout._fields, layout, least, strict=True):
        if size < needed:
            raise UserError(
                f"{name} is {size}; these limits need at least {needed}",
                where=name,
                fix=f"choose {name} >= {needed}, or lower the limits",
            )
    # The visited goals and the kept clauses, twice: before and after a tick.
    num_bytes = 2 * layout.slots * (12 * layout.atoms * (limits.max_depth + 1) + 8 * (layout.resolvents + 1))
    if num_bytes > MEMORY_BUDGET:
        raise UserError(
            f"{layout.slots} slots of {layout.resolvents} resolvents and depth {limits.max_depth} take"
            f" {num_bytes / 2**30:.1f} GiB, more than {MEMORY_BUDGET >> 30} GiB",
            where="layout",
            fix="use fewer slots with --tune, or lower max_resolvents or max_depth of --limits",
        )


SHARE: Final = 0.5
"""The share of the free memory that is used if no budget is given."""

MOST_SLOTS: Final = {"cuda": 131_072, "cpu": 512}
WINDOWS: Final = {"cuda": (64, 48), "cpu": (16, 8)}
"""The rows of the match window and of the score window for each slot, measured on family (docs/evaluating.md)."""

RECORDING_SLOTS: Final = 65_536
RECORDING_WINDOW: Final = 32
"""The most slots of a GPU that records every step, and the rows of its score window per slot: the log copies both."""

POOL: Final = {"cuda": 1 << 20, "cpu": 1 << 14}
"""The largest number of candidates passed to the device at once."""


def estimate_bytes(layout: Layout, limits: Limits, policy: Policy, *, is_fused: bool = False) -> int:
    """Estimate the bytes of the buffers and intermediate results of an evaluation, without the program and the policy.

    For fused ticks, the estimate covers every buffer, in three precisions, and the temporaries that fill them, but no
    records or digests. For ticks of stages, it covers eager runs, with measured factors (float32, int64 intermediates).
    Compiled ticks take less.
    """
    atoms, resolvents = layout.atoms, layout.resolvents
    has_products = policy.name != "shortest"
    hidden, embedding = (int(n) for n in policy.weights["input.weight"].shape) if has_products else (0, 0)
    if is_fused:
        # The towers of goals are in float32, with the padded width of the kernels.
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
    """The requirements on a batch.

    memory:  the number of bytes; a share of the free memory if not given
    slots:   by default, the number that the device can use
    mode:    the mode of the engine
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
    """Choose sizes for a number of candidates that fit in the memory.

    The sizes change no derivation.

    UserError if the smallest sizes, or the sizes for the given slots, take more memory.
    """
    kind = "cuda" if device.type == "cuda" else "cpu"
    stages = Stages(SCORES[policy.name])
    obstacle = why_not_fused(program, limits, policy, choose_layout(limits, slots=1), stages, device)
    is_fused = demand.mode in ("auto", FUSED) and kind == "cuda" and obstacle is None
    budget = int(SHARE * free_memory(device)) if demand.memory is None else demand.memory
    most, (of_match, of_score) = MOST_SLOTS[kind], WINDOWS[kind]
    if demand.records and kind == "cuda":
        most, of_score = RECORDING_SLOTS, RECORDING_WINDOW
    # A search has up to this number of paths for each candidate.
    paths = num_candidates * limits.dialect.searching.size
    num = min(most, max(1, paths)) if demand.slots is None else demand.slots
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
            # The sizes exceed the memory, or the fixed limit on an engine's buffers.
            if num == 1 or demand.slots is not None:
                raise
            num = max(1, num // 2)
