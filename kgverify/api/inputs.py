"""The arguments that the public functions share: a graph, the queries of a run, and an engine."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from kgverify.engines.load_engine import load_factory
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.engines.sizes import GRAPH_SIZES, Workload
from kgverify.engines.table import COMPILED, REFERENCE, EngineMaker, find_entry, make_entry
from kgverify.errors import UserError
from kgverify.files.remote import names_url
from kgverify.graphs.formats.pykeen import PykeenObject
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import (
    EAGER,
    EngineSpec,
    MakePipeline,
    Sides,
    adapt_pipeline,
    as_maker,
    make_for,
    make_reference,
    name_engine,
)
from kgverify.runs.fan_out import reference_over, with_reference_ranking
from kgverify.runs.run import Pipeline, Run, load_policy
from kgverify.testing.checking.guard import explain

GraphLike: TypeAlias = str | Path | KnowledgeGraph | PykeenObject
"""The name of a graph, its path, the graph itself, or a dataset or triples factory of PyKEEN."""

EngineLike: TypeAlias = str | Callable[..., Any] | Engine
"""`compiled`, `reference`, `module:name`, `file.py:name`, an engine, or a class or function of (program, limits, policy)."""

ALL: Final = "all"


def make_run(
    graph: GraphLike,
    *,
    rules: str | Path | None = None,
    split: str = "test",
    queries: int = 20,
    corruptions: int | str = 50,
    seed: int = 0,
    policy: str | Policy = "shortest",
    limits: Limits | None = None,
) -> Run:
    """Return the run that the arguments describe. UserError if they do not fit together."""
    if not isinstance(graph, KnowledgeGraph):
        graph = load_graph(graph, rules=rules)
    elif rules is not None:
        raise UserError("this graph is loaded already", where="rules", fix="load it with load_graph(..., rules=...)")
    limits = limits or Limits()
    graph.queries(split)
    return Run(
        graph=graph,
        limits=limits,
        policy=load_policy(policy, graph, limits, seed) if isinstance(policy, str) else policy,
        split=split,
        num_queries=queries,
        num_corruptions=_count_corruptions(corruptions),
        seed=seed,
    )


def _count_corruptions(corruptions: int | str) -> int:
    if corruptions == ALL:
        return -1
    if isinstance(corruptions, str) and corruptions.isdecimal():
        return int(corruptions)
    if isinstance(corruptions, int) and corruptions >= 0:
        return corruptions
    raise UserError(
        f"expected a number or `all`, found {corruptions!r}", where="--corruptions", fix="give 0 or more, or all"
    )


@contextmanager
def make_sides(
    engine: EngineLike,
    reference: EngineLike,
    run: Run,
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    faults: str | Sequence[str] = (),
    **options: Any,
) -> Iterator[tuple[Pipeline, Pipeline]]:
    """Provide the pipelines of the reference and of the engine under test, in this order, until the context ends.

    jobs, scheduler: of kgverify's reference prover
    faults:          planted in the engine under test if it is compiled, else in the reference
    options:         of the compiled evaluator; see `make_pipeline`

    UserError for an engine that cannot be made, and for options of an evaluator that is on neither side.
    """
    check_compiled_options(engine, reference, faults=faults, **options)
    in_engine = faults if engine == COMPILED else ()
    actual = make_pipeline(engine, run, faults=in_engine, **options)
    with _make_reference_side(reference, run, jobs, scheduler, () if in_engine else faults, options) as expected:
        yield expected, actual


@contextmanager
def _make_reference_side(
    reference: EngineLike,
    run: Run,
    jobs: int,
    scheduler: str | None,
    faults: str | Sequence[str],
    options: dict[str, Any],
) -> Iterator[Pipeline]:
    is_plain = reference == REFERENCE
    check_reference_workers(jobs, scheduler, why_none="" if is_plain else f"{_name(reference)} proves in this process")
    if is_plain:
        with reference_over(run, jobs=jobs, scheduler=scheduler) as expected:
            yield expected
    else:
        yield make_pipeline(reference, run, where="--reference", faults=faults, **options)


def make_pipeline(
    engine: EngineLike,
    run: Run,
    *,
    where: str = "--engine",
    work: Workload | None = None,
    **options: Any,
) -> Pipeline:
    """Return an engine with the corruptions and ranks of its maker. UserError for what is not an engine.

    options: of the evaluator, if the engine is given by its name `compiled`
    work:    the work for which an engine may choose its sizes
    """
    if engine == REFERENCE:
        return make_reference(run, GRAPH_SIZES)
    if engine == COMPILED:
        given = {name: value for name, value in options.items() if value is not None}
        engine = make_entry(COMPILED, **given)
    elif isinstance(engine, str):
        engine = find_entry(engine, where) or load_factory(engine, where)
    if isinstance(engine, EngineMaker):
        if work is not None:
            engine = engine.planned_for(work)
        return make_for(run, engine)
    title = f"{where} {_name(engine)}"
    if not isinstance(engine, type) and callable(getattr(engine, "prove", None)):
        # An engine that is made already.
        make = _make_always(adapt_pipeline(engine))
    else:
        make = as_maker(engine, title)  # type: ignore[arg-type]  # UserError for what cannot be called
    pipeline = explain(make, title)(run, GRAPH_SIZES)
    if where == "--reference" and pipeline.draw is draw_candidates and pipeline.rank is rank_candidates:
        # Both sides would share these functions: the expected side takes the second implementation of both.
        pipeline = with_reference_ranking(pipeline.engine)
    return pipeline._replace(engines=(name_again(engine) or f"an engine {_name(engine)}",))


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


def check_compiled_options(*engines: EngineLike | None, **options: Any) -> None:
    """Raise UserError for an option of the compiled evaluator if it is not among the engines.

    options: mode, device, precision, slots and faults, as given; their defaults mean nothing
    """
    if COMPILED in engines:
        return
    for name, value in options.items():
        if value not in _DEFAULTS[name]:
            names = " and ".join(dict.fromkeys(_name(each) for each in engines if each is not None))
            what = "faults are planted in the compiled evaluator alone"
            raise UserError(
                what if name == "faults" else f"is an option of the compiled evaluator, which does not run: {names}",
                where="--fault" if name == "faults" else f"--{name}",
                fix="leave it out, or use --engine compiled",
            )


_DEFAULTS: Final[dict[str, tuple[Any, ...]]] = {
    "mode": (None, "auto"),
    "device": (None, "auto"),
    "precision": (None, "float32"),
    "slots": (None,),
    "memory": (None,),
    "faults": ((), [], None, ""),
}
"""The values of options that were not given."""


def _name(engine: EngineLike) -> str:
    return name_engine(engine)  # type: ignore[arg-type]


def name_again(engine: EngineLike) -> str:
    """Return the name by which an engine can be made again; empty if it has none."""
    try:
        return write_down(engine).name
    except UserError:
        return ""


def list_faults(faults: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of faults, of which one may be given as a text."""
    return (faults,) if isinstance(faults, str) else tuple(faults)


def check_reference_workers(jobs: int, scheduler: str | None, *, why_none: str = "") -> None:
    """Raise UserError for processes or machines without work, or for both at once.

    Args:
        jobs: Processes of the reference.
        scheduler: Address of a dask scheduler.
        why_none: The reason why the reference does not run; empty if it does.
    """
    if jobs == 1 and scheduler is None:
        return
    where = "--jobs" if scheduler is None else "--scheduler"
    if why_none:
        raise UserError(f"is for the reference, and {why_none}", where=where, fix="leave it out")
    if jobs != 1 and scheduler is not None:
        raise UserError(
            "the workers of the scheduler prove, and --jobs would start processes here as well",
            where=where,
            fix="give one of the two",
        )


def write_down(
    engine: EngineLike,
    *,
    mode: str = EAGER.mode,
    device: str = EAGER.device,
    faults: str | Sequence[str] = (),
    where: str = "--engine",
) -> EngineSpec:
    """Return the engine as text, by which other processes and reproducers make it again.

    UserError for an engine that cannot be imported by its name.
    """
    if engine == COMPILED:
        return EngineSpec(COMPILED, mode, device, list_faults(faults))
    if isinstance(engine, str):
        return EngineSpec(engine)
    if isinstance(engine, EngineMaker):
        options = engine.options
        return EngineSpec(engine.name, **{name: options[name] for name in EAGER._fields if name in options})
    module, path = getattr(engine, "__module__", ""), getattr(engine, "__qualname__", "")
    name = f"{module}:{path}"
    if not path or "<" in path or not _is_importable(name, engine):
        raise UserError(
            "expected an engine that can be imported by its name",
            where=where,
            fix="define the class or function at the top level of a module",
        )
    return EngineSpec(name)


def _is_importable(name: str, engine: EngineLike) -> bool:
    try:
        return load_factory(name, "engine") is engine
    except UserError:
        return False


def write_down_sides(
    engine: EngineLike, reference: EngineLike, *, mode: str, device: str, faults: str | Sequence[str]
) -> Sides:
    """Return both engines as text. UserError as for `write_down`, and for options of an evaluator on neither side."""
    changed = {name: value for name, value in (("mode", mode), ("device", device)) if value not in EAGER}
    check_compiled_options(engine, reference, faults=faults, **changed)
    in_engine = faults if engine == COMPILED else ()
    return Sides(
        write_down(engine, mode=mode, device=device, faults=in_engine),
        write_down(reference, mode=mode, device=device, faults=() if in_engine else faults, where="--reference"),
    )
