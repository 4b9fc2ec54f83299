"""Fused ticks in Triton's interpreter take every step of the reference, with its digests, and show it when probed.

The engine has two slots, pools of three, and warps of four lanes: each of a few candidates waits, and takes up a slot again.
"""

from collections import Counter
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_checks import try_few_clauses_at_a_time

from kgverify import Stage
from kgverify.engines.protocol import STOPPED
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.outcomes import Outcome
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.state import GOAL, PAD, TRUE
from kgverify.runs.run import reference_pipeline
from kgverify.testing.problems.decode import SETTINGS
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import DEFAULT_SIZES, PolicySpec
from kgverify.trace.model.columns import concatenate, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.verification.replay import find_position

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.prover.execution.device import launch as launch_kernel
from kgverify.prover.fused import record, ticks
from kgverify.prover.fused.record import Decisions, DigestLog, RowBuffers, StepLog
from kgverify.prover.fused.resolve_kernels import MOST_ATOMS, MOST_RESOLVENTS
from kgverify.prover.fused.step_kernels import find_close_kernel
from kgverify.prover.fused.ticks import FusedTicks, _Close, _Tally
from kgverify.prover.tower.portable import CONTENDERS, CONTEST

SIZES = DEFAULT_SIZES._replace(slots=2, pool=3)


@pytest.fixture(autouse=True)
def _small_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("the kernels are compiled here, and tested elsewhere")
    monkeypatch.setattr(ticks, "_WARP", 4)
    try_few_clauses_at_a_time(monkeypatch)
    monkeypatch.setattr(record, "_LANES", 2)


@pytest.mark.parametrize(
    ("seed", "number", "policy"),
    [
        (9, 389, "shortest"),
        pytest.param(6, 87, "shortest", marks=pytest.mark.deep),
        pytest.param(9, 282, "two_tower", marks=pytest.mark.exhaustive),
    ],
)
def test_what_fused_ticks_record_and_show_is_what_the_reference_proves(
    seed: int, number: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = replace(next(islice(draw_problems(seed), number, None)), policy=PolicySpec(policy))
    merged = merge([problem])
    reference = reference_pipeline(merged.run)
    candidates = reference.draw_for(merged.run)
    expected = reference.engine.prove(candidates)
    assert (expected.steps.dropped_atoms > 0).any()
    assert len({*expected.candidates.outcome.tolist()}) > 1
    assert len(candidates.query) > SIZES.pool

    engine, eager = (compiled_maker(mode=mode)(merged.run, SIZES).engine for mode in ("fused", "eager"))
    assert isinstance(engine, CompiledEngine)
    assert isinstance(eager, CompiledEngine)
    assert isinstance(engine._ticks, FusedTicks)
    # So that every choice counts as close.
    engine._ticks.scoring = engine._ticks.scoring and engine._ticks.scoring._replace(error=50.0)
    monkeypatch.setattr(StepLog, "has_room", lambda _: policy == "shortest")
    ended: list[int] = []
    sent = []
    send = DigestLog.send
    monkeypatch.setattr(DigestLog, "send", lambda *given: sent.append(send(*given)) or sent[-1])
    parts = [each.read() for each in engine.record(candidates, ended.append)]
    assert sum(ended) == len(candidates.query)
    columns = concatenate([part for part, _ in parts])
    sequence = np.concatenate([digests for _, digests in parts if digests is not None])
    np.testing.assert_array_equal(sequence, compute_digests(columns).sequence)
    multiset = np.concatenate([each.wait().digests.multiset for each in sent])
    np.testing.assert_array_equal(multiset, compute_digests(columns).multiset)
    for group, other in zip(columns[:3], expected[:3], strict=True):
        for name, found, wanted in zip(group._fields, group, other, strict=True):
            if policy == "shortest" or name not in ("score", "log_probability"):
                np.testing.assert_array_equal(found, wanted, name)
            else:
                np.testing.assert_allclose(found, wanted, atol=1e-4, err_msg=name)

    # Nothing is above an infinite floor, so that only the last candidate takes a second step.
    floor = np.append(np.full(len(candidates.query) - 1, np.inf), -np.inf)
    found = engine.evaluate(candidates, floor=floor).results.outcome
    first_outcome = columns.steps.outcome[starts_of(columns.candidates.num_steps.astype(np.int64))[:-1]]
    stops = (floor > 0) & (first_outcome == Outcome.OPEN)
    assert stops.any()
    np.testing.assert_array_equal(found, np.where(stops, STOPPED, columns.candidates.outcome))
    np.testing.assert_array_equal(engine.evaluate(candidates).results.outcome, columns.candidates.outcome)

    # One step to TRUE, one to FALSE, and a first one.
    last = {int(outcome): row for row, outcome in enumerate(expected.candidates.outcome)}
    for row, step in ((last[Outcome.PROVED], -1), (last[Outcome.FAILED], -1), (0, 0)):
        position = find_position(expected, row, step % int(expected.candidates.num_steps[row]))
        shown, outputs = engine.probe(position), eager.probe(position)
        np.testing.assert_allclose(shown.pop(Stage.SCORE), outputs.pop(Stage.SCORE), atol=1e-4)
        assert shown == outputs


def _count_symbols(atoms: list[list[int]]) -> Counter[tuple[str, int]]:
    """Count predicates, and arguments: a second argument counts against a first one."""
    count: Counter[tuple[str, int]] = Counter()
    for predicate, first, second in atoms:
        count["predicate", predicate] += 1
        count["argument", first] += 1
        count["argument", second] -= 1
    return Counter({symbol: num for symbol, num in count.items() if num})


@pytest.mark.parametrize("size", [4, 8, 32])
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
    tally = _Tally(
        *(torch.zeros(slots, dtype=torch.int64) for _ in range(2)),
        torch.full((slots,), torch.inf),
    )
    close = _Close(torch.full((len(scores), CONTEST), 77, **ids), torch.zeros(1, **ids))
    launch_kernel(
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


@pytest.mark.parametrize("has_network", [False, True])
def test_gaps_are_counted_where_scores_are_rounded(has_network: bool) -> None:
    tally = _Tally(torch.tensor([2, 3]), torch.tensor([1, 0]), torch.tensor([0.5, 0.25]))
    of = SimpleNamespace(scoring=has_network or None, _tally=tally)
    assert FusedTicks.read_gaps(of) == ((5, 1, 0.25) if has_network else (0, 0, np.inf))


def test_the_kernels_take_the_goals_of_every_setting_that_is_drawn() -> None:
    limits = [setting.limits for setting in SETTINGS]
    assert max(each.max_atoms for each in limits) <= MOST_ATOMS
    assert max(each.max_resolvents for each in limits) <= MOST_RESOLVENTS


@pytest.mark.parametrize(("steps_less", "rows_less", "fits"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_a_log_has_room_for_a_replay_of_full_ticks(steps_less: int, rows_less: int, fits: bool) -> None:
    slots, rows = 3 * record.TICKS_PER_REPLAY, 10 * record.TICKS_PER_REPLAY
    log = SimpleNamespace(
        _ticks_since=0,
        _steps_seen=5,
        _rows_seen=7,
        _layout=SimpleNamespace(slots=3, score_window=10),
        _steps=SimpleNamespace(depth=range(5 + slots - steps_less)),
        _rows=SimpleNamespace(origin=range(7 + rows - rows_less)),
    )
    assert StepLog._fits(log) is fits
