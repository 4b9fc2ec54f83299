"""Generated programs, queries and positions, in labels: numbers that mean nothing, made without the reference."""

import itertools
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

Term = int | str
"""A constant's label, or the name of a variable."""
NamedAtom = tuple[int, Term, Term]
NamedRule = tuple[NamedAtom, list[NamedAtom]]
Limits = tuple[int, int, int, bool]
"""The most steps, atoms and resolvents, and whether the query is excluded."""

DEFAULTS: Final = (20, 6, 120, True)
VARIABLES: Final = ("x", "y", "z", "w", "v", "u")


class Position(NamedTuple):
    """One step to take: from a goal, with goals visited before, after some steps of the derivation of a query."""

    query: int
    goal: list[NamedAtom]
    visited: list[list[NamedAtom]]
    depth: int


class Case(NamedTuple):
    """A program with its queries and limits; None for the default limits."""

    facts: list[NamedAtom]
    rules: list[NamedRule]
    queries: list[NamedAtom]
    others: list[int]
    limits: Limits | None
    positions: list[Position]


def draw_cases(seed: int) -> Iterator[Case]:
    """Yield cases without end, the same ones for a seed."""
    index = 0
    while True:
        rng = random.Random(f"{seed}:{index}")
        yield rng.choices((_random, _recursive, _hub, _long), (60, 20, 12, 8))[0](rng)
        index += 1


def is_ground(atom: NamedAtom) -> bool:
    """Return whether an atom holds no variable."""
    return not isinstance(atom[1], str) and not isinstance(atom[2], str)


def _draw_limits(rng: random.Random) -> Limits:
    return (
        rng.choice((1, 2, 3, 4, 5, 7, 9)),
        rng.choice((1, 1, 2, 2, 3, 4, 6)),
        rng.choice((1, 2, 2, 3, 4, 6, 30)),
        rng.random() < 0.75,
    )


class _Symbols(NamedTuple):
    """The labels of one program."""

    predicates: list[int]
    constants: list[int]

    @classmethod
    def draw(cls, rng: random.Random, num_constants: int) -> "_Symbols":
        return cls(rng.sample(range(50), rng.randint(1, 4)), rng.sample(range(50, 150), num_constants))

    def atom(self, rng: random.Random, variables: tuple[str, ...], constant_share: float) -> NamedAtom:
        def term() -> Term:
            return rng.choice(self.constants) if rng.random() < constant_share else rng.choice(variables)

        return rng.choice(self.predicates), term(), term()

    def fact(self, rng: random.Random) -> NamedAtom:
        return self.atom(rng, VARIABLES, 1.0)

    def positions(self, rng: random.Random, num_queries: int, max_depth: int) -> list[Position]:
        """Positions that may or may not occur in a derivation; often one of the goals visited lies close."""
        found = []
        for _ in range(rng.randint(0, 2)):
            goal = [self.atom(rng, VARIABLES[:3], 0.6) for _ in range(rng.choice((1, 1, 2, 2, 3, 4)))]
            if rng.random() < 0.3:
                goal = [(rng.choice(self.predicates), "x", "y"), (rng.choice(self.predicates), "y", rng.choice("xz"))]
            visited = [[self.atom(rng, VARIABLES[:2], 0.6)] for _ in range(rng.randint(0, 3))]
            visited += [goal[1:]] * (len(goal) > 1 and rng.random() < 0.5) + [goal[::-1]] * (rng.random() < 0.3)
            found.append(Position(rng.randrange(num_queries), goal, visited, rng.randrange(max_depth)))
        return found


def _draw_rule(rng: random.Random, symbols: _Symbols, facts: list[NamedAtom]) -> NamedRule:
    p, q, r = (rng.choice(symbols.predicates) for _ in range(3))
    x, y, z = VARIABLES[:3]
    shape = rng.randrange(12)
    if shape == 0:
        return (p, x, y), [(q, x, y)]
    if shape == 1:
        return (p, x, y), [(q, y, x)]
    if shape in (2, 3):
        return (p, x, y), [(q, x, z), (r, z, y)]
    if shape == 4:
        return (p, x, y), [(p, y, x)]
    if shape == 5:
        return (p, x, x), [(q, x, y)]
    if shape == 6:
        return (p, x, y), [symbols.fact(rng), (q, y, x)]
    if shape == 7 and facts:
        return (p, x, y), [rng.choice(facts)]
    names = VARIABLES[: rng.randint(1, 5)]
    head = symbols.atom(rng, names[:2], 0.15)
    return head, [symbols.atom(rng, names, 0.15) for _ in range(rng.choice((1, 1, 2, 2, 3, 3, 4, 5)))]


def _draw_queries(
    rng: random.Random, symbols: _Symbols, facts: list[NamedAtom], rules: list[NamedRule]
) -> list[NamedAtom]:
    queries = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(8)
        if kind == 0 and facts:
            queries.append(rng.choice(facts))
        elif kind < 5 and rules:
            predicate, *terms = rng.choice(rules)[0]
            bound = {name: rng.choice(symbols.constants) for name in VARIABLES}
            queries.append((predicate, *(bound.get(term, term) for term in terms)))
        else:
            queries.append(symbols.atom(rng, VARIABLES[:2], 0.65))
    return queries


def _random(rng: random.Random) -> Case:
    """Any facts and rules over few symbols."""
    symbols = _Symbols.draw(rng, rng.choice((1, 2, 2, 3, 4, 5, 7, 18)))
    facts = [symbols.fact(rng) for _ in range(rng.choice((0, 1, 2, 4, 6, 9, 14)))]
    rules = [_draw_rule(rng, symbols, facts) for _ in range(rng.choice((0, 1, 2, 3, 4, 5, 7)))]
    queries = _draw_queries(rng, symbols, facts, rules)
    if facts and rng.random() < 0.3:
        facts.append(rng.choice(facts))
    if rules and rng.random() < 0.2:
        rules.append(rng.choice(rules))
    limits = None if rng.random() < 0.1 else _draw_limits(rng)
    positions = symbols.positions(rng, len(queries), (limits or DEFAULTS)[0])
    # A position names symbols of the program alone.
    named = [*facts, *queries, *(atom for head, body in rules for atom in (head, *body))]
    known = {atom[0] for atom in named}
    others = [constant for constant in symbols.constants if rng.random() < 0.5]
    constants = {term for atom in named for term in atom[1:]} | set(others)
    positions = [
        each
        for each in positions
        if all(
            p in known and all(isinstance(term, str) or term in constants for term in terms)
            for p, *terms in [*each.goal, *(atom for goal in each.visited for atom in goal)]
        )
    ]
    return Case(facts, rules, queries, others, limits, positions)


def _recursive(rng: random.Random) -> Case:
    """Chains and circles under recursive rules, whose proofs are as long as the depth allows, or one step longer."""
    edge, reach, same = rng.sample(range(50), 3)
    limits = (
        None if rng.random() < 0.35 else (rng.randint(1, 10), rng.randint(1, 4), rng.randint(1, 8), rng.random() < 0.8)
    )
    max_depth = (limits or DEFAULTS)[0]
    constants = rng.sample(range(50, 150), max_depth + 4)
    facts = [(edge, left, right) for left, right in itertools.pairwise(constants)]
    if rng.random() < 0.3:
        facts.append((edge, constants[-1], constants[0]))
    facts += [(edge, *rng.sample(constants, 2)) for _ in range(rng.choice((0, 0, 1, 3)))]
    rules: list[NamedRule] = [
        ((reach, "x", "y"), [(edge, "x", "y")] * rng.choice((1, 3, 3))),  # three are longer than the other rule's body
        ((reach, "x", "y"), [(edge, "x", "z"), (reach, "z", "y")]),
    ]
    if rng.random() < 0.5:
        rules.append(((reach, "x", "y"), [(same, "y", "x")]))
        rules.append(((same, "x", "y"), [(reach, "y", "x")]))
    if rng.random() < 0.5:
        rng.shuffle(rules)
    starts = [max(0, at) for at in (max_depth // 2, max_depth - 1, max_depth, max_depth + 1)]
    queries: list[NamedAtom] = [(reach, constants[0], constants[at]) for at in rng.sample(starts, 2)]
    queries.append(rng.choice([(reach, constants[0], "x"), (reach, "x", "y"), (same, "x", constants[1]), facts[0]]))
    return Case(facts, rules, queries, [], limits, [])


def _hub(rng: random.Random) -> Case:
    """Draw a hub: it gives as many resolvents as the limit, or one more, and those that are TRUE often lie beyond it.

    Sometimes other facts come first, so that ids exceed 255; sometimes all arguments are swapped.
    """
    hub, goal, other = rng.sample(range(50), 3)
    limits = (
        None if rng.random() < 0.25 else (rng.randint(1, 5), rng.randint(1, 3), rng.randint(1, 9), rng.random() < 0.8)
    )
    most = (limits or DEFAULTS)[2]
    num = max(1, most + rng.choice((-1, 0, 1, 1, 2)))
    constants = rng.sample(range(50, 50 + num + 20), num + 3)
    centre, target, *leaves = constants
    facts: list[NamedAtom] = [(hub, centre, leaf) for leaf in leaves[:num]]
    facts += [(other, leaf, target) for leaf in leaves[num:]]  # which lead nowhere
    proofs = rng.choice(
        ([], leaves[num - 1 : num], leaves[num - 1 : num], leaves[num - 2 : num], rng.sample(leaves[:num], 1))
    )
    facts += [(other, leaf, target) for leaf in proofs]
    rules: list[NamedRule] = [((goal, "x", "y"), [(hub, "x", "z"), (other, "z", "y")])]
    rules += [((hub, "x", "y"), [(goal, "x", "y"), (goal, "y", "x")] * rng.randint(1, 2))] * rng.randint(0, 2)
    if rng.random() < 0.5:
        rules.append(((other, "x", "y"), [(goal, "y", "x")] * rng.randint(1, 4)))
    queries: list[NamedAtom] = [(goal, centre, target), (goal, centre, "y"), (hub, centre, "y")]
    if rng.random() < 0.5:
        rng.shuffle(facts)  # else the last leaf, which alone may be TRUE, has the highest id
    if limits is None and rng.random() < 0.5:
        facts = [(other, 1000 + i, 1001 + i) for i in range(260)] + facts
    if rng.random() < 0.4:
        facts, queries = [_swap(atom) for atom in facts], [_swap(atom) for atom in queries]
        rules = [(_swap(head), [_swap(atom) for atom in body]) for head, body in rules]
    return Case(facts, rules, queries, [], limits, [])


def _swap(atom: NamedAtom) -> NamedAtom:
    return atom[0], atom[2], atom[1]


def _long(rng: random.Random) -> Case:
    """Bodies of as many atoms as the limit, or one more, of which facts take some away again."""
    p, q, r = rng.sample(range(50), 3)
    limits = (
        None if rng.random() < 0.3 else (rng.randint(1, 4), rng.randint(1, 6), rng.randint(1, 3), rng.random() < 0.8)
    )
    most = (limits or DEFAULTS)[1]
    a, b, c = rng.sample(range(50, 150), 3)
    facts: list[NamedAtom] = [(r, a, b), (r, b, c), (q, a, a)][: rng.randint(1, 3)]
    rules: list[NamedRule] = []
    for _ in range(rng.randint(1, 6)):
        length = max(1, most + rng.choice((-1, 0, 0, 1, 1, 2)))
        body = [(q, *rng.sample(VARIABLES, 2)) for _ in range(length)]
        body += [rng.choice([(r, a, b), (r, b, c), (r, "x", "y")]) for _ in range(rng.choice((0, 0, 1, 2)))]
        rng.shuffle(body)
        rules.append((rng.choice([(p, "x", "y"), (p, "x", "y"), (q, "y", "x")]), body))
    queries: list[NamedAtom] = [(p, a, b), (p, b, "x"), (q, a, c), (p, a, a)]
    return Case(facts, rules, rng.sample(queries, 3), [c], limits, [])
