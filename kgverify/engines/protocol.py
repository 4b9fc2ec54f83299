"""The protocol of engines: they prove candidates, and they take one step from given goals.

A third party joins by implementing `Engine`, or by writing a trace file (`docs/trace-format.md`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.progress import Progress, no_progress
from kgverify.trace.model.columns import CandidateSet, Columns, expand_rows, starts_of
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.levels import TraceLevel
from kgverify.trace.model.stage_items import StageOutputs as StageOutputs


class Positions(NamedTuple):
    """Positions in derivations from which one step is to be taken (teacher forcing).

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
    """A prover under test, or the reference prover.

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
        """The engine's name, mode, device, precision and versions."""
        ...

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end; return columns that list the candidates in the order given."""
        ...

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position; return columns with one step for each, in the order given."""
        ...


class RecordedPart(Protocol):
    """Proved candidates whose steps are being copied to the host."""

    def read(self) -> tuple[Columns, NDArray[np.uint64] | None]:
        """Return the candidates with their steps, complete, and the digests of the steps if the engine took them."""
        ...


@runtime_checkable
class RecordingEngine(Engine, Protocol):
    """An engine that returns proved candidates part by part."""

    @property
    def proves_ahead(self) -> bool:
        """True if it proves the next part while one is being copied, so that large parts pay off."""
        ...

    def record(
        self, candidates: CandidateSet, progress: Progress = no_progress, *, level: TraceLevel = TraceLevel.STEPS
    ) -> Iterator[RecordedPart]:
        """Run every candidate to its end, in the order given, with at least the columns that a trace of this level keeps."""
        ...


class CompilerCaches(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the compiler's caches in a result.

    state:  `unused` (nothing was compiled), `cold`, `warm`, `partly warm`, `fresh` (requested), `disabled` or `unknown`
    graph_hits, graph_misses:       for Inductor's graphs
    autograd_hits, autograd_misses: for AOTAutograd's graphs
    kernels_added:                  to Triton's cache; None if it has no folder
    """

    state: str
    graph_hits: int = 0
    graph_misses: int = 0
    autograd_hits: int = 0
    autograd_misses: int = 0
    kernels_added: int | None = None


@runtime_checkable
class ExplainedEngine(Engine, Protocol):
    """An engine that explains its device, mode and precision, and its use of caches. Optional."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for device, mode and precision, in words."""
        ...

    @property
    def caches(self) -> CompilerCaches:
        """The use of caches since the engine was made."""
        ...


@runtime_checkable
class ProbedEngine(Engine, Protocol):
    """An engine that can show the output of each stage. Optional: without it a divergence is located from the traces."""

    def probe(self, position: Positions) -> StageOutputs:
        """Take one step from a single position and return the output of every stage."""
        ...


@runtime_checkable
class DescribedEngine(Engine, Protocol):
    """An engine that describes how it ran its candidates, in numbers that kgverify cannot see from outside. Optional."""

    def features(self, columns: Columns) -> Mapping[str, Any]:
        """Return arrays by name: a number or a truth value for each candidate, or for each step, in the order of the columns.

        columns: those that `prove` returned last

        The conditions of causes may then be stated in these, such as the slot of a candidate or the lane of a step.
        """
        ...


def candidate_set(columns: Columns) -> CandidateSet:
    """Return the candidates of a trace."""
    return CandidateSet(columns.candidates.query, columns.candidates.side, columns.candidates.atom)


def positions_of(columns: Columns) -> Positions:
    """Convert every step of a trace to a position: its goal and all goals visited before it."""
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


def make_positions(
    candidates: CandidateSet, depth: NDArray[np.integer], visited: Sequence[Sequence[Sequence[Sequence[int]]]]
) -> Positions:
    """Return positions from the goals that each has visited, the current one last."""
    goals = [goal for each in visited for goal in each]
    return Positions(
        candidates,
        depth.astype(np.uint16),
        np.array([len(each) for each in visited], np.uint32),
        np.array([len(goal) for goal in goals], np.uint16),
        np.array([atom for goal in goals for atom in goal], np.int32).reshape(-1, 3),
    )


def take_position(positions: Positions, i: int) -> Positions:
    """Return the i-th position alone."""
    return _slice(positions, starts_of(positions.num_goals), starts_of(positions.num_atoms), i, i + 1)


def take_positions(positions: Positions, rows: NDArray[np.int64]) -> Positions:
    """Return the given positions, in their order; a row may be given several times."""
    goals = expand_rows(starts_of(positions.num_goals), rows)
    atoms = expand_rows(starts_of(positions.num_atoms), goals)
    return Positions(
        positions.candidates.take(rows),
        positions.depth[rows],
        positions.num_goals[rows],
        positions.num_atoms[goals],
        positions.atoms[atoms],
    )


def split_positions(positions: Positions, size: int) -> Iterator[Positions]:
    """Split the positions into parts of at most `size`, in order."""
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
