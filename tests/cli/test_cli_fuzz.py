"""`kgverify fuzz`: exit codes, what is printed and written, and what a terminal shows while it runs."""

import re
from pathlib import Path

import msgspec

from kgverify import CampaignResult
from kgverify.cli.commands.fuzz import parse_seconds


def test_a_campaign_says_what_it_found_and_writes_it_as_json(command, tmp_path: Path):
    few = ("--examples", "12", "--jobs", "1", "--corpus", tmp_path / "corpus", "--json", "-")
    passed = command("fuzz", *few)
    assert passed.exit_code == 0, passed.stderr
    assert "NOTHING NEW   12 problems" in passed.stderr
    assert msgspec.json.decode(passed.stdout, type=CampaignResult).num_problems == 12
    failed = command("fuzz", *few, "--fault", "last-fact-lost")
    assert failed.exit_code == 1
    assert "1 NEW DIVERGENCE" in failed.stderr
    (found,) = msgspec.json.decode(failed.stdout)["divergences"]
    assert command("replay", found["file"]).exit_code == 1


def test_times_are_read():
    assert [*map(parse_seconds, ("90", "90s", "10m", "1h30m", "1h1m1s"))] == [90, 90, 600, 5400, 3661]


def test_a_terminal_shows_how_far_a_campaign_is_and_what_it_compared(command, tmp_path: Path):
    words = ("--engine", "reference", "--examples", "24", "--jobs", "1", "--corpus", tmp_path, "--minimum", "none")
    done = command("fuzz", *words, FORCE_COLOR="1", COLUMNS="160", TERM="xterm")
    shown = re.sub(r"\r|\x1b\[[\d;?]*[A-Za-z]", "", done.stderr)
    assert re.search(r"trying problems: \d+ candidates, \d+ steps .*24/24 .*\d:\d\d:\d\d", shown), shown[-2000:]
