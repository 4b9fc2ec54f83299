"""The decisions that training imitates, from the reference's proofs of triples in train and valid."""

from dataclasses import dataclass

import numpy as np

from kgreference.program import Program as ReferenceProgram
from kgreference.step import Limits as ReferenceLimits
from kgverify.engines.protocol import Progress, no_progress
from kgverify.engines.reference.engine import build_reference_program
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.limits import Limits
from kgverify.training.proofs import Decision, ProofGraph, Stray, Triple


@dataclass(frozen=True)
class LessonPlan:
    """The plan for gathering decisions.

    rounds:       the rounds; each hides facts and searches for proofs without them
    hidden_share: the share of hidden facts among those whose predicate heads a rule; they are a round's queries
    num_queries:  the most queries of a round
    max_steps:    the most goals that the search of a round expands
    num_strays:   the further derivations of each proved query, which leave the shortest proof at random
    stray_share:  the probability that such a derivation takes a random resolvent
    """

    rounds: int = 64
    hidden_share: float = 0.5
    num_queries: int = 400
    max_steps: int = 5_000
    num_strays: int = 4
    stray_share: float = 0.6


@dataclass(frozen=True)
class Lessons:
    """The decisions to imitate, and the numbers of queries and of proved queries over all rounds."""

    decisions: tuple[Decision, ...]
    num_queries: int
    num_proved: int


def gather_lessons(
    graph: KnowledgeGraph, limits: Limits, plan: LessonPlan, seed: int, progress: Progress = no_progress
) -> Lessons:
    """Gather the decisions of all rounds, determined by the seed.

    Held-out triples are harder than facts, since train also lacks other facts about their first arguments. So a round also
    forgets facts about the first argument of each hidden query: all those of a predicate, with the frequency at which train
    lacks that predicate for the first arguments of valid. Test triples are neither queries nor part of a proof.
    """
    program = build_reference_program(graph.program)
    reference_limits = ReferenceLimits(limits.max_depth, limits.max_atoms, limits.max_resolvents)
    random = np.random.default_rng(seed)
    test = set(_triples(graph, "test"))
    known = [*program.facts, *_triples(graph, "valid")]
    queries = [each for each in dict.fromkeys(known) if each not in test and program.rules_apart(each[0], 0)]
    lacking = _measure_lacking(graph, program)
    decisions: list[Decision] = []
    num_queries = num_proved = 0
    for _ in range(plan.rounds):
        hidden = _choose_hidden(random, queries, program, plan)
        gone = {*hidden, *_choose_forgotten(random, hidden, program, lacking)}
        facts = [fact for fact in program.facts if fact not in gone]
        reduced = ReferenceProgram(program.predicates, program.constants, facts, program.rules)
        proofs = ProofGraph(reduced, reference_limits, hidden, test, plan.max_steps)
        proved = [query for query in hidden if proofs.is_provable(query)]
        for query in proved:
            decisions += proofs.prove(query)
            for _ in range(plan.num_strays):
                decisions += proofs.prove(query, Stray(random, plan.stray_share))
        num_queries += len(hidden)
        num_proved += len(proved)
        progress(1)
    return Lessons(tuple(decisions), num_queries, num_proved)


def _choose_hidden(
    random: np.random.Generator, queries: list[Triple], program: ReferenceProgram, plan: LessonPlan
) -> list[Triple]:
    """Choose queries in random order: all that are not facts, and a share of the facts, up to the plan's number."""
    is_drawn = random.random(len(queries)) < plan.hidden_share
    hidden = [each for each, drawn in zip(queries, is_drawn, strict=True) if drawn or each not in program.fact_index]
    return [hidden[i] for i in random.permutation(len(hidden))[: plan.num_queries].tolist()]


def _choose_forgotten(
    random: np.random.Generator, hidden: list[Triple], program: ReferenceProgram, lacking: list[float]
) -> list[Triple]:
    subjects = sorted({query[1] for query in hidden})
    is_forgotten = random.random((len(lacking), len(subjects))) < np.array(lacking)[:, None]
    forgotten = {(p, subjects[i]) for p, i in np.argwhere(is_forgotten).tolist()}
    return [fact for fact in program.facts if (fact.predicate, fact.first) in forgotten]


def _measure_lacking(graph: KnowledgeGraph, program: ReferenceProgram) -> list[float]:
    """Return, for each predicate, the share of the first arguments of valid without such a fact; 0 without valid."""
    subjects = sorted({triple[1] for triple in _triples(graph, "valid")})
    known = {(fact.predicate, fact.first) for fact in program.facts}
    num_lacking = [sum((p, each) not in known for each in subjects) for p in range(len(program.predicates))]
    return [num / max(len(subjects), 1) for num in num_lacking]


def _triples(graph: KnowledgeGraph, split: str) -> list[Triple]:
    atoms = graph.valid if split == "valid" else graph.test
    return [graph.program.symbols.encode(atom) for atom in atoms]
