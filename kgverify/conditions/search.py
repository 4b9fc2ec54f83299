"""The exact search for the simplest condition that separates wrong instances from right ones, and its chance.

A condition is a conjunction of at most three tests. An exact condition holds for all wrong instances and for no right one. So
each of its tests holds for all wrong instances, and together the tests exclude all right ones: among the tests that hold for
all wrong instances, the search finds the cheapest cover of the right ones. The cost of a test is its description length in
bits.

If nothing distinguishes wrong from right instances, every subset of the same size is equally likely to be the wrong one. The
distribution over all these permutations is known in closed form (Fisher's exact test), so none has to be drawn. Multiplied by
the number of conditions tried, it bounds the probability that any condition does as well by chance (Bonferroni's correction).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.conditions.features import Feature, Scale

MOST_TESTS: Final = 3
"""The most tests of a condition."""

MODULI: Final = (*range(2, 21), 24, 25, 30, 32, 40, 48, 50, 60, 64, 96, 100, 128, 256, 512, 1024)
POWERS: Final = tuple(number for number in MODULI if number & (number - 1) == 0)
"""The moduli whose remainders are tried, and the powers of two among them."""

MOST_VALUES: Final = 12
"""The most different values of a feature for which the test "any value except this one" is tried."""

FEWEST_VALUES: Final = 3
"""The fewest different values for which an interval or a remainder must hold."""

MOST_COVERS: Final = 40
"""The most exact conditions to list."""

OF_CONJUNCTION: Final = 2.0
"""The extra description length of each further test, in bits."""

MOST_FIRST: Final = 24
MOST_SECOND: Final = 5
MOST_OF_MODULUS: Final = 16
"""The limits for pairs: the first conditions to try, the widest first; the second ones for each; and the modulus."""

MOST_CHANCE: Final = 0.01
"""The largest probability of chance at which a condition is stated."""

MOST_OUTER: Final = 24
MOST_INTERVALS: Final = 2
"""The most tests to combine with another test for the first condition of a pair, and the most intervals of a feature."""

MOST_VISITED: Final = 20_000
"""The most partial conditions to visit in a search; the shortest ones come first."""


class Relation(StrEnum):
    """The relation of a test between a feature and its value, or another feature."""

    AT_LEAST = ">="
    AT_MOST = "<="
    EQUAL = "=="
    OTHER = "!="
    BETWEEN = "between"
    REMAINDER = "modulo"
    SAME = "same as"


_BITS_OF: Final = {Relation.EQUAL: 1.0, Relation.AT_MOST: 1.5, Relation.OTHER: 2.5}


class Term(NamedTuple):
    """A test of one feature, or of two.

    feature: the index of the feature
    value:   the bound, the lower bound of an interval, or the remainder
    high:    the upper bound of an interval, or the modulus
    other:   the index of the other feature
    beyond:  the nearest value on the other side of a bound: the true bound lies between the two. None if missing
    """

    feature: int
    relation: Relation
    value: float = 0.0
    high: float = 0.0
    other: int = -1
    beyond: float | None = None

    def holds(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of the instances for which it holds, bool [n]. values: float64 [n, F]."""
        return self.holds_for(values[:, self.feature], values[:, self.other])

    def holds_for(self, x: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of the values of its feature, and of the other one, float64 [n], for which it holds."""
        return np.asarray(_HOLDS[self.relation](x, self.value, self.high, other), np.bool_)


_HOLDS: Final[dict[Relation, Callable[[Any, float, float, Any], Any]]] = {
    Relation.AT_LEAST: lambda x, value, *rest: x >= value,
    Relation.AT_MOST: lambda x, value, *rest: x <= value,
    Relation.EQUAL: lambda x, value, *rest: x == value,
    Relation.OTHER: lambda x, value, *rest: x != value,
    Relation.BETWEEN: lambda x, low, high, _: (x >= low) & (x <= high),
    Relation.REMAINDER: lambda x, rest, modulus, _: np.mod(x, modulus) == rest,
    Relation.SAME: lambda x, value, high, other: x == other,
}


class Condition(NamedTuple):
    """A conjunction of tests, with its description length in bits and the number of equally simple conditions that were tried.

    either: another condition, which may hold instead: there are two causes in one stage
    """

    tests: tuple[Term, ...]
    cost: float
    num_tried: float
    either: "Condition | None" = None

    @property
    def parts(self) -> tuple["Condition", ...]:
        """The conjunctions, one of which must hold."""
        return (self,) if self.either is None else (self._replace(either=None), self.either)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The tests of all parts."""
        return tuple(test for part in self.parts for test in part.tests)

    @property
    def used(self) -> list[int]:
        """The indices of the features that it tests, in the order of its tests."""
        return list(dict.fromkeys(i for test in self.terms for i in (test.feature, test.other) if i >= 0))

    def holds(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of the instances for which all tests of a part hold."""
        found = np.ones(len(values), np.bool_)
        for test in self.tests:
            found &= test.holds(values)
        return found if self.either is None else found | self.either.holds(values)


NOTHING: Final = Condition((), 0.0, 1.0)
"""The condition without tests, which holds for everything."""


_First: TypeAlias = tuple[int, float, tuple[Term, ...]]
"""The first condition of a pair: the number of wrong instances for which it holds, its cost, and its tests."""


class Search:
    """A search among the features of some instances.

    features: the features of the columns
    values:   float64 [n, F]; NaN in the columns of unknown features
    is_wrong: bool [n]
    stage:    the stage at fault, whose own features are preferred

    is_cut: whether the last search for exact conditions ended before all were tried
    """

    def __init__(
        self, features: Sequence[Feature], values: NDArray[np.float64], is_wrong: NDArray[np.bool_], stage: str
    ) -> None:
        self._features, self._stage = features, stage
        # An unknown feature gets a single value, and so separates nothing.
        known = np.where(np.isnan(values), 0.0, values)
        rows = np.unique(np.column_stack([known, is_wrong]), axis=0)
        self._values, self._wrong = np.asfortranarray(rows[:, :-1]), rows[:, -1].astype(np.bool_)
        levels = [np.unique(column, return_inverse=True) for column in self._values.T]
        self._levels, self._codes = [values for values, _ in levels], [codes for _, codes in levels]
        self._remainders: dict[int, NDArray[np.int64]] = {}
        self._columns = self._distinct_columns(sorted(range(len(features)), key=lambda i: features[i].cost(stage)))
        self.is_cut = False

    def _among(self, rows: NDArray[np.bool_]) -> "Search":
        """Return a search among only some of the instances."""
        some = copy(self)
        some.__dict__.pop("_counts", None)
        some._values, some._wrong = self._values[rows], self._wrong[rows]
        some._codes = [codes[rows] if i in self._columns else codes for i, codes in enumerate(self._codes)]
        some._columns = some._distinct_columns(self._columns)
        return some

    @property
    def num_single(self) -> int:
        """The number of possible single tests."""
        return sum(self._counts)

    def _distinct_columns(self, columns: Iterable[int]) -> list[int]:
        """Return the columns that vary, except those that equal a preferred column."""
        kept: dict[bytes, int] = {}
        for i in columns:
            column = np.ascontiguousarray(self._values[:, i])
            if len(column) and (column != column[0]).any():
                kept.setdefault(column.tobytes(), i)
        return list(kept.values())

    def _hits(self, i: int) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the values of a feature, ascending, with the numbers of wrong and of right instances of each: [K] each."""
        codes, values = self._codes[i], self._levels[i]
        wrong = np.bincount(codes[self._wrong], minlength=len(values))
        return values, wrong, np.bincount(codes, minlength=len(values)) - wrong

    def _remainders_of(self, i: int) -> NDArray[np.int64]:
        """Return the remainder of each value of a feature for each modulus in `MODULI`: int64 [M, K]."""
        if i not in self._remainders:
            self._remainders[i] = np.mod(self._levels[i], np.array(MODULI)[:, None]).astype(np.int64)
        return self._remainders[i]

    @cached_property
    def _counts(self) -> tuple[int, int]:
        """The number of possible single tests: the plain ones, and all others.

        At most one bound of a feature in one direction holds for a given number of instances, so they count as one.
        """
        num_plain = num_others = 0
        for i in self._columns:
            num_values, scale = len(np.unique(self._values[:, i])), self._features[i].scale
            num_plain += 2
            if scale is not Scale.FLAG:
                num_others += (2 if scale is Scale.ID else 3) * num_values
            num_others += sum(MODULI) if scale is Scale.COUNT else 0
        return num_plain, num_others + len(self._pairs())

    def _pairs(self) -> list[tuple[int, int]]:
        """Return the pairs of features that may be compared because they have the same unit."""
        named = [i for i in self._columns if self._features[i].unit and self._features[i].scale is not Scale.FLAG]
        return [pair for pair in combinations(named, 2) if self._features[pair[0]].unit == self._features[pair[1]].unit]

    def find_exact(self) -> list[Condition]:
        """Return the shortest exact conditions, the shortest first; empty if no condition is exact."""
        if not self._wrong.any() or self._wrong.all():
            return []
        right = self._values[~self._wrong]
        tests = [(test, self._cost(test), ~test.holds(right)) for test in self._necessary()]
        covers, self.is_cut = _cover([test for test in tests if test[2].any()], len(right))
        return [Condition(_open_bounds(chosen, right), cost, self._num_tried(chosen)) for chosen, cost in covers]

    def find_two(self) -> list[Condition]:
        """Return the shortest pairs of conditions that are exact when joined by "or"; empty if no pair is exact.

        The first one holds for no right instance: it is a single test, or two tests if no pair has a single one. The second
        one is exact for the remaining instances.
        """
        if not self._wrong.any() or self._wrong.all():
            return []
        return self._complete(self._sufficient()) or self._complete(self._double_first())

    def _complete(self, first: Iterable[_First]) -> list[Condition]:
        """Return the shortest pairs that complete one of some first conditions, which hold for no right instance."""
        by_rows: dict[bytes, tuple[_First, NDArray[np.bool_]]] = {}
        num_wrong = int(self._wrong.sum())
        for each in sorted(first, key=lambda each: (-each[0], each[1])):
            if len(by_rows) == MOST_FIRST:
                break
            if 1 < each[0] < num_wrong:
                holds = np.logical_and.reduce([self._wrong, *(test.holds(self._values) for test in each[2])])
                by_rows.setdefault(holds.tobytes(), (each, holds))
        pairs = []
        for (_, cost, tests), holds in by_rows.values():
            rest = self._among(~holds).find_exact()
            num = self._num_tried(tests)
            pairs += [Condition(tests, cost + each.cost, num, each) for each in rest[:MOST_SECOND]]
        return sorted(pairs, key=lambda each: each.cost)

    def _double_first(self) -> Iterator[_First]:
        """Yield pairs of tests that together hold for no right instance. The first test is one of those that divide best."""
        for outer, cost in self._dividing():
            for num, own, inner in self._among(outer.holds(self._values))._sufficient():
                yield num, cost + own + OF_CONJUNCTION, (outer, *inner)

    def _dividing(self) -> list[tuple[Term, float]]:
        """Return the tests, with their costs, that leave the classes least mixed; only features with few values count."""
        found = []
        num, num_wrong = len(self._wrong), int(self._wrong.sum())
        for i in self._columns:
            values, counts = _tally(self._values[:, i], self._wrong, self._features[i].scale)
            if len(values) > MOST_VALUES:
                continue
            # With two values, bounds are equivalent to tests of equality.
            for relation, inside, size in counts if len(values) > 2 else counts[:1]:
                mixed = size * _entropy(inside, size) + (num - size) * _entropy(num_wrong - inside, num - size)
                for at in np.flatnonzero((inside > 0) & (inside < size) & (size < num)).tolist():
                    test = Term(i, relation, float(values[at]))
                    found.append((float(mixed[at]), self._cost(test), test))
        return [(test, cost) for _, cost, test in sorted(found)[:MOST_OUTER]]

    def _sufficient(self) -> Iterator[_First]:
        """Yield single tests that hold for no right instance."""
        for i in self._columns:
            values, num_wrong, num_right = self._hits(i)
            for test in self._sufficient_in(i, values, num_wrong, num_right):
                yield int(num_wrong[test.holds_for(values, values)].sum()), self._cost(test), (test,)

    def _sufficient_in(
        self, i: int, values: NDArray[np.float64], num_wrong: NDArray[np.int64], num_right: NDArray[np.int64]
    ) -> Iterator[Term]:
        scale, is_right = self._features[i].scale, num_right > 0
        is_only = (num_wrong > 0) & ~is_right
        if not is_only.any():
            return
        yield from (Term(i, Relation.EQUAL, value) for value in values[is_only][:MOST_VALUES].tolist())
        if scale in (Scale.FLAG, Scale.ID):
            return
        known, x = values[is_right], values[num_wrong > 0]
        low, high = float(known[0]), float(known[-1])
        if x[-1] > high:
            yield Term(i, Relation.AT_LEAST, float(x[np.searchsorted(x, high, "right")]), beyond=high)
        if x[0] < low:
            yield Term(i, Relation.AT_MOST, float(x[np.searchsorted(x, low) - 1]), beyond=low)
        for start, end in _intervals(values[is_only], num_wrong[is_only], known):
            yield Term(i, Relation.BETWEEN, start, end)
        for place, modulus in enumerate(MODULI if scale is Scale.COUNT else ()):
            if modulus <= MOST_OF_MODULUS:
                rest = self._remainders_of(i)[place]
                is_free = np.bincount(rest[is_right], minlength=modulus) == 0
                for remainder in np.flatnonzero(np.bincount(rest[is_only], minlength=modulus) * is_free).tolist():
                    yield Term(i, Relation.REMAINDER, float(remainder), float(modulus))

    def _necessary(self) -> Iterator[Term]:
        """Yield the tests that hold for all wrong instances, and may exclude some right ones."""
        for i in self._columns:
            yield from self._necessary_in(i, *self._hits(i))
        wrong = self._values[self._wrong]
        yield from (Term(i, Relation.SAME, other=j) for i, j in self._pairs() if (wrong[:, i] == wrong[:, j]).all())

    def _necessary_in(
        self, i: int, every: NDArray[np.float64], num_wrong: NDArray[np.int64], num_right: NDArray[np.int64]
    ) -> Iterator[Term]:
        scale, is_wrong = self._features[i].scale, num_wrong > 0
        values, others = every[is_wrong], every[num_right > 0]
        low, high = float(values[0]), float(values[-1])
        if low == high:
            yield Term(i, Relation.EQUAL, low)
        if scale is Scale.FLAG:
            return
        # If all right instances have the same id, excluding this id says nothing.
        is_named = scale is Scale.ID
        if 1 + is_named <= len(others) <= MOST_VALUES:
            for value in every[(num_right > 0) & ~is_wrong].tolist():
                # A value outside of this range can be excluded by a bound.
                if is_named or low < value < high:
                    yield Term(i, Relation.OTHER, value)
        if is_named:
            return
        below, above = others[others < low], others[others > high]
        if len(below):
            yield Term(i, Relation.AT_LEAST, low, beyond=float(below[-1]))
        if len(above) and (low < high or low):
            yield Term(i, Relation.AT_MOST, high, beyond=float(above[0]))
        if len(below) and len(above) and len(values) >= FEWEST_VALUES:
            yield Term(i, Relation.BETWEEN, low, high)
        if scale is Scale.COUNT and len(values) > 1:
            remainders = self._remainders_of(i)[:, is_wrong]
            for place in np.flatnonzero((remainders == remainders[:, :1]).all(1)).tolist():
                # Any two values are equal modulo their difference, so with few values only a power of two counts.
                if len(values) >= FEWEST_VALUES or MODULI[place] in POWERS:
                    yield Term(i, Relation.REMAINDER, float(remainders[place, 0]), float(MODULI[place]))

    def _cost(self, test: Term) -> float:
        """Return the description length of a test, in bits."""
        feature, value = self._features[test.feature], test.value
        own = feature.cost(self._stage)
        if feature.scale is Scale.FLAG:
            return own + 0.5 * (value == 0)
        match test.relation:
            case Relation.SAME:
                return own + self._features[test.other].cost(self._stage) + 4
            case Relation.REMAINDER:
                return own + 3 + math.log2(test.high) + (test.high not in POWERS)
            case Relation.BETWEEN:
                return own + 3 + _bits(value) + _bits(test.high)
            case Relation.AT_LEAST:
                return own + 1.5 + _bits_above(test.beyond, value)
            case Relation.AT_MOST if feature.scale is Scale.NUMBER:
                return own + 1.5 + _bits_above(test.beyond, value)
            case relation:
                return own + _BITS_OF[relation] + _bits(value)

    def find_inexact(self, values: NDArray[np.float64], is_wrong: NDArray[np.bool_]) -> Condition | None:
        """Return the condition with the highest F1 score, built up test by test; None if no test helps.

        values, is_wrong: all instances, float64 [n, F] and bool [n], since repeated instances count
        """
        found = list_separating(self._features, values, is_wrong, self._columns)
        tests = [(test, self._cost(test), test.holds(values)) for test in found]
        kept: tuple[Term, ...] = ()
        inside = np.ones(len(values), np.bool_)
        best, total = 0.0, 0.0
        while tests and len(kept) < MOST_TESTS:
            scores = [
                (f1(inside & holds, is_wrong) - 0.002 * (total + cost), -cost, i)
                for i, (_, cost, holds) in enumerate(tests)
            ]
            if max(scores)[0] <= best:
                break
            best, negative, chosen = max(scores)
            kept, total = (*kept, tests[chosen][0]), total - negative
            inside &= tests[chosen][2]
        return Condition(kept, total, self._num_tried(kept)) if kept else None

    def _num_tried(self, tests: Sequence[Term]) -> float:
        """Return the number of tried conditions by which chance is multiplied.

        A third of the error probability is reserved for single bounds and flags, a third for such tests together if all are
        of the stage's own features, and a third for all other conditions.
        """
        own = [i for i in self._columns if self._stage in self._features[i].stages]
        num = math.inf
        if all(map(self._is_plain, tests)):
            num = float(self._counts[0]) if len(tests) == 1 else num
            if all(test.feature in own for test in tests):
                num = min(num, float(math.comb(3 * len(own), len(tests))))
        every = sum(float(self.num_single) ** n / math.factorial(n) for n in range(1, len(tests) + 1))
        return 3.0 * min(num, every)

    def _is_plain(self, test: Term) -> bool:
        """Return whether a test is a bound, a flag, or whether something is zero."""
        if test.relation is Relation.EQUAL:
            return not test.value or self._features[test.feature].scale is Scale.FLAG
        return test.relation in (Relation.AT_LEAST, Relation.AT_MOST)


_Counts = list[tuple[Relation, NDArray[np.float64], NDArray[np.intp]]]


def _tally(x: NDArray[np.float64], is_wrong: NDArray[np.bool_], scale: Scale) -> tuple[NDArray[np.float64], _Counts]:
    """Return the different values of a feature, ascending, and the number of instances for which each test with a value holds.

    The numbers are, for each relation, those of wrong instances, float64 [K], and of all instances, int64 [K].
    """
    values, rows = np.unique(x, return_inverse=True)
    hits = np.asarray(np.bincount(rows, is_wrong, len(values)), np.float64)
    sizes = np.bincount(rows, minlength=len(values))
    counts = [(Relation.EQUAL, hits, sizes)]
    if scale not in (Scale.FLAG, Scale.ID):
        counts.append((Relation.AT_LEAST, hits[::-1].cumsum()[::-1], sizes[::-1].cumsum()[::-1]))
        counts.append((Relation.AT_MOST, hits.cumsum(), sizes.cumsum()))
    return values, counts


def list_separating(
    features: Sequence[Feature],
    values: NDArray[np.float64],
    is_wrong: NDArray[np.bool_],
    columns: Iterable[int] | None = None,
) -> Iterator[Term]:
    """Yield, for each feature and relation, the test with the highest F1 score."""
    for i in range(len(features)) if columns is None else columns:
        unique, counts = _tally(values[:, i], is_wrong, features[i].scale)
        if len(unique) < 2:
            continue
        _, hits, sizes = counts[0]
        for relation, inside, num in (*counts, (Relation.OTHER, hits.sum() - hits, sizes.sum() - sizes)):
            at = int(np.argmax(2 * inside / np.maximum(1, num + hits.sum())))
            # A bound that only one value meets is equivalent to a test of equality.
            if (relation, at) not in ((Relation.AT_LEAST, len(unique) - 1), (Relation.AT_MOST, 0)):
                yield Term(i, relation, float(unique[at]))


def _open_bounds(tests: tuple[Term, ...], right: NDArray[np.float64]) -> tuple[Term, ...]:
    """Return the tests of a condition, each bound with the nearest value beyond it among what the other tests do not exclude.

    right: the values of right instances, float64 [n, F]
    """
    if len(tests) == 1:
        return tests
    opened = []
    for test in tests:
        others = np.logical_and.reduce([other.holds(right) for other in tests if other is not test])
        beyond = right[others & ~test.holds(right), test.feature]
        if test.beyond is not None and len(beyond):
            test = test._replace(beyond=float(beyond.max() if test.relation is Relation.AT_LEAST else beyond.min()))
        opened.append(test)
    return tuple(opened)


def _intervals(
    x: NDArray[np.float64], num: NDArray[np.int64], known: NDArray[np.float64]
) -> Iterator[tuple[float, float]]:
    """Yield the bounds of the values between two known values, for the pairs of known values with the most between them.

    x:   values that are not known, ascending
    num: the number of occurrences of each of them
    """
    places = np.searchsorted(known, x)
    counts = np.bincount(places, num, minlength=len(known) + 1)[: len(known)]
    counts[0] = 0
    for place in np.argsort(-counts, kind="stable")[:MOST_INTERVALS].tolist():
        inside = x[places == place]
        if counts[place] and len(inside) >= FEWEST_VALUES:
            yield float(inside[0]), float(inside[-1])


def _entropy(num: NDArray[np.float64], of: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the entropy of two classes in bits, given the size of one class."""
    share = np.clip(num / np.maximum(1, of), 1e-12, 1 - 1e-12)
    return np.asarray(-share * np.log2(share) - (1 - share) * np.log2(1 - share), np.float64)


def f1(inside: NDArray[np.bool_], is_wrong: NDArray[np.bool_]) -> float:
    """Return the F1 score of a condition, given a mask of the instances for which it holds."""
    return float(2 * (inside & is_wrong).sum() / max(1, inside.sum() + is_wrong.sum()))


def _bits(value: float) -> float:
    """Return the description length of a number, in bits."""
    return 2 * math.log2(1 + abs(value)) if math.isfinite(value) and value == int(value) else 12.0


def _bits_above(beyond: float | None, value: float) -> float:
    """Return the description length of a bound between two values. The bound "at least one" is short."""
    if beyond == 0 and value > 0:
        return 1.0
    if beyond is None or not math.isfinite(value) or not math.isfinite(beyond):
        return _bits(value)
    if value != int(value):
        return _bits_between(*sorted((beyond, value)))
    return _bits(value) if beyond != int(beyond) else min(_bits(beyond + 1), _bits(value))


def _bits_between(low: float, high: float) -> float:
    """Return the description length of the shortest binary fraction between two numbers, in bits."""
    fractions = ((n, math.ceil(low * (1 << n))) for n in range(9))
    return min((n + _bits(num) for n, num in fractions if num <= high * (1 << n)), default=12.0)


def _cover(
    tests: list[tuple[Term, float, NDArray[np.bool_]]], num_rows: int
) -> tuple[list[tuple[tuple[Term, ...], float]], bool]:
    """Return the cheapest sets of at most three tests that exclude all rows, and whether some sets were not tried.

    tests: the tests, each with its cost, and with a mask of the rows that it excludes, bool [R]
    """
    tests = sorted(tests, key=lambda each: each[1])
    # A test that excludes no more rows than a cheaper one is not needed.
    kept: list[int] = []
    for i, test in enumerate(tests):
        if not any((test[2] <= tests[k][2]).all() for k in kept):
            kept.append(i)
    found: dict[tuple[int, ...], float] = {}
    best = math.inf
    left = MOST_VISITED

    def search(chosen: tuple[int, ...], cost: float, covered: NDArray[np.bool_]) -> None:
        nonlocal best, left
        left -= 1
        if covered.all():
            found[tuple(sorted(chosen))] = best = cost
        if covered.all() or len(chosen) == MOST_TESTS or left < 0:
            return
        rows = np.flatnonzero(~covered)
        row = rows[int(np.argmin(np.sum([tests[k][2][rows] for k in kept], axis=0)))]
        for k in kept:
            total = cost + tests[k][1] + (OF_CONJUNCTION if chosen else 0.0)
            if total > best:
                break
            if tests[k][2][row] and k not in chosen:
                search((*chosen, k), total, covered | tests[k][2])

    if kept:
        search((), 0.0, np.zeros(num_rows, np.bool_))
    found |= {(i,): cost for i, (_, cost, excluded) in enumerate(tests) if excluded.all()}
    ordered = sorted(found.items(), key=lambda item: item[1])[:MOST_COVERS]
    return [(tuple(tests[i][0] for i in chosen), cost) for chosen, cost in ordered], left < 0


def chance_of(num_wrong: int, num_right: int, wrong_inside: int, right_inside: int, num_tried: float) -> float:
    """Return a bound on the probability that a condition holds for these numbers of wrong and right instances by chance."""
    num, inside = num_wrong + num_right, wrong_inside + right_inside
    terms = [
        _log_choose(inside, k) + _log_choose(num - inside, num_wrong - k) - _log_choose(num, num_wrong)
        for k in range(wrong_inside, min(inside, num_wrong) + 1)
        if num_wrong - k <= num - inside
    ]
    if not terms or num_tried <= 0:
        return 1.0
    largest = max(terms)
    logarithm = largest + math.log(sum(math.exp(term - largest) for term in terms)) + math.log(num_tried)
    return min(1.0, math.exp(min(0.0, logarithm)))


def _log_choose(num: int, chosen: int) -> float:
    return math.lgamma(num + 1) - math.lgamma(chosen + 1) - math.lgamma(num - chosen + 1)
