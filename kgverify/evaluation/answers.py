"""Ranks by the answers of one search: the query has a variable in place of the entity, and each proof reaches entities.

docs/semantics.md defines them as the rank of answers.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kgverify.engines.protocol import Engine
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, compute_metrics, divide, rank_scores
from kgverify.runs.retake_levels import list_ended
from kgverify.runs.run import Run, plan_parts
from kgverify.step.clauses import Atoms, Clause, Clauses, number_variables
from kgverify.step.search import Ended, aggregate
from kgverify.trace.model.columns import Columns, Rankings, starts_of


class AnswerRanking(NamedTuple):
    """The ranks of the true entities among the answers of searches, as `kgverify.rank_answers` returns them.

    Attributes:
        rankings: A row for each query and side: `query`, `side`, `num_ranked`, and the `optimistic` and `pessimistic` rank.
        metrics: MRR and Hits@1, 3, 10 of each side and rank type, such as `both.realistic.mean_reciprocal_rank`.
    """

    rankings: Rankings
    metrics: dict[str, float]


def score_answers(columns: Columns, limits: Limits, clauses: Clauses) -> Iterator[dict[int, float]]:
    """Yield the entities that the proofs of each candidate reach, with their aggregated log-probabilities in nats.

    columns: searches of queries with one variable; a proof that binds no constant to it reaches every constant

    UserError for a proof whose clauses do not give its goals.
    """
    atoms, starts = starts_of(columns.steps.num_atoms)[1:-1], starts_of(columns.steps.num_resolvents).tolist()
    goals = [number_variables(map(tuple, goal.tolist())) for goal in np.split(columns.steps.goal_atoms, atoms)]
    origins = [*zip(columns.resolvents.origin_kind.tolist(), columns.resolvents.origin.tolist(), strict=True)]
    for ended in list_ended(columns, limits):
        reached: dict[int, list[Ended]] = {}
        for path, taken in ended:
            if path.outcome is Outcome.PROVED:
                answer = _find_answer([(goals[i], origins[starts[i] + choice]) for i, choice in taken], clauses)
                for entity in [answer] if answer >= 0 else range(len(clauses.symbols.constants)):
                    reached.setdefault(entity, []).append(path)
        yield {entity: aggregate(limits.dialect, proofs)[1] for entity, proofs in reached.items()}


def _find_answer(steps: list[tuple[Atoms, Clause]], clauses: Clauses) -> int:
    """Return the term that the steps of a proof give to the variable of its query: a constant, or a variable that stays free.

    Each goal is resolved again with its clause, and with a last atom that holds the term and that no clause matches.
    """
    term, marker = -1, len(clauses.symbols.predicates)
    for goal, clause in steps:
        atoms = clauses.resolve((*goal, (marker, term, term)), *clause)
        if atoms is None:
            raise UserError(f"clause {clause} does not resolve {goal}", where="engine", fix="verify the engine first")
        term = number_variables(atoms)[-1][1]
    return term


def rank_run(run: Run, engine: Engine) -> AnswerRanking:
    """Rank the true entity of each query and side by a search; see `kgverify.rank_answers`. UserError as there."""
    dialect = run.limits.dialect
    if dialect.merge != "none" or dialect.search == "greedy" or {"close", "duplicates"} & {*dialect.filters}:
        lost = "merging and the filters close and duplicates keep one of several answers, and greedy finds one"
        filters = '"prune", "revisit", "max_atoms", "max_resolvents"'
        fix = f'give limits=kv.Limits(dialect=kv.Dialect(search="beam(32)", filters=({filters})))'
        raise UserError(f"{lost}; found dialect {dialect}", where="limits", fix=fix)
    needed = {"resolvents.origin_kind", "resolvents.origin", "paths.child", "paths.child_log_probability"}
    if unknown := sorted(needed & {*engine.info.unknown}):
        raise UserError(f"answers need {unknown[0]}, unknown", where=f"engine {engine.info.name}", fix="record it")
    clauses = Clauses(run.graph.program, exclude_query=run.limits.exclude_query, dialect=dialect)
    parts = [_rank_part(run, engine, clauses, part.queries) for part in plan_parts(run, "cpu").parts]
    rankings = Rankings(*map(np.concatenate, zip(*parts, strict=True)))
    return AnswerRanking(rankings, compute_metrics(rankings))


def _rank_part(run: Run, engine: Engine, clauses: Clauses, queries: range) -> Rankings:
    """Return the ranks of some queries."""
    drawn = draw_candidates(run.graph, run.split, queries, ALL, run.seed)
    groups = divide(drawn, run.triples)
    asked = drawn.take(groups.true)
    asked.atom[np.arange(len(asked.atom)), 1 + asked.side] = -1
    # Triples that differ only in the entity share a search.
    _, first, number = np.unique(asked.atom, axis=0, return_index=True, return_inverse=True)
    found = [*score_answers(engine.prove(asked.take(first)), run.limits, clauses)]
    entities = drawn.atom[np.arange(len(drawn.atom)), 1 + drawn.side].tolist()
    answers = [found[i] for i in groups.repeat(number.ravel()).tolist()]
    scores = np.array([each.get(entity, -np.inf) for each, entity in zip(answers, entities, strict=True)])
    scores[~np.isfinite(scores)] = scores.min(initial=0.0, where=np.isfinite(scores)) - 1.0
    return rank_scores(drawn, scores, run.triples, RANK_TOLERANCE)
