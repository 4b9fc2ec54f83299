"""The known figures: worked out by hand, they notice a mistake in whatever computes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from judge_answers import figures
from judge_answers.figures import check_known_figures

from kgverify.errors import InternalError
from kgverify.verification import attribute


def test_the_known_figures_are_computed():
    check_known_figures.__wrapped__()
    names = [name for name, _, _ in figures.figures()]
    assert len(names) == len(set(names)) >= 15


def _with(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given, **options: change(function(*given, **options))


@pytest.mark.parametrize(
    ("name", "change", "figure"),
    [
        ("count_above", lambda counts: counts._replace(tied=np.minimum(counts.tied, 255)), "300 ties"),
        ("give_ranks", lambda ranks: ranks._replace(pessimistic=ranks.optimistic), "300 ties"),
        ("find_truth", lambda truth: truth._replace(atom=truth.atom + 1), "300 ties"),
        ("renumber", lambda atoms: np.maximum(atoms, -(1 << 15)), "many variables"),
        ("judge_tolerance", lambda found: found._replace(value=2 * found.value), "both errors"),
        ("accept_score_error", lambda error: error / 2, "accepted errors"),
        ("name_precision", lambda name: "bf16", "precisions"),
        ("bound_score_errors", lambda bounds: {**bounds, "tf32": 50.0}, "bounds of a small network"),
    ],
)
def test_a_mistake_in_a_figure_is_a_bug(name: str, change: Any, figure: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, name, _with(getattr(figures, name), change))
    with pytest.raises(InternalError, match=f"known figure '{figure}"):
        check_known_figures.__wrapped__()


@pytest.mark.parametrize("wrong", ["_exact_shares", "align_candidates"])
def test_a_mistake_in_the_shares_of_the_loss_is_a_bug(wrong: str, monkeypatch: pytest.MonkeyPatch):
    def turn(found: Any) -> Any:
        return found[::-1] if isinstance(found, list) else found._replace(missing=found.missing[:0])

    monkeypatch.setattr(attribute, wrong, _with(getattr(attribute, wrong), turn))
    with pytest.raises(InternalError, match=r"known figure '(two causes|other candidates)"):
        check_known_figures.__wrapped__()
