"""The alignment of two traces: candidates are paired by query, side and atom, never by position."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import ComparablePair, Convert
from kgverify.comparison.result import NO_CANDIDATE, Divergence, Level
from kgverify.comparison.source import StepSource
from kgverify.comparison.step_view import side_name
from kgverify.errors import count_of
from kgverify.program.stages import Stage
from kgverify.trace.model.columns import CandidateSet
from kgverify.trace.model.digests import Words, candidate_keys, fold, words_of

ROWS: Final = 1 << 16
"""Candidates read at a time."""


class Alignment(NamedTuple):
    """Rows of candidates, int64 each: the pairs in the expected order, and the candidates that only one trace has.

    The n-th occurrence of a candidate in one trace is paired with its n-th occurrence in the other.
    """

    expected: NDArray[np.int64]
    actual: NDArray[np.int64]
    missing: NDArray[np.int64]
    extra: NDArray[np.int64]


class SourceCandidates:
    """Candidates of a source, which may stay on disk; `convert` brings their atoms into the common ids."""

    def __init__(self, source: StepSource, convert: Convert | None) -> None:
        self._source = source
        self._convert = convert
        self.num_candidates = source.num_candidates

    def take(self, rows: NDArray[np.int64]) -> CandidateSet:
        """Return query, side and atom of some candidates."""
        query, side, atom = (self._source.gather_column(name, rows) for name in ("query", "side", "atom"))
        return CandidateSet(query, side, self._convert(atom) if self._convert is not None else atom)


CandidateReader = CandidateSet | SourceCandidates
"""The query, side and atom of the candidates of one trace, in the ids that both traces have."""


def align_candidates(expected: CandidateReader, actual: CandidateReader, rows: int = ROWS) -> Alignment:
    """Pair the candidates of two traces; some 60 bytes a candidate in memory.

    Candidates are found by sorted 64-bit keys and confirmed by their query, side and atom.
    """
    num = expected.num_candidates
    every, none = np.arange(num), np.zeros(0, np.int64)
    if actual.num_candidates == num and _is_confirmed(expected, actual, every, every, rows):
        return Alignment(every, every, none, none)
    alignment = _align_keys(expected, actual, (_keys(expected, rows), _keys(actual, rows)), rows)
    if alignment is None:
        # Different candidates have one key. Exact keys take longer and more memory.
        alignment = _align_keys(expected, actual, _exact_keys(expected, actual), rows)
        assert alignment is not None
    return alignment


def _align_keys(
    expected: CandidateReader, actual: CandidateReader, keys: tuple[Words, Words], at_a_time: int
) -> Alignment | None:
    """Pair candidates by their keys; None if this pairs different candidates, which have one key."""
    orders = [np.argsort(each, kind="stable") for each in keys]
    ordered = [each[order] for each, order in zip(keys, orders, strict=True)]
    occurrence = np.arange(len(ordered[0])) - np.searchsorted(ordered[0], ordered[0], side="left")
    index = np.searchsorted(ordered[1], ordered[0], side="left") + occurrence
    is_paired = index < len(ordered[1])
    is_paired[is_paired] = ordered[1][index[is_paired]] == ordered[0][is_paired]
    rows = orders[0][is_paired], orders[1][index[is_paired]]
    # Of each key, every candidate of one side is paired: with the same candidates, no other pairs are possible.
    if not _is_confirmed(expected, actual, *rows, at_a_time):
        return None
    in_order = np.argsort(rows[0])
    return Alignment(
        rows[0][in_order],
        rows[1][in_order],
        np.setdiff1d(np.arange(len(keys[0])), rows[0]),
        np.setdiff1d(np.arange(len(keys[1])), rows[1]),
    )


def _blocks(reader: CandidateReader, rows: int) -> Iterator[tuple[slice, CandidateSet]]:
    for begin in range(0, reader.num_candidates, rows):
        end = min(begin + rows, reader.num_candidates)
        yield slice(begin, end), reader.take(np.arange(begin, end))


def _hash_atoms(atoms: NDArray[np.int32]) -> Words:
    key = np.zeros(len(atoms), np.uint64)
    for values in atoms.T:
        key = fold(key, words_of(values))
    return key


def _keys(reader: CandidateReader, at_a_time: int) -> Words:
    keys = np.empty(reader.num_candidates, np.uint64)
    for rows, candidates in _blocks(reader, at_a_time):
        keys[rows] = candidate_keys(candidates)
    return keys


def _exact_keys(expected: CandidateReader, actual: CandidateReader) -> tuple[Words, Words]:
    loaded = [reader.take(np.arange(reader.num_candidates)) for reader in (expected, actual)]
    rows = [np.column_stack((c.query, c.side, c.atom)) for c in loaded]
    _, keys = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    words = words_of(keys.reshape(-1))
    return words[: len(rows[0])], words[len(rows[0]) :]


def _is_confirmed(
    expected: CandidateReader,
    actual: CandidateReader,
    rows: NDArray[np.int64],
    others: NDArray[np.int64],
    at_a_time: int,
) -> bool:
    for begin in range(0, len(rows), at_a_time):
        some = slice(begin, begin + at_a_time)
        left, right = expected.take(rows[some]), actual.take(others[some])
        if not all(np.array_equal(getattr(left, name), getattr(right, name)) for name in CandidateSet._fields):
            return False
    return True


Draws = dict[tuple[int, str], str]
"""The evidence for another draw of candidates, by query and side."""


def judge_unpaired(
    expected: CandidateReader,
    actual: CandidateReader,
    alignment: Alignment,
    pair: ComparablePair,
    at_a_time: int = ROWS,
) -> tuple[list[Divergence], Draws]:
    """Return a divergence for each candidate that only one trace has, and the evidence for other draws.

    Such a candidate was drawn differently, or the batch machinery lost, doubled or invented it.
    """
    missing, extra = expected.take(alignment.missing), actual.take(alignment.extra)
    if not len(missing.query) and not len(extra.query):
        return [], {}
    groups = _group_atoms(missing), _group_atoms(extra)
    redrawn = groups[0].keys() & groups[1].keys()
    facts = set() if pair.expected.facts is None else {tuple(fact) for fact in pair.expected.facts.tolist()}
    draws = {(q, side_name(s)): _describe_draw(groups[0][q, s], groups[1][q, s], facts) for q, s in redrawn}
    known, seen = _find_relatives(expected, alignment.expected, missing, extra, at_a_time)
    found = []
    for rows, candidates, names, is_extra in (
        (alignment.missing, missing, pair.names, False),
        (alignment.extra, extra, pair.actual_names, True),
    ):
        columns = (column.tolist() for column in candidates)
        for row, query, side, arguments in zip(rows.tolist(), *columns, strict=True):
            atom = tuple(arguments)
            is_doubled = is_extra and (query, side, atom) in seen
            is_drawn = not is_doubled and ((query, side) in redrawn or (is_extra and atom not in known))
            if is_extra and (query, side) in redrawn:
                seen.add((query, side, atom))
            text = names.atom(atom)
            found.append(
                Divergence(
                    candidate=row,
                    atom=text,
                    query=query,
                    side=side_name(side),
                    step=-1,
                    stage=(Stage.CORRUPT if is_drawn else Stage.RECYCLE).value,
                    field="candidates.atom",
                    level=Level.OUTCOME,
                    expected=NO_CANDIDATE if is_extra else text,
                    actual=text if is_extra else NO_CANDIDATE,
                )
            )
    return found, draws


def _find_relatives(
    expected: CandidateReader,
    paired: NDArray[np.int64],
    missing: CandidateSet,
    extra: CandidateSet,
    at_a_time: int,
) -> tuple[set[tuple[int, ...]], set[tuple[int, int, tuple[int, ...]]]]:
    """Return the atoms, and the candidates, of the pairs that have an atom or an identity of an unpaired candidate."""
    identities, atoms = candidate_keys(missing), _hash_atoms(extra.atom)
    is_paired = np.zeros(expected.num_candidates, bool)
    is_paired[paired] = True
    known: set[tuple[int, ...]] = set()
    seen: set[tuple[int, int, tuple[int, ...]]] = set()
    for rows, candidates in _blocks(expected, at_a_time):
        hits = np.isin(candidate_keys(candidates), identities) | np.isin(_hash_atoms(candidates.atom), atoms)
        for query, side, atom in zip(
            *(column.tolist() for column in candidates.take(np.flatnonzero(hits & is_paired[rows]))), strict=True
        ):
            known.add(tuple(atom))
            seen.add((query, side, tuple(atom)))
    return known, seen


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
