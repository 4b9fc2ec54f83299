"""Training: a `two_tower` for a graph learns to choose the steps of proofs, which are sought with the plain step."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn import functional

from benchmarks import make_parser, print_header, print_row
from kgverify.engines.policy import Policy, make_two_tower
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.program.fact_index import Ids
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import Program
from kgverify.prover.execution.device import single_thread
from kgverify.prover.stages.choose import Parameters, build_parameters, score_two_tower
from kgverify.prover.state import PAD
from kgverify.step.clauses import Atoms, Clauses
from kgverify.step.plain_step import Situation, filter_resolvents, match_facts, match_rules, resolve, select

# The decisions


class Decision(NamedTuple):
    """A choice to imitate: a goal, its resolvents (at least two), and the index of the resolvent that leads to a proof."""

    goal: Atoms
    resolvents: tuple[Atoms, ...]
    choice: int


class Exploration(NamedTuple):
    """The probability that a derivation takes a random resolvent, and the random numbers."""

    random: np.random.Generator
    share: float


class ProofGraph:
    """The goals that a breadth-first search from all queries at once has reached.

    The queries must not be facts of the program. At most `max_steps` goals are expanded, within the depth limit. Goals
    with a barred atom are not expanded, except queries. A goal that is not expanded counts as unproved.
    """

    def __init__(
        self, program: Program, limits: Limits, queries: Iterable[Ids], barred: Set[Ids], max_steps: int
    ) -> None:
        self._limits, self._clauses = limits, Clauses(program, exclude_query=False)
        self._successors: dict[Atoms, tuple[Atoms, ...]] = {}
        self._distance: dict[Atoms, int] = {}
        self._explore([(query,) for query in queries], barred, max_steps)
        self._measure()

    def distance(self, goal: Atoms) -> float:
        """Return the number of steps to the nearest proof; infinite without a proof."""
        return self._distance.get(goal, float("inf"))

    def is_provable(self, query: Ids) -> bool:
        """Return whether a proof within the limits was found."""
        return self.distance((query,)) <= self._limits.max_depth

    def prove(self, query: Ids, exploration: Exploration | None = None) -> Iterator[Decision]:
        """Yield the decisions of the shortest proof, the first among equally short ones.

        With `exploration`, the derivation sometimes takes a random resolvent and continues from there, so that the
        policy also learns to recover from a mistake.
        """
        goal: Atoms = (query,)
        visited = {goal}
        for _ in range(self._limits.max_depth):
            resolvents = tuple(each for each in self._successors.get(goal, ()) if each not in visited)
            if not resolvents or self._distance.get(goal) == 1:
                return
            nearest = min(resolvents, key=self.distance)
            if nearest not in self._distance:
                return
            if len(resolvents) > 1:
                yield Decision(goal, resolvents, resolvents.index(nearest))
            goal = nearest
            if exploration is not None and exploration.random.random() < exploration.share:
                goal = resolvents[int(exploration.random.integers(len(resolvents)))]
            visited.add(goal)

    def _explore(self, level: list[Atoms], barred: Set[Ids], max_steps: int) -> None:
        seen = set(level)
        for _ in range(self._limits.max_depth):
            following: list[Atoms] = []
            for goal in level:
                if len(self._successors) == max_steps:
                    return
                situation = Situation(self._clauses, self._limits, None, (goal,))
                selected = select(situation)
                rules, facts = match_rules(situation, selected), match_facts(situation, selected)
                resolvents = filter_resolvents(situation, resolve(situation, rules, facts)).taken.resolvents
                if resolvents[0].kind == GoalKind.TRUE:
                    self._distance[goal] = 1
                goals = tuple(dict.fromkeys(each.atoms for each in resolvents if each.kind == GoalKind.GOAL))
                self._successors[goal] = goals
                for each in goals:
                    if each not in seen and barred.isdisjoint(each):
                        seen.add(each)
                        following.append(each)
            level = following

    def _measure(self) -> None:
        predecessors: dict[Atoms, list[Atoms]] = {}
        for goal, resolvents in self._successors.items():
            for each in resolvents:
                predecessors.setdefault(each, []).append(goal)
        level = list(self._distance)
        while level:
            following = []
            for goal in level:
                for each in predecessors.get(goal, ()):
                    if each not in self._distance:
                        self._distance[each] = self._distance[goal] + 1
                        following.append(each)
            level = following


@dataclass(frozen=True)
class DecisionPlan:
    """The plan for gathering decisions.

    rounds:       the number of rounds; each hides facts and searches for proofs without them
    hidden_share: the share of facts to hide, among the facts whose predicate heads a rule; hidden facts are a round's
                  queries
    num_queries:  the largest number of queries of a round
    max_steps:    the largest number of goals that the search of a round expands
    num_explorations:   the number of additional derivations of each proved query, which leave the shortest proof at
                        random
    exploration_share:  the probability that such a derivation takes a random resolvent
    """

    rounds: int = 64
    hidden_share: float = 0.5
    num_queries: int = 400
    max_steps: int = 5_000
    num_explorations: int = 4
    exploration_share: float = 0.6


@dataclass(frozen=True)
class GatheredDecisions:
    """The decisions to imitate, and the numbers of queries and of proved queries over all rounds."""

    decisions: tuple[Decision, ...]
    num_queries: int
    num_proved: int


def gather_decisions(graph: KnowledgeGraph, limits: Limits, plan: DecisionPlan, seed: int) -> GatheredDecisions:
    """Gather the decisions of all rounds, determined by the seed.

    Held-out triples are harder than facts, since train also lacks other facts about their first arguments. So a round
    also hides facts about the first argument of each hidden query: all facts of a predicate, with the frequency at
    which train lacks that predicate for the first arguments of valid. Test triples are neither queries nor part of a
    proof.
    """
    program = graph.program
    limits = Limits(max_depth=limits.max_depth, max_atoms=limits.max_atoms, max_resolvents=limits.max_resolvents)
    random = np.random.default_rng(seed)
    facts = [(p, a, b) for p, a, b in program.facts.tolist()]
    present, heads = set(facts), {rule.clause_head[0] for rule in program.rules}
    test = set(_triples(graph, "test"))
    queries = [
        each for each in dict.fromkeys([*facts, *_triples(graph, "valid")]) if each not in test and each[0] in heads
    ]
    lacking = _measure_lacking(graph, facts)
    decisions: list[Decision] = []
    num_queries = num_proved = 0
    for _ in range(plan.rounds):
        hidden = _choose_hidden(random, queries, present, plan)
        gone = {*hidden, *_choose_forgotten(random, hidden, facts, lacking)}
        left = np.array([fact for fact in facts if fact not in gone], np.int32).reshape(-1, 3)
        proofs = ProofGraph(replace(program, facts=left), limits, hidden, test, plan.max_steps)
        proved = [query for query in hidden if proofs.is_provable(query)]
        for query in proved:
            decisions += proofs.prove(query)
            for _ in range(plan.num_explorations):
                decisions += proofs.prove(query, Exploration(random, plan.exploration_share))
        num_queries += len(hidden)
        num_proved += len(proved)
    return GatheredDecisions(tuple(decisions), num_queries, num_proved)


def _choose_hidden(random: np.random.Generator, queries: list[Ids], facts: Set[Ids], plan: DecisionPlan) -> list[Ids]:
    """Choose queries in random order: all queries that are not facts, and a share of the facts, up to the plan's number."""
    is_drawn = random.random(len(queries)) < plan.hidden_share
    hidden = [each for each, drawn in zip(queries, is_drawn, strict=True) if drawn or each not in facts]
    return [hidden[i] for i in random.permutation(len(hidden))[: plan.num_queries].tolist()]


def _choose_forgotten(
    random: np.random.Generator, hidden: list[Ids], facts: list[Ids], lacking: list[float]
) -> list[Ids]:
    subjects = sorted({query[1] for query in hidden})
    is_forgotten = random.random((len(lacking), len(subjects))) < np.array(lacking)[:, None]
    forgotten = {(p, subjects[i]) for p, i in np.argwhere(is_forgotten).tolist()}
    return [fact for fact in facts if fact[:2] in forgotten]


def _measure_lacking(graph: KnowledgeGraph, facts: list[Ids]) -> list[float]:
    """Return, for each predicate, the share of the first arguments of valid that lack its facts; 0 without valid."""
    subjects = sorted({triple[1] for triple in _triples(graph, "valid")})
    known = {fact[:2] for fact in facts}
    predicates = range(len(graph.program.symbols.predicates))
    num_lacking = [sum((p, each) not in known for each in subjects) for p in predicates]
    return [num / max(len(subjects), 1) for num in num_lacking]


def _triples(graph: KnowledgeGraph, split: str) -> list[Ids]:
    atoms = graph.valid if split == "valid" else graph.test
    return [(p, a, b) for p, a, b in map(graph.program.symbols.encode, atoms)]


# The training


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
    gathered = gather_decisions(graph, limits, plan.decisions, seed)
    _check_decisions(gathered, graph, limits)
    start = make_two_tower(
        graph.program, limits, seed=seed, embedding=plan.embedding, hidden=plan.hidden, blocks=plan.blocks
    )
    constants = start.weights["embedding.constant"] * np.float32(plan.constant_scale)
    initial = Policy(start.name, {**start.weights, "embedding.constant": constants})
    policy, loss = _fit_policy(initial, gathered.decisions, plan, seed)
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
            fix="check that the rules' bodies use relations that train has, or raise max_depth or --rounds",
        )
    if not gathered.decisions:
        raise UserError(
            f"expected proofs with a choice, found none among {gathered.num_proved:,}: every step is forced",
            where=graph.name,
            fix="use --policy shortest, which finds these proofs as well",
        )


def _fit_policy(policy: Policy, decisions: Sequence[Decision], plan: TrainingPlan, seed: int) -> tuple[Policy, float]:
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


def write_policy(policy: Policy, path: Path) -> None:
    """Write the weights as safetensors."""
    save_file({name: np.ascontiguousarray(each) for name, each in policy.weights.items()}, path)


def run_train(argv: list[str]) -> None:
    """Train a two_tower policy for a graph to imitate proofs of train and valid, and write its weights for `--policy`.

    The test split is not used.
    """
    parser = make_parser(run_train)
    parser.add_argument("weights", type=Path, metavar="FILE.safetensors", help="the file to write")
    parser.add_argument("--graph", default="countries", help="as --graph of kgverify")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights, the hidden facts and the batches")
    parser.add_argument("--rounds", type=int, default=64, help="each hides some facts and proves without them")
    parser.add_argument("--epochs", type=int, default=10, help="passes over all decisions")
    options = parser.parse_args(argv)
    plan = TrainingPlan(epochs=options.epochs, decisions=DecisionPlan(rounds=options.rounds))
    trained = train_policy(load_graph(options.graph), plan=plan, seed=options.seed)
    write_policy(trained.policy, options.weights)
    print_header("queries", "proved", "decisions", "loss, nats", "SHA-256")
    print_row(
        f"{trained.num_queries:,}",
        f"{trained.num_proved:,}",
        f"{trained.num_decisions:,}",
        f"{trained.loss:.3f}",
        trained.policy.info.sha256[:12],
    )
