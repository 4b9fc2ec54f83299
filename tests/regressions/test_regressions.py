"""Every reproducer in this folder fails with its fault as recorded, and agrees without it."""

from pathlib import Path

import pytest

from kgverify.laws import render_reproducer
from kgverify.laws.replay import assert_agrees, replay
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.engine_makers import EAGER, find_maker
from kgverify.testing.reproducers.text_format import SUFFIX, make_reproducer, read_reproducer

FILES = sorted(Path(__file__).parent.rglob(f"*{SUFFIX}"))


def are_equal(found: str, stored: str, rel: float) -> bool:
    """Compare two values of a file: numbers up to a relative error, other texts letter by letter."""
    try:
        return float(found) == pytest.approx(float(stored), rel=rel, abs=0, nan_ok=True)
    except ValueError:
        return found == stored


def test_there_is_one_for_each_fault_of_the_catalogue_with_its_stage_and_class():
    found = {name: each for each in map(read_reproducer, FILES) for name in each.engine.faults}
    assert found.keys() == FAULTS.keys()
    for name, reproducer in found.items():
        assert reproducer.signature.stage == FAULTS[name].stage
        # Where nothing else is left to be drawn, a known triple is one too many.
        expected = "extra" if name == "known-triples" else FAULTS[name].expected_kind
        assert reproducer.signature.kind == expected


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_evaluator_agrees_with_the_reference(file):
    assert_agrees(read_reproducer(file), find_maker(EAGER))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_with_its_fault_it_diverges_in_the_same_way_with_the_same_values(file):
    reproducer = read_reproducer(file)
    if not reproducer.engine.faults:
        pytest.skip("names no fault")
    found = replay(reproducer)
    assert found.is_same, str(found)
    again = make_reproducer(found.failure)
    assert (again.signature, again.candidate, again.step) == (
        reproducer.signature,
        reproducer.candidate,
        reproducer.step,
    )
    # Sums depend on the order in which a processor adds: those of float64 in the reference, of float32 in the evaluator.
    for found_values, stored, rel in (
        (again.expected, reproducer.expected, 1e-12),
        (again.actual, reproducer.actual, 1e-6),
    ):
        assert all(are_equal(*pair, rel) for pair in zip(found_values, stored, strict=True)), (found_values, stored)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_is_as_it_would_be_written(file):
    assert render_reproducer(read_reproducer(file)) == file.read_text(encoding="utf-8")
