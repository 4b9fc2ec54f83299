"""Engines as users give them, for the public functions: made for a run, or written down."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from kgverify.api.trial import require_trial
from kgverify.engines.load_engine import load_factory
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.engines.sizes import GRAPH_SIZES, Workload
from kgverify.engines.table import COMPILED, REFERENCE, EngineMaker, find_entry
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
    make_for,
    make_reference,
    name_engine,
)
from kgverify.runs.job import EngineLike, Engines, Reference, name_again, write_down
from kgverify.runs.run import Pipeline, Run, with_reference_ranking


@contextmanager
def make_sides(engines: Engines, run: Run) -> Iterator[tuple[Pipeline, Pipeline]]:
    """Provide the pipelines of the reference and of the engine under test, in this order, until the context ends.

    UserError for an engine that cannot be made.
    """
    with ExitStack() as stack:
        actual = stack.enter_context(running(engines.engine, run))
        yield stack.enter_context(running(engines.reference, run, where="reference")), actual


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
    if isinstance(engine, EngineSpec):
        engine = engine.resolve()
    if engine == REFERENCE or isinstance(engine, Reference):
        return make_reference(run, GRAPH_SIZES)
    title = f"{where} {engine if isinstance(engine, str) else _name(engine)}"
    if isinstance(engine, str):
        engine = find_entry(engine, where) or load_factory(engine, where)
    if isinstance(engine, EngineMaker):
        pipeline = make_for(run, engine if work is None else engine.planned_for(work))
        require_trial(engine, pipeline.engine.info)
        return pipeline
    if not isinstance(engine, type) and callable(getattr(engine, "prove", None)):
        # An engine that is made already.
        make = _make_always(adapt_pipeline(engine))
    else:
        make = as_maker(engine, title)  # type: ignore[arg-type]  # UserError for what cannot be called
    from kgverify.testing.checking.guard import explain

    pipeline = explain(make, title)(run, GRAPH_SIZES)
    if where == "reference" and pipeline.draw is draw_candidates and pipeline.rank is rank_candidates:
        # Both sides would share these functions: the expected side takes the second implementation of both.
        pipeline = with_reference_ranking(pipeline.engine)
    return pipeline._replace(engines=(name_again(engine).name or f"an engine {_name(engine)}",))


def _name(engine: EngineLike) -> str:
    return name_engine(engine)  # type: ignore[arg-type]


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


def _make_always(pipeline: Pipeline) -> MakePipeline:
    return lambda run, sizes: pipeline


def describe_engine(engine: AnyEngine) -> EngineSpec:
    """Return an engine as text, by which it can be made again unless it is a local function."""
    try:
        return write_down(engine)
    except UserError:
        return EngineSpec(name_engine(engine))
