"""The comparison of files of ranks: with each other, or with the ranks of a trace's candidates by every known rule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code
from kgverify.comparison.classify import Finding, group_causes
from kgverify.comparison.comparable import MemorySource
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.exercise.exercise import advise_minimum
from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import Comparison, Coverage, FieldRule, SelfTest, Verdict
from kgverify.comparison.step_view import Names, side_name
from kgverify.engines.protocol import Engine
from kgverify.errors import UserError, count_of
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.atoms import Atom
from kgverify.program.limits import DeclaredLimits
from kgverify.program.outcomes import DifferenceClass, Side
from kgverify.ranking.differences import describe_differences
from kgverify.ranking.draw import add_known, draw_candidates
from kgverify.ranking.rank import find_truth, group_keys
from kgverify.ranking.rank_file import RankRow, list_queries, place_ranks, read_rank_file
from kgverify.ranking.rules import Counted, RankedBy, RankingRule, take_rows
from kgverify.report.content import Metrics, Outcomes
from kgverify.report.report import Report
from kgverify.report.wording import MEAN_RANK
from kgverify.runs.run import Run, build_trace
from kgverify.trace.model import columns as model
from kgverify.trace.model.columns import Candidates, Rankings
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo, RunInfo
from kgverify.trace.model.score_tolerance import judge_tolerance
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import compute_both_metrics, make_report
from kgverify.verification.planted_changes import check_causes, check_numbers, plant_in_ranks
from kgverify.verification.recorded import RecordedComparison
from kgverify.verification.recorded_ranks import Recognition, RecordedRanks, judge_ranks, split_recorded_loss

MOST_NAMED: Final = 5
"""The number of queries with the largest differences that a note names."""
MOST_REDRAWN: Final = 1_000_000
"""The largest number of candidates that an engine proves to check a file of ranks."""
_RANKS_OF: Final = "the ranks of "
_KNOWN: Final = frozenset(f"candidates.{name}" for name in model.KNOWLEDGE_GRAPH.identity)
_SCORED: Final = _KNOWN | {"candidates.outcome", "candidates.log_probability"}

RankSource: TypeAlias = str | Path | Trace
"""A file of ranks, or a trace whose candidates can be ranked."""


def redraw(run: Run, engine: Engine) -> Trace:
    """Let an engine prove all candidates of a run, known ones as well, so that every rule of ranking can be tried.

    UserError for too many candidates.
    """
    num = int(run.num_candidates.sum())
    if num > MOST_REDRAWN:
        fix = "give fewer --queries or --corruptions"
        raise UserError(f"expected at most {MOST_REDRAWN:,} candidates, found {num:,}", where="queries", fix=fix)
    drawn = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    return build_trace(run, engine, engine.prove(add_known(run.graph, run.triples, drawn)), None)


def compare_ranks(
    expected: RankSource,
    actual: RankSource,
    graph: KnowledgeGraph | None = None,
    *,
    split: str = "test",
    equality: Equality = DEFAULT_EQUALITY,
) -> RecordedComparison:
    """Compare a file of ranks with another one, or with the ranks of a trace's candidates by every known rule.

    graph: the graph of the queries; without it, each row must name its triple

    UserError for a file that does not belong to the graph or to the trace.
    """
    sources = expected, actual
    files = [[] if isinstance(source, Trace) else read_rank_file(source) for source in sources]
    trace = next((source for source in sources if isinstance(source, Trace)), None)
    if trace is None:
        found = _place_files(sources, files, graph, split)
    else:
        found, graph = _place_beside(sources, files, trace, graph), None
    report = _judge(found, equality, graph)
    return RecordedComparison(report, (MemorySource(found.traces[0]), MemorySource(found.traces[1])))


class Placed(NamedTuple):
    """Two sides as traces of candidates with ranks.

    atoms:       the triple of each query
    recognition: finds the rules that give the ranks, if the candidates have scores
    """

    traces: tuple[Trace, Trace]
    atoms: Mapping[int, Atom]
    notes: Sequence[str] = ()
    recognition: Recognition | None = None


def _place_files(
    sources: Sequence[RankSource], files: Sequence[Sequence[RankRow]], graph: KnowledgeGraph | None, split: str
) -> Placed:
    """Return two files of ranks as traces, with a candidate for each rank; without a graph, rows must name their triples."""
    run, program, of = RunInfo(), "", "the files"
    if graph is None:
        symbols, atoms = list_queries(files)
    else:
        symbols, of, program = graph.program.symbols, f"{split} of {graph.name}", graph.program.sha256
        atoms = {i: Atom(*row) for i, row in enumerate(graph.queries(split).tolist())}
        run = RunInfo(graph=graph.name, split=split, num_queries=len(atoms))
    header, empty = Header(EngineInfo(""), DeclaredLimits(), PolicyInfo(""), program, run), model.empty_columns()
    base = Trace(header, symbols, empty, model.NO_DIGESTS, None, None, None, _KNOWN, True, "")
    traces = []
    for source, rows in zip(sources, files, strict=True):
        rankings = place_ranks(rows, symbols, atoms, of, is_whole=True)
        zeros = (np.zeros(len(rankings.query), column.dtype) for column in empty.candidates[3:])
        candidates = Candidates(rankings.query, rankings.side, _triples(atoms, rankings), *zeros)
        traces.append(_with_ranks(replace(base, columns=empty._replace(candidates=candidates)), source, rankings))
    return Placed((traces[0], traces[1]), atoms)


def _triples(atoms: Mapping[int, Atom], rankings: Rankings) -> NDArray[np.int32]:
    return np.array([atoms[query] for query in rankings.query.tolist()], np.int32).reshape(-1, 3)


def _with_ranks(trace: Trace, source: object, rankings: Rankings) -> Trace:
    unknown = tuple(sorted(model.KNOWLEDGE_GRAPH.compared_names - trace.fields))
    engine = EngineInfo(f"{_RANKS_OF}{source}", device="", precision="", unknown=unknown)
    header = msgspec.structs.replace(trace.header, engine=engine)
    return replace(trace, header=header, rankings=rankings, source=str(Path(str(source)).resolve()))


def _place_beside(
    sources: Sequence[RankSource], files: Sequence[Sequence[RankRow]], trace: Trace, graph: KnowledgeGraph | None
) -> Placed:
    """Give each side the candidates of the trace, without their steps, and its own ranks."""
    candidates, labels = trace.columns.candidates, MemorySource(trace).labels
    truth = find_truth(candidates, labels, trace.rankings)
    atoms = {key // 4: Atom(*atom) for key, atom in zip(truth.key.tolist(), truth.atom.tolist(), strict=True)}
    margin = 4 * judge_tolerance(trace.header, trace.header).value * int(candidates.num_steps.max(initial=1))
    narrow = replace(
        trace,
        header=msgspec.structs.replace(trace.header, recording="", absent=()),
        columns=model.empty_columns()._replace(
            candidates=candidates._replace(num_steps=np.zeros_like(candidates.num_steps))
        ),
        digests=model.NO_DIGESTS,
        fields=trace.fields & _SCORED,
    )
    notes = []
    if narrow.rankings is None:
        has_scores = "candidates.log_probability" in narrow.fields
        rule = RankingRule(RankedBy.PENALISED if has_scores else RankedBy.OUTCOME, counted=Counted.FILTERED)
        notes.append(f"the candidates of the trace are ranked {rule.describe()}")
        narrow = replace(narrow, rankings=Recognition((narrow, narrow), [labels, labels], margin, graph).rank_by(rule))
    sides = [narrow, narrow]
    for i, source in enumerate(sources):
        if not isinstance(source, Trace):
            rankings = place_ranks(files[i], trace.symbols, atoms, "the trace")
            rankings = take_rows(rankings, np.isin(group_keys(rankings), truth.key))
            if num := len(files[i]) - len(rankings.query):
                notes.append(
                    f"{count_of(num, 'rank')} of {source} not compared: the trace does not list the candidates"
                )
            sides[i] = _with_ranks(narrow, source, rankings)
    traces = sides[0], sides[1]
    return Placed(traces, atoms, notes, Recognition(traces, [labels, labels], margin, graph))


def _judge(found: Placed, equality: Equality, graph: KnowledgeGraph | None) -> Report:
    """Compare the mean ranks of two sides, and explain those that differ."""
    given = [cast(Rankings, trace.rankings) for trace in found.traces]
    means = [(own.optimistic + own.pessimistic) / 2 for own in given]
    ranks = [
        own._replace(num_ranked=np.full_like(own.num_ranked, model.UNKNOWN), optimistic=mean, pessimistic=mean)
        for own, mean in zip(given, means, strict=True)
    ]
    expected, actual = (replace(trace, rankings=own) for trace, own in zip(found.traces, ranks, strict=True))
    by_group = [
        dict(zip(zip(own.query.tolist(), map(side_name, own.side.tolist()), strict=True), mean.tolist(), strict=True))
        for own, mean in zip(ranks, means, strict=True)
    ]
    gaps = {group: rank - by_group[0][group] for group, rank in by_group[1].items() if group in by_group[0]}
    comparison = Comparison(
        verdict=Verdict.AGREE,
        coverage=Coverage(candidates=0, steps=0, resolvents=0, fields=("rankings",), rankings=len(gaps)),
        equality=(FieldRule("rankings", "the mean of both bounds"),),
    )
    comparison = compare_rankings(comparison, expected, actual, tolerance=0.0)
    reasons = [] if gaps else [Code.NOTHING_COMPARED.mark("no query and side has a rank on both sides")]
    if comparison.verdict is Verdict.AGREE and expected.source == actual.source:
        reasons.append(Code.SAME_RECORDING.mark("a file was compared with itself"))
    if comparison.verdict is Verdict.AGREE and equality.required and max(own.max(initial=1) for own in means) == 1:
        text = f"every rank is 1, which any rule of ranking gives; {advise_minimum()}"
        reasons.append(Code.TOO_LITTLE_EXERCISED.mark(text))
    if reasons:
        comparison = msgspec.structs.replace(
            comparison, verdict=Verdict.INCONCLUSIVE, divergences=(), reasons=tuple(reasons)
        )
    listed = sorted(comparison.divergences, key=lambda each: -abs(gaps.get((each.query, each.side), 0.0)))
    comparison = msgspec.structs.replace(comparison, divergences=tuple(listed))
    ranked = None if found.recognition is None else found.recognition.judge(comparison)
    names, triple = Names(expected), _triples(found.atoms, ranks[0])
    relation = np.array([names.predicate(number) for number in triple[:, 0].tolist()])
    patterns = "; ".join(describe_differences(given[0], given[1], relation, graph, triple)) or "no known pattern"
    finding = judge_ranks(Finding(DifferenceClass.RANK, patterns, 1.0), ranked)
    divergences, causes = group_causes(tuple(listed), (finding,) * len(listed))
    causes = tuple(msgspec.structs.replace(cause, condition=patterns) for cause in causes)
    attribution, of_loss = split_recorded_loss(ranked, divergences, causes)
    notes = [*found.notes, *of_loss, *_describe_rules(found.traces, ranked)]
    if num := sum((each.query, each.side) not in gaps for each in divergences):
        notes.append(f"{count_of(num, 'rank')} {'is' if num == 1 else 'are'} on one side only")
    higher, lower = sum(gap > 0 for gap in gaps.values()), sum(gap < 0 for gap in gaps.values())
    if divergences and higher + lower:
        notes.append(f"{higher + lower:,} of {len(gaps):,} ranks differ: {higher:,} higher, {lower:,} lower")
        pairs = ((each, gaps.get((each.query, each.side))) for each in divergences[:MOST_NAMED])
        shown = (f"{names.atom(found.atoms[each.query])} {each.side} {gap:+g}" for each, gap in pairs if gap)
        notes.append(f"the largest differences: {', '.join(shown)}")
    comparison = msgspec.structs.replace(
        comparison,
        divergences=divergences,
        notes=tuple(notes),
        self_test=SelfTest(len(Rankings._fields) * plant_in_ranks((MemorySource(expected), MemorySource(actual)))),
    )
    check_causes(comparison, causes)
    metrics = compute_both_metrics(*ranks)
    for values, own, mean in zip((metrics.expected, metrics.actual), ranks, means, strict=True):
        masks = {"head": own.side == Side.HEAD, "tail": own.side == Side.TAIL, "both": own.side >= 0}
        values |= {
            f"{name}.realistic.{MEAN_RANK}": float(mean[mask].mean()) for name, mask in masks.items() if mask.any()
        }
    check_numbers(Outcomes(), metrics, [np.zeros(0, np.int8)] * 2, ranks)
    # Only the means of both bounds were compared; they are no optimistic or pessimistic ranks.
    metrics = Metrics(
        *(
            {key: value for key, value in side.items() if ".realistic." in key}
            for side in (metrics.expected, metrics.actual)
        )
    )
    return make_report(
        comparison,
        (expected.header, actual.header),
        metrics=metrics,
        causes=causes,
        attribution=attribution,
        ranking_rules=None if ranked is None else ranked.rules,
    )


def _describe_rules(traces: Sequence[Trace], ranked: RecordedRanks | None) -> Iterator[str]:
    """Yield, for each file, the number of its ranks that follow from the candidates by the recognised rule."""
    if ranked is None or ranked.rules is None or ranked.rank is None:
        return
    for trace, rule in zip(traces, (ranked.rules.expected, ranked.rules.actual), strict=True):
        if trace.rankings is not None and trace.header.engine.name.startswith(_RANKS_OF):
            num = len(trace.rankings.query)
            name = trace.header.engine.name.removeprefix("the ")
            yield f"{num - rule.num_unexplained:,} of the {num:,} {name} follow from the candidates, ranked {rule.rule}"
