"""Problems that run alone: what they meet, that campaigns run them so, and engines that hang or end their process."""

import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from problem_features import BOUNDARY_FEATURES, count_features

from kgverify import Problem
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, Sides
from kgverify.testing.campaigns import campaign as campaigns
from kgverify.testing.campaigns.campaign import Campaign, replay_text, run_campaign, try_block
from kgverify.testing.campaigns.result import Identity
from kgverify.testing.checking import guard as guards
from kgverify.testing.checking.check import Checker, prepare_alone, prepare_batches
from kgverify.testing.problems.decode import (
    ALONE_EVERY,
    draw_boundary_problem,
    draw_device_problem,
    fit_sizes,
    runs_alone,
)

OWN = """
import os
import sys

from kgverify.conformance import ReferenceEngine


class Hanging(ReferenceEngine):
    def prove(self, candidates, progress=None):
        while not self.program.rules and self.program.facts:
            pass
        return super().prove(candidates)


class Dying(ReferenceEngine):
    def prove(self, candidates, progress=None):
        if not self.program.rules and self.program.facts:
            os._exit(1)
        return super().prove(candidates)
""".replace("kgverify.conformance", "kgverify.engines.reference.engine")


def indices_alone(num: int) -> list[int]:
    return [i for i in range(num * ALONE_EVERY) if runs_alone(i)]


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> Path:
    """Return a corpus; `failing_engine` has engines that fail on programs of facts alone, and blocks are small."""
    (tmp_path / "failing_engine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(campaigns, "BLOCK_SIZE", 64)
    return tmp_path / "corpus"


@pytest.mark.parametrize(("num", "slots"), [(16, {1, 15, 16, 17}), (17, {16, 17})])
def test_many_candidates_get_about_as_many_slots(num, slots):
    problem = Problem(
        facts=(NamedAtom("p", "a", "c0"),), unranked=tuple(NamedAtom("p", "a", f"c{i}") for i in range(num))
    )
    (batch,) = prepare_batches([problem])
    given = batch.merged.problems[0], batch.merged.graph.program, batch.columns
    assert {fit_sizes(*given, seed, 0).sizes.slots for seed in range(80)} == slots


def test_the_problems_that_run_alone_follow_from_seed_and_index():
    problems = [draw_boundary_problem(0, i) for i in indices_alone(24)]
    assert problems == [draw_boundary_problem(0, i) for i in indices_alone(24)]
    assert len({str(problem) for problem in problems}) > 20
    assert problems != [draw_boundary_problem(1, i) for i in indices_alone(24)]


def test_the_evaluator_agrees_on_problems_that_run_alone():
    batches = [prepare_alone(0, i, i) for i in indices_alone(24)]
    assert [suspect for batch in batches for suspect in Checker(compiled_maker()).find_suspects(batch)] == []
    features = count_features(batches)
    usual = ("one candidate", "a pool exactly full", "a score window exactly full", "a match window exactly full")
    assert all(features[name] > 1 for name in usual)
    assert features["no rules"] > 1
    assert features["the last fact used"] > 1


@pytest.mark.deep
def test_every_boundary_occurs_in_the_first_block():
    alone = [prepare_alone(0, i, i) for i in indices_alone(128)]
    features = count_features([*alone, *prepare_batches(list(islice(draw_problems(0), 300)))])
    assert [name for name in BOUNDARY_FEATURES if not features[name]] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("turn", [120, 1144, 1656, 3192])
def test_the_evaluator_agrees_where_16_bits_do_not_suffice(turn):
    index = turn * ALONE_EVERY + ALONE_EVERY - 1
    assert Checker(compiled_maker()).find_suspects(prepare_alone(0, index, index)) == []


@pytest.mark.parametrize(("mode", "expected"), [("eager", [15, 31]), ("default", []), ("fused", [31])])
def test_one_problem_in_sixteen_runs_alone_unless_each_run_is_compiled(monkeypatch, mode, expected):
    runs: list[tuple[int, ...]] = []

    def record(checker, batch):
        runs.append(batch.indices)
        return []

    monkeypatch.setattr(Checker, "find_suspects", record)
    engine = replace(EAGER, mode=mode, device="cuda" if mode == "fused" else "cpu")
    work = Identity(engine=engine, reference=PLAIN, lockstep=False, seed=0, block_size=32)
    try_block(work, 3, 32)
    assert [run[0] for run in runs if len(run) == 1 and runs_alone(run[0])][: len(expected)] == expected
    assert sorted(index for run in runs for index in run) == list(range(32))


@pytest.mark.deep
def test_the_evaluator_agrees_on_problems_for_kernels_on_a_gpu():
    seen = set()
    for index in range(36):
        problem = draw_device_problem(0, index)
        if len(problem.facts) > 5000 or problem.limits.max_depth > 100:
            continue
        batch = prepare_alone(0, index, index, problem)
        assert not Checker(compiled_maker()).find_suspects(batch), index
        steps = batch.columns.steps
        # The fused kernels take no more.
        assert problem.limits.max_atoms + problem.sizes.atoms <= 7
        assert problem.limits.max_resolvents <= 1024
        seen |= {
            name for name, array in (("drops", steps.dropped_resolvents), ("depth", steps.depth > 8)) if array.any()
        }
        seen |= {"blocks"} if steps.num_resolvents.max() > 512 else set()
    assert seen == {"drops", "depth", "blocks"}


def test_another_problem_comes_last_in_the_run_of_each_block():
    problems = [draw_boundary_problem(0, i) for i in indices_alone(24)]
    group = list(range(24))
    ends = [campaigns._end_with_open_query(group, problems, number) for number in range(6)]
    assert all(sorted(each) == group for each in ends)
    assert len({each[-1] for each in ends}) > 3


def test_a_problem_with_two_variables_comes_last_if_there_is_one():
    half, both = (Problem(unranked=(NamedAtom("p", first, Variable("Y")),)) for first in ("a", Variable("X")))
    for number in range(2):
        assert campaigns._end_with_open_query([0, 1], [both, half], number) == [1, 0]
        assert campaigns._end_with_open_query([0, 1], [half, half], number) == [1 - number, number]


def test_an_engine_that_hangs_is_a_divergence_and_the_campaign_continues(corpus, monkeypatch):
    monkeypatch.setattr(guards, "SECONDS", 0.3)
    monkeypatch.setattr(guards, "SECONDS_OF_TICK", 0.001)
    monkeypatch.setattr(guards, "PATIENCE", 1)
    engine = EngineSpec("failing_engine:Hanging")
    result = run_campaign(Campaign(corpus=corpus, engine=engine, examples=128, most_shrunk=0))
    (found,) = result.divergences
    assert (found.signature, found.num_problems) == ("hang", 2)
    assert 0 < result.num_left < 128
    text = Path(found.file).read_text()
    assert str(replay_text(text, Sides(engine))) == "hang"
    assert replay_text(text, Sides()) is None


@pytest.mark.deep
def test_an_engine_that_ends_its_process_is_a_divergence_and_the_campaign_continues(corpus):
    engine = EngineSpec("failing_engine:Dying")
    result = run_campaign(Campaign(corpus=corpus, engine=engine, examples=128, jobs=2, most_shrunk=0))
    (found,) = result.divergences
    assert (found.signature, found.num_problems) == ("death", 2)
    assert result.num_left == 0
    assert replay_text(Path(found.file).read_text(), Sides()) is None


def test_a_process_that_may_be_replaced_ends_where_native_code_does_not_return():
    program = (
        "import time\n"
        "from kgverify.testing.checking.guard import in_replaceable_process, limit_time\n"
        "with in_replaceable_process(), limit_time(0.02):\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_a_boundary_problem_is_small_or_rare():
    sizes = [draw_boundary_problem(0, i).size for i in indices_alone(100)]
    assert sorted(sizes)[80] < 100
    assert isinstance(draw_boundary_problem(0, 15), Problem)


def test_features_of_a_whole_run_are_counted_where_a_problem_runs_alone():
    problem = Problem(unranked=(NamedAtom("p", "a", "b"),))
    together, alone = (count_features(prepare_batches([problem] * num)) for num in (3, 1))
    assert (together["no facts"], alone["no facts"]) == (0, 1)
    assert (together["an unranked ground query"], alone["an unranked ground query"]) == (3, 1)
