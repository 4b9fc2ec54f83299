"""The evidence that a report states for a step or a candidate, and what it must mean in the columns of the two traces."""

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from columns import FACT, FALSE, OPEN, ORDINARY, RULE, Resolvent, Step
from words import SeenStep, swapped


class Stated(NamedTuple):
    """Evidence for a divergence: the numbers in its words, and the step on both sides."""

    numbers: list[float]
    each: dict[str, Any]
    seen: SeenStep
    left: Step
    right: Step

    @property
    def is_open(self) -> bool:
        """True if both lists show all that their clauses made: no proof, limit or visited goal hides any."""
        sides = self.left, self.right
        return not any(side.has_true or any(side.dropped or (0, 0)) for side in sides) and self._shows_all()

    def _shows_all(self) -> bool:
        return all(made.kept not in self.seen.visited for made in self.seen.matched.values())


def contents(step: Step) -> list[Any]:
    """Return the contents of the listed resolvents."""
    return [r.content for r in step.resolvents]


def goals(step: Step) -> list[Resolvent]:
    """Return the ordinary resolvents."""
    return [r for r in step.resolvents if r.kind == ORDINARY]


def has_same_resolvents(s: Stated) -> bool:
    """Check `the same 5 resolvents in a different order`, and that a list is reversed if it says so."""
    left, right = contents(s.left), contents(s.right)
    is_same = Counter(left) == Counter(right) and len(left) == s.numbers[0] and left != right
    return is_same and ("the list is reversed" not in s.each["evidence"] or left == right[::-1])


def loses(kind: int, is_missing: bool) -> Callable[[Stated], bool | None]:
    """Return a check of `3 facts missing, none extra`, or the other way round."""

    def check(s: Stated) -> bool | None:
        if not s.is_open or s.seen.pair.program is None:
            return None
        left, right = (Counter(c for c in s.seen.list_clauses(side) if c[0] == kind) for side in (s.left, s.right))
        matched = {clause for clause in s.seen.matched if clause[0] == kind}
        found, others = (left - right, right - left) if is_missing else (right - left, left - right)
        if is_missing:
            others = Counter(clause for clause in others if clause not in matched)
        repeated = sum(num for clause, num in found.items() if left[clause]) if not is_missing else 0
        is_all = " repeated " in s.each["evidence"].partition(" extra")[0]
        stated = s.numbers[1] if len(s.numbers) > 1 else s.numbers[0] * is_all
        return [found.total(), repeated] == [s.numbers[0], stated] and not others

    return check


def changes_atoms(s: Stated) -> bool | None:
    """Check `the same clause gave different atoms`."""
    left = {r.clause: r.content for r in s.left.resolvents if r.clause}
    right = {r.clause: r.content for r in s.right.resolvents if r.clause}
    if left.keys() & right.keys():
        return True if any(left[c] != right[c] for c in left.keys() & right.keys()) else None
    return None


def is_earlier_goal(s: Stated) -> bool:
    """Check `the goal is that of an earlier step`."""
    steps = s.seen.pair.sides[1].steps[s.seen.place.actual]
    return s.right.goal in [step.goal for step in steps[: s.seen.place.number]]


def differs_by(is_missing: bool) -> Callable[[Stated], bool | None]:
    """Return a check of `2 resolvents missing` or `extra`."""

    def check(s: Stated) -> bool | None:
        if s.each["is_replayed"]:
            return None
        left, right = Counter(contents(s.left)), Counter(contents(s.right))
        only = (left - right) if is_missing else (right - left)
        return sum(num for (kind, _), num in only.items() if kind != FALSE) == s.numbers[0]

    return check


def proof_lost(s: Stated) -> bool:
    """Check `TRUE is lost: 2 other resolvents instead` and by how many clauses of the program it is made."""
    text = s.each["evidence"]
    if not s.left.has_true or s.right.has_true:
        return False
    if "no resolvents instead" in text and goals(s.right):
        return False
    other = re.search(r"([\d,]+) other resolvents? instead", text)
    if other and len(goals(s.right)) != int(other[1].replace(",", "")):
        return False
    made = re.search(r"made by ([\d,]+) (fact|rule)s? of the program", text)
    if made:
        kind = {"fact": FACT, "rule": RULE}[made[2]]
        num = sum(clause[0] == kind and not m.kept for clause, m in s.seen.matched.items())
        return num == int(made[1].replace(",", ""))
    return True


def counts_drops(s: Stated) -> bool | None:
    """Check `dropped (by max_atoms, by max_resolvents): expected (1, 2), actual (0, 2)`."""
    if s.left.dropped is None or s.right.dropped is None or s.each["is_replayed"]:
        return None
    return s.numbers == [*map(float, (*s.left.dropped, *s.right.dropped))]


def has_equal_scores(s: Stated) -> bool | None:
    """Check `the two choices have equal scores`."""
    places = s.left.choice, s.right.choice
    scores = [r.score for r in s.left.resolvents]
    if None in scores or None in places or not all(0 <= place < len(scores) for place in places):
        return None
    return abs(scores[places[0]] - scores[places[1]]) <= s.seen.pair.tolerance


def has_other_outcome(s: Stated) -> bool | None:
    """Check `the same resolvent was chosen, with a different outcome`."""
    if None in (s.left.chosen, s.right.chosen, s.left.outcome, s.right.outcome):
        return None
    return s.left.chosen.content == s.right.chosen.content and s.left.outcome != s.right.outcome


CHECKS: list[tuple[str, Callable[[Stated], bool | None]]] = [
    (r"the same ([\d,]+) resolvents in a different order", has_same_resolvents),
    (r"([\d,]+) facts? missing, none extra", loses(FACT, True)),
    (r"([\d,]+) rules? missing, none extra", loses(RULE, True)),
    (r"([\d,]+) (?:repeated )?facts? extra(?:, ([\d,]+) of them repeated)?, none missing", loses(FACT, False)),
    (r"([\d,]+) (?:repeated )?rules? extra(?:, ([\d,]+) of them repeated)?, none missing", loses(RULE, False)),
    (r"the same clause gave different atoms", changes_atoms),
    (r"the goal is that of an earlier step", is_earlier_goal),
    (r"([\d,]+) resolvents? missing$", differs_by(True)),
    (r"([\d,]+) resolvents? extra$", differs_by(False)),
    (r"TRUE is lost", proof_lost),
    (r"FALSE stands for TRUE", lambda s: s.left.has_true and any(r.kind == FALSE for r in s.right.resolvents)),
    (r"dropped .*expected \((\d+), (\d+)\), actual \((\d+), (\d+)\)", counts_drops),
    (r"the two choices have equal scores", has_equal_scores),
    (r"the same resolvent was chosen, with a different outcome", has_other_outcome),
    (
        r"the choice is not the index of a resolvent",
        lambda s: s.right.chosen is None and s.right.choice not in (None, -1),
    ),
    (r"a score is NaN", lambda s: any(r.score is None or math.isnan(r.score) for r in s.right.resolvents) or None),
    (r"depth (\d+), expected (\d+)", lambda s: [s.right.depth, s.left.depth] == s.numbers),
    (
        r"the derivation stops while it is OPEN",
        lambda s: s.seen.pair.sides[1].steps[s.seen.place.actual][-1].outcome == OPEN,
    ),
]
"""The words of evidence for a step, with their check: None if the columns do not show it."""


def check_evidence(each: dict[str, Any], seen: SeenStep, left: Step, right: Step) -> bool | None:
    """Return whether the columns confirm the evidence of a divergence; None if they do not show it."""
    for words, check in CHECKS:
        if found := re.match(words, each["evidence"]):
            return check(Stated([float(n.replace(",", "")) for n in found.groups() if n], each, seen, left, right))
    return None


def check_drawn(words: str, missing: list[Any], extra: list[Any], facts: dict[Any, int]) -> bool | None:
    """Check `5 candidates drawn instead of 4 others, 2 of them facts` for a query and side, given the atoms of both sides."""
    found = re.match(r"([\d,]+) candidates? drawn instead of ([\d,]+) others?(.*)", words)
    if found is None:
        return None
    numbers = [int(text.replace(",", "")) for text in found.groups()[:2]]
    if numbers != [len(extra), len(missing)]:
        return False
    if "their arguments swapped" in found[3]:
        return Counter(map(swapped, extra)) == Counter(missing)
    of_facts = re.search(r"([\d,]+) of them facts", found[3])
    return not of_facts or sum(atom in facts for atom in extra) == int(of_facts[1].replace(",", ""))
