"""The features in which conditions are stated: one table, in the order in which they are preferred.

A feature describes an instance or what contains it: a fact belongs to a step, and a step to a candidate. One whose value is
unknown for an instance is not used for its cause.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from importlib import resources
from typing import Any, Final, NamedTuple

import numpy as np

from kgverify.conditions.instances import Instance, SeenStep, Unit
from kgverify.conditions.slot_history import SlotHistory
from kgverify.conditions.slot_turns import Turn
from kgverify.program.fact_index import Ids, Key
from kgverify.program.outcomes import GoalKind, Origin, Outcome, Side
from kgverify.program.stages import Stage
from kgverify.step.clauses import Atoms, Clauses, number_variables
from kgverify.step.near_matches import (
    Clause,
    cut,
    matches,
    matches_apart,
    matches_in,
    matches_without,
    pack,
    resolve_unchained,
    resolve_unrenamed,
)

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


class Feature(NamedTuple):
    """A number that describes an instance.

    name:    a noun phrase, unique
    unit:    the unit of its values; features of one unit may be compared with each other; empty for flags
    of:      the units of the instances that have it
    phrase:  its words behind the noun of an instance, with `{}` for the value: `with {} atoms`
    opposite: the words of a flag that is false
    zeros:   the words of the value 0, and of bounds of 0, by relation, if these have some of their own
    negative: the words of the value with its sign changed, for values below 0
    stages:  the stages for which it is preferred
    is_of_match: whether it describes a clause together with a goal, so that it tells apart different goals as well
    is_of_query: whether it is the same for all candidates of a query
    """

    name: str
    unit: str
    of: frozenset[Unit]
    scale: Scale
    phrase: str
    value: Callable[[Instance], Value]
    opposite: str = ""
    stages: frozenset[Stage] = frozenset()
    zeros: Mapping[str, str] = {}
    negative: str = ""
    is_of_match: bool = False
    is_of_query: bool = False
    is_declared: bool = False

    def cost(self, stage: str) -> float:
        """Return its share of the description length of a condition, in bits."""
        return (1.0 if stage in self.stages else 4.0) + (3.0 if self.scale is Scale.ID else 0.0)


def _step(value: Callable[[SeenStep], Value]) -> Callable[[Instance], Value]:
    return lambda instance: None if instance.step is None else value(instance.step)


def _program(value: Callable[[Instance], Value]) -> Callable[[Instance], Value]:
    """Return the value if the program of the run is known."""
    return lambda instance: None if instance.run.inference is None else value(instance)


def _variables(atoms: object) -> set[int]:
    return {term for atom in atoms for term in atom[1:] if term < 0}  # type: ignore[attr-defined]


# Facts and rules


def _position(instance: Instance) -> Value:
    assert instance.run.inference is not None
    assert instance.clause is not None
    return instance.run.inference.position_of(instance.clause)


def _segment(instance: Instance) -> Value:
    assert instance.run.inference is not None
    assert instance.clause is not None
    clauses = instance.run.inference.clauses
    predicate = instance.run.inference.head_of(instance.clause)[0]
    is_fact = instance.clause[0] == Origin.FACT
    return len(clauses.facts_of(predicate) if is_fact else clauses.rules_of(predicate))


def _from_end(instance: Instance) -> Value:
    return int(_segment(instance) or 0) - 1 - int(_position(instance) or 0)


def _is_in_partial_block(size: int, instance: Instance) -> Value:
    num = int(_segment(instance) or 0)
    return int(_position(instance) or 0) >= num - num % size


def _match_position(instance: Instance) -> Value:
    step = instance.step
    if step is None or step.origins is None or instance.clause is None:
        return None
    return step.origins.positions.get(instance.clause)


def _matches_left(instance: Instance) -> Value:
    step, position = instance.step, _match_position(instance)
    if step is None or step.origins is None or position is None or instance.clause is None:
        return None
    return step.num_matches[instance.clause[0]] - 1 - int(position)


def _matches_left_with_query(instance: Instance) -> Value:
    """Return the clauses that match after one, those included that are excluded since they equal the query."""
    left = _matches_left(instance)
    if left is None or instance.step is None or instance.clause is None or instance.run.inference is None:
        return None
    excluded = instance.step.excluded_match
    return int(left) + (excluded is not None and instance.clause[0] == Origin.FACT and excluded > instance.clause[1])


def _head(instance: Instance) -> tuple[int, int, int]:
    assert instance.run.inference is not None
    assert instance.clause is not None
    return instance.run.inference.head_of(instance.clause)


def _body(instance: Instance) -> tuple[tuple[int, int, int], ...]:
    assert instance.run.inference is not None
    assert instance.clause is not None
    kind, index = instance.clause
    return instance.run.inference.clauses.rules[index][1] if kind == Origin.RULE else ()


def _swap(atom: Ids) -> Ids:
    return atom[0], atom[2], atom[1]


def _is_query(instance: Instance) -> Value:
    return tuple(_head(instance)) == tuple(instance.candidate.atom)


def _num_new_variables(instance: Instance) -> Value:
    return len(_variables(_body(instance)) - _variables([_head(instance)]))


def _rule_terms(instance: Instance) -> list[int]:
    return [term for atom in (_head(instance), *_body(instance)) for term in atom[1:]]


def _is_recursive(instance: Instance) -> Value:
    return any(atom[0] == _head(instance)[0] for atom in _body(instance))


def _repeats_predicate(atoms: Sequence[Sequence[int]]) -> bool:
    return len({atom[0] for atom in atoms}) < len(atoms)


def _largest_constant(atoms: Iterable[Sequence[int]]) -> int:
    """Return the largest id of a constant; -1 without constants."""
    return max((term for atom in atoms for term in atom[1:] if term >= 0), default=-1)


def _mismatch(nearly: Callable[[Atoms, Clause, Clauses], bool]) -> Callable[[Instance], Value]:
    """Return whether a clause does not match the selected atom, but does by another rule.

    nearly: returns whether it does by that rule, given a goal and the clause
    """

    def read(instance: Instance) -> Value:
        step = instance.step
        if step is None or step.run.inference is None or step.origins is None or instance.clause is None:
            return None
        if instance.clause in step.origins.positions or not step.expected.goal:
            return False
        goal, clauses = step.goal[:1], step.run.inference.clauses
        return not matches(goal, instance.clause, clauses) and nearly(goal, instance.clause, clauses)

    return read


# Resolvents


def _made(
    value: Callable[[SeenStep, tuple[tuple[int, int, int], ...], tuple[bool, ...]], Value],
) -> Callable[[Instance], Value]:
    """Return a feature of the atoms that a clause makes, and of which of them pruning deletes."""

    def read(instance: Instance) -> Value:
        step = instance.step
        if step is None or instance.clause is None:
            return None
        made = step.made.get(instance.clause)
        return None if made is None else value(step, made.atoms, made.is_pruned)

    return read


def _kept(value: Callable[[SeenStep, tuple[tuple[int, int, int], ...]], Value]) -> Callable[[Instance], Value]:
    """Return a feature of the resolvent of a clause, pruned and renamed."""

    def read(instance: Instance) -> Value:
        step = instance.step
        if step is None or instance.clause is None or instance.clause not in step.kept:
            return None
        return value(step, step.kept[instance.clause])

    return read


def _is_gap(is_pruned: tuple[bool, ...]) -> bool:
    return any(is_pruned[: i + 1][-1] and not all(is_pruned[i:]) for i in range(len(is_pruned)))


def _changes(wrongly: Callable[[Atoms, Clause, Clauses], Atoms | None]) -> Callable[[Instance], Value]:
    """Return whether a clause makes another resolvent by another rule. wrongly: applies it by that rule to a goal."""

    def read(instance: Instance) -> Value:
        step = instance.step
        if step is None or step.run.inference is None or instance.clause not in step.made:
            return None
        atoms = wrongly(step.goal, instance.clause, step.run.inference.clauses)
        made = step.made[instance.clause].atoms
        return atoms is None or number_variables(iter(atoms)) != number_variables(iter(made))

    return read


def _mistaken(key: Key, bits: int = 0) -> Callable[[Instance], Value]:
    """Return whether some atom is neither a fact nor the query, and has the key of a fact.

    bits: the bits that the key has for each id; no two atoms of smaller ids have the same key
    """

    def read(step: SeenStep, atoms: tuple[Ids, ...], is_pruned: tuple[bool, ...]) -> Value:
        if step.run.inference is None:
            return None
        facts, query = step.run.inference.clauses.fact_index, tuple(step.candidate.atom)
        return any(
            min(atom) >= 0
            and (facts.largest_id >> bits or max(atom) >> bits)
            and atom not in facts
            and atom != query
            and facts.has_key(key, atom)
            for atom in atoms
        )

    return _made(read)


def _is_swapped(step: SeenStep, atoms: tuple[Ids, ...], is_pruned: tuple[bool, ...]) -> Value:
    if step.run.inference is None:
        return None
    facts = step.run.inference.clauses.fact_index
    return any(atom not in facts and _swap(atom) in facts for atom in atoms)


def _index(instance: Instance) -> Value:
    """Return the position of a resolvent among those that `limit` receives and that are short enough."""
    step = instance.step
    return None if step is None or instance.clause is None else step.limited.get(instance.clause)


def _room_below(instance: Instance) -> Value:
    index, most = _index(instance), instance.run.limits.max_resolvents
    return None if index is None or most is None else most - 1 - int(index)


def _room_of_atoms(step: SeenStep, atoms: tuple[tuple[int, int, int], ...]) -> Value:
    most = step.run.limits.max_atoms
    return None if most is None else most - len(atoms)


def _is_visited(step: SeenStep, atoms: tuple[tuple[int, int, int], ...]) -> Value:
    return None if step.earlier is None else atoms in step.visited


def _steps_since(step: SeenStep, atoms: tuple[tuple[int, int, int], ...]) -> Value:
    return None if step.earlier is None else step.steps_since.get(atoms, 0)


def _is_visited_in_any_order(step: SeenStep, atoms: tuple[tuple[int, int, int], ...]) -> Value:
    if step.earlier is None:
        return None
    ordered = sorted(atoms)
    return any(len(goal) == len(atoms) and sorted(goal) == ordered for goal in step.visited)


def _score(value: Callable[[float, float], Value]) -> Callable[[Instance], Value]:
    """Return a feature of a resolvent's score and of the highest one of its step."""

    def read(instance: Instance) -> Value:
        step = instance.step
        if step is None or not step.run.has_scores or instance.clause is None or instance.clause not in step.sides[0]:
            return None
        return value(float(step.sides[0][instance.clause].score), max(float(r.score) for r in step.expected.resolvents))

    return read


def num_bits(number: float) -> int | None:
    """Return the bits that the significand of a number needs; 0 for 0, None for NaN and infinities."""
    if not math.isfinite(number):
        return None
    significand = int(abs(math.frexp(number)[0]) * (1 << 53))
    return (significand // (significand & -significand)).bit_length() if significand else 0


# Steps


def _selected(value: Callable[[SeenStep, tuple[int, int, int]], Value]) -> Callable[[Instance], Value]:
    return _step(lambda step: value(step, step.expected.goal[0]) if step.expected.goal else None)


def _num_of(kind: Origin) -> Callable[[Instance], Value]:
    return _step(lambda step: None if step.origins is None else step.num_matches[kind])


def _is_shared(step: SeenStep, selected: tuple[int, int, int]) -> bool:
    return bool(_variables([selected]) & _variables(step.expected.goal[1:]))


def _num_surviving(step: SeenStep) -> int | None:
    """Return the number of resolvents that are goals not visited before."""
    if step.earlier is None or not step.made:
        return None if step.origins is None or step.earlier is None or not step.run.follows_semantics else 0
    return sum(bool(atoms) and atoms not in step.visited for atoms in step.kept.values())


def _num_left_out(step: SeenStep) -> Value:
    return None if step.earlier is None else sum(atoms in step.visited for atoms in step.kept.values())


def _surplus(step: SeenStep) -> Value:
    num, most = _num_surviving(step), step.run.limits.max_resolvents
    return None if num is None or most is None else num - most


def _room_of_step(step: SeenStep) -> Value:
    most = step.run.limits.max_resolvents
    return None if most is None else most - len(step.expected.resolvents)


def _scores(value: Callable[[list[float]], Value]) -> Callable[[Instance], Value]:
    """Return a feature of the scores of the resolvents to choose from, the highest first."""

    def read(step: SeenStep) -> Value:
        if not step.run.has_scores:
            return None
        return value(sorted((float(r.score) for r in step.expected.resolvents), reverse=True))

    return _step(read)


def _chosen(kind: GoalKind) -> Callable[[Instance], Value]:
    return _step(lambda step: step.expected.chosen is not None and step.expected.chosen[0] == kind)


def _depth_left(step: SeenStep) -> Value:
    most = step.run.limits.max_depth
    return None if most is None else most - 1 - step.expected.depth


def _num_facts(step: SeenStep, selected: tuple[int, int, int]) -> Value:
    return None if step.run.inference is None else len(step.run.inference.clauses.facts_of(selected[0]))


# Candidates


def _turn(value: Callable[[Turn], Value]) -> Callable[[Instance], Value]:
    return lambda instance: None if instance.candidate.turn is None else value(instance.candidate.turn)


def _history(value: Callable[[SlotHistory, int], Value]) -> Callable[[Instance], Value]:
    """Return a feature of what a candidate meets in the slots of the batch."""
    return lambda i: None if i.candidate.history is None else value(i.candidate.history, i.candidate.row)


_VALUES: Final[dict[str, Callable[[Instance], Value]]] = {
    "position in its predicate's segment": _program(_position),
    "is the query": _program(_is_query),
    "is the query with swapped arguments": _program(lambda i: _swap(_head(i)) == tuple(i.candidate.atom) != _head(i)),
    "has the query's first argument": _program(lambda i: _head(i)[1] == i.candidate.atom[1]),
    "has the query's second argument": _program(lambda i: _head(i)[2] == i.candidate.atom[2]),
    "has an argument of the query": _program(lambda i: bool({*_head(i)[1:]} & {*i.candidate.atom[1:]})),
    "first argument is larger": _program(lambda i: _head(i)[1] > _head(i)[2]),
    "matches but for the first argument": _mismatch(partial(matches_without, 1)),
    "matches but for the second argument": _mismatch(partial(matches_without, 2)),
    "matches argument by argument": _mismatch(matches_apart),
    "does not match": _mismatch(lambda *_: True),
    "matches after it": _matches_left,
    "matches after it with the query": _matches_left_with_query,
    "position among those that match": _match_position,
    "distance from the end of its segment": _program(_from_end),
    "length of its segment": _program(_segment),
    "repeats a symbol": _program(lambda i: _head(i)[1] == _head(i)[2]),
    "repeats a head variable": _program(lambda i: _head(i)[1] == _head(i)[2] < 0),
    "body atoms": _program(lambda i: len(_body(i))),
    "new variables": _program(_num_new_variables),
    "constants in the head": _program(lambda i: sum(t >= 0 for t in _head(i)[1:])),
    "is recursive": _program(_is_recursive),
    "repeats a body predicate": _program(lambda i: _repeats_predicate(_body(i))),
    "variables of the rule": _program(lambda i: len({t for t in _rule_terms(i) if t < 0})),
    "constants of the rule": _program(lambda i: sum(t >= 0 for t in _rule_terms(i))),
    "first argument": _program(lambda i: _head(i)[1]),
    "second argument": _program(lambda i: _head(i)[2]),
    "larger argument": _program(lambda i: max(_head(i)[1:])),
    "index": lambda i: None if i.clause is None else i.clause[1],
    "is made by a rule": lambda i: None if i.clause is None else i.clause[0] == Origin.RULE,
    "room below max_atoms": _kept(_room_of_atoms),
    "places left in the list": _room_below,
    "equals a goal visited": _kept(_is_visited),
    "steps since it was visited": _kept(_steps_since),
    "has the atoms of a goal visited": _kept(_is_visited_in_any_order),
    "atoms before pruning": _made(lambda s, a, p: len(a)),
    "facts pruned": _made(lambda s, a, p: sum(p)),
    "is pruned to nothing": _made(lambda s, a, p: bool(p) and all(p)),
    "first atom is pruned": _made(lambda s, a, p: bool(p) and p[0]),
    "prunes before an atom": _made(lambda s, a, p: _is_gap(p)),
    "contains the query": _made(lambda s, a, p: tuple(s.candidate.atom) in a),
    "is a fact with its arguments swapped": _made(_is_swapped),
    "is a fact of another predicate": _mistaken(lambda p, a, b: pack(32, 0, a, b)),
    "captures a variable": _changes(resolve_unrenamed),
    "needs a chain": _changes(resolve_unchained),
    "atoms": _kept(lambda s, a: len(a)),
    "variables": _kept(lambda s, a: len(_variables(a))),
    "repeats an atom": _kept(lambda s, a: len(set(a)) < len(a)),
    "repeats an argument": _kept(lambda s, a: any(atom[1] == atom[2] for atom in a)),
    "constants": _kept(lambda s, a: len({t for atom in a for t in atom[1:] if t >= 0})),
    "largest constant": _kept(lambda s, a: _largest_constant(a)),
    "position before the limit": _index,
    "bits of its score": _score(lambda score, highest: num_bits(score)),
    "size of its score": _score(lambda score, highest: abs(score)),
    "score is negative": _score(lambda score, highest: score < 0),
    "ulps below the highest score": _score(
        lambda score, highest: (highest - score) / float(np.spacing(np.float32(highest)))
    ),
    "depth": _step(lambda s: s.expected.depth),
    "steps left to max_depth": _step(_depth_left),
    "chooses TRUE": _chosen(GoalKind.TRUE),
    "chooses FALSE": _chosen(GoalKind.FALSE),
    "chooses a goal": _chosen(GoalKind.GOAL),
    "highest scores": _scores(lambda s: s.count(s[0]) if s else 0),
    "gap of the scores": _scores(lambda s: s[0] - s[1] if len(s) > 1 else math.inf),
    "resolvents": _step(lambda s: len(s.expected.resolvents)),
    "index chosen": _step(lambda s: s.expected.choice),
    "repeats a resolvent": _step(
        lambda s: len({r.content for r in s.expected.resolvents}) < len(s.expected.resolvents)
    ),
    "surplus over max_resolvents": _step(_surplus),
    "room below max_resolvents": _step(_room_of_step),
    "resolvents before closing": _step(_num_surviving),
    "resolvents visited": _step(_num_left_out),
    "has TRUE": _step(lambda s: s.is_proved),
    "atoms of the goal": _step(lambda s: len(s.expected.goal)),
    "atoms left to max_atoms": _step(
        lambda s: None if s.run.limits.max_atoms is None else s.run.limits.max_atoms - len(s.expected.goal)
    ),
    "variables of the goal": _step(lambda s: len(_variables(s.expected.goal))),
    "constants of the selected atom": _selected(lambda s, a: sum(t >= 0 for t in a[1:])),
    "binds the first argument": _selected(lambda s, a: a[1] >= 0),
    "binds the second argument": _selected(lambda s, a: a[2] >= 0),
    "first argument selected": _selected(lambda s, a: max(a[1], -1)),
    "second argument selected": _selected(lambda s, a: max(a[2], -1)),
    "largest constant of the goal": _step(lambda s: _largest_constant(s.expected.goal)),
    "repeats a predicate": _step(lambda s: _repeats_predicate(s.expected.goal)),
    "repeats a selected variable": _selected(lambda s, a: a[1] == a[2] < 0),
    "shares a selected variable": _selected(_is_shared),
    "selects the query": _selected(lambda s, a: tuple(a) == tuple(s.candidate.atom)),
    "rules that match": _num_of(Origin.RULE),
    "facts that match": _num_of(Origin.FACT),
    "clauses that match": _step(lambda s: None if s.origins is None else s.origins.num_matches),
    "facts of the selected predicate": _selected(_num_facts),
    "longest resolvent": _step(lambda s: max((len(r.atoms) for r in s.expected.resolvents), default=0)),
    "dropped by max_atoms": _step(lambda s: s.expected.dropped_atoms),
    "dropped by max_resolvents": _step(lambda s: s.expected.dropped_resolvents),
    "selected predicate": _selected(lambda s, a: a[0]),
    "position among the candidates": lambda i: i.candidate.row,
    "position from the end of the run": lambda i: i.candidate.rows_left,
    "position in its chunk": _turn(lambda turn: turn.position),
    "chunk": _turn(lambda turn: turn.chunk),
    "place in its ranking": lambda i: i.candidate.place,
    "place from the end of its ranking": lambda i: i.candidate.num_alike - 1 - i.candidate.place,
    "candidates of its ranking": lambda i: i.candidate.num_alike,
    "slot was used before": _turn(lambda turn: turn.is_used),
    "slot": _turn(lambda turn: turn.slot),
    "turn of its slot": _turn(lambda turn: turn.number),
    "follows a proof": _turn(lambda turn: turn.outcome == Outcome.PROVED),
    "follows any proof": _turn(lambda turn: turn.has_proved),
    "follows a failure": _turn(lambda turn: turn.outcome == Outcome.FAILED),
    "follows max_depth": _turn(lambda turn: turn.outcome == Outcome.DEPTH_LIMIT),
    "follows its own query": _turn(lambda turn: turn.is_same_query),
    "steps of its slot before": _turn(lambda turn: turn.num_steps),
    "step of its chunk at the end": lambda i: (
        None
        if i.candidate.history is None or i.candidate.turn is None
        else i.candidate.turn.tick + i.candidate.num_steps
    ),
    "meets a proof": _history(lambda history, row: history.meets_proof(row)),
    "meets an earlier goal": _history(lambda history, row: history.meets_earlier_goal(row)),
    "is in a partial turn": _turn(lambda turn: turn.is_partial),
    "is a fact": lambda i: i.candidate.is_fact,
    "is PROVED": lambda i: i.candidate.outcome == Outcome.PROVED,
    "is FAILED": lambda i: i.candidate.outcome == Outcome.FAILED,
    "reaches max_depth": lambda i: i.candidate.outcome == Outcome.DEPTH_LIMIT,
    "steps of the derivation": lambda i: i.candidate.num_steps,
    "head side": lambda i: i.candidate.side == Side.HEAD,
    "repeats a constant": lambda i: i.candidate.atom[1] == i.candidate.atom[2],
    "query": lambda i: i.candidate.query,
    "predicate of the query": lambda i: i.candidate.atom[0],
    "first argument of the candidate": lambda i: i.candidate.atom[1],
    "second argument of the candidate": lambda i: i.candidate.atom[2],
    "larger argument of the candidate": lambda i: max(i.candidate.atom[1:]),
}
"""The value of each feature of features.toml, by its name."""

_NUMBERED: Final[dict[str, Callable[[int], Callable[[Instance], Value]]]] = {
    "matches in {each} bits": lambda bits: _mismatch(partial(matches_in, bits)),
    "packs like a fact in {each} bits": lambda bits: _mistaken(partial(pack, bits), bits),
    "is a fact in {each} bits": lambda bits: _mistaken(partial(cut, bits), bits),
    "is in a partial block of {each}": lambda size: _program(partial(_is_in_partial_block, size)),
    "is in a partial block of {each} candidates": lambda size: lambda i: i.candidate.is_in_partial_block(size),
}
"""The values of the features that stand for several, each with its number."""


_ZEROS: Final = {"zero": "==", "at_least_zero": ">=", "at_most_zero": "<="}


@cache
def read_features() -> tuple[Feature, ...]:
    """Return all features, the preferred ones first."""
    text = resources.files(__package__).joinpath("features.toml").read_text(encoding="utf-8")
    return tuple(feature for row in tomllib.loads(text)["features"] for feature in _read(row))


def _read(row: dict[str, Any]) -> Iterator[Feature]:
    """Yield the features of a row of the table: one for each of its numbers, if it has some."""
    for number in row.get("each", [None]):
        words = {k: v if number is None else v.replace("{each}", str(number)) for k, v in row.items() if type(v) is str}
        name = row["name"]
        yield Feature(
            name=words["name"],
            unit=row.get("unit", ""),
            of=frozenset(map(Unit, row["of"])),
            scale=Scale(row["scale"]),
            phrase=words["phrase"],
            value=_VALUES[name] if number is None else _NUMBERED[name](number),
            opposite=words.get("opposite", ""),
            stages=frozenset(map(Stage, row.get("stages", ()))),
            zeros={relation: words[key] for key, relation in _ZEROS.items() if key in words},
            negative=words.get("negative", ""),
            is_of_match=row.get("is_of_match", False),
            is_of_query=row.get("is_of_query", False),
        )


def features_of(unit: Unit) -> tuple[Feature, ...]:
    """Return the features of the instances of a unit."""
    return tuple(feature for feature in read_features() if unit in feature.of)
