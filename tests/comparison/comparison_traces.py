"""Traces of a small real run, copies of them with something changed, and their comparison."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import kgverify
from kgverify import Columns, Equality, Rankings, Report, Rule, Symbols, Trace
from kgverify.comparison import compare as comparing
from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import Comparison
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.model.columns import (
    Resolvents,
    expand_rows,
    no_stage_items,
    select_candidates,
    starts_of,
)
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.score_tolerance import UNIT_ROUNDOFF, explain_bound

__all__ = ["expand_rows", "select_candidates", "starts_of"]

TRACES = Path(kgverify.__file__).parents[1] / "traces"
COUNTS = ("candidates.num_steps", "steps.num_atoms", "steps.num_resolvents", "resolvents.num_atoms")
ORIGINS = ("resolvents.origin", "resolvents.origin_kind")
ATOMS = ("candidates.atom", "steps.goal_atoms", "resolvents.atoms")


def compare(expected: Any, actual: Any, *, modulo: str | Collection[str] | None = None, **options: Any) -> Comparison:
    """Compare as `kgverify.kinds.compare` does, without the planted changes, which take most of its time."""
    return comparing.compare(expected, actual, equality=Equality(modulo=modulo), **options)


def compare_with_ranks(expected: Trace, actual: Trace) -> Comparison:
    """Compare steps and ranks, without the rules by which two recorded traces may have been ranked."""
    return compare_rankings(compare(expected, actual), expected, actual)


def judge(expected: Any, actual: Any, **equality: Any) -> Report:
    """Compare as a user does, two traces in memory as those of two engines. No exercise is required."""
    other = as_other(actual) if isinstance(actual, Trace) else actual
    return kgverify.compare(expected, other, equality=Equality(**{"minimum": "none", **equality}))


@cache
def small_trace() -> Trace:
    """The reference on two queries of Countries with five corruptions a side, with the outputs of its stages."""
    trace = with_header(kgverify.open_trace(TRACES / "countries-deep.h5").load(), level="steps", recording="")
    return with_columns(replace(trace, fields=KNOWLEDGE_GRAPH.compared_names), trace.columns)


@cache
def shallow_trace() -> Trace:
    """The small trace without the outputs of the stages."""
    return with_columns(small_trace(), small_trace().columns._replace(stages=no_stage_items()))


@cache
def small_lockstep_trace() -> Trace:
    """The steps of the small trace, each alone; a step has no log-probability and no rank."""
    trace = with_columns(small_trace(), lockstep_columns(small_trace().columns))
    return replace(trace, rankings=None, fields=trace.fields - {"candidates.log_probability"})


def with_columns(trace: Trace, columns: Columns) -> Trace:
    return replace(trace, columns=columns, digests=compute_digests(columns))


def column_of(trace: Trace, name: str) -> NDArray[Any]:
    level, field = name.split(".")
    values: NDArray[Any] = getattr(getattr(trace.columns, level), field)
    return values


def with_column(trace: Trace, name: str, values: NDArray[Any]) -> Trace:
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


def without_columns(trace: Trace, *names: str) -> Trace:
    """A copy as read from a file that lacks columns: zeros, and not among its fields."""
    for name in names:
        trace = with_column(trace, name, np.zeros_like(column_of(trace, name)))
    return replace(trace, fields=trace.fields - set(names))


def with_header(trace: Trace, **changes: Any) -> Trace:
    """A copy with fields of the header changed; of a struct within it by a dict of its own fields."""
    header = trace.header
    for name, change in changes.items():
        inner = msgspec.structs.replace(getattr(header, name), **change) if isinstance(change, dict) else change
        header = msgspec.structs.replace(header, **{name: inner})
    return replace(trace, header=header)


def with_score_error(trace: Trace, score_error: float) -> Trace:
    """A copy whose engine declares an error of its scores, which is also the judge's bound for every precision."""
    bounds = dict.fromkeys(UNIT_ROUNDOFF, score_error)
    return with_header(trace, engine={"score_error": score_error}, policy={"score_errors": bounds})


def explained_error(trace: Trace, precision: str) -> float:
    """Return the error of scores of one nat that rounding explains."""
    return explain_bound(trace.header.policy, precision, 1.0)


def as_other(trace: Trace) -> Trace:
    """The same trace, as another engine would have recorded it."""
    return with_header(trace, engine={"mode": "other"}, recording="")


def with_rankings(trace: Trace, **columns: NDArray[Any]) -> Trace:
    assert trace.rankings is not None
    return replace(trace, rankings=Rankings(**{**trace.rankings._asdict(), **columns}))


def with_candidates(trace: Trace, rows: Sequence[int] | NDArray[Any]) -> Trace:
    """A copy with these candidates."""
    return with_columns(trace, select_candidates(trace.columns, np.array(rows, np.int64)))


def with_resolvents(trace: Trace, rows: NDArray[Any], counts: NDArray[Any]) -> Trace:
    """A copy with some resolvents, in a given order, a number of them for each step."""
    resolvents = trace.columns.resolvents
    atoms = resolvents.atoms[expand_rows(starts_of(resolvents.num_atoms), rows)]
    chosen = Resolvents(*(column[rows] for column in resolvents[:-1]), atoms)
    steps = trace.columns.steps._replace(num_resolvents=counts.astype(np.uint32))
    return with_columns(trace, trace.columns._replace(steps=steps, resolvents=chosen))


def without_resolvent(trace: Trace, row: int, place: int = -1) -> Trace:
    """A copy in which a step lacks one of its resolvents, the last one unless a place is given."""
    counts = column_of(trace, "steps.num_resolvents").astype(np.int64)
    starts = starts_of(counts)
    gone = starts[row + 1] - 1 if place < 0 else starts[row] + place
    counts[row] -= 1
    return with_resolvents(trace, np.delete(np.arange(starts[-1]), gone), counts)


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


def first_step_with(trace: Trace, num_resolvents: int) -> int:
    """Return the first row of steps with at least this number of resolvents, after the first step of its candidate."""
    steps = trace.columns.steps
    return int(np.flatnonzero((steps.num_resolvents >= num_resolvents) & (steps.depth > 0))[0])


def renumbered(trace: Trace, *, keeps_facts: bool = True, has_more: bool = False) -> Trace:
    """The same trace by a program that numbers predicates and constants backwards, and perhaps knows more of them."""
    names = trace.symbols.predicates[::-1], trace.symbols.constants[::-1]
    last = [len(each) - 1 for each in names]
    more = ("unused",) * has_more

    def convert(atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        converted = np.where(atoms < 0, atoms, [last[0], last[1], last[1]] - atoms)
        return converted.astype(np.int32)

    for name in ATOMS:
        trace = with_column(trace, name, convert(column_of(trace, name)))
    facts, is_fact = trace.facts, trace.columns.resolvents.origin_kind == 2
    if facts is not None and keeps_facts:
        order = np.lexsort(convert(facts).T[::-1])
        facts = convert(facts)[order]
        origin = column_of(trace, "resolvents.origin").copy()
        origin[is_fact] = np.argsort(order)[origin[is_fact]]
        trace = with_column(trace, "resolvents.origin", origin)

    def renumber(atom: Any) -> Any:
        return atom._replace(predicate=last[0] - atom.predicate)

    rules = tuple(Rule(renumber(each.clause_head), tuple(map(renumber, each.body))) for each in trace.rules or ())
    symbols = Symbols((*names[0], *more), (*names[1], *more))
    renamed = replace(trace, symbols=symbols, facts=facts if keeps_facts else None, fact_lines=None, rules=rules)
    return with_header(renamed, program_sha256="")


KINDS = ("names,order,duplicates", "names,order", "names", "order", "duplicates")


def twin(trace: Trace, seed: int, *, kinds: str = "names,order") -> Trace:
    """The same steps with other names of variables, in another order, or with some resolvents repeated."""
    rng = np.random.default_rng(seed)
    trace = with_columns(trace, trace.columns._replace(stages=no_stage_items()))
    if "duplicates" in kinds:
        trace = _repeat(trace, rng)
    if "order" in kinds:
        trace = _shuffle(trace, rng)
    return _rename(trace, rng) if "names" in kinds else trace


def _shuffle(trace: Trace, rng: np.random.Generator) -> Trace:
    steps = trace.columns.steps
    counts = steps.num_resolvents.astype(np.int64)
    starts = starts_of(counts)
    step = np.repeat(np.arange(len(counts)), counts)
    rows = np.lexsort((rng.random(len(step)), step))
    place = np.argsort(rows)
    choice, is_valid = steps.choice.copy(), (steps.choice >= 0) & (steps.choice < counts)
    first = starts[:-1][is_valid]
    choice[is_valid] = place[first + choice[is_valid]] - first
    return with_column(with_resolvents(trace, rows, counts), "steps.choice", choice)


def _rename(trace: Trace, rng: np.random.Generator) -> Trace:
    for name, counts in (("steps.goal_atoms", "steps.num_atoms"), ("resolvents.atoms", "resolvents.num_atoms")):
        renamed, of_owner = column_of(trace, name).copy(), column_of(trace, counts)
        moved = np.repeat(rng.integers(0, 50, len(of_owner)), of_owner)[:, None] - 3 * (renamed[:, 1:] + 1)
        renamed[:, 1:] = np.where(renamed[:, 1:] < 0, -1 - moved, renamed[:, 1:])
        trace = with_column(trace, name, renamed)
    return trace


def _repeat(trace: Trace, rng: np.random.Generator) -> Trace:
    """Repeat some resolvents at the end of their steps; the sums of log-probabilities follow."""
    counts = trace.columns.steps.num_resolvents.astype(np.int64)
    step = np.repeat(np.arange(len(counts)), counts)
    rows = np.concatenate((np.arange(len(step)), np.flatnonzero(rng.random(len(step)) < 0.3)))
    rows = rows[np.argsort(step[rows], kind="stable")]
    repeated = with_resolvents(trace, rows, np.bincount(step[rows], minlength=len(counts)))
    owner = np.repeat(np.arange(len(trace.columns.candidates.query)), trace.columns.candidates.num_steps)
    sums = trace.columns.candidates.log_probability.copy()
    np.subtract.at(sums, owner, _log_sums(repeated) - _log_sums(trace))
    return with_column(repeated, "candidates.log_probability", sums)


def _log_sums(trace: Trace) -> NDArray[np.float64]:
    parts = np.split(column_of(trace, "resolvents.score").astype(float), np.cumsum(trace.columns.steps.num_resolvents))
    return np.array([np.logaddexp.reduce(part) if len(part) else 0.0 for part in parts[:-1]])
