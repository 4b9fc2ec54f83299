"""Traces of a small real run, and copies of them with something changed."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np

from kgverify import load_graph
from kgverify.comparison.comparable import lockstep_columns
from kgverify.program.atoms import Atom
from kgverify.program.program import Rule, Symbols
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.model.columns import Columns, Rankings, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import Header
from kgverify.trace.model.score_tolerance import UNIT_ROUNDOFF
from kgverify.trace.model.trace import Trace
from kgverify.verification.record import prove_deep

COUNTS = ("candidates.num_steps", "steps.num_atoms", "steps.num_resolvents", "resolvents.num_atoms")


@cache
def small_trace() -> Trace:
    """The reference on two queries of Countries with five corruptions a side."""
    run = Run(load_graph("countries"), num_queries=2, num_corruptions=5)
    pipeline = reference_pipeline(run)
    columns = prove_deep(pipeline.engine, pipeline.draw(run.graph, "test", run.queries, 5, 0))
    return build_trace(run, pipeline.engine, columns, pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE))


@cache
def small_lockstep_trace() -> Trace:
    """Its steps, each by itself; what lockstep compares has no log-probabilities and no ranks."""
    trace = small_trace()
    columns = lockstep_columns(trace.columns)
    fields = trace.fields - {"candidates.log_probability"}
    return replace(trace, columns=columns, digests=compute_digests(columns), rankings=None, fields=fields)


def with_columns(trace: Trace, columns: Columns) -> Trace:
    return replace(trace, columns=columns, digests=compute_digests(columns))


def column_of(trace: Trace, name: str) -> np.ndarray:
    level, field = name.split(".")
    return getattr(getattr(trace.columns, level), field)


def with_column(trace: Trace, name: str, values: np.ndarray) -> Trace:
    level, field = name.split(".")
    changed = getattr(trace.columns, level)._replace(**{field: values})
    return with_columns(trace, trace.columns._replace(**{level: changed}))


def with_element(trace: Trace, name: str, place: Any, change: Callable[[Any], Any]) -> Trace:
    """A copy with one element of one column changed."""
    values = column_of(trace, name).copy()
    values[place] = change(values[place])
    assert not np.array_equal(values, column_of(trace, name))
    return with_column(trace, name, values)


def with_boundary_moved(trace: Trace, name: str, row: int) -> Trace:
    """A copy in which a row of counts gives one of its own to the next row; the sum stays."""
    values = column_of(trace, name).copy()
    values[row] -= 1
    values[row + 1] += 1
    return with_column(trace, name, values)


def with_header(trace: Trace, **changes: Any) -> Trace:
    """A copy with fields of the header changed; of a struct within it by a dict of its own fields."""
    header = trace.header
    for name, change in changes.items():
        inner = msgspec.structs.replace(getattr(header, name), **change) if isinstance(change, dict) else change
        header = msgspec.structs.replace(header, **{name: inner})
        if isinstance(change, dict) and "score_error" in change:
            header = _bound_scores(header, change["score_error"])
    return replace(trace, header=header)


def _bound_scores(header: Header, score_error: float) -> Header:
    """The header with this bound of the judge for every precision."""
    bounds = dict.fromkeys(UNIT_ROUNDOFF, score_error)
    return msgspec.structs.replace(header, policy=msgspec.structs.replace(header.policy, score_errors=bounds))


def with_rankings(trace: Trace, **columns: np.ndarray) -> Trace:
    assert trace.rankings is not None
    return replace(trace, rankings=Rankings(**{**trace.rankings._asdict(), **columns}))


def place_of_step(trace: Trace, row: int) -> tuple[int, int]:
    """The candidate and the step number of a row of the step columns."""
    starts = starts_of(trace.columns.candidates.num_steps)
    candidate = int(np.searchsorted(starts, row, side="right")) - 1
    return candidate, row - int(starts[candidate])


def row_of_element(trace: Trace, name: str, element: int) -> int:
    """The row of the step columns that an element of a column of steps or resolvents belongs to."""
    steps, resolvents = trace.columns.steps, trace.columns.resolvents
    row = element
    if name == "steps.goal_atoms":
        return int(np.searchsorted(starts_of(steps.num_atoms), row, side="right")) - 1
    if name == "resolvents.atoms":
        row = int(np.searchsorted(starts_of(resolvents.num_atoms), row, side="right")) - 1
    if name.startswith("resolvents."):
        row = int(np.searchsorted(starts_of(steps.num_resolvents), row, side="right")) - 1
    return row


def first_step_with(trace: Trace, least_resolvents: int) -> int:
    """Return the first row of steps with this number of resolvents, after the first step of its candidate."""
    rows = np.flatnonzero((trace.columns.steps.num_resolvents >= least_resolvents) & (trace.columns.steps.depth > 0))
    return int(rows[0])


def with_header_error(trace: Trace, score_error: float) -> Trace:
    """A copy whose engine declares an error of its scores, which is also the judge's bound."""
    return with_header(trace, engine={"score_error": score_error})


def number_backwards(trace: Trace) -> Trace:
    """The same trace with the last predicate numbered first, and with its clauses numbered so."""
    last = len(trace.symbols.predicates) - 1

    def convert(atoms: np.ndarray) -> np.ndarray:
        return np.column_stack((np.where(atoms[:, 0] < 0, atoms[:, 0], last - atoms[:, 0]), atoms[:, 1:]))

    for name in ("candidates.atom", "steps.goal_atoms", "resolvents.atoms"):
        trace = with_column(trace, name, convert(column_of(trace, name)).astype(np.int32))

    def renumber(atom: Atom) -> Atom:
        return atom._replace(predicate=last - atom.predicate)

    assert trace.rules is not None
    return replace(
        trace,
        symbols=Symbols(trace.symbols.predicates[::-1], trace.symbols.constants),
        rules=tuple(Rule(renumber(rule.clause_head), tuple(map(renumber, rule.body))) for rule in trace.rules),
        facts=None,
        fact_lines=None,
        fields=trace.fields - {"resolvents.origin_kind", "resolvents.origin"},
    )
