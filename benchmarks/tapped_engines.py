"""Five batched provers of different style, with taps and with faults that a number in a tensor switches on.

All prove the rules of the countries, without a memory of visited goals. Tensors have fixed sizes: B states, W clauses that match,
A rows of a state, M rows of a successor.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

import kgverify as kv
from kgverify.program.limits import Dialect

B, W, A, M, CAP = 64, 24, 6, 8, 8
LIMITS = kv.Limits(
    max_depth=5,
    max_atoms=A,
    max_resolvents=CAP,
    dialect=Dialect(filters=("prune", "close", "max_atoms", "max_resolvents")),
)
STAGES = ("match_rules", "match_facts", "resolve", "prune", "close", "limit", "score", "choose")


class Tables(NamedTuple):
    """The program of a prover: facts [F, 3], rule heads [R, 3], bodies [R, 3, 3], sorted keys of the facts [F], and names."""

    facts: Tensor
    heads: Tensor
    bodies: Tensor
    keys: Tensor
    by_first: Tensor
    first: Tensor
    names: Tensor
    fault: Tensor


def key(atoms):
    """Return a number of each atom."""
    return (atoms[..., 0].long() * 1024 + atoms[..., 1]) * 1024 + atoms[..., 2]


def contains(keys, atoms):
    """Return whether each atom is among sorted keys."""
    wanted = key(atoms)
    return keys[torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)] == wanted


def instantiate(bodies, goal, free, t):
    """Return bodies with the goal's arguments, and new variables."""
    given = bodies[..., 1:]
    variable = given - t.names[0]
    first, second, free = (each.reshape(-1, *[1] * (given.ndim - 1)) for each in (goal[:, 1], goal[:, 2], free))
    new = torch.where(variable == 0, first, torch.where(variable == 1, second, free + variable - 2))
    return torch.cat((bodies[..., :1].expand(*new.shape[:-1], 1), torch.where(variable < 0, given, new)), -1)


def bind(rest, goal, fact, t):
    """Return atoms with a fact's constants for the variables of a goal."""
    given = rest[..., 1:]
    for i in (1, 2):
        variable = goal[..., i][..., None, None]
        given = torch.where((variable >= t.names[0]) & (given == variable), fact[..., i][..., None, None], given)
    return torch.cat((rest[..., :1].expand(*given.shape[:-1], 1), given), -1)


def unify_facts(goal, facts, t):
    """Return whether facts unify with goals."""
    is_open = goal[..., 1:] >= t.names[0]
    fits = (facts[..., 1:] == goal[..., 1:]) | is_open
    same = goal[..., 1] == goal[..., 2]
    return (facts[..., 0] == goal[..., 0]) & fits.all(-1) & (~same | (facts[..., 1] == facts[..., 2]))


def align(atoms, is_kept):
    """Return the kept atoms of each goal, then padding."""
    order = torch.argsort((~is_kept).int(), dim=-1, stable=True)
    atoms = torch.where(is_kept[..., None], atoms, 0)
    return atoms.gather(-2, order[..., None].expand(*order.shape, 3))


def prune(atoms, excluded, t, fault):
    """Return goals without the atoms that are facts."""
    is_other = (atoms != excluded).any(-1)
    is_gone = contains(t.keys, atoms) & is_other
    return align(atoms, (atoms[..., 0] != 0) & (~is_gone | fault(is_gone)))


def sizes_of(atoms):
    """Return the number of atoms of each goal."""
    return (atoms[..., 0] != 0).sum(-1)


def score_goals(atoms, t):
    """Return the scores of the policy `shortest`."""
    given = atoms[..., 1:].flatten(-2)
    is_variable = given >= t.names[0]
    earlier = torch.ones(given.shape[-1], given.shape[-1], dtype=torch.bool, device=atoms.device).tril(-1)
    is_new = is_variable & ~((given[..., :, None] == given[..., None, :]) & earlier).any(-1)
    scores = -(sizes_of(atoms).float() + is_new.sum(-1).float() / 64)
    is_terminal = (atoms[..., 0, 0] == t.names[1]) | (atoms[..., 0, 0] == t.names[2])
    return torch.where(is_terminal, 0.0, scores)


def first_of_highest(scores, is_listed):
    """Return the index of the first highest score."""
    known = torch.where(is_listed, scores.float(), -torch.inf)
    index = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(known == known.amax(1, keepdim=True), index, W).amin(1)


def pack(atoms, is_kept):
    """Return the kept goals of each state, then padding, and their number."""
    order = torch.argsort((~is_kept).int(), dim=1, stable=True)
    picked = torch.where(is_kept[..., None, None], atoms, 0).gather(
        1, order[..., None, None].expand(-1, -1, *atoms.shape[2:])
    )
    return picked, is_kept.sum(1)


def mark(atoms, count, is_proved, is_failed, t):
    """Return TRUE or FALSE instead of the goals of some states."""
    is_terminal = is_proved | is_failed
    atoms = torch.where(is_terminal[:, None, None, None], 0, atoms)
    number = torch.where(is_proved, t.names[1], t.names[2])
    place = torch.zeros_like(atoms, dtype=torch.bool)
    place[:, 0, 0, 0] = True
    atoms = torch.where(place & is_terminal[:, None, None, None], number[:, None, None, None].to(atoms.dtype), atoms)
    return atoms, torch.where(is_terminal, 1, count)


def listed(count, width=W):
    """Return which places of a list are used."""
    return torch.arange(width, device=count.device) < count[:, None]


class Prover(kv.TensorEngine):
    """An engine on tables. `body` is the step; a subclass writes it in its own style."""

    batch_size = B
    max_atoms = A
    mode: str | None = None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made: ClassVar[dict[str, tuple["Prover", Callable[..., tuple[Tensor, ...]]]]] = {}
    fault_number = 0

    def setup(self):
        """Encode the program, and compile the step once for all engines of a class."""
        predicates, constants = self.program.symbols.predicates, self.program.symbols.constants
        first = len(constants) + 1
        self.encoding = kv.Encoding(first_variable=first, true=len(predicates) + 1, false=len(predicates) + 2)
        facts = self.encode(self.program.facts)
        rules = [self.encode([rule.clause_head, *rule.body]) for rule in self.program.rules]
        bodies = facts.new_zeros(len(rules), 3, 3)
        for i, rule in enumerate(rules):
            bodies[i, : len(rule) - 1] = rule[1:]
        keys = key(facts)
        by_first = torch.argsort(facts[:, 0] * 1024 + facts[:, 1], stable=True)
        self.tables = Tables(
            facts,
            torch.stack([rule[0] for rule in rules]),
            bodies,
            torch.sort(keys).values,
            by_first,
            (facts[:, 0] * 1024 + facts[:, 1])[by_first].contiguous(),
            torch.tensor([first, self.encoding.true, self.encoding.false], device=self.device),
            torch.zeros((), dtype=torch.int64, device=self.device),
        )
        self.program_key = type(self).__name__
        if self.program_key not in Prover.made:
            self.prepare()
            body = self.make_body()
            if self.mode != "eager":
                options = {"mode": "reduce-overhead"} if self.device == "cuda" else {}
                body = torch.compile(body, fullgraph=True, dynamic=False, **options)
            Prover.made[self.program_key] = self, body
        other, self.run = Prover.made[self.program_key]
        self.tables = other.tables
        self.tables.fault.fill_(type(self).fault_number)

    def prepare(self):
        """Make what the step needs besides its tables."""

    def make_body(self):
        """Return the step as a function."""
        return type(self).body

    def expand(self, states, next_variable, excluded):
        """Take a step of exactly B states."""
        num = len(states)
        rows = torch.arange(B, device=states.device).clamp(max=num - 1)
        given = states[rows], next_variable[rows], excluded[rows], self.tables
        atoms, count, scores, choice = (each.clone()[:num] for each in self.run(*given))
        return {
            "successors": atoms,
            "counts": count,
            "next_variable": next_variable + 2,
            "scores": scores,
            "choice": choice,
        }


class Padded(Prover):
    """Padded tensors with masks over all clauses."""

    @staticmethod
    def body(states, free, excluded, t):
        goal, rest = states[:, 0], states[:, 1:]
        by_rule = t.heads[:, 0] == goal[:, None, 0]
        by_rule &= ~((t.fault == 1) & (torch.arange(len(t.heads), device=goal.device) == 2))
        by_rule = kv.tap("match_rules", by_rule)
        by_fact = unify_facts(goal[:, None], t.facts, t) & (t.facts != excluded).any(-1)
        by_fact &= ~((t.fault == 2) & (torch.arange(len(t.facts), device=goal.device) % 4 == 1))
        by_fact = kv.tap("match_facts", by_fact)
        mask = torch.cat((by_rule, by_fact), 1)
        clause = torch.argsort((~mask).int(), dim=1, stable=True)[:, :W]
        is_listed, num_rules = mask.gather(1, clause), len(t.heads)
        bodies = instantiate(t.bodies[None], goal, free, t).gather(
            1, clause.clamp(max=num_rules - 1)[..., None, None].expand(-1, -1, 3, 3)
        )
        is_rule = (clause < num_rules)[..., None, None]
        fact = t.facts[(clause - num_rules).clamp(min=0)]
        left = bind(rest[:, None], goal[:, None], fact, t)
        left = torch.where((t.fault == 3) & (left[..., :1] != 0) & ~is_rule, rest[:, None], left)
        atoms = torch.cat((torch.where(is_rule, bodies, 0), torch.where(is_rule, rest[:, None], left)), 2)
        atoms = align(torch.where(is_listed[..., None, None], atoms, 0), atoms[..., 0] != 0)
        count = is_listed.sum(1)
        atoms = kv.tap("resolve", atoms, count)
        is_few = (sizes_of(atoms) == 1)[..., None]
        atoms = prune(atoms, excluded[:, None], t, lambda gone: (t.fault == 4) & is_few)
        atoms = kv.tap("prune", atoms, count)
        is_empty = (sizes_of(atoms) == 0) & listed(count)
        is_empty &= ~((t.fault == 5) & (torch.arange(W, device=goal.device) > 0))
        atoms, count = mark(atoms, count, is_empty.any(1), count == 0, t)
        atoms = kv.tap("close", atoms, count)
        is_short = (sizes_of(atoms) <= A) & listed(count) & listed(count - ((t.fault == 6) & (count > 2)).long())
        atoms, count = pack(atoms, is_short)
        count = count.clamp(max=CAP)
        atoms, count = mark(atoms, count, torch.zeros_like(count, dtype=torch.bool), count == 0, t)
        atoms = kv.tap("limit", atoms, count)
        scores = score_goals(atoms, t)
        scores = torch.where((t.fault == 7) & (scores < -2), scores + 0.5, scores)
        scores = kv.tap("score", scores, count)
        choice = first_of_highest(scores, listed(count))
        choice = torch.where((t.fault == 8) & (count > 2), count - 1, choice)
        choice = kv.tap("choose", choice)
        return atoms, count, scores, choice


class Ragged(Prover):
    """Flat lists of pairs of a state and a clause, with offsets."""

    @staticmethod
    def body(states, free, excluded, t):
        device, size = states.device, B * 12
        goal, rest = states[:, 0], states[:, 1:]
        by_rule = t.heads[:, 0] == goal[:, None, 0]
        by_rule |= (t.fault == 1) & (goal[:, None, 0] == 4) & (torch.arange(len(t.heads), device=device) == 0)
        kv.tap("match_rules", by_rule)
        by_fact = unify_facts(goal[:, None], t.facts, t)
        by_fact &= (t.facts != excluded).any(-1)
        by_fact &= ~((t.fault == 2) & (t.facts[:, 2] % 5 == 2) & (t.facts[:, 0] == 4))
        kv.tap("match_facts", by_fact)
        mask = torch.cat((by_rule, by_fact), 1)
        flat = torch.argsort((~mask.flatten()).int(), stable=True)[:size]
        is_used = mask.flatten()[flat]
        owner, clause = flat // mask.shape[1], flat % mask.shape[1]
        count = mask.sum(1)
        num_rules = len(t.heads)
        is_rule = (clause < num_rules)[:, None, None]
        bodies = instantiate(t.bodies[clause.clamp(max=num_rules - 1)], goal[owner], free[owner], t)
        swapped = bodies[..., [0, 2, 1]]
        bodies = torch.where((t.fault == 3) & (torch.arange(3, device=device) == 1)[:, None], swapped, bodies)
        fact = t.facts[(clause - num_rules).clamp(min=0)]
        left = torch.where(is_rule, rest[owner], bind(rest[owner], goal[owner], fact, t))
        atoms = torch.cat((torch.where(is_rule, bodies, 0), left), 1)
        atoms = align(torch.where(is_used[:, None, None], atoms, 0), atoms[..., 0] != 0)
        kv.tap("resolve", atoms, count)
        own = excluded[owner]
        atoms = prune(atoms, own, t, lambda gone: (t.fault == 4) & (owner[:, None] % 2 == 0))
        kv.tap("prune", atoms, count)
        is_empty = (sizes_of(atoms) == 0) & is_used
        index = torch.arange(size, device=device) - (count.cumsum(0) - count)[owner]
        is_empty &= ~((t.fault == 5) & (index > 0))
        proved = torch.zeros(B, dtype=torch.int64, device=device).scatter_add(0, owner, is_empty.long()) > 0
        is_failed = count == 0
        place = torch.where(is_used & (index < W), owner * W + index, B * W)
        padded = torch.zeros(B * W + 1, M, 3, dtype=states.dtype, device=device).index_copy(0, place, atoms)[:-1]
        padded, count = mark(padded.view(B, W, M, 3), count, proved, is_failed, t)
        kv.tap("close", padded, count)
        most = torch.where(t.fault == 6, A - 4, A)
        is_terminal = padded[:, 0, 0, 0] >= t.names[1]
        is_short = ((sizes_of(padded) <= most) | is_terminal[:, None]) & listed(count)
        padded, count = pack(padded, is_short)
        count = count.clamp(max=CAP)
        padded, count = mark(padded, count, torch.zeros_like(proved), count == 0, t)
        scores = score_goals(padded, t)
        scores = torch.where(t.fault == 7, scores.roll(1, 1), scores)
        kv.tap("score", scores, count)
        choice = first_of_highest(torch.where(t.fault == 8, -scores, scores), listed(count))
        kv.tap("choose", choice)
        return padded, count, scores, choice


class Joined(Prover):
    """A join on a sorted index by predicate and first argument."""

    @staticmethod
    def body(states, free, excluded, t):
        device = states.device
        goal, rest = states[:, 0], states[:, 1:]
        is_head = t.heads[:, 0] == goal[:, None, 0]
        rule = torch.argsort((~is_head).int(), dim=1, stable=True)
        num_rules = (is_head.sum(1) - (t.fault == 1).long()).clamp(min=0)
        kv.tap("match_rules", rule, num_rules)
        wanted = goal[:, 0] * 1024 + goal[:, 1]
        begin = torch.searchsorted(t.first, wanted, right=False)
        row = begin[:, None] + torch.arange(W - 4, device=device)
        is_inside = row < len(t.first)
        row = row.clamp(max=len(t.first) - 1)
        fact = t.by_first[row]
        atoms = t.facts[fact]
        fits = is_inside & (t.first[row] == wanted[:, None]) & unify_facts(goal[:, None], atoms, t)
        fits &= (atoms != excluded).any(-1)
        fits &= ~((t.fault == 2) & (torch.arange(W - 4, device=device) >= 2))
        kv.tap("match_facts", fact, fits)
        bodies = instantiate(t.bodies[None], goal, torch.where(t.fault == 3, goal[:, 1], free), t)
        bodies = bodies.gather(1, rule[..., None, None].expand(-1, -1, 3, 3))
        of_rules = torch.cat((bodies, rest[:, None].expand(-1, len(t.heads), -1, -1)), 2)
        of_facts = bind(rest[:, None], goal[:, None], atoms, t)
        of_facts = torch.cat((of_facts.new_zeros(B, W - 4, 3, 3), of_facts), 2)
        pad = of_facts.new_zeros(B, 4 - len(t.heads), M, 3)
        both = torch.cat((of_rules, of_facts, pad), 1)
        is_used = torch.cat((listed(num_rules, len(t.heads)), fits, pad[..., 0, 0] > 0), 1)
        both = align(both, both[..., 0] != 0)
        both, count = pack(both, is_used)
        kv.tap("resolve", both, count)
        odd = (torch.arange(W, device=device) % 2 == 1)[:, None]
        both = prune(both, excluded[:, None], t, lambda gone: (t.fault == 4) & odd)
        kv.tap("prune", both, count)
        is_proved = ((sizes_of(both) == 0) & listed(count)).any(1)
        both, count = mark(both, count, is_proved & (t.fault != 5), (count == 0) | (is_proved & (t.fault == 5)), t)
        kv.tap("close", both, count)
        both, count = pack(both, (sizes_of(both) <= A) & listed(count))
        count = count.clamp(max=torch.where(t.fault == 6, 3, CAP))
        both, count = mark(both, count, torch.zeros_like(is_proved), count == 0, t)
        kv.tap("limit", both, count)
        scores = score_goals(both, t)
        scores = torch.where(t.fault == 7, scores.round(), scores)
        kv.tap("score", scores, count)
        choice = first_of_highest(scores, listed(count))
        choice = torch.where((t.fault == 8) & (count > 1), (choice + 1) % count, choice)
        return both, count, scores, choice


class Scattered(Prover):
    """Successors written into buffers that were allocated once."""

    def prepare(self):
        """Allocate the buffers, at addresses that captured graphs may keep."""
        self.buffer = torch.zeros(B * W + 1, M, 3, dtype=torch.int64, device=self.device)
        self.num = torch.zeros(B, dtype=torch.int64, device=self.device)
        for each in (self.buffer, self.num):
            torch._dynamo.mark_static_address(each)

    def make_body(self):
        """Return the step as a method, which knows the buffers."""
        buffer, num = self.buffer, self.num
        return lambda states, free, excluded, t: Scattered.write(buffer, num, states, free, excluded, t)

    @staticmethod
    def write(buffer, num, states, free, excluded, t):
        """Take a step."""
        device = states.device
        goal, rest = states[:, 0], states[:, 1:]
        buffer.masked_fill_(t.fault != 3, 0)
        num.zero_()
        by_rule = t.heads[:, 0] == goal[:, None, 0]
        by_rule &= ~((t.fault == 1) & (torch.arange(len(t.heads), device=device) == 1))
        kv.tap("match_rules", by_rule)
        by_fact = unify_facts(goal[:, None], t.facts, t) & (t.facts != excluded).any(-1)
        by_fact |= (t.fault == 2) & (t.facts[:, 0] == goal[:, None, 0]) & (t.facts[:, 2] == goal[:, None, 1])
        kv.tap("match_facts", by_fact)
        mask = torch.cat((by_rule, by_fact), 1)
        clause = torch.argsort((~mask).int(), dim=1, stable=True)[:, :W]
        is_listed = mask.gather(1, clause)
        num.add_(is_listed.sum(1))
        num_rules = len(t.heads)
        bodies = instantiate(t.bodies[None], goal, free, t).gather(
            1, clause.clamp(max=num_rules - 1)[..., None, None].expand(-1, -1, 3, 3)
        )
        is_rule = (clause < num_rules)[..., None, None]
        left = bind(rest[:, None], goal[:, None], t.facts[(clause - num_rules).clamp(min=0)], t)
        atoms = torch.cat((torch.where(is_rule, bodies, 0), torch.where(is_rule, rest[:, None], left)), 2)
        atoms = align(atoms, atoms[..., 0] != 0)
        is_written = is_listed & ~((t.fault == 3) & (torch.arange(W, device=device) % 2 == 1))
        rows = torch.arange(B * W, device=device).view(B, W)
        buffer.index_copy_(0, torch.where(is_written, rows, B * W).flatten(), atoms.flatten(0, 1))
        atoms = buffer[:-1].view(B, W, M, 3)
        kv.tap("resolve", atoms, num)
        is_third = atoms[..., 2] % 3 == 1
        atoms = prune(atoms, excluded[:, None], t, lambda gone: (t.fault == 4) & is_third)
        kv.tap("prune", atoms, num)
        is_proved = ((sizes_of(atoms) == 0) & listed(num)).any(1)
        is_proved = is_proved | ((t.fault == 5) & ((sizes_of(atoms) == 1) & listed(num)).any(1))
        atoms, count = mark(atoms, num, is_proved, num == 0, t)
        kv.tap("close", atoms, count)
        atoms, count = pack(atoms, (sizes_of(atoms) <= A) & listed(count))
        is_many = (t.fault == 6) & (count > CAP)
        atoms = torch.where(is_many[:, None, None, None], atoms.roll(-1, 1), atoms)
        atoms, count = mark(atoms, count.clamp(max=CAP), torch.zeros_like(is_proved), count == 0, t)
        scores = score_goals(atoms, t)
        scores = torch.where((t.fault == 7) & (torch.arange(W, device=device) % 2 == 1), scores - 0.25, scores)
        kv.tap("score", scores, count)
        last = W - 1 - first_of_highest(scores.flip(1), listed(count).flip(1))
        choice = torch.where(t.fault == 8, last, first_of_highest(scores, listed(count)))
        return atoms.clone(), count.clone(), scores, choice


def pack_atoms(atoms):
    """Return atoms, [..., 3], as one int32 each."""
    return ((atoms[..., 0] << 20) | (atoms[..., 1] << 10) | atoms[..., 2]).int()


def unpack_atoms(packed):
    """Return the atoms of int32 numbers, [..., 3]."""
    return torch.stack((packed >> 20, packed >> 10 & 1023, packed & 1023), -1)


class PackedStep(torch.nn.Module):
    """A step on atoms of one int32 each."""

    def forward(self, states, free, excluded, t):
        """Take a step."""
        device = states.device
        packed = pack_atoms(states)
        goal = unpack_atoms(packed[:, 0])
        facts, heads = t.facts.int(), t.heads.int()
        by_rule = heads[:, 0] == goal[:, None, 0]
        by_rule = by_rule & ~(
            (t.fault == 1) & (goal[:, None, 1] > 150) & (torch.arange(len(heads), device=device) == 0)
        )
        kv.tap("match_rules", by_rule)
        by_fact = unify_facts(goal[:, None], facts, t) & (pack_atoms(t.facts) != pack_atoms(excluded))
        width = torch.where(t.fault == 2, 127, 1023)
        is_cut = (t.fault == 2) & ((facts[:, 1] & width) != facts[:, 1])
        by_fact = by_fact & ~is_cut
        kv.tap("match_facts", by_fact)
        mask = torch.cat((by_rule, by_fact), 1)
        clause = torch.argsort((~mask).int(), dim=1, stable=True)[:, :W]
        count, num_rules = mask.gather(1, clause).sum(1), len(heads)
        bodies = instantiate(t.bodies[None], goal.long(), free, t)
        bodies = bodies.gather(1, clause.clamp(max=num_rules - 1)[..., None, None].expand(-1, -1, 3, 3))
        is_rule = (clause < num_rules)[..., None]
        fact = facts[(clause - num_rules).clamp(min=0)]
        rest = unpack_atoms(packed[:, 1:])
        left = pack_atoms(bind(rest[:, None], goal[:, None], fact, t))
        rest = packed[:, None, 1:].expand(-1, W, -1)
        left = torch.where((t.fault == 3) & (left != 0), left & ~1, left)
        atoms = torch.cat((torch.where(is_rule, pack_atoms(bodies), 0), torch.where(is_rule, rest, left)), 2)
        atoms = align(unpack_atoms(atoms), atoms != 0)
        kv.tap("resolve", atoms, count)
        other = (t.fault == 4) & (torch.arange(W, device=device)[:, None] == 1)
        atoms = prune(atoms, excluded[:, None], t, lambda gone: other)
        kv.tap("prune", atoms, count)
        is_proved = ((sizes_of(atoms) == 0) & listed(count)).any(1) & ~((t.fault == 5) & (count > 1))
        atoms, count = mark(atoms, count, is_proved, count == 0, t)
        kv.tap("close", atoms, count)
        atoms, count = pack(atoms, (sizes_of(atoms) <= A) & listed(count))
        cap = torch.where(t.fault == 6, CAP + 2, CAP)
        atoms, count = mark(atoms, torch.minimum(count, cap), torch.zeros_like(is_proved), count == 0, t)
        kv.tap("limit", atoms, count)
        scores = score_goals(atoms, t)
        scores = torch.where((t.fault == 7) & (scores != 0), -sizes_of(atoms).float(), scores)
        kv.tap("score", scores, count)
        choice = first_of_highest(scores, listed(count))
        index = torch.arange(W, device=device)
        second = first_of_highest(scores, listed(count) & (index != choice[:, None]))
        choice = torch.where((t.fault == 8) & (count > 1), second, choice)
        return atoms.long(), count, scores, choice


class Packed(Prover):
    """A module on atoms of one int32 each."""

    def make_body(self):
        """Return the module."""
        return PackedStep()


ENGINES = (Padded, Ragged, Joined, Scattered, Packed)
