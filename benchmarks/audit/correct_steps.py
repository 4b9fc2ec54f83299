"""Steps that torch 2.13 compiles rightly on a CPU, and that lose no property: an audit that finds something there is wrong.

Many are what a repair of a miscompile looks like, or what users of a prover, a decoder or a trainer write.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.audit import Make, add_make, floats, leaves, name_of, normals, slots

CORRECT_STEPS: Final[dict[str, tuple[Any, Callable[[int], tuple[Any, ...]]]]] = {}


def correct(make: Make) -> Callable[[Any], Any]:
    """Register a step with its arguments."""

    def register(step: Any) -> Any:
        CORRECT_STEPS[name_of(step)] = step, add_make(step, __name__, make)
        return step

    return register


@correct(floats((6, 6), (6, 6), (6, 6)))
def keep_a_copy(previous: Tensor, current: Tensor, change: Tensor) -> Tensor:
    previous.copy_(current)
    return (current + change).sum()


@correct(floats((6, 6), (6, 6)))
def return_exchanged(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return second.clone(), first.clone()


@correct(floats((6, 6)))
def shift_without_writing(rows: Tensor) -> Tensor:
    return torch.cat([rows[:1], rows[:-1]])


@correct(floats((6, 6)))
def add_flipped(rows: Tensor) -> Tensor:
    return rows + rows.flip(0)


@correct(lambda draw: (torch.randint(0, 3, (16,), generator=draw),))
def compare_with_int(kind: Tensor) -> Tensor:
    return torch.where(kind == 1, kind, -1)


@correct(slots)
def search_step(goal: Tensor, depth: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    matches = (table[None, :, 0] == goal[:, None, 0]) & (depth < 4)[:, None]
    found = matches.any(1)
    first = torch.where(matches, torch.arange(16), 16).amin(1).clamp_max(15)
    following = torch.where(found[:, None], table[first], goal)
    return following, depth + found, torch.where(found, first, -1)


class Derivation(NamedTuple):
    goal: Tensor
    depth: Tensor
    is_open: Tensor


@correct(
    lambda draw: (
        Derivation(
            torch.randint(0, 6, (8, 4), generator=draw),
            torch.zeros(8, dtype=torch.int64),
            torch.ones(8, dtype=torch.bool),
        ),
        torch.randint(0, 6, (8, 4), generator=draw),
    )
)
def advance_record(state: Derivation, chosen: Tensor) -> Derivation:
    is_open = state.is_open & (chosen[:, 0] != 0)
    goal = torch.where(is_open[:, None], chosen, state.goal)
    return Derivation(goal, state.depth + is_open, is_open)


@dataclasses.dataclass
class Beam:
    tokens: Tensor
    scores: Tensor


@correct(lambda draw: (Beam(torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4)), torch.randn(4, 7, generator=draw)))
def extend_beam(beam: Beam, logits: Tensor) -> Beam:
    total = beam.scores[:, None] + logits.log_softmax(-1)
    best = total.flatten().topk(4)
    rows, words = best.indices // 7, best.indices % 7
    return Beam(torch.cat([beam.tokens[rows], words[:, None]], 1), best.values)


@correct(normals((5, 11)))
def decode_with_sampling(logits: Tensor) -> Tensor:
    kept = logits.masked_fill(logits < logits.topk(4).values[:, -1:], float("-inf"))
    noise = -torch.log(-torch.log(torch.rand_like(kept).clamp(1e-6, 1 - 1e-6)))
    return (kept / 0.7 + noise).argmax(-1)


@correct(normals((5, 11)))
def decode_with_multinomial(logits: Tensor) -> Tensor:
    return torch.multinomial(logits.softmax(-1), 2)


@correct(lambda draw: (nn.Linear(6, 3), torch.randn(4, 6, generator=draw)))
def apply_module(layer: nn.Module, values: Tensor) -> Tensor:
    scores: Tensor = layer(values)
    return scores.relu()


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))

    def forward(self, values: Tensor) -> Tensor:
        scored: Tensor = self.layers(values)
        return scored


score_rows = Scorer()
correct(normals((4, 6)))(score_rows)


@correct(lambda draw: (nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)), torch.randn(4, 6, generator=draw)))
def drop_some(layers: nn.Module, values: Tensor) -> Tensor:
    dropped: Tensor = layers(values)
    return dropped


@correct(lambda draw: (nn.BatchNorm1d(6), torch.randn(8, 6, generator=draw)))
def normalise(norm: nn.Module, values: Tensor) -> Tensor:
    normal: Tensor = norm(values)
    return normal


class Counter(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, values: Tensor) -> Tensor:
        self.seen.add_(values.sum(0))
        return self.seen * 2


count_in_buffer = Counter()
correct(floats((4, 6)))(count_in_buffer)


@correct(lambda draw: tuple(each.bfloat16() for each in normals((6, 8), (8, 8), (8,))(draw)))
def multiply_bfloat16(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(values @ weight + bias).softmax(-1)


@correct(lambda draw: tuple(each.bfloat16() for each in normals((6, 8), (6, 8))(draw)))
def chain_bfloat16(first: Tensor, second: Tensor) -> Tensor:
    return ((first * 1.1 + second) * first - second).exp().sum(1)


@correct(lambda draw: tuple(each.half() for each in normals((6, 8))(draw)))
def chain_half(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, torch.full_like(values, 0.3)) * 3.3 + 0.1


@correct(normals((64,), (64,)))
def cancel_float32(first: Tensor, second: Tensor) -> Tensor:
    return (first * 1e4 + second) - first * 1e4


@correct(normals((3, 5), (5, 5), (5,)))
def recurrent_state(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    for _ in range(4):
        hidden = torch.tanh(hidden @ weight + bias)
    return hidden


@correct(lambda draw: (nn.GRUCell(4, 6), *normals((3, 4), (3, 6))(draw)))
def update_cell(cell: nn.Module, values: Tensor, hidden: Tensor) -> Tensor:
    updated: Tensor = cell(values, hidden)
    return updated


@correct(floats((8, 6), (6,)))
def write_rows_in_place(state: Tensor, row: Tensor) -> None:
    state[2] = row
    state[4:6].mul_(2)


@correct(floats((6, 6)))
def views_of_views(state: Tensor) -> Tensor:
    return state.t()[1:4].reshape(-1).view(3, 6).transpose(0, 1).contiguous() + 1


@correct(lambda draw: (torch.zeros(9), torch.randperm(9, generator=draw)[:6], torch.randn(6, generator=draw)))
def scatter_unique(state: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    return state.scatter(0, rows, values)


@correct(lambda draw: (torch.randint(0, 5, (12,), generator=draw), torch.randn(12, 3, generator=draw)))
def add_by_group(groups: Tensor, values: Tensor) -> Tensor:
    return torch.zeros(5, 3).index_add(0, groups, values)


@correct(lambda draw: (torch.randint(0, 5, (8,), generator=draw),))
def one_hot_rows(rows: Tensor) -> Tensor:
    return functional.one_hot(rows, 5).sum(0)


@correct(normals((2, 6, 8), (2, 6, 8), (2, 6, 8)))
def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@correct(leaves((6, 4), (4, 3)))
def train_step(values: Tensor, weight: Tensor) -> Tensor:
    return functional.cross_entropy(values @ weight, torch.tensor([0, 1, 2, 0, 1, 2]))


@correct(leaves((5, 5)))
def differentiate_twice_used(values: Tensor) -> Tensor:
    return (values.sigmoid() * values + values.t().tanh()).sum()


CACHE: Final = {"keys": torch.zeros(4, 6), "scale": torch.tensor(0.5)}


@correct(normals((6,)))
def read_cache(values: Tensor) -> Tensor:
    return (CACHE["keys"] + values) * CACHE["scale"]


@correct(lambda draw: (torch.randn(4, 6, generator=draw), torch.tensor(2)))
def write_cache_at(keys: Tensor, at: Tensor) -> Tensor:
    held = torch.zeros(4, 8, 6)
    return held.index_copy(1, at[None], keys[:, None]).sum(1)


@correct(lambda draw: (torch.randint(-(2**40), 2**40, (32,), generator=draw), torch.tensor(-7046029254386353131)))
def hash_with_tensor(rows: Tensor, factor: Tensor) -> Tensor:
    mixed = rows * factor
    return (mixed ^ (mixed >> 29)) & 0x7FFFFFFF


@correct(lambda draw: (torch.rand(6, 9, generator=draw) > 0.7,))
def first_set(mask: Tensor) -> Tensor:
    return torch.where(mask, torch.arange(9), 9).amin(-1)


@correct(lambda draw: (torch.randint(0, 50, (20,), generator=draw),))
def sort_and_search(keys: Tensor) -> tuple[Tensor, Tensor]:
    ordered = keys.sort(stable=True).values
    return ordered, torch.searchsorted(ordered, torch.tensor([5, 20, 40]))


@correct(lambda draw: ([{"a": torch.randn(3, generator=draw), "n": 2}, torch.randn(3, generator=draw)],))
def nested_arguments(given: list[Any]) -> dict[str, Any]:
    held, more = given
    return {"sum": held["a"] + more, "pair": (more * held["n"], held["n"])}


@correct(lambda draw: (torch.randn(6, dtype=torch.complex64, generator=draw),))
def rotate_complex(values: Tensor) -> Tensor:
    return torch.view_as_real(values * torch.polar(torch.ones(6), torch.arange(6.0)))


@correct(lambda draw: (torch.tensor([1.0, float("nan"), float("-inf"), 3.0]), torch.randn(4, generator=draw)))
def mask_special_values(values: Tensor, more: Tensor) -> Tensor:
    return torch.where(values.isfinite(), values, more).nan_to_num().cumsum(0)


@correct(lambda draw: (torch.randn(0, 4, generator=draw), torch.randn(3, 4, generator=draw)))
def empty_batch(nothing: Tensor, values: Tensor) -> Tensor:
    return torch.cat([nothing * 2, values]).sum(0)


@correct(lambda draw: (torch.randn(4, 3, generator=draw), 3 + int(torch.randint(0, 2, (), generator=draw)) * 0))
def plain_number(values: Tensor, times: int) -> Tensor:
    for _ in range(times):
        values = values * 1.5
    return values


def _scale(values: Tensor, by: Tensor) -> Tensor:
    return values * by


partial_step = functools.partial(_scale, by=torch.tensor(2.0))
partial_step.__name__ = "partial_step"  # type: ignore[attr-defined]
correct(normals((4, 3)))(partial_step)


@correct(
    lambda draw: (torch.randint(0, 4, (8, 3), generator=draw, dtype=torch.int32), torch.rand(8, generator=draw) > 0.4)
)
def compact_slots(slots_: Tensor, is_open: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.argsort(~is_open, stable=True)
    return slots_[order], is_open.sum()


@correct(floats((5, 4), (5, 4)))
def fused_update(weights: Tensor, gradients: Tensor) -> None:
    torch._foreach_add_([weights[:2], weights[2:]], [gradients[:2], gradients[2:]], alpha=-2.0)


class Decoding(NamedTuple):
    """The state of a decoder: keys and values float32 [B, L, D], positions int64 [B], tokens int64 [B]."""

    keys: Tensor
    values: Tensor
    positions: Tensor
    tokens: Tensor


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.mixed = nn.Linear(8, 24)
        self.scored = nn.Linear(8, 11)

    def forward(self, state: Decoding) -> tuple[Tensor, Decoding]:
        query, key, value = self.mixed(self.embedding(state.tokens)).chunk(3, -1)
        at = torch.arange(state.keys.shape[1]) == state.positions[:, None]
        keys = torch.where(at[..., None], key[:, None], state.keys)
        values = torch.where(at[..., None], value[:, None], state.values)
        seen = torch.arange(state.keys.shape[1]) <= state.positions[:, None]
        weights = (keys @ query[..., None]).squeeze(-1).masked_fill(~seen, float("-inf")).softmax(-1)
        scores: Tensor = self.scored((weights[:, None] @ values).squeeze(1))
        return scores, state._replace(keys=keys, values=values, positions=state.positions + 1)


@torch.no_grad()
def decode_and_sample(decoder: Decoder, state: Decoding) -> Decoding:
    scores, advanced = decoder(state)
    noise = torch.empty_like(scores).exponential_().clamp_min(1e-9).log()
    return advanced._replace(tokens=(scores / 0.8 - noise).argmax(-1))


def _decoding(draw: torch.Generator) -> tuple[Any, ...]:
    keys, values = torch.randn(2, 3, 6, 8, generator=draw)
    tokens = torch.randint(0, 11, (3,), generator=draw)
    return Decoder(), Decoding(keys, values, torch.tensor([1, 4, 2]), tokens)


correct(_decoding)(decode_and_sample)


@correct(
    lambda draw: (torch.zeros(3, 6, 4), torch.randn(3, 4, generator=draw), torch.randint(0, 6, (3,), generator=draw))
)
def write_cache_in_place(cache: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    cache[torch.arange(3), positions] = keys
    is_seen = torch.arange(6) <= positions[:, None]
    return (cache * is_seen[..., None]).sum(1)


@correct(lambda draw: (nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)), torch.randn(4, 6, generator=draw)))
def add_residual(block: nn.Module, values: Tensor) -> Tensor:
    for _ in range(2):
        values = values + functional.silu(block(values))
    return values


@correct(lambda draw: tuple(each.bfloat16() for each in normals((4, 16), (16,), (16, 16))(draw)))
def normalise_bfloat16(values: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    for _ in range(3):
        wide = values.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        values = values + (normal.to(values.dtype) * scale) @ weight * 0.1
    return values


@correct(
    lambda draw: (
        torch.randint(0, 7, (2, 3, 4), generator=draw),
        torch.randn(2, 3, generator=draw),
        torch.rand(2, 3, generator=draw) > 0.6,
        torch.randn(2, 3, 7, generator=draw),
    )
)
def search_beams(
    tokens: Tensor, scores: Tensor, is_done: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ends = torch.full((7,), float("-inf"))
    ends[0] = 0.0
    extended = scores[..., None] + torch.where(is_done[..., None], ends, logits.log_softmax(-1))
    best, at = extended.flatten(1).topk(3)
    beams, words = at.div(7, rounding_mode="floor"), at % 7
    kept = tokens.gather(1, beams[..., None].expand(-1, -1, 4))
    return torch.cat([kept, words[..., None]], -1), best, is_done.gather(1, beams) | (words == 0), beams


@correct(
    lambda draw: (
        torch.randint(1, 9, (8, 3), generator=draw, dtype=torch.int32),
        torch.rand(8, generator=draw) > 0.5,
        torch.randint(1, 9, (8, 3), generator=draw, dtype=torch.int32),
        torch.tensor(5),
    )
)
def refill_slots(goals: Tensor, is_free: Tensor, waiting: Tensor, num_waiting: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rank = is_free.cumsum(0) - 1
    is_filled = is_free & (rank < num_waiting)
    slots_of = torch.where(is_filled, torch.arange(8), 8)
    padded = torch.cat([goals, goals.new_zeros(1, 3)])
    filled = padded.scatter(0, slots_of[:, None].expand(-1, 3)[is_filled.argsort(stable=True)], 0)[:8]
    filled = torch.where(is_filled[:, None], waiting[rank.clamp(0, 7)], filled)
    return filled, is_free & ~is_filled, num_waiting - is_filled.sum()


@correct(lambda draw: (torch.randn(20, 3, generator=draw), torch.tensor([0, 4, 4, 11, 20])))
def gather_ragged(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    starts, lengths = offsets[:-1], offsets.diff()
    at = starts[:, None] + torch.arange(9)
    is_there = torch.arange(9) < lengths[:, None]
    padded = values[torch.where(is_there, at, 0)] * is_there[..., None]
    return padded, padded.sum(1) / lengths.clamp_min(1)[:, None]


class Statistics(nn.Module):
    num: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("squares", torch.zeros(4))

    def forward(self, values: Tensor) -> Tensor:
        self.num += values.shape[0]
        gap = values - self.mean
        self.mean += gap.sum(0) / self.num
        self.squares += (gap * (values - self.mean)).sum(0)
        return (values - self.mean) / (self.squares / self.num + 1e-5).sqrt()


run_statistics = Statistics()
correct(normals((5, 4)))(run_statistics)


@torch.no_grad()
def average_parameters(model: nn.Module, average: nn.Module) -> None:
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(new, 0.1)


correct(lambda draw: (nn.Linear(4, 3), nn.Linear(4, 3)))(average_parameters)


@correct(lambda draw: (torch.randn(5, 6, generator=draw), torch.rand(5, 6, generator=draw) > 0.6))
def attend_to_some(scores: Tensor, is_hidden: Tensor) -> Tensor:
    is_hidden = is_hidden | (torch.arange(5) == 2)[:, None]
    weights = scores.masked_fill(is_hidden, float("-inf")).softmax(-1)
    return torch.where(is_hidden.all(-1, keepdim=True), 0.0, weights)


@correct(normals((4, 12)))
def sample_top_p(logits: Tensor) -> tuple[Tensor, Tensor]:
    ordered, at = logits.softmax(-1).sort(-1, descending=True)
    is_kept = ordered.cumsum(-1) - ordered < 0.9
    kept = torch.where(is_kept, ordered, 0.0)
    chosen = torch.multinomial(kept / kept.sum(-1, keepdim=True), 1)
    return at.gather(1, chosen).squeeze(1), is_kept.sum(-1)


@correct(lambda draw: (torch.randint(-(2**62), 2**62, (40,), generator=draw),))
def mix_int64(keys: Tensor) -> tuple[Tensor, Tensor]:
    mixed = keys + -7046029254386353131
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    mixed = mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)
    return mixed, mixed & 63


# Steps that carry state from one call to the next


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
    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(2, 6, 8))
        self.register_buffer("values", torch.zeros(2, 6, 8))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
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


@correct(lambda draw: (nn.ModuleList([nn.Linear(6, 6) for _ in range(3)]), *normals((5, 6), (6, 3))(draw)))
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


@correct(lambda draw: (torch.rand(301, dtype=torch.float64, generator=draw),))
def evaluate_special_functions(numbers: Tensor) -> tuple[Tensor, ...]:
    first, second = 50 * numbers + 0.1, 50 * numbers.flip(0) + 0.1
    special = torch.special
    gammas = special.gammainc(first, second), special.gammaincc(first, second)
    waves = special.bessel_y0(first / 5), special.bessel_y1(first / 5), special.airy_ai(first / 5)
    return (*gammas, *waves, numbers.expm1(), numbers.atanh(), special.log_ndtr(-numbers))
