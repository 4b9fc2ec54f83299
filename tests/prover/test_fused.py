"""The kernels of fused ticks, each by its definition, in Triton's interpreter."""

from collections import Counter
from itertools import chain
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from engine_checks import CPU, known
from torch import Tensor

from kgverify import Limits, Stage, load_graph
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.program.outcomes import Outcome
from kgverify.prover import execution_choice
from kgverify.prover.execution_choice import choose_layout, estimate_bytes
from kgverify.prover.program.tables import build_tables
from kgverify.prover.state import FALSE, GOAL, NO_CANDIDATE, OPEN, PAD, TRUE, Layout
from kgverify.prover.tick.tick import TICKS_PER_REPLAY, empty_derivations, empty_pool, empty_work
from kgverify.trace.model.column_reader import MemoryReader
from kgverify.verification.replay import find_position

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.prover.execution.device import compile_ahead, launch
from kgverify.prover.fused import ticks
from kgverify.prover.fused.record import Decisions, RowBuffers, StepLog
from kgverify.prover.fused.step_kernels import advance_kernel, choose_kernel, find_close_kernel
from kgverify.prover.fused.ticks import FusedTicks, _Close, _Counts, _Derivations, _Tally
from kgverify.prover.tower.launch import build_tower_parameters
from kgverify.prover.tower.portable import CONTENDERS, CONTEST

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels are compiled here, and tested in test_modes"
)


def test_close_choices_are_made_again_in_float64_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_choice, "resolve_precision", lambda *_: "bf16")
    monkeypatch.setattr(ticks, "sample_size", lambda _: 8)
    limits = Limits(max_depth=1, max_atoms=2)
    rules = "; ".join(f"p(X,Y) {name}(X,Y)" for name in "stu")
    case = known("p(a,b) s(a,b) t(a,b) u(a,b)", rules, "p(a,a) p(a,b) p(b,a) p(b,b)", limits, slots=4, pool=5)
    policy = make_two_tower(case.program, case.limits, seed=0, embedding=8, hidden=16, blocks=1)
    case = case._replace(policy=policy)
    engine = case.make("fused")
    found_ticks = engine._ticks
    assert isinstance(found_ticks, FusedTicks)
    # Two choices are made by 2.9, one by 0.87 between two resolvents; the third is 5.8 below.
    assert found_ticks.scoring is not None
    found_ticks.scoring = found_ticks.scoring._replace(margin=1.5)
    wanted, found = case.expected, engine.prove(case.candidates)
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
    position = find_position(MemoryReader(wanted), int(np.argmax(wanted.steps.num_resolvents)), 0)
    shown, expected = engine.probe(position), case.reference.probe(position)
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
    launch(choose_kernel, 7, (decisions, rows), (slots,), BLOCK=4, num_warps=1)
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
    rng = np.random.default_rng(1)
    state, pool = empty_derivations(layout, max_depth, CPU), empty_pool(layout, CPU)
    state.pool_index[:num_begun] = torch.tensor(rng.permutation(num_begun))
    state.outcome[:num_begun] = OPEN
    work = empty_work(layout, CPU)
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
    launch(
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
    limits, device = Limits(), CPU
    program = load_graph("countries").program
    policy = make_two_tower(program, limits, seed=1, embedding=8, hidden=16, blocks=1)
    built = ticks.build_scoring("bf16", policy, device)
    assert built is not None
    assert built.error == 0
    bf16 = ticks.measure_error(built, policy, limits.max_atoms, device)
    exact = built._replace(precision="bf16x3", parameters=build_tower_parameters(policy, "bf16x3", device))
    assert bf16.error > ticks.measure_error(exact, policy, limits.max_atoms, device).error > 0
    assert ticks.build_scoring("bf16", SHORTEST, device) is None


def _count_symbols(atoms: list[list[int]]) -> Counter[tuple[str, int]]:
    """Count predicates, and arguments: a second argument counts against a first one."""
    count: Counter[tuple[str, int]] = Counter()
    for predicate, first, second in atoms:
        count["predicate", predicate] += 1
        count["argument", first] += 1
        count["argument", second] -= 1
    return Counter({symbol: num for symbol, num in count.items() if num})


@pytest.mark.parametrize("size", [4, pytest.param(32, marks=pytest.mark.deep)])
def test_choices_are_close_that_another_resolvent_could_win(size: int) -> None:
    margin, slots = 0.25, 160
    rng = np.random.default_rng(size)
    num = rng.integers(1, size + 1, slots)
    first = np.cumsum(num) - num
    scores = rng.choice([0.0, 0.125, 0.25, 1.0], num.sum()).astype(np.float32)
    words = rng.integers(0, 2, (num.sum(), 2, 3)) - [0, 1, 1]
    words[rng.random(num.sum()) < 0.2, 1] = PAD
    symbols = [_count_symbols(row.tolist()) for row in words]
    is_taken, kind = (rng.random(slots) < share for share in (0.8, 0.8))
    ids = {"dtype": torch.int32}
    decisions = Decisions(
        torch.tensor(is_taken, **ids),
        torch.tensor(np.where(kind, GOAL, TRUE), **ids),
        *(torch.tensor(each, dtype=torch.int64) for each in (first, num)),
        torch.zeros(slots, dtype=torch.int64),
        torch.zeros(slots, dtype=torch.float64),
    )
    rows = RowBuffers(
        torch.tensor(np.repeat(np.arange(slots), num), **ids), torch.tensor(words, **ids), torch.tensor(scores)
    )
    tally = _Tally(*(torch.zeros(slots, dtype=torch.int64) for _ in range(2)), torch.full((slots,), torch.inf))
    close = _Close(torch.full((len(scores), CONTEST), 77, **ids), torch.zeros(1, **ids))
    launch(
        find_close_kernel,
        7,
        (decisions, rows, tally, close),
        (slots, margin, 2),
        CONTENDERS=CONTENDERS,
        BLOCK=size,
        num_warps=1,
    )

    wanted, wanted_scores, is_rewritten = {}, scores.copy(), False
    for slot in range(slots):
        own = np.arange(first[slot], first[slot] + num[slot])
        best = own[np.argmax(scores[own])]
        is_asked = is_taken[slot] and kind[slot] and num[slot] > 1
        others = [row for row in own if row != best]
        if scores[best] - max((scores[row] for row in others), default=-np.inf) <= margin:
            # Resolvents with the same symbols win or lose together, however their scores were rounded.
            contend = [row for row in own if scores[row] >= scores[best] - margin]
            twins = [row for row in contend if symbols[row] == symbols[best]]
            others = [row for row in own if row not in twins]
            if is_asked:
                wanted_scores[twins] = scores[best]
                is_rewritten |= any((words[row] != words[best]).any() for row in twins if scores[row] < scores[best])
        gap = scores[best] - max((scores[row] for row in others), default=-np.inf)
        is_close = is_asked and gap <= margin
        if is_close:
            wanted[slot] = [row for row in own if scores[row] >= scores[best] - margin]
        assert int(tally.num_choices[slot]) == is_asked
        assert int(tally.num_rescored[slot]) == is_close
        assert float(tally.smallest[slot]) == (gap if is_asked else np.inf)
    assert len(wanted) > 1
    assert is_rewritten
    np.testing.assert_array_equal(rows.score.numpy(), wanted_scores)
    found: dict[int, list[int]] = {}
    for slot, *contending in close.contests[: int(close.num_contests)].tolist():
        found.setdefault(slot, []).extend(row for row in contending if row >= 0)
    assert {slot: sorted(contending) for slot, contending in found.items()} == wanted
    assert int(close.num_contests) == sum(-(-len(contending) // CONTENDERS) for contending in wanted.values())


@pytest.mark.parametrize(("hidden", "precision"), [(300, "fp16"), (4, "float32")])
def test_the_estimate_of_fused_ticks_counts_the_features_of_every_precision(hidden: int, precision: str) -> None:
    program, limits, meta = load_graph("countries").program, Limits(), torch.device("meta")
    policy = make_two_tower(program, limits, seed=1, embedding=8, hidden=hidden, blocks=1)
    layout = choose_layout(limits, slots=1 << 16, score_window=1 << 16)
    buffers = empty_derivations(layout, limits.max_depth, meta), empty_work(layout, meta), empty_pool(layout, meta)
    tables = build_tables(program, layout.atoms, meta)
    made = FusedTicks(tables, limits, layout, ticks.build_scoring(precision, policy, meta), buffers)
    of_features = made._features.nbytes
    wide, narrow = (estimate_bytes(layout, limits, each, is_fused=True) for each in (policy, SHORTEST))
    assert wide - narrow >= of_features > 0


class Kernel:
    """Notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: self.calls.append(("run", grid, arguments, options))

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.calls.append(("compile", grid, arguments, options))
        if not arguments:
            raise ValueError("no such kernel")


def test_what_is_compiled_ahead_is_launched_afterwards_even_after_a_failure() -> None:
    kernel = Kernel()
    compile_ahead(lambda: launch(kernel, 3, (1,), (2,), BLOCK=8))
    launch(kernel, 3, (1,), (2,), BLOCK=8)
    assert kernel.calls == [(what, (3,), (1, 2), {"BLOCK": 8}) for what in ("compile", "run")]
    with pytest.raises(ValueError, match="no such kernel"):
        compile_ahead(lambda: launch(kernel, 1, ()))
    launch(kernel, 1, ())
    assert [what for what, *_ in kernel.calls] == ["compile", "run", "compile", "run"]
