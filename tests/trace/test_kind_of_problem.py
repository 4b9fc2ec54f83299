"""A second kind of problem, a counter machine, is recorded, compared, shrunk and reported by the code of the first one."""

import json
from typing import Any, NamedTuple

import numpy as np
import pytest

from kgverify import UserError
from kgverify.kinds import Schema, column, compare, describe, minimize, read, record, to_json


class Runs(NamedTuple):
    program: np.ndarray
    num_steps: np.ndarray


class Steps(NamedTuple):
    operation: np.ndarray
    value: np.ndarray


class Machine(NamedTuple):
    candidates: Runs
    steps: Steps


COUNTER = Schema(
    "counter-trace",
    Machine,
    (
        column("candidates/program", "<i4", is_identity=True),
        column("candidates/num_steps", "<u4", counts="steps"),
        column("steps/operation", "<i4", stage="fetch"),
        column("steps/value", "<i4", stage="execute"),
    ),
    stages=("fetch", "execute"),
)
PROGRAMS = [(1, 2, 3), (40, 5, 60, 7), (9, 9)]


def run(programs: Any, most: int = 1000) -> list[Machine]:
    """Run programs of additions; a value beyond `most` wraps around, which only a wrong machine does."""
    return [
        Machine(
            Runs(np.array([number], np.int32), np.array([len(program)], np.uint32)),
            Steps(np.array(program, np.int32), (np.cumsum(program) % most).astype(np.int32)),
        )
        for number, program in enumerate(programs)
    ]


@pytest.fixture(params=[None, 1, 99], ids=["memory", "folder", "file"])
def make(request, tmp_path):
    def make(name: str, most: int = 1000, programs: Any = PROGRAMS) -> Any:
        stored = {"path": tmp_path / name, "shard_steps": request.param} if request.param else {}
        return record(COUNTER, *run(programs, most), engine=name, **stored)

    return make


def test_equal_machines_agree(make):
    found = compare(make("right"), make("other"))
    assert (found.verdict.value, found.coverage.steps) == ("AGREE", 9)
    assert set(found.coverage.fields) == COUNTER.compared_names
    assert found.self_test.columns == len(COUNTER.compared_names)


def test_the_first_divergence_names_candidate_step_stage_field_and_both_values(make):
    found = compare(make("right"), make("wrong", 100))
    (first,) = found.divergences
    assert (first.candidate, first.step, first.stage, first.field) == (1, 2, "execute", "steps.value")
    assert (first.expected, first.actual, first.later_steps) == (105, 5, 1)
    summary, line = describe(found).splitlines()
    assert summary == "DIVERGE   3 candidates, 8 steps"
    assert line == "program 1, step 2, execute: steps.value is 5, expected 105"
    assert json.loads(to_json(found))["divergences"][0]["field"] == "steps.value"


def test_a_lost_candidate_and_a_lost_step_diverge(make):
    found = compare(make("right"), make("fewer", programs=[PROGRAMS[0], PROGRAMS[1][:2]]))
    fields = [(each.candidate, each.atom, each.field) for each in found.divergences]
    assert fields == [(1, "program 1", "candidates.num_steps"), (2, "program 2", "candidates.program")]


def test_a_divergence_shrinks_to_the_operations_that_it_needs(make):
    def diverges(program: Any) -> bool:
        return compare(make("a", programs=[program]), make("b", 100, [program])).verdict.value == "DIVERGE"

    assert minimize(PROGRAMS[1], diverges) == (40, 60)


def test_a_trace_of_another_kind_is_refused(tmp_path):
    record(COUNTER, *run(PROGRAMS), path=tmp_path / "a.h5")
    assert read(COUNTER, tmp_path / "a.h5").columns.steps.value.tolist() == [1, 3, 6, 40, 45, 105, 112, 9, 18]
    with pytest.raises(UserError, match="expected 'kgverify-trace'"):
        compare(tmp_path / "a.h5", tmp_path / "a.h5")
