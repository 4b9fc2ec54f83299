"""Equality up to declared benign differences: in names of variables, the order of resolvents, or repeated resolvents.

Steps, and outputs of stages, that are equal up to the declared differences have the same normal form.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Benign
from kgverify.comparison.step_view import LISTING_STAGES, canonical
from kgverify.errors import UserError
from kgverify.program.atoms import Atom, Goal
from kgverify.program.outcomes import Stage
from kgverify.trace.model.columns import Columns, Resolvents, Steps, expand_rows, select_steps, starts_of
from kgverify.trace.model.digests import Words, compute_digests, fold, renumber, words_of
from kgverify.trace.model.header import Header
from kgverify.trace.model.stage_items import StageOutputs
from kgverify.trace.model.trace import Trace

Modulo: TypeAlias = frozenset[str]
"""The kinds of differences that are benign."""

NAMES: Final = "names"
"""The numbers of the variables of a goal."""

ORDER: Final = "order"
"""The order of the resolvents of a step; choices are compared by the chosen resolvent. The order of atoms still matters."""

DUPLICATES: Final = "duplicates"
"""Repetitions of a resolvent of a step."""

KINDS: Final = (NAMES, ORDER, DUPLICATES)

EXACT: Final = "none"
"""The declaration that no difference is benign."""

NOTHING: Final[Modulo] = frozenset()

MEANINGS: Final = {
    NAMES: "names of variables",
    ORDER: "the order of resolvents",
    DUPLICATES: "repeated resolvents",
}


def parse_modulo(declared: str | Collection[str] | None) -> Modulo | None:
    """Parse the kinds that a user declares, as `"names,order"` or one by one; return None if nothing is declared.

    UserError for an unknown kind.
    """
    if declared is None:
        return None
    listed = declared.split(",") if isinstance(declared, str) else declared
    kinds = frozenset(each.strip() for each in listed)
    for each in sorted(kinds - {*KINDS, EXACT}):
        raise UserError(
            f"unknown kind of differences {each!r}",
            where="modulo",
            fix=f"give one or more of {', '.join(KINDS)}, separated by commas, or {EXACT}",
        )
    if EXACT in kinds and len(kinds) > 1:
        raise UserError(f"{EXACT} excludes other kinds", where="modulo", fix=f"give {EXACT} alone, or leave it out")
    return kinds - {EXACT}


def resolve_modulo(
    declared: Collection[str] | None, expected: Header, actual: Header
) -> tuple[Modulo, tuple[str, ...]]:
    """Return the kinds that apply to two traces, with a note if they follow from the traces.

    If nothing is declared, names are benign if an engine numbers variables its own way.
    """
    if declared is not None:
        return frozenset(declared), ()
    own = [header.engine.name for header in (expected, actual) if header.engine.variables == "own"]
    if not own:
        return NOTHING, ()
    whose = " and ".join(dict.fromkeys(own))
    note = f"variables of {whose} have numbers of their own, so names do not count (--modulo {EXACT} counts them)"
    return frozenset([NAMES]), (note,)


def order_kinds(kinds: Collection[str]) -> tuple[str, ...]:
    """Return kinds in their usual order."""
    return tuple(kind for kind in KINDS if kind in kinds)


def describe_modulo(kinds: Collection[str]) -> str:
    """Describe kinds: `names of variables and the order of resolvents`."""
    *most, last = [MEANINGS[kind] for kind in order_kinds(kinds)] or ["nothing"]
    return f"{', '.join(most)} and {last}" if most else last


_TIE_BREAKERS: Final = ("origin_kind", "origin", "score")
"""The columns that order equal resolvents, if both traces have them."""


def normalise(columns: Columns, modulo: Modulo, ignored: Collection[str] = (), *, has_scores: bool = True) -> Columns:
    """Return candidates with their steps in normal form. The outputs of stages stay as they are.

    Sums of log-probabilities are recomputed without repeated resolvents.

    ignored:    columns that are not used to order equal resolvents, because only one trace has them
    has_scores: whether the scores are known
    """
    normal = normalise_steps(columns, modulo, ignored)
    candidates = columns.candidates
    if NAMES in modulo:
        candidates = candidates._replace(atom=rename_candidates(candidates.atom))
    if has_scores and len(normal.resolvents.kind) < len(columns.resolvents.kind):
        gained = _log_sums(columns) - _log_sums(normal)
        owner = np.repeat(np.arange(len(candidates.query)), candidates.num_steps)
        # The sums of steps without repetitions must not change, not even by rounding.
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
    """Return the atoms of candidates, each with its variables numbered by first appearance."""
    return renumber(atoms, np.arange(len(atoms) + 1))


def hash_goals(atoms: NDArray[np.int32], starts: NDArray[np.int64]) -> Words:
    """Return a hash of each goal, uint64 [n], for lookups; the caller must confirm hits."""
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
    key:   uint64 [R]  a hash that is equal for equal resolvents
    """

    group: NDArray[np.int64]
    first: NDArray[np.int64]
    key: Words


def _arrange(
    steps: Steps, resolvents: Resolvents, modulo: Modulo, ignored: Collection[str]
) -> tuple[Steps, Resolvents]:
    """Drop repeated resolvents, sort the others, and update the choice to the new index of the chosen resolvent."""
    num = len(resolvents.kind)
    step = np.repeat(np.arange(len(steps.depth)), steps.num_resolvents)
    groups = _find_groups(resolvents, step)
    rows = np.sort(groups.first) if DUPLICATES in modulo else np.arange(num)
    if ORDER in modulo:
        breakers = [getattr(resolvents, n)[rows] for n in _TIE_BREAKERS if f"resolvents.{n}" not in ignored]
        rows = rows[np.lexsort((*reversed(breakers), groups.key[rows], step[rows]))]
    counts = np.bincount(step[rows], minlength=len(steps.depth))
    # The choice becomes the first of the resolvents that equal the chosen one.
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
    """Return the logarithm of the sum of the exponentials of each step's scores; 0 for a step without scores."""
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


class BenignSteps(NamedTuple):
    """Steps whose difference belongs to one kind: their number, their candidates, and both sides of the first step."""

    num_steps: int
    candidates: NDArray[np.int64]
    first: Benign

    def move(self, rows: NDArray[np.integer]) -> "BenignSteps":
        """Return the same steps with renumbered candidates, given the new number of each candidate."""
        first = msgspec.structs.replace(self.first, candidate=int(rows[self.first.candidate]))
        return BenignSteps(self.num_steps, rows[self.candidates].astype(np.int64), first)


class BenignCount:
    """The total of the benign differences of whole traces."""

    def __init__(self) -> None:
        self._found: dict[str, list[BenignSteps]] = {}

    def add(self, found: BenignSteps) -> None:
        """Add steps whose candidates are numbered as in the whole trace."""
        self._found.setdefault(found.first.kind, []).append(found._replace(candidates=np.unique(found.candidates)))

    def join(self, other: "BenignCount", owner: NDArray[np.integer]) -> None:
        """Add the counts of another comparison. owner: int [N], the candidate of this trace for each of the other trace."""
        for found in other._found.values():
            for each in found:
                self.add(each.move(owner))

    def candidates(self, kind: str) -> NDArray[np.int64]:
        """Return the candidates with differences of a kind, in order."""
        found = (each.candidates for each in self._found.get(kind, ()))
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def listed(self) -> tuple[Benign, ...]:
        """Return the differences, kind by kind."""
        return tuple(
            msgspec.structs.replace(
                min((each.first for each in self._found[kind]), key=lambda first: (first.candidate, first.step)),
                num_steps=sum(each.num_steps for each in self._found[kind]),
                num_candidates=len(self.candidates(kind)),
            )
            for kind in order_kinds(self._found)
        )


def find_kinds(
    raw: tuple[Trace, Trace],
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    modulo: Modulo,
    ignored: tuple[str, ...],
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield each kind with the indices of the pairs of steps whose difference belongs to it.

    A difference belongs to the smallest set of kinds up to which the two steps are equal.

    raw:  both traces as recorded, in one numbering, without the ignored columns
    rows: the rows, in both traces, of steps that differ and that are equal up to all kinds
    """
    chosen: dict[str, list[NDArray[np.int64]]] = {}
    left = np.arange(len(rows[0]))
    listed = order_kinds(modulo)
    for kinds in (frozenset(each) for size in range(1, len(listed) + 1) for each in combinations(listed, size)):
        is_equal = np.ones(len(left), np.bool_)
        if kinds != modulo:
            words = []
            for trace, own in zip(raw, rows, strict=True):
                columns = normalise_steps(select_steps(trace.columns, own[left]), kinds, ignored)
                words.append(compute_digests(columns).sequence)
            is_equal = words[0] == words[1]
        for kind in kinds:
            chosen.setdefault(kind, []).append(left[is_equal])
        left = left[~is_equal]
    for kind in order_kinds(chosen):
        indices = np.sort(np.concatenate(chosen[kind]))
        if len(indices):
            yield kind, indices


_MATCHES = (Stage.MATCH_RULES, Stage.MATCH_FACTS)


def normalise_outputs(outputs: StageOutputs, modulo: Modulo) -> StageOutputs:
    """Return the outputs of a step's stages in normal form; drop scores and choices if the list they refer to is unknown."""
    if not modulo:
        return outputs
    normal = dict(outputs)
    for stage, output in outputs.items():
        if stage in _MATCHES and ORDER in modulo:
            normal[stage] = tuple(sorted(output))
        elif stage in LISTING_STAGES:
            items = [_rename_item(item, modulo) for item in output]
            normal[stage] = tuple(items[i] for i in _arrange_items(items, modulo))
        elif stage is Stage.SELECT and NAMES in modulo:
            normal[stage] = _rename((output,))[0]
        elif stage is Stage.ADVANCE and NAMES in modulo:
            normal[stage] = (output[0], _rename(output[1]), output[2])
    if Stage.LIMIT in outputs:
        _normalise_limit(normal, modulo)
    elif modulo & {ORDER, DUPLICATES}:
        for stage in (Stage.SCORE, Stage.CHOOSE):
            normal.pop(stage, None)
    return normal


def _normalise_limit(normal: StageOutputs, modulo: Modulo) -> None:
    """Bring the output of `limit` into normal form, together with the scores and the choice that refer to it."""
    listed, *counts = normal[Stage.LIMIT]
    items = [_rename_item(item, modulo) for item in listed]
    scores, choice = normal.get(Stage.SCORE, ()), normal.get(Stage.CHOOSE, -1)
    is_scored = bool(scores) and len(scores) == len(items)
    rows = _arrange_items(items, modulo, scores if is_scored else ())
    normal[Stage.LIMIT] = (tuple(items[i] for i in rows), *counts)
    if is_scored and modulo & {ORDER, DUPLICATES}:
        normal[Stage.SCORE] = tuple(scores[i] for i in rows)
    if 0 <= choice < len(items) and modulo & {ORDER, DUPLICATES}:
        normal[Stage.CHOOSE] = [_content(items[i]) for i in rows].index(_content(items[choice]))


def _arrange_items(items: Sequence[Any], modulo: Modulo, scores: Sequence[float] = ()) -> list[int]:
    """Return the indices of the items that remain, in their normal order."""
    rows = list(range(len(items)))
    if DUPLICATES in modulo:
        first = {_content(items[i]): i for i in reversed(rows)}
        rows = sorted(first.values())
    if ORDER in modulo:
        rows.sort(key=lambda i: (_content(items[i]), items[i][-3:-1], scores[i] if scores else 0.0))
    return rows


def _content(item: Any) -> tuple[Any, ...]:
    """Return the kind, if the item has one, and the atoms of an item."""
    return (*item[:-3], item[-1])


def _rename_item(item: Any, modulo: Modulo) -> tuple[Any, ...]:
    return (*item[:-1], _rename(item[-1])) if NAMES in modulo else tuple(item)


def _rename(atoms: Any) -> Goal:
    return canonical(tuple(Atom(*atom) for atom in atoms))
