"""The trial of code that was just built on this machine: it proves the embedded graph once, before it proves anything else."""

from functools import cache

from kgverify.comparison.equality import Equality
from kgverify.comparison.result import Verdict
from kgverify.engines.sizes import GRAPH_SIZES
from kgverify.engines.table import Built, EngineMaker
from kgverify.errors import UserError
from kgverify.files.cache import has_mark, keep_mark
from kgverify.graphs.load import load_graph
from kgverify.runs.engine_makers import compiled_maker
from kgverify.runs.run import Run, reference_pipeline
from kgverify.trace.model.header import EngineInfo


def require_trial(maker: EngineMaker, made: EngineInfo) -> None:
    """Compare code that was built on this machine for an engine with the reference prover, unless this was done before.

    UserError if it differs.
    """
    built = maker.find_built(made.mode)
    if built is not None and not has_mark(built.trial):
        _try(built, made.mode, made.device)


@cache
def _try(built: Built, mode: str, device: str) -> None:
    from kgverify.verification.verify import verify

    run = Run(load_graph("countries"), num_queries=4, num_corruptions=10)
    actual = compiled_maker(mode=mode, device=device)(run, GRAPH_SIZES)
    report = verify(run, reference_pipeline(run), actual, equality=Equality(determinism=False)).report
    if report.verdict is Verdict.DIVERGE:
        first = report.divergences[0]
        raise UserError(
            f"the {built.name} that this machine compiled differs from the reference on the graph countries, first in"
            f" {first.stage} at step {first.step}",
            where=f"mode {mode}",
            fix="use --mode plain, or another compiler or driver; kgverify doctor --self-test tries every mode",
        )
    keep_mark(built.trial, "agrees with the reference")
