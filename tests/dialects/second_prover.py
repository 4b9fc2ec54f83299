"""A second prover of every dialect, written apart from kgreference: the judge of its dialects.

A term is a constant (an int of 0 or more), a variable of the goal (an int below 0) or a variable of a clause (a string), so
that clauses need no renaming. Terms are unified by union-find. A step is one list that a loop of filters changes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations, product
from typing import Any, Final, NamedTuple

Term = int | str
Row = tuple[Any, Any, Any]
"""An atom: a predicate and two terms."""
Rows = tuple[Row, ...]

GOAL, TRUE, FALSE, STOP = range(4)
BY_NOTHING, BY_RULE, BY_FACT = range(3)
OPEN, PROVED, FAILED, DEPTH_LIMIT = range(4)
SCORE_OF_STOPPING: Final = -64.0

Score = Callable[[Rows, Rows], float]
"""The score of a resolvent from a goal, both with variables numbered by first appearance."""


class Offer(NamedTuple):
    """A resolvent: its kind, its atoms, and the clause that made it."""

    kind: int
    atoms: Rows
    origin_kind: int
    origin: int


class Move(NamedTuple):
    """One step with everything that a trace records. ``depth`` counts the steps before this one."""

    goal: Rows
    offers: list[Offer]
    dropped_atoms: int
    dropped_resolvents: int
    scores: list[float]
    choice: int
    log_probability: float
    depth: int
    next_depth: int
    outcome: int
    is_uncounted: bool


class SecondProver:
    """A prover of facts and rules in ids. ``dialect`` is any object with the fields of `kgreference.Dialect`."""

    def __init__(
        self,
        facts: Sequence[Row],
        rules: Sequence[tuple[Row, Rows]],
        dialect: Any,
        *,
        max_depth: int,
        max_atoms: int,
        max_resolvents: int,
        excludes_query: bool = True,
        score: Score | None = None,
        score_of_stopping: float = SCORE_OF_STOPPING,
    ) -> None:
        self.dialect = dialect
        self.max_depth, self.max_atoms, self.max_resolvents = max_depth, max_atoms, max_resolvents
        self.excludes_query = excludes_query
        self.score, self.score_of_stopping = score or score_shortest, score_of_stopping
        self.facts = set(facts)
        self.rules_of: dict[int, list[tuple[int, int, Row, Rows]]] = {}
        self.facts_of: dict[tuple[int, int | None, int | None], list[tuple[int, int, Row, Rows]]] = {}
        for number, (head, body) in enumerate(rules):
            named = tuple(_name_variables(atom) for atom in (head, *body))
            self.rules_of.setdefault(head[0], []).append((BY_RULE, number, named[0], named[1:]))
        for number, fact in enumerate(facts):
            predicate, a, b = fact
            for key in ((predicate, a, b), (predicate, a, None), (predicate, None, b), (predicate, None, None)):
                self.facts_of.setdefault(key, []).append((BY_FACT, number, fact, ()))

    def prove(self, query: Row, is_positive: bool = True) -> list[Move]:
        """Take steps until the derivation ends."""
        goal = number_variables((query,))
        visited, moves, depth, in_a_row = [goal], [], 0, 0
        while True:
            move = self.move(query, visited, depth, in_a_row, is_positive)
            moves.append(move)
            if move.outcome != OPEN:
                return moves
            in_a_row = in_a_row + 1 if move.is_uncounted else 0
            depth = move.next_depth
            visited.append(move.offers[move.choice].atoms)

    def move(
        self, query: Row, visited: Sequence[Rows], depth: int, in_a_row: int = 0, is_positive: bool = True
    ) -> Move:
        """Take one step from the last of the visited goals, after ``in_a_row`` uncounted steps."""
        dialect, goal = self.dialect, visited[-1]
        excluded = self._excluded(query, is_positive)
        offers = self._resolve(goal, visited, excluded)
        lost = {"max_atoms": 0, "max_resolvents": 0}
        forgets = dialect.forgets_names
        for name in map(str, dialect.filters):
            if offers and offers[0].kind == FALSE:
                break
            if name == "prune":
                kept = [
                    each._replace(atoms=tuple(a for a in each.atoms if a == excluded or a not in self.facts))
                    for each in offers
                ]
                offers = [_closed(each) for each in kept]
            elif name == "revisit":
                if forgets:
                    offers = [each._replace(atoms=number_variables(each.atoms)) for each in offers]
                offers = self._drop_visited(offers, visited)
            elif name == "duplicates":
                firsts: dict[tuple[int, Rows], Offer] = {}
                for each in reversed(offers):
                    firsts[each.kind, number_variables(each.atoms)] = each
                offers = sorted(firsts.values(), key=offers.index)
            elif name == "close":
                offers = [_closed(each) for each in offers]
                proofs = [each for each in offers if each.kind == TRUE]
                offers = proofs[:1] or offers or [Offer(FALSE, (), BY_NOTHING, 0)]
            elif name == "max_atoms":
                lost[name] = sum(len(each.atoms) > self.max_atoms for each in offers)
                if dialect.long_resolvents == "truncate":
                    offers = [each._replace(atoms=each.atoms[: self.max_atoms]) for each in offers]
                else:
                    offers = [each for each in offers if len(each.atoms) <= self.max_atoms]
            else:
                lost[name] = max(0, len(offers) - self.max_resolvents)
                del offers[self.max_resolvents :]
        if forgets:
            offers = [each._replace(atoms=number_variables(each.atoms)) for each in offers]
        offers = [_closed(each) for each in offers]
        is_unary = [each.kind for each in offers] == [GOAL]
        is_uncounted = bool(dialect.skips_unary) and is_unary and in_a_row < self.max_depth
        if not is_uncounted and dialect.stopping == "where_no_terminal" and {e.kind for e in offers} <= {GOAL}:
            offers.append(Offer(STOP, (), BY_NOTHING, 0))
        if not offers:
            offers.append(Offer(FALSE, (), BY_NOTHING, 0))
        scores = self._scores(goal, offers)
        choice = min(range(len(scores)), key=lambda i: (-scores[i], i))
        next_depth = depth if is_uncounted else depth + 1
        outcome = {TRUE: PROVED, FALSE: FAILED, STOP: FAILED}.get(
            offers[choice].kind, DEPTH_LIMIT if next_depth >= self.max_depth else OPEN
        )
        total = sum(math.exp(score - scores[choice]) for score in scores)
        return Move(
            goal,
            offers,
            lost["max_atoms"],
            lost["max_resolvents"],
            scores,
            choice,
            -math.log(total),
            depth,
            next_depth,
            outcome,
            is_uncounted,
        )

    def _excluded(self, query: Row, is_positive: bool) -> Row | None:
        rule = self.dialect.exclusion
        is_barred = self.excludes_query and (rule == "always" or (rule == "positives_only" and is_positive))
        return query if is_barred and min(query[1:]) >= 0 else None

    def _clauses(self, selected: Row, excluded: Row | None) -> Iterable[tuple[int, int, Row, Rows]]:
        predicate, a, b = selected
        like = (predicate, a if a >= 0 else None, b if b >= 0 else None)
        facts = [each for each in self.facts_of.get(like, ()) if each[2] != excluded]
        kinds = [list(self.rules_of.get(predicate, ())), facts]
        if self.dialect.is_reversed:
            kinds = [each[::-1] for each in kinds]
        if self.dialect.order == "facts_first":
            kinds.reverse()
        return kinds[0] + kinds[1]

    def _resolve(self, goal: Rows, visited: Sequence[Rows], excluded: Row | None) -> list[Offer]:
        offers = []
        lowest = min([0, *(term for atoms in visited for atom in atoms for term in atom[1:])])
        for kind, number, head, body in self._clauses(goal[0], excluded):
            if self.dialect.unification == "one_pass" and not passes_once(goal[0], head):
                continue
            roots = union(goal[0], head)
            if roots is None:
                continue
            fresh: dict[Term, int] = {}

            def name(term: Term, roots: dict[Term, Term] = roots, fresh: dict[Term, int] = fresh) -> int:
                root = find(roots, term)
                return root if isinstance(root, int) else fresh.setdefault(root, lowest - 1 - len(fresh))

            atoms = tuple((p, name(a), name(b)) for p, a, b in (*body, *goal[1:]))
            offers.append(Offer(GOAL, atoms, kind, number))
        return offers

    def _drop_visited(self, offers: list[Offer], visited: Sequence[Rows]) -> list[Offer]:
        dialect = self.dialect
        if dialect.memory == "none":
            return offers

        def is_visited(atoms: Rows) -> bool:
            if not atoms and dialect.exempts_terminal:
                return False
            if dialect.memory == "sequence":
                return any(atoms == goal for goal in visited)
            if any(set(atoms) == set(goal) for goal in visited):
                return True
            return dialect.forgets_names and any(are_variants(set(atoms), set(goal)) for goal in visited)

        return [each for each in offers if not is_visited(each.atoms)]

    def _scores(self, goal: Rows, offers: list[Offer]) -> list[float]:
        if len(offers) == 1 and offers[0].kind != GOAL:
            return [0.0]
        start = number_variables(goal)
        return [
            self.score_of_stopping if each.kind == STOP else self.score(start, number_variables(each.atoms))
            for each in offers
        ]


def score_shortest(goal: Rows, atoms: Rows) -> float:
    """Return the score of the policy `shortest`."""
    variables = {term for atom in atoms for term in atom[1:] if term < 0}
    return -(len(atoms) + len(variables) / 64)


def number_variables(atoms: Rows) -> Rows:
    """Return atoms whose variables are -1, -2, -3 ... in the order of their first appearance."""
    place: dict[int, int] = {}
    for term in (term for atom in atoms for term in atom[1:] if term < 0):
        place.setdefault(term, -1 - len(place))
    return tuple((p, place.get(a, a), place.get(b, b)) for p, a, b in atoms)


def passes_once(selected: Row, head: Row) -> bool:
    """Return whether one pass over the argument pairs binds every variable once, or twice to one term."""
    bound: dict[Term, Term] = {}
    for of_goal, of_clause in zip(selected[1:], head[1:], strict=True):
        if isinstance(of_clause, str):
            variable, term = of_clause, of_goal
        elif of_goal < 0:
            variable, term = of_goal, of_clause
        elif of_goal == of_clause:
            continue
        else:
            return False
        if bound.setdefault(variable, term) != term:
            return False
    return True


def union(selected: Row, head: Row) -> dict[Term, Term] | None:
    """Return the parents of terms that the two atoms make equal; None if two constants would be equal.

    A constant is above every variable, and a variable of the goal above one of the clause. Of two variables of the goal
    that of the second argument is above.
    """
    parents: dict[Term, Term] = {}
    for term, other in zip(selected[1:], head[1:], strict=True):
        mine, its = find(parents, term), find(parents, other)
        if mine == its:
            continue
        if isinstance(its, str) or its < 0:
            parents[its] = mine
        elif isinstance(mine, str) or mine < 0:
            parents[mine] = its
        else:
            return None
    return parents


def find(parents: dict[Term, Term], term: Term) -> Term:
    """Return the term that stands for all that are equal to this one."""
    while term in parents:
        term = parents[term]
    return term


def are_variants(left: set[Row], right: set[Row]) -> bool:
    """Return whether some renaming of the variables makes one set the other: tried among variables that occur alike."""
    if len(left) != len(right):
        return False
    groups, others = _occurrences(left), _occurrences(right)
    if {key: len(found) for key, found in groups.items()} != {key: len(found) for key, found in others.items()}:
        return False
    keys = list(groups)
    for images in product(*(permutations(others[key]) for key in keys)):
        renaming = {
            term: new
            for key, found in zip(keys, images, strict=True)
            for term, new in zip(groups[key], found, strict=True)
        }
        if {(p, renaming.get(a, a), renaming.get(b, b)) for p, a, b in left} == right:
            return True
    return False


def _occurrences(atoms: set[Row]) -> dict[tuple[Any, ...], list[int]]:
    """Return the variables of a set by the places where they occur."""
    places: dict[int, list[Any]] = {}
    for p, a, b in atoms:
        for position, term, other in ((0, a, b), (1, b, a)):
            if term < 0:
                places.setdefault(term, []).append((p, position, other if other >= 0 else -1 - (other == term)))
    found: dict[tuple[Any, ...], list[int]] = {}
    for term, each in places.items():
        found.setdefault(tuple(sorted(each)), []).append(term)
    return found


def _name_variables(atom: Row) -> Row:
    predicate, *terms = atom
    a, b = (term if term >= 0 else f"V{-1 - term}" for term in terms)
    return predicate, a, b


def _closed(offer: Offer) -> Offer:
    return offer if offer.atoms or offer.kind != GOAL else offer._replace(kind=TRUE)
