"""The judge's verdict on a trace of which one column is altered is the reviewed one, to the last detail."""

import json

import pytest
from known_alterations import PATH, column_names, judge_alterations

KNOWN = json.loads(PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("column", KNOWN)
def test_an_altered_column_is_judged_as_it_was(column: str):
    assert judge_alterations(column) == KNOWN[column]


def test_every_column_is_altered():
    assert {*KNOWN} == {*column_names()}
