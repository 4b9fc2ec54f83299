"""Derivations of the reference in any dialect, judged by a second prover that was written apart from it."""

import random
import sys
from collections import Counter
from pathlib import Path

from reference_programs import program_of, random_atom, random_program

import kgreference
from kgreference import Derivation, Dialect, Limits, Program, Shortest, Unification, derive

sys.path.insert(0, str(Path(__file__).parents[1] / "dialects"))

from random_dialects import random_dialect
from second_prover import Move, Row, SecondProver, number_variables


def prove(program: Program, limits: Limits, dialect: Dialect, query: Row, is_positive: bool = True) -> list[Move]:
    prover = SecondProver(
        program.facts,
        [(rule.head, rule.body) for rule in program.rules],
        dialect,
        max_depth=limits.max_depth,
        max_atoms=limits.max_atoms,
        max_resolvents=limits.max_resolvents,
        excludes_query=limits.exclude_query,
    )
    return prover.prove(query, is_positive)


def recorded(derivation: Derivation) -> list[object]:
    """Everything of each step, with variables by first appearance."""
    return [
        (
            number_variables(step.goal),
            [(*each[:1], number_variables(each.atoms), *each[2:]) for each in step.after_limit],
            (step.dropped_atoms, step.dropped_resolvents),
            (step.scores, step.choice, round(step.log_probability, 9)),
            (step.depth, int(step.outcome), step.is_uncounted),
        )
        for step in derivation.steps
    ]


def moved(moves: list[Move]) -> list[object]:
    return [
        (
            number_variables(move.goal),
            [(*each[:1], number_variables(each.atoms), *each[2:]) for each in move.offers],
            (move.dropped_atoms, move.dropped_resolvents),
            (move.scores, move.choice, round(move.log_probability, 9)),
            (move.next_depth, move.outcome, move.is_uncounted),
        )
        for move in moves
    ]


def test_two_provers_take_the_same_steps_in_every_dialect():
    rng, seen = random.Random(1), Counter()
    for _ in range(250):
        program, dialect = random_program(rng), random_dialect(rng, num_flips=rng.choice((1, 3, 13)))
        limits = Limits(rng.randint(1, 8), rng.randint(1, 5), rng.randint(1, 8), rng.random() < 0.8)
        query = random_atom(rng, len(program.predicates), [*range(len(program.constants)), -1, -2])
        is_positive = rng.random() < 0.5
        expected = derive(program, limits, Shortest(), query, dialect, is_positive=is_positive)
        assert recorded(expected) == moved(prove(program, limits, dialect, query, is_positive)), (dialect, limits)
        seen.update({expected.outcome.name, *(each.kind.name for step in expected.steps for each in step.after_limit)})
        seen["uncounted"] += any(step.is_uncounted for step in expected.steps)
    assert min(seen[name] for name in ("PROVED", "FAILED", "DEPTH_LIMIT", "TRUE", "FALSE", "STOP", "uncounted")) > 5


def test_the_second_prover_finds_a_wrong_dialect():
    program = program_of("p(X, X) <- q(X, X)\nq(a, a)", queries="p(a, X)")
    query, one_pass = program.encode(("p", "a", kgreference.Variable("X"))), Dialect(unification=Unification.ONE_PASS)
    derivations = [derive(program, Limits(), Shortest(), query, dialect) for dialect in (kgreference.OURS, one_pass)]
    moves = [prove(program, Limits(), dialect, query) for dialect in (kgreference.OURS, one_pass)]
    assert recorded(derivations[0]) == moved(moves[0]) != moved(moves[1]) == recorded(derivations[1])
