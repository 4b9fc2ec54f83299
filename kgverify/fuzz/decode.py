"""From a string of bytes of one length to a problem: every string gives one, and the zero string a trivial one.

What each byte decides stands in one place of the string, so that changing a byte changes one thing. Few settings of
limits and policy occur, so that many problems can share a run; programs are drawn to meet these limits exactly and by
one beyond.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from kgverify.errors import UserError
from kgverify.fuzz.problem import PolicySpec, Problem, Sizes, Spread
from kgverify.fuzz.shapes import (
    BULK,
    BULK_BEYOND,
    CONSTANTS,
    MANY,
    MOST_CONSTANTS,
    PREDICATES,
    RULES,
    fill_facts,
    fill_long_rule,
    fill_rules,
)
from kgverify.logic.atoms import NamedAtom, Term, Variable
from kgverify.logic.limits import Limits
from kgverify.logic.program import NamedRule
from kgverify.ranking.corrupt import ALL

SIZE: Final = 64
"""Bytes of a problem."""


class Setting(NamedTuple):
    """What the problems of one run share, and how often it is drawn."""

    weight: int
    limits: Limits
    policy: PolicySpec = PolicySpec()
    num_corruptions: int = 1


SETTINGS: Final = (
    Setting(96, Limits(max_depth=8, max_atoms=5, max_resolvents=120)),
    Setting(80, Limits(max_depth=5, max_atoms=3, max_resolvents=4)),
    Setting(24, Limits(max_depth=6, max_atoms=4, max_resolvents=8), PolicySpec("two_tower", seed=1)),
    Setting(32, Limits(max_depth=4, max_atoms=2, max_resolvents=3, exclude_query=False)),
    Setting(10, Limits(max_depth=12, max_atoms=6, max_resolvents=60), num_corruptions=ALL),
    Setting(8, Limits(max_depth=3, max_atoms=4, max_resolvents=2), num_corruptions=4),
    Setting(6, Limits(max_depth=1, max_atoms=1, max_resolvents=1), num_corruptions=0),
)
_SETTING_OF: Final = tuple(setting for setting in SETTINGS for _ in range(setting.weight))

_FACT_SHAPES: Final = (
    *[""] * 24,
    *["single"] * 40,
    *["chain"] * 48,
    *["cycle"] * 20,
    *["fan out"] * 28,
    *["fan in"] * 12,
    *["loops"] * 12,
    *["complete"] * 8,
    *["scattered"] * 54,
    *["bulk chain"] * 6,
    *["bulk fan out"] * 3,
    *["bulk fan in"] * 1,
)
_X, _Y = Variable("X"), Variable("Y")
_TERMS: Final[tuple[Term, ...]] = (_X, _Y, Variable("Z"), Variable("W"), _X, _Y, *CONSTANTS[:2])
_NUM_BLOCKS: Final = 4
_NUM_RULES: Final = 4
_NUM_QUERIES: Final = 4


def decode_problem(data: bytes) -> Problem:
    """The problem of `SIZE` bytes. UserError for another number."""
    if len(data) != SIZE:
        raise UserError(f"expected {SIZE} bytes, found {len(data)}", where="decode_problem", fix=f"give {SIZE} bytes")
    setting = _SETTING_OF[data[0]]
    constants = CONSTANTS[: 2 + data[1] % (MOST_CONSTANTS - 1)]
    predicates = PREDICATES[: 2 + data[2] % 3]
    facts: list[NamedAtom] = []
    for at in range(4, 4 + 3 * _NUM_BLOCKS, 3):
        facts += _decode_facts(data[at], data[at + 1], data[at + 2], setting, constants, predicates)
    rules: list[NamedRule] = []
    for at in range(16, 16 + 6 * _NUM_RULES, 6):
        rules += _decode_rules(data[at : at + 6], setting, constants, predicates)
    few = constants + MANY[BULK - 2 : BULK + 4] if len(facts) > BULK else constants
    queries: list[NamedAtom] = []
    unranked: list[NamedAtom] = []
    for i, at in enumerate(range(40, 40 + 3 * _NUM_QUERIES, 3)):
        query, proof = _decode_query(data[at : at + 3], i, facts, rules, few, predicates, data[52:60])
        facts += proof
        if query is not None:
            ground = not (isinstance(query.first, Variable) or isinstance(query.second, Variable))
            (queries if ground and i < 2 else unranked).append(query)
    if data[3] & 7 == 7:
        facts += facts[: 1 + (data[3] >> 3) % 4]
    if data[3] & 7 == 6 and rules:
        rules.append(rules[(data[3] >> 3) % len(rules)])
    spread = Spread()
    if data[60] >= 240:
        facts, queries, spread = _collide(data[61], facts, queries, constants, predicates)
    if not queries and not unranked:
        queries.append(NamedAtom(predicates[0], constants[0], constants[-1]))
    return Problem(
        facts=tuple(facts),
        rules=tuple(rules),
        queries=tuple(queries),
        unranked=tuple(unranked),
        limits=setting.limits,
        policy=setting.policy,
        num_corruptions=setting.num_corruptions,
        sizes=_decode_sizes(data[62], data[63]),
        spread=spread,
    )


def draw_problems(seed: int, first: int = 0) -> Iterator[Problem]:
    """The problems of a seed, from the given place on, without end."""
    while True:
        yield decode_problem(draw_bytes(seed, first))
        first += 1


def draw_bytes(seed: int, place: int) -> bytes:
    """The bytes of the problem at a place of a seed's sequence."""
    return hashlib.shake_128(f"{seed}:{place}".encode()).digest(SIZE)


def _decode_facts(
    kind: int, predicate: int, rest: int, setting: Setting, constants: tuple[str, ...], predicates: tuple[str, ...]
) -> tuple[NamedAtom, ...]:
    shape = _FACT_SHAPES[kind]
    if not shape:
        return ()
    # The first predicates have most facts, the last one often none.
    name = predicates[min(predicate & 3, predicate >> 2 & 3) % len(predicates)]
    at, size = rest & 7, 1 + (rest >> 3) % 7
    if shape in ("fan out", "fan in"):
        most = min(setting.limits.max_resolvents, 8)
        size = max(1, most - 1 + (rest >> 3) % 3)
    elif shape.startswith("bulk"):
        if setting.num_corruptions == ALL:
            shape, size = "chain", 7
        else:
            size = BULK + 1 + (predicate >> 4) + rest % (BULK_BEYOND - 16)
    return fill_facts(shape, name, constants, at, size)


def _decode_rules(
    data: bytes, setting: Setting, constants: tuple[str, ...], predicates: tuple[str, ...]
) -> tuple[NamedRule, ...]:
    kind, names, terms, *rest = data
    if kind < 64:
        return ()
    num = len(predicates)
    # The head is rather one of the last predicates, so that derived ones and stored ones differ.
    p = predicates[num - 1 - min(names & 3, rest[2] & 3) % num]
    q, r, s = (predicates[(names >> shift & 3) % num] for shift in (2, 4, 6))
    a, b = constants[(terms & 15) % len(constants)], constants[(terms >> 4) % len(constants)]
    if kind < 208:
        return fill_rules((rest[0] * 256 + rest[1]) % len(RULES), (p, q, r, s), a, b)
    if kind < 224:
        length = max(1, setting.limits.max_atoms - 1 + rest[0] % 4)
        return (fill_long_rule(p, q, r, min(length, 7)),)
    head = NamedAtom(p, _TERMS[terms & 7], _TERMS[terms >> 3 & 7])
    body = tuple(NamedAtom(predicates[(x >> 6) % num], _TERMS[x & 7], _TERMS[x >> 3 & 7]) for x in rest)
    return (NamedRule(head, body[: 1 + (names >> 6)]),)


def _decode_query(
    data: bytes,
    place: int,
    facts: list[NamedAtom],
    rules: list[NamedRule],
    constants: tuple[str, ...],
    predicates: tuple[str, ...],
    choices: bytes,
) -> tuple[NamedAtom | None, list[NamedAtom]]:
    """A query, or none, and the facts that it takes to derive it."""
    kind, x, y = data
    a, b = constants[x % len(constants)], constants[y % len(constants)]
    predicate = predicates[(x >> 4) % len(predicates)]
    if place >= 2:
        if kind < 160 + 40 * (place - 2):
            return None, []
        if rules and kind & 1:
            predicate = rules[y % len(rules)].clause_head.predicate
        patterns = ((a, _X), (_X, b), (_X, _Y), (_X, _X), (a, _X))
        return NamedAtom(predicate, *patterns[(kind >> 1) % 5]), []
    if place == 1 and kind < 168:
        return None, []
    way = kind & 7
    if way == 7 and facts:
        return facts[(x * 256 + y) % len(facts)], []
    if way == 6 or not rules:
        return NamedAtom(predicate, a, b), []
    head = rules[(x >> 5) % len(rules)].clause_head
    bindings = {_X: a, _Y: b}
    query = NamedAtom(head.predicate, *(_bind(term, bindings, a, b) for term in head[1:]))
    if way < 3:
        proof: list[NamedAtom] = []
        _prove(query, rules, constants, choices, place, 2 + (kind >> 6 & 1), proof)
        return query, proof
    return query, []


def _prove(
    atom: NamedAtom,
    rules: list[NamedRule],
    constants: tuple[str, ...],
    choices: bytes,
    at: int,
    depth: int,
    proof: list[NamedAtom],
) -> None:
    """Facts from which an atom follows, by rules that the choices pick, through at most so many of them."""
    matching = [rule for rule in rules if rule.clause_head.predicate == atom.predicate] if depth else []
    choice = choices[at & 7]
    for i in range(len(matching)):
        rule = matching[(choice + i) % len(matching)]
        bindings = _match(rule.clause_head, atom)
        if bindings is None:
            continue
        for j, each in enumerate(rule.body[:4]):
            pick = choices[(at + j + 1) & 7]
            fresh = constants[pick % len(constants)]
            other = constants[(pick >> 3) % len(constants)]
            ground = NamedAtom(each.predicate, *(_bind(term, bindings, fresh, other) for term in each[1:]))
            _prove(ground, rules, constants, choices, at + j + 1, depth - 1 if pick & 1 or not j else 0, proof)
        return
    if len(proof) < 12:
        proof.append(atom)


def _bind(term: Term, bindings: dict[Variable, str], fresh: str, other: str) -> str:
    if not isinstance(term, Variable):
        return term
    if term not in bindings:
        bindings[term] = other if fresh in bindings.values() else fresh
    return bindings[term]


def _match(head: NamedAtom, atom: NamedAtom) -> dict[Variable, str] | None:
    bindings: dict[Variable, str] = {}
    for term, name in ((head.first, atom.first), (head.second, atom.second)):
        if isinstance(term, Variable):
            if bindings.setdefault(term, str(name)) != name:
                return None
        elif term != name:
            return None
    return bindings


def _collide(
    choice: int,
    facts: list[NamedAtom],
    queries: list[NamedAtom],
    constants: tuple[str, ...],
    predicates: tuple[str, ...],
) -> tuple[list[NamedAtom], list[NamedAtom], Spread]:
    """Constants numbered 256 apart: q(c1, c0) and q(c0, d0) have one key where a constant has 8 bits of it.

    The query leads to the atom that is no fact, by whatever rule has its head.
    """
    d = ("d0", "d1")
    stored = predicates[choice % len(predicates)]
    first = NamedAtom(stored, constants[0], constants[1])
    between = 256 - 2
    facts = [first, NamedAtom(stored, constants[1], constants[0]), NamedAtom(stored, d[0], d[1]), *facts]
    queries = [NamedAtom(query.predicate, constants[0], d[0]) for query in queries[:1]] + queries[1:]
    return facts, queries, Spread(between, choice >> 4 & 1, 2)


def _decode_sizes(first: int, second: int) -> Sizes:
    """Few slots, and windows that some steps do not fit in."""
    return Sizes(
        slots=1 + first % 3,
        atoms=(first >> 2 & 3) % 3,
        resolvents=first >> 4 & 3,
        match_window=(16, 8, 3, 12)[first >> 6],
        score_window=(16, 4, 8, 12)[second & 3],
        pool=(32, 32, 32, 6)[second >> 2 & 3],
    )
