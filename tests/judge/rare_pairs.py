"""Known pairs of rare conditions, for recorded traces: benign differences, other lengths, and ranks by rounding."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pairs import (
    ERROR,
    FEW,
    ONE,
    Edits,
    Known,
    at_level,
    blank,
    make_rankings,
    make_resolvents,
    make_step,
    pair_of,
    renumber,
)

from kgverify import Equality
from kgverify.comparison.modulo import DUPLICATES, NAMES, ORDER
from kgverify.trace.model.trace import Trace

_MADE: Final = make_resolvents()
_FALSE: Final = {"kind": 2, "atoms": [], "by": (0, 0), "score": 0.0}
_SECOND: Final = "1.made.2.score"
_ATOMS: Final = [(1, 1, 1), (1, 2, 2), (1, 3, 3)]

RARE: Final[Sequence[tuple[Edits, Edits]]] = (
    ({}, {}),
    # Goals and resolvents of an earlier step, though not of the one before, and of another candidate.
    ({}, {"2.goal": make_step(0)["goal"]}),
    ({}, {"2.made": make_step(0)["made"]}),
    ({}, {"2.made": [make_step(0)["made"][0], *_MADE[2:]]}),
    ({}, {"1.goal": [(0, 0, 500)]}),
    ({}, {"2.goal": [(0, 5, 5), (1, 6, 6)]}),
    # A selected atom with one constant, or one variable, twice.
    ({"1.goal": [(0, 7, 7)]}, {"1.goal": [(0, 7, 7)], "1.made": _MADE[:2]}),
    ({"1.goal": [(0, -1, -1)]}, {"1.goal": [(0, -1, -1)], "1.made": _MADE[:2]}),
    # Scores that tie on one side only.
    ({_SECOND: -0.5 - ERROR}, {_SECOND: -0.5, "1.choice": 2}),
    ({_SECOND: -0.5, "1.choice": 2}, {_SECOND: -0.5, "2.made.0.score": -1.5 + 1e-7}),
    # Atoms that are there as well, or in another order.
    ({}, {"1.made.1.atoms": [*_MADE[1]["atoms"], (0, 1, 2)]}),
    ({"1.made.0.atoms": _ATOMS}, {"1.made.0.atoms": _ATOMS[1::-1]}),
    ({"1.made": _MADE[:1], "1.choice": 0}, {"1.made": [_FALSE], "1.choice": 0}),
    ({"1.made": [_FALSE], "1.choice": 0}, {"1.made": _MADE[3:], "1.choice": 0}),
    ({}, {"1.made.0.score": -1.5 + 1e-12}),
    ({}, {"1.made.0.score": float("nan")}),
    # Repeated resolvents: by the same clauses, by others, and not in both.
    ({}, {"1.made": [*_MADE, _MADE[0]]}),
    ({"1.made": [*_MADE, _MADE[0] | {"by": (1, 2)}]}, {"1.made": [*_MADE, _MADE[1]]}),
    ({}, {"1.made": [_MADE[0] | {"by": (1, 2)}, *_MADE[1:], _MADE[0] | {"by": (2, 7)}]}),
    ({}, {"1.made": [_MADE[2], *_MADE[:2], _MADE[3]], "1.choice": 0}),
    ({}, {"1.made": [_MADE[2], *_MADE[:2], _MADE[3]], "1.choice": 2, "1.outcome": 1}),
    ({}, {"1.goal": [(0, 11, -4), (2, -4, 20)], "2.dropped_atoms": 7}),
    ({}, {"1.made": [*_MADE, _MADE[0]], "log_probability": -7.5}),
    ({}, {"log_probability": -7.5}),
    ({}, {"steps": [make_step(0), make_step(1)], "outcome": 0}),
    ({_SECOND: -0.5}, {_SECOND: -0.5 + ERROR, "1.choice": 2}),
    ({"log_probability": -1.52}, {"log_probability": -1.52}),
    ({"log_probability": -1.509}, {"log_probability": -1.509}),
    ({}, {"outcome": 1}),
)
"""Edits as in `DIFFERENCES`, of the conditions that are rare."""

_BENIGN: Final = (0, 16, 17, 18, 19, 20, 21, 22, 23, 25, 24, 2, 0)


def _pair(rows: Sequence[int], *, error: float = ERROR) -> tuple[Trace, Trace]:
    return pair_of(rows, error=error, differences=RARE)


def rare_pairs() -> Iterator[Known]:
    """Yield the known pairs."""
    every = range(len(RARE))
    yield Known("rare", *_pair(every))
    yield Known("rare, without errors", *_pair(every, error=0.0), ONE)
    yield Known("more than single precision", *_pair((0, 14), error=0.0))
    for level, other in (("digests", "steps"), ("steps", "digests"), ("compact", "steps"), ("compact", "compact")):
        left, right = _pair((24, 25, 0, 8, 19, 25, 22, 9))
        yield Known(f"rare, {level} and {other}", at_level(left, level), at_level(right, other), FEW)
    expected, actual = _pair((24, 25, 9, 0, 8, 25, 25))
    yield Known("near-ties behind other lengths", actual, expected, {**FEW, "kept": 2})
    yield Known("rare near-ties", expected, actual, FEW)
    yield from _benign()
    expected, actual = _pair((0, 10, 12, 2, 17, 0))
    assert expected.facts is not None
    facts = expected.facts.copy()
    facts[3] = 2, 590, 591
    yield Known("other facts", replace(expected, facts=facts), renumber(actual), FEW)
    yield from _ranks()


def _benign() -> Iterator[Known]:
    """Yield pairs whose differences may be benign, with and without scores and clauses."""
    expected, actual = _pair(_BENIGN)
    for number, modulo in enumerate(({NAMES}, {ORDER}, {DUPLICATES}, {NAMES, ORDER, DUPLICATES})):
        lacking = ("resolvents.score", "candidates.log_probability") if number == 3 else ()
        options = {**FEW, "equality": Equality(modulo=frozenset(modulo))}
        name = " and ".join(sorted(modulo))
        yield Known(f"benign {name}", expected, blank(actual, actual.fields - {*lacking}), options)
    lost = {"resolvents.origin_kind", "resolvents.origin", "resolvents.score"}
    options = {"equality": Equality(modulo=frozenset((ORDER, DUPLICATES)))}
    yield Known("benign, without clauses", expected, blank(actual, actual.fields - lost), options)
    left, right = (at_level(each, "digests") for each in (expected, actual))
    yield Known("benign digests", left, right, {"equality": Equality(modulo=frozenset((ORDER, NAMES)))})


def _ranks() -> Iterator[Known]:
    """Yield pairs whose ranks differ where the candidates of the other side do, by rounding, by little, or entirely."""
    rank = make_rankings
    first = (0, 0, 2, 1.0, 1.0)
    ties: Sequence[tuple[Sequence[int], Any, Any]] = (
        # A divergence of one side of a query says nothing about the ranks of the other side.
        ((2, 0, 0, 0), [first, (0, 1, 2, 1.0, 1.0)], [(0, 0, 2, 2.0, 2.0), (0, 1, 2, 2.0, 2.0)]),
        ((0, 0, 2, 0), [first, (0, 1, 2, 1.0, 1.0)], [(0, 0, 2, 2.0, 2.0), (0, 1, 2, 1.0, 2.0)]),
        # Sums whose gap rounding cannot close, and can.
        ((0, 26, 0), [first], [(0, 0, 2, 1.0, 2.0)]),
        ((0, 27, 0), [first], [(0, 0, 2, 1.0, 2.0)]),
        ((0, 27, 0), [first], [(0, 0, 3, 1.0, 2.0)]),
        ((0, 27, 0), [first], [(0, 0, 1, 1.0, 2.0)]),
        ((0, 0, 27), [first, (0, 1, 1, 1.0, 1.0)], [first]),
        ((1, 0, 0), [(0, 0, 2, 2e5, 2e5)], [(0, 0, 2, 2e5 + 1, 2e5 + 1)]),
        ((1, 0, 0), [first, (0, 1, 2, 2.0, 2.0)], [(0, 0, 2, 2.0, 2.0), (0, 1, 2, 1.0, 1.0)]),
    )
    for number, (rows, left, right) in enumerate(ties):
        expected, actual = pair_of(rows, error=ERROR, differences=RARE, is_one_query=True)
        yield Known(
            f"rare ranks {number}", replace(expected, rankings=rank(*left)), replace(actual, rankings=rank(*right))
        )
    expected, actual = pair_of((0, 16, 23, 0), error=ERROR, differences=RARE, is_one_query=True)
    ranks = rank(first, (0, 1, 1, 1.0, 1.0)), rank((0, 0, 2, 1.0, 2.0), (0, 1, 1, 1.0, 1.0))
    expected, actual = replace(expected, rankings=ranks[0]), replace(actual, rankings=ranks[1])
    yield Known("ranks by repetition", expected, actual, {"equality": Equality(modulo=frozenset((DUPLICATES,)))})
    repeated = pair_of((0, 22, 0, 0), error=ERROR, differences=RARE, is_one_query=True)
    left, right = (replace(each, rankings=rank) for each, rank in zip(repeated, ranks, strict=True))
    yield Known("ranks by repetition alone", left, right, {"equality": Equality(modulo=frozenset((DUPLICATES,)))})
    left, right = (blank(each, each.fields - {"resolvents.score"}) for each in (left, right))
    yield Known(
        "ranks by repetition, without scores", left, right, {"equality": Equality(modulo=frozenset((DUPLICATES,)))}
    )
    unknown = blank(actual, actual.fields - {"candidates.log_probability"})
    yield Known("ranks without sums", expected, replace(unknown, rankings=ranks[1]))
