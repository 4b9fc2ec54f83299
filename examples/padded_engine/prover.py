"""A batched prover on padded tensors, in its own encoding. It knows nothing of kgverify."""

import torch
from torch import Tensor


class PaddedProver:
    """Resolves the first atom of each state with rules and facts.

    States are int64 [B, A, 3], rows (predicate, first, second), padded with 0; constants are numbered from 1, and numbers from
    `first_variable` on are variables. Unification is one pass over the two argument pairs.

    facts: int64 [F, 3]; rules: int64 [K, 3] each, the head first; true, false: predicates of terminal states
    cap:   the most successors of a state
    """

    def __init__(
        self, facts: Tensor, rules: list[Tensor], *, first_variable: int, true: int, false: int, cap: int
    ) -> None:
        self.facts, self.first_variable = facts, first_variable
        self.true, self.false, self.cap = true, false, cap
        longest = max((len(rule) for rule in rules), default=1)
        self.rules = facts.new_zeros(len(rules), longest, 3)
        for i, rule in enumerate(rules):
            self.rules[i, : len(rule)] = rule
        self.fact_keys = self.key(facts)

    def step(self, states: Tensor, next_variable: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return successors int64 [B, S, M, 3], counts [B], and the next free variable of each state [B]."""
        goals, rest = states[:, 0], states[:, 1:]
        by_rule, rule = self.match_rules(goals)
        by_fact, fact = self.match_facts(goals, excluded)
        bodies, free = self.instantiate(self.rules[rule], goals[by_rule], next_variable[by_rule])
        state = torch.cat((by_rule, by_fact))
        atoms = torch.cat((bodies, bodies.new_zeros(len(fact), bodies.shape[1], 3)))
        atoms = torch.cat((atoms, rest[state]), dim=1)
        atoms = self.bind(atoms, goals[state], torch.cat((self.rules[rule, 0], self.facts[fact])))
        atoms = self.prune(atoms, excluded[state])
        # Rules first, then facts, each in order.
        order = torch.sort(state, stable=True).indices
        successors, counts = self.close(len(states), state[order], atoms[order])
        return successors, counts, next_variable.scatter_reduce(0, by_rule, free, "amax")

    def match_rules(self, goals: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of a goal and a rule whose head unifies with it."""
        heads = self.rules[:, 0]
        state, rule = torch.nonzero(goals[:, None, 0] == heads[None, :, 0], as_tuple=True)
        fits = self.unifies(goals[state], heads[rule])
        return state[fits], rule[fits]

    def match_facts(self, goals: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of a goal and a fact that unifies with it and is not excluded."""
        state, fact = torch.nonzero(goals[:, None, 0] == self.facts[None, :, 0], as_tuple=True)
        fits = self.unifies(goals[state], self.facts[fact]) & (self.facts[fact] != excluded[state, 0]).any(dim=1)
        return state[fits], fact[fits]

    def unifies(self, goals: Tensor, heads: Tensor) -> Tensor:
        """Return whether each goal unifies with each head: no variable has two targets."""
        goal, head = goals[:, 1:], heads[:, 1:]
        has_variable = (goal >= self.first_variable) | (head >= self.first_variable)
        fits = ((goal == head) | has_variable).all(dim=1)
        # A variable of the head that occurs twice takes one target; a variable of the goal binds to one constant.
        repeats_head = (head[:, 0] == head[:, 1]) & (head[:, 0] >= self.first_variable)
        repeats_goal = (goal[:, 0] == goal[:, 1]) & (goal[:, 0] >= self.first_variable)
        binds_both = (head < self.first_variable).all(dim=1)
        return (
            fits
            & ~(repeats_head & (goal[:, 0] != goal[:, 1]))
            & ~(repeats_goal & binds_both & (head[:, 0] != head[:, 1]))
        )

    def instantiate(self, rules: Tensor, goals: Tensor, next_variable: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bodies of rules with the goal's arguments, and new variables for others; and the next free variable."""
        bodies = rules[:, 1:].clone()
        given, free = rules[:, 1:, 1:].flatten(1), next_variable.clone()
        arguments = given.clone()
        is_open = given >= self.first_variable
        for i in (1, 2):
            is_bound = is_open & (given == rules[:, 0, i, None])
            arguments = torch.where(is_bound, goals[:, i, None], arguments)
            is_open &= ~is_bound
        for i in range(given.shape[1]):
            is_new = is_open[:, i].clone()
            same = is_open & (given == given[:, i, None]) & is_new[:, None]
            arguments = torch.where(same, free[:, None], arguments)
            is_open &= ~same
            free = free + is_new
        bodies[:, :, 1:] = arguments.unflatten(1, (-1, 2))
        return bodies, free

    def bind(self, atoms: Tensor, goals: Tensor, heads: Tensor) -> Tensor:
        """Return atoms with the head's constants for the goal's variables."""
        arguments = atoms[:, :, 1:]
        for i in (1, 2):
            is_binding = (goals[:, i] >= self.first_variable) & (heads[:, i] < self.first_variable)
            is_bound = is_binding[:, None, None] & (arguments == goals[:, i, None, None])
            arguments = torch.where(is_bound, heads[:, i, None, None], arguments)
        return torch.cat((atoms[:, :, :1], arguments), dim=2)

    def prune(self, atoms: Tensor, excluded: Tensor) -> Tensor:
        """Return the atoms left-aligned, without ground atoms that are facts, except for the excluded one."""
        is_fact = torch.isin(self.key(atoms), self.fact_keys) & (atoms != excluded).any(dim=2)
        return self.align(torch.where(is_fact[:, :, None], 0, atoms))

    def align(self, atoms: Tensor) -> Tensor:
        """Return the atoms with padding last."""
        order = torch.sort((atoms[:, :, 0] == 0).int(), dim=1, stable=True).indices
        return atoms.gather(1, order[:, :, None].expand_as(atoms))

    def close(self, num: int, state: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
        """Return padded successors: TRUE alone where one is proved, then the first `cap`; or else FALSE."""
        is_proof = (atoms[:, :, 0] == 0).all(dim=1)
        is_proved = torch.zeros(num, dtype=torch.bool).index_fill(0, state[is_proof], True)
        counts = torch.bincount(state, minlength=num)
        index = torch.arange(len(state)) - (counts.cumsum(0) - counts)[state]
        counts = counts.clamp(max=self.cap)
        size = max(int(counts.max()) if num else 0, 1)
        successors = atoms.new_zeros(num, size, max(atoms.shape[1], 1), 3)
        kept = index < self.cap
        successors[state[kept], index[kept]] = atoms[kept]
        is_terminal = is_proved | (counts == 0)
        successors[is_terminal] = 0
        successors[is_terminal, 0, 0, 0] = torch.where(is_proved[is_terminal], self.true, self.false)
        return successors, torch.where(is_terminal, 1, counts)

    def key(self, atoms: Tensor) -> Tensor:
        """Return a number of each atom."""
        return (atoms[..., 0] << 42) + (atoms[..., 1] << 21) + atoms[..., 2]
