"""The condition under which a cause occurs: one feature that separates its steps from those that agree.

A feature of a step, or of the clause of a missing or extra resolvent, is compared between the steps of a cause and steps that
agree. A condition is stated only if it holds for all of the former and for none of the latter, and if two groups of these
sizes are unlikely to be separated by chance.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kgverify.comparison.inference.content import content_of
from kgverify.comparison.inference.origins import Clause, OriginInference, StepOrigins
from kgverify.comparison.result import PROOF_CLASSES, DifferenceClass
from kgverify.comparison.step_view import Names, ResolventView, StepView
from kgverify.program.outcomes import GoalKind, Origin

MOST_CHANCE: Final = 0.01
"""The largest probability that a feature which means nothing separates the two groups."""


_OF_LISTS: Final = frozenset({DifferenceClass.LIMIT, DifferenceClass.REORDERED, DifferenceClass.MALFORMED})
"""The classes that depend on the step more than on single clauses."""


class SeenStep(NamedTuple):
    """A step that was compared. actual: None if it agrees; origins: None without a program."""

    number: int
    expected: StepView
    actual: StepView | None
    origins: StepOrigins | None


class UsedClause(NamedTuple):
    """A clause that one side used in a step, and the other one as well or not."""

    clause: Clause
    step: SeenStep
    inference: OriginInference


class StepFeature(NamedTuple):
    """A number that describes a step; None where it is not known."""

    name: str
    value: Callable[[SeenStep], int | None]


class ClauseFeature(NamedTuple):
    """A number that describes the use of a clause; None where it does not apply."""

    name: str
    value: Callable[[UsedClause], int | None]


def _of_origins(value: Callable[[StepOrigins], int]) -> Callable[[SeenStep], int | None]:
    return lambda step: None if step.origins is None else value(step.origins)


def _num_variables(step: SeenStep) -> int:
    return len({term for atom in step.expected.goal for term in atom[1:] if term < 0})


def _num_bound(step: SeenStep) -> int | None:
    return sum(term >= 0 for term in step.expected.goal[0][1:]) if step.expected.goal else None


def _is_repeated(step: SeenStep) -> int | None:
    return int(any(a == b < 0 for _, a, b in step.expected.goal[:1]))


CLAUSE_FEATURES: Final = (
    ClauseFeature("a position in their predicate (from 0) of", lambda used: used.inference.position_of(used.clause)),
    ClauseFeature(
        "a position among those that match (from 0) of",
        lambda used: used.step.origins.position_of(used.clause) if used.step.origins else None,
    ),
    ClauseFeature(
        "a number of body atoms of",
        lambda used: len(used.inference.clauses.rules[used.clause[1]][1]) if used.clause[0] == Origin.RULE else None,
    ),
    ClauseFeature(
        "a number of repeated arguments of",
        lambda used: int(used.inference.head_of(used.clause)[1] == used.inference.head_of(used.clause)[2]),
    ),
)
STEP_FEATURES: Final = (
    StepFeature("number of clauses that match the selected atom", _of_origins(lambda origins: origins.num_matches)),
    StepFeature("number of rules that match the selected atom", _of_origins(lambda origins: origins.num_rules)),
    StepFeature("number of resolvents", lambda step: len(step.expected.resolvents)),
    StepFeature(
        "number of atoms of the longest resolvent",
        lambda step: max((len(r.atoms) for r in step.expected.resolvents), default=0),
    ),
    StepFeature("number of atoms of the goal", lambda step: len(step.expected.goal)),
    StepFeature("number of variables of the goal", _num_variables),
    StepFeature("number of constants of the selected atom", _num_bound),
    StepFeature("a repeated variable in the selected atom (0 or 1)", _is_repeated),
    StepFeature("number of the step", lambda step: step.number),
)
"""The features, those that say most first."""

NUM_FEATURES: Final = len(CLAUSE_FEATURES) + len(STEP_FEATURES) + 1


def find_condition(
    kind: DifferenceClass,
    differing: Sequence[SeenStep],
    agreeing: Sequence[SeenStep],
    others: Sequence[SeenStep],
    inference: OriginInference | None,
    names: Names,
) -> str:
    """Return what distinguishes the steps of a cause from those that agree, in words; empty if no feature does.

    Steps with a lost proof are compared with steps that have one, and steps with a false proof with those that have none.

    others: the steps of other causes, for the clauses that both sides have there
    """
    comparable = agreeing
    if kind in PROOF_CLASSES:
        has_proof = kind is DifferenceClass.PROOF_LOST
        comparable = [each for each in agreeing if _has_proof(each) == has_proof]
    attempts: list[Callable[[], str]] = [
        lambda: _find_clause_condition(differing, (*agreeing, *others), inference),
        lambda: _find_step_condition(differing, comparable, names),
    ]
    if kind in _OF_LISTS:
        attempts.reverse()
    return next(filter(None, (attempt() for attempt in attempts)), "")


def _has_proof(step: SeenStep) -> bool:
    return any(r.kind == GoalKind.TRUE for r in step.expected.resolvents)


def _find_step_condition(differing: Sequence[SeenStep], agreeing: Sequence[SeenStep], names: Names) -> str:
    groups = differing, agreeing
    count = f"({len(differing):,} of {len(differing):,})"
    for feature in STEP_FEATURES:
        bounds = _separate(*([feature.value(step) for step in steps] for steps in groups))
        if bounds is not None:
            return (
                f"the {feature.name} is {bounds.inside} at these steps {count},"
                f" and {bounds.outside} at the {len(agreeing):,} steps that agree"
            )
    selected = [{step.expected.goal[0].predicate for step in steps if step.expected.goal} for steps in groups]
    is_unlikely = _chance(len(differing), len(agreeing)) <= MOST_CHANCE
    if len(selected[0]) == 1 and agreeing and is_unlikely and not selected[0] & selected[1]:
        name = names.predicate(selected[0].pop())
        return (
            f"the selected predicate is {name} at these steps {count}, and at none of the {len(agreeing):,} that agree"
        )
    return ""


def _find_clause_condition(
    differing: Sequence[SeenStep], others: Sequence[SeenStep], inference: OriginInference | None
) -> str:
    """Return what distinguishes the missing clauses, or else the extra ones, if all steps have some of one kind."""
    if inference is None:
        return ""
    for is_missing in (True, False):
        changed = [(step, tuple(_find_changed(step, is_missing=is_missing))) for step in differing]
        for kind, what in ((Origin.FACT, "facts"), (Origin.RULE, "rules")):
            if not all(any(clause[0] == kind for clause in clauses) for _, clauses in changed):
                continue
            used = [UsedClause(c, step, inference) for step, clauses in changed for c in clauses if c[0] == kind]
            shared = [
                UsedClause(c, step, inference)
                for step in (*others, *differing)
                for c in _find_shared(step)
                if c[0] == kind
            ]
            for feature in CLAUSE_FEATURES:
                bounds = _separate([feature.value(each) for each in used], [feature.value(each) for each in shared])
                if bounds is not None:
                    which = "missing" if is_missing else "extra"
                    return (
                        f"the {which} {what} have {feature.name} {bounds.inside} ({len(used):,} of {len(used):,});"
                        f" the {len(shared):,} that both sides have, of {bounds.outside}"
                    )
    return ""


class _Bounds(NamedTuple):
    inside: str
    outside: str


def _separate(values: Sequence[int | None], others: Sequence[int | None]) -> _Bounds | None:
    """Return the bounds of values that none of the others has; None if the two overlap or are too few."""
    inside = [value for value in values if value is not None]
    outside = [value for value in others if value is not None]
    if not inside or not outside or len(inside) < len(values) or len(outside) < len(others):
        return None
    if _chance(len(inside), len(outside)) > MOST_CHANCE:
        return None
    if min(inside) > max(outside):
        return _Bounds(f"{min(inside)} or more", f"at most {max(outside)}")
    if max(inside) < min(outside):
        return _Bounds(f"at most {max(inside)}", f"{min(outside)} or more")
    if len(set(inside)) == 1 and inside[0] not in set(outside):
        return _Bounds(str(inside[0]), "another")
    return None


def _chance(num: int, num_others: int) -> float:
    """Return the probability that one of the features separates two groups of these sizes if their order means nothing."""
    ways = math.lgamma(num + num_others + 1) - math.lgamma(num + 1) - math.lgamma(num_others + 1)
    return 2 * NUM_FEATURES * math.exp(-ways)


def _find_changed(step: SeenStep, *, is_missing: bool) -> Iterator[Clause]:
    """Yield the clauses of resolvents of which one side has none: the missing ones, or the extra ones."""
    if step.actual is None or step.origins is None:
        return
    sides = step.expected.resolvents, step.actual.resolvents
    here, there = sides if is_missing else sides[::-1]
    present = {content_of(r) for r in there}
    for content in {content_of(r) for r in here} - present:
        yield from _clauses_of(step.origins, *content)


def _find_shared(step: SeenStep) -> Iterator[Clause]:
    """Yield the clauses of resolvents that both sides have, where it is known which clauses these are."""
    if step.origins is None:
        return
    counts = [_count(step.expected.resolvents)]
    if step.actual is not None:
        counts.append(_count(step.actual.resolvents))
    for content, num in counts[0].items():
        clauses = tuple(_clauses_of(step.origins, *content))
        if min(num, *(other[content] for other in counts)) >= len(clauses):
            yield from clauses


def _count(resolvents: Iterable[ResolventView]) -> Counter[tuple[int, tuple[tuple[int, int, int], ...]]]:
    return Counter(map(content_of, resolvents))


def _clauses_of(origins: StepOrigins, kind: int, atoms: tuple[tuple[int, int, int], ...]) -> Iterable[Clause]:
    return origins.made.get(atoms, ()) if kind in (GoalKind.GOAL, GoalKind.TRUE) else ()
