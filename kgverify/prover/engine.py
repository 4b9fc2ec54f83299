"""The compiled evaluator as an engine: buffers at the edge, pure functions inside."""

import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from kgverify.engines.policy import Policy, check_policy
from kgverify.engines.protocol import (
    Evaluation,
    Positions,
    Results,
    StageOutputs,
    join_digests,
    make_positions,
    no_digests,
    no_results,
    split_positions,
)
from kgverify.errors import InternalError, UserError
from kgverify.program.limits import OURS, Limits
from kgverify.program.outcomes import Stage
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.prover.execution.compilation import FUSED
from kgverify.prover.execution.device import copy_to_host, on_device
from kgverify.prover.execution_choice import Wanted, check_layout, choose_execution, choose_layout, why_not_fused
from kgverify.prover.probe import plain_goal, probe_layout, probe_step
from kgverify.prover.program.tables import build_tables
from kgverify.prover.stages.choose import SCORES, Parameters, build_parameters
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import FAILED, GOAL, PAD, Layout
from kgverify.prover.tick.stage_ticks import Chunk, Recorded, StageTicks, collect_columns
from kgverify.prover.tick.tick import (
    Setting,
    clear_,
    copy_buffers_,
    derivations_at,
    empty_derivations,
    empty_pool,
    empty_work,
)
from kgverify.prover.tower.launch import build_tower_parameters, build_tower_score, with_precision
from kgverify.prover.tower.portable import EXACT
from kgverify.step.search import Path
from kgverify.torch.host_copy import HostCopy, PendingCopy
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.score_tolerance import bound_score_error
from kgverify.trace.model.stage_items import ends_alike, read_step_outputs

if TYPE_CHECKING:
    from kgverify.prover.fused.ticks import FusedTicks
    from kgverify.prover.search import Decide, Screen, Searcher

Ticks: TypeAlias = "StageTicks | FusedTicks"
"""The ticks that advance all slots in the engine's buffers."""


class CompiledEngine:
    """An engine that proves candidates in batches on a CPU or a CUDA device.

    mode:   `auto`; `fused`; `eager`, or a mode of `torch.compile`: `default`, `reduce-overhead`, `max-autotune`
    device: `auto`, `cpu`, `cuda`
    layout: slots, paddings and windows, which change no derivation; chosen if not given
    stages: the functions of a step; faults replace some of them
    precision: the precision of the policy's products: `float32`, or on CUDA `bf16x3`, `fp16` or `bf16` by a kernel
    faults: names of the faults among the stages, for the record

    reasons:      the reasons for this device, mode and precision
    proves_ahead: whether `record` proves a pool while the steps of the previous one are copied to the host
    takes_floors: whether `evaluate` stops derivations below a floor

    UserError if the policy or the layout does not fit, or the device or the mode is not available.
    """

    def __init__(
        self,
        program: Program,
        limits: Limits,
        policy: Policy,
        *,
        layout: Layout | None = None,
        stages: Stages | None = None,
        faults: tuple[str, ...] = (),
        **wanted: Unpack[Wanted],
    ) -> None:
        check_policy(policy, program, limits)
        search = limits.dialect.searching
        self._searches = search.kind != "greedy"
        if limits.dialect.of_step != OURS or search.kind == "sample":
            raise UserError(
                f"the compiled evaluator supports the default dialect alone, found {limits.dialect}",
                where="dialect",
                fix="use --mode plain, search by beam(k) or all(limit), or leave the dialect out",
            )
        self.limits = limits
        self.layout = choose_layout(limits) if layout is None else layout
        if self._searches:
            # The paths of a candidate take a step together.
            self.layout = self.layout._replace(slots=max(self.layout.slots, search.size))
        check_layout(self.layout, limits)
        if stages is None:
            stages = Stages(SCORES[policy.name])
        self._device, self._mode, self._precision, self.reasons = choose_execution(
            limits, policy, stages, partial(why_not_fused, program, limits, policy, self.layout, stages), **wanted
        )
        self.proves_ahead = self.takes_floors = self._mode == FUSED and not self._searches
        self._num_rules = len(program.rules)
        # Rounded sizes let programs of about the same size share compiled code.
        is_rounded = self._mode != "eager"
        self._tables = build_tables(program, self.layout.atoms, self._device, is_rounded=is_rounded)
        self._policy = policy
        self._faults = faults
        # These addresses never change, so that a captured graph reads them in place.
        self._derivations = empty_derivations(self.layout, limits.max_depth, self._device)
        self._work = empty_work(self.layout, self._device)
        self._pool = empty_pool(self.layout, self._device)
        with on_device(self._device, has_products=True):
            self._parameters: Parameters = ()
            rescoring, self._score_error = None, 0.0
            if self._searches:
                self._parameters = build_parameters(policy, self._device, torch.float64, is_rounded=is_rounded)
                self._score_error = bound_score_error(policy.info, EXACT)
            elif self._mode != FUSED:  # Fused ticks hold the policy themselves.
                stages, self._parameters, rescoring, self._score_error = with_precision(
                    self._precision, policy, stages, limits, self.layout, self._device, is_rounded=is_rounded
                )
            self._setting = Setting(stages, limits, self.layout, rescoring)
            self._ticks = self._build_ticks(policy)

    def _build_ticks(self, policy: Policy) -> Ticks:
        buffers = self._derivations, self._work, self._pool
        if self._mode != FUSED or self._searches:
            # In a search, single steps are taken eagerly, as a probe takes them.
            mode = "eager" if self._searches else self._mode
            return StageTicks(self._setting, self._tables, self._parameters, buffers, mode)
        from kgverify.prover.fused.ticks import FusedTicks, build_scoring, measure_error

        scoring = build_scoring(self._precision, policy, self._device)
        ticks = FusedTicks(self._tables, self.limits, self.layout, scoring, buffers)
        if self._device.type == "cuda":
            ticks.compile()
        if scoring is not None:
            ticks.scoring = measure_error(scoring, policy, self.limits.max_atoms, self._device)
            self._score_error = ticks.scoring.error
        return ticks

    @cached_property
    def _searcher(self) -> "Searcher":
        from kgverify.prover.search import GoalScores, Searcher

        decide: Decide = self._ticks.decide
        parameters, score, screen = self._parameters, self._setting.stages.score, None
        if self._mode == FUSED:
            from kgverify.prover.fused.ticks import FusedTicks

            buffers = self._derivations, self._work, self._pool
            ticks = FusedTicks(self._tables, self.limits, self.layout, None, buffers)
            if self._device.type == "cuda":
                ticks.compile()
            decide = ticks.decide
            if self._policy.name == "two_tower":
                parameters = build_tower_parameters(self._policy, EXACT, self._device, is_rounded=True)
                score = build_tower_score(EXACT)
                if self._device.type == "cuda":
                    screen = self._build_screen()
        return Searcher(self.limits, self.layout, decide, GoalScores(self._tables, parameters, score), screen)

    def _build_screen(self) -> "Screen | None":
        from kgverify.prover.fused.ticks import build_scoring, measure_error
        from kgverify.prover.search import GoalScores, Screen

        try:
            scoring = build_scoring("fp16", self._policy, self._device)
        except UserError:
            # Its weights are too large.
            return None
        assert scoring is not None
        scoring = measure_error(scoring, self._policy, self.limits.max_atoms, self._device)
        scores = GoalScores(self._tables, scoring.parameters, build_tower_score("fp16"))
        return Screen(scores, scoring.margin)

    @cached_property
    def _probe_parameters(self) -> Parameters:
        """The parameters of the probed stages; with fused ticks, in float32."""
        if self._mode != FUSED or self._searches:
            return self._parameters
        return build_parameters(self._policy, self._device, torch.float32)

    @property
    def stages(self) -> Stages | None:
        """The functions of a step; None if a fused kernel does their work."""
        return self._setting.stages if self._mode != FUSED else None

    @property
    def info(self) -> EngineInfo:
        """The mode, device, precision, layout and library versions."""
        versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
        if self._device.type == "cuda":
            versions["gpu"] = torch.cuda.get_device_name(self._device)
        return EngineInfo(
            name="compiled",
            mode=self._mode,
            device=self._device.type,
            precision=self._precision,
            score_error=self._score_error,
            layout=dict(self.layout._asdict()),
            versions=versions,
            faults=self._faults,
        )

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end."""
        with self._on_own_device():
            return self._prove(candidates, progress)

    def record(
        self,
        candidates: CandidateSet,
        progress: Progress = no_progress,
        *,
        level: TraceLevel = TraceLevel.STEPS,
        has_digests: bool = True,
    ) -> Iterator[Recorded]:
        """Run every candidate to its end, pool by pool.

        The steps of one pool are copied while the next pool is proved.

        level:       the required columns. Mode `fused` records them and fills the others with zeros; the other modes
                     record everything, but no digests
        has_digests: also take the digests of the steps, on the device
        """
        for part in self._split(candidates):
            with self._on_own_device():
                if self._searches:
                    chunks: list[Chunk] = []
                    results = self._search(part, progress, chunks)
                    recorded = Recorded(part, [PendingCopy(chunk) for chunk in chunks], PendingCopy(results))
                elif not self.proves_ahead:
                    recorded = self._record_pool(part, progress)
                elif level is TraceLevel.DIGESTS:
                    self._run_pool(part, progress, self._run_ticks(has_digests=True))
                    num = len(part.query)
                    recorded = Recorded(part, None, self._copy_results(num), self._ticks.send_digests(num))
                else:
                    recorded = self._record_pool(part, progress, has_digests=has_digests)
            yield recorded

    def _search(self, candidates: CandidateSet, progress: Progress, chunks: list[Chunk] | None = None) -> Results:
        """Run candidates to their ends, and add their steps to the chunks, if there are any."""
        from kgverify.prover.search import read_level

        queries = _as_tensor(candidates.atom, np.int32).to(self._device)
        start = self._searcher.begin(queries)
        for beams, level, num_ended in self._searcher.run(start, len(queries), counts_all=chunks is not None):
            if chunks is not None:
                chunks.append(read_level(beams, level))
            progress(num_ended)
        outcome, is_limited, log_probability = copy_to_host(*self._searcher.aggregate())
        return Results(outcome.astype(np.int32), is_limited, log_probability)

    def _prove(self, candidates: CandidateSet, progress: Progress) -> Columns:
        parts: list[Columns] = []
        waiting: Recorded | None = None
        for recorded in chain(self.record(candidates, progress, has_digests=False), [None]):
            # The previous pool has been copied while this one was proved.
            parts += [] if waiting is None else [waiting.read()[0]]
            waiting = recorded
        return concatenate(parts or [self._empty_columns(candidates)])

    def _split(self, candidates: CandidateSet) -> Iterator[CandidateSet]:
        """Split candidates into pools."""
        size = self.layout.pool
        return (candidates.take(slice(i, i + size)) for i in range(0, len(candidates.query), size))

    def evaluate(
        self,
        candidates: CandidateSet,
        progress: Progress = no_progress,
        *,
        has_digests: bool = False,
        floor: NDArray[np.float64] | None = None,
    ) -> Evaluation:
        """Run every candidate to its end without recording steps.

        This is faster than `prove`, with the same endings.

        has_digests: also take the digests of the steps; UserError unless the mode is `fused`
        floor:       float64 [N]  a derivation that is open after a step is STOPPED if its log-probability is lower;
                     only in mode `fused`
        """
        parts, digests = [], []
        if self._searches and has_digests:
            raise UserError("searches have no digests", where="search", fix="record the steps, or search greedily")
        # Forget the gaps of earlier calls.
        self._ticks.clear_gaps()
        with self._on_own_device():
            for i, part in enumerate(self._split(candidates)):
                if self._searches:
                    parts.append(self._search(part, progress))
                    continue
                own = None if floor is None else floor[i * self.layout.pool :][: len(part.query)]
                self._run_pool(part, progress, self._run_ticks(has_digests=has_digests), own)
                if has_digests:
                    digests.append(self._ticks.send_digests(len(part.query)).wait())
                parts.append(self._copy_results(len(part.query)).wait())
        if not parts:
            return Evaluation(no_results(), digests=no_digests() if has_digests else None)
        results = parts[0] if len(parts) == 1 else Results(*map(np.concatenate, zip(*parts, strict=True)))
        return Evaluation(results, *self._ticks.read_gaps(), join_digests(digests) if has_digests else None)

    def take_beams(self, candidates: CandidateSet, beams: Sequence[Sequence[Path]]) -> Columns:
        """Take a level of each beam; return columns with a candidate for each, whose steps are its paths."""
        from kgverify.prover.search import Beams, read_level

        chunks: list[Chunk] = []
        depths = np.array([len(beam[0].visited) for beam in beams], np.int64)
        for depth in np.unique(depths).tolist():
            rows = np.flatnonzero(depths == depth).tolist()
            paths = [path for i in rows for path in beams[i]]
            owner = np.repeat(rows, [len(beams[i]) for i in rows])
            visited = [path.visited for path in paths]
            positions = make_positions(candidates.take(owner), np.full(len(paths), depth - 1), visited)
            with self._on_own_device():
                layout = self.layout._replace(slots=len(paths))
                at = derivations_at(positions, layout, self.limits, self._device)
                place, parent = torch.tensor(
                    [(path.place, path.parent) for path in paths], dtype=torch.int32, device=self._device
                ).unbind(1)
                sums = torch.tensor([path.log_probability for path in paths], dtype=torch.float64, device=self._device)
                start = Beams(
                    torch.as_tensor(owner, device=self._device), place, parent, sums, at.query, at.visited[:, :depth]
                )
                levels = self._searcher.run(start, len(beams), is_last=True)
                chunks += [read_level(own, level) for own, level, _ in levels]
        num = len(beams)
        return collect_columns(
            candidates, chunks, Results(np.zeros(num, np.int32), np.zeros(num, np.bool_), np.zeros(num))
        )

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        with self._on_own_device():
            parts = [self._step_slots(part) for part in split_positions(positions, self.layout.slots)]
        return concatenate(parts or [self._empty_columns(positions.candidates)])

    def probe(self, position: Positions) -> StageOutputs:
        """Take one step eagerly with the engine's own stages, paddings and windows, and record the output of each stage.

        Compiled code and fused kernels do several stages at once. In that case the engine's own step is also repeated.
        If the eager outputs do not lead to that step, only the outputs that the step itself shows are returned.
        """
        layout = probe_layout(self.layout, self._tables, self._num_rules)
        derivations = derivations_at(position, layout, self.limits, self._device)
        with self._on_own_device():
            setting = self._setting._replace(layout=layout)
            outputs = probe_step(setting, self._tables, self._probe_parameters, derivations)
        if self._mode == "eager":
            return outputs
        own = self._step_outputs(position)
        # The outputs that the step itself shows count in any case, for example the goal that it leaves.
        return outputs | own if ends_alike(outputs, own, 2 * self._score_error) else own

    def _step_outputs(self, position: Positions) -> StageOutputs:
        """Take one step by the engine's own ticks. Return the outputs that the step and the state after it show."""
        own = read_step_outputs(self.step(position))
        goal, depth = plain_goal(self._derivations.goal[0].tolist()), int(self._derivations.depth[0])
        limited, choice = own[Stage.LIMIT][0], own[Stage.CHOOSE]
        kind = limited[choice][0] if 0 <= choice < len(limited) else GOAL
        return own | {Stage.ADVANCE: (kind, goal, depth)}

    @contextmanager
    def _on_own_device(self) -> Iterator[None]:
        """Work on the engine's device. Eager ticks run without autograd's bookkeeping, which would take a sixth of their time."""
        inference = torch.inference_mode() if self._mode == "eager" else nullcontext()
        with on_device(self._device, self._policy.name != "shortest"), inference:
            yield

    def _empty_columns(self, candidates: CandidateSet) -> Columns:
        return collect_columns(candidates, [], no_results())

    def _run_pool(
        self,
        candidates: CandidateSet,
        progress: Progress,
        ran: Iterable[tuple[int, PendingCopy[Chunk] | None]],
        floor: NDArray[np.float64] | None = None,
    ) -> list[PendingCopy[Chunk]]:
        """Put candidates into the pool, and run ticks until all have ended.

        Return the copies of steps that the ticks yield.
        """
        self._fill_pool(candidates, floor)
        chunks = []
        done = 0
        for num_given, chunk in chain(ran, [(len(candidates.query), None)]):
            if chunk is not None:
                chunks.append(chunk)
            progress(num_given - done)
            done = num_given
        return chunks

    def _run_ticks(self, *, has_digests: bool) -> Iterator[tuple[int, None]]:
        return ((num_given, None) for num_given in self._ticks.run(has_digests=has_digests))

    def _record_pool(self, candidates: CandidateSet, progress: Progress, *, has_digests: bool = False) -> Recorded:
        num = len(candidates.query)
        recording = self._ticks.record_all(has_digests=has_digests)
        chunks = self._run_pool(candidates, progress, recording)
        num_steps = sum(len(chunk.value.pool_index) for chunk in chunks)
        digests = self._ticks.send_digests(num, num_steps) if has_digests else None
        return Recorded(candidates, chunks, self._copy_results(num), digests)

    def _fill_pool(self, candidates: CandidateSet, floor: NDArray[np.float64] | None = None) -> None:
        num = len(candidates.query)
        self._pool.query.fill_(PAD)
        self._pool.query[:num] = _as_tensor(candidates.atom, np.int32)
        self._pool.floor.fill_(-torch.inf)
        if floor is not None:
            self._pool.floor[:num] = _as_tensor(floor, np.float64)
        self._pool.size.fill_(num)

    def _copy_results(self, num: int) -> PendingCopy[Results]:
        """Start copying the results of the first candidates of the pool to the host."""
        pool, copies = self._pool, HostCopy()
        # Clones: the next pool overwrites the buffers.
        results = Results(
            copies.fetch(pool.outcome[:num].clone(), np.int32),
            copies.fetch(pool.is_limited[:num].clone(), np.bool_),
            copies.fetch(pool.log_probability[:num].clone(), np.float64),
        )
        copies.begin()
        return PendingCopy(results, copies)

    def _step_slots(self, positions: Positions) -> Columns:
        """Take one step from each position, each in a separate slot."""
        num = len(positions.depth)
        copy_buffers_(self._derivations, derivations_at(positions, self.layout, self.limits, self._device))
        clear_(self._work)
        self._ticks.resume()
        is_limited, log_probability = np.zeros(num, np.bool_), np.zeros(num, np.float64)
        outcome = np.zeros(num, np.int32)
        chunks: list[Chunk] = []
        num_taken, tried = 0, -1
        while num_taken < num:
            if (chunk := self._ticks.record_tick()) is None:
                # In a tick without a step, only the cursors can change.
                before, tried = tried, int(self._work.cursor.sum())
                if tried == before:
                    raise InternalError("the evaluator's ticks do not complete a step")
            else:
                tried = -1
                chunks.append(chunk)
                num_taken += len(chunk.pool_index)
                stop = torch.as_tensor(chunk.pool_index, device=self._device)
                outcome[chunk.pool_index] = chunk.steps.outcome
                is_limited[chunk.pool_index] = self._derivations.is_limited[stop].cpu().numpy()
                log_probability[chunk.pool_index] = self._derivations.log_probability[stop].cpu().numpy()
                # The slot must not take a second step, whatever the outcome of the first.
                self._derivations.outcome[stop] = FAILED
        return collect_columns(positions.candidates, chunks, Results(outcome, is_limited, log_probability))


def _as_tensor(array: NDArray[Any], dtype: "type[np.generic]") -> torch.Tensor:
    """Return an array as a tensor, copied if it is read-only or not in order, since torch rejects both."""
    # NumPy considers a single row that runs backwards to be in order.
    is_plain = array.dtype == dtype and array.flags.c_contiguous and array.flags.writeable and min(array.strides) >= 0
    return torch.from_numpy(array if is_plain else np.array(array, dtype, order="C"))
