"""The tick: it tries a window of clauses for all slots, and every slot with a complete step takes that step.

A tick has fixed shapes and no synchronisation with the host, however many clauses match. A slot with more clauses than
fit stays in the middle of its step until later ticks have tried all of them: there is no cap. The tick in which a step
is completed does not change the step.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.protocol import Positions
from kgverify.errors import UserError
from kgverify.garbage_collection import without_garbage_collection
from kgverify.program.limits import Limits
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters, Rescoring, rescore
from kgverify.prover.stages.match import clause_heads, expand, gather_items, origin_kinds
from kgverify.prover.stages.resolve import count_by_slot, first_by_slot
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import (
    GOAL,
    NO_CANDIDATE,
    OPEN,
    PAD,
    PROVED,
    RULE,
    TRUE,
    Derivations,
    Items,
    Layout,
    Pool,
    Rows,
    Segments,
    StepRecord,
    TickGaps,
    Work,
    alter,
)
from kgverify.trace.model.columns import starts_of

_COUNTERS: Final = tuple(name for name in Work._fields if name not in ("origin_kind", "origin"))


class Setting(NamedTuple):
    """The settings fixed when a tick is compiled. rescoring: for close choices, if scores have a fast precision."""

    stages: Stages
    limits: Limits
    layout: Layout
    rescoring: Rescoring | None = None


def tick(
    setting: Setting, tables: Tables, parameters: Parameters, derivations: Derivations, work: Work
) -> tuple[Derivations, Work, StepRecord]:
    """Try a window of clauses, and take the complete steps."""
    stages = setting.stages
    work, kind, rows, is_taken = find_resolvents(setting, tables, derivations, work)
    score = score_rows(setting, parameters, derivations, rows, kind)
    gaps = None
    if setting.rescoring is not None:
        score, is_taken, gaps = rescore(setting.rescoring, parameters, derivations.goal, rows, score, kind, is_taken)
    num_resolvents = torch.where(kind == GOAL, work.num_kept, 1)
    choices = stages.choose(kind, num_resolvents, score)
    after = stages.advance(derivations, work, rows, choices, is_taken)
    outcome = stages.finish(after.depth, derivations.outcome, kind, is_taken, setting.limits.max_depth)
    record = StepRecord(
        is_taken, derivations.pool_index, derivations.goal, derivations.depth, outcome, work, rows, choices, gaps
    )
    return alter(after, outcome=outcome), clear_counts(work, is_taken, *_COUNTERS), record


def find_resolvents(
    setting: Setting, tables: Tables, derivations: Derivations, work: Work
) -> tuple[Work, Tensor, Rows, Tensor]:
    """Try a window of clauses.

    Return the work, the kind of each slot's resolvents, int32 [B], and those of the slots whose steps are complete, bool [B].
    """
    stages = setting.stages
    is_running = derivations.outcome == OPEN
    selected = stages.select(derivations.goal)
    segments = stages.look_up(tables, selected)
    work, is_tried = try_clauses(setting, tables, derivations, work, selected, segments, is_running)

    kind = stages.close(work.num_survivors, work.true_origin_kind, work.num_kept)
    # Where TRUE is the only resolvent, nothing counts as dropped.
    work = clear_counts(work, kind == TRUE, "dropped_atoms", "dropped_resolvents")
    rows, is_taken = form_rows(setting, tables, derivations, work, selected, kind, is_running & is_tried)
    return work, kind, rows, is_taken


def try_clauses(
    setting: Setting,
    tables: Tables,
    derivations: Derivations,
    work: Work,
    selected: Tensor,
    segments: Segments,
    is_running: Tensor,
) -> tuple[Work, Tensor]:
    """Turn one window of clauses into kept resolvents. Also return the slots without clauses left to try, bool [B]."""
    stages, limits, layout = setting.stages, setting.limits, setting.layout
    items, held = gather_items(tables, derivations, work, selected, segments, is_running, layout.match_window)
    matches, num_atoms, is_new = try_items(setting, tables, derivations, items)
    is_resolvent = items.is_live & matches
    is_true = is_resolvent & (num_atoms == 0)
    is_survivor = is_resolvent & is_new & ~is_true
    placement = stages.limit(is_survivor, num_atoms, items, held, work, limits.max_atoms, limits.max_resolvents)

    kinds = origin_kinds(items)
    first_true, finds_true = first_by_slot(is_true, held)
    is_first = finds_true & (work.true_origin_kind == 0)
    row = torch.where(placement.is_kept, placement.row, layout.resolvents)
    cursor = work.cursor + held
    num_clauses = segments.num_rules + segments.num_facts
    work = Work(
        cursor=cursor,
        num_survivors=work.num_survivors + count_by_slot(is_survivor, held),
        num_kept=work.num_kept + placement.num_kept,
        dropped_atoms=work.dropped_atoms + placement.dropped_atoms,
        dropped_resolvents=work.dropped_resolvents + placement.dropped_resolvents,
        true_origin_kind=torch.where(is_first, kinds[first_true], work.true_origin_kind),
        true_origin=torch.where(is_first, items.clause[first_true], work.true_origin).int(),
        # Only zeros are written to the sink, since any of several values might be the last one.
        origin_kind=work.origin_kind.index_put((items.slot, row), torch.where(placement.is_kept, kinds, 0)),
        origin=work.origin.index_put((items.slot, row), torch.where(placement.is_kept, items.clause, 0).int()),
    )
    # Once a proof is found, later clauses are irrelevant.
    return work, (cursor >= num_clauses) | (work.true_origin_kind != 0)


def try_items(
    setting: Setting, tables: Tables, derivations: Derivations, items: Items
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the stages from `match_rules` to `revisit` to each clause.

    Returns whether it matches, bool [C], the number of atoms of its resolvent, int64 [C], and whether the resolvent is
    new, bool [C]. The last two are unspecified if it does not match.
    """
    stages, exclude_query = setting.stages, setting.limits.exclude_query
    head = clause_heads(tables, items, 2 * setting.layout.atoms)
    matches = torch.where(
        items.is_rule,
        stages.match_rules(tables, items, head),
        stages.match_facts(tables, items, head, exclude_query),
    )
    atoms, num_atoms = _resolve(setting, tables, derivations, items, head)
    # A resolvent that the padding cuts off is longer than every visited goal, so its remaining atoms must not be
    # compared.
    is_cut = num_atoms > setting.layout.atoms
    is_new = is_cut | ~stages.revisit(tables, atoms, derivations.visited, items.slot, derivations.depth)
    return matches, num_atoms, is_new


def form_atoms(setting: Setting, tables: Tables, derivations: Derivations, items: Items) -> Tensor:
    """Return the resolvents of matching clauses, int32 [C, A, 3], free rows PAD; all PAD if an item is not live."""
    head = clause_heads(tables, items, 2 * setting.layout.atoms)
    atoms, _ = _resolve(setting, tables, derivations, items, head)
    return torch.where(items.is_live[:, None, None], atoms, PAD)


def _resolve(
    setting: Setting, tables: Tables, derivations: Derivations, items: Items, head: Tensor
) -> tuple[Tensor, Tensor]:
    stages, layout = setting.stages, setting.layout
    raw = stages.resolve(tables, items, head, derivations.goal[items.slot], 2 * layout.atoms)
    pruned, num_atoms = stages.prune(tables, raw, items.query, setting.limits.exclude_query)
    return stages.rename(pruned[:, : layout.atoms]), num_atoms


def clear_counts(work: Work, mask: Tensor, *names: str) -> Work:
    """Set some counts to zero in the slots of a mask, bool [B]."""
    counts = {name: getattr(work, name) for name in names}
    return alter(work, **{name: torch.where(mask, 0, held).to(held.dtype) for name, held in counts.items()})


def form_rows(
    setting: Setting,
    tables: Tables,
    derivations: Derivations,
    work: Work,
    selected: Tensor,
    kind: Tensor,
    is_tried: Tensor,
) -> tuple[Rows, Tensor]:
    """Return the resolvents of the complete slots that fit in the score window, and these slots, bool [B]."""
    layout = setting.layout
    num_rows = torch.where(is_tried & (kind == GOAL), work.num_kept, 0)
    ends = num_rows.cumsum(0)
    is_taken = is_tried & (ends <= layout.score_window)
    slot, row, is_live, _ = expand(torch.where(is_taken, num_rows, 0), layout.score_window)
    row = torch.where(is_live, row, layout.resolvents)
    is_rule = work.origin_kind[slot, row] == RULE
    clause = torch.where(is_live, work.origin[slot, row], 0).long()
    items = Items(slot, is_live, is_rule, clause, selected[slot], derivations.query[slot])
    atoms = form_atoms(setting, tables, derivations, items)
    return Rows(slot, is_live, atoms, ends - num_rows), is_taken


def score_rows(setting: Setting, parameters: Parameters, derivations: Derivations, rows: Rows, kind: Tensor) -> Tensor:
    """Return the scores [B, S], -inf in free rows."""
    layout = setting.layout
    values = setting.stages.score(parameters, derivations.goal, rows.atoms, rows.slot)
    row = torch.where(rows.is_live, torch.arange(layout.score_window, device=values.device) - rows.first[rows.slot], -1)
    shape = (layout.slots, layout.resolvents + 1)
    score = torch.full(shape, -torch.inf, dtype=values.dtype, device=values.device)
    score = score.index_put((rows.slot, row), torch.where(rows.is_live, values, 0.0))[:, : layout.resolvents]
    alone = (kind != GOAL)[:, None] & (torch.arange(layout.resolvents, device=score.device) == 0)
    return torch.where(alone, 0.0, score)


TICKS_PER_REPLAY: Final = 2
"""The number of ticks in a captured graph. At most twice this number run in vain at the end of a pool."""


class TickLoop:
    """A loop that runs the candidates of a pool to their ends.

    restart_:    empties the slots, and starts with the first candidate of the pool
    take_tick_:  runs a tick and recycles
    look:        returns int64 [2]: a number that is 0 once all candidates have ended, and the number given to slots
    is_captured: whether the restart and several ticks are captured in CUDA graphs
    """

    def __init__(
        self,
        restart_: Callable[[], None],
        take_tick_: Callable[[], None],
        look: Callable[[], Tensor],
        pool: Pool,
        *,
        is_captured: bool,
    ) -> None:
        self._restart_, self._take_tick_, self._look, self._pool = restart_, take_tick_, look, pool
        self._is_captured = is_captured
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def run(self) -> Iterator[int]:
        """Take all steps of the candidates in the pool. From time to time, yield the number given to slots."""
        if self._is_captured:
            yield from self._replay()
            return
        self._restart_()
        while True:
            self._take_tick_()
            num_left, num_given = self._look().tolist()
            if num_left == 0:
                return
            yield num_given

    def _replay(self) -> Iterator[int]:
        """Replay the captured ticks.

        Each look at the device reads the state before the last replay, so it never waits for it.
        """
        if self._graphs is None:
            # Set only when both are captured, so that a capture that failed for lack of memory is retried.
            self._graphs = self._capture()
        restart, ticks = self._graphs
        restart.replay()
        seen = torch.zeros((2, 2), dtype=torch.int64, pin_memory=True)
        events = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        turn = 0
        while True:
            ticks.replay()
            seen[turn % 2].copy_(self._look(), non_blocking=True)
            events[turn % 2].record()
            turn += 1
            if turn < 2:
                continue
            events[turn % 2].synchronize()
            num_left, num_given = seen[turn % 2].tolist()
            if num_left == 0:
                torch.cuda.current_stream().synchronize()
                return
            yield num_given

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]:
        """Capture the restart and some ticks. Meanwhile the pool is empty, so that no candidate is taken."""
        size = self._pool.size.clone()
        self._pool.size.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._restart_()
            for _ in range(3):
                self._take_tick_()
        torch.cuda.current_stream().wait_stream(stream)
        restart, ticks = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Freeing the graph or the memory of another engine would end the capture.
        gc.collect()
        with without_garbage_collection():
            with torch.cuda.graph(restart, capture_error_mode="thread_local"):
                self._restart_()
            with torch.cuda.graph(ticks, capture_error_mode="thread_local"):
                for _ in range(TICKS_PER_REPLAY):
                    self._take_tick_()
        self._pool.size.copy_(size)
        return restart, ticks


def copy_buffers_(buffers: Derivations | Work | Pool | TickGaps, values: Derivations | Work | Pool | TickGaps) -> None:
    """Copy values into buffers, in place. This runs eagerly, outside every compiled graph."""
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not value:
            buffer.copy_(value)


_INT, _LONG, _BOOL, _DOUBLE = torch.int32, torch.int64, torch.bool, torch.float64

_FIELDS: Final[dict[type[NamedTuple], tuple[tuple[torch.dtype, str, float], ...]]] = {
    Derivations: (
        (_LONG, "B", NO_CANDIDATE),
        (_INT, "B3", PAD),
        (_INT, "BA3", PAD),
        (_INT, "B", 0),
        (_INT, "B", PROVED),
        (_BOOL, "B", 0),
        (_DOUBLE, "B", 0),
        (_INT, "BDA3", PAD),
    ),
    Work: (*((_LONG, "B", 0),) * 5, *((_INT, "B", 0),) * 2, *((_INT, "BS", 0),) * 2),
    Pool: (
        (_INT, "P3", PAD),
        (_DOUBLE, "P", -float("inf")),
        *((_LONG, "", 0),) * 2,
        (_INT, "P", OPEN),
        (_BOOL, "P", 0),
        (_DOUBLE, "P", 0),
    ),
}
"""The type and the axes of each field, and its value if there is no derivation, no begun step and no candidate."""


def clear_(buffers: Derivations | Work | Pool) -> None:
    """Empty buffers, in place."""
    for buffer, (_, _, blank) in zip(buffers, _FIELDS[type(buffers)], strict=True):
        buffer.fill_(blank)


def restart_(derivations: Derivations, work: Work, pool: Pool) -> None:
    """Empty the slots, and start with the first candidate of the pool, in place."""
    clear_(derivations)
    clear_(work)
    pool.next_index.zero_()
    pool.outcome.fill_(OPEN)


def _list_blank(kind: type[NamedTuple], layout: Layout, device: torch.device, max_depth: int = 0) -> list[Tensor]:
    sizes = {"B": layout.slots, "A": layout.atoms, "D": max_depth, "S": layout.resolvents + 1, "P": layout.pool, "3": 3}
    return [
        torch.full([sizes[axis] for axis in axes], blank, dtype=dtype, device=device)
        for dtype, axes, blank in _FIELDS[kind]
    ]


def empty_derivations(layout: Layout, max_depth: int, device: torch.device) -> Derivations:
    """Return slots that hold no derivation."""
    return Derivations(*_list_blank(Derivations, layout, device, max_depth))


def empty_work(layout: Layout, device: torch.device) -> Work:
    """Return the work of slots without a begun step."""
    return Work(*_list_blank(Work, layout, device))


def empty_pool(layout: Layout, device: torch.device) -> Pool:
    """Return a pool without candidates."""
    return Pool(*_list_blank(Pool, layout, device))


def derivations_at(positions: Positions, layout: Layout, limits: Limits, device: torch.device) -> Derivations:
    """Put each position into a slot. UserError if one does not fit; there are at most as many positions as slots."""
    num = len(positions.depth)
    num_goals, num_atoms = positions.num_goals.astype(np.int64), positions.num_atoms.astype(np.int64)
    if num_atoms.max(initial=0) > layout.atoms or num_goals.max(initial=0) > limits.max_depth:
        raise UserError("a step exceeds its limits", where="compiled", fix="name reference, or larger --limits")
    slot = np.repeat(np.arange(num), num_goals)
    turn = np.arange(len(num_atoms)) - np.repeat(starts_of(num_goals)[:-1], num_goals)
    visited = np.full((layout.slots, limits.max_depth, layout.atoms, 3), PAD, np.int32)
    column = np.arange(int(num_atoms.sum())) - np.repeat(starts_of(num_atoms)[:-1], num_atoms)
    visited[np.repeat(slot, num_atoms), np.repeat(turn, num_atoms), column] = positions.atoms

    empty = empty_derivations(layout, limits.max_depth, device)
    visited_tensor = torch.as_tensor(visited, device=device)
    current = torch.as_tensor(num_goals - 1, device=device)

    def first_slots(held: Tensor, values: NDArray[np.generic]) -> Tensor:
        held = held.clone()
        held[:num] = torch.as_tensor(values, device=device, dtype=held.dtype)
        return held

    is_used = torch.arange(layout.slots, device=device) < num
    turns = torch.nn.functional.pad(current, (0, layout.slots - num))
    slots = torch.arange(layout.slots, device=device)
    return empty._replace(
        pool_index=torch.where(is_used, slots, NO_CANDIDATE),
        query=first_slots(empty.query, positions.candidates.atom),
        goal=torch.where(is_used[:, None, None], visited_tensor[slots, turns], PAD),
        depth=first_slots(empty.depth, positions.depth),
        outcome=torch.where(is_used, OPEN, empty.outcome).int(),
        visited=visited_tensor,
    )
