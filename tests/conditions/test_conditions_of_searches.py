"""The conditions of faults in searches with several paths."""

import random
import zlib
from typing import Any

import pytest
from msgspec.structs import replace
from problem_text import graph_of

import kgverify as kv
from kgverify.engines.plain.engine import PlainEngine
from kgverify.program.limits import Dialect
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.step.plain_step import SOUND, match_facts
from kgverify.step.search import ALL_SOUND, Kept, SearchStages, aggregate, draw_child, expand, merge, top_k

_DRAW = random.Random(3)
_RING = range(13)
BRANCHES = graph_of(
    "; ".join(
        (
            *(f"e(n{i:02}, n{i * 5 % 13:02})" for i in _RING),
            *(f"e(n{i:02}, n{(i * 3 + 1) % 13:02})" for i in _RING if i % 3),
            *(f"f(n{i:02}, n{i * 7 % 13:02})" for i in _RING),
            *(f"g(n{i:02}, n{i * 3 % 13:02})" for i in _RING[:9]),
            "w(n01, n02); w(n12, n12); w(n02, n05)",
            "r(X, Y) <- e(X, Z), r(Z, Y); r(X, Y) <- r(Y, X); r(X, Y) <- f(X, Z), e(Z, W), f(W, Y); r(X, X) <- f(X, Z)",
            "r(X, Y) <- w(Z, X), e(X, Y); e(X, Y) <- f(Y, X); w(X, n02) <- e(X, Z), f(Z, Z)",
            "s(X, Y) <- g(Z, W), f(X, Z), e(W, Y); s(X, Y) <- f(X, Z), f(Z, Y), s(Y, X)",
            "g(X, Y) <- e(Y, Z), f(Z, X); g(X, Y) <- f(X, Z), g(Z, Y); h(X, Y) <- f(X, Z), e(Z, Y)",
            "h(X, Y) <- f(X, Y); h(X, Y) <- f(X, Z), e(Z, Y); h(X, Y) <- g(Y, X); h(X, Y) <- w(X, Y), w(Y, X)",
            "k(X, Y) <- h(X, Y); k(X, Y) <- h(Y, X); k(X, Y) <- k(Y, X); u(X, Y) <- w(X, Y); v(X, Y) <- u(X, Y)",
            "m(X, Y) <- w(X, Z), w(Z, Y); m(X, Y) <- f(X, Y); v(X, Y) <- m(X, Y)",
            *dict.fromkeys(
                f"! {_DRAW.choice('efgwrshkmuv')}(n{_DRAW.randrange(13):02}, n{_DRAW.randrange(13):02})"
                for _ in range(60)
            ),
        )
    )
)
"""Relations of which some have many rules and others few, so that beams are full or not."""


def score_apart(situation, resolvents):
    """Return a score for each resolvent that seldom equals another."""
    return [-3 * zlib.crc32(repr((situation.goal, each.atoms)).encode()) / 2**32 for each in resolvents]


def score_in_steps(situation, resolvents):
    """Return scores of which many are equal."""
    return [-zlib.crc32(repr((situation.goal, each.atoms)).encode()) % 5 / 2 for each in resolvents]


def engine(searching: SearchStages = ALL_SOUND, **stages: Any) -> type[PlainEngine]:
    """Return an engine with these stages that shows none of them."""

    def make(self: PlainEngine, program: Any, limits: Any, policy: Any) -> None:
        PlainEngine.__init__(self, program, limits, policy, stages=SOUND._replace(**stages), searching=searching)
        self.info = replace(self.info, name="mine", mode="")

    return type("Mine", (PlainEngine,), {"__init__": make, "probe": None})


def causes_of(
    searching: SearchStages, score: Any, *, queries: int = 14, lockstep: bool = False, wrong: Any = None, **dialect: str
) -> Any:
    return kv.verify(
        BRANCHES,
        engine(searching, score=score, **(wrong or {})),
        reference=engine(score=score),
        queries=queries,
        corruptions=2,
        limits=kv.Limits(max_depth=5, max_atoms=4, max_resolvents=8, dialect=Dialect(**dialect)),
        equality=kv.Equality(determinism=False, minimum={}, lockstep=lockstep),
    ).causes


def kind_of(child, taken):
    return taken[child.parent].resolvents[child.choice].kind


def keep_fewer_later(draw, children, taken):
    return top_k(draw, children, taken)[: draw.search.size - (draw.level > 0)]


def keep_the_last_of_equals(draw, children, taken):
    return top_k(draw, children[::-1], taken)


def keep_the_last_of_equals_at_the_edge(draw, children, taken):
    kept, others = top_k(draw, children, taken), keep_the_last_of_equals(draw, children, taken)
    return kept if {each[:2] for each in kept} == {each[:2] for each in others} else others


def lose_proofs_of_full_beams(draw, children, taken):
    kept, is_full = top_k(draw, children, taken), len(taken) == draw.search.size
    return [each for each in kept if not is_full or kind_of(each, taken) != GoalKind.TRUE]


def find_parents_by_the_widest_path(draw, children, taken):
    width, places = max(len(each.resolvents) for each in taken.values()), list(taken)
    numbers = {child[:2]: i for i, child in enumerate(children)}
    kept = []
    for each in top_k(draw, children, taken):
        number = numbers[each[:2]]
        parent = places[min(number // width, len(places) - 1)]
        kept.append(each._replace(parent=parent, choice=min(number % width, len(taken[parent].resolvents) - 1)))
    return kept


def keep_two_of_each_path(draw, children, taken):
    ordered = sorted(children, key=lambda child: -child.log_probability)
    first = [c for i, c in enumerate(ordered) if [each.parent for each in ordered[:i]].count(c.parent) < 2]
    return top_k(draw, first, taken)


def draw_by_one_number(draw, children, taken):
    chosen = {place: draw_child(draw, 0, each) for place, each in taken.items()}
    return [Kept(c.parent, c.choice, c.parent, c.log_probability) for c in children if chosen[c.parent] == c.choice]


def keep_the_first_of_the_last_sample(draw, children, taken):
    last = draw.search.size - 1
    chosen = {place: draw_child(draw, place, each) if place < last else 0 for place, each in taken.items()}
    return [Kept(c.parent, c.choice, c.parent, c.log_probability) for c in children if chosen[c.parent] == c.choice]


def read_by_place(beam, taken):
    sums = [path.log_probability for path in beam]
    return expand([p._replace(log_probability=(*sums, *[0.0] * 9)[p.place]) for p in beam], taken)


def merge_without_adding(dialect, kept, taken):
    return merge(replace(dialect, merge="max"), kept, taken)


def close_places(dialect, kept, taken):
    merged = merge(dialect, kept, taken)
    places = {each.place: i for i, each in enumerate(each for each in merged if each.merged_into < 0)}
    return [
        each._replace(place=places[each.place])
        if each.merged_into < 0
        else each._replace(merged_into=places[each.merged_into])
        for each in merged
    ]


def take_the_maximum(dialect, ended):
    return aggregate(replace(dialect, aggregate="max"), ended)


def count_repeated_samples(dialect, ended):
    return aggregate(dialect, [each._replace(choices=(*each.choices, i)) for i, each in enumerate(ended)])


def take_any_best(dialect, ended):
    best = max(ended, key=lambda each: each.log_probability)
    return best.outcome, best.log_probability


def take_the_first_proof(dialect, ended):
    proofs = [each for each in ended if each.outcome is Outcome.PROVED]
    return (Outcome.PROVED, proofs[0].log_probability) if proofs else aggregate(dialect, ended)


BEAM = {"search": "beam(4)"}
SAMPLE = {"search": "sample(6, 3)"}
FAULTS: dict[str, tuple[dict[str, Any], Any, dict[str, str], str]] = {
    "narrow path": (
        {"top_k": find_parents_by_the_widest_path},
        score_apart,
        BEAM,
        "levels with a kept child of a path behind one that has fewer children than another",
    ),
    "sum": (
        {"merge": merge_without_adding},
        score_apart,
        {"search": "beam(6)", "merge": "sum"},
        "levels with two kept children of the same goal",
    ),
    "repeated samples": (
        {"aggregate": count_repeated_samples},
        score_in_steps,
        {**SAMPLE, "aggregate": "sum"},
        "candidates with two samples of the same proof",
    ),
}
"""The wrong stages, the score, the dialect, and the words of the condition of each fault."""

FURTHER: dict[str, tuple[dict[str, Any], Any, dict[str, str], str]] = {
    "fewer later": (
        {"top_k": keep_fewer_later},
        score_in_steps,
        BEAM,
        "levels with at least as many children as may be kept and at level 1 or later (from 0)",
    ),
    "tie": (
        {"top_k": keep_the_last_of_equals},
        score_in_steps,
        BEAM,
        "levels with two children of equal log-probability, at least one of them kept",
    ),
    "tie at the edge": (
        {"top_k": keep_the_last_of_equals_at_the_edge},
        score_in_steps,
        BEAM,
        "levels with two children of equal log-probability at the edge of the beam, one kept and one not",
    ),
    "lost proof": (
        {"top_k": lose_proofs_of_full_beams},
        score_in_steps,
        {"search": "beam(3)"},
        "levels of full beams and with a proof among the kept children",
    ),
    "two of a path": (
        {"top_k": keep_two_of_each_path},
        score_apart,
        BEAM,
        "levels with 3 or more kept children of one path",
    ),
    "last sample": (
        {"top_k": keep_the_first_of_the_last_sample},
        score_in_steps,
        SAMPLE,
        "steps at the last place of a full beam and whose best child has the index 1 or more (from 0)",
    ),
    "one number": (
        {"top_k": draw_by_one_number},
        score_in_steps,
        SAMPLE,
        'levels that the mistake "every sample draws the number of the first one" changes',
    ),
    "gaps": (
        {"expand": read_by_place},
        score_apart,
        {"search": "beam(6)"},
        "levels of beams with gaps in their places",
    ),
    "closed places": (
        {"merge": close_places},
        score_apart,
        {"search": "beam(8)", "merge": "max"},
        "levels whose kept children leave gaps in their places",
    ),
    "maximum": (
        {"aggregate": take_the_maximum},
        score_in_steps,
        {"search": "beam(6)", "aggregate": "noisy_or"},
        "candidates with 2 or more proofs of the search",
    ),
    "any best": (
        {"aggregate": take_any_best},
        score_apart,
        {"search": "beam(6)"},
        "candidates with a proof, and a path without a proof that is more probable than every proof",
    ),
    "first proof": (
        {"aggregate": take_the_first_proof},
        score_apart,
        {"search": "beam(6)"},
        "candidates whose first proof is not the most probable one",
    ),
}
"""Faults whose conditions need more candidates."""


@pytest.mark.parametrize("name", FAULTS)
def test_the_condition_of_a_wrong_level_is_stated(name: str):
    stages, score, dialect, words = FAULTS[name]
    cause, *_ = causes_of(ALL_SOUND._replace(**stages), score, **dialect)
    assert f"the {words} are wrong" in cause.condition
    assert cause.when.is_exact


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FURTHER)
def test_the_condition_of_a_level_that_is_seldom_wrong_is_stated(name: str):
    stages, score, dialect, words = FURTHER[name]
    cause, *_ = causes_of(ALL_SOUND._replace(**stages), score, queries=40, **dialect)
    assert f"the {words} are wrong" in cause.condition
    assert cause.when.is_exact


@pytest.mark.deep
def test_in_lockstep_every_level_counts():
    stages, score, dialect, words = FAULTS["sum"]
    free, locked = (
        causes_of(ALL_SOUND._replace(**stages), score, lockstep=each, **dialect)[0] for each in (False, True)
    )
    assert f"the {words} are wrong" in locked.condition
    assert locked.when.num_wrong > free.when.num_wrong


@pytest.mark.deep
@pytest.mark.usefixtures("experiments")
def test_the_steps_of_a_path_come_from_its_own_chain_of_parents():
    def lose_the_last_fact(situation, selected):
        facts = match_facts(situation, selected)
        return facts[:-1] if len(situation.visited) > 1 else facts

    (cause, *_) = causes_of(ALL_SOUND, score_in_steps, queries=25, wrong={"match_facts": lose_the_last_fact}, **BEAM)
    assert "confirmed by experiment" in cause.condition
    assert "at depth 1 or later" in cause.condition
