"""Shapes of facts and rules that provers get wrong, with holes for symbols."""

from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule

MOST_CONSTANTS: Final = 8
MOST_PREDICATES: Final = 4
BULK: Final = 50
"""A plausible cap; a bulk block has up to `BULK_BEYOND` facts more."""
BULK_BEYOND: Final = 20

CONSTANTS: Final = tuple(f"c{i}" for i in range(MOST_CONSTANTS))
PREDICATES: Final = tuple(f"p{i}" for i in range(MOST_PREDICATES))
MANY: Final = tuple(f"m{i}" for i in range(BULK + BULK_BEYOND))
"""The constants of bulk blocks."""


class RuleAtom(NamedTuple):
    """An atom with holes: predicate `p`, `q`, `r` or `s`; a lower-case term is a constant `a` or `b`."""

    predicate: int
    first: Term
    second: Term


def _atoms(text: str) -> tuple[RuleAtom, ...]:
    def term(letter: str) -> Term:
        return Variable(letter) if letter.isupper() else letter

    return tuple(RuleAtom("pqrs".index(atom[0]), term(atom[2]), term(atom[4])) for atom in text.split())


RULES: Final = tuple(
    tuple(_atoms(rule) for rule in text.split("; "))
    for text in (
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
    )
)
"""Each item is one rule or several; a rule is its head and its body."""


def _find_holes(shape: tuple[tuple[RuleAtom, ...], ...]) -> tuple[int, bool, bool]:
    """Return the number of predicates of a shape, and whether it has the holes a and b."""
    atoms = [atom for rule in shape for atom in rule]
    terms = [term for atom in atoms for term in atom[1:]]
    return 1 + max(atom.predicate for atom in atoms), "a" in terms, "b" in terms


_HOLES: Final = tuple(map(_find_holes, RULES))


def fill_rules(shape: int, predicates: tuple[str, ...], a: str, b: str) -> tuple[NamedRule, ...]:
    """Return the rules of a shape; predicates are those of the holes p, q, r and s."""
    # What a shape has no hole for would fill the cache with equal rules.
    num, has_a, has_b = _HOLES[shape]
    return _fill_rules(shape, predicates[:num], a if has_a else "", b if has_b else "")


@lru_cache(maxsize=1 << 14)
def _fill_rules(shape: int, predicates: tuple[str, ...], a: str, b: str) -> tuple[NamedRule, ...]:
    constants = {"a": a, "b": b}

    def fill(atom: RuleAtom) -> NamedAtom:
        first, second = (constants.get(t, t) if isinstance(t, str) else t for t in atom[1:])
        return NamedAtom(predicates[atom.predicate], first, second)

    return tuple(NamedRule(fill(head), tuple(map(fill, body))) for head, *body in RULES[shape])


@lru_cache(maxsize=1 << 10)
def fill_long_rule(head: str, body: str, end: str, length: int) -> NamedRule:
    """Return `head(V0,Vn) <- body(V0,V1), ..., body, end(.., Vn)`, a rule of `length` body atoms."""
    variables = [Variable(f"V{i}") for i in range(length + 1)]
    names = [body] * (length - 1) + [end]
    atoms = tuple(NamedAtom(name, a, b) for name, a, b in zip(names, variables, variables[1:], strict=False))
    return NamedRule(NamedAtom(head, variables[0], variables[-1]), atoms)


@lru_cache(maxsize=1 << 15)
def fill_facts(shape: str, predicate: str, constants: tuple[str, ...], at: int, size: int) -> tuple[NamedAtom, ...]:
    """Return the facts of a shape over the constants; `at` is the constant with which it begins."""
    num = len(constants)
    turned = constants[at % num :] + constants[: at % num]
    centre, others = turned[0], turned[1:]
    # A fan of any width, over further constants if necessary.
    ends = (others + MANY)[:size]
    if shape == "single":
        pairs = [(turned[0], turned[1 + size % max(1, num - 1)] if num > 1 else turned[0])]
    elif shape == "chain":
        pairs = list(pairwise(turned))[:size]
    elif shape == "cycle":
        loop = turned[: max(2, size)]
        pairs = list(zip(loop, loop[1:] + loop[:1], strict=True))
    elif shape == "fan out":
        pairs = [(centre, end) for end in ends]
    elif shape == "fan in":
        pairs = [(end, centre) for end in ends]
    elif shape == "loops":
        pairs = [(each, each) for each in turned[: max(1, size)]]
    elif shape == "complete":
        few = turned[:3]
        pairs = [(a, b) for a in few for b in few]
    elif shape == "scattered":
        pairs = [(constants[(at * (i + 3) + i) % num], constants[(size * i + at + i * i) % num]) for i in range(size)]
    elif shape == "bulk chain":
        every = (centre, *MANY)[:size]
        pairs = [*pairwise(every), (every[-1], turned[-1])]
    elif shape == "bulk fan out":
        pairs = [(centre, end) for end in MANY[:size]]
    elif shape == "bulk fan in":
        pairs = [(end, centre) for end in MANY[:size]]
    else:
        raise ValueError(f"no such shape: {shape!r}")
    return tuple(NamedAtom(predicate, a, b) for a, b in pairs)
