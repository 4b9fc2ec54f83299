"""Ranks by the answers of one search: the query has a variable in place of the entity, and each proof reaches entities.

docs/semantics.md defines them as the rank of answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kgverify.engines.beams import list_ended
from kgverify.engines.protocol import Engine
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, compute_metrics, divide, rank_scores
from kgverify.runs.run import Run, plan_parts
from kgverify.step.clauses import Clauses, number_variables
from kgverify.step.search import Ended, aggregate
from kgverify.trace.model.columns import Columns, Rankings, starts_of


@dataclass(frozen=True)
class AnswerRanking:
    """The ranks of the true entities among the answers of searches, as `kgverify.rank_answers` returns them.

    Attributes:
        rankings: A row for each query and side: `query`, `side`, `num_ranked`, and the `optimistic` and `pessimistic` rank.
        metrics: MRR and Hits@1, 3, 10 of each side and rank type, such as `both.realistic.mean_reciprocal_rank`.
        num_reached: The number of rows whose true entity a proof reaches.
    """

    rankings: Rankings
    metrics: dict[str, float]
    num_reached: int


def check_answers(limits: Limits, engine: Engine) -> None:
    """Raise UserError for a dialect whose searches lose answers, and for an engine that does not know what they need."""
    dialect = limits.dialect
    if dialect.merge != "none" or dialect.search == "greedy" or {"close", "duplicates"} & {*dialect.filters}:
        raise UserError(
            "merging and the filters close and duplicates keep one of several answers, and the search greedy reaches one"
            f" at most; found dialect {dialect}",
            where="limits",
            fix=f"give a dialect without them, such as kv.Limits(dialect=kv.Dialect({_EXAMPLE}))",
        )
    needed = {"resolvents.origin_kind", "resolvents.origin", "paths.child", "paths.child_log_probability"}
    if unknown := sorted(needed & {*engine.info.unknown}):
        raise UserError(
            f"the answers of proofs follow from their clauses and paths, and {unknown[0]} is unknown",
            where=f"engine {engine.info.name}",
            fix="record it, or use another engine",
        )


_EXAMPLE: Final = 'search="beam(32)", filters=("prune", "revisit", "max_atoms", "max_resolvents")'


def score_answers(columns: Columns, limits: Limits, clauses: Clauses) -> list[dict[int, float]]:
    """Return the entities that the proofs of each candidate reach, with their aggregated log-probabilities in nats.

    columns: searches of queries with one variable; a proof that binds no constant to it reaches every constant

    UserError for a proof whose clauses do not give its goals.
    """
    answers = []
    for ended in list_ended(columns, limits):
        reached: dict[int, list[Ended]] = {}
        for path, rows in ended:
            if path.outcome is Outcome.PROVED:
                answer = _find_answer(columns, rows, path.choices, clauses)
                for entity in [answer] if answer >= 0 else range(len(clauses.symbols.constants)):
                    reached.setdefault(entity, []).append(path)
        answers.append({entity: aggregate(limits.dialect, proofs)[1] for entity, proofs in reached.items()})
    return answers


def _find_answer(columns: Columns, rows: Sequence[int], choices: Sequence[int], clauses: Clauses) -> int:
    """Return the constant that a proof gives to the variable of its query; -1 if the variable stays free.

    Each goal is resolved again with the recorded clause, and with a last atom that holds the term and that no clause matches.
    """
    resolvents, atoms = starts_of(columns.steps.num_resolvents), starts_of(columns.steps.num_atoms)
    goals = [number_variables(map(tuple, columns.steps.goal_atoms[atoms[i] : atoms[i + 1]].tolist())) for i in rows]
    term, marker = -1, len(clauses.symbols.predicates)
    for row, choice, goal, left in zip(rows, choices, goals, [*goals[1:], ()], strict=True):
        made = resolvents[row] + choice
        clause = int(columns.resolvents.origin_kind[made]), int(columns.resolvents.origin[made])
        found = clauses.resolve((*goal, (marker, term, term)), *clause)
        if found is None:
            raise UserError(
                f"the clause of step {row} does not resolve its goal", where="engine", fix="verify the engine first"
            )
        term = number_variables(found)[-1][1]
        if term >= 0 or all(term not in atom[1:] for atom in left):
            break
    return max(term, -1)


def rank_run(run: Run, engine: Engine) -> AnswerRanking:
    """Rank the true entity of each query and side by a search; see `kgverify.rank_answers`. UserError as there."""
    check_answers(run.limits, engine)
    clauses = Clauses(run.graph.program, exclude_query=run.limits.exclude_query, dialect=run.limits.dialect)
    ranked = [_rank_part(run, engine, clauses, part.queries) for part in plan_parts(run, "cpu").parts]
    rankings = Rankings(*map(np.concatenate, zip(*(each for each, _ in ranked), strict=True)))
    return AnswerRanking(rankings, compute_metrics(rankings), sum(num for _, num in ranked))


def _rank_part(run: Run, engine: Engine, clauses: Clauses, queries: range) -> tuple[Rankings, int]:
    """Return the ranks of some queries, and the number of true entities that are reached."""
    drawn = draw_candidates(run.graph, run.split, queries, ALL, run.seed)
    groups = divide(drawn, run.triples)
    asked = drawn.take(groups.true)
    asked.atom[np.arange(len(asked.atom)), 1 + asked.side] = -1
    # Triples that differ only in the entity share a search.
    _, first, number = np.unique(asked.atom, axis=0, return_index=True, return_inverse=True)
    found = score_answers(engine.prove(asked.take(first)), run.limits, clauses)
    entities = drawn.atom[np.arange(len(drawn.atom)), 1 + drawn.side].tolist()
    searches = groups.repeat(number.ravel()).tolist()
    scores = np.array([found[i].get(entity, np.nan) for i, entity in zip(searches, entities, strict=True)])
    is_reached = ~np.isnan(scores)
    scores[~is_reached] = scores[is_reached].min(initial=0.0) - 1.0
    rankings = rank_scores(drawn, scores, run.triples, RANK_TOLERANCE)
    return rankings, int(is_reached[groups.true].sum())
