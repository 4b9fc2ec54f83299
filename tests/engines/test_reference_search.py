"""The searches of the reference as an engine, against the plain engine, which shares no code with it."""

import random

import numpy as np
import pytest

from kgverify import Limits, Problem
from kgverify.comparison.comparable import lockstep_columns
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.engines.beams import read_beams
from kgverify.engines.plain.engine import PlainEngine
from kgverify.laws import draw_problems
from kgverify.program.atoms import NamedAtom
from kgverify.program.limits import FILTERS, VALUES
from kgverify.program.program import parse_rules
from kgverify.runs.run import reference_triples
from kgverify.testing.problems.merge import merge
from kgverify.trace.model.columns import CandidateSet, Columns

SIZES = (1, 2, 2, 3, 3, 4, 5, 8)


def draw_dialect(rng: random.Random) -> Dialect:
    """Draw a search, half of the time with other switches at random."""
    kind = rng.choice(("beam", "beam", "all", "sample"))
    text = (
        f"sample({rng.choice(SIZES)}, {rng.choice((0, 1, 2**63))})"
        if kind == "sample"
        else f"{kind}({rng.choice(SIZES)})"
    )
    switches = {"search": text, "aggregate": rng.choice(("max", "sum", "noisy_or"))}
    if kind != "sample":
        switches["merge"] = rng.choice(("none", "max", "sum"))
    if rng.random() < 0.5:
        switches |= {name: rng.choice(values) for name, values in VALUES.items() if rng.random() < 0.4}
        switches["filters"] = tuple(rng.sample(FILTERS, rng.randint(3, len(FILTERS))))
    return Dialect(**switches)


def draw_engines(seed: int, index: int) -> tuple[CandidateSet, ReferenceEngine, PlainEngine, bool]:
    """Return a drawn problem's candidates and engines, and whether the engines agree in every bit of their scores."""
    problem = next(draw_problems(seed, index, draw_dialect(random.Random(f"{seed}:{index}"))))
    merged = merge([problem])
    run = merged.run
    candidates = merged.with_unranked(merged.expected).draw_for(run)
    given = run.graph.program, run.limits, run.policy
    triples = reference_triples(run)
    reference, plain = ReferenceEngine(*given, triples=triples), PlainEngine(*given, triples=triples)
    return candidates, reference, plain, run.policy.name == "shortest"


def check_equal(expected: Columns, actual: Columns, where: str, tolerance: float = 0.0) -> None:
    """Require equal columns; numbers with a fraction may differ by a share of the tolerance."""
    for group, other in zip(expected, actual, strict=True):
        for name, column in group._asdict().items():
            found = getattr(other, name)
            assert found.dtype == column.dtype
            if column.dtype.kind == "f":
                np.testing.assert_allclose(found, column, rtol=tolerance, atol=tolerance, err_msg=f"{where}: {name}")
            else:
                np.testing.assert_array_equal(found, column, err_msg=f"{where}: {name}")


@pytest.mark.parametrize("num", [40, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_the_reference_and_the_plain_engine_search_alike(num: int):
    num_merged = num_cut = num_weighed = 0
    for index in range(num):
        candidates, reference, plain, is_exact = draw_engines(3, index)
        expected = reference.prove(candidates)
        check_equal(expected, plain.prove(candidates), f"problem {index}", 0.0 if is_exact else 1e-9)
        num_merged += bool((expected.paths.child < -1).any())
        num_cut += bool((expected.paths.child == -1).any())
        num_weighed += not is_exact
    assert min(num_merged, num_cut, num_weighed) > num // 40


@pytest.mark.parametrize("num", [8, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_each_level_of_a_search_is_the_same_when_it_is_taken_from_its_beam(num: int):
    for index in range(num):
        candidates, reference, plain, is_exact = draw_engines(5, index)
        columns = reference.prove(candidates)
        expected = lockstep_columns(columns)
        given = read_beams(columns)
        for engine in (reference, plain):
            taken = engine.take_beams(*given)
            check_equal(
                expected._replace(candidates=taken.candidates), taken, f"problem {index}", 0.0 if is_exact else 1e-9
            )


def test_a_level_begins_where_the_only_open_child_has_a_higher_place():
    rules = parse_rules("p(X,Y) q(X,Y); p(X,Y) r(X,Y)")
    dialect = Dialect(filters=("prune", "revisit", "max_atoms", "max_resolvents"), search="all(2)")
    problem = Problem(
        facts=(NamedAtom("q", "a", "b"),),
        rules=tuple(rules),
        queries=(NamedAtom("p", "a", "b"),),
        limits=Limits(dialect=dialect),
        num_corruptions=0,
    )
    merged = merge([problem])
    run = merged.run
    columns = ReferenceEngine(run.graph.program, run.limits, run.policy).prove(merged.expected.draw_for(run))
    first = columns.candidates.num_steps[0]
    assert columns.paths.place[:first].tolist() == [0, 1]
    assert columns.paths.level[:first].tolist() == [0, 1]
