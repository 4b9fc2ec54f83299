"""Training: proofs are sought with plain steps, and the policy learns to choose them."""

import numpy as np
import pytest

from kgverify import KnowledgeGraph, Limits, UserError
from kgverify.engines.policy import SHORTEST, Policy
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Outcome
from kgverify.program.program import NamedRule, Program
from kgverify.prover.training.decisions import Decision, DecisionPlan, Exploration, ProofGraph, gather_decisions
from kgverify.prover.training.train import Trained, TrainingPlan, train_policy
from kgverify.runs.run import Run, reference_pipeline

X, Y, Z = map(Variable, "XYZ")
LIMITS = Limits(max_depth=6)


def graph_where_the_short_way_is_a_trap(num: int = 12) -> KnowledgeGraph:
    """`likes` follows from `bait`, one atom that nothing proves, or from two steps over a `friend`."""
    facts = [NamedAtom("bait_of", "nobody", "nothing")]
    for i in range(num):
        facts += [NamedAtom("friend", f"a{i}", f"b{i}"), NamedAtom("owns", f"b{i}", f"c{i}")]
    likes = [NamedAtom("likes", f"a{i}", f"c{i}") for i in range(num)]
    rules = (
        NamedRule(NamedAtom("likes", X, Y), (NamedAtom("bait_of", X, Y),)),
        NamedRule(NamedAtom("likes", X, Y), (NamedAtom("friend", X, Z), NamedAtom("owns", Z, Y))),
    )
    return KnowledgeGraph("trap", train=(*facts, *likes[:-3]), test=tuple(likes[-3:]), rules=rules)


def train_on_trap(seed: int = 0) -> Trained:
    plan = TrainingPlan(embedding=8, hidden=16, blocks=1, epochs=20, decisions=DecisionPlan(rounds=8))
    return train_policy(graph_where_the_short_way_is_a_trap(), LIMITS, plan, seed=seed)


def outcomes_of(policy: Policy) -> list[int]:
    run = Run(graph_where_the_short_way_is_a_trap(), limits=LIMITS, policy=policy, num_queries=3, num_corruptions=0)
    pipeline = reference_pipeline(run)
    return pipeline.engine.prove(pipeline.draw(run.graph, "test", run.queries, 0, 0)).candidates.outcome.tolist()


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train_on_trap()


def test_a_trained_policy_finds_the_proofs_that_shortest_misses(trained: Trained):
    assert set(outcomes_of(SHORTEST)) == {Outcome.FAILED}
    assert set(outcomes_of(trained.policy)) == {Outcome.PROVED}
    assert trained.num_queries == trained.num_proved > 0
    assert trained.loss < 0.1


def test_the_seed_alone_determines_the_weights(trained: Trained):
    again, other = train_on_trap(), train_on_trap(seed=1)
    assert again.policy.info == trained.policy.info
    assert other.policy.info != trained.policy.info
    assert {array.dtype for array in trained.policy.weights.values()} == {np.dtype(np.float32)}


def proofs_of(facts: list[tuple[str, str, str]], query: tuple[str, str, str], barred: tuple[str, ...] = ()):
    """Over `far(X,Y) <- edge(X,Z), far(Z,Y)` and `far(X,Y) <- edge(X,Y)`; what `barred(p, a, b)` names is not expanded."""
    rules = [
        NamedRule(NamedAtom("far", X, Y), (NamedAtom("edge", X, Z), NamedAtom("far", Z, Y))),
        NamedRule(NamedAtom("far", X, Y), (NamedAtom("edge", X, Y),)),
    ]
    program = Program.from_names([NamedAtom(*fact) for fact in facts], rules, [NamedAtom(*query)])
    start, excluded = program.symbols.encode(NamedAtom(*query)), set()
    if barred:
        excluded.add(program.symbols.encode(NamedAtom(*barred)))
    return program.symbols, start, ProofGraph(program, Limits(), [start], excluded, 1_000)


def test_the_shortest_proof_gives_the_decisions():
    edges = [("edge", "a", "b"), ("edge", "b", "c"), ("edge", "c", "d"), ("edge", "a", "c")]
    symbols, start, proofs = proofs_of(edges, ("far", "a", "d"))
    assert proofs.is_provable(start)
    decisions = list(proofs.prove(start))
    through = [each.resolvents[each.choice] for each in decisions]
    predicates = [symbols.predicates[goal[-1][0]] for goal in through]
    assert predicates == ["far", "far", "edge"][: len(through)]
    # By way of c, in two steps, not of b, in three.
    met = [atom for goal in through for atom in goal]
    assert symbols.encode(NamedAtom("far", "c", "d")) in met
    assert symbols.encode(NamedAtom("far", "b", "d")) not in met


def test_a_derivation_with_random_steps_still_yields_decisions_that_lead_to_a_proof():
    edges = [("edge", "a", "b"), ("edge", "b", "c"), ("edge", "c", "d"), ("edge", "a", "x"), ("edge", "x", "b")]
    _, start, proofs = proofs_of(edges, ("far", "a", "d"))
    straight = set(proofs.prove(start))
    explored: set[Decision] = set()
    for seed in range(20):
        explored |= set(proofs.prove(start, Exploration(np.random.default_rng(seed), 0.6)))
    assert straight < explored
    for decision in explored:
        distances = [proofs.distance(each) for each in decision.resolvents]
        assert len(distances) > 1
        assert distances[decision.choice] == min(distances) < float("inf")


def test_a_barred_atom_never_occurs_in_a_proof():
    edges = [("edge", "a", "b"), ("edge", "b", "c")]
    _, start, proofs = proofs_of(edges, ("far", "a", "c"))
    assert proofs.is_provable(start)
    _, start, proofs = proofs_of(edges, ("far", "a", "c"), ("far", "b", "c"))
    assert not proofs.is_provable(start)


def test_a_test_triple_is_never_a_query_even_if_train_and_valid_hold_it():
    graph = graph_where_the_short_way_is_a_trap()
    leaky = KnowledgeGraph("leaky", (*graph.train, *graph.test), graph.test, graph.test, graph.rules)
    test = {tuple(row) for row in leaky.queries("test").tolist()}
    gathered = gather_decisions(leaky, LIMITS, DecisionPlan(rounds=4), 0)
    met = {tuple(atom) for each in gathered.decisions for goal in (each.goal, *each.resolvents) for atom in goal}
    asked = {atom for atom in met if atom[0] == leaky.program.symbols.predicate_ids["likes"]}
    assert asked
    assert not asked & test


def test_a_graph_without_decisions_is_an_error():
    graph = graph_where_the_short_way_is_a_trap()
    likes = tuple(atom for atom in graph.train if atom.predicate == "likes")
    plan = TrainingPlan(decisions=DecisionPlan(rounds=2))
    with pytest.raises(UserError, match="found no proof"):
        train_policy(KnowledgeGraph("apart", train=likes, rules=graph.rules), LIMITS, plan)
    with pytest.raises(UserError, match="heads a rule"):
        train_policy(KnowledgeGraph("no rules", train=graph.train), LIMITS, plan)
    with pytest.raises(UserError, match="every step is forced"):
        train_policy(KnowledgeGraph("forced", train=graph.train, rules=graph.rules[1:]), LIMITS, plan)
