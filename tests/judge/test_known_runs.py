"""Engines that are wrong in known ways, and their recordings: the verdict, and each cause with its class and sentence."""

import tomllib
from pathlib import Path

import pytest
from judged import explain, judge
from known_runs import known_runs, traces_of_runs

from kgverify import Equality
from kgverify.verification.judgement import LITTLE
from kgverify.verification.verify import verify

SAID = tomllib.loads(Path(__file__).with_name("runs.toml").read_text("utf-8"))
RUNS = {name: given for name, *given in known_runs()}
TRACES = {known.name: known for known in traces_of_runs()}


@pytest.mark.parametrize("name", RUNS)
def test_a_wrong_engine_is_reported_as_stated(name: str):
    run, expected, actual, options = RUNS[name]
    equality = Equality(**{"determinism": False, "minimum": {}, **options})
    assert explain(verify(run, expected, actual, equality=equality, effort=LITTLE).report) == SAID[name]


@pytest.mark.parametrize("name", TRACES)
def test_its_recording_is_reported_as_stated(name: str):
    known = TRACES[name]
    assert explain(judge(known.expected, known.actual)[1]) == SAID[name]


def test_every_run_is_stated():
    assert [*RUNS, *TRACES] == [*SAID]
