"""A watched engine: what is sampled, judged, warned of and saved, and what the loop never notices."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from fast import Fast
from padded_faults import FactCap, plant

import kgverify as kv

SLOW = f"{Path(__file__).resolve().parents[2] / 'examples' / 'padded_engine' / 'slow.py'}:Slow"
GRAPH = kv.load_graph("countries")
FEW = {"queries": 2, "corruptions": 3}


def make(engine: type) -> kv.TensorEngine:
    return engine(GRAPH.program, kv.Limits(), kv.Policy("shortest"))


def candidates(num: int = 4) -> kv.CandidateSet:
    zeros = np.zeros(num, np.int32)
    return kv.CandidateSet(zeros, zeros.astype(np.int8), GRAPH.queries("test")[:num])


def call(engine: kv.TensorEngine, num: int = 8) -> tuple[torch.Tensor, ...]:
    """Call the engine from a user's own loop: with a test triple in each state."""
    states = torch.zeros(num, engine.limits.max_atoms, 3, dtype=torch.int64)
    states[:, 0] = engine.encode(np.resize(GRAPH.queries("test"), (num, 3)))
    return engine.expand(states, torch.full((num,), engine.encoding.first_variable), states[:, :1].clone())


def test_a_divergence_is_a_warning_a_saved_run_and_a_reproducer(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    told: list[kv.WatchedDivergence] = []
    engine = make(plant(FactCap))
    given = {"share": 1, "reference": SLOW, "save": tmp_path, "on_divergence": told.append}
    with kv.watch(engine, **given) as watched:
        assert watched is engine
        watched.prove(candidates())
    summary = watched.summary
    assert summary.seen == summary.sampled == summary.judged > 4
    assert summary.divergences.keys() <= {"match_facts: missing", "match_facts: proof_lost"}
    assert told[0].stage == "match_facts"
    assert "neighborOf" in told[0].first.goal
    assert f"kgverify show {told[0].run}" in caplog.records[0].getMessage()
    traces = told[0].run / "expected.h5", told[0].run / "actual.h5"
    assert kv.compare(*traces).verdict is kv.Verdict.DIVERGE
    assert (told[0].run / "reproduce.py").is_file()


class Overwriting(Fast):
    """A right engine that writes into its arguments."""

    def expand(self, states, next_variable, excluded):
        result = super().expand(states, next_variable, excluded)
        for each in (states, next_variable, excluded):
            each.zero_()
        return result


@pytest.mark.deep
def test_a_sample_is_what_was_given_and_returned_whatever_the_loop_writes_later():
    with kv.watch(make(Overwriting), share=1, reference=SLOW, save=None) as watched:
        for each in call(watched):
            each.zero_()
    assert (watched.summary.judged, watched.summary.divergences) == (8, {})


@pytest.mark.exhaustive
def test_each_step_has_the_same_chance_and_a_copy_for_another_process_is_not_watched():
    engine = make(Fast)
    with kv.watch(engine, share=1 / 100, reference=SLOW, save=None, seed=1) as watched:
        twin = pickle.loads(pickle.dumps(watched))
        assert type(twin) is Fast
        assert all(map(torch.equal, call(twin), call(engine)))
        for _ in range(199):
            call(watched, num=50)
    assert watched.summary.seen == 8 + 199 * 50
    assert 40 < watched.summary.sampled < 220
    assert watched.summary.judged == watched.summary.sampled
    assert 0.01 < watched.summary.smallest_rate < 0.12


@pytest.mark.exhaustive
def test_it_raises_only_if_asked_and_a_reproducer_shows_the_step_again(tmp_path: Path):
    def fail(found: kv.WatchedDivergence) -> None:
        raise RuntimeError("no network")

    given = {"share": 1, "reference": SLOW, "save": tmp_path, "max_saved": 1}
    with kv.watch(make(plant(FactCap)), on_divergence=fail, **given) as watched:
        watched.prove(candidates())
    with pytest.raises(AssertionError, match="match_facts"), kv.watch(make(plant(FactCap)), raises=True, **given) as it:
        it.prove(candidates())
    (run,) = watched.summary.runs
    names: dict[str, object] = {"__file__": str(run / "reproduce.py")}
    exec((run / "reproduce.py").read_text(), names)
    assert names["reproduce"](make(plant(FactCap))).divergences
    with pytest.raises(kv.UserError, match="share"):
        kv.watch(make(Fast), share=0)
    with pytest.raises(kv.UserError, match="imported by its name"):
        kv.watch(make(Fast), reference=lambda *about: make(Fast))


@pytest.mark.deep
def test_a_killed_judge_is_started_again_and_a_forked_child_leaves_it_alone():
    before = {*multiprocessing.active_children()}
    with kv.watch(make(Fast), share=1, reference=SLOW, save=None) as watched:
        call(watched)
        if not (child := os.fork()):
            call(watched)
            os._exit(watched.summary.sampled != 8)
        assert os.waitpid(child, 0)[1] == 0
        for _ in range(2):
            for each in {*multiprocessing.active_children()} - before:
                os.kill(each.pid, 9)
            time.sleep(0.5)
            call(watched)
    summary = watched.summary
    assert summary.judged + summary.unjudged == summary.sampled == 24
    assert summary.judged >= 8


@pytest.mark.deep
def test_a_script_without_a_guard_is_run_once(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import kgverify as kv
        print("begins")
        watched = kv.watch(kv.Evaluator(mode="plain"), share=1, save=None)
        kv.evaluate("countries", watched, queries=1, corruptions=3)
        watched.close()
        print(watched.summary)
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.count("begins") == 1
    assert "no divergence" in done.stdout
    assert "judged 0" not in done.stdout


@pytest.mark.exhaustive
def test_an_evaluation_names_the_stage_or_the_batch_as_the_fault(tmp_path: Path):
    found = {}
    for fault in ("fact-cap", "depth-not-reset"):
        evaluator = kv.Evaluator(mode="eager", slots=4, faults=fault)
        with kv.watch(evaluator, share=1, save=tmp_path) as watched:
            kv.evaluate("countries", watched, **FEW, options=kv.EvaluationOptions(check=0, minimum={}))
        found[fault] = "; ".join(watched.summary.divergences)
    assert "match_facts" in found["fact-cap"]
    assert "recycle" in found["depth-not-reset"]


@pytest.mark.deep
def test_lines_of_another_process_are_judged():
    goal = ["locatedInCR", "armenia", "asia"]
    lines = [json.dumps({"trace": 1, "engine": "c"})]
    for successors in ([True], [False]):
        lines += [json.dumps({"candidate": goal}), json.dumps({"goal": [goal], "successors": successors, "choice": 0})]
    watched = kv.watch(iter(lines), share=1, save=None, job=kv.Job(kv.Source("countries")))
    with watched:
        assert list(watched) == lines
    assert watched.summary.judged == 2
    assert watched.summary.divergences
