"""The features that conditions test, in one table, the preferred ones first.

A feature describes an instance, or the step or candidate that contains it: a fact belongs to a step, and a step to a
candidate. If its value is unknown for some instance of a cause, it is not used for this cause.
"""

import math
import tomllib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from importlib import resources
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.mistakes import MISTAKES
from kgverify.comparison.step_view import content_of
from kgverify.conditions.instances import Instance, Unit, Unknown, known
from kgverify.conditions.levels import SeenChild
from kgverify.engines.protocol import DescribedEngine, NumberedEngine
from kgverify.errors import UserError
from kgverify.program.fact_index import Ids, Key
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin, Outcome, Side, Stage
from kgverify.program.program import Symbols
from kgverify.step.clauses import (
    Atoms,
    Clause,
    Clauses,
    cut,
    matches,
    matches_apart,
    matches_in,
    matches_without,
    number_variables,
    pack,
    resolve_unbound,
    resolve_unchained,
    resolve_unrenamed,
)
from kgverify.step.search import ALL_SOUND
from kgverify.trace.model.columns import Columns, starts_of

MOST_DECLARED: Final = 64
MOST_OF_NAME: Final = 60
"""The most features that an engine may declare, and the most characters of a name."""

SHARE_OF_NUMBER: Final = 0.25
"""The share that counts of the bits of a feature's own number, one of a few likely ones: ties go to features without any."""

Value = float | int | bool | None


class Scale(StrEnum):
    """The scale of a feature, which decides how its values are compared.

    COUNT:  whole numbers in order, such as positions
    NUMBER: real numbers in order
    FLAG:   true or false
    ID:     numbers that name something, compared for equality only
    """

    COUNT = "count"
    NUMBER = "number"
    FLAG = "flag"
    ID = "id"


OF_OUTCOMES: Final = (DifferenceClass.PROOF_LOST, DifferenceClass.FALSE_PROOF, DifferenceClass.OUTCOME)
"""The classes of differences between outcomes."""


class Feature(NamedTuple):
    """A number that describes an instance.

    name:    a noun phrase, unique
    unit:    the unit of its values; features of the same unit may be compared with each other; empty for flags
    of:      the units of the instances that have it
    phrase:  its words after the noun of an instance, with `{}` for the value: `with {} atoms`
    opposite: the words for a flag that is false
    zeros:   special words for the value 0, for bounds of 0 and for other values than 0, by relation
    negative: the words for values below 0, with `{}` for the value without its sign
    every:   the words for a remainder, with `{}` for the modulus and for the remainder
    stages:  the stages for which it is preferred
    is_of_match: whether it describes a clause together with a goal, and so distinguishes different goals as well
    is_of_query: whether it is the same for all candidates of a query
    is_of_outcome: whether it is the outcome, which explains no difference of outcomes
    first:       the stage that makes it, and so the first stage that it may explain
    num_alike:   the number of features that its row of the table defines, one for each of several numbers
    """

    name: str
    unit: str
    of: frozenset[Unit]
    scale: Scale
    phrase: str
    value: Callable[[Instance], Value]
    opposite: str = ""
    stages: frozenset[str] = frozenset()
    zeros: Mapping[str, str] = {}
    negative: str = ""
    every: str = ""
    is_of_match: bool = False
    is_of_query: bool = False
    is_declared: bool = False
    is_of_outcome: bool = False
    first: Stage | None = None
    num_alike: int = 1

    def cost(self, stage: str) -> float:
        """Return the feature's part of the description length of a condition, in bits."""
        own = 1.0 if stage in self.stages else 4.0
        return own + SHARE_OF_NUMBER * math.log2(self.num_alike) + (3.0 if self.scale is Scale.ID else 0.0)


def read_values(
    features: Sequence[Feature], instances: Sequence[Instance], columns: Iterable[int]
) -> NDArray[np.float64]:
    """Return the values of some features: float64 [n, F], with NaN in the columns of other features and of unknown ones."""
    values = np.full((len(instances), len(features)), math.nan)
    owners: dict[Unit | None, Sequence[int]] = {
        Unit.CANDIDATE: [id(each.candidate) for each in instances],
        Unit.STEP: [id(each.step) for each in instances],
        None: range(len(instances)),
    }
    for i in columns:
        # The value of a step or candidate is computed once.
        own = owners[next((unit for unit in (Unit.CANDIDATE, Unit.STEP) if unit in features[i].of), None)]
        read = dict(zip(own, instances, strict=True))
        column = _read_column(features[i], read.values())
        if column is not None:
            value_of = dict(zip(read, column, strict=True))
            values[:, i] = [value_of[key] for key in own]
    return values


def _read_column(feature: Feature, instances: Iterable[Instance]) -> list[float] | None:
    """Return the values of a feature, or None if a value is unknown."""
    try:
        values = [float(known(feature.value(each))) for each in instances]
    except Unknown:
        return None
    return None if any(map(math.isnan, values)) else values


def _variables(atoms: Iterable[Ids]) -> set[int]:
    return {term for _, *terms in atoms for term in terms if term < 0}


def _constants(atoms: Iterable[Ids]) -> list[int]:
    return [term for _, *terms in atoms for term in terms if term >= 0]


def _repeats_predicate(atoms: Sequence[Ids]) -> bool:
    return len({atom[0] for atom in atoms}) < len(atoms)


def _swap(atom: Ids) -> Ids:
    return atom[0], atom[2], atom[1]


# Facts and rules


def _position(i: Instance) -> int:
    return i.inference.position_of(i.by)


def _segment(i: Instance) -> int:
    clauses = i.inference.clauses
    return len(clauses.facts_of(i.head[0]) if i.by[0] == Origin.FACT else clauses.rules_of(i.head[0]))


def _match_position(i: Instance) -> int:
    return known(known(i.seen.origins).positions.get(i.by))


def _matches_left(i: Instance) -> int:
    return i.seen.num_matches[i.by[0]] - 1 - _match_position(i)


def _matches_left_with_query(i: Instance) -> int:
    """Count the clauses that match after this one, including a fact that is excluded because it equals the query."""
    left, excluded = _matches_left(i), i.seen.excluded_match
    return left + (excluded is not None and i.by[0] == Origin.FACT and excluded > i.by[1])


def _place_in_index(i: Instance) -> int:
    """Return the position of a fact among the facts with the first selected constant. Raises Unknown for another one."""
    window = i.seen.indexed_facts
    at = bisect_left(window, i.by[1])
    return known(at if at < len(window) and window[at] == i.by[1] else None)


def _rule(i: Instance) -> Atoms:
    return i.head, *i.body


def _mismatch(nearly: Callable[[Atoms, Clause, Clauses], bool]) -> Callable[[Instance], Value]:
    """Return a feature: whether a clause does not match the selected atom, but would by a wrong rule.

    nearly: a function that returns whether it matches by the wrong rule, given a goal and the clause
    """

    def read(i: Instance) -> bool:
        step, clauses = i.seen, i.inference.clauses
        if i.by in known(step.origins).positions or not step.expected.goal:
            return False
        goal = step.goal[:1]
        return not matches(goal, i.by, clauses) and nearly(goal, i.by, clauses)

    return read


def _reads_like_selected(i: Instance) -> bool:
    """Return whether a clause of another predicate has the selected atom's predicate and first argument as one text."""
    symbols, (p, a, _), (q, b, _) = i.inference.clauses.symbols, i.head, i.selected
    if p == q or min(a, b) < 0:
        return False
    return symbols.predicates[p] + symbols.constants[a] == symbols.predicates[q] + symbols.constants[b]


# Resolvents


def _changes(wrongly: Callable[[Atoms, Clause, Clauses], Atoms | None]) -> Callable[[Instance], Value]:
    """Return a feature: whether a clause makes another resolvent by a wrong rule. wrongly: a function that applies it.

    If the output of the stage is unknown, atoms that pruning deletes do not count.
    """

    def read(i: Instance) -> bool:
        made, atoms, step = i.made.atoms, wrongly(i.seen.goal, i.by, i.inference.clauses), i.seen
        if atoms is None:
            return True
        is_pruned = known(step.origins).is_pruned if step.outputs is None else lambda _: False
        left, right = (number_variables(a for a in side if not is_pruned(a)) for side in (made, atoms))
        return left != right

    return read


def _captures(count: Callable[[Atoms], int]) -> Callable[[Instance], Value]:
    """Return a feature: whether a rule makes another resolvent if its variables are not renamed apart from all of the goal's.

    count: a function of the goal that returns the number from which the rule's variables are numbered
    """
    changes = _changes(lambda goal, *clause: resolve_unrenamed(count(goal), goal, *clause))

    def read(i: Instance) -> Value:
        known(i.made)
        # The goal's variables are numbered from 0.
        return i.by[0] == Origin.RULE and count(i.seen.goal) < len(_variables(i.seen.goal)) and changes(i)

    return read


def _mistaken(key: Key, bits: int = 0) -> Callable[[Instance], Value]:
    """Return a feature: whether some atom is neither a fact nor the query, but has the key of a fact.

    bits: the bits of the key for each id; two atoms with ids below 2^bits never have the same key
    """

    def read(i: Instance) -> bool:
        facts, query = i.inference.clauses.fact_index, tuple(i.candidate.atom)
        return any(
            min(atom) >= 0
            and (facts.largest_id >> bits or max(atom) >> bits)
            and atom not in facts
            and atom != query
            and facts.has_key(key, atom)
            for atom in i.made.atoms
        )

    return read


def _index(i: Instance) -> int:
    """Return the position of a resolvent among the resolvents that `limit` receives and that are short enough."""
    return known(i.seen.limited.get(i.by))[0]


def _counts_otherwise(i: Instance) -> bool:
    """Return whether a resolvent is beyond max_resolvents only if the resolvents before it that are too long count."""
    (short, among_all, _), most = known(i.seen.limited.get(i.by)), known(i.seen.run.limits.max_resolvents)
    return short < most <= among_all


def _counts_by_kind(i: Instance) -> bool:
    """Return whether a resolvent is beyond max_resolvents only if those of rules and those of facts count together."""
    (short, _, of_kind), most = known(i.seen.limited.get(i.by)), known(i.seen.run.limits.max_resolvents)
    return of_kind < most <= short


def _moves_the_last(i: Instance) -> bool:
    """Return whether the atoms of a resolvent get another order if each pruned atom is replaced with the last one."""
    whole = [*zip(i.made.atoms, i.made.is_pruned, strict=True)]
    left = [atom for atom, is_pruned in whole if not is_pruned]
    at = 0
    while at < len(whole):
        if whole[at][1]:
            whole[at] = whole[-1]
            whole.pop()
        else:
            at += 1
    return [atom for atom, _ in whole] != left


def _find_equal(i: Instance) -> list[Clause]:
    """Return the clauses that make the resolvent of an instance, in the order of the semantics. Unknown if none does."""
    return known([clause for clause in i.seen.made if i.seen.kept[clause] == i.kept] or None)


def _is_renumbered(i: Instance) -> bool:
    """Return whether a resolvent has new variables, or the goal's variables in another order than their numbers."""
    goal = i.seen.goal
    atoms = known(i.inference.clauses.resolve(goal, *i.by))
    left = [atom for atom, is_pruned in zip(atoms, i.made.is_pruned, strict=True) if not is_pruned]
    return not _variables(left) <= _variables(goal) or number_variables(left) != tuple(left)


def _numbers_otherwise(i: Instance) -> bool:
    """Return whether variables get other numbers if all first arguments are read before all second ones."""
    by_column = dict.fromkeys(atom[place] for place in (1, 2) for atom in i.kept if atom[place] < 0)
    by_row = dict.fromkeys(term for _, *terms in i.kept for term in terms if term < 0)
    return list(by_column) != list(by_row)


def num_bits(number: float) -> int | None:
    """Return the number of bits that the significand of a number needs; 0 for 0, None for NaN and infinities."""
    if not math.isfinite(number):
        return None
    significand = int(abs(math.frexp(number)[0]) * (1 << 53))
    return (significand // (significand & -significand)).bit_length() if significand else 0


# Steps


def _num_of(kind: Origin) -> Callable[[Instance], Value]:
    return lambda i: None if i.seen.origins is None else i.seen.num_matches[kind]


def _num_surviving(i: Instance) -> int:
    """Count the resolvents that are goals not visited before."""
    step = i.seen
    known(step.origins if step.run.follows_semantics else None)
    return sum(bool(atoms) and atoms not in step.visited for atoms in step.kept.values())


_ORDERS: Final[dict[str, Callable[[Instance, int], Any]]] = {
    "the names of their arguments": lambda i, fact: [
        i.inference.clauses.symbols.constants[term] for term in i.inference.clauses.facts[fact][1:]
    ],
    "their second arguments": lambda i, fact: i.inference.clauses.facts[fact][2],
    "the digits of their index": lambda i, fact: str(fact),
}
"""Orders in which an engine may list facts: a function of the step and of the index of a fact returns the sort key."""


def _lists_otherwise(key: Callable[[Instance, int], Any], i: Instance) -> bool:
    """Return whether the facts that match come in another order if they are sorted by a key."""
    facts = [index for kind, index in known(i.seen.origins).positions if kind == Origin.FACT]
    return sorted(facts, key=partial(key, i)) != facts


def _changes_with_facts_first(i: Instance) -> bool:
    """Return whether the list of a step changes if the resolvents of facts come before those of rules."""
    listed = [(*clause, content_of(each)) for clause, each in i.seen.sides[0].items()]
    moved = sorted(listed, key=lambda each: -each[0])
    first = 0 if i.seen.run.has_origins else 2
    return [each[first:] for each in listed] != [each[first:] for each in moved]


def _list_proofs(i: Instance) -> list[bool]:
    """Return whether each resolvent that `close` receives is a proof, in the order of the clauses."""
    step = i.seen
    known(step.origins if step.run.follows_semantics else None)
    return [not step.kept[clause] for clause in step.made if step.kept[clause] not in step.visited]


def _chooses_a_rule(i: Instance) -> bool:
    step = i.seen.expected
    known(i.seen.run.has_origins or None)
    return step.chosen is not None and step.resolvents[step.choice].origin_kind == Origin.RULE


def _chosen(kind: GoalKind) -> Callable[[Instance], Value]:
    return lambda i: i.seen.expected.chosen is not None and i.seen.expected.chosen[0] == kind


def _prunes_constant(i: Instance, constant: int) -> bool:
    """Return whether some atom to prune has a constant."""
    pairs = zip(i.made.atoms, i.made.is_pruned, strict=True)
    return any(is_pruned and constant in atom[1:] for atom, is_pruned in pairs)


def _last_constant(i: Instance) -> int:
    return i.inference.clauses.fact_index.largest_constant


def _has_constant(atoms: Atoms, argument: int, constant: int) -> bool:
    return any(atom[argument] == constant for atom in atoms)


# Levels of searches


def _find_narrow(i: Instance) -> list[int]:
    """Return the places of the paths with fewer children than another path, ascending."""
    widths = Counter(child.parent for child in i.level.children)
    return [place for place in i.level.places.values() if widths[place] < max(widths.values())]


def _most(children: Sequence[SeenChild]) -> float:
    return max((child.log_probability for child in children), default=-math.inf)


def _count_children(row: Mapping[str, Any], i: Instance) -> Value:
    """Return the largest number of children that are alike in some fields, and differ in others, or whether there are two."""
    groups = defaultdict[object, set[object]](set)
    for n, child in enumerate(i.level.pick(row["children"])):
        alike, unlike = (tuple(getattr(child, name) for name in row.get(key, ())) for key in ("alike", "unlike"))
        groups[alike].add(unlike or n)
    num = max(map(len, groups.values()), default=0)
    return num > 1 if row["scale"] == Scale.FLAG else num


_VALUES: Final[dict[str, Callable[[Instance], Value]]] = {
    "position in its predicate's segment": _position,
    "is the query": lambda i: tuple(i.head) == tuple(i.candidate.atom),
    "is the query with swapped arguments": lambda i: _swap(i.head) == tuple(i.candidate.atom) != i.head,
    "has an argument of the query": lambda i: bool({*i.head[1:]} & {*i.candidate.atom[1:]}),
    "first argument is larger": lambda i: i.head[1] > i.head[2],
    "matches argument by argument": _mismatch(matches_apart),
    "does not match": _mismatch(lambda *_: True),
    "reads like the selected atom": _reads_like_selected,
    "matches after it": _matches_left,
    "matches after it with the query": _matches_left_with_query,
    "position among those that match": _match_position,
    "position in the index": _place_in_index,
    "distance from the end of the index": lambda i: len(i.seen.indexed_facts) - 1 - _place_in_index(i),
    "distance from the end of its segment": lambda i: _segment(i) - 1 - _position(i),
    "length of its segment": _segment,
    "repeats a symbol": lambda i: i.head[1] == i.head[2],
    "repeats a head variable": lambda i: i.head[1] == i.head[2] < 0,
    "body atoms": lambda i: len(i.body),
    "new variables": lambda i: len(_variables(i.body) - _variables([i.head])),
    "constants in the head": lambda i: len(_constants([i.head])),
    "is recursive": lambda i: any(atom[0] == i.head[0] for atom in i.body),
    "repeats a body predicate": lambda i: _repeats_predicate(i.body),
    "variables of the rule": lambda i: len(_variables(_rule(i))),
    "constants of the rule": lambda i: len(_constants(_rule(i))),
    "larger argument": lambda i: max(i.head[1:]),
    "index": lambda i: i.by[1],
    "is made by a rule": lambda i: i.by[0] == Origin.RULE,
    "room below max_atoms": lambda i: known(i.seen.run.limits.max_atoms) - len(i.kept),
    "places left in the list": lambda i: known(i.seen.run.limits.max_resolvents) - 1 - _index(i),
    "equals a goal visited": lambda i: i.kept in i.seen.visited,
    "steps since it was visited": lambda i: i.seen.steps_since.get(i.kept, 0),
    "number of the goal visited": lambda i: (
        len(i.seen.earlier) + 2 - i.seen.steps_since[i.kept] if i.kept in i.seen.visited else 0
    ),
    "has the atoms of a goal visited": lambda i: sorted(i.kept) in map(sorted, i.seen.visited),
    "atoms before pruning": lambda i: len(i.made.atoms),
    "facts pruned": lambda i: sum(i.made.is_pruned),
    "atoms after a pruned one": lambda i: max(0, len(i.made.atoms) - 1 - [*i.made.is_pruned, True].index(True)),
    "room below max_atoms before pruning": lambda i: known(i.seen.run.limits.max_atoms) - len(i.made.atoms),
    "is pruned to nothing": lambda i: bool(i.made.is_pruned) and all(i.made.is_pruned),
    "first atom is pruned": lambda i: any(i.made.is_pruned[:1]),
    "prunes before an atom": lambda i: any(a and not b for a, b in pairwise(i.made.is_pruned)),
    "contains the query": lambda i: tuple(i.candidate.atom) in i.made.atoms,
    "is a fact with its arguments swapped": lambda i: any(
        atom not in (facts := i.inference.clauses.fact_index) and _swap(atom) in facts for atom in i.made.atoms
    ),
    "is a fact of another predicate": _mistaken(lambda p, a, b: pack(32, 0, a, b)),
    "captures a variable behind the selected ones": _captures(lambda goal: len(_variables(goal[:1]))),
    "binds the rest of the goal": _changes(resolve_unbound),
    "is renumbered": _is_renumbered,
    "moves the last atom": _moves_the_last,
    "begins with a goal visited": lambda i: any(i.kept[:num] in i.seen.visited for num in range(1, len(i.kept))),
    "starts with the selected atom": lambda i: number_variables(i.kept[:1]) == number_variables([i.selected]),
    "is too long before pruning only": lambda i: len(i.made.atoms) > known(i.seen.run.limits.max_atoms) >= len(i.kept),
    "variables beyond its goal's": lambda i: len(_variables(i.kept)) - len(_variables(i.seen.expected.goal)),
    "atoms beyond its goal's": lambda i: len(i.kept) - len(i.seen.expected.goal),
    "is beyond max_resolvents with the other kind": _counts_by_kind,
    "needs a chain": _changes(resolve_unchained),
    "equals another resolvent": lambda i: sum(atoms == i.kept for atoms in i.seen.kept.values()) > 1,
    "equals an earlier resolvent": lambda i: _find_equal(i)[0] != i.by,
    "equals a later resolvent": lambda i: _find_equal(i)[-1] != i.by,
    "binds the constant of id 0": lambda i: (
        _constants(i.made.atoms).count(0) > _constants((*i.body, *i.seen.expected.goal[1:])).count(0)
    ),
    "atoms": lambda i: len(i.kept),
    "variables": lambda i: len(_variables(i.kept)),
    "repeats an atom": lambda i: len(set(i.kept)) < len(i.kept),
    "repeats an argument": lambda i: any(atom[1] == atom[2] for atom in i.kept),
    "repeats a variable": lambda i: sum(t < 0 for _, *terms in i.kept for t in terms) > len(_variables(i.kept)),
    "is numbered otherwise by column": _numbers_otherwise,
    "is beyond max_resolvents with long ones": _counts_otherwise,
    "constants": lambda i: len(set(_constants(i.kept))),
    "largest constant": lambda i: max(_constants(i.kept), default=-1),
    "position before the limit": _index,
    "bits of its score": lambda i: num_bits(i.score),
    "size of its score": lambda i: abs(i.score),
    "score is negative": lambda i: i.score < 0,
    "ulps below the highest score": lambda i: (
        (i.seen.scores[0] - i.score) / float(np.spacing(np.float32(i.seen.scores[0])))
    ),
    "room in the beam": lambda i: i.level.draw.search.size - len(i.level.places),
    "place in the beam": lambda i: i.level.places[i.seen.number],
    "places after it": lambda i: i.level.draw.search.size - 1 - i.level.places[i.seen.number],
    "places behind the last path": lambda i: i.level.draw.search.size - 1 - max(i.level.places.values()),
    "has gaps": lambda i: max(i.level.places.values()) >= len(i.level.places),
    "fewer children than another path": lambda i: i.level.places[i.seen.number] in _find_narrow(i),
    "behind a narrower path": lambda i: any(c.parent > n for c in i.level.pick("kept") for n in _find_narrow(i)[:1]),
    "surplus": lambda i: len(i.level.children) - i.level.draw.search.size,
    "total surplus": lambda i: len(i.level.pick("before ended")) + len(i.level.children) - i.level.draw.search.size,
    "has a child of the last path": lambda i: max(i.level.places.values()) in [c.parent for c in i.level.pick("kept")],
    "place of the last proof": lambda i: max((child.place for child in i.level.pick("kept proof")), default=-1),
    "best of later path": lambda i: any(c.parent > min(i.level.places.values()) for c in i.level.pick("kept")[:1]),
    "leaves gaps": lambda i: any(n != child.place for n, child in enumerate(i.level.pick("kept"))),
    "later proof is best": lambda i: _most(i.level.pick("all kept proof")) > _most(i.level.pick("all kept proof")[:1]),
    "an end is best": lambda i: _most(i.level.pick("all ended")) > _most(i.level.pick("all kept proof")) > -math.inf,
    "depth": lambda i: i.seen.expected.depth,
    "steps left to max_depth": lambda i: known(i.seen.run.limits.max_depth) - 1 - i.seen.expected.depth,
    "chooses TRUE": _chosen(GoalKind.TRUE),
    "chooses FALSE": _chosen(GoalKind.FALSE),
    "chooses a goal": _chosen(GoalKind.GOAL),
    "chooses the resolvent of a rule": _chooses_a_rule,
    "highest score": lambda i: i.seen.scores[0] if i.seen.scores else None,
    "resolvents of the highest score": lambda i: i.seen.scores.count(i.seen.scores[0]) if i.seen.scores else 0,
    "gap of the scores": lambda i: i.seen.scores[0] - i.seen.scores[1] if len(i.seen.scores) > 1 else math.inf,
    "resolvents": lambda i: len(i.seen.expected.resolvents),
    "repeats a resolvent": lambda i: (
        len({r.content for r in i.seen.expected.resolvents}) < len(i.seen.expected.resolvents)
    ),
    "surplus over max_resolvents": lambda i: _num_surviving(i) - known(i.seen.run.limits.max_resolvents),
    "room below max_resolvents": lambda i: known(i.seen.run.limits.max_resolvents) - len(i.seen.expected.resolvents),
    "resolvents before closing": _num_surviving,
    "resolvents and proofs before closing": lambda i: _num_surviving(i) + sum(_list_proofs(i)),
    "resolvents visited": lambda i: sum(atoms in i.seen.visited for atoms in i.seen.kept.values()),
    "proofs of the step": lambda i: sum(_list_proofs(i)),
    "resolvents before the proof": lambda i: [*_list_proofs(i), True].index(True) if any(_list_proofs(i)) else -1,
    "atoms of the goal": lambda i: len(i.seen.expected.goal),
    "atoms left to max_atoms": lambda i: known(i.seen.run.limits.max_atoms) - len(i.seen.expected.goal),
    "variables of the goal": lambda i: len(_variables(i.seen.expected.goal)),
    "constants of the selected atom": lambda i: len(_constants([i.selected])),
    "largest constant of the goal": lambda i: max(_constants(i.seen.expected.goal), default=-1),
    "repeats a predicate": lambda i: _repeats_predicate(i.seen.expected.goal),
    "repeats a selected variable": lambda i: i.selected[1] == i.selected[2] < 0,
    "shares a selected variable": lambda i: bool(_variables([i.selected]) & _variables(i.seen.expected.goal[1:])),
    "selects the query": lambda i: tuple(i.selected) == tuple(i.candidate.atom),
    "rules that match": _num_of(Origin.RULE),
    "facts that match": _num_of(Origin.FACT),
    "changes with facts first": _changes_with_facts_first,
    "clauses that match": lambda i: known(i.seen.origins).num_matches,
    "facts of the selected predicate": lambda i: len(i.inference.clauses.facts_of(i.selected[0])),
    "longest resolvent": lambda i: max((len(r.atoms) for r in i.seen.expected.resolvents), default=0),
    "selected predicate": lambda i: i.selected[0],
    "place from the end of its ranking": lambda i: i.candidate.num_alike - 1 - i.candidate.place,
    "slot was used before": lambda i: i.turn.number > 0,
    "follows a proof": lambda i: i.turn.outcome == Outcome.PROVED,
    "follows a failure": lambda i: i.turn.outcome == Outcome.FAILED,
    "follows max_depth": lambda i: i.turn.outcome == Outcome.DEPTH_LIMIT,
    "step of its chunk at the end": lambda i: i.turn.tick + i.candidate.num_steps if i.candidate.history else None,
    "meets a proof": lambda i: known(i.candidate.history).meets_proof(i.candidate.row),
    "meets an earlier goal": lambda i: known(i.candidate.history).meets_earlier_goal(i.candidate.row),
    "is a triple of any split": lambda i: bool(known(i.candidate.splits)) or known(i.candidate.is_fact),
    "is PROVED": lambda i: i.candidate.outcome == Outcome.PROVED,
    "is FAILED": lambda i: i.candidate.outcome == Outcome.FAILED,
    "reaches max_depth": lambda i: i.candidate.outcome == Outcome.DEPTH_LIMIT,
    "head side": lambda i: i.candidate.side == Side.HEAD,
    "repeats a constant": lambda i: i.candidate.atom[1] == i.candidate.atom[2],
    "predicate of the query": lambda i: i.candidate.atom[0],
    "larger argument of the candidate": lambda i: max(i.candidate.atom[1:]),
}
"""The value of each feature in features.toml that is not just an attribute. Raises Unknown if an instance lacks it."""

_PLACES: Final = {"predicate": 0, "first": 1, "second": 2}
"""The place of each symbol in an atom."""

_Numbered = Mapping[str, Callable[[Any], Callable[[Instance], Value]]]
"""The values of rows that define several features, each with its number."""

_NUMBERED: Final[_Numbered] = {
    "matches but for the {each} argument": lambda which: _mismatch(partial(matches_without, _PLACES[which])),
    "has the query's {each} argument": lambda which: (
        lambda i: i.head[_PLACES[which]] == i.candidate.atom[_PLACES[which]]
    ),
    "{each} argument": lambda which: lambda i: i.head[_PLACES[which]],
    "binds the {each} argument": lambda which: lambda i: i.selected[_PLACES[which]] >= 0,
    "{each} argument selected": lambda which: lambda i: max(i.selected[_PLACES[which]], -1),
    "{each} argument of the candidate": lambda which: lambda i: i.candidate.atom[_PLACES[which]],
    "is a triple of {each}": lambda split: (
        lambda i: known(i.candidate.is_fact) if split == "train" else split in known(i.candidate.splits)
    ),
    "matches in {each} bits": lambda bits: _mismatch(partial(matches_in, bits)),
    "captures a variable numbered from {each}": lambda first: _captures(lambda _: first),
    "facts sort otherwise by {each}": lambda order: partial(_lists_otherwise, _ORDERS[order]),
    "packs like a fact in {each} bits": lambda bits: _mistaken(partial(pack, bits), bits),
    "is a fact in {each} bits": lambda bits: _mistaken(partial(cut, bits), bits),
    "has the first constant as argument {each}": lambda at: lambda i: _has_constant(i.made.atoms, at, 0),
    "keeps the first constant as argument {each}": lambda at: lambda i: _has_constant(i.kept, at, 0),
    "keeps the last constant as argument {each}": lambda at: lambda i: _has_constant(i.kept, at, _last_constant(i)),
    "has the last constant as argument {each}": lambda at: lambda i: _has_constant(i.made.atoms, at, _last_constant(i)),
    "prunes a fact with the {each} constant": lambda which: (
        lambda i: _prunes_constant(i, _last_constant(i) if which == "last" else 0)
    ),
    "is in a partial block of {each} of the index": lambda size: (
        lambda i: _place_in_index(i) >= (num := len(i.seen.indexed_facts)) - num % size
    ),
    "is in a partial block of {each} matches": lambda size: (
        lambda i: _match_position(i) >= (num := i.seen.num_matches[i.by[0]]) - num % size
    ),
    "is in a partial block of {each}": lambda size: lambda i: _position(i) >= _segment(i) - _segment(i) % size,
    "is in a partial block of {each} candidates": lambda size: lambda i: i.candidate.is_in_partial_block(size),
}


_ZEROS: Final = {"zero": "==", "other_than_zero": "!=", "at_least_zero": ">=", "at_most_zero": "<="}


@cache
def _read_table() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("features.toml").read_text(encoding="utf-8"))


@cache
def read_features() -> tuple[Feature, ...]:
    """Return all features, the preferred ones first."""
    return tuple(feature for row in _read_table()["features"] for feature in _read(row, _NUMBERED))


def _read(row: Mapping[str, Any], numbered: _Numbered) -> Iterator[Feature]:
    """Yield the features of a row of the table: one for each of its numbers, or a single one."""
    name = row["name"]
    every = row.get("each", [None])
    for number in every:
        words = {k: v if number is None else v.replace("{each}", str(number)) for k, v in row.items() if type(v) is str}
        named = numbered[name](number) if name in numbered else _VALUES.get(name)
        value = named or (partial(_count_children, row) if "children" in row else attrgetter(row["value"]))
        yield Feature(
            name=words["name"],
            unit=row.get("unit", ""),
            of=frozenset(map(Unit, row["of"])),
            scale=Scale(row["scale"]),
            phrase=words["phrase"],
            value=value,
            opposite=words.get("opposite", ""),
            stages=frozenset(map(Stage, row.get("stages", ()))),
            zeros={relation: words[key] for key, relation in _ZEROS.items() if key in words},
            negative=words.get("negative", ""),
            first=Stage(row["first"]) if "first" in row else None,
            num_alike=len(every) if isinstance(number, int) else 1,
            **{flag: row[flag] for flag in ("is_of_match", "is_of_query", "is_of_outcome") if flag in row},
        )


def features_of(unit: Unit, stage: str, kind: DifferenceClass) -> tuple[Feature, ...]:
    """Return the features of the instances of a unit that may explain a cause, and are no consequence of it."""
    stages = list(Stage)

    def explains(feature: Feature) -> bool:
        is_before = feature.first is None or stages.index(feature.first) <= stages.index(Stage(stage))
        return is_before and not (feature.is_of_outcome and kind in OF_OUTCOMES and stage != Stage.RECYCLE)

    lifted = map(_lift, _list_flags(Stage(stage))) if unit is Unit.STEP else ()
    return (*(feature for feature in read_features() if unit in feature.of and explains(feature)), *lifted)


def _list_flags(stage: Stage) -> Iterator[Feature]:
    """Yield the flags of resolvents that are preferred for a stage."""
    for each in read_features():
        if stage in each.stages and each.scale is Scale.FLAG and each.of & set(Unit) == {Unit.RESOLVENT}:
            yield each


def _lift(feature: Feature) -> Feature:
    """Return a flag of steps: whether a flag of resolvents is true for one of them. A proof hides the other resolvents."""

    def read(i: Instance) -> bool:
        known(i.seen.origins if i.seen.run.follows_semantics else None)
        return any(known(feature.value(each)) for each in i.resolvents)

    return feature._replace(
        name=f"has a resolvent: {feature.name}",
        of=frozenset((Unit.STEP,)),
        phrase=f"with resolvents {feature.phrase}",
        opposite=f"without resolvents {feature.phrase}",
        value=read,
    )


def read_mistakes(evidence: set[str]) -> Iterator[Feature]:
    """Return a feature of levels: whether the mistake that is the only evidence changes them."""
    stages = next((each.stages for each in MISTAKES if {each.words} == evidence), ALL_SOUND)
    row = {**_read_table()["mistakes"], "each": [] if stages is ALL_SOUND else [*evidence]}
    return _read(row, {"by {each}": lambda _: lambda i: i.level.changes(known(i.seen.run.limits.dialect), stages)})


def read_declared(engine: DescribedEngine, columns: Columns) -> tuple[Feature, ...]:
    """Return the features that an engine declares for the columns that it returned last.

    UserError unless they are arrays of numbers by name, with a number for each candidate or each step.
    """
    found: Any = engine.features(columns)
    if not isinstance(found, Mapping) or len(found) > MOST_DECLARED:
        raise _refuse(f"expected at most {MOST_DECLARED} arrays by name, found {type(found).__name__}")
    return tuple(_read_array(name, values, columns) for name, values in found.items())


def _read_array(name: object, values: object, columns: Columns) -> Feature:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MOST_OF_NAME:
        raise _refuse(f"expected a name of at most {MOST_OF_NAME} characters, found {name!r:.80}")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise _refuse(f"{name}: expected numbers, found {error}") from error
    num, total = len(columns.candidates.num_steps), int(columns.candidates.num_steps.sum())
    if array.dtype.kind not in "biuf" or array.shape not in ((num,), (total,)):
        expected = f"{num:,} numbers, one for each candidate, or {total:,}, one for each step"
        raise _refuse(f"{name}: expected {expected}, found {array.dtype} {list(array.shape)}")
    numbers: list[float] = array.astype(np.float64).tolist()
    scale = {"b": Scale.FLAG, "f": Scale.NUMBER}.get(array.dtype.kind, Scale.COUNT)
    is_flag = scale is Scale.FLAG
    is_of_steps = array.shape != (num,)
    starts = starts_of(columns.candidates.num_steps).tolist()

    def read(instance: Instance) -> Value:
        row = known(instance.candidate.actual_row)
        if not is_of_steps:
            return numbers[row]
        at = starts[row] + instance.seen.number
        return numbers[at] if at < starts[row + 1] else None

    return Feature(
        name=name,
        unit="" if is_flag else name,
        of=frozenset(Unit) - {Unit.CANDIDATE} if is_of_steps else frozenset(Unit),
        scale=scale,
        phrase=f"with {name}" if is_flag else f"whose {name} is {{}}",
        opposite=f"without {name}" if is_flag else "",
        value=read,
        is_declared=True,
    )


def read_numbers(engine: NumberedEngine, symbols: Symbols) -> tuple[Feature, ...]:
    """Return features of the numbers that an engine gives to predicates and constants, and of keys packed from them.

    UserError unless they are an integer for each symbol.
    """
    found, names = tuple(map(np.asarray, engine.numbers)), (symbols.predicates, symbols.constants)
    if [each.shape for each in found] != [(len(each),) for each in names] or any(
        e.dtype.kind not in "iu" for e in found
    ):
        described = ", ".join(f"{each.dtype} {list(each.shape)}" for each in found)
        raise UserError(
            f"expected {len(names[0]):,} and {len(names[1]):,} integers, found {described or 'nothing'}",
            where="numbers",
            fix="return a number for each predicate, and one for each constant, in the order of their ids",
        )
    predicates, constants = (each.astype(np.int64) for each in found)
    size = int(constants.max(initial=0)) + 1
    ends = {"smallest": int(constants.argmin()), "largest": int(constants.argmax())}

    def number_of(atom: Ids, place: int) -> int:
        symbol = known(atom[place] if atom[place] >= 0 else None)
        return int((constants if place else predicates)[symbol])

    def pack_numbers(p: Any, a: Any, b: Any) -> Any:
        return (p * size + a) * size + b

    def pack_ids(bits: int) -> Key:
        return lambda p, a, b: pack_numbers(predicates[p], constants[a], constants[b]) & (1 << bits) - 1

    values: _Numbered = {
        "{each}'s number in the engine": lambda which: lambda i: number_of(i.head, _PLACES[which.split()[0]]),
        f"key (p * {size:,} + a) * {size:,} + b in the engine's numbers": lambda _: (
            lambda i: pack_numbers(*(number_of(i.head, place) for place in range(3)))
        ),
        "selected predicate's number in the engine": lambda _: lambda i: number_of(i.selected, 0),
        "has the key of a fact in {each} bits": lambda bits: _mistaken(pack_ids(bits)),
        "prunes a fact with the engine's {each} number": lambda which: partial(_prunes_constant, constant=ends[which]),
    }
    rows = (
        {key: text.replace("{size}", f"{size:,}") if type(text) is str else text for key, text in row.items()}
        for row in _read_table()["numbers"]
    )
    return tuple(feature for row in rows for feature in _read(row, values))


def _refuse(message: str) -> UserError:
    return UserError(
        message, where="features", fix="return {name: array}, with a number for each candidate or each step"
    )
