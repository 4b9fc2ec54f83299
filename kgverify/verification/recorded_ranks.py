"""The ranking of two recorded traces: the known rules that explain their ranks, and the ranks that no rule explains.

No engine is run. A rule is recognised by ranking a trace's own candidates again with every known rule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.classify import Finding
from kgverify.comparison.compare import Comparer
from kgverify.comparison.rankings import RankCandidates
from kgverify.comparison.result import ROLES, Attribution, Cause, Comparison, Divergence, RankingRules, RecognisedRule
from kgverify.errors import count_of
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import find_graph
from kgverify.program.atom_table import AtomTable
from kgverify.program.outcomes import Side
from kgverify.ranking.rank import NO_TRUTH, find_truth
from kgverify.ranking.rules import (
    USUAL_SIZES,
    Counted,
    Counts,
    Mistake,
    RankedBy,
    RankingRule,
    Ranks,
    RuleRanker,
    Ties,
    count_above,
    drop_roundings,
    find_known,
    find_unexplained,
    give_ranks,
    has_repeated,
    list_mistakes,
    list_rules,
    rankings_of,
    ranks_of,
)
from kgverify.trace.model.columns import LABELS, UNKNOWN, Candidates, CandidateSet, Rankings, are_equal, mark_rows
from kgverify.trace.model.trace import Trace
from kgverify.verification.attribute import attribute_loss
from kgverify.verification.judgement import FULL, Effort
from kgverify.verification.planted_changes import check_attribution

_OWN: Final = RankingRule()
UNKNOWN_RULE_CONFIDENCE: Final = 0.6
"""The confidence in a fault of `rank` if no known rule explains the ranks of a side."""

FEWEST_BY_MISTAKE: Final = 3
"""The fewest ranks that no correct rule explains, for a mistake to be sought: it may explain fewer by coincidence."""

_NAMES: Final = {"candidates.log_probability": "log-probabilities", "candidates.outcome": "outcomes"}
_READ: Final = {
    RankedBy.PENALISED: tuple(_NAMES),
    RankedBy.PLAIN: ("candidates.log_probability",),
    RankedBy.OUTCOME: ("candidates.outcome",),
}
"""The columns of candidates that each way of ranking reads."""


@dataclass(frozen=True, eq=False)
class RecordedRanks:
    """The ranks of two recorded traces, as far as they are understood.

    traces:      the traces with all their candidates in common ids, and with their ranks, recorded or computed
    rank:        functions that rank candidates as each side does; None if unknown, as `reason` explains
    rules:       the recognised rules; None if no rule could be tried
    unexplained: queries and sides whose ranks do not follow from their candidates by one rule
    reason:      why the loss cannot be split over causes; empty if it can
    """

    traces: tuple[Trace, Trace]
    rank: tuple[RankCandidates, RankCandidates] | None = None
    rules: RankingRules | None = None
    unexplained: frozenset[tuple[int, int]] = frozenset()
    reason: str = ""
    notes: tuple[str, ...] = ()


def recognise_ranks(comparison: Comparison, comparer: Comparer) -> RecordedRanks | None:
    """Recognise how two traces were ranked; return None if nothing differs, since the rules are not needed then."""
    sources = comparer.sources
    left, right = sources[0].rankings, sources[1].rankings
    has_others = False
    if left is not None and right is not None:
        has_others = not all(np.array_equal(left[i], right[i]) for i in range(len(left)))
    if not has_others and not comparison.divergences:
        return None
    expected, actual = (
        replace(
            shell,
            columns=shell.columns._replace(candidates=comparer.read_candidates(side)),
            rankings=sources[side].rankings,
            fields=sources[side].fields,
        )
        for side, shell in enumerate((comparer.expected, comparer.actual))
    )
    if any("are listed" in note for note in comparison.notes):
        return RecordedRanks((expected, actual), reason="not all divergences are listed")
    margin = 4 * comparer.score_tolerance
    return Recognition((expected, actual), [source.labels for source in sources], margin).judge(comparison)


class Recognition:
    """The recognition of the rules of two traces.

    margin: the error of a gap between two scores, in nats, for each step
    """

    def __init__(
        self,
        traces: tuple[Trace, Trace],
        labels: list[NDArray[Any] | None],
        margin: float,
        graph: KnowledgeGraph | None = None,
    ) -> None:
        self._traces, self._margin = traces, margin
        self._candidates = [trace.columns.candidates for trace in traces]
        self._recorded = [None if trace.rankings is None else ranks_of(trace.rankings) for trace in traces]
        self._truth = NO_TRUTH
        # Labels are used before anything is inferred.
        for side in sorted((0, 1), key=lambda side: labels[side] is None):
            self._truth = self._truth.join(find_truth(self._candidates[side], labels[side], traces[side].rankings))
        facts = [trace.facts for trace in traces if trace.facts is not None]
        self._splits = find_splits(traces[0], graph)
        known = np.concatenate((*facts, self._truth.atom, *self._splits.values())).astype(np.int32)
        self._is_other = [~self._truth.mark(each) for each in self._candidates]
        self._num_known = [
            int((find_known(each, known) & other).sum())
            for each, other in zip(self._candidates, self._is_other, strict=True)
        ]
        self._is_extra = [_find_extra(*self._candidates), _find_extra(*self._candidates[::-1])]
        extra = [each.atom[rows] for each, rows in zip(self._candidates, self._is_extra, strict=True)]
        # Known triples of splits that no trace holds may be scored, but left out of the ranking.
        self._known = np.concatenate((known, *extra)).astype(np.int32)
        # The facts of the program are those of train.
        self._of_split = {**({"train": np.concatenate(facts)} if facts else {}), **self._splits}
        self._counts: dict[tuple[Any, ...], Counts] = {}

    def rank_by(self, rule: RankingRule) -> Rankings:
        """Rank the expected candidates by a rule."""
        return rankings_of(give_ranks(self._count(0, rule), rule))

    def judge(self, comparison: Comparison) -> RecordedRanks:
        """Return the rules, the ranks that they leave unexplained, and functions that rank as each side does."""
        found = RecordedRanks(self._traces)
        if not len(self._truth.key):
            return replace(
                found, reason=f"the traces do not show which candidates are true triples (`{LABELS}` would tell)"
            )
        unexplained = [self._try_rules(side) for side in (0, 1)]
        chosen = self._choose(unexplained)
        found = replace(
            found,
            rules=RankingRules(
                expected=self._describe(0, chosen[0], unexplained[0]),
                actual=self._describe(1, chosen[1], unexplained[1]),
                truth=", or ".join(self._truth.how),
            ),
        )
        lacking = self._find_lacking(chosen, unexplained)
        if lacking:
            return replace(found, reason=lacking)
        ranks = [
            recorded or give_ranks(self._count(side, rule), rule)
            for side, (rule, recorded) in enumerate(zip(chosen, self._recorded, strict=True))
        ]
        rankers = [
            RuleRanker(rule, self._truth, candidates, each, self._known_to(rule))
            for rule, candidates, each in zip(chosen, self._candidates, ranks, strict=True)
        ]
        expected, actual = (
            trace if trace.rankings is not None else replace(trace, rankings=ranker(candidates))
            for trace, ranker, candidates in zip(self._traces, rankers, self._candidates, strict=True)
        )
        notes = tuple(
            f"the ranks of the {role} trace are not recorded, and were computed by "
            f"{'kgverify' if rule == _OWN else 'the other trace'}'s rule"
            for role, rule, recorded in zip(ROLES, chosen, self._recorded, strict=True)
            if recorded is None
        )
        unknown = self._find_unlabelled(comparison)
        found = replace(found, traces=(expected, actual), unexplained=self._find_wrong(chosen, rankers), notes=notes)
        if unknown:
            return replace(
                found,
                reason=f"the traces do not show the true triple of {unknown} rankings that differ (`{LABELS}` would)",
            )
        return replace(found, rank=(rankers[0], rankers[1]))

    def _knows(self, side: int, column: str) -> bool:
        values = getattr(self._candidates[side], column.split(".")[1])
        return column in self._traces[side].fields and bool(np.isfinite(values).all())

    def _try_rules(self, side: int) -> dict[RankingRule, int]:
        """Return the number of recorded ranks that each known rule leaves unexplained; empty without ranks."""
        recorded = self._recorded[side]
        if recorded is None:
            return {}
        rules = self._list_rules(side)
        found: dict[RankingRule, int] = {}
        # If scores explain the ranks to the bit, rounding explains nothing.
        for margin in dict.fromkeys((0.0, self._margin)) if rules else ():
            found = {rule: len(self._find_unexplained(side, rule, recorded, margin)) for rule in rules}
            found = drop_roundings(found)
            certain = {rule: num for rule, num in found.items() if rule.ties is not Ties.RANDOM}
            if min(certain.values()) >= FEWEST_BY_MISTAKE:
                # Ties that are broken at random explain more than any mistake, so a mistake is the better explanation.
                mistakes = self._try_mistakes(side, list(certain), recorded, margin)
                found = certain | mistakes if mistakes else found
            if not min(found.values()):
                break
        return found

    def _list_rules(self, side: int) -> tuple[RankingRule, ...]:
        """Return the rules that the scores and the candidates of a side allow."""
        counted = [Counted.ONCE]
        counted += [Counted.ROWS] * any(map(has_repeated, self._candidates))
        counted += [Counted.FILTERED] * (sum(self._num_known) > 0 or any(map(np.any, self._is_extra)))
        return list_rules(
            [each for each in RankedBy if all(self._knows(side, column) for column in _READ[each])],
            [trace.header.run.rank_tolerance for trace in self._traces] + [0.0],
            counted,
        )

    def _try_mistakes(
        self, side: int, rules: Sequence[RankingRule], recorded: Ranks, margin: float
    ) -> dict[RankingRule, int]:
        """Return the mistakes that explain every recorded rank."""
        # Rankings that were cut are equally long, except for those that were shorter anyway.
        sizes = [int(recorded.num_ranked.max())]
        if sizes[0] == UNKNOWN:
            highest = int(recorded.pessimistic.max())
            sizes = [highest, *(num for size in USUAL_SIZES for num in (size, size + 1) if num >= highest)][:3]
        mistakes = list_mistakes(rules, sorted(self._of_split), sizes)
        # A mistake that does not explain every rank is no better than an unknown rule.
        every = (rule for rule in mistakes if np.isin(recorded.key, self._count(side, rule).key).all())
        found = {rule: 0 for rule in every if not len(self._find_unexplained(side, rule, recorded, margin))}
        # A sample only bounds the ranks.
        return {rule: 0 for rule in found if rule.mistake is not Mistake.SAMPLED} or found

    def _find_unexplained(
        self, side: int, rule: RankingRule, recorded: Ranks, margin: float | None = None
    ) -> NDArray[np.int64]:
        margin = self._margin if margin is None else margin
        low, high = (self._count(side, rule, each) for each in (-margin, margin))
        return find_unexplained(low, high, rule, recorded)

    def _count(self, side: int, rule: RankingRule, margin: float = 0.0) -> Counts:
        key = rule.counting, side, margin
        if key not in self._counts:
            candidates = self._candidates[side]
            known = rule.find_left_out(candidates, self._known_to(rule))
            self._counts[key] = count_above(candidates, self._truth, rule, known, margin)
        return self._counts[key]

    def _known_to(self, rule: RankingRule) -> NDArray[np.int32]:
        """Return the known triples that a rule leaves out if it leaves out any: int32 [n, 3]."""
        if not rule.splits:
            return self._known
        return np.concatenate([self._of_split[split] for split in rule.splits]).astype(np.int32)

    def _choose(self, unexplained: list[dict[RankingRule, int]]) -> tuple[RankingRule, RankingRule]:
        """Return the rule of each side: the simplest that explains all its ranks, or else the closest.

        The actual rule is the expected one if that explains the actual ranks as well, else the most similar rule. Known
        triples may be left out before or after scoring: this cannot be decided for a side that does not list them.
        """
        options = [[rule for rule, num in each.items() if num == min(each.values())] or [_OWN] for each in unexplained]
        for side in (0, 1):
            if self._recorded[side] is None:
                others = options[1 - side]
                options[side] = [_OWN] if _OWN in others else others
        # A rule with a mistake is the last resort.
        options[0] = [rule for rule in options[0] if rule.is_right] or options[0]
        expected = options[0][0]
        actual = min(options[1], key=lambda rule: sum(a != b for a, b in zip(rule, expected, strict=True)))
        if Counted.FILTERED in actual and (filtered := expected._replace(counted=Counted.FILTERED)) in options[0]:
            expected = filtered
        return expected, actual

    def _describe(self, side: int, rule: RankingRule, unexplained: dict[RankingRule, int]) -> RecognisedRule:
        num = unexplained.get(rule, 0)
        fitting = [] if num else [each for each, left in unexplained.items() if not left and each != rule]
        return RecognisedRule(
            rule=rule.describe(),
            also=tuple(each.describe() for each in fitting),
            is_recorded=self._recorded[side] is not None,
            num_unexplained=num,
            num_known_triples=self._num_known[side],
            remarks=tuple(self._remark(side)),
        )

    def _remark(self, side: int) -> Iterator[str]:
        """Yield remarks on the splits that a filter lacks, and on the sides that are not ranked."""
        candidates, recorded = self._candidates[side], self._recorded[side]
        extra = self._is_extra[side] & self._is_other[side]
        for split, atoms in self._splits.items():
            if num := int((find_known(candidates, atoms) & extra).sum()):
                yield f"not filtered: {count_of(num, 'triple')} of {split}, which the {ROLES[1 - side]} side leaves out"
        if extra.any() and not self._splits and not self._num_known[side]:
            yield f"{count_of(int(extra.sum()), 'candidate')} more, perhaps triples of valid or test that a filter lacks"
        for each in (Side.HEAD, Side.TAIL):
            if recorded is not None and (candidates.side == each).any() and not (recorded.key % 4 == each).any():
                yield f"the {each.name.lower()} side is not ranked"

    def _find_lacking(self, chosen: tuple[RankingRule, RankingRule], unexplained: list[dict[RankingRule, int]]) -> str:
        """Return a sentence on a column that the ranks need and a trace does not know; empty if nothing is missing."""
        for side, (role, rule) in enumerate(zip(ROLES, chosen, strict=True)):
            is_by_outcome = rule.ranked_by is RankedBy.OUTCOME and not unexplained[side].get(rule)
            if self._recorded[side] is not None and not is_by_outcome:
                if not self._knows(side, "candidates.outcome"):
                    return f"the outcomes of the {role} trace are not known"
                if not self._knows(side, "candidates.log_probability"):
                    return (
                        f"the log-probabilities of the {role} trace are not known, and its ranks do not follow from the"
                        " outcomes alone"
                    )
            for column in (column for each in chosen for column in _READ[each.ranked_by]):
                if not self._knows(side, column):
                    return f"the {_NAMES[column]} of the {role} trace are not known"
        return ""

    def _find_wrong(
        self, chosen: tuple[RankingRule, RankingRule], rankers: Sequence[RuleRanker]
    ) -> frozenset[tuple[int, int]]:
        """Return the queries and sides whose ranks a single rule does not explain on both sides."""
        left, right = self._recorded
        if left is None or right is None:
            return frozenset()
        wrong = np.union1d(self._find_unexplained(0, chosen[1], left), self._find_unexplained(1, chosen[0], right))
        if chosen[0] == chosen[1]:
            offsets = [each.offsets for each in rankers]
            wrong = np.array([key for key in wrong.tolist() if offsets[0].get(key) != offsets[1].get(key)], np.int64)
        in_both = np.intersect1d(self._count(0, chosen[0]).key, self._count(1, chosen[1]).key)
        wrong = np.union1d(wrong, np.intersect1d(in_both, np.setxor1d(left.key, right.key)))
        return frozenset((key // 4, key % 4) for key in wrong.tolist())

    def _find_unlabelled(self, comparison: Comparison) -> int:
        """Count the rankings without a known true triple that differ, or whose candidates differ."""
        rows = [
            {key: ranks for key, *ranks in zip(*(column.tolist() for column in each), strict=True)}
            for each in self._recorded
            if each is not None
        ]
        touched = {each.query * 4 + Side[each.side.upper()] for each in comparison.divergences}
        tied = np.array([tie.candidate for tie in comparison.near_ties], np.int64)
        candidates = self._candidates[0]
        touched.update((candidates.query[tied].astype(np.int64) * 4 + candidates.side[tied]).tolist())
        known = set(self._truth.key.tolist())
        every = {key for each in rows for key in each} - known
        return sum(key in touched or any(each.get(key) != rows[0].get(key) for each in rows) for key in every)


def find_splits(trace: Trace, graph: KnowledgeGraph | None = None) -> dict[str, NDArray[np.int32]]:
    """Return the triples of the splits valid and test in the ids of a trace, if its graph is found: int32 [n, 3] each."""
    graph = graph or find_graph(trace.header.run.graph, trace.header.program_sha256)
    if graph is None:
        return {}
    ids = [{name: i for i, name in enumerate(names)} for names in (trace.symbols.predicates, trace.symbols.constants)]
    return {split: AtomTable.of(getattr(graph, split)).encode(ids[0], ids[1]) for split in ("valid", "test")}


def _find_extra(candidates: Candidates, others: Candidates) -> NDArray[np.bool_]:
    """Return a mask of the candidates that the other trace does not list for the same query and side: bool [N]."""
    if are_equal(*(CandidateSet(each.query, each.side, each.atom) for each in (candidates, others))):
        return np.zeros(len(candidates.query), np.bool_)
    return ~mark_rows(*((each.query, each.side, *each.atom.T) for each in (candidates, others)))


def judge_ranks(finding: Finding, ranked: RecordedRanks | None) -> Finding:
    """Return the finding on a rank, with the rules of both traces as its evidence."""
    rules = ranked.rules if ranked is not None else None
    if rules is None or ranked is None or ranked.rank is None:
        return finding
    sides = rules.expected, rules.actual
    unknown = [role for role, side in zip(ROLES, sides, strict=True) if side.num_unexplained]
    if unknown:
        text = f"the {' and the '.join(unknown)} ranks follow from their candidates by no known rule"
        return finding._replace(evidence=text, confidence=UNKNOWN_RULE_CONFIDENCE)
    if sides[0].rule != sides[1].rule:
        text = f"ranked {sides[1].rule}; expected {sides[0].rule}"
        return finding._replace(evidence=text)
    return finding


def split_recorded_loss(
    ranked: RecordedRanks | None,
    divergences: tuple[Divergence, ...],
    causes: tuple[Cause, ...],
    effort: Effort = FULL,
) -> tuple[Attribution | None, tuple[str, ...]]:
    """Split the loss of two recorded traces over the causes; if this is not possible, return None and a note that says why."""
    if ranked is None or not causes:
        return None, ()
    if ranked.rank is None:
        return None, (*ranked.notes, f"the loss is not split over the causes: {ranked.reason}")
    attribution = attribute_loss(ranked.traces, divergences, causes, ranked.rank, basis="traces", effort=effort)
    check_attribution(attribution, *ranked.traces)
    return attribution, ranked.notes
