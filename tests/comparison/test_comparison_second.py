"""Two comparisons written independently, ours and `kgreference.compare`, find the same in traces changed at random."""

from dataclasses import replace

import numpy as np
import pytest
from comparison_traces import (
    ATOMS,
    column_of,
    small_lockstep_trace,
    small_trace,
    twin,
    with_column,
    with_score_error,
)
from second_opinion import can_be_checked, check_by_second, compare_again
from trace_changes import CHANGES, Change, base_trace, forget_rankings, rank_otherwise

from kgverify import Trace, Verdict
from kgverify.comparison.compare import Comparer, Options
from kgverify.kinds import KNOWLEDGE_GRAPH

NUM_SEEDS = 6
ORIGIN = {"resolvents.origin_kind", "resolvents.origin"}


def exchange(trace: Trace, random: np.random.Generator) -> Trace:
    """The resolvents of each step are in another order."""
    return twin(trace, int(random.integers(1 << 30)), kinds="order")


def repeat(trace: Trace, random: np.random.Generator) -> Trace:
    """Some resolvents are listed twice."""
    return twin(trace, int(random.integers(1 << 30)), kinds="duplicates")


def count_on(trace: Trace, random: np.random.Generator) -> Trace:
    """Depths begin at a higher number."""
    return with_column(trace, "steps.depth", column_of(trace, "steps.depth") + 2)


def forget(trace: Trace, random: np.random.Generator) -> Trace:
    """A column is declared unknown, whatever it holds."""
    name = str(random.choice(sorted(KNOWLEDGE_GRAPH.optional)))
    held = column_of(trace, name)
    trace = with_column(trace, name, random.integers(0, 2, len(held)).astype(held.dtype))
    return replace(trace, fields=trace.fields - {name, *(ORIGIN if name in ORIGIN else ())})


def attribute(trace: Trace, random: np.random.Generator) -> Trace:
    """One clause gets the resolvent of another, or one that there is not."""
    origin = column_of(trace, "resolvents.origin").copy()
    origin[random.integers(len(origin))] = random.choice([*origin, -1, 1 << 20])
    return with_column(trace, "resolvents.origin", origin)


def fail(trace: Trace, random: np.random.Generator) -> Trace:
    """One resolvent becomes FALSE, which stands for none."""
    kind = column_of(trace, "resolvents.kind").copy()
    kind[random.integers(len(kind))] = 2
    return with_column(trace, "resolvents.kind", kind)


def misname(trace: Trace, random: np.random.Generator) -> Trace:
    """One number of one atom is that of no name."""
    name = str(random.choice(ATOMS))
    atoms = column_of(trace, name).copy()
    atoms[random.integers(len(atoms)), random.integers(3)] = random.choice([-9, 1 << 20])
    return with_column(trace, name, atoms)


OF_STEPS: tuple[Change, ...] = (
    *(change for change in CHANGES if change not in (rank_otherwise, forget_rankings)),
    *(exchange, repeat, count_on, forget, attribute, fail, misname),
)


@pytest.mark.parametrize("change", OF_STEPS, ids=lambda change: change.__name__)
def test_both_comparisons_find_the_same(change: Change) -> None:
    verdicts = set()
    for seed in range(NUM_SEEDS):
        random = np.random.default_rng(seed)
        lockstep = seed % 3 == 2
        base = small_lockstep_trace() if lockstep else base_trace() if seed % 3 else small_trace()
        base = with_score_error(base, float(random.choice([0.0, 1e-5, 10.0])))
        # What both traces have in common is unusual as well.
        sides = [OF_STEPS[seed * 5 % len(OF_STEPS)](base, random)] * 2
        # A few of them in either trace.
        for each in (change, *random.choice(np.array(OF_STEPS, object), seed // 3)):
            side = int(random.random() < 0.7)
            sides[side] = each(sides[side], random)
        comparer = Comparer(*sides, Options(lockstep=lockstep))
        found = comparer.compare()
        if found.reasons:
            # Too little is known.
            continue
        assert can_be_checked(comparer)
        second = compare_again(*sides, comparer.score_tolerance, lockstep=lockstep)
        check_by_second(found, second, f"seed {seed}")
        verdicts.add(found.verdict)
    assert Verdict.DIVERGE in verdicts or change is forget


def test_facts_are_compared_by_their_names() -> None:
    trace = small_trace()
    kind, origin = (column_of(trace, f"resolvents.{name}") for name in ("origin_kind", "origin"))
    assert trace.facts is not None
    # The facts in the opposite order, and so with other numbers.
    numbers = np.where(kind == 2, len(trace.facts) - 1 - origin, origin).astype(np.int32)
    backwards = replace(trace, facts=trace.facts[::-1].copy(), fact_lines=None)
    renamed = with_column(backwards, "resolvents.origin", numbers)
    assert not any(each.found for *_, each in compare_again(trace, renamed, 0.0).pairs)
    fields = {each.found.field for *_, each in compare_again(trace, backwards, 0.0).pairs if each.found}
    assert fields == {"resolvents.origin"}
