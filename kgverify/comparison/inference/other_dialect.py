"""The dialects in which a program gives recorded steps: the declared one, or one that differs from it in few switches."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msgspec.structs import replace

from kgverify.comparison.inference.single_fault import MOST_CLAUSES, StepProgram
from kgverify.comparison.step_pair import Listed, StepPair
from kgverify.comparison.step_view import StepReader, StepView, plain
from kgverify.program.fact_index import Ids
from kgverify.program.limits import FILTERS, RANKED, UNSEEN, VALUES, Dialect, Limits, show_value
from kgverify.program.outcomes import GoalKind, Side
from kgverify.step.clauses import Clauses, number_variables
from kgverify.trace.model.columns import Candidates, Columns

MOST_COUNTED: Final = 8
"""The number of variants that are tried on all steps: those that fit the most of the steps that the dialect does not fit."""

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


def find_queries(candidates: Candidates) -> list[bool | None]:
    """Return which candidates are queries, not corruptions: those on both sides of a ranking. None if it has one side."""
    sides: dict[tuple[int, ...], set[int]] = {}
    keys = list(zip(candidates.query.tolist(), *candidates.atom.T.tolist(), strict=True))
    own_sides = candidates.side.tolist()
    for key, side in zip(keys, own_sides, strict=True):
        sides.setdefault(key, set()).add(side)
        sides.setdefault(key[:1], set()).add(side)
    return [
        True if side == Side.NONE or len(sides[key]) > 1 else False if len(sides[key[:1]]) > 1 else None
        for key, side in zip(keys, own_sides, strict=True)
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

    def fits(self, recorded: RecordedStep, dialect: Dialect) -> bool:
        """Return whether a dialect gives a step."""
        step, pair = recorded.step, self._pair(recorded)
        if recorded.next_depth is not None:
            is_unary = len(step.resolvents) == 1 and step.resolvents[0].kind == GoalKind.GOAL
            same = next((i for i, each in enumerate(reversed(recorded.earlier)) if each.depth != step.depth), None)
            num_uncounted = len(recorded.earlier) if same is None else same
            is_uncounted = dialect.skips_unary and is_unary and num_uncounted < self._limits.max_depth
            if recorded.next_depth != step.depth + (not is_uncounted):
                return False
        return any(
            self.give(recorded, dialect, way) == pair.read(1) for way in self._list_exclusions(recorded, dialect)
        )

    def _list_exclusions(self, recorded: RecordedStep, dialect: Dialect) -> tuple[str, ...]:
        if dialect.exclusion != "positives_only":
            return (dialect.exclusion,)
        return {True: ("always",), False: ("never",), None: ("always", "never")}[recorded.is_query]

    def give(self, recorded: RecordedStep, dialect: Dialect, exclusion: str = "") -> Listed:
        """Return the list that a dialect gives, with the details that the recorded steps show."""
        dialect = replace(dialect, exclusion=exclusion or self._list_exclusions(recorded, dialect)[0])
        goals = [plain(each.goal) for each in (*recorded.earlier, recorded.step)]
        keeps_names = self._shown.names and not dialect.forgets_names
        visited = goals if keeps_names else [number_variables(iter(goal)) for goal in goals]
        limits = replace(self._limits, dialect=dialect)
        own = StepProgram(self._clauses.in_dialect(dialect), limits, visited, recorded.query)
        return self._pair(recorded).show(own.list(own.match(visited[-1])))

    def _pair(self, recorded: RecordedStep) -> StepPair:
        step, shown = recorded.step, self._shown
        return StepPair(step, step, has_origins=shown.origins, has_counts=shown.counts)

    @cached_property
    def declared(self) -> Fit:
        """The fit of the declared dialect."""
        return self._count(self._limits.dialect)

    def _count(self, dialect: Dialect, *words: str) -> Fit:
        return Fit(dialect, tuple(i for i, each in enumerate(self.steps) if not self.fits(each, dialect)), words)

    def list_fitting(self) -> list[str]:
        """Return each change of one switch with which all steps fit, in words."""
        variants = list_variants(self._limits.dialect, has_names=self._shown.names)
        return [words for words, dialect in variants if all(self.fits(each, dialect) for each in self.steps)]

    def find_best(self) -> Fit:
        """Return the dialect that gives the most steps. From the declared one, switches change as long as more steps fit."""
        best = self.declared
        while best.misfits:
            wrong = [self.steps[i] for i in best.misfits]
            variants = list_variants(best.dialect, has_names=self._shown.names)
            tried = [(sum(self.fits(each, dialect) for each in wrong), words, dialect) for words, dialect in variants]
            tried = sorted((each for each in tried if each[0]), key=lambda each: -each[0])[:MOST_COUNTED]
            counted = [self._count(dialect, words) for _, words, dialect in tried]
            fewest = min((len(each.misfits) for each in counted), default=len(best.misfits))
            if fewest >= len(best.misfits):
                return best
            found = [each for each in counted if len(each.misfits) == fewest]
            best = found[0]._replace(alternatives=tuple(each.alternatives[0] for each in found))
        return best
