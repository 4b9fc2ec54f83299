"""The training of a `two_tower` for a graph: it searches for proofs with the plain step, then fits the policy to them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kgverify.engines.policy import Policy, make_two_tower
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.limits import Limits
from kgverify.progress import Phase, Progress, silent_phase
from kgverify.prover.execution.device import single_thread
from kgverify.prover.stages.choose import Parameters, build_parameters, score_two_tower
from kgverify.prover.state import PAD
from kgverify.prover.training.decisions import Decision, DecisionPlan, GatheredDecisions, gather_decisions


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

    On one machine, the arguments determine the result. UserError if no triple can be proved from the others, or if no
    proof contains a choice.
    """
    limits, plan = limits or Limits(), plan or TrainingPlan()
    if not 0 <= seed < 1 << 63:
        raise UserError(
            f"expected a seed from 0 to {(1 << 63) - 1}, found {seed}", where="seed", fix="give another seed"
        )
    with phase("searching for proofs", plan.decisions.rounds) as progress:
        gathered = gather_decisions(graph, limits, plan.decisions, seed, progress)
    _check_decisions(gathered, graph, limits)
    start = make_two_tower(
        graph.program, limits, seed=seed, embedding=plan.embedding, hidden=plan.hidden, blocks=plan.blocks
    )
    constants = start.weights["embedding.constant"] * np.float32(plan.constant_scale)
    with phase("fitting the policy", plan.epochs) as progress:
        initial = Policy(start.name, {**start.weights, "embedding.constant": constants})
        policy, loss = _fit_policy(initial, gathered.decisions, plan, seed, progress)
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
            fix="check that the rules' bodies use relations that train has, or raise --limits max_depth or --rounds",
        )
    if not gathered.decisions:
        raise UserError(
            f"expected proofs with a choice, found none among {gathered.num_proved:,}: every step is forced",
            where=graph.name,
            fix="use --policy shortest, which finds these proofs as well",
        )


def _fit_policy(
    policy: Policy, decisions: Sequence[Decision], plan: TrainingPlan, seed: int, progress: Progress
) -> tuple[Policy, float]:
    """Fit the weights with AdamW to the cross-entropy of the choice, on one thread, in float32.

    Returns the policy, and its mean loss in nats over the decisions of the last epoch. The loss of a decision is the negative
    log-softmax of the scores at its choice.
    """
    batches = _Batches(decisions)
    generator = torch.Generator().manual_seed(seed)
    # Sums have the same order on any number of cores.
    with single_thread():
        parameters = build_parameters(policy, torch.device("cpu"), torch.float32)
        trained = [each.requires_grad_() for each in parameters if each.is_floating_point()]
        optimizer = torch.optim.AdamW(trained, lr=plan.learning_rate, weight_decay=plan.weight_decay)
        steps = plan.epochs * -(-len(decisions) // plan.batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        mean = 0.0
        for _ in range(plan.epochs):
            total = 0.0
            order = torch.randperm(len(decisions), generator=generator)
            for chosen in torch.split(order, plan.batch):
                optimizer.zero_grad()
                loss = batches.loss(parameters, chosen)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                total += loss.item() * len(chosen)
            mean = total / len(decisions)
            progress(1)
    return _read_back(policy, parameters), mean


class _Batches:
    """The decisions as tensors. N decisions, M resolvents of all decisions, A atoms.

    goals:      int32 [N, A, 3]
    resolvents: int32 [M, A, 3]
    num:        int64 [N]        number of resolvents of each decision
    starts:     int64 [N]        the first resolvent of each decision
    choice:     int64 [N]        the index of the right resolvent
    """

    def __init__(self, decisions: Sequence[Decision]) -> None:
        rows = [goal for each in decisions for goal in each.resolvents]
        width = max(len(goal) for goal in (*rows, *(each.goal for each in decisions)))
        self.goals = _pad([each.goal for each in decisions], width)
        self.resolvents = _pad(rows, width)
        self.num = torch.tensor([len(each.resolvents) for each in decisions])
        self.starts = self.num.cumsum(0) - self.num
        self.choice = torch.tensor([each.choice for each in decisions])

    def loss(self, parameters: Parameters, chosen: Tensor) -> Tensor:
        """Return the mean loss of some decisions, int64 [n]."""
        num = self.num[chosen]
        slot = torch.repeat_interleave(torch.arange(len(chosen)), num)
        index = torch.arange(len(slot)) - torch.repeat_interleave(num.cumsum(0) - num, num)
        rows = self.starts[chosen][slot] + index
        score = score_two_tower(parameters, self.goals[chosen], self.resolvents[rows], slot)
        padded = torch.full((len(chosen), int(num.max())), -torch.inf).index_put((slot, index), score)
        return functional.cross_entropy(padded, self.choice[chosen])


def _pad(goals: Sequence[Sequence[tuple[int, int, int]]], width: int) -> Tensor:
    padded = np.full((len(goals), width, 3), PAD, np.int32)
    for row, goal in zip(padded, goals, strict=True):
        row[: len(goal)] = goal
    return torch.from_numpy(padded)


def _read_back(policy: Policy, parameters: Parameters) -> Policy:
    predicate, argument, num_variables, weight, bias, *blocks = (each.detach().numpy().copy() for each in parameters)
    variables, constants = np.split(argument, [int(num_variables)])
    weights = {
        "embedding.predicate": predicate,
        "embedding.constant": constants,
        "embedding.variable": variables,
        "input.weight": weight,
        "input.bias": bias,
    }
    parts = [
        f"block.{i}.{part}" for i in range(policy.num_blocks) for part in ("weight", "bias", "norm.weight", "norm.bias")
    ]
    return Policy(policy.name, weights | dict(zip(parts, blocks, strict=True)))
