"""The words of conditions, and their meaning: each is evaluated from the columns of two traces, by code of its own.

A phrase after the noun of an instance has a meaning here, or it is in `NOT_CHECKED`.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from columns import (
    DEPTH_LIMIT,
    FACT,
    FAILED,
    FALSE,
    HEAD,
    ORDINARY,
    PROVED,
    RULE,
    TRUE,
    Atom,
    Clause,
    Goal,
    Made,
    Pair,
    Place,
    Resolvent,
    Step,
    number_variables,
)


class Unknown(Exception):
    """The error raised if the columns do not tell the value of a phrase."""


def known(value: Any) -> Any:
    """Return a value; raise Unknown if it is None."""
    if value is None:
        raise Unknown
    return value


@dataclass(eq=False)
class SeenStep:
    """A step of both sides, and what the clauses of the program make of its goal."""

    pair: Pair
    place: Place

    @cached_property
    def expected(self) -> Step:
        return known(self.pair.step(0, self.place))

    @cached_property
    def goal(self) -> Goal:
        return self.expected.goal

    @property
    def selected(self) -> Atom:
        return known(self.goal[0] if self.goal else None)

    @property
    def query(self) -> Atom:
        return self.pair.sides[0].candidates[self.place.expected][2]

    @cached_property
    def matched(self) -> dict[Clause, Made]:
        """The result of each matching clause by the default rules, whatever the rules of the engines are."""
        return known(self.pair.program).match(self.goal, self.query)

    @property
    def made(self) -> dict[Clause, Made]:
        """The result of each matching clause. Raises Unknown for other rules than the default ones."""
        return self.matched if known(self.pair.program).is_default else known(None)

    def clauses_of(self, step: Step) -> set[Clause]:
        """Return the clauses of a side's list: as recorded, or all that make a resolvent that is listed as many times."""
        if self.pair.has_origins:
            return step.clauses
        made: dict[Hashable, list[Clause]] = {}
        for clause, (before, _, kept) in self.matched.items():
            for atoms in {kept, number_variables(before)}:
                made.setdefault((ORDINARY if atoms else TRUE, atoms), []).append(clause)
        listed = Counter(r.content for r in step.resolvents)
        return {clause for content, every in made.items() if listed[content] >= len(every) for clause in every}

    @cached_property
    def visited(self) -> list[Goal]:
        """The goals of the derivation up to this step."""
        return [step.goal for step in self.pair.sides[0].steps[self.place.expected][: self.place.number + 1]]

    @cached_property
    def survivors(self) -> list[Goal]:
        """The resolvents that equal no visited goal."""
        return [made.kept for made in self.made.values() if made.kept not in self.visited]

    @cached_property
    def scores(self) -> list[float]:
        return sorted((known(r.score) for r in self.expected.resolvents), reverse=True)

    def limit(self, name: str) -> int:
        return known(self.pair.limits.get(name))


@dataclass(eq=False)
class Instance:
    """A fact, rule, resolvent, step or candidate. side: 1 for a candidate that only the actual side has."""

    pair: Pair
    row: int
    step: SeenStep | None = None
    clause: Clause | None = None
    side: int = 0

    @property
    def seen(self) -> SeenStep:
        return known(self.step)

    @property
    def by(self) -> Clause:
        return known(self.clause)

    @property
    def atoms(self) -> Goal:
        """The atoms of its clause, the head first."""
        return known(self.pair.program).clause(self.by)

    @property
    def head(self) -> Atom:
        return self.atoms[0]

    @property
    def segment(self) -> list[int]:
        return self.pair.program.segment(self.by)

    @property
    def made(self) -> Made:
        return known(self.seen.made.get(self.by))

    @property
    def kept(self) -> Goal:
        return self.made.kept

    @property
    def listed(self) -> Resolvent:
        return known(next((r for r in self.seen.expected.resolvents if r.clause == self.by), None))

    @property
    def score(self) -> float:
        return known(self.listed.score)

    @property
    def candidate(self) -> tuple[int, int, Atom]:
        return self.pair.sides[self.side].candidates[self.row]

    def column(self, name: str) -> Any:
        return known(self.pair.sides[self.side].column(f"candidates/{name}"))[self.row]

    @property
    def group(self) -> list[int]:
        """The rows of the candidates of its query and side."""
        every = self.pair.sides[self.side].candidates
        return [row for row, each in enumerate(every) if each[:2] == self.candidate[:2]]


Value = Callable[[Instance], Any]


def variables(atoms: Iterable[Atom]) -> set[int]:
    return {t for _, *terms in atoms for t in terms if t < 0}


def constants(atoms: Iterable[Atom]) -> list[int]:
    return [t for _, *terms in atoms for t in terms if t >= 0]


def swapped(atom: Atom) -> Atom:
    return atom[0], atom[2], atom[1]


def matching(i: Instance) -> list[Clause]:
    """Return the matching clauses of the kind of a clause."""
    return [clause for clause in i.seen.made if clause[0] == i.by[0]]


def position_of_match(i: Instance) -> int:
    return known(dict(zip(matching(i), range(10**9), strict=False)).get(i.by))


def with_query(i: Instance) -> int:
    """Count the matching facts after this one, also if they equal the query."""
    i.made  # noqa: B018  it raises Unknown if nothing is known of the clause
    return sum(index > i.by[1] for index in i.pair.program.matching_facts(i.seen.selected))


def fits_apart(atom: Atom, head: Atom, arguments: Iterable[int] = (1, 2)) -> bool:
    """Return whether each of some arguments fits for itself."""
    return atom[0] == head[0] and all(atom[k] < 0 or head[k] < 0 or atom[k] == head[k] for k in arguments)


def mismatch(fits: Callable[[Instance], bool]) -> Callable[[Instance], bool]:
    return lambda i: i.by not in i.seen.made and not fits_as_excluded(i) and fits(i)


def fits_as_excluded(i: Instance) -> bool:
    """Return whether a fact matches, and is only left out because it equals the query."""
    return i.by[0] == FACT and i.head == i.seen.query and i.by[1] in i.pair.program.matching_facts(i.seen.selected)


def fits_without(argument: int) -> Callable[[Instance], bool]:
    """Return whether a clause matches as soon as an argument of the selected atom is a new variable."""

    def fits(i: Instance) -> bool:
        atom = list(i.seen.selected)
        atom[argument] = -1 - max((-t for t in atom[1:] if t < 0), default=0)
        return i.pair.program.resolve((tuple(atom),), i.by, i.seen.query) is not None

    return mismatch(fits)


def partial_block(place: int, total: int, size: int) -> bool:
    return place >= total - total % size


def mistaken(key: Callable[[Atom], Any]) -> Callable[[Instance], bool]:
    """Return whether an atom before pruning is neither a fact nor the query, and has the key of a fact."""

    def read(i: Instance) -> bool:
        program = i.pair.program
        others = [a for a in i.made.before if min(a) >= 0 and a not in program.index and a != i.seen.query]
        return bool(others) and not {key(a) for a in others}.isdisjoint(map(key, program.facts))

    return read


def before_limit(i: Instance) -> tuple[int, int]:
    """Return the place of a resolvent among those that `limit` receives: among the short ones, and among all."""
    if i.by not in i.seen.made:
        raise Unknown
    before = [m.kept for c, m in list(i.seen.made.items())[: list(i.seen.made).index(i.by)]]
    new = [atoms for atoms in before if atoms not in i.seen.visited]
    return sum(len(atoms) <= i.seen.limit("max_atoms") for atoms in new), len(new)


def steps_since(i: Instance) -> int:
    visited = i.seen.visited
    return next((n for n, goal in enumerate(reversed(visited), 1) if goal == i.kept), 0)


def number_visited(i: Instance) -> int:
    since = steps_since(i)
    return len(i.seen.visited) + 1 - since if since else 0


def chosen_kind(kind: int) -> Callable[[Instance], bool]:
    return lambda i: (chosen := i.seen.expected.chosen) is not None and chosen.kind == kind


def proofs(i: Instance) -> list[bool]:
    return [not atoms for atoms in i.seen.survivors]


def significant_bits(number: float) -> int:
    if not math.isfinite(number):
        raise Unknown
    numerator = abs(number.as_integer_ratio()[0])
    return (numerator // (numerator & -numerator)).bit_length() if numerator else 0


def by_column(i: Instance) -> bool:
    columns = dict.fromkeys(atom[k] for k in (1, 2) for atom in i.kept if atom[k] < 0)
    rows = dict.fromkeys(t for _, *terms in i.kept for t in terms if t < 0)
    return list(columns) != list(rows)


def has_argument(argument: int, which: Callable[[Instance], int]) -> Callable[[Instance], bool]:
    return lambda i: any(atom[argument] == which(i) for atom in i.made.before)


def last_constant(i: Instance) -> int:
    clauses = (*i.pair.program.facts, *(atom for rule in i.pair.program.rules for atom in rule))
    return max(constants(clauses))


def binds_zero(i: Instance) -> bool:
    return constants(i.made.before).count(0) > constants((*i.atoms[1:], *i.seen.goal[1:])).count(0)


def reads_like_selected(i: Instance) -> bool:
    """Return whether an atom of another predicate reads like the selected one up to its first argument."""
    (p, a, _), (q, b, _), names = i.head, i.seen.selected, i.pair.program.names
    texts = {names["predicates"][each] + names["constants"][term] for each, term in ((p, a), (q, b)) if term >= 0}
    return p != q and min(a, b) >= 0 and len(texts) == 1


def alike(i: Instance) -> list[Clause]:
    """Return the clauses that make the same resolvent as a clause, itself included."""
    kept = i.kept
    return [clause for clause, made in i.seen.made.items() if made.kept == kept]


def counts_with_other_kind(i: Instance) -> bool:
    """Return whether the short resolvents before one fill the list, but not those of its own kind."""
    i.made  # noqa: B018  it raises Unknown if nothing is known of the clause
    before = [*i.seen.made.items()][: [*i.seen.made].index(i.by)]
    short = [c for c, m in before if m.kept not in i.seen.visited and len(m.kept) <= limit("max_atoms", i)]
    return sum(kind == i.by[0] for kind, _ in short) < limit("max_resolvents", i) <= len(short)


def unpruned(made: Made) -> Goal:
    """Return the atoms that pruning keeps, with the variables that they had before renaming."""
    return tuple(atom for atom, is_gone in zip(made.before, made.is_pruned, strict=True) if not is_gone)


def last_one_moves(i: Instance) -> bool:
    """Return whether atoms change places if the last one takes the place of each fact to prune."""
    ahead, moved = list(zip(i.made.before, i.made.is_pruned, strict=True)), []
    while ahead:
        atom, is_gone = ahead.pop(0)
        if not is_gone:
            moved.append(atom)
        elif ahead:
            ahead.insert(0, ahead.pop())
    return tuple(moved) != unpruned(i.made)


def is_renumbered(i: Instance) -> bool:
    """Return whether renaming gives a resolvent's variables other numbers than they have in the goal."""
    used = list(dict.fromkeys(t for _, *terms in unpruned(i.made) for t in terms if t < 0))
    places = list(dict.fromkeys(t for _, *terms in i.seen.goal for t in terms if t < 0))
    return used != places[: len(used)]


def changes(i: Instance, other: Goal | None) -> bool:
    """Return whether a resolvent changes if its atoms before pruning are others.

    Raises Unknown if only atoms that pruning deletes change: they count if the output of the stage is shown.
    """
    if other is None:
        return True
    program, query = i.pair.program, i.seen.query
    is_gone = [a in program.index and not (program.excludes and a == query) for a in other]
    kept = number_variables([a for a, gone in zip(other, is_gone, strict=True) if not gone])
    whole = number_variables(other) != number_variables(i.made.before)
    return known(whole if whole == (kept != i.kept) else None)


def captures(first: Callable[[Goal], int]) -> Value:
    """Return whether a rule makes another resolvent with its variables numbered from a number that the goal gives."""

    def read(i: Instance) -> bool:
        i.made  # noqa: B018  it raises Unknown if nothing is known of the clause
        goal = number_variables(i.seen.goal)
        made = i.pair.program.resolve(goal, i.by, i.seen.query, first(goal))
        return i.by[0] == RULE and first(goal) < len(variables(goal)) and changes(i, made and made.before)

    return read


def leaves_rest(i: Instance) -> bool:
    rest = i.seen.goal[1:]
    return changes(i, (*i.made.before[: len(i.made.before) - len(rest)], *rest))


def facts_first(i: Instance) -> bool:
    """Return whether the list has the resolvent of a rule before another one of a fact."""
    step, made = i.seen.expected, i.seen.matched
    listed = []
    for each in step.resolvents:
        if each.kind not in (ORDINARY, TRUE):
            continue
        makers = [each.clause] if i.pair.has_origins else [c for c, m in made.items() if m.kept == each.atoms]
        kinds = {kind for kind, _ in map(known, makers)}
        listed.append(
            (known(kinds.pop() if len(kinds) == 1 else None), each.clause if i.pair.has_origins else each.content)
        )
    return [what for _, what in sorted(listed, key=lambda each: each[0] == RULE)] != [what for _, what in listed]


def sorts_otherwise(key: Callable[[Instance, int], Any]) -> Value:
    """Return whether the matching facts get another order by a key."""

    def read(i: Instance) -> bool:
        facts = [index for kind, index in i.seen.matched if kind == FACT]
        keys = [key(i, index) for index in facts]
        return any(a > b for a, b in pairwise(keys))

    return read


def names_of_arguments(i: Instance, fact: int) -> tuple[str, ...]:
    return tuple(i.pair.program.names["constants"][term] for term in i.pair.program.facts[fact][1:])


def prunes(which: Callable[[Instance], int]) -> Value:
    """Return whether a fact to prune has a constant."""
    return lambda i: any(
        which(i) in atom[1:] for atom, is_gone in zip(i.made.before, i.made.is_pruned, strict=True) if is_gone
    )


def indexed(i: Instance) -> list[int]:
    """Return the facts of the selected predicate with its first constant, or all of them if it has none."""
    p, a, b = i.seen.selected
    places = [k for k, term in ((1, a), (2, b)) if term >= 0][:1]
    facts = i.pair.program.facts
    return [f for f in i.pair.program.facts_of[p] if all(facts[f][k] == i.seen.selected[k] for k in places)]


def position_in_index(i: Instance) -> int:
    return known({f: at for at, f in enumerate(indexed(i))}.get(i.by[1]))


def ends(outcome: int) -> Callable[[Instance], bool]:
    return lambda i: i.column("outcome") == outcome


def on_step(value: Callable[[Step], Any]) -> Callable[[Instance], Any]:
    return lambda i: value(i.seen.expected)


def limit(name: str, i: Instance) -> int:
    return i.seen.limit(name)


FLAGS: dict[str, tuple[str, Value]] = {
    "that equal the query": ("that differ from the query", lambda i: i.head == i.candidate[2]),
    "that match the selected atom argument by argument but not as a whole": (
        "that match the selected atom as a whole or not at all",
        mismatch(lambda i: fits_apart(i.seen.selected, i.head)),
    ),
    "that match the selected atom but for the first argument": (
        "that match the selected atom or differ from it in more than the first argument",
        fits_without(1),
    ),
    "that match the selected atom but for the second argument": (
        "that match the selected atom or differ from it in more than the second argument",
        fits_without(2),
    ),
    "that do not match the selected atom": (
        "that match the selected atom",
        lambda i: i.by not in i.seen.made and not fits_as_excluded(i),
    ),
    "whose head has one symbol twice": ("whose head has two different symbols", lambda i: i.head[1] == i.head[2]),
    "of a rule whose head repeats a variable": (
        "of a rule whose head repeats no variable",
        lambda i: i.head[1] == i.head[2] < 0,
    ),
    "of a rule with the head's predicate in the body": (
        "of no rule with the head's predicate in the body",
        lambda i: any(atom[0] == i.head[0] for atom in i.atoms[1:]),
    ),
    "of a rule with a predicate twice in the body": (
        "of no rule with a predicate twice in the body",
        lambda i: len({atom[0] for atom in i.atoms[1:]}) < len(i.atoms) - 1,
    ),
    "that are the query with its arguments swapped": (
        "other than the query with its arguments swapped",
        lambda i: swapped(i.head) == i.candidate[2] != i.head,
    ),
    "whose first argument is the query's": (
        "whose first argument is not the query's",
        lambda i: i.head[1] == i.candidate[2][1],
    ),
    "whose second argument is the query's": (
        "whose second argument is not the query's",
        lambda i: i.head[2] == i.candidate[2][2],
    ),
    "with an argument of the query": (
        "without an argument of the query",
        lambda i: bool({*i.head[1:]} & {*i.candidate[2][1:]}),
    ),
    "whose first argument has a larger id than the second": (
        "whose first argument has no larger id than the second",
        lambda i: i.head[1] > i.head[2],
    ),
    "of rules": ("of facts", lambda i: i.by[0] == RULE),
    "that equal a goal visited before": ("that equal no goal visited before", lambda i: i.kept in i.seen.visited),
    "that have, in any order, the atoms of a goal visited before": (
        "that do not have, in any order, the atoms of a goal visited before",
        lambda i: sorted(i.kept) in map(sorted, i.seen.visited),
    ),
    "of which every atom is a fact": (
        "of which some atom is no fact",
        lambda i: bool(i.made.before) and all(i.made.is_pruned),
    ),
    "whose first atom is a fact to prune": ("whose first atom is no fact", lambda i: any(i.made.is_pruned[:1])),
    "with a fact to prune before an atom that stays": (
        "without a fact to prune before an atom that stays",
        lambda i: True in i.made.is_pruned and False in i.made.is_pruned[i.made.is_pruned.index(True) :],
    ),
    "that contain the query": ("that do not contain the query", lambda i: i.seen.query in i.made.before),
    "with an atom that is not a fact but is one with its arguments swapped": (
        "without an atom that is not a fact but is one with its arguments swapped",
        lambda i: any(a not in i.pair.program.index and swapped(a) in i.pair.program.index for a in i.made.before),
    ),
    "with an atom that is not a fact but has the arguments of one of another predicate": (
        "without an atom that is not a fact but has the arguments of one of another predicate",
        mistaken(lambda a: a[1:]),
    ),
    "whose predicate and first argument, written as one text, are those of the selected atom, but for another predicate": (
        "whose predicate and first argument, written as one text, are not those of the selected atom for another predicate",
        reads_like_selected,
    ),
    "that begin with a goal visited before and have more atoms": (
        "that do not begin with a shorter goal visited before",
        lambda i: any(0 < len(goal) < len(i.kept) and i.kept[: len(goal)] == goal for goal in i.seen.visited),
    ),
    "that put the selected atom first again, up to the names of variables": (
        "that do not put the selected atom first again, up to the names of variables",
        lambda i: number_variables(i.kept[:1]) == number_variables([i.seen.selected]),
    ),
    "that make more than max_atoms atoms before pruning, but not after it": (
        "that make at most max_atoms atoms before pruning, or more after it as well",
        lambda i: len(i.kept) <= limit("max_atoms", i) < len(i.made.before),
    ),
    "whose atoms get another order if the last one takes the place of each fact to prune": (
        "whose atoms stay in order if the last one takes the place of each fact to prune",
        last_one_moves,
    ),
    "that change if the rule's variables are renamed apart from the selected atom's only": (
        "that stay the same if the rule's variables are renamed apart from the selected atom's only",
        captures(lambda goal: len(variables(goal[:1]))),
    ),
    "that change if the rest of the goal stays as it was": (
        "that stay the same if the rest of the goal stays as it was",
        leaves_rest,
    ),
    "whose variables get other numbers by renaming": (
        "whose variables keep their numbers when they are renamed",
        is_renumbered,
    ),
    "that make the same resolvent as a later clause of the step": (
        "that make another resolvent than each later clause of the step",
        lambda i: alike(i)[-1] != i.by,
    ),
    "that make the same resolvent as an earlier clause of the step": (
        "that make another resolvent than each earlier clause of the step",
        lambda i: alike(i)[0] != i.by,
    ),
    "with a fact to prune that has the first constant by id": (
        "without a fact to prune that has the first constant by id",
        prunes(lambda i: 0),
    ),
    "with a fact to prune that has the last constant by id": (
        "without a fact to prune that has the last constant by id",
        prunes(last_constant),
    ),
    "that are beyond max_resolvents only if those of rules and those of facts count together": (
        "for which it makes no difference whether those of rules and those of facts count together",
        counts_with_other_kind,
    ),
    "whose list changes if the resolvents of facts come before those of rules": (
        "whose list stays the same if the resolvents of facts come before those of rules",
        facts_first,
    ),
    "whose matching facts come in another order if the names of their arguments decide": (
        "whose matching facts come in the same order if the names of their arguments decide",
        sorts_otherwise(names_of_arguments),
    ),
    "whose matching facts come in another order if their second arguments decide": (
        "whose matching facts come in the same order if their second arguments decide",
        sorts_otherwise(lambda i, fact: i.pair.program.facts[fact][2]),
    ),
    "whose matching facts come in another order if the digits of their index decide": (
        "whose matching facts come in the same order if the digits of their index decide",
        sorts_otherwise(lambda i, fact: str(fact)),
    ),
    "that make the same resolvent as another clause of the step": (
        "that make a resolvent of their own",
        lambda i: [m.kept for m in i.seen.made.values()].count(i.kept) > 1,
    ),
    "that bind a variable to the constant with the id 0": (
        "that bind no variable to the constant with the id 0",
        binds_zero,
    ),
    "with an atom twice": ("without an atom twice", lambda i: len({*i.kept}) < len(i.kept)),
    "with an atom whose arguments are equal": (
        "without an atom whose arguments are equal",
        lambda i: any(a == b for _, a, b in i.kept),
    ),
    "in which a variable occurs twice": (
        "in which no variable occurs twice",
        lambda i: len([t for _, *terms in i.kept for t in terms if t < 0]) > len(variables(i.kept)),
    ),
    "whose variables get other numbers if all first arguments are read before all second ones": (
        "whose variables get the same numbers if all first arguments are read before all second ones",
        by_column,
    ),
    "that are beyond max_resolvents only if resolvents of more than max_atoms atoms count": (
        "for which it makes no difference whether resolvents of more than max_atoms atoms count",
        lambda i: before_limit(i)[0] < limit("max_resolvents", i) <= before_limit(i)[1],
    ),
    "with negative scores": ("without negative scores", lambda i: i.score < 0),
    "that choose TRUE": ("that do not choose TRUE", chosen_kind(TRUE)),
    "that choose FALSE": ("that do not choose FALSE", chosen_kind(FALSE)),
    "that choose the resolvent of a rule": (
        "that choose no resolvent of a rule",
        on_step(lambda s: s.chosen is not None and (s.chosen.clause or (0,))[0] == RULE),
    ),
    "that go on to another goal": ("that end", chosen_kind(ORDINARY)),
    "with equal resolvents": (
        "without equal resolvents",
        on_step(lambda s: len({r.content for r in s.resolvents}) < len(s.resolvents)),
    ),
    "with a proof": ("without a proof", on_step(lambda s: s.has_true)),
    "where the selected atom's first argument is a constant": (
        "where the selected atom's first argument is a variable",
        lambda i: i.seen.selected[1] >= 0,
    ),
    "where the selected atom's second argument is a constant": (
        "where the selected atom's second argument is a variable",
        lambda i: i.seen.selected[2] >= 0,
    ),
    "of goals with a predicate twice": (
        "of goals with no predicate twice",
        lambda i: len({atom[0] for atom in i.seen.goal}) < len(i.seen.goal),
    ),
    "where the selected atom repeats a variable": (
        "where the selected atom repeats no variable",
        lambda i: i.seen.selected[1] == i.seen.selected[2] < 0,
    ),
    "where the selected atom shares a variable with a later one": (
        "where the selected atom shares no variable",
        lambda i: bool(variables([i.seen.selected]) & variables(i.seen.goal[1:])),
    ),
    "where the query is selected": ("where the query is not selected", lambda i: i.seen.selected == i.candidate[2]),
    "of candidates that are facts": (
        "of candidates other than facts",
        lambda i: i.candidate[2] in known(i.pair.program).index,
    ),
    "that end PROVED": ("that do not end PROVED", ends(PROVED)),
    "that end FAILED": ("that do not end FAILED", ends(FAILED)),
    "that end at max_depth": ("that end before max_depth", ends(DEPTH_LIMIT)),
    "of the head side": ("not of the head side", lambda i: i.candidate[1] == HEAD),
    "of candidates that repeat a constant": (
        "of candidates that repeat no constant",
        lambda i: i.candidate[2][1] == i.candidate[2][2],
    ),
}
"""Each phrase that is true or false, with its opposite and its value."""

SIZED: list[tuple[str, str, Callable[[int], Value]]] = [
    (
        "that match the selected atom in the last # bits of each id alone",
        "that match the selected atom in all bits or not in the last #",
        lambda bits: mismatch(
            lambda i: (
                all(
                    a < 0 or b < 0 or a % (1 << bits) == b % (1 << bits)
                    for a, b in zip(i.seen.selected[1:], i.head[1:], strict=True)
                )
                and i.seen.selected[0] == i.head[0]
            )
        ),
    ),
    (
        "in the last block of # of their predicate's segment, which is not full",
        "in full blocks of # of their predicate's segment",
        lambda size: lambda i: partial_block(i.segment.index(i.by[1]), len(i.segment), size),
    ),
    (
        "in the last block of # of those that match, which is not full",
        "in full blocks of # of those that match",
        lambda size: lambda i: partial_block(position_of_match(i), len(matching(i)), size),
    ),
    (
        "in the last block of # of the facts with the first constant of the selected atom, which is not full",
        "in full blocks of # of the facts with the first constant of the selected atom",
        lambda size: lambda i: partial_block(position_in_index(i), len(indexed(i)), size),
    ),
    (
        "that change if the rule's variables, numbered from #, are not renamed apart from the goal's",
        "that stay the same if the rule's variables, numbered from #, are not renamed apart from the goal's",
        lambda first: captures(lambda goal: first),
    ),
    (
        "with an atom, after pruning, whose argument # is the constant with the id 0",
        "without an atom, after pruning, whose argument # is the constant with the id 0",
        lambda k: lambda i: any(atom[k] == 0 for atom in i.kept),
    ),
    (
        "with an atom, after pruning, whose argument # is the constant with the largest id",
        "without an atom, after pruning, whose argument # is the constant with the largest id",
        lambda k: lambda i: any(atom[k] == last_constant(i) for atom in i.kept),
    ),
    (
        "in the last block of # of the run, which is not full",
        "in full blocks of # of the run",
        lambda size: lambda i: partial_block(i.row, len(i.pair.sides[0].candidates), size),
    ),
    (
        "with an atom that is not a fact but has the key of one when keys have # bits for each argument",
        "without an atom that is not a fact but has the key of one when keys have # bits for each argument",
        lambda bits: mistaken(lambda a: ((a[0] << bits) + a[1] << bits) + a[2]),
    ),
    (
        "with an atom that is not a fact but equals one in the last # bits of each id",
        "without an atom that is not a fact but equals one in the last # bits of each id",
        lambda bits: mistaken(lambda a: tuple(n % (1 << bits) for n in a)),
    ),
    (
        "with an atom, before pruning, whose argument # is the constant with the id 0",
        "without an atom, before pruning, whose argument # is the constant with the id 0",
        lambda k: has_argument(k, lambda i: 0),
    ),
    (
        "with an atom, before pruning, whose argument # is the constant with the largest id",
        "without an atom, before pruning, whose argument # is the constant with the largest id",
        lambda k: has_argument(k, last_constant),
    ),
]
"""Phrases with a number of their own, their opposites, and the value for each number."""


class Count(NamedTuple):
    """A number: its name, its phrase with {} for the value, and words for a value of 0, bounds of 0 or other values."""

    name: str
    phrase: str
    value: Value
    zero: str = ""
    at_least: str = ""
    at_most: str = ""
    negative: str = ""
    other: str = ""


COUNTS = [
    Count(
        "position in its predicate's segment",
        "at position {} (from 0) in their predicate's segment",
        lambda i: i.segment.index(i.by[1]),
    ),
    Count(
        "matches after it",
        "with {} matches after them",
        lambda i: len(matching(i)) - 1 - position_of_match(i),
        "that match last",
    ),
    Count(
        "matches after it with the query",
        "with {} matches after them, the query included,",
        with_query,
        "that match last, the query included,",
    ),
    Count(
        "position among those that match",
        "at position {} (from 0) among the matching clauses of their kind",
        position_of_match,
        "that match first",
    ),
    Count(
        "position in the index",
        "at position {} (from 0) among the facts with the first constant of the selected atom, the query included,",
        position_in_index,
        "that are the first facts with the first constant of the selected atom, the query included,",
    ),
    Count(
        "distance from the end of its segment",
        "{} before the end of their predicate's segment",
        lambda i: len(i.segment) - 1 - i.segment.index(i.by[1]),
        "that are last in their predicate's segment",
    ),
    Count("length of its segment", "whose predicate has {} of them", lambda i: len(i.segment)),
    Count("body atoms", "of a clause with {} body atoms", lambda i: len(i.atoms) - 1, "of facts"),
    Count(
        "new variables",
        "of a clause with {} new variables",
        lambda i: len(variables(i.atoms[1:]) - variables(i.atoms[:1])),
        "of a clause without new variables",
    ),
    Count(
        "constants in the head",
        "of a clause whose head has {} constants",
        lambda i: len(constants(i.atoms[:1])),
        "of a clause whose head has no constant",
    ),
    Count(
        "variables of the rule",
        "of a clause with {} variables",
        lambda i: len(variables(i.atoms)),
        "of a clause without variables",
    ),
    Count(
        "constants of the rule",
        "of a clause with {} constants",
        lambda i: len(constants(i.atoms)),
        "of a clause without constants",
    ),
    Count("first argument", "whose first argument has the id {}", lambda i: clause_or_candidate(i)[1]),
    Count("second argument", "whose second argument has the id {}", lambda i: clause_or_candidate(i)[2]),
    Count("larger argument", "whose larger argument has the id {}", lambda i: max(clause_or_candidate(i)[1:])),
    Count("index", "with the index {} (from 0)", lambda i: i.by[1]),
    Count(
        "room below max_atoms",
        "of {} fewer atoms than max_atoms",
        lambda i: limit("max_atoms", i) - len(i.kept),
        "of max_atoms atoms",
        "of max_atoms atoms or fewer",
        "of max_atoms atoms or more",
        "of {} atoms above max_atoms",
    ),
    Count(
        "places left in the list",
        "with {} places left after them below max_resolvents",
        lambda i: limit("max_resolvents", i) - 1 - before_limit(i)[0],
        "on the last place below max_resolvents",
        "on one of the first max_resolvents places",
        "on the last place below max_resolvents or behind it",
        "on place {} behind the last one below max_resolvents",
    ),
    Count(
        "steps since it was visited",
        "that equal a goal visited {} steps ago",
        steps_since,
        "that equal no goal visited before",
    ),
    Count(
        "number of the goal visited",
        "that equal goal number {} (from 1) of their derivation",
        number_visited,
        "that equal no goal visited before",
    ),
    Count("atoms before pruning", "of {} atoms before pruning", lambda i: len(i.made.before)),
    Count(
        "facts pruned",
        "from which pruning deletes {} atoms",
        lambda i: sum(i.made.is_pruned),
        "from which pruning deletes nothing",
    ),
    Count(
        "atoms after a pruned one",
        "with {} atoms after the first fact to prune",
        lambda i: max(0, len(i.made.before) - 1 - [*i.made.is_pruned, True].index(True)),
        "without an atom after the first fact to prune",
    ),
    Count(
        "room below max_atoms before pruning",
        "of {} atoms fewer than max_atoms before pruning",
        lambda i: limit("max_atoms", i) - len(i.made.before),
        "of max_atoms atoms before pruning",
        "of max_atoms atoms or fewer before pruning",
        "of max_atoms atoms or more before pruning",
        "of {} atoms more than max_atoms before pruning",
    ),
    Count("atoms", "of {} atoms", lambda i: len(i.kept)),
    Count("variables", "with {} variables", lambda i: len(variables(i.kept)), "without variables"),
    Count(
        "variables beyond its goal's",
        "with {} more variables than their goal",
        lambda i: len(variables(i.kept)) - len(variables(i.seen.goal)),
        "with the same number of variables as their goal",
        "with no fewer variables than their goal",
        "with no more variables than their goal",
        "with {} fewer variables than their goal",
        "with another number of variables than their goal",
    ),
    Count(
        "atoms beyond its goal's",
        "of {} more atoms than their goal",
        lambda i: len(i.kept) - len(i.seen.goal),
        "of the same number of atoms as their goal",
        "of no fewer atoms than their goal",
        "of no more atoms than their goal",
        "of {} fewer atoms than their goal",
        "of another number of atoms than their goal",
    ),
    Count("constants", "with {} constants", lambda i: len({*constants(i.kept)}), "without constants"),
    Count("largest constant", "whose largest constant has the id {}", lambda i: max(constants(i.kept), default=-1)),
    Count(
        "position before the limit",
        "at position {} (from 0) in the list before the limit",
        lambda i: before_limit(i)[0],
    ),
    Count("bits of its score", "whose score needs {} significant bits", lambda i: significant_bits(i.score)),
    Count("size of its score", "with scores of {} in size", lambda i: abs(i.score)),
    Count(
        "ulps below the highest score",
        "with scores of {} ulps of float32 below the highest",
        lambda i: (i.seen.scores[0] - i.score) / float(np.spacing(np.float32(i.seen.scores[0]))),
        "with the highest score",
    ),
    Count("depth", "at depth {}", lambda i: known(i.seen.expected.depth), "at depth 0"),
    Count(
        "steps left to max_depth",
        "with {} steps left to max_depth",
        lambda i: limit("max_depth", i) - 1 - known(i.seen.expected.depth),
        "with no step left to max_depth",
    ),
    Count(
        "highest scores",
        "with {} resolvents of the highest score",
        lambda i: i.seen.scores.count(i.seen.scores[0]) if i.seen.scores else 0,
    ),
    Count("highest score", "whose highest score is {}", lambda i: known(max(i.seen.scores, default=None))),
    Count(
        "gap of the scores",
        "with a gap of {} between the two highest scores",
        lambda i: i.seen.scores[0] - i.seen.scores[1] if len(i.seen.scores) > 1 else math.inf,
    ),
    Count("resolvents", "with {} resolvents", on_step(lambda s: len(s.resolvents))),
    Count("index chosen", "that choose the index {}", on_step(lambda s: known(s.choice))),
    Count(
        "surplus over max_resolvents",
        "with {} resolvents besides TRUE above max_resolvents",
        lambda i: sum(map(bool, i.seen.survivors)) - limit("max_resolvents", i),
        "with max_resolvents resolvents besides TRUE",
        "with max_resolvents resolvents or more besides TRUE",
        "with max_resolvents resolvents or fewer besides TRUE",
        "with {} fewer resolvents besides TRUE than max_resolvents",
    ),
    Count(
        "room below max_resolvents",
        "that keep {} fewer resolvents than max_resolvents",
        lambda i: limit("max_resolvents", i) - len(i.seen.expected.resolvents),
        "that keep max_resolvents resolvents",
    ),
    Count(
        "resolvents before closing",
        "with {} resolvents besides TRUE before closing",
        lambda i: sum(bool(atoms) for atoms in i.seen.survivors),
        "without a resolvent besides TRUE before closing",
    ),
    Count(
        "resolvents and proofs before closing",
        "with {} resolvents, proofs included, before closing",
        lambda i: len(i.seen.survivors),
        "without any resolvent or proof before closing",
    ),
    Count(
        "resolvents visited",
        "with {} resolvents that equal goals visited before",
        lambda i: sum(made.kept in i.seen.visited for made in i.seen.made.values()),
        "without a resolvent that equals a goal visited before",
    ),
    Count("proofs of the step", "with {} proofs", lambda i: sum(proofs(i)), "without a proof"),
    Count(
        "resolvents before the proof",
        "with {} resolvents before the first proof",
        lambda i: [*proofs(i), True].index(True) if any(proofs(i)) else -1,
        "whose first resolvent is a proof",
        negative="without a proof",
    ),
    Count("atoms of the goal", "of goals of {} atoms", lambda i: len(i.seen.goal)),
    Count(
        "atoms left to max_atoms",
        "of goals of {} fewer atoms than max_atoms",
        lambda i: limit("max_atoms", i) - len(i.seen.goal),
        "of goals of max_atoms atoms",
    ),
    Count(
        "variables of the goal",
        "of goals with {} variables",
        lambda i: len(variables(i.seen.goal)),
        "of goals without variables",
    ),
    Count(
        "constants of the selected atom",
        "where the selected atom has {} constants",
        lambda i: len(constants([i.seen.selected])),
        "where the selected atom has no constant",
    ),
    Count(
        "first argument selected",
        "where the selected atom's first argument has the id {}",
        lambda i: max(i.seen.selected[1], -1),
    ),
    Count(
        "second argument selected",
        "where the selected atom's second argument has the id {}",
        lambda i: max(i.seen.selected[2], -1),
    ),
    Count(
        "largest constant of the goal",
        "of goals whose largest constant has the id {}",
        lambda i: max(constants(i.seen.goal), default=-1),
    ),
    Count(
        "rules that match",
        "where {} rules match",
        lambda i: sum(kind == RULE for kind, _ in i.seen.made),
        "where no rule matches",
    ),
    Count(
        "facts that match",
        "where {} facts match",
        lambda i: sum(kind == FACT for kind, _ in i.seen.made),
        "where no fact matches",
    ),
    Count("clauses that match", "where {} clauses match", lambda i: len(i.seen.made), "where no clause matches"),
    Count(
        "facts of the selected predicate",
        "where the selected predicate has {} facts",
        lambda i: len(i.pair.program.facts_of[i.seen.selected[0]]),
        "where the selected predicate has no fact",
    ),
    Count(
        "longest resolvent",
        "whose longest resolvent has {} atoms",
        on_step(lambda s: max((len(r.atoms) for r in s.resolvents), default=0)),
    ),
    Count(
        "dropped by max_atoms",
        "where max_atoms drops {} resolvents",
        on_step(lambda s: known(s.dropped)[0]),
        "where max_atoms drops nothing",
    ),
    Count(
        "dropped by max_resolvents",
        "where max_resolvents drops {} resolvents",
        on_step(lambda s: known(s.dropped)[1]),
        "where max_resolvents drops nothing",
    ),
    Count("selected predicate", "where the selected predicate is {}", lambda i: i.seen.selected[0]),
    Count(
        "position among the candidates",
        "at position {} (from 0) of the run",
        lambda i: i.row,
        "that are first of the run",
    ),
    Count(
        "position from the end of the run",
        "{} before the end of the run",
        lambda i: len(i.pair.sides[i.side].candidates) - 1 - i.row,
        "that are last of the run",
    ),
    Count(
        "place in its ranking",
        "at place {} (from 0) of their query and side",
        lambda i: i.group.index(i.row),
    ),
    Count(
        "place from the end of its ranking",
        "{} before the end of their query and side",
        lambda i: len(i.group) - 1 - i.group.index(i.row),
        "that are last of their query and side",
    ),
    Count("candidates of its ranking", "whose query and side have {} candidates", lambda i: len(i.group)),
    Count("steps of the derivation", "of {} steps", lambda i: i.column("num_steps")),
    Count("query", "of query {}", lambda i: i.candidate[0]),
    Count("predicate of the query", "of queries whose predicate is {}", lambda i: i.candidate[2][0]),
]

NOT_CHECKED = {
    "that change if each variable is replaced only once",
    "that stay the same if each variable is replaced only once",
    "at position {} (from 0) of their chunk",
    "that are first of their chunk",
    "of chunk {} (from 0)",
    "in slots used before",
    "in slots not used before",
    "in slot {} (from 0)",
    "of turn {} (from 0) of their slot",
    "whose slot proved a candidate just before",
    "whose slot did not prove a candidate just before",
    "whose slot proved any candidate before",
    "whose slot proved no candidate before",
    "whose slot failed to prove a candidate just before",
    "whose slot did not fail just before",
    "whose slot reached max_depth just before",
    "whose slot did not reach max_depth just before",
    "whose slot held the same query just before",
    "whose slot did not hold the same query just before",
    "whose slot took {} steps for the candidate before",
    "whose slot took no step before",
    "that end {} steps after the start of their chunk",
    "during which another slot proves a candidate",
    "during which no other slot proves a candidate",
    "that reach a goal that their slot has visited for an earlier candidate",
    "that reach no goal that their slot has visited for an earlier candidate",
    "of the last turn of the slots, which is not full",
    "of full turns of the slots",
    "that are other triples of train",
    "other than triples of train",
    "that are other triples of valid",
    "other than triples of valid",
    "that are other triples of test",
    "other than triples of test",
    "that are other triples of train, valid or test",
    "other than triples of train, valid and test",
}
"""The phrases whose meaning the columns do not hold: the slots of a batch, the splits, and substitution by wrong rules."""


def clause_or_candidate(i: Instance) -> Atom:
    """Return the head of a clause, or the atom of a candidate."""
    return i.candidate[2] if i.clause is None else i.head


_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_VALUES: list[tuple[str, Callable[[float, list[float]], bool]]] = [
    (rf"({_NUMBER}) or (?:more|later)", lambda x, v: x >= v[0]),
    (rf"({_NUMBER}) or (?:less|earlier)", lambda x, v: x <= v[0]),
    (rf"at most ({_NUMBER})", lambda x, v: x <= v[0]),
    (rf"other than ({_NUMBER})", lambda x, v: x != v[0]),
    (rf"({_NUMBER}) to ({_NUMBER})", lambda x, v: v[0] <= x <= v[1]),
    (rf"({_NUMBER})", lambda x, v: x == v[0]),
]
_TURNED = {0: 1, 1: 0, 2: 0}
"""The relation that a bound becomes if the sign of its value is left out."""


def _to_number(text: str) -> float:
    return float(text.replace(",", ""))


def _pattern(phrase: str) -> str:
    """Return a pattern for a phrase in which {} becomes the value, and a plural may be a singular."""
    before, after = map(re.escape, phrase.split("{}"))
    after = re.sub(r"^(\\ (?:fewer\\ |more\\ |new\\ |body\\ |significant\\ )?[a-z]+?)(?<=ch)es\b", r"\1(?:es)?", after)
    after = re.sub(r"^(\\ (?:fewer\\ |more\\ |new\\ |body\\ |significant\\ )?[a-z]+?)s\b", r"\1s?", after)
    return f"{before}@@{after}"


def _read_count(words: str, count: Count) -> Value | None:
    value = count.value
    specials = [(count.zero, 5), (count.at_least, 0), (count.at_most, 1), (count.other, 3)]
    for text, relation in specials:
        if text and words == text:
            return lambda i: _VALUES[relation][1](value(i), [0.0])
    if count.negative and "{}" not in count.negative and words == count.negative:
        return lambda i: value(i) < 0
    for phrase, sign in ((count.phrase, 1), (count.negative, -1)):
        if "{}" not in phrase:
            continue
        for number, (shown, _) in enumerate(_VALUES):
            found = re.fullmatch(_pattern(phrase).replace("@@", shown), words)
            if found:
                relation = _TURNED.get(number, number) if sign < 0 else number
                bounds = [sign * _to_number(each) for each in found.groups()]
                return lambda i, holds=_VALUES[relation][1], bounds=bounds: holds(value(i), bounds)
    return None


def has_resolvent(value: Value, i: Instance) -> bool:
    """Return whether a flag of resolvents is true for one that a step makes."""
    return any(value(replace(i, clause=clause)) for clause in i.seen.made)


def _named(name: str) -> Value | None:
    """Return the value of a number by its name, as in "the number of atoms"."""
    name = name.replace(" their ", " its ").removeprefix("number of ") if name not in _NAMES else name
    return _NAMES.get(name)


_NAMES = {count.name: count.value for count in COUNTS} | {
    f"{name} of the candidate": lambda i, k=k: k(i.candidate[2])
    for name, k in (
        ("first argument", lambda a: a[1]),
        ("second argument", lambda a: a[2]),
        ("larger argument", lambda a: max(a[1:])),
    )
}


def read_phrase(words: str) -> Value | None:
    """Return the meaning of a phrase, or None if it is one of `NOT_CHECKED`. ValueError for any other phrase."""
    words = words.removeprefix("of steps ")
    if found := re.fullmatch(r"(with|without) resolvents (.+)", words):
        value = read_phrase(found[2])
        return value and (lambda i: (found[1] == "with") == has_resolvent(value, i))
    for phrase, (opposite, value) in FLAGS.items():
        if words == phrase:
            return value
        if words == opposite:
            return lambda i, value=value: not value(i)
    for phrase, opposite, of in SIZED:
        for text, is_wanted in ((phrase, True), (opposite, False)):
            if found := re.fullmatch(re.escape(text).replace(r"\#", r"(\d+)"), words):
                value = of(int(found[1]))
                return lambda i, value=value, is_wanted=is_wanted: bool(value(i)) == is_wanted
    for count in COUNTS:
        if found := _read_count(words, count):
            return found
    if found := re.fullmatch(r"for which the (.+) equals the (.+)", words):
        left, right = map(_named, found.groups())
        if left and right:
            return lambda i: left(i) == right(i)
    if found := re.fullmatch(r"(?:whose|for which the) (.+) is (even|odd|(\d+) modulo (\d+))", words):
        value = _named(found[1])
        rest, modulus = (int(found[3]), int(found[4])) if found[3] else (int(found[2] == "odd"), 2)
        if value:
            return lambda i: value(i) % modulus == rest
    if any(re.fullmatch(_shape(text), words) for text in NOT_CHECKED):
        return None
    raise ValueError(f"a phrase without a meaning: {words!r}")


def _shape(phrase: str) -> str:
    if "{}" not in phrase:
        return re.escape(phrase)
    return _pattern(phrase).replace("@@", "(?:" + "|".join(shown for shown, _ in _VALUES) + ")")
