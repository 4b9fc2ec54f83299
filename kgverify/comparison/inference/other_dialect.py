"""The dialects that differ from the declared one in a single switch, and in which the program gives every recorded step."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from kgverify.comparison.inference.single_fault import MOST_CLAUSES, StepProgram
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import StepView, plain
from kgverify.program.fact_index import Ids
from kgverify.program.limits import FILTERS, RANKED, UNSEEN, VALUES, Dialect, Limits, show_value
from kgverify.step.clauses import Clauses, number_variables


class RecordedStep(NamedTuple):
    """A recorded step with the candidate's steps before it, and with its query."""

    step: StepView
    earlier: Sequence[StepView]
    query: Ids


_UNDECIDED: Final = ("forgets_names",)
"""The switches whose effect the goals in canonical variables do not show."""


def list_variants(dialect: Dialect) -> Iterator[tuple[str, Dialect]]:
    """Yield each dialect that differs in one switch that steps show, with words for it: `memory = set`."""
    for name, values in VALUES.items():
        for value in values if name not in (*RANKED, *UNSEEN, *_UNDECIDED) else ():
            if value not in (getattr(dialect, name), "positives_only"):
                yield f"{name} = {show_value(value)}", replace(dialect, **{name: value})
    for name in FILTERS:
        others = tuple(each for each in dialect.filters if each != name)
        orders = [(*others[:i], name, *others[i:]) for i in range(len(others) + 1)]
        for filters in (others, *orders) if name in dialect.filters else orders:
            if filters != dialect.filters:
                yield f"filters = {show_value(filters)}", replace(dialect, filters=filters)


def find_fitting(
    clauses: Clauses, limits: Limits, steps: Sequence[RecordedStep], *, has_origins: bool, has_counts: bool
) -> list[str]:
    """Return the variants of the limits' dialect in which the program gives all these steps; none if it does in the dialect.

    has_origins, has_counts: whether the steps show the clauses that made their resolvents, and how many were dropped
    """

    def fits(recorded: RecordedStep, dialect: Dialect) -> bool:
        step, earlier, query = recorded
        visited = [number_variables(iter(plain(each.goal))) for each in (*earlier, step)]
        own = StepProgram(clauses.in_dialect(dialect), replace(limits, dialect=dialect), visited, query)
        pair = StepPair(step, step, has_origins=has_origins, has_counts=has_counts)
        made = own.match(visited[-1])
        return len(made) <= MOST_CLAUSES and pair.show(own.list(made)) == pair.read(1)

    known = [each for each in steps if each.step.goal]
    if all(fits(each, limits.dialect) for each in known):
        return []
    return [words for words, dialect in list_variants(limits.dialect) if all(fits(each, dialect) for each in known)]
