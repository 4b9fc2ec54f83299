"""The searches of the reference as an engine, against the plain engine, which shares no code with it."""

import random
from itertools import count, islice

import numpy as np
import pytest

from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.engines.plain.engine import PlainEngine
from kgverify.laws import draw_problems
from kgverify.program.limits import FILTERS, VALUES
from kgverify.runs.run import reference_triples
from kgverify.testing.problems.merge import merge
from kgverify.trace.model.columns import Columns

SIZES = (1, 2, 2, 3, 3, 4, 5, 8, 20)


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


def prove_twice(seed: int, index: int) -> tuple[Columns, Columns, bool]:
    """Return the columns of a drawn problem by the reference and by the plain engine, and whether every bit must be equal."""
    problem = next(draw_problems(seed, index, draw_dialect(random.Random(f"{seed}:{index}"))))
    merged = merge([problem])
    run = merged.run
    candidates = merged.with_unranked(merged.expected).draw_for(run)
    triples = reference_triples(run)
    expected, actual = (
        make(run.graph.program, run.limits, run.policy, triples=triples).prove(candidates)
        for make in (ReferenceEngine, PlainEngine)
    )
    return expected, actual, run.policy.name == "shortest"


@pytest.mark.parametrize("num", [40, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_the_reference_and_the_plain_engine_search_alike(num: int):
    num_merged = num_cut = num_weighed = 0
    for index in islice(count(), num):
        expected, actual, is_exact = prove_twice(3, index)
        for group, other in zip(expected, actual, strict=True):
            for name, column in group._asdict().items():
                found = getattr(other, name)
                assert found.dtype == column.dtype
                if is_exact or column.dtype.kind != "f":
                    np.testing.assert_array_equal(found, column, err_msg=f"problem {index}: {name}")
                else:
                    np.testing.assert_allclose(found, column, rtol=1e-9, atol=1e-9, err_msg=f"problem {index}: {name}")
        num_merged += bool((expected.paths.child < -1).any())
        num_cut += bool((expected.paths.child == -1).any())
        num_weighed += not is_exact
    assert min(num_merged, num_cut, num_weighed) > num // 40
