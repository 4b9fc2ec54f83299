"""The buffers of a fused tick and the launches of its kernels, without synchronising with the host in between."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import torch
import triton
from torch import Tensor

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import StepDigests
from kgverify.program.limits import Limits
from kgverify.prover.execution.device import compile_ahead, copy_to_host, count_processors, free_memory
from kgverify.prover.execution.device import launch as launch_kernel
from kgverify.prover.fused.record import Decisions, DigestLog, RowBuffers, StepLog, TickBuffers
from kgverify.prover.fused.step_kernels import advance_kernel, choose_kernel, find_close_kernel
from kgverify.prover.fused.try_kernels import form_kernel, look_up_kernel, try_kernel
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters
from kgverify.prover.stages.resolve import goal_hash
from kgverify.prover.state import PAD, Decided, Derivations, Layout, Pool, Segments, Work, make_tuple_type
from kgverify.prover.tick.stage_ticks import Chunk
from kgverify.prover.tick.tick import TickLoop, restart_
from kgverify.prover.tower.launch import build_tower_parameters, declare_error, draw_goals, launch_tower, sample_size
from kgverify.prover.tower.portable import CONTENDERS, CONTEST, EXACT, score_contests
from kgverify.torch.host_copy import PendingCopy


class Scoring(NamedTuple):
    """A policy in a fast precision and in float64.

    error:  the error of its scores in the fast precision, in nats; 0 if not yet measured
    margin: the margin of the difference between two scores of a goal; scores that are further apart are in the right
            order
    """

    precision: str
    parameters: Parameters
    exact: Parameters
    error: float = 0.0
    margin: float = 0.0


def build_scoring(precision: str, policy: Policy, device: torch.device) -> Scoring | None:
    """Return the scoring of a policy, before its error is measured; None for `shortest`."""
    if policy.name != "two_tower":
        return None
    fast, exact = (build_tower_parameters(policy, each, device, is_rounded=True) for each in (precision, EXACT))
    return Scoring(precision, fast, exact)


def measure_error(scoring: Scoring, policy: Policy, max_atoms: int, device: torch.device) -> Scoring:
    """Measure the error and the margin, with the launches of a tick, on two resolvents of each goal of a sample."""
    num = sample_size(device)
    goals, resolvents = (draw_goals(policy, max_atoms, seed, device, num) for seed in (0, 1))
    numbers = torch.arange(num, dtype=torch.int32, device=device)
    count = torch.full((1,), num, dtype=torch.int32, device=device)
    features = torch.empty((num, scoring.parameters[0].shape[1]), dtype=torch.float32, device=device)
    launch_tower(scoring.parameters, goals, features, scoring.precision, index=numbers, count=count)

    def measure(resolvents: Tensor) -> Tensor:
        scores, exact = torch.empty((2, num), dtype=torch.float32, device=device)
        against = features, numbers
        launch_tower(scoring.parameters, resolvents, scores, scoring.precision, count=count, against=against)
        contests = torch.full((num, CONTEST), -1, dtype=torch.int32, device=device)
        contests[:, :2] = numbers[:, None]
        score_contests(scoring.exact, goals, resolvents, contests, count, exact, EXACT)
        error: Tensor = scores - exact
        return error

    first, second = measure(resolvents), measure(resolvents.roll(1, 0))
    error, of_difference = (
        declare_error(policy, float(seen.abs().max()), device)
        for seen in (torch.stack((first, second)), first - second)
    )
    # At most, two errors of opposite sign add up; and a score in float64 is compared with scores that have one error.
    return scoring._replace(error=error, margin=min(2 * error, max(error, of_difference)))


_WARP: Final = 32


class _Trying(NamedTuple):
    """The settings for trying slots with up to a certain number of clauses.

    most:      the largest number of clauses of such a slot
    block:     clauses that are tried at a time
    rounds:    the largest number of blocks in one tick
    programs:  the largest number of programs per multiprocessor; each processes slots one by one
    warps:     the warps of a program
    registers: the largest number of registers of a thread; with fewer, more programs run at a time
    """

    most: int
    block: int
    rounds: int
    programs: int
    warps: int
    registers: int


_LIGHT: Final = _Trying(128, 32, 4, 32, 1, 64)
_HEAVY: Final = _Trying(4096, 64, 64, 32, 1, 128)
_HEAVIEST: Final = _Trying(1 << 62, 2048, 32, 4, 16, 128)
_MOST_COUNTED: Final = 512
"""The largest number of clauses of a heavy slot that are all tried in order to count everything dropped."""
_PROGRAMS_PER_PROCESSOR: Final = 32
"""The largest number of one-warp programs per multiprocessor; each processes slots one by one."""
_LANES: Final = 128

_LOG_SHARE: Final = 0.25
"""The share of the free memory for a log of steps."""


_Derivations: Final = make_tuple_type("_Derivations", (*Derivations._fields, "visited_hash"))
"""The fields of `Derivations`, and visited_hash int64 [B, D]: the hash of each visited goal."""


class _Counts(NamedTuple):
    """The counts of a tick, int32 []; and of the pool's candidates, int64 [].

    rows:     rows taken
    goals:    open goals
    light:    slots with few clauses
    heavy:    slots with many clauses
    heaviest: slots with more than these
    left:     candidates that have not ended
    given:    candidates given to slots
    """

    rows: Tensor
    goals: Tensor
    light: Tensor
    heavy: Tensor
    heaviest: Tensor
    left: Tensor
    given: Tensor


class _Tally(NamedTuple):
    """The numbers of choices and of repeated choices of each slot (int64 [B]), and the smallest gap (float32 [B])."""

    num_choices: Tensor
    num_rescored: Tensor
    smallest: Tensor


class _Close(NamedTuple):
    """The choices to repeat, in the form for `score_contests`: int32 [R, CONTEST] and their number, int32 []."""

    contests: Tensor
    num_contests: Tensor


class FusedTicks:
    """The state of all slots, and the ticks that advance it.

    scoring: the scoring of the policy; None for `shortest`
    """

    def __init__(
        self,
        tables: Tables,
        limits: Limits,
        layout: Layout,
        scoring: Scoring | None,
        buffers: tuple[Derivations, Work, Pool],
    ) -> None:
        self._derivations, self._work, self._pool = buffers
        self._tables, self._limits, self._layout, self.scoring = tables, limits, layout, scoring
        device = tables.facts.device
        slots, window = layout.slots, layout.score_window
        self._num_processors = count_processors(device)
        self._num_programs = min(slots, _PROGRAMS_PER_PROCESSOR * self._num_processors)
        # Streams for work that can run beside the slots with few clauses: towers of goals, and slots with many clauses.
        self._sides = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else []  # type: ignore[no-untyped-call]

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def columns(*dtypes: torch.dtype) -> Iterator[Tensor]:
            return (empty(slots, dtype=dtype) for dtype in dtypes)

        short, long, single, double = torch.int32, torch.int64, torch.float32, torch.float64
        hidden = 0 if scoring is None else scoring.parameters[0].shape[1]
        self._visited_hash = empty(slots, self._derivations.visited.shape[1], dtype=long)
        self._kept = _Derivations(*self._derivations, self._visited_hash)
        self._segments = Segments(*columns(long, long, long, long, torch.bool))
        self._decisions = Decisions(*columns(short, short, long, long, long, double))
        self._rows = RowBuffers(empty(window), empty(window, layout.atoms, 3), empty(window, dtype=torch.float32))
        self._goals, self._light, self._heavy, self._heaviest = (empty(slots) for _ in range(4))
        # Far enough apart that every address has the same alignment.
        self._counters = empty(6, _WARP)
        rows, goals, light, heavy, heaviest, num_contests = self._counters[:, 0]
        self._progress = empty(2, dtype=long)
        self._counts = _Counts(rows, goals, light, heavy, heaviest, *self._progress)
        self._close = _Close(empty(window if hidden else 0, CONTEST), num_contests)
        self._features = empty(slots, hidden, dtype=single)
        self._tally = _Tally(*columns(long, long, single))
        self._empty_hash = (tables.hash_keys * PAD).sum()
        self.clear_gaps()
        self._num_steps = empty(layout.pool)
        self._noted = TickBuffers(self._derivations, self._work, self._decisions, self._rows, self._counts.rows)
        self._loops: dict[tuple[StepLog | DigestLog, ...], TickLoop] = {}

    def compile(self) -> None:
        """Compile the kernels of a tick without logs, in parallel."""
        compile_ahead(self._take_tick_)

    def resume(self) -> None:
        """Continue from the derivations in the slots."""
        self._visited_hash.copy_(goal_hash(self._tables, self._derivations.visited))
        self._decisions.is_taken.zero_()

    def _restart_(self) -> None:
        """Empty the slots, and give them the first candidates of the pool."""
        restart_(self._derivations, self._work, self._pool)
        self._decisions.is_taken.zero_()
        self._counts.left.copy_(self._pool.size)
        self._counts.given.zero_()
        self._advance_(recycles=True)

    def record_tick(self) -> Chunk | None:
        """Run one tick without recycling. Return the steps that it took, if any."""
        log = self._step_log
        log.clear()
        self._decide_(counts_all=True)
        log.note_()
        self._advance_(recycles=False)
        return log.take()

    def record_all(self, *, has_digests: bool = False) -> Iterator[tuple[int, PendingCopy[Chunk] | None]]:
        """Run the candidates of the pool to their ends, and record their steps, in order for each candidate.

        Yields from time to time the number of candidates given to slots, and pending copies of steps, if any.
        has_digests: also take digests for `send_digests`
        """
        log = self._step_log
        logs: tuple[StepLog | DigestLog, ...] = (log, *([self._digests] if has_digests else []))
        log.clear()
        num_given = 0
        for num_given in self._run_with(*logs):
            yield num_given, None if log.has_room() else log.send()
        yield num_given, log.send()

    def run(self, *, has_digests: bool = False) -> Iterator[int]:
        """Run the candidates of the pool to their ends. From time to time, yield the number given to slots."""
        return self._run_with(*([self._digests] if has_digests else []))

    def send_digests(self, num: int, num_steps: int | None = None) -> PendingCopy[StepDigests]:
        """Start copying the digests of the pool's first candidates to the host, after a run with digests.

        num_steps: the number of steps of these candidates; without it, this waits for earlier copies
        """
        return self._digests.send(self._num_steps[:num], num_steps)

    @cached_property
    def _digests(self) -> DigestLog:
        return DigestLog(self._noted, self._limits, self._layout)

    @cached_property
    def _step_log(self) -> StepLog:
        memory = int(_LOG_SHARE * free_memory(self._counters.device))
        return StepLog(self._noted, self._limits, self._layout, memory)

    def _run_with(self, *logs: StepLog | DigestLog) -> Iterator[int]:
        """Run the pool, and log every tick in the given logs. Each set of logs has its own captured graph."""
        if logs not in self._loops:
            take_tick_ = partial(self._take_tick_, *logs)
            is_captured = self._counters.is_cuda
            self._loops[logs] = TickLoop(
                self._restart_, take_tick_, lambda: self._progress, self._pool, is_captured=is_captured
            )
        return self._loops[logs].run()

    def _take_tick_(self, *logs: StepLog | DigestLog) -> None:
        self._decide_(counts_all=bool(logs))
        for log in logs:
            log.note_()
        self._advance_(recycles=True)

    def read_gaps(self) -> tuple[int, int, float]:
        """Return the number of choices, the number of repeated choices, and the smallest gap, since `clear_gaps`."""
        if self.scoring is None:
            return 0, 0, float("inf")
        tally = self._tally
        num_choices, num_rescored, smallest = copy_to_host(
            tally.num_choices.sum(), tally.num_rescored.sum(), tally.smallest.amin()
        )
        return int(num_choices), int(num_rescored), float(smallest)

    def clear_gaps(self) -> None:
        """Reset the counts of choices."""
        self._tally.num_choices.zero_()
        self._tally.num_rescored.zero_()
        self._tally.smallest.fill_(torch.inf)

    def decide(self, derivations: Derivations, work: Work | None, counts_all: bool) -> Decided:
        """Try a window of clauses for at most as many derivations as slots, in the buffers of the slots.

        work:       as this left it before; None for new steps
        counts_all: as in `_find_resolvents_`
        """
        num = len(derivations.depth)
        if work is None:
            for each in self._work:
                each[:num].zero_()
        visited_hash = goal_hash(self._tables, derivations.visited)
        self._find_resolvents_(_Derivations(*derivations, visited_hash), num, counts_all=counts_all)
        num_rows = min(int(self._counts.rows), self._layout.score_window)
        is_taken, kind, first = (each[:num] for each in self._decisions[:3])
        return Decided(
            is_taken != 0, Work(*(each[:num] for each in self._work)), kind, first, self._rows.atoms[:num_rows]
        )

    def _decide_(self, *, counts_all: bool) -> None:
        """Run everything up to `choose`, for every slot."""
        self._find_resolvents_(self._kept, self._layout.slots, counts_all=counts_all)
        self._score_()
        launch_kernel(
            choose_kernel,
            self._num_programs,
            (self._decisions, self._rows),
            (self._layout.slots,),
            BLOCK=self._score_block,
            num_warps=1,
        )

    def _find_resolvents_(self, kept: Any, slots: int, *, counts_all: bool) -> None:
        """Run everything up to `limit` for some slots, and beside it the towers of their goals.

        kept:       `_Derivations`
        counts_all: whether to count everything that is dropped, for a record
        """
        layout, limits, tables = self._layout, self._limits, self._tables
        window, atoms = layout.score_window, layout.atoms
        state, found = (kept, self._work, tables), (self._segments, self._decisions)
        body, stride = tables.rule_body.shape[1], self._work.origin.shape[1]
        # The numbers of facts and of predicates.
        sizes = len(tables.fact_keys), len(tables.rule_first) - 1
        self._counters.zero_()
        launch_kernel(
            look_up_kernel,
            triton.cdiv(slots, _LANES),
            (*state, *found, self._goals, self._light, self._heavy, self._heaviest, self._counts),
            (slots, atoms, *sizes, _LIGHT.most, min(_HEAVY.most, _MOST_COUNTED) if counts_all else _HEAVY.most),
            BLOCK=_LANES,
        )
        with self._beside(0):
            self._compute_goals_()

        def try_clauses_(trying: _Trying, *listed: Tensor) -> None:
            launch_kernel(
                try_kernel,
                min(slots, trying.programs * self._num_processors),
                (*state, *found, self._rows, *listed, self._counts, self._empty_hash),
                (
                    atoms,
                    body,
                    kept.visited.shape[1],
                    limits.max_atoms,
                    limits.max_resolvents,
                    stride,
                    window,
                    int(counts_all),
                    *sizes,
                    trying.rounds,
                ),
                EXCLUDE=limits.exclude_query,
                BLOCK=trying.block,
                num_warps=trying.warps,
                maxnreg=trying.registers,
            )

        with self._beside(1):
            try_clauses_(_HEAVY, self._heavy, self._counts.heavy)
            try_clauses_(_HEAVIEST, self._heaviest, self._counts.heaviest)
        try_clauses_(_LIGHT, self._light, self._counts.light)
        self._wait_for(1)
        launch_kernel(
            form_kernel,
            triton.cdiv(window, _LANES),
            (*state, self._decisions, self._rows, self._counts),
            (atoms, body, stride, window),
            EXCLUDE=limits.exclude_query,
            IS_SHORTEST=self.scoring is None,
            BLOCK=_LANES,
        )
        self._wait_for(0)

    @contextmanager
    def _beside(self, side: int) -> Iterator[None]:
        """Launch work on a separate stream, after everything launched so far."""
        if not self._sides:
            yield
            return
        self._sides[side].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._sides[side]):
            yield

    def _wait_for(self, side: int) -> None:
        """Let all later launches wait for a separate stream."""
        if self._sides:
            torch.cuda.current_stream().wait_stream(self._sides[side])

    @property
    def _score_block(self) -> int:
        return max(_WARP, int(triton.next_power_of_2(self._limits.max_resolvents)))

    def _score_(self) -> None:
        """Score all rows, after the goals are computed; then score the rows of close choices again."""
        if self.scoring is None:
            return
        launch_tower(
            self.scoring.parameters,
            self._rows.atoms,
            self._rows.score,
            self.scoring.precision,
            count=self._counts.rows,
            against=(self._features, self._rows.slot),
        )
        launch_kernel(
            find_close_kernel,
            self._num_programs,
            (self._decisions, self._rows, self._tally, self._close),
            (self._layout.slots, self.scoring.margin, self._layout.atoms),
            CONTENDERS=CONTENDERS,
            BLOCK=self._score_block,
            num_warps=1,
        )
        score_contests(
            self.scoring.exact,
            self._derivations.goal,
            self._rows.atoms,
            *self._close,
            self._rows.score,
            EXACT,
        )

    def _compute_goals_(self) -> None:
        """Compute the towers of all open goals."""
        if self.scoring is not None:
            launch_tower(
                self.scoring.parameters,
                self._derivations.goal,
                self._features,
                self.scoring.precision,
                index=self._goals,
                count=self._counts.goals,
            )

    def _advance_(self, *, recycles: bool) -> None:
        """Take the decided steps; then, if requested, give the slots of ended derivations the next candidates."""
        words = 3 * self._layout.atoms
        state = self._kept, self._work, self._pool, self._tables
        launch_kernel(
            advance_kernel,
            self._num_programs,
            (*state, self._decisions, self._rows, self._counts, self._num_steps),
            (self._layout.slots, self._layout.atoms, self._visited_hash.shape[1], self._limits.max_depth),
            RECYCLES=recycles,
            BLOCK=max(_WARP, triton.next_power_of_2(words)),
            num_warps=1,
        )
