"""Correct steps that carry state from one call to the next: searches, decoders, recurrent networks, and tables."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.audit_cases import correct_steps
from benchmarks.audit_cases.registry import normals

correct: Final = partial(correct_steps.correct, module=__name__)


class Frontier(NamedTuple):
    """The open states of a best-first search: costs float32 [B, N], infinite where free, and nodes int64 [B, N]."""

    costs: Tensor
    nodes: Tensor


def _frontier(draw: torch.Generator) -> tuple[Any, ...]:
    costs = torch.randint(1, 90, (3, 8), generator=draw).float()
    costs[:, 5:] = torch.inf
    weights = torch.randint(1, 9, (12, 2), generator=draw).float()
    nodes, edges = (torch.randint(0, 12, shape, generator=draw) for shape in ((3, 8), (12, 2)))
    return Frontier(costs, nodes), edges, weights


@correct(_frontier)
def expand_cheapest(frontier: Frontier, edges: Tensor, weights: Tensor) -> tuple[Frontier, Tensor]:
    cost, at = frontier.costs.min(1, keepdim=True)
    chosen = frontier.nodes.gather(1, at)
    costs = frontier.costs.scatter(1, at, torch.inf)
    all_costs = torch.cat([costs, cost + weights[chosen.squeeze(1)]], 1)
    all_nodes = torch.cat([frontier.nodes, edges[chosen.squeeze(1)]], 1)
    kept = all_costs.argsort(dim=1, stable=True)[:, :8]
    return Frontier(all_costs.gather(1, kept), all_nodes.gather(1, kept)), chosen


@correct(
    lambda draw: (
        torch.randint(0, 9, (6, 3), generator=draw),
        torch.rand(6, generator=draw) > 0.5,
        torch.randint(10, 19, (6, 3), generator=draw),
        torch.zeros(2, dtype=torch.int64),
    )
)
def recycle_in_place(slots: Tensor, is_done: Tensor, waiting: Tensor, counts: Tensor) -> Tensor:
    rank = is_done.cumsum(0) - 1
    filled = torch.where(is_done[:, None], waiting[rank.clamp_min(0)], slots)
    slots.copy_(filled)
    counts[0] += is_done.sum()
    counts[1] = torch.maximum(counts[1], is_done.sum())
    return is_done.nonzero_static(size=6, fill_value=-1)


class CachedAttention(nn.Module):
    """Attention of one token to a cache, which it extends in place."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(2, 6, 8))
        self.register_buffer("values", torch.zeros(2, 6, 8))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """Write the token at its position, and attend to all positions up to it."""
        query, key, value = self.mixed(token).chunk(3, -1)
        self.keys.index_copy_(1, position, key[:, None].detach())
        self.values.index_copy_(1, position, value[:, None].detach())
        mask = torch.arange(6) <= position
        attended: Tensor = functional.scaled_dot_product_attention(query[:, None], self.keys, self.values, mask)
        return attended.squeeze(1)


@correct(lambda draw: (CachedAttention(), torch.randn(2, 8, generator=draw), torch.tensor([3])))
@torch.no_grad()
def extend_cache(layer: CachedAttention, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    return layer(token, position), position + 1


@correct(
    lambda draw: (
        torch.randn(2, 9, generator=draw),
        torch.randint(0, 9, (2, 5), generator=draw),
        torch.tensor([0.7, 1.3]),
    )
)
def sample_without_repeating(logits: Tensor, said: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    seen = logits.gather(1, said)
    punished = logits.scatter(1, said, torch.where(seen > 0, seen / 1.3, seen * 1.3))
    least = punished.topk(4).values[:, -1:]
    scores = punished.masked_fill(punished < least, -torch.inf) / temperature[:, None]
    chosen = (scores - torch.rand_like(scores).clamp_min(1e-7).log().neg().log()).argmax(1)
    return chosen, torch.cat([said[:, 1:], chosen[:, None]], 1)


@correct(lambda draw: (nn.GRUCell(4, 6).bfloat16(), *(each.bfloat16() for each in normals((3, 4), (3, 6))(draw))))
@torch.no_grad()
def remember_bfloat16(cell: nn.Module, values: Tensor, hidden: Tensor) -> Tensor:
    for _ in range(3):
        hidden = cell(values, hidden)
    return hidden


@correct(lambda draw: (torch.randint(0, 12, (12,), generator=draw).minimum(torch.arange(12)),))
def jump_to_roots(parents: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(4):
        parents = parents[parents]
    return parents, torch.zeros(12, dtype=torch.int64).index_add(0, parents, torch.ones_like(parents))


@dataclass
class Ring:
    """A buffer that is written in turn. rows: float32 [N, D]; cursor: int64 []."""

    rows: Tensor
    cursor: Tensor


@correct(lambda draw: (Ring(torch.zeros(4, 3), torch.tensor(6)), torch.randn(3, generator=draw)))
def append_to_ring(ring: Ring, row: Tensor) -> Tensor:
    is_here = torch.arange(4) == ring.cursor % 4
    ring.rows.copy_(torch.where(is_here[:, None], row, ring.rows))
    ring.cursor += 1
    return ring.rows.mean(0) + ring.cursor.clamp_max(4)


@correct(
    lambda draw: (
        nn.ModuleList([nn.Linear(6, 6) for _ in range(3)]),
        *normals((5, 6), (6, 3))(draw),
    )
)
def route_to_experts(experts: nn.ModuleList, values: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    weights, chosen = (values @ gate).softmax(-1).topk(2)
    shares = torch.zeros(5, 3).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
    mixed = torch.stack([expert(values) for expert in experts], 1)
    return (shares[..., None] * mixed).sum(1), (shares > 0).sum(0)


@correct(normals((16, 4), (5, 4), (5,)))
@torch.no_grad()
def move_codebook(values: Tensor, codes: Tensor, counts: Tensor) -> Tensor:
    nearest = torch.cdist(values, codes).argmin(1)
    num = torch.zeros(5).index_add(0, nearest, torch.ones(16))
    sums = torch.zeros(5, 4).index_add(0, nearest, values)
    counts.mul_(0.9).add_(num, alpha=0.1)
    codes.copy_(torch.where((num > 0)[:, None], torch.lerp(codes, sums / num.clamp_min(1)[:, None], 0.1), codes))
    return nearest


@correct(
    lambda draw: (
        torch.rand(3, 4, 7, generator=draw),
        torch.rand(3, 4, 7, generator=draw),
        torch.rand(3, 4, generator=draw),
    )
)
def accept_drafted(drafted: Tensor, wanted: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    tokens = drafted.argmax(-1)
    have, want = (each.gather(-1, tokens[..., None]).squeeze(-1) for each in (drafted, wanted))
    is_accepted = (chance <= want / have).long().cumprod(1)
    num = is_accepted.sum(1)
    rest = (wanted - drafted).clamp_min(0).take_along_dim(num.clamp_max(3)[:, None, None], 1).squeeze(1)
    return torch.where(is_accepted.bool(), tokens, -1), torch.where(num == 4, -1, rest.argmax(-1))


@correct(normals((4, 5), (5,)))
def slide_window(window: Tensor, newest: Tensor) -> Tensor:
    window.copy_(torch.cat([window[1:], newest[None]]))
    return window.std(0).nan_to_num()
