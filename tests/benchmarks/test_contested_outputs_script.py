"""The contest of outputs, in a small form."""

from pathlib import Path

import pytest
from contested_outputs import COMMANDS, Contest


@pytest.mark.exhaustive
def test_planted_links_two_writers_and_full_disks_damage_nothing(tmp_path: Path):
    contest = Contest(tmp_path / "contest", ["record"], 0)
    contest.run(3)
    assert contest.findings.messages == []
    assert set(contest.findings.rounds) == {"links", "writers", "no room"}


@pytest.mark.exhaustive
def test_every_quick_command_survives_a_contest(tmp_path: Path):
    contest = Contest(tmp_path / "contest", [name for name, each in COMMANDS.items() if not each.is_slow], 1)
    contest.run(60)
    assert contest.findings.messages == []
