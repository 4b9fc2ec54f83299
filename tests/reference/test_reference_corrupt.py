"""The keyed draw of corruptions."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from judges import draws
from reference_programs import program_of

from kgreference import HEAD, TAIL, Atom, Corrupter, Program, mix
from kgreference.corrupt import mix_all

SPLITMIX64 = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
"""The published sequence for the seed 1234567."""


@pytest.fixture
def program():
    return Program.from_names([("p", "c0", "c1"), ("q", "c2", "c3")], constants=[f"c{number}" for number in range(30)])


def test_the_mixer_is_splitmix64():
    gamma = 0x9E3779B97F4A7C15
    states = [(1234567 + n * gamma) % 2**64 for n in range(5)]
    assert [mix(state) for state in states] == [draws.mix(state) for state in states] == SPLITMIX64
    assert mix(2**64) == mix(0) == 0xE220A8397B1DCDAF
    assert mix_all(np.array(states, np.uint64)).tolist() == SPLITMIX64


@pytest.mark.parametrize("num", [50, pytest.param(200, marks=pytest.mark.deep)])
def test_every_draw_is_the_one_that_the_definition_gives_in_plain_integers(num):
    seen = Counter()
    assert draws.judge_draws(list(islice(draws.draw_cases(1), num)), seen) == []
    assert seen["draws"] > 5 * num
    assert not [name for name, count in seen.items() if count < num // 50], seen


def test_every_entity_is_drawn_about_equally_often(program):
    corrupter = Corrupter(program, [Atom(0, 1, 1)])
    counts = Counter(atom.first for index in range(2900) for atom in corrupter.draw(Atom(0, 1, 1), index, HEAD, 3, 0))
    assert len(counts) == 29
    assert all(230 < count < 370 for count in counts.values())  # 300 expected, standard deviation 16


def test_a_domain_is_the_union_of_those_that_hold_a_seen_constant():
    program = Program.from_names([("p", "a", "x"), ("p", "b", "y"), ("q", "a", "a")], constants=["c", "d"])
    domains = {"people": ["a", "c"], "robots": ["b", "d"], "places": ["x", "y", "a"], "empty": []}
    corrupter = Corrupter(program, program.facts, domains)

    def names(predicate, side):
        return {program.constants[entity] for entity in corrupter.domain(predicate, side)}

    assert (names(0, HEAD), names(0, TAIL), names(1, HEAD)) == (set("abcdxy"), set("xya"), set("acxy"))
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


def test_a_side_is_head_or_tail(program):
    with pytest.raises(ValueError, match="side"):
        Corrupter(program, []).draw(Atom(0, 0, 0), 0, 2, 1, 0)
