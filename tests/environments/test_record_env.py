"""Recording a loop on its device: the trace is the one that the driver records of the same actions."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batched_walk import BatchedWalk, WalkAdapter

import kgverify as kv
from kgverify.environments.drive import Drive, Follower, Plan, Recorded
from kgverify.environments.protocol import Autoreset
from kgverify.environments.recording import read_recording, read_side
from kgverify.environments.trajectory import first_actions
from kgverify.environments.verify import compare_environments
from kgverify.kinds import compare
from kgverify.torch import trajectory_rows
from kgverify.trace.model.columns import are_equal
from kgverify.trace.model.digests import compute_digests

SLOTS, STEPS = 24, 30


def run_loop(
    path: Path, mode: Autoreset, *, share: float = 1.0, fault: int = -1, stop: int = STEPS, walk: Any = None
) -> None:
    """Record a loop. fault: the step at which slot 5 gets another reward; stop: the step before which the loop fails."""
    walk = walk or BatchedWalk(np.arange(SLOTS) + 3, mode)
    generator = torch.Generator().manual_seed(0)
    with kv.record_env(path, seeds=3, share=share, autoreset=mode.value) as recorder:
        recorder.reset(*walk.reset())
        for number in range(STEPS):
            if number == stop:
                raise RuntimeError("the loop fails")
            action = torch.randint(0, 3, (SLOTS,), generator=generator)
            observation, reward, terminated, truncated, mask, final = walk.step(action)
            reward[5] += number == fault
            value = reward.clone().requires_grad_()
            recorder.step(action, observation, reward, terminated, truncated, mask, final=final, value=value)
            if mode is Autoreset.DISABLED and walk.ended.any():
                which = walk.ended.clone()
                walk.begin(which)
                recorder.reset(*walk.show(), which=which)


@pytest.mark.parametrize("mode", Autoreset)
def test_a_recorded_loop_equals_what_the_driver_records_of_its_actions(
    mode: Autoreset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trajectory_rows, "MAX_CALLS", 7)
    run_loop(tmp_path / "run.h5", mode)
    side = read_side(tmp_path / "run.h5")
    num = int(
        np.bincount(np.repeat(np.arange(SLOTS), side.columns.candidates.num_steps)[side.columns.steps.kind == 1]).min()
    )
    recorded = first_actions(side.columns, num)
    adapter = WalkAdapter(mode, SLOTS)
    drive = Drive(adapter, Plan(np.arange(SLOTS) + 3, num), Follower(Recorded(recorded, adapter.actions)))
    expected = drive.run()
    steps = expected.steps._replace(value=recorded.steps.value)
    assert are_equal(expected._replace(steps=steps), recorded)
    assert (side.columns.steps.terminated.any(), side.columns.steps.truncated.any()) == (True, True)
    assert (side.names, side.dtypes) == (
        {n: drive.names[n] for n in side.names},
        {n: drive.dtypes[n] for n in side.dtypes},
    )


def test_the_digests_of_the_device_are_those_of_the_columns_and_cover_every_slot(tmp_path: Path):
    run_loop(tmp_path / "whole.h5", Autoreset.SAME_STEP)
    run_loop(tmp_path / "some.h5", Autoreset.SAME_STEP, share=1 / 8)
    whole, digests, some = (read_recording(tmp_path / n) for n in ("whole.h5", "some.digests.h5", "some.h5"))
    assert (digests.digests.sequence == compute_digests(whole.columns, whole.schema).sequence).all()
    assert are_equal(digests.columns.candidates, whole.columns.candidates)
    assert len(some.columns.candidates.slot) == 3
    assert compare(digests, read_recording(tmp_path / "whole.digests.h5")).verdict is kv.Verdict.AGREE
    walk = partial(WalkAdapter, Autoreset.SAME_STEP)
    report, _ = compare_environments(walk, read_side(tmp_path / "some.h5"))
    assert report.verdict is kv.Verdict.AGREE, report


@pytest.mark.deep
def test_the_kernel_computes_the_digests_of_the_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton")
    from kgverify.torch import trajectory_kernel

    monkeypatch.setattr(trajectory_rows, "find_kernel", lambda device: trajectory_kernel.digest_rows)
    numbers = torch.linspace(-1, 1, 60, dtype=torch.float16).reshape(3, 20).clone()
    numbers[0, 0], numbers[1, 0] = torch.nan, -0.0
    with kv.record_env(tmp_path / "run.h5", share=1) as recorder:
        recorder.reset({"a": numbers, "b": torch.arange(3)})
        ends = torch.tensor([True, False, True])
        recorder.step(
            torch.zeros(3, 2), {"a": numbers, "b": torch.arange(3)}, torch.ones(3, 1), ends[:, None], hidden=numbers
        )
    # A reader compares the digests with the columns.
    trace = read_recording(tmp_path / "run.h5")
    assert trace.columns.steps.num_observed.tolist() == [21, 0, 21, 21, 21, 21, 0, 21]


def test_two_recordings_of_digests_show_the_slot_and_the_row_that_differ_first(tmp_path: Path):
    for name, fault in (("a", -1), ("b", 4)):
        run_loop(tmp_path / f"{name}.h5", Autoreset.NEXT_STEP, fault=fault)
    traces = [read_recording(tmp_path / f"{name}.digests.h5") for name in "ab"]
    (found,) = compare(*traces).divergences
    assert (found.atom, found.step) == ("seed 8, slot 5, start 0", 5)


def test_a_loop_that_fails_keeps_what_it_recorded(tmp_path: Path):
    with pytest.raises(RuntimeError):
        run_loop(tmp_path / "run.h5", Autoreset.SAME_STEP, stop=11)
    assert not (tmp_path / "run.h5").exists()
    side = read_side(tmp_path / "run.h5.partial")
    assert int((side.columns.steps.kind == 1).sum()) == 11 * SLOTS


def test_equal_numbers_have_equal_digests_and_other_shapes_are_refused(tmp_path: Path):
    numbers = torch.tensor([[0.0, 1.0, torch.nan], [-0.0, 1.0, -torch.nan]], dtype=torch.float16)
    with kv.record_env(tmp_path / "run.h5", share=1) as recorder:
        recorder.reset(numbers)
        recorder.step(torch.zeros(2), numbers, torch.tensor([0.0, -0.0]), torch.zeros(2))
        with pytest.raises(kv.UserError, match="observations has 2 numbers in each slot, expected 3"):
            recorder.step(torch.zeros(2), numbers[:, :2], torch.zeros(2), torch.zeros(2))
        with pytest.raises(kv.UserError, match="expected 2 rows"):
            recorder.step(torch.zeros(3), numbers, torch.zeros(2), torch.zeros(2))
    trace = read_recording(tmp_path / "run.h5")
    first, second = trace.digests.sequence.reshape(2, -1)
    assert (first == second).all()
    assert "steps.truncated" not in trace.fields
