"""The published design of a compiled evaluator, as a baseline: padded, int64, one host synchronisation a step.

Written from its description, not from its code. What it has, and `kgverify.prover` has not:

- resolvents padded to int64 `[slots, max_resolvents, max_atoms, 3]`;
- the whole segment of the selected predicate gathered and tried for every slot, with no index on arguments;
- the policy on all `max_resolvents + 1` rows of every slot, the goal's among them, padding or not;
- slot i takes the candidates i, i + N, i + 2N, ...: a pool `[ceil(C / N), N]`, without any balance between slots;
- a look from the host at every step;
- two captured graphs, the engine's and the policy's, whose outputs are copied into buffers.

Published, resolvents were computed for the query alone and chosen from again at every later step. Here they are computed at every
step, so that it takes the derivations of docs/semantics.md: the same outcomes and log-probabilities as kgverify's own engines, on
the same weights and candidates. To that end the segment is resolved in full, and the first `max_resolvents` of what survives are
kept, instead of the first that match; a TRUE anywhere in the segment wins.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgverify.engines.policy import Policy, check_policy
from kgverify.engines.protocol import Results
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.prover.execution.compilation import compile_function, resolve_mode
from kgverify.prover.execution.device import resolve_device
from kgverify.prover.stages.choose import Parameters, build_parameters, score_shortest, tower
from kgverify.prover.state import DEPTH_LIMIT, FAILED, FALSE, GOAL, OPEN, PAD, PROVED, TRUE
from kgverify.trace.model.columns import CandidateSet

# Tables


class Segments(NamedTuple):
    """F facts, Q predicates, K rules, Kp the most rules of one predicate, Lb the longest body.

    facts:         int64 [F, 3]      ascending
    fact_keys:     int64 [F]         `(predicate * E + first) * E + second`, ascending; E constants
    fact_first:    int64 [Q + 1]     where the facts of each predicate begin
    places:        int64 [S]         0 to S - 1, S the most facts of one predicate
    num_constants: int64 []          E
    rules:         int64 [Q, Kp]     the rules of each head predicate; free places K
    rule_head:     int64 [K + 1, 3]  the last one, PAD, heads no rule
    rule_body:     int64 [K + 1, Lb, 3]  free rows PAD
    hash_keys:     int64 [A * 3]     random odd multipliers of the hash of a goal
    """

    facts: Tensor
    fact_keys: Tensor
    fact_first: Tensor
    places: Tensor
    num_constants: Tensor
    rules: Tensor
    rule_head: Tensor
    rule_body: Tensor
    hash_keys: Tensor


def build_segments(program: Program, num_atoms: int, device: torch.device) -> Segments:
    """Lay a program out for goals of at most `num_atoms` atoms."""
    num_predicates, num_constants = len(program.symbols.predicates), max(1, len(program.symbols.constants))
    facts = program.facts.astype(np.int64)
    first = np.searchsorted(facts[:, 0], np.arange(num_predicates + 1))
    most = max(1, int(np.diff(first).max(initial=1)))
    if not len(facts):
        facts = np.full((1, 3), PAD, np.int64)

    of_predicate: list[list[int]] = [[] for _ in range(num_predicates)]
    for i, rule in enumerate(program.rules):
        of_predicate[rule.clause_head.predicate].append(i)
    none = len(program.rules)
    rules = np.full((num_predicates, max(1, *(len(each) for each in of_predicate))), none, np.int64)
    heads = np.full((none + 1, 3), PAD, np.int64)
    bodies = np.full((none + 1, max((len(rule.body) for rule in program.rules), default=1), 3), PAD, np.int64)
    for predicate, each in enumerate(of_predicate):
        rules[predicate, : len(each)] = each
    for i, rule in enumerate(program.rules):
        heads[i] = rule.clause_head
        bodies[i, : len(rule.body)] = rule.body
    keys = (facts[:, 0] * num_constants + facts[:, 1]) * num_constants + facts[:, 2]
    hash_keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, num_atoms * 3, np.int64) | 1
    arrays = (facts, keys, first, np.arange(most), np.array(num_constants), rules, heads, bodies, hash_keys)
    return Segments(*(torch.as_tensor(np.ascontiguousarray(array, np.int64), device=device) for array in arrays))


# The engine


class Resolvents(NamedTuple):
    """The resolvents that each slot can choose from. N slots, R = max_resolvents, A = max_atoms.

    atoms:      int64 [N, R, A, 3]  free rows PAD
    count:      int64 [N]           rows in use
    kind:       int64 [N]           GOAL, or TRUE or FALSE standing alone
    is_limited: bool  [N]           a limit dropped something
    """

    atoms: Tensor
    count: Tensor
    kind: Tensor
    is_limited: Tensor


class Tried(NamedTuple):
    """Clauses of one kind, C of them for each slot.

    matches:   bool  [N, C]
    atoms:     int64 [N, C, A, 3]  canonical; of a resolvent that is longer, the first A
    num_atoms: int64 [N, C]
    """

    matches: Tensor
    atoms: Tensor
    num_atoms: Tensor


def compute_resolvents(
    segments: Segments, limits: Limits, goal: Tensor, query: Tensor, visited: Tensor, depth: Tensor
) -> Resolvents:
    """One step's resolvents: goal int64 [N, A, 3], query int64 [N, 3], visited int64 [N, D] hashes, depth int64 [N]."""
    selected = goal[:, 0]
    predicate = torch.where(selected[:, 0] >= 0, selected[:, 0], 0)
    parts = (try_rules(segments, limits, goal, query, predicate), try_facts(segments, limits, goal, query, predicate))
    tried = Tried(*(torch.cat(each, 1) for each in zip(*parts, strict=True)))
    is_true = (tried.matches & (tried.num_atoms == 0)).any(1)
    was_visited = is_visited(segments, tried.atoms, visited, depth) & (tried.num_atoms <= limits.max_atoms)
    survives = tried.matches & (tried.num_atoms > 0) & ~was_visited
    fits = survives & (tried.num_atoms <= limits.max_atoms)
    row = fits.long().cumsum(1) - 1
    is_kept = fits & (row < limits.max_resolvents)

    # The clause of each row; what is not kept goes to a row beyond the last one.
    num_slots, num_clauses = row.shape
    clause = torch.zeros(num_slots, limits.max_resolvents + 1, dtype=torch.int64, device=goal.device)
    target = torch.where(is_kept, row, limits.max_resolvents)
    numbers = torch.arange(num_clauses, device=goal.device).expand(num_slots, num_clauses)
    clause = clause.scatter(1, target, numbers)[:, : limits.max_resolvents]
    count = is_kept.sum(1)
    is_used = torch.arange(limits.max_resolvents, device=goal.device) < count[:, None]
    rows = tried.atoms.gather(1, clause[:, :, None, None].expand(-1, -1, limits.max_atoms, 3))

    kind = torch.where(is_true, TRUE, torch.where(count == 0, FALSE, GOAL))
    stands_alone = kind != GOAL
    return Resolvents(
        torch.where((is_used & ~stands_alone[:, None])[:, :, None, None], rows, PAD),
        torch.where(stands_alone, 1, count),
        kind,
        (survives.sum(1) > count) & ~is_true,
    )


def try_rules(segments: Segments, limits: Limits, goal: Tensor, query: Tensor, predicate: Tensor) -> Tried:
    """Every rule of the selected predicate."""
    rule = segments.rules[predicate]
    offset = 2 * limits.max_atoms
    head = standardize_apart(segments.rule_head[rule], offset)
    body = standardize_apart(segments.rule_body[rule], offset)
    matches, bindings = unify(head, goal[:, :1])
    rest = goal[:, None, 1:].expand(-1, rule.shape[1], -1, -1)
    is_rule = rule < len(segments.rule_head) - 1
    return reduce_atoms(segments, limits, torch.cat((body, rest), 2), bindings, query, matches & is_rule)


def try_facts(segments: Segments, limits: Limits, goal: Tensor, query: Tensor, predicate: Tensor) -> Tried:
    """Every fact of the selected predicate: the whole segment, whatever the arguments are."""
    begin, end = segments.fact_first[predicate], segments.fact_first[predicate + 1]
    place = begin[:, None] + segments.places
    inside = place < end[:, None]
    fact = segments.facts[torch.where(inside, place, 0)]
    matches, bindings = unify(fact, goal[:, :1])
    matches = matches & inside
    if limits.exclude_query:
        matches = matches & ~(fact == query[:, None]).all(-1)
    rest = goal[:, None, 1:].expand(-1, place.shape[1], -1, -1)
    return reduce_atoms(segments, limits, rest, bindings, query, matches)


def reduce_atoms(
    segments: Segments,
    limits: Limits,
    atoms: Tensor,
    bindings: tuple[Tensor, Tensor, Tensor, Tensor],
    query: Tensor,
    matches: Tensor,
) -> Tried:
    """Resolve, prune and rename: atoms int64 [N, C, L, 3], free rows PAD, anywhere."""
    if not atoms.shape[2]:
        atoms = torch.nn.functional.pad(atoms, (0, 0, 0, 1), value=PAD)
    once = substitute(atoms[..., 1:], *(each[..., None, None] for each in bindings[:2]))
    arguments = substitute(once, *(each[..., None, None] for each in bindings[2:]))
    atoms = torch.cat((atoms[..., :1], arguments), -1)

    predicate, first, second = atoms.unbind(-1)
    is_ground = (predicate >= 0) & (first >= 0) & (second >= 0)
    key = (predicate * segments.num_constants + first) * segments.num_constants + second
    key = torch.where(is_ground, key, -1)
    place = torch.searchsorted(segments.fact_keys, key).clamp(max=len(segments.fact_keys) - 1)
    is_fact = is_ground & (segments.fact_keys[place] == key)
    if limits.exclude_query:
        is_fact = is_fact & ~(atoms == query[:, None, None]).all(-1)
    is_left = (predicate != PAD) & ~is_fact
    return Tried(matches, rename(left_align(atoms, is_left, limits.max_atoms)), is_left.sum(-1))


def unify(head: Tensor, selected: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Unify heads int64 [N, C, 3] with the selected atoms int64 [N, 1, 3]: whether they do, and x1 -> t1, then x2 -> t2."""
    x1, t1, agrees1 = _bind(head[..., 1], selected[..., 1])
    x2, t2, agrees2 = _bind(substitute(head[..., 2], x1, t1), substitute(selected[..., 2], x1, t1))
    return agrees1 & agrees2, (x1, t1, x2, t2)


def _bind(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    variable = torch.where(left < 0, left, right)
    value = torch.where(left < 0, right, left)
    return variable, value, (variable < 0) | (left == right)


def substitute(arguments: Tensor, variable: Tensor, value: Tensor) -> Tensor:
    """Put a value where the variable stands."""
    return torch.where((arguments == variable) & (variable < 0) & (variable != PAD), value, arguments)


def standardize_apart(atoms: Tensor, offset: int) -> Tensor:
    """Number a clause's variables, all arguments below 0 but PAD, from `offset` on."""
    arguments = atoms[..., 1:]
    is_variable = (arguments < 0) & (arguments != PAD)
    return torch.cat((atoms[..., :1], torch.where(is_variable, arguments - offset, arguments)), -1)


def left_align(atoms: Tensor, is_left: Tensor, length: int) -> Tensor:
    """int64 [..., length, 3]: the atoms that are left, in order, at the front; free rows PAD."""
    num = atoms.shape[-2]
    rank = torch.where(is_left, is_left.long().cumsum(-1) - 1, -1)
    places = torch.arange(length, device=atoms.device)
    goes_here = rank[..., None, :] == places[:, None]
    numbers = torch.arange(num, device=atoms.device)
    source = torch.where(goes_here, numbers, 0).sum(-1)
    aligned = atoms.gather(-2, source[..., None].expand(*source.shape, 3))
    return torch.where(goes_here.any(-1)[..., None], aligned, PAD)


def rename(atoms: Tensor) -> Tensor:
    """Number the variables of each goal, int64 [..., A, 3], by first appearance."""
    arguments = atoms[..., 1:].flatten(-2)
    is_variable = (arguments < 0) & (arguments != PAD)
    num = arguments.shape[-1]
    places = torch.arange(num, device=atoms.device)
    is_same = (arguments[..., :, None] == arguments[..., None, :]) & is_variable[..., None, :]
    first = torch.where(is_same, places, num).amin(-1)
    appears = is_variable & (first == places)
    # A variable's number: how many others appear before it does.
    number = (appears[..., None, :] & (places < first[..., None])).sum(-1)
    renamed = torch.where(is_variable, -1 - number, arguments)
    return torch.cat((atoms[..., :1], renamed.unflatten(-1, (-1, 2))), -1)


def goal_hash(segments: Segments, atoms: Tensor) -> Tensor:
    """int64 [...]: a multilinear hash of goals int64 [..., A, 3]; here 63 bits decide whether goals are equal."""
    return (atoms.flatten(-2) * segments.hash_keys).sum(-1)


def is_visited(segments: Segments, atoms: Tensor, visited: Tensor, depth: Tensor) -> Tensor:
    """bool [N, C]: whether a resolvent's hash is one of the goals visited, int64 [N, D], up to the present depth."""
    turns = torch.arange(visited.shape[1], device=atoms.device)
    is_same = goal_hash(segments, atoms)[:, :, None] == visited[:, None]
    return (is_same & (turns <= depth[:, None])[:, None]).any(-1)


# The step


class Slots(NamedTuple):
    """One derivation for each of N slots.

    goal:            int64   [N, A, 3]  free rows PAD
    query:           int64   [N, 3]
    visited:         int64   [N, D]     hashes of the goals visited
    depth:           int64   [N]
    outcome:         int64   [N]
    is_limited:      bool    [N]
    log_probability: float64 [N]
    turn:            int64   [N]        row of the pool; the number of its rows if no candidate is left
    """

    goal: Tensor
    query: Tensor
    visited: Tensor
    depth: Tensor
    outcome: Tensor
    is_limited: Tensor
    log_probability: Tensor
    turn: Tensor


class Pool(NamedTuple):
    """Candidates and results, transposed: slot i takes column i, from top to bottom. T turns.

    query:           int64   [T, N, 3]  PAD without an excluded atom
    outcome:         int64   [T, N]
    is_limited:      bool    [T, N]
    log_probability: float64 [T, N]
    """

    query: Tensor
    outcome: Tensor
    is_limited: Tensor
    log_probability: Tensor


def score_all(parameters: Parameters, goal: Tensor, resolvents: Tensor) -> Tensor:
    """float [N, R]: the policy on the goal and all rows of every slot, padding included; `shortest` without parameters."""
    num_slots, num_rows, num_atoms, _ = resolvents.shape
    if not parameters:
        flat = resolvents.reshape(-1, num_atoms, 3)
        return score_shortest(parameters, flat, flat, torch.arange(len(flat), device=flat.device)).view(num_slots, -1)
    rows = torch.cat((goal[:, None], resolvents), 1).reshape(-1, num_atoms, 3)
    features = tower(parameters, rows).view(num_slots, num_rows + 1, -1)
    return (features[:, :1] * features[:, 1:]).sum(-1) / math.sqrt(features.shape[-1])


def take_step(
    segments: Segments, limits: Limits, parameters: Parameters, slots: Slots, resolvents: Resolvents, pool: Pool
) -> tuple[Slots, Pool, Tensor]:
    """Choose, advance, finish; store what ended and renew its slot.

    The last result, bool [], is for the host: whether any slot is open.
    """
    score = score_all(parameters, slots.goal, resolvents.atoms)
    places = torch.arange(score.shape[1], device=score.device)
    score = torch.where(places < resolvents.count[:, None], score, -torch.inf)
    alone = resolvents.kind != GOAL
    score = torch.where(alone[:, None], torch.where(places == 0, 0.0, -torch.inf), score)
    choice = score.argmax(1)
    wide = score.double()
    gain = wide.gather(1, choice[:, None]).squeeze(1) - wide.logsumexp(1)

    is_open = slots.outcome == OPEN
    chosen = resolvents.atoms[torch.arange(len(choice), device=choice.device), choice]
    depth = slots.depth + is_open
    outcome = torch.where(depth >= limits.max_depth, DEPTH_LIMIT, OPEN)
    outcome = torch.where(resolvents.kind == FALSE, FAILED, outcome)
    outcome = torch.where(resolvents.kind == TRUE, PROVED, outcome)
    turns = torch.arange(slots.visited.shape[1], device=depth.device)
    is_new = (is_open[:, None]) & (turns == depth[:, None])
    after = Slots(
        goal=torch.where(is_open[:, None, None], chosen, slots.goal),
        query=slots.query,
        visited=torch.where(is_new, goal_hash(segments, chosen)[:, None], slots.visited),
        depth=depth,
        outcome=torch.where(is_open, outcome, slots.outcome),
        is_limited=slots.is_limited | (is_open & resolvents.is_limited),
        log_probability=slots.log_probability + torch.where(is_open, gain, 0.0),
        turn=slots.turn,
    )
    return recycle(segments, after, pool)


def recycle(segments: Segments, slots: Slots, pool: Pool) -> tuple[Slots, Pool, Tensor]:
    """Store the results of ended slots and give each its next candidate, one row further down."""
    num_turns, num_slots = pool.outcome.shape
    has_ended = slots.outcome != OPEN
    holds = has_ended & (slots.turn >= 0) & (slots.turn < num_turns)
    rows = torch.arange(num_turns, device=slots.turn.device)
    is_place = holds & (rows[:, None] == slots.turn)
    turn = torch.where(has_ended & (slots.turn < num_turns), slots.turn + 1, slots.turn)
    columns = torch.arange(num_slots, device=turn.device)
    query = pool.query[turn.clamp(max=num_turns - 1), columns]
    takes = has_ended & (turn < num_turns) & (query[:, 0] != PAD)
    padding = torch.nn.functional.pad(query[:, None], (0, 0, 0, slots.goal.shape[1] - 1), value=PAD)
    goal = rename(padding)
    turns = torch.arange(slots.visited.shape[1], device=turn.device)
    begins = takes[:, None] & (turns == 0)
    outcome = torch.where(takes, OPEN, slots.outcome)
    renewed = Slots(
        goal=torch.where(takes[:, None, None], goal, slots.goal),
        query=torch.where(takes[:, None], query, slots.query),
        visited=torch.where(begins, goal_hash(segments, goal)[:, None], slots.visited),
        depth=torch.where(takes, 0, slots.depth),
        outcome=outcome,
        is_limited=slots.is_limited & ~takes,
        log_probability=torch.where(takes, 0.0, slots.log_probability),
        turn=turn,
    )
    results = Pool(
        query=pool.query,
        outcome=torch.where(is_place, slots.outcome, pool.outcome),
        is_limited=torch.where(is_place, slots.is_limited, pool.is_limited),
        log_probability=torch.where(is_place, slots.log_probability, pool.log_probability),
    )
    return renewed, results, (outcome == OPEN).any()


# The evaluator


class PaddedEvaluator:
    """Evaluates candidates as published designs do (see the package).

    slots:    derivations in flight
    capacity: most candidates of one call; the pool has a row for each `slots` of them
    mode:     as of `CompiledEngine`: `auto` captures graphs on CUDA
    """

    def __init__(
        self,
        program: Program,
        limits: Limits,
        policy: Policy,
        *,
        slots: int,
        capacity: int,
        mode: str = "auto",
        device: str = "auto",
    ) -> None:
        check_policy(policy, program, limits)
        self._device = resolve_device(device)
        self._mode = resolve_mode(mode, self._device)
        self._num_slots, self._num_turns = slots, -(-capacity // slots)
        self._segments = build_segments(program, limits.max_atoms, self._device)
        self._parameters = build_parameters(policy, self._device, torch.float32)
        self._limits = limits
        self._slots, self._pool, self._resolvents = self._empty()
        if self._mode != "eager":
            buffers = (*self._slots, *self._pool, *self._resolvents, *self._segments, *self._parameters)
            for buffer in buffers:
                torch._dynamo.mark_static_address(buffer)

        # Tables and weights are arguments: what a closure holds is copied before each replay of a graph.
        def run_engine(segments: Segments, slots: Slots) -> Resolvents:
            return compute_resolvents(segments, limits, slots.goal, slots.query, slots.visited, slots.depth)

        def run_step(
            segments: Segments, parameters: Parameters, slots: Slots, resolvents: Resolvents, pool: Pool
        ) -> tuple[Slots, Pool, Tensor]:
            return take_step(segments, limits, parameters, slots, resolvents, pool)

        self._run_engine = compile_function(run_engine, self._mode)
        self._run_step = compile_function(run_step, self._mode)
        self.num_steps = 0

    def evaluate(self, candidates: CandidateSet) -> Results:
        """Run every candidate to its end, counting in `num_steps`."""
        num = len(candidates.query)
        self._fill(candidates)
        self.num_steps = 0
        slots, pool, is_any_open = recycle(self._segments, self._slots, self._pool)
        self._copy(slots, pool)
        while bool(is_any_open):  # the host waits here, at every step
            self._begin_replay()
            _copy_all(self._resolvents, self._run_engine(self._segments, self._slots))
            self._begin_replay()
            slots, pool, is_any_open = self._run_step(
                self._segments, self._parameters, self._slots, self._resolvents, self._pool
            )
            self._copy(slots, pool)
            self.num_steps += 1
        place = np.arange(num)
        turn, column = place // self._num_slots, place % self._num_slots
        results = (buffer.cpu().numpy()[turn, column] for buffer in self._pool[1:])
        outcome, is_limited, log_probability = results
        return Results(outcome.astype(np.int32), is_limited, log_probability)

    def _fill(self, candidates: CandidateSet) -> None:
        query = np.full((self._num_turns * self._num_slots, 3), PAD, np.int64)
        query[: len(candidates.query)] = candidates.atom
        slots, pool, resolvents = self._empty()
        rows = torch.as_tensor(query, device=self._device).view_as(pool.query)
        _copy_all(self._pool, pool._replace(query=rows))
        _copy_all(self._slots, slots)
        _copy_all(self._resolvents, resolvents)

    def _copy(self, slots: Slots, pool: Pool) -> None:
        _copy_all(self._slots, slots)
        _copy_all(self._pool, pool)

    def _begin_replay(self) -> None:
        if self._device.type == "cuda" and self._mode != "eager":
            torch.compiler.cudagraph_mark_step_begin()

    def _empty(self) -> tuple[Slots, Pool, Resolvents]:
        n, t, limits = self._num_slots, self._num_turns, self._limits
        atoms = limits.max_resolvents, limits.max_atoms

        def full(value: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=self._device)

        slots = Slots(
            goal=full(PAD, n, limits.max_atoms, 3),
            query=full(PAD, n, 3),
            visited=full(0, n, limits.max_depth),
            depth=full(0, n),
            outcome=full(FAILED, n),
            is_limited=full(0, n, dtype=torch.bool),
            log_probability=full(0, n, dtype=torch.float64),
            turn=full(-1, n),
        )
        pool = Pool(
            query=full(PAD, t, n, 3),
            outcome=full(OPEN, t, n),
            is_limited=full(0, t, n, dtype=torch.bool),
            log_probability=full(0, t, n, dtype=torch.float64),
        )
        resolvents = Resolvents(full(PAD, n, *atoms, 3), full(0, n), full(0, n), full(0, n, dtype=torch.bool))
        return slots, pool, resolvents


def _copy_all(buffers: Any, values: Any) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not value:
            buffer.copy_(value)
