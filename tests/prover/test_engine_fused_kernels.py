"""The kernels of fused ticks, each by its definition, in Triton's interpreter."""

from itertools import chain
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from kgverify import KnowledgeGraph, Limits, Stage, load_graph
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Outcome
from kgverify.program.program import NamedRule
from kgverify.prover import execution_choice
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.state import FALSE, GOAL, NO_CANDIDATE, OPEN, PAD, TRUE, Layout
from kgverify.prover.tick.tick import TICKS_PER_REPLAY, empty_derivations, empty_pool, empty_work
from kgverify.runs.run import Run, reference_pipeline
from kgverify.trace.model.columns import CandidateSet
from kgverify.verification.replay import find_position

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.prover.execution.device import launch as launch_kernel
from kgverify.prover.fused import ticks
from kgverify.prover.fused.record import Decisions, RowBuffers, StepLog
from kgverify.prover.fused.step_kernels import advance_kernel, choose_kernel
from kgverify.prover.fused.ticks import FusedTicks, _Counts, _Derivations
from kgverify.prover.tower.launch import build_tower_parameters

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here, and tested elsewhere")


@pytest.mark.parametrize("excludes", [True, False])
def test_each_slot_excludes_its_own_query(excludes: bool) -> None:
    x, y = Variable("X"), Variable("Y")
    pairs = [("p", "a", "b"), ("q", "b", "c"), ("p", "c", "a"), ("q", "c", "c")]
    facts = tuple(NamedAtom(*each) for each in (*pairs, ("s", "a", "b"), ("s", "c", "a")))
    rule = NamedRule(NamedAtom("p", x, y), (NamedAtom("p", x, y), NamedAtom("s", x, y)))
    graph = KnowledgeGraph("pairs", train=facts, test=facts[: len(pairs)], rules=(rule,))
    run = Run(graph, Limits(max_depth=1, max_atoms=2, exclude_query=excludes), num_corruptions=0)
    pipeline = reference_pipeline(run)
    candidates = pipeline.draw_for(run)
    engine = CompiledEngine(
        graph.program,
        run.limits,
        run.policy,
        mode="fused",
        device="cpu",
        layout=choose_layout(run.limits, slots=8, pool=8),
    )
    found, wanted = engine.prove(candidates), pipeline.engine.prove(candidates)
    outcome = Outcome.FAILED if excludes else Outcome.PROVED
    assert found.candidates.outcome.tolist() == [outcome] * len(candidates.query)
    for group, other in zip(found[:3], wanted[:3], strict=True):
        for name, column, expected in zip(group._fields, group, other, strict=True):
            np.testing.assert_array_equal(column, expected, name)


@pytest.mark.parametrize("num_facts", [70, 150])
@pytest.mark.parametrize("max_resolvents", [1, 2, 64, 69, 70, 150])
def test_a_full_step_without_a_record_ends_as_one_with_it(num_facts: int, max_resolvents: int) -> None:
    """The clauses after the last resolvent kept may prove the goal, or be the first that are dropped."""
    x, y, u, v, w = map(Variable, "XYUVW")
    rules = (
        NamedRule(NamedAtom("p", x, y), (NamedAtom("q", u, v), NamedAtom("r", v, u))),
        NamedRule(NamedAtom("s", x, y), (NamedAtom("q", u, v), NamedAtom("t", v, w))),
    )
    facts = tuple(NamedAtom("q", f"a{i:03}", f"b{i:03}") for i in range(num_facts))
    proof = NamedAtom("r", f"b{num_facts - 1:03}", f"a{num_facts - 1:03}")
    test = (NamedAtom("p", "a000", "b000"), NamedAtom("s", "a000", "b000"))
    graph = KnowledgeGraph("full", train=(*facts, proof, NamedAtom("t", "c", "c")), test=test, rules=rules)
    limits = Limits(max_resolvents=max_resolvents, max_atoms=2)
    run = Run(graph, limits, SHORTEST, num_corruptions=0)
    pipeline = reference_pipeline(run)
    candidates = pipeline.draw_for(run)
    engine = CompiledEngine(
        graph.program, limits, SHORTEST, mode="fused", device="cpu", layout=choose_layout(limits, slots=4, pool=5)
    )
    wanted, found = pipeline.engine.prove(candidates).candidates, engine.evaluate(candidates).results
    assert {*wanted.outcome.tolist()} == {Outcome.PROVED, Outcome.FAILED}
    for column, expected in zip(found, (wanted.outcome, wanted.is_limited, wanted.log_probability), strict=True):
        np.testing.assert_allclose(column, expected)


def test_close_choices_are_made_again_in_float64_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_choice, "resolve_precision", lambda *_: "bf16")
    monkeypatch.setattr(ticks, "sample_size", lambda _: 8)
    x, y = Variable("X"), Variable("Y")
    names = ("s", "t", "u")
    rules = tuple(NamedRule(NamedAtom("p", x, y), (NamedAtom(name, x, y),)) for name in names)
    facts = tuple(NamedAtom(name, "a", "b") for name in ("p", *names))
    graph = KnowledgeGraph(
        "choices", train=facts, test=tuple(NamedAtom("p", a, b) for a in "ab" for b in "ab"), rules=rules
    )
    limits = Limits(max_depth=1, max_atoms=2)
    policy = make_two_tower(graph.program, limits, seed=0, embedding=8, hidden=16, blocks=1)
    run = Run(graph, limits, policy, num_corruptions=0)
    pipeline = reference_pipeline(run)
    candidates = pipeline.draw_for(run).take(slice(0, None, 2))
    engine = CompiledEngine(
        graph.program, limits, policy, mode="fused", device="cpu", layout=choose_layout(limits, slots=4, pool=5)
    )
    found_ticks = engine._ticks
    assert isinstance(found_ticks, FusedTicks)
    # Two choices are made by 2.9, one by 0.87 between two resolvents; the third is 5.8 below.
    assert found_ticks.scoring is not None
    found_ticks.scoring = found_ticks.scoring._replace(margin=1.5)
    wanted, found = pipeline.engine.prove(candidates), engine.prove(candidates)
    assert found.steps.choice.tolist() == wanted.steps.choice.tolist()
    assert len({*found.steps.choice.tolist()}) > 1
    difference = np.abs(found.resolvents.score - wanted.resolvents.score)
    assert difference.max() < 0.1
    is_again = wanted.resolvents.score > 3.5
    assert is_again.sum() == 2
    assert difference[is_again].max() < 1e-5
    assert found_ticks.read_gaps()[:2] == (3, 1)
    # A candidate that waits after an interrupted run is not taken up by a step of a probe.
    engine._pool.size.add_(1)
    position = find_position(wanted, int(np.argmax(wanted.steps.num_resolvents)), 0)
    shown, expected = (each.probe(position) for each in (engine, pipeline.engine))
    np.testing.assert_allclose(shown[Stage.SCORE], expected[Stage.SCORE], atol=0.1)
    for stage in (Stage.CHOOSE, Stage.ADVANCE):
        assert shown[stage] == expected[stage]


def test_the_highest_score_is_chosen_and_the_first_of_equal_ones() -> None:
    slots, size = 60, 4
    rng = np.random.default_rng(0)
    num = rng.integers(1, size + 1, slots)
    first = np.cumsum(num) - num
    scores = rng.choice(np.array([0.0, 0.25, 3.0, np.nan], np.float32), num.sum(), p=[0.4, 0.3, 0.2, 0.1])
    is_taken, is_goal = (rng.random(slots) < 0.7 for _ in range(2))
    choice, log_probability = np.full(slots, 9), np.full(slots, 9.0)
    decisions = Decisions(
        torch.tensor(is_taken, dtype=torch.int32),
        torch.tensor(np.where(is_goal, GOAL, TRUE), dtype=torch.int32),
        *map(torch.tensor, (first, num, choice, log_probability)),
    )
    rows = RowBuffers(*torch.zeros(2, 1), torch.tensor(scores))
    launch_kernel(choose_kernel, 7, (decisions, rows), (slots,), BLOCK=4, num_warps=1)
    for slot in np.flatnonzero(is_taken):
        own = scores[first[slot] :][: num[slot]].astype(float)
        is_best = np.isnan(own) if np.isnan(own).any() else own == own.max()
        choice[slot] = is_best.argmax() if is_goal[slot] else 0
        log_probability[slot] = own[choice[slot]] - np.log(np.exp(own).sum()) if is_goal[slot] else 0.0
    np.testing.assert_array_equal(decisions.choice.numpy(), choice)
    np.testing.assert_allclose(decisions.log_probability.numpy(), log_probability, atol=1e-12)
    assert {*choice.tolist()} == {0, 1, 2, 3, 9}
    assert np.isnan(log_probability).any()


def test_a_log_of_steps_holds_three_replays_however_little_memory_there_is() -> None:
    layout = Layout(slots=5, atoms=2, resolvents=4, match_window=5, score_window=20, pool=5)
    noted: Any = SimpleNamespace(num_rows=torch.zeros((), dtype=torch.int32))
    log = StepLog(noted, Limits(), layout, 0)
    log.clear()
    # Nothing is logged, whatever may have been launched since.
    assert all(log.has_room() for _ in range(9))
    log._num_steps.fill_(3 * TICKS_PER_REPLAY * layout.slots)
    assert not all(log.has_room() for _ in range(3))
    log.clear()
    log._num_rows.fill_(3 * TICKS_PER_REPLAY * layout.score_window)
    assert not all(log.has_room() for _ in range(3))


def test_no_candidates_have_no_digests() -> None:
    engine = CompiledEngine(load_graph("countries").program, Limits(), SHORTEST, mode="fused", device="cpu")
    nobody = CandidateSet(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros((0, 3), np.int32))
    evaluation = engine.evaluate(nobody, has_digests=True)
    assert evaluation.digests is not None
    assert [len(each) for each in (evaluation.digests.num_steps, *evaluation.digests.digests)] == [0] * 4
    assert engine.evaluate(nobody).digests is None
    assert len(evaluation.results.outcome) == 0


class _HashKeys(NamedTuple):
    hash_keys: Tensor


def _renumber(predicate: int, first: int, second: int) -> list[list[int]]:
    """Return a goal of one atom, its variables numbered from -1 down, and a free row."""
    numbers = {
        variable: -1 - i for i, variable in enumerate(dict.fromkeys(each for each in (first, second) if each < 0))
    }
    return [[predicate, numbers.get(first, first), numbers.get(second, second)], [PAD] * 3]


@pytest.mark.parametrize("recycles", [True, False])
def test_slots_take_their_steps_and_ended_ones_the_next_candidates(recycles: bool) -> None:
    slots, num_begun, num_waiting, max_depth, size = 40, 32, 16, 3, 4
    layout = Layout(slots, 2, size, slots, slots * size, num_begun + num_waiting)
    nowhere = torch.device("cpu")
    rng = np.random.default_rng(1)
    state, pool = empty_derivations(layout, max_depth, nowhere), empty_pool(layout, nowhere)
    state.pool_index[:num_begun] = torch.tensor(rng.permutation(num_begun))
    state.outcome[:num_begun] = OPEN
    work = empty_work(layout, nowhere)
    for each in (state.depth, state.is_limited, state.query, state.goal, state.visited, pool.query, *work[:7]):
        each.copy_(torch.tensor(rng.integers(0, 3, each.shape)))
    state.log_probability.copy_(-torch.arange(slots))
    # Constants and variables in every arrangement.
    pool.query[:, 1:] -= 2
    pool.query[:, 0] += 7
    pool.size.fill_(num_begun + num_waiting)
    pool.next_index.fill_(num_begun)
    dropped = (work.dropped_atoms > 0) | (work.dropped_resolvents > 0)
    is_taken, kind = rng.random(slots) < 0.8, rng.choice([GOAL, TRUE, FALSE], slots)
    is_taken[num_begun:] = False
    choice = rng.integers(0, size, slots)
    decisions = Decisions(
        *(torch.tensor(each, dtype=torch.int32) for each in (is_taken, kind)),
        *(torch.tensor(each) for each in (np.arange(slots) * size, np.full(slots, size), choice)),
        torch.full((slots,), -0.5, dtype=torch.float64),
    )
    atoms = torch.tensor(rng.integers(-3, 9, (slots * size, 2, 3)), dtype=torch.int32)
    rows = RowBuffers(torch.zeros(1), atoms, torch.zeros(1))
    keys = torch.tensor([3, 5, 7, 11, 13, 17])
    after = _Derivations(*(each.clone() for each in state), torch.zeros((slots, max_depth), dtype=torch.int64))
    counts = _Counts(*torch.zeros((len(_Counts._fields), 1), dtype=torch.int32))
    num_steps = torch.full((layout.pool,), 9, dtype=torch.int32)
    launch_kernel(
        advance_kernel,
        3,
        (after, work, pool, _HashKeys(keys), decisions, rows, counts, num_steps),
        (slots, layout.atoms, max_depth, max_depth),
        RECYCLES=recycles,
        BLOCK=8,
        num_warps=1,
    )

    new, results = [], {}
    for slot in range(slots):
        pool_index, query, goal, depth, outcome, limited, total, visited = (each[slot].tolist() for each in state)
        hashed = [0] * max_depth

        def visit(atoms: list[list[int]], depth: int, visited: list[Any] = visited, hashed: list[int] = hashed) -> None:
            if depth < max_depth:
                visited[depth] = atoms
                hashed[depth] = sum(word * int(key) for word, key in zip(chain(*atoms), keys, strict=True))

        if is_taken[slot]:
            depth, total = depth + 1, total - 0.5
            goal = atoms[slot * size + choice[slot]].tolist() if kind[slot] == GOAL else [[PAD] * 3] * 2
            visit(goal, depth)
            limited |= bool(dropped[slot]) and kind[slot] != TRUE
            still = Outcome.DEPTH_LIMIT if depth >= max_depth else OPEN
            outcome = {TRUE: Outcome.PROVED, FALSE: Outcome.FAILED, GOAL: still}[int(kind[slot])]
        if recycles and outcome != OPEN:
            if pool_index != NO_CANDIDATE:
                results[pool_index] = outcome, limited, total, depth
            pool_index = int(after.pool_index[slot])
            if pool_index != NO_CANDIDATE:
                new.append(pool_index)
                query, depth, outcome, limited, total = pool.query[pool_index].tolist(), 0, OPEN, False, 0.0
                goal = _renumber(*query)
                visit(goal, 0)
        wanted = pool_index, query, goal, depth, outcome, limited, total, visited, hashed
        assert tuple(each[slot].tolist() for each in after) == wanted, slot
    assert sorted(new) == list(range(num_begun, layout.pool)) * recycles
    assert int(pool.next_index) == num_begun + len(new)
    assert (int(counts.left), int(counts.given)) == (-len(results), len(new))
    assert (after.pool_index == NO_CANDIDATE).any()
    for place in range(layout.pool):
        found = tuple(each[place].item() for each in (pool.outcome, pool.is_limited, pool.log_probability, num_steps))
        assert found == results.get(place, (OPEN, False, 0.0, 9)), place
    assert not any(each[is_taken].any() for each in (*work[:7], decisions.is_taken))
    assert all(each[~is_taken].any() for each in work[:7])


def test_the_error_of_a_precision_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "sample_size", lambda _: 8)
    limits, device = Limits(), torch.device("cpu")
    program = load_graph("countries").program
    policy = make_two_tower(program, limits, seed=1, embedding=8, hidden=16, blocks=1)
    built = ticks.build_scoring("bf16", policy, device)
    assert built is not None
    assert built.error == 0
    bf16 = ticks.measure_error(built, policy, limits.max_atoms, device)
    exact = built._replace(precision="bf16x3", parameters=build_tower_parameters(policy, "bf16x3", device))
    assert bf16.error > ticks.measure_error(exact, policy, limits.max_atoms, device).error > 0
    assert ticks.build_scoring("bf16", SHORTEST, device) is None
