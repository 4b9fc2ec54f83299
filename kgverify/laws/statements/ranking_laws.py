"""Laws of the draw of corruptions and of ranks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kgverify.errors import count_of
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.laws.presumptions import PUSHES_DOWN
from kgverify.program.outcomes import Outcome, Side
from kgverify.program.stages import Stage
from kgverify.ranking.corrupt import ALL, BOTH_SIDES
from kgverify.ranking.groups import take_candidates
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.trace.model.columns import CandidateSet

Groups = dict[tuple[int, int], list[tuple[int, int, int]]]


def _groups(candidates: CandidateSet) -> Groups:
    groups: Groups = {}
    for query, side, (p, a, b) in zip(*(column.tolist() for column in candidates), strict=True):
        groups.setdefault((query, side), []).append((p, a, b))
    return groups


@law(
    "For each query and side: the query, then k different corruptions by ascending id (all eligible ones where there are"
    " fewer); each differs from the query in this argument alone, which is of its domain, and is no triple of train, valid or"
    " test.",
    needs_rows=False,
)
def _filtered_draw(case: Case) -> Iterator[Finding]:
    graph, num = case.run.graph, case.run.num_corruptions
    known = {tuple(triple) for triple in graph.known_triples.tolist()}
    groups = _groups(case.draw(case.ranked_queries))
    for query in case.ranked_queries:
        triple = tuple(case.run.triples[query].tolist())
        for side in BOTH_SIDES:
            changed = 1 + int(side)
            domain = graph.argument_domain(triple[0], side).tolist()
            eligible = {(*triple[:changed], e, *triple[changed + 1 :]) for e in domain} - known - {triple}
            wanted = len(eligible) if num == ALL else min(num, len(eligible))
            first, *drawn = groups.get((query, side), [(-1, -1, -1)])

            def finding(expected: object, actual: object, query: int = query, side: Side = side) -> Finding:
                return Finding(-1, -1, Stage.CORRUPT, f"{side.name.lower()} side", str(expected), str(actual), query)

            if first != triple:
                yield finding(f"the query {case.atom_name(triple)} first", case.atom_name(first))
                continue
            wrong = next((atom for atom in drawn if atom not in eligible), None)
            if wrong is not None:
                what = "no known triple" if wrong in known else "the query with this argument replaced from its domain"
                yield finding(what, case.atom_name(wrong))
            elif [*dict.fromkeys(drawn)] != sorted(drawn):
                yield finding("each corruption once, in the order of ids", ", ".join(map(case.atom_name, drawn)))
            elif len(drawn) != wanted:
                yield finding(count_of(wanted, "corruption"), len(drawn))


@law(
    "The draw depends on seed, query and side alone: drawn again, in parts or in another order, it is the same.",
    needs_rows=False,
)
def _draw_by_query(case: Case) -> Iterator[Finding]:
    queries = case.ranked_queries
    wanted = _groups(case.draw(queries))
    size = max(1, len(queries) // 3)
    parts = [queries[begin : begin + size][::-1] for begin in range(0, len(queries), size)]
    for field, orders in (("drawn again", [queries]), ("drawn in parts", parts)):
        again = {key: rows for order in orders for key, rows in _groups(case.draw(order)).items()}
        for key in sorted({*wanted, *again}):
            if wanted.get(key) != again.get(key):
                texts = [", ".join(map(case.atom_name, each.get(key, []))) for each in (wanted, again)]
                yield Finding(-1, -1, Stage.CORRUPT, field, texts[0], texts[1], key[0])


@law("The corruptions drawn as k are among those drawn as k + 1.", needs_rows=False)
def _nested_draw(case: Case) -> Iterator[Finding]:
    num = case.run.num_corruptions
    if num == ALL:
        return
    fewer, more = (_groups(case.draw(case.ranked_queries, k)) for k in (num, num + 1))
    for key, rows in fewer.items():
        lost = [atom for atom in rows if atom not in more.get(key, [])]
        if lost:
            texts = f"{case.atom_name(lost[0])}, drawn as one of {num}", f"not drawn as one of {num + 1}"
            yield Finding(-1, -1, Stage.CORRUPT, "drawn", texts[0], texts[1], key[0])


@law(
    "Of the reported scores (log-probability, less 100 where not PROVED; closer than 1e-4 is a tie) the optimistic rank is 1"
    " more than the number above the query's, the pessimistic one as much more as there are ties.",
    needs_rows=False,
    presumes=(PUSHES_DOWN,),
)
def _ranks(case: Case) -> Iterator[Finding]:
    if case.rankings is None:
        return
    reported = {
        (q, s): (n, o, p)
        for q, s, n, o, p in zip(*(column.tolist() for column in case.rankings), strict=True)
        if case.merged.is_ranked[q]
    }
    candidates = case.columns.candidates
    scores: dict[tuple[int, int], dict[tuple[int, int, int], float]] = {}
    columns = candidates.query, candidates.side, candidates.atom, candidates.outcome, candidates.log_probability
    for query, side, (p, a, b), outcome, log_probability in zip(*(each.tolist() for each in columns), strict=True):
        if side != Side.NONE:
            score = log_probability - (0.0 if outcome == Outcome.PROVED else 100.0)
            scores.setdefault((query, side), {}).setdefault((p, a, b), score)
    wanted = {}
    for (query, side), of_atom in scores.items():
        triple = tuple(case.run.triples[query].tolist())
        if triple not in of_atom:
            continue
        own = of_atom.pop(triple)
        above = sum(score - own >= RANK_TOLERANCE for score in of_atom.values())
        tied = sum(abs(score - own) < RANK_TOLERANCE for score in of_atom.values())
        wanted[query, side] = (1 + len(of_atom), 1.0 + above, 1.0 + above + tied)
    for key in sorted({*wanted, *reported}):
        if wanted.get(key) != reported.get(key):
            texts = [
                f"{each[0]} ranked, optimistic {each[1]}, pessimistic {each[2]}" if each else "no ranking"
                for each in (wanted.get(key), reported.get(key))
            ]
            yield Finding(-1, -1, Stage.RANK, f"{Side(key[1]).name.lower()} side", texts[0], texts[1], key[0])


@law("The order in which candidates are handed over changes no rank.", needs_rows=False)
def _rank_order(case: Case) -> Iterator[Finding]:
    backwards = take_candidates(case.columns.candidates, np.arange(len(case.columns.candidates.query))[::-1])
    other = case.rank(backwards)
    if case.rankings is None or other is None:
        return
    pairs: Any = zip(case.rankings._fields, case.rankings, other, strict=True)
    for name, left, right in pairs:
        if not np.array_equal(left, right):
            rows = np.flatnonzero(left != right) if left.shape == right.shape else np.zeros(1, np.int64)
            query = int(case.rankings.query[rows[0]]) if len(case.rankings.query) else -1
            yield Finding(-1, -1, Stage.RANK, name, str(left[rows[:1]]), str(right[rows[:1]]), query)
            return
