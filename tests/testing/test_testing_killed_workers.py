"""Campaigns whose processes are killed, or ended by the engine: nothing is lost, and only the engine is to blame for its own."""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kgverify as kv
from kgverify import UserError
from kgverify.runs.pool import Processes, do_all

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are another thing there")

DEADLY = """
import os, signal
from kgverify.dialects import ReferenceEngine

def make(end):
    def factory(program, limits, policy):
        # One problem of the first 64 has such a rule.
        is_deadly = any(len(rule.body) == 6 for rule in program.named_rules)
        kind = type("Deadly", (ReferenceEngine,), {"prove": lambda *arguments: end()} if is_deadly else {})
        return kind(program, limits, policy)

    return factory

exits = make(lambda: os._exit(0))

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
    monkeypatch.setattr("kgverify.testing.campaigns.campaign.BLOCK_SIZE", 64)
    monkeypatch.setattr("kgverify.testing.campaigns.campaign._Run.shrink_found", lambda *given: None)


def kill_every(seconds: float, killed: list[int], most: int) -> Callable[[kv.Tally], None]:
    """Return a callback that kills one of the processes every now and then, once blocks are done again."""
    last = time.monotonic()

    def watch(tally: kv.Tally) -> None:
        nonlocal last
        processes = multiprocessing.active_children()
        is_due = time.monotonic() - last >= seconds and tally.done > max(killed, default=0) and len(killed) < most
        if tally.phase == "try" and processes and is_due:
            last = time.monotonic()
            process = processes[len(killed) % len(processes)]
            killed.append(tally.done)
            process.kill()

    return watch


@pytest.mark.deep
def test_a_campaign_whose_processes_are_killed_has_the_result_of_an_undisturbed_one():
    undisturbed = kv.fuzz("reference", examples=640)
    killed: list[int] = []
    disturbed = kv.fuzz("reference", examples=640, jobs=2, progress=kill_every(0.2, killed, 2))
    assert killed
    assert disturbed.is_passed
    for name in ("num_problems", "num_candidates", "num_steps", "num_resolvents", "num_left", "exercise"):
        assert getattr(disturbed, name) == getattr(undisturbed, name)


@pytest.mark.deep
def test_a_problem_that_ends_its_process_is_found_and_every_other_one_is_checked(tmp_path: Path):
    result = kv.fuzz("deadly:exits", examples=64, seed=23, jobs=2, corpus=tmp_path / "corpus")
    assert (result.is_passed, result.num_problems, result.num_left) == (False, 64, 0)
    (found,) = result.divergences
    assert found.signature == "death"
    assert found.num_problems == result.num_differing == result.num_confirmed == 1
    again = kv.replay(found.file, trust=True)
    assert again.is_same
    assert max(len(rule.body) for rule in again.reproducer.problem.rules) == 6


@pytest.mark.deep
def test_a_keyboard_interrupt_that_an_engine_raises_in_a_process_is_its_crash():
    result = kv.fuzz("deadly:Interrupts", examples=8, jobs=2)
    assert not result.is_interrupted
    assert [each.signature for each in result.divergences] == ["crash KeyboardInterrupt"]


@pytest.mark.deep
def test_processes_killed_while_they_start_end_a_campaign_that_says_how_far_it_came(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("kgverify.testing.campaigns.campaign.MOST_LOST", 3)
    kv.fuzz("reference", examples=64, jobs=2, corpus=tmp_path / "corpus")
    # From now on a process takes longer to start than kills are apart.
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(4.0)\n")

    def watch(tally: kv.Tally) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(UserError, match=r"as 2 others did \(SIGKILL\); problems checked until then: 64"):
        kv.fuzz("reference", examples=128, jobs=2, corpus=tmp_path / "corpus", progress=watch)


def end_once(file: Path, end: str) -> str:
    """Return code that ends its process unless another call has done so."""
    return f"import os, signal\nif not os.path.exists({str(file)!r}): open({str(file)!r}, 'w'); os.kill(os.getpid(), {end})"


def test_a_call_whose_process_is_killed_is_repeated_and_its_neighbours_go_on(tmp_path: Path):
    deadly = [(f"deadly {i}", exec, (end_once(tmp_path / str(i // 2), "signal.SIGKILL"),)) for i in range(4)]
    with Processes(2) as workers:
        ended = dict(filter(None, do_all(workers, [*deadly, *((i, abs, (-i,)) for i in range(4))])))
        (process, *_) = multiprocessing.active_children()
        process.kill()
        process.join()
        time.sleep(0.2)
        assert workers.submit(abs, -2).result() == 2
    assert ended == {i: i for i in range(4)} | dict.fromkeys([key for key, *_ in deadly])
    assert len([*tmp_path.glob("[01]")]) == 2


@pytest.mark.deep
def test_a_call_that_always_ends_its_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kgverify.runs.pool.MOST_REPEATS", 3)
    with Processes(1) as workers:
        with pytest.raises(UserError, match=r"died 3 times before its work was done \(SIGKILL\)"):
            list(do_all(workers, [(0, exec, ("import os; os.kill(os.getpid(), 9)",))]))
        with pytest.raises(UserError, match=r"a worker died before its work was done \(SIGSEGV\)"):
            list(do_all(workers, [(0, exec, (end_once(tmp_path / "x", "signal.SIGSEGV"),))]))
