"""Known pairs for the comparison of recorded traces: what only some lack, order otherwise, or declare, and rare conditions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
from pairs import (
    DIFFERENCES,
    ERROR,
    FEW,
    LONG,
    ONE,
    Edits,
    Known,
    at_level,
    blank,
    make_rankings,
    make_resolvents,
    make_step,
    make_trace,
    pair_of,
    renumber,
    take,
    with_header,
)

from kgverify import Equality, Symbols, Trace
from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.modulo import DUPLICATES, NAMES, ORDER


def _some(number: int, *more: int) -> list[int]:
    """Return some of the differences, others for each number."""
    return [*range(number, len(DIFFERENCES), 9), *more, 0]


def known_pairs() -> Iterator[Known]:
    yield Known("each difference", *pair_of(range(len(DIFFERENCES))))
    yield Known("differences that errors excuse", *pair_of(range(32, 56), error=ERROR))
    yield Known("a candidate a block", *pair_of([0, *range(32, 42, 2), *range(66, 76)], error=ERROR), ONE)
    yield Known("two candidates a block, in float32", *pair_of(_some(1, 47), error=ERROR, dtype=np.float32), FEW)
    for name, (rows, options) in _ALIKE.items():
        yield Known(name, *pair_of(rows, error=ERROR), options)
    yield Known("a sum beside a long derivation", *pair_of((0, 1), error=ERROR, differences=LONG))
    yield Known("two precisions", *pair_of((3,), error=ERROR, dtype=np.float32, differences=LONG))
    expected, actual = pair_of(_some(7, 54))
    left, right = (make_trace(lockstep_columns(each.columns), rankings=None) for each in (expected, actual))
    yield Known("lockstep", left, right, {"lockstep": True})
    yield Known("a few are listed", *pair_of(_some(2, 47, 49), error=ERROR), {**FEW, "kept": 3})
    yield Known("a long derivation", *pair_of((2,), differences=LONG))
    for number, (name, fields) in enumerate(_LACKING.items(), 3):
        expected, actual = pair_of(_some(number, 46, 51, 52), error=ERROR)
        yield Known(f"without {name}", expected, blank(actual, actual.fields - fields), FEW)
    yield from _of_other_candidates(*pair_of(range(24)))
    yield from _without_goals()
    yield from _headers(*pair_of((0, 32), error=ERROR))
    yield from _rankings(*pair_of((0, 2, 4, 60, 61), error=ERROR))
    yield from _rare_pairs()


def _of_other_candidates(expected: Trace, actual: Trace) -> Iterator[Known]:
    """Yield pairs with candidates in another order, or with other names or numbers."""
    reordered = take(actual, [*range(20, 1, -2), 21, 22, 1, 0, 5, 5, 3, 9])
    own = reordered.columns.candidates
    moved = own._replace(query=np.where(np.arange(len(own.query)) % 9 == 2, own.query + 50, own.query).astype(np.int32))
    expected = take(expected, [*range(2, 23), 3])
    other = replace(reordered, columns=reordered.columns._replace(candidates=moved))
    yield Known("another order", expected, other, FEW)
    swapped = own.atom.copy()
    swapped[:9:4, 1:] = swapped[:9:4, :0:-1]
    columns = reordered.columns._replace(candidates=own._replace(atom=swapped))
    yield Known("other candidates", expected, replace(reordered, columns=columns), {**FEW, "kept": 4})
    # The shares of more than eight causes are drawn, which takes longer.
    expected, actual = pair_of(range(11))
    query, atom = actual.columns.candidates.query.copy(), actual.columns.candidates.atom.copy()
    query[9], atom[0, 1:], atom[1, 1] = 50, atom[0, :0:-1], 99
    columns = actual.columns._replace(candidates=actual.columns.candidates._replace(query=query, atom=atom))
    yield Known("others in place", expected, replace(actual, columns=columns), FEW)
    columns = actual.columns._replace(candidates=actual.columns.candidates._replace(query=query))
    yield Known("another query", expected, replace(actual, columns=columns))
    expected, actual = pair_of((0, 9, 4))
    own = actual.columns.candidates
    columns = actual.columns._replace(candidates=own._replace(atom=own.atom[:, (0, 2, 1)]))
    yield Known("another draw, twice", expected, take(replace(actual, columns=columns), [0, 0, 1, 2]))
    fewer = Symbols(actual.symbols.predicates, actual.symbols.constants[:400])
    yield Known("fewer names", expected, replace(actual, symbols=fewer), FEW)
    # Nine causes, whose shares are drawn.
    expected, actual = pair_of(_some(6, 25, 47), error=ERROR)
    yield Known("other numbers", expected, renumber(actual), FEW)
    yield Known("other numbers, without facts", expected, renumber(take(actual, range(6)), has_facts=False))


_ALIKE: Final[Mapping[str, tuple[Sequence[int], Mapping[str, Any]]]] = {
    "scores that differ in bits": ((0, 32, 0, 0), FEW),
    "the last differs": ((0, 0, 0, 61), {}),
    "one score": ((0, 34), {}),
    "the same kinds of two steps": ((13, 0, 13, 14), {}),
    "nothing in common": ((60, 61), {}),
    "near-ties alone": ((47, 0, 49), FEW),
}
_LACKING: Final = {
    "dropped counts": {"steps.dropped_atoms", "steps.dropped_resolvents"},
    "scores": {"resolvents.score", "candidates.log_probability"},
    "clauses": {"resolvents.origin_kind", "resolvents.origin"},
}


def _without_goals() -> Iterator[Known]:
    """Yield pairs of which a trace keeps no goals."""
    few = (0, 1, 9, 13, 19, 23, 30, 34, 42, 54, 59, 63, 67, 0)
    left, right = pair_of(few)
    for level, other in (("digests", "digests"), ("steps", "digests")):
        yield Known(f"{level} and {other}", at_level(left, level), at_level(right, other), FEW)
    e, a = pair_of((0, 42, 47, 49, 51, 52, 0), error=ERROR)
    yield Known("digests, with errors", at_level(e, "digests"), at_level(a, "digests"), FEW)
    e, a = (at_level(each, "digests") for each in pair_of((0, 42, 0), error=ERROR))
    yield Known("one digest, with errors", e, a)
    left, right = pair_of((1, 13, 13, 28, 30, 0, 42, 54, 0))
    counts = at_level(blank(left, left.fields - {"steps.dropped_atoms"}), "digests")
    yield Known(
        "digests of other counts", at_level(left, "digests"), with_header(counts, absent=("steps.dropped_atoms",))
    )
    yield Known("digests of other numbers", at_level(left, "digests"), renumber(at_level(right, "digests")))


def _headers(expected: Trace, actual: Trace) -> Iterator[Known]:
    """Yield pairs that cannot be compared, or that declare more than the judge accepts."""
    header = actual.header
    change = msgspec.structs.replace
    run = change(header.run, graph="g", split="valid", num_queries=1, num_corruptions=2, seed=3, rank_tolerance=0.5)
    others: dict[str, dict[str, Any]] = {
        "limits": {"limits": change(header.limits, max_atoms=3)},
        "program": {"program_sha256": "cd" * 32},
        "policy": {"policy": change(header.policy, name="other")},
        "weights": {"policy": change(header.policy, sha256="ef" * 32)},
        "run": {"run": run},
        "run of an unknown graph": {"run": change(run, graph="")},
        "error": {"engine": change(header.engine, score_error=99.0, precision="bf16")},
    }
    sha = with_header(expected, policy=change(expected.header.policy, sha256="ab" * 32))
    for name, changes in others.items():
        yield Known(f"another {name}", sha, with_header(actual, **changes))
    yield Known("an accepted error", expected, actual, {"equality": Equality(score_error=1e-9)})
    yield Known("not complete", expected, replace(actual, is_complete=False))


def _rankings(expected: Trace, actual: Trace) -> Iterator[Known]:
    """Yield pairs with other ranks: right and wrong ones, by rounding, of groups that differ, and of one side alone."""
    assert expected.rankings is not None
    ranks = (
        make_rankings((0, 0, 2, 1.0, 2.0), (0, 1, 1, 1.0, 1.0), (1, 0, 2, 2.0, 2.0), (15, 0, 2, 2.0, 2.0)),
        make_rankings((0, 0, 1, 1.0, 1.0), (0, 1, 1, 1.0, 2.0), (1, 0, 2, 2.0, 2.0)),
        make_rankings(
            (0, 0, 2, 1.0, 1.0), (0, 1, 1, 1.0, 2.0), (1, 0, 2, 2.0, 2.0), (15, 0, 2, 1.0, 2.0), (9, 2, 1, 1, 1)
        ),
    )
    pessimistic = expected.rankings._replace(pessimistic=expected.rankings.pessimistic + 0.5)
    for number, rankings in enumerate((*ranks, pessimistic)):
        yield Known(f"ranks {number}", expected, replace(actual, rankings=rankings), {"kept": 2} if number == 1 else {})
        same = replace(expected, rankings=rankings)
        yield Known(f"ranks {number} of the same candidates", expected, same)


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


def _rare_pair(rows: Sequence[int], *, error: float = ERROR) -> tuple[Trace, Trace]:
    return pair_of(rows, error=error, differences=RARE)


def _rare_pairs() -> Iterator[Known]:
    """Yield the known pairs."""
    every = range(len(RARE))
    yield Known("rare", *_rare_pair(every))
    yield Known("rare, without errors", *_rare_pair(every, error=0.0), ONE)
    yield Known("more than single precision", *_rare_pair((0, 14), error=0.0))
    for level, other in (("digests", "steps"), ("steps", "digests")):
        left, right = _rare_pair((24, 25, 0, 8, 19, 25, 22, 9))
        yield Known(f"rare, {level} and {other}", at_level(left, level), at_level(right, other), FEW)
    expected, actual = _rare_pair((24, 25, 9, 0, 8, 25, 25))
    yield Known("near-ties behind other lengths", actual, expected, {**FEW, "kept": 2})
    yield Known("rare near-ties", expected, actual, FEW)
    yield from _benign()
    expected, actual = _rare_pair((0, 10, 12, 2, 17, 0))
    assert expected.facts is not None
    facts = expected.facts.copy()
    facts[3] = 2, 590, 591
    yield Known("other facts", replace(expected, facts=facts), renumber(actual), FEW)
    yield from _rare_ranks()


def _benign() -> Iterator[Known]:
    """Yield pairs whose differences may be benign, with and without scores and clauses."""
    expected, actual = _rare_pair(_BENIGN)
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


def _rare_ranks() -> Iterator[Known]:
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
