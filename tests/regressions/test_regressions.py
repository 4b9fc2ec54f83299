"""Every reproducer in this folder fails with its fault as recorded, and agrees without it."""

from pathlib import Path

import pytest

from kgverify.faults.catalogue import FAULTS
from kgverify.laws.replay import assert_agrees, replay
from kgverify.testing.checking.engine_makers import EAGER, find_maker
from kgverify.testing.reproducers.reproducer import Reproducer, make_reproducer
from kgverify.testing.reproducers.text_format import SUFFIX, read_reproducer, render_reproducer

FILES = sorted(Path(__file__).parent.rglob(f"*{SUFFIX}"))


def difference(reproducer: Reproducer) -> tuple[object, ...]:
    return (
        reproducer.signature,
        reproducer.candidate,
        reproducer.step,
        reproducer.expected,
        reproducer.actual,
    )


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
    assert difference(make_reproducer(found.failure)) == difference(reproducer)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_is_as_it_would_be_written(file):
    assert render_reproducer(read_reproducer(file)) == file.read_text(encoding="utf-8")
