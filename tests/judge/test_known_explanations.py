"""Edited steps are explained as in the stored explanations, to the last detail."""

import json

import pytest
from known_explanations import EDITS, MIXED, MODULO, PATH, explanations, normal_forms

KNOWN = json.loads(PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("edit", [*EDITS, *MIXED])
def test_an_edited_step_is_explained_as_it_was(edit: str):
    assert explanations(edit) == KNOWN[edit]


@pytest.mark.parametrize("modulo", MODULO)
def test_outputs_have_the_normal_form_that_they_had(modulo: str):
    assert normal_forms(modulo) == KNOWN[f"modulo {modulo}"]
