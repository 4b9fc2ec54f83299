"""A resolution step in plain Python, written from the semantics and independent of both provers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, TypeVar

from kgverify.program.atoms import Term, Variable, is_variable
from kgverify.program.fact_index import ANY, FactIndex, Ids
from kgverify.program.limits import OURS, Dialect
from kgverify.program.outcomes import Origin
from kgverify.program.program import Program

P = TypeVar("P")
T = TypeVar("T")

Atoms: TypeAlias = tuple[Ids, ...]


class Clauses:
    """The clauses of a program by predicate, and the results of applying them to a goal.

    dialect: determines unification, exclusion and pruning
    """

    def __init__(self, program: Program, *, exclude_query: bool, dialect: Dialect = OURS) -> None:
        self._excludes_query, self._dialect = exclude_query, dialect
        self.symbols = program.symbols
        self.fact_index = FactIndex(program.facts)
        self.facts = self.fact_index.facts
        self.rules: list[tuple[Ids, Atoms]] = [
            (tuple(rule.clause_head), tuple(tuple(atom) for atom in rule.body))  # type: ignore[misc]
            for rule in program.rules
        ]
        self._rules_of: dict[int, list[int]] = {}
        for i, (head, _) in enumerate(self.rules):
            self._rules_of.setdefault(head[0], []).append(i)
        self._facts_of: dict[int, Sequence[int]] = {}

    @property
    def exclude_query(self) -> bool:
        """True if a derivation may not use its query as a fact."""
        return self._excludes_query and self._dialect.exclusion != "never"

    def in_dialect(self, dialect: Dialect) -> "Clauses":
        """Return the same clauses in another dialect."""
        other = copy(self)
        other._dialect = dialect
        return other

    @property
    def prunes(self) -> bool:
        """True if atoms that are facts are deleted from resolvents."""
        return "prune" in self._dialect.filters

    def excluded(self, query: Sequence[int]) -> Ids | None:
        """Return the fact that the derivation of a query may not use; None if it may use every fact."""
        atom = (int(query[0]), int(query[1]), int(query[2]))
        return atom if self.exclude_query and atom in self.fact_index else None

    def facts_like(self, atom: Ids, excluded: Ids | None) -> list[int]:
        """Return the facts that unify with an atom and are not excluded, ascending."""
        predicate, a, b = atom
        found = self.fact_index.find_like(predicate, max(a, ANY), max(b, ANY))
        if a == b and a < 0:
            found = [i for i in found if self.facts[i][1] == self.facts[i][2]]
        return [i for i in found if self.facts[i] != excluded]

    def apply(self, goal: Atoms, origin_kind: int, origin: int, excluded: Ids | None) -> Atoms | None:
        """Return the result of applying a clause to a goal; None if its head does not match."""
        atoms = self.resolve(goal, origin_kind, origin)
        if atoms is None:
            return None
        return number_variables(
            atom for atom in atoms if not self.prunes or atom not in self.fact_index or atom == excluded
        )

    def resolve(self, goal: Atoms, origin_kind: int, origin: int, known: Iterable[Ids] = ()) -> Atoms | None:
        """Return the clause's body and the rest of the goal, unified and not pruned; None if its head does not match.

        known: other atoms that the clause is also standardized apart from
        """
        head, body = self.clause(goal, origin_kind, origin, known)
        if self._dialect.unification == "one_pass" and not binds_in_one_pass(goal[0], head):
            return None
        return _resolve_again(goal, head, body)

    def clause(self, goal: Atoms, origin_kind: int, origin: int, known: Iterable[Ids] = ()) -> tuple[Ids, Atoms]:
        """Return a clause's head and body, standardized apart from a goal and other atoms."""
        if origin_kind == Origin.FACT:
            return self.facts[origin], ()
        head, body = self.rules[origin]
        # Every variable of the goal is above `lowest`; every variable of the rule is below it.
        shift = min([0, *[min(a, b) for _, a, b in (*goal, *known)]])
        return _shift(head, shift), tuple([_shift(atom, shift) for atom in body])

    def rules_of(self, predicate: int) -> Sequence[int]:
        """Return the rules whose heads have a predicate."""
        return self._rules_of.get(predicate, ())

    @cached_property
    def predicates_of_facts(self) -> list[int]:
        """The predicates that have facts, ascending."""
        return sorted({predicate for predicate, _, _ in self.facts})

    def facts_of(self, predicate: int) -> Sequence[int]:
        """Return the facts of a predicate, ascending."""
        if predicate not in self._facts_of:
            self._facts_of[predicate] = self.fact_index.find_like(predicate, ANY, ANY)
        return self._facts_of[predicate]


def resolve(
    goal: Sequence[tuple[P, T, T]],
    head: tuple[P, T, T],
    body: Sequence[tuple[P, T, T]],
    *,
    is_chained: bool = True,
    is_variable: Callable[[Any], bool] = is_variable,
) -> tuple[tuple[P, T, T], ...] | None:
    """Return the body and the rest of the goal, after the goal's first atom was unified with the head; None if they differ.

    is_chained:  whether a term that replaces a variable is replaced in turn, as it should be
    is_variable: for atoms in names, `is_named_variable`
    """
    bound = unify(goal[0], head, is_variable)
    if bound is None:
        return None
    if not is_chained:
        return tuple([(p, bound.get(a, a), bound.get(b, b)) for p, a, b in (*body, *goal[1:])])
    return tuple([(p, follow(a, bound), follow(b, bound)) for p, a, b in (*body, *goal[1:])])


_resolve_again = lru_cache(maxsize=1 << 15)(resolve)
"""The same, remembered: the steps of a run, and of its explanation, start from the same goals."""


def unify(left: Any, right: Any, is_variable: Callable[[Any], bool] = is_variable) -> dict[Any, Any] | None:
    """Return bindings under which two atoms without common variables are equal; None if they cannot be.

    A variable of the right atom is bound rather than a variable of the left atom. is_variable: for atoms in names,
    `is_named_variable`
    """
    bound: dict[Any, Any] = {}
    if left[0] != right[0]:
        return None
    for a, b in ((left[1], right[1]), (left[2], right[2])):
        a, b = follow(a, bound), follow(b, bound)
        if a == b:
            continue
        if is_variable(b):
            bound[b] = a
        elif is_variable(a):
            bound[a] = b
        else:
            return None
    return bound


def is_named_variable(term: Term) -> bool:
    """Return whether a term in names is a variable."""
    return isinstance(term, Variable)


def binds_in_one_pass(selected: Ids, head: Ids) -> bool:
    """Return whether no variable is matched with two different terms. The head and the goal share no variables."""
    bound: dict[int, int] = {}
    for term, other in zip(selected[1:], head[1:], strict=True):
        variable, value = (other, term) if other < 0 else (term, other)
        if variable >= 0:
            if variable != value:
                return False
        elif bound.setdefault(variable, value) != value:
            return False
    return True


def number_variables(atoms: Iterable[Ids]) -> Atoms:
    """Return the atoms with their variables numbered by first appearance."""
    numbers: dict[int, int] = {}
    number = numbers.setdefault
    return tuple(
        [
            (p, a if a >= 0 else number(a, -1 - len(numbers)), b if b >= 0 else number(b, -1 - len(numbers)))
            for p, a, b in atoms
        ]
    )


def follow(term: T, bound: Mapping[T, T]) -> T:
    """Follow the bindings of a term to the last one, and return it."""
    while term in bound:
        term = bound[term]
    return term


def _shift(atom: Ids, shift: int) -> Ids:
    predicate, a, b = atom
    return predicate, a if a >= 0 else a + shift, b if b >= 0 else b + shift


Clause: TypeAlias = tuple[int, int]
"""An `Origin` and the index of a rule or a fact."""


def matches(goal: Atoms, clause: Clause, clauses: Clauses) -> bool:
    """Return whether a clause's head unifies with the first atom of a goal."""
    return resolve(goal, clauses.clause(goal, *clause)[0], ()) is not None


def matches_without(place: int, goal: Atoms, clause: Clause, clauses: Clauses) -> bool:
    """Return whether a clause matches if an argument of the selected atom is ignored."""
    terms = list(goal[0])
    terms[place] = min(0, *terms[1:]) - 1
    return matches(((terms[0], terms[1], terms[2]),), clause, clauses)


def matches_apart(goal: Atoms, clause: Clause, clauses: Clauses) -> bool:
    """Return whether each argument of a clause's head matches by itself."""
    pairs = zip(goal[0][1:], clauses.clause(goal, *clause)[0][1:], strict=True)
    return all(left == right or min(left, right) < 0 for left, right in pairs)


def matches_in(bits: int, goal: Atoms, clause: Clause, clauses: Clauses) -> bool:
    """Return whether the last bits of all constants match."""
    pairs = zip(goal[0][1:], clauses.clause(goal, *clause)[0][1:], strict=True)
    return all(min(left, right) < 0 or not (left ^ right) & (1 << bits) - 1 for left, right in pairs)


def resolve_unrenamed(first: int, goal: Atoms, clause: Clause, clauses: Clauses) -> Atoms | None:
    """Resolve a goal with a clause whose variables are numbered from `first`, whether the goal has them or not."""
    head, body = clauses.clause((), *clause)
    return resolve(goal, _shift(head, -first), [_shift(atom, -first) for atom in body])


def resolve_unbound(goal: Atoms, clause: Clause, clauses: Clauses) -> Atoms | None:
    """Resolve a goal with a clause, and leave the rest of the goal as it was."""
    head, body = clauses.clause(goal, *clause)
    made = resolve(goal, head, body)
    return None if made is None else (*made[: len(body)], *goal[1:])


def resolve_unchained(goal: Atoms, clause: Clause, clauses: Clauses) -> Atoms | None:
    """Resolve a goal with a clause, replacing each variable only once."""
    return resolve(goal, *clauses.clause(goal, *clause), is_chained=False)


def pack(bits: int, p: int, a: int, b: int) -> int:
    """Return the key of an atom with some bits for each argument: larger ids reach into their neighbours' bits."""
    return (p << 2 * bits) + (a << bits) + b


def cut(bits: int, p: int, a: int, b: int) -> int:
    """Return the key of an atom that keeps only some bits of each id."""
    most = (1 << bits) - 1
    return pack(bits, p & most, a & most, b & most)


def shape_of(atom: Ids) -> Ids:
    """Return an atom with the same stand-in for every variable."""
    predicate, a, b = atom
    return predicate, max(a, -1), max(b, -1)


def find_embedding(atoms: Atoms, whole: Atoms, *, is_loose: bool = False) -> tuple[int, ...] | None:
    """Return the positions of a goal's atoms in another goal, in order, up to variable names; None if some are missing.

    is_loose: a variable may stand for any term, and for a different term at each occurrence
    """

    def match(i: int, start: int, names: dict[int, int], back: dict[int, int]) -> tuple[int, ...] | None:
        if i == len(atoms):
            return ()
        for j in range(start, len(whole) - (len(atoms) - i) + 1):
            if atoms[i][0] != whole[j][0]:
                continue
            if is_loose:
                if any(a != b and min(a, b) >= 0 for a, b in zip(atoms[i][1:], whole[j][1:], strict=True)):
                    continue
                rest = match(i + 1, j + 1, names, back)
            else:
                further = extend_renaming(atoms[i], whole[j], names, back)
                rest = None if further is None else match(i + 1, j + 1, *further)
            if rest is not None:
                return (j, *rest)
        return None

    return match(0, 0, {}, {})


def is_permutation(atoms: Atoms, others: Atoms) -> bool:
    """Return whether two goals have the same atoms, up to their order and the names of variables."""
    if sorted(map(shape_of, atoms)) != sorted(map(shape_of, others)):
        return False

    def match(i: int, left: frozenset[int], names: dict[int, int], back: dict[int, int]) -> bool:
        if i == len(atoms):
            return True
        for j in left:
            further = extend_renaming(atoms[i], others[j], names, back)
            if further is not None and match(i + 1, left - {j}, *further):
                return True
        return False

    return match(0, frozenset(range(len(others))), {}, {})


def extend_renaming(
    atom: Ids, other: Ids, names: dict[int, int], back: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]] | None:
    """Extend a renaming of variables, and its inverse, so that one atom becomes another. Return None if that is impossible."""
    if atom[0] != other[0]:
        return None
    names, back = dict(names), dict(back)
    for a, b in zip(atom[1:], other[1:], strict=True):
        if min(a, b) >= 0:
            if a != b:
                return None
        elif max(a, b) >= 0 or names.setdefault(a, b) != b or back.setdefault(b, a) != a:
            return None
    return names, back
