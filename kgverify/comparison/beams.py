"""The comparison of searches with several paths, level by level.

In a level, the steps of the paths are compared first, since the children of all paths compete for the same places. Then it is
compared which children were kept. Children whose log-probabilities are closer than rounding explains may change places.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.block import BlockComparer
from kgverify.comparison.equal_columns import bound_sums
from kgverify.comparison.locate import Difference, render_choice, shorten
from kgverify.comparison.mistakes import MISTAKES, Mistake
from kgverify.comparison.result import NOTHING_MORE, Divergence, NearTie, Value
from kgverify.comparison.result import Level as Severity
from kgverify.comparison.step_view import ResolventView, StepView, outcome_name, plain
from kgverify.errors import count_of
from kgverify.program.atoms import as_goal
from kgverify.program.limits import OURS, Dialect
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin, Outcome, Stage
from kgverify.step.clauses import number_variables
from kgverify.step.plain_step import Resolvent, Taken
from kgverify.step.search import Draw, Kept, Path, keep_children, miss_draw
from kgverify.trace.model.schema import Column, EqualityRule

_OWN: Final = 1e-9
_OWN_FLOAT32: Final = 1e-5
"""The rounding of a log-probability that an engine computes from its own scores, relative, in each type."""


class _Kept(NamedTuple):
    """The children of a level on one side.

    child:  int64 [n]    as `Paths.child`
    sums:   float64 [n]  log-probabilities of all children, from the side's own scores and paths
    stated: float64 [n]  as `Paths.child_log_probability`; None if it is unknown
    """

    child: NDArray[np.int64]
    sums: NDArray[np.float64]
    stated: NDArray[np.float64] | None


class _LevelPair(NamedTuple):
    """A level of a candidate on both sides, whose paths and lists of resolvents agree.

    rows:  of its steps on each side
    paths: the expected beam; taken: the expected resolvents
    """

    candidate: int
    number: int
    rows: tuple[Sequence[int], Sequence[int]]
    paths: Sequence[Path]
    taken: Sequence[Taken]


class BeamComparer(BlockComparer):
    """The comparer of a block of searches. A candidate is compared level by level, up to the first that differs."""

    def _collect(self, *arguments: Any) -> tuple[list[Divergence], list[NearTie], NDArray[np.bool_]]:
        divergences, near_ties, is_compared = super()._collect(*arguments)
        # A mistake is named only if it gives exactly what was kept in every level that differs.
        counts = Counter(id(mistake) for fitting in self._fitting.values() for mistake in fitting)
        kinds: dict[str, DifferenceClass] = {}
        for i, each in enumerate(divergences):
            fitting = self._fitting.get(each.candidate, [])
            best = next((mistake for mistake in fitting if counts[id(mistake)] == len(self._fitting)), None)
            if best is not None:
                divergences[i] = msgspec.structs.replace(
                    each,
                    stage=best.stage.value,
                    kind=kinds.setdefault(best.words, each.kind),
                    evidence=f"{each.evidence.partition(': ')[0]}: {best.words}",
                    confidence=0.95,
                )
        return divergences, near_ties, is_compared

    @cached_property
    def _fitting(self) -> dict[int, list[Mistake]]:
        """The mistakes that give exactly what was kept in the level that differs, by candidate."""
        return {}

    @cached_property
    def _levels(self) -> NDArray[np.int64]:
        return self.pair.expected.columns.paths.level.astype(np.int64)

    @cached_property
    def _judged(self) -> set[tuple[int, int]]:
        """The levels that agree up to rounding, by candidate and number."""
        return set()

    def _known(self, name: str) -> bool:
        return f"paths.{name}" not in self.pair.not_compared

    def _number(self, candidate: int, row: int) -> int:
        return row - self.readers[0].first_step[candidate]

    def _read(self, row: int, other: int) -> tuple[StepView, StepView]:
        # The children that are kept are compared instead of the choice.
        expected, actual = super()._read(row, other)
        return expected, actual._replace(choice=expected.choice, outcome=expected.outcome)

    def _compare_step(self, candidate: int, row: int, other: int) -> Divergence | NearTie | None:
        if self.pair.by_digest:
            return super()._compare_step(candidate, row, other)
        number = int(self._levels[row])
        if (candidate, number) in self._judged:
            return None
        self._judged.add((candidate, number))
        ends = [reader.first_step[candidate + 1] for reader in self.readers]
        begin = row
        while begin > self.readers[0].first_step[candidate] and self._levels[begin - 1] == number:
            begin -= 1
        rows = [each for each in range(begin, ends[0]) if self._levels[each] == number]
        pairs = [(each, each - row + other) for each in rows if each - row + other < ends[1]]
        for own in pairs:
            found = self._compare_path(candidate, number, *own) or super()._compare_step(candidate, *own)
            if found is not None:
                return self._blame_selection(found, number)
        taken = [Taken([as_resolvent(each) for each in self._view(0, row).resolvents]) for row, _ in pairs]
        beam = [self._path(row) for row, _ in pairs]
        level = _LevelPair(candidate, number, ([row for row, _ in pairs], [row for _, row in pairs]), beam, taken)
        return self._compare_kept(level) or self._compare_choices(level)

    def _compare_choices(self, level: _LevelPair) -> Divergence | None:
        """Compare the choice and the outcome of each path, which follow from the children that were kept."""
        names: list[tuple[str, Stage, Any]] = [
            ("choice", Stage.TOP_K, lambda view: render_choice(view, self.names)),
            ("outcome", Stage.FINISH, lambda view: outcome_name(view.outcome)),
        ]
        for row, other in zip(*level.rows, strict=True):
            views = self._view(0, row), self._view(1, other)
            for name, stage, render in names:
                known = f"steps.{name}" not in self.pair.not_compared
                if known and getattr(views[0], name) != getattr(views[1], name):
                    difference = Difference(stage, f"steps.{name}", render(views[0]), render(views[1]))
                    return self._find(level.candidate, row, difference, views[0])
        return None

    def _view(self, side: int, row: int) -> StepView:
        return self.readers[side].read(row)

    def _path(self, row: int) -> Path:
        paths = self.pair.expected.columns.paths
        depth = int(self.pair.expected.columns.steps.depth[row])
        goal = plain(self._view(0, row).goal)
        return Path(int(paths.place[row]), [goal], float(paths.log_probability[row]), depth)

    def _blame_selection(self, found: Divergence | NearTie, number: int) -> Divergence | NearTie:
        """Return a divergence with another stage if its paths are others, and it is not known which children were kept."""
        is_goal = isinstance(found, Divergence) and found.field in ("steps.goal_atoms", "steps.depth")
        if not is_goal or self._known("child") or not number:
            return found
        return msgspec.structs.replace(found, stage=Stage.TOP_K.value)

    def _compare_path(self, candidate: int, number: int, row: int, other: int) -> Divergence | None:
        """Compare the path of a step: where it comes from, and its log-probability."""
        expected, actual = self.pair.expected.columns.paths, self.pair.actual.columns.paths
        # If the children that were kept are known, they agree, and the paths were confused afterwards.
        stage = Stage.TOP_K if number and not self._known("child") else Stage.RECYCLE
        for name in ("level", "place", "parent"):
            values = int(getattr(expected, name)[row]), int(getattr(actual, name)[other])
            same_goal = self._view(0, row).goal == self._view(1, other).goal
            if self._known(name) and values[0] != values[1] and (name != "parent" or same_goal):
                found = self._find(candidate, row, Difference(stage, f"paths.{name}", *values), self._view(0, row))
                return msgspec.structs.replace(
                    found, kind=DifferenceClass.SUBSTITUTED, evidence="another path is open", confidence=0.9
                )
        left, right = expected.log_probability[row], actual.log_probability[other]
        if self._known("log_probability") and not abs(left - right) <= self._bound(left, number):
            # The children's log-probabilities agree, so that another number was passed on.
            stage = Stage.ADVANCE if self._known("child_log_probability") else Stage.EXPAND
            difference = Difference(
                stage if number else Stage.RECYCLE, "paths.log_probability", repr(float(left)), repr(float(right))
            )
            found = self._find(candidate, row, difference, self._view(0, row))
            words = "the path does not have the log-probability of the child that was kept"
            return msgspec.structs.replace(found, kind=DifferenceClass.NUMBER, evidence=words, confidence=0.9)
        return None

    def _find(self, candidate: int, row: int, difference: Difference, view: StepView) -> Divergence:
        return self._divergence(candidate, self._number(candidate, row), difference, Severity.CHOICE, view)

    def _bound(self, log_probability: float, number: int) -> float:
        sums = np.array([log_probability], np.float64)
        return float(bound_sums(sums, np.array([number + 1]), self.pair.score_tolerance)[0])

    # The children that are kept

    def _compare_kept(self, level: _LevelPair) -> Divergence | NearTie | None:
        """Compare which children were kept, and their log-probabilities."""
        if not self._known("child"):
            return None
        expected, actual = self._kept(level, 0), self._kept(level, 1)
        terms = np.full(len(expected.sums), level.number + 1)
        bound = float(bound_sums(expected.sums, terms, self.pair.score_tolerance).max(initial=0.0))
        is_other = self._is_other_sum(expected, actual, bound)
        has_same_children = np.array_equal(expected.child, actual.child)
        if not is_other.any() and has_same_children:
            return None
        if actual.stated is not None and not has_same_children:
            # Which children are merged decides the sums.
            wanted = self._merge_sums(expected.sums, actual.child)
            is_other &= not _are_close(wanted, actual.stated, 2 * bound)
        gap = None if is_other.any() else self._find_gap(level, expected, actual, 2 * bound)
        texts = self._describe(level, expected), self._describe(level, actual)
        candidate, row = level.candidate, level.rows[0][0]
        if gap is not None:
            atom = self.names.atom(tuple(self.pair.expected.columns.candidates.atom[candidate].tolist()))
            step = self._number(candidate, row)
            return NearTie(candidate, atom, step, gap, 2 * bound, "; ".join(texts[0]), "; ".join(texts[1]))
        stage, words, confidence = self._explain(level, expected, actual, is_other)
        field = "paths.child_log_probability" if is_other.any() else "paths.child"
        difference = Difference(stage, field, texts[0], texts[1])
        found = self._find(candidate, row, difference, self._view(0, row))
        kind = self._class(expected, actual, has_other_sums=bool(is_other.any()))
        return msgspec.structs.replace(
            found, kind=kind, evidence=f"in level {level.number}: {words}", confidence=confidence
        )

    def _kept(self, level: _LevelPair, side: int) -> _Kept:
        trace, reader = (self.pair.expected, self.pair.actual)[side], self.readers[side]
        paths, scores = trace.columns.paths, trace.columns.resolvents.score.astype(np.float64)
        counts = trace.columns.steps.num_resolvents
        children, sums = [], []
        for row, path in zip(level.rows[side], level.paths, strict=True):
            first = reader.first_resolvent(row)
            own = slice(first, first + int(counts[row]))
            if not counts[row]:
                continue
            children.append(own)
            above = paths.log_probability[row] if self._known("log_probability") else path.log_probability
            most = scores[own].max()
            sums.append(above + scores[own] - most - math.log(math.fsum(np.exp(scores[own] - most))))
        stated = (
            np.concatenate([np.zeros(0), *(paths.child_log_probability[own] for own in children)])
            if self._known("child_log_probability")
            else None
        )
        child = np.concatenate([np.zeros(0, np.int64), *(paths.child[own] for own in children)])
        return _Kept(child.astype(np.int64), np.concatenate([np.zeros(0), *sums]), stated)

    def _merge_sums(self, sums: NDArray[np.float64], child: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the log-probabilities of children after merging, given which of them are kept and merged."""
        merged = np.where(child == -1, 0.0, sums)
        add = np.logaddexp if self._dialect.merge == "sum" else np.maximum
        for i in np.flatnonzero(child >= 0).tolist():
            members = sums[child == -2 - child[i]]
            merged[i] = add.reduce(np.append(members, sums[i])) if len(members) else sums[i]
        return merged

    def _is_other_sum(self, expected: _Kept, actual: _Kept, bound: float) -> NDArray[np.bool_]:
        """Return a mask of the children that both sides kept, with other log-probabilities."""
        if expected.stated is None or actual.stated is None:
            return np.zeros(len(expected.child), np.bool_)
        with np.errstate(invalid="ignore"):
            is_other: NDArray[np.bool_] = ~(
                (expected.stated == actual.stated) | (np.abs(expected.stated - actual.stated) <= bound)
            )
        is_other &= ((expected.child != -1) & (actual.child != -1)) | (expected.child == actual.child)
        return is_other

    def _find_gap(self, level: _LevelPair, expected: _Kept, actual: _Kept, bound: float) -> float | None:
        """Return the largest gap of log-probabilities that the actual selection ignores; None if rounding does not excuse it."""
        kind = self._dialect.searching.kind
        if kind == "sample":
            return self._find_gap_of_draws(level, expected, actual, bound)
        num = int((expected.child != -1).sum())
        if kind != "beam" or num != int((actual.child != -1).sum()) or not _has_own_places(actual.child, num):
            return None
        if not self._is_merged_right(level, actual, bound) or self._breaks_ties(level, actual):
            return None
        rounding = _OWN if self.pair.actual.header.engine.precision == "float64" else _OWN_FLOAT32
        own = rounding * (1.0 + float(np.abs(actual.sums[np.isfinite(actual.sums)]).max(initial=0.0)))
        # The actual side may not contradict its own numbers either, if it recorded those that it used.
        if self._shows_own_scores and not _ignored_gap(actual.child, actual.sums) <= own:
            return None
        gap = _ignored_gap(actual.child, expected.sums)
        return gap if gap <= bound else None

    @property
    def _shows_own_scores(self) -> bool:
        trace = self.pair.actual
        is_exact = trace.header.engine.precision in (trace.columns.resolvents.score.dtype.name, "float32")
        return is_exact and "resolvents.score" in self.pair.full[1].fields

    def _find_gap_of_draws(self, level: _LevelPair, expected: _Kept, actual: _Kept, bound: float) -> float | None:
        gaps, first = [0.0], 0
        for path, taken in zip(level.paths, level.taken, strict=True):
            own = slice(first, first + len(taken.resolvents))
            first = own.stop
            if np.array_equal(expected.child[own], actual.child[own]):
                continue
            chosen = np.flatnonzero(actual.child[own] == path.place)
            if (actual.child[own] != -1).sum() != 1 or not len(chosen):
                return None
            gaps.append(miss_draw(self._draw(level), path.place, taken, int(chosen[0])))
        return max(gaps) if max(gaps) <= bound else None

    def _draw(self, level: _LevelPair) -> Draw:
        predicate, first, second = self.pair.expected.columns.candidates.atom[level.candidate].tolist()
        ((predicate, first, second),) = number_variables([(predicate, first, second)])
        return Draw(self._dialect.searching, (predicate, first, second), level.number)

    @property
    def _dialect(self) -> Dialect:
        return self.pair.full[0].header.limits.dialect or OURS

    def _contents(self, level: _LevelPair) -> list[Resolvent]:
        return [resolvent for each in level.taken for resolvent in each.resolvents]

    def _is_merged_right(self, level: _LevelPair, actual: _Kept, bound: float) -> bool:
        """Return whether exactly the kept children with the same goal are merged, into the best of them."""
        resolvents = self._contents(level)
        groups: dict[Any, list[int]] = {}
        for i in np.flatnonzero(actual.child != -1).tolist():
            is_goal = resolvents[i].kind == GoalKind.GOAL and self._dialect.merge != "none"
            groups.setdefault(number_variables(resolvents[i].atoms) if is_goal else i, []).append(i)
        for members in groups.values():
            first, *others = [i for i in members if actual.child[i] >= 0] or [-1]
            into = [i for i in members if actual.child[i] == -2 - actual.child[first]]
            best = max(actual.sums[i] for i in members)
            if first < 0 or others or len(into) != len(members) - 1 or not actual.sums[first] >= best - bound:
                return False
        return True

    def _breaks_ties(self, level: _LevelPair, actual: _Kept) -> bool:
        """Return whether children that are equal in every computation are kept in another order than that of `expand`."""
        groups: dict[Any, list[int]] = {}
        paths, numbers = self.pair.actual.columns.paths, iter(range(len(actual.child)))
        for row in level.rows[1]:
            view = self._view(1, row)
            scores = tuple([each.score for each in view.resolvents])
            for score in scores:
                key = float(paths.log_probability[row]) if self._known("log_probability") else row, scores, score
                groups.setdefault(key, []).append(next(numbers))
        worst = len(actual.child)
        for members in groups.values():
            # A merged child has lost its place.
            places = [worst if c == -1 else c for c in actual.child[members].tolist() if c >= -1]
            if any(one > other for one, other in pairwise(places)):
                return True
        return False

    def _explain(
        self, level: _LevelPair, expected: _Kept, actual: _Kept, other_sums: NDArray[np.bool_]
    ) -> tuple[Stage, str, float]:
        """Return the stage at fault, what differs, and how certain that is; remember the mistakes that give the actual list."""
        draw, bound = self._draw(level), self._bound(float(actual.sums.max(initial=0.0)), level.number)
        fitting = self._fitting.setdefault(level.candidate, [])
        for mistake in MISTAKES:
            with suppress(OverflowError, ValueError):
                kept = keep_children(self._dialect, draw, level.paths, level.taken, mistake.stages)
                child, stated = _list_children(level, kept)
                is_stated = actual.stated is None or _are_close(stated, actual.stated, 4 * bound)
                if np.array_equal(child, actual.child) and is_stated:
                    fitting.append(mistake)
        sides = expected.child, actual.child
        merged = np.unique(np.concatenate([-2 - each[each <= -2] for each in sides]))
        if other_sums.any():
            is_of_merged = np.isin(expected.child, merged) | np.isin(actual.child, merged)
            stage = Stage.EXPAND if (other_sums & ~is_of_merged).any() else Stage.MERGE
            num = count_of(int(other_sums.sum()), "resolvent")
            return stage, f"the log-probability of {num} differs, and both sides keep it", 0.9
        both = (expected.child >= 0) & (actual.child >= 0)
        is_same = np.array_equal(expected.child != -1, actual.child != -1)
        if len(merged) and is_same and np.array_equal(expected.child[both], actual.child[both]):
            return Stage.MERGE, "the same children are kept, and others of them are merged", 0.9
        words = "the same children are kept, in other places" if is_same else "other children are kept"
        return Stage.TOP_K, words, 0.8

    def _class(self, expected: _Kept, actual: _Kept, *, has_other_sums: bool) -> DifferenceClass:
        if has_other_sums:
            return DifferenceClass.NUMBER
        left, right = expected.child != -1, actual.child != -1
        if np.array_equal(left, right):
            return DifferenceClass.REORDERED
        missing, extra = bool((left & ~right).any()), bool((right & ~left).any())
        if missing and extra:
            return DifferenceClass.SUBSTITUTED
        return DifferenceClass.MISSING if missing else DifferenceClass.EXTRA

    def _describe(self, level: _LevelPair, kept: _Kept) -> list[str]:
        """Return a line for each child that was kept or merged."""
        places = [path.place for path, each in zip(level.paths, level.taken, strict=True) for _ in each.resolvents]
        indices = [i for each in level.taken for i in range(len(each.resolvents))]
        resolvents = self._contents(level)
        numbers = kept.sums if kept.stated is None else kept.stated
        chosen = sorted(
            np.flatnonzero(kept.child != -1).tolist(), key=lambda i: (kept.child[i] < 0, abs(kept.child[i]))
        )
        return (
            shorten(
                f"{f'place {kept.child[i]}' if kept.child[i] >= 0 else f'merged into place {-2 - kept.child[i]}'}:"
                f" {self.names.goal(as_goal(resolvents[i].atoms), resolvents[i].kind)}"
                f" (resolvent {indices[i]} of place {places[i]}, log-probability {float(numbers[i])!r})"
                for i in chosen
            )
            or NOTHING_MORE
        )

    def _describe_end(
        self, column: Column, expected: NDArray[Any], actual: NDArray[Any]
    ) -> tuple[str, tuple[Value, Value], Severity]:
        stage, texts, severity = super()._describe_end(column, expected, actual)
        is_of_all = column.codes is Outcome or column.rule is EqualityRule.SUM
        return Stage.AGGREGATE if is_of_all and self._known("child_log_probability") else stage, texts, severity


def as_resolvent(view: ResolventView) -> Resolvent:
    """Return a resolvent as the plain step has it."""
    return Resolvent(plain(view.atoms), Origin(view.origin_kind), view.origin, GoalKind(view.kind), view.score)


def _has_own_places(child: NDArray[np.int64], num: int) -> bool:
    """Return whether each of some kept children has a place of its own; a merged child has lost its place."""
    places = child[child >= 0]
    is_whole = len(places) == num or bool((child < -1).any())
    return is_whole and len(np.unique(places)) == len(places) and int(places.max(initial=-1)) < num


def _ignored_gap(child: NDArray[np.int64], sums: NDArray[np.float64]) -> float:
    """Return by how much, at most, a child is below another one that comes after it or is not kept."""
    places, kept = child.copy(), np.flatnonzero(child != -1)
    # Merged children had the places that are free, the best of them the first.
    merged = np.flatnonzero(child < -1)
    places[merged[np.argsort(-sums[merged], kind="stable")]] = np.setdiff1d(np.arange(len(kept)), child[child >= 0])
    placed = kept[np.argsort(places[kept])]
    behind = [float(later - sums[i]) for i, later in zip(placed, _highest_after(sums[placed]), strict=True)]
    left = sums[child == -1]
    edge = [float(left.max() - sums[kept].min())] if len(left) and len(kept) else []
    return max([0.0, *behind, *edge])


def _highest_after(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the highest of each value and all later ones."""
    highest: NDArray[np.float64] = np.maximum.accumulate(values[::-1])[::-1]
    return highest


def _list_children(level: _LevelPair, kept: Sequence[Kept]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the places and log-probabilities of the children of a level, as `Paths` has them."""
    of_child = {(each.parent, each.choice): each for each in kept}
    every = [
        of_child.get((path.place, i))
        for path, taken in zip(level.paths, level.taken, strict=True)
        for i in range(len(taken.resolvents))
    ]
    places = [-1 if each is None else each.place if each.merged_into < 0 else -2 - each.merged_into for each in every]
    return np.array(places, np.int64), np.array([0.0 if each is None else each.log_probability for each in every])


def _are_close(left: NDArray[np.float64], right: NDArray[np.float64], bound: float) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(((left == right) | (np.abs(left - right) <= bound)).all())
