"""The reference and every mode: right ones are timed, the speed of wrong ones is withheld, unavailable ones are listed."""

import numpy as np
import pytest
import torch
from bench_runs import TINY, small_run, tiny_plan

from kgverify.bench.modes import measure_modes
from kgverify.bench.result import BenchResult, State, decode_result, encode_result
from kgverify.bench.table import render_result
from kgverify.engines.protocol import Engine
from kgverify.errors import UserError
from kgverify.progress import no_progress
from kgverify.prover.execution.compilation import MODES
from kgverify.prover.faults.plant import plant_faults
from kgverify.prover.state import Layout
from kgverify.runs.engine_makers import evaluator_pipeline

STAND_INS = ("eager", "default")


class Builder:
    """The evaluator run eagerly whatever the mode, with a fault in some modes; counts the ticks that its last one took."""

    def __init__(self, run, faults_of=None):
        self.run, self.faults_of = run, faults_of or {}
        self.num_ticks = 0

    def __call__(self, mode: str, layout: Layout) -> Engine:
        faults = self.faults_of.get(mode, ())
        if faults:
            return evaluator_pipeline(
                self.run, faults=faults, mode="eager", device="cpu", layout=layout, precision="float32"
            ).engine
        stages = plant_faults(self.run.limits, self.run.policy, ()).stages
        select = stages.select
        self.num_ticks = 0

        def count(goal):
            self.num_ticks += 1
            return select(goal)

        stages = stages._replace(select=count)
        return evaluator_pipeline(self.run, mode="eager", device="cpu", layout=layout, stages=stages).engine


@pytest.fixture(scope="module")
def measured() -> tuple[BenchResult, int]:
    builder = Builder(small_run())
    result = measure_modes(small_run(), tiny_plan("eager"), builder)
    # Two to warm up, three in the steady state, one to count.
    num, rest = divmod(builder.num_ticks, 6)
    assert rest == 0
    return result, num


def test_what_agrees_is_timed_with_warm_up_apart_from_the_steady_state(measured):
    result, _ = measured
    assert [(each.name, each.state) for each in result.measurements] == [
        ("reference", State.TIMED),
        ("eager", State.TIMED),
    ]
    assert (result.is_right, result.is_complete) == (True, True)
    for each in result.measurements:
        assert len(each.samples) == 3
        assert None not in (each.build_seconds, each.first_seconds, each.second_seconds)
    eager = result.find("eager")
    assert eager.compile_seconds == 0.0
    assert eager.num_units == result.work.num_candidates == 8


def test_the_reference_proves_a_sample_and_eager_is_compared_with_it(measured):
    result, _ = measured
    assert result.find("reference").num_units == TINY.sample
    (agreement,) = result.find("eager").agreements
    assert (agreement.against, agreement.num_compared, agreement.num_differing) == ("reference", TINY.sample, 0)


def test_the_reported_ticks_are_those_taken(measured):
    result, num_ticks = measured
    assert result.find("eager").ticks == num_ticks > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="on CUDA launches are counted")
def test_what_cannot_be_looked_at_on_a_cpu_is_said(measured):
    result, _ = measured
    eager = result.find("eager")
    assert eager.launches is eager.device_seconds is None
    assert "CPU" in eager.unmeasured["launches"]
    assert (eager.peak_bytes is None) == ("memory" in eager.unmeasured)


def test_a_result_is_the_same_after_json(measured):
    result, _ = measured
    assert decode_result(encode_result(result), "here") == result


def test_the_environment_tells_what_speeds_depend_on(measured):
    environment = measured[0].environment
    assert environment.torch == str(torch.__version__)
    assert environment.threads == torch.get_num_threads()
    assert environment.device_name
    assert measured[0].work.graph_sha256 == small_run().graph.program.sha256


def test_a_mode_with_a_fault_is_wrong_and_its_speed_is_withheld():
    run = small_run()
    result = measure_modes(run, tiny_plan(*STAND_INS), Builder(run, {"default": ("fact-cap",)}))
    wrong = result.find("default")
    assert wrong.state is State.WRONG
    assert not result.is_right
    assert wrong.samples == ()
    assert wrong.first_seconds is wrong.second_seconds is wrong.build_seconds is wrong.compile_seconds is None
    differing = {each.against: each.num_differing for each in wrong.agreements}
    assert differing["eager"] > 0
    assert "here failed" in next(each.example for each in wrong.agreements if each.num_differing)
    assert result.find("eager").state is State.TIMED
    printed = "\n".join(render_result(result))
    assert printed.startswith("WRONG")
    assert "default          WRONG, speed withheld" in printed


def test_eager_with_a_fault_is_caught_by_the_reference_and_so_is_what_agrees_with_it():
    run = small_run()
    builder = Builder(run, dict.fromkeys(STAND_INS, ("fact-cap",)))
    result = measure_modes(run, tiny_plan(*STAND_INS), builder)
    assert [each.state for each in result.measurements] == [State.TIMED, State.WRONG, State.WRONG]
    of_default = {each.against: each.num_differing for each in result.find("default").agreements}
    assert of_default["eager"] == 0 < of_default["reference"]


@pytest.mark.deep
def test_a_mode_that_goes_wrong_at_a_later_call_is_wrong():
    run = small_run()
    sound = Builder(run)

    class Tiring:
        def __init__(self, engine: Engine) -> None:
            self._engine, self._num_calls = engine, 0
            self.info, self.prove, self.step = engine.info, engine.prove, engine.step

        def evaluate(self, candidates, progress=no_progress):
            self._num_calls += 1
            ended = self._engine.evaluate(candidates, progress)
            if self._num_calls < 4:
                return ended
            results = ended.results
            return ended._replace(results=results._replace(log_probability=results.log_probability - 0.5))

    def build(mode: str, layout: Layout) -> Engine:
        engine = sound(mode, layout)
        return Tiring(engine) if mode == "default" else engine

    wrong = measure_modes(run, tiny_plan(*STAND_INS), build).find("default")
    assert (wrong.state, wrong.reason, wrong.samples) == (State.WRONG, "call 4 differs", ())


def test_a_nan_log_probability_is_wrong():
    run = small_run()
    sound = Builder(run)

    class Nameless:
        def __init__(self, engine: Engine) -> None:
            self._engine = engine
            self.info, self.prove, self.step = engine.info, engine.prove, engine.step

        def evaluate(self, candidates, progress=no_progress):
            ended = self._engine.evaluate(candidates, progress)
            results = ended.results
            return ended._replace(results=results._replace(log_probability=results.log_probability * np.nan))

    def build(mode: str, layout: Layout) -> Engine:
        engine = sound(mode, layout)
        return Nameless(engine) if mode == "default" else engine

    assert measure_modes(run, tiny_plan(*STAND_INS), build).find("default").state is State.WRONG


def test_a_policy_with_products_agrees_within_its_error():
    run = small_run("two_tower")
    result = measure_modes(run, tiny_plan("eager"), Builder(run))
    assert result.find("eager").state is State.TIMED
    (agreement,) = result.find("eager").agreements
    assert 0 < agreement.largest_gap < 1e-3


@pytest.mark.deep
def test_without_eager_among_the_modes_others_are_compared_with_it_all_the_same():
    run = small_run()
    result = measure_modes(run, tiny_plan("default"), Builder(run))
    assert [each.name for each in result.measurements] == ["reference", "default"]
    assert {each.against for each in result.find("default").agreements} == {"reference", "eager"}


@pytest.mark.deep
def test_modes_that_a_cpu_does_not_have_are_listed_with_the_reason():
    run = small_run()
    result = measure_modes(run, tiny_plan(modes=None), Builder(run))
    assert [each.name for each in result.measurements] == ["reference", *MODES]
    for name in ("reduce-overhead", "max-autotune", "fused"):
        assert result.find(name).state is State.ABSENT
        assert "CPU" in result.find(name).reason
    printed = "\n".join(render_result(result))
    assert "fused            not measured: it needs a CUDA device" in printed


def test_a_mode_that_raises_has_failed_and_the_others_continue():
    run = small_run()
    sound = Builder(run)

    def build(mode: str, layout: Layout) -> Engine:
        if mode == "default":
            raise ZeroDivisionError("in the compiler\nat a place")
        return sound(mode, layout)

    result = measure_modes(run, tiny_plan("default", "max-autotune"), build)
    failed = result.find("default")
    assert (failed.state, failed.reason) == (State.FAILED, "ZeroDivisionError: in the compiler at a place")
    assert not result.is_right
    assert result.find("max-autotune").state is State.TIMED


def test_an_unavailable_mode_is_absent_and_nothing_is_wrong():
    run = small_run()
    sound = Builder(run)

    def build(mode: str, layout: Layout) -> Engine:
        if mode == "default":
            raise UserError("needs a compiler", where="--mode")
        return sound(mode, layout)

    result = measure_modes(run, tiny_plan(*STAND_INS), build)
    assert (result.find("default").state, result.find("default").reason) == (State.ABSENT, "needs a compiler")
    assert result.is_right


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_calls", [0, 4])
def test_an_interruption_keeps_what_was_measured(num_calls):
    run = small_run()
    sound = Builder(run)

    class Impatient:
        def __init__(self, engine: Engine) -> None:
            self._engine, self._num_calls = engine, 0
            self.info, self.prove, self.step = engine.info, engine.prove, engine.step

        def evaluate(self, candidates, progress=no_progress):
            if self._num_calls == num_calls:
                raise KeyboardInterrupt
            self._num_calls += 1
            return self._engine.evaluate(candidates, progress)

    def build(mode: str, layout: Layout) -> Engine:
        engine = sound(mode, layout)
        return Impatient(engine) if mode == "default" else engine

    result = measure_modes(run, tiny_plan("eager", "default", "max-autotune"), build)
    assert not result.is_complete
    states = [each.state for each in result.measurements]
    assert states == [State.TIMED, State.TIMED, State.INTERRUPTED, State.ABSENT]
    assert len(result.find("default").samples) == max(0, num_calls - 2)
    assert "interrupted" in result.find("max-autotune").reason
    assert decode_result(encode_result(result), "here") == result
    assert render_result(result)[0].startswith("MEASURED, INTERRUPTED")


def test_mistakes_are_reported_before_anything_is_proved():
    run = small_run()
    with pytest.raises(UserError, match="did you mean 'eager'"):
        measure_modes(run, tiny_plan("eagre"))
    with pytest.raises(UserError, match="unknown precision"):
        measure_modes(run, tiny_plan(precision="float13"))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="needs a CUDA device"):
            measure_modes(small_run("two_tower"), tiny_plan(precision="bf16"))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="launches and device time need a CUDA device")
def test_on_cuda_launches_device_time_and_memory_are_measured():
    result = measure_modes(small_run(), tiny_plan("eager", "reduce-overhead", "fused", device="cuda"))
    assert result.is_right, render_result(result)
    for name in ("eager", "reduce-overhead", "fused"):
        each = result.find(name)
        assert each.state is State.TIMED
        assert min(each.launches, each.ticks, each.device_seconds, each.peak_bytes) > 0
    assert result.find("fused").launches < result.find("eager").launches
