"""The exercise of a side of a comparison, as data: the evidence on which its verdict rests."""

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec

from kgverify.codes import Code, Coded
from kgverify.errors import UserError, suggest
from kgverify.program.outcomes import Outcome

MOST_UNUSED: Final = 20
"""The most unused rules that are listed; further ones are only counted."""


class Exercise(msgspec.Struct, frozen=True, kw_only=True):
    """The exercise of one side: counts of its candidates, stages, limits and clauses.

    None means unknown, and so does a stage or limit that is missing.

    outcomes:     the number of candidates with each outcome
    steps:        the recorded steps
    counted:      the steps in which everything below was counted; only some of the steps in a large trace
    choices:      steps with more than one resolvent
    stages:       for each stage, the steps in which it acted. `match_rules`, `match_facts`: a resolvent of such a clause
                  remains; `resolve`: a goal or TRUE remains; `prune`: an atom was deleted; `rename`: a resolvent has a
                  variable; `revisit`, `limit`: something was dropped; `close`: TRUE or FALSE stands alone; `score`: two
                  scores differ; `choose`: there was more than one resolvent; `top_k`: a resolvent was not kept; `merge`: one
                  was merged; `aggregate`: a proof was kept, and the candidate has others. The other stages act in every step.
    limits:       for each limit, the steps in which it dropped something; for `max_depth`, the derivations that it ended
    largest:      for each limit, the largest number seen of the things that it limits
    enough:       for each limit that dropped something, a value with which it would have dropped nothing in these steps
    rules, facts: the number of rules and facts that made a resolvent; num_rules, num_facts: of all rules and facts
    inferred:     the items of evidence that the side does not know, but that follow from equal steps of the other side
    unused_rules: the first rules that made no resolvent, as text
    """

    outcomes: dict[str, int] | None = None
    steps: int | None = None
    counted: int = 0
    choices: int | None = None
    stages: dict[str, int] = {}
    limits: dict[str, int] = {}
    largest: dict[str, int] = {}
    enough: dict[str, int] = {}
    rules: int | None = None
    num_rules: int | None = None
    facts: int | None = None
    num_facts: int | None = None
    unused_rules: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()

    @property
    def proved(self) -> int | None:
        """The candidates that ended PROVED; None if the outcomes are unknown."""
        return None if self.outcomes is None else self.outcomes.get(Outcome.PROVED.name, 0)

    def plus(self, other: "Exercise") -> "Exercise":
        """Return the combined exercise of two comparisons of different programs, without the names of unused rules.

        If one of them does not know a value, the value of the other is used.
        """
        both = (self.outcomes, other.outcomes)
        return Exercise(
            outcomes=None if both == (None, None) else _join_counts(both[0] or {}, both[1] or {}),
            steps=_add(self.steps, other.steps),
            counted=self.counted + other.counted,
            choices=_add(self.choices, other.choices),
            stages=_join_counts(self.stages, other.stages),
            limits=_join_counts(self.limits, other.limits),
            largest=_join_counts(self.largest, other.largest, max),
            enough=_join_counts(self.enough, other.enough, max),
            rules=_add(self.rules, other.rules),
            num_rules=_add(self.num_rules, other.num_rules),
            facts=_add(self.facts, other.facts),
            num_facts=_add(self.num_facts, other.num_facts),
        )


NOT_EXERCISED: Final = Exercise()
"""The exercise of a side in which nothing was counted."""


class Exercised(msgspec.Struct, frozen=True):
    """The exercise of both sides."""

    expected: Exercise
    actual: Exercise

    @property
    def of_both(self) -> Exercise:
        """The expected exercise, with the limits that either side reached."""
        limits, largest = (
            _join_counts(getattr(self.expected, name), getattr(self.actual, name), max)
            for name in ("limits", "largest")
        )
        counted = max(self.expected.counted, self.actual.counted)
        return msgspec.structs.replace(self.expected, limits=limits, largest=largest, counted=counted)


def _add(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else first + second


def _join_counts(
    first: Mapping[str, int], second: Mapping[str, int], join: Callable[[int, int], int] = operator.add
) -> dict[str, int]:
    return {name: join(first.get(name, 0), second.get(name, 0)) for name in dict.fromkeys((*first, *second))}


Minimum: TypeAlias = Mapping[str, int]
"""The required number of each item of evidence; an item that is missing is not required."""

ITEMS: Final = {
    "proved": "candidates proved",
    "rules": "rules used",
    "choices": "steps with more than one resolvent",
}
"""The items of evidence, with their meanings. `Exercise` has an attribute with the name of each item."""

MINIMUM: Final[Minimum] = MappingProxyType(dict.fromkeys(ITEMS, 1))
"""The default minimum."""

NO_MINIMUM: Final[Minimum] = MappingProxyType({})
"""The minimum that requires nothing."""

NONE: Final = "none"
_MOST: Final = 1 << 53


def parse_minimum(
    declared: str | Minimum | None,
    where: str = "minimum",
    default: Minimum = MINIMUM,
    items: Mapping[str, str] = MappingProxyType(ITEMS),
) -> Minimum:
    """Parse the minimum that a user declares, as `"proved=1,rules=1"`, `"none"` or a mapping; None means the default.

    items: the items of evidence, with their meanings

    UserError for an unknown item, or for a number that is not a whole number of at least 0.
    """
    if declared is None:
        return default
    given = _split(declared, where) if isinstance(declared, str) else declared
    for name, number in given.items():
        if name not in items:
            raise UserError(
                f"unknown item of evidence {name!r}",
                where=where,
                fix=suggest(str(name), tuple(items)) or f"give {describe_minimum(default)}, some of these, or {NONE}",
            )
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST:
            raise UserError(
                f"expected a whole number for {name}, found {number!r}", where=where, fix=f"give for example {name}=1"
            )
    return {name: given[name] for name in items if given.get(name)}


def _split(text: str, where: str) -> dict[str, Any]:
    """Split `proved=1,rules=1` into items; a value that is not a number stays text."""
    given: dict[str, Any] = {}
    for part in text.split(",") if text.strip() != NONE else ():
        name, _, number = (each.strip() for each in part.partition("="))
        if name in given:
            raise UserError(f"{name} is given twice", where=where, fix="give each item once")
        given[name] = int(number) if number.isdecimal() and len(number) < 20 else number
    return given


def find_missing(exercise: Exercise, minimum: Minimum) -> tuple[str, ...]:
    """Return the items in which a side is below the minimum. An unknown item cannot be required."""
    values = {name: getattr(exercise, name) for name in minimum}
    return tuple(name for name, value in values.items() if value is not None and value < minimum[name])


def explain_missing(
    sides: Mapping[str, Exercise], minimum: Minimum, hidden: Mapping[str, list[str]] = MappingProxyType({})
) -> tuple[Coded, ...]:
    """Explain in one sentence why the exercise of some sides, by role, is below the minimum; return nothing if it is not.

    hidden: for each item, the sides that do not show it and were not compared in columns that would show it. For other
            unknown items, the other side counts, or they are not required; but proved candidates always are
    """
    roles: dict[tuple[str, int | None], list[str]] = {(name, None): list(of) for name, of in hidden.items()}
    if len(sides) == 1 and "proved" in minimum and all(exercise.proved is None for exercise in sides.values()):
        roles["proved", None] = list(sides)
    for role, exercise in sides.items():
        for name in find_missing(exercise, minimum):
            roles.setdefault((name, getattr(exercise, name)), []).append(role)
    if not roles:
        return ()
    parts = []
    for (name, number), of in roles.items():
        who = f" ({' and '.join(of)})" if len(sides) > 1 else ""
        found = "unknown" if number is None else f"{number:,}"
        parts.append(f"{found} {ITEMS[name]}, {minimum[name]:,} required{who}")
    rest = {name: number for name, number in minimum.items() if name not in {name for name, _ in roles}}
    text = f"too little was exercised: {'; '.join(parts)}; {advise_minimum(rest)}"
    return (Code.TOO_LITTLE_EXERCISED.mark(text),)


def advise_minimum(minimum: Minimum = NO_MINIMUM) -> str:
    """Describe how to accept a result that exercised only a minimum."""
    return f"to accept that: --minimum {describe_minimum(minimum)}, or minimum={dict(minimum)!r} in Python"


def describe_minimum(minimum: Minimum) -> str:
    """Describe a minimum in the form of the option: `proved=1,rules=1,choices=1`, or `none`."""
    return ",".join(f"{name}={number}" for name, number in minimum.items()) or NONE
