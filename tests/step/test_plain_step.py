"""The plain step, stage by stage, against the reference prover, which shares no code with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgverify import Problem, Stage, strategies
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.engines.plain.engine import PlainEngine
from kgverify.engines.protocol import positions_of, take_position
from kgverify.laws import draw_problems
from kgverify.program.limits import OURS
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.runs.run import reference_triples
from kgverify.testing.problems.merge import merge


def check_alike(problem: Problem) -> set[object]:
    """Require equal columns of whole derivations, of steps from goals, and of each stage; return what occurred."""
    merged = merge([problem])
    run = merged.run
    triples = reference_triples(run)
    expected, actual = (
        make(run.graph.program, run.limits, run.policy, triples=triples) for make in (ReferenceEngine, PlainEngine)
    )
    candidates = merged.with_unranked(merged.expected).draw_for(run)
    columns = expected.prove(candidates)
    positions = positions_of(columns)
    check_columns(columns, actual.prove(candidates))
    check_columns(expected.step(positions), actual.step(positions))
    for i in range(min(len(positions.depth), 40)):
        one = take_position(positions, i)
        wanted, found = expected.probe(one), actual.probe(one)
        assert found.pop(Stage.SCORE) == pytest.approx(wanted.pop(Stage.SCORE), abs=1e-9)
        assert found == wanted
    return {*map(Outcome, columns.candidates.outcome.tolist()), *map(GoalKind, columns.resolvents.kind.tolist())}


def check_columns(expected, actual) -> None:
    for group, other in zip(expected, actual, strict=True):
        for name, column in group._asdict().items() if group is not None else ():
            found = getattr(other, name)
            assert found.dtype == column.dtype
            if name in ("score", "log_probability"):
                np.testing.assert_allclose(found, column, rtol=0, atol=1e-9)
            else:
                np.testing.assert_array_equal(found, column, err_msg=name)


@settings(max_examples=6)
@given(st.data())
def test_every_stage_gives_what_the_reference_gives_in_every_dialect(data):
    dialect = data.draw(st.one_of(st.just(OURS), strategies.dialects().filter(lambda each: each.search == OURS.search)))
    check_alike(data.draw(strategies.problems(dialect=dialect)))


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
    seen = set.union(*(check_alike(next(problems)) for _ in range(14)))
    assert {Outcome.PROVED, Outcome.FAILED, GoalKind.GOAL, GoalKind.TRUE} <= seen
    assert GoalKind.STOP in seen or dialect.stopping == "never"
