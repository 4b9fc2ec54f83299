"""Training: proofs are sought with plain steps, and the policy learns to choose them; and the weights that come with kgverify."""

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from engine_checks import program_of

from benchmarks.training import (
    Decision,
    DecisionPlan,
    Exploration,
    ProofGraph,
    Trained,
    TrainingPlan,
    gather_decisions,
    run_train,
    train_policy,
)
from kgverify import KnowledgeGraph, Limits, NamedAtom, Policy, Run, UserError, load_graph
from kgverify.engines.policy import SHORTEST, check_policy, read_policy
from kgverify.program.atoms import parse_atoms
from kgverify.program.outcomes import Outcome
from kgverify.program.program import parse_rules
from kgverify.ranking.rank import RANK_TOLERANCE, compute_metrics
from kgverify.runs.run import load_policy, reference_pipeline

LIMITS = Limits(max_depth=6)
WEIGHTS = resources.files("kgverify.engines.weights")
DOCUMENTED = re.findall(
    r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", WEIGHTS.joinpath("README.md").read_text(), re.MULTILINE
)


def make_trap(num: int = 12) -> KnowledgeGraph:
    """Return a graph in which `likes` follows from `bait_of`, which nothing proves, or from two steps over a `friend`."""
    facts = "bait_of(nobody,nothing)" + "".join(f" friend(a{i},b{i}) owns(b{i},c{i})" for i in range(num))
    likes = parse_atoms(" ".join(f"likes(a{i},c{i})" for i in range(num)))
    rules = parse_rules("likes(X,Y) bait_of(X,Y); likes(X,Y) friend(X,Z) owns(Z,Y)")
    return KnowledgeGraph("trap", train=(*parse_atoms(facts), *likes[:-3]), test=likes[-3:], rules=rules)


def train_on_trap(seed: int = 0) -> Trained:
    plan = TrainingPlan(embedding=8, hidden=16, blocks=1, epochs=20, decisions=DecisionPlan(rounds=8))
    return train_policy(make_trap(), LIMITS, plan, seed=seed)


def outcomes_of(policy: Policy) -> set[int]:
    run = Run(make_trap(), limits=LIMITS, policy=policy, num_queries=3, num_corruptions=0)
    pipeline = reference_pipeline(run)
    return {*pipeline.engine.prove(pipeline.draw_for(run)).candidates.outcome.tolist()}


def test_a_trained_policy_finds_the_proofs_that_shortest_misses_and_depends_on_the_seed_only() -> None:
    trained, again, other = train_on_trap(), train_on_trap(), train_on_trap(seed=1)
    assert outcomes_of(SHORTEST) == {Outcome.FAILED}
    assert outcomes_of(trained.policy) == {Outcome.PROVED}
    assert trained.num_queries == trained.num_proved > 0
    assert trained.loss < 0.1
    assert again.policy.info == trained.policy.info != other.policy.info
    assert {array.dtype for array in trained.policy.weights.values()} == {np.dtype(np.float32)}


def proofs_of(edges: str, query: str, excluded: str = "") -> tuple[tuple[int, int, int], ProofGraph]:
    """Seek proofs over edges such as `ab bc`; the excluded atoms are not expanded."""
    facts = " ".join(f"edge({a},{b})" for a, b in edges.split())
    program = program_of(facts, "far(X,Y) edge(X,Z) far(Z,Y); far(X,Y) edge(X,Y)", query)
    start, *others = (program.symbols.encode(atom) for atom in parse_atoms(f"{query} {excluded}"))
    return start, ProofGraph(program, Limits(), [start], set(others), 1_000)


def test_the_shortest_proof_gives_the_decisions() -> None:
    start, proofs = proofs_of("ab bc cd ac", "far(a,d)")
    assert proofs.is_provable(start)
    met = {atom for each in proofs.prove(start) for atom in each.resolvents[each.choice]}
    # By way of c, in two steps, not of b, in three: the constants are numbered by first appearance.
    predicate, _, d = start
    b, c = 1, 2
    assert (predicate, c, d) in met
    assert (predicate, b, d) not in met


def test_a_derivation_with_random_steps_still_yields_decisions_that_lead_to_a_proof() -> None:
    start, proofs = proofs_of("ab bc cd ax xb", "far(a,d)")
    straight, explored = set(proofs.prove(start)), set[Decision]()
    for seed in range(20):
        explored |= set(proofs.prove(start, Exploration(np.random.default_rng(seed), 0.6)))
    assert straight < explored
    for decision in explored:
        distances = [proofs.distance(each) for each in decision.resolvents]
        assert len(distances) > 1
        assert distances[decision.choice] == min(distances) < float("inf")


def test_an_excluded_atom_never_occurs_in_a_proof() -> None:
    for excluded, is_provable in (("", True), ("far(b,c)", False)):
        start, proofs = proofs_of("ab bc", "far(a,c)", excluded)
        assert proofs.is_provable(start) is is_provable


def test_a_test_triple_is_never_a_query_even_if_train_and_valid_hold_it() -> None:
    graph = make_trap()
    leaky = KnowledgeGraph("leaky", (*graph.train, *graph.test), graph.test, graph.test, graph.rules)
    test = {tuple(row) for row in leaky.queries("test").tolist()}
    gathered = gather_decisions(leaky, LIMITS, DecisionPlan(rounds=4), 0)
    met = {tuple(atom) for each in gathered.decisions for goal in (each.goal, *each.resolvents) for atom in goal}
    asked = {atom for atom in met if atom[0] == leaky.program.symbols.predicate_ids["likes"]}
    assert asked
    assert not asked & test


def test_a_graph_without_decisions_is_an_error() -> None:
    graph = make_trap()
    likes: tuple[NamedAtom, ...] = tuple(atom for atom in graph.train if atom.predicate == "likes")
    plan = TrainingPlan(decisions=DecisionPlan(rounds=2))
    for train, rules, message in (
        (likes, graph.rules, "found no proof"),
        (graph.train, (), "heads a rule"),
        (graph.train, graph.rules[1:], "every step is forced"),
    ):
        with pytest.raises(UserError, match=message):
            train_policy(KnowledgeGraph("other", train=train, rules=rules), LIMITS, plan)


def shipped_run(num_queries: int, num_corruptions: int) -> Run:
    graph = load_graph("countries")
    policy = load_policy("trained", graph, Limits(), 0)
    return Run(graph, policy=policy, num_queries=num_queries, num_corruptions=num_corruptions)


def test_the_reference_reaches_the_documented_metrics_with_the_shipped_weights() -> None:
    assert WEIGHTS.joinpath("countries.safetensors").stat().st_size < 300_000
    assert [row[0] for row in DOCUMENTED] == ["4", "50"]
    for num_corruptions, *documented in DOCUMENTED:
        run = shipped_run(24, int(num_corruptions))
        pipeline = reference_pipeline(run)
        columns = pipeline.engine.prove(pipeline.draw_for(run))
        metrics = compute_metrics(pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE))
        found = [metrics[f"{side}.realistic.mean_reciprocal_rank"] for side in ("head", "tail", "both")]
        assert [f"{value:.3f}" for value in found] == documented


def test_another_graph_has_no_shipped_weights() -> None:
    graph = load_graph("countries")
    with pytest.raises(UserError, match="kgverify ships no trained weights") as raised:
        load_policy("trained", replace(graph, rules=graph.rules[:1]), Limits(), 0)
    assert "a safetensors file" in raised.value.fix


def test_the_weights_are_written_for_the_option_policy(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    run_train([str(path), "--rounds", "1", "--epochs", "1"])
    check_policy(read_policy(path), load_graph("countries").program, Limits())
