"""The generator, and what is made of its problems, give what they gave: the same problems, runs and features."""

import json

import pytest
from known_problems import KNOWN, PATH, answer_to


@pytest.mark.parametrize("name", KNOWN)
def test_generated_problems_are_what_they_were(name: str):
    assert answer_to(name) == json.loads(PATH.read_text(encoding="utf-8"))[name]
