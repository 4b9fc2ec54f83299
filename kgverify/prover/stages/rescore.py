"""Choices too close for a fast precision, made again in a higher one, so that they agree with the exact scores."""

from typing import NamedTuple

import torch
from torch import Tensor

from kgverify.prover.stages.choose import Parameters, Score
from kgverify.prover.state import GOAL, PAD, Rows, TickGaps


class Rescoring(NamedTuple):
    """The second scoring of close choices.

    score:          the score function in the higher precision; its parameters follow the first `num_parameters`
    num_parameters: the number of parameters of the fast score
    error:          the error of the fast scores, in nats; a score more than twice as much below the highest cannot win
    window:         resolvents scored again at each tick, at least max_resolvents
    """

    score: Score
    num_parameters: int
    error: float
    window: int


def measure_gaps(score: Tensor, kind: Tensor, is_taken: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the highest score, its gap to the second highest (inf without one), float [B] both, and which slots choose.

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
    """Return the scores [B, S], exact for close choices; which slots take their step; and the gaps.

    A slot whose close scores do not fit the window waits for the next tick.
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
