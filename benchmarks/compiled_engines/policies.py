"""Six policies of different styles. Each scores the successors of a goal: `forward(states, successors, counts) -> [B, S]`.

`padding_weight` is 0, or 1 under a fault that lets padding atoms take part; a buffer changes without another compilation.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Atoms(nn.Module):
    """Vectors of atoms: the sum of the embeddings of predicate and arguments. All variables share one embedding."""

    def __init__(self, num_predicates: int, num_constants: int, width: int) -> None:
        super().__init__()
        self.variable = num_constants + 1
        self.predicates = nn.Embedding(num_predicates + 1, width)
        self.first = nn.Embedding(num_constants + 2, width)
        self.second = nn.Embedding(num_constants + 2, width)

    def forward(self, atoms: Tensor) -> Tensor:
        """Return floats [..., M, D] of atoms [..., M, 3]."""
        terms = atoms[..., 1:].clamp(max=self.variable)
        return self.predicates(atoms[..., 0]) + self.first(terms[..., 0]) + self.second(terms[..., 1])


class Scorer(nn.Module):
    """A policy with a preference for short goals, whose scores have the size `scale`.

    prototypes: the number of constants that differ in more than the last bit of their vectors; None for all. Resolvents
                with constants of one prototype are near-ties.
    """

    width, scale, prior, prototypes = 32, 1.0, 2.0, None

    def __init__(self, num_predicates: int, num_constants: int) -> None:
        super().__init__()
        self.atoms = Atoms(num_predicates, num_constants, self.width)
        if self.prototypes:
            for weight in (self.atoms.first.weight.data, self.atoms.second.weight.data):
                rows = weight[torch.arange(len(weight)) % self.prototypes]
                weight.copy_(rows * (1 + 1e-7 * torch.randn_like(rows)))
        self.register_buffer("padding_weight", torch.tensor(0.0))
        self.build(self.width)

    def build(self, width: int) -> None:
        """Make the layers."""

    def weigh(self, atoms: Tensor) -> Tensor:
        """Return floats [..., M]: 1 for atoms, and the weight of padding for padding."""
        return torch.maximum((atoms[..., 0] > 0).to(self.padding_weight.dtype), self.padding_weight)

    def forward(self, states: Tensor, successors: Tensor, counts: Tensor) -> Tensor:
        """Return scores [B, S]."""
        length = (successors[..., 0] > 0).sum(-1)
        return self.finish(self.scale * (self.compare(states, successors) - self.prior * length), counts)

    def compare(self, states: Tensor, successors: Tensor) -> Tensor:
        """Return numbers of size 1, [B, S]."""
        raise NotImplementedError

    def finish(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Return the scores of the listed successors, and 0 for the others."""
        return torch.where(_is_listed(scores, counts), scores, 0.0)


class DotProduct(Scorer):
    """The dot product of two sums of embedded atoms, as log-softmax."""

    def build(self, width):
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.stale = self.layers[0]

    def pool(self, atoms):
        return (self.layers(self.atoms(atoms)) * self.weigh(atoms).unsqueeze(-1)).sum(-2)

    def compare(self, states, successors):
        return (self.pool(successors) * self.pool(states).unsqueeze(1)).sum(-1) / math.sqrt(self.width)

    def finish(self, scores, counts):
        is_listed = _is_listed(scores, counts)
        scores = scores.masked_fill(~is_listed, -torch.inf).log_softmax(-1)
        return torch.where(is_listed, scores, 0.0)


class MeanResidual(Scorer):
    """Mean pooling and four residual layers of 128; scores of about 30, with near-ties."""

    scale, prototypes = 10.0, 12

    def build(self, width):
        self.enter = nn.Linear(3 * width, 128)
        self.blocks = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))
        self.leave = nn.Linear(128, 1)
        self.stale = self.blocks[2]

    def pool(self, atoms):
        weight = self.weigh(atoms).unsqueeze(-1)
        return (self.atoms(atoms) * weight).sum(-2) / weight.sum(-2).clamp(min=1)

    def compare(self, states, successors):
        after = self.pool(successors)
        goal = self.pool(states).unsqueeze(1).expand_as(after)
        hidden = self.enter(torch.cat([goal, after, goal * after], -1))
        for block in self.blocks:
            hidden = hidden + functional.gelu(block(hidden))
        return self.leave(hidden).squeeze(-1)


class Attention(Scorer):
    """The atoms of a successor attend to those of the goal, in two heads."""

    def build(self, width):
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.leave = nn.Linear(width, 1)
        self.stale = self.key

    def compare(self, states, successors):
        num, size, width = successors.shape[:3]
        goal, after = self.atoms(states), self.atoms(successors).reshape(num, size * width, -1)
        query, key, value = (
            layer(rows).unflatten(-1, (2, -1)).transpose(1, 2)
            for layer, rows in ((self.query, after), (self.key, goal), (self.value, goal))
        )
        mask = (self.weigh(states) > 0)[:, None, None, :].expand(-1, -1, size * width, -1)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = mixed.transpose(1, 2).flatten(2).reshape(num, size, width, -1) * after.reshape(num, size, width, -1)
        pooled = (mixed * self.weigh(successors).unsqueeze(-1)).sum(-2)
        # A sum of products in place of a matrix product, which compilers reduce in an order of their own.
        return (pooled * self.leave.weight[0]).sum(-1) + self.leave.bias


class Normed(Scorer):
    """Layer norm before each layer; the scores are softmax probabilities."""

    def build(self, width):
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(2 * width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.leave = nn.Sequential(nn.Linear(2 * width, 64), nn.Tanh(), nn.Linear(64, 1))
        self.stale = self.layers[2]

    def pool(self, atoms):
        rows = self.atoms(atoms)
        return ((rows + self.layers(self.before(rows))) * self.weigh(atoms).unsqueeze(-1)).sum(-2)

    def compare(self, states, successors):
        after = self.pool(successors)
        goal = self.pool(states).unsqueeze(1).expand_as(after)
        return 3 * self.leave(self.after(torch.cat([goal, after], -1))).squeeze(-1)

    def finish(self, scores, counts):
        # A list without successors has no probabilities, and no NaN either.
        lowest = torch.finfo(scores.dtype).min
        return super().finish(scores.masked_fill(~_is_listed(scores, counts), lowest).softmax(-1), counts)


class Ragged(Scorer):
    """Atoms as one flat list that is added into its owners with gates; scores of about 0.01, with near-ties."""

    scale, prototypes = 0.01, 12

    def build(self, width):
        self.gate = nn.Linear(width, 1)
        self.layers = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))
        self.stale = self.layers[2]

    def pool(self, atoms):
        shape = atoms.shape[:-2]
        rows = self.atoms(atoms)
        weight = self.weigh(atoms)
        gates = self.gate(rows).squeeze(-1)
        gates = gates.masked_fill(weight == 0, torch.finfo(gates.dtype).min).softmax(-1)
        num = math.prod(shape)
        owner = torch.arange(num, device=atoms.device).repeat_interleave(atoms.shape[-2])
        # The last row collects padding.
        owner = torch.where(weight.flatten() > 0, owner, num)
        values = (self.layers(rows) * gates.unsqueeze(-1)).flatten(0, -2)
        sums = values.new_zeros(num + 1, self.width).index_add(0, owner, values)
        return sums[:num].reshape(*shape, self.width)

    def compare(self, states, successors):
        return torch.einsum("bsd,bd->bs", self.pool(successors), self.pool(states)) / math.sqrt(self.width)


class Pair(Scorer):
    """The policy that the NumPy reference writes a second time; see `score_with_arrays`."""

    scale = 3.0

    def build(self, width):
        self.enter, self.leave = nn.Linear(2 * width, 96), nn.Linear(96, 1)
        self.stale = self.enter

    def pool(self, atoms):
        return (self.atoms(atoms) * self.weigh(atoms).unsqueeze(-1)).sum(-2)

    def compare(self, states, successors):
        after = self.pool(successors)
        goal = self.pool(states).unsqueeze(1).expand_as(after)
        return self.leave(self.enter(torch.cat([goal, after], -1)).tanh()).squeeze(-1)


def score_with_arrays(xp, weights: dict, states, successors, counts):
    """Return the scores of `Pair` by NumPy or a library with its functions, in the float type of the weights."""

    def pool(atoms):
        rows = weights["atoms.predicates.weight"][atoms[..., 0]]
        for column, name in ((1, "first"), (2, "second")):
            table = weights[f"atoms.{name}.weight"]
            rows = rows + table[xp.minimum(atoms[..., column], len(table) - 1)]
        return xp.where(atoms[..., :1] > 0, rows, 0).sum(-2)

    after = pool(successors)
    goal = xp.broadcast_to(pool(states)[:, None], after.shape)
    rows = xp.concatenate([goal, after], -1)
    hidden = xp.tanh(xp.matmul(rows, weights["enter.weight"].T) + weights["enter.bias"])
    scores = (xp.matmul(hidden, weights["leave.weight"].T) + weights["leave.bias"])[..., 0]
    number = scores.dtype.type
    length = (successors[..., 0] > 0).sum(-1).astype(scores.dtype)
    is_listed = xp.arange(scores.shape[1]) < counts[:, None]
    return xp.where(is_listed, number(Pair.scale) * (scores - number(Pair.prior) * length), number(0))


def _is_listed(scores: Tensor, counts: Tensor) -> Tensor:
    return torch.arange(scores.shape[1], device=counts.device) < counts[:, None]
