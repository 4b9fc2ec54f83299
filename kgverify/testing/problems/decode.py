"""Decode a string of bytes to a problem: every string of `SIZE` bytes gives one, and zeros a trivial one.

Each byte decides one thing, so that changing a byte changes one thing. Few settings of limits and policy occur, so
that many problems can share a run. Programs are drawn to meet these limits exactly and to exceed them by one.
"""

import hashlib
from collections.abc import Iterator
from itertools import count
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
    return _Decoder(data).decode()


def draw_problems(seed: int, first: int = 0, dialect: Dialect = OURS) -> Iterator[Problem]:
    """Yield the problems of a seed from an index on, without end, in a dialect."""
    for index in count(first):
        yield adapt_problem(decode_problem(draw_bytes(seed, index)), dialect, seed, index)


def draw_bytes(seed: int, index: int) -> bytes:
    """Return the bytes of the problem at an index of a seed's sequence."""
    return hashlib.shake_128(f"{seed}:{index}".encode()).digest(SIZE)


class _Decoder:
    """The bytes of a problem, the setting and the symbols that they choose, and the clauses decoded so far."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.setting = _SETTING_OF[data[0]]
        self.constants = CONSTANTS[: 2 + data[1] % (MOST_CONSTANTS - 1)]
        self.predicates = PREDICATES[: 2 + data[2] % 3]
        self.facts: list[NamedAtom] = []
        self.rules: list[NamedRule] = []

    def decode(self) -> Problem:
        """Return the problem."""
        data, setting, facts, rules = self.data, self.setting, self.facts, self.rules
        fan: tuple[str, tuple[NamedAtom, ...]] | None = None
        for at in range(4, 4 + 3 * _NUM_BLOCKS, 3):
            shape, block = _FACT_SHAPES[data[at]], self._decode_facts(*data[at : at + 3])
            facts += block
            if shape.startswith(("fan", "bulk")) and (fan is None or len(fan[1]) <= BULK):
                fan = shape, block
        for at in range(16, 16 + 6 * _NUM_RULES, 6):
            rules += self._decode_rules(*data[at : at + 6])
        goal = self._aim(*fan) if fan is not None and data[61] & 3 else None
        is_ranked = data[1] >= 192 or setting.num_corruptions != 1
        queries: list[NamedAtom] = []
        unranked: list[NamedAtom] = []
        named = self.constants + MANY[BULK - 2 : BULK + 4] if len(facts) > BULK else self.constants
        for i, at in enumerate(range(40, 40 + 3 * _NUM_QUERIES, 3)):
            query = self._decode_query(i, data[at : at + 3], named)
            if not i and goal is not None:
                query = goal
            if query is not None:
                (queries if query.is_ground and is_ranked and not i else unranked).append(query)
        if data[3] & 7 == 7:
            facts += facts[: 1 + (data[3] >> 3) % 4]
        if data[3] & 7 == 6 and rules:
            rules.append(rules[(data[3] >> 3) % len(rules)])
        spread = self._collide(queries) if data[60] >= 248 else NO_SPREAD
        if not queries and not unranked:
            queries.append(NamedAtom(self.predicates[0], self.constants[0], self.constants[-1]))
        return Problem(
            facts=tuple(facts),
            rules=tuple(rules),
            queries=tuple(queries),
            unranked=tuple(unranked),
            limits=setting.limits,
            policy=setting.policy,
            num_corruptions=setting.num_corruptions,
            sizes=self._decode_sizes(*data[62:]),
            spread=spread,
        )

    def _decode_facts(self, kind: int, predicate: int, rest: int) -> tuple[NamedAtom, ...]:
        shape = _FACT_SHAPES[kind]
        if not shape:
            return ()
        # The first predicates have most facts, and the last one often has none.
        name = self.predicates[min(predicate & 3, predicate >> 2 & 3) % len(self.predicates)]
        size = 1 + (rest >> 3) % 7
        if shape in ("fan out", "fan in"):
            size = max(1, min(self.setting.limits.max_resolvents, 8) - 1 + (rest >> 3) % 3)
        elif shape.startswith("bulk") and self.setting.num_corruptions == ALL:
            shape, size = "chain", 7
        elif shape.startswith("bulk"):
            size = BULK + 1 + (predicate >> 4) + rest % (BULK_BEYOND - 16)
        return fill_facts(shape, name, self.constants, rest & 7, size)

    def _decode_rules(self, kind: int, names: int, terms: int, *rest: int) -> tuple[NamedRule, ...]:
        if kind < 64:
            return ()
        predicates, num = self.predicates, len(self.predicates)
        # The head is mostly one of the last predicates, so that derived and stored ones differ.
        last = num - 1 - min(names & 3, rest[2] & 3) % num
        if names & 4:
            places = [last + 1 + (names >> 3 & 1) + i for i in range(3)]
        else:
            places = [names >> shift & 3 for shift in (2, 4, 6)]
        p, q, r, s = (predicates[place % num] for place in (last, *places))
        if kind < 208:
            a, b = (self.constants[each % len(self.constants)] for each in (terms & 15, terms >> 4))
            return fill_rules((rest[0] * 256 + rest[1]) % len(RULES), (p, q, r, s), a, b)
        if kind < 224:
            most = self.setting.limits.max_atoms
            return (fill_long_rule(p, q, r, min(max(1, most - 1 + rest[0] % 4), most + 1)),)
        body = [NamedAtom(predicates[(x >> 6) % num], _TERMS[x & 7], _TERMS[x >> 3 & 7]) for x in rest]
        return (NamedRule(NamedAtom(p, _TERMS[terms & 7], _TERMS[terms >> 3 & 7]), tuple(body[: 1 + (names >> 6)])),)

    def _decode_query(self, index: int, data: bytes, constants: tuple[str, ...]) -> NamedAtom | None:
        """Return a query, or None, and add facts that derive it."""
        kind, x, y = data
        facts, rules = self.facts, self.rules
        a, b = constants[x % len(constants)], constants[y % len(constants)]
        predicate = self.predicates[(x >> 4) % len(self.predicates)]
        if kind < (0, 144, 208, 176)[index]:
            return None
        if index == 3:
            if rules and kind & 1:
                predicate = rules[y % len(rules)].clause_head.predicate
            patterns = ((a, _X), (_X, b), (_X, _Y), (_X, _X), (a, _X))
            return NamedAtom(predicate, *patterns[(kind >> 1) % 5])
        way = kind & 7
        if way == 7 and facts:
            return facts[(x * 256 + y) % len(facts)]
        if way == 6 or not rules:
            return NamedAtom(predicate, a, b)
        query = _bind(rules[(x >> 5) % len(rules)].clause_head, {_X: a, _Y: b}, a, b)
        if way < 4:
            proof: list[NamedAtom] = []
            self._prove(query, constants, index, 2 + (kind >> 6 & 1), proof)
            # All facts of a proof or, for a near miss, all but the last.
            facts += proof[: len(proof) - (way == 3)]
        return query

    def _prove(self, atom: NamedAtom, constants: tuple[str, ...], at: int, depth: int, proof: list[NamedAtom]) -> None:
        """Append facts from which an atom follows by rules that the bytes pick, at most `depth` of them in a row."""
        choices = self.data[52:60]
        matching = [rule for rule in self.rules if rule.clause_head.predicate == atom.predicate] if depth else []
        for i in range(len(matching)):
            rule = matching[(choices[at & 7] + i) % len(matching)]
            bindings = unify(atom, rule.clause_head, is_named_variable)
            if bindings is None:
                continue
            for j, each in enumerate(rule.body[:4], 1):
                pick = choices[(at + j) & 7]
                ground = _bind(each, bindings, *(constants[i % len(constants)] for i in (pick, pick >> 3)))
                self._prove(ground, constants, at + j, depth - 1 if pick & 1 or j == 1 else 0, proof)
            return
        if len(proof) < 8:
            proof.append(atom)

    def _aim(self, shape: str, block: tuple[NamedAtom, ...]) -> NamedAtom:
        """Add a rule, and return a query, that reach all facts of a fan, or those of a long chain that lie beyond a cap."""
        predicates, choice = self.predicates, self.data[61] >> 2
        stored, other = block[0].predicate, predicates[choice % len(predicates)]
        head = predicates[-1] if predicates[-1] != stored else predicates[0]
        first = NamedAtom(stored, _Z, _X) if shape.endswith("in") else NamedAtom(stored, _X, _Z)
        at = min(BULK + choice % 4, len(block) - 1) if shape == "bulk chain" else 0
        start = block[0].second if shape.endswith("in") else block[at].first
        rule = NamedRule(NamedAtom(head, _X, _Y), (first, NamedAtom(other, _Z, _Y)))
        self.rules.insert(self.data[60] % (len(self.rules) + 1), rule)
        return NamedAtom(head, start, self.constants[choice % len(self.constants)])

    def _collide(self, queries: list[NamedAtom]) -> Spread:
        """Give constants numbers 256 apart, and lead a query to an atom that shares a fact's low 8 bits of each constant.

        With 8 bits for each constant, q(c1, c0) and q(c0, d0) have one key if c1 is numbered 1, and d0 256, more than c0.
        """
        choice, (c0, c1) = self.data[61], self.constants[:2]
        head, stored = (self.predicates[(choice + i) % len(self.predicates)] for i in range(2))
        self.facts[:0] = NamedAtom(stored, c0, c1), NamedAtom(stored, c1, c0), NamedAtom(stored, "d0", "d1")
        self.rules.append(NamedRule(NamedAtom(head, _X, _Y), (NamedAtom(stored, _X, _Y),)))
        queries[:1] = [NamedAtom(head, c0, "d0")]
        return Spread(256 - 2, choice >> 7, 2)

    def _decode_sizes(self, first: int, second: int) -> Sizes:
        """Return sizes with few slots, and with windows that some steps exceed."""
        return Sizes(
            slots=self.setting.slots * (1, 1, 1, 2)[first & 3],
            atoms=self.setting.padding[0],
            resolvents=self.setting.padding[1],
            match_window=(16, 8, 3, 12)[first >> 6],
            score_window=(16, 4, 8, 12)[second & 3],
            pool=(32, 32, 32, 6)[second >> 2 & 3],
        )


def _bind(atom: NamedAtom, bindings: dict[Term, Term], fresh: str, other: str) -> NamedAtom:
    """Return the ground atom; an unbound variable is bound to the fresh constant, or to the other if that is in use."""
    for term in atom[1:]:
        if isinstance(term, Variable) and term not in bindings:
            bindings[term] = other if fresh in bindings.values() else fresh
    return atom.rename(bindings)
