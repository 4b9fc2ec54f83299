"""Campaigns of `kgverify.fuzz`: what they find and keep, how they resume, and how known divergences are judged."""

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import kgverify as kv
from kgverify import FuzzOptions, UserError
from kgverify.dialects import Dialect
from kgverify.files.writing import temporary_beside
from kgverify.laws import render_reproducer

DOUBTS = "doubting:Doubts"
DOUBT = "advance candidates.is_limited number"

FAULTY = """
from kgverify.dialects import ReferenceEngine

class Doubts(ReferenceEngine):
    "Says that limits decided about each proof of p(a, a)."

    def prove(self, candidates, progress=None):
        columns = super().prove(candidates)
        rows = columns.candidates
        is_doubted = (rows.atom[:, 1] == rows.atom[:, 2]) & (rows.outcome == 1)
        return columns._replace(candidates=rows._replace(is_limited=rows.is_limited ^ is_doubted))

class DoubtsTwice(Doubts):
    "Gives wrong sums to what ended at the depth limit as well."

    def prove(self, candidates, progress=None):
        columns = super().prove(candidates)
        rows = columns.candidates
        wrong = rows.log_probability - (rows.outcome == 3)
        return columns._replace(candidates=rows._replace(log_probability=wrong))
"""

ENGINES = """
import os
from kgverify.dialects import ReferenceEngine

def cannot_be_made(program, limits, policy):
    raise RuntimeError("not yet")

def raises(program, limits, policy):
    raise_it = lambda *arguments: cannot_be_made(program, limits, policy)
    return type("Raises", (), {"prove": raise_it, "step": raise_it})()

def dies(program, limits, policy):
    os._exit(1)

def knows_no_policy(program, limits, policy):
    raise NotImplementedError

class Plain:
    "The reference without a name, and without the policy two_tower."

    def __init__(self, program, limits, policy):
        if policy.name != "shortest":
            raise NotImplementedError
        self.engine = ReferenceEngine(program, limits, policy)

    def prove(self, candidates):
        return self.engine.prove(candidates)

    def step(self, positions):
        return self.engine.step(positions)

class Group:
    Plain = Plain

class Hanging(ReferenceEngine):
    def prove(self, candidates, progress=None):
        while not self.program.rules and self.program.facts:
            pass
        return super().prove(candidates)
"""


@pytest.fixture(scope="module", autouse=True)
def engines(tmp_path_factory):
    """Make the engines importable, also in other processes, and blocks small."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "doubting.py").write_text(FAULTY)
    (folder / "own_engine.py").write_text(ENGINES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgverify.testing.campaigns.campaign.BLOCK_SIZE", 32)
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        patch.syspath_prepend(str(folder))
        patch.delitem(sys.modules, "own_engine", raising=False)
        yield


@pytest.fixture(scope="module")
def tallies() -> list[kv.Tally]:
    """Return the progress of the campaign `first`."""
    return []


@pytest.fixture(scope="module")
def first(tmp_path_factory, tallies) -> kv.CampaignResult:
    """Return the result of a campaign with a corpus on an engine with a fault."""
    corpus = tmp_path_factory.mktemp("first") / "corpus"
    return kv.fuzz(DOUBTS, examples=64, corpus=corpus, progress=tallies.append)


@pytest.fixture
def corpus(first, tmp_path) -> Path:
    """Return a copy of the corpus of that campaign."""
    return Path(shutil.copytree(Path(first.divergences[0].file).parent, tmp_path / "corpus"))


def comparable(result: kv.CampaignResult) -> tuple[object, ...]:
    """Return the results that must not depend on the clock, on the number of processes, or on the folder."""
    found = [(each.signature, each.num_problems, each.first, each.size, each.program) for each in result.divergences]
    return result.num_problems, result.num_differing, result.num_confirmed, result.exercise, result.stages, found


def interrupt(after: int, times: int = 1) -> Callable[[kv.Tally], None]:
    """Return a progress callback that interrupts when enough problems are done."""
    left = [True] * times

    def watch(tally: kv.Tally) -> None:
        if tally.phase == "try" and tally.done >= after and left:
            left.pop()
            raise KeyboardInterrupt

    return watch


def test_a_divergence_is_kept_once_as_the_smallest_problem_that_shows_it(first):
    assert (first.is_passed, first.verdict, first.num_problems) == (False, kv.Verdict.DIVERGE, 64)
    assert first.exercise.outcomes["PROVED"] > 10
    (found,) = first.divergences
    assert (found.signature, found.is_shrunk) == (DOUBT, True)
    assert found.program.startswith("p(a, a).\nq(X, Y) <- p(X, Y).\n? q(a, a)")
    assert first.num_differing >= first.num_confirmed >= found.num_problems > 1
    assert sorted(path.suffix for path in Path(found.file).parent.iterdir()) == [".jsonl", ".kg"]
    again = kv.replay(found.file, trust=True)
    assert again.is_same
    assert again.reproducer.notes == (f"problem {found.first} of seed 0",)
    assert kv.replay(found.file, "reference").verdict is kv.Verdict.AGREE


def count_phases(tallies: list[kv.Tally]) -> dict[str, list[tuple[int, int]]]:
    """Return what is done and the total of each phase, in the order in which they were reported."""
    phases: dict[str, list[tuple[int, int]]] = {}
    for each in tallies:
        assert 0 <= each.seconds < 600
        phases.setdefault(each.phase, []).append((each.done, each.total))
    return phases


def test_the_progress_of_each_phase_counts_up_to_its_total(first, tallies):
    counts = count_phases(tallies)
    assert [*counts] == ["start", "try", "shrink"]
    assert all(done == sorted(done) for done in counts.values())
    assert (counts["try"][0], counts["try"][-1]) == ((0, 64), (64, 64))
    assert (counts["shrink"][0], counts["shrink"][-1]) == ((0, 1), (1, 1))


CLAIMS = [
    ({"num_skipped": 1, "refusals": {"no": 1}}, "AGREE", "skipped     refused 1 of 64: no"),
    (
        {"num_skipped": 10, "refusals": {"d": 1, "b": 3, "a": 5, "c": 1}},
        "AGREE",
        "skipped     refused 10 of 64: a (5 times); b (3 times); d (1 time); other reasons (1 time)",
    ),
    ({"num_left": 1}, "AGREE", "not run     1 problem too slow"),
    ({"is_interrupted": True}, "AGREE", "NOTHING NEW SO FAR   64 problems"),
    ({"num_left": 64}, "INCONCLUSIVE", "because     nothing was compared"),
    ({"num_skipped": 64}, "INCONCLUSIVE", "because     nothing was compared"),
    ({"num_skipped": 60, "num_left": 4}, "INCONCLUSIVE", "because     nothing was compared"),
    (
        {"num_differing": 2},
        "INCONCLUSIVE",
        "because     the time ended before one of 2 differing problems was confirmed",
    ),
]


@pytest.mark.parametrize(("changes", "verdict", "line"), CLAIMS)
def test_problems_that_were_not_compared_are_stated_and_decide_nothing(first, changes, verdict, line):
    whole = {"divergences": [], "num_differing": 0, "num_confirmed": 0, "num_skipped": 0}
    result = msgspec.structs.replace(first, **whole | changes)
    assert result.verdict == verdict
    lines = [each.strip() for each in str(result).splitlines()]
    assert any(each.startswith(line) for each in lines), lines
    assert any("nothing was compared" in each for each in lines) == ("nothing was compared" in line)


def test_figures_are_those_of_all_blocks_and_the_speed_is_that_of_this_call(first, tmp_path, monkeypatch):
    monkeypatch.setattr("kgverify.testing.campaigns.campaign.BLOCK_SIZE", 4)
    begun = kv.fuzz(DOUBTS, examples=32, corpus=tmp_path / "corpus")
    whole = kv.fuzz(DOUBTS, examples=64, corpus=tmp_path / "corpus")
    assert first.divergences[0].first >= 4
    assert [(each.signature, each.first) for each in whole.divergences] == [(DOUBT, first.divergences[0].first)]
    for result, num in ((begun, 32), (whole, 32), (first, 64)):
        assert result.problems_per_second * result.seconds == pytest.approx(num)


def test_the_corpus_is_replayed_first_and_nothing_is_tried_twice(first, corpus):
    files, tallies = sorted(corpus.iterdir()), []
    again = kv.fuzz(DOUBTS, examples=64, corpus=corpus, progress=tallies.append)
    counts = count_phases(tallies)
    assert [*counts][:2] == ["start", "replay"]
    assert (counts["replay"][0], counts["replay"][-1]) == ((0, 1), (1, 1))
    assert "shrink" not in counts
    assert (again.num_resumed, again.problems_per_second) == (64, 0)
    assert comparable(again) == comparable(first)
    assert [(each.signature, each.found) for each in again.replays] == [(DOUBT, DOUBT)]
    assert sorted(corpus.iterdir()) == files
    fresh = kv.fuzz(DOUBTS, examples=32, corpus=corpus, options=FuzzOptions(fresh=True))
    assert (fresh.num_problems, fresh.num_resumed) == (32, 0)


@pytest.mark.deep
def test_the_result_depends_neither_on_parts_nor_on_the_number_of_processes(tmp_path):
    for examples in (40, 64):
        parts = kv.fuzz("doubting:DoubtsTwice", examples=examples, corpus=tmp_path / "parts")
    assert parts.num_resumed == 40
    assert comparable(parts) == comparable(
        kv.fuzz("doubting:DoubtsTwice", examples=64, corpus=tmp_path / "whole", jobs=2)
    )
    assert len(parts.divergences) > 1


def test_a_repaired_divergence_is_replayed_and_passes(corpus):
    repaired = kv.fuzz("reference", examples=32, corpus=corpus)
    assert (repaired.is_passed, repaired.num_resumed) == (True, 0)
    assert [(each.signature, each.found) for each in repaired.replays] == [(DOUBT, "")]
    assert kv.fuzz("reference", examples=32, corpus=corpus, seed=1).num_resumed == 0


def test_a_divergence_that_only_the_corpus_shows_is_a_divergence(corpus):
    (log,) = corpus.glob("*.jsonl")
    log.unlink()
    result = kv.fuzz(DOUBTS, examples=0, corpus=corpus)
    assert (result.is_passed, result.num_problems) == (False, 0)
    (found,) = result.divergences
    assert (found.signature, found.num_problems, found.first, found.size) == (DOUBT, 0, -1, 3)


def test_an_interrupted_campaign_keeps_what_it_found_and_shrinks_it_the_next_time(first, tmp_path):
    stopped = kv.fuzz(DOUBTS, examples=64, corpus=tmp_path, progress=interrupt(32))
    assert (stopped.is_interrupted, stopped.num_problems) == (True, 32)
    (found,) = stopped.divergences
    assert not found.is_shrunk
    resumed = kv.fuzz(DOUBTS, examples=64, corpus=tmp_path)
    assert (resumed.is_interrupted, resumed.num_resumed) == (False, 32)
    assert comparable(resumed) == comparable(first)
    assert [(each.file, each.is_shrunk) for each in resumed.divergences] == [(found.file, True)]


def test_a_second_interrupt_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        kv.fuzz("reference", examples=96, corpus=tmp_path, progress=interrupt(0, times=2))


def test_what_was_being_written_when_the_process_died_is_tried_again_or_deleted(first, corpus):
    (log,) = corpus.glob("*.jsonl")
    log.write_bytes(log.read_bytes()[:-20])
    files = sorted(corpus.iterdir())
    temporary_beside(files[0]).write_text("half")
    again = kv.fuzz(DOUBTS, examples=64, corpus=corpus)
    assert sorted(corpus.iterdir()) == files
    assert again.num_resumed == 32
    assert comparable(again) == comparable(first)


def test_seconds_are_a_budget_too(tmp_path):
    result = kv.fuzz("reference", seconds=0.3, corpus=tmp_path)
    assert 0 < result.num_problems < 2000
    assert re.search(rf"stopped     after \d of 0.3 s: {result.num_problems - result.num_left:,} problems", str(result))


def test_a_reproducer_never_overwrites_another_one(corpus):
    (file,) = corpus.glob("*.kg")
    (log,) = corpus.glob("*.jsonl")
    log.unlink()
    made = kv.replay(file, trust=True).reproducer
    other = replace(made, problem=kv.Problem(unranked=(kv.NamedAtom("p", "a", "b"),)))
    file.write_text(render_reproducer(other))
    (found,) = kv.fuzz(DOUBTS, examples=32, corpus=corpus).divergences
    assert Path(found.file).stem == f"{file.stem}-2"
    assert kv.replay(file, trust=True).verdict is kv.Verdict.AGREE
    assert kv.replay(found.file, trust=True).is_same


def test_a_campaign_without_a_corpus_writes_nothing_and_names_no_file(first, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = kv.fuzz(DOUBTS, examples=64)
    assert list(tmp_path.iterdir()) == []
    (found,) = result.divergences
    assert (found.signature, found.file, found.is_shrunk) == (DOUBT, "", True)
    assert found.program == first.divergences[0].program
    assert "not saved: a corpus keeps its reproducer" in str(result)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("*.jsonl", "x\ny\n", "is not the log of a campaign"), ("*.kg", "p(a, b)\n", "expected")],
)
def test_a_corpus_that_cannot_be_read_is_an_error(corpus, name, text, message):
    (file,) = corpus.glob(name)
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        kv.fuzz(DOUBTS, examples=1, corpus=corpus)
    with pytest.raises(UserError, match="is not a folder"):
        kv.fuzz(DOUBTS, examples=1, corpus=file)


@pytest.mark.parametrize(
    ("name", "jobs", "message"),
    [
        (
            "own_engine:cannot_be_made",
            1,
            r"(?s)making the engine failed: RuntimeError: not yet .*own_engine.py:\d+.*expected",
        ),
        pytest.param(
            "own_engine:dies", 2, r"a process died while the engine was made \(exit code 1\)", marks=pytest.mark.deep
        ),
    ],
)
def test_an_engine_that_cannot_be_made_is_an_error_before_anything_is_tried(tmp_path, name, jobs, message):
    with pytest.raises(UserError, match=message):
        kv.fuzz(name, examples=8, jobs=jobs, corpus=tmp_path / "corpus")
    assert not list(tmp_path.rglob("*.kg"))


@pytest.mark.parametrize("name", ["own_engine:Plain", "own_engine.py:Group.Plain"])
def test_an_engine_of_two_methods_is_enough_and_policies_that_it_does_not_know_are_skipped(name):
    result = kv.fuzz(name, examples=64)
    assert (result.is_passed, result.num_problems) == (True, 64)
    assert 0 < result.num_skipped < 32


def test_a_campaign_in_which_nothing_was_compared_is_not_passed():
    result = kv.fuzz("own_engine:knows_no_policy", examples=8)
    assert (result.num_skipped, result.is_vacuous, result.is_passed, result.divergences) == (8, True, False, [])
    assert result.verdict is kv.Verdict.INCONCLUSIVE


def test_an_engine_that_raises_an_exception_diverges():
    (found,) = kv.fuzz("own_engine:raises", examples=8).divergences
    assert (found.signature, found.size) == ("crash RuntimeError", 0)


def test_an_engine_that_hangs_diverges_and_the_campaign_continues(monkeypatch, tmp_path):
    monkeypatch.setattr("kgverify.testing.campaigns.campaign._Run.shrink_found", lambda *given: None)
    monkeypatch.setattr("kgverify.testing.campaigns.campaign.BLOCK_SIZE", 64)
    for name, value in (("SECONDS", 0.3), ("SECONDS_OF_TICK", 0.001), ("PATIENCE", 1)):
        monkeypatch.setattr(f"kgverify.testing.checking.guard.{name}", value)
    result = kv.fuzz("own_engine:Hanging", examples=128, corpus=tmp_path / "corpus")
    (found,) = result.divergences
    assert (found.signature, found.num_problems) == ("hang", 2)
    assert 0 < result.num_left < 128
    assert kv.replay(found.file, "reference").verdict is kv.Verdict.AGREE


def test_twenty_new_divergences_are_listed_and_a_long_program_is_cut(first):
    (found,) = first.divergences
    program = [f"p(a, c{i})." for i in range(15)]
    listed = [msgspec.structs.replace(found, signature=f"prune extra {i}", file="") for i in range(25)]
    listed[-1].program = listed[0].program = "\n".join(program)
    lines = str(msgspec.structs.replace(first, divergences=listed)).splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("prune")] == [
        f"prune extra {i}" for i in range(20)
    ]
    assert any("5 more in the corpus" in line for line in lines)
    at = lines.index(f"   {program[0]}")
    shown = [*program[:6], "... 3 lines more", *program[-6:]]
    assert lines[at : at + 13] == [f"   {line}" for line in shown]


def test_a_dialect_other_than_the_default_one_is_named(first):
    other = Dialect(is_reversed=True)
    assert not any("dialect" in line for line in str(first).splitlines())
    assert f"   dialect     {other}" in str(msgspec.structs.replace(first, dialect=other)).splitlines()
