"""Evaluators of other people rank as ours does, and one that does not is noticed."""

import importlib
import warnings

import pytest
from third_party_rankers import RANKERS, judge

MODULES = {
    "ogb": "ogb",
    "pykeen": "pykeen",
    "pytrec_eval": "pytrec_eval",
    "sklearn": "sklearn",
    "tgb": "tgb",
    "torch_geometric": "torch_geometric",
    "torchkge": "torchkge",
    "torchmetrics": "torchmetrics",
}
QUICK = {"sklearn"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "package", [each if each in QUICK else pytest.param(each, marks=pytest.mark.deep) for each in RANKERS]
)
def test_an_evaluator_ranks_as_ours_does(package):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(MODULES[package])
        counts, examples = judge(package, seed=3, num_graphs=6)
    assert not examples, examples[0]
    assert not counts["judges differ"]
    assert counts["ties"] > 50
    assert counts["problems"] > 200


def test_a_wrong_rank_is_noticed(monkeypatch):
    pytest.importorskip("sklearn")
    judge("sklearn", seed=3, num_graphs=0)
    adapter = importlib.import_module("sklearn_adapter")
    coverage_error = adapter.coverage_error
    monkeypatch.setattr(adapter, "coverage_error", lambda *given: coverage_error(*given) + 1)
    counts, _ = judge("sklearn", seed=3, num_graphs=3)
    assert counts["differs"] == counts["problems"] > 0
