"""The dialects in which a program gives recorded steps: the declared one, or one that differs from it in few switches."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kgverify.comparison.inference.single_fault import MOST_CLAUSES, StepProgram
from kgverify.comparison.step_pair import Listed, StepPair
from kgverify.comparison.step_view import StepReader, StepView, plain
from kgverify.program.fact_index import Ids
from kgverify.program.limits import FILTERS, RANKED, UNSEEN, VALUES, Dialect, Limits, show_value
from kgverify.program.outcomes import GoalKind, Side
from kgverify.step.clauses import Atoms, Clauses, number_variables
from kgverify.step.plain_step import Resolvent
from kgverify.trace.model.columns import Candidates, Columns

MOST_NAMED: Final = 8
"""The most variants to name if they give as many steps."""

NUM_FIRST: Final = 16
"""The number of steps from which the order of variants is estimated: with the best one first, few steps refute the others."""

_IN_NAMES: Final = ("forgets_names",)
"""The switches whose effect goals in canonical variables do not show."""


class RecordedStep(NamedTuple):
    """A recorded step with the candidate's steps before it.

    candidate:   the row of the candidate
    is_query:    whether the candidate is a query, not a corruption; None if that is unknown
    next_depth:  the depth of the candidate's next step; None without one, or if depths are unknown
    """

    step: StepView
    earlier: Sequence[StepView]
    query: Ids
    candidate: int = 0
    is_query: bool | None = True
    next_depth: int | None = None


class Fit(NamedTuple):
    """A dialect, with the indices of the steps that it does not give.

    alternatives: the last change that led to it, in words, and other changes that give as many steps
    """

    dialect: Dialect
    misfits: tuple[int, ...]
    alternatives: tuple[str, ...] = ()


class Shown(NamedTuple):
    """The evidence in a trace.

    origins, counts, depths, names: whether its steps show the clauses that made their resolvents, how many were dropped, their
                                    depths, and variables that keep their names
    """

    origins: bool
    counts: bool
    depths: bool = False
    names: bool = False


def list_variants(dialect: Dialect, *, has_names: bool = False) -> Iterator[tuple[str, Dialect]]:
    """Yield each dialect that differs in one switch that steps show, with words for it: `memory = set`."""
    hidden = (*RANKED, *UNSEEN, *(() if has_names else _IN_NAMES))
    for name, values in VALUES.items():
        for value in values if name not in hidden else ():
            if value != getattr(dialect, name):
                yield f"{name} = {show_value(value)}", replace(dialect, **{name: value})
    for name in FILTERS:
        others = tuple(each for each in dialect.filters if each != name)
        orders = [(*others[:i], name, *others[i:]) for i in range(len(others) + 1)]
        for filters in (others, *orders) if name in dialect.filters else orders:
            if filters != dialect.filters:
                yield f"filters = {show_value(filters)}", replace(dialect, filters=filters)


def describe_changes(declared: Dialect, dialect: Dialect) -> str:
    """Return the switches of a dialect that differ from the declared one: `memory = set`, joined by "and"."""
    names = [name for name in Dialect.__struct_fields__ if getattr(dialect, name) != getattr(declared, name)]
    return " and ".join(f"{name} = {show_value(getattr(dialect, name))}" for name in names)


def find_queries(candidates: Candidates, rows: NDArray[np.int64]) -> list[bool | None]:
    """Return which candidates in some rows are queries, not corruptions: those on both sides of a ranking.

    None if the ranking has one side.
    """
    sides: dict[tuple[int, ...], set[int]] = {}
    ranked = np.flatnonzero(np.isin(candidates.query, candidates.query[rows]))
    keys = np.column_stack((candidates.query, candidates.atom))
    for key, side in zip(map(tuple, keys[ranked].tolist()), candidates.side[ranked].tolist(), strict=True):
        sides.setdefault(key, set()).add(side)
        sides.setdefault(key[:1], set()).add(side)
    return [
        True if side == Side.NONE or len(sides[key]) > 1 else False if len(sides[key[:1]]) > 1 else None
        for key, side in zip(map(tuple, keys[rows].tolist()), candidates.side[rows].tolist(), strict=True)
    ]


def read_steps(columns: Columns, are_queries: Sequence[bool | None], shown: Shown) -> Iterator[RecordedStep]:
    """Yield the steps of all candidates of some columns; `are_queries` is what `find_queries` returns for them."""
    reader, atoms = StepReader(columns), columns.candidates.atom.tolist()
    for row, (atom, is_query) in enumerate(zip(atoms, are_queries, strict=True)):
        steps = [reader.read(i) for i in range(*reader.first_step[row : row + 2])]
        for i, step in enumerate(steps):
            following = [
                each.depth for each in steps[i + 1 : i + 2] if shown.depths and each.depth - step.depth in (0, 1)
            ]
            yield RecordedStep(step, steps[:i], tuple(atom), row, is_query, next(iter(following), None))


class _Retaken:
    """A recorded step, taken again in several dialects. What its clauses make is kept from one dialect to the next."""

    def __init__(self, clauses: Clauses, limits: Limits, recorded: RecordedStep, shown: Shown) -> None:
        self._clauses, self._limits, self._recorded, self._shown = clauses, limits, recorded, shown
        self._pair = StepPair(recorded.step, recorded.step, has_origins=shown.origins, has_counts=shown.counts)
        self._goals = [plain(each.goal) for each in (*recorded.earlier, recorded.step)]
        self._made: dict[tuple[Any, ...], list[Resolvent]] = {}

    @cached_property
    def _canonical_goals(self) -> list[Atoms]:
        return list(map(number_variables, self._goals))

    @cached_property
    def _listed(self) -> Listed:
        return self._pair.read(1)

    def fits(self, dialect: Dialect) -> bool:
        """Return whether a dialect gives the step."""
        recorded = self._recorded
        step = recorded.step
        if recorded.next_depth is not None:
            is_unary = len(step.resolvents) == 1 and step.resolvents[0].kind == GoalKind.GOAL
            same = next((i for i, each in enumerate(reversed(recorded.earlier)) if each.depth != step.depth), None)
            num_uncounted = len(recorded.earlier) if same is None else same
            is_uncounted = dialect.skips_unary and is_unary and num_uncounted < self._limits.max_depth
            if recorded.next_depth != step.depth + (not is_uncounted):
                return False
        return any(self.give(dialect, exclusion) == self._listed for exclusion in self._list_exclusions(dialect))

    def _list_exclusions(self, dialect: Dialect) -> tuple[str, ...]:
        if dialect.exclusion != "positives_only":
            return (dialect.exclusion,)
        return {True: ("always",), False: ("never",), None: ("always", "never")}[self._recorded.is_query]

    def give(self, dialect: Dialect, exclusion: str = "") -> Listed:
        """Return the list that a dialect gives, with the details that the recorded step shows."""
        dialect = replace(dialect, exclusion=exclusion or self._list_exclusions(dialect)[0])
        visited = self._goals if self._shown.names and not dialect.forgets_names else self._canonical_goals
        limits = replace(self._limits, dialect=dialect)
        own = StepProgram(self._clauses.in_dialect(dialect), limits, visited, self._recorded.query)
        matching = dialect.unification, dialect.order, dialect.is_reversed, own.excluded, visited[-1]
        if matching not in self._made:
            self._made[matching] = own.match(visited[-1])
        return self._pair.show(own.list(self._made[matching]))


class DialectFit:
    """Recorded steps, and the dialects in which a program gives them. Steps that too many clauses match are left out.

    limits: the limits, with the declared dialect
    """

    def __init__(self, clauses: Clauses, limits: Limits, steps: Sequence[RecordedStep], shown: Shown) -> None:
        self._clauses, self._limits, self._shown = clauses, limits, shown
        self.steps = [each for each in steps if each.step.goal and self._has_few_clauses(each)]

    def _has_few_clauses(self, recorded: RecordedStep) -> bool:
        selected = plain(recorded.step.goal)[0]
        return len(self._clauses.facts_like(selected, None)) + len(self._clauses.rules_of(selected[0])) <= MOST_CLAUSES

    def _retake(self, number: int) -> _Retaken:
        return _Retaken(self._clauses, self._limits, self.steps[number], self._shown)

    def give(self, number: int, dialect: Dialect) -> Listed:
        """Return the list of a step that a dialect gives, with the details that the recorded steps show."""
        return self._retake(number).give(dialect)

    @cached_property
    def declared(self) -> Fit:
        """The fit of the declared dialect."""
        dialect = self._limits.dialect
        return Fit(dialect, tuple(self._list_misfits([dialect], range(len(self.steps)))[dialect]))

    def _list_misfits(
        self, dialects: Iterable[Dialect], order: Iterable[int], most: int | None = None
    ) -> dict[Dialect, list[int]]:
        """Return the steps that each dialect does not give, ascending; leave out dialects with more than `most` of them.

        order: the steps in the order in which they are tried
        """
        misfits: dict[Dialect, list[int]] = {dialect: [] for dialect in dialects}
        for number in order:
            retaken = self._retake(number)
            for dialect in [each for each in misfits if not retaken.fits(each)]:
                misfits[dialect].append(number)
                if most is not None and len(misfits[dialect]) > most:
                    del misfits[dialect]
            if not misfits:
                break
        return {dialect: sorted(numbers) for dialect, numbers in misfits.items()}

    def _order_from(self, first: Sequence[int]) -> list[int]:
        """Return the numbers of all steps, some first."""
        return list(dict.fromkeys((*first, *range(len(self.steps)))))

    def list_fitting(self) -> list[str]:
        """Return each change of one switch with which all steps fit, in words."""
        variants = list(list_variants(self._limits.dialect, has_names=self._shown.names))
        order = self._order_from(self.declared.misfits)
        fitting = self._list_misfits([dialect for _, dialect in variants], order, most=0)
        return [words for words, dialect in variants if dialect in fitting]

    def find_best(self) -> Fit:
        """Return the dialect that gives the most steps. From the declared one, switches change as long as more steps fit."""
        best = self.declared
        while best.misfits and (better := self._change_switch(best)) is not None:
            best = better
        return best

    def _change_switch(self, best: Fit) -> Fit | None:
        """Return the fit of the dialect that differs in one switch and gives the most steps; None if none gives more."""
        words = {dialect: each for each, dialect in list_variants(best.dialect, has_names=self._shown.names)}
        first = best.misfits[:: max(1, len(best.misfits) // NUM_FIRST)]
        estimated = self._list_misfits(words, first)
        likeliest, *others = sorted(words, key=lambda dialect: len(estimated[dialect]))
        order = self._order_from((*first, *best.misfits))
        found = self._list_misfits([likeliest], order, most=len(best.misfits) - 1)
        most = min((len(each) for each in found.values()), default=len(best.misfits) - 1)
        found |= self._list_misfits(others, order, most)
        fewest = min((len(each) for each in found.values()), default=0)
        wrong = set(best.misfits)
        ordered = sorted(
            (dialect for dialect in words if dialect in found and len(found[dialect]) == fewest),
            key=lambda dialect: len(wrong.intersection(found[dialect])),
        )
        if not ordered:
            return None
        named = tuple(words[dialect] for dialect in ordered[:MOST_NAMED])
        return Fit(ordered[0], tuple(found[ordered[0]]), named)
