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
    Derivation,
    Dialect,
    Exclusion,
    Filter,
    Kind,
    Limits,
    LongResolvents,
    Matches,
    Memory,
    Order,
    Outcome,
    Program,
    Resolvent,
    Shortest,
    Situation,
    Stages,
    Step,
    Stopping,
    Unification,
    Unproved,
    derive,
    find_excluded,
    least_model,
    ranking_score,
    take_step,
)
from kgreference.terms import Triple, binds_in_one_pass, is_same_set, unify

PRUNE, REVISIT, DUPLICATES, CLOSE, MAX_ATOMS, MAX_RESOLVENTS = Filter


def step_of(
    text: str, goal: str, dialect: Dialect, query: str = "", visited: tuple[str, ...] = (), is_positive: bool = True,
    **limits: int,
) -> Step:  # fmt: skip
    """One step; without a query, none is excluded."""
    program = program_of(text, queries=f"{goal} {query} {visited}")
    atom = goal_of(program, query)[0] if query else Atom(0, -1, -2)
    seen = {goal_of(program, each) for each in visited}
    start = goal_of(program, goal)
    excluded = find_excluded(dialect, Limits(**limits), atom, is_positive)
    situation = Situation(dialect, program, Limits(**limits), Shortest(), excluded, start, 0, seen)
    return take_step(situation, Stages())


def offered(text: str, goal: str, dialect: Dialect, visited: tuple[str, ...] = (), **limits: int) -> list[str]:
    program = program_of(text, queries=f"{goal} {visited}")
    step = step_of(text, goal, dialect, visited=visited, **limits)
    return [text_of(program, each.atoms) or each.kind.name for each in step.after_limit]


def derivation_of(text: str, query: str, dialect: Dialect, is_positive: bool = True, **limits: int) -> Derivation:
    program = program_of(text, queries=query)
    (atom,) = goal_of(program, query)
    return derive(program, Limits(**limits), Shortest(), atom, dialect, is_positive=is_positive)


def test_our_own_dialect_takes_the_steps_of_the_semantics():
    rng, kinds = random.Random(7), set()
    replaced = Stages(choose=lambda situation, scores: scores.index(max(scores)))
    for _ in range(400):
        program = random_program(rng)
        terms = [*range(len(program.constants)), -1, -2]
        query = random_atom(rng, len(program.predicates), terms)
        limits = Limits(rng.randint(1, 8), rng.randint(1, 5), rng.randint(1, 6), rng.random() < 0.8)
        expected = derive(program, limits, Shortest(), query)
        assert derive(program, limits, Shortest(), query, OURS, replaced) == expected
        kinds.add((expected.outcome, expected.is_limited))
    assert len(kinds) >= 5


def test_one_pass_fails_where_a_variable_of_the_head_meets_two_terms():
    one_pass = Dialect(unification=Unification.ONE_PASS)
    rule = "p(X, X) <- q(X, X)\nr(a, b)"
    assert offered(rule, "p(a, Y)", OURS) == offered(rule, "p(Y, a)", OURS) == ["q(a, a)"]
    assert offered(rule, "p(X, Y)", OURS) == ["q(X0, X0)"]
    for goal in ("p(a, Y)", "p(Y, a)", "p(X, Y)"):
        assert offered(rule, goal, one_pass) == ["FALSE"]
    assert offered(rule, "p(X, X)", one_pass) == ["q(X0, X0)"]
    assert offered(rule, "p(a, a)", one_pass) == ["q(a, a)"]


def test_one_pass_applies_bindings_to_each_other():
    one_pass = Dialect(unification=Unification.ONE_PASS)
    for head in ("p(a, Z)", "p(Z, a)"):
        assert offered(f"{head} <- q(Z, Z)\nr(a, b)", "p(X, X), r(X, X)", one_pass) == ["q(a, a), r(a, a)"]
    assert offered("p(X, Y) <- q(X, Y)\nr(a, b)", "p(X, X)", one_pass) == ["q(X0, X0)"]


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
                if not bind_in_one_pass(atom, head):
                    differing.add((atom, head))
    assert ((0, 0, -1), (0, -1, -1)) in differing


def test_memory_compares_nothing_sequences_or_sets():
    text = "p(X, Y) <- q(Y, X), p(Y, X)\np(X, Y) <- p(X, Y)\nq(a, a)"
    visited = ("p(b, a), q(b, a)",)
    expected = {
        Memory.NONE: ["q(b, a), p(b, a)", "p(a, b)"],
        Memory.SEQUENCE: ["q(b, a), p(b, a)"],
        Memory.SET: ["FALSE"],
    }
    for memory, texts in expected.items():
        assert offered(text, "p(a, b)", Dialect(memory=memory), visited) == texts


def test_a_set_is_compared_with_every_visited_goal_with_and_without_names():
    text = "p(X, Y) <- q(Z, Y), r(Z, W)\np(X, Y) <- r(X, Y), q(Y, X)\np(X, Y) <- s(X, Y)\nq(b, b)"
    visited = ("r(X, Y), q(X, Z)", "s(X, X)")
    set_of_names = Dialect(memory=Memory.SET, forgets_names=False)
    assert offered(text, "p(a, X)", Dialect(memory=Memory.SET), visited) == ["r(a, X0), q(X0, a)", "s(a, X0)"]
    assert len(offered(text, "p(a, X)", set_of_names, visited)) == 3
    named = offered(text, "p(a, X)", set_of_names, ("q(X, a), r(a, X)", "s(X, X)"))
    assert named == ["q(X3, X0), r(X3, X4)", "s(a, X0)"]


def test_names_are_forgotten_or_kept():
    text = "p(X, Y) <- p(X, Z)\nq(a, a)"
    for memory in (Memory.SEQUENCE, Memory.SET):
        assert offered(text, "p(a, X)", Dialect(memory=memory)) == ["FALSE"]
        assert offered(text, "p(a, X)", Dialect(memory=memory, forgets_names=False)) == ["p(a, X3)"]
    swap = "p(X, Y) <- p(Y, X)\nq(a, a)"
    kept = derivation_of(swap, "p(X, Y)", Dialect(forgets_names=False))
    assert [text_of(program_of(swap), step.goal) for step in kept.steps] == ["p(X0, X1)", "p(X1, X0)"]
    assert kept.outcome == Outcome.FAILED
    assert len(derivation_of(swap, "p(X, Y)", OURS).steps) == 1


def test_a_variable_of_a_clause_is_new_where_names_are_kept():
    text = "p(X, Y) <- q(X, Z), q(Z, Y)\nq(X, Y) <- r(X, Z)\nr(X, Y) <- s(X, Y)\nt(a, a)"
    derivation = derivation_of(text, "p(X, Y)", Dialect(forgets_names=False), max_depth=3)
    program = program_of(text)
    goals = [text_of(program, step.goal) for step in derivation.steps]
    assert goals == ["p(X0, X1)", "q(X0, X4), q(X4, X1)", "r(X0, X7), q(X4, X1)"]
    renamed = derivation_of(text, "p(X, Y)", OURS, max_depth=3)
    assert [step.scores for step in derivation.steps] == [step.scores for step in renamed.steps]


def test_a_set_is_visited_under_one_renaming_for_all_its_atoms():
    assert is_same_set(((0, -1, -2), (1, -2, -1)), ((1, -1, -2), (0, -2, -1)))
    assert is_same_set(((0, -1, 0), (0, -1, 0)), ((0, -2, 0),))
    assert not is_same_set(((0, -1, -2),), ((0, -1, -1),))
    assert not is_same_set(((0, -1, -1),), ((0, -1, -2),))
    assert not is_same_set(((0, -1, 0), (1, -1, 0)), ((0, -1, 0), (1, -2, 0)))
    for left, right in (((0, -1, 0), (0, 0, 0)), ((0, 0, 0), (0, 1, 1)), ((0, 0, 0), (1, 0, 0))):
        assert not is_same_set((left,), (right,))
        assert not is_same_set((right,), (left,))
    assert is_same_set(((0, -1, -2), (0, -2, -3), (0, -3, -1)), ((0, -3, -1), (0, -2, -3), (0, -1, -2)))


@pytest.mark.parametrize(("exempts", "kind"), [(False, Kind.FALSE), (True, Kind.TRUE)])
def test_a_proof_is_visited_only_in_a_memory_that_holds_a_proof(exempts: bool, kind: Kind):
    for memory in (Memory.SEQUENCE, Memory.SET):
        step = step_of("p(a, b)", "p(a, X)", Dialect(memory=memory, exempts_terminal=exempts), visited=("",))
        assert step.chosen.kind == kind


def test_limits_act_before_or_after_pruning():
    text = "p(X, Y) <- q(X, Y), r(X, Y)\nq(a, b)"
    assert offered(text, "p(a, b)", OURS, max_atoms=1) == ["r(a, b)"]
    before = Dialect(filters=(MAX_ATOMS, PRUNE, REVISIT, CLOSE, MAX_RESOLVENTS))
    step = step_of(text, "p(a, b)", before, max_atoms=1)
    assert (step.after_limit[0].kind, step.dropped_atoms) == (Kind.FALSE, 1)


def test_either_limit_may_come_first():
    text = "p(X, Y) <- q(X, Y), q(Y, X)\np(X, Y) <- r(X, Y)\np(X, Y) <- s(X, Y)\nq(c, c)"
    assert offered(text, "p(a, b)", OURS, max_atoms=1, max_resolvents=2) == ["r(a, b)", "s(a, b)"]
    first = Dialect(filters=(PRUNE, REVISIT, CLOSE, MAX_RESOLVENTS, MAX_ATOMS))
    step = step_of(text, "p(a, b)", first, max_atoms=1, max_resolvents=2)
    assert [len(each.atoms) for each in step.after_limit] == [1]
    assert (step.dropped_atoms, step.dropped_resolvents) == (1, 1)


def test_a_proof_beyond_the_limit_is_found_or_lost():
    text = "p(X, Y) <- r(X, Y)\np(a, b)"
    assert offered(text, "p(a, b)", OURS, max_resolvents=1) == ["TRUE"]
    after = Dialect(filters=(PRUNE, REVISIT, MAX_ATOMS, MAX_RESOLVENTS, CLOSE))
    assert offered(text, "p(a, b)", after, max_resolvents=1) == ["r(a, b)"]


def test_a_filter_that_is_left_out_is_not_applied():
    text = "p(X, Y) <- q(X, Y), r(X, Y)\np(X, Y) <- q(X, Y)\np(a, b)\nq(a, b)"
    nothing = Dialect(filters=())
    assert offered(text, "p(a, b)", nothing, max_atoms=1, max_resolvents=1) == ["q(a, b), r(a, b)", "q(a, b)", "TRUE"]
    step = step_of(text, "p(a, b)", nothing, max_atoms=1, max_resolvents=1)
    assert (step.dropped_atoms, step.dropped_resolvents) == (0, 0)
    assert offered(text, "p(a, b)", Dialect(filters=(CLOSE,))) == ["TRUE"]
    assert offered(text, "r(a, b)", nothing) == ["FALSE"]


def test_a_proof_beside_goals_is_scored_like_them():
    step = step_of("p(X, Y) <- q(X, Y)\np(a, b)", "p(a, b)", Dialect(filters=(), order=Order.FACTS_FIRST))
    assert [each.kind for each in step.after_limit] == [Kind.TRUE, Kind.GOAL]
    assert (step.scores, step.outcome) == ([0.0, -1.0], Outcome.PROVED)


def test_closing_before_pruning_sees_only_what_facts_resolve_away():
    text = "p(X, Y) <- r(X, Y)\np(X, Y) <- q(X, Y)\nq(a, b)"
    assert offered(text, "p(a, b)", Dialect(filters=(CLOSE, PRUNE))) == ["r(a, b)", "TRUE"]
    assert offered(text, "r(a, b)", Dialect(filters=(CLOSE, PRUNE))) == ["FALSE"]


def test_long_resolvents_are_rejected_or_truncated():
    text = "p(X, Y) <- q(X, Y), r(X, Y)\ns(a, a)"
    assert offered(text, "p(a, b)", OURS, max_atoms=1) == ["FALSE"]
    step = step_of(text, "p(a, b)", Dialect(long_resolvents=LongResolvents.TRUNCATE), max_atoms=1)
    assert (step.chosen.atoms, step.dropped_atoms) == (step.after_close[0].atoms[:1], 1)
    derivation = derivation_of(
        f"{text}\nq(X, Y) <- t(X, Y)\nt(a, b)", "p(a, b)", Dialect(long_resolvents=LongResolvents.TRUNCATE), max_atoms=1
    )
    assert (derivation.outcome, derivation.is_limited) == (Outcome.PROVED, True)


@pytest.mark.parametrize(
    ("order", "is_reversed", "origins"),
    [
        (Order.RULES_FIRST, False, "R0 R1 F0 F1"),
        (Order.RULES_FIRST, True, "R1 R0 F1 F0"),
        (Order.FACTS_FIRST, False, "F0 F1 R0 R1"),
        (Order.FACTS_FIRST, True, "F1 F0 R1 R0"),
    ],
)
def test_rules_or_facts_come_first_and_either_is_reversed(order: Order, is_reversed: bool, origins: str):
    text = "p(a, b)\np(a, c)\np(X, Y) <- q(X, Y)\np(X, Y) <- r(X, Y)"
    for forgets_names in (True, False):
        dialect = Dialect(order=order, is_reversed=is_reversed, forgets_names=forgets_names)
        step = step_of(text, "p(a, X), q(X, X)", dialect)
        assert " ".join(f"{each.origin_kind.name[0]}{each.origin}" for each in step.after_limit) == origins


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


def test_of_equal_resolvents_the_first_stays():
    text = "p(X, Y) <- q(X, Z), r(Z, Y)\np(X, Y) <- q(X, W), r(W, Y)\np(X, Y) <- r(Z, Y), q(X, Z)\ns(a, b)"
    offers = Dialect(filters=(PRUNE, DUPLICATES, CLOSE))
    repeated, reordered = "q(a, X0), r(X0, b)", "r(X0, b), q(a, X0)"
    assert offered(text, "p(a, b)", Dialect(filters=(PRUNE, CLOSE))) == [repeated, repeated, reordered]
    assert offered(text, "p(a, b)", offers) == [repeated, reordered]
    step = step_of(text, "p(a, b)", dataclasses.replace(offers, is_reversed=True))
    assert [resolvent.origin for resolvent in step.after_limit] == [2, 1]
    before = dataclasses.replace(offers, filters=(DUPLICATES, MAX_RESOLVENTS), forgets_names=False)
    step = step_of(text, "p(a, b)", before, max_resolvents=2)
    assert ([resolvent.origin for resolvent in step.after_limit], step.dropped_resolvents) == ([0, 2], 0)
    after = step_of(text, "p(a, b)", Dialect(filters=(MAX_RESOLVENTS, DUPLICATES)), max_resolvents=2)
    assert ([resolvent.origin for resolvent in after.after_limit], after.dropped_resolvents) == ([0], 1)


def test_stopping_is_offered_where_no_resolvent_is_terminal():
    text = "p(X, Y) <- q(X, Y)\np(X, Y) <- p(X, Y)\nr(a, b)"
    stops = Dialect(stopping=Stopping.WHERE_NO_TERMINAL)
    assert offered(text, "p(a, b)", stops) == ["q(a, b)", "STOP"]
    assert offered(text, "q(a, b)", stops) == ["FALSE"]
    assert offered(text, "r(a, b)", stops) == ["TRUE"]
    late = Dialect(stopping=Stopping.WHERE_NO_TERMINAL, filters=(PRUNE, CLOSE, REVISIT))
    step = step_of(text, "p(a, b)", late, visited=("q(a, b)",))
    assert (step.after_limit, step.scores, step.outcome) == ([STOP], [0.0], Outcome.FAILED)


def test_shortest_stops_only_where_nothing_else_is_left():
    derivation = derivation_of("p(X, Y) <- q(X, Y)\nr(a, b)", "p(a, b)", Dialect(stopping=Stopping.WHERE_NO_TERMINAL))
    assert [step.chosen.kind for step in derivation.steps] == [Kind.GOAL, Kind.FALSE]


def test_a_step_with_one_goal_is_not_counted():
    text = "p(X, Y) <- q(X, Y)\nq(X, Y) <- r(X, Y)\nr(X, Y) <- s(X, Y)\nr(X, Y) <- t(X, Y)\ns(a, b)\nt(a, c)"
    skips = Dialect(skips_unary=True, stopping=Stopping.WHERE_NO_TERMINAL)
    derivation = derivation_of(text, "p(a, X)", skips)
    assert [(step.depth, step.is_uncounted, len(step.after_limit)) for step in derivation.steps] == [
        (0, True, 1),
        (0, True, 1),
        (1, False, 3),
        (2, False, 1),
    ]
    assert derivation.outcome == Outcome.PROVED
    assert [step.depth for step in derivation_of(text, "p(a, X)", OURS).steps] == [1, 2, 3, 4]


def test_uncounted_steps_end():
    loop = derivation_of("p(X, Y) <- p(Y, X)", "p(a, b)", Dialect(skips_unary=True, memory=Memory.NONE), max_depth=2)
    assert [step.is_uncounted for step in loop.steps] == [True, True, False, True, True, False]
    assert loop.outcome == Outcome.DEPTH_LIMIT


def test_ranks_follow_the_dialect():
    assert ranking_score(-1.0, Outcome.FAILED) == -101.0
    assert ranking_score(-1.0, Outcome.FAILED, Unproved.LOG_PROBABILITY) == -1.0
    assert ranking_score(-1.0, Outcome.PROVED, Unproved.LOG_PROBABILITY) == ranking_score(-1.0, Outcome.PROVED) == -1.0


def test_a_filter_cannot_be_applied_twice():
    with pytest.raises(ValueError, match="applied once, found prune more often"):
        Dialect(filters=(PRUNE, CLOSE, PRUNE))


def test_a_stage_can_be_replaced():
    def keep_last(situation: Situation, resolvents: list[Resolvent]) -> list[Resolvent]:
        return resolvents[-situation.limits.max_resolvents :]

    program = program_of("p(a, b)\np(a, c)\np(a, d)")
    atom = goal_of(program, "p(a, X)")[0]
    filters = Dialect(filters=(MAX_RESOLVENTS,))
    derivation = derive(
        program, Limits(max_resolvents=2), Shortest(), atom, filters, Stages(limit_resolvents=keep_last)
    )
    assert [each.origin for each in derivation.steps[0].after_limit] == [1, 2]
    many = program_of("p(X, Y) <- q(X, Y)\np(X, Y) <- r(X, Y)\np(X, Y) <- s(X, Y)\nt(a, b)", queries="p(a, b)")
    (query,) = goal_of(many, "p(a, b)")
    step = derive(many, Limits(max_resolvents=2), Shortest(), query, OURS, Stages(limit_resolvents=keep_last)).steps[0]
    assert [each.origin for each in step.after_limit] == [1, 2]
    assert derivation.is_limited


def random_dialect(rng: random.Random) -> Dialect:
    """A dialect that is sound: long resolvents are not truncated."""
    values = {
        field.name: rng.choice(list(type(getattr(OURS, field.name))))
        for field in dataclasses.fields(Dialect)
        if isinstance(getattr(OURS, field.name), StrEnum)
    }
    flags = {
        field.name: rng.random() < 0.5
        for field in dataclasses.fields(Dialect)
        if isinstance(getattr(OURS, field.name), bool)
    }
    filters = tuple(rng.sample(list(Filter), rng.randint(0, len(Filter))))
    return Dialect(**values | flags | {"filters": filters, "long_resolvents": LongResolvents.REJECT})


def test_what_is_proved_in_a_sound_dialect_follows_from_the_program():
    rng, proved = random.Random(3), 0
    for _ in range(3000):
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
    assert proved > 500


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


def test_a_step_starts_from_an_open_goal_above_the_depth_limit():
    program = program_of("p(a, b)")
    for goal, depth in (((), 0), ((program.facts[0],), 20)):
        with pytest.raises(ValueError, match="must start"):
            take_step(Situation(OURS, program, Limits(), Shortest(), None, goal, depth, frozenset()), Stages())


def test_a_replaced_stage_that_matches_what_does_not_unify_is_refused_where_names_are_kept():
    program = program_of("p(a, b)\np(c, d)\np(X, X) <- q(X, X)")
    (query,) = goal_of(program, "p(a, b)")
    matching = Matches((0,), (0,), (1,), ((),), (-1,))
    with pytest.raises(ValueError, match="must unify"):
        derive(
            program,
            Limits(),
            Shortest(),
            query,
            Dialect(forgets_names=False),
            Stages(match_rules=lambda situation, selected: matching),
        )
