"""Every reproducer in this folder fails with its fault as recorded, and agrees without it."""

import json
from pathlib import Path

import pytest
from invoked_commands import invoke

import kgverify as kv
from kgverify.laws import render_reproducer
from kgverify.testing.reproducers.text_format import read_reproducer

FILES = sorted(Path(__file__).parent.rglob("*.kg"))


def are_equal(found: str, stored: str, rel: float) -> bool:
    """Compare two values of a file: numbers up to a relative error, other texts letter by letter."""
    try:
        return float(found) == pytest.approx(float(stored), rel=rel, abs=0, nan_ok=True)
    except ValueError:
        return found == stored


def test_there_is_one_for_each_fault_of_the_catalogue_with_its_stage_and_class(tmp_path: Path):
    assert invoke("diff --fault list --json faults.json", tmp_path).exit_code == 0
    faults = {fault["name"]: fault for fault in json.loads((tmp_path / "faults.json").read_text())["faults"]}
    found = {name: made for made in map(read_reproducer, FILES) for name in made.engine.faults}
    assert found.keys() == faults.keys()
    for name, reproducer in found.items():
        # Where nothing else is left to be drawn, a known triple is one too many.
        kind = "extra" if name == "known-triples" else faults[name]["expected_kind"]
        assert reproducer.signature[:3:2] == (faults[name]["stage"], kind)


@pytest.mark.sample(20)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_fault_diverges_in_the_same_way_with_the_same_values_and_without_it_the_evaluator_agrees(file: Path):
    made = read_reproducer(file)
    sound = kv.Evaluator(mode=made.engine.mode, device=made.engine.device)
    assert kv.replay(made, sound).verdict is kv.Verdict.AGREE
    found = kv.replay(file)
    assert render_reproducer(made) == file.read_text(encoding="utf-8")
    if made.engine.faults:
        assert found.is_same, str(found)
        again = found.failure.divergence
        assert (found.failure.signature, again.atom, again.step) == (made.signature, made.candidate, made.step)
        # Sums depend on the order in which a processor adds: those of float64 in the reference, of float32 in the evaluator.
        for value, stored, rel in ((again.expected, made.expected, 1e-12), (again.actual, made.actual, 1e-6)):
            lines = [*map(str, value)] if isinstance(value, list) else [str(value)]
            assert all(are_equal(*pair, rel) for pair in zip(lines, stored, strict=True)), (lines, stored)
