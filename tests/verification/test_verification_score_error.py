"""The error of scores that is accepted is the judge's, whatever an engine declares."""

import msgspec
import pytest
from run_engines import UNEXPLAINED, ForeignEngine, countries_run, eager_pipeline, foreign_pipeline

from kgverify import EngineInfo, Equality, Limits, Verdict, load_graph
from kgverify.engines.policy import bound_score_errors, make_two_tower
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, reference_pipeline
from kgverify.trace.model.header import Header, PolicyInfo
from kgverify.trace.model.score_tolerance import UNIT_ROUNDOFF, bound_score_error, judge_tolerance
from kgverify.verification.verify import verify


class Boaster:
    """An engine that declares a larger error than another one, and is the same otherwise."""

    def __init__(self, pipeline: Pipeline, factor: float) -> None:
        self._engine, self._factor = pipeline.engine, factor

    @property
    def info(self) -> EngineInfo:
        info = self._engine.info
        return msgspec.structs.replace(info, score_error=self._factor * info.score_error)

    def __getattr__(self, name: str):
        return getattr(self._engine, name)


def weighted_run() -> Run:
    return countries_run("two_tower", num_queries=2, num_corruptions=4)


@pytest.mark.parametrize(("factor", "declares_more"), [(1, False), (1000, True)])
def test_an_engine_cannot_excuse_a_fault_by_a_large_error(factor: float, declares_more: bool):
    run = weighted_run()
    judged = evaluator_pipeline(run, faults=["tf32-scores"], mode="eager", device="cpu")
    judged = judged._replace(engine=Boaster(judged, factor))
    report = verify(
        run, reference_pipeline(run), judged, effort=UNEXPLAINED, equality=Equality(determinism=False)
    ).report
    assert (report.verdict, report.first_cause.stage) == (Verdict.DIVERGE, "score")
    notes = [note for note in report.notes if "which is not accepted" in note]
    assert bool(notes) is declares_more
    if declares_more:
        declared, bound = judged.engine.info.score_error, run.policy.info.score_errors["float32"]
        assert f"{declared:.3g}" in notes[0]
        assert f"{bound:.3g}" in notes[0]
        accepting = verify(
            run,
            reference_pipeline(run),
            judged,
            effort=UNEXPLAINED,
            equality=Equality(determinism=False, score_error=declared),
        ).report
        assert accepting.verdict is Verdict.AGREE
        assert any("the user accepts" in note for note in accepting.notes)


def test_a_sound_engine_declares_less_than_the_bound():
    run = weighted_run()
    report = verify(
        run, reference_pipeline(run), eager_pipeline(run), effort=UNEXPLAINED, equality=Equality(determinism=False)
    ).report
    assert report.verdict is Verdict.AGREE
    assert [note for note in report.notes if "within the bound" not in note and "a hit at" not in note] == []
    assert 0 < report.rounding.largest < report.rounding.bound
    assert 0 < report.environment.actual.score_error <= report.policy.score_errors["float32"]


def test_scores_of_shortest_have_no_error_to_declare():
    run = countries_run()
    engine = ForeignEngine(run, score_error=0.5)
    report = verify(
        run,
        reference_pipeline(run),
        foreign_pipeline(run, engine),
        effort=UNEXPLAINED,
        equality=Equality(determinism=False),
    ).report
    assert {rule.field: rule.rule for rule in report.equality}["resolvents.score"] == "equal"
    assert any("since the scores of `shortest` are exact" in note for note in report.notes)


def test_bounds_grow_with_the_roundoff_of_the_precision_and_do_not_depend_on_the_process():
    policy = make_two_tower(load_graph("countries").program, Limits(), seed=3)
    bounds = policy.info.score_errors
    assert bounds == bound_score_errors(policy.weights)
    assert list(bounds) == list(UNIT_ROUNDOFF)
    assert bounds["float64"] <= bounds["float32"] < bounds["bf16x3"] < bounds["tf32"] < bounds["bf16"]


def test_without_weights_the_bound_is_some_roundings_of_one_nat():
    unknown = PolicyInfo("theirs")
    assert bound_score_error(unknown, "float32") == 512 * 2.0**-24
    assert bound_score_error(unknown, "float16") == bound_score_error(unknown, "fp16")
    assert bound_score_error(unknown, "int3") == bound_score_error(unknown, "float32")
    header = Header(EngineInfo("theirs", precision="float32", score_error=1.0), Limits(), unknown, "")
    judged = judge_tolerance(header, header)
    assert judged.value == 2 * bound_score_error(unknown, "float32")
    texts = ("expected", "actual", f"scores within {judged.value:.3g} nats count as equal")
    assert [text in note for text, note in zip(texts, judged.notes, strict=True)] == [True, True, True]
    assert "since the weights are unknown" in judged.notes[0]
