"""Problems: what is one, that many in one run are what each is alone, and those that are generated or listed."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from problem_text import atoms_of, problem_of

import kgverify as kv
from kgverify import Limits, NamedAtom, PolicySpec, Problem, Sizes, UserError, Vocabulary
from kgverify.graphs.vocabulary import MAX_UNUSED
from kgverify.laws import draw_problems
from kgverify.program.atoms import Variable
from kgverify.program.outcomes import Side
from kgverify.ranking.draw import ALL
from kgverify.runs.run import reference_pipeline
from kgverify.testing.checking.check import prepare_alone, prepare_batches
from kgverify.testing.problems.decode import (
    ALONE_EVERY,
    SIZE,
    decode_problem,
    draw_boundary_problem,
)
from kgverify.testing.problems.decode import (
    count_clauses as count_matching,
)
from kgverify.testing.problems.merge import group_problems, merge
from kgverify.trace.model.columns import starts_of

FACT = NamedAtom("p", "a", "b")
ALONE = [turn * ALONE_EVERY + ALONE_EVERY - 1 for turn in range(100)]
"""The first indices at which a problem runs alone."""


def draw(count: int, seed: int = 0) -> list[Problem]:
    return list(islice(draw_problems(seed), count))


def test_the_size_counts_facts_rules_and_body_atoms():
    assert problem_of("p(a, b); p(a, b); q(X, Y) <- p(X, Y); ! p(a, b)", vocabulary=Vocabulary((9,), (9,))).size == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": ()},
        {"queries": atoms_of("p(X, b)")},
        {"facts": atoms_of("p(X, X)")},
        {"rules": (kv.NamedRule(FACT, ()),)},
        {"num_corruptions": -2},
        {"policy": PolicySpec("longest")},
        {"sizes": Sizes(slots=0)},
        {"vocabulary": Vocabulary(("p",), ("a", "c"), is_closed=True)},
        {"vocabulary": Vocabulary(("q",), ("a", "b"), is_closed=True)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_is_no_problem_is_refused(wrong):
    with pytest.raises(UserError, match="fix:"):
        Problem(**{"queries": (FACT,), **wrong})


@pytest.mark.parametrize("items", [("a", 0), (-1,), (MAX_UNUSED, 1), ("a", 2, "a")])
def test_what_is_no_vocabulary_is_refused(items):
    for wrong in ((items, ()), ((), items)):
        with pytest.raises(UserError, match="fix:"):
            Vocabulary(*wrong)


def test_a_problem_alone_keeps_its_names_and_its_unused_symbols_are_never_drawn():
    problem = problem_of("p(a, b); p(c, d); q(X, Y) <- p(X, Y); ! q(a, e)", constants=("f",), num_corruptions=ALL)
    graph = merge([problem]).graph
    assert graph.program.symbols.constants == ("a", "b", "c", "d", "e", "f")
    assert (graph.test, graph.argument_domain(0, Side.TAIL).tolist()) == (problem.queries, [0, 1, 2, 3, 4, 5])
    merged = merge([replace(problem, vocabulary=Vocabulary((5,), ("a", "b", 1 << 16)))])
    symbols = merged.graph.program.symbols
    assert symbols.constant_ids["c"] - symbols.constant_ids["b"] == (1 << 16) + 1
    assert symbols.predicates[5:] == ("p", "q")
    pipeline = merged.with_unranked(reference_pipeline(merged.run))
    drawn = pipeline.draw(merged.run.graph, "test", merged.run.queries, ALL, 0)
    assert {symbols.constants[i] for i in drawn.atom[:, 1:].flatten()} == set("abcdef")


def test_problems_of_different_settings_are_not_merged():
    problems = [problem_of("! p(a, b)"), problem_of("! p(a, b)", limits=Limits(max_depth=3))]
    assert group_problems([*problems, problems[0]]) == [[0, 2], [1]]
    with pytest.raises(UserError, match="several"):
        merge(problems)


def test_a_problem_derives_in_company_what_it_derives_alone():
    drawn = [p for p in draw(300) if p.queries]
    problems = [p for p in drawn if p.num_corruptions in (0, ALL)]
    problems += [replace(p, num_corruptions=ALL) for p in drawn if p.policy.name == "two_tower"]
    assert {p.policy.name for p in problems} == {"shortest", "two_tower"}
    for batch in prepare_batches(problems):
        owner = batch.merged.owner[batch.expected.columns.candidates.query]
        for place, problem in enumerate(batch.merged.problems):
            (alone,) = prepare_batches([problem])
            rows = np.flatnonzero(owner == place)
            own, together = alone.expected.columns.candidates, batch.expected.columns.candidates
            for column in ("side", "num_steps", "outcome", "is_limited"):
                assert np.array_equal(getattr(own, column), getattr(together, column)[rows]), problem
            assert np.allclose(own.log_probability, together.log_probability[rows], rtol=0, atol=1e-9)


def test_every_string_of_bytes_is_a_problem_and_no_other_length_is():
    for value in range(256):
        decode_problem(bytes([value]) * SIZE)
    assert decode_problem(bytes(SIZE)).size == 0
    with pytest.raises(UserError, match="bytes"):
        decode_problem(b"")


def test_a_seed_gives_the_same_problems_from_any_place_on():
    assert draw(20)[7:] == list(islice(draw_problems(0, 7), 13))
    assert draw(20) != draw(20, seed=1)
    alone = [draw_boundary_problem(0, i) for i in ALONE]
    assert alone == [draw_boundary_problem(0, i) for i in ALONE]
    assert alone != [draw_boundary_problem(1, i) for i in ALONE]
    assert len(set(map(str, alone))) > 80
    assert sorted(each.size for each in alone)[80] < 100


def variables(*atoms: NamedAtom) -> list[Variable]:
    return [term for atom in atoms for term in atom[1:] if isinstance(term, Variable)]


def some(items, holds) -> bool:
    return any(map(holds, items))


PROGRAM_FEATURES = {
    "no facts": lambda p: not p.facts,
    "no rules": lambda p: not p.rules,
    "a fact twice": lambda p: len(set(p.facts)) < len(p.facts),
    "a fact p(a, a)": lambda p: some(p.facts, lambda fact: fact.first == fact.second),
    "more than 50 facts of a predicate": lambda p: some(
        p.facts, lambda f: sum(f[0] == g[0] for g in set(p.facts)) > 50
    ),
    "a rule twice": lambda p: len(set(p.rules)) < len(p.rules),
    "three rules of a predicate": lambda p: some(
        p.rules, lambda r: sum(r.clause_head[0] == o.clause_head[0] for o in p.rules) > 2
    ),
    "a rule that calls itself": lambda p: some(p.rules, lambda r: r.clause_head[0] in {atom[0] for atom in r.body}),
    "a predicate without clauses": lambda p: bool(
        {atom[0] for rule in p.rules for atom in rule.body}
        - {fact[0] for fact in p.facts}
        - {rule.clause_head[0] for rule in p.rules}
    ),
    "a constant in a head": lambda p: some(p.rules, lambda r: len(variables(r.clause_head)) < 2),
    "a constant in a body": lambda p: some(p.rules, lambda r: len(variables(*r.body)) < 2 * len(r.body)),
    "p(X, X) in a head": lambda p: some(p.rules, lambda r: r.clause_head.first == r.clause_head.second),
    "a variable of the head alone": lambda p: some(
        p.rules, lambda r: {*variables(r.clause_head)} - {*variables(*r.body)}
    ),
    "a variable of the body alone": lambda p: some(
        p.rules, lambda r: {*variables(*r.body)} - {*variables(r.clause_head)}
    ),
    "a body of max_atoms atoms": lambda p: some(p.rules, lambda r: len(r.body) == p.limits.max_atoms),
    "a body of one atom more": lambda p: some(p.rules, lambda r: len(r.body) == p.limits.max_atoms + 1),
    "a query that is a fact": lambda p: bool({*p.facts} & {*p.queries, *p.unranked}),
    "a query p(X, Y)": lambda p: some(p.unranked, lambda q: len({*variables(q)}) == 2),
    "a query p(X, X)": lambda p: some(p.unranked, lambda q: len(variables(q)) == 2 and q.first == q.second),
    "all corruptions": lambda p: p.num_corruptions == ALL and bool(p.queries),
    "a network": lambda p: p.policy.name != "shortest",
    "exclude_query off": lambda p: not p.limits.exclude_query,
    "ids more than 256 apart": lambda p: len(p.vocabulary.symbols.constants) >= 254,
    "padding": lambda p: bool(p.sizes.atoms or p.sizes.resolvents),
}


def test_generated_programs_have_every_feature():
    problems = [*draw(300), *(draw_boundary_problem(0, i) for i in ALONE)]
    assert [name for name, holds in PROGRAM_FEATURES.items() if sum(map(holds, problems)) < 3] == []


def run_features(batch) -> dict[str, bool]:
    """Return the features of derivations, steps and sizes in the reference's columns of a run."""
    run, sizes, columns = batch.merged.run, batch.merged.sizes, batch.columns
    candidates, steps, resolvents = columns.candidates, columns.steps, columns.resolvents
    outcome, num = candidates.outcome, len(candidates.query)
    program, num_constants = run.graph.program, len(run.graph.program.symbols.constants)
    num_facts = np.bincount(program.facts.T[0]).max(initial=0)
    first_steps = starts_of(candidates.num_steps)[:-1][: sizes.slots]
    of_goals = resolvents.kind[starts_of(steps.num_resolvents)[:-1]] == 0
    scored = int((steps.num_resolvents * of_goals)[first_steps].sum())
    lengths = steps.num_resolvents + steps.dropped_resolvents
    return {
        **{f"outcome {code}": bool((outcome == code).any()) for code in (1, 2, 3)},
        "PROVED by the last step": bool(((outcome == 1) & (candidates.num_steps == run.limits.max_depth)).any()),
        "exactly max_resolvents": bool((lengths == run.limits.max_resolvents).any()),
        "one beyond max_resolvents": bool((steps.dropped_resolvents == 1).any()),
        "more than 255 resolvents": bool((lengths > 255).any()),
        "one candidate": num == 1,
        "as many candidates as slots": num == sizes.slots,
        "a pool exactly full": num % sizes.pool == 0,
        "one candidate in the last pool": num % sizes.pool == 1 and num > 1,
        "more than 255 candidates": num > 255,
        "more than 255 facts of a predicate": num_facts > 255,
        "more than 65,535 facts of a predicate": num_facts > 65_535,
        "ids beyond 65,535": num_constants > 65_536,
        "keys of facts beyond 31 bits": len(program.symbols.predicates) * num_constants**2 > 1 << 31,
        "one constant": num_constants == 1,
        "a match window exactly full": count_matching(program, candidates.atom[: sizes.slots]).sum()
        == sizes.match_window,
        "a score window exactly full": scored == max(sizes.score_window, run.limits.max_resolvents),
        "the last fact used": bool(
            ((resolvents.origin_kind == 2) & (resolvents.origin == len(program.facts) - 1)).any()
        ),
    }


@pytest.mark.deep
def test_generated_problems_meet_every_boundary_in_the_first_block():
    batches = [*prepare_batches(draw(100)), *(prepare_alone(0, 16 * i + 15, i) for i in range(128))]
    found = [run_features(batch) for batch in batches]
    assert [name for name in found[0] if not any(each[name] for each in found)] == []
