"""What an engine is: it proves candidates, and it takes one step from given goals.

A third party joins by implementing `Engine`, or by writing a trace file (`docs/trace-format.md`).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import CandidateSet, Columns, expand_rows, starts_of
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.levels import TraceLevel
from kgverify.trace.model.stage_items import StageOutputs as StageOutputs

Progress = Callable[[int], None]
"""Called with the number of candidates finished since the last call."""


def no_progress(num_finished: int) -> None:
    """Report nothing."""


class Positions(NamedTuple):
    """Places in derivations from which one step is to be taken (teacher forcing).

    candidates: the candidate of each position (length N)
    depth:      uint16 [N]     steps taken before
    num_goals:  uint32 [N]     goals visited so far, the current one, which is the last, included
    num_atoms:  uint16 [V]     atoms of each visited goal, V = sum of num_goals
    atoms:      int32  [M, 3]  atoms of the visited goals; canonical
    """

    candidates: CandidateSet
    depth: NDArray[np.uint16]
    num_goals: NDArray[np.uint32]
    num_atoms: NDArray[np.uint16]
    atoms: NDArray[np.int32]


class Engine(Protocol):
    """A prover under test, or the reference.

    Any object with these methods is an engine. `kgverify.engine_of`, `kgverify.StagedEngine` and `kgverify.StepwiseEngine`
    need less: they add the rest.

    Example:
        >>> import kgverify as kv
        >>> @kv.engine_of
        ... def fails(goal, clauses):
        ...     return []
        >>> all(hasattr(fails, name) for name in ("info", "prove", "step"))
        True
    """

    @property
    def info(self) -> EngineInfo:
        """Who takes the steps, and how."""
        ...

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end; the columns list the candidates in the order given."""
        ...

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position; the columns hold one step for each, in the order given."""
        ...


class RecordedPart(Protocol):
    """Candidates that were proved, with their steps on their way."""

    def read(self) -> tuple[Columns, NDArray[np.uint64] | None]:
        """The candidates with their steps, complete, and the digests of the steps if the engine took them."""
        ...


@runtime_checkable
class RecordingEngine(Engine, Protocol):
    """An engine that hands over what it proved part by part."""

    @property
    def proves_ahead(self) -> bool:
        """Whether it proves the next part while one is on its way, so that large parts are worth while."""
        ...

    def record(
        self, candidates: CandidateSet, progress: Progress = no_progress, *, level: TraceLevel = TraceLevel.STEPS
    ) -> Iterator[RecordedPart]:
        """Run every candidate to its end, in the order given; of the steps at least what a trace of this level keeps."""
        ...


class CompilerCaches(msgspec.Struct, frozen=True, kw_only=True):
    """What the compiler's caches had to do with a result.

    state:  `unused` (nothing was compiled), `cold`, `warm`, `partly warm`, `fresh` (demanded), `disabled` or `unknown`
    graph_hits, graph_misses:       of Inductor's graphs
    autograd_hits, autograd_misses: of AOTAutograd's
    kernels_added:                  to Triton's cache; None where it has no folder
    """

    state: str
    graph_hits: int = 0
    graph_misses: int = 0
    autograd_hits: int = 0
    autograd_misses: int = 0
    kernels_added: int | None = None


@runtime_checkable
class ExplainedEngine(Engine, Protocol):
    """An engine that says why it runs as it does, and what of it came out of caches. Optional."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Of device, mode and precision, in words."""
        ...

    @property
    def caches(self) -> CompilerCaches:
        """Since the engine was made."""
        ...


@runtime_checkable
class ProbedEngine(Engine, Protocol):
    """An engine that can show what each stage does. Optional: without it a divergence is read off the traces."""

    def probe(self, position: Positions) -> StageOutputs:
        """Take one step from a single position with every stage watched."""
        ...


def candidate_set(columns: Columns) -> CandidateSet:
    """The candidates of a trace."""
    return CandidateSet(columns.candidates.query, columns.candidates.side, columns.candidates.atom)


def positions_of(columns: Columns) -> Positions:
    """Every step of a trace as a position: its goal and all goals visited before it."""
    num_steps = columns.candidates.num_steps.astype(np.int64)
    first_step = starts_of(num_steps)
    owner = np.repeat(np.arange(len(num_steps)), num_steps)
    ordinal = np.arange(len(owner)) - first_step[owner]
    visited_end = np.arange(len(owner)) + 1
    num_goals = ordinal + 1
    goals = np.repeat(visited_end - np.cumsum(num_goals), num_goals) + np.arange(int(num_goals.sum()))
    atoms = expand_rows(starts_of(columns.steps.num_atoms), goals)
    return Positions(
        candidate_set(columns).take(owner),
        columns.steps.depth,
        num_goals.astype(np.uint32),
        columns.steps.num_atoms[goals],
        columns.steps.goal_atoms[atoms],
    )


def take_position(positions: Positions, i: int) -> Positions:
    """The i-th position alone."""
    return _slice(positions, starts_of(positions.num_goals), starts_of(positions.num_atoms), i, i + 1)


def split_positions(positions: Positions, size: int) -> Iterator[Positions]:
    """The positions in parts of at most `size`, in order."""
    first_goal, first_atom = starts_of(positions.num_goals), starts_of(positions.num_atoms)
    num = len(positions.depth)
    for begin in range(0, num, size):
        yield _slice(positions, first_goal, first_atom, begin, min(begin + size, num))


def _slice(
    positions: Positions, first_goal: NDArray[np.int64], first_atom: NDArray[np.int64], begin: int, end: int
) -> Positions:
    goals = slice(int(first_goal[begin]), int(first_goal[end]))
    return Positions(
        positions.candidates.take(slice(begin, end)),
        positions.depth[begin:end],
        positions.num_goals[begin:end],
        positions.num_atoms[goals],
        positions.atoms[first_atom[goals.start] : first_atom[goals.stop]],
    )
