"""Searches of the reference: examples by hand, and judges that share no code with them."""

import importlib
import math
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from judges.answers import FILTERS, judge_answers
from judges.cases import draw_cases
from judges.derivations import has_prolog
from judges.searches import judge_beams, judge_searches
from reference_programs import draw_fuzz_cases, goal_of, program_of
from test_reference_judges import require

from kgreference import Aggregate, Dialect, Limits, Merge, Outcome, Ranks, Shortest, rank_answers, score_answers, search

sys.path.insert(0, str(Path(__file__).parents[1] / "dialects"))

from random_dialects import random_dialect

TIERS = (30, pytest.param(100, marks=pytest.mark.deep), pytest.param(25_000, marks=pytest.mark.exhaustive))
"""Programs of each tier; those of the last have more than 100,000 queries in both tests."""

RARE = (
    "a child that is not kept",
    "a gap between places",
    "a path without kept children",
    "a tie at the edge of the beam",
    "DEPTH_LIMIT",
    "ends at several levels",
    "limited",
    "merged by sum",
    "samples not greedy",
    "several proofs, noisy_or",
    "several proofs, sum",
)
"""Conditions that must occur."""

DIAMOND = "p(X, Y) <- q(X, Y)\np(X, Y) <- r(X, Y)\nq(X, Y) <- s(X, Y)\nr(X, Y) <- s(X, Y)\ns(X, Y) <- t(X, X)\nt(a, a)"
TWO_PROOFS = "p(X, Y) <- q(X, Y)\np(X, Y) <- r(X, Y)\nq(X, Y) <- s(X, X)\nr(X, Y) <- s(Y, Y)\ns(a, a)\ns(b, b)"


def search_for(text: str, query: str, **switches):
    program = program_of(text, query)
    return search(program, Limits(), Shortest(), goal_of(program, query)[0], Dialect(**switches))


@pytest.mark.parametrize(
    ("merge", "places", "probability"),
    [(Merge.NONE, [[0], [1]], 0.5), (Merge.MAX, [[0], [-2]], 0.5), (Merge.SUM, [[0], [-2]], 1.0)],
)
@pytest.mark.parametrize("kind", ["beam(2)", "all(2)"])
def test_paths_that_reach_the_same_goal_stay_apart_or_become_one(kind, merge, places, probability):
    found = search_for(DIAMOND, "p(a, b)", search=kind, merge=merge)
    assert [[place for place, _ in each.children] for each in found.levels[1]] == places
    assert len(found.levels[2]) == (2 if merge is Merge.NONE else 1)
    assert math.exp(found.log_probability) == pytest.approx(probability)


@pytest.mark.parametrize("kind", ["beam(2)", "all(2)", "sample(9, 1)"])
@pytest.mark.parametrize(
    ("aggregate", "probability"), [(Aggregate.MAX, 0.5), (Aggregate.SUM, 1.0), (Aggregate.NOISY_OR, 0.75)]
)
def test_several_proofs_are_aggregated_and_a_repeated_one_counts_once(kind, aggregate, probability):
    found = search_for(TWO_PROOFS, "p(a, b)", search=kind, aggregate=aggregate)
    assert len(found.ended) == (9 if kind.startswith("sample") else 2)
    assert (found.outcome, found.is_limited) == (Outcome.PROVED, False)
    assert math.exp(found.log_probability) == pytest.approx(probability)


def test_a_search_that_cuts_children_is_limited_and_one_that_ranks_them_is_not():
    assert search_for(TWO_PROOFS, "p(a, b)", search="all(1)").is_limited
    assert not search_for(TWO_PROOFS, "p(a, b)", search="beam(1)").is_limited


@pytest.mark.parametrize("aggregate", Aggregate)
@pytest.mark.parametrize(
    "log_probabilities", [[-2000.0, -2001.0], [-1e-18, -3.0], [1e-17], [0.0, -1.0], [-720.0, -741.0]]
)
def test_no_probability_is_too_small_or_too_close_to_one_to_be_aggregated(aggregate, log_probabilities):
    pool_proofs = importlib.import_module("kgreference.search").pool_proofs
    found = pool_proofs(Dialect(search="beam(2)", aggregate=aggregate), log_probabilities)
    assert max(log_probabilities) - 1e-15 <= found <= max(log_probabilities) + math.log(2)


@pytest.mark.parametrize(
    "text", ["beam", "beam(0)", "beam(-1)", "sample(4)", "sample(0, 1)", "all()", "", "Beam(2)", "beam(2) "]
)
def test_a_search_without_a_known_form_and_size_is_refused(text):
    with pytest.raises(ValueError, match="expected greedy, beam"):
        Dialect(search=text)


@pytest.mark.parametrize(
    "switches",
    [{"merge": Merge.SUM}, {"search": "sample(2, 1)", "merge": Merge.MAX}, {"aggregate": Aggregate.SUM}],
)
def test_a_search_without_anything_to_merge_or_to_aggregate_is_refused(switches):
    with pytest.raises(ValueError, match=r"found (merge|aggregate)"):
        Dialect(**switches)
    with pytest.raises(ValueError, match="not greedy"):
        search_for(TWO_PROOFS, "p(a, b)")


GRANDPARENTS = (
    "g(X, Y) <- p(X, Z), p(Z, Y)\ng(X, Y) <- s(X, Y)\np(a, b)\np(a, c)\np(b, d)\np(c, d)\np(c, e)\ns(a, f)\ns(x, y)"
)


@pytest.mark.parametrize(
    ("query", "size", "aggregate", "expected"),
    [
        # The rule with one atom has almost all of the probability; d is reached in two ways.
        ("g(a, Y)", 8, "max", "f d e"),
        ("g(a, Y)", 8, "sum", "f d e"),
        ("g(a, Y)", 1, "max", "f"),
        ("g(X, d)", 8, "max", "a"),
    ],
)
def test_a_beam_from_a_query_with_a_variable_reaches_answers(query, size, aggregate, expected):
    switches = {"aggregate": Aggregate(aggregate), "filters": FILTERS}
    found = search_for(GRANDPARENTS, query, search=f"beam({size})", **switches)
    names = found.start.program.constants
    scores = {names[entity]: math.exp(score) for entity, score in score_answers(found).items()}
    assert [*sorted(scores, key=lambda name: -scores[name])] == expected.split()
    if aggregate == "sum":
        assert scores["d"] == pytest.approx(3 * scores["e"])


def test_entities_that_no_proof_reaches_share_the_last_ranks():
    scores = {4: -1.0, 7: -0.5}
    assert rank_answers(scores, 4, [7, 1, 2, 3]) == Ranks(2.0, 2.0, 2.0)
    assert rank_answers(scores, 1, [7, 4, 2, 3]) == Ranks(3.0, 4.0, 5.0)
    assert rank_answers({}, 1, [2, 3]) == Ranks(1.0, 2.0, 3.0)


def test_a_proof_that_leaves_the_variable_free_reaches_every_constant():
    found = search_for("p(X, Y) <- q(X, X)\nq(a, a)\nr(b, c)", "p(a, Y)", search="beam(2)", filters=FILTERS)
    assert score_answers(found) == {0: 0.0, 1: 0.0, 2: 0.0}


@pytest.mark.parametrize(("query", "merge"), [("g(a, d)", Merge.NONE), ("g(X, Y)", Merge.NONE), ("g(a, Y)", Merge.MAX)])
def test_answers_are_those_of_one_variable_and_without_merging(query, merge):
    found = search_for(GRANDPARENTS, query, search="beam(2)", merge=merge)
    with pytest.raises(ValueError, match="one variable, and no merging"):
        score_answers(found)


@pytest.mark.parametrize("draw", [draw_cases, draw_fuzz_cases])
@pytest.mark.parametrize("num", [60, pytest.param(5000, marks=pytest.mark.exhaustive)])
def test_answers_are_the_constants_for_which_the_clauses_of_a_proof_prove_the_query(draw, num: int):
    seen: Counter[str] = Counter()
    assert judge_answers(list(islice(draw(6), num)), seen) == []
    assert not [name for name, times in seen.items() if times < num // 20], seen


@pytest.mark.parametrize("draw", [draw_cases, draw_fuzz_cases])
@pytest.mark.parametrize("num", TIERS)
def test_searches_are_those_that_an_enumeration_of_derivations_gives(draw, num: int):
    seen: Counter[str] = Counter()
    assert judge_searches(list(islice(draw(4), num)), seen, 4, random_dialect) == []
    assert seen["enumerated"] > num
    assert not [name for name in RARE if seen[name] < num // 100], seen


@pytest.mark.parametrize("num", TIERS)
def test_prolog_keeps_the_same_paths_of_every_beam(num: int):
    require(has_prolog(), "swipl")
    seen: Counter[str] = Counter()
    assert judge_beams(list(islice(draw_cases(5), num)), seen) == []
    assert judge_beams(list(islice(draw_fuzz_cases(5), num)), seen) == []
    assert seen["beams"] > 2 * num
    assert not [name for name in RARE[:7] if seen[name] < num // 100], seen


def keep_the_last_of_equal_children(module):
    def keep(dialect, query, level, children, sound=module.keep):
        name, size, _ = dialect.search_numbers
        if name != "beam":
            return sound(dialect, query, level, children)
        listed = [child for own in children for child in own]
        listed.reverse()
        listed.sort(key=lambda child: -child.log_probability)
        return [child._replace(place=place) for place, child in enumerate(listed[:size])]

    return {"keep": keep}


def merge_without_adding(module):
    def merge(dialect, kept, sound=module.merge):
        return (
            sound(Dialect(search=dialect.search, merge=Merge.MAX), kept)
            if dialect.merge is Merge.SUM
            else sound(dialect, kept)
        )

    return {"merge": merge}


def count_repeated_samples_twice(module):
    def aggregate(dialect, ended):
        proofs = [path.log_probability for path in ended if path.steps[-1].outcome is Outcome.PROVED]
        best = max(ended, key=lambda path: path.log_probability)
        if proofs:
            return Outcome.PROVED, module.pool_proofs(dialect, proofs)
        return best.steps[-1].outcome, best.log_probability

    return {"aggregate": aggregate}


def draw_by_the_level_alone(module):
    return {"draw": lambda seed, numbers, scores, sound=module.draw: sound(seed, (0, 0, 0, 0, numbers[-1]), scores)}


@pytest.mark.deep
@pytest.mark.parametrize(
    "plant",
    [keep_the_last_of_equal_children, merge_without_adding, count_repeated_samples_twice, draw_by_the_level_alone],
)
def test_the_enumeration_notices_a_wrong_search(plant, monkeypatch: pytest.MonkeyPatch):
    module = importlib.import_module("kgreference.search")
    for name, function in plant(module).items():
        monkeypatch.setattr(module, name, function)
    assert judge_searches(list(islice(draw_fuzz_cases(4), 60)), Counter(), 4) != []


def test_prolog_notices_a_beam_that_keeps_the_last_of_equal_children(monkeypatch: pytest.MonkeyPatch):
    require(has_prolog(), "swipl")
    module = importlib.import_module("kgreference.search")
    monkeypatch.setattr(module, "keep", keep_the_last_of_equal_children(module)["keep"])
    assert judge_beams(list(islice(draw_cases(5), 30)), Counter()) != []
