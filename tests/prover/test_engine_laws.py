"""Laws that follow from the semantics; only soundness needs more than the engine itself."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from engine_checks import (
    assert_identical,
    eager,
    first_kinds,
    proving_steps,
    resolvents_by_step,
)
from numpy.typing import NDArray
from random_programs import Problem, candidates_of, program_of, random_problem, rule_of
from ticks import build_machine

from kgreference.model import least_model
from kgverify import Limits
from kgverify.engines.protocol import Positions, positions_of
from kgverify.engines.reference.engine import build_reference_program
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import NamedRule, Program
from kgverify.prover.state import OPEN
from kgverify.trace.model.columns import CandidateSet, Columns, select_candidates

Model = set[tuple[int, int, int]]


def has_instance(model: Model, atom: Sequence[int]) -> bool:
    """Return whether some instance of an atom is in the model; two equal variables stand for one constant."""
    predicate, first, second = atom
    return any(
        p == predicate
        and (first < 0 or a == first)
        and (second < 0 or b == second)
        and (first >= 0 or first != second or a == b)
        for p, a, b in model
    )


def check_soundness(program: Program, limits: Limits, candidates: CandidateSet) -> Counter[bool]:
    """Check that every PROVED candidate lies in the least model; count the candidates inside and outside."""
    model: Model = {tuple(atom) for atom in least_model(build_reference_program(program))}
    outcome = eager(program, limits, slots=16).prove(candidates).candidates.outcome
    is_true = np.array([has_instance(model, atom) for atom in candidates.atom.tolist()], np.bool_)
    assert is_true[outcome == Outcome.PROVED].all()
    return Counter(is_true.tolist())


def test_what_is_proved_lies_in_the_least_model() -> None:
    seen: Counter[bool] = Counter()
    for seed in range(400, 480):
        program, limits, candidates = random_problem(seed, num_queries=16)
        if len(program.symbols.constants) < 20:  # the models of fans hold tens of thousands of atoms
            seen += check_soundness(program, limits, candidates)
    assert min(seen[True], seen[False]) > 100


def test_what_is_proved_of_countries_lies_in_the_least_model(countries: tuple[Program, CandidateSet]) -> None:
    program, candidates = countries
    seen = check_soundness(program, Limits(), candidates)
    assert min(seen[True], seen[False]) > 5


def map_names(
    problem: Problem, rename_predicate: Callable[[str], str], rename_constant: Callable[[str], str]
) -> Program:
    def term(name: Term) -> Term:
        return name if isinstance(name, Variable) else rename_constant(name)

    def atom(named: NamedAtom) -> NamedAtom:
        return NamedAtom(rename_predicate(named.predicate), term(named.first), term(named.second))

    program = problem.program
    return Program.from_names(
        [atom(fact) for fact in program.named_facts],
        [NamedRule(atom(rule.clause_head), tuple(map(atom, rule.body))) for rule in program.named_rules],
        [atom(query) for query in program.named_queries],
        [rename_constant(name) for name in program.symbols.constants],
    )


def test_other_names_change_nothing() -> None:
    for seed in range(500, 515):
        problem = random_problem(seed)
        other = map_names(problem, lambda name: f"{name}s 'relation/2'", lambda name: f"{name[::-1]} é_7")
        assert other.sha256 != problem.program.sha256
        assert_identical(
            eager(problem.program, problem.limits).prove(problem.candidates),
            eager(other, problem.limits).prove(problem.candidates),
        )


def shuffle_facts(program: Program, rng: random.Random, keep_ids: bool) -> Program:
    """The same facts in another order; with `keep_ids`, rows that bring in a symbol stay in front, in their order."""
    seen: set[str] = set()
    first, rest = [], []
    for fact in program.named_facts:
        names = {f"predicate {fact.predicate}", str(fact.first), str(fact.second)}
        (rest if names <= seen or not keep_ids else first).append(fact)
        seen |= names
    rng.shuffle(rest)
    return Program.from_names([*first, *rest], program.named_rules, program.named_queries, program.symbols.constants)


def test_the_order_of_fact_rows_changes_nothing_where_it_keeps_the_ids() -> None:
    num_moved = 0
    for seed in range(520, 535):
        program, limits, candidates = random_problem(seed)
        other = shuffle_facts(program, random.Random(seed), keep_ids=True)
        assert other.symbols == program.symbols
        num_moved += other.named_facts != program.named_facts
        assert_identical(eager(program, limits).prove(candidates), eager(other, limits).prove(candidates))
    assert num_moved > 5


class Translation:
    """Map the ids of one program to those of another with the same names."""

    def __init__(self, source: Program, target: Program) -> None:
        predicates, constants = target.symbols.predicate_ids, target.symbols.constant_ids
        self._predicates = np.array([predicates[name] for name in source.symbols.predicates], np.int32)
        self._constants = np.array([constants[name] for name in source.symbols.constants], np.int32)

    def atoms(self, atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        arguments = atoms[:, 1:]
        constants = self._constants[np.maximum(arguments, 0)]
        return np.column_stack([self._predicates[atoms[:, 0]], np.where(arguments < 0, arguments, constants)])

    def candidates(self, candidates: CandidateSet) -> CandidateSet:
        return candidates._replace(atom=self.atoms(candidates.atom))

    def positions(self, positions: Positions) -> Positions:
        return positions._replace(candidates=self.candidates(positions.candidates), atoms=self.atoms(positions.atoms))

    def columns(self, columns: Columns) -> Columns:
        return Columns(
            columns.candidates._replace(atom=self.atoms(columns.candidates.atom)),
            columns.steps._replace(goal_atoms=self.atoms(columns.steps.goal_atoms)),
            columns.resolvents._replace(atoms=self.atoms(columns.resolvents.atoms)),
        )


@pytest.mark.deep
def test_other_ids_put_the_resolvents_of_a_step_in_another_order_and_do_nothing_else() -> None:
    num_reordered = 0
    for seed in range(540, 580):
        program, limits, candidates = random_problem(seed)
        # With nothing dropped for its place, the order has no say in what is left.
        limits = Limits(limits.max_depth, limits.max_atoms, 2000, limits.exclude_query)
        other = shuffle_facts(program, random.Random(seed), keep_ids=False)
        there, back = Translation(program, other), Translation(other, program)
        sizes = {"slots": 3}
        engine = eager(program, limits, **sizes)
        positions = positions_of(engine.prove(candidates))
        expected = engine.step(positions)
        actual = back.columns(eager(other, limits, **sizes).step(there.positions(positions)))
        pairs = list(zip(resolvents_by_step(expected), resolvents_by_step(actual), strict=True))
        assert all(Counter(left) == Counter(right) for left, right in pairs)
        num_reordered += sum(left != right for left, right in pairs)
        for name in ("dropped_atoms", "outcome", "num_resolvents"):
            np.testing.assert_array_equal(getattr(expected.steps, name), getattr(actual.steps, name))
        # Equal scores are chosen by their order, so it is the score of the choice that is the same.
        np.testing.assert_allclose(
            actual.candidates.log_probability, expected.candidates.log_probability, rtol=0, atol=1e-9
        )
    assert num_reordered > 20


def test_facts_and_rules_that_no_goal_reaches_change_nothing() -> None:
    for seed in range(590, 605):
        problem = random_problem(seed)
        program = problem.program
        facts = [NamedAtom("far", f"island{i}", f"island{i // 2}") for i in range(90)]
        predicate = program.symbols.predicates[0]
        rules = [
            rule_of(f"remote(X, Y) <- {predicate}(X, Y), far(Y, X)"),
            rule_of("far(X, Y) <- remote(Y, X)"),
        ]
        other = Program.from_names(
            [*program.named_facts, *facts],
            [*program.named_rules, *rules],
            program.named_queries,
            program.symbols.constants,
        )
        there = Translation(program, other)
        assert_identical(
            there.columns(eager(program, problem.limits).prove(problem.candidates)),
            eager(other, problem.limits).prove(there.candidates(problem.candidates)),
        )


def test_a_limit_never_hides_a_proof() -> None:
    num_proofs = num_crowded = 0
    for seed in range(610, 640):
        program, limits, candidates = random_problem(seed)
        limits = Limits(exclude_query=limits.exclude_query)
        free = eager(program, limits)
        positions = positions_of(free.prove(candidates))
        steps = free.step(positions)
        tight = replace_limits(limits, max_atoms=1, max_resolvents=1)
        # The padding holds goals that the tight limits would never have led to.
        limited = eager(program, tight, atoms=limits.max_atoms).step(positions)
        proofs = np.flatnonzero(proving_steps(steps))
        assert_identical(select_candidates(steps, proofs), select_candidates(limited, proofs))
        assert (limited.candidates.outcome[proofs] == Outcome.PROVED).all()
        assert not proving_steps(limited)[~proving_steps(steps)].any()
        num_proofs += len(proofs)
        num_crowded += int(
            (first_kinds(limited) == GoalKind.FALSE).sum() - (first_kinds(steps) == GoalKind.FALSE).sum()
        )
    assert num_proofs > 50
    assert num_crowded > 50


def replace_limits(limits: Limits, *, max_atoms: int, max_resolvents: int) -> Limits:
    return Limits(limits.max_depth, max_atoms, max_resolvents, limits.exclude_query)


def test_a_proof_after_more_clauses_than_a_window_holds_is_found() -> None:
    # Fact 69 alone ends in a proof; the 69 before it are dropped for their place.
    facts = "\n".join(f"p(a, b{i})" for i in range(70))
    program = program_of(f"{facts}\nq(b69, c)\nr(X, Z) <- p(X, Y), q(Y, Z)", queries="r(a, c)")
    limits = Limits(max_resolvents=1, max_atoms=2)
    columns = eager(program, limits, match_window=8).prove(candidates_of(program, "r(a, c)"))
    assert columns.candidates.outcome.tolist() == [Outcome.PROVED]
    assert columns.candidates.is_limited.tolist() == [0]
    assert columns.steps.num_resolvents.tolist() == [1, 1]
    assert columns.resolvents.origin.tolist() == [0, 69]


@pytest.mark.parametrize("seed", range(650, 656))
def test_a_slot_that_ended_never_changes(seed: int) -> None:
    machine = build_machine(random_problem(seed), slots=12, match_window=16).recycle()
    num_frozen = 0
    while machine.is_running:
        has_ended = machine.derivations.outcome != OPEN
        num_frozen += int(has_ended.sum())
        after, record = machine.tick()
        assert not record.is_taken[has_ended].any()
        for before, now in zip(machine.derivations, after.derivations, strict=True):
            assert torch.equal(before[has_ended], now[has_ended])
        machine = after
    assert num_frozen > 0
    ended = machine.recycle()
    for _ in range(3):
        machine, record = machine.tick()
        assert not record.is_taken.any()
        machine = machine.recycle()
        for buffers, now in ((ended.derivations, machine.derivations), (ended.pool, machine.pool)):
            assert all(torch.equal(a, b) for a, b in zip(buffers, now, strict=True))


def test_every_slot_without_a_candidate_takes_the_next_one() -> None:
    machine = build_machine(random_problem(660, num_queries=9), slots=4).recycle()
    assert machine.derivations.pool_index.tolist() == [0, 1, 2, 3]
    seen = set(machine.derivations.pool_index.tolist())
    while machine.is_running:
        running = int((machine.derivations.outcome == OPEN).sum())
        assert running == min(4, 9 - len(seen) + running)
        machine = machine.tick()[0].recycle()
        seen |= set(machine.derivations.pool_index.tolist()) - {-1}
    assert seen == set(range(9))
    assert (machine.pool.outcome[:9] != OPEN).all()
    assert (machine.pool.outcome[9:] == OPEN).all()
