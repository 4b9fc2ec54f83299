"""The generator of problems.

It decodes them from bytes, in any dialect, and draws boundary cases. Every string of
`SIZE` bytes gives a problem; zeros give a trivial problem. Each byte decides one thing, so changing a byte changes one
thing. There are few settings of limits and policy, so that many problems can share a run. Programs are drawn to meet
these limits exactly, or to exceed them by one.

A run of many problems hides the boundaries of each: it has rules and facts, many constants, and only one last fact.
Therefore one problem in 16 of a campaign runs alone, and meets the sizes of its own batch, tables and limits exactly.
Most of these problems take few ticks of an evaluator, since a tick for one problem takes as long as a tick for a
thousand. A few are deep, or have very many symbols, facts, resolvents or candidates.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, islice, pairwise
from string import ascii_lowercase
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Sizes
from kgverify.errors import UserError
from kgverify.program.atoms import NamedAtom, Term, Variable, parse_atoms
from kgverify.program.limits import OURS, Dialect, Limits
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import NamedRule, Program, parse_rules
from kgverify.ranking.draw import ALL
from kgverify.step.clauses import is_named_variable, unify
from kgverify.testing.problems.problem import (
    DEFAULT_SIZES,
    SHORTEST,
    PolicySpec,
    Problem,
    list_constants,
    push_apart,
)
from kgverify.trace.model.columns import Columns, starts_of

MOST_CONSTANTS: Final = 8
MOST_PREDICATES: Final = 4
BULK: Final = 50
"""A plausible cap on facts. A bulk block exceeds it by up to `BULK_BEYOND` facts."""
BULK_BEYOND: Final = 20

CONSTANTS: Final = tuple(f"c{i}" for i in range(MOST_CONSTANTS))
PREDICATES: Final = tuple(f"p{i}" for i in range(MOST_PREDICATES))
MANY: Final = tuple(f"m{i}" for i in range(BULK + BULK_BEYOND))
"""The constants of bulk blocks."""

RULES: Final = tuple(
    map(
        parse_rules,
        (
            # Copies, inverses and cycles of rules: their bodies lead back to their own heads.
            "p(X,Y) q(X,Y)",
            "p(X,Y) q(Y,X)",
            "p(X,Y) p(Y,X)",
            "p(X,Y) q(X,Y); q(X,Y) p(X,Y)",
            "p(X,Y) q(X,Y); q(X,Y) p(Y,X)",
            "p(X,Y) p(X,Y) q(Y,Z)",
            "p(X,Y) q(X,Z) p(X,Y)",
            # Chains and closures.
            "p(X,Z) q(X,Y) r(Y,Z)",
            "p(X,Z) q(X,Y) p(Y,Z)",
            "p(X,Z) p(X,Y) q(Y,Z)",
            "p(X,Y) q(X,Y); p(X,Z) q(X,Y) p(Y,Z)",
            "p(X,Y) q(X,Y); p(X,Z) p(X,Y) p(Y,Z)",
            "p(X,Z) q(X,Y) r(Y,Z); r(X,Z) s(X,Y) q(Y,Z)",
            "p(X,Y) q(X,V) r(V,W) q(W,Y)",
            "p(X,Y) q(X,U) q(U,V) r(V,W) p(W,Y)",
            # Several rules for one head.
            "p(X,Y) q(X,Y); p(X,Y) q(Y,X); p(X,Y) r(X,Y)",
            "p(X,Y) q(X,Z) r(Z,Y); p(X,Y) r(X,Z) q(Z,Y); p(X,Y) r(Y,X)",
            # Repeated variables in heads and bodies.
            "p(X,X) q(X,Y)",
            "p(X,X) q(X,X) r(X,Y)",
            "p(X,X) q(X,a)",
            "p(X,Y) q(X,X) r(Y,Y)",
            "p(X,Y) q(Z,Z)",
            "p(X,Y) q(Z,Z) r(Z,Y)",
            "p(X,Y) q(Z,Y) s(X,Z); q(X,X) r(X,X)",
            "p(X,Y) q(Z,W) r(Z,Z)",
            "p(X,Y) q(Z,Y) r(X,Z); q(X,X) s(X,Y)",
            "p(X,Y) q(X,Z) r(Z,Y); q(X,X) s(X,Y)",
            # Variables that occur only in the head, or only in the body.
            "p(X,Y) q(X,Z)",
            "p(X,Y) q(V,W)",
            "p(X,Y) q(X,V) r(Z,Y)",
            "p(X,Y) q(X,V) r(Z,W)",
            # Variables that meet fresh variables in the next step.
            "p(X,Y) q(Z,Y) r(Z,W) s(W,V); q(X,Y) s(X,Z) r(Z,Y)",
            "p(X,Y) q(Z,Y) s(X,Z); q(X,Y) r(Y,Z) r(Z,X)",
            "p(X,Y) q(X,Z) q(Z,Y); q(X,Y) r(X,Z) r(Z,Y)",
            # Constants in heads and bodies.
            "p(a,Y) q(Y,b)",
            "p(a,b) q(b,a)",
            "p(X,a) q(b,X) r(X,a)",
            "p(X,Y) q(a,b) r(X,Y)",
            "p(X,Y) q(X,a) r(b,Y)",
            "p(X,Y) q(a,X) q(Y,b)",
            # Ground atoms after unification, which pruning deletes from the front, the middle and the end.
            "p(X,Y) q(X,Y) r(X,Y)",
            "p(X,Y) q(X,Y) r(Y,X) s(X,X)",
            "p(X,Y) q(X,Y) q(X,Y)",
            "p(X,Y) r(X,Z) q(X,Y) r(Y,Z)",
            "p(X,Y) p(X,Y) q(X,Y) r(X,Z)",
            # The same atoms in another order.
            "p(X,Y) q(X,Z) r(X,Y); r(X,Y) r(X,Y) q(X,Z)",
            "p(X,Y) q(X,Z) p(Y,X); p(X,Y) p(X,Y) q(Y,Z)",
            "p(X,Y) q(Y,Z) p(Y,X); p(X,Y) p(X,Y) q(X,Z)",
            "p(X,Y) q(X,Y) r(Y,X); q(X,Y) r(Y,X) p(X,Y)",
        ),
    )
)
"""Each item is one or more rules, with holes for the predicates p, q, r and s and the constants a and b."""

_HOLES: Final = tuple(
    sorted({name for rule in shape for atom in rule.atoms for name in atom if isinstance(name, str)}) for shape in RULES
)


def fill_rules(shape: int, predicates: tuple[str, ...], a: str, b: str) -> tuple[NamedRule, ...]:
    """Return the rules of a shape; `predicates` fill the holes p, q, r and s."""
    names = dict(zip("pqrsab", (*predicates, a, b), strict=True))
    # Arguments for which a shape has no hole would fill the cache with equal rules.
    return _fill_rules(shape, tuple([names[hole] for hole in _HOLES[shape]]))


def _fill_rules(shape: int, symbols: tuple[str, ...]) -> tuple[NamedRule, ...]:
    predicates = dict(zip(_HOLES[shape], symbols, strict=True))
    terms: dict[Term, Term] = dict(zip(_HOLES[shape], symbols, strict=True))
    return tuple([rule.rename(terms, predicates) for rule in RULES[shape]])


def fill_long_rule(head: str, body: str, end: str, length: int) -> NamedRule:
    """Return `head(V0,Vn) <- body(V0,V1), ..., body, end(.., Vn)`, a rule of `length` body atoms."""
    names = [body] * (length - 1) + [end]
    atoms = tuple(NamedAtom(name, Variable(f"V{i}"), Variable(f"V{i + 1}")) for i, name in enumerate(names))
    return NamedRule(NamedAtom(head, Variable("V0"), Variable(f"V{length}")), atoms)


_PAIRS: Final[dict[str, Callable[[tuple[str, ...], int, int], Iterable[tuple[str, str]]]]] = {
    "single": lambda names, at, size: [(names[0], names[(1 + size % max(1, len(names) - 1)) % len(names)])],
    "chain": lambda names, at, size: islice(pairwise(names), size),
    "cycle": lambda names, at, size: pairwise((*names[: max(2, size)], names[0])),
    # A fan of any width, with additional constants if necessary.
    "fan out": lambda names, at, size: [(names[0], end) for end in (names[1:] + MANY)[:size]],
    "fan in": lambda names, at, size: [(end, names[0]) for end in (names[1:] + MANY)[:size]],
    "loops": lambda names, at, size: [(each, each) for each in names[:size]],
    "complete": lambda names, at, size: [(a, b) for a in names[:3] for b in names[:3]],
    "scattered": lambda names, at, size: [
        (names[(at * (i + 2) + i) % len(names)], names[(size + i) * i % len(names)]) for i in range(size)
    ],
    "bulk chain": lambda names, at, size: pairwise((names[0], *MANY[: size - 1], names[-1])),
    "bulk fan out": lambda names, at, size: [(names[0], end) for end in MANY[:size]],
    "bulk fan in": lambda names, at, size: [(end, names[0]) for end in MANY[:size]],
}
"""Shapes of facts: functions of the constants, the index of the first constant, and the number of facts."""


def fill_facts(shape: str, predicate: str, constants: tuple[str, ...], at: int, size: int) -> tuple[NamedAtom, ...]:
    """Return the facts of a shape over the constants; `at` is the index of its first constant, `size` is at least 1."""
    turned = constants[at % len(constants) :] + constants[: at % len(constants)]
    return tuple([NamedAtom(predicate, a, b) for a, b in _PAIRS[shape](turned, at, size)])


SIZE: Final = 64
"""Length of the byte string of a problem."""


class Setting(NamedTuple):
    """The settings that the problems of one run share, with the padding of goals and steps, and the weight in draws.

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
    """Decode a problem from `SIZE` bytes. UserError for another number of bytes."""
    if len(data) != SIZE:
        raise UserError(f"expected {SIZE} bytes, found {len(data)}", where="decode_problem", fix=f"give {SIZE} bytes")
    return _Decoder(data).decode()


def draw_problems(seed: int, first: int = 0, dialect: Dialect = OURS) -> Iterator[Problem]:
    """Yield the endless sequence of a seed's problems in a dialect, starting at an index."""
    for index in count(first):
        yield adapt_problem(decode_problem(draw_bytes(seed, index)), dialect, seed, index)


def draw_simplest(dialect: Dialect) -> Problem:
    """Return a trivial problem in a dialect."""
    return put_in_dialect(decode_problem(bytes(SIZE)), dialect)


def draw_bytes(seed: int, index: int) -> bytes:
    """Return the bytes of the problem at an index of a seed's sequence."""
    return hashlib.shake_128(f"{seed}:{index}".encode()).digest(SIZE)


class _Decoder:
    """The bytes of a problem, the setting and symbols that they choose, and the clauses decoded so far."""

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
        queries, unranked = self._decode_queries(self._aim(*fan) if fan is not None and data[61] & 3 else None)
        if data[3] & 7 == 7:
            facts += facts[: 1 + (data[3] >> 3) % 4]
        if data[3] & 7 == 6 and rules:
            rules.append(rules[(data[3] >> 3) % len(rules)])
        num_apart = self._collide(queries) if data[60] >= 248 else None
        if not queries and not unranked:
            queries.append(NamedAtom(self.predicates[0], self.constants[0], self.constants[-1]))
        problem = Problem(
            facts=tuple(facts),
            rules=tuple(rules),
            queries=tuple(queries),
            unranked=tuple(unranked),
            limits=setting.limits,
            policy=setting.policy,
            num_corruptions=setting.num_corruptions,
            sizes=self._decode_sizes(*data[62:]),
        )
        return problem if num_apart is None else push_apart(problem, *num_apart)

    def _decode_facts(self, kind: int, predicate: int, rest: int) -> tuple[NamedAtom, ...]:
        shape = _FACT_SHAPES[kind]
        if not shape:
            return ()
        # The first predicates have the most facts, and the last one often has none.
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
        # The head mostly has one of the last predicates, so that derived and stored predicates differ.
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

    def _decode_queries(self, goal: NamedAtom | None) -> tuple[list[NamedAtom], list[NamedAtom]]:
        """Return the ranked and the unranked queries; a goal, if given, replaces the first query."""
        named = self.constants + MANY[BULK - 2 : BULK + 4] if len(self.facts) > BULK else self.constants
        places = range(40, 40 + 3 * _NUM_QUERIES, 3)
        first, *others = [self._decode_query(i, self.data[at : at + 3], named) for i, at in enumerate(places)]
        every = [each for each in (goal or first, *others) if each is not None]
        is_ranked = self.data[1] >= 192 or self.setting.num_corruptions != 1
        num_ranked = int(is_ranked and every[:1] == [goal or first] and every[0].is_ground)
        return every[:num_ranked], every[num_ranked:]

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
            # All facts of a proof or, for a near miss, all except the last.
            facts += proof[: len(proof) - (way == 3)]
        return query

    def _prove(self, atom: NamedAtom, constants: tuple[str, ...], at: int, depth: int, proof: list[NamedAtom]) -> None:
        """Append facts from which an atom follows by rules that the bytes pick, with at most `depth` rules in a row."""
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
        """Add a rule and return a query that reaches all facts of a fan, or the facts of a long chain beyond a cap."""
        predicates, choice = self.predicates, self.data[61] >> 2
        stored, other = block[0].predicate, predicates[choice % len(predicates)]
        head = predicates[-1] if predicates[-1] != stored else predicates[0]
        first = NamedAtom(stored, _Z, _X) if shape.endswith("in") else NamedAtom(stored, _X, _Z)
        at = min(BULK + choice % 4, len(block) - 1) if shape == "bulk chain" else 0
        start = block[0].second if shape.endswith("in") else block[at].first
        rule = NamedRule(NamedAtom(head, _X, _Y), (first, NamedAtom(other, _Z, _Y)))
        self.rules.insert(self.data[60] % (len(self.rules) + 1), rule)
        return NamedAtom(head, start, self.constants[choice % len(self.constants)])

    def _collide(self, queries: list[NamedAtom]) -> tuple[int, int, int]:
        """Lead a query to an atom whose constants agree with a fact's in the low 8 bits.

        Return the arguments of `push_apart` that make the ids of constants differ by 256.

        With 8 bits for each constant, q(c1, c0) and q(c0, d0) have the same key if c1 is c0 + 1 and d0 is c0 + 256.
        """
        choice, (c0, c1) = self.data[61], self.constants[:2]
        head, stored = (self.predicates[(choice + i) % len(self.predicates)] for i in range(2))
        self.facts[:0] = NamedAtom(stored, c0, c1), NamedAtom(stored, c1, c0), NamedAtom(stored, "d0", "d1")
        self.rules.append(NamedRule(NamedAtom(head, _X, _Y), (NamedAtom(stored, _X, _Y),)))
        queries[:1] = [NamedAtom(head, c0, "d0")]
        return 256 - 2, choice >> 7, 2

    def _decode_sizes(self, first: int, second: int) -> Sizes:
        """Return sizes with few slots, and windows that some steps exceed."""
        return Sizes(
            slots=self.setting.slots * (1, 1, 1, 2)[first & 3],
            atoms=self.setting.padding[0],
            resolvents=self.setting.padding[1],
            match_window=(16, 8, 3, 12)[first >> 6],
            score_window=(16, 4, 8, 12)[second & 3],
            pool=(32, 32, 32, 6)[second >> 2 & 3],
        )


def _bind(atom: NamedAtom, bindings: dict[Term, Term], fresh: str, other: str) -> NamedAtom:
    """Return the ground atom.

    An unbound variable is bound to the fresh constant, or to the other constant if that is in use.
    """
    for term in atom[1:]:
        if isinstance(term, Variable) and term not in bindings:
            bindings[term] = other if fresh in bindings.values() else fresh
    return atom.rename(bindings)


SWITCHED_EVERY: Final = 2
"""The distance between two problems with clauses for a switch, in dialects other than the default."""
DEEPEST: Final = 20
"""The largest depth limit in dialects in which up to that many uncounted steps may precede each counted step."""
MOST_PATHS: Final = 256
"""The approximate maximum of paths of a derivation in a dialect that searches with several."""
MOST_CROWDED: Final = 8
"""The largest number of resolvents of a step that a crowd exceeds."""

_PREDICATES_OF_LETTERS: Final = {letter: f"s{letter}" for letter in ascii_lowercase}
_CONSTANTS_OF_LETTERS: Final[dict[Term, Term]] = {letter: f"k{letter}" for letter in ascii_lowercase}


class _Clauses(NamedTuple):
    """Facts, rules and a query as text: `a(X,b)` has the predicate `sa`, the variable X and the constant `kb`."""

    facts: str
    rules: str
    query: str = "a(i,j)"
    is_ranked: bool = False


def put_in_dialect(problem: Problem, dialect: Dialect) -> Problem:
    """Return the problem in a dialect, with a policy that the dialect supports and a depth that keeps derivations short."""
    limits = msgspec.structs.replace(problem.limits, dialect=dialect)
    deepest = max(MOST_PATHS // dialect.searching.size, 2)
    if dialect.skips_unary or "max_atoms" not in dialect.filters:
        deepest = min(deepest, DEEPEST)
    if deepest < limits.max_depth and dialect != OURS:
        limits = msgspec.structs.replace(limits, max_depth=deepest)
    # `two_tower` embeds the variables of at most `max_atoms` atoms.
    return replace(problem, limits=limits, policy=problem.policy if "max_atoms" in dialect.filters else SHORTEST)


def adapt_problem(problem: Problem, dialect: Dialect, seed: int, index: int) -> Problem:
    """Adapt the problem drawn at an index of a seed's sequence to a dialect.

    The default dialect changes nothing. The problem keeps its settings, so that it can share a run with others. Every
    second problem gets clauses and a query for which a switch matters, each switch in turn.
    """
    if dialect == OURS:
        return problem
    problem = put_in_dialect(problem, dialect)
    if index % SWITCHED_EVERY:
        return problem
    choice = int.from_bytes(hashlib.shake_128(f"{seed}:{index}:switch".encode()).digest(4))
    return add_switch(problem, index // SWITCHED_EVERY, choice)


def add_switch(problem: Problem, number: int, choice: int) -> Problem:
    """Return the problem with the clauses and the query of a shape, after or before its own."""
    # In a dialect that searches, every second one is for the search.
    is_web = problem.limits.dialect.search != OURS.search and number % 2
    shape = (_weave if is_web else SHAPES[number % len(SHAPES)])(problem.limits, choice >> 1)
    facts, (query,) = (
        tuple([atom.rename(_CONSTANTS_OF_LETTERS, _PREDICATES_OF_LETTERS) for atom in parse_atoms(text)])
        for text in (shape.facts, shape.query)
    )
    rules = tuple([rule.rename(_CONSTANTS_OF_LETTERS, _PREDICATES_OF_LETTERS) for rule in parse_rules(shape.rules)])
    before = choice & 1
    return replace(
        problem,
        facts=(*facts, *problem.facts) if before else (*problem.facts, *facts),
        rules=(*rules, *problem.rules) if before else (*problem.rules, *rules),
        queries=problem.queries + (query,) * shape.is_ranked,
        unranked=problem.unranked + (query,) * (not shape.is_ranked),
    )


def _many(pattern: str, num: int) -> list[str]:
    """Return a pattern with each of many constants in place of `*`."""
    return [pattern.replace("*", letter) for letter in ascii_lowercase[10 : 10 + num]]


def _crowd(limits: Limits, pattern: str, rule: str) -> str:
    """Return a rule between others: on each side, the largest number that a step may have."""
    num = min(limits.max_resolvents, MOST_CROWDED)
    others = _many(pattern, 2 * num)
    return "; ".join([*others[:num], rule, *others[num:]])


def _chain(limits: Limits, choice: int) -> _Clauses:
    """Return a chain of rules with one atom each, longer than the depth allows, that leads to a fact or to nothing."""
    letters = "a" + "lmnopqrstuvwxyzbc"[: min(limits.max_depth + choice % 3, 16)]
    rules = "; ".join([f"{one}(X,Y) {other}(X,Y)" for one, other in pairwise(letters)])
    return _Clauses(f"{letters[-1]}(i,j)" if choice // 3 % 4 else "", rules)


def _weave(limits: Limits, choice: int) -> _Clauses:
    """Return rules of one atom between four layers, forwards and back to the second one. Each bit adds a rule or a fact.

    Several paths reach a goal, each after other goals. Steps have different numbers of resolvents, of equal scores.
    Paths end in a proof or in nothing, at different depths.
    """
    edges = [f"{one}(X,Y) {other}(X,Y)" for ones, others in _WEB for one in ones for other in others]
    facts = [f"{letter}(i,j)" for letter in "ehk" if (choice := choice >> 1) & 1]
    return _Clauses(" ".join(facts), "; ".join([edge for edge in edges if (choice := choice >> 1) & 1]))


_WEB: Final = (("a", "bcd"), ("bcd", "efg"), ("efg", "hk"), ("efg", "bcd"))


SHAPES: Final[tuple[Callable[[Limits, int], _Clauses], ...]] = (
    # Unification in one pass.
    lambda limits, choice: _Clauses("b(i,i)", "a(X,X) b(X,X)", ("a(i,Y)", "a(Y,i)", "a(X,Y)", "a(X,X)")[choice % 4]),
    # A rule and a fact whose resolvents have equal scores; one of them leads to a proof.
    lambda limits, choice: _Clauses(
        f"b(i,j) d(k,k) {('e(j,j)', 'e(k,k)')[choice % 2]}", "a(X,Y) b(X,Z) c(Z,Z); b(X,k) d(k,k); c(X,X) e(X,X)"
    ),
    # Two rules whose resolvents have equal scores; one of them leads to a proof.
    lambda limits, choice: _Clauses(("e(j,j)", "e(k,k)")[choice % 2], "a(X,Y) c(k,k); a(X,Y) c(j,j); c(X,X) e(X,X)"),
    # The query is a fact.
    lambda limits, choice: _Clauses(
        "a(i,j) b(i,j)", ("a(X,Y) a(Y,X)", "a(X,Y) c(X,Y)")[choice % 2], is_ranked=choice % 4 < 2
    ),
    # A body that is one atom too long unless facts are deleted, after or before a shorter body.
    lambda limits, choice: _Clauses(
        "b(i,j)",
        "; ".join([f"a(X,Y){' b(X,Y)' * limits.max_atoms} c(X,Y)", "a(X,Y) d(X,Y)"][:: 1 if choice % 2 else -1])
        + "; c(X,Y) b(X,Y)",
    ),
    # A goal that was visited, once facts are deleted.
    lambda limits, choice: _Clauses("b(i,j) b(j,i)", "a(X,Y) a(X,Y) b(X,Y); a(X,Y) c(Y,X); c(X,Y) a(X,Y) b(Y,X)"),
    # Two rules that prove the query, and others that do not, one of them with too many atoms.
    lambda limits, choice: _Clauses(
        "b(i,j) b(j,i)",
        f"a(X,Y) c(X,Y); a(X,Y) b(X,Y); a(X,Y) b(Y,X); a(X,Y){' d(X,Y)' * (limits.max_atoms + 1)}",
    ),
    # A rule that proves the query, in the next step or at once, in a crowd of rules that do not.
    lambda limits, choice: _Clauses(
        ("d(i,j)", "b(i,j)")[choice % 2],
        _crowd(limits, "a(X,Y) c(X,*)", "a(X,Y) b(X,Y)") + ("; b(X,Y) d(X,Y)", "")[choice % 2],
    ),
    # A rule that leads to a proof in a crowd of rules that lead back.
    lambda limits, choice: _Clauses("c(i,j)", _crowd(limits, "a(X,Y) a(X,Y)", "a(X,Y) b(X,Y)") + "; b(X,Y) c(X,Y)"),
    # A rule that leads to a proof in a crowd of rules of too many atoms.
    lambda limits, choice: _Clauses(
        "c(i,j)",
        _crowd(limits, f"a(X,Y) d(X,*){' d(X,Y)' * limits.max_atoms}", "a(X,Y) b(X,Y)") + "; b(X,Y) c(X,Y)",
    ),
    # A body whose first atoms follow and whose last one, beyond the limit, does not.
    lambda limits, choice: _Clauses(
        " ".join(_many("c(*,*)", limits.max_atoms)),
        f"a(X,Y) {' '.join(_many('b(*,*)', limits.max_atoms))} d(X,Y); b(X,X) c(X,X)",
    ),
    # A goal that was visited, once atoms beyond the limit are cut off.
    lambda limits, choice: _Clauses("", f"a(X,Y){' a(X,Y)' * (limits.max_atoms + choice % 2)}"),
    # Rules that lead back to the same atoms, in another order or repeated.
    lambda limits, choice: _Clauses(
        "",
        (
            "a(X,Y) b(X,Z) c(Z,Y); b(X,Y) b(X,Y) c(Y,Z); b(X,Y) c(W,Z) b(X,W)",
            "a(X,Y) a(X,Y) a(X,Y); a(X,Y) b(X,Y) c(X,Y)",
        )[choice % 2],
    ),
    # The same goal with its arguments swapped.
    lambda limits, choice: _Clauses("", "a(X,Y) a(Y,X)", ("a(i,j)", "a(i,X)", "a(i,i)")[choice % 3]),
    # The same goal with a new variable.
    lambda limits, choice: _Clauses(
        "", ("a(X,Y) a(Z,Y)", "a(X,Y) a(X,Z)")[choice % 2], ("a(i,j)", "a(X,j)")[choice // 2 % 2]
    ),
    _chain,
    # A ranked query whose proof has the same log-probability as the failures of its corruptions.
    lambda limits, choice: _Clauses("c(i,j)", "a(X,Y) b(X,Y); a(X,Y) d(X,Y); b(X,Y) c(X,Y)", is_ranked=True),
    # Two rules with equal resolvents.
    lambda limits, choice: _Clauses("c(i,j)", "a(X,Y) b(X,Y); a(X,Z) b(X,Z); a(X,Y) d(Y,X); b(X,Y) c(X,Y)"),
)
"""The shapes, used in turn: functions of the limits and a number that selects a variant."""


ALONE_EVERY: Final = 16
"""The distance between two problems that run alone."""
MOST_TICKS: Final = 16
"""The approximate maximum of ticks for a pool of many candidates, or for a step of many clauses."""

_LAST: Final = "z"
"""A constant that no other problem has: the last constant of the facts."""
_MANY_SYMBOLS: Final = (1 << 14, 1 << 14, 1 << 15, 1 << 16)
_BYTE: Final = 1 << 8
_WORD: Final = 1 << 16


def runs_alone(index: int) -> bool:
    """Return whether the problem at an index of a seed's sequence runs alone."""
    return index % ALONE_EVERY == ALONE_EVERY - 1


def draw_boundary_problem(seed: int, index: int) -> Problem:
    """Return the problem that runs alone at an index of a seed's sequence. Its sizes do not fit it yet."""
    pick = _Choices(seed, index, "program")
    turn = index // ALONE_EVERY
    for period, phase, draw in _RARE:
        if turn % period == phase:
            return draw(pick, turn // period)
    if turn % 512 == 100:
        num_apart = _MANY_SYMBOLS[turn // 512 % 4] - pick(4), pick(2), pick(3)
        return push_apart(_small(seed, index, pick), *num_apart)
    small = _small(seed, index, pick)
    # Few symbols, but keys of facts beyond 32 bits.
    return push_apart(small, 3000, 256, pick(3)) if turn % 128 == 26 else small


class _Choices:
    """Choices that a seed and an index determine."""

    def __init__(self, seed: int, index: int, what: str) -> None:
        self._bytes = iter(hashlib.shake_128(f"{seed}:{index}:{what}".encode()).digest(64))

    def __call__(self, num: int) -> int:
        """Return a number below `num`."""
        return next(self._bytes) % num


def _small(seed: int, index: int, pick: _Choices) -> Problem:
    """Return a drawn program, or part of it, with a few queries or one."""
    drawn = decode_problem(draw_bytes(seed, index))
    facts, rules = drawn.facts, drawn.rules
    shape = pick(16)
    if shape < 5:
        rules = ()
    elif shape < 7:
        facts = ()
    elif shape < 9:
        facts, rules = _with_one_constant(facts, rules)
    if pick(2) or not (facts or rules):
        # The last constant of the facts is the first argument of the last fact.
        name = "pz" if pick(2) or not facts else facts[-1].predicate
        facts = (*facts, NamedAtom(name, _LAST, _LAST if shape in (7, 8) or pick(4) == 0 else "c0"))
        if shape in (7, 8):
            facts, rules = _with_one_constant(facts, rules)
    queries = [_query(facts, rules, pick) for _ in range((1, 1, 1, 1, 1, 1, 2, 3)[pick(8)])]
    ranked: tuple[NamedAtom, ...] = ()
    if pick(5) == 0:
        constants = [*list_constants([*facts, *queries])] or ["c0"]
        ranked = (_bind_twice(queries.pop(), constants[-1], constants[pick(len(constants))]),)
    limits = Limits(
        max_depth=(1, 1, 1, 1, 1, 1, 1, 2, 2, 4)[pick(10)],
        max_atoms=1 + pick(5),
        max_resolvents=(1, 2, 4, 24)[pick(4)],
        exclude_query=pick(4) > 0,
    )
    return Problem(
        facts=facts,
        rules=rules,
        queries=ranked,
        unranked=tuple(queries),
        limits=limits,
        policy=PolicySpec("two_tower", seed=1) if pick(16) == 0 else PolicySpec(),
        num_corruptions=(0, 0, 1, 1, ALL)[pick(5)] if len(list_constants(facts)) < 12 else 1,
    )


def _build(facts: Iterable[NamedAtom], rules: str, unranked: str, limits: tuple[int, int, int]) -> Problem:
    """Return a problem with rules and queries as text, and with limits of depth, atoms and resolvents."""
    return Problem(facts=tuple(facts), rules=parse_rules(rules), unranked=parse_atoms(unranked), limits=Limits(*limits))


def _with_one_constant(
    facts: Sequence[NamedAtom], rules: Sequence[NamedRule]
) -> tuple[tuple[NamedAtom, ...], tuple[NamedRule, ...]]:
    """Return facts and rules with all constants replaced by one."""
    names: dict[Term, Term] = {**dict.fromkeys(list_constants([*facts, *chain(*(rule.atoms for rule in rules))]), "c0")}
    return tuple(dict.fromkeys(fact.rename(names) for fact in facts)), tuple(rule.rename(names) for rule in rules)


def _facts(predicate: str, pairs: Iterable[tuple[str, str]]) -> tuple[NamedAtom, ...]:
    return tuple([NamedAtom(predicate, a, b) for a, b in pairs])


def _query(facts: Sequence[NamedAtom], rules: Sequence[NamedRule], pick: _Choices) -> NamedAtom:
    """Return a query that a rule or one of the last facts may match, with up to two variables."""
    if rules and (pick(2) or not facts):
        head = rules[-1 - pick(min(3, len(rules)))].clause_head
        constants = [*list_constants(facts)] or ["c0"]
        atom = _bind_twice(head, constants[pick(len(constants))], constants[-1])
    else:
        atom = facts[-1 - pick(2) * pick(len(facts))] if facts else NamedAtom("p", "c0", "c0")
    pattern = pick(6)
    first, second = (_X if pattern in (1, 3, 4) else atom.first), (_Y if pattern in (2, 3) else atom.second)
    return NamedAtom(atom.predicate, first, _X if pattern == 4 else second)


def _bind_twice(atom: NamedAtom, first: str, second: str) -> NamedAtom:
    a, b = (name if isinstance(term, Variable) else term for term, name in zip(atom[1:], (first, second), strict=True))
    return NamedAtom(atom.predicate, a, b)


def _deep(pick: _Choices, depth: int) -> Problem:
    """Return a chain whose proof takes about as many steps as allowed, or a cycle that leads back to the first goal."""
    # A link takes two steps: the rule, and its first atom.
    length = (depth - 1 - pick(3)) // 2
    names = [f"c{i}" for i in range(length + 1)]
    pairs = [*pairwise(names)]
    if pick(2):
        pairs[-1] = names[-2], names[0]
    facts = (*_facts("q", pairs), NamedAtom("s", names[-1], names[-1]))
    return _build(facts, "p(X,Z) q(X,Y) p(Y,Z); p(X,X) s(X,X)", f"p({names[pick(2)]},{names[-1]})", (depth, 2, 4))


def _wide(pick: _Choices, number: int) -> Problem:
    """Return about 256 facts or rules that match in one step, or about 256 candidates, each kind in turn."""
    num = _BYTE - 1 + pick(4)
    many = [f"m{i}" for i in range(num)]
    kept, kind = (_BYTE, _BYTE, _BYTE + 1, 2)[pick(4)], number % 4
    if kind == 0:
        # About the same number on either side.
        fact = NamedAtom("q", many[num // 2], many[0])
        ranked = replace(_build([fact], "", "q(X,Y)", (2, 2, kept)), queries=(fact,), unranked=())
        return replace(ranked, constants=tuple(many[: num // 2]), num_corruptions=ALL)
    if kind == 1:
        # The last resolvent has the fewest variables, and is chosen.
        num = max(num, _BYTE + 1)
        rules = "p(X,Y) q(X,Y); " * (num - 1) + "p(X,Y) q(X,c0)"
        return _build(parse_atoms("r(c0,c0)"), rules, "p(c0,Y)", (2, 2, num - pick(4) // 3))
    pairs = [("c0", name) if kind == 2 else (name, "c0") for name in many]
    rule = "p(X,Y) q(X,Z) r(Z,Y)" if kind == 2 else "p(X,Y) q(Z,X) r(Z,Y)"
    return _build(_facts("q", pairs), rule, "p(c0,c0)", (2, 2, kept))


def _without_facts(pick: _Choices) -> Problem:
    """Return a single rule, and queries of the first predicate and constant, with each argument bound or free."""
    return _build((), f"p(X,Y) {'pq'[pick(2)]}(Y,X)", "p(c0,Y) p(X,c0) p(X,X) p(X,Y)", (2, 1, 2))


def _many_facts(pick: _Choices) -> Problem:
    """Return more facts of a predicate, and more constants, than 16 bits can number. The last of them matter."""
    names = [f"m{i}" for i in range(_WORD + 2)]
    *_, a, b, c = names
    many = _build(_facts("q", pairwise(names)), "p(X,Y) q(X,Z) q(Z,Y)", f"p({a},Y) q(X,{c}) q({b},Y)", (3, 2, 4))
    return replace(many, queries=(NamedAtom("p", a, c),), num_corruptions=1 + pick(2))


def _many_resolvents(num: int, kept: int) -> Problem:
    """Return a step with `num` resolvents. The limit keeps `kept` of them."""
    facts = _facts("q", [("c0", f"m{i}") for i in range(num)])
    sizes = Sizes(slots=1, match_window=num, score_window=kept, pool=1)
    return replace(_build(facts, "p(X,Y) q(X,Z) r(Z,Y)", "p(c0,c0)", (2, 2, kept)), sizes=sizes)


def _many_candidates() -> Problem:
    """Return more candidates of one query than 16 bits can number."""
    names = [f"m{i}" for i in range(_WORD // 2 + 1)]
    return Problem(
        facts=_facts("q", [(a, "c0") for a in names[-2:]]),
        queries=(NamedAtom("q", names[-1], names[0]),),
        constants=tuple(names),
        num_corruptions=ALL,
        limits=Limits(max_depth=1, max_atoms=1, max_resolvents=1),
        sizes=Sizes(slots=4096, match_window=8192, score_window=4096, pool=_WORD),
    )


_RARE: Final[tuple[tuple[int, int, Callable[[_Choices, int], Problem]], ...]] = (
    (2048, 120, lambda pick, number: _many_facts(pick)),
    (4096, 248, lambda pick, number: _many_resolvents(_WORD + 2, _WORD + 1)),
    (4096, 376, lambda pick, number: _deep(pick, _BYTE + 8 + pick(8))),
    (16384, 504, lambda pick, number: _many_candidates()),
    (128, 20, lambda pick, number: _deep(pick, 12 + pick(8))),
    (64, 42, _wide),
    (64, 10, lambda pick, number: _without_facts(pick)),
)
"""The rare problems that run alone: the period, the first turn, and the function. If several are due, the first is drawn.

Expensive ones recur at fixed intervals: each early in a campaign, and no two in one block.
"""


def fit_sizes(problem: Problem, program: Program, columns: Columns, seed: int, index: int) -> Problem:
    """Return the problem with sizes of the batch that its first steps fill exactly, or fail to fill by one.

    columns: the reference's result for the problem run alone
    """
    if problem.sizes != DEFAULT_SIZES:
        return problem
    pick = _Choices(seed, index, "sizes")
    limits, steps = problem.limits, columns.steps
    first_steps = starts_of(columns.candidates.num_steps)[:-1]
    kinds = columns.resolvents.kind[starts_of(steps.num_resolvents)[:-1]]
    resolvents = np.where(kinds == GoalKind.GOAL, steps.num_resolvents, 0)[first_steps]
    clauses = count_clauses(program, columns.candidates.atom)
    num = len(clauses)
    slots = (num, num, num, num, num, num + 1, max(1, num - 1), 1)[pick(8)]
    pool = (num, num, num, num, num, num + 1, max(1, num - 1), (num + 1) // 2)[pick(8)]
    if num > MOST_TICKS:
        slots, pool = num - pick(2), num - pick(2)
    held = max(1, slots - (pick(4) == 0))
    tried, scored = int(clauses[:held].sum()), int(resolvents[:held].sum())
    # Later steps may try more clauses than the first ones.
    least = max(1, len(program.facts) // 4)
    sizes = Sizes(
        slots=slots,
        atoms=(0, 0, 0, 1)[pick(4)],
        resolvents=(0, 0, 0, 1)[pick(4)],
        match_window=max(least, tried + (0, 0, 0, 0, 1, 1, 16, -1)[pick(8)]),
        score_window=max(limits.max_resolvents, scored + (0, 0, 0, 1)[pick(4)]),
        pool=pool,
    )
    return replace(problem, sizes=sizes)


def count_clauses(program: Program, atoms: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count the clauses that an index by predicate and bound argument returns for each atom, int32 [N, 3]: int64 [N]."""
    heads = [rule.clause_head.predicate for rule in program.rules]
    counts = []
    for predicate, first, second in atoms.tolist():
        matches = program.facts[:, 0] == predicate
        for column, term in ((1, first), (2, second)):
            if term >= 0:
                matches &= program.facts[:, column] == term
        counts.append(heads.count(predicate) + int(matches.sum()))
    return np.array(counts, np.int64)
