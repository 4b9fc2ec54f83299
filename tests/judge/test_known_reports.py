"""Reports, pages and listings about wrong engines of many kinds are those that were stored, to the word."""

import json

import pytest
from known_reports import KINDS, PATH, answer_to

KNOWN = json.loads(PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_engine_is_reported_as_it_was(kind: str):
    names = [name for name in KNOWN if name.partition(": ")[0] == kind]
    assert names
    assert {name: answer_to(name) for name in names} == {name: KNOWN[name] for name in names}
