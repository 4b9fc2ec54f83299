"""Shrinking: minimal problems that fail in the same way, and what makes the difference.

Most problems here fail by a rule of their text, without an engine. So passes of the shrinker are judged in milliseconds.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from fault_search import ProblemStream
from problem_text import atoms_of, problem_of

from kgverify import Limits, PolicySpec, Problem, Sizes, Vocabulary
from kgverify.dialects import Dialect
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.atoms import Variable
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import CRASH, Failure, Signature, list_forms
from kgverify.testing.problems.merge import merge
from kgverify.testing.shrinking.shrink import (
    Budget,
    Oracle,
    find_neighbour,
    shrink,
    shrink_with,
    simplify_vocabulary,
)
from kgverify.testing.shrinking.shrink_run import find_needed

Fails = Callable[[Problem], bool]

IN_STEP = Signature("prune", "resolvents.atoms", "missing")
IN_BATCH = Signature("recycle", "steps.depth", "foreign")
IN_CRASH = Signature("", "", CRASH, "ValueError")


class RuledOracle(Oracle):
    """An oracle that asks a rule instead of engines."""

    def __init__(self, signature: Signature, fails: Fails, *, max_calls: int = 600) -> None:
        super().__init__(
            Checker(lambda run, sizes: pytest.fail("an engine is asked")), signature, Budget(max_calls, 3600.0)
        )
        self.fails = fails

    def judge_alone(self, problem: Problem) -> Failure | None:
        """Return a failure with the oracle's signature if the rule says so."""
        self.calls += 1
        if not self.fails(problem):
            return None
        return Failure(index=0, problem=problem, group=(problem,), signature=self.signature)

    def judge_together(self, problems: Sequence[Problem]) -> set[int]:
        """Return the indices of the problems that fail, as if a common run changed nothing."""
        self.calls += 1
        return {i for i, problem in enumerate(problems) if self.fails(problem)}


def num_unused(problem: Problem) -> int:
    return sum(num for kind, _, num in problem.vocabulary.list_unused() if kind == "constants")


def num_predicates(problem: Problem) -> int:
    return len({fact.predicate for fact in problem.facts})


@pytest.mark.parametrize(
    ("signature", "fails", "program", "change"),
    [
        (IN_STEP, lambda p: any(a == b for _, a, b in p.facts), r"p\(a, a\)\.", r"without the fact p\(a, a\)"),
        (
            IN_STEP,
            lambda p: any(sum(f.predicate == g.predicate for f in p.facts) > 2 for g in p.facts),
            r"(p\([abc], [abc]\)\. ){2}p\([abc], [abc]\)\.",
            "without the fact .*",
        ),
        (
            IN_STEP,
            lambda p: p.limits.max_atoms >= 2 and any(len(rule.body) >= 2 for rule in p.rules),
            r"p\(\w, \w\) <- p\(\w, \w\), p\(\w, \w\)\.",
            r"without p\(.*\) in the rule .*",
        ),
        (
            IN_STEP,
            lambda p: len(p.rules) > 1 and p.limits.max_resolvents > 1,
            r"p\(\w, \w\) <- p\(\w, \w\)\. p\(\w, \w\) <- p\(\w, \w\)\.",
            "without the rule .*",
        ),
        (
            IN_STEP,
            lambda p: len(p.domain) > 2 and p.limits.max_depth > 2,
            r"p\(a, b\)\.( p\(a, c\)\.)?",
            r"(the query .* instead of|without the fact) .*",
        ),
        (
            IN_STEP,
            lambda p: any(isinstance(each.second, Variable) for each in p.unranked),
            "",
            r"the query p\(\w, \w\) instead of .*",
        ),
        (IN_STEP, lambda p: bool(p.queries) and p.num_corruptions != 0, r"\? p\(a, a\)   \(1 .*", ""),
        (
            IN_STEP,
            lambda p: p.policy.name != "shortest" and bool(p.facts),
            r"p\(a, a\)\..*policy two_tower.*",
            r"without the fact p\(a, a\)",
        ),
        (IN_STEP, lambda p: num_unused(p) > 100, "", "unused constants: 100 instead of 101"),
        (IN_BATCH, lambda p: p.sizes.slots > 1 and len(p.unranked) > 1, r"\? p\(.*\? p\(.*", "without the query .*"),
        (
            IN_BATCH,
            lambda p: num_predicates(p) > 1 and p.sizes.slots > 2,
            r"p\(a, a\)\. q\(a, a\)\..*3 slots",
            "slots: 2 instead of 3",
        ),
        (
            IN_CRASH,
            lambda p: len(p.facts) > 1 and bool(p.rules),
            r"p\(a, b\)\. p\([ab], a\)\. p\(X, Y\) <- p\(X, \w\)\.",
            "without the fact .*",
        ),
    ],
)
def test_a_problem_shrinks_to_what_makes_it_fail_with_every_default_otherwise(signature, fails, program, change):
    drawn = list(islice((each for each in islice(draw_problems(17), 400) if fails(each)), 3))
    assert len(drawn) == 3
    for problem in drawn:
        oracle = RuledOracle(signature, fails)
        shrunk = shrink_with(oracle, Failure(index=0, problem=problem, group=(problem,), signature=signature))
        assert fails(shrunk.problem)
        assert shrunk.is_finished
        assert oracle.calls < 120
        text = str(shrunk.problem).replace("\n", " ")
        assert re.fullmatch(f"{program}.*" if program else r"\? .*", text), text
        assert "max_depth 20, max_atoms 6, max_resolvents 120, exclude_query True" in text
        assert re.fullmatch(change, shrunk.change)
        # Out of calls, the smallest problem that was found to fail remains.
        few = shrink_with(
            RuledOracle(signature, fails, max_calls=9),
            Failure(index=0, problem=problem, group=(problem,), signature=signature),
        )
        assert not few.is_finished
        assert fails(few.problem)
        assert few.problem.size <= problem.size


@pytest.mark.parametrize(("first", "second"), [(0, 1), (0, 39), (3, 30), (5, 38)])
def test_where_ids_matter_a_part_of_the_problem_keeps_them(first, second):
    names = [f"c{i}" for i in range(40)]
    chain = "; ".join(f"{'q' if i % 3 else 'r'}(c{i}, c{i + 1})" for i in range(39))
    ends = f"s(c{first}, c{second}); s(c{second}, c{first})"
    needed = set(atoms_of(ends))

    def fails(attempt: Problem) -> bool:
        ids = merge([attempt]).graph.program.symbols.constant_ids
        return needed <= set(attempt.facts) and ids[names[second]] - ids[names[first]] == second - first

    problem = problem_of(f"{chain}; {ends}; ? s(c{first}, X)")
    problem = replace(problem, vocabulary=Vocabulary.of(merge([problem]).graph))
    oracle = RuledOracle(IN_STEP, fails)
    small = simplify_vocabulary(find_needed(problem, atoms_of(ends)[:1], oracle), oracle)
    assert fails(small)
    assert set(small.facts) == needed
    # Only the distance between both is kept.
    assert len(merge([small]).graph.program.symbols.constants) == second - first + 1


@pytest.mark.parametrize("needs", [False, True])
def test_out_of_calls_what_the_problem_does_not_need_is_not_left_in_it(needs):
    problem = problem_of("; ".join(f"p(c{i}, c{i + 1})" for i in range(40)) + "; ? p(c0, X)")
    problem = replace(problem, vocabulary=Vocabulary.of(merge([problem]).graph), limits=Limits(max_depth=8))
    needed = set(problem.facts[::3])

    def fails(attempt: Problem) -> bool:
        return needed <= set(attempt.facts) and (bool(attempt.vocabulary) or not needs)

    failure = Failure(index=0, problem=problem, group=(problem,), signature=IN_STEP)
    for max_calls in (9, 16):
        shrunk = shrink_with(RuledOracle(IN_STEP, fails, max_calls=max_calls), failure)
        assert not shrunk.is_finished
        assert shrunk.calls <= max_calls
        assert (bool(shrunk.problem.vocabulary), shrunk.needs_vocabulary) == (needs, needs)
    assert shrunk.problem.limits == Limits()


def test_a_fact_that_is_not_matched_may_lose_the_proof_in_a_smaller_problem():
    missing = Signature("match_facts", "resolvents.atoms", "missing", "fact")
    (lost,) = list_forms(missing)
    assert (lost, list_forms(lost)) == (Signature("close", "resolvents.atoms", "proof_lost", "fact"), ())
    problem = problem_of("p(a, b); ? p(a, X)")

    def judge(signature: Signature, forms: Sequence[Signature]) -> bool:
        oracle = RuledOracle(signature, lambda p: True)
        oracle.forms = (missing, *forms)
        return oracle.holds(problem)

    assert [judge(each, forms) for each in (missing, lost) for forms in ((), (lost,))] == [True, True, False, True]


ONE = problem_of("? p(a, b)")
FACTS = atoms_of(" ".join(f"p(c{i}, c{i + 1})" for i in range(20)))
(QUERY,) = ONE.unranked
RULED = problem_of("p(X, Y) <- q(X, Y), r(Y, Y); ? p(a, b)")
(RULE,) = RULED.rules


def limited(**limits: Any) -> Problem:
    return replace(ONE, limits=Limits(**limits))


@pytest.mark.parametrize(
    ("problem", "fails", "change"),
    [
        (limited(max_depth=3), lambda p: p.limits.max_depth <= 3, "max_depth is 4 instead of 3"),
        (limited(max_resolvents=2), lambda p: p.limits.max_resolvents > 1, "max_resolvents is 1 instead of 2"),
        (
            limited(exclude_query=False),
            lambda p: not p.limits.exclude_query,
            "the query may not serve as a fact in its own derivation",
        ),
        (
            replace(ONE, vocabulary=Vocabulary(constants=(7,))),
            lambda p: len(p.vocabulary) <= 7,
            "unused constants: 8 instead of 7",
        ),
        (
            replace(ONE, sizes=Sizes(match_window=3)),
            lambda p: p.sizes.match_window <= 3,
            "match window: 4 instead of 3",
        ),
        (
            replace(ONE, sizes=Sizes(match_window=3)),
            lambda p: p.sizes.match_window in (3, 4),
            "match window: 2 instead of 3",
        ),
        (replace(ONE, sizes=Sizes(pool=9)), lambda p: 8 <= p.sizes.pool <= 10, "pool: 32 instead of 9"),
        (
            replace(ONE, policy=PolicySpec("two_tower")),
            lambda p: p.policy.name == "two_tower",
            "the policy is shortest",
        ),
        (problem_of("? p(a, b); ? q(b, a)"), lambda p: len(p.unranked) == 2, "without the query p(a, b)"),
        (problem_of("q(b, a); ? p(a, b)"), lambda p: QUERY in p.unranked, "the query p(b, b) instead of p(a, b)"),
        (
            replace(ONE, facts=FACTS[:9]),
            lambda p: FACTS[3] in p.facts and QUERY in p.unranked,
            "without the fact p(c3, c4)",
        ),
        (
            replace(ONE, facts=FACTS[:8]),
            lambda p: FACTS[3] in p.facts and QUERY in p.unranked,
            "the query p(c0, b) instead of p(a, b)",
        ),
        (RULED, lambda p: not p.rules or len(p.rules[0].body) > 1, f"without q(X, Y) in the rule {RULE}"),
        (
            RULED,
            lambda p: not p.rules or p.rules[0].clause_head == RULE.clause_head or len(p.rules[0].body) < 2,
            f"the head p(Y, Y) instead of p(X, Y) of the rule {RULE}",
        ),
        (
            RULED,
            lambda p: not p.rules or p.rules[0].body[-1] == RULE.body[-1] or len(p.rules[0].body) < 2,
            f"the body atom r(X, Y) instead of r(Y, Y) of the rule {RULE}",
        ),
        (ONE, lambda p: not p.facts, "with the fact p(a, a) as well"),
        (replace(RULED, rules=(RULE, RULE)), lambda p: len(p.rules) == 2, f"without the rule {RULE}"),
        (
            ONE,
            lambda p: not (p.facts and isinstance(p.unranked[0].second, Variable)),
            "with the fact p(a, d), and the query p(a, X) instead of p(a, b)",
        ),
    ],
)
def test_an_element_that_matters_is_the_difference(problem: Problem, fails: Fails, change: str):
    assert fails(problem)
    found = find_neighbour(problem, RuledOracle(IN_STEP, fails))
    assert not fails(found.problem)
    assert found.change == change


@pytest.mark.parametrize(
    ("search", "fails", "simplest", "change"),
    [
        ({"search": "beam(40)", "merge": "sum"}, lambda kind, size, seed: size >= 2, "beam(2)", "search beam(1)"),
        ({"search": "beam(40)", "merge": "sum"}, lambda kind, size, seed: size > 12, "beam(13)", "search beam(12)"),
        ({"search": "sample(9, 5)", "aggregate": "sum"}, lambda kind, *_: kind == "sample", "sample(1, 0)", "default"),
        ({"search": "all(9)", "merge": "max"}, lambda kind, size, seed: True, "greedy", ""),
    ],
)
def test_a_search_is_simplified_as_far_as_the_failure_remains(search: Any, fails: Any, simplest: str, change: str):
    oracle = RuledOracle(IN_STEP, lambda problem: fails(*problem.limits.dialect.searching))
    problem = replace(ONE, limits=Limits(dialect=Dialect(**search)))
    shrunk = shrink_with(oracle, oracle.judge_alone(problem))
    assert shrunk.problem.limits == Limits(dialect=Dialect(search=simplest))
    assert shrunk.change == (f"the dialect is {change} instead of search {simplest}" if change else "")


def test_where_merging_matters_it_stays():
    oracle = RuledOracle(IN_STEP, lambda problem: problem.limits.dialect.merge == "sum")
    problem = replace(ONE, limits=Limits(dialect=Dialect(search="all(9)", merge="sum", aggregate="noisy_or")))
    shrunk = shrink_with(oracle, oracle.judge_alone(problem))
    assert shrunk.problem.limits.dialect == Dialect(search="all(1)", merge="sum")
    assert shrunk.change == "the dialect is search all(1) instead of search all(1), merge sum"


STREAM = ProblemStream(seed=0)


@pytest.mark.deep
@pytest.mark.parametrize(("name", "size"), [("last-fact-lost", 1), ("scatter-collision", 4), ("optimistic-ties", 0)])
def test_a_fault_shrinks_to_little_that_fails_alone_in_the_same_way_each_time_within_a_budget(name, size):
    failure, make, told = STREAM.search_fault(name).failure, compiled_maker(faults=[name]), []
    shrunk = shrink(failure, Checker(make), Budget(seconds=300))
    if size == 0:
        again = shrink(failure, Checker(make))
        assert (again.failure, again.neighbour, again.calls) == (shrunk.failure, shrunk.neighbour, shrunk.calls)
    assert (shrunk.is_finished, shrunk.failure.is_alone) == (True, True)
    assert shrunk.problem.size <= size
    assert shrunk.failure.signature == failure.signature == Checker(make).judge(shrunk.problem).signature
    assert Checker().judge(shrunk.problem) is None
    assert Checker(make).judge(shrunk.neighbour.problem) is None
    few = shrink(failure, Checker(make), Budget(max_calls=12, progress=lambda *given: told.append(given[-1])))
    assert (few.is_finished, few.neighbour) == (False, None)
    assert told[-1] <= few.calls <= 12
    assert Checker(make).judge(few.problem).signature == failure.signature
    assert shrink(failure, Checker(make), Budget(seconds=0)).problem == failure.problem
