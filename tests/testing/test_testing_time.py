"""A check and a campaign answer within their time, whatever an engine does, and say what they examined."""

import re
import signal
import sys
import time
from pathlib import Path

import pytest

import kgverify as kv
from kgverify.dialects import ReferenceEngine

ENGINE = """
import time
from kgverify.dialects import ReferenceEngine

class Sleeps(ReferenceEngine):
    def prove(self, candidates, progress=lambda num: None):
        time.sleep(0.08 * len(candidates.query))
        return super().prove(candidates)
"""


class Stuck(ReferenceEngine):
    """Never returns if a run has many candidates, and catches every exception of its own."""

    most = 4

    def prove(self, candidates, progress=lambda num: None):
        while len(candidates.query) > self.most:
            try:
                time.sleep(1)
            except Exception:
                time.sleep(1)
        return super().prove(candidates)


class Wrong(Stuck):
    """Proves nothing, and never returns if a run has many candidates."""

    def prove(self, candidates, progress=lambda num: None):
        columns = super().prove(candidates)
        rows = columns.candidates
        return columns._replace(candidates=rows._replace(outcome=rows.outcome * 0 + 2))


class Lingering:
    """Takes its time to be deleted."""

    def __del__(self) -> None:
        time.sleep(0.3)


class Lingers(ReferenceEngine):
    """Is interrupted where Python drops exceptions."""

    def prove(self, candidates, progress=lambda num: None):
        Lingering()
        time.sleep(0.01)
        return super().prove(candidates)


def test_a_problem_that_is_interrupted_while_an_object_is_deleted_is_left_without_a_warning():
    found = kv.check_engine(Lingers, seconds=1)
    assert (found.num_problems, found.verdict) == (0, kv.Verdict.INCONCLUSIVE)


def test_slow_problems_do_not_use_up_the_time_of_a_check():
    begun = time.monotonic()
    found = kv.check_engine(Stuck, seconds=4)
    assert time.monotonic() - begun < 8
    assert found.verdict is kv.Verdict.AGREE
    stopped = rf"stopped after \d of 4 s: {found.num_problems} of 300 problems compared.*took more than 10% of the time"
    assert re.search(stopped, str(found))
    # The laws are listed if some of the problems were checked by them.
    assert bool(found.laws) == (", 0 of them" not in str(found))
    with pytest.warns(UserWarning, match="stopped after"):
        found.raise_if_broken()


def test_too_little_is_inconclusive_whatever_the_time():
    found = kv.check_engine(type("Never", (Stuck,), {"most": -1}), seconds=1)
    assert (found.num_problems, found.laws, found.verdict) == (0, (), kv.Verdict.INCONCLUSIVE)
    assert "stopped after 1 of 1 s: 0 of 300 problems compared" in str(found)


def test_a_difference_is_found_confirmed_and_shrunk_within_the_time():
    begun = time.monotonic()
    with pytest.raises(kv.NotConforming, match=r"Wrong \(.*test_testing_time.py:\d+\) does not conform") as raised:
        kv.assert_equivalent(Wrong, seconds=5)
    assert time.monotonic() - begun < 9
    assert raised.value.report.failure.divergence is not None


def test_a_campaign_tries_slow_problems_alone_and_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sleeping.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sleeping", raising=False)
    begun = time.monotonic()
    result = kv.fuzz("sleeping:Sleeps", seconds=3, corpus=tmp_path / "corpus", graph="countries")
    assert time.monotonic() - begun < 8
    assert 0 < result.num_problems - result.num_left < 100
    assert re.search(rf"stopped     after \d of 3 s: {result.num_problems - result.num_left} problems", str(result))
    assert "of the graph countries and seed 0" in str(result)
    # An unfinished block is tried again.
    assert kv.fuzz("sleeping:Sleeps", seconds=1, corpus=tmp_path / "corpus", graph="countries").num_resumed == 0


class WrongOnLargeGraphs(ReferenceEngine):
    """Proves nothing with many facts."""

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        self._is_large = len(program.facts) > 900

    def prove(self, candidates, progress=lambda num: None):
        columns = super().prove(candidates)
        rows = columns.candidates
        return columns._replace(candidates=rows._replace(outcome=rows.outcome * 0 + 2)) if self._is_large else columns


class StuckOnLargeGraphs(WrongOnLargeGraphs):
    """Never returns with many facts."""

    def prove(self, candidates, progress=lambda num: None):
        while self._is_large:
            time.sleep(1)
        return super().prove(candidates)


def test_a_graph_is_checked_in_parts_and_as_a_whole(tmp_path: Path):
    (tmp_path / "train.txt").write_text("ann\tparent\tbob\nbob\tparent\tcid\nann\tparent\tdan\n")
    (tmp_path / "test.txt").write_text("ann\tgrandparent\tcid\n")
    (tmp_path / "rules.pl").write_text("grandparent(X,Y) :- parent(X,Z), parent(Z,Y).\n")
    with pytest.raises(kv.NotConforming, match="first divergence: match_facts") as raised:
        kv.assert_equivalent(kv.Evaluator(mode="eager", faults="last-fact-lost"), tmp_path)
    assert raised.value.report.problem.size <= 4
    with pytest.raises(kv.NotConforming, match="1 of 2 queries of countries compared with 1 corruption") as raised:
        kv.assert_equivalent(WrongOnLargeGraphs, "countries", queries=2)
    assert len(str(raised.value).splitlines()) < 12
    with pytest.raises(kv.NotConforming, match="0 of 20 queries of countries compared, stopped after 1 s"):
        kv.assert_equivalent(type("Never", (Stuck,), {"most": -1}), "countries", seconds=1)
    # Its parts agree, which is not enough.
    with pytest.raises(kv.NotConforming, match=r"(?s)0 of 20 queries of countries compared, .*seconds=600"):
        kv.assert_equivalent(StuckOnLargeGraphs, "countries", seconds=4)


def test_the_default_reference_of_an_engine_that_tells_only_outcomes_is_the_search():
    class Searches(kv.OutcomeEngine):
        def decide(self, query):
            return query in self.facts

    found = kv.check_engine(Searches, examples=20, seconds=3)
    assert found.reference == "search"
    assert found.failure.divergence.kind in ("false_proof", "proof_lost")


def test_the_timer_of_another_tool_goes_on():
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 100)
        kv.check_engine(ReferenceEngine, examples=2, seconds=20, minimum={})
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] < 100
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
