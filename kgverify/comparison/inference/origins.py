"""The clauses that could have made a resolvent, inferred from the goal and the program.

Engines that know only goals and successors do not record which clause made a successor. The program determines which
clauses match the selected atom, and what each of them makes. A successor that equals one of these results, up to the names
of variables, is explained. For any other successor, the nearest clause is sought: a clause that makes it except for pruning
or the order of atoms, that would make it if it matched, or that makes it if variables are replaced differently. No engine
is run.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cache, cached_property, lru_cache, partial
from typing import Final, NamedTuple

from kgverify.errors import count_of
from kgverify.program.fact_index import Ids
from kgverify.program.outcomes import Origin
from kgverify.step.clauses import (
    Atoms,
    Clause,
    Clauses,
    binds_in_one_pass,
    find_embedding,
    is_permutation,
    matches_apart,
    number_variables,
    shape_of,
)

MOST_COMPARED: Final = 5_000
MOST_ATOMS: Final = 12
"""The most clauses to compare with a resolvent that no clause makes, and the most atoms of such a resolvent."""


class Deviation(IntEnum):
    """The kinds of difference between a resolvent and the result of its clause, the smallest first."""

    NONE = 0
    PRUNED_LESS = 1
    PRUNED_MORE = 2
    ATOM_ORDER = 3
    TRUNCATED = 4
    MATCH = 5
    PROVED = 6
    VARIABLES = 7
    UNKNOWN = 8


class Explanation(NamedTuple):
    """The clauses that explain a resolvent, ascending.

    deviation: the difference from their results
    detail:    this difference in words; for an unexplained resolvent, the nearest explanation
    """

    clauses: tuple[Clause, ...]
    deviation: Deviation = Deviation.NONE
    detail: str = ""

    @property
    def kinds(self) -> frozenset[int]:
        """The kinds of the clauses: rules, facts, or both."""
        return frozenset(kind for kind, _ in self.clauses)


class Made(NamedTuple):
    """The result of a clause: its atoms before pruning, and which of them are pruned."""

    clause: Clause
    atoms: Atoms
    is_pruned: tuple[bool, ...]


class OriginInference:
    """The inference of origins for the steps of a program."""

    def __init__(self, clauses: Clauses) -> None:
        self.clauses = clauses
        # Both sides of a step, and many steps of a run, start from the same goal.
        self.at = lru_cache(maxsize=1 << 10)(partial(StepOrigins, clauses))
        self.position_of = lru_cache(maxsize=1 << 16)(partial(_find_position, clauses))

    def has(self, clause: Clause) -> bool:
        """Return whether the program has a clause. The recorded clause of an engine may be one of another program."""
        kind, index = clause
        return index < len(self.clauses.facts if kind == Origin.FACT else self.clauses.rules)


def _find_position(clauses: Clauses, clause: Clause) -> int:
    """Return the position, from 0, of a fact or a rule among the facts or the rules of its predicate."""
    kind, index = clause
    alike = clauses.facts_of if kind == Origin.FACT else clauses.rules_of
    return bisect_left(alike(clauses.clause((), kind, index)[0][0]), index)


class StepOrigins:
    """The inference for one goal.

    query: the atom that must not serve as a fact, if any
    """

    def __init__(self, clauses: Clauses, goal: Atoms, query: Ids | None) -> None:
        self._clauses = clauses
        self.goal = goal
        self._excluded = clauses.excluded(query) if query is not None else None
        self._query: Ids | None = None if query is None else (int(query[0]), int(query[1]), int(query[2]))
        # The same resolvents are explained for both lists of a step, and for several rules.
        self.explain = cache(self._explain)
        self.explain_otherwise = cache(self._explain_otherwise)

    @property
    def num_matches(self) -> int:
        """The number of clauses that match the selected atom."""
        return len(self.results)

    @cached_property
    def positions(self) -> dict[Clause, int]:
        """The position, from 0, of each matching clause among the matching clauses of its kind."""
        num: Counter[int] = Counter()
        positions = {}
        for made in self.results:
            positions[made.clause] = num[made.clause[0]]
            num[made.clause[0]] += 1
        return positions

    def count_made(self, visited: Iterable[Atoms]) -> int:
        """Count the resolvents that the program implies, except those with the atoms of a visited goal."""
        sets = [set(number_variables(iter(goal))) for goal in visited]
        return sum(len(clauses) for atoms, clauses in self.made.items() if set(atoms) not in sets)

    @cached_property
    def results(self) -> list[Made]:
        """The result of each matching clause, in the order of the semantics."""
        if not self.goal:
            return []
        selected = self.goal[0]
        clauses: list[Clause] = [(Origin.RULE, i) for i in self._clauses.rules_of(selected[0])]
        clauses += [(Origin.FACT, i) for i in self._clauses.facts_like(selected, self._excluded)]
        results = ((clause, self._clauses.resolve(self.goal, *clause)) for clause in clauses)
        return [Made(clause, made, tuple(map(self.is_pruned, made))) for clause, made in results if made is not None]

    def needs_all_bindings(self, clause: Clause) -> bool:
        """Return whether a clause matches only if the two argument pairs are unified together, not separately.

        In engines that unify in one pass, a variable bound to two terms fails, even if one of the terms is a variable.
        """
        return not binds_in_one_pass(self.goal[0], self._clauses.clause(self.goal, *clause)[0])

    def is_pruned(self, atom: Ids) -> bool:
        """Return whether an atom is a fact that pruning deletes."""
        return self._clauses.prunes and atom in self._clauses.fact_index and atom != self._excluded

    @cached_property
    def made(self) -> dict[Atoms, tuple[Clause, ...]]:
        """The clauses of each resolvent that the program implies, in canonical variables and pruned; () is TRUE."""
        found: dict[Atoms, list[Clause]] = {}
        for clause, atoms, is_pruned in self.results:
            found.setdefault(_keep(atoms, is_pruned), []).append(clause)
        return {atoms: tuple(clauses) for atoms, clauses in found.items()}

    def deletes_by(self, clauses: Iterable[Clause]) -> bool:
        """Return whether pruning deletes atoms from the result of each of these clauses."""
        wanted = set(clauses)
        found = [any(made.is_pruned) for made in self.results if made.clause in wanted]
        return bool(found) and all(found)

    def in_order(self) -> list[Atoms]:
        """Return the resolvents that the program implies, in canonical variables and pruned, in the order of the semantics."""
        return [_keep(atoms, is_pruned) for _, atoms, is_pruned in self.results]

    def _explain(self, atoms: Atoms) -> Explanation:
        """Explain a resolvent, given its atoms; an empty tuple stands for TRUE."""
        named = number_variables(iter(atoms))
        if named in self.made:
            return Explanation(self.made[named])
        is_compared = len(named) <= MOST_ATOMS and all(predicate >= 0 for predicate, _, _ in named)
        otherwise = self.explain_otherwise(named) if is_compared else ()
        return otherwise[0] if otherwise else self._find_nearest(named)

    def _explain_otherwise(self, atoms: Atoms) -> Sequence[Explanation]:
        """Return the explanations of a resolvent by clauses that make something else, the smallest deviation first."""
        attempts = self._by_pruning, self._by_order, self._by_match, self._by_variables
        found = [each for attempt in attempts for each in attempt(number_variables(iter(atoms)))]
        return sorted(found, key=lambda each: each.deviation) or ([] if atoms else list(self._by_deleting()))

    def _by_pruning(self, atoms: Atoms) -> Iterator[Explanation]:
        """Explain by a clause whose result was pruned wrongly: facts were left, or atoms that are not facts were deleted."""
        less: list[Clause] = []
        more: list[tuple[int, Clause, str]] = []
        cut: list[Clause] = []
        num_kept = 0
        for clause, whole, is_pruned in self._near(atoms):
            kept = find_embedding(atoms, whole)
            if kept is None:
                continue
            wrong = [i for i in range(len(whole)) if i not in kept and not is_pruned[i]]
            if not wrong:
                less.append(clause)
                num_kept = sum(is_pruned[i] for i in kept)
                continue
            pruned = _keep(whole, is_pruned)
            if atoms and atoms == number_variables(iter(pruned[: len(atoms)])):
                cut.append(clause)
            # If any atom could be deleted, everything could be a proof.
            if atoms or all(whole[i] == self._query for i in wrong):
                more.append((len(wrong), clause, self._describe_deleted(whole[wrong[0]])))
        if less and atoms:
            yield Explanation(tuple(less), Deviation.PRUNED_LESS, f"atoms that are facts, and were left: {num_kept}")
        if cut:
            yield Explanation(tuple(cut), Deviation.TRUNCATED, "the last atoms are missing")
        if more:
            fewest = min(more)[0]
            found = [(clause, what) for num, clause, what in more if num == fewest]
            yield Explanation(tuple(c for c, _ in found), Deviation.PRUNED_MORE, f"{found[0][1]} was deleted")

    def _describe_deleted(self, atom: Ids) -> str:
        if atom == self._query:
            return "the query, which may not serve as a fact,"
        return "an atom with variables" if min(atom[1:]) < 0 else "an atom that the facts lack"

    def _by_deleting(self) -> Iterator[Explanation]:
        """Explain TRUE by clauses whose results have only ground atoms, which pruning may have taken for facts: fewest first."""
        found: dict[int, list[Clause]] = {}
        for clause, whole, is_pruned in self.results[:MOST_COMPARED] if self._clauses.prunes else ():
            left = _keep(whole, is_pruned)
            if left and all(min(atom[1:]) >= 0 for atom in left):
                found.setdefault(len(left), []).append(clause)
        for num, clauses in sorted(found.items()):
            what = f"if pruning deletes {count_of(num, 'ground atom')} that the facts lack"
            yield Explanation(tuple(clauses), Deviation.PROVED, f"{count_clauses(clauses)} would make it {what}")

    def _by_order(self, atoms: Atoms) -> Iterator[Explanation]:
        alike = (made for made in self.made if len(made) == len(atoms) > 0 and is_permutation(atoms, made))
        if clauses := tuple(clause for made in alike for clause in self.made[made]):
            yield Explanation(clauses, Deviation.ATOM_ORDER, "its atoms are in another order")

    def _by_match(self, atoms: Atoms) -> Iterator[Explanation]:
        """Explain by a clause that does not match, but nearly does: by the query itself, or else by another clause."""
        if not self.goal:
            return
        if self._excluded is not None:
            index = self._clauses.fact_index[self._excluded]
            made = self._clauses.resolve(self.goal, Origin.FACT, index)
            if made is not None and self._is_from(atoms, made):
                detail = "it is made by the query, which may not serve as a fact"
                yield Explanation(((Origin.FACT, index),), Deviation.MATCH, detail)
                return
        apart = self._find_apart(self.goal[0])
        found = [each for each in apart if any(self._is_from(atoms, made) for made in self._resolve_apart(each))]
        if found:
            yield Explanation(tuple(found), Deviation.MATCH, "two arguments that must be equal were matched apart")

    def _find_apart(self, selected: Ids) -> Iterator[Clause]:
        """Yield the clauses that match the selected atom only if its arguments are matched separately."""
        clauses: list[Clause] = [(Origin.RULE, i) for i in self._clauses.rules_of(selected[0])]
        if selected[1] == selected[2] < 0:
            clauses += [(Origin.FACT, i) for i in self._clauses.facts_of(selected[0])[:MOST_COMPARED]]
        for clause in clauses:
            if matches_apart(self.goal, clause, self._clauses) and self._clauses.resolve(self.goal, *clause) is None:
                yield clause

    def _resolve_apart(self, clause: Clause) -> Iterator[Atoms]:
        """Yield the results of matching both arguments separately, in both orders; the first binding of a variable stays."""
        head, body = self._clauses.clause(self.goal, *clause)
        for order in ((1, 2), (2, 1)):
            bound: dict[int, int] = {}
            for i in order:
                left, right = self.goal[0][i], head[i]
                if right < 0:
                    bound.setdefault(right, left)
                elif left < 0:
                    bound.setdefault(left, right)
                elif left != right:
                    return
            yield tuple((p, bound.get(a, a), bound.get(b, b)) for p, a, b in (*body, *self.goal[1:]))

    def _is_from(self, atoms: Atoms, made: Atoms) -> bool:
        """Return whether a resolvent equals a result, pruned or not."""
        return atoms in (number_variables(iter(made)), _keep(made, tuple(map(self.is_pruned, made))))

    def _by_variables(self, atoms: Atoms) -> Iterator[Explanation]:
        """Explain by a clause whose variables were replaced differently: captured, bound to other terms, or not replaced."""
        found = [
            clause
            for clause, whole, is_pruned in self._near(atoms, is_loose=True)
            if self._is_otherwise_bound(atoms, whole) or self._is_otherwise_bound(atoms, _keep(whole, is_pruned))
        ]
        if found:
            yield Explanation(tuple(found), Deviation.VARIABLES, "its variables were replaced otherwise")

    def _is_otherwise_bound(self, atoms: Atoms, made: Atoms) -> bool:
        """Return whether two goals agree except that variables of one are other terms in the other.

        Atoms that became facts in this way may have been pruned.
        """
        kept = find_embedding(atoms, made, is_loose=True) if atoms else None
        if kept is None:
            return False
        rest = [atom for i, atom in enumerate(made) if i not in kept]
        return not rest or (
            self._clauses.prunes
            and all(self._clauses.facts_like((p, a, -2 if b < 0 else b), self._excluded) for p, a, b in rest)
        )

    def _near(self, atoms: Atoms, *, is_loose: bool = False) -> Iterator[Made]:
        """Yield the results that contain the predicates of a resolvent, in order, and perhaps further ones."""
        wanted = [atom[0] for atom in atoms]
        for made in self.results[:MOST_COMPARED]:
            if len(made.atoms) < len(atoms):
                continue
            rest = iter(made.atoms)
            if is_loose or all(any(predicate == other[0] for other in rest) for predicate in wanted):
                yield made

    def _find_nearest(self, atoms: Atoms) -> Explanation:
        """Describe the clause whose result has the most atoms in common with an unexplained resolvent."""
        made = self.results[:MOST_COMPARED]
        if not self.goal:
            detail = "the goal has no atoms"
        elif self._is_from(atoms, self.goal[1:]):
            detail = "the selected atom was taken for a fact, and no fact of the program matches it"
        elif not made:
            detail = "no clause of the program matches the selected atom"
        else:
            num_shared, negative_length = max(_count_shared(atoms, each.atoms) for each in made)
            detail = f"the nearest clause makes {-negative_length} atoms, {num_shared} of them like these"
            if not num_shared:
                detail = "it shares no atom with the results of the clauses that match"
        return Explanation((), Deviation.UNKNOWN, detail)


def _keep(atoms: Atoms, is_pruned: Sequence[bool]) -> Atoms:
    return number_variables(atom for atom, is_gone in zip(atoms, is_pruned, strict=True) if not is_gone)


def _count_shared(atoms: Iterable[Ids], others: Sequence[Ids]) -> tuple[int, int]:
    """Return the number of atoms whose shapes occur in `others`, and minus the length of `others`: the larger, the nearer."""
    shared = (Counter(map(shape_of, atoms)) & Counter(map(shape_of, others))).total()
    return shared, -len(others)


def count_clauses(clauses: Sequence[Clause]) -> str:
    """Count clauses, as in `2 rules and 1 fact`."""
    num = Counter(kind for kind, _ in clauses)
    names = (Origin.RULE, "rule"), (Origin.FACT, "fact")
    return " and ".join(count_of(num[kind], name) for kind, name in names if num[kind])
