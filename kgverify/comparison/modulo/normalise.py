"""Normal forms of columns: steps that are equal up to what was declared become equal."""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.modulo.policy import DUPLICATES, NAMES, ORDER, Modulo
from kgverify.trace.model.columns import Columns, Resolvents, Steps, expand_rows, starts_of
from kgverify.trace.model.digests import Words, fold, renumber, words_of

_TIE_BREAKERS: Final = ("origin_kind", "origin", "score")
"""The columns that order equal resolvents, if both traces have them."""


def normalise(columns: Columns, modulo: Modulo, ignored: Collection[str] = (), *, has_scores: bool = True) -> Columns:
    """Return candidates with their steps in normal form. The outputs of stages stay as they are.

    A sum of log-probabilities becomes the one without repeated resolvents.

    ignored:    columns that do not order equal resolvents, because only one trace has them
    has_scores: whether the scores are known
    """
    normal = normalise_steps(columns, modulo, ignored)
    candidates = columns.candidates
    if NAMES in modulo:
        candidates = candidates._replace(atom=rename_candidates(candidates.atom))
    if has_scores and len(normal.resolvents.kind) < len(columns.resolvents.kind):
        gained = _log_sums(columns) - _log_sums(normal)
        owner = np.repeat(np.arange(len(candidates.query)), candidates.num_steps)
        # Steps without repetitions gain nothing, not even by rounding.
        owner, gained = (each[columns.steps.num_resolvents != normal.steps.num_resolvents] for each in (owner, gained))
        sums = candidates.log_probability + np.bincount(owner, gained, len(candidates.query))
        candidates = candidates._replace(log_probability=sums)
    return normal._replace(candidates=candidates)


def normalise_steps(columns: Columns, modulo: Modulo, ignored: Collection[str] = ()) -> Columns:
    """Return steps in normal form; the candidates stay as they are."""
    steps, resolvents = columns.steps, columns.resolvents
    if NAMES in modulo:
        steps = steps._replace(goal_atoms=renumber(steps.goal_atoms, starts_of(steps.num_atoms)))
        resolvents = resolvents._replace(atoms=renumber(resolvents.atoms, starts_of(resolvents.num_atoms)))
    if modulo & {ORDER, DUPLICATES}:
        steps, resolvents = _arrange(steps, resolvents, modulo, ignored)
    return columns._replace(steps=steps, resolvents=resolvents)


def rename_candidates(atoms: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return atoms of candidates, each with its variables numbered by first appearance."""
    return renumber(atoms, np.arange(len(atoms) + 1))


def hash_goals(atoms: NDArray[np.int32], starts: NDArray[np.int64]) -> Words:
    """Return a hash of each goal, uint64 [n], to find it by; hits are confirmed."""
    position = np.arange(len(atoms)) - np.repeat(starts[:-1], np.diff(starts))
    words = words_of(position)
    for values in atoms.T:
        words = fold(words, words_of(values))
    running = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words, out=running[1:])
    return running[starts[1:]] - running[starts[:-1]]


class _Groups(NamedTuple):
    """The groups of equal resolvents of each step.

    group: int64 [R]  the group of each resolvent
    first: int64 [groups]  the first resolvent of each group
    key:   uint64 [R]  equal for equal resolvents
    """

    group: NDArray[np.int64]
    first: NDArray[np.int64]
    key: Words


def _arrange(
    steps: Steps, resolvents: Resolvents, modulo: Modulo, ignored: Collection[str]
) -> tuple[Steps, Resolvents]:
    """Drop repeated resolvents, sort the others, and let the choice follow the resolvent chosen."""
    num = len(resolvents.kind)
    step = np.repeat(np.arange(len(steps.depth)), steps.num_resolvents)
    groups = _find_groups(resolvents, step)
    rows = np.sort(groups.first) if DUPLICATES in modulo else np.arange(num)
    if ORDER in modulo:
        breakers = [getattr(resolvents, n)[rows] for n in _TIE_BREAKERS if f"resolvents.{n}" not in ignored]
        rows = rows[np.lexsort((*reversed(breakers), groups.key[rows], step[rows]))]
    counts = np.bincount(step[rows], minlength=len(steps.depth))
    # The choice becomes the first of the resolvents that equal the one chosen.
    place = np.full(len(groups.first), num)
    np.minimum.at(place, groups.group[rows], np.arange(len(rows)))
    choice = steps.choice.copy()
    is_valid = (choice >= 0) & (choice < steps.num_resolvents)
    chosen = starts_of(steps.num_resolvents)[:-1][is_valid] + choice[is_valid]
    choice[is_valid] = place[groups.group[chosen]] - starts_of(counts)[:-1][is_valid]
    atoms = resolvents.atoms[expand_rows(starts_of(resolvents.num_atoms), rows)]
    arranged: list[Any] = [*(column[rows] for column in resolvents[:-1]), atoms]
    return (
        steps._replace(choice=choice, num_resolvents=counts.astype(steps.num_resolvents.dtype)),
        Resolvents(*arranged),
    )


def _find_groups(resolvents: Resolvents, step: NDArray[np.int64]) -> _Groups:
    starts = starts_of(resolvents.num_atoms)
    key = fold(hash_goals(resolvents.atoms, starts), words_of(resolvents.kind))
    order = np.lexsort((key, step))
    before, after = order[:-1], order[1:]
    is_again = np.zeros(len(order), np.bool_)
    is_again[1:] = (key[before] == key[after]) & (step[before] == step[after])
    is_again[1:] &= resolvents.num_atoms[before] == resolvents.num_atoms[after]
    is_again[1:] &= resolvents.kind[before] == resolvents.kind[after]
    at = np.flatnonzero(is_again)
    atoms = [resolvents.atoms[expand_rows(starts, order[rows])] for rows in (at - 1, at)]
    is_other = (atoms[0] != atoms[1]).any(axis=1)
    is_again[np.repeat(at, resolvents.num_atoms[order[at]])[is_other]] = False
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(~is_again) - 1
    return _Groups(group, order[~is_again], key)


def _log_sums(columns: Columns) -> NDArray[np.float64]:
    """Return the logarithm of the sum of the exponentials of the scores of each step; 0 for a step without any."""
    counts = columns.steps.num_resolvents.astype(np.int64)
    sums = np.zeros(len(counts))
    filled = counts > 0
    if not filled.any():
        return sums
    scores = columns.resolvents.score.astype(np.float64)
    begins = starts_of(counts)[:-1][filled]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        highest = np.maximum.reduceat(scores, begins)
        highest = np.where(np.isfinite(highest), highest, 0.0)
        parts = np.exp(scores - np.repeat(highest, counts[filled]))
        sums[filled] = highest + np.log(np.add.reduceat(parts, begins))
    return sums
