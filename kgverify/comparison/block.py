"""The comparison of a block of derivations: paired candidates of two traces in memory, step by step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code
from kgverify.comparison.columns import ColumnComparer, StepPairs, find_differing
from kgverify.comparison.comparable import ComparablePair, is_decidable, searches
from kgverify.comparison.equal_columns import Rounded, count_rounded
from kgverify.comparison.locate import (
    Difference,
    level_of_step,
    locate_difference,
    render_choice,
)
from kgverify.comparison.modulo import DUPLICATES, NAMES, ORDER, BenignSteps, find_kinds, normalise_steps
from kgverify.comparison.result import DIGEST, Benign, Divergence, Level, NearTie, Value
from kgverify.comparison.step_view import ResolventView, StepReader, StepView, canonical, outcome_name
from kgverify.program.outcomes import DifferenceClass, Outcome, Stage
from kgverify.trace.model.columns import Columns, expand_rows, select_steps, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import NUM_STEPS
from kgverify.trace.model.paths import has_paths
from kgverify.trace.model.schema import Column, EqualityRule
from kgverify.trace.model.trace import Trace

if TYPE_CHECKING:
    from kgverify.comparison.inference.infer import BlockInference, ProgramInference
    from kgverify.comparison.inference.step_difference import StepDifference

_DROPPED: Final = frozenset({"steps.dropped_atoms", "steps.dropped_resolvents"})

_EVIDENCE: Final = (
    "no proof of it exists, so the actual proof is false; any stage may be at fault",
    "it follows from the facts and rules, and the actual side lost the proof; any stage may be at fault",
)
"""The evidence for a false and for a lost proof, if the expected side searched."""

_VIEWED: Final = frozenset(StepView._fields) | frozenset(ResolventView._fields)
"""The columns that views of steps show, besides counts and atoms."""


class BlockComparer(ColumnComparer):
    """The comparer of a block of derivations in a knowledge graph.

    program: returns what infers the clauses of resolvents, to infer the stage of a step; None to infer no stage
    """

    def __init__(
        self,
        pair: ComparablePair,
        *,
        lockstep: bool = False,
        program: "Callable[[], ProgramInference] | None" = None,
    ) -> None:
        self.pair, self.lockstep = pair, lockstep
        self.names = pair.names
        self.readers = StepReader(pair.expected.columns), StepReader(pair.actual.columns)
        self._raw_readers = StepReader(pair.raw[0].columns), StepReader(pair.raw[1].columns)
        self._alike: dict[str, NDArray[np.bool_]] = {}
        self._inference: BlockInference | None = None
        if program is not None and not pair.by_digest:
            from kgverify.comparison.inference import infer

            self._inference = infer.BlockInference(
                program(),
                (pair.expected, pair.actual),
                pair.names,
                self._read_earlier,
                has_origins=pair.has_origins,
                has_counts="steps.dropped_resolvents" not in pair.not_compared,
            )
        has_scores = "resolvents.score" in pair.full[0].fields
        self._expected_scores = pair.full[0].columns.resolvents.score.astype(np.float64) if has_scores else None
        super().__init__(pair, lockstep=lockstep)
        pairs, is_compared = self._pairs, self._is_compared
        if pair.modulo:
            self.benign = list(self._find_benign(pairs, is_compared))
        self.num_resolvents = int(pair.raw[0].columns.steps.num_resolvents[pairs.expected[is_compared]].sum())
        self.rounded = self._count_rounded(pairs, is_compared & ~self._is_decisive(pairs, [*self.divergences]))

    @cached_property
    def _lost_sums(self) -> frozenset[int]:
        """The candidates whose sums include repeated resolvents, which cannot be removed because scores are unknown."""
        lost: set[int] = set()
        if DUPLICATES not in self.pair.modulo or self.pair.by_digest:
            return frozenset()
        for full, raw in zip(self.pair.full, self.pair.raw, strict=True):
            if "resolvents.score" not in full.fields:
                is_shorter = full.columns.steps.num_resolvents != raw.columns.steps.num_resolvents
                owner = np.repeat(np.arange(len(full.columns.candidates.query)), full.columns.candidates.num_steps)
                lost.update(owner[is_shorter].tolist())
        return frozenset(lost)

    def _find_differing(self, pairs: StepPairs) -> NDArray[np.bool_]:
        """Return a mask of the pairs of steps that differ in any field, scores by more than the tolerance."""
        pair, differs = self.pair, super()._find_differing(pairs)
        if pair.by_digest and pair.modulo:
            for kind, name in ((ORDER, "multiset"), (NAMES, "renaming")):
                words = [getattr(t.digests, name)[own] for t, own in zip(pair.raw, pairs[:2], strict=True)]
                is_alike = (words[0] == words[1]) & (words[0] != 0)
                if kind in pair.modulo:
                    self._alike[kind] = is_alike & differs
                    differs &= ~is_alike
        return differs

    def _find_benign(self, pairs: StepPairs, is_compared: NDArray[np.bool_]) -> Iterator[BenignSteps]:
        """Yield, kind by kind, the steps that agree although they differ as recorded."""
        pair = self.pair
        decisive: list[Divergence | NearTie] = [*self.divergences, *self.near_ties]
        at = np.flatnonzero(is_compared & ~self._is_decisive(pairs, decisive))
        if pair.by_digest:
            found = [(kind, np.flatnonzero(is_alike & is_compared)) for kind, is_alike in self._alike.items()]
        else:
            own = StepPairs(*(rows[at] for rows in pairs))
            at = at[find_differing(*pair.raw, own, pair)]
            rows = pairs.expected[at], pairs.actual[at]
            found = [(kind, at[of]) for kind, of in find_kinds(pair.raw, rows, pair.modulo, pair.not_compared)]
        for kind, of in found:
            if len(of):
                row, other = int(pairs.expected[of[0]]), int(pairs.actual[of[0]])
                first = self._describe_benign(kind, row, other, pairs, int(of[0]))
                yield BenignSteps(len(of), pairs.candidate[of], first)

    def _is_decisive(self, pairs: StepPairs, decisive: list[Divergence | NearTie]) -> NDArray[np.bool_]:
        """Return a mask of the pairs of steps that have a divergence or a near-tie."""
        last = np.full(len(self.pair.expected.columns.candidates.query), -1)
        for each in decisive:
            if each.step >= 0:
                last[each.candidate] = 0 if self.lockstep and not has_paths(self.pair.expected.columns) else each.step
        first = np.array(self.readers[0].first_step)
        is_decisive: NDArray[np.bool_] = pairs.expected - first[pairs.candidate] == last[pairs.candidate]
        return is_decisive

    def _describe_benign(self, kind: str, row: int, other: int, pairs: StepPairs, at: int) -> Benign:
        """Describe one difference of a kind, without the differences of other kinds in the same step."""
        candidate = int(pairs.candidate[at])
        step = self._number(candidate, row)
        views = []
        for trace, own in zip(self.pair.raw, (row, other), strict=True):
            columns = select_steps(trace.columns, np.array([own]))
            if not self.pair.by_digest:
                columns = normalise_steps(columns, self.pair.modulo - {kind}, self.pair.not_compared)
            views.append(StepReader(columns).read(0))
        found = locate_difference(views[0], views[1], self.names, step == 0, self.pair.score_tolerance)
        if found is None:
            words = [trace.digests.sequence[own] for trace, own in zip(self.pair.raw, (row, other), strict=True)]
            found = Difference(Stage.SELECT, DIGEST, f"{int(words[0]):016x}", f"{int(words[1]):016x}")
        atom = self.names.atom(tuple(self.pair.expected.columns.candidates.atom[candidate].tolist()))
        return Benign(
            kind=kind,
            candidate=candidate,
            atom=atom,
            step=step,
            field=found.field,
            expected=found.expected,
            actual=found.actual,
            code=Code[kind.upper()],
        )

    def _compare_step(self, candidate: int, row: int, other: int) -> Divergence | NearTie | None:
        """Compare two steps, given their rows; return None if they agree after all."""
        pair = self.pair
        expected, actual = self._read(row, other)
        step = self._number(candidate, row)
        digests = int(pair.expected.digests.sequence[row]), int(pair.actual.digests.sequence[other])
        if DUPLICATES in pair.modulo:
            actual = self._share_origins(expected, actual, row, other)
        difference = locate_difference(expected, actual, pair.names, step == 0, pair.score_tolerance)
        if difference is not None and self._inference is not None:
            difference = self._inference.name(candidate, step, expected, actual, difference)
        is_digest_alone = difference is None and pair.by_digest and digests[0] != digests[1]
        if is_digest_alone:
            # The steps are only known to differ in some stage, perhaps the first one.
            texts = [f"{digest:016x}" for digest in digests]
            difference = Difference(Stage.SELECT, DIGEST, texts[0], texts[1])
        if difference is None:
            return self._compare_columns(candidate, row, other, self._unseen)
        if is_digest_alone:
            gap = _find_tie_gap(pair.full, (row, other), digests, pair.score_tolerance)
        else:
            gap = self._gap_of_choices((row, other), expected, actual, difference)
        if difference.field == "steps.choice" and pair.modulo:
            # The indices refer to the lists as recorded.
            choices = [
                render_choice(reader.read(at), pair.names)
                for reader, at in zip(self._raw_readers, (row, other), strict=True)
            ]
            difference = Difference(difference.stage, difference.field, choices[0], choices[1])
        if gap is not None:
            return self._near_tie(candidate, step, gap, difference)
        self.views[candidate, step] = expected, actual
        level = Level.RENAMING if is_digest_alone else level_of_step(expected, actual, difference)
        return self._divergence(candidate, step, difference, level, expected)

    def _read(self, row: int, other: int) -> tuple[StepView, StepView]:
        """Return both versions of a step, as they are compared."""
        return self.readers[0].read(row), self.readers[1].read(other)

    def _number(self, candidate: int, row: int) -> int:
        """Return the number of a step in its derivation: in lockstep, where a candidate has one step, its depth."""
        if self.lockstep:
            return int(self.pair.full[0].columns.steps.depth[row])
        return row - self.readers[0].first_step[candidate]

    @cached_property
    def _unseen(self) -> list[Column]:
        """The columns of steps that the views do not show."""
        of_steps = (each for each in self._by_stage if not each.of_search)
        of_rows = (each for each in of_steps if each.rows in self.schema.groups and not each.counts)
        return [each for each in of_rows if each.path.partition("/")[2] not in _VIEWED]

    def _share_origins(self, expected: StepView, actual: StepView, row: int, other: int) -> StepView:
        """Return the actual step with the expected origins of repeated resolvents that share an origin on both sides."""
        if [r.content for r in expected.resolvents] != [r.content for r in actual.resolvents]:
            return actual
        origins: list[dict[Any, set[Any]]] = [{}, {}]
        for reader, at, of in zip(self._raw_readers, (row, other), origins, strict=True):
            view = reader.read(at)
            atoms = (canonical(r.atoms) if NAMES in self.pair.modulo else r.atoms for r in view.resolvents)
            for resolvent, goal in zip(view.resolvents, atoms, strict=True):
                of.setdefault((resolvent.kind, goal), set()).add(resolvent.clause)
        shared = []
        for left, right in zip(expected.resolvents, actual.resolvents, strict=True):
            is_shared = origins[0].get(left.content, set()) & origins[1].get(right.content, set())
            shared.append(right._replace(origin_kind=left.origin_kind, origin=left.origin) if is_shared else right)
        return actual._replace(resolvents=tuple(shared))

    def _gap_of_choices(
        self, rows: tuple[int, int], expected: StepView, actual: StepView, difference: Difference
    ) -> float | None:
        """Return the gap of the expected scores between two different choices, if it is within the error bound.

        A different choice is never excused if the expected trace has no scores, a choice is not a resolvent, choices of one
        kind end differently, or the actual choice is not the first of the actual side's own highest scores. If order does
        not count, any of the highest scores will do, and without scores the same index in reordered lists counts as a tie.
        """
        is_reordered = bool({ORDER, DUPLICATES} & self.pair.modulo)
        if difference.stage != Stage.CHOOSE or not (self.pair.score_tolerance or is_reordered):
            return None
        if expected.chosen is None or actual.chosen is None:
            return None
        if expected.outcome != actual.outcome and expected.chosen[0] == actual.chosen[0]:
            # Only resolvents of different kinds, such as TRUE and a goal, may end a derivation differently.
            return None
        raw = [reader.read(row) for reader, row in zip(self._raw_readers, rows, strict=True)]
        if self._expected_scores is None:
            is_reordered &= [r.content for r in raw[0].resolvents] != [r.content for r in raw[1].resolvents]
            is_unknown = "resolvents.score" not in self.pair.full[1].fields
            return 0.0 if is_reordered and is_unknown and raw[0].choice == raw[1].choice else None
        if not self._is_own_argmax(raw[1]):
            return None
        first = self.readers[0].first_resolvent(rows[0])
        gap = abs(float(self._expected_scores[first + expected.choice] - self._expected_scores[first + actual.choice]))
        return gap if gap <= 2 * self.pair.score_tolerance else None

    def _is_own_argmax(self, actual: StepView) -> bool:
        """Return whether the recorded actual choice follows from the recorded scores; True if the scores were rounded."""
        trace = self.pair.actual
        scores = [r.score for r in actual.resolvents]
        # A float64 column holds float32 scores unchanged.
        is_exact = trace.header.engine.precision in (trace.columns.resolvents.score.dtype.name, "float32")
        if "resolvents.score" not in self.pair.full[1].fields or not is_exact:
            return True
        if ORDER in self.pair.modulo:
            return scores[actual.choice] == max(scores)
        return actual.choice == scores.index(max(scores))

    def _near_tie(self, candidate: int, step: int, gap: float, difference: Difference) -> NearTie:
        atom = self.names.atom(tuple(self.pair.expected.columns.candidates.atom[candidate].tolist()))
        bound = 2 * self.pair.score_tolerance
        return NearTie(candidate, atom, step, gap, bound, str(difference.expected), str(difference.actual))

    def _divergence(
        self, candidate: int, step: int, difference: Difference, level: Level, expected: StepView | None
    ) -> Divergence:
        candidates, others = self._candidates
        if not self.lockstep and candidates.outcome[candidate] != others.outcome[candidate]:
            level = Level.OUTCOME
        found = difference.found
        return self._name_divergence(
            candidate,
            step,
            difference.stage.value,
            difference.field,
            (difference.expected, difference.actual),
            level,
            goal=self.names.goal(expected.goal) if expected else "",
            kind=found.kind if found else DifferenceClass.UNCLASSIFIED,
            evidence=found.evidence if found else "",
            confidence=found.confidence if found else 0.0,
        )

    @property
    def guesses(self) -> Mapping[tuple[int, int], "Sequence[StepDifference]"]:
        """The stages that explain a step by their fault alone, the likeliest first, by (candidate, step)."""
        return {} if self._inference is None else self._inference.guesses

    def _read_earlier(self, candidate: int, step: int) -> tuple[StepView, ...]:
        """Return the steps of a candidate before a step; in lockstep, they belong to other candidates."""
        return () if self.lockstep else self.readers[0].read_earlier(candidate, step)

    def _compare_whole(self, candidate: int) -> Divergence | None:
        found = super()._compare_whole(candidate)
        if found is None or found.field != "candidates.outcome" or not searches(self.pair.full[0].header.engine):
            return found
        is_lost = found.expected == Outcome.PROVED.name
        kind = DifferenceClass.PROOF_LOST if is_lost else DifferenceClass.FALSE_PROOF
        return msgspec.structs.replace(found, kind=kind, evidence=_EVIDENCE[is_lost], confidence=0.1)

    def _excuses(self, column: Column, candidate: int) -> bool:
        return column.rule is EqualityRule.SUM and candidate in self._lost_sums

    def _describe_end(
        self, column: Column, expected: NDArray[Any], actual: NDArray[Any]
    ) -> tuple[str, tuple[Value, Value], Level]:
        stage, texts, level = super()._describe_end(column, expected, actual)
        has_steps = NUM_STEPS not in self.pair.not_compared
        if column.codes is Outcome:
            # If the steps of a derivation are unknown, any stage may have caused its end.
            texts = outcome_name(int(expected[0])), outcome_name(int(actual[0]))
            return Stage.RECYCLE if has_steps else stage, texts, level
        if column.stage == Stage.LIMIT:
            # If both sides counted dropped resolvents, the counts agree in each step: only the flag was not passed on.
            is_counted = has_steps and not _DROPPED & set(self.pair.not_compared)
            flags = [("not limited", "limited")[bool(side[0])] for side in (expected, actual)]
            return Stage.ADVANCE if is_counted else stage, (flags[0], flags[1]), Level.RENAMING
        return Stage.ADVANCE if has_steps and column.rule is EqualityRule.SUM else stage, texts, level

    def _count_rounded(self, pairs: StepPairs, agrees: NDArray[np.bool_]) -> Rounded:
        """Count the scores of pairs of steps that agree, and how many of them differ in bits."""
        e, a = self.pair.expected.columns, self.pair.actual.columns
        agrees = agrees & (e.steps.num_resolvents[pairs.expected] == a.steps.num_resolvents[pairs.actual])
        rows_e, rows_a = _resolvents_of(e, a, pairs, agrees)
        return count_rounded(e.resolvents.score[rows_e], a.resolvents.score[rows_a])


def _resolvents_of(
    expected: Columns, actual: Columns, pairs: StepPairs, chosen: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the resolvents of some pairs of steps, on both sides."""
    rows, others = (
        expand_rows(starts_of(columns.steps.num_resolvents), steps[chosen])
        for columns, steps in ((expected, pairs.expected), (actual, pairs.actual))
    )
    return rows, others


def _find_tie_gap(
    full: tuple[Trace, Trace], rows: tuple[int, int], digests: tuple[int, int], tolerance: float
) -> float | None:
    """Return the gap of scores if another choice, within the tolerance, turns one digest into the other.

    full: the traces with all the goals and scores that they have; rows: the row of the step in each; tolerance: of a score
    """
    for side, other in ((0, 1), (1, 0)):
        trace = full[side]
        if not is_decidable(trace):
            continue
        columns = select_steps(trace.columns, np.array([rows[side]]))
        scores = columns.resolvents.score.astype(np.float64)
        choice = int(columns.steps.choice[0])
        if not 0 <= choice < len(scores):
            continue
        gaps = np.abs(scores - scores[choice])
        for index in np.flatnonzero(gaps <= 2 * tolerance).tolist():
            if index == choice:
                continue
            steps = columns.steps._replace(choice=np.array([index], np.int32))
            if int(compute_digests(columns._replace(steps=steps)).sequence[0]) == digests[other]:
                return float(gaps[index])
    return None
