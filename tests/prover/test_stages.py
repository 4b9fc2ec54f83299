"""Stages and tables at sizes that no small problem reaches: collisions of hashes, wide keys, large pools, close scores."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from engine_checks import CPU, candidates_at, eager, program_of
from torch import Tensor

from kgverify import CandidateSet, Limits, NamedAtom, Positions, Program, Symbols, UserError
from kgverify.engines.policy import make_two_tower
from kgverify.program.limits import MAX_ATOMS
from kgverify.prover.program.tables import FACT_HASH, Tables, build_tables, round_up
from kgverify.prover.stages import match, resolve
from kgverify.prover.stages.choose import (
    Parameters,
    Rescoring,
    build_parameters,
    rescore,
)
from kgverify.prover.stages.recycle import recycle
from kgverify.prover.state import (
    DEPTH_LIMIT,
    FAILED,
    GOAL,
    NO_CANDIDATE,
    OPEN,
    PAD,
    PROVED,
    TRUE,
    Layout,
    Rows,
)
from kgverify.prover.tick.tick import derivations_at, empty_derivations, empty_pool

A, X, Y, Z = 4, -1, -2, -3
a, b, c, d = range(4)
p, q, r = range(3)
LAYOUT = Layout(slots=2, atoms=A, resolvents=3, match_window=8, score_window=8, pool=4)
FREE = -torch.inf
FACTS, RULES = "p(a,b) p(a,c) p(b,d) q(b,c)", "r(X,Y) p(X,Z) q(Z,Y); r(X,X) q(X,Y); q(X,Y) q(Y,X)"

Triple = tuple[int, int, int]


def ints(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture(scope="module")
def tables() -> Tables:
    return build_tables(program_of(FACTS, RULES), A, CPU)


def goal(*atoms: Triple) -> Tensor:
    """int32 [1, A, 3], padded."""
    return ints([[*atoms, *[(PAD, PAD, PAD)] * (A - len(atoms))]])


def test_the_index_finds_every_fact_that_unifies(tables: Tables) -> None:
    facts = program_of(FACTS, RULES).facts.tolist()
    selected = [(s, f, t) for s in (p, q, r) for f in (X, a, b, c, d) for t in (Y, a, b, c, d)] + [(p, X, X)]
    segments = match.look_up(tables, ints(selected))
    for i, (s, f, t) in enumerate(selected):
        begin, num = int(segments.fact_first[i]), int(segments.num_facts[i])
        rows = torch.arange(begin, begin + num)
        found = (tables.facts_by_second[rows] if segments.by_second[i] else rows).tolist()
        assert found == [k for k, (fp, ff, ft) in enumerate(facts) if fp == s and f in (ff, X) and t in (ft, X, Y)]


def test_no_two_atoms_share_a_key() -> None:
    program = program_of("p(a,b) p(b,a) q(a,a) q(c,d)", queries="r(d,d)")
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(4), torch.arange(4)).int()
    found = grid[resolve.is_fact(build_tables(program, A, CPU), grid)].tolist()
    assert sorted(found) == sorted(program.facts.tolist())


def test_variables_are_numbered_by_first_appearance() -> None:
    many = [[3, -5 - 2 * i, -6 - 2 * i] for i in range(MAX_ATOMS)]
    turned = [[3, -80 + 2 * i, -80 + 2 * i + 1] for i in range(MAX_ATOMS)]
    numbered = [[3, -1 - 2 * i, -2 - 2 * i] for i in range(MAX_ATOMS)]
    free = [[PAD] * 3] * (MAX_ATOMS - 3)
    again, known = [[0, -9, 7], [1, 7, -4], [2, -9, -4]], [[0, -1, 7], [1, 7, -2], [2, -1, -2]]
    assert resolve.rename(ints([many, turned, again + free])).tolist() == [numbered, numbered, known + free]


def test_a_goal_is_revisited_only_if_all_atoms_agree_in_order(tables: Tables) -> None:
    first, second, start = goal((p, a, X), (q, X, b)), goal((q, X, b), (p, a, X)), goal((r, a, b))

    def revisits(resolvent: Tensor, *visited: Tensor, depth: int, tables: Tables = tables) -> bool:
        slot = torch.zeros(1, dtype=torch.int64)
        return bool(resolve.revisit(tables, resolvent, torch.cat(visited)[None], slot, ints([depth])).item())

    assert revisits(first, start, first, depth=1)
    assert revisits(second, first, second, depth=1)
    assert not revisits(second, start, first, depth=1)
    assert not revisits(goal((p, a, X)), first, depth=0)
    assert not revisits(first, start, first, depth=0), "the second one was left by an earlier candidate"
    # Where hashes collide, the atoms decide.
    colliding = tables._replace(hash_keys=torch.zeros_like(tables.hash_keys))
    assert revisits(first, first, depth=0, tables=colliding)
    for other in (goal((p, a, X), (q, X, c)), goal((p, a, X))):
        assert not revisits(other, first, depth=0, tables=colliding)


def test_candidates_beyond_16_bits_are_recycled() -> None:
    """Let three slots of four end at the end of a pool, where two candidates are left."""
    size, ended = 70_001, [69_990, 69_998, 66_000]
    layout = Layout(slots=4, atoms=2, resolvents=1, match_window=1, score_window=1, pool=size)
    number = torch.arange(size, dtype=torch.int32)
    query = torch.stack((number % 7, number, number * 3), 1)
    pool = empty_pool(layout, CPU)._replace(query=query, size=torch.tensor(size), next_index=torch.tensor(size - 2))
    derivations = empty_derivations(layout, 3, CPU)._replace(
        pool_index=torch.tensor([ended[0], 5, *ended[1:]]),
        outcome=ints([PROVED, OPEN, FAILED, DEPTH_LIMIT]),
        is_limited=torch.tensor([True, True, False, True]),
        log_probability=torch.arange(4).double() / -3,
    )
    stored, taken = recycle(pool, derivations)
    assert stored.outcome[ended].tolist() == [PROVED, FAILED, DEPTH_LIMIT]
    assert stored.is_limited[ended].tolist() == [True, False, True]
    assert stored.log_probability[ended].tolist() == [0, -2 / 3, -1]
    assert (int(stored.next_index), int(stored.outcome.count_nonzero())) == (size, 3)
    assert taken.pool_index.tolist() == [size - 2, 5, size - 1, NO_CANDIDATE]
    assert taken.query[[0, 2]].tolist() == taken.goal[[0, 2], 0].tolist() == query[-2:].tolist()


def test_a_position_may_be_deep_and_know_few_goals() -> None:
    num, depth = 301, 17
    layout = Layout(slots=3, atoms=2, resolvents=1, match_window=1, score_window=1, pool=3)
    number = np.arange(num + 2)
    atoms = np.column_stack((number % 7, number, -1 - number * 0)).astype(np.int32)
    positions = Positions(
        CandidateSet(*candidates_at(atoms[:2])),
        np.array([num - 1, depth], np.uint16),
        np.array([num, 2], np.uint32),
        np.ones(num + 2, np.uint16),
        atoms,
    )
    found = derivations_at(positions, layout, Limits(max_depth=num), CPU)
    assert found.depth[:2].tolist() == [num - 1, depth]
    assert found.pool_index.tolist() == [0, 1, NO_CANDIDATE]
    assert found.goal[:2, 0].tolist() == atoms[[num - 1, num + 1]].tolist()
    assert found.visited[0, :, 0].tolist() == atoms[:num].tolist()
    assert found.visited[1, :2, 0].tolist() == atoms[num:].tolist()
    assert found.outcome[:2].tolist() == [OPEN, OPEN]


def look_up(values: Tensor, given: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
    """Return scores by the predicate of the first atom."""
    return values[resolvents[:, 0, 0].clamp(min=0).long()]


@pytest.mark.parametrize("window", [3, 4, 6, 30])
def test_close_choices_that_fit_the_window_are_scored_again_and_the_others_wait(window: int) -> None:
    rng = np.random.default_rng(window)
    for _ in range(20):
        num = rng.integers(0, 4, 6)
        slot = np.repeat(np.arange(6), num)
        score = torch.full((6, 3), FREE)
        coarse, exact = rng.choice([0.0, 0.1, 0.5, 1.0], len(slot)), rng.normal(size=len(slot))
        column = np.arange(len(slot)) - np.repeat(np.cumsum(num) - num, num)
        score[slot, column] = torch.tensor(coarse, dtype=torch.float32)
        is_taken = torch.tensor(rng.random(6) < 0.8)
        # The row of the window is its own number, by which the exact score is looked up; one row is not used.
        atoms = torch.zeros((len(slot) + 1, 1, 3), dtype=torch.int32)
        atoms[:, 0, 0] = torch.arange(len(slot) + 1)
        is_used = torch.arange(len(slot) + 1) < len(slot)
        rows = Rows(torch.tensor([*slot, 0]), is_used, atoms, torch.tensor(np.cumsum(num) - num))
        rescoring = Rescoring(partial(look_up, torch.tensor([*exact, 0.0])), 0, 0.1, window)
        kind = ints(np.where(num > 0, GOAL, TRUE))
        found, takes, gaps = rescore(rescoring, (), atoms, rows, score, kind, is_taken)
        wanted, free, num_made, num_close = score.clone(), window, 0, 0
        for at in range(6):
            own = score[at, : num[at]].numpy().astype(float)
            is_choice = bool(is_taken[at]) and num[at] > 1
            is_near = own >= own.max(initial=-np.inf) - 0.2 - 1e-7
            is_close = is_choice and is_near.sum() > 1
            waits = is_close and is_near.sum() > free
            if is_close:
                for place in np.flatnonzero(is_near)[: max(0, free)]:
                    wanted[at, place] = float(exact[slot == at][place])
                free -= int(is_near.sum())
            assert bool(takes[at]) == (bool(is_taken[at]) and not waits)
            num_made += is_choice and not waits
            num_close += is_close and not waits
        assert torch.equal(found, wanted)
        assert (int(gaps.num_choices), int(gaps.num_rescored)) == (num_made, num_close)


def test_programs_of_about_a_size_have_tables_and_weights_of_the_same_shapes() -> None:
    assert [round_up(size) for size in (0, 1, 2, 3, 4, 5, 1000)] == [1, 1, 2, 4, 4, 8, 1024]

    def shapes(num_facts: int, num_rules: int) -> list[tuple[int, ...]]:
        facts = " ".join(f"p{i % 5}(a{i},b)" for i in range(num_facts))
        program = program_of(facts, "; ".join(f"q(X,a{i}) p0(X,b)" for i in range(num_rules)))
        policy = make_two_tower(program, Limits(), seed=0, embedding=4, hidden=4, blocks=1)
        parameters = build_parameters(policy, CPU, torch.float32, is_rounded=True)
        for rounded, plain in zip(parameters[:2], build_parameters(policy, CPU, torch.float32)[:2], strict=True):
            assert torch.equal(rounded[: len(plain)], plain)
            assert not rounded[len(plain) :].any()
        return [tuple(tensor.shape) for tensor in (*build_tables(program, 6, CPU, is_rounded=True), *parameters)]

    assert shapes(33, 5) == shapes(50, 8) != shapes(70, 8)


@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize("num_facts", [0, 1, 33])
def test_every_fact_is_in_its_bucket_and_in_order_of_its_second_argument(num_facts: int, is_rounded: bool) -> None:
    names = np.random.default_rng(1).integers(0, 9, (num_facts, 3))
    program = Program.from_names([NamedAtom(f"p{p}", f"c{a}", f"c{b}") for p, a, b in names.tolist()])
    tables = build_tables(program, 6, CPU, is_rounded=is_rounded)
    facts, num_constants = program.facts.astype(np.int64), max(1, len(program.symbols.constants))
    keys = [(p * num_constants + a) * num_constants + b for p, a, b in facts.tolist()]
    num = len(keys)
    order = sorted(range(num), key=lambda i: (facts[i, 0], facts[i, 2], facts[i, 1]))
    assert (tables.fact_keys[:num].tolist(), tables.facts[:num].tolist()) == (keys, facts.tolist())
    assert tables.facts_by_second[:num].tolist() == order
    by_second = [((p * num_constants + b) * num_constants + a) for p, a, b in facts[order].tolist()]
    assert tables.second_keys[:num].tolist() == by_second
    shift, fullest = tables.bucket_shape.tolist()
    first, sizes = tables.bucket_first.tolist(), tables.bucket_first.diff()
    for key in keys:
        bucket = ((key * FACT_HASH) % 2**64) >> shift
        assert key in tables.bucket_keys[first[bucket] : first[bucket + 1]].tolist()
    assert (first[0], first[-1], int(sizes.max())) == (0, num, fullest)
    for padded in (tables.fact_keys, tables.second_keys, tables.bucket_keys):
        assert set(padded[num:].tolist()) <= {2**63 - 1}


def test_the_largest_keys_that_fit_find_their_facts_and_larger_ones_are_refused() -> None:
    """Two predicates and 1.7 * 10^9 constants make keys close to 2^63; no table has a row per constant."""
    program = program_of("p(a,b) p(b,c)", "r(X,Z) p(X,Y) p(Y,Z)")

    def with_constants(num: int) -> Program:
        return replace(program, symbols=Symbols(program.symbols.predicates, range(num)))

    num = 1_700_000_000
    assert 3 * num**2 < 2**63 < 4 * num**2
    last = num - 1
    large = replace(with_constants(num), facts=np.array([[0, 0, 1], [1, last - 1, last], [1, last, last]], np.int32))
    rows = [[1, last, last], [1, last - 1, last], [1, last, last - 1], [0, 0, 1], [1, last, -1], [1, -1, last]]
    outcome = (
        eager(large, Limits(exclude_query=False)).prove(candidates_at(np.array(rows, np.int32))).candidates.outcome
    )
    assert outcome.tolist() == [1, 1, 2, 1, 1, 1]
    with pytest.raises(UserError, match="do not fit the 63-bit keys"):
        build_tables(with_constants(2**31), 3, CPU)
