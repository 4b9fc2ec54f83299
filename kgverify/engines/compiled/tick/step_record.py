"""The taken steps of ticks, turned into ragged columns on the host."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.compiled.execution.host_copy import PendingCopy
from kgverify.engines.compiled.state import GOAL, PAD, StepRecord
from kgverify.program.outcomes import Origin
from kgverify.trace.model.columns import (
    Candidates,
    CandidateSet,
    Columns,
    Digests,
    Resolvents,
    Steps,
    concatenate,
    empty_columns,
    select_steps,
)


class Chunk(NamedTuple):
    """The steps of some ticks: the pool index of each one's candidate, steps and resolvents; each candidate's in order."""

    pool_index: NDArray[np.int64]
    steps: Steps
    resolvents: Resolvents


class TakenSteps(NamedTuple):
    """The n steps of one tick, still padded and on the device: a copy of its record, for their slots.

    atoms: int32 [r, A, 3]  of the resolvents that have some, in order; the other fields as in `StepRecord`
    """

    pool_index: Tensor
    depth: Tensor
    outcome: Tensor
    goal: Tensor
    kind: Tensor
    num_resolvents: Tensor
    choice: Tensor
    score: Tensor
    dropped_atoms: Tensor
    dropped_resolvents: Tensor
    true_kind: Tensor
    true_origin: Tensor
    origin_kind: Tensor
    origin: Tensor
    atoms: Tensor


def take_steps(record: StepRecord) -> TakenSteps:
    """Copy the record of the slots that took a step."""
    taken = torch.nonzero(record.is_taken).squeeze(1)
    work, choices, rows = record.work, record.choices, record.rows

    def take(tensor: Tensor) -> Tensor:
        return tensor.index_select(0, taken)

    return TakenSteps(
        pool_index=take(record.pool_index),
        depth=take(record.depth),
        outcome=take(record.outcome),
        goal=take(record.goal),
        kind=take(choices.kind),
        num_resolvents=take(choices.num_resolvents),
        choice=take(choices.choice),
        score=take(choices.score),
        dropped_atoms=take(work.dropped_atoms),
        dropped_resolvents=take(work.dropped_resolvents),
        true_kind=take(work.true_origin_kind),
        true_origin=take(work.true_origin),
        origin_kind=take(work.origin_kind),
        origin=take(work.origin),
        # The live rows are the resolvents of the slots in order, except TRUE and FALSE, which have no atoms. A slot whose
        # close scores wait for a later tick has rows as well, and takes no step.
        atoms=rows.atoms[rows.is_live & record.is_taken[rows.slot]],
    )


def read_steps(ticks: Sequence[TakenSteps]) -> Chunk:
    """Copy the steps of some ticks, one after the other, to the host and drop their padding."""
    columns = (column[0] if len(ticks) == 1 else torch.cat(column) for column in zip(*ticks, strict=True))
    taken = TakenSteps(*columns)

    def fetch(tensor: Tensor) -> NDArray:  # type: ignore[type-arg]
        return tensor.cpu().numpy()

    kind = fetch(taken.kind)
    num_resolvents = fetch(taken.num_resolvents)
    num_columns = int(num_resolvents.max(initial=1))
    is_resolvent = np.arange(num_columns) < num_resolvents[:, None]
    alone = kind != GOAL
    origin_kind, origin = fetch(taken.origin_kind[:, :num_columns]), fetch(taken.origin[:, :num_columns])
    origin_kind[alone, 0] = fetch(taken.true_kind)[alone]
    origin[alone, 0] = fetch(taken.true_origin)[alone]
    origin[origin_kind == Origin.NONE] = 0
    goal = fetch(taken.goal)
    is_goal_atom = goal[..., 0] != PAD
    kinds = np.where(np.arange(num_columns) == 0, kind[:, None], GOAL)[is_resolvent]
    row_atoms = fetch(taken.atoms)
    is_atom = row_atoms[..., 0] != PAD
    num_atoms = np.zeros(len(kinds), np.uint16)
    num_atoms[kinds == GOAL] = is_atom.sum(1)
    return Chunk(
        fetch(taken.pool_index),
        Steps(
            depth=fetch(taken.depth).astype(np.uint16),
            num_atoms=is_goal_atom.sum(1).astype(np.uint16),
            num_resolvents=num_resolvents.astype(np.uint32),
            dropped_atoms=fetch(taken.dropped_atoms).astype(np.uint32),
            dropped_resolvents=fetch(taken.dropped_resolvents).astype(np.uint32),
            choice=fetch(taken.choice).astype(np.int32),
            outcome=fetch(taken.outcome).astype(np.int8),
            goal_atoms=goal[is_goal_atom],
        ),
        Resolvents(
            kind=kinds.astype(np.uint8),
            num_atoms=num_atoms,
            origin_kind=origin_kind[is_resolvent].astype(np.uint8),
            origin=origin[is_resolvent],
            score=fetch(taken.score[:, :num_columns])[is_resolvent],
            atoms=row_atoms[is_atom],
        ),
    )


class Results(NamedTuple):
    """The ends of candidates: outcome int32 [N], is_limited bool [N], log_probability float64 [N]."""

    outcome: NDArray[np.int32]
    is_limited: NDArray[np.bool_]
    log_probability: NDArray[np.float64]


class StepDigests(NamedTuple):
    """The digests of the steps of candidates, one candidate after the other. num_steps: uint32 [N], of each."""

    num_steps: NDArray[np.uint32]
    digests: Digests


class Evaluation(NamedTuple):
    """The ends of candidates, and the closeness of choices that may be made again in a higher precision.

    num_choices:  choices between two resolvents or more
    num_rescored: those of them made again
    smallest_gap: between the two highest scores (in fused ticks, of different resolvents), nats; inf without a choice
    digests:      None unless requested

    In float32, ticks of stages measure no gaps (0, 0, inf).
    """

    results: Results
    num_choices: int = 0
    num_rescored: int = 0
    smallest_gap: float = float("inf")
    digests: StepDigests | None = None


def no_results() -> Results:
    """Return the results of no candidates."""
    return Results(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.float64))


def no_digests() -> StepDigests:
    """Return the digests of no candidates."""
    nothing = np.zeros(0, np.uint64)
    return StepDigests(np.zeros(0, np.uint32), Digests(nothing, nothing, nothing))


def join_digests(parts: Sequence[StepDigests]) -> StepDigests:
    """Concatenate the digests of some candidates after others."""
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([part.num_steps for part in parts])
    return StepDigests(counts, Digests(*map(np.concatenate, zip(*(part.digests for part in parts), strict=True))))


class Recorded:
    """Candidates proved with all their steps, being copied to the host. chunks: None where only digests were taken."""

    def __init__(
        self,
        candidates: CandidateSet,
        chunks: Sequence[PendingCopy[Chunk]] | None,
        results: PendingCopy[Results],
        digests: PendingCopy[StepDigests] | None,
    ) -> None:
        self._candidates, self._chunks, self._results, self._digests = candidates, chunks, results, digests

    def read(self) -> tuple[Columns, NDArray[np.uint64] | None]:
        """Return the candidates with their steps, in the order given, and the digest of each step if digests were taken."""
        digests = None if self._digests is None else self._digests.wait()
        sequence = None if digests is None else digests.digests.sequence
        results = self._results.wait()
        if self._chunks is not None:
            return collect_columns(self._candidates, [chunk.wait() for chunk in self._chunks], results), sequence
        num_steps = np.zeros(0, np.uint32) if digests is None else digests.num_steps
        empty = empty_columns(np.float32)
        zeros: list[Any] = [np.zeros(int(num_steps.sum(dtype=np.int64)), column.dtype) for column in empty.steps[:-1]]
        steps = Steps(*[*zeros, empty.steps.goal_atoms])
        return Columns(_ended(self._candidates, num_steps, results), steps, empty.resolvents), sequence


def collect_columns(candidates: CandidateSet, chunks: list[Chunk], results: Results) -> Columns:
    """Order the steps of all ticks by candidate; ticks are in time order, so each candidate's steps stay in theirs."""
    empty = empty_columns(np.float32)
    pool_index = np.concatenate([np.zeros(0, np.int64), *(chunk.pool_index for chunk in chunks)])
    parts = [Columns(empty.candidates, chunk.steps, chunk.resolvents) for chunk in chunks]
    in_time = parts[0] if len(parts) == 1 else concatenate([empty, *parts])
    is_ordered = bool((np.diff(pool_index) >= 0).all())
    ordered = in_time if is_ordered else select_steps(in_time, np.argsort(pool_index, kind="stable"))
    num_steps = np.bincount(pool_index, minlength=len(candidates.query)).astype(np.uint32)
    return ordered._replace(candidates=_ended(candidates, num_steps, results))


def _ended(candidates: CandidateSet, num_steps: NDArray[np.uint32], results: Results) -> Candidates:
    return Candidates(
        candidates.query,
        candidates.side,
        candidates.atom,
        num_steps,
        results.outcome.astype(np.int8),
        results.is_limited.astype(np.uint8),
        results.log_probability,
    )
