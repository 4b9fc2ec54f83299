"""The goals of a compact trace, rebuilt from its clauses and its program, and checked by its digests.

A resolvent follows from its goal and its clause: unify, substitute, prune, rename (docs/semantics.md). This uses no engine. The
digest of each step shows whether the rebuilt step is the recorded one, so a prover that resolves wrongly is detected.
"""

from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.atoms import Atom, is_variable
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.program import Program, Rule
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.levels import TraceLevel, has_goals
from kgverify.trace.model.schema import RECORD_AGAIN
from kgverify.trace.model.trace import Trace

Triple = tuple[int, int, int]
Triples = tuple[Triple, ...]

_ATOM_COLUMNS = frozenset({"steps.num_atoms", "steps.goal_atoms", "resolvents.num_atoms", "resolvents.atoms"})


_MOST_ATOMS: Final = 1 << 22
_MOST_ATOMS_EACH: Final = 32
"""Limits on the atoms of goals and bodies that are processed, in total and for a resolvent on average, against hostile files."""


class Rebuilt(NamedTuple):
    """A trace with its goals.

    trace:   of level `steps`; its digests are those of the rebuilt columns
    differs: bool [T]  steps whose digest is not the recorded one: the prover took another step than its clauses imply
    """

    trace: Trace
    differs: NDArray[np.bool_]


def rebuild_goals(trace: Trace) -> Trace:
    """Return a trace with goals unchanged, and a compact one with its goals rebuilt.

    UserError for a trace without clauses or program, or if a step's digest is not that of the rebuilt step.
    """
    return trace if has_goals(trace.header.level) else Rebuilder(trace)(trace)


class Rebuilder:
    """The rebuilding of goals by the program of one trace, for any of its candidates.

    trace: the whole trace or some of its candidates. UserError for a trace without clauses or program
    """

    def __init__(self, trace: Trace) -> None:
        self._resolution = _Resolution(*_program_of(trace))

    def __call__(self, trace: Trace) -> Trace:
        """Return some candidates with their goals. UserError as in `rebuild_goals`."""
        rebuilt = self.try_rebuilding(trace)
        if not rebuilt.differs.any():
            return rebuilt.trace
        step = int(np.argmax(rebuilt.differs))
        candidate = int(np.searchsorted(starts_of(trace.columns.candidates.num_steps), step, side="right")) - 1
        raise UserError(
            f"step {step} of candidate {candidate} and {int(rebuilt.differs.sum()) - 1} others have digests that do not"
            " follow from their clauses: the prover resolved wrongly there, or the file was altered",
            where=f"{trace.source}:digests/sequence",
            fix="record it again at level steps to see these goals",
        )

    def try_rebuilding(self, trace: Trace) -> Rebuilt:
        """Return some candidates with the goals that their clauses imply. UserError for a clause that the program lacks."""
        resolve = self._resolution
        resolve.check_clauses(trace)
        columns = trace.columns
        excludes = trace.header.limits.exclude_query
        made_by = columns.resolvents
        kinds, origin_kinds, origins = made_by.kind.tolist(), made_by.origin_kind.tolist(), made_by.origin.tolist()
        choices = columns.steps.choice.tolist()
        bounds = starts_of(columns.steps.num_resolvents).tolist()
        goals: list[Triples] = []
        resolvents: list[Triples] = []
        left = max(_MOST_ATOMS, _MOST_ATOMS_EACH * len(kinds))
        step = 0
        for atom, num_steps in zip(
            columns.candidates.atom.tolist(), columns.candidates.num_steps.tolist(), strict=True
        ):
            query: Triple = tuple(atom)
            excluded = query if excludes and query[1] >= 0 and query[2] >= 0 else None
            goal: Triples = canonical((query,))
            for _ in range(num_steps):
                begin, end = bounds[step], bounds[step + 1]
                made: list[Triples] = []
                for i in range(begin, end):
                    left -= resolve.count_atoms(goal, origin_kinds[i], origins[i])
                    if left < 0:
                        raise UserError(
                            f"its clauses need more than {_MOST_ATOMS_EACH} atoms for each resolvent,"
                            " so its goals are not rebuilt",
                            where=trace.source,
                            fix="record it again at level steps",
                        )
                    is_goal = kinds[i] == GoalKind.GOAL
                    made.append(resolve.resolve(goal, origin_kinds[i], origins[i], excluded) if is_goal else ())
                goals.append(goal)
                resolvents += made
                if 0 <= choices[step] < len(made):
                    goal = made[choices[step]]
                step += 1
        return _join(trace, goals, resolvents)


def rebuild_for_comparison(expected: Trace, actual: Trace) -> tuple[Trace, Trace]:
    """Return both traces; if their digests differ, compact ones with the goals that their clauses imply.

    If the digests agree there is nothing to find, and rebuilding takes longer than comparing.
    """
    is_same = np.array_equal(expected.digests.sequence, actual.digests.sequence)
    if is_same or (has_goals(expected.header.level) and has_goals(actual.header.level)):
        return expected, actual
    return _rebuild_if_sound(expected), _rebuild_if_sound(actual)


def _rebuild_if_sound(trace: Trace) -> Trace:
    if trace.header.level != TraceLevel.COMPACT:
        return trace
    try:
        return rebuild_goals(trace)
    except UserError:
        # A trace without goals is compared by its digests, and the comparison notes it.
        return trace


def canonical(atoms: Triples) -> Triples:
    """Return the atoms with their variables numbered by first appearance."""
    numbers: dict[int, int] = {}
    return tuple(
        (p, *(x if x >= 0 else numbers.setdefault(x, -1 - len(numbers)) for x in (a, b)))  # type: ignore[misc]
        for p, a, b in atoms
    )


class _Resolution:
    """The stages `resolve`, `prune` and `rename` for the clauses of one program."""

    def __init__(self, facts: NDArray[np.int32], rules: tuple[Rule, ...]) -> None:
        self._facts: list[Triple] = [tuple(fact) for fact in facts.tolist()]
        self._is_fact = frozenset(self._facts)
        self._rules = rules

    def check_clauses(self, trace: Trace) -> None:
        """Raise UserError for a resolvent of a clause that does not exist."""
        made_by = trace.columns.resolvents
        for kind, num in ((Origin.RULE, len(self._rules)), (Origin.FACT, len(self._facts))):
            if ((made_by.origin_kind == kind) & (made_by.origin >= num)).any():
                raise UserError(
                    "a resolvent names a clause that the program lacks", where=trace.source, fix=RECORD_AGAIN
                )

    def count_atoms(self, goal: Triples, origin_kind: int, origin: int) -> int:
        """Count the atoms processed to resolve a goal with a clause."""
        return len(goal) + (len(self._rules[origin].body) if origin_kind == Origin.RULE else 0)

    def resolve(self, goal: Triples, origin_kind: int, origin: int, excluded: Triple | None) -> Triples:
        """Return the atoms of the resolvent of a goal with a clause; none if the clause does not unify or is missing."""
        if not goal:
            return ()
        head: Triple
        body: tuple[Atom, ...] = ()
        if origin_kind == Origin.FACT:
            head = self._facts[origin]
        elif origin_kind == Origin.RULE:
            head, body = self._rules[origin]
        else:
            return ()
        # The clause's variables come after those of the goal.
        shift = -min(0, *(x for _, a, b in goal for x in (a, b)))
        bound = _unify(goal[0], _shift(head, shift))
        if bound is None:
            return ()
        kept = []
        for predicate, *arguments in (*(_shift(atom, shift) for atom in body), *goal[1:]):
            first, second = (_look_up(bound, x) for x in arguments)
            atom = predicate, first, second
            if atom == excluded or atom not in self._is_fact:
                kept.append(atom)
        return canonical(tuple(kept))


def _shift(atom: Triple, shift: int) -> Triple:
    predicate, first, second = atom
    return predicate, first - shift if first < 0 else first, second - shift if second < 0 else second


def _unify(selected: Triple, head: Triple) -> dict[int, int] | None:
    """Return the binding of each variable, one link at a time; None if the atoms do not unify."""
    if selected[0] != head[0]:
        return None
    bound: dict[int, int] = {}
    for left, right in zip(selected[1:], head[1:], strict=True):
        left, right = _look_up(bound, left), _look_up(bound, right)
        if left == right:
            continue
        if is_variable(left):
            bound[left] = right
        elif is_variable(right):
            bound[right] = left
        else:
            return None
    return bound


def _look_up(bound: dict[int, int], argument: int) -> int:
    while argument in bound:
        argument = bound[argument]
    return argument


def _program_of(trace: Trace) -> tuple[NDArray[np.int32], tuple[Rule, ...]]:
    if "resolvents.origin" not in trace.fields:
        raise UserError(
            f"the trace is of level {trace.header.level!r}, which stores no clauses, so its goals cannot be rebuilt",
            where=trace.source,
            fix="record it again at level compact or steps",
        )
    num_rules = len(trace.header.clauses.rules)
    if trace.facts is None or (trace.rules is None and num_rules):
        raise UserError(
            "the trace does not hold the program's facts and rules, so its goals cannot be rebuilt",
            where=trace.source,
            fix="record it again, and give the writer facts and rules",
        )
    rules = trace.rules or ()
    expected = trace.header.program_sha256
    found = Program(trace.symbols, trace.facts, rules, (), (), ()).sha256
    if expected and found != expected:
        raise UserError(
            f"its program has the hash {found[:16]}, expected {expected[:16]} as in the header",
            where=trace.source,
            fix=RECORD_AGAIN,
        )
    return trace.facts, rules


def _join(trace: Trace, goals: list[Triples], resolvents: list[Triples]) -> Rebuilt:
    def flatten(rows: list[Triples]) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
        lengths = np.array([len(row) for row in rows], np.int64)
        if lengths.size and int(lengths.max()) > np.iinfo(np.uint16).max:
            raise UserError(
                f"a goal has {int(lengths.max())} atoms, more than a trace can store",
                where=trace.source,
                fix="record it again at level digests",
            )
        atoms = np.array([atom for row in rows for atom in row], np.int32).reshape(-1, 3)
        return lengths.astype(np.uint16), atoms

    num_atoms, atoms = flatten(goals)
    steps = trace.columns.steps._replace(num_atoms=num_atoms, goal_atoms=atoms)
    num_atoms, atoms = flatten(resolvents)
    made = trace.columns.resolvents._replace(num_atoms=num_atoms, atoms=atoms)
    columns = trace.columns._replace(steps=steps, resolvents=made)
    digests = compute_digests(columns)
    rebuilt = replace(
        trace,
        header=msgspec.structs.replace(trace.header, level=TraceLevel.STEPS.value, absent=()),
        columns=columns,
        digests=digests,
        fields=trace.fields | _ATOM_COLUMNS | {f"digests.{name}" for name in digests._fields},
    )
    return Rebuilt(rebuilt, digests.sequence != trace.digests.sequence)
