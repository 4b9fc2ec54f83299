"""The campaign of kills and full disks, in a tiny form: nothing committed is lost, nothing wrong is read."""

from pathlib import Path

import pytest
from synthetic_trace import make_steps
from trace_durability import Findings, Work, fill_everywhere, kill_at_random, kill_everywhere

SMALL = Work(make_steps(30, steps_per_candidate=5), 2, 15)
SEVERAL = Work(make_steps(30, steps_per_candidate=5), 2, 1, num_threads=3)


@pytest.mark.exhaustive
def test_several_threads_that_are_killed_or_find_no_room_lose_nothing(tmp_path: Path):
    findings = Findings()
    num_calls = kill_everywhere(SEVERAL, tmp_path, findings, stride=8)
    fill_everywhere(SEVERAL, tmp_path, findings, range(1, num_calls, 8))
    kill_at_random(SEVERAL, tmp_path, findings, 2, 0)
    assert findings.num_trials >= num_calls // 2
    assert findings.kinds["a prefix"]
    assert findings.messages == []


@pytest.mark.exhaustive
def test_a_writer_that_is_killed_loses_nothing(tmp_path: Path):
    findings = Findings()
    num_calls = kill_everywhere(SMALL, tmp_path, findings, stride=8)
    kill_at_random(SMALL, tmp_path, findings, 2, 0)
    assert findings.num_trials >= num_calls // 8
    assert findings.kinds["a prefix"]
    assert findings.messages == []


@pytest.mark.deep
def test_a_writer_whose_disk_is_full_says_what_is_safe(tmp_path: Path):
    findings = Findings()
    fill_everywhere(SMALL, tmp_path, findings, range(1, 40, 4))
    assert findings.num_trials == 10
    assert findings.messages == []
