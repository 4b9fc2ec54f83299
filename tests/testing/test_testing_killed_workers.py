"""Campaigns whose processes are killed, or ended by the engine: nothing is lost, and only the engine is to blame for its own."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kgverify import UserError, replay
from kgverify.runs import pool
from kgverify.runs.engine_makers import PLAIN, EngineSpec
from kgverify.runs.pool import MOST_KILLS, Processes, describe_end, do_all, weigh_end
from kgverify.testing.campaigns import campaign as campaigns
from kgverify.testing.campaigns.campaign import Campaign, Tally, _halve, run_campaign
from kgverify.testing.campaigns.result import CampaignResult
from kgverify.testing.reproducers.text_format import read_reproducer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are another thing there")

DEADLY = """
import os, signal, sys
from kgverify.engines.reference.engine import ReferenceEngine

def make(end):
    def factory(program, limits, policy):
        # One problem of the first 64 has such a rule.
        is_deadly = any(len(rule.body) == 6 for rule in program.named_rules)
        kind = type("Deadly", (ReferenceEngine,), {"prove": lambda *arguments: end()} if is_deadly else {})
        return kind(program, limits, policy)

    return factory

exits = make(lambda: os._exit(0))
is_killed = make(lambda: os.kill(os.getpid(), signal.SIGKILL))

def never_made(program, limits, policy):
    os._exit(0)

def raises(program, limits, policy):
    raise KeyboardInterrupt

class Interrupts(ReferenceEngine):
    def prove(self, candidates, *rest):
        raise KeyboardInterrupt
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(campaigns, "BLOCK_SIZE", 64)


def comparable(result: CampaignResult) -> tuple[object, ...]:
    found = [(each.signature, each.num_problems, each.first, each.size, each.program) for each in result.divergences]
    counts = result.num_candidates, result.num_steps, result.num_resolvents, result.num_left
    return result.num_problems, result.num_differing, result.num_confirmed, counts, result.exercise, found


def kill_every(seconds: float, killed: list[int], most: int) -> Callable[[Tally], None]:
    """Return a watch that kills one of the processes every now and then, once blocks are done again."""
    last = time.monotonic()

    def watch(tally: Tally) -> None:
        nonlocal last
        processes = multiprocessing.active_children()
        is_due = time.monotonic() - last >= seconds and tally.done > max(killed, default=0) and len(killed) < most
        if tally.phase == "try" and processes and is_due:
            last = time.monotonic()
            process = processes[len(killed) % len(processes)]
            killed.append(tally.done)
            process.kill()

    return watch


def test_a_group_that_ended_a_process_is_halved_until_its_parts_did_not():
    deaths = [(1, 2, 3, 4), (1, 2), (9,)]
    assert list(_halve([[1, 2, 3, 4], [9], [7, 8]], deaths)) == [[1], [2], [3, 4], [9], [7, 8]]


@pytest.mark.deep
def test_a_campaign_whose_processes_are_killed_has_the_result_of_an_undisturbed_one(tmp_path: Path):
    campaign = Campaign(corpus=tmp_path / "one", engine=PLAIN, examples=640, most_shrunk=0)
    undisturbed = run_campaign(campaign)
    killed: list[int] = []
    disturbed = run_campaign(replace(campaign, corpus=tmp_path / "two", jobs=2), watch=kill_every(0.2, killed, 2))
    assert comparable(disturbed) == comparable(undisturbed)
    assert killed
    assert disturbed.is_passed


@pytest.mark.parametrize(
    "name", [pytest.param("exits", marks=pytest.mark.deep), pytest.param("is_killed", marks=pytest.mark.exhaustive)]
)
def test_a_problem_that_ends_its_process_is_found_and_every_other_one_is_checked(tmp_path: Path, name: str):
    campaign = Campaign(
        corpus=tmp_path / "corpus", engine=EngineSpec(f"deadly:{name}"), examples=64, seed=23, jobs=2, most_shrunk=0
    )
    result = run_campaign(campaign)
    assert not result.is_passed
    assert (result.num_problems, result.num_left) == (64, 0)
    (found,) = result.divergences
    assert found.signature == "death"
    assert found.num_problems == result.num_differing == result.num_confirmed == 1
    assert replay(found.file, trust=True).is_same
    made = read_reproducer(Path(found.file))
    assert max(len(rule.body) for rule in made.problem.rules) == 6
    undisturbed = run_campaign(replace(campaign, engine=PLAIN, corpus=tmp_path / "other", jobs=1))
    assert result.num_candidates < undisturbed.num_candidates


def test_an_engine_that_ends_its_process_when_it_is_made_is_an_error(tmp_path: Path):
    campaign = Campaign(corpus=tmp_path / "corpus", engine=EngineSpec("deadly:never_made"), examples=8, jobs=2)
    with pytest.raises(UserError, match=r"a process died while the engine was made \(exit code 0\)"):
        run_campaign(campaign)


@pytest.mark.deep
def test_a_keyboard_interrupt_that_an_engine_raises_in_a_process_is_its_crash(tmp_path: Path):
    campaign = Campaign(corpus=tmp_path / "corpus", engine=EngineSpec("deadly:Interrupts"), examples=8, jobs=2)
    result = run_campaign(replace(campaign, most_shrunk=0))
    assert not result.is_interrupted
    assert [each.signature for each in result.divergences] == ["crash KeyboardInterrupt"]


def test_a_kill_counts_less_than_another_end():
    assert weigh_end(-signal.SIGKILL) == weigh_end(-signal.SIGTERM) == 1
    assert weigh_end(0) == weigh_end(1) == weigh_end(-signal.SIGSEGV) == MOST_KILLS


def test_the_end_of_a_process_is_described_by_its_signal():
    ends = {0: "exit code 0", 70: "exit code 70", -9: "SIGKILL", -signal.SIGSEGV: "SIGSEGV", -99: "signal 99"}
    assert {code: describe_end(code) for code in ends} == ends


def test_a_process_that_is_killed_without_work_is_replaced():
    with Processes(1) as workers:
        assert workers.submit(abs, -1).result() == 1
        (process,) = multiprocessing.active_children()
        process.kill()
        process.join()
        time.sleep(0.2)
        assert workers.submit(abs, -2).result() == 2
        (process,) = multiprocessing.active_children()
    assert not process.is_alive()


def end_once(file: Path, end: str) -> str:
    """Return code that ends its process unless another call has done so."""
    return f"import os, signal\nif not os.path.exists({str(file)!r}): open({str(file)!r}, 'w'); os.kill(os.getpid(), {end})"


def test_a_call_whose_process_is_killed_is_repeated_and_its_neighbours_go_on(tmp_path: Path):
    deadly = [(f"deadly {i}", exec, (end_once(tmp_path / str(i // 2), "signal.SIGKILL"),)) for i in range(4)]
    with Processes(2) as workers:
        ended = dict(filter(None, do_all(workers, [*deadly, *((i, abs, (-i,)) for i in range(4))])))
    assert ended == {i: i for i in range(4)} | dict.fromkeys([key for key, *_ in deadly])
    assert len([*tmp_path.glob("[01]")]) == 2


@pytest.mark.deep
def test_a_call_that_always_ends_its_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "MOST_REPEATS", 3)
    with Processes(1) as workers:
        with pytest.raises(UserError, match=r"died 3 times before its work was done \(SIGKILL\)"):
            list(do_all(workers, [(0, exec, ("import os; os.kill(os.getpid(), 9)",))]))
        with pytest.raises(UserError, match=r"a worker died before its work was done \(SIGSEGV\)"):
            list(do_all(workers, [(0, exec, (end_once(tmp_path / "x", "signal.SIGSEGV"),))]))
        assert workers.submit(abs, -2).result() == 2


@pytest.mark.deep
def test_processes_killed_while_they_start_end_a_campaign_that_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(campaigns, "MOST_LOST", 3)
    campaign = Campaign(corpus=tmp_path / "corpus", engine=PLAIN, examples=128, jobs=2)
    run_campaign(replace(campaign, examples=64, most_shrunk=0))
    # From now on a process takes longer to start than kills are apart.
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(4.0)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def watch(tally: Tally) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(UserError, match=r"as 2 others did \(SIGKILL\); problems checked until then: 64"):
        run_campaign(campaign, watch=watch)
