"""The examples of environments agree with what they replace, and their planted faults are found."""

from pathlib import Path

import pytest

import kgverify as kv

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "environments"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("file", "expected", "right", "wrong", "stage", "field"),
    [
        ("prover.py", "plain", "batched", "capped", "mask", "mask[3]"),
        ("cartpole.py", "single", "batched", "wrong", "transition", "observation"),
    ],
)
def test_the_batch_agrees_and_the_wrong_one_does_not(
    file: str, expected: str, right: str, wrong: str, stage: str, field: str
):
    sides = [f"{FOLDER / file}:{name}" for name in (expected, right, wrong)]
    agreeing = kv.verify_env(*sides[:2], slots=4, steps=60)
    assert agreeing.verdict is kv.Verdict.AGREE, str(agreeing)
    first = kv.verify_env(sides[0], sides[2], slots=4, steps=60).first_divergence
    assert (first.stage, first.field) == (stage, field)
