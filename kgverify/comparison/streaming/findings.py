"""What the blocks of a streamed comparison found, put together, with the class of each divergence."""

from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.by_stages import StageNamer
from kgverify.comparison.classify import Finding, Surroundings, classify
from kgverify.comparison.compare import Comparer
from kgverify.comparison.numbering import Numbering
from kgverify.comparison.result import Comparison, Divergence, Level, NearTie
from kgverify.comparison.sharing import DIGEST
from kgverify.comparison.streaming.blocks import load_block
from kgverify.comparison.view import StepView
from kgverify.program.atoms import Atom, Goal
from kgverify.program.stages import Stage
from kgverify.trace.maintain.convert import Rebuild
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.digests import Words, fold, words_of
from kgverify.trace.read.trace_file import TraceFile

_Located = TypeVar("_Located", Divergence, NearTie)


class _Found(NamedTuple):
    """A divergence of the whole traces; what it was found in is kept while its class rests on other derivations."""

    divergence: Divergence
    finding: Finding
    around: Surroundings | None


class Gathered:
    """Divergences and near-ties of the whole traces: all are counted, the first `kept` of each are kept."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.num = 0
        self.num_ties = 0
        self.num_by_digest = 0
        self.near_ties: list[NearTie] = []
        self.levels: set[Level] = set()
        self._found: list[_Found] = []
        self._unpaired: list[_Found] = []

    def add(self, comparer: Comparer, comparison: Comparison, rows: NDArray[np.int64]) -> None:
        """What one block has; rows: of its candidates in the whole expected trace."""
        self.num += len(comparison.divergences)
        self.num_ties += len(comparison.near_ties)
        self.num_by_digest += sum(each.field == DIGEST for each in comparison.divergences)
        self.levels |= {each.level for each in comparison.divergences}
        room = max(0, self.kept - len(self.near_ties))
        self.near_ties += [_moved(tie, rows) for tie in comparison.near_ties[:room]]
        namer = StageNamer(comparer)
        for found in comparison.divergences[: max(0, self.kept - len(self._found))]:
            each, outputs = namer.name(found)
            around = surroundings_of(found, comparer)._replace(outputs=outputs)
            finding = classify(each, around)
            is_open = _goal_is_wrong(around)
            self._found.append(_Found(_moved(each, rows), finding, around if is_open else None))

    def add_unpaired(self, comparer: Comparer, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Candidates that only one trace has; rows, others: of the candidates in the whole traces."""
        for each in comparer.unpaired_candidates():
            is_extra = each.expected == "no such candidate"
            finding = classify(each, surroundings_of(each, comparer))
            self.num += 1
            self.levels.add(each.level)
            self._unpaired.append(_Found(_moved(each, others if is_extra else rows), finding, None))

    @property
    def wanted_goals(self) -> frozenset[Goal]:
        """Goals of which it matters whether they occur in another derivation."""
        return frozenset(
            each.around.actual.goal
            for each in self._found
            if each.around is not None and each.around.actual is not None
        )

    def finish(
        self, known_goals: frozenset[Goal], error_bound: float
    ) -> tuple[tuple[Divergence, ...], tuple[Finding, ...]]:
        """The divergences in order, with their classes."""
        found = [
            each
            if each.around is None
            else each._replace(finding=classify(each.divergence, each.around._replace(other_goals=known_goals)))
            for each in (*self._unpaired, *self._found)
        ]
        found.sort(key=lambda each: (each.divergence.candidate, each.divergence.step))
        found = found[: self.kept]
        return tuple(each.divergence for each in found), tuple(each.finding for each in found)


def surroundings_of(divergence: Divergence, comparer: Comparer) -> Surroundings:
    """What a divergence is classified by, but for the goals of other derivations."""
    reader = comparer.readers[0]
    candidate, step = divergence.candidate, divergence.step
    expected: StepView | None = None
    actual: StepView | None = None
    if divergence.field == "candidates.num_steps":
        if step < int(comparer.expected.columns.candidates.num_steps[candidate]):
            expected = reader.read(reader.first_step[candidate] + step)
    else:
        expected, actual = comparer.views.get((candidate, step)) or (None, None)
    earlier: tuple[StepView, ...] = ()
    if expected is not None and actual is not None:
        first = reader.first_step[candidate]
        # In lockstep a candidate is one position, whose steps before it are candidates of their own.
        num_before = 0 if comparer.lockstep else step
        earlier = tuple(reader.read(first + i) for i in range(num_before))
    is_drawn = divergence.stage == Stage.CORRUPT
    draw = comparer.redrawn.get((divergence.query, divergence.side), "") if is_drawn else ""
    return Surroundings(expected, actual, None, earlier, frozenset(), 2 * comparer.score_tolerance, draw)


def find_goals(
    expected: TraceFile,
    actual: TraceFile,
    numbering: Numbering,
    rebuild: Rebuild | None,
    wanted: frozenset[Goal],
) -> frozenset[Goal]:
    """Those of the wanted goals that a step of the expected trace has, or that are a query of the actual one.

    rebuild: how the expected trace gets its goals, where it keeps none
    """
    known = np.unique(_hash_views(wanted))
    found: set[Goal] = set()
    for begin, end in expected.split():
        columns = expected.read_candidates(begin, end)
        if rebuild is not None:
            columns = rebuild(load_block(expected, columns, np.arange(begin, end))).columns
        atoms, starts = columns.steps.goal_atoms, starts_of(columns.steps.num_atoms)
        hits = np.flatnonzero(np.isin(_hash_goals(atoms, starts), known))
        found |= {_goal(atoms[starts[i] : starts[i + 1]]) for i in hits.tolist()} & wanted
    convert = numbering.converter(1)
    queries = {goal[0] for goal in wanted if len(goal) == 1}
    for begin in range(0, actual.num_candidates, 1 << 16) if queries else ():
        atoms = actual.candidate_columns(begin, min(begin + (1 << 16), actual.num_candidates)).atom
        if convert is not None:
            atoms = convert(atoms)
        hits = np.flatnonzero(np.isin(_hash_goals(atoms, np.arange(len(atoms) + 1)), known))
        found |= {_goal(atoms[i : i + 1]) for i in hits.tolist()} & wanted
    return frozenset(found)


def _moved(each: _Located, rows: NDArray[np.int64]) -> _Located:
    return msgspec.structs.replace(each, candidate=int(rows[each.candidate]))


def _goal_is_wrong(around: Surroundings) -> bool:
    expected, actual = around.expected, around.actual
    return expected is not None and actual is not None and expected.goal != actual.goal


def _goal(atoms: NDArray[np.int32]) -> Goal:
    return tuple(Atom(*each) for each in atoms.tolist())


def _hash_views(goals: frozenset[Goal]) -> Words:
    counts = np.array([len(goal) for goal in goals], np.int64)
    atoms = np.array([tuple(atom) for goal in goals for atom in goal], np.int32).reshape(-1, 3)
    return _hash_goals(atoms, starts_of(counts))


def _hash_goals(atoms: NDArray[np.int32], starts: NDArray[np.int64]) -> Words:
    """uint64 [n]: a hash of each goal, to find it by; what is found is confirmed."""
    position = np.arange(len(atoms)) - np.repeat(starts[:-1], np.diff(starts))
    words = words_of(position)
    for values in atoms.T:
        words = fold(words, words_of(values))
    running = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words, out=running[1:])
    return running[starts[1:]] - running[starts[:-1]]
