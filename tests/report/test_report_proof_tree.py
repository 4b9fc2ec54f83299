"""A derivation as a proof tree: the atoms of a clause below the atom that it resolved, where the steps determine this."""

from dataclasses import replace

import msgspec
import numpy as np

from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.step_view import Names, ResolventView, StepView
from kgverify.program.atoms import Atom, encode_variable
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.report.proof_tree import build_tree, read_bodies
from kgverify.report.step_document import DerivationReader
from kgverify.report.stepper import Stepper
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.trace import Trace
from kgverify.verification.verify import Verification


def shown(tree):
    return [(line.depth, line.atom, line.clause.split(" [")[0], line.step, line.note) for line in tree]


def test_the_atoms_of_a_clause_are_below_the_atom_that_it_resolved(faulty: Verification):
    stepper = Stepper(faulty.report, faulty.expected, faulty.actual)
    rule = "locatedInCR(X, Z) <- neighborOf(X, Y), locatedInCR(Y, Z)"
    expected, actual = stepper.reader.trees(stepper.divergence)
    assert shown(expected) == [
        (0, "locatedInCR(armenia, asia)", rule, 0, ""),
        (1, "neighborOf(armenia, X0)", "fact neighborOf(armenia, iran)", 1, ""),
        (1, "locatedInCR(iran, asia)", rule, 2, ""),
        (2, "neighborOf(iran, X0)", "fact neighborOf(iran, pakistan)", 3, ""),
        (2, "locatedInCR(pakistan, asia)", "", -1, "a fact"),
    ]
    assert shown(actual)[1:] == [
        (1, "neighborOf(armenia, X0)", "", 1, "no clause"),
        (1, "locatedInCR(X0, asia)", "", -1, "open"),
    ]


def test_in_lockstep_the_expected_side_alone_has_a_tree(in_lockstep: Verification):
    for stepped in (in_lockstep.stepped, take_sound_steps(in_lockstep)):
        reader = DerivationReader(in_lockstep.expected, in_lockstep.actual, lockstep=True, stepped=stepped)
        expected, actual = reader.trees(in_lockstep.report.divergences[0])
        assert expected
        assert actual == ()


def take_sound_steps(found: Verification, num: int | None = None) -> Trace:
    """The first steps of lockstep with an engine that makes no mistakes."""
    columns = lockstep_columns(found.expected.columns)
    columns = select_candidates(columns, np.arange(len(columns.candidates.query) if num is None else num))
    return replace(found.expected, columns=columns, digests=compute_digests(columns), rankings=None)


def test_a_step_that_lockstep_lacks_is_said_to_be_missing(in_lockstep: Verification):
    first = int(in_lockstep.expected.columns.candidates.num_steps[0])
    stepped = take_sound_steps(in_lockstep, first - 1)
    reader = DerivationReader(in_lockstep.expected, in_lockstep.actual, (), lockstep=True, stepped=stepped)
    divergence = msgspec.structs.replace(in_lockstep.report.divergences[0], candidate=0, field="steps.choice")
    found = reader.read(msgspec.structs.replace(divergence, step=first - 1))
    assert found.note == "The actual derivation has no such step."
    assert [reader.sides(0, step).actual is None for step in range(first)] == [False] * (first - 1) + [True]


def step_of(goal: tuple[Atom, ...], rule: int, resolvent: tuple[Atom, ...]) -> StepView:
    kind = GoalKind.GOAL if resolvent else GoalKind.TRUE
    return StepView(0, goal, (ResolventView(kind, resolvent, Origin.RULE, rule, 0.0),), 0, 0, 0, Outcome.OPEN)


def test_what_the_steps_do_not_determine_has_no_tree(faulty: Verification):
    names, bodies = Names(faulty.expected), read_bodies(faulty.expected)
    rule = next(i for i, body in enumerate(bodies) if len(body) == 2)
    x, y = (encode_variable(i) for i in range(2))
    first, second = (faulty.expected.symbols.predicates.index(name) for name in bodies[rule])
    query, left, right = Atom(second, 0, 1), Atom(first, 0, x), Atom(second, x, 1)
    lines = build_tree([step_of((query,), rule, (left, right))], names, bodies)
    # The atoms that no step selected are those of the last resolvent.
    assert [(line.depth, line.atom) for line in lines[1:]] == [(1, names.atom(left)), (1, names.atom(right))]
    assert build_tree([], names, bodies) == ()
    # Without rules, after a rule with one atom, and after a step whose goal is not the resolvent before it.
    assert build_tree([step_of((query,), rule, (left, right))], names, []) == ()
    assert build_tree([step_of((query,), 0, (left,))], names, [bodies[rule][:1]]) == ()
    assert build_tree([step_of((query,), rule, (left, right)), step_of((left,), rule, ())], names, bodies) == ()
    # Of two equal atoms, pruning may have left either.
    twice = [(*bodies[rule], bodies[rule][1])]
    assert build_tree([step_of((query,), 0, (left, Atom(second, x, y)))], names, twice) == ()
