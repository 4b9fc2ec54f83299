"""The evaluator's stages with an idiom in one of them that some torch compiles wrongly. In eager each is what it says."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch_idioms import (
    add_mirrored,
    choose_lowest,
    choose_transposed,
    exchange_at_once,
    keep_previous,
    mark_others,
    mark_true,
    put_then_mirror,
    rotate_at_once,
    shift_rows,
    swap_buffers,
)

from kgverify.prover.stages.choose import SCORES, choose
from kgverify.prover.stages.recycle import recycle
from kgverify.prover.stages.resolve import close
from kgverify.prover.stages.stage_functions import Stages, build_stages
from kgverify.prover.state import DEPTH_LIMIT, FALSE, OPEN, TRUE, Choices, Derivations, Pool


def exchanged(derivations: Derivations) -> Derivations:
    """Depth and outcome of derivations whose buffers have been exchanged; what is wrong there stays within bounds."""
    return Derivations(
        pool_index=derivations.pool_index,
        query=derivations.query,
        goal=derivations.goal,
        depth=derivations.outcome.clamp(0, derivations.visited.shape[1] - 1),
        outcome=derivations.depth.clamp(OPEN, DEPTH_LIMIT),
        is_limited=derivations.is_limited,
        log_probability=derivations.log_probability,
        visited=derivations.visited,
    )


def recycle_swapped(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    swap_buffers(derivations.depth, derivations.outcome)
    return recycle(pool, exchanged(derivations))


def recycle_exchanged(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    exchange_at_once(derivations.depth, derivations.outcome)
    return recycle(pool, exchanged(derivations))


def recycle_rotated(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    rotate_at_once(derivations.depth, derivations.outcome, derivations.query[:, 0])
    return recycle(pool, derivations)


def recycle_kept(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    keep_previous(derivations.depth, derivations.outcome, derivations.goal[:, 0, 0].clamp(0, 1))
    return recycle(pool, derivations)


def recycle_shifted(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    shift_rows(pool.query)
    return recycle(pool, derivations)


def recycle_mirrored(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    add_mirrored(derivations.log_probability)
    return recycle(pool, derivations)


def recycle_put(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    put_then_mirror(derivations.log_probability)
    return recycle(pool, derivations)


def close_marked(num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
    kind = close(num_survivors, true_origin_kind, num_kept)
    return torch.where(mark_true(kind), TRUE, torch.where(kind == TRUE, FALSE, kind)).to(torch.int32)


def close_unmarked(num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
    kind = close(num_survivors, true_origin_kind, num_kept)
    return torch.where(mark_others(kind), torch.where(kind == TRUE, FALSE, kind), TRUE).to(torch.int32)


def choose_after(kind: Tensor, num_resolvents: Tensor, score: Tensor, number: Tensor) -> Choices:
    choices = choose(kind, num_resolvents, score)
    return Choices(
        choices.kind, choices.num_resolvents, choices.score, choices.choice, choices.log_probability + number
    )


def choose_least(kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
    places = torch.arange(24, device=score.device, dtype=torch.float32).view(4, 6)
    spread = (places * 7.3).sin() + num_resolvents.sum() * 0
    return choose_after(kind, num_resolvents, score, choose_lowest(spread))


def choose_crosswise(kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
    side = min(score.shape)
    square = score[:side, :side].clamp(-50.0, 50.0)
    bonus = torch.arange(side * side, device=score.device, dtype=score.dtype).view(side, side).sin()
    return choose_after(kind, num_resolvents, score, choose_transposed(square, bonus).sum())


PLANTED: dict[str, dict[str, Callable[..., object]]] = {
    "keep-previous": {"recycle": recycle_kept},
    "swap-buffers": {"recycle": recycle_swapped},
    "shift-rows": {"recycle": recycle_shifted},
    "add-mirrored": {"recycle": recycle_mirrored},
    "exchange-at-once": {"recycle": recycle_exchanged},
    "rotate-at-once": {"recycle": recycle_rotated},
    "put-then-mirror": {"recycle": recycle_put},
    "choose-lowest": {"choose": choose_least},
    "choose-transposed": {"choose": choose_crosswise},
    "mark-true": {"close": close_marked},
    "mark-others": {"close": close_unmarked},
}


def plant(name: str, policy: str = "shortest") -> Stages:
    """The stages with one of `IDIOMS` in one of them."""
    return build_stages(SCORES[policy])._replace(**PLANTED[name])
