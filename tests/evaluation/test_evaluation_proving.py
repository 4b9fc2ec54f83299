"""Running out of memory is an error that names the options that need less; other errors stay unchanged."""

import pytest
import torch
from run_engines import countries_run, eager_pipeline

from kgverify import EngineInfo, UserError
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.parts import ChoiceStatistics
from kgverify.evaluation.proving import explain_out_of_memory
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Pipeline


class Failing:
    """Proves one candidate; more are too many."""

    def __init__(self, error: Exception, pipeline: Pipeline) -> None:
        self._error, self._inner = error, pipeline.engine

    @property
    def info(self) -> EngineInfo:
        return self._inner.info

    def prove(self, candidates, progress=None):
        raise AssertionError

    step = prove

    def evaluate(self, candidates, progress=lambda num: None):
        if len(candidates.query) > 1:
            raise self._error
        return self._inner.evaluate(candidates, progress)


@pytest.mark.parametrize("rank_only", [False, True])
def test_running_out_of_memory_names_the_options_that_need_less(rank_only: bool):
    run = countries_run(num_queries=1)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.50 GiB. GPU 0 has a total.\nmore")
    pipeline = Pipeline(Failing(error, eager_pipeline(run, slots=16)), draw_candidates, rank_candidates)
    with pytest.raises(UserError, match=r"16 slots \(CUDA out of memory\. Tried to allocate 9\.50 GiB\)") as caught:
        evaluate(run, pipeline, EvaluationSettings(rank_only=rank_only))
    assert caught.value.where == "memory"
    assert "fewer slots" in caught.value.fix


def test_an_allocation_failure_that_caused_another_error_is_recognized():
    def fail() -> None:
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        except RuntimeError as error:
            raise RuntimeError("a graph could not be captured") from error

    with pytest.raises(UserError, match="not enough memory for the batch"), explain_out_of_memory():
        fail()


def test_any_other_error_stays_unchanged():
    with pytest.raises(RuntimeError, match="illegal"), explain_out_of_memory():
        raise RuntimeError("illegal address")
    with pytest.raises(KeyError), explain_out_of_memory():
        raise KeyError("out of memory")


def test_the_statistics_of_choices_are_combined():
    assert ChoiceStatistics(3, 1, 0.5).combine(ChoiceStatistics(4, 2, 0.25)) == ChoiceStatistics(7, 3, 0.25)
    assert ChoiceStatistics().combine(ChoiceStatistics(4, 2, 0.25)) == ChoiceStatistics(4, 2, 0.25)
