"""The switches of a dialect, each on an example worked by hand, and any of them judged by a prover that was written apart."""

import dataclasses
import random
import re
import runpy
import sys
from collections import Counter
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import pytest
from reference_programs import goal_of, program_of, random_atom, random_program, situation_of, text_of

from kgreference import (
    OURS,
    Derivation,
    Dialect,
    Exclusion,
    Filter,
    Kind,
    Limits,
    LongResolvents,
    Matches,
    Memory,
    Outcome,
    Program,
    Shortest,
    Stages,
    Unification,
    Unproved,
    Variable,
    derive,
    least_model,
    ranking_score,
    take_step,
)
from kgreference.terms import is_same_set

sys.path.insert(0, str(Path(__file__).parents[1] / "dialects"))

from random_dialects import random_dialect
from second_prover import Move, Row, SecondProver, number_variables


def dialect_of(text: str) -> Dialect:
    """Read a dialect such as `memory=set, filters=prune+close, forgets_names=no`."""
    values = {}
    for name, value in (each.strip().split("=") for each in text.split(",") if each.strip()):
        usual = getattr(OURS, name)
        if isinstance(usual, tuple):
            values[name] = tuple(Filter(each) for each in value.split("+") if each)
        else:
            values[name] = type(usual)(value) if isinstance(usual, StrEnum) else value == "yes"
    return Dialect(**values)


def step_of(text: str, goal: str, dialect: Dialect, visited: tuple[str, ...] = (), **limits: int):
    """Return a program and its step from a goal."""
    program = program_of(text.replace(";", "\n"), queries=f"{goal} {visited}")
    seen = {goal_of(program, each) for each in visited}
    situation = situation_of(program, goal_of(program, goal), visited=seen, dialect=dialect, **limits)
    return program, take_step(situation, Stages())


OFFERS = """
# One pass fails where a variable of the head meets two terms, and applies bindings to each other.
p(X, X) <- q(X, X); r(a, b) | p(a, Y) | | | q(a, a)
p(X, X) <- q(X, X); r(a, b) | p(a, Y) | unification=one_pass | | FALSE
p(X, X) <- q(X, X); r(a, b) | p(X, Y) | unification=one_pass | | FALSE
p(a, Z) <- q(Z, Z); r(a, b) | p(X, X), r(X, X) | unification=one_pass | | q(a, a), r(a, a)
# The memory compares nothing, sequences or sets.
p(X, Y) <- q(Y, X), p(Y, X); p(X, Y) <- p(X, Y); q(a, a) | p(a, b) | memory=none | p(b, a), q(b, a) | q(b, a), p(b, a); p(a, b)
p(X, Y) <- q(Y, X), p(Y, X); p(X, Y) <- p(X, Y); q(a, a) | p(a, b) | | p(b, a), q(b, a) | q(b, a), p(b, a)
p(X, Y) <- q(Y, X), p(Y, X); p(X, Y) <- p(X, Y); q(a, a) | p(a, b) | memory=set | p(b, a), q(b, a) | FALSE
p(X, Y) <- r(X, Y), q(Y, X); p(X, Y) <- s(X, Y); q(b, b) | p(a, X) | memory=set | s(X, X) | r(a, X0), q(X0, a); s(a, X0)
p(X, Y) <- q(Z, Y), r(Z, W); q(b, b) | p(a, X) | memory=set, forgets_names=no | r(X, Y), q(X, Z) | q(X5, X0), r(X5, X6)
# Names are forgotten or kept.
p(X, Y) <- p(X, Z); q(a, a) | p(a, X) | | | FALSE
p(X, Y) <- p(X, Z); q(a, a) | p(a, X) | forgets_names=no | | p(a, X3)
# Limits act before or after pruning, either limit may come first, and a proof beyond the limit is found or lost.
p(X, Y) <- q(X, Y), r(X, Y); q(a, b) | p(a, b) | | max_atoms=1 | r(a, b)
p(X, Y) <- q(X, Y), r(X, Y); q(a, b) | p(a, b) | filters=max_atoms+prune+close | max_atoms=1 | FALSE
p(X, Y) <- q(X, Y), q(Y, X); p(X, Y) <- r(X, Y); p(X, Y) <- s(X, Y) | p(a, b) | | max_atoms=1 max_resolvents=2 | r(a, b); s(a, b)
p(X, Y) <- q(X, Y), q(Y, X); p(X, Y) <- r(X, Y); p(X, Y) <- s(X, Y) | p(a, b) | filters=max_resolvents+max_atoms | max_atoms=1 \
max_resolvents=2 | r(a, b)
p(X, Y) <- r(X, Y); p(a, b) | p(a, b) | | max_resolvents=1 | TRUE
p(X, Y) <- r(X, Y); p(a, b) | p(a, b) | filters=prune+max_resolvents+close | max_resolvents=1 | r(a, b)
# A filter that is left out is not applied; closing before pruning sees only what facts resolve away.
p(X, Y) <- q(X, Y), r(X, Y); p(a, b); q(a, b) | p(a, b) | filters= | max_atoms=1 max_resolvents=1 | q(a, b), r(a, b); TRUE
p(X, Y) <- q(X, Y), r(X, Y); p(a, b); q(a, b) | p(a, b) | filters=close | | TRUE
p(X, Y) <- r(X, Y); p(X, Y) <- q(X, Y); q(a, b) | p(a, b) | filters=close+prune | | r(a, b); TRUE
# Long resolvents are rejected or truncated.
p(X, Y) <- q(X, Y), r(X, Y); s(a, a) | p(a, b) | | max_atoms=1 | FALSE
p(X, Y) <- q(X, Y), r(X, Y); s(a, a) | p(a, b) | long_resolvents=truncate | max_atoms=1 | q(a, b)
# Rules or facts come first, and either is reversed, with and without names.
p(a, b); p(X, Y) <- q(X, Y); p(X, Y) <- r(X, Y) | p(a, X), t(X, X) | | | q(a, X0), t(X0, X0); r(a, X0), t(X0, X0); t(b, b)
p(a, b); p(X, Y) <- q(X, Y); p(X, Y) <- r(X, Y) | p(a, X), t(X, X) | order=facts_first, is_reversed=yes | | t(b, b); r(a, X0), \
t(X0, X0); q(a, X0), t(X0, X0)
p(a, b); p(a, c); p(X, X) <- q(X, X) | p(a, X), t(X, X) | order=facts_first, forgets_names=no | | t(b, b); t(c, c); \
q(a, a), t(a, a)
p(a, b); p(a, c); p(X, X) <- q(X, X) | p(a, X), t(X, X) | is_reversed=yes, forgets_names=no | | q(a, a), t(a, a); t(c, c); t(b, b)
# Stopping is offered where no resolvent is terminal.
p(X, Y) <- q(X, Y); p(X, Y) <- p(X, Y); r(a, b) | p(a, b) | stopping=where_no_terminal | | q(a, b); STOP
p(X, Y) <- q(X, Y); p(X, Y) <- p(X, Y); r(a, b) | q(a, b) | stopping=where_no_terminal | | FALSE
p(X, Y) <- q(X, Y); p(X, Y) <- p(X, Y); r(a, b) | r(a, b) | stopping=where_no_terminal | | TRUE
p(X, Y) <- q(X, Y); r(a, b) | p(a, b) | stopping=where_no_terminal, filters=prune+close+revisit | q(a, b) | STOP
# Of equal resolvents the first stays.
p(X, Y) <- q(X, Z); p(X, Y) <- q(X, W); p(X, Y) <- r(Z, Y) | p(a, b) | filters=prune+close | | q(a, X0); q(a, X0); r(X0, b)
p(X, Y) <- q(X, Z); p(X, Y) <- q(X, W); p(X, Y) <- r(Z, Y) | p(a, b) | filters=prune+duplicates+close | | q(a, X0); r(X0, b)
""".replace("\\\n", "")
"""A program, a goal, a dialect, limits or a visited goal, and what the step offers."""


@pytest.mark.parametrize("row", [row for row in OFFERS.strip().splitlines() if row[0] != "#"])
def test_a_dialect_offers_what_the_semantics_say(row):
    text, goal, switches, options, expected = map(str.strip, row.split("|"))
    limits = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", options)}
    program, step = step_of(text, goal, dialect_of(switches), (options,) if "(" in options else (), **limits)
    assert "; ".join(text_of(program, each.atoms) or each.kind.name for each in step.after_limit) == expected


def test_our_own_dialect_takes_the_steps_of_the_semantics():
    rng, kinds = random.Random(7), set()
    replaced = Stages(choose=lambda situation, scores: scores.index(max(scores)))
    for _ in range(200):
        program = random_program(rng)
        query = random_atom(rng, len(program.predicates), [*range(len(program.constants)), -1, -2])
        limits = Limits(rng.randint(1, 8), rng.randint(1, 5), rng.randint(1, 6), rng.random() < 0.8)
        expected = derive(program, limits, Shortest(), query)
        assert derive(program, limits, Shortest(), query, OURS, replaced) == expected
        kinds.add((expected.outcome, expected.is_limited))
    assert len(kinds) >= 5


def test_a_set_is_visited_under_one_renaming_for_all_its_atoms():
    assert is_same_set(((0, -1, -2), (1, -2, -1)), ((1, -1, -2), (0, -2, -1)))
    assert is_same_set(((0, -1, 0), (0, -1, 0)), ((0, -2, 0),))
    assert is_same_set(((0, -1, -2), (0, -2, -3), (0, -3, -1)), ((0, -3, -1), (0, -2, -3), (0, -1, -2)))
    for left, right in (
        (((0, -1, -2),), ((0, -1, -1),)),
        (((0, -1, 0), (1, -1, 0)), ((0, -1, 0), (1, -2, 0))),
        (((0, -1, 0),), ((0, 0, 0),)),
        (((0, 0, 0),), ((0, 1, 1),)),
        (((0, 0, 0),), ((1, 0, 0),)),
    ):
        assert not is_same_set(left, right)
        assert not is_same_set(right, left)


@pytest.mark.parametrize(("exempts", "kind"), [(False, Kind.FALSE), (True, Kind.TRUE)])
@pytest.mark.parametrize("memory", [Memory.SEQUENCE, Memory.SET])
def test_a_proof_is_visited_only_in_a_memory_that_holds_a_proof(exempts: bool, kind: Kind, memory: Memory):
    _, step = step_of("p(a, b)", "p(a, X)", Dialect(memory=memory, exempts_terminal=exempts), visited=("",))
    assert step.chosen.kind == kind


def test_a_resolvent_that_is_truncated_may_be_proved_and_is_limited():
    program = program_of("p(X, Y) <- q(X, Y), r(X, Y)\nq(X, Y) <- t(X, Y)\nt(a, b)", queries="p(a, b)")
    (query,) = goal_of(program, "p(a, b)")
    truncate = Dialect(long_resolvents=LongResolvents.TRUNCATE)
    derivation = derive(program, Limits(max_atoms=1), Shortest(), query, truncate)
    assert (derivation.outcome, derivation.is_limited) == (Outcome.PROVED, True)


def test_ranks_follow_the_dialect():
    assert ranking_score(-1.0, Outcome.FAILED) == -101.0
    assert ranking_score(-1.0, Outcome.FAILED, Unproved.LOG_PROBABILITY) == -1.0
    assert ranking_score(-1.0, Outcome.PROVED, Unproved.LOG_PROBABILITY) == ranking_score(-1.0, Outcome.PROVED) == -1.0


def test_a_stage_can_be_replaced_but_must_unify_where_names_are_kept():
    program = program_of("p(a, b)\np(a, c)\np(a, d)")
    (atom,) = goal_of(program, "p(a, X)")
    last = Stages(limit_resolvents=lambda situation, resolvents: resolvents[-situation.limits.max_resolvents :])
    for dialect in (Dialect(filters=(Filter.MAX_RESOLVENTS,)), Dialect(filters=(Filter.PRUNE, Filter.MAX_RESOLVENTS))):
        derivation = derive(program, Limits(max_resolvents=2), Shortest(), atom, dialect, last)
        assert [each.origin for each in derivation.steps[0].after_limit] == [1, 2]
        assert derivation.is_limited
    program = program_of("p(a, b)\np(c, d)\np(X, X) <- q(X, X)")
    wrong = Stages(match_rules=lambda situation, selected: Matches((0,), (0,), (1,), ((),), (-1,)))
    with pytest.raises(ValueError, match="must unify"):
        derive(program, Limits(), Shortest(), goal_of(program, "p(a, b)")[0], Dialect(forgets_names=False), wrong)
    with pytest.raises(ValueError, match="applied once, found prune more often"):
        Dialect(filters=(Filter.PRUNE, Filter.CLOSE, Filter.PRUNE))


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


def test_what_is_proved_in_a_dialect_that_truncates_nothing_follows_from_the_program():
    rng, proved = random.Random(3), 0
    for _ in range(2000):
        program, is_positive = random_program(rng), rng.random() < 0.5
        dialect = replace(random_dialect(rng), long_resolvents=LongResolvents.REJECT)
        query = random_atom(rng, len(program.predicates), [*range(len(program.constants))])
        limits = Limits(rng.randint(1, 6), rng.randint(1, 5), rng.randint(1, 6))
        made = derive(program, limits, Shortest(), query, dialect, is_positive=is_positive)
        if made.outcome == Outcome.PROVED:
            proved += 1
            excludes = {Exclusion.ALWAYS: True, Exclusion.NEVER: False}.get(dialect.exclusion, is_positive)
            facts = [fact for fact in program.facts if fact != query or not excludes]
            known = Program(program.predicates, program.constants, facts, program.rules)
            assert query in least_model(known), (dialect, program.facts, program.rules)
    assert proved > 300


def test_the_second_prover_finds_a_wrong_dialect():
    program = program_of("p(X, X) <- q(X, X)\nq(a, a)", queries="p(a, X)")
    query, one_pass = program.encode(("p", "a", Variable("X"))), Dialect(unification=Unification.ONE_PASS)
    derivations = [derive(program, Limits(), Shortest(), query, dialect) for dialect in (OURS, one_pass)]
    moves = [prove(program, Limits(), dialect, query) for dialect in (OURS, one_pass)]
    assert recorded(derivations[0]) == moved(moves[0]) != moved(moves[1]) == recorded(derivations[1])


ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")


def test_the_page_lists_every_switch_with_its_values_the_default_first():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.split("## Dialects")[1].split("\n## ")[0], re.MULTILINE))
    assert list(rows) == [field.name for field in dataclasses.fields(Dialect)]
    for name, listed in rows.items():
        values, default = re.findall("`([^`]+)`", listed) or listed.strip().split(", "), getattr(OURS, name)
        if isinstance(default, tuple):
            assert values == list(default)
        elif name == "search":
            kinds = [Dialect(search=re.sub("k|limit|n(?=,)|seed", "7", value)).search_numbers[0] for value in values]
            assert kinds == ["greedy", "beam", "all", "sample"]
        else:
            assert values[0] == (default.value if isinstance(default, StrEnum) else str(default).lower())
            known = {each.value for each in type(default)} if isinstance(default, StrEnum) else {"false", "true"}
            assert set(values) == known
            assert len(values) == len(known)


def test_the_dialect_of_the_example_gives_the_outcomes_that_it_asserts():
    runpy.run_path(str(ROOT / "examples" / "batched_dialect.py"))
