"""A user's function, or torch module, as the policy of both sides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import kgverify as kv

torch = pytest.importorskip("torch")

FEW = {"queries": 3, "corruptions": 8}
GRAPH = kv.load_graph("countries")
NUM_VARIABLES = 12


def count_atoms(goal: Any, resolvents: Any) -> Any:
    """Prefer few atoms, then constants of high numbers."""
    is_atom = resolvents[..., 0] >= 0
    return -is_atom.sum(1) + np.where(is_atom, resolvents[..., 2], 0).max(1) / 1000


class Network(torch.nn.Module):  # type: ignore[misc]  # torch is not imported by name
    """The product of the mean embeddings of a goal and a resolvent."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        symbols = GRAPH.program.symbols
        self.of_predicate = torch.nn.Embedding(len(symbols.predicates), 8)
        self.of_term = torch.nn.Embedding(NUM_VARIABLES + len(symbols.constants), 8)

    def forward(self, goal: Any, resolvents: Any) -> Any:
        return self.embed(resolvents) @ self.embed(goal)

    def embed(self, atoms: Any) -> Any:
        """Return the sum over the atoms of each state: [..., A, 3] to [..., 8]."""
        is_atom = atoms[..., :1] >= 0
        predicate, first, second = (atoms + torch.tensor([0, NUM_VARIABLES, NUM_VARIABLES])).clamp(min=0).unbind(-1)
        each = self.of_predicate(predicate) + self.of_term(first) - self.of_term(second)
        return (each * is_atom).sum(-2)


@pytest.mark.parametrize(
    "policy", [count_atoms, pytest.param(Network(), marks=pytest.mark.deep)], ids=["numpy", "torch"]
)
def test_both_sides_choose_by_the_users_scores(policy: Any):
    report = kv.verify(GRAPH, policy=policy, **FEW)
    assert report.verdict is kv.Verdict.AGREE
    assert (report.environment.actual.mode, report.policy.name) == (
        "plain",
        f"{'count_atoms' if policy is count_atoms else 'Network'}()",
    )
    assert any("the only one that calls" in reason for reason in report.reasons_of_actual)
    broken = kv.verify(GRAPH, kv.Evaluator(faults=["fact-cap"]), policy=policy, queries=6, corruptions=8)
    assert broken.verdict is kv.Verdict.DIVERGE
    evaluated = kv.evaluate(GRAPH, policy=policy, **FEW)
    assert (evaluated.is_sound, evaluated.engine.mode) == (True, "plain")


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_recorded_scores_are_those_of_the_function_on_the_recorded_states(engine: str, tmp_path: Path):
    """The function is called with the atoms in the ids of the program, padded."""
    called = []

    def remember(goal: Any, resolvents: Any) -> Any:
        assert goal.dtype == resolvents.dtype == np.int32
        assert goal.ndim == 2
        assert resolvents.ndim == 3
        called.append((goal, resolvents))
        return count_atoms(goal, resolvents)

    kv.record(GRAPH, tmp_path / "run", engine, policy=remember, **FEW)
    steps = kv.open_trace(tmp_path / "run").to_pandas("steps")
    scored = {tuple(count_atoms(*each)) for each in called}
    recorded = [tuple(each["score"] for each in row if each["kind"] == "GOAL") for row in steps["resolvents"]]
    recorded = [scores for scores in recorded if scores]
    assert recorded
    assert set(recorded) <= scored
    lengths = {int((resolvents[..., 0] >= 0).sum(1).min()) for _, resolvents in called if len(resolvents) > 1}
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda goal, resolvents: np.zeros(len(resolvents) + 1), r"finite scores, found shape \(\d+,\)"),
        (lambda goal, resolvents: resolvents.sum(1), r"finite scores, found shape \(\d+, 3\)"),
        (lambda goal, resolvents: [float("nan")] * len(resolvents), "found numbers that are not finite"),
        (lambda goal: 1, r"raised TypeError: .* takes 1 positional argument but 2 were given"),
    ],
)
def test_anything_but_a_score_for_each_resolvent_is_refused(function: Any, words: str):
    with pytest.raises(kv.UserError, match=words):
        kv.verify(GRAPH, policy=function, **FEW)


def test_a_file_of_torch_save_is_never_unpickled(tmp_path: Path):
    torch.save(Network().state_dict(), tmp_path / "weights.pt")
    torch.save(Network().state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("weights.pt", "old.pt"):
        with pytest.raises(kv.UserError, match=r"was written by torch\.save as a pickle") as refused:
            kv.verify(GRAPH, policy=str(tmp_path / name), **FEW)
        assert "weights_only=True" in refused.value.fix
    save_file({"layer": np.zeros((2, 2), np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(kv.UserError, match=r"expected a tensor 'embedding\.predicate', found layer") as refused:
        kv.verify(GRAPH, policy=str(tmp_path / "other.safetensors"), **FEW)
    assert "give your network itself as policy" in refused.value.fix


def test_a_function_stays_in_its_process():
    with pytest.raises(kv.UserError, match=r"count_atoms\(\) is a function of this process"):
        kv.verify(GRAPH, policy=count_atoms, reference=kv.Reference(jobs=2), **FEW)
