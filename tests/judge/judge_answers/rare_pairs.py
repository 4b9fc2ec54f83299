"""Known pairs of rare conditions, for recorded traces: benign differences, other lengths, and ranks by rounding."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from judge_answers.pairs import (
    ERROR,
    Edits,
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


class Pair(NamedTuple):
    """Two traces, and the options with which they are compared."""

    name: str
    expected: Trace
    actual: Trace
    options: Mapping[str, Any] = MappingProxyType({})


_FEW: Final = {"block_steps": 7, "piece_bytes": 64}
_ONE: Final = {"block_steps": 1, "piece_bytes": 1}

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


def rare_pairs() -> Iterator[Pair]:
    """Yield the known pairs."""
    every = range(len(RARE))
    yield Pair("rare", *_pair(every))
    yield Pair("rare, without errors", *_pair(every, error=0.0), _ONE)
    yield Pair("more than single precision", *_pair((0, 14), error=0.0))
    for level, other in (("digests", "steps"), ("steps", "digests"), ("compact", "steps"), ("compact", "compact")):
        left, right = _pair((24, 25, 0, 8, 19, 25, 22, 9))
        yield Pair(f"rare, {level} and {other}", at_level(left, level), at_level(right, other), _FEW)
    expected, actual = _pair((24, 25, 9, 0, 8, 25, 25))
    yield Pair("near-ties behind other lengths", actual, expected, {**_FEW, "kept": 2})
    yield Pair("rare near-ties", expected, actual, _FEW)
    yield from _benign()
    many: Edits = {"0.made.0.atoms": _ATOMS * 11_000}
    yield Pair("many atoms", *pair_of((0, 1), differences=((many, many), ({}, {"1.made.1.atoms": _ATOMS}))))
    expected, actual = _pair((0, 10, 12, 2, 17, 0))
    assert expected.facts is not None
    facts = expected.facts.copy()
    facts[3] = 2, 590, 591
    yield Pair("other facts", replace(expected, facts=facts), renumber(actual), _FEW)
    yield from _ranks()


def _benign() -> Iterator[Pair]:
    """Yield pairs whose differences may be benign, with and without scores and clauses."""
    expected, actual = _pair(_BENIGN)
    for number, modulo in enumerate(({NAMES}, {ORDER}, {DUPLICATES}, {NAMES, ORDER, DUPLICATES})):
        lacking = ("resolvents.score", "candidates.log_probability") if number == 3 else ()
        options = {**_FEW, "equality": Equality(modulo=frozenset(modulo))}
        name = " and ".join(sorted(modulo))
        yield Pair(f"benign {name}", expected, blank(actual, actual.fields - {*lacking}), options)
    lost = {"resolvents.origin_kind", "resolvents.origin", "resolvents.score"}
    options = {"equality": Equality(modulo=frozenset((ORDER, DUPLICATES)))}
    yield Pair("benign, without clauses", expected, blank(actual, actual.fields - lost), options)
    left, right = (at_level(each, "digests") for each in (expected, actual))
    yield Pair("benign digests", left, right, {"equality": Equality(modulo=frozenset((ORDER, NAMES)))})


def _ranks() -> Iterator[Pair]:
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
        yield Pair(
            f"rare ranks {number}", replace(expected, rankings=rank(*left)), replace(actual, rankings=rank(*right))
        )
    expected, actual = pair_of((0, 16, 23, 0), error=ERROR, differences=RARE, is_one_query=True)
    ranks = rank(first, (0, 1, 1, 1.0, 1.0)), rank((0, 0, 2, 1.0, 2.0), (0, 1, 1, 1.0, 1.0))
    expected, actual = replace(expected, rankings=ranks[0]), replace(actual, rankings=ranks[1])
    yield Pair("ranks by repetition", expected, actual, {"equality": Equality(modulo=frozenset((DUPLICATES,)))})
    repeated = pair_of((0, 22, 0, 0), error=ERROR, differences=RARE, is_one_query=True)
    left, right = (replace(each, rankings=rank) for each, rank in zip(repeated, ranks, strict=True))
    yield Pair("ranks by repetition alone", left, right, {"equality": Equality(modulo=frozenset((DUPLICATES,)))})
    left, right = (blank(each, each.fields - {"resolvents.score"}) for each in (left, right))
    yield Pair(
        "ranks by repetition, without scores", left, right, {"equality": Equality(modulo=frozenset((DUPLICATES,)))}
    )
    unknown = blank(actual, actual.fields - {"candidates.log_probability"})
    yield Pair("ranks without sums", expected, replace(unknown, rankings=ranks[1]))


def long_sums() -> tuple[Trace, Trace]:
    """Return traces in which the first derivation is long, and a short one far behind it has another sum."""
    long: Edits = {"steps": [make_step(1) | {"goal": [], "made": [_FALSE], "choice": 0, "depth": i} for i in range(12)]}
    other: tuple[Edits, Edits] = {}, {"log_probability": -1.5 - 7 * ERROR}
    rows = [0, *[1] * 10, 2]
    return pair_of(rows, error=ERROR, differences=((long, long), ({}, {}), other))


def near_tie_and_bits() -> tuple[Trace, Trace]:
    """Return traces with a near-tie, behind which scores differ in bits, and with other bits in an agreeing candidate."""
    other: tuple[Edits, Edits] = {}, {"1.made.0.score": -1.5 + 1e-7}
    differences = (RARE[0], RARE[9], other)
    expected, actual = pair_of((0, 1, 0, 0, 0, 2, 0), error=ERROR, differences=differences)
    return replace(expected, rankings=None), replace(actual, rankings=None)


def not_a_number() -> tuple[Trace, Trace]:
    """Return two equal traces with a score that is not a number."""
    nan: Edits = {"1.made.0.score": np.nan}
    expected, actual = pair_of((0, 1), error=ERROR, differences=(({}, {}), (nan, nan)))
    return replace(expected, rankings=None), replace(actual, rankings=None)
