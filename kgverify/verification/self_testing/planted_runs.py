"""The self-test of a verification: changes planted in lockstep, behind near-ties, in ranks and in the split of the loss."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.compare import Comparer
from kgverify.comparison.rankings import RankCandidates, compare_rankings
from kgverify.comparison.result import Attribution, Cause, Comparison, Divergence, Level, SelfTest, Verdict
from kgverify.comparison.source import MemorySource
from kgverify.engines.protocol import Engine, Positions
from kgverify.garbage_collection import without_garbage_collection
from kgverify.program.difference_class import DifferenceClass
from kgverify.program.outcomes import Outcome, Side
from kgverify.program.stages import Stage
from kgverify.progress import silent_phase
from kgverify.ranking.metric import MRR
from kgverify.report.content import Metrics, Outcomes
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import Candidates, Columns, Rankings, empty_columns
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.trace import Trace
from kgverify.verification.attribute import attribute_loss
from kgverify.verification.lockstep import compare_in_lockstep, follow_near_ties
from kgverify.verification.self_testing.self_test import run_self_test
from kgverify.verification.self_testing.stored_self_test import require

CompareRankings = Callable[[Comparison, MemorySource, MemorySource], Comparison]
"""Compares the ranks of recorded traces."""


class RememberingEngine:
    """An engine whose last steps are kept, and repeated with changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.stepped: Columns | None = None
        self.is_repeating = False

    @property
    def info(self) -> EngineInfo:
        """The description of the engine."""
        return self._engine.info

    def prove(self, *arguments: Any) -> Columns:
        """Call the engine."""
        return self._engine.prove(*arguments)

    def step(self, positions: Positions) -> Columns:
        """Call the engine, or repeat what it returned."""
        if not self.is_repeating or self.stepped is None:
            self.stepped = self._engine.step(positions)
        return self.stepped


@without_garbage_collection()
def plant_in_verification(
    run: Run,
    comparer: Comparer,
    stepper: Comparer | None,
    actual: Pipeline,
    remembered: RememberingEngine,
    ranks: tuple[RankCandidates, RankCandidates],
) -> SelfTest:
    """Return the changes planted in all that a verification compares, all seen. InternalError if one is not.

    comparer:   compared the free runs
    stepper:    compared the steps from the expected goals; None if this was not done
    remembered: the actual engine, which knows the steps behind near-ties
    """
    tests = [run_self_test(each) for each in (comparer, stepper) if each is not None]
    num = 0
    if stepper is not None:
        num += _plant_in_lockstep(stepper, comparer)
    elif comparer.comparison.near_ties:
        num += _plant_behind_near_ties(run, comparer, actual, remembered)
    num_of_ranks = _plant_in_ranks(comparer, ranks)
    num += sum(each.perturbations for each in tests) + num_of_ranks + _plant_losses(comparer.sources[0], ranks[0])
    return SelfTest(tests[0].columns + (num_of_ranks > 0), num)


@without_garbage_collection()
def plant_in_recorded(comparer: Comparer, compare_ranks: CompareRankings) -> SelfTest:
    """Return the changes planted in all that a comparison of recorded traces compares. InternalError if one is not seen."""
    tested = run_self_test(comparer)
    left, right = (source.rankings for source in comparer.sources)
    if left is None or right is None:
        return tested
    few = [_few_groups(each, right) for each in (left, right)]
    traces = comparer.load_pairs(np.array([0]))

    def judge(side: int, changed: Rankings) -> Comparison:
        sides = [replace(trace, rankings=own) for trace, own in zip(traces, few, strict=True)]
        sides[side] = replace(sides[side], rankings=changed)
        return compare_ranks(comparer.comparison, MemorySource(sides[0]), MemorySource(sides[1]))

    num = sum(plant_in_rankings(partial(judge, side), few[side]) for side in (0, 1))
    return SelfTest(tested.columns + (num > 0), tested.perturbations + num)


def _few_groups(rankings: Rankings, like: Rankings) -> Rankings:
    """Return the rankings of the first, middle and last groups of others."""
    num = len(like.query)
    wanted = sorted({0, num // 2, num - 1} - {-1, num})
    keys = like.query[wanted].astype(np.int64) * 4 + like.side[wanted]
    rows = np.isin(rankings.query.astype(np.int64) * 4 + rankings.side, keys)
    every: Any = rankings
    return Rankings(*(column[rows] for column in every))


def plant_in_rankings(judge: Callable[[Rankings], Comparison], rankings: Rankings) -> int:
    """Return the number of changes planted in rankings, all of which were judged DIVERGE. InternalError otherwise."""
    planted = 0
    for name in Rankings._fields:
        for row in range(len(rankings.query)):
            values = getattr(rankings, name).copy()
            # No error of scores leads to ranks outside the group.
            beyond = int(rankings.num_ranked[row]) + 7
            other = int(values[row]) + 1
            values[row] = beyond if name in ("optimistic", "pessimistic") else other % 3 if name == "side" else other
            found = judge(rankings._replace(**{name: values}))
            group = "rankings", int(rankings.query[row]), Side(int(rankings.side[row])).name.lower()
            require(
                found.verdict is Verdict.DIVERGE
                and group in {(each.field, each.query, each.side) for each in found.divergences},
                f"{found.verdict.value} with another {name} in row {row} of the rankings",
            )
            planted += 1
    return planted


def _plant_in_ranks(comparer: Comparer, ranks: tuple[RankCandidates, RankCandidates]) -> int:
    """Plant changes in the recorded ranks of each side, and in the ranks that it gives the other side's candidates."""
    traces = [source.shell() for source in comparer.sources]
    candidates = [trace.columns.candidates for trace in traces]
    if traces[0].rankings is None or traces[1].rankings is None:
        return 0
    given = [traces[0].rankings, traces[1].rankings, ranks[0](candidates[1]), ranks[1](candidates[0])]
    like = traces[1].rankings
    few = [_few_groups(each, like) for each in given]

    def judge(which: int, changed: Rankings) -> Comparison:
        left, right, again_left, again_right = (changed if i == which else few[i] for i in range(4))
        sides = replace(traces[0], rankings=left), replace(traces[1], rankings=right)
        # Only the candidates that are ranked tell the two calls apart.
        return compare_rankings(
            comparer.comparison,
            *sides,
            (
                lambda ranked: again_left if ranked is candidates[1] else left,
                lambda ranked: again_right if ranked is candidates[0] else right,
            ),
        )

    return sum(plant_in_rankings(partial(judge, which), few[which]) for which in range(len(few)))


def _other_outcome(trace: Trace, step: int) -> Trace:
    """Return a trace with another outcome of one step."""
    columns = _with_outcome(trace.columns, step)
    return replace(trace, columns=columns, digests=compute_digests(columns))


def _with_outcome(columns: Columns, step: int) -> Columns:
    outcome = columns.steps.outcome.copy()
    outcome[step] = (outcome[step] + 1) % len(Outcome)
    return columns._replace(steps=columns.steps._replace(outcome=outcome))


def _plant_in_lockstep(stepper: Comparer, free: Comparer) -> int:
    """Plant changes in steps from the expected goals, and in the free run alone."""
    counts = free.sources[0].gather_column("num_steps", np.arange(free.sources[0].num_candidates)).astype(np.int64)
    tied = {tie.candidate for comparer in (free, stepper) for tie in comparer.comparison.near_ties}
    first_step = np.concatenate(([0], np.cumsum(counts)))
    rows = [row for row in np.flatnonzero(counts).tolist() if row not in tied]
    if not rows:
        return 0
    few = np.array(sorted({rows[0], rows[-1]}))
    steps = np.concatenate([np.arange(first_step[row], first_step[row + 1]) for row in few.tolist()])
    e, a = free.load_pairs(few)
    stepped_e, stepped_a = stepper.load_pairs(steps)
    if {tie.candidate for tie in stepper.comparison.near_ties} & set(steps.tolist()):
        return 0
    last, step = len(few) - 1, len(steps) - 1
    outcome = a.columns.candidates.outcome.copy()
    outcome[last] = (outcome[last] + 1) % len(Outcome)
    other_end = replace(a, columns=a.columns._replace(candidates=a.columns.candidates._replace(outcome=outcome)))
    depth = int(stepped_e.columns.steps.depth[step])
    planted = (
        (_other_outcome(stepped_a, step), a, ("steps.outcome", last, depth)),
        (_other_outcome(stepped_a, 0), a, ("steps.outcome", 0, int(stepped_e.columns.steps.depth[0]))),
        (stepped_a, _other_outcome(a, step), ("steps.outcome", last, int(counts[few[last]]) - 1)),
        (stepped_a, other_end, ("candidates.outcome", last, -1)),
    )
    compared = set(free.comparison.coverage.fields) & set(stepper.comparison.coverage.fields)
    planted_compared = [each for each in planted if each[2][0] in compared]
    for stepped, ran, wanted in planted_compared:
        found, _ = compare_in_lockstep(stepper.like(stepped_e, stepped), free.like(e, ran))
        _require_found(found, wanted, "in lockstep")
    return len(planted_compared)


def _require_found(found: Comparison, wanted: tuple[str, int, int], where: str) -> None:
    listed = {(each.field, each.candidate, each.step) for each in found.divergences}
    require(
        found.verdict is Verdict.DIVERGE and wanted in listed,
        f"{found.verdict.value} with another {wanted[0]} in step {wanted[2]} of candidate {wanted[1]}, {where}",
    )


def _plant_behind_near_ties(run: Run, comparer: Comparer, actual: Pipeline, remembered: RememberingEngine) -> int:
    """Plant changes in the first and last steps behind near-ties."""
    ties, stepped = comparer.comparison.near_ties, remembered.stepped
    counts = comparer.sources[0].gather_column("num_steps", np.array([tie.candidate for tie in ties])).astype(int)
    ends = np.cumsum(counts)
    # The engine was asked for all steps of these candidates.
    followed = [
        (tie.candidate, step, int(end - count) + step)
        for tie, count, end in zip(ties, counts.tolist(), ends.tolist(), strict=True)
        for step in range(tie.step + 1, count)
    ]
    if not followed or stepped is None:
        return 0
    planted = [followed[0], followed[-1]]
    for candidate, step, row in planted:
        other = RememberingEngine(actual.engine)
        other.is_repeating, other.stepped = True, _with_outcome(stepped, row)
        found, _ = follow_near_ties(comparer, comparer.comparison, run, actual._replace(engine=other), silent_phase)
        at = {(each.candidate, each.step) for each in found.divergences}
        require(
            found.verdict is Verdict.DIVERGE and (candidate, step) in at,
            f"{found.verdict.value} with another outcome in step {step} of candidate {candidate}, behind a near-tie",
        )
    return len(planted)


def _plant_losses(source: Any, rank: RankCandidates) -> int:
    """Plant two losses, and split them. InternalError unless the shares are those of the definition."""
    trace: Trace = source.trace
    candidates = trace.columns.candidates
    num = len(candidates.query)
    if not num or trace.rankings is None:
        return 0
    keys = candidates.query.astype(np.int64) * 4 + candidates.side
    few: NDArray[np.int64] = np.flatnonzero(np.isin(keys, (keys[0], keys[-1])))
    every: Any = candidates
    own = Candidates(*(column[few] for column in every))
    planted = [0, len(few) - 1]
    # The first loses by all that its group can lose; the last wins.
    sums = own.log_probability.copy()
    sums[planted[0]] -= 1000.0
    sums[planted[1]] += 1000.0
    values: dict[int, float] = {}
    for repaired in range(4):
        kept = [row for bit, row in enumerate(planted) if repaired >> bit & 1]
        merged = sums.copy()
        merged[kept] = own.log_probability[kept]
        values[repaired] = _mean_reciprocal(rank(own._replace(log_probability=merged)))
    expected, actual = (
        replace(trace, columns=empty_columns()._replace(candidates=each))
        for each in (own, own._replace(log_probability=sums))
    )
    stages = Stage.SCORE.value, Stage.CHOOSE.value
    divergences = tuple(
        Divergence(
            candidate=row,
            atom="",
            query=int(own.query[row]),
            side="",
            step=0,
            stage=stage,
            field="resolvents.score",
            level=Level.TOLERANCE,
            expected=0.0,
            actual=1.0,
            cause=cause,
        )
        for cause, (row, stage) in enumerate(zip(planted, stages, strict=True))
    )
    causes = tuple(
        Cause(
            stage=stage,
            kind=DifferenceClass.NUMBER,
            situation="",
            num_candidates=1,
            num_queries=1,
            num_divergences=1,
            num_later=0,
            first=i,
        )
        for i, stage in enumerate(stages)
    )
    if planted[0] == planted[1]:
        return 0
    split = attribute_loss(expected, actual, divergences, causes, rank, rank)
    wanted = [
        values[0],
        values[3],
        (values[1] - values[0] + values[3] - values[2]) / 2,
        (values[2] - values[0] + values[3] - values[1]) / 2,
        values[1],
        values[2],
    ]
    shares = sorted(split.shares, key=lambda share: share.cause)
    found = [split.actual, split.expected, *(s.share for s in shares), *(s.repaired for s in shares)]
    require(
        np.allclose(found, wanted, rtol=0, atol=1e-9), f"two planted losses are split as {found}, expected {wanted}"
    )
    return len(planted)


def _mean_reciprocal(rankings: Rankings) -> float:
    ranks = [(a + b) / 2 for a, b in zip(rankings.optimistic.tolist(), rankings.pessimistic.tolist(), strict=True)]
    return sum(1 / rank for rank in ranks) / len(ranks) if ranks else 0.0


def check_attribution(attribution: Attribution, expected: Trace, actual: Trace) -> None:
    """InternalError unless the shares of the loss add up to it, and the metrics are those of the ranks."""
    lost = attribution.expected - attribution.actual
    total = sum(share.share for share in attribution.shares)
    require(abs(total - lost) < 1e-9, f"the shares of the loss add up to {total}, and the loss is {lost}")
    for role, trace, value in (("expected", expected, attribution.expected), ("actual", actual, attribution.actual)):
        if trace.rankings is not None:
            own = _mean_reciprocal(trace.rankings)
            require(abs(own - value) < 1e-9, f"the {role} MRR is {own}, and the loss is split from {value}")


@without_garbage_collection()
def check_consistency(
    comparison: Comparison,
    causes: tuple[Cause, ...],
    parts: Sequence[Comparison],
    is_deterministic: Collection[bool | None] = (),
    *,
    has_engines: bool,
) -> None:
    """InternalError unless the verdict and the causes follow from what was found.

    parts:       the comparisons that it was made from
    has_engines: whether the steps behind near-ties could be compared
    """
    for part in parts:
        require(set(part.reasons) <= set(comparison.reasons), "a reason for INCONCLUSIVE was lost")
        is_lost = comparison.verdict is Verdict.AGREE and part.verdict is not Verdict.AGREE
        require(not is_lost, f"a part of the comparison is {part.verdict.value}, and the whole is AGREE")
    verdict, num = comparison.verdict, len(comparison.divergences)
    is_open = False in is_deterministic or (comparison.near_ties and not has_engines and not num)
    wanted = Verdict.DIVERGE if num else Verdict.AGREE
    wanted = Verdict.INCONCLUSIVE if comparison.reasons or is_open else wanted
    require(verdict is wanted, f"{verdict.value} with {num} divergences and {len(comparison.reasons)} reasons")
    for benign in comparison.benign:
        is_sound = benign.kind in comparison.modulo and 0 < benign.num_candidates <= benign.num_steps
        require(is_sound, f"benign differences of kind {benign.kind} were not declared, or not counted")
    members: dict[int, list[Divergence]] = {number: [] for number in range(len(causes))}
    for each in comparison.divergences:
        require(each.cause in members, "a divergence has no cause")
        members[each.cause].append(each)
    for number, cause in enumerate(causes):
        of_cause = members[number]
        counted = (
            len(of_cause),
            len({each.candidate for each in of_cause}),
            len({each.query for each in of_cause}),
            sum(each.later_steps for each in of_cause),
        )
        listed = cause.num_divergences, cause.num_candidates, cause.num_queries, cause.num_later
        require(counted == listed, f"a cause counts {listed}, and its divergences {counted}")
        is_one = {(each.stage, each.kind) for each in of_cause} == {(cause.stage, cause.kind)}
        require(is_one and comparison.divergences[cause.first] is of_cause[0], "a cause is not that of its divergences")


def check_numbers(outcomes: Outcomes, metrics: Metrics, candidates: Sequence[NDArray[np.int8]], rankings: Any) -> None:
    """InternalError unless the counts of outcomes and the mean reciprocal ranks are those of the traces."""
    for counts, codes in zip((outcomes.expected, outcomes.actual), candidates, strict=True):
        own = {outcome.name: int((codes == outcome).sum()) for outcome in Outcome}
        listed = {outcome.name: counts.get(outcome.name, 0) for outcome in Outcome}
        require(listed == own, f"outcomes are counted as {listed}, and are {own}")
    for metric, ranks in zip((metrics.expected, metrics.actual), rankings, strict=True):
        if ranks is not None and len(ranks.query):
            own_mean = _mean_reciprocal(ranks)
            require(abs(metric[MRR] - own_mean) < 1e-9, f"the MRR is reported as {metric[MRR]}, and is {own_mean}")
