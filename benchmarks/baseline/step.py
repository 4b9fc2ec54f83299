"""The rest of the baseline's step: the policy on all padded rows, the choice, the next goal, and the next candidate."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from baseline.resolvents import Resolvents, goal_hash, rename
from baseline.tables import Segments
from kgverify.program.limits import Limits
from kgverify.prover.stages.choose import Parameters, score_shortest, tower
from kgverify.prover.state import DEPTH_LIMIT, FAILED, FALSE, GOAL, OPEN, PAD, PROVED, TRUE


class Slots(NamedTuple):
    """One derivation for each of N slots.

    goal:            int64   [N, A, 3]  free rows PAD
    query:           int64   [N, 3]
    visited:         int64   [N, D]     hashes of the goals visited
    depth:           int64   [N]
    outcome:         int64   [N]
    is_limited:      bool    [N]
    log_probability: float64 [N]
    turn:            int64   [N]        row of the pool; as many as there are: none left
    is_fresh:        bool    [N]        no step taken yet
    """

    goal: Tensor
    query: Tensor
    visited: Tensor
    depth: Tensor
    outcome: Tensor
    is_limited: Tensor
    log_probability: Tensor
    turn: Tensor
    is_fresh: Tensor


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

    The last result, bool [2], is for the host: whether any slot is open, and whether any has just begun.
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
        is_fresh=slots.is_fresh & ~is_open,
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
        is_fresh=slots.is_fresh | takes,
    )
    results = Pool(
        query=pool.query,
        outcome=torch.where(is_place, slots.outcome, pool.outcome),
        is_limited=torch.where(is_place, slots.is_limited, pool.is_limited),
        log_probability=torch.where(is_place, slots.log_probability, pool.log_probability),
    )
    return renewed, results, torch.stack(((outcome == OPEN).any(), takes.any()))
