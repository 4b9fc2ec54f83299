"""The protocol of engines: they prove candidates, and they take one step from given goals.

A third party joins by implementing `Engine`, or by writing a trace file (`docs/traces.md`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.outcomes import Side
from kgverify.progress import Progress, no_progress
from kgverify.trace.model.columns import CandidateSet, Columns, Digests, expand_rows, starts_of
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.paths import list_visited
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.stage_items import StageOutputs as StageOutputs


class Positions(NamedTuple):
    """Positions in derivations from which one step is to be taken (teacher forcing).

    candidates: the candidate of each position (length N)
    depth:      uint16 [N]     steps taken before
    num_goals:  uint32 [N]     goals visited so far, including the current one, which is last
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

    Any object with these methods is an engine. `kgverify.engine_of`, `kgverify.StagedEngine` and
    `kgverify.StepwiseEngine` need fewer methods, and add the others.

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
    """Some proved candidates whose steps are being copied to the host."""

    def read(self) -> tuple[Columns, NDArray[np.uint64] | None]:
        """Return the complete candidates with their steps, and the digests of the steps if the engine computed them."""
        ...


@runtime_checkable
class RecordingEngine(Engine, Protocol):
    """An engine that returns proved candidates part by part."""

    @property
    def proves_ahead(self) -> bool:
        """True if the engine proves the next part while one is being copied, so that large parts pay off."""
        ...

    def record(
        self, candidates: CandidateSet, progress: Progress = no_progress, *, level: TraceLevel = TraceLevel.STEPS
    ) -> Iterator[RecordedPart]:
        """Run every candidate to its end, in the order given, with at least the columns that a trace of this level keeps."""
        ...


@runtime_checkable
class ExplainedEngine(Engine, Protocol):
    """An engine that explains its device, mode and precision. Optional."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for device, mode and precision, in words."""
        ...


@runtime_checkable
class ProbedEngine(Engine, Protocol):
    """An engine that can show the output of each stage. Optional: without it a divergence is located from the traces."""

    def probe(self, position: Positions) -> StageOutputs:
        """Take one step from a single position and return the output of every stage."""
        ...


@runtime_checkable
class DescribedEngine(Engine, Protocol):
    """An engine that describes how it ran its candidates, with numbers that kgverify cannot see from outside. Optional."""

    def features(self, columns: Columns) -> Mapping[str, Any]:
        """Return arrays by name: a number or a truth value for each candidate, or for each step, in the order of the columns.

        columns: the columns that `prove` returned last

        Causes can then be stated as conditions on these features, such as the slot of a candidate or the lane of a
        step.
        """
        ...


@runtime_checkable
class NumberedEngine(Engine, Protocol):
    """An engine that gives numbers of its own to predicates and constants. Optional: causes may be conditions on them."""

    @property
    def numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of all predicates and of all constants, in the order of their ids: int64 [P] and int64 [C]."""
        ...


def candidate_set(columns: Columns) -> CandidateSet:
    """Return the candidates of a trace."""
    return CandidateSet(columns.candidates.query, columns.candidates.side, columns.candidates.atom)


def positions_of(columns: Columns) -> Positions:
    """Convert every step of a trace to a position: its goal and all goals visited before it."""
    owner = np.repeat(np.arange(len(columns.candidates.num_steps)), columns.candidates.num_steps)
    num_goals, goals = list_visited(columns)
    atoms = expand_rows(starts_of(columns.steps.num_atoms), goals)
    return Positions(
        candidate_set(columns).take(owner),
        columns.steps.depth,
        num_goals,
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
    """Return only the i-th position."""
    return _slice(positions, starts_of(positions.num_goals), starts_of(positions.num_atoms), i, i + 1)


def take_positions(positions: Positions, rows: NDArray[np.int64]) -> Positions:
    """Return the positions of the given rows, in that order; a row may occur several times."""
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


class Sizes(NamedTuple):
    """The sizes of the batch, which must not change any derivation. An engine without slots may ignore them.

    slots:        derivations in flight
    atoms:        padding of a goal beyond max_atoms
    resolvents:   padding of a step beyond max_resolvents
    match_window: clauses tried at each tick, over all slots
    score_window: resolvents scored at each tick, over all slots; at least max_resolvents
    pool:         candidates passed to the engine at once
    """

    slots: int = 2
    atoms: int = 0
    resolvents: int = 0
    match_window: int = 16
    score_window: int = 16
    pool: int = 32


GRAPH_SIZES: Final = Sizes(slots=64, match_window=256, score_window=128, pool=1024)
"""Sizes of a batch on a graph, for makers of pipelines."""


class Workload(NamedTuple):
    """The work that an engine is made for.

    num_candidates: a function from the type of the device, `cpu` or `cuda`, to the number of candidates passed at once
    total:          the number of all candidates
    records:        whether the steps are recorded
    """

    num_candidates: Callable[[str], int]
    total: int
    records: bool = False


def find_positives(exclusion: str, candidates: CandidateSet, triples: NDArray[np.int32] | None) -> list[bool]:
    """Return which candidates are test triples; all are True unless the exclusion treats corruptions differently.

    triples: int32 [n, 3] the split of the queries. UserError if they are needed and None
    """
    if exclusion != "positives_only":
        return [True] * len(candidates.query)
    is_query: NDArray[np.bool_] = candidates.side == Side.NONE
    if triples is None:
        if is_query.all():
            return [True] * len(is_query)
        raise UserError(
            "the dialect excludes positives only, and which candidates these are is not known here",
            where="dialect.exclusion",
            fix="compare engines on a graph, or choose the exclusion always or never",
        )
    is_known = (candidates.query >= 0) & (candidates.query < len(triples))
    is_query[is_known] |= (triples[candidates.query[is_known]] == candidates.atom[is_known]).all(axis=1)
    return list(map(bool, is_query))


class LeastModel(Protocol):
    """Every ground atom that follows from a program (van Emden and Kowalski 1976)."""

    @property
    def num_atoms(self) -> int:
        """The number of ground atoms, facts included."""
        ...

    def read_keys(self) -> NDArray[np.int64]:
        """Return the keys `(predicate * C + first) * C + second` of the atoms, ascending; C is the number of constants."""
        ...

    def contains(self, atoms: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each atom, int32 [n, 3], follows: bool [n]. An atom with variables follows if an instance does."""
        ...

    def select_entities(self, atoms: NDArray[np.int32], side: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Find the entities that turn an atom, int32 [n, 3], into one that follows when they replace one of its arguments.

        Returns their number for each atom, int64 [n], and the entities, int32, ascending for each atom.
        side: 0 for the first argument, 1 for the second
        """
        ...


STOPPED: Final = 4
"""The ending of a derivation that was stopped below its floor. It is not an `Outcome`, and no trace or report contains it."""


class Results(NamedTuple):
    """The endings of candidates: outcome int32 [N], is_limited bool [N], log_probability float64 [N].

    outcome: an `Outcome` or `STOPPED`; the other columns of a stopped derivation are those of its last step
    """

    outcome: NDArray[np.int32]
    is_limited: NDArray[np.bool_]
    log_probability: NDArray[np.float64]


class StepDigests(NamedTuple):
    """The digests of the steps of candidates, one candidate after the other. num_steps: uint32 [N], for each candidate."""

    num_steps: NDArray[np.uint32]
    digests: Digests


class Evaluation(NamedTuple):
    """The endings of candidates, and the closeness of choices, which may be repeated in a higher precision.

    num_choices:  choices between at least two resolvents
    num_rescored: choices that were repeated
    smallest_gap: the smallest gap between the two highest scores (in modes `fused` and `native`, of different
                  resolvents), in nats; inf without a choice
    digests:      None unless requested

    In float32, the ticks of mode `stages` measure no gaps (0, 0, inf).
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
    """Concatenate the digests of several parts of the candidates."""
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([part.num_steps for part in parts])
    return StepDigests(counts, Digests(*map(np.concatenate, zip(*(part.digests for part in parts), strict=True))))
