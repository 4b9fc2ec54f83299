"""Single stages on small tensors: the places where batched provers have gone wrong before."""

import math

import numpy as np
import pytest
import torch
from random_programs import program_of
from torch import Tensor

from kgverify.engines.policy import POLICY_NAMES
from kgverify.prover.program.tables import Tables, build_tables
from kgverify.prover.stages import match, resolve
from kgverify.prover.stages.choose import SCORES, advance, choose, finish, score_shortest
from kgverify.prover.stages.recycle import recycle
from kgverify.prover.state import (
    DEPTH_LIMIT,
    FAILED,
    FALSE,
    GOAL,
    NO_CANDIDATE,
    OPEN,
    PAD,
    PROVED,
    TRUE,
    Items,
    Layout,
    Rows,
)
from kgverify.prover.tick.tick import empty_derivations, empty_pool, empty_work

CPU = torch.device("cpu")
A, X, Y, Z = 4, -1, -2, -3
a, b, c, d = range(4)
p, q, r = range(3)
LAYOUT = Layout(slots=2, atoms=A, resolvents=3, match_window=8, score_window=8, pool=4)

TEXT = """
p(a, b)
p(a, c)
p(b, d)
q(b, c)
r(X, Y) <- p(X, Z), q(Z, Y)
r(X, X) <- q(X, Y)
q(X, Y) <- q(Y, X)
"""


@pytest.fixture(scope="module")
def tables() -> Tables:
    return build_tables(program_of(TEXT), A, CPU)


def goal(*atoms: tuple[int, int, int], size: int = A) -> Tensor:
    """int32 [1, size, 3], padded."""
    rows = [*atoms, *[(PAD, PAD, PAD)] * (size - len(atoms))]
    return torch.tensor([rows], dtype=torch.int32)


def one_item(
    clause: int, is_rule: bool, selected: tuple[int, int, int], query: tuple[int, int, int] = (r, a, a)
) -> Items:
    return Items(
        slot=torch.zeros(1, dtype=torch.int64),
        is_live=torch.ones(1, dtype=torch.bool),
        is_rule=torch.tensor([is_rule]),
        clause=torch.tensor([clause]),
        selected=torch.tensor([selected], dtype=torch.int32),
        query=torch.tensor([query], dtype=torch.int32),
    )


def canonical(atoms: Tensor) -> list[tuple[int, ...]]:
    """Atoms left after closing the gaps, variables renumbered."""
    aligned = resolve.left_align(atoms, atoms[..., 0] != PAD)
    return [tuple(row) for row in resolve.rename(aligned)[0].tolist() if row[0] != PAD]


def resolve_rule(tables: Tables, rule: int, *atoms: tuple[int, int, int]) -> list[tuple[int, ...]] | None:
    """The resolvent of a goal with a rule; None where the head does not unify."""
    items = one_item(rule, True, atoms[0])
    head = match.clause_heads(tables, items, 2 * A)
    if not match.match_rules(tables, items, head).item():
        return None
    return canonical(resolve.resolve(tables, items, head, goal(*atoms), 2 * A))


# match


def unifies(head: tuple[int, int], selected: tuple[int, int]) -> bool:
    tensors = torch.tensor([head], dtype=torch.int32), torch.tensor([(0, *selected)], dtype=torch.int32)
    return bool(match.bindings(*tensors)[0].item())


@pytest.mark.parametrize(
    ("head", "selected", "expected"),
    [
        ((a, b), (a, b), True),
        ((a, b), (a, c), False),
        ((a, b), (X, Y), True),
        ((a, b), (X, X), False),
        ((a, a), (X, X), True),
        ((-11, -11), (a, b), False),
        ((-11, -11), (a, a), True),
        ((-11, -11), (X, b), True),
        ((-11, -11), (X, Y), True),
        ((-11, -12), (X, X), True),
        ((-11, a), (b, X), True),
        ((a, -11), (X, X), True),
    ],
)
def test_a_head_unifies_only_where_one_substitution_serves_both_arguments(
    head: tuple[int, int], selected: tuple[int, int], expected: bool
) -> None:
    assert unifies(head, selected) is expected


def test_a_repeated_variable_matches_loops_alone() -> None:
    program = program_of("p(a, b)\np(a, a)\np(b, b)\np(b, a)")
    tables = build_tables(program, A, CPU)
    selected = (p, X, X)
    found = []
    for fact in range(4):
        items = one_item(fact, False, selected)
        found.append(bool(match.match_facts(tables, items, match.clause_heads(tables, items, 8), True).item()))
    assert [tuple(program.facts[i]) for i in np.flatnonzero(found)] == [(0, a, a), (0, b, b)]


def test_substitution_reaches_what_it_has_put_in() -> None:
    """p(X, Y) under {X -> Y, Y -> a} is p(a, a): the most general unifier is fully resolved."""
    arguments = torch.tensor([[[X, Y], [Y, X], [Z, X]]], dtype=torch.int32)
    binding = [torch.tensor([value], dtype=torch.int32) for value in (X, Y, Y, a)]
    assert match.apply_bindings(arguments, *binding).tolist() == [[[a, a], [a, a], [Z, a]]]


def test_swapped_variables_are_not_merged(tables: Tables) -> None:
    assert resolve_rule(tables, 2, (q, X, Y)) == [(q, X, Y)]
    assert resolve_rule(tables, 2, (q, X, Y), (p, X, Y)) == [(q, X, Y), (p, Y, X)]


def test_a_binding_reaches_the_rest_of_the_goal(tables: Tables) -> None:
    assert resolve_rule(tables, 1, (r, X, Y), (p, Y, Z)) == [(q, X, Y), (p, X, Z)]
    assert resolve_rule(tables, 1, (r, a, Y), (p, Y, X)) == [(q, a, X), (p, a, Y)]
    assert resolve_rule(tables, 1, (r, a, b)) is None


def test_a_variable_of_a_rule_is_never_one_of_the_goal(tables: Tables) -> None:
    """Rule 0 has a Z of its own, whatever the goal's variables are called."""
    assert resolve_rule(tables, 0, (r, X, Y), (p, Z, X)) == [(p, X, Y), (q, Y, Z), (p, -4, X)]
    everything = tuple((p, -1 - 2 * i, -2 - 2 * i) for i in range(1, A))
    found = resolve_rule(tables, 0, (r, X, Y), *everything)
    assert found is not None
    assert len({argument for atom in found for argument in atom[1:]}) == 2 * A + 1


def test_the_index_finds_every_fact_that_unifies(tables: Tables) -> None:
    facts = program_of(TEXT).facts
    selected = [(s, f, t) for s in (p, q, r) for f in (X, a, b, c, d) for t in (Y, a, b, c, d)] + [(p, X, X)]
    segments = match.look_up(tables, torch.tensor(selected, dtype=torch.int32))
    for i, (s, f, t) in enumerate(selected):
        begin, num = int(segments.fact_first[i]), int(segments.num_facts[i])
        rows = torch.arange(begin, begin + num)
        found = (tables.facts_by_second[rows] if segments.by_second[i] else rows).tolist()
        expected = [k for k, (fp, ff, ft) in enumerate(facts.tolist()) if fp == s and f in (ff, X) and t in (ft, X, Y)]
        assert found == sorted(found)
        assert found == expected


def test_a_window_is_shared_in_the_order_of_the_slots() -> None:
    row, ordinal, is_live, held = match.expand(torch.tensor([0, 3, 0, 4]), 5)
    assert row[is_live].tolist() == [1, 1, 1, 3, 3]
    assert ordinal[is_live].tolist() == [0, 1, 2, 0, 1]
    assert held.tolist() == [0, 3, 0, 2]
    *_, is_live, held = match.expand(torch.tensor([0, 0]), 5)
    assert not is_live.any()
    assert held.tolist() == [0, 0]


# the excluded atom


def test_the_excluded_atom_serves_neither_in_matching_nor_in_pruning(tables: Tables) -> None:
    query = (p, a, b)
    items = one_item(0, False, (p, a, X), query)
    head = match.clause_heads(tables, items, 2 * A)
    assert match.match_facts(tables, items, head, False).item()
    assert not match.match_facts(tables, items, head, True).item()
    atoms, excluded = goal((p, a, b), (p, a, c)), torch.tensor([query], dtype=torch.int32)
    assert resolve.prune(tables, atoms, excluded, True)[1].tolist() == [1]
    assert resolve.prune(tables, atoms, excluded, False)[1].tolist() == [0]


def test_a_query_with_variables_excludes_nothing(tables: Tables) -> None:
    items = one_item(0, False, (p, a, X), query=(p, a, X))
    assert match.match_facts(tables, items, match.clause_heads(tables, items, 2 * A), True).item()


# prune, rename, revisit


def test_pruning_leaves_no_gap(tables: Tables) -> None:
    atoms = goal((p, a, b), (r, X, a), (q, b, c), (q, a, a))
    pruned, num_atoms = resolve.prune(tables, atoms, torch.tensor([[r, a, a]], dtype=torch.int32), True)
    assert pruned.tolist() == goal((r, X, a), (q, a, a)).tolist()
    assert num_atoms.tolist() == [2]


def test_a_goal_pruned_to_nothing_holds_no_atom(tables: Tables) -> None:
    pruned, num_atoms = resolve.prune(tables, goal((p, a, b), (q, b, c)), torch.tensor([[r, a, a]]), True)
    assert (pruned == PAD).all()
    assert num_atoms.tolist() == [0]


def test_only_ground_facts_are_pruned(tables: Tables) -> None:
    atoms = goal((p, a, X), (p, b, a), (r, a, b), (p, X, X))
    assert resolve.prune(tables, atoms, torch.tensor([[r, a, a]]), True)[0].tolist() == atoms.tolist()


def test_no_two_atoms_share_a_key() -> None:
    """Every ground atom is asked for, so a key in too few bits would show."""
    program = program_of("p(a, b)\np(b, a)\nq(a, a)\nq(c, d)", queries="r(d, d)")
    tables = build_tables(program, A, CPU)
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(4), torch.arange(4)).int()
    found = {tuple(row) for row in grid[resolve.is_fact(tables, grid)].tolist()}
    assert found == {tuple(row) for row in program.facts.tolist()}


def test_variables_are_numbered_by_first_appearance() -> None:
    atoms = goal((p, -9, a), (q, -4, -9), (r, -7, -4))
    assert resolve.rename(atoms).tolist() == goal((p, X, a), (q, Y, X), (r, Z, Y)).tolist()
    assert resolve.rename(goal()).tolist() == goal().tolist()


def revisits(tables: Tables, resolvent: Tensor, *visited: Tensor, depth: int) -> bool:
    slot, turns = torch.zeros(1, dtype=torch.int64), torch.cat(visited)[None]
    return bool(resolve.revisit(tables, resolvent, turns, slot, torch.tensor([depth], dtype=torch.int32)).item())


def test_a_goal_is_revisited_only_where_all_atoms_agree_in_order(tables: Tables) -> None:
    first, second = goal((p, a, X), (q, X, b)), goal((q, X, b), (p, a, X))
    assert revisits(tables, first, goal((r, a, b)), first, depth=1)
    assert not revisits(tables, second, goal((r, a, b)), first, depth=1)
    assert revisits(tables, second, first, second, depth=1)
    assert not revisits(tables, goal((p, a, X)), first, depth=0)


def test_what_an_earlier_candidate_left_behind_is_not_visited(tables: Tables) -> None:
    old = goal((p, a, X), (q, X, b))
    assert not revisits(tables, old, goal((r, a, b)), old, depth=0)


def test_where_hashes_collide_the_atoms_decide(tables: Tables) -> None:
    colliding = tables._replace(hash_keys=torch.zeros_like(tables.hash_keys))
    visited = goal((p, a, X), (q, X, b))
    assert revisits(colliding, visited, visited, depth=0)
    assert not revisits(colliding, goal((p, a, X), (q, X, c)), visited, depth=0)
    assert not revisits(colliding, goal((p, a, X)), visited, depth=0)


# close and limit


def limited(is_survivor: list[bool], num_atoms: list[int], slots: list[int], num_kept: list[int]) -> resolve.Placement:
    """At most 2 atoms and 3 resolvents, for two slots."""
    num = len(slots)
    items = one_item(0, True, (p, X, Y))._replace(slot=torch.tensor(slots), is_live=torch.ones(num, dtype=torch.bool))
    work = empty_work(LAYOUT, CPU)._replace(num_kept=torch.tensor(num_kept))
    held = torch.bincount(torch.tensor(slots), minlength=2)
    return resolve.limit(torch.tensor(is_survivor), torch.tensor(num_atoms), items, held, work, 2, 3)


def test_rows_beyond_the_limit_have_no_place() -> None:
    placement = limited([True] * 6, [1, 1, 1, 1, 3, 1], [0] * 5 + [1], [1, 0])
    assert placement.is_kept.tolist() == [True, True, False, False, False, True]
    assert placement.row[placement.is_kept].tolist() == [1, 2, 0]
    assert placement.num_kept.tolist() == [2, 1]
    assert placement.dropped_atoms.tolist() == [1, 0]
    assert placement.dropped_resolvents.tolist() == [2, 0]


def test_what_does_not_survive_takes_no_place() -> None:
    placement = limited([False, True, False, True], [1, 1, 9, 2], [0, 0, 0, 0], [0, 0])
    assert placement.row[placement.is_kept].tolist() == [0, 1]
    assert placement.dropped_atoms.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("num_survivors", "true_origin_kind", "num_kept", "expected"),
    [(0, 0, 0, FALSE), (2, 0, 0, FALSE), (2, 0, 1, GOAL), (2, 1, 1, TRUE), (0, 2, 0, TRUE)],
)
def test_a_dead_end_is_closed_and_a_proof_stands_alone(
    num_survivors: int, true_origin_kind: int, num_kept: int, expected: int
) -> None:
    counts = (torch.tensor([n]) for n in (num_survivors, true_origin_kind, num_kept))
    assert resolve.close(*counts).tolist() == [expected]


def test_one_slot_with_a_proof_closes_no_other() -> None:
    kinds = resolve.close(torch.tensor([3, 3, 0]), torch.tensor([1, 0, 0]), torch.tensor([3, 3, 0]))
    assert kinds.tolist() == [TRUE, GOAL, FALSE]


def test_the_first_of_each_slot_is_found_within_the_slot() -> None:
    mask, held = torch.tensor([False, False, False, True, True]), torch.tensor([2, 1, 2])
    first, has_one = resolve.first_by_slot(mask, held)
    assert has_one.tolist() == [False, False, True]
    assert first[2].item() == 3
    assert resolve.count_by_slot(mask, held).tolist() == [0, 0, 2]


# score, choose, advance, finish


def test_shortest_counts_atoms_then_variables() -> None:
    goals = torch.cat((goal((p, a, b)), goal((p, X, X)), goal((p, X, Y), (q, Y, Z)), goal(*[(p, a, a)] * A)))
    assert score_shortest((), goals, goals, torch.zeros(4)).tolist() == [-1, -1 - 1 / 64, -2 - 3 / 64, -A]


def test_the_lowest_index_of_equal_scores_is_chosen() -> None:
    score = torch.tensor([[-2.0, -1, -1, -torch.inf], [-1, -1, -torch.inf, -torch.inf], [-3, -2, -4, -2]])
    choices = choose(torch.zeros(3, dtype=torch.int32), torch.tensor([3, 2, 4]), score)
    assert choices.choice.tolist() == [1, 0, 1]
    assert choices.log_probability[1].item() == pytest.approx(-math.log(2), abs=1e-12)


def test_what_stands_alone_is_chosen_with_certainty() -> None:
    score = torch.tensor([[0.0, -torch.inf], [0, -torch.inf]])
    choices = choose(torch.tensor([TRUE, FALSE], dtype=torch.int32), torch.tensor([1, 1]), score)
    assert choices.choice.tolist() == [0, 0]
    assert choices.log_probability.tolist() == [0.0, 0.0]


def test_a_chosen_true_has_no_atoms_and_a_slot_that_waits_keeps_its_goal() -> None:
    derivations = empty_derivations(LAYOUT, 3, CPU)._replace(goal=goal((p, a, b)).repeat(2, 1, 1))
    leftovers = goal((q, b, c)).repeat(3, 1, 1)  # of another resolvent
    rows = Rows(torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool), leftovers, torch.tensor([0, 0]))
    score = torch.tensor([[0.0, -torch.inf, -torch.inf]] * 2)
    choices = choose(torch.tensor([TRUE, GOAL], dtype=torch.int32), torch.tensor([1, 1]), score)
    after = advance(derivations, empty_work(LAYOUT, CPU), rows, choices, torch.tensor([True, False]))
    assert (after.goal[0] == PAD).all()
    assert after.goal[1].tolist() == goal((p, a, b))[0].tolist()
    assert after.depth.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("kind", "depth", "is_taken", "expected"),
    [
        (TRUE, 3, True, PROVED),
        (FALSE, 3, True, FAILED),
        (GOAL, 3, True, DEPTH_LIMIT),
        (GOAL, 2, True, OPEN),
        (TRUE, 3, False, OPEN),
        (FALSE, 3, False, OPEN),
    ],
)
def test_a_terminal_goal_comes_before_the_depth_limit(kind: int, depth: int, is_taken: bool, expected: int) -> None:
    args = (torch.tensor([value], dtype=torch.int32) for value in (depth, OPEN, kind))
    outcome = finish(*args, torch.tensor([is_taken]), 3)
    assert outcome.tolist() == [expected]
    assert outcome.dtype == torch.int32


# recycle


def test_a_slot_with_nothing_to_report_overwrites_no_result() -> None:
    pool = empty_pool(LAYOUT, CPU)._replace(
        size=torch.tensor(3),
        next_index=torch.tensor(3),
        outcome=torch.tensor([PROVED, OPEN, OPEN, OPEN], dtype=torch.int32),
        log_probability=torch.tensor([-1.5, 0, 0, 0], dtype=torch.float64),
    )
    derivations = empty_derivations(LAYOUT, 3, CPU)._replace(
        pool_index=torch.tensor([NO_CANDIDATE, 2]),
        outcome=torch.tensor([FAILED, FAILED], dtype=torch.int32),
        log_probability=torch.tensor([-9.0, -2.5], dtype=torch.float64),
    )
    pool, derivations = recycle(pool, derivations)
    assert pool.outcome.tolist() == [PROVED, OPEN, FAILED, OPEN]
    assert pool.log_probability.tolist() == [-1.5, 0, -2.5, 0]
    assert derivations.pool_index.tolist() == [NO_CANDIDATE, NO_CANDIDATE]


def test_a_renewed_slot_keeps_nothing_of_the_candidate_before() -> None:
    queries = torch.tensor([[p, a, b], [q, -3, c], [0, 0, 0], [0, 0, 0]], dtype=torch.int32)
    pool = empty_pool(LAYOUT, CPU)._replace(query=queries, size=torch.tensor(2), next_index=torch.tensor(1))
    old = goal((r, a, X), (r, X, b)).repeat(2, 1, 1)
    derivations = empty_derivations(LAYOUT, 3, CPU)._replace(
        pool_index=torch.tensor([0, NO_CANDIDATE]),
        goal=old,
        depth=torch.tensor([3, 0], dtype=torch.int32),
        is_limited=torch.tensor([True, True]),
        log_probability=torch.tensor([-4.0, -4.0], dtype=torch.float64),
    )
    pool, derivations = recycle(pool, derivations)
    assert derivations.pool_index.tolist() == [1, NO_CANDIDATE]
    assert derivations.goal[0].tolist() == goal((q, X, c))[0].tolist()
    assert derivations.query[0].tolist() == [q, -3, c]
    assert derivations.visited[0, 0].tolist() == goal((q, X, c))[0].tolist()
    assert (derivations.depth[0], derivations.outcome[0]) == (0, OPEN)
    assert (derivations.is_limited[0], derivations.log_probability[0]) == (False, 0)
    assert derivations.outcome[1] == PROVED
    assert pool.outcome.tolist() == [PROVED, OPEN, OPEN, OPEN]
    assert pool.is_limited.tolist() == [True, False, False, False]


def test_every_policy_has_a_score_function() -> None:
    assert set(SCORES) == set(POLICY_NAMES)
