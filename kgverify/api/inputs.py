"""Engines as users give them, for the public functions: made for a run, or written down."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from kgverify.api.trial import require_trial
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.engines.sizes import GRAPH_SIZES, Workload
from kgverify.engines.table import COMPILED, REFERENCE, EngineMaker
from kgverify.errors import UserError
from kgverify.files.remote import names_url
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import (
    AnyEngine,
    EngineSpec,
    MakePipeline,
    adapt_pipeline,
    as_maker,
    find_factory,
    make_for,
    make_reference,
    name_engine,
)
from kgverify.runs.job import EngineLike, Reference, name_again, write_down
from kgverify.runs.run import Pipeline, Run, with_reference_ranking


@contextmanager
def running(engine: EngineLike, run: Run, *, where: str = "engine", work: Workload | None = None) -> Iterator[Pipeline]:
    """Provide the pipeline of an engine until the context ends: with its processes, or its own caches of compiled code."""
    if isinstance(engine, Reference) and engine != Reference():
        from kgverify.runs.fan_out import reference_over

        with reference_over(run, jobs=engine.jobs, scheduler=engine.scheduler) as pipeline:
            yield pipeline
    else:
        with engine.running() if isinstance(engine, EngineMaker) else nullcontext():
            yield make_pipeline(engine, run, where=where, work=work)


def make_pipeline(engine: EngineLike, run: Run, *, where: str = "engine", work: Workload | None = None) -> Pipeline:
    """Return an engine with the corruptions and ranks of its maker. UserError for what is not an engine.

    work: the work for which an engine may choose its sizes
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
    if not isinstance(factory, type) and callable(getattr(factory, "prove", None)):
        # An engine that is made already.
        ready = adapt_pipeline(factory)
        make: MakePipeline = lambda run, sizes: ready  # noqa: E731  the type of a maker
    else:
        make = as_maker(factory, title)
    from kgverify.testing.checking.guard import explain

    pipeline = explain(make, title)(run, GRAPH_SIZES)
    if where == "reference" and pipeline.draw is draw_candidates and pipeline.rank is rank_candidates:
        # Both sides would share these functions: the expected side takes the second implementation of both.
        pipeline = with_reference_ranking(pipeline.engine)
    return pipeline._replace(engines=(name_again(engine).name or f"an engine {name_engine(given)}",))


def names_engine(given: object) -> bool:
    """Return whether an argument that may also be a trace is an engine's name, or makes an engine."""
    if isinstance(given, str):
        return given in (REFERENCE, COMPILED) or (":" in given and not Path(given).exists() and not names_url(given))
    return callable(given)


def make_engine(engine: EngineLike, program: Program, limits: Limits, policy: Policy, *, where: str) -> Engine:
    """Return an engine for a program without a graph, such as that of a trace. UserError for what is not an engine."""
    graph = KnowledgeGraph("trace", ())
    # The value of the cached property: names alone would number the symbols otherwise.
    graph.__dict__["program"] = program
    return make_pipeline(engine, Run(graph, limits, policy), where=where).engine


def describe_engine(engine: AnyEngine) -> EngineSpec:
    """Return an engine as text, by which it can be made again unless it is a local function."""
    try:
        return write_down(engine)
    except UserError:
        return EngineSpec(name_engine(engine))
