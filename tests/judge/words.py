"""The words of conditions, and their meaning: each is evaluated from the columns of two traces, by code of its own.

A phrase after the noun of an instance has a name in phrases.toml, and the name a value here.
"""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
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
    Program,
    Resolvent,
    Step,
    number_variables,
)

PHRASES = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text("utf-8"))


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

    def list_clauses(self, step: Step) -> Iterable[Clause]:
        """Return the clauses of a side's list, each as often as it is recorded; once each if they are not recorded."""
        if not self.pair.has_origins:
            return self.clauses_of(step)
        return [r.clause for r in step.resolvents if r.kind in (ORDINARY, TRUE) and r.clause]

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
        return self.program.clause(self.by)

    @property
    def head(self) -> Atom:
        return self.atoms[0]

    @property
    def segment(self) -> list[int]:
        return self.program.segment(self.by)

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
    def program(self) -> Program:
        return known(self.pair.program)

    @property
    def candidate(self) -> tuple[int, int, Atom]:
        return self.pair.sides[self.side].candidates[self.row]

    @property
    def query(self) -> Atom:
        return self.candidate[2]

    def limit(self, name: str) -> int:
        return known(self.pair.limits.get(name))

    def number(self, atom: Atom, place: int) -> int:
        """Return the engine's number of the predicate or of an argument of an atom."""
        symbol = known(atom[place] if atom[place] >= 0 else None)
        return known(self.pair.numbers[place > 0] or None)[symbol]

    def key(self, atom: Atom, size: int) -> int:
        """Return the key of a ground atom in the engine's numbers."""
        p, a, b = (self.number(atom, place) for place in range(3))
        return (p * size + a) * size + b

    def extreme(self, which: str) -> int:
        """Return the constant with the smallest or the largest number."""
        every = known(self.pair.numbers.constants or None)
        return every.index(max(every) if which == "largest" else min(every))

    def declared(self, name: str) -> Any:
        """Return what the engine declares for its candidate, or for its step."""
        values, actual = self.pair.numbers.declared[name], self.pair.sides[1]
        row = known(self.pair.actual_of.get(self.row)) if not self.side else self.row
        if len(values) == len(actual.candidates):
            return values[row]
        at = self.seen.place.number
        return values[known(actual.first_step[row] + at if at < len(actual.steps[row]) else None)]

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
    return sum(index > i.by[1] for index in i.program.matching_facts(i.seen.selected))


def fits_apart(atom: Atom, head: Atom, modulus: int = 1 << 31) -> bool:
    """Return whether each argument fits for itself, modulo a number."""
    pairs = zip(atom[1:], head[1:], strict=True)
    return atom[0] == head[0] and all(a < 0 or b < 0 or a % modulus == b % modulus for a, b in pairs)


def mismatch(fits: Callable[[Instance], bool]) -> Callable[[Instance], bool]:
    return lambda i: i.by not in i.seen.made and not fits_as_excluded(i) and fits(i)


def fits_as_excluded(i: Instance) -> bool:
    """Return whether a fact matches, and is only left out because it equals the query."""
    return i.by[0] == FACT and i.head == i.seen.query and i.by[1] in i.program.matching_facts(i.seen.selected)


def fits_without(argument: int) -> Callable[[Instance], bool]:
    """Return whether a clause matches as soon as an argument of the selected atom is a new variable."""

    def fits(i: Instance) -> bool:
        atom = list(i.seen.selected)
        atom[argument] = -1 - max((-t for t in atom[1:] if t < 0), default=0)
        return i.program.resolve((tuple(atom),), i.by, i.seen.query) is not None

    return mismatch(fits)


def partial_block(place: int, total: int, size: int) -> bool:
    return place >= total - total % size


def mistaken(key: Callable[[Atom], Any]) -> Callable[[Instance], bool]:
    """Return whether an atom before pruning is neither a fact nor the query, and has the key of a fact."""

    def read(i: Instance) -> bool:
        program = i.program
        others = [a for a in i.made.before if min(a) >= 0 and a not in program.index and a != i.seen.query]
        return bool(others) and not {key(a) for a in others}.isdisjoint(map(key, program.facts))

    return read


def before_limit(i: Instance) -> tuple[int, int]:
    """Return the place of a resolvent among those that `limit` receives: among the short ones, and among all."""
    if i.by not in i.seen.made:
        raise Unknown
    before = [m.kept for c, m in list(i.seen.made.items())[: list(i.seen.made).index(i.by)]]
    new = [atoms for atoms in before if atoms not in i.seen.visited]
    return sum(len(atoms) <= i.limit("max_atoms") for atoms in new), len(new)


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
    clauses = (*i.program.facts, *(atom for rule in i.program.rules for atom in rule))
    return max(constants(clauses))


def binds_zero(i: Instance) -> bool:
    return constants(i.made.before).count(0) > constants((*i.atoms[1:], *i.seen.goal[1:])).count(0)


def reads_like_selected(i: Instance) -> bool:
    """Return whether an atom of another predicate reads like the selected one up to its first argument."""
    (p, a, _), (q, b, _), names = i.head, i.seen.selected, i.program.names
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
    short = [c for c, m in before if m.kept not in i.seen.visited and len(m.kept) <= i.limit("max_atoms")]
    return sum(kind == i.by[0] for kind, _ in short) < i.limit("max_resolvents") <= len(short)


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
    program, query = i.program, i.seen.query
    is_gone = [a in program.index and not (program.excludes and a == query) for a in other]
    kept = number_variables([a for a, gone in zip(other, is_gone, strict=True) if not gone])
    whole = number_variables(other) != number_variables(i.made.before)
    return known(whole if whole == (kept != i.kept) else None)


def captures(first: Callable[[Goal], int]) -> Value:
    """Return whether a rule makes another resolvent with its variables numbered from a number that the goal gives."""

    def read(i: Instance) -> bool:
        i.made  # noqa: B018  it raises Unknown if nothing is known of the clause
        goal = number_variables(i.seen.goal)
        made = i.program.resolve(goal, i.by, i.seen.query, first(goal))
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


PLACES = {"first": 1, "second": 2}
ORDERS: dict[str, Callable[[Instance, int], Any]] = {
    "the names of their arguments": lambda i, fact: [
        i.program.names["constants"][t] for t in i.program.facts[fact][1:]
    ],
    "their second arguments": lambda i, fact: i.program.facts[fact][2],
    "the digits of their index": lambda i, fact: str(fact),
}


def shares_key(size: int, modulus: int) -> Callable[[Instance], bool]:
    """Return whether an atom before pruning is neither a fact nor the query, and has the last bits of the key of a fact."""
    return lambda i: mistaken(lambda atom: i.key(atom, size) % modulus)(i)


def prunes(which: Callable[[Instance], int]) -> Value:
    """Return whether a fact to prune has a constant."""
    return lambda i: any(
        which(i) in atom[1:] for atom, is_gone in zip(i.made.before, i.made.is_pruned, strict=True) if is_gone
    )


def indexed(i: Instance) -> list[int]:
    """Return the facts of the selected predicate with its first constant, or all of them if it has none."""
    p, a, b = i.seen.selected
    places = [k for k, term in ((1, a), (2, b)) if term >= 0][:1]
    facts = i.program.facts
    return [f for f in i.program.facts_of[p] if all(facts[f][k] == i.seen.selected[k] for k in places)]


def position_in_index(i: Instance) -> int:
    return known({f: at for at, f in enumerate(indexed(i))}.get(i.by[1]))


def ends(outcome: int) -> Callable[[Instance], bool]:
    return lambda i: i.column("outcome") == outcome


def on_step(value: Callable[[Step], Any]) -> Callable[[Instance], Any]:
    return lambda i: value(i.seen.expected)


def clause_or_candidate(i: Instance) -> Atom:
    """Return the head of a clause, or the atom of a candidate."""
    return i.query if i.clause is None else i.head


VALUES: dict[str, Value] = {
    "is the query": lambda i: i.head == i.query,
    "matches argument by argument": mismatch(lambda i: fits_apart(i.seen.selected, i.head)),
    "does not match": lambda i: i.by not in i.seen.made and not fits_as_excluded(i),
    "repeats a symbol": lambda i: i.head[1] == i.head[2],
    "repeats a head variable": lambda i: i.head[1] == i.head[2] < 0,
    "is recursive": lambda i: any(atom[0] == i.head[0] for atom in i.atoms[1:]),
    "repeats a body predicate": lambda i: len({atom[0] for atom in i.atoms[1:]}) < len(i.atoms) - 1,
    "is the query with swapped arguments": lambda i: swapped(i.head) == i.query != i.head,
    "has an argument of the query": lambda i: bool({*i.head[1:]} & {*i.query[1:]}),
    "first argument is larger": lambda i: i.head[1] > i.head[2],
    "is made by a rule": lambda i: i.by[0] == RULE,
    "equals a goal visited": lambda i: i.kept in i.seen.visited,
    "has the atoms of a goal visited": lambda i: sorted(i.kept) in map(sorted, i.seen.visited),
    "is pruned to nothing": lambda i: bool(i.made.before) and all(i.made.is_pruned),
    "first atom is pruned": lambda i: any(i.made.is_pruned[:1]),
    "prunes before an atom": lambda i: any(a and not b for a, b in pairwise(i.made.is_pruned)),
    "contains the query": lambda i: i.seen.query in i.made.before,
    "is a fact with its arguments swapped": lambda i: any(
        a not in i.program.index and swapped(a) in i.program.index for a in i.made.before
    ),
    "is a fact of another predicate": mistaken(lambda a: a[1:]),
    "reads like the selected atom": reads_like_selected,
    "begins with a goal visited": lambda i: any(
        0 < len(goal) < len(i.kept) and i.kept[: len(goal)] == goal for goal in i.seen.visited
    ),
    "starts with the selected atom": lambda i: number_variables(i.kept[:1]) == number_variables([i.seen.selected]),
    "is too long before pruning only": lambda i: len(i.kept) <= i.limit("max_atoms") < len(i.made.before),
    "moves the last atom": last_one_moves,
    "captures a variable behind the selected ones": captures(lambda goal: len(variables(goal[:1]))),
    "binds the rest of the goal": leaves_rest,
    "is renumbered": is_renumbered,
    "equals a later resolvent": lambda i: alike(i)[-1] != i.by,
    "equals an earlier resolvent": lambda i: alike(i)[0] != i.by,
    "is beyond max_resolvents with the other kind": counts_with_other_kind,
    "changes with facts first": facts_first,
    "equals another resolvent": lambda i: [m.kept for m in i.seen.made.values()].count(i.kept) > 1,
    "binds the constant of id 0": binds_zero,
    "repeats an atom": lambda i: len({*i.kept}) < len(i.kept),
    "repeats an argument": lambda i: any(a == b for _, a, b in i.kept),
    "repeats a variable": lambda i: len([t for _, *terms in i.kept for t in terms if t < 0]) > len(variables(i.kept)),
    "is numbered otherwise by column": by_column,
    "is beyond max_resolvents with long ones": lambda i: (
        before_limit(i)[0] < i.limit("max_resolvents") <= before_limit(i)[1]
    ),
    "score is negative": lambda i: i.score < 0,
    "chooses TRUE": chosen_kind(TRUE),
    "chooses FALSE": chosen_kind(FALSE),
    "chooses the resolvent of a rule": on_step(lambda s: s.chosen is not None and (s.chosen.clause or (0,))[0] == RULE),
    "chooses a goal": chosen_kind(ORDINARY),
    "repeats a resolvent": on_step(lambda s: len({r.content for r in s.resolvents}) < len(s.resolvents)),
    "has TRUE": on_step(lambda s: s.has_true),
    "repeats a predicate": lambda i: len({atom[0] for atom in i.seen.goal}) < len(i.seen.goal),
    "repeats a selected variable": lambda i: i.seen.selected[1] == i.seen.selected[2] < 0,
    "shares a selected variable": lambda i: bool(variables([i.seen.selected]) & variables(i.seen.goal[1:])),
    "selects the query": lambda i: i.seen.selected == i.query,
    "is a fact": lambda i: i.query in known(i.program).index,
    "is PROVED": ends(PROVED),
    "is FAILED": ends(FAILED),
    "reaches max_depth": ends(DEPTH_LIMIT),
    "head side": lambda i: i.candidate[1] == HEAD,
    "repeats a constant": lambda i: i.query[1] == i.query[2],
    "position in its predicate's segment": lambda i: i.segment.index(i.by[1]),
    "matches after it": lambda i: len(matching(i)) - 1 - position_of_match(i),
    "matches after it with the query": with_query,
    "position among those that match": position_of_match,
    "position in the index": position_in_index,
    "distance from the end of the index": lambda i: len(indexed(i)) - 1 - position_in_index(i),
    "distance from the end of its segment": lambda i: len(i.segment) - 1 - i.segment.index(i.by[1]),
    "length of its segment": lambda i: len(i.segment),
    "body atoms": lambda i: len(i.atoms) - 1,
    "new variables": lambda i: len(variables(i.atoms[1:]) - variables(i.atoms[:1])),
    "constants in the head": lambda i: len(constants(i.atoms[:1])),
    "variables of the rule": lambda i: len(variables(i.atoms)),
    "constants of the rule": lambda i: len(constants(i.atoms)),
    "larger argument": lambda i: max(clause_or_candidate(i)[1:]),
    "index": lambda i: i.by[1],
    "room below max_atoms": lambda i: i.limit("max_atoms") - len(i.kept),
    "places left in the list": lambda i: i.limit("max_resolvents") - 1 - before_limit(i)[0],
    "steps since it was visited": steps_since,
    "number of the goal visited": number_visited,
    "atoms before pruning": lambda i: len(i.made.before),
    "facts pruned": lambda i: sum(i.made.is_pruned),
    "atoms after a pruned one": lambda i: max(0, len(i.made.before) - 1 - [*i.made.is_pruned, True].index(True)),
    "room below max_atoms before pruning": lambda i: i.limit("max_atoms") - len(i.made.before),
    "atoms": lambda i: len(i.kept),
    "variables": lambda i: len(variables(i.kept)),
    "variables beyond its goal's": lambda i: len(variables(i.kept)) - len(variables(i.seen.goal)),
    "atoms beyond its goal's": lambda i: len(i.kept) - len(i.seen.goal),
    "constants": lambda i: len({*constants(i.kept)}),
    "largest constant": lambda i: max(constants(i.kept), default=-1),
    "position before the limit": lambda i: before_limit(i)[0],
    "bits of its score": lambda i: significant_bits(i.score),
    "size of its score": lambda i: abs(i.score),
    "ulps below the highest score": lambda i: (
        (i.seen.scores[0] - i.score) / float(np.spacing(np.float32(i.seen.scores[0])))
    ),
    "depth": lambda i: known(i.seen.expected.depth),
    "steps left to max_depth": lambda i: i.limit("max_depth") - 1 - known(i.seen.expected.depth),
    "resolvents of the highest score": lambda i: i.seen.scores.count(i.seen.scores[0]) if i.seen.scores else 0,
    "highest score": lambda i: known(max(i.seen.scores, default=None)),
    "gap of the scores": lambda i: i.seen.scores[0] - i.seen.scores[1] if len(i.seen.scores) > 1 else math.inf,
    "resolvents": on_step(lambda s: len(s.resolvents)),
    "index chosen": on_step(lambda s: known(s.choice)),
    "surplus over max_resolvents": lambda i: sum(map(bool, i.seen.survivors)) - i.limit("max_resolvents"),
    "room below max_resolvents": lambda i: i.limit("max_resolvents") - len(i.seen.expected.resolvents),
    "resolvents before closing": lambda i: sum(bool(atoms) for atoms in i.seen.survivors),
    "resolvents and proofs before closing": lambda i: len(i.seen.survivors),
    "resolvents visited": lambda i: sum(made.kept in i.seen.visited for made in i.seen.made.values()),
    "proofs of the step": lambda i: sum(proofs(i)),
    "resolvents before the proof": lambda i: [*proofs(i), True].index(True) if any(proofs(i)) else -1,
    "atoms of the goal": lambda i: len(i.seen.goal),
    "atoms left to max_atoms": lambda i: i.limit("max_atoms") - len(i.seen.goal),
    "variables of the goal": lambda i: len(variables(i.seen.goal)),
    "constants of the selected atom": lambda i: len(constants([i.seen.selected])),
    "largest constant of the goal": lambda i: max(constants(i.seen.goal), default=-1),
    "rules that match": lambda i: sum(kind == RULE for kind, _ in i.seen.made),
    "facts that match": lambda i: sum(kind == FACT for kind, _ in i.seen.made),
    "clauses that match": lambda i: len(i.seen.made),
    "facts of the selected predicate": lambda i: len(i.program.facts_of[i.seen.selected[0]]),
    "longest resolvent": on_step(lambda s: max((len(r.atoms) for r in s.resolvents), default=0)),
    "resolvents dropped by max_atoms": on_step(lambda s: known(s.dropped)[0]),
    "resolvents dropped by max_resolvents": on_step(lambda s: known(s.dropped)[1]),
    "selected predicate": lambda i: i.seen.selected[0],
    "position among the candidates": lambda i: i.row,
    "position from the end of the run": lambda i: len(i.pair.sides[i.side].candidates) - 1 - i.row,
    "place in its ranking": lambda i: i.group.index(i.row),
    "place from the end of its ranking": lambda i: len(i.group) - 1 - i.group.index(i.row),
    "candidates of its ranking": lambda i: len(i.group),
    "steps of the derivation": lambda i: i.column("num_steps"),
    "query": lambda i: i.candidate[0],
    "predicate of the query": lambda i: i.query[0],
    "predicate's number in the engine": lambda i: i.number(i.head, 0),
    "selected predicate's number in the engine": lambda i: i.number(i.seen.selected, 0),
}
"""The value of each name in phrases.toml without `#`."""

SIZED: dict[str, Callable[..., Value]] = {
    "matches but for the # argument": lambda which: fits_without(PLACES[which]),
    "has the query's # argument": lambda which: lambda i: i.head[PLACES[which]] == i.query[PLACES[which]],
    "prunes a fact with the # constant": lambda which: prunes(last_constant if which == "last" else lambda i: 0),
    "facts sort otherwise by #": lambda key: sorts_otherwise(ORDERS[key]),
    "binds the # argument": lambda which: lambda i: i.seen.selected[PLACES[which]] >= 0,
    "matches in # bits": lambda bits: mismatch(lambda i: fits_apart(i.seen.selected, i.head, 1 << bits)),
    "is in a partial block of #": lambda size: lambda i: partial_block(i.segment.index(i.by[1]), len(i.segment), size),
    "is in a partial block of # matches": lambda size: (
        lambda i: partial_block(position_of_match(i), len(matching(i)), size)
    ),
    "is in a partial block of # of the index": lambda size: (
        lambda i: partial_block(position_in_index(i), len(indexed(i)), size)
    ),
    "captures a variable numbered from #": lambda first: captures(lambda goal: first),
    "keeps the first constant as argument #": lambda k: lambda i: any(atom[k] == 0 for atom in i.kept),
    "keeps the last constant as argument #": lambda k: lambda i: any(atom[k] == last_constant(i) for atom in i.kept),
    "is in a partial block of # candidates": lambda size: (
        lambda i: partial_block(i.row, len(i.pair.sides[0].candidates), size)
    ),
    "packs like a fact in # bits": lambda bits: mistaken(lambda a: ((a[0] << bits) + a[1] << bits) + a[2]),
    "is a fact in # bits": lambda bits: mistaken(lambda a: tuple(n % (1 << bits) for n in a)),
    "has the first constant as argument #": lambda k: has_argument(k, lambda i: 0),
    "has the last constant as argument #": lambda k: has_argument(k, last_constant),
    "# argument": lambda which: lambda i: clause_or_candidate(i)[PLACES[which]],
    "# argument selected": lambda which: lambda i: max(i.seen.selected[PLACES[which]], -1),
    "# argument's number in the engine": lambda which: lambda i: i.number(i.head, PLACES[which]),
    "key (p * # + a) * # + b in the engine's numbers": lambda size, _: lambda i: i.key(i.head, size),
    "has the key of a fact in # bits": lambda size, _, bits: shares_key(size, 1 << bits),
    "prunes a fact with the engine's # number": lambda which: prunes(lambda i: i.extreme(which)),
}
"""Values that take what stands for each `#` in their names or phrases."""


_NUMBER = r"(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)"
_RELATIONS: dict[str, Callable[..., bool]] = {
    f"{_NUMBER} or (?:more|later)": lambda x, low: x >= low,
    f"{_NUMBER} or (?:less|earlier)": lambda x, high: x <= high,
    f"at most {_NUMBER}": lambda x, high: x <= high,
    f"other than {_NUMBER}": lambda x, value: x != value,
    f"{_NUMBER} to {_NUMBER}": lambda x, low, high: low <= x <= high,
    _NUMBER: lambda x, value: x == value,
}
"""The words that stand for {} in a phrase, with their meaning."""

_ALONE: dict[str, Callable[[Any], bool]] = {
    "0": lambda x: x == 0,
    ">= 0": lambda x: x >= 0,
    "<= 0": lambda x: x <= 0,
    "!= 0": lambda x: x != 0,
    "< 0": lambda x: x < 0,
}
"""The values for which a number has words of its own."""

_WORD = r"(\d[\d,]*|first|second|last|smallest|largest|(?:the|their) .+)"
_PLURAL = re.compile(r"^(\\ (?:(?:fewer|more|new|body|significant)\\ )?[a-z]+?)(?:(?<=ch)(es)|(s))\b")


class Row(NamedTuple):
    """A phrase: its pattern, how many of its groups stand for `#`, and its value for these.

    holds: a function of the value and of the numbers in the phrase; None if the phrase is not checked
    """

    pattern: re.Pattern[str]
    num_sizes: int
    value: Callable[..., Value]
    holds: Callable[..., bool] | None


def to_number(text: str) -> Any:
    """Return a number; other text as it is."""
    text = text.replace(",", "")
    try:
        return int(text)
    except ValueError:
        return float(text) if re.fullmatch(_NUMBER, text) else text


def make_row(phrase: str, value: Callable[..., Value], holds: Callable[..., bool] | None, shown: str = "") -> Row:
    """Return the row of a phrase. shown: what stands for {}; the plural behind it may be a singular."""
    before, is_number, after = re.escape(phrase).replace(r"\#", _WORD).partition(r"\{\}")
    pattern = before + is_number.replace(r"\{\}", shown) + _PLURAL.sub(r"\1(?:\2\3)?", after)
    return Row(re.compile(pattern), phrase.count("#"), value, holds)


def list_numbers(words: list[str], value: Callable[..., Value]) -> Iterator[Row]:
    """Yield the rows of a number, given the words around it and those for some values."""
    phrase, *others = words
    yield from (make_row(phrase, value, holds, shown) for shown, holds in _RELATIONS.items())
    for relation, text in (other.split(": ", 1) for other in others):
        if "{}" not in text:
            yield make_row(text, value, _ALONE[relation])
        for shown, holds in _RELATIONS.items() if "{}" in text else ():
            yield make_row(text, value, lambda x, *bounds, holds=holds: holds(-x, *bounds), shown)


@cache
def list_rows() -> list[Row]:
    """Return the rows of all phrases."""
    values = {name: (lambda value=value: value) for name, value in VALUES.items()} | SIZED
    rows = []
    for name, (phrase, *opposite) in PHRASES["flags"].items():
        rows.append(make_row(phrase, values[name], lambda x: bool(x)))
        rows.append(make_row(*opposite or [re.sub("^with", "without", phrase)], values[name], lambda x: not x))
    for name, words in PHRASES["counts"].items():
        rows += list_numbers(words, values[name])
    for phrase in PHRASES["unknown"]["phrases"]:
        rows += [row._replace(holds=None) for row in list_numbers([phrase], values["depth"])]
    return rows


def find_value(name: str) -> Value | None:
    """Return the value of a number by its name, as in "the number of atoms"; None if no number has this name."""
    for text in (name, name.removeprefix("number of ")):
        text = text.replace(" their ", " its ").removesuffix(" of the candidate")
        for key, value in (VALUES | SIZED).items():
            if found := re.fullmatch(re.escape(key).replace(r"\#", _WORD), text):
                return value(*map(to_number, found.groups())) if key in SIZED else value
    return None


def read_phrase(words: str, declared: Iterable[str] = ()) -> Value | None:
    """Return the meaning of a phrase, or None if it is not checked. ValueError for a phrase without a meaning.

    declared: the names of the numbers that the engine gives to its candidates or steps
    """
    words = words.removeprefix("of steps ")
    if found := re.fullmatch(r"(with|without) resolvents (.+)", words):
        value = read_phrase(found[2], declared)
        return value and (lambda i: (found[1] == "with") == has_resolvent(value, i))
    own = [(name, lambda name=name: lambda i: i.declared(name)) for name in declared]
    rows = [row for name, value in own for row in list_numbers([f"whose {name} is {{}}"], value)]
    rows += [make_row(f"with {name}", value, lambda x: bool(x)) for name, value in own]
    rows += [make_row(f"without {name}", value, lambda x: not x) for name, value in own]
    for row in (*rows, *list_rows()):
        if found := row.pattern.fullmatch(words):
            return row.holds and _hold(row, [to_number(text) for text in found.groups()])
    if found := re.fullmatch(r"for which the (.+) equals the (.+)", words):
        left, right = map(find_value, found.groups())
        if left and right:
            return lambda i: left(i) == right(i)
    if found := re.fullmatch(r"(?:whose|for which the) (.+) is (even|odd|(\d+) modulo (\d+))", words):
        value = dict(own)[found[1]]() if found[1] in declared else find_value(found[1])
        rest, modulus = (int(found[3]), int(found[4])) if found[3] else (int(found[2] == "odd"), 2)
        if value:
            return lambda i: value(i) % modulus == rest
    raise ValueError(f"a phrase without a meaning: {words!r}")


def _hold(row: Row, groups: list[Any]) -> Value:
    value, bounds = row.value(*groups[: row.num_sizes]), groups[row.num_sizes :]
    return lambda i: row.holds(value(i), *bounds)


def has_resolvent(value: Value, i: Instance) -> bool:
    """Return whether a flag of resolvents is true for one that a step makes."""
    return any(value(replace(i, clause=clause)) for clause in i.seen.made)
