"""The patterns in differences of ranks that a report states, checked with the ranks of both traces."""

import re
from collections.abc import Callable, Iterator
from math import comb
from typing import Any, NamedTuple

import numpy as np
from columns import Pair

SIDES = ("head", "tail", "none")
MOST_CHANCE = 1e-3
"""The largest probability, of as many ranks drawn at random, to lie in the places that a report names."""

Key = tuple[int, int]
Bounds = tuple[float, float]


class Ranks(NamedTuple):
    """The optimistic and the pessimistic rank of each query and side, of both traces; and the names of the relations."""

    sides: tuple[dict[Key, Bounds], dict[Key, Bounds]]
    relations: dict[int, str]

    @classmethod
    def of(cls, pair: Pair) -> "Ranks":
        """Return the ranks of two traces."""
        found: list[dict[Key, Bounds]] = []
        for side in pair.sides:
            columns = (
                side.columns[f"rankings/{name}"].tolist() for name in ("query", "side", "optimistic", "pessimistic")
            )
            found.append({(query, of): bounds for query, of, *bounds in zip(*columns, strict=True)})
        names = pair.sides[0].names("predicates")
        return cls((found[0], found[1]), {query: names[atom[0]] for query, _, atom in pair.sides[0].candidates})

    @property
    def both(self) -> list[Key]:
        """The queries and sides that both traces rank."""
        return sorted(self.sides[0].keys() & self.sides[1].keys())

    def mean(self, role: int, key: Key) -> float:
        """Return the mean of both bounds."""
        return sum(self.sides[role][key]) / 2

    @property
    def differing(self) -> list[Key]:
        """Those of both traces whose means differ."""
        return [key for key in self.both if self.mean(0, key) != self.mean(1, key)]

    def place(self, kind: str, key: Key) -> str:
        """Return the name of the side or the relation of a rank."""
        return SIDES[key[1]] if kind.startswith("side") else self.relations[key[0]]


def is_of_place(r: Ranks, kind: str, names: str, differing: str, inside: str, outside: str) -> bool:
    """Check `only the side tail: 15 of 23 ranks differ there, none of 23 elsewhere`, and that chance does not explain it."""
    places = [r.place(kind, key) for key in r.both]
    holding = {r.place(kind, key) for key in r.differing}
    num_inside = sum(place in holding for place in places)
    stated = [int(text.replace(",", "")) for text in (differing, inside, outside)]
    if names != ", ".join(sorted(holding)) or stated != [len(r.differing), num_inside, len(places) - num_inside]:
        return False
    chance = comb(num_inside, len(r.differing)) / comb(len(places), len(r.differing))
    return chance * comb(len({*places}), len(holding)) < MOST_CHANCE


def lacks_side(r: Ranks, side: str, role: str, num: str) -> bool:
    """Check `the head side is not ranked by the actual side: 5 ranks`."""
    lacking, other = r.sides[role == "actual"], r.sides[role != "actual"]
    of_side = [key for key in other if SIDES[key[1]] == side]
    return len(of_side) == int(num.replace(",", "")) and not any(SIDES[key[1]] == side for key in lacking)


def is_shifted(r: Ranks, num: str, gap: str, more: str) -> bool:
    """Check `each of the 15 actual ranks that differ is 1 higher`."""
    gaps = {r.mean(1, key) - r.mean(0, key) for key in r.differing}
    return len(r.differing) == int(num.replace(",", "")) and gaps == {float(gap) * (1 if more == "higher" else -1)}


def has_largest(r: Ranks, role: str, most: str, num_above: str, num: str) -> bool:
    """Check `no actual rank is above 21, and 5 of the others are; none of 48 is higher`."""
    own = int(role == "actual")
    low, high = ([r.mean(side, key) for key in r.both] for side in (own, 1 - own))
    above = sum(each > max(low) for each in high)
    stated = [float(text.replace(",", "")) for text in (most, num_above, num)]
    return stated == [max(low), above, len(low)] and all(a <= b for a, b in zip(low, high, strict=True))


ROUNDINGS: dict[str, Callable[[float, float], Any]] = {
    "ties give both bounds": lambda low, high: (low, high),
    "ties give the mean": lambda low, high: ((low + high) / 2,) * 2,
    "ties count as lower": lambda low, high: (low, low),
    "ties count as higher": lambda low, high: (high, high),
    "ties give the mean, rounded up": lambda low, high: (np.ceil((low + high) / 2),) * 2,
    "ties give the mean, rounded down": lambda low, high: (np.floor((low + high) / 2),) * 2,
    "ties give the mean, a half rounded to the even rank": lambda low, high: (np.rint((low + high) / 2),) * 2,
}
OFFSETS = {
    "each rank is one too low, as if counted from 0": -1,
    "each rank is one too high, as if the true triple were above itself": 1,
}


def follows(r: Ranks, num: str, role: str, words: str) -> bool | None:
    """Check `all 48 actual ranks follow from the expected ones: ties give the mean`; None for other rules."""
    parts = words.split("; ")
    exchanges = "the ranks of the head and the tail side are exchanged" in parts
    rules = {**ROUNDINGS, **OFFSETS, "the ranks of the head and the tail side are exchanged": None}
    if not {*parts} <= rules.keys():
        return None
    judged, other = r.sides[role == "actual"], r.sides[role != "actual"]
    is_known = [
        list(judged[query, side])
        == [
            bound + sum(OFFSETS.get(part, 0) for part in parts)
            for bound in next(
                (ROUNDINGS[part] for part in parts if part in ROUNDINGS), ROUNDINGS["ties give both bounds"]
            )(*other[query, 1 - side if exchanges else side])
        ]
        for query, side in r.both
    ]
    return len(is_known) == int(num.replace(",", "")) and all(is_known)


def rises(r: Ranks, num: str, role: str, num_equal: str) -> bool | None:
    """Check `all 48 actual ranks are higher by at most the number of ..., and 2 without any are equal`, but for the splits."""
    own = int(role == "actual")
    gaps = [r.mean(own, key) - r.mean(1 - own, key) for key in r.both]
    fits = (
        len(gaps) == int(num.replace(",", "")) and min(gaps) >= 0 and gaps.count(0) >= int(num_equal.replace(",", ""))
    )
    return None if fits else False


_NUMBER = r"([\d,]+)"
PATTERNS: list[tuple[str, Callable[..., bool | None]]] = [
    (
        rf"only the (side|relation)s? ([^:;]+): {_NUMBER} of {_NUMBER} ranks differ there, none of {_NUMBER} elsewhere",
        is_of_place,
    ),
    (rf"the (head|tail) side is not ranked by the (expected|actual) side: {_NUMBER} ranks?", lacks_side),
    (rf"each of the {_NUMBER} actual ranks that differ is ([\d.]+) (higher|lower)", is_shifted),
    (
        rf"no (expected|actual) rank is above ([\d.,]+), and {_NUMBER} of the others are; none of {_NUMBER} is higher",
        has_largest,
    ),
    (rf"all {_NUMBER} (expected|actual) ranks follow from the (?:expected|actual) ones: (.+)", follows),
    (rf"all {_NUMBER} (expected|actual) ranks are higher by .+?, and {_NUMBER} without any are equal", rises),
]


def check_patterns(words: str, pair: Pair) -> Iterator[tuple[str, bool | None]]:
    """Yield the patterns of a sentence, each with whether the ranks of two traces confirm it; None if they do not show it."""
    ranks = Ranks.of(pair)
    for pattern, check in PATTERNS:
        for found in re.finditer(pattern, words):
            yield found[0], check(ranks, *found.groups())
