"""The references for engines that tell only outcomes: they find any proof, whichever path a policy would take.

The search is goal-directed and keeps a table for each subgoal (Chen and Warren 1996), so it ends on recursive rules. It
derives only what its queries need of the least model, and finds the smallest proofs first (Knuth 1977).
"""

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import ClassVar, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.engines.adapters.outcome import OutcomeEngine, build_outcomes
from kgverify.engines.protocol import find_positives
from kgverify.engines.table import MODEL, SEARCH
from kgverify.program.atoms import Atom
from kgverify.program.fact_index import ANY, FactIndex
from kgverify.program.outcomes import Outcome
from kgverify.program.program import Program, Rule
from kgverify.progress import Progress, no_progress
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import SEARCHED, EngineInfo

WORK_OF_RUN, WORK_OF_CANDIDATE = 1 << 21, 1 << 14
"""The atoms that a search may join: about 20 seconds for a run, and 0.2 more for each candidate."""

_OTHER: Final = -2
"""The second variable of a subgoal, if it is not `ANY`, the first one."""

Body = tuple[Atom, ...]


class _Rest(NamedTuple):
    """A rule applied as far as its body is solved.

    goal: the subgoal that the head answers
    """

    goal: Atom
    head: Atom
    body: Body


class Tables:
    """The tables of a search, which later queries use again.

    excluded:  the atom that may not be used as a fact
    work_left: the number of atoms that may still be joined; below 0, `find` returns None for what is still open
    """

    def __init__(self, program: Program, facts: FactIndex, excluded: Atom | None = None) -> None:
        self._rules: dict[int, list[Rule]] = {}
        for rule in program.rules:
            self._rules.setdefault(rule.clause_head.predicate, []).append(rule)
        self._facts, self._constants = facts, range(len(program.symbols.constants))
        self._excluded, self.work_left = excluded, WORK_OF_RUN
        self._answers: dict[Atom, dict[Atom, int]] = {}
        # For each subgoal, the rules that wait for its answers, or for one answer; and the smallest size of each rule.
        self._waiting: dict[Atom, dict[Atom | None, list[tuple[_Rest, Atom, int]]]] = {}
        self._sizes: dict[tuple[_Rest, Atom], int] = {}
        self._heap: list[tuple[int, Atom, Atom]] = []

    def find(self, query: Atom) -> float | None:
        """Return the number of clauses in the smallest proof; infinity without a proof, None if the work ends before."""
        answers = self._answers[self._open(query)]
        while not (query in answers if is_ground(query) else answers) and self._heap:
            if not self._find_next():
                return None
        return answers.get(query, math.inf) if is_ground(query) else min(answers.values(), default=math.inf)

    def find_all(self, query: Atom) -> dict[Atom, int] | None:
        """Return the size of the smallest proof of each answer to a query; None if the work ends before."""
        answers = self._answers[self._open(query)]
        while self._heap:
            if not self._find_next():
                return None
        return answers

    def _find_next(self) -> bool:
        """Find the atom with the next smallest proof; False if no work is left."""
        if self.work_left < 0:
            return False
        size, owner, atom = heappop(self._heap)
        if atom not in self._answers[owner]:
            self._answers[owner][atom] = size
            waiting = self._waiting[owner]
            for rest, selected, size_before in [*waiting[None], *waiting.pop(atom, ())]:
                self._solve(rest, selected, atom, size_before + size)
        return True

    def _open(self, atom: Atom) -> Atom:
        """Return the subgoal that an atom asks, with a table. A ground atom asks for every second argument."""
        predicate, first, second = atom
        goal = Atom(predicate, first, _OTHER)
        if first < 0:
            goal = Atom(predicate, ANY, second if second >= 0 else ANY if first == second else _OTHER)
        if goal not in self._answers:
            self._answers[goal], self._waiting[goal] = {}, {None: []}
            for index in self._facts.find_like(predicate, goal.first, max(goal.second, ANY)):
                fact = Atom(*self._facts.facts[index])
                if fact != self._excluded and (goal.second != ANY or fact.first == fact.second):
                    heappush(self._heap, (1, goal, fact))
            for rule in self._rules.get(predicate, ()):
                atoms = unify((rule.clause_head, *rule.body), goal)
                if atoms is not None:
                    self._advance(_Rest(goal, atoms[0], atoms[1:]), 1)
        return goal

    def _advance(self, rest: _Rest, size: int) -> None:
        """Wait for the answers to the body atom with the most constants; without body atoms, the head is an answer."""
        if not rest.body:
            for atom in self._instances(rest.head):
                heappush(self._heap, (size, rest.goal, atom))
            return
        i = max(range(len(rest.body)), key=lambda each: sum(term >= 0 for term in rest.body[each][1:]))
        selected = rest.body[i]
        rest = rest._replace(body=rest.body[:i] + rest.body[i + 1 :])
        if self._sizes.get((rest, selected), math.inf) <= size:
            return
        self._sizes[rest, selected] = size
        goal = self._open(selected)
        answers, waiting = self._answers[goal], self._waiting[goal]
        if not is_ground(selected):
            waiting[None].append((rest, selected, size))
            for atom, size_of_answer in list(answers.items()):
                self._solve(rest, selected, atom, size + size_of_answer)
        elif selected in answers:
            self._solve(rest, selected, selected, size + answers[selected])
        else:
            waiting.setdefault(selected, []).append((rest, selected, size))

    def _solve(self, rest: _Rest, selected: Atom, answer: Atom, size: int) -> None:
        """Apply a rule further with an answer to a selected atom of its body."""
        self.work_left -= 1
        atoms = unify((selected, rest.head, *rest.body), answer)
        if atoms is not None:
            self._advance(_Rest(rest.goal, atoms[1], atoms[2:]), size)

    def _instances(self, atom: Atom) -> Iterator[Atom]:
        """Yield an atom with every constant for its variables."""
        variable = min(atom.first, atom.second)
        if variable >= 0:
            yield atom
            return
        self.work_left -= len(self._constants)
        for constant in self._constants:
            yield from self._instances(bind((atom,), variable, constant)[0])


def is_ground(atom: Atom) -> bool:
    """Return whether an atom has no variables."""
    return atom.first >= 0 and atom.second >= 0


def bind(atoms: Body, variable: int, term: int) -> Body:
    """Return atoms with a term in place of a variable."""
    return tuple([Atom(p, term if a == variable else a, term if b == variable else b) for p, a, b in atoms])


def unify(atoms: Body, goal: Atom) -> Body | None:
    """Bind atoms so that the first one has the constants of a goal, and its repetition; None if it cannot."""
    for place in (1, 2):
        own, other = atoms[0][place], goal[place]
        if other >= 0 and own != other:
            if own >= 0:
                return None
            atoms = bind(atoms, own, other)
    first, second = atoms[0][1:]
    if goal.first == goal.second < 0 and first != second:
        if min(first, second) >= 0:
            return None
        return bind(atoms, min(first, second), max(first, second))
    return atoms


class SearchEngine(OutcomeEngine):
    """The search as an engine: PROVED if a proof takes at most `max_depth` clauses, FAILED without a proof.

    Between both, nothing is decided: DEPTH_LIMIT if every proof takes more clauses, OPEN if the work ended before. The
    excluded query is no fact in its own derivation.

    triples: int32 [n, 3] the split of the queries, for a dialect that excludes only positives
    """

    name: ClassVar[str] = SEARCH
    triples: NDArray[np.int32] | None = None

    def setup(self) -> None:
        """Start without tables."""
        self._index = FactIndex(self.program.facts)
        self._shared = Tables(self.program, self._index)
        self._work_left = WORK_OF_RUN
        self._sizes: dict[tuple[Atom, bool], float | None] = {}

    @property
    def info(self) -> EngineInfo:
        """The name of the search, and every column but the outcomes as unknown."""
        return msgspec.structs.replace(super().info, name=self.name, mode=SEARCHED)

    @property
    def bound(self) -> float:
        """The largest number of clauses of a proof that counts."""
        return self.limits.max_depth

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Search for a proof of every candidate."""
        exclusion = self.limits.dialect.exclusion
        excludes = self.limits.exclude_query and exclusion != "never"
        outcomes = []
        positives = find_positives(exclusion, candidates, self.triples)
        for atom, is_positive in zip(map(Atom._make, candidates.atom.tolist()), positives, strict=True):
            size = self._find(atom, is_excluded=excludes and is_positive and atom in self._index)
            outcomes.append(Outcome.OPEN if size is None else self._judge(size))
            progress(1)
        return build_outcomes(candidates, np.array(outcomes, np.int8))

    def _judge(self, size: float) -> Outcome:
        if size == math.inf:
            return Outcome.FAILED
        return Outcome.PROVED if size <= self.bound else Outcome.DEPTH_LIMIT

    def _find(self, atom: Atom, *, is_excluded: bool) -> float | None:
        """Return the size of the smallest proof. The answer stays the same, though later searches know more."""
        if (atom, is_excluded) not in self._sizes:
            tables = Tables(self.program, self._index, atom) if is_excluded else self._shared
            tables.work_left = self._work_left + WORK_OF_CANDIDATE
            self._sizes[atom, is_excluded] = tables.find(atom)
            self._work_left = tables.work_left
        return self._sizes[atom, is_excluded]


class ModelEngine(SearchEngine):
    """The search without a bound: every atom that follows from the program is PROVED, however long its proof is."""

    name = MODEL
    bound = math.inf
