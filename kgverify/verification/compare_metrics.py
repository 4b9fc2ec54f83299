"""The comparison of files of metrics: with each other, or with the metrics of ranks by every known rule of ranking."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

import msgspec
import numpy as np

from kgverify.codes import Code
from kgverify.comparison.classify import Finding, group_causes
from kgverify.comparison.comparable import MemorySource, Rebuilds
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.exercise.exercise import advise_minimum
from kgverify.comparison.result import Comparison, Coverage, Divergence, FieldRule, Level, SelfTest, Verdict
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.outcomes import DifferenceClass, Stage
from kgverify.ranking.differences import list_ranks
from kgverify.ranking.metric_file import Metric, MetricFile, read_metric_file
from kgverify.ranking.rank import compute_metrics
from kgverify.ranking.rank_file import RankRow, read_rank_file
from kgverify.report.content import Metrics
from kgverify.trace.model.columns import UNKNOWN, Rankings
from kgverify.trace.model.trace import Trace
from kgverify.verification.compare_ranks import Placed, RankSource, place_beside, place_files
from kgverify.verification.judgement import make_report
from kgverify.verification.planted_changes import check_causes, require
from kgverify.verification.recorded import RecordedComparison

_EQUALITY: Final = (FieldRule("metrics", "as printed: half a unit of the last digit to each side"),)
MOST_NAMED: Final = 4
"""The largest number of rules that one sentence names; if there are more, a note lists all of them."""
_BY_CHANCE: Final = "random ties and samples of candidates give other metrics each time, and are not among the rules"


class _Known(NamedTuple):
    """The ranks of the other side.

    relation: the name of the relation of each query
    rules:    the ranks by each known rule, with its words: of rules that give the same ranks, the simplest
    """

    placed: Placed
    rankings: Rankings
    relation: Mapping[int, str]
    rules: Sequence[tuple[str, Rankings]]

    def compute(self, metric: Metric, rankings: Rankings | None = None) -> float | None:
        """Return a metric of its ranks, or of others."""
        own = self.rankings if rankings is None else rankings
        return metric.compute(own, np.array([self.relation.get(query, "") for query in own.query.tolist()]))


def compare_metrics(
    expected: RankSource,
    actual: RankSource,
    graph: KnowledgeGraph | None = None,
    *,
    split: str = "test",
    equality: Equality = DEFAULT_EQUALITY,
) -> RecordedComparison:
    """Compare a file of metrics with another one, or with the ranks of a file or of a trace's candidates by every known rule.

    UserError for a file that states no known metric.
    """
    sources = expected, actual
    files = [None if isinstance(source, Trace) else read_metric_file(source) for source in sources]
    given, known, other = cast(MetricFile, files[0] or files[1]).metrics, None, files[1]
    if None in files:
        other = None
        known = _rank(sources[files.index(None)], graph, split, has_kinds=any(each.kind for each in given))
    placed = place_files(sources, [[], []], graph, split) if known is None else known.placed
    compared = _compare(given, known, other, is_expected=files[0] is not None)
    notes = [
        f"not compared in {source}: {', '.join(file.others)}"
        for source, file in zip(sources, files, strict=True)
        if file is not None and file.others
    ]
    notes += [
        f"not compared, since no rank is of its side and relation: {each}" for each in given if each not in compared
    ]
    differing = [each for each, (is_equal, *_) in compared.items() if not is_equal]
    fitting, evidence = [], "the printed digits exclude each other"
    if known is not None:
        fitting = [
            words for words, ranks in known.rules if all(each.holds(known.compute(each, ranks)) for each in compared)
        ]
        evidence = _describe_rules(known, list(compared), fitting)
        notes += [*placed.notes, evidence, _BY_CHANCE]
        notes += [f"they are: {' / '.join(fitting)}"] * (len(fitting) > MOST_NAMED)
    reasons = [] if compared else [Code.NOTHING_COMPARED.mark("no metric is known on both sides")]
    if expected == actual:
        reasons.append(Code.SAME_RECORDING.mark("a file was compared with itself"))
    if not differing and known is not None and len(fitting) == len(known.rules) > 1 and equality.required:
        num = f"each of the {len(fitting):,} known rules of ranking that differ here"
        reasons.append(Code.TOO_LITTLE_EXERCISED.mark(f"{num} gives these metrics; {advise_minimum()}"))
    finding = Finding(DifferenceClass.RANK, evidence, 1.0)
    listed = tuple(_differ(given.index(each), each, *compared[each][1:]) for each in differing if not reasons)
    divergences, causes = group_causes(listed, (finding,) * len(listed))
    causes = tuple(msgspec.structs.replace(cause, condition=evidence) for cause in causes)
    comparison = Comparison(
        verdict=Verdict.INCONCLUSIVE if reasons else Verdict.DIVERGE if divergences else Verdict.AGREE,
        coverage=Coverage(candidates=0, steps=0, resolvents=0, fields=("metrics",), rankings=len(compared)),
        divergences=divergences,
        level=Level.METRIC if divergences else None,
        reasons=tuple(reasons),
        notes=tuple(notes),
        equality=_EQUALITY,
        self_test=SelfTest(_plant(compared, known)),
    )
    check_causes(comparison, causes)
    traces = tuple(
        _name(trace, source, file) for trace, source, file in zip(placed.traces, sources, files, strict=True)
    )
    stated = [_list_stated(file, known) for file in files]
    report = make_report(
        comparison, (traces[0].header, traces[1].header), metrics=Metrics(stated[0], stated[1]), causes=causes
    )
    return RecordedComparison(report, (MemorySource(traces[0]), MemorySource(traces[1])), Rebuilds())


def _rank(source: RankSource, graph: KnowledgeGraph | None, split: str, *, has_kinds: bool) -> _Known:
    """Return the ranks of a trace or of a file, and those that every known rule gives instead."""
    if isinstance(source, Trace):
        placed = place_beside((source, source), [[], []], source, graph)
        assert placed.recognition is not None
        rules = [(f"ranked {rule.describe()}", ranks) for rule, ranks in placed.recognition.rank_by_all()]
    else:
        rows: list[RankRow] = read_rank_file(source)
        placed = place_files((source, source), (rows, rows), graph, split)
        own = cast(Rankings, placed.traces[0].rankings)
        size = None if UNKNOWN in own.num_ranked else own.num_ranked.astype(np.int64)
        rules = [(words or "the ranks as they are", ranks) for words, ranks in list_ranks(own, size)]
    names = placed.traces[0].symbols.predicates
    relation = {query: names[atom.predicate] for query, atom in placed.atoms.items()}
    return _Known(placed, cast(Rankings, placed.traces[0].rankings), relation, list(_drop_equal(rules, has_kinds)))


def _drop_equal(rules: Iterable[tuple[str, Rankings]], has_kinds: bool) -> Iterator[tuple[str, Rankings]]:
    """Yield the first of rules that give the same ranks. has_kinds: whether bounds count, not only their mean."""
    seen = set()
    for words, each in rules:
        ranks = (each.optimistic, each.pessimistic) if has_kinds else (each.optimistic + each.pessimistic,)
        key = tuple(column.tobytes() for column in (each.query, each.side, *ranks))
        if key not in seen:
            seen.add(key)
            yield words, each


_Compared = dict[Metric, tuple[bool, str, str]]
"""The metrics that both sides have: whether they are equal, and both values as text."""


def _compare(
    given: Sequence[Metric], known: _Known | None, other: MetricFile | None, *, is_expected: bool
) -> _Compared:
    found: _Compared = {}
    by_key = {each[:4]: each for each in other.metrics} if other is not None else {}
    for each in given:
        if known is not None and (value := known.compute(each)) is not None:
            texts = f"{value:.6g}", each.text
            found[each] = (each.holds(value), *(texts[::-1] if is_expected else texts))
        elif each[:4] in by_key:
            own = by_key[each[:4]]
            found[each] = each.low < own.high and own.low < each.high, each.text, own.text
    return found


def _describe_rules(known: _Known, metrics: Sequence[Metric], fitting: Sequence[str]) -> str:
    """Describe the rules that give all metrics, or the rule that comes closest."""
    num = f"{len(known.rules):,} known rules of ranking that differ here"
    if fitting:
        verb = "gives" if len(fitting) == 1 else "give"
        more = [f"{len(fitting) - MOST_NAMED:,} more"] * (len(fitting) > MOST_NAMED)
        named = " / ".join([*fitting[:MOST_NAMED], *more])
        return f"{len(fitting):,} of the {num} {verb} the stated metrics: {named}"
    gaps = {words: _measure(known, metrics, ranks) for words, ranks in known.rules}
    if not gaps or not metrics:
        return "no known rule of ranking could be tried"
    closest = min(gaps, key=lambda words: gaps[words])
    return f"none of the {num} gives the stated metrics; the closest differs by up to {gaps[closest]:.2g}: {closest}"


def _measure(known: _Known, metrics: Sequence[Metric], rankings: Rankings) -> float:
    """Return the largest distance of a metric of some ranks from what is printed."""
    values = [(each, known.compute(each, rankings)) for each in metrics]
    return max(np.inf if v is None else max(each.low - v, v - each.high, 0.0) for each, v in values)


def _differ(number: int, metric: Metric, expected: str, actual: str) -> Divergence:
    """Return the divergence of a metric."""
    return Divergence(
        candidate=number,
        atom=str(metric),
        query=-1,
        side=metric.side,
        step=-1,
        stage=Stage.RANK.value,
        field="metrics",
        level=Level.METRIC,
        expected=expected,
        actual=actual,
    )


def _plant(compared: _Compared, known: _Known | None) -> int:
    """Move each metric that holds by twice its width, and return the number of metrics. InternalError if it still holds."""
    for each in compared:
        value, distance = None if known is None else known.compute(each), 2 * (each.high - each.low)
        moved = each._replace(low=each.low + distance, high=each.high + distance)
        require(not (each.holds(value) and moved.holds(value)), f"{each} holds with another value")
    return len(compared)


def _name(trace: Trace, source: object, file: MetricFile | None) -> Trace:
    """Return the trace of a side, without ranks if the side is a file of metrics."""
    if file is None:
        return trace
    engine = msgspec.structs.replace(
        trace.header.engine, name=f"the metrics of {source}", device="", precision="", mode=""
    )
    return replace(trace, header=msgspec.structs.replace(trace.header, engine=engine), rankings=None)


def _list_stated(file: MetricFile | None, known: _Known | None) -> dict[str, float]:
    """Return the metrics of a side by their keys, without those of single relations."""
    if file is None:
        return compute_metrics(known.rankings) if known is not None else {}
    return {
        f"{each.side}.{each.kind or 'realistic'}.{each.name}": each.value for each in file.metrics if not each.relation
    }
