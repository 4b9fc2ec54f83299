"""The search half of the provers: successors of a batch of padded goals, for programs of binary chain rules.

Axes: B states, S successors, M atoms of a goal, R rules of a predicate, K facts that share a predicate and an argument.
Numbers: 0 is padding, predicates and constants count from 1, and variables lie above the constants.
"""

import torch
from torch import Tensor, nn

HEAD_FIRST, HEAD_SECOND, FRESH = -1, -2, -3
"""The terms of a rule's body: an argument of the head, or the rule's further variable."""
NO_CAP = 1 << 40


class Search(nn.Module):
    """Facts and rules as tables.

    cap, modulus, last_pruned: int64 []  numbers that a fault changes without another compilation: the facts of a predicate
                                         that are tried, the modulus of keys, and the last predicate that is pruned
    """

    def __init__(self, facts: Tensor, rules: list, num_predicates: int, num_constants: int) -> None:
        super().__init__()
        self.num_constants = num_constants
        facts = facts.reshape(-1, 3).cpu()
        facts = facts[self._triple_keys(facts).argsort()]
        num_keys = (num_predicates + 1) * (num_constants + 1)
        rank = torch.arange(len(facts)) - torch.searchsorted(facts[:, 0].contiguous(), facts[:, 0].contiguous())
        by_object = self._pair_keys(facts[:, 0], facts[:, 2]).argsort(stable=True)
        self.max_facts = 1
        for name, order, column in (("subject", torch.arange(len(facts)), 1), ("object", by_object, 2)):
            keys = self._pair_keys(facts[order, 0], facts[order, column])
            counts = torch.bincount(keys, minlength=num_keys)
            self.max_facts = max(self.max_facts, int(counts.max()))
            self.register_buffer(f"{name}_rows", facts[order])
            self.register_buffer(f"{name}_rank", rank[order])
            self.register_buffer(f"{name}_start", counts.cumsum(0) - counts)
            self.register_buffer(f"{name}_count", counts)
        self.register_buffer("known", self._triple_keys(facts))
        most = max([1, *torch.bincount(torch.tensor([head for head, _ in rules])).tolist()]) if rules else 1
        bodies = torch.zeros(num_predicates + 1, most, 2, 3, dtype=torch.int64)
        has_rule = torch.zeros(num_predicates + 1, most, dtype=torch.bool)
        for head, body in rules:
            row = int(has_rule[head].sum())
            bodies[head, row, : len(body)] = torch.tensor(body)
            has_rule[head, row] = True
        self.register_buffer("bodies", bodies)
        self.register_buffer("has_rule", has_rule)
        for name, value in (("cap", NO_CAP), ("modulus", NO_CAP), ("last_pruned", NO_CAP)):
            self.register_buffer(name, torch.tensor(value))

    def _pair_keys(self, predicate: Tensor, argument: Tensor) -> Tensor:
        return predicate * (self.num_constants + 1) + argument

    def _triple_keys(self, atoms: Tensor) -> Tensor:
        return self._pair_keys(self._pair_keys(atoms[..., 0], atoms[..., 1]), atoms[..., 2])

    def _is_fact(self, atoms: Tensor) -> Tensor:
        keys = self._triple_keys(atoms).contiguous()
        at = torch.searchsorted(self.known, keys).clamp(max=len(self.known) - 1)
        return self.known[at] == keys

    def forward(self, states: Tensor, next_variable: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Return successors int64 [B, S, M, 3], left-aligned in their lists, and their number int64 [B]."""
        width = states.shape[1]
        by_rules, is_rule = self._resolve_with_rules(states, next_variable)
        by_facts, is_match = self._resolve_with_facts(states, excluded)
        successors = torch.cat([by_rules, by_facts], 1)
        mask = torch.cat([is_rule, is_match], 1) & (states[:, :1, 0] > 0)
        is_ground = (successors[..., 0] > 0) & (successors[..., 1:] <= self.num_constants).all(-1)
        is_other = (successors != excluded[:, None, None]).any(-1)
        is_known = is_ground & is_other & (successors[..., 0] <= self.last_pruned) & self._is_fact(successors)
        successors = successors.masked_fill(is_known.unsqueeze(-1), 0)
        successors = _gather(successors, (successors[..., 0] == 0).int().argsort(dim=-1, stable=True), 2)
        mask &= (successors[..., width:, 0] == 0).all(-1)
        successors = _gather(successors[:, :, :width], (~mask).int().argsort(dim=-1, stable=True), 1)
        counts = mask.sum(-1)
        is_listed = torch.arange(successors.shape[1], device=counts.device) < counts[:, None]
        return successors * is_listed[:, :, None, None], counts

    def _resolve_with_rules(self, states: Tensor, next_variable: Tensor) -> tuple[Tensor, Tensor]:
        predicate, first, second = states[:, 0].unbind(-1)
        bodies = self.bodies[predicate]
        terms = bodies[..., 1:]
        for mark, value in ((HEAD_FIRST, first), (HEAD_SECOND, second), (FRESH, next_variable)):
            terms = torch.where(terms == mark, value[:, None, None, None], terms)
        bodies = torch.cat([bodies[..., :1], terms], -1)
        rest = states[:, None, 1:].expand(-1, bodies.shape[1], -1, -1)
        return torch.cat([bodies, rest], 2), self.has_rule[predicate]

    def _resolve_with_facts(self, states: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
        predicate, first, second = states[:, 0].unbind(-1)
        is_free = first > self.num_constants
        key = self._pair_keys(predicate, torch.where(is_free, second, first)) % self.modulus
        key = key.clamp(max=len(self.subject_start) - 1)
        offset = torch.arange(self.max_facts, device=states.device)

        def gather(start, count, rows, rank):
            at = (start[key][:, None] + offset).clamp(max=len(rows) - 1)
            return rows[at], (offset < count[key][:, None]) & (rank[at] < self.cap)

        facts, mask = gather(self.subject_start, self.subject_count, self.subject_rows, self.subject_rank)
        by_object, mask_by_object = gather(self.object_start, self.object_count, self.object_rows, self.object_rank)
        facts = torch.where(is_free[:, None, None], by_object, facts)
        mask = torch.where(is_free[:, None], mask_by_object, mask)
        for column, value in enumerate((predicate, first, second)):
            is_variable = (value > self.num_constants) if column else torch.zeros_like(is_free)
            mask = mask & (is_variable[:, None] | (facts[..., column] == value[:, None]))
        mask = mask & (facts != excluded[:, None]).any(-1)
        rest = states[:, None, 1:].expand(-1, self.max_facts, -1, -1)
        terms = rest[..., 1:]
        for old, new in ((first, facts[..., 1]), (second, facts[..., 2])):
            is_bound = (terms == old[:, None, None, None]) & (old > self.num_constants)[:, None, None, None]
            terms = torch.where(is_bound, new[..., None, None], terms)
        rest = torch.cat([rest[..., :1], terms], -1)
        return torch.cat([rest, torch.zeros_like(rest[:, :, :2])], 2), mask


def _gather(values: Tensor, order: Tensor, axis: int) -> Tensor:
    index = order[(..., *[None] * (values.dim() - order.dim()))]
    return values.gather(axis, index.expand(*order.shape, *values.shape[order.dim() :]))
