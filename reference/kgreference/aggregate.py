"""Rules with confidences applied once to the facts, as AnyBURL and PyClause do, and the ranks that they give.

Different variables of a rule stand for different constants, and none for a constant of the rule (object identity).
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from kgreference.program import Program, Rule
from kgreference.terms import Triple

Key = tuple[float, ...]
"""The strength of a prediction. Keys compare as tuples do; that of an atom that no rule predicts is empty."""

METHODS: Final = ("max", "max-plus", "noisy-or")


def aggregate(confidences: Collection[float], method: str) -> Key:
    """Return the key of an atom from the confidences of all rules that predict it.

    `max` compares the highest confidences, `max-plus` all of them from the highest on, and `noisy-or` the probability that
    one of independent rules is right, by its negative logarithm of being wrong.
    """
    descending = sorted(confidences, reverse=True)
    if not descending or method == "max-plus":
        return tuple(descending)
    if method == "max":
        return (descending[0],)
    return (sum(-math.log(1 - each) if each < 1 else math.inf for each in descending),)


def list_answers(program: Program, rule: Rule, position: int, source: int) -> set[int]:
    """Return the constants that a rule predicts at a position of its head, 1 or 2, with `source` at the other position."""
    kept, asked = rule.head[3 - position], rule.head[position]
    constants = {term for atom in (rule.head, *rule.body) for term in atom[1:] if term >= 0}
    if (kept >= 0 and kept != source) or (kept < 0 and source in constants):
        return set()
    bound = {kept: source} if kept < 0 else {}
    answers: set[int] = set()
    for found in _ground(program, rule.body, bound, constants):
        if asked < 0 and asked not in found:
            answers |= {*range(len(program.constants))} - {*found.values()} - constants
        else:
            answers.add(found.get(asked, asked))
    return answers


def _ground(
    program: Program, body: Sequence[Triple], bound: Mapping[int, int], constants: Collection[int]
) -> Iterator[Mapping[int, int]]:
    """Yield the bindings of the variables of a body whose atoms are facts."""
    if not body:
        yield bound
        return
    i = max(range(len(body)), key=lambda each: sum(term in bound or term >= 0 for term in body[each][1:]))
    predicate, *terms = body[i]
    first, second = (bound.get(term, term) for term in terms)
    facts = program.facts
    if first >= 0:
        numbers = facts.with_first(predicate, first)
    elif second >= 0:
        numbers = facts.with_second(predicate, second)
    else:
        numbers = facts.with_predicate(predicate)
    for number in numbers:
        new: dict[int, int] = {}
        fits = all(
            term == value if term >= 0 else new.setdefault(term, value) == value
            for term, value in zip((first, second), facts[number][1:], strict=True)
        )
        taken = {*bound.values(), *constants}
        if fits and len({*new.values()} - taken) == len(new):
            yield from _ground(program, [*body[:i], *body[i + 1 :]], {**bound, **new}, constants)
