"""The alignment of two traces: candidates are paired by query, side and atom, never by position."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.columns import name_candidate
from kgverify.comparison.comparable import (
    ComparablePair,
    Convert,
    MemorySource,
    Numbering,
    StepSource,
    has_steps,
    searches,
)
from kgverify.comparison.result import NO_CANDIDATE, Divergence, Level
from kgverify.comparison.step_view import side_name
from kgverify.errors import count_of
from kgverify.program.outcomes import Outcome, Stage
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, CandidateSet, are_equal, mark_rows, number_rows

UNDECIDED: Final = (Outcome.OPEN, Outcome.DEPTH_LIMIT)
"""The outcomes of a search that did not decide: its budget ended, or there are only proofs beyond its bound."""

ROWS: Final = 1 << 16
"""The number of candidates to read at a time."""


class Alignment(NamedTuple):
    """Rows of candidates, int64 each: the pairs in the expected order, and the candidates that only one trace has.

    The n-th occurrence of a candidate in one trace is paired with its n-th occurrence in the other.
    """

    expected: NDArray[np.int64]
    actual: NDArray[np.int64]
    missing: NDArray[np.int64]
    extra: NDArray[np.int64]


class SourceCandidates:
    """Candidates of a source, which may stay on disk; `convert` translates their atoms to the common ids."""

    def __init__(self, source: StepSource, convert: Convert | None) -> None:
        self._source = source
        self._convert = convert
        self.num_candidates = source.num_candidates

    def take(self, rows: NDArray[np.int64]) -> Any:
        """Return the columns that identify some candidates: a `CandidateSet` in knowledge graphs."""
        schema = self._source.schema
        columns = tuple(self._source.gather_column(name, rows) for name in schema.identity)
        if schema != KNOWLEDGE_GRAPH:
            return columns
        candidates = CandidateSet(*columns)
        return candidates if self._convert is None else candidates._replace(atom=self._convert(candidates.atom))

    def blocks(self) -> Iterator[Any]:
        """Yield the columns that identify all candidates, block by block."""
        for begin in range(0, self.num_candidates, ROWS):
            yield self.take(np.arange(begin, min(begin + ROWS, self.num_candidates)))


CandidateReader = CandidateSet | SourceCandidates
"""The query, side and atom of the candidates of one trace, in the ids that both traces have."""


def settle_undecided(sources: tuple[StepSource, StepSource]) -> tuple[StepSource, StepSource]:
    """Return both sides. Where the expected side searched and did not decide, it takes the actual outcome."""
    expected, actual = sources
    if not searches(expected.header.engine):
        return sources
    numbering = Numbering(expected.shell(), actual.shell())
    pairs = align_candidates(*(SourceCandidates(each, numbering.converter(i)) for i, each in enumerate(sources)))
    trace = expected.shell(has_candidates=True)
    outcome = trace.columns.candidates.outcome
    is_proved = outcome == Outcome.PROVED
    actual_outcome = actual.gather_column("outcome", pairs.actual)
    is_proved[pairs.expected] |= np.isin(outcome[pairs.expected], UNDECIDED) & (actual_outcome == Outcome.PROVED)
    settled = np.where(is_proved, Outcome.PROVED, Outcome.FAILED).astype(np.int8)
    columns = trace.columns._replace(candidates=trace.columns.candidates._replace(outcome=settled))
    return MemorySource(replace(trace, columns=columns)), actual


def align_candidates(expected: CandidateReader, actual: CandidateReader) -> Alignment:
    """Pair the candidates of two traces, with some 100 bytes of memory per candidate unless both have the same order."""
    num = expected.num_candidates
    every, none = np.arange(num), np.zeros(0, np.int64)
    if actual.num_candidates == num and all(
        are_equal(expected.take(rows), actual.take(rows)) for rows in np.split(every, range(ROWS, num, ROWS))
    ):
        return Alignment(every, every, none, none)
    tables = [identify(side.take(np.arange(side.num_candidates))) for side in (expected, actual)]
    keys = number_rows(*tables)
    orders = [np.argsort(each, kind="stable") for each in keys]
    ordered = [each[order] for each, order in zip(keys, orders, strict=True)]
    occurrence = np.arange(len(ordered[0])) - np.searchsorted(ordered[0], ordered[0], side="left")
    index = np.searchsorted(ordered[1], ordered[0], side="left") + occurrence
    is_paired = index < len(ordered[1])
    is_paired[is_paired] = ordered[1][index[is_paired]] == ordered[0][is_paired]
    rows = orders[0][is_paired], orders[1][index[is_paired]]
    in_order = np.argsort(rows[0])
    return Alignment(
        rows[0][in_order],
        rows[1][in_order],
        np.setdiff1d(np.arange(len(keys[0])), rows[0]),
        np.setdiff1d(np.arange(len(keys[1])), rows[1]),
    )


Table = tuple[NDArray[np.integer], ...]
"""Columns of numbers, [N] each."""


def identify(candidates: Sequence[NDArray[Any]]) -> Table:
    """Return the columns that identify candidates, [N] each."""
    return tuple(part for each in candidates for part in each.reshape(len(each), prod(each.shape[1:])).T)


def _find_common(table: Table, others: Table) -> set[tuple[int, ...]]:
    """Return the rows of a table that are also rows of another one."""
    is_common = mark_rows(table, others)
    return set(zip(*(column[is_common].tolist() for column in table), strict=True))


Draws = dict[tuple[int, str], str]
"""The evidence that candidates were drawn differently, by query and side."""


def judge_unpaired(
    expected: CandidateReader, actual: CandidateReader, alignment: Alignment, pair: ComparablePair
) -> tuple[list[Divergence], Draws]:
    """Return a divergence for each candidate that only one trace has, and the evidence for different draws.

    Such a candidate was drawn differently, or the batch machinery lost, doubled or invented it.
    """
    missing, extra = expected.take(alignment.missing), actual.take(alignment.extra)
    stages: list[Sequence[str]] = [[""] * len(each[0]) for each in (missing, extra)]
    draws: Draws = {}
    if pair.schema == KNOWLEDGE_GRAPH and (len(missing.query) or len(extra.query)):
        stages, draws = _judge_draws(missing, extra, expected.take(alignment.expected), pair)
    found = []
    for is_extra, (rows, candidates, names) in enumerate(
        ((alignment.missing, missing, pair.names), (alignment.extra, extra, pair.actual_names))
    ):
        identities = zip(*(column.tolist() for column in candidates), strict=True)
        for row, identity, stage in zip(rows.tolist(), identities, stages[is_extra], strict=True):
            named = name_candidate(pair.schema, names, identity)
            found.append(
                Divergence(
                    candidate=row,
                    **named,
                    step=-1,
                    stage=stage,
                    field=f"candidates.{pair.schema.identity[-1]}",
                    level=Level.OUTCOME,
                    expected=NO_CANDIDATE if is_extra else named["atom"],
                    actual=named["atom"] if is_extra else NO_CANDIDATE,
                )
            )
    return found, draws


def _judge_draws(
    missing: CandidateSet, extra: CandidateSet, paired: CandidateSet, pair: ComparablePair
) -> tuple[list[Sequence[str]], Draws]:
    """Return the stage that lost or made each unpaired candidate, and the evidence for different draws."""
    groups = _group_atoms(missing), _group_atoms(extra)
    redrawn = groups[0].keys() & groups[1].keys()
    facts = set() if pair.expected.facts is None else {tuple(fact) for fact in pair.expected.facts.tolist()}
    draws = {(q, side_name(s)): _describe_draw(groups[0][q, s], groups[1][q, s], facts) for q, s in redrawn}
    known = _find_common(tuple(extra.atom.T), tuple(paired.atom.T))
    seen = _find_common(identify(extra), identify(paired))
    # Candidates that no other query has come from the draw, and then so do the others that are extra.
    is_redrawn = any(tuple(atom) not in known for atom in extra.atom.tolist())
    engine = pair.actual.header.engine
    has_machine = has_steps(engine) or bool(engine.layout)
    stages: list[Sequence[str]] = []
    for is_extra, candidates in enumerate((missing, extra)):
        of_side = []
        for query, side, arguments in zip(*(column.tolist() for column in candidates), strict=True):
            atom = tuple(arguments)
            is_doubled = is_extra and (query, side, *atom) in seen
            is_drawn = not has_machine or (not is_doubled and ((query, side) in redrawn or (is_extra and is_redrawn)))
            if is_extra and (query, side) in redrawn:
                seen.add((query, side, *atom))
            of_side.append((Stage.CORRUPT if is_drawn else Stage.RECYCLE).value)
        stages.append(of_side)
    return stages, draws


def _group_atoms(candidates: CandidateSet) -> dict[tuple[int, int], set[tuple[int, ...]]]:
    """Return the atoms of candidates by query and side."""
    groups: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for query, side, atom in zip(*(column.tolist() for column in candidates), strict=True):
        groups.setdefault((query, side), set()).add(tuple(atom))
    return groups


def _describe_draw(missing: set[tuple[int, ...]], extra: set[tuple[int, ...]], facts: set[tuple[int, ...]]) -> str:
    text = f"{count_of(len(extra), 'candidate')} drawn instead of {count_of(len(missing), 'other')}"
    if {(predicate, second, first) for predicate, first, second in missing} == extra:
        return f"{text}: their arguments swapped"
    num_facts = len(extra & facts)
    return f"{text}, {num_facts} of them facts" if num_facts else text
