"""`kgverify.rank_answers`: rank entities by the proofs of one search for each query and side."""

from kgverify.api.inputs import running
from kgverify.arguments import checked
from kgverify.engines.table import REFERENCE
from kgverify.evaluation.answers import AnswerRanking, rank_run
from kgverify.program.limits import Limits
from kgverify.runs.job import EngineLike, Engines, GraphLike, Job, PolicyLike, Proofs, Queries, Source


@checked
def rank_answers(
    graph: GraphLike,
    engine: EngineLike = REFERENCE,
    *,
    queries: int | Queries | None = None,
    seed: int | None = None,
    policy: PolicyLike = "shortest",
    limits: Limits | None = None,
) -> AnswerRanking:
    """Rank the true entity of each query and side by the best proofs of one search, as path reasoners such as MINERVA do.

    The search starts from the query with a variable in place of the entity. An entity's score is the log-probability that the
    dialect's `aggregate` gives to the proofs that reach it. Known triples are filtered, as among all corruptions of
    `kgverify.evaluate`; entities that no proof reaches come last, and tie.

    Args:
        graph: The name of a graph, its path, or a `KnowledgeGraph`; see `kgverify.verify`.
        engine: The engine that searches, as for `kgverify.verify`; kgverify's reference prover if not given. It must record
            the clauses of resolvents.
        queries: Number of queries, from the beginning of the split; all if not given. Or `kgverify.Queries(...)`, whose number
            of corruptions has no effect.
        seed: Seed of a random policy.
        policy: `"shortest"`, `"two_tower"`, `"trained"`, the path of a safetensors file, or a function
            (goal, resolvents) -> scores; docs/evaluating.md.
        limits: Limits with a dialect that searches, without merging and without the filters `close` and `duplicates`.

    Returns:
        The ranks, `.rankings`, and the `.metrics`: MRR and Hits@1, 3, 10 of each side and rank type.

    Raises:
        UserError: If an argument is wrong, the dialect loses answers, or the engine does not know its clauses.

    Example:
        >>> import kgverify as kv
        >>> dialect = kv.Dialect(search="beam(32)", filters=("prune", "revisit", "max_atoms", "max_resolvents"))
        >>> ranked = kv.rank_answers("countries", "reference", queries=4, limits=kv.Limits(dialect=dialect))
        >>> round(ranked.metrics["tail.realistic.mean_reciprocal_rank"], 4)
        0.9167
    """
    run = Job(Source(graph), Queries.choose(queries, None, seed), Engines(engine), Proofs(limits, policy)).make_run()
    with running(engine, run) as pipeline:
        return rank_run(run, pipeline.engine)
