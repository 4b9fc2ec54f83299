"""Candidates that differ in one argument are proved together, and end as if each was proved by itself."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from engine_checks import candidates_at, program_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import kgverify as kv
from kgverify import Limits, Program
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import STOPPED
from kgverify.engines.reference.engine import ReferenceEngine
from kgverify.program.outcomes import Outcome
from kgverify.prover.native import library
from kgverify.prover.native.engine import NativeEngine
from kgverify.ranking.draw import draw_candidates

pytestmark = pytest.mark.skipif(library.why_not_available() is not None, reason=str(library.why_not_available()))

CONSTANTS, PREDICATES, VARIABLES = "abcdef", "pqr", "XYZ"


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Recursive programs, whose rules may have constants, repeated variables, and variables of the head only."""

    def atoms(terms: str) -> st.SearchStrategy[str]:
        term = st.sampled_from(terms)
        return st.builds("{}({},{})".format, st.sampled_from(PREDICATES), term, term)

    facts = draw(st.lists(atoms(CONSTANTS), max_size=20))
    terms = VARIABLES * draw(st.integers(1, 4)) + CONSTANTS[:2]
    rules = draw(st.lists(st.lists(atoms(terms), min_size=2, max_size=4), max_size=5))
    queries = " ".join(f"{predicate}(a,b)" for predicate in PREDICATES)
    return program_of(" ".join(facts), "; ".join(map(" ".join, rules)), queries, CONSTANTS)


def list_open_queries(program: Program) -> NDArray[np.int32]:
    """Return all atoms as candidates of each r(a, ?), then of each r(?, b): int32 [n, 3]."""
    every = [range(len(program.symbols.predicates)), *[range(len(program.symbols.constants))] * 2]
    rows = np.stack(np.meshgrid(*every, indexing="ij"), -1).reshape(-1, 3).astype(np.int32)
    return np.concatenate((rows, rows[:, [0, 2, 1]]))


def test_candidates_proved_together_end_as_each_by_itself() -> None:
    seen: Counter[Any] = Counter()
    sizes = st.builds(Limits, st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 2, 5, 120]), st.booleans())

    @settings(max_examples=60)
    @given(programs(), sizes, st.integers(0, 2**32 - 1))
    def check(program: Program, limits: Limits, seed: int) -> None:
        engine = NativeEngine(program, limits, SHORTEST, threads=1 + seed % 2)
        candidates = candidates_at(list_open_queries(program))
        # Steps are recorded one candidate at a time.
        alone = engine.prove(candidates).candidates
        found = engine.evaluate(candidates).results
        for name, column in found._asdict().items():
            np.testing.assert_array_equal(column, getattr(alone, name), err_msg=name)
        random = np.random.default_rng(seed)
        some = candidates.take(random.choice(len(alone.query), 12))
        by_reference = ReferenceEngine(program, limits, SHORTEST).prove(some).candidates
        again = engine.evaluate(some).results
        np.testing.assert_array_equal(again.outcome, by_reference.outcome)
        np.testing.assert_allclose(again.log_probability, by_reference.log_probability, atol=1e-9)
        floor = -random.exponential(3, len(alone.query)) * random.integers(0, 2, len(alone.query))
        stopped = engine.evaluate(candidates, floor=floor).results
        for row in random.choice(len(floor), 12).tolist():
            rows = slice(row, row + 1)
            one = engine.evaluate(candidates.take(rows), floor=floor[rows]).results
            assert [column[row] for column in stopped] == [column[0] for column in one]
        seen.update(stopped.outcome.tolist(), limited=int(alone.is_limited.sum()))

    check()
    assert all(seen[ending] for ending in (Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT, STOPPED, "limited"))


@pytest.mark.parametrize("exclude_query", [True, False])
def test_a_full_ranking_ends_as_each_candidate_by_itself(exclude_query: bool) -> None:
    run = kv.Run(kv.load_graph("countries"), Limits(exclude_query=exclude_query), num_queries=4, num_corruptions=-1)
    engine = NativeEngine(run.graph.program, run.limits, SHORTEST)
    candidates = draw_candidates(run.graph, run.split, run.queries, -1, run.seed)
    alone, found = engine.prove(candidates).candidates, engine.evaluate(candidates).results
    assert {Outcome.PROVED, Outcome.FAILED} <= set(found.outcome.tolist())
    for name, column in found._asdict().items():
        np.testing.assert_array_equal(column, getattr(alone, name), err_msg=name)
