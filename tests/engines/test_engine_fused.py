"""Fused ticks in Triton's interpreter take every step of the reference, with its digests, and show it when probed.

The engine has two slots, pools of three, and warps of four lanes: each of a few candidates waits, and takes up a slot again.
"""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from kgverify.engines.compiled.engine import CompiledEngine
from kgverify.program.outcomes import Outcome
from kgverify.program.stages import Stage
from kgverify.runs.run import reference_pipeline
from kgverify.testing.checking.engine_makers import compiled_maker
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import DEFAULT_SIZES, PolicySpec
from kgverify.trace.model.columns import concatenate
from kgverify.trace.model.digests import compute_digests
from kgverify.verification.replay import find_position

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.engines.compiled.fused import ticks
from kgverify.engines.compiled.fused.record import StepLog
from kgverify.engines.compiled.fused.ticks import FusedTicks

SIZES = DEFAULT_SIZES._replace(slots=2, pool=3)


@pytest.fixture(autouse=True)
def _small_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("the kernels are compiled here, and tested elsewhere")
    for name, value in (("_LIGHT_ROUNDS", 1), ("_HEAVY_ROUNDS", 1), ("_WARP", 4), ("_HEAVY_BLOCK", 16)):
        monkeypatch.setattr(ticks, name, value)
    monkeypatch.setattr(ticks, "_HEAVY_PROGRAMS", 2)


@pytest.mark.parametrize(
    ("seed", "number", "policy"),
    [
        (9, 94, "shortest"),
        pytest.param(6, 87, "shortest", marks=pytest.mark.deep),
        pytest.param(9, 94, "two_tower", marks=pytest.mark.deep),
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
    engine._ticks.levels = tuple(level._replace(error=50.0) for level in engine._ticks.levels)
    monkeypatch.setattr(StepLog, "has_room", lambda _: policy == "shortest")
    ended: list[int] = []
    parts = [each.read() for each in engine.record(candidates, ended.append)]
    assert sum(ended) == len(candidates.query)
    columns = concatenate([part for part, _ in parts])
    sequence = np.concatenate([digests for _, digests in parts if digests is not None])
    np.testing.assert_array_equal(sequence, compute_digests(columns).sequence)
    for group, other in zip(columns[:3], expected[:3], strict=True):
        for name, found, wanted in zip(group._fields, group, other, strict=True):
            if policy == "shortest" or name not in ("score", "log_probability"):
                np.testing.assert_array_equal(found, wanted, name)
            else:
                np.testing.assert_allclose(found, wanted, atol=1e-4, err_msg=name)

    # One step to TRUE, one to FALSE, and a first one.
    last = {int(outcome): row for row, outcome in enumerate(expected.candidates.outcome)}
    for row, step in ((last[Outcome.PROVED], -1), (last[Outcome.FAILED], -1), (0, 0)):
        position = find_position(expected, row, step % int(expected.candidates.num_steps[row]))
        shown, outputs = engine.probe(position), eager.probe(position)
        np.testing.assert_allclose(shown.pop(Stage.SCORE), outputs.pop(Stage.SCORE), atol=1e-4)
        assert shown == outputs
