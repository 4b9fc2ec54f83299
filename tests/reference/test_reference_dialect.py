"""The switches of a dialect, each on an example worked by hand; most are the examples of its documentation."""

import dataclasses
import random
import re
import runpy
from enum import StrEnum
from pathlib import Path

import pytest
from reference_programs import goal_of, program_of, random_atom, random_program, text_of

from kgreference import (
    OURS,
    STOP,
    Atom,
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
    Situation,
    Stages,
    Stopping,
    Unproved,
    derive,
    find_excluded,
    least_model,
    ranking_score,
    take_step,
)
from kgreference.terms import Triple, binds_in_one_pass, is_same_set, unify

PRUNE, REVISIT, DUPLICATES, CLOSE, MAX_ATOMS, MAX_RESOLVENTS = Filter


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
    """One step of a query with variables, which excludes nothing."""
    program = program_of(text, queries=f"{goal} {visited}")
    seen = {goal_of(program, each) for each in visited}
    excluded = find_excluded(dialect, Limits(**limits), Atom(0, -1, -2), is_positive=True)
    start = goal_of(program, goal)
    return take_step(Situation(dialect, program, Limits(**limits), Shortest(), excluded, start, 0, seen), Stages())


def derivation_of(text: str, query: str, dialect: Dialect, is_positive: bool = True, **limits: int):
    program = program_of(text, queries=query)
    return derive(program, Limits(**limits), Shortest(), goal_of(program, query)[0], dialect, is_positive=is_positive)


OFFERS = """
# One pass fails where a variable of the head meets two terms, and applies bindings to each other.
p(X, X) <- q(X, X); r(a, b) | p(a, Y) | | | q(a, a)
p(X, X) <- q(X, X); r(a, b) | p(a, Y) | unification=one_pass | | FALSE
p(X, X) <- q(X, X); r(a, b) | p(Y, a) | unification=one_pass | | FALSE
p(X, X) <- q(X, X); r(a, b) | p(X, Y) | | | q(X0, X0)
p(X, X) <- q(X, X); r(a, b) | p(X, Y) | unification=one_pass | | FALSE
p(X, X) <- q(X, X); r(a, b) | p(X, X) | unification=one_pass | | q(X0, X0)
p(X, X) <- q(X, X); r(a, b) | p(a, a) | unification=one_pass | | q(a, a)
p(a, Z) <- q(Z, Z); r(a, b) | p(X, X), r(X, X) | unification=one_pass | | q(a, a), r(a, a)
p(Z, a) <- q(Z, Z); r(a, b) | p(X, X), r(X, X) | unification=one_pass | | q(a, a), r(a, a)
p(X, Y) <- q(X, Y); r(a, b) | p(X, X) | unification=one_pass | | q(X0, X0)
# The memory compares nothing, sequences or sets.
p(X, Y) <- q(Y, X), p(Y, X); p(X, Y) <- p(X, Y); q(a, a) | p(a, b) | memory=none | p(b, a), q(b, a) | q(b, a), p(b, a); p(a, b)
p(X, Y) <- q(Y, X), p(Y, X); p(X, Y) <- p(X, Y); q(a, a) | p(a, b) | | p(b, a), q(b, a) | q(b, a), p(b, a)
p(X, Y) <- q(Y, X), p(Y, X); p(X, Y) <- p(X, Y); q(a, a) | p(a, b) | memory=set | p(b, a), q(b, a) | FALSE
p(X, Y) <- r(X, Y), q(Y, X); p(X, Y) <- s(X, Y); q(b, b) | p(a, X) | memory=set | s(X, X) | r(a, X0), q(X0, a); s(a, X0)
p(X, Y) <- q(Z, Y), r(Z, W); q(b, b) | p(a, X) | memory=set | r(X, Y), q(X, Z) | FALSE
p(X, Y) <- q(Z, Y), r(Z, W); q(b, b) | p(a, X) | memory=set, forgets_names=no | r(X, Y), q(X, Z) | q(X5, X0), r(X5, X6)
p(X, Y) <- r(X, Y), q(Y, X); q(b, b) | p(a, X) | memory=set, forgets_names=no | q(X, a), r(a, X) | FALSE
# Names are forgotten or kept.
p(X, Y) <- p(X, Z); q(a, a) | p(a, X) | | | FALSE
p(X, Y) <- p(X, Z); q(a, a) | p(a, X) | memory=set | | FALSE
p(X, Y) <- p(X, Z); q(a, a) | p(a, X) | forgets_names=no | | p(a, X3)
p(X, Y) <- p(X, Z); q(a, a) | p(a, X) | memory=set, forgets_names=no | | p(a, X3)
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
p(X, Y) <- q(X, Y), r(X, Y); p(a, b); q(a, b) | r(a, b) | filters= | | FALSE
p(X, Y) <- r(X, Y); p(X, Y) <- q(X, Y); q(a, b) | p(a, b) | filters=close+prune | | r(a, b); TRUE
p(X, Y) <- r(X, Y); p(X, Y) <- q(X, Y); q(a, b) | r(a, b) | filters=close+prune | | FALSE
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
    text, visited = text.replace(";", "\n"), (options,) if "(" in options else ()
    step = step_of(text, goal, dialect_of(switches), visited, **limits)
    program = program_of(text, queries=f"{goal} {visited}")
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


def bind_in_one_pass(atom: Triple, head: Triple) -> bool:
    """The rule, word for word."""
    bound: dict[tuple[str, int], int] = {}
    for term, head_term in zip(atom[1:], head[1:], strict=True):
        if head_term < 0:
            if bound.setdefault(("head", head_term), term) != term:
                return False
        elif term < 0:
            if bound.setdefault(("atom", term), head_term) != head_term:
                return False
        elif term != head_term:
            return False
    return True


def test_one_pass_binds_no_variable_twice():
    terms = [0, 1, -1, -2]
    atoms = [(0, first, second) for first in terms for second in terms]
    differing = set()
    for atom in atoms:
        for head in atoms:
            apart = (0, *(term - 2 if term < 0 else term for term in head[1:]))
            if unify(atom, apart) is None:
                assert not bind_in_one_pass(atom, head)
            else:
                assert binds_in_one_pass(atom, head) == bind_in_one_pass(atom, head)
                differing |= {(atom, head)} - ({(atom, head)} if bind_in_one_pass(atom, head) else set())
    assert ((0, 0, -1), (0, -1, -1)) in differing


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
    step = step_of("p(a, b)", "p(a, X)", Dialect(memory=memory, exempts_terminal=exempts), visited=("",))
    assert step.chosen.kind == kind


def test_a_variable_of_a_clause_is_new_where_names_are_kept():
    text = "p(X, Y) <- q(X, Z), q(Z, Y)\nq(X, Y) <- r(X, Z)\nr(X, Y) <- s(X, Y)\nt(a, a)"
    derivation = derivation_of(text, "p(X, Y)", Dialect(forgets_names=False), max_depth=3)
    goals = [text_of(program_of(text), step.goal) for step in derivation.steps]
    assert goals == ["p(X0, X1)", "q(X0, X4), q(X4, X1)", "r(X0, X7), q(X4, X1)"]
    renamed = derivation_of(text, "p(X, Y)", OURS, max_depth=3)
    assert [step.scores for step in derivation.steps] == [step.scores for step in renamed.steps]
    swap = "p(X, Y) <- p(Y, X)\nq(a, a)"
    assert [len(derivation_of(swap, "p(X, Y)", each).steps) for each in (OURS, Dialect(forgets_names=False))] == [1, 2]


def test_what_is_dropped_is_counted_for_its_reason():
    text = "p(X, Y) <- q(X, Y), q(Y, X)\np(X, Y) <- r(X, Y)\np(X, Y) <- s(X, Y)"
    first = step_of(text, "p(a, b)", Dialect(filters=(MAX_RESOLVENTS, MAX_ATOMS)), max_atoms=1, max_resolvents=2)
    assert (first.dropped_atoms, first.dropped_resolvents) == (1, 1)
    nothing = step_of(text, "p(a, b)", Dialect(filters=()), max_atoms=1, max_resolvents=1)
    assert (nothing.dropped_atoms, nothing.dropped_resolvents) == (0, 0)
    equal = "p(X, Y) <- q(X, Z)\np(X, Y) <- q(X, W)\np(X, Y) <- r(Z, Y)\ns(a, b)"
    for filters, origins, num in (((DUPLICATES, MAX_RESOLVENTS), [0, 2], 0), ((MAX_RESOLVENTS, DUPLICATES), [0], 1)):
        step = step_of(equal, "p(a, b)", Dialect(filters=filters, forgets_names=False), max_resolvents=2)
        assert ([each.origin for each in step.after_limit], step.dropped_resolvents) == (origins, num)
    truncate = Dialect(long_resolvents=LongResolvents.TRUNCATE)
    text = "p(X, Y) <- q(X, Y), r(X, Y)\nq(X, Y) <- t(X, Y)\nt(a, b)"
    derivation = derivation_of(text, "p(a, b)", truncate, max_atoms=1)
    assert (derivation.outcome, derivation.is_limited) == (Outcome.PROVED, True)


def test_a_proof_beside_goals_is_scored_like_them_and_stopping_alone_is_chosen_only_where_nothing_is_left():
    step = step_of("p(X, Y) <- q(X, Y)\np(a, b)", "p(a, b)", dialect_of("filters=, order=facts_first"))
    assert [each.kind for each in step.after_limit] == [Kind.TRUE, Kind.GOAL]
    assert (step.scores, step.outcome) == ([0.0, -1.0], Outcome.PROVED)
    stops = Dialect(stopping=Stopping.WHERE_NO_TERMINAL)
    derivation = derivation_of("p(X, Y) <- q(X, Y)\nr(a, b)", "p(a, b)", stops)
    assert [step.chosen.kind for step in derivation.steps] == [Kind.GOAL, Kind.FALSE]
    late = dataclasses.replace(stops, filters=(PRUNE, CLOSE, REVISIT))
    step = step_of("p(X, Y) <- q(X, Y)\nr(a, b)", "p(a, b)", late, visited=("q(a, b)",))
    assert (step.after_limit, step.scores, step.outcome) == ([STOP], [0.0], Outcome.FAILED)


@pytest.mark.parametrize(
    ("exclusion", "positive", "corruption"),
    [
        (Exclusion.ALWAYS, "FAILED", "FAILED"),
        (Exclusion.POSITIVES_ONLY, "FAILED", "PROVED"),
        (Exclusion.NEVER, "PROVED", "PROVED"),
    ],
)
def test_the_query_is_excluded_always_for_positives_only_or_never(exclusion: Exclusion, positive: str, corruption: str):
    dialect = Dialect(exclusion=exclusion)
    assert derivation_of("p(a, b)\nq(a, b)", "p(a, b)", dialect, True).outcome.name == positive
    assert derivation_of("p(a, b)\nq(a, b)", "p(a, b)", dialect, False).outcome.name == corruption
    assert derivation_of("p(a, b)", "p(a, b)", dialect, exclude_query=False).outcome.name == "PROVED"


def test_a_step_with_one_goal_is_not_counted_and_uncounted_steps_end():
    text = "p(X, Y) <- q(X, Y)\nq(X, Y) <- r(X, Y)\nr(X, Y) <- s(X, Y)\nr(X, Y) <- t(X, Y)\ns(a, b)\nt(a, c)"
    derivation = derivation_of(text, "p(a, X)", dialect_of("skips_unary=yes, stopping=where_no_terminal"))
    steps = [(step.depth, step.is_uncounted, len(step.after_limit)) for step in derivation.steps]
    assert steps == [(0, True, 1), (0, True, 1), (1, False, 3), (2, False, 1)]
    assert derivation.outcome == Outcome.PROVED
    assert [step.depth for step in derivation_of(text, "p(a, X)", OURS).steps] == [1, 2, 3, 4]
    loop = derivation_of("p(X, Y) <- p(Y, X)", "p(a, b)", dialect_of("skips_unary=yes, memory=none"), max_depth=2)
    assert [step.is_uncounted for step in loop.steps] == [True, True, False, True, True, False]
    assert loop.outcome == Outcome.DEPTH_LIMIT


def test_ranks_follow_the_dialect():
    assert ranking_score(-1.0, Outcome.FAILED) == -101.0
    assert ranking_score(-1.0, Outcome.FAILED, Unproved.LOG_PROBABILITY) == -1.0
    assert ranking_score(-1.0, Outcome.PROVED, Unproved.LOG_PROBABILITY) == ranking_score(-1.0, Outcome.PROVED) == -1.0


def test_a_stage_can_be_replaced_but_must_unify_where_names_are_kept():
    program = program_of("p(a, b)\np(a, c)\np(a, d)")
    (atom,) = goal_of(program, "p(a, X)")
    last = Stages(limit_resolvents=lambda situation, resolvents: resolvents[-situation.limits.max_resolvents :])
    for dialect in (Dialect(filters=(MAX_RESOLVENTS,)), Dialect(filters=(PRUNE, MAX_RESOLVENTS))):
        derivation = derive(program, Limits(max_resolvents=2), Shortest(), atom, dialect, last)
        assert [each.origin for each in derivation.steps[0].after_limit] == [1, 2]
        assert derivation.is_limited
    program = program_of("p(a, b)\np(c, d)\np(X, X) <- q(X, X)")
    wrong = Stages(match_rules=lambda situation, selected: Matches((0,), (0,), (1,), ((),), (-1,)))
    with pytest.raises(ValueError, match="must unify"):
        derive(program, Limits(), Shortest(), goal_of(program, "p(a, b)")[0], Dialect(forgets_names=False), wrong)
    with pytest.raises(ValueError, match="applied once, found prune more often"):
        Dialect(filters=(PRUNE, CLOSE, PRUNE))


def random_dialect(rng: random.Random) -> Dialect:
    """A dialect that is sound: long resolvents are not truncated."""
    values = {}
    for field in dataclasses.fields(Dialect):
        usual = getattr(OURS, field.name)
        values[field.name] = rng.choice(list(type(usual))) if isinstance(usual, StrEnum) else rng.random() < 0.5
    filters = tuple(rng.sample(list(Filter), rng.randint(0, len(Filter))))
    return Dialect(**values | {"filters": filters, "long_resolvents": LongResolvents.REJECT})


def test_what_is_proved_in_a_sound_dialect_follows_from_the_program():
    rng, proved = random.Random(3), 0
    for _ in range(2000):
        program, dialect, is_positive = random_program(rng), random_dialect(rng), rng.random() < 0.5
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


ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")


def test_the_page_lists_every_switch_with_its_values_the_default_first():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.split("## Dialects")[1], re.MULTILINE))
    assert list(rows) == [field.name for field in dataclasses.fields(Dialect)]
    for name, listed in rows.items():
        values, default = [value.strip("` ") for value in listed.split(",")], getattr(OURS, name)
        if isinstance(default, tuple):
            assert values == list(default)
        else:
            assert values[0] == (default.value if isinstance(default, StrEnum) else str(default).lower())
            known = {each.value for each in type(default)} if isinstance(default, StrEnum) else {"false", "true"}
            assert set(values) == known
            assert len(values) == len(known)


def test_the_dialect_of_the_example_gives_the_outcomes_that_it_asserts():
    runpy.run_path(str(ROOT / "examples" / "batched_dialect.py"))
