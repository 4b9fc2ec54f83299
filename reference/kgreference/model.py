"""The least model of a program: every ground atom that follows from it."""

from collections.abc import Iterator

from kgreference.program import Program, Rule
from kgreference.terms import Goal, Substitution, Triple, substitute, unify


def least_model(program: Program) -> set[Triple]:
    """Apply the rules to the facts until nothing new follows (van Emden and Kowalski 1976).

    This is semi-naive: every application uses an atom that was new in the previous round. A variable that
    occurs only in a clause head stands for every constant of the program.
    """
    model = _Atoms()
    new: set[Triple] = set(program.facts)
    while new:
        for atom in new:
            model.add(atom)
        derived: set[Triple] = set()
        for rule in program.rules:
            for index, body_atom in enumerate(rule.body):
                others = rule.body[:index] + rule.body[index + 1 :]
                for atom in new:
                    unifier = unify(body_atom, atom)
                    if unifier is not None:
                        derived.update(_conclusions(program, model, rule, others, unifier))
        new = derived - model.all
    return model.all


class _Atoms:
    """Ground atoms, found by the constants that they contain."""

    def __init__(self) -> None:
        self.all: set[Triple] = set()
        self._by_pattern: dict[Triple, list[Triple]] = {}

    def add(self, atom: Triple) -> None:
        self.all.add(atom)
        predicate, first, second = atom
        for pattern in {(predicate, f, s) for f in (first, -1) for s in (second, -1)}:
            self._by_pattern.setdefault(pattern, []).append(atom)

    def like(self, atom: Triple) -> list[Triple]:
        """Return the atoms with the predicate and the constants of ``atom``."""
        predicate, first, second = atom
        return self._by_pattern.get((predicate, max(first, -1), max(second, -1)), [])


def _conclusions(program: Program, model: _Atoms, rule: Rule, others: Goal, unifier: Substitution) -> Iterator[Triple]:
    (head,) = substitute((rule.head,), unifier)
    for conclusion in _join(model, head, substitute(others, unifier)):
        yield from _instances(program, conclusion)


def _join(model: _Atoms, head: Triple, body: Goal) -> Iterator[Triple]:
    """Yield the head under every substitution that makes the whole body part of the model."""
    if not body:
        yield head
        return
    for atom in model.like(body[0]):
        unifier = unify(body[0], atom)
        if unifier is not None:
            head_here, *rest = substitute((head, *body[1:]), unifier)
            yield from _join(model, head_here, tuple(rest))


def _instances(program: Program, atom: Triple) -> Iterator[Triple]:
    """Yield the instances of the atom, with every constant for each of its variables."""
    for term in atom[1:]:
        if term < 0:
            for constant in range(len(program.constants)):
                (instance,) = substitute((atom,), {term: constant})
                yield from _instances(program, instance)
            return
    yield atom
