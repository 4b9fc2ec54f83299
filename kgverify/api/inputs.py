"""The engines that users pass to the public functions: made for a run, tried once if just built, or stored as text."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from kgverify.comparison.equality import Equality
from kgverify.comparison.result import Verdict
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import GRAPH_SIZES, Engine, Workload
from kgverify.engines.table import COMPILED, REFERENCE, Built, EngineMaker, list_names
from kgverify.errors import UserError
from kgverify.files.code_identity import has_mark, keep_mark
from kgverify.files.remote import names_url
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import (
    MakePipeline,
    adapt_pipeline,
    as_maker,
    compiled_maker,
    find_factory,
    find_limits,
    make_for,
    make_reference,
    name_engine,
)
from kgverify.runs.job import EngineLike, Reference, write_down
from kgverify.runs.run import Pipeline, Run, reference_pipeline, run_of_program, with_reference_ranking
from kgverify.threads import count_threads
from kgverify.trace.model.header import EngineInfo


def require_trial(maker: EngineMaker, made: EngineInfo) -> None:
    """Compare an engine's code that was built on this machine with the reference prover, unless this was done before.

    UserError if they differ.
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


@contextmanager
def running(engine: EngineLike, run: Run, *, where: str = "engine", work: Workload | None = None) -> Iterator[Pipeline]:
    """Provide the pipeline of an engine until the context ends, with its processes."""
    if engine == REFERENCE or isinstance(engine, Reference):
        from kgverify.runs.fan_out import choose_jobs, reference_over

        asked = engine if isinstance(engine, Reference) else Reference()
        # Unlike beside an evaluation, nothing else runs while these processes start.
        jobs = asked.jobs or choose_jobs(run, int(run.num_candidates.sum()) // 4, count_threads())
        with reference_over(run, jobs=jobs, scheduler=asked.scheduler) as pipeline:
            yield pipeline
    else:
        yield make_pipeline(engine, run, where=where, work=work)


def make_pipeline(engine: EngineLike, run: Run, *, where: str = "engine", work: Workload | None = None) -> Pipeline:
    """Return an engine with the corruptions and ranks of its maker. UserError if it is not an engine.

    work: the workload, from which an engine may choose its sizes
    """
    given: Any = engine
    factory = make_reference if isinstance(given, Reference) else find_factory(given, where)
    if factory is make_reference:
        return make_reference(run, GRAPH_SIZES)
    if isinstance(factory, EngineMaker):
        pipeline = make_for(run, factory if work is None else factory.planned_for(work))
        require_trial(factory, pipeline.engine.info)
        return pipeline
    title = f"{where} {name_engine(given)}"
    for name, most in find_limits(factory).items():
        if (limit := getattr(run.limits, name)) > most:
            raise UserError(
                f"declares {name} = {most}, and the limit {name} is {limit}",
                where=title,
                fix=f"give both engines the smaller one: --limits {name}={most}, in Python Limits({name}={most})",
            )
    if not isinstance(factory, type) and callable(getattr(factory, "prove", None)):
        # This engine is already made.
        ready = adapt_pipeline(factory)
        make: MakePipeline = lambda run, sizes: ready  # noqa: E731  the type of a maker
    else:
        make = as_maker(factory, title)
    from kgverify.testing.checking.guard import explain

    pipeline = explain(make, title)(run, GRAPH_SIZES)
    if where == "reference" and pipeline.draw is draw_candidates and pipeline.rank is rank_candidates:
        # Both sides would share these functions, so the expected side uses the second implementation of both.
        pipeline = with_reference_ranking(pipeline.engine)
    return pipeline._replace(engines=(write_down(engine, default=f"an engine {name_engine(given)}").name,))


def names_engine(given: object) -> bool:
    """Return whether an argument that may also be a trace is the name or the factory of an engine."""
    if isinstance(given, str):
        return given in (REFERENCE, COMPILED) or (":" in given and not Path(given).exists() and not names_url(given))
    return callable(given)


def names_trace(given: str) -> bool:
    """Return whether the name of a reference is the path of a trace instead."""
    return given not in list_names() and ":" not in given and (Path(given).exists() or given.endswith(".h5"))


def make_engine(engine: EngineLike, program: Program, limits: Limits, policy: Policy, *, where: str) -> Engine:
    """Return an engine for a program without a graph, such as that of a trace. UserError if it is not an engine."""
    return make_pipeline(engine, run_of_program(program, limits, policy), where=where).engine
