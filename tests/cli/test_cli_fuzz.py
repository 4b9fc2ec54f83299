"""`kgverify fuzz`: exit codes, what is printed and written, and what a terminal shows while it runs."""

import re
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from kgverify import CampaignResult, EngineSpec, Tally, Tried
from kgverify.cli.commands.fuzz import parse_seconds
from kgverify.cli.dashboard import draw
from kgverify.report.render.screen import Screen
from kgverify.testing.campaigns.campaign import Campaign
from kgverify.testing.campaigns.result import Sighting
from kgverify.testing.checking.failure import Signature


def test_a_campaign_says_what_it_found_and_writes_it_as_json(command, tmp_path: Path):
    few = ("--examples", "24", "--jobs", "1", "--corpus", tmp_path / "corpus", "--json", "-")
    passed = command("fuzz", *few)
    assert passed.exit_code == 0, passed.stderr
    assert "NOTHING NEW   24 problems" in passed.stderr
    assert msgspec.json.decode(passed.stdout, type=CampaignResult).num_problems == 24
    failed = command("fuzz", *few, "--fault", "last-fact-lost")
    assert failed.exit_code == 1
    assert "1 NEW DIVERGENCE" in failed.stderr
    (found,) = msgspec.json.decode(failed.stdout)["divergences"]
    assert command("replay", found["file"]).exit_code == 1


def test_times_are_read():
    assert [*map(parse_seconds, ("90", "90s", "10m", "1h30m", "1h1m1s"))] == [90, 90, 600, 5400, 3661]


BUSY = Tally(
    "try",
    done=12_288,
    seconds=83.0,
    resumed=1_024,
    at_work=3_072,
    tried=Tried(
        num_candidates=37_790,
        num_steps=106_080,
        num_resolvents=190_112,
        num_differing=1_593,
        sightings=[
            Sighting(signature=Signature("match_facts", "stage.match_facts", "missing"), index=0, count=41),
            Sighting(signature=Signature("recycle", "resolvents.atoms", "foreign"), index=9, count=1),
        ],
    ),
)


def make_campaign(**named: object) -> Campaign:
    return Campaign(
        corpus=Path("corpus"), engine=EngineSpec(faults=("last-fact-lost", "visited-leak")), jobs=2, **named
    )


def read_dashboard(tally: Tally, **named: object) -> dict[str, str]:
    """Return the texts of a dashboard by their titles."""
    console = Screen(file=StringIO(), width=120, height=30, no_color=True)
    console.print(draw(make_campaign(**named), tally))
    return dict(re.findall(r"^(\S+) +(.*?) *$", console.file.getvalue(), re.MULTILINE))


def test_the_dashboard_says_how_far_it_is_what_was_compared_and_what_failed():
    shown = read_dashboard(BUSY, seconds=600.0)
    assert {
        "engine": "compiled (eager, cpu), fault last-fact-lost, fault visited-leak",
        "now": "trying problems",
        "time": "0:01:23 of 0:10:00, 0:08:37 left",
        "problems": "12,288 of seed 0, 1,024 of them earlier; 3,072 more in work",
        "compared": "37,790 candidates, 106,080 steps, 190,112 resolvents",
        "speed": "136 problems a second",
        "failures": "2 kinds, in 1,593 problems",
        "stages": "match_facts 41, recycle 1",
        "classes": "missing 41, foreign 1",
    }.items() <= shown.items()


@pytest.mark.parametrize(
    ("tally", "seconds", "title", "text"),
    [
        (BUSY._replace(total=20_000), 100.0, "time", "0:01:23 of 0:01:40, 0:00:17 left"),
        (BUSY._replace(total=20_000), None, "time", "0:01:23, 0:00:56 left"),
        (BUSY._replace(is_ending=True), 600.0, "time", "0:01:23"),
        (Tally("try", at_work=3_072), 60.0, "speed", "not known yet"),
        (Tally("shrink", done=1, total=3), None, "now", "shrinking new divergences: 1 of 3"),
    ],
)
def test_the_dashboard_says_no_more_than_is_known(tally: Tally, seconds: float | None, title: str, text: str):
    assert read_dashboard(tally, seconds=seconds)[title] == text
