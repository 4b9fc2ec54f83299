"""A backward-chaining prover as a batched environment on tensors.

N slots, A atoms of a goal, K clauses. A state holds one goal for each slot; an action is the number of the clause that
resolves the goal's first atom. Terms are 0 for padding, constants from 1 on, and variables above them, which are
numbered by first appearance.
"""

import itertools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from benchmarks.environments.draws import draw_below, draw_bits

MAX_ATOMS: Final = 3
MAX_DEPTH: Final = 6
DISCOUNT: Final = 0.97
PARENT, ANCESTOR, SIBLING, UNCLE, RELATED, TWIN = range(1, 7)
QUERY_PREDICATES: Final = (ANCESTOR, SIBLING, UNCLE, RELATED)
NUM_PEOPLE: Final = 9
FIRST_VARIABLE: Final = NUM_PEOPLE + 1
MAX_TERMS: Final = FIRST_VARIABLE + 2 * MAX_ATOMS
"""Terms of a goal lie below it."""

Atom = tuple[int, int, int]
FACTS: Final[tuple[Atom, ...]] = (
    *((PARENT, *pair) for pair in ((1, 2), (1, 3), (2, 4), (2, 5), (3, 6), (4, 7), (5, 8), (6, 9), (7, 9))),
    *((TWIN, *pair) for pair in ((2, 3), (4, 5), (5, 4))),
)
X, Y, Z = 101, 102, 103
RULES: Final[tuple[tuple[Atom, ...], ...]] = (
    ((ANCESTOR, X, Y), (PARENT, X, Y)),
    ((ANCESTOR, X, Y), (PARENT, X, Z), (ANCESTOR, Z, Y)),
    ((SIBLING, X, Y), (PARENT, Z, X), (PARENT, Z, Y)),
    ((SIBLING, X, Y), (TWIN, X, Y)),
    ((UNCLE, X, Y), (SIBLING, X, Z), (PARENT, Z, Y)),
    ((RELATED, X, Y), (ANCESTOR, X, Y)),
    ((RELATED, X, Y), (ANCESTOR, Z, X), (ANCESTOR, Z, Y)),
    ((RELATED, X, Y), (UNCLE, X, Z), (RELATED, Z, Y)),
)
MAX_BODY: Final = 2


def list_provable() -> set[Atom]:
    """Return the least model, by forward chaining over all bindings of the three variables."""
    model = set(FACTS)
    while True:
        bindings = [
            dict(zip((X, Y, Z), each, strict=True)) for each in itertools.product(range(1, FIRST_VARIABLE), repeat=3)
        ]
        derived = {
            _bind(head, binding)
            for head, *body in RULES
            for binding in bindings
            if all(_bind(atom, binding) in model for atom in body)
        }
        if derived <= model:
            return model
        model |= derived


def _bind(atom: Atom, binding: dict[int, int]) -> Atom:
    return (atom[0], binding[atom[1]], binding[atom[2]])


def _table(atoms: Iterable[Iterable[Atom]]) -> Tensor:
    """Return int64 [K, 1 + MAX_BODY, 3]: head and body of each clause; variables count from FIRST_VARIABLE."""
    rows = torch.zeros((len(FACTS) + len(RULES), 1 + MAX_BODY, 3), dtype=torch.int64)
    for row, clause in zip(rows, atoms, strict=True):
        for place, (predicate, *terms) in zip(row, clause, strict=False):
            place[0] = predicate
            place[1:] = torch.tensor([term if term < X else FIRST_VARIABLE + term - X for term in terms])
    return rows


CLAUSES: Final = _table([*([fact] for fact in FACTS), *RULES])
# Every second provable query counts as known, so that some provable ones have the label false.
KNOWN: Final = torch.tensor(sorted(atom for atom in list_provable() if atom[0] in QUERY_PREDICATES)[::2])


class ProverState(NamedTuple):
    """One derivation for each slot.

    key:     int64 [N]        seed of the slot
    episode: int64 [N]        queries that the slot had before this one
    query:   int64 [N, 3]     triple to prove
    is_true: bool [N]         label of the query
    goal:    int64 [N, A, 3]  atoms left to prove, left-aligned
    depth:   int64 [N]        resolution steps taken
    ended:   bool [N]         the episode is over; never set in same-step autoreset
    """

    key: Tensor
    episode: Tensor
    query: Tensor
    is_true: Tensor
    goal: Tensor
    depth: Tensor
    ended: Tensor


def select(condition: Tensor, state: ProverState, other: ProverState) -> ProverState:
    """Return the rows of `state` where the condition bool [N] holds, and those of `other` elsewhere."""
    pairs = zip(state, other, strict=True)
    return ProverState(
        *(torch.where(condition.view(-1, *[1] * (left.dim() - 1)), left, right) for left, right in pairs)
    )


def is_variable(terms: Tensor) -> Tensor:
    """Return whether each term is a variable."""
    return terms >= FIRST_VARIABLE


def rename_by_appearance(goal: Tensor) -> Tensor:
    """Return goals int64 [..., A, 3] with variables numbered by first appearance."""
    terms = goal[..., 1:].flatten(-2)
    same = terms.unsqueeze(-1) == terms.unsqueeze(-2)
    first = same.int().argmax(-1)
    is_first = (first == torch.arange(terms.shape[-1])) & is_variable(terms)
    rank = (is_first.cumsum(-1) - 1).gather(-1, first)
    renamed = torch.where(is_variable(terms), FIRST_VARIABLE + rank, terms)
    return torch.cat([goal[..., :1], renamed.unflatten(-1, (-1, 2))], -1)


class Prover:
    """The environment; each method is one of its stages, and none changes its arguments."""

    def __init__(self, autoreset: str = "same_step", dtype: torch.dtype = torch.float32) -> None:
        self.autoreset = autoreset
        self.dtype = dtype

    # Reset

    def draw_scheme(self, key: Tensor, episode: Tensor) -> Tensor:
        """Return int64 [N], the place to corrupt: 1 subject, 2 object, 0 none."""
        return draw_below(4, key, episode, 1) % 3

    def draw(self, key: Tensor, episode: Tensor) -> ProverState:
        """Return the start of an episode: a known triple, or one with an entity replaced."""
        query = KNOWN[draw_below(len(KNOWN), key, episode, 0)]
        entity = 1 + draw_below(NUM_PEOPLE, key, episode, 2)
        place = self.draw_scheme(key, episode).unsqueeze(1)
        is_here = (torch.arange(3) == place) & (place > 0)
        query = torch.where(is_here, entity.unsqueeze(1), query)
        is_true = (query.unsqueeze(1) == KNOWN).all(-1).any(-1)
        goal = torch.zeros((len(key), MAX_ATOMS, 3), dtype=torch.int64)
        goal[:, 0] = query
        return ProverState(key, episode, query, is_true, goal, torch.zeros_like(key), torch.zeros_like(is_true))

    def reset(self, queries: Tensor) -> ProverState:
        """Start one episode for each seed int64 [N]."""
        return self.draw(queries, torch.zeros_like(queries))

    # Observation and mask

    def observe(self, state: ProverState) -> dict[str, Tensor]:
        """Return what the policy sees: goal int64 [N, A, 3], depth int64 [N], potential of `dtype` [N]."""
        return {"goal": state.goal, "depth": state.depth, "potential": self.potential(state)}

    def potential(self, state: ProverState) -> Tensor:
        """Return the potential of Ng, Harada and Russell (1999): small where much is left to prove."""
        load = (state.goal[..., 0] > 0).sum(1) + is_variable(state.goal[..., 1:]).sum((1, 2)) / 3
        return (-0.1 * load).to(self.dtype)

    def resolve(self, goal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Resolve the first atom of each goal with each clause.

        Returns:
            The resolvents int64 [N, K, A + MAX_BODY - 1, 3], left-aligned; their lengths int64 [N, K]; and whether the
            clause's head unifies with the atom, bool [N, K].
        """
        clauses = torch.where(is_variable(CLAUSES), CLAUSES + self.fresh_offset(goal).view(-1, 1, 1, 1), CLAUSES)
        clauses[..., 0] = CLAUSES[..., 0]
        atom, head = goal[:, None, 0], clauses[:, :, 0]
        does_unify = (atom[..., 0] == head[..., 0]) & (atom[..., 0] > 0)
        rest = goal[:, None, 1:].expand(-1, len(CLAUSES), -1, -1)
        atoms = torch.cat([atom.expand_as(head).unsqueeze(2), clauses, rest], 2).clone()
        for place in (1, 2):
            left, right = atoms[..., 0, place], atoms[..., 1, place]
            does_unify = does_unify & ((left == right) | is_variable(left) | is_variable(right))
            # A variable of the clause is the younger one and gives way.
            is_bound = is_variable(right)
            old, new = torch.where(is_bound, right, left), torch.where(is_bound, left, right)
            old = torch.where(is_variable(old), old, -1)
            terms = atoms[..., 1:]
            atoms[..., 1:] = torch.where(terms == old[..., None, None], new[..., None, None], terms)
        body = atoms[..., 2:, :]
        is_atom = body[..., 0] > 0
        order = (~is_atom).int().argsort(dim=-1, stable=True)
        body = body.gather(2, order.unsqueeze(-1).expand_as(body))
        return rename_by_appearance(body), is_atom.sum(-1), does_unify

    def fresh_offset(self, goal: Tensor) -> Tensor:
        """Return int64 [N], how far the variables of clauses are shifted so that they are new to the goal."""
        return (goal[..., 1:].amax((1, 2)) - FIRST_VARIABLE + 1).clamp(min=0)

    def mask(self, state: ProverState) -> Tensor:
        """Return bool [N, K]: the clauses that apply; clause 0 where none does."""
        legal = self.list_legal(state.goal)
        legal[:, 0] |= ~legal.any(1)
        return legal

    def list_legal(self, goal: Tensor) -> Tensor:
        """Return bool [N, K]: the clauses that unify and whose resolvent fits into a goal."""
        _, lengths, does_unify = self.resolve(goal)
        return does_unify & (lengths <= MAX_ATOMS)

    # A step

    def advance(self, state: ProverState, action: Tensor) -> ProverState:
        """Replace each goal by the resolvent of the chosen clause."""
        resolvents, _, _ = self.resolve(state.goal)
        goal = resolvents[torch.arange(len(action)), action, :MAX_ATOMS]
        return state._replace(goal=goal, depth=state.depth + 1)

    def is_proved(self, state: ProverState) -> Tensor:
        """Return whether nothing is left to prove."""
        return (state.goal[..., 0] == 0).all(1)

    def end(self, state: ProverState) -> tuple[Tensor, Tensor]:
        """Return `terminated`, proved or without a clause that applies, and `truncated`, at the depth limit."""
        terminated = self.is_proved(state) | ~self.list_legal(state.goal).any(1)
        return terminated, (state.depth >= MAX_DEPTH) & ~terminated

    def pay(self, before: ProverState, after: ProverState, ended: Tensor) -> Tensor:
        """Return 1 for a proof of a true query, -1 for a proof of a false one, plus the change of the potential."""
        potential = self.potential(after)
        next_potential = torch.where(ended, torch.zeros_like(potential), potential)
        return self.succeed(after) + DISCOUNT * next_potential - self.potential(before)

    def succeed(self, state: ProverState) -> Tensor:
        """Return the reward of a proof, and 0 elsewhere."""
        sign = torch.where(state.is_true, 1.0, -1.0).to(self.dtype)
        return torch.where(self.is_proved(state), sign, torch.zeros_like(sign))

    def recycle(self, state: ProverState, done: Tensor) -> ProverState:
        """Give the next query to the slots that are done."""
        return select(done, self.draw(state.key, state.episode + 1), state)

    def step(self, state: ProverState, action: Tensor) -> tuple[ProverState, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Take one step in each slot.

        Same-step autoreset returns the next start for a slot whose episode ends, and the observation that ended it as
        `final_obs`. In next-step autoreset the step after an end ignores the action and starts the next episode. If
        autoreset is disabled, a slot that has ended stays as it is.
        """
        is_over = state.ended
        after = select(is_over, state, self.advance(state, action))
        terminated, truncated = self.end(after)
        reward = self.pay(state, after, terminated)
        reward = torch.where(is_over, torch.zeros_like(reward), reward)
        if self.autoreset == "same_step":
            following = self.recycle(after, terminated | truncated)
            return following, reward, terminated, truncated, {"final_obs": self.observe(after)}
        if self.autoreset == "next_step":
            after = self.recycle(after, is_over)
            terminated, truncated = terminated & ~is_over, truncated & ~is_over
        return after._replace(ended=terminated | truncated), reward, terminated, truncated, {}


def make_seeds(num_slots: int, seed: int = 0) -> Tensor:
    """Return int64 [N] unrelated seeds."""
    return draw_bits(torch.full((num_slots,), seed), torch.arange(num_slots)) >> 16
