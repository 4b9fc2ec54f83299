"""The arguments that the public functions share: a graph, the queries of a run, and an engine."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.errors import UserError, suggest
from kgverify.faults.plant import compiled_pipeline_with_faults
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.runs.run import Pipeline, Run, load_policy, reference_pipeline
from kgverify.testing.checking.engine_makers import (
    COMPILED,
    REFERENCE,
    EngineSpec,
    adapt_engine,
    as_maker,
    load_factory,
)
from kgverify.testing.problems.problem import GRAPH_SIZES

if TYPE_CHECKING:
    from kgverify.engines.compiled.state import Layout

GraphLike: TypeAlias = str | Path | KnowledgeGraph
"""The name of a graph, its path, or the graph itself."""

EngineLike: TypeAlias = str | Callable[..., Any] | Engine
"""`compiled`, `reference`, `module:name`, an engine, or a class or function that makes one of (program, limits, policy)."""

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


def make_pipeline(
    engine: EngineLike,
    run: Run,
    *,
    mode: str = "auto",
    device: str = "auto",
    precision: str = "float32",
    slots: int | None = None,
    faults: str | Sequence[str] = (),
    layout: "Layout | None" = None,
) -> Pipeline:
    """Return the engine under test with the corruptions and ranks of its maker. UserError for what is not an engine."""
    if engine == COMPILED:
        return compiled_pipeline_with_faults(
            run, list_faults(faults), mode=mode, device=device, slots=slots, precision=precision, layout=layout
        )
    if faults:
        raise UserError(
            "faults are planted in the compiled evaluator alone", where="--fault", fix="use the engine `compiled`"
        )
    if isinstance(engine, str) and ":" not in engine and engine != REFERENCE:
        known = (COMPILED, REFERENCE)
        raise UserError(
            f"unknown engine {engine!r}",
            where="--engine",
            fix=suggest(engine, known) or f"choose {' or '.join(known)}, or name your own as module:name",
        )
    if engine == REFERENCE:
        return reference_pipeline(run)
    if isinstance(engine, str):
        engine = load_factory(engine, "--engine")
    if not isinstance(engine, type) and callable(getattr(engine, "prove", None)):
        made = adapt_engine(engine)
        return as_maker(lambda program, limits, policy: made)(run, GRAPH_SIZES)
    return as_maker(engine)(run, GRAPH_SIZES)  # type: ignore[arg-type]


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


def check_score_error(score_error: float | None) -> float | None:
    """Return the error of scores to accept. UserError unless it is a finite number of at least 0, or None."""
    if score_error is not None and not 0 <= score_error < math.inf:
        raise UserError(
            f"expected a number of at least 0, found {score_error}",
            where="--score-error",
            fix="give the largest rounding error of a score to accept, in nats",
        )
    return score_error


def write_down(engine: EngineLike, *, mode: str, device: str, faults: str | Sequence[str]) -> EngineSpec:
    """Return the engine as text, by which other processes and reproducers make it again.

    UserError for an engine that cannot be imported by its name.
    """
    if faults and engine != COMPILED:
        raise UserError("faults are planted in the compiled evaluator", where="--fault", fix="leave out --engine")
    if engine == COMPILED:
        return EngineSpec(COMPILED, mode, device, list_faults(faults))
    if isinstance(engine, str):
        return EngineSpec(engine)
    module, path = getattr(engine, "__module__", ""), getattr(engine, "__qualname__", "")
    name = f"{module}:{path}"
    if not path or "<" in path or load_factory(name, "engine") is not engine:
        raise UserError(
            "expected an engine that can be imported by its name",
            where="engine",
            fix="define the class or function at the top level of a module",
        )
    return EngineSpec(name)
