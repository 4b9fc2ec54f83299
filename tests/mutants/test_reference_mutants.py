"""Every wrong edit of the reference is found by a judge that is not the compiled engine."""

import os
import shutil
from pathlib import Path

import pytest
from reference_mutants import judge_reference, read_mutants
from semantic_edits import SemanticEdit

MUTANTS = read_mutants()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Prolog's answers, which are the same for every mutant."""
    pytest.importorskip("clingo")
    if shutil.which("swipl") is None:
        if os.environ.get("CI"):
            pytest.fail("swipl is not installed")
        pytest.skip("swipl is not installed")
    return tmp_path_factory.mktemp("answers")


@pytest.mark.exhaustive
def test_the_reference_as_it_is_passes_every_judge(kept: Path) -> None:
    assert not judge_reference(None, kept).is_caught


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_judge_finds_the_edit(mutant: SemanticEdit, kept: Path) -> None:
    assert judge_reference(mutant, kept).is_caught
