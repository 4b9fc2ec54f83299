"""The separation of faults that share a stage and a class: by what each divergence changed or should have been.

Divergences of one stage and class are one cause unless two simple rules explain what one rule cannot: each of the two
explains some divergences alone, and together they explain every divergence exactly.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Final, NamedTuple

from kgverify.comparison.classify import Finding, Surroundings
from kgverify.comparison.result import Divergence
from kgverify.comparison.step_view import outcome_name
from kgverify.program.outcomes import DifferenceClass, Outcome, Stage


class Seen(NamedTuple):
    """A divergence with its class, and with the data that it was classified by."""

    divergence: Divergence
    finding: Finding
    around: Surroundings


def separate(seen: Sequence[Seen]) -> tuple[Finding, ...]:
    """Return the findings, with a situation for each of several faults of one stage and class."""
    findings = [each.finding for each in seen]
    groups: dict[tuple[str, DifferenceClass, str], list[int]] = {}
    for i, each in enumerate(seen):
        key = each.divergence.stage, each.finding.kind, each.finding.situation
        groups.setdefault(key, []).append(i)
    for (stage, kind, _), members in groups.items():
        situations: Sequence[str] = ()
        group = [seen[i] for i in members]
        if stage == Stage.LIMIT and kind is DifferenceClass.LIMIT:
            situations = [_name_limit(each) for each in group]
        elif stage == Stage.FINISH and kind is DifferenceClass.OUTCOME:
            situations = _separate_outcomes(group)
        elif stage == Stage.RESOLVE and kind is DifferenceClass.SUBSTITUTED:
            situations = _separate_changes(group)
        named = Counter(filter(None, situations))
        if len(named) > 1:
            for i, situation in zip(members, situations, strict=True):
                words = filter(None, (findings[i].situation, situation or named.most_common(1)[0][0]))
                findings[i] = findings[i]._replace(situation=", ".join(words))
    return tuple(findings)


def _name_limit(seen: Seen) -> str:
    """Name the limit that drops more or fewer: `max_atoms` first, since `max_resolvents` counts what it leaves.

    Empty where the recorded steps of a divergence that was not replayed do not show it.
    """
    around = seen.around
    if around.outputs is not None:
        counts: list[tuple[int, ...]] = [tuple(output[1:]) for output in around.outputs]
    else:
        counts = [(step.dropped_atoms, step.dropped_resolvents) for step in around.steps]
    if len(counts) < 2:
        return ""
    for name, expected, actual in zip(("max_atoms", "max_resolvents"), *counts, strict=True):
        if expected != actual:
            return f"{'more' if actual > expected else 'fewer'} dropped by {name}"
    return "" if around.outputs is None else "as many dropped"


def _separate_outcomes(group: Sequence[Seen]) -> Sequence[str]:
    """Separate by the expected outcome, unless one rule explains all: a single actual outcome, or outcomes renumbered."""
    pairs = [_outcomes(each) for each in group]
    known = {pair for pair in pairs if pair is not None}
    # Two independent faults can look like a shift of two outcomes.
    is_shifted = len(known) > 2 and len({(a - e) % len(Outcome) for e, a in known}) == 1
    is_exchanged = all((a, e) in known for e, a in known)
    if is_shifted or is_exchanged or len({actual for _, actual in known}) == 1:
        return ()
    return [f"{outcome_name(pair[0])} expected" if pair else "" for pair in pairs]


def _outcomes(seen: Seen) -> tuple[int, int] | None:
    around = seen.around
    if around.outputs is not None:
        expected, actual = around.outputs
        return int(expected), int(actual)
    if around.expected is not None and around.actual is not None:
        return around.expected.outcome, around.actual.outcome
    return None


_Atoms = tuple[tuple[int, ...], ...]


class _Change(NamedTuple):
    """Atoms that one clause gave on both sides.

    before: the rest of the goal, where the atoms are the rest of a resolvent; None in its body
    """

    expected: _Atoms
    actual: _Atoms
    before: _Atoms | None


class _ChangeRule(NamedTuple):
    """A rule by which atoms are changed."""

    situation: str
    explains: Callable[[_Change], bool]


def _separate_changes(group: Sequence[Seen]) -> Sequence[str]:
    """Separate steps by the rule that changes their atoms; empty if one rule explains all, or no two rules do."""
    changes = [_divide(each) for each in group]
    known = [each for each in changes if each]
    for rule in _CHANGE_RULES:
        if all(rule.explains(change) for step in known for change in step):
            return ()
    for pair in permutations(_CHANGE_RULES, 2):
        explained = [next((r.situation for r in pair if all(map(r.explains, step))), "") for step in known]
        is_whole = all(any(rule.explains(change) for rule in pair) for step in known for change in step)
        if is_whole and len(set(filter(None, explained))) > 1:
            return ["" if not step else _of_changes(step, pair) for step in changes]
    return ()


def _of_changes(step: Sequence[_Change], pair: Sequence[_ChangeRule]) -> str:
    """Return the situation of the first rule that explains a change of the step."""
    return next(rule.situation for rule in pair if any(map(rule.explains, step)))


def _divide(seen: Seen) -> list[_Change] | None:
    """Return what differs in a replayed step: in the clause's body, and in the rest of the goal, clause by clause.

    None if it is not known, or clauses or numbers of atoms differ.
    """
    around = seen.around
    if around.outputs is None or around.expected is None or seen.divergence.is_assumed:
        return None
    left, right = ({tuple(item[-3:-1]): tuple(map(tuple, item[-1])) for item in side} for side in around.outputs)
    if left.keys() != right.keys() or any(len(left[clause]) != len(right[clause]) for clause in left):
        return None
    before = tuple(map(tuple, around.expected.goal[1:]))
    divided = []
    for clause, atoms in left.items():
        end = len(atoms) - len(before)
        divided.append(_Change(atoms[:end], right[clause][:end], None))
        divided.append(_Change(atoms[end:], right[clause][end:], before))
    return [each for each in divided if each.expected != each.actual]


def _is_instance(special: _Atoms, general: _Atoms) -> bool:
    """Return whether a substitution of variables turns the second atoms into the first."""
    bound: dict[int, int] = {}
    terms = ((left, right) for pair in zip(special, general, strict=True) for left, right in zip(*pair, strict=True))
    return all(left == (bound.setdefault(right, left) if right < 0 else right) for left, right in terms)


_CHANGE_RULES: Final = (
    _ChangeRule("the rest of the goal is left as it was", lambda c: c.actual == c.before),
    _ChangeRule("a variable is not replaced", lambda c: c.actual != c.before and _is_instance(c.expected, c.actual)),
    _ChangeRule("different variables become one", lambda c: _is_instance(c.actual, c.expected)),
)
