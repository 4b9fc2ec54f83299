"""The plain step, stage by stage, against the reference prover, which shares no code with it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgverify import Limits, Problem, Stage, strategies
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.engines.plain.engine import PlainEngine
from kgverify.engines.protocol import positions_of, take_position
from kgverify.laws import draw_problems
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.limits import OURS
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.program.program import NamedRule, Program
from kgverify.runs.run import reference_triples
from kgverify.step.clauses import Clauses
from kgverify.step.plain_step import Situation, take_step
from kgverify.testing.problems.merge import merge


def check_alike(problem: Problem) -> Counter[object]:
    """Require equal columns of whole derivations, of steps from given goals, and of each stage; count what occurred."""
    merged = merge([problem])
    run = merged.run
    given_run = run.graph.program, run.limits, run.policy
    triples = reference_triples(run)
    expected, actual = (make(*given_run, triples=triples) for make in (ReferenceEngine, PlainEngine))
    candidates = merged.with_unranked(merged.expected).draw_for(run)
    columns = expected.prove(candidates)
    check_columns(columns, actual.prove(candidates))
    positions = positions_of(columns)
    check_columns(expected.step(positions), actual.step(positions))
    for i in range(min(len(positions.depth), 40)):
        one = take_position(positions, i)
        wanted, found = expected.probe(one), actual.probe(one)
        assert found.pop(Stage.SCORE) == pytest.approx(wanted.pop(Stage.SCORE), abs=1e-9)
        assert found == wanted
    seen = Counter(map(Outcome, columns.candidates.outcome.tolist()))
    return seen + Counter(map(GoalKind, columns.resolvents.kind.tolist()))


def check_columns(expected, actual) -> None:
    for group, other in zip(expected, actual, strict=True):
        for name, column in group._asdict().items() if group is not None else ():
            found = getattr(other, name)
            assert found.dtype == column.dtype
            if name in ("score", "log_probability"):
                np.testing.assert_allclose(found, column, rtol=0, atol=1e-9)
            else:
                np.testing.assert_array_equal(found, column, err_msg=name)


@settings(max_examples=60)
@given(strategies.problems())
def test_every_stage_gives_what_the_reference_gives(problem):
    check_alike(problem)


@settings(max_examples=60)
@given(st.data())
def test_every_dialect_gives_what_the_reference_gives(data):
    check_alike(data.draw(strategies.problems(dialect=data.draw(strategies.dialects()))))


@pytest.mark.parametrize(
    "dialect",
    [
        OURS,
        Dialect(skips_unary=True, stopping="where_no_terminal"),
        Dialect(memory="set", forgets_names=False, order="facts_first"),
        Dialect(memory="set", unification="one_pass", long_resolvents="truncate", is_reversed=True),
        Dialect(filters=("max_resolvents", "duplicates", "max_atoms", "revisit", "prune"), exclusion="never"),
    ],
    ids=str,
)
def test_drawn_problems_reach_every_outcome_and_agree(dialect):
    problems = draw_problems(11, 0, dialect)
    seen = sum((check_alike(next(problems)) for _ in range(60)), Counter())
    assert min(seen[each] for each in (Outcome.PROVED, Outcome.FAILED, GoalKind.GOAL, GoalKind.TRUE)) > 0
    assert seen[GoalKind.STOP] > 0 or dialect.stopping == "never"


def test_a_step_unifies_both_arguments_and_deletes_facts_but_the_excluded_one():
    x, y = Variable("X"), Variable("Y")
    rule = NamedRule(NamedAtom("p", x, x), (NamedAtom("q", x, y), NamedAtom("r", "a", "b")))
    program = Program.from_names([NamedAtom("r", "a", "b"), NamedAtom("p", "a", "a")], [rule])
    p, q = program.symbols.predicate_ids["p"], program.symbols.predicate_ids["q"]
    clauses = Clauses(program, exclude_query=True)

    def apply_clauses(goal, excluded):
        step = take_step(Situation(clauses, Limits(), excluded, (goal,)))
        return [(*each.clause, each.atoms) for each in step.filtered.after[Stage.RENAME]]

    # p(X0, X1), q(X1, X0): the head binds both to one variable, the body atom that is a fact is deleted.
    goal = ((p, -1, -2), (q, -2, -1))
    by_rule = (Origin.RULE, 0, ((q, -1, -2), (q, -1, -1)))
    assert apply_clauses(goal, None) == [by_rule, (Origin.FACT, clauses.fact_index[p, 0, 0], ((q, 0, 0),))]
    assert apply_clauses(goal, (p, 0, 0)) == [by_rule]
    assert apply_clauses(((p, 0, 1),), None) == []
