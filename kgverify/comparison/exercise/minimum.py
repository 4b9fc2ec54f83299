"""The minimum of exercise that AGREE requires of both sides."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from kgverify.comparison.exercise.exercise import Exercise
from kgverify.errors import UserError, suggest

Minimum: TypeAlias = Mapping[str, int]
"""The least number of each item of evidence; an item that is missing is not required."""

ITEMS: Final = {
    "proved": "candidates proved",
    "rules": "rules used",
    "choices": "steps with more than one resolvent",
}
"""The items of evidence, with their meanings. `Exercise` has an attribute of each name."""

MINIMUM: Final[Minimum] = MappingProxyType(dict.fromkeys(ITEMS, 1))
"""The minimum unless the user declares another one."""

NO_MINIMUM: Final[Minimum] = MappingProxyType({})
"""Nothing is required."""

NONE: Final = "none"
_MOST: Final = 1 << 53


def parse_minimum(declared: str | Minimum | None, where: str = "minimum", default: Minimum = MINIMUM) -> Minimum:
    """Return the minimum that a user declares, as `"proved=1,rules=1"`, `"none"` or a mapping; the default for None.

    UserError for an unknown item, or a number that is not a whole one from 0.
    """
    if declared is None:
        return default
    given = _split(declared, where) if isinstance(declared, str) else declared
    for name, number in given.items():
        if name not in ITEMS:
            raise UserError(
                f"unknown item of evidence {name!r}",
                where=where,
                fix=suggest(str(name), tuple(ITEMS)) or f"give {_render(MINIMUM)}, some of these, or {NONE}",
            )
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST:
            raise UserError(
                f"expected a whole number for {name}, found {number!r}", where=where, fix=f"give for example {name}=1"
            )
    return {name: given[name] for name in ITEMS if given.get(name)}


def _split(text: str, where: str) -> dict[str, Any]:
    """Return the items of `proved=1,rules=1`, with the text of what is no number."""
    given: dict[str, Any] = {}
    for part in text.split(",") if text.strip() != NONE else ():
        name, _, number = (each.strip() for each in part.partition("="))
        if name in given:
            raise UserError(f"{name} is given twice", where=where, fix="give each item once")
        given[name] = int(number) if number.isdecimal() and len(number) < 20 else number
    return given


def find_missing(exercise: Exercise, minimum: Minimum) -> tuple[str, ...]:
    """Return the items of which a side has less than the minimum. What is unknown cannot be required."""
    values = {name: getattr(exercise, name) for name in minimum}
    return tuple(name for name, value in values.items() if value is not None and value < minimum[name])


def explain_missing(
    sides: Mapping[str, Exercise], minimum: Minimum, hidden: Mapping[str, list[str]] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return why the exercise of some sides, by their roles, is below the minimum, in one sentence; empty if it is not.

    hidden: item to the sides that neither show it nor were compared in what would show it. Other unknown items are those
            of the other side, or not required; proved candidates that no side knows always are
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
    how = f"--minimum {_render(rest)}, or minimum={dict(rest)!r} in Python"
    return (f"too little was exercised: {'; '.join(parts)}; to accept that: {how}",)


def describe_minimum(minimum: Minimum) -> str:
    """Describe a minimum as the option takes it: `proved=1,rules=1,choices=1`, or `none`."""
    return _render(minimum)


def _render(minimum: Minimum) -> str:
    return ",".join(f"{name}={number}" for name, number in minimum.items()) or NONE
