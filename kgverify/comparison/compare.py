"""Two traces in, a comparison out. Free-running: each candidate's first divergence. Lockstep: every step by itself."""

from functools import cached_property
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.align import align_candidates
from kgverify.comparison.by_digest import (
    differing_columns,
    digest_difference,
    is_decidable,
    level_without_goals,
    tie_gap,
)
from kgverify.comparison.fields import column_names
from kgverify.comparison.locate import Difference, is_close, level_of_step, locate_difference
from kgverify.comparison.numbering import Numbering
from kgverify.comparison.preconditions import check_preconditions
from kgverify.comparison.result import (
    Comparison,
    Coverage,
    Divergence,
    FieldRule,
    Level,
    NearTie,
    Verdict,
    highest_level,
)
from kgverify.comparison.sharing import DIGEST, share
from kgverify.comparison.view import Names, StepReader, StepView, outcome_name, side_name
from kgverify.program.stages import Stage
from kgverify.trace.model.columns import CandidateSet, expand_rows, starts_of
from kgverify.trace.model.trace import Trace


class StepPairs(NamedTuple):
    """Steps to compare: rows of the expected and the actual step columns, and which pair of candidates each is of."""

    expected: NDArray[np.int64]
    actual: NDArray[np.int64]
    owner: NDArray[np.int64]


def compare_traces(expected: Trace, actual: Trace, *, lockstep: bool = False) -> Comparison:
    """Compare two traces of the same run.

    With `lockstep`, each candidate of both traces is one position from which one step was taken, and every step that
    differs is a divergence of its own.
    """
    return Comparer(expected, actual, lockstep=lockstep).compare()


class Comparer:
    """Compares two traces; keeps what it read, so that a divergence can be looked at again.

    numbering: how both traces' ids become the same, where that is known; of parts of one pair of traces
    """

    def __init__(
        self, expected: Trace, actual: Trace, *, lockstep: bool = False, numbering: Numbering | None = None
    ) -> None:
        shared = share(expected, actual, numbering)
        self.reasons = (*check_preconditions(expected, actual), *shared.reasons)
        self.expected, self.actual, self.not_compared = shared.expected, shared.actual, shared.not_compared
        self.by_digest, self._full = shared.by_digest, shared.full
        has_scores = "resolvents.score" in expected.fields
        self.expected_scores = expected.columns.resolvents.score.astype(np.float64) if has_scores else None
        self.has_actual_scores = "resolvents.score" in actual.fields
        self.lockstep = lockstep
        self.names = Names(self.expected)
        self.actual_names = Names(self.actual)
        self.readers = StepReader(self.expected.columns), StepReader(self.actual.columns)
        self.score_tolerance = expected.header.engine.score_error + actual.header.engine.score_error
        self.views: dict[tuple[int, int], tuple[StepView, StepView]] = {}
        """Both steps of each step that differs, by (candidate, step) as the divergence has them."""
        self.redrawn: dict[tuple[int, str], str] = {}
        """What speaks for another draw, for each (query, side) that has candidates which only one trace has, in both."""
        self.alignment = align_candidates(self.expected.columns.candidates, self.actual.columns.candidates)

    def equality(self) -> tuple[FieldRule, ...]:
        """What counts as equal in each field that is compared."""
        score = f"within {self.score_tolerance:.3g}" if self.score_tolerance else "equal"
        rules = {
            "resolvents.score": score,
            "candidates.log_probability": f"within {self.score_tolerance:.3g} a step"
            if self.score_tolerance
            else "within 1e-9, relative",
            "steps.choice": f"equal, unless the scores' gap is at most {2 * self.score_tolerance:.3g}"
            if self.score_tolerance
            else "equal",
        }
        rules[DIGEST] = "equal: 64 bits of goal, resolvents, counts, choice, outcome and depth"
        return tuple(FieldRule(field, rules.get(field, "equal")) for field in self._compared_fields())

    def compare(self) -> Comparison:
        """The verdict, with everything it rests on."""
        pairs = self.pair_steps()
        found, near_ties, is_compared = self._collect(pairs, self.differing_steps(pairs))
        divergences = [*self.unpaired_candidates(), *found]
        divergences.sort(key=lambda each: (each.candidate, each.step))
        coverage = self._coverage(pairs.expected[is_compared])
        reasons = [
            *self.reasons,
            *self.undecided(sum(each.field == DIGEST for each in divergences)),
            *lacking_coverage(coverage),
        ]
        level = highest_level([each.level for each in divergences])
        if level is None and self._bits_differ(pairs.expected[is_compared], pairs.actual[is_compared]):
            level = Level.BITS
        if reasons:
            verdict = Verdict.INCONCLUSIVE
        else:
            verdict = Verdict.DIVERGE if divergences else Verdict.AGREE
        return Comparison(
            verdict=verdict,
            coverage=coverage,
            divergences=tuple(divergences),
            near_ties=tuple(near_ties),
            level=level,
            reasons=tuple(reasons),
            equality=self.equality(),
        )

    def pair_steps(self) -> StepPairs:
        """The steps that both traces have, candidate by candidate."""
        lengths = [
            trace.columns.candidates.num_steps.astype(np.int64)[rows]
            for trace, rows in ((self.expected, self.alignment.expected), (self.actual, self.alignment.actual))
        ]
        common = np.minimum(*lengths)
        owner = np.repeat(np.arange(len(common)), common)
        ordinal = np.arange(len(owner)) - np.repeat(np.cumsum(common) - common, common)
        first = [
            starts_of(trace.columns.candidates.num_steps)[rows]
            for trace, rows in ((self.expected, self.alignment.expected), (self.actual, self.alignment.actual))
        ]
        return StepPairs(first[0][owner] + ordinal, first[1][owner] + ordinal, owner)

    def differing_steps(self, pairs: StepPairs) -> NDArray[np.bool_]:
        """bool: which pairs of steps differ in any field, scores by tolerance."""
        differs: NDArray[np.bool_] = (
            self.expected.digests.sequence[pairs.expected] != self.actual.digests.sequence[pairs.actual]
        )
        if "steps.num_resolvents" not in self.expected.fields & self.actual.fields:
            return differs
        if self.not_compared:
            rows = pairs.expected, pairs.actual
            differs |= differing_columns(self.expected.columns, self.actual.columns, rows)
        same = np.flatnonzero(~differs)
        e, a = self.expected.columns, self.actual.columns
        rows_e = expand_rows(starts_of(e.steps.num_resolvents), pairs.expected[same])
        rows_a = expand_rows(starts_of(a.steps.num_resolvents), pairs.actual[same])
        counts = e.steps.num_resolvents[pairs.expected[same]].astype(np.int64)
        r, s = e.resolvents, a.resolvents
        wrong = (r.origin_kind[rows_e] != s.origin_kind[rows_a]) | (r.origin[rows_e] != s.origin[rows_a])
        score_e, score_a = r.score[rows_e].astype(np.float64), s.score[rows_a].astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            wrong |= ~((score_e == score_a) | (np.abs(score_e - score_a) <= self.score_tolerance))
        differs[same[np.repeat(np.arange(len(same)), counts)[wrong]]] = True
        return differs

    def step_views(self, pairs: StepPairs, i: int) -> tuple[StepView, StepView]:
        """Both steps of a pair."""
        return self.readers[0].read(int(pairs.expected[i])), self.readers[1].read(int(pairs.actual[i]))

    def _collect(
        self, pairs: StepPairs, flags: NDArray[np.bool_]
    ) -> tuple[list[Divergence], list[NearTie], NDArray[np.bool_]]:
        """Divergences, near-ties, and which pairs were compared: none after the one that decides its candidate."""
        divergences: list[Divergence] = []
        near_ties: list[NearTie] = []
        decided: dict[int, int] = {}
        for i in np.flatnonzero(flags).tolist():
            owner = int(pairs.owner[i])
            if owner in decided:
                continue
            step_e, step_a = self.step_views(pairs, i)
            step = self._step_number(owner, int(pairs.expected[i]))
            difference = locate_difference(step_e, step_a, self.names, step == 0, self.score_tolerance)
            rows = int(pairs.expected[i]), int(pairs.actual[i])
            digests = int(self.expected.digests.sequence[rows[0]]), int(self.actual.digests.sequence[rows[1]])
            is_digest_alone = difference is None and self.by_digest and digests[0] != digests[1]
            if is_digest_alone:
                difference = digest_difference(*digests)
            if difference is None:
                continue
            decided[owner] = i
            if is_digest_alone:
                gap = tie_gap(self._full, rows, digests, self.score_tolerance)
            else:
                gap = self._tie_gap(rows[0], step_e, step_a, difference)
            if gap is not None:
                near_ties.append(self._near_tie(owner, step, gap, difference))
            else:
                self.views[int(self.alignment.expected[owner]), step] = step_e, step_a
                level = level_of_step(step_e, step_a, difference)
                if is_digest_alone:
                    level = Level.RENAMING
                elif self.by_digest:
                    level = level_without_goals(step_e, step_a, level, is_same_digest=digests[0] == digests[1])
                divergences.append(self._divergence(owner, step, difference, level, step_e))
        rest = (owner for owner in range(len(self.alignment.expected)) if owner not in decided)
        divergences += filter(None, map(self._whole_candidate, rest))
        last = np.full(len(self.alignment.expected), len(flags), np.int64)
        last[list(decided)] = list(decided.values())
        return divergences, near_ties, np.arange(len(flags)) <= last[pairs.owner]

    def _step_number(self, owner: int, row: int) -> int:
        if self.lockstep:
            return int(self.expected.columns.steps.depth[row])
        return row - self.readers[0].first_step[int(self.alignment.expected[owner])]

    def _tie_gap(self, row: int, expected: StepView, actual: StepView, difference: Difference) -> float | None:
        """The gap of the expected scores at a choice that differs, if it is inside the error bound; else None.

        row: of the expected step. Nothing excuses another choice where the expected trace has no scores, a choice is no
        resolvent, or the steps end in different outcomes; nor where the actual choice is not the first of the highest
        scores by its own account.
        """
        if difference.stage != Stage.CHOOSE or not self.score_tolerance or self.expected_scores is None:
            return None
        if expected.chosen is None or actual.chosen is None or expected.outcome != actual.outcome:
            return None
        if not self._is_own_argmax(actual):
            return None
        first = self.readers[0].first_resolvent(row)
        gap = abs(float(self.expected_scores[first + expected.choice] - self.expected_scores[first + actual.choice]))
        return gap if gap <= 2 * self.score_tolerance else None

    def _is_own_argmax(self, actual: StepView) -> bool:
        """Whether the actual choice follows from the scores beside it; where they were rounded, the highest are equal."""
        scores = [r.score for r in actual.resolvents]
        is_exact = self.actual.header.engine.precision == self.actual.columns.resolvents.score.dtype.name
        if not self.has_actual_scores or not is_exact:
            return True
        return actual.choice == scores.index(max(scores))

    def _near_tie(self, owner: int, step: int, gap: float, difference: Difference) -> NearTie:
        row = int(self.alignment.expected[owner])
        atom = self.names.atom(tuple(self.expected.columns.candidates.atom[row].tolist()))
        return NearTie(row, atom, step, gap, 2 * self.score_tolerance, str(difference.expected), str(difference.actual))

    def _divergence(
        self, owner: int, step: int, difference: Difference, level: Level, expected: StepView | None
    ) -> Divergence:
        e, a = (int(rows[owner]) for rows in (self.alignment.expected, self.alignment.actual))
        outcomes = self.expected.columns.candidates.outcome[e], self.actual.columns.candidates.outcome[a]
        if not self.lockstep and outcomes[0] != outcomes[1]:
            level = Level.OUTCOME
        candidates = self.expected.columns.candidates
        num_steps = int(candidates.num_steps[e])
        return Divergence(
            candidate=e,
            atom=self.names.atom(tuple(candidates.atom[e].tolist())),
            query=int(candidates.query[e]),
            side=side_name(int(candidates.side[e])),
            step=step,
            stage=difference.stage.value,
            field=difference.field,
            level=level,
            expected=difference.expected,
            actual=difference.actual,
            goal=self.names.goal(expected.goal) if expected else "",
            later_steps=0 if self.lockstep or step < 0 else max(0, num_steps - step - 1),
        )

    def _whole_candidate(self, owner: int) -> Divergence | None:
        """A difference of a candidate whose common steps agree: steps that only one side has, or how it ended."""
        e, a = (int(rows[owner]) for rows in (self.alignment.expected, self.alignment.actual))
        expected, actual = self.expected.columns.candidates, self.actual.columns.candidates
        num = int(expected.num_steps[e]), int(actual.num_steps[a])
        if num[0] != num[1]:
            difference = Difference(Stage.RECYCLE, "candidates.num_steps", f"{num[0]} steps", f"{num[1]} steps")
            return self._divergence(owner, min(num), difference, Level.OUTCOME, None)
        outcomes = outcome_name(int(expected.outcome[e])), outcome_name(int(actual.outcome[a]))
        if outcomes[0] != outcomes[1]:
            difference = Difference(Stage.RECYCLE, "candidates.outcome", *outcomes)
            return self._divergence(owner, -1, difference, Level.OUTCOME, None)
        if expected.is_limited[e] != actual.is_limited[a]:
            difference = Difference(
                Stage.LIMIT,
                "candidates.is_limited",
                *("limited" if flag else "not limited" for flag in (expected.is_limited[e], actual.is_limited[a])),
            )
            return self._divergence(owner, -1, difference, Level.RENAMING, None)
        sums = float(expected.log_probability[e]), float(actual.log_probability[a])
        size = abs(sums[0]) if isfinite(sums[0]) else 0.0
        tolerance = 2 * self.score_tolerance * max(1, num[0]) + 1e-9 * max(1.0, size)
        if not is_close(*sums, tolerance):
            # As text, since JSON has no NaN.
            difference = Difference(Stage.ADVANCE, "candidates.log_probability", *map(repr, sums))
            return self._divergence(owner, -1, difference, Level.TOLERANCE, None)
        return None

    def unpaired_candidates(self) -> list[Divergence]:
        """Candidates that only one trace has: another draw, or one lost, doubled or invented by the batch machinery."""
        missing, extra = self.alignment.missing, self.alignment.extra
        groups = [_group_atoms(t, rows) for t, rows in ((self.expected, missing), (self.actual, extra))]
        redrawn = groups[0].keys() & groups[1].keys()
        self.redrawn = {(q, side_name(s)): self._describe_draw(*(group[q, s] for group in groups)) for q, s in redrawn}
        aligned = CandidateSet(*self.expected.columns.candidates[:3]).take(self.alignment.expected)
        known = {tuple(row) for row in aligned.atom.tolist()}
        seen = set(zip(aligned.query.tolist(), aligned.side.tolist(), map(tuple, aligned.atom.tolist()), strict=True))
        found = []
        for rows, trace, names, is_extra in (
            (missing, self.expected, self.names, False),
            (extra, self.actual, self.actual_names, True),
        ):
            candidates = trace.columns.candidates
            for row in rows.tolist():
                group = (int(candidates.query[row]), int(candidates.side[row]))
                atom = tuple(candidates.atom[row].tolist())
                is_doubled = is_extra and (*group, atom) in seen
                is_drawn = not is_doubled and (group in redrawn or (is_extra and atom not in known))
                if is_extra and group in redrawn:
                    seen.add((*group, atom))
                text = names.atom(atom)
                found.append(
                    Divergence(
                        candidate=row,
                        atom=text,
                        query=group[0],
                        side=side_name(group[1]),
                        step=-1,
                        stage=(Stage.CORRUPT if is_drawn else Stage.RECYCLE).value,
                        field="candidates.atom",
                        level=Level.OUTCOME,
                        expected="no such candidate" if is_extra else text,
                        actual=text if is_extra else "no such candidate",
                    )
                )
        return found

    def _describe_draw(self, missing: set[tuple[int, ...]], extra: set[tuple[int, ...]]) -> str:
        text = f"{len(extra)} candidates drawn instead of {len(missing)} others"
        if {(predicate, second, first) for predicate, first, second in missing} == extra:
            return f"{text}: their arguments swapped"
        num_known = len(extra & self._facts)
        return f"{text}, {num_known} of them facts" if num_known else text

    @cached_property
    def _facts(self) -> set[tuple[int, ...]]:
        return set() if self.expected.facts is None else {tuple(fact) for fact in self.expected.facts.tolist()}

    def _compared_fields(self) -> list[str]:
        compared = column_names(self.expected.columns) - set(self.not_compared)
        return sorted(compared | {DIGEST}) if self.by_digest else sorted(compared)

    def undecided(self, num: int) -> list[str]:
        """Why digests alone cannot decide: scores have an error bound, and no trace tells which choices it excuses.

        num: divergences in a digest
        """
        if not num or not self.score_tolerance or any(map(is_decidable, self._full)):
            return []
        return [
            f"{num} candidates part in a digest, which scores within their error bound {self.score_tolerance:.3g} may"
            " explain; no trace keeps the goals that would tell: record one at level steps"
        ]

    def _coverage(self, steps: NDArray[np.int64]) -> Coverage:
        """steps: rows of the expected steps compared."""
        return Coverage(
            candidates=len(self.alignment.expected),
            steps=len(steps),
            resolvents=int(self.expected.columns.steps.num_resolvents[steps].sum()),
            fields=tuple(self._compared_fields()),
            not_compared=self.not_compared,
            candidates_expected=len(self.expected.columns.candidates.query),
            candidates_actual=len(self.actual.columns.candidates.query),
        )

    def _bits_differ(self, expected: NDArray[np.int64], actual: NDArray[np.int64]) -> bool:
        """Whether scores of steps that agree, or tie, differ in bits, in the coarser of the two precisions."""
        e, a = self.expected.columns, self.actual.columns
        rows_e = expand_rows(starts_of(e.steps.num_resolvents), expected)
        rows_a = expand_rows(starts_of(a.steps.num_resolvents), actual)
        dtype = min(e.resolvents.score.dtype, a.resolvents.score.dtype, key=lambda each: each.itemsize)
        return not np.array_equal(e.resolvents.score[rows_e].astype(dtype), a.resolvents.score[rows_a].astype(dtype))


def lacking_coverage(coverage: Coverage) -> list[str]:
    """Why nothing can be decided, where nothing was compared."""
    if coverage.candidates and coverage.steps:
        return []
    return [
        f"nothing was compared: {coverage.candidates_expected} candidates expected,"
        f" {coverage.candidates_actual} actual, {coverage.steps} steps in common"
    ]


def _group_atoms(trace: Trace, rows: NDArray[np.int64]) -> dict[tuple[int, int], set[tuple[int, ...]]]:
    """The atoms of candidates by (query, side)."""
    candidates = trace.columns.candidates
    groups: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for query, side, atom in zip(*(c[rows].tolist() for c in candidates[:3]), strict=True):
        groups.setdefault((query, side), set()).add(tuple(atom))
    return groups
