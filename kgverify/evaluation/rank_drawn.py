"""Ranks of parts whose corruptions are drawn, without proving those that cannot matter."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Progress
from kgverify.evaluation.part_file import PartResult, summarize_part
from kgverify.evaluation.part_work import EveryCandidate
from kgverify.evaluation.parts import Part
from kgverify.evaluation.proving import Gaps, prove_candidates, refuse_scores
from kgverify.evaluation.rank_only import Evaluated, choose_num_outside, evaluate_for_ranks
from kgverify.ranking.groups import take_candidates
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import CandidateSet

if TYPE_CHECKING:
    from kgverify.engines.compiled.program.least_model import LeastModel

Drawn: TypeAlias = tuple[CandidateSet, NDArray[np.bool_]]
"""The candidates, and which of them follow, bool [N]."""

Told: TypeAlias = tuple[CandidateSet, Evaluated, Gaps]
"""What was drawn, how it ended, and how close the choices were."""


class RankDrawn:
    """The candidates of each part are drawn as ever; those that could matter are proved, and a few of the others."""

    def __init__(self, run: Run, pipeline: Pipeline, model: "LeastModel") -> None:
        self._run, self._pipeline, self._model = run, pipeline, model
        self._draw = EveryCandidate(run, pipeline).draw

    def draw(self, part: Part) -> Drawn:
        """The candidates of the part."""
        candidates = self._draw(part)
        return candidates, self._model.contains(candidates.atom)

    def prove(self, part: Part, drawn: Drawn, progress: Progress) -> Told:
        """How those ended that were proved."""
        engine = _Engine(self._pipeline, progress)
        candidates, in_model = drawn
        evaluated = evaluate_for_ranks(
            engine.evaluate,
            lambda _: in_model,
            candidates,
            self._run.triples,
            num_outside=choose_num_outside(part.num_candidates),
        )
        progress(part.num_candidates - int(evaluated.is_run.sum()))
        return candidates, evaluated, engine.gaps

    def summarize(self, part: Part, proved: Told) -> PartResult:
        """The ranks are among all candidates; the rest is of those that were proved."""
        drawn, evaluated, gaps = proved
        candidates = evaluated.complete(drawn)
        rankings = self._pipeline.rank_finite(self._run, candidates)
        if rankings is None:
            raise refuse_scores(part)
        proved_ones = take_candidates(candidates, evaluated.is_run)
        return summarize_part(proved_ones, rankings, self._run.triples, self._run.seed, gaps)


class _Ended(NamedTuple):
    results: tuple[NDArray[Any], ...]


class _Engine:
    """The engine, with how close its choices were in all calls."""

    def __init__(self, pipeline: Pipeline, progress: Progress) -> None:
        self._engine, self._progress = pipeline.engine, progress
        self.gaps = Gaps()

    def evaluate(self, candidates: CandidateSet) -> _Ended:
        ended, gaps = prove_candidates(self._engine, candidates, self._progress)
        self.gaps = self.gaps.join(gaps)
        return _Ended((ended.outcome, ended.is_limited, ended.log_probability))
