"""The keyed draw of corruptions."""

import itertools
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from judges import draws
from reference_programs import program_of

from kgreference import HEAD, TAIL, Atom, Corrupter, Program, mix
from kgreference.corrupt import mix_all

NAMES = [f"c{number}" for number in range(30)]


SPLITMIX64 = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
"""The published sequence for the seed 1234567."""


@pytest.fixture
def program():
    return Program.from_names([("p", "c0", "c1"), ("q", "c2", "c3")], constants=NAMES)


def test_the_mixer_is_splitmix64():
    gamma = 0x9E3779B97F4A7C15
    states = [(1234567 + n * gamma) % 2**64 for n in range(5)]
    assert [mix(state) for state in states] == [draws.mix(state) for state in states] == SPLITMIX64
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(2**64) == mix(0)
    assert mix_all(np.array(states, np.uint64)).tolist() == SPLITMIX64


@pytest.mark.parametrize(
    "num", [50, pytest.param(400, marks=pytest.mark.deep), pytest.param(10_000, marks=pytest.mark.exhaustive)]
)
def test_every_draw_is_the_one_that_the_definition_gives_in_plain_integers(num):
    seen = Counter()
    assert draws.judge_draws(list(islice(draws.draw_cases(1), num)), seen) == []
    assert seen["draws"] > 5 * num
    assert not [name for name, count in seen.items() if count < num // 50], seen


def test_the_drawn_entities_have_the_least_priorities(program):
    query = Atom(0, 0, 1)
    corrupter = Corrupter(program, [query])
    key = mix(mix(mix(17) ^ 4) ^ TAIL)
    priorities = {mix(key ^ entity): entity for entity in range(30) if entity != 1}
    drawn = sorted(priorities[priority] for priority in sorted(priorities)[:7])
    assert corrupter.draw(query, 4, TAIL, 7, 17) == [Atom(0, 0, entity) for entity in drawn]
    assert corrupter.candidates(query, 4, TAIL, 7, 17)[0] == query


def test_the_query_and_the_known_triples_are_never_drawn(program):
    known = [Atom(0, 0, 1), Atom(0, 0, 5), Atom(1, 0, 6), Atom(0, 7, 1)]
    corrupter = Corrupter(program, known)
    query = Atom(0, 0, 9)
    assert corrupter.draw(query, 0, TAIL, None, 0) == [Atom(0, 0, e) for e in range(30) if e not in (1, 5, 9)]
    assert corrupter.draw(Atom(0, 3, 1), 0, HEAD, None, 0) == [Atom(0, e, 1) for e in range(30) if e not in (0, 3, 7)]


def test_fewer_corruptions_are_drawn_where_fewer_are_eligible(program):
    corrupter = Corrupter(program, [Atom(0, 0, 1)])
    everything = corrupter.draw(Atom(0, 0, 1), 0, HEAD, None, 0)
    assert corrupter.draw(Atom(0, 0, 1), 0, HEAD, 1000, 0) == everything
    assert len(everything) == 29
    assert corrupter.draw(Atom(0, 0, 1), 0, HEAD, 0, 0) == []


def test_the_draw_depends_on_seed_index_and_side(program):
    corrupter = Corrupter(program, [Atom(0, 1, 1)])

    def drawn(index, side, seed):
        replaced = corrupter.draw(Atom(0, 1, 1), index, side, 8, seed)
        return tuple(atom[1 + side] for atom in replaced)

    assert drawn(3, HEAD, 9) == drawn(3, HEAD, 9)
    assert len({drawn(3, HEAD, 9), drawn(4, HEAD, 9), drawn(3, TAIL, 9), drawn(3, HEAD, 8)}) == 4


def test_a_smaller_draw_is_part_of_a_larger_one(program):
    corrupter = Corrupter(program, [Atom(0, 1, 1)])
    draws = [set(corrupter.draw(Atom(0, 1, 1), 2, HEAD, k, 0)) for k in range(30)]
    assert all(small < large for small, large in itertools.pairwise(draws))


def test_every_entity_is_drawn_about_equally_often(program):
    corrupter = Corrupter(program, [Atom(0, 1, 1)])
    counts = Counter(atom.first for index in range(2900) for atom in corrupter.draw(Atom(0, 1, 1), index, HEAD, 3, 0))
    assert len(counts) == 29
    assert all(230 < count < 370 for count in counts.values())  # 300 expected, standard deviation 16


def test_a_domain_is_the_union_of_those_that_hold_a_seen_constant():
    program = program_of("p(a, x)\np(b, y)\nq(a, a)")
    known = program.facts
    domains = {"people": ["a", "c"], "robots": ["b", "d"], "places": ["x", "y", "a"], "empty": []}
    program = Program.from_names([program.decode(fact) for fact in known], constants=["c", "d"])
    corrupter = Corrupter(program, known, domains)

    def names(predicate, side):
        return {program.constants[entity] for entity in corrupter.domain(predicate, side)}

    assert names(0, HEAD) == {"a", "b", "c", "d", "x", "y"}
    assert names(0, TAIL) == {"x", "y", "a"}
    assert names(1, HEAD) == {"a", "c", "x", "y"}
    assert list(corrupter.domain(0, HEAD)) == sorted(corrupter.domain(0, HEAD))


def test_the_entities_of_a_domain_ascend_where_a_set_has_them_otherwise(program):
    corrupter = Corrupter(program, [Atom(0, 8, 1)], {"few": ["c24", "c16", "c8", "c1"]})
    assert list(frozenset((8, 1))) == [8, 1]
    assert list(corrupter.domain(0, HEAD)) == [1, 8, 16, 24]
    assert corrupter.draw(Atom(0, 8, 1), 0, HEAD, None, 0) == [Atom(0, e, 1) for e in (1, 16, 24)]


def test_a_seen_constant_without_a_domain_opens_the_argument_to_all():
    program = program_of("p(a, x)\np(b, y)")
    corrupter = Corrupter(program, program.facts, {"places": ["x", "y"], "people": ["a"]})
    assert list(corrupter.domain(0, HEAD)) == [0, 1, 2, 3]
    assert [program.constants[entity] for entity in corrupter.domain(0, TAIL)] == ["x", "y"]
    assert list(Corrupter(program, program.facts).domain(0, TAIL)) == [0, 1, 2, 3]


def test_a_side_is_head_or_tail(program):
    with pytest.raises(ValueError, match="side"):
        Corrupter(program, []).draw(Atom(0, 0, 0), 0, 2, 1, 0)
