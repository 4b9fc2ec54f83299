"""The goals of two compared traces: rebuilt for compact ones, and looked up among all derivations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.comparison.comparable import Numbering
from kgverify.comparison.modulo.normalise import hash_goals
from kgverify.comparison.source import StepSource
from kgverify.errors import UserError
from kgverify.program.atoms import Atom, Goal
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.digests import Words
from kgverify.trace.model.levels import TraceLevel, has_goals
from kgverify.trace.model.trace import Rebuild, Trace

Rebuilding = Callable[[Trace], Rebuild]
"""Prepares to rebuild candidates of a trace by its program. UserError if it holds no clauses or no program."""


class Rebuilds(NamedTuple):
    """The functions that give each side its goals; None for a side that has them or cannot have any."""

    expected: Rebuild | None = None
    actual: Rebuild | None = None

    def apply(self, side: int, block: Trace) -> Trace:
        """Return some candidates of a side (0: expected, 1: actual), with goals where these can be rebuilt."""
        rebuild = self[side]
        return block if rebuild is None else rebuild(block)


def find_rebuilds(expected: StepSource, actual: StepSource, rebuilding: Rebuilding | None) -> Rebuilds:
    """Return how to rebuild compact traces, provided that their clauses lead to all their digests.

    Nothing is rebuilt if the digests of both traces agree: rebuilding takes longer than comparing.
    """
    levels = [source.header.level for source in (expected, actual)]
    if rebuilding is None or all(map(has_goals, levels)) or TraceLevel.COMPACT not in levels:
        return Rebuilds()
    if _hash_sequence(expected) == _hash_sequence(actual):
        return Rebuilds()
    return Rebuilds(_find_rebuild(expected, rebuilding), _find_rebuild(actual, rebuilding))


def _find_rebuild(source: StepSource, rebuilding: Rebuilding) -> Rebuild | None:
    if source.header.level != TraceLevel.COMPACT:
        return None
    try:
        rebuild = rebuilding(source.shell())
        for begin, end in source.split():
            rebuild(_load(source, begin, end))
    except UserError:
        # The comparison uses the digests of a trace without goals, and says so.
        return None
    return rebuild


def _hash_sequence(source: StepSource) -> bytes:
    """Hash the digests of all steps, in order; they are computed where they are not stored."""
    hasher: Any = xxhash.xxh3_128()
    for begin, end in source.split():
        sequence = source.stored_digests(np.arange(begin, end)).get("sequence")
        if sequence is None:
            sequence = _load(source, begin, end).digests.sequence
        hasher.update(np.ascontiguousarray(sequence).data)
    return bytes(hasher.digest())


def _load(source: StepSource, begin: int, end: int) -> Trace:
    rows = np.arange(begin, end)
    return source.load(source.read_rows(rows), rows)


def find_goals(
    expected: StepSource, actual: StepSource, numbering: Numbering, rebuild: Rebuild | None, wanted: frozenset[Goal]
) -> frozenset[Goal]:
    """Return the wanted goals that a step of the expected trace has, or that are a query of the actual one.

    rebuild: gives the expected trace its goals, if it keeps none
    """
    if not wanted:
        return wanted
    known = np.unique(_hash_views(wanted))
    found: set[Goal] = set()
    for begin, end in expected.split():
        if rebuild is not None:
            columns = rebuild(_load(expected, begin, end)).columns
        else:
            columns = expected.read_rows(np.arange(begin, end))
        atoms, starts = columns.steps.goal_atoms, starts_of(columns.steps.num_atoms)
        hits = np.flatnonzero(np.isin(hash_goals(atoms, starts), known))
        found |= {_goal(atoms[starts[i] : starts[i + 1]]) for i in hits.tolist()} & wanted
    convert = numbering.converter(1)
    queries = any(len(goal) == 1 for goal in wanted)
    for begin in range(0, actual.num_candidates, 1 << 16) if queries else ():
        atoms = actual.gather_column("atom", np.arange(begin, min(begin + (1 << 16), actual.num_candidates)))
        if convert is not None:
            atoms = convert(atoms)
        hits = np.flatnonzero(np.isin(hash_goals(atoms, np.arange(len(atoms) + 1)), known))
        found |= {_goal(atoms[i : i + 1]) for i in hits.tolist()} & wanted
    return frozenset(found)


def _goal(atoms: NDArray[np.int32]) -> Goal:
    return tuple(Atom(*each) for each in atoms.tolist())


def _hash_views(goals: frozenset[Goal]) -> Words:
    counts = np.array([len(goal) for goal in goals], np.int64)
    atoms = np.array([tuple(atom) for goal in goals for atom in goal], np.int32).reshape(-1, 3)
    return hash_goals(atoms, starts_of(counts))
