"""`kgverify doctor --self-test`: every evaluator of the machine agrees, and the planted faults are found."""

import pytest

from kgverify import Evaluator
from kgverify.api.doctor import State, try_installation


def test_the_evaluator_without_torch_and_its_faults_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Evaluator, "list_modes", lambda self: ["plain"])
    findings = list(try_installation())
    assert findings[0].name == "self-test: mode plain"
    assert len(findings) == 4
    assert all(each.state is State.PRESENT for each in findings), findings


@pytest.mark.parametrize(
    "compiles",
    [
        # Compiled ticks take a minute; the deep tier compares them with eager ones in tests/prover.
        pytest.param(True, marks=pytest.mark.exhaustive),
        pytest.param(False, marks=pytest.mark.deep),
    ],
)
def test_every_evaluator_of_this_machine_passes(compiles: bool, monkeypatch: pytest.MonkeyPatch):
    if not compiles:
        monkeypatch.setattr(Evaluator, "why_not_compiled", lambda self: "left out")
    findings = list(try_installation())
    assert {"self-test: mode native", "self-test: mode eager"} <= {each.name for each in findings}
    assert all(each.state is State.PRESENT for each in findings), findings
