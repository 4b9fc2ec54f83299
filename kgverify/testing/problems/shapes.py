"""Shapes of facts and rules that provers get wrong, with holes for symbols."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final

from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule, parse_rules

MOST_CONSTANTS: Final = 8
MOST_PREDICATES: Final = 4
BULK: Final = 50
"""A plausible cap; a bulk block has up to `BULK_BEYOND` facts more."""
BULK_BEYOND: Final = 20

CONSTANTS: Final = tuple(f"c{i}" for i in range(MOST_CONSTANTS))
PREDICATES: Final = tuple(f"p{i}" for i in range(MOST_PREDICATES))
MANY: Final = tuple(f"m{i}" for i in range(BULK + BULK_BEYOND))
"""The constants of bulk blocks."""

RULES: Final = tuple(
    map(
        parse_rules,
        (
            # Copies, inverses, cycles of rules: bodies that lead back to their own head.
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
            # Variables of the head alone, or of the body alone.
            "p(X,Y) q(X,Z)",
            "p(X,Y) q(V,W)",
            "p(X,Y) q(X,V) r(Z,Y)",
            "p(X,Y) q(X,V) r(Z,W)",
            # Variables that meet fresh ones in the step after.
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
"""Each item is one rule or several, with holes for the predicates p, q, r and s and the constants a and b."""

_HOLES: Final = tuple(
    sorted({name for rule in shape for atom in rule.atoms for name in atom if isinstance(name, str)}) for shape in RULES
)


def fill_rules(shape: int, predicates: tuple[str, ...], a: str, b: str) -> tuple[NamedRule, ...]:
    """Return the rules of a shape; predicates are those of the holes p, q, r and s."""
    names = dict(zip("pqrsab", (*predicates, a, b), strict=True))
    # What a shape has no hole for would fill the cache with equal rules.
    return _fill_rules(shape, tuple([names[hole] for hole in _HOLES[shape]]))


@lru_cache(maxsize=1 << 14)
def _fill_rules(shape: int, symbols: tuple[str, ...]) -> tuple[NamedRule, ...]:
    predicates = dict(zip(_HOLES[shape], symbols, strict=True))
    terms: dict[Term, Term] = dict(zip(_HOLES[shape], symbols, strict=True))
    return tuple([rule.rename(terms, predicates) for rule in RULES[shape]])


@lru_cache(maxsize=1 << 10)
def fill_long_rule(head: str, body: str, end: str, length: int) -> NamedRule:
    """Return `head(V0,Vn) <- body(V0,V1), ..., body, end(.., Vn)`, a rule of `length` body atoms."""
    names = [body] * (length - 1) + [end]
    atoms = tuple(NamedAtom(name, Variable(f"V{i}"), Variable(f"V{i + 1}")) for i, name in enumerate(names))
    return NamedRule(NamedAtom(head, Variable("V0"), Variable(f"V{length}")), atoms)


_PAIRS: Final[dict[str, Callable[[tuple[str, ...], int, int], Iterable[tuple[str, str]]]]] = {
    "single": lambda names, at, size: [(names[0], names[(1 + size % max(1, len(names) - 1)) % len(names)])],
    "chain": lambda names, at, size: islice(pairwise(names), size),
    "cycle": lambda names, at, size: pairwise((*names[: max(2, size)], names[0])),
    # A fan of any width, over further constants if necessary.
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
"""Shapes of facts: functions of the constants, the place of the first one, and the number of facts."""


@lru_cache(maxsize=1 << 15)
def fill_facts(shape: str, predicate: str, constants: tuple[str, ...], at: int, size: int) -> tuple[NamedAtom, ...]:
    """Return the facts of a shape over the constants; `at` is the constant with which it begins, `size` 1 or more."""
    turned = constants[at % len(constants) :] + constants[: at % len(constants)]
    return tuple([NamedAtom(predicate, a, b) for a, b in _PAIRS[shape](turned, at, size)])
