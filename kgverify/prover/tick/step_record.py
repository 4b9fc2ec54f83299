"""The taken steps of ticks, turned into ragged columns on the host."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.protocol import Results, StepDigests
from kgverify.program.outcomes import Origin
from kgverify.prover.execution.device import HostCopy, PendingCopy
from kgverify.prover.state import GOAL, PAD, StepRecord
from kgverify.trace.model.columns import (
    FIELD_OF,
    Candidates,
    CandidateSet,
    Columns,
    Resolvents,
    Steps,
    concatenate,
    empty_columns,
    select_steps,
    starts_of,
)


class Chunk(NamedTuple):
    """The steps of some ticks: the pool index of each one's candidate, steps and resolvents; each candidate's in order."""

    pool_index: NDArray[np.int64]
    steps: Steps
    resolvents: Resolvents


class LoggedSteps(NamedTuple):
    """Steps on the device: pool_index and first int64 [T], goal int32 [T, A, 3], the others integers [T].

    first: the row of the first resolvent in `LoggedRows`; TRUE and FALSE standing alone have no row
    """

    pool_index: Tensor
    depth: Tensor
    kind: Tensor
    num_resolvents: Tensor
    dropped_atoms: Tensor
    dropped_resolvents: Tensor
    choice: Tensor
    outcome: Tensor
    first: Tensor
    true_kind: Tensor
    true_origin: Tensor
    goal: Tensor


class LoggedRows(NamedTuple):
    """Resolvents on the device: origin_kind integers [R], origin int32 [R], score [R], atoms int32 [R, A, 3]."""

    origin_kind: Tensor
    origin: Tensor
    score: Tensor
    atoms: Tensor


class TakenSteps(NamedTuple):
    """The steps of one tick and their resolvents, the first of which are those of the first step."""

    steps: LoggedSteps
    rows: LoggedRows


def take_steps(record: StepRecord) -> TakenSteps:
    """Copy the record of the slots that took a step."""
    work, choices, rows = record.work, record.choices, record.rows
    num_rows = torch.where(record.is_taken & (choices.kind == GOAL), choices.num_resolvents, 0)
    steps = LoggedSteps(
        pool_index=record.pool_index,
        depth=record.depth,
        kind=choices.kind,
        num_resolvents=choices.num_resolvents,
        dropped_atoms=work.dropped_atoms,
        dropped_resolvents=work.dropped_resolvents,
        choice=choices.choice,
        outcome=record.outcome,
        first=num_rows.cumsum(0) - num_rows,
        true_kind=work.true_origin_kind,
        true_origin=torch.where(work.true_origin_kind == int(Origin.NONE), 0, work.true_origin),
        goal=record.goal,
    )
    taken = torch.nonzero(record.is_taken).squeeze(1)
    # A slot whose close scores wait for a later tick has rows as well, and takes no step.
    row = torch.nonzero(rows.is_live & record.is_taken[rows.slot]).squeeze(1)
    slot = rows.slot[row]
    column = row - rows.first[slot]
    origin_kind = work.origin_kind[slot, column]
    origin = torch.where(origin_kind == int(Origin.NONE), 0, work.origin[slot, column])
    return TakenSteps(
        LoggedSteps(*(each.index_select(0, taken) for each in steps)),
        LoggedRows(origin_kind, origin, choices.score[slot, column], rows.atoms[row]),
    )


def read_steps(ticks: Sequence[TakenSteps]) -> Chunk:
    """Copy the steps of some ticks, one after the other, to the host."""
    # The first row is read for TRUE and FALSE, and not used.
    unused = LoggedRows(*(each.new_zeros(1, *each.shape[1:]) for each in ticks[0].rows))
    rows = LoggedRows(*map(torch.cat, zip(unused, *(tick.rows for tick in ticks), strict=True)))
    steps = LoggedSteps(*map(torch.cat, zip(*(tick.steps for tick in ticks), strict=True)))
    begin = starts_of(np.array([len(tick.rows.origin) for tick in ticks]))[:-1]
    num_steps = torch.tensor([len(tick.steps.depth) for tick in ticks])
    first = steps.first + torch.repeat_interleave(torch.as_tensor(1 + begin), num_steps).to(steps.first.device)
    return _copy_steps(steps._replace(first=first), rows)


def _copy_steps(steps: LoggedSteps, rows: LoggedRows) -> Chunk:
    """Copy steps and their resolvents, without padding, to the host."""
    copies = HostCopy()
    is_atom = steps.goal[..., 0] != PAD
    # The columns from `num_resolvents` to `outcome` have the same names and order there.
    columns = (steps.depth, is_atom.sum(1), *(getattr(steps, name) for name in Steps._fields[2:-1]))
    chunk = Chunk(
        copies.fetch(steps.pool_index, np.int64),
        Steps(*fetch_columns(copies, Steps, *columns, steps.goal[is_atom])),
        _copy_resolvents(steps, rows, copies),
    )
    copies.begin()
    copies.wait()
    return chunk


def _copy_resolvents(steps: LoggedSteps, rows: LoggedRows, copies: HostCopy) -> Resolvents:
    owner = torch.repeat_interleave(steps.num_resolvents)
    ends = steps.num_resolvents.long().cumsum(0)
    ordinal = torch.arange(len(owner), device=owner.device) - (ends - steps.num_resolvents)[owner]
    kind = steps.kind[owner]
    is_goal = kind == GOAL
    row = torch.where(is_goal, steps.first[owner] + ordinal, 0)
    atoms = rows.atoms[row]
    is_atom = (atoms[..., 0] != PAD) & is_goal[:, None]
    columns = (
        kind,
        is_atom.sum(1),
        torch.where(is_goal, rows.origin_kind[row], steps.true_kind[owner]),
        torch.where(is_goal, rows.origin[row], steps.true_origin[owner]),
        torch.where(is_goal, rows.score[row], 0.0),
        atoms[is_atom],
    )
    return Resolvents(*fetch_columns(copies, Resolvents, *columns))


def fetch_columns(copies: HostCopy, kind: type[Steps] | type[Resolvents], *columns: Tensor) -> Iterator[NDArray[Any]]:
    """Yield the arrays that will hold the first columns of a level, in the types of traces."""
    for name, column in zip(kind._fields, columns, strict=False):
        yield copies.fetch(column, FIELD_OF[f"{kind.__name__.lower()}/{name}"].dtypes[0])


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
    parts = [Columns(empty.candidates, chunk.steps, chunk.resolvents) for chunk in chunks]
    in_time = parts[0] if len(parts) == 1 else concatenate([empty, *parts])
    positions = [chunk.pool_index for chunk in chunks]
    pool_index = positions[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *positions])
    is_ordered = bool((pool_index[1:] >= pool_index[:-1]).all())
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
