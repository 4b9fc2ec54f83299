"""Laws of the draw of corruptions and of ranks."""

from collections.abc import Iterator, Mapping

import numpy as np

from kgverify.errors import count_of
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import PUSHES_DOWN, law
from kgverify.program.fact_index import Ids
from kgverify.program.outcomes import Outcome, Side, Stage
from kgverify.ranking.draw import ALL, BOTH_SIDES
from kgverify.ranking.rank import RANK_TOLERANCE, take_candidates
from kgverify.trace.model.columns import CandidateSet, Rankings

Key = tuple[int, int]
"""A query and a side."""


def _group(candidates: CandidateSet) -> dict[Key, list[Ids]]:
    groups: dict[Key, list[Ids]] = {}
    for query, side, (p, a, b) in zip(*(column.tolist() for column in candidates), strict=True):
        groups.setdefault((query, side), []).append((p, a, b))
    return groups


def _differing(
    stage: Stage, expected: Mapping[Key, str], actual: Mapping[Key, str], field: str = ""
) -> Iterator[Finding]:
    """Yield the queries and sides whose values, written as words, differ."""
    for query, side in sorted({*expected, *actual}):
        texts = [each.get((query, side), "nothing") for each in (expected, actual)]
        if texts[0] != texts[1]:
            yield Finding(-1, -1, stage, field or f"{Side(side).name.lower()} side", texts[0], texts[1], query)


@law(
    "For each query and side: the query, then k different corruptions by ascending id (all eligible ones where there are"
    " fewer); each differs from the query in this argument alone, which is of its domain, and is no triple of train, valid or"
    " test.",
    runs_again=False,
)
def _filtered_draw(case: Case) -> Iterator[Finding]:
    graph, num = case.run.graph, case.run.num_corruptions
    known = {tuple(triple) for triple in graph.known_triples.tolist()}
    groups = _group(case.draw(case.ranked_queries, num))
    for query, side in ((query, side) for query in case.ranked_queries for side in BOTH_SIDES):
        triple = tuple(case.run.triples[query].tolist())
        changed = 1 + int(side)
        domain = graph.argument_domain(triple[0], side).tolist()
        eligible = {(*triple[:changed], e, *triple[changed + 1 :]) for e in domain} - known - {triple}
        wanted = len(eligible) if num == ALL else min(num, len(eligible))
        first, *drawn = groups.get((query, side), [(-1, -1, -1)])
        wrong = next((atom for atom in drawn if atom not in eligible), None)
        texts: tuple[object, object]
        if first != triple:
            texts = f"the query {case.atom_name(triple)} first", case.atom_name(first)
        elif wrong is not None:
            what = "no known triple" if wrong in known else "the query with this argument replaced from its domain"
            texts = what, case.atom_name(wrong)
        elif [*dict.fromkeys(drawn)] != sorted(drawn):
            texts = "each corruption once, in the order of ids", ", ".join(map(case.atom_name, drawn))
        elif len(drawn) != wanted:
            texts = count_of(wanted, "corruption"), len(drawn)
        else:
            continue
        yield Finding(-1, -1, Stage.CORRUPT, f"{side.name.lower()} side", texts[0], texts[1], query)


@law(
    "The draw depends on seed, query and side alone: drawn again, in parts or in another order, it is the same.",
    runs_again=False,
)
def _draw_by_query(case: Case) -> Iterator[Finding]:
    queries = case.ranked_queries
    size = max(1, len(queries) // 3)
    parts = [queries[begin : begin + size][::-1] for begin in range(0, len(queries), size)]
    first, *others = (
        {
            key: ", ".join(map(case.atom_name, atoms))
            for part in order
            for key, atoms in _group(case.draw(part, case.run.num_corruptions)).items()
        }
        for order in ([queries], [queries], parts)
    )
    for field, again in zip(("drawn again", "drawn in parts"), others, strict=True):
        yield from _differing(Stage.CORRUPT, first, again, field)


@law("The corruptions drawn as k are among those drawn as k + 1.", runs_again=False)
def _nested_draw(case: Case) -> Iterator[Finding]:
    num = case.run.num_corruptions
    if num == ALL:
        return
    fewer, more = (_group(case.draw(case.ranked_queries, k)) for k in (num, num + 1))
    for key, atoms in fewer.items():
        for lost in [atom for atom in atoms if atom not in more.get(key, [])][:1]:
            texts = f"{case.atom_name(lost)}, drawn as one of {num}", f"not drawn as one of {num + 1}"
            yield Finding(-1, -1, Stage.CORRUPT, "drawn", *texts, key[0])


def _describe(num: int, optimistic: float, pessimistic: float) -> str:
    return f"{num} ranked, optimistic {optimistic}, pessimistic {pessimistic}"


def _read(case: Case, rankings: Rankings) -> dict[Key, str]:
    rows = zip(*(column.tolist() for column in rankings), strict=True)
    return {(query, side): _describe(*ranks) for query, side, *ranks in rows if case.merged.is_ranked[query]}


@law(
    "Of the reported scores (log-probability, less 100 where not PROVED; closer than 1e-4 is a tie) the optimistic rank is 1"
    " more than the number above the query's, the pessimistic one as much more as there are ties.",
    runs_again=False,
    presumes=(PUSHES_DOWN,),
)
def _ranks(case: Case) -> Iterator[Finding]:
    candidates = case.columns.candidates
    rankings = case.rank(candidates)
    if rankings is None:
        return
    scores: dict[Key, dict[Ids, float]] = {}
    columns = candidates.query, candidates.side, candidates.atom, candidates.outcome, candidates.log_probability
    for query, side, (p, a, b), outcome, log_probability in zip(*(each.tolist() for each in columns), strict=True):
        if side != Side.NONE:
            score = log_probability - (0.0 if outcome == Outcome.PROVED else 100.0)
            scores.setdefault((query, side), {}).setdefault((p, a, b), score)
    expected = {}
    for (query, side), of_atom in scores.items():
        own = of_atom.pop(tuple(case.run.triples[query].tolist()), None)
        if own is not None:
            above = sum(score - own >= RANK_TOLERANCE for score in of_atom.values())
            tied = sum(abs(score - own) < RANK_TOLERANCE for score in of_atom.values())
            expected[query, side] = _describe(1 + len(of_atom), 1.0 + above, 1.0 + above + tied)
    yield from _differing(Stage.RANK, expected, _read(case, rankings))


@law("The order in which candidates are handed over changes no rank.", runs_again=False)
def _rank_order(case: Case) -> Iterator[Finding]:
    candidates = case.columns.candidates
    backwards = take_candidates(candidates, np.arange(len(candidates.query))[::-1])
    one, other = case.rank(candidates), case.rank(backwards)
    if one is not None and other is not None:
        yield from _differing(Stage.RANK, _read(case, one), _read(case, other))
