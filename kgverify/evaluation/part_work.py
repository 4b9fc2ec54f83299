"""What is done for a part of an evaluation: drawn, proved, summarized; the first and the last beside the engine."""

from typing import Any, NamedTuple, Protocol

from kgverify.engines.protocol import Progress
from kgverify.evaluation.part_file import PartResult, summarize_part
from kgverify.evaluation.parts import Part
from kgverify.evaluation.proving import Gaps, prove_candidates, refuse_scores
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import Candidates, CandidateSet


class PartWork(Protocol):
    """How parts are done. What `draw` gives, `prove` takes; what `prove` gives, `summarize` takes."""

    def draw(self, part: Part) -> Any:
        """What the engine will be given."""
        ...

    def prove(self, part: Part, drawn: Any, progress: Progress) -> Any:
        """What came of it; all that the engine has to do."""
        ...

    def summarize(self, part: Part, proved: Any) -> PartResult:
        """What is kept of the part. UserError for a log-probability that is no number."""
        ...


class Proved(NamedTuple):
    """The candidates of a part as they ended, and how close the choices were."""

    candidates: Candidates
    gaps: Gaps


class EveryCandidate:
    """Every candidate is proved."""

    def __init__(self, run: Run, pipeline: Pipeline) -> None:
        self._run, self._pipeline = run, pipeline

    def draw(self, part: Part) -> CandidateSet:
        """The candidates of the part."""
        run = self._run
        return self._pipeline.draw(run.graph, run.split, part.queries, run.num_corruptions, run.seed)

    def prove(self, part: Part, drawn: CandidateSet, progress: Progress) -> Proved:
        """How each ended."""
        return Proved(*prove_candidates(self._pipeline.engine, drawn, progress))

    def summarize(self, part: Part, proved: Proved) -> PartResult:
        """With the ranks."""
        rankings = self._pipeline.rank_finite(self._run, proved.candidates)
        if rankings is None:
            raise refuse_scores(part)
        return summarize_part(proved.candidates, rankings, self._run.triples, self._run.seed, proved.gaps)
