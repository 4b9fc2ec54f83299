"""The shrinker makes the attempts that it made, on problems that fail by a rule of their text and on slices of a graph."""

import json

import pytest
from known_shrinks import ANSWERS, FAILS, PATH, shrink_kept


@pytest.mark.parametrize("name", ANSWERS)
def test_a_shrink_is_what_it_was(name: str):
    assert ANSWERS[name]() == json.loads(PATH.read_text(encoding="utf-8"))[name]


def test_a_finished_shrink_fails_by_its_rule():
    for problem, oracle, shrunk in shrink_kept("a long rule"):
        assert FAILS["a long rule"][1](problem)
        assert shrunk.is_finished or oracle.calls == 40
