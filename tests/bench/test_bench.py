"""Engines are compared before they are timed, and only those that agree have a speed."""

import pytest

import kgverify as kv
from kgverify import Job
from kgverify.api.inputs import make_pipeline
from kgverify.bench import BenchResult, Contender, Size, State, measure_engines
from kgverify.dialects import ReferenceEngine
from kgverify.runs.job import Proofs, Source

SIZE = Size(queries=1, corruptions=3, sample=5, seconds=0.0)


class Unsteady(ReferenceEngine):
    """An engine that gives other log-probabilities at each call."""

    num_calls = 0

    def prove(self, candidates, progress=lambda num: None):
        self.num_calls += 1
        columns = super().prove(candidates, progress)
        ends = columns.candidates
        return columns._replace(candidates=ends._replace(log_probability=ends.log_probability - self.num_calls))


def measure(*engines: object, is_optional: bool = False, policy: str = "shortest", **options: object) -> BenchResult:
    queries = kv.Queries(1, corruptions=3)
    job = Job(Source("countries"), queries, proofs=Proofs(kv.Limits(max_depth=6), policy))
    run = job.make_run()

    def contend(engine: object, number: int) -> Contender:
        def make() -> kv.Engine:
            return make_pipeline(kv.Evaluator(**options) if number and engine == "compiled" else engine, run).engine

        return Contender(f"engine {number}", make, is_optional)

    reference, *others = (contend(engine, number) for number, engine in enumerate(("reference", *engines)))
    return measure_engines(run, reference, others, size=SIZE)


def test_engines_that_agree_are_timed_and_compared_with_the_reference_and_the_first_one():
    result = measure("reference", ReferenceEngine)
    assert result.is_right
    reference, first, second = result.measurements
    assert (reference.num_candidates, first.num_candidates) == (5, 8)
    assert [each.against for each in second.agreements] == ["engine 0", "engine 1"]
    assert [each.num_compared for each in second.agreements] == [5, 8]
    for each in result.measurements:
        assert each.state is State.TIMED
        assert len(each.seconds) == 3
        low, median, high = each.quartiles
        assert 0 < low <= median <= high
        assert each.warm_up_seconds > 0
    assert {"kgverify", "python", "processor"} <= result.machine.keys()


def test_scores_in_float32_agree_but_for_near_ties():
    result = measure("compiled", policy="two_tower", mode="eager", device="cpu")
    assert result.is_right


def test_an_engine_that_differs_has_no_speed():
    result = measure("compiled", mode="eager", device="cpu", faults="fact-cap")
    assert not result.is_right
    found = result.measurements[1]
    assert (found.state, found.seconds, found.quartiles) == (State.DIFFERS, [], None)
    assert found.agreements[0].num_differing > 0


def test_an_engine_that_does_not_repeat_itself_has_no_speed():
    found = measure(Unsteady).measurements[1]
    assert (found.state, found.seconds) == (State.DIFFERS, [])
    assert "repeat" in found.reason


def test_a_mode_that_is_unavailable_is_reported_and_a_named_engine_raises():
    found = measure("compiled", "reference", is_optional=True, mode="fast").measurements[1]
    assert found.state is State.UNAVAILABLE
    assert "found 'fast'" in found.reason
    with pytest.raises(kv.UserError, match="found 'fast'"):
        measure("compiled", mode="fast")
