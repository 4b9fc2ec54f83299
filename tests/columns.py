"""Two traces as plain rows, for the checker of sentences: it reads them with h5py and shares no code with the package.

Goals have their variables numbered by first appearance. A clause is (1, index of a rule) or (2, index of a fact).
"""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

Atom = tuple[int, int, int]
Goal = tuple[Atom, ...]
Clause = tuple[int, int]

ORDINARY, TRUE, FALSE, STOP = range(4)
RULE, FACT = 1, 2
OPEN, PROVED, FAILED, DEPTH_LIMIT = range(4)
HEAD, TAIL = 0, 1


def number_variables(atoms: Sequence[Sequence[int]]) -> Goal:
    """Return a goal with its variables numbered by first appearance, from -1 downwards."""
    numbers: dict[int, int] = {}
    return tuple(
        (p, *(t if t >= 0 else -1 - numbers.setdefault(t, len(numbers)) for t in terms)) for p, *terms in atoms
    )


class Resolvent(NamedTuple):
    """A resolvent as recorded; its clause and score are None if they are unknown."""

    kind: int
    atoms: Goal
    clause: Clause | None
    score: float | None

    @property
    def content(self) -> Hashable:
        """The kind and the atoms, which equal resolvents share."""
        return self.kind, self.atoms


class Step(NamedTuple):
    """A step as recorded, with None for what is unknown."""

    depth: int | None
    goal: Goal
    resolvents: tuple[Resolvent, ...]
    choice: int | None
    outcome: int | None
    dropped: tuple[int, int] | None

    @property
    def chosen(self) -> Resolvent | None:
        """The chosen resolvent, if there is one."""
        is_there = self.choice is not None and 0 <= self.choice < len(self.resolvents)
        return self.resolvents[self.choice] if is_there else None

    @property
    def clauses(self) -> set[Clause]:
        """The clauses that made the listed resolvents."""
        return {r.clause for r in self.resolvents if r.kind in (ORDINARY, TRUE) and r.clause}

    @property
    def has_true(self) -> bool:
        """True if a listed resolvent is TRUE."""
        return any(r.kind == TRUE for r in self.resolvents)


@dataclass
class Recorded:
    """A trace: its header, columns by path, and its candidates and steps as rows.

    numbers: whether the variables of goals are numbered by first appearance; if not, they stay as recorded
    """

    header: dict[str, Any]
    columns: dict[str, Any]
    numbers: bool = False

    @classmethod
    def read(cls, path: Path) -> "Recorded":
        """Read a trace of one file."""
        columns: dict[str, Any] = {}
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item: columns.update({name: item[()]} if isinstance(item, h5py.Dataset) else {})
            )
        return cls(json.loads(columns["header"].tobytes()), columns)

    def names(self, kind: str) -> list[str]:
        """Return the names of predicates or constants, by id."""
        text, offsets = (self.columns[f"symbols/{kind}_{part}"] for part in ("bytes", "offsets"))
        return [text[a:b].tobytes().decode() for a, b in pairwise(offsets.tolist())]

    def has(self, *paths: str) -> bool:
        """Return whether these columns are recorded and known."""
        unknown = self.header["engine"].get("unknown", [])
        return all(path in self.columns and path.replace("/", ".") not in unknown for path in paths)

    def column(self, path: str) -> list[Any] | None:
        """Return a column, or None if it is unknown."""
        return self.columns[path].tolist() if self.has(path) else None

    @cached_property
    def facts(self) -> list[Atom]:
        """The facts, in the prover's order."""
        return list(map(tuple, self.columns["program/facts"].tolist()))

    @cached_property
    def rules(self) -> list[Goal]:
        """The rules, each head first."""
        atoms = list(map(tuple, self.columns["program/rule_atoms"].tolist()))
        ends = [0, *accumulate(self.columns["program/rule_lengths"].tolist())]
        return [tuple(atoms[a:b]) for a, b in pairwise(ends)]

    @cached_property
    def candidates(self) -> list[Hashable]:
        """The identity of each candidate: its query, side and atom."""
        query, side, atom = (self.columns[f"candidates/{name}"].tolist() for name in ("query", "side", "atom"))
        return [(q, s, tuple(a)) for q, s, a in zip(query, side, atom, strict=True)]

    @cached_property
    def steps(self) -> list[list[Step]]:
        """The steps of each candidate."""
        every = self._read_steps()
        return [[next(every) for _ in range(num)] for num in self.columns["candidates/num_steps"].tolist()]

    @cached_property
    def first_step(self) -> list[int]:
        """The number of steps before each candidate, and that of all."""
        return [0, *accumulate(self.columns["candidates/num_steps"].tolist())]

    def _read_steps(self) -> Iterator[Step]:
        resolvents = self._read_resolvents()
        num = len(self.columns["steps/num_atoms"])
        depth, choice, outcome, long, many = (
            self.column(f"steps/{name}") or [None] * num
            for name in ("depth", "choice", "outcome", "dropped_atoms", "dropped_resolvents")
        )
        goals = self._goals("steps/num_atoms", "steps/goal_atoms")
        for i, (goal, count) in enumerate(zip(goals, self.columns["steps/num_resolvents"].tolist(), strict=True)):
            dropped = None if long[i] is None else (long[i], many[i])
            listed = tuple(next(resolvents) for _ in range(count))
            yield Step(depth[i], goal, listed, choice[i], outcome[i], dropped)

    def _read_resolvents(self) -> Iterator[Resolvent]:
        goals = self._goals("resolvents/num_atoms", "resolvents/atoms")
        kinds = self.columns["resolvents/kind"].tolist()
        of_kind, origin = self.column("resolvents/origin_kind"), self.column("resolvents/origin")
        scores = self.column("resolvents/score")
        for i, (kind, atoms) in enumerate(zip(kinds, goals, strict=True)):
            clause = (of_kind[i], origin[i]) if of_kind is not None and origin is not None and of_kind[i] else None
            yield Resolvent(kind, atoms if kind == ORDINARY else (), clause, None if scores is None else scores[i])

    def _goals(self, counts: str, atoms: str) -> Iterator[Goal]:
        rows = list(map(tuple, self.columns[atoms].tolist()))
        for a, b in pairwise([0, *accumulate(self.columns[counts].tolist())]):
            yield number_variables(rows[a:b]) if self.numbers else tuple(rows[a:b])


class Made(NamedTuple):
    """The resolvent of a clause: before and after pruning, with the deleted atoms marked."""

    before: Goal
    is_pruned: tuple[bool, ...]
    kept: Goal


class Program:
    """The clauses of a trace, and what they make of a goal by the default rules of a step."""

    def __init__(self, trace: Recorded) -> None:
        self.facts, self.rules = trace.facts, trace.rules
        self.names = {kind: trace.names(kind) for kind in ("predicates", "constants")}
        self.index = {fact: i for i, fact in enumerate(self.facts)}
        limits = trace.header["limits"] or {}
        self.excludes, self.is_default = limits.get("exclude_query"), not limits.get("dialect")
        self.facts_of: dict[int, list[int]] = defaultdict(list)
        self.rules_of: dict[int, list[int]] = defaultdict(list)
        for of, clauses in ((self.facts_of, self.facts), (self.rules_of, [rule[0] for rule in self.rules])):
            for i, (predicate, *_) in enumerate(clauses):
                of[predicate].append(i)
        self._like: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for i, (p, a, b) in enumerate(self.facts):
            for key in ((p, a, b), (p, a, -1), (p, -1, b), (p, -1, -1)):
                self._like[key].append(i)

    def clause(self, clause: Clause) -> Goal:
        """Return the atoms of a clause, its head first."""
        kind, index = clause
        return self.rules[index] if kind == RULE else (self.facts[index],)

    def segment(self, clause: Clause) -> list[int]:
        """Return the clauses of its kind and predicate, in order."""
        predicate = self.clause(clause)[0][0]
        return (self.rules_of if clause[0] == RULE else self.facts_of)[predicate]

    def matching_facts(self, atom: Atom) -> list[int]:
        """Return the facts that unify with an atom, the query's own included."""
        p, a, b = atom
        found = self._like[p, max(a, -1), max(b, -1)]
        return [i for i in found if self.facts[i][1] == self.facts[i][2]] if a == b < 0 else found

    def resolve(self, goal: Goal, clause: Clause, query: Atom, first: int | None = None) -> Made | None:
        """Return what a clause makes of a goal; None if its head does not unify with the first atom.

        first: the number of the clause's first variable, from 0; if it is not given, the variables differ from the goal's
        """
        apart = 1 + max((-t for _, *terms in goal for t in terms if t < 0), default=0) if first is None else first
        head, *body = [(p, *(t if t >= 0 else t - apart for t in terms)) for p, *terms in self.clause(clause)]
        bound: dict[int, int] = {}

        def follow(term: int) -> int:
            while term in bound:
                term = bound[term]
            return term

        if head[0] != goal[0][0]:
            return None
        for left, right in zip(goal[0][1:], head[1:], strict=True):
            left, right = follow(left), follow(right)
            if left != right:
                if left >= 0 and right >= 0:
                    return None
                # The variables of the clause give way to those of the goal.
                lower, other = (right, left) if right < 0 and (left >= 0 or right < left) else (left, right)
                bound[lower] = other
        before = tuple((p, *map(follow, terms)) for p, *terms in (*body, *goal[1:]))
        pruned = tuple(atom in self.index and not (self.excludes and atom == query) for atom in before)
        kept = number_variables([atom for atom, is_gone in zip(before, pruned, strict=True) if not is_gone])
        return Made(before, pruned, kept)

    def match(self, goal: Goal, query: Atom) -> dict[Clause, Made]:
        """Return what each matching clause makes of a goal, in the order of the clauses: rules first."""
        if not goal:
            return {}
        clauses = [(RULE, i) for i in self.rules_of[goal[0][0]]]
        clauses += [(FACT, i) for i in self.matching_facts(goal[0]) if not (self.excludes and self.facts[i] == query)]
        made = ((clause, self.resolve(goal, clause, query)) for clause in clauses)
        return {clause: found for clause, found in made if found is not None}


class Numbers(NamedTuple):
    """The numbers that an engine gives beside the columns of its run.

    predicates, constants: its numbers of these, in the order of their ids
    declared:              arrays by name, with a value for each candidate or each step of the actual side
    """

    predicates: Sequence[int]
    constants: Sequence[int]
    declared: dict[str, Sequence[Any]]


NO_NUMBERS = Numbers((), (), {})


class Place(NamedTuple):
    """A step of a pair of candidates: the rows of both, and the number of the step."""

    expected: int
    actual: int
    number: int


class Pair:
    """Two traces, candidate by candidate, with the first difference of each."""

    has_lockstep = False

    def __init__(self, expected: Recorded, actual: Recorded, tolerance: float, numbers: Numbers = NO_NUMBERS) -> None:
        self.sides, self.numbers = (expected, actual), numbers
        # The numbers of variables count only if both engines say that they number them by first appearance.
        expected.numbers = actual.numbers = any(side.header["engine"].get("variables") == "own" for side in self.sides)
        self.tolerance = tolerance
        self.program = Program(expected) if expected.has("program/facts", "program/rule_atoms") else None
        rows: dict[Hashable, list[int]] = defaultdict(list)
        for row, identity in enumerate(actual.candidates):
            rows[identity].append(row)
        self.pairs: list[tuple[int, int]] = []
        self.missing: list[int] = []
        for row, identity in enumerate(expected.candidates):
            if rows[identity]:
                self.pairs.append((row, rows[identity].pop(0)))
            else:
                self.missing.append(row)
        self.extra = sorted(row for rest in rows.values() for row in rest)
        self.actual_of = dict(self.pairs)

    def follow(self, stepped: Recorded) -> None:
        """Take the actual steps from a trace in which each is a candidate of its own, from the goals of the expected side."""
        stepped.numbers = self.sides[1].numbers
        taken = iter(step for each in stepped.steps for step in each[:1])
        of_expected = [[next(taken) for _ in steps] for steps in self.sides[0].steps]
        every: list[list[Step]] = [[] for _ in self.sides[1].candidates]
        for e, a in self.pairs:
            every[a] = of_expected[e]
        self.sides = self.sides[0], replace(self.sides[1])
        self.sides[1].steps = every
        self.has_lockstep = True

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of the expected side."""
        return self.sides[0].header["limits"] or {}

    def knows(self, *paths: str) -> bool:
        """Return whether both sides know these columns."""
        return all(side.has(*paths) for side in self.sides)

    @cached_property
    def has_origins(self) -> bool:
        """True if both sides record the clauses that made their resolvents."""
        return self.knows("resolvents/origin_kind", "resolvents/origin")

    @cached_property
    def first_difference(self) -> dict[int, int]:
        """The number of the first different step of each expected candidate; the number of common steps if only ends differ."""
        found = {}
        for e, a in self.pairs:
            left, right = self.sides[0].steps[e], self.sides[1].steps[a]
            number = next((i for i, two in enumerate(zip(left, right, strict=False)) if self.differ(*two)), None)
            if number is None and len(left) != len(right):
                number = min(len(left), len(right))
            if number is not None:
                found[e] = number
        return found

    def differ(self, left: Step, right: Step) -> bool:
        """Return whether two steps differ in what both sides know."""
        if left.goal != right.goal or len(left.resolvents) != len(right.resolvents):
            return True
        if any(self.is_other(a, b) for a, b in zip(left[3:], right[3:], strict=True)) or self.is_other(
            left[0], right[0]
        ):
            return True
        return any(
            one.content != other.content
            or (self.has_origins and one.clause != other.clause)
            or self.has_other_score(one, other)
            for one, other in zip(left.resolvents, right.resolvents, strict=True)
        )

    def has_other_score(self, one: Resolvent, other: Resolvent) -> bool:
        """Return whether two scores differ by more than the tolerance."""
        if one.score is None or other.score is None or not self.knows("resolvents/score"):
            return False
        same = one.score == other.score or (np.isnan(one.score) and np.isnan(other.score))
        return not same and not abs(one.score - other.score) <= self.tolerance

    @staticmethod
    def is_other(left: Any, right: Any) -> bool:
        """Return whether two values differ; an unknown one equals every other."""
        return left is not None and right is not None and left != right

    def step(self, side: int, place: Place) -> Step | None:
        """Return a step of a side; None behind its last one."""
        row = (place.expected, place.actual)[side]
        steps = self.sides[side].steps[row]
        return steps[place.number] if 0 <= place.number < len(steps) else None

    @cached_property
    def agreeing(self) -> list[Place]:
        """The steps that agree before any difference of their candidates; in lockstep, all that agree."""
        if self.has_lockstep:
            return [
                Place(e, a, number)
                for e, a in self.pairs
                for number, two in enumerate(zip(self.sides[0].steps[e], self.sides[1].steps[a], strict=False))
                if not self.differ(*two)
            ]
        return [
            Place(e, a, number)
            for e, a in self.pairs
            for number in range(self.first_difference.get(e, len(self.sides[0].steps[e])))
        ]
