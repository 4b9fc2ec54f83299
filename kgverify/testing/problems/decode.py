"""Decode a string of bytes to a problem: every string of `SIZE` bytes gives one, and zeros a trivial one.

Each byte decides one thing, so that changing a byte changes one thing. Few settings of limits and policy occur, so
that many problems can share a run. Programs are drawn to meet these limits exactly and to exceed them by one.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from kgverify.engines.sizes import Sizes
from kgverify.errors import UserError
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.dialect import OURS, Dialect
from kgverify.program.limits import Limits
from kgverify.program.program import NamedRule
from kgverify.ranking.corrupt import ALL
from kgverify.step.clauses import is_named_variable, unify
from kgverify.testing.problems.problem import NO_SPREAD, SHORTEST, PolicySpec, Problem, Spread
from kgverify.testing.problems.shapes import (
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
from kgverify.testing.problems.switches import adapt_problem

SIZE: Final = 64
"""Length of the byte string of a problem."""


class Setting(NamedTuple):
    """The settings that the problems of one run share, the padding of goals and steps, and how often they are drawn.

    slots: the smallest number of slots of a problem
    """

    weight: int
    limits: Limits
    policy: PolicySpec = SHORTEST
    num_corruptions: int = 1
    padding: tuple[int, int] = (0, 0)
    slots: int = 1


SETTINGS: Final = (
    Setting(117, Limits(max_depth=5, max_atoms=3, max_resolvents=4)),
    Setting(84, Limits(max_depth=8, max_atoms=4, max_resolvents=24)),
    Setting(18, Limits(max_depth=6, max_atoms=4, max_resolvents=8), PolicySpec("two_tower", seed=1)),
    Setting(20, Limits(max_depth=4, max_atoms=2, max_resolvents=3, exclude_query=False), padding=(1, 2)),
    Setting(8, Limits(max_depth=8, max_atoms=7, max_resolvents=60), num_corruptions=ALL, slots=4),
    Setting(5, Limits(max_depth=3, max_atoms=4, max_resolvents=2), num_corruptions=4, padding=(2, 0), slots=2),
    Setting(4, Limits(max_depth=1, max_atoms=1, max_resolvents=1), num_corruptions=0, padding=(0, 1)),
)
_SETTING_OF: Final = tuple(setting for setting in SETTINGS for _ in range(setting.weight))

_FACT_SHAPES: Final = (
    *[""] * 68,
    *["single"] * 32,
    *["chain"] * 40,
    *["cycle"] * 20,
    *["fan out"] * 22,
    *["fan in"] * 10,
    *["loops"] * 8,
    *["complete"] * 8,
    *["scattered"] * 41,
    *["bulk chain"] * 4,
    *["bulk fan out"] * 2,
    *["bulk fan in"] * 1,
)
_X, _Y, _Z, _W = map(Variable, "XYZW")
_TERMS: Final[tuple[Term, ...]] = (_X, _Y, _Z, _W, _X, _Y, *CONSTANTS[:2])
_NUM_BLOCKS: Final = 4
_NUM_RULES: Final = 4
_NUM_QUERIES: Final = 4


def decode_problem(data: bytes) -> Problem:
    """Return the problem of `SIZE` bytes. UserError for another number."""
    if len(data) != SIZE:
        raise UserError(f"expected {SIZE} bytes, found {len(data)}", where="decode_problem", fix=f"give {SIZE} bytes")
    setting = _SETTING_OF[data[0]]
    constants = CONSTANTS[: 2 + data[1] % (MOST_CONSTANTS - 1)]
    predicates = PREDICATES[: 2 + data[2] % 3]
    facts: list[NamedAtom] = []
    fan: tuple[str, tuple[NamedAtom, ...]] | None = None
    for at in range(4, 4 + 3 * _NUM_BLOCKS, 3):
        block = _decode_facts(data[at], data[at + 1], data[at + 2], setting, constants, predicates)
        facts += block
        if _FACT_SHAPES[data[at]].startswith(("fan", "bulk")) and (fan is None or len(fan[1]) <= BULK):
            fan = _FACT_SHAPES[data[at]], block
    rules: list[NamedRule] = []
    for at in range(16, 16 + 6 * _NUM_RULES, 6):
        rules += _decode_rules(data[at : at + 6], setting, constants, predicates)
    goal = None
    if fan is not None and data[61] & 3:
        rule, goal = _aim(*fan, data[61] >> 2, constants, predicates)
        rules.insert(data[60] % (len(rules) + 1), rule)
    few = constants + MANY[BULK - 2 : BULK + 4] if len(facts) > BULK else constants
    queries: list[NamedAtom] = []
    unranked: list[NamedAtom] = []
    is_ranked = data[1] >= 192 or setting.num_corruptions != 1
    for i, at in enumerate(range(40, 40 + 3 * _NUM_QUERIES, 3)):
        query, proof = _decode_query(data[at : at + 3], i, facts, rules, few, predicates, data[52:60])
        facts += proof
        if not i and goal is not None:
            query = goal
        if query is not None:
            ground = not (isinstance(query.first, Variable) or isinstance(query.second, Variable))
            (queries if ground and is_ranked and not i else unranked).append(query)
    if data[3] & 7 == 7:
        facts += facts[: 1 + (data[3] >> 3) % 4]
    if data[3] & 7 == 6 and rules:
        rules.append(rules[(data[3] >> 3) % len(rules)])
    spread = NO_SPREAD
    if data[60] >= 248:
        spread = _collide(data[61], facts, rules, queries, constants, predicates)
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
        sizes=_decode_sizes(data[62], data[63], setting),
        spread=spread,
    )


def draw_problems(seed: int, first: int = 0, dialect: Dialect = OURS) -> Iterator[Problem]:
    """Yield the problems of a seed from an index on, without end, in a dialect."""
    while True:
        yield adapt_problem(decode_problem(draw_bytes(seed, first)), dialect, seed, first)
        first += 1


def draw_bytes(seed: int, index: int) -> bytes:
    """Return the bytes of the problem at an index of a seed's sequence."""
    return hashlib.shake_128(f"{seed}:{index}".encode()).digest(SIZE)


def _decode_facts(
    kind: int, predicate: int, rest: int, setting: Setting, constants: tuple[str, ...], predicates: tuple[str, ...]
) -> tuple[NamedAtom, ...]:
    shape = _FACT_SHAPES[kind]
    if not shape:
        return ()
    # The first predicates have most facts, and the last one often has none.
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
    # The head is mostly one of the last predicates, so that derived and stored ones differ.
    p = predicates[num - 1 - min(names & 3, rest[2] & 3) % num]
    if names & 4:
        q, r, s = (predicates[(predicates.index(p) + 1 + (names >> 3 & 1) + i) % num] for i in range(3))
    else:
        q, r, s = (predicates[(names >> shift & 3) % num] for shift in (2, 4, 6))
    a, b = constants[(terms & 15) % len(constants)], constants[(terms >> 4) % len(constants)]
    if kind < 208:
        return fill_rules((rest[0] * 256 + rest[1]) % len(RULES), (p, q, r, s), a, b)
    if kind < 224:
        length = max(1, setting.limits.max_atoms - 1 + rest[0] % 4)
        return (fill_long_rule(p, q, r, min(length, setting.limits.max_atoms + 1)),)
    head = NamedAtom(p, _TERMS[terms & 7], _TERMS[terms >> 3 & 7])
    body = tuple(NamedAtom(predicates[(x >> 6) % num], _TERMS[x & 7], _TERMS[x >> 3 & 7]) for x in rest)
    return (NamedRule(head, body[: 1 + (names >> 6)]),)


def _decode_query(
    data: bytes,
    index: int,
    facts: list[NamedAtom],
    rules: list[NamedRule],
    constants: tuple[str, ...],
    predicates: tuple[str, ...],
    choices: bytes,
) -> tuple[NamedAtom | None, list[NamedAtom]]:
    """Return a query, or None, and facts that derive it."""
    kind, x, y = data
    a, b = constants[x % len(constants)], constants[y % len(constants)]
    predicate = predicates[(x >> 4) % len(predicates)]
    if index == 3:
        if kind < 176:
            return None, []
        if rules and kind & 1:
            predicate = rules[y % len(rules)].clause_head.predicate
        patterns = ((a, _X), (_X, b), (_X, _Y), (_X, _X), (a, _X))
        return NamedAtom(predicate, *patterns[(kind >> 1) % 5]), []
    if kind < (0, 144, 208)[index]:
        return None, []
    way = kind & 7
    if way == 7 and facts:
        return facts[(x * 256 + y) % len(facts)], []
    if way == 6 or not rules:
        return NamedAtom(predicate, a, b), []
    head = rules[(x >> 5) % len(rules)].clause_head
    bindings = {_X: a, _Y: b}
    query = NamedAtom(head.predicate, *(_bind(term, bindings, a, b) for term in head[1:]))
    if way < 4:
        proof: list[NamedAtom] = []
        _prove(query, rules, constants, choices, index, 2 + (kind >> 6 & 1), proof)
        # All facts of a proof or, for a near miss, all but the last.
        return query, proof[: len(proof) - (way == 3)]
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
    """Append facts from which an atom follows by rules that the choices pick, at most `depth` of them in a row."""
    matching = [rule for rule in rules if rule.clause_head.predicate == atom.predicate] if depth else []
    choice = choices[at & 7]
    for i in range(len(matching)):
        rule = matching[(choice + i) % len(matching)]
        bindings = unify(atom, rule.clause_head, is_named_variable)
        if bindings is None:
            continue
        for j, each in enumerate(rule.body[:4]):
            pick = choices[(at + j + 1) & 7]
            fresh = constants[pick % len(constants)]
            other = constants[(pick >> 3) % len(constants)]
            ground = NamedAtom(each.predicate, *(_bind(term, bindings, fresh, other) for term in each[1:]))
            _prove(ground, rules, constants, choices, at + j + 1, depth - 1 if pick & 1 or not j else 0, proof)
        return
    if len(proof) < 8:
        proof.append(atom)


def _bind(term: Term, bindings: dict[Variable, str], fresh: str, other: str) -> str:
    if not isinstance(term, Variable):
        return term
    if term not in bindings:
        bindings[term] = other if fresh in bindings.values() else fresh
    return bindings[term]


def _aim(
    shape: str, block: tuple[NamedAtom, ...], choice: int, constants: tuple[str, ...], predicates: tuple[str, ...]
) -> tuple[NamedRule, NamedAtom]:
    """Return a rule and a query that reach all facts of a fan, or those of a long chain that lie beyond a cap."""
    stored = block[0].predicate
    head = predicates[-1] if predicates[-1] != stored else predicates[0]
    other = predicates[choice % len(predicates)]
    if shape.endswith("in"):
        first, start = NamedAtom(stored, _Z, _X), str(block[0].second)
    else:
        first = NamedAtom(stored, _X, _Z)
        start = str(block[min(BULK + choice % 4, len(block) - 1) if shape == "bulk chain" else 0].first)
    rule = NamedRule(NamedAtom(head, _X, _Y), (first, NamedAtom(other, _Z, _Y)))
    return rule, NamedAtom(head, start, constants[choice % len(constants)])


def _collide(
    choice: int,
    facts: list[NamedAtom],
    rules: list[NamedRule],
    queries: list[NamedAtom],
    constants: tuple[str, ...],
    predicates: tuple[str, ...],
) -> Spread:
    """Give constants numbers 256 apart, and lead a query to an atom that shares a fact's low 8 bits of each constant.

    With 8 bits for each constant, q(c1, c0) and q(c0, d0) have one key if c1 is numbered 1, and d0 256, more than c0.
    """
    head, stored = predicates[choice % len(predicates)], predicates[(choice + 1) % len(predicates)]
    c0, c1 = constants[:2]
    facts[:0] = NamedAtom(stored, c0, c1), NamedAtom(stored, c1, c0), NamedAtom(stored, "d0", "d1")
    rules.append(NamedRule(NamedAtom(head, _X, _Y), (NamedAtom(stored, _X, _Y),)))
    queries[:1] = [NamedAtom(head, c0, "d0")]
    return Spread(256 - 2, choice >> 7, 2)


def _decode_sizes(first: int, second: int, setting: Setting) -> Sizes:
    """Return sizes with few slots, and with windows that some steps exceed."""
    return Sizes(
        slots=setting.slots * (1, 1, 1, 2)[first & 3],
        atoms=setting.padding[0],
        resolvents=setting.padding[1],
        match_window=(16, 8, 3, 12)[first >> 6],
        score_window=(16, 4, 8, 12)[second & 3],
        pool=(32, 32, 32, 6)[second >> 2 & 3],
    )
