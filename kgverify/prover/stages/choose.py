"""Stages `score`, `choose`, `advance` and `finish`: from resolvents to the next goal.

Near-ties are scored again in float64.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kgverify.engines.policy import Policy
from kgverify.prover.program.tables import round_up
from kgverify.prover.state import (
    DEPTH_LIMIT,
    FAILED,
    FALSE,
    GOAL,
    OPEN,
    PAD,
    PROVED,
    TRUE,
    Choices,
    Derivations,
    Rows,
    TickGaps,
    Work,
    alter,
)

Parameters: TypeAlias = tuple[Tensor, ...]
Score: TypeAlias = Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]
"""(parameters, goals int32 [B, A, 3], resolvents int32 [R, A, 3], slot of each resolvent int64 [R]) -> [R]."""


def score_shortest(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
    """Score by fewest atoms, then fewest variables, float32 [R]. A canonical resolvent's last variable gives their number."""
    num_atoms = (resolvents[..., 0] != PAD).sum(-1)
    arguments = torch.where(resolvents[..., 1:] == PAD, 0, resolvents[..., 1:])
    num_variables = -arguments.flatten(1).amin(1).clamp(max=0)
    return torch.neg(num_atoms + num_variables / 64).float()


def score_two_tower(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
    """Return the scaled dot product of the tower's outputs for goal and resolvent."""
    features = tower(parameters, torch.cat((goals, resolvents)))
    of_goal, of_resolvent = features[: goals.shape[0]], features[goals.shape[0] :]
    return (of_goal[slot] * of_resolvent).sum(-1) / math.sqrt(features.shape[-1])


def tower(parameters: Parameters, goals: Tensor) -> Tensor:
    """Return the features of each goal, int32 [n, A, 3]: float [n, h]."""
    predicate_rows, argument_rows, num_variables, weight, bias, *blocks = parameters
    predicate, first, second = goals.unbind(-1)
    is_atom = predicate != PAD

    def argument(ids: Tensor) -> Tensor:
        row = torch.where(ids < 0, -1 - ids, ids + num_variables)
        return functional.embedding(torch.where(is_atom, row, 0), argument_rows)

    atoms = (
        functional.embedding(torch.where(is_atom, predicate, 0), predicate_rows) + argument(first) - argument(second)
    )
    total = torch.where(is_atom[..., None], atoms, 0).sum(1)
    x = functional.linear(total / is_atom.sum(1, keepdim=True).clamp(min=1), weight, bias)
    for i in range(0, len(blocks), 4):
        block_weight, block_bias, norm_weight, norm_bias = blocks[i : i + 4]
        x = x + functional.relu(functional.linear(x, block_weight, block_bias))
        x = functional.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps=1e-5)
    return x


def build_parameters(
    policy: Policy, device: torch.device, dtype: torch.dtype, *, is_rounded: bool = False
) -> Parameters:
    """Return a policy's weights on a device, in the order in which its score function takes them.

    is_rounded: whether the numbers of symbols are rounded up to powers of two, by rows of zeros
    """
    if policy.name == "shortest":
        return ()
    weights = {name: torch.as_tensor(np.array(array)).to(device, dtype) for name, array in policy.weights.items()}
    variables, constants = weights["embedding.variable"], weights["embedding.constant"]
    num_variables = torch.tensor(len(variables), device=device, dtype=torch.int32)
    blocks = (
        weights[f"block.{i}.{part}"]
        for i in range(policy.num_blocks)
        for part in ("weight", "bias", "norm.weight", "norm.bias")
    )
    return (
        pad_rows(weights["embedding.predicate"]) if is_rounded else weights["embedding.predicate"],
        pad_rows(torch.cat((variables, constants))) if is_rounded else torch.cat((variables, constants)),
        num_variables,
        weights["input.weight"],
        weights["input.bias"],
        *blocks,
    )


def pad_rows(rows: Tensor) -> Tensor:
    """Append rows of zeros, up to the next power of two."""
    return functional.pad(rows, (0, 0, 0, round_up(len(rows)) - len(rows)))


SCORES: dict[str, Score] = {"shortest": score_shortest, "two_tower": score_two_tower}


def choose(kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
    """Choose the highest score, with the lowest index among equals. kind int32 [B], num_resolvents int64 [B], score [B, S]."""
    choice = score.argmax(1)
    wide = score.double()
    log_probability = wide.gather(1, choice[:, None]).squeeze(1) - wide.logsumexp(1)
    alone = kind != GOAL
    return Choices(
        kind,
        num_resolvents,
        score,
        torch.where(alone, 0, choice),
        torch.where(alone | (num_resolvents == 0), 0.0, log_probability),
    )


def advance(derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor) -> Derivations:
    """Make the chosen resolvent the goal, in the slots where the step is taken, bool [B]."""
    goes_on = (choices.kind == GOAL) & (choices.num_resolvents > 0)
    chosen = rows.atoms[torch.where(goes_on & is_taken, rows.first + choices.choice, 0)]
    chosen = torch.where(goes_on[:, None, None], chosen, PAD)
    depth = derivations.depth + is_taken.int()
    turns = torch.arange(derivations.visited.shape[1], device=depth.device)
    is_new = is_taken[:, None] & (turns == depth[:, None])
    dropped = (work.dropped_atoms > 0) | (work.dropped_resolvents > 0)
    return alter(
        derivations,
        goal=torch.where(is_taken[:, None, None], chosen, derivations.goal),
        depth=depth,
        is_limited=derivations.is_limited | (is_taken & dropped & (choices.kind != TRUE)),
        log_probability=derivations.log_probability + torch.where(is_taken, choices.log_probability, 0.0),
        visited=torch.where(is_new[..., None, None], chosen[:, None], derivations.visited),
    )


def finish(depth: Tensor, outcome: Tensor, kind: Tensor, is_taken: Tensor, max_depth: int) -> Tensor:
    """Return the outcome after a step, int32 [B]; a slot that takes no step keeps its own."""
    after = torch.where(depth >= max_depth, DEPTH_LIMIT, OPEN)
    after = torch.where(kind == FALSE, FAILED, after)
    after = torch.where(kind == TRUE, PROVED, after)
    return torch.where(is_taken, after, outcome).to(torch.int32)


class Rescoring(NamedTuple):
    """The second scoring of close choices.

    score:          the score function in the higher precision; its parameters follow the first `num_parameters`
    num_parameters: the number of parameters of the fast score
    error:          the error of the fast scores, in nats; a score that is lower than the highest by more than twice the
                    error cannot win
    window:         the resolvents scored again at each tick, at least max_resolvents
    """

    score: Score
    num_parameters: int
    error: float
    window: int


def measure_gaps(score: Tensor, kind: Tensor, is_taken: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the highest score, its gap to the second highest (inf without one), float [B] each, and the slots that choose.

    score [B, S], -inf in free rows; kind int32 [B]; is_taken bool [B]
    """
    best = score.amax(1)
    is_best = torch.arange(score.shape[1], device=score.device) == score.argmax(1)[:, None]
    second = torch.where(is_best, -torch.inf, score).amax(1)
    chooses = is_taken & (kind == GOAL) & (second > -torch.inf)
    return best, torch.where(chooses, best - second, torch.inf), chooses


def rescore(
    rescoring: Rescoring,
    parameters: Parameters,
    goals: Tensor,
    rows: Rows,
    score: Tensor,
    kind: Tensor,
    is_taken: Tensor,
) -> tuple[Tensor, Tensor, TickGaps]:
    """Return the scores [B, S], exact for close choices, the slots that take their step, and the gaps.

    A slot whose close scores do not fit in the window waits for the next tick.
    """
    best, gap, chooses = measure_gaps(score, kind, is_taken)
    margin = 2 * rescoring.error
    is_close = chooses & (gap <= margin)
    row = torch.arange(len(rows.slot), device=score.device) - rows.first[rows.slot]
    column = torch.where(rows.is_live, row, 0).clamp(0, score.shape[1] - 1)
    contends = rows.is_live & is_close[rows.slot] & (score[rows.slot, column] >= (best - margin)[rows.slot])

    position = contends.cumsum(0) - 1
    is_beyond = contends & (position >= rescoring.window)
    num_beyond = torch.zeros_like(kind).scatter_add(0, rows.slot, is_beyond.to(kind.dtype))
    waits = num_beyond > 0
    sink = rescoring.window
    chosen = torch.full((sink + 1,), -1, dtype=torch.int64, device=score.device)
    numbers = torch.arange(len(rows.slot), device=score.device)
    chosen = chosen.index_put((torch.where(contends & ~is_beyond, position, sink),), numbers)[:sink]
    is_used = torch.arange(sink, device=score.device) < contends.sum()
    chosen = torch.where(is_used, chosen, 0)

    atoms = torch.where(is_used[:, None, None], rows.atoms[chosen], PAD)
    slot = rows.slot[chosen]
    values = rescoring.score(parameters[rescoring.num_parameters :], goals, atoms, slot)
    padded = torch.nn.functional.pad(score, (0, 1))
    chosen_column = torch.where(is_used, column[chosen], score.shape[1])
    padded = padded.index_put((slot, chosen_column), values.to(score.dtype))
    is_taken = is_taken & ~waits
    is_made = chooses & ~waits
    gaps = TickGaps(is_made.sum(), (is_close & ~waits).sum(), torch.where(is_made, gap, torch.inf).amin())
    return padded[:, :-1], is_taken, gaps
