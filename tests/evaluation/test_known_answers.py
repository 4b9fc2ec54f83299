"""The known answers hold, and a wrong edit of what they judge is found."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_answers.checks import check_known_checks
from evaluation_answers.evaluations import check_known_evaluation
from evaluation_answers.known_models import check_known_models
from known_folder import check_known_folder

from kgverify.errors import InternalError
from kgverify.evaluation import judge, parts, proving
from kgverify.evaluation.parts import PartResult
from kgverify.prover.program import least_model
from kgverify.runs.run import Part


def test_known_answers_hold():
    check_known_models("cpu")
    check_known_checks(check_known_evaluation("cpu"))
    check_known_folder()


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (judge, "_NUM_OUTSIDE", 1),
        (judge, "SHARE", 0.02),
        (judge, "_EXACT", 1e-6),
        (judge, "ranks_above_unproved", lambda outcome, score: np.ones(len(outcome), np.bool_)),
        (judge, "RANK_TOLERANCE", 2.0),
    ],
)
def test_a_wrong_check_of_evaluations_is_found(owner: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(InternalError, match="the check"):
        check_known_checks(check_known_evaluation("cpu"))


def test_a_least_model_without_its_last_round_is_found(monkeypatch: pytest.MonkeyPatch):
    apply = least_model.LeastModel._apply
    monkeypatch.setattr(
        least_model.LeastModel, "_apply", lambda self, rules: self.num_rounds < 3 and apply(self, rules)
    )
    with pytest.raises(InternalError, match="known program 0"):
        check_known_models("cpu")


def test_endings_counted_for_other_rankings_are_found(monkeypatch: pytest.MonkeyPatch):
    def summarize(*arguments: object) -> PartResult:
        result = parts.summarize_part(*arguments)  # type: ignore[arg-type]  # the arguments as they are
        return result._replace(num_limited=np.roll(result.num_limited, 1))

    monkeypatch.setattr(proving, "summarize_part", summarize)
    with pytest.raises(InternalError, match="known evaluation"):
        check_known_evaluation("cpu")


def test_a_file_that_is_read_for_another_part_is_found(monkeypatch: pytest.MonkeyPatch):
    def read(path: Path, part: Part, identities: Collection[str]) -> PartResult:
        with np.load(path) as file:
            return parts.build_result(file)

    monkeypatch.setattr(parts, "read_part", read)
    with pytest.raises(InternalError, match="resumed with another"):
        check_known_folder()


def test_a_folder_that_opens_for_any_evaluation_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parts, "_list_differences", lambda found, given: [])
    with pytest.raises(InternalError, match="resumed with another"):
        check_known_folder()
