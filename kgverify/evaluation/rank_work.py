"""Which way of leaving out candidates a run takes."""

from kgverify.errors import UserError
from kgverify.evaluation.part_work import PartWork
from kgverify.evaluation.rank_all import RankAll
from kgverify.evaluation.rank_drawn import RankDrawn
from kgverify.evaluation.rank_only import find_model
from kgverify.ranking.corrupt import ALL, draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Pipeline, Run


def choose_rank_work(run: Run, pipeline: Pipeline) -> PartWork:
    """The work for ranks alone. UserError for a pipeline with a draw or ranks of its own, or a model that is too large."""
    if pipeline.draw is not draw_candidates or pipeline.rank is not rank_candidates:
        raise UserError(
            "draws and ranks by itself, and the draw or the ranks to be evaluated are others",
            where="--rank-only",
            fix="leave --rank-only out, and all candidates are proved",
        )
    model = find_model(run, pipeline.engine.info.device)
    return (RankAll if run.num_corruptions == ALL else RankDrawn)(run, pipeline, model)
