"""Ticks composed of any stages: eager, or through `torch.compile`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.protocol import Results, StepDigests
from kgverify.errors import InternalError, UserError
from kgverify.program.outcomes import Origin
from kgverify.prover.execution.compilation import captures_graphs, compile_function
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters
from kgverify.prover.state import GOAL, OPEN, PAD, Decided, Derivations, Pool, StepRecord, TickGaps, Work
from kgverify.prover.tick.tick import Setting, TickLoop, copy_buffers_, empty_work, find_resolvents, restart_, tick
from kgverify.torch.host_copy import HostCopy, PendingCopy
from kgverify.trace.model.columns import (
    FIELD_OF,
    NO_PATHS,
    STEP_COLUMNS,
    Candidates,
    CandidateSet,
    Columns,
    Paths,
    Resolvents,
    Steps,
    concatenate,
    empty_columns,
    select_steps,
    starts_of,
)


class Chunk(NamedTuple):
    """The steps of some ticks: the pool index of each step's candidate, steps, resolvents and paths, in order per candidate."""

    pool_index: NDArray[np.int64]
    steps: Steps
    resolvents: Resolvents
    paths: Paths = NO_PATHS


class LoggedSteps(NamedTuple):
    """Steps on the device: pool_index and first int64 [T], goal int32 [T, A, 3], the others integers [T].

    first: the row of the first resolvent in `LoggedRows`; TRUE and FALSE have no row if they are the only resolvent
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
    """The steps of one tick and their resolvents, in the order of the steps."""

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
    # A slot whose close scores wait for a later tick also has rows, but takes no step.
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
    # For TRUE and FALSE the first row is read but not used.
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
    columns = (steps.depth, is_atom.sum(1), *(getattr(steps, name) for name in STEP_COLUMNS[2:-1]))
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
    """Proved candidates whose steps are being copied to the host. chunks: None if only digests were computed."""

    def __init__(
        self,
        candidates: CandidateSet,
        chunks: Sequence[PendingCopy[Chunk]] | None,
        results: PendingCopy[Results],
        digests: PendingCopy[StepDigests] | None = None,
    ) -> None:
        self._candidates, self._chunks, self._results, self._digests = candidates, chunks, results, digests

    def read(self) -> tuple[Columns, NDArray[np.uint64] | None]:
        """Return the candidates with their steps, in the order given, and the digest of each step if digests were computed."""
        digests = None if self._digests is None else self._digests.wait()
        sequence = None if digests is None else digests.digests.sequence
        results = self._results.wait()
        if self._chunks is not None:
            return collect_columns(self._candidates, [chunk.wait() for chunk in self._chunks], results), sequence
        num_steps = np.zeros(0, np.uint32) if digests is None else digests.num_steps
        empty = empty_columns(np.float32)
        total, columns = int(num_steps.sum(dtype=np.int64)), empty.steps[: len(STEP_COLUMNS) - 1]
        zeros: list[Any] = [np.zeros(total, column.dtype) for column in columns]
        steps = Steps(*[*zeros, empty.steps.goal_atoms])
        return Columns(_ended(self._candidates, num_steps, results), steps, empty.resolvents), sequence


def collect_columns(candidates: CandidateSet, chunks: list[Chunk], results: Results) -> Columns:
    """Order the steps of all ticks by candidate. Ticks are in order of time, so each candidate's steps keep their order."""
    empty = empty_columns(np.float32)
    parts = [Columns(empty.candidates, chunk.steps, chunk.resolvents, paths=chunk.paths) for chunk in chunks]
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


_READ_AT_ONCE: Final = 4096
"""The smallest number of steps copied to the host together: each copy costs the same, however few steps it has."""


def build_recorded_tick(setting: Setting) -> Callable[..., tuple[Derivations, Work, StepRecord]]:
    """Return a tick without recycling that returns a record of its steps. It has the arguments of `tick`."""

    def run_tick(*state: Any) -> tuple[Derivations, Work, StepRecord]:
        return tick(setting, *state)

    return run_tick


def build_unrecorded_tick(setting: Setting) -> Callable[..., tuple[Derivations, Work, Pool, Tensor, TickGaps]]:
    """Return a function that recycles and runs a tick.

    It returns only the number of open slots and the gaps of its choices.
    """

    def run_unrecorded(
        tables: Tables, parameters: Parameters, derivations: Derivations, work: Work, pool: Pool
    ) -> tuple[Derivations, Work, Pool, Tensor, TickGaps]:
        pool, derivations = setting.stages.recycle(pool, derivations)
        num_open = (derivations.outcome == OPEN).sum()
        derivations, work, record = tick(setting, tables, parameters, derivations, work)
        return derivations, work, pool, num_open, record.gaps or empty_gaps(num_open.device)

    return run_unrecorded


class StageTicks:
    """The ticks of a setting. mode: a mode of `torch.compile`, or eager."""

    def __init__(
        self,
        setting: Setting,
        tables: Tables,
        parameters: Parameters,
        buffers: tuple[Derivations, Work, Pool],
        mode: str,
    ) -> None:
        self._derivations, self._work, self._pool = buffers
        self._setting, self._tables, self._parameters = setting, tables, parameters
        device = tables.facts.device
        self._is_cuda = device.type == "cuda"
        self._marks_replays = self._is_cuda and mode != "eager"
        self._num_open = torch.zeros((), dtype=torch.int64, device=device)
        self._gaps = empty_gaps(device)
        if mode != "eager":
            for buffer in (*self._derivations, *self._work, *self._pool, *tables, *parameters):
                torch._dynamo.mark_static_address(buffer)

        self._run_tick = compile_function(build_recorded_tick(setting), mode)
        # The loop captures its own graphs.
        self._run_unrecorded = compile_function(
            build_unrecorded_tick(setting), "default" if captures_graphs(mode, device) else mode
        )
        recycle = setting.stages.recycle
        self._recycle = compile_function(recycle, mode) if self._is_cuda else recycle
        is_captured = captures_graphs(mode, device)
        self._loop = TickLoop(self._restart_, self._take_tick_, self._look, self._pool, is_captured=is_captured)

    def decide(self, derivations: Derivations, work: Work | None, counts_all: bool) -> Decided:
        """Try a window of clauses for any number of derivations.

        work:       as this left it before; None for new steps
        counts_all: without effect, since everything dropped is counted
        """
        if work is None:
            num = len(derivations.depth)
            work = empty_work(self._setting.layout._replace(slots=num), derivations.depth.device)
        work, kind, rows, is_taken = find_resolvents(self._setting, self._tables, derivations, work)
        return Decided(is_taken, work, kind, rows.first, rows.atoms[: int(rows.is_live.sum())])

    def resume(self) -> None:
        """Do nothing: the whole state of the derivations is in the buffers."""

    def _restart_(self) -> None:
        restart_(self._derivations, self._work, self._pool)

    def record_tick(self) -> Chunk | None:
        """Run one tick without recycling. Return the steps that it took, if any."""
        taken = self._take_recorded_tick_()
        return read_steps([taken]) if len(taken.steps.pool_index) else None

    def _take_recorded_tick_(self) -> TakenSteps:
        self._begin_replay()
        derivations, work, record = self._run_tick(self._tables, self._parameters, self._derivations, self._work)
        taken = take_steps(record)
        copy_buffers_(self._derivations, derivations)
        copy_buffers_(self._work, work)
        return taken

    def record_all(self, *, has_digests: bool = False) -> Iterator[tuple[int, PendingCopy[Chunk] | None]]:
        """Run the candidates of the pool to their ends, and record their steps, in order for each candidate.

        From time to time, yields the number of candidates that have ended, and copies of steps. UserError if digests
        are requested.
        """
        self._check(has_digests=has_digests)
        num_ended = num_waiting = 0
        tried = -1
        waiting: list[TakenSteps] = []
        self._restart_()
        self._recycle_()
        is_open = bool((self._derivations.outcome == OPEN).any())
        while is_open:
            waiting.append(self._take_recorded_tick_())
            num_taken = len(waiting[-1].steps.pool_index)
            num_waiting += num_taken
            # In a tick without a step, only the cursors can change.
            before, tried = tried, -1 if num_taken else int(self._work.cursor.sum())
            if tried >= 0 and tried == before:
                raise InternalError("the evaluator's ticks do not complete a step")
            self._recycle_()
            is_open = bool((self._derivations.outcome == OPEN).any())
            if num_waiting >= _READ_AT_ONCE or not is_open:
                chunk = read_steps(waiting)
                num_ended += int((chunk.steps.outcome != OPEN).sum())
                yield num_ended, PendingCopy(chunk)
                waiting, num_waiting = [], 0

    def run(self, *, has_digests: bool = False) -> Iterator[int]:
        """Run the candidates of the pool to their ends.

        From time to time, yield the number given to slots.

        UserError if digests are requested.
        """
        self._check(has_digests=has_digests)
        return self._loop.run()

    def _check(self, *, has_digests: bool) -> None:
        if has_digests:
            raise UserError(
                "only mode `fused` takes digests of steps",
                where="mode",
                fix="use --mode fused, or record the steps",
            )

    def send_digests(self, num: int, num_steps: int | None = None) -> PendingCopy[StepDigests]:
        """Raise InternalError: digests are not supported here."""
        raise InternalError("ticks of stages take no digests")

    def _recycle_(self) -> None:
        self._begin_replay()
        pool, derivations = self._recycle(self._pool, self._derivations)
        copy_buffers_(self._pool, pool)
        copy_buffers_(self._derivations, derivations)

    def _take_tick_(self) -> None:
        derivations, work, pool, num_open, gaps = self._run_unrecorded(
            self._tables, self._parameters, self._derivations, self._work, self._pool
        )
        copy_buffers_(self._derivations, derivations)
        copy_buffers_(self._work, work)
        copy_buffers_(self._pool, pool)
        self._num_open.copy_(num_open)
        self._gaps.num_choices.add_(gaps.num_choices)
        self._gaps.num_rescored.add_(gaps.num_rescored)
        torch.minimum(self._gaps.smallest, gaps.smallest, out=self._gaps.smallest)

    def _look(self) -> Tensor:
        return torch.stack((self._num_open, self._pool.next_index))

    def read_gaps(self) -> tuple[int, int, float]:
        """Return the number of choices, the number of repeated choices, and the smallest gap, since `clear_gaps`."""
        return int(self._gaps.num_choices), int(self._gaps.num_rescored), float(self._gaps.smallest)

    def clear_gaps(self) -> None:
        """Reset the counts of choices."""
        copy_buffers_(self._gaps, empty_gaps(self._num_open.device))

    def _begin_replay(self) -> None:
        """Allow the outputs of the last captured graph to be overwritten."""
        if self._marks_replays:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def empty_gaps(device: torch.device) -> TickGaps:
    """Return the gaps of no choice."""
    return TickGaps(
        torch.zeros((), dtype=torch.int64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
        torch.full((), torch.inf, device=device),
    )
