"""The goals of a compact trace, rebuilt from its clauses and its program, and checked with its digests.

A resolvent follows from its goal and its clause: unify, substitute, prune, rename (docs/semantics.md). No prover is run. The
digest of each step shows whether the rebuilt step is the recorded one, so a prover that resolves wrongly is detected.
"""

from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.program import Program
from kgverify.step.clauses import Atoms, Clauses, number_variables
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.schema import RECORD_AGAIN, TraceLevel, has_goals
from kgverify.trace.model.trace import Trace

_ATOM_COLUMNS = frozenset({"steps.num_atoms", "steps.goal_atoms", "resolvents.num_atoms", "resolvents.atoms"})

_MOST_ATOMS: Final = 1 << 22
_MOST_ATOMS_EACH: Final = 32
"""Limits on the processed atoms of goals and bodies, in total and on average per resolvent, against hostile files."""


class Rebuilt(NamedTuple):
    """A trace with its goals.

    trace:   the trace, now at level `steps`, with the digests of the rebuilt columns
    differs: bool [T]  steps with a digest other than the recorded one: the prover took a step that its clauses do not imply
    """

    trace: Trace
    differs: NDArray[np.bool_]


def rebuild_goals(trace: Trace) -> Trace:
    """Rebuild the goals of a compact trace; return a trace that has goals unchanged.

    UserError for a trace without clauses or program, or if the digest of a rebuilt step is not the recorded one.
    """
    return trace if has_goals(trace.header.level) else Rebuilder(trace)(trace)


class Rebuilder:
    """A function that rebuilds goals with the program of one trace, for any of its candidates.

    trace: the whole trace, or some of its candidates. UserError for a trace without clauses or program
    """

    def __init__(self, trace: Trace) -> None:
        self._clauses = Clauses(_program_of(trace), exclude_query=trace.header.limits.exclude_query is not False)

    def __call__(self, trace: Trace) -> Trace:
        """Return some candidates with their goals. UserError as for `rebuild_goals`."""
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
        clauses = self._clauses
        made_by = trace.columns.resolvents
        for origin_kind, num in ((Origin.RULE, len(clauses.rules)), (Origin.FACT, len(clauses.facts))):
            if ((made_by.origin_kind == origin_kind) & (made_by.origin >= num)).any():
                raise UserError(
                    "a resolvent names a clause that the program lacks", where=trace.source, fix=RECORD_AGAIN
                )
        columns = trace.columns
        kinds, origin_kinds, origins = made_by.kind.tolist(), made_by.origin_kind.tolist(), made_by.origin.tolist()
        choices = columns.steps.choice.tolist()
        bounds = starts_of(columns.steps.num_resolvents).tolist()
        goals: list[Atoms] = []
        resolvents: list[Atoms] = []
        left = max(_MOST_ATOMS, _MOST_ATOMS_EACH * len(kinds))
        step = 0
        for atom, num_steps in zip(
            columns.candidates.atom.tolist(), columns.candidates.num_steps.tolist(), strict=True
        ):
            excluded = clauses.excluded(atom)
            goal = number_variables(iter([tuple(atom)]))
            for _ in range(num_steps):
                begin, end = bounds[step], bounds[step + 1]
                made: list[Atoms] = []
                for i in range(begin, end):
                    is_rule = origin_kinds[i] == Origin.RULE
                    left -= len(goal) + (len(clauses.rules[origins[i]][1]) if is_rule else 0)
                    if left < 0:
                        raise UserError(
                            f"its clauses need more than {_MOST_ATOMS_EACH} atoms for each resolvent,"
                            " so its goals are not rebuilt",
                            where=trace.source,
                            fix="record it again at level steps",
                        )
                    is_made = goal and kinds[i] == GoalKind.GOAL and origin_kinds[i] != Origin.NONE
                    made.append((clauses.apply(goal, origin_kinds[i], origins[i], excluded) or ()) if is_made else ())
                goals.append(goal)
                resolvents += made
                if 0 <= choices[step] < len(made):
                    goal = made[choices[step]]
                step += 1
        return _join(trace, goals, resolvents)


def rebuild_for_comparison(expected: Trace, actual: Trace) -> tuple[Trace, Trace]:
    """Return both traces; if their digests differ, rebuild the goals of compact traces from their clauses.

    If the digests agree, there is nothing to find, and rebuilding takes longer than comparing.
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


def _program_of(trace: Trace) -> Program:
    if "resolvents.origin" not in trace.fields:
        raise UserError(
            f"the trace, of level {trace.header.level!r}, does not hold the origins of resolvents, so its goals cannot be"
            " rebuilt",
            where=trace.source,
            fix="record it again at level steps",
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
    program = Program(trace.symbols, trace.facts, rules, (), (), ())
    if expected and program.sha256 != expected:
        raise UserError(
            f"its program has the hash {program.sha256[:16]}, expected {expected[:16]} as in the header",
            where=trace.source,
            fix=RECORD_AGAIN,
        )
    return program


def _join(trace: Trace, goals: list[Atoms], resolvents: list[Atoms]) -> Rebuilt:
    def flatten(rows: list[Atoms]) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
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
