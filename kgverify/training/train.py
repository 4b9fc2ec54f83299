"""The training of a `two_tower` for a graph: search for proofs with the reference's steps, then fit the policy to them."""

from dataclasses import dataclass, field

import numpy as np

from kgverify.engines.policy import Policy, make_two_tower
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.limits import Limits
from kgverify.runs.progress import Phase, silent_phase
from kgverify.training.decisions import DecisionPlan, GatheredDecisions, gather_decisions
from kgverify.training.fit import fit_policy


@dataclass(frozen=True)
class TrainingPlan:
    """The sizes of the network, and the settings of its training.

    constant_scale: the scale of the initial embeddings of constants. A constant without proofs keeps a small embedding, and
                    the policy then decides by the rest of the goal
    """

    embedding: int = 32
    hidden: int = 64
    blocks: int = 2
    constant_scale: float = 0.3
    epochs: int = 10
    batch: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 1.0
    decisions: DecisionPlan = field(default_factory=DecisionPlan)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained policy, and the size of its training data.

    num_queries, num_proved: over all rounds; a triple that is hidden in two rounds counts twice
    loss:                    the mean cross-entropy of a decision in the last epoch, in nats
    """

    policy: Policy
    num_queries: int
    num_proved: int
    num_decisions: int
    loss: float


def train_policy(
    graph: KnowledgeGraph,
    limits: Limits | None = None,
    plan: TrainingPlan | None = None,
    *,
    seed: int = 0,
    phase: Phase = silent_phase,
) -> Trained:
    """Train a policy to imitate the reference's proofs of train and valid; the test split is not used.

    On one machine, the arguments determine the result. UserError if no triple can be proved from the others, or no proof
    has a choice.
    """
    limits, plan = limits or Limits(), plan or TrainingPlan()
    if not 0 <= seed < 1 << 63:
        raise UserError(
            f"expected a seed from 0 to {(1 << 63) - 1}, found {seed}", where="--seed", fix="give another seed"
        )
    with phase("searching for proofs", plan.decisions.rounds) as progress:
        gathered = gather_decisions(graph, limits, plan.decisions, seed, progress)
    _check_decisions(gathered, graph, limits)
    start = make_two_tower(
        graph.program, limits, seed=seed, embedding=plan.embedding, hidden=plan.hidden, blocks=plan.blocks
    )
    constants = start.weights["embedding.constant"] * np.float32(plan.constant_scale)
    with phase("fitting the policy", plan.epochs) as progress:
        policy, loss = fit_policy(
            Policy(start.name, {**start.weights, "embedding.constant": constants}),
            gathered.decisions,
            seed=seed,
            epochs=plan.epochs,
            batch=plan.batch,
            learning_rate=plan.learning_rate,
            weight_decay=plan.weight_decay,
            progress=progress,
        )
    return Trained(policy, gathered.num_queries, gathered.num_proved, len(gathered.decisions), loss)


def _check_decisions(gathered: GatheredDecisions, graph: KnowledgeGraph, limits: Limits) -> None:
    if not gathered.num_queries:
        raise UserError(
            "expected triples whose relation heads a rule, found none in train and valid",
            where=graph.name,
            fix="name a file of rules for these relations with --rules",
        )
    if not gathered.num_proved:
        raise UserError(
            f"expected provable triples, found no proof for {gathered.num_queries:,} queries in {limits.max_depth} steps",
            where=graph.name,
            fix="check that the rules' bodies use relations that train has, or raise --max-depth or --rounds",
        )
    if not gathered.decisions:
        raise UserError(
            f"expected proofs with a choice, found none among {gathered.num_proved:,}: every step is forced",
            where=graph.name,
            fix="use --policy shortest, which finds these proofs as well",
        )
