"""`kgverify fuzz` on a terminal: what is drawn while it runs, what Ctrl-C does, and lines that are too long."""

import os
import re
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import IO, Self

import pytest

from kgverify.cli.dashboard import Dashboard, draw
from kgverify.cli.progress import ECHOED, print_lines
from kgverify.report.render.screen import Screen
from kgverify.runs.engine_makers import EngineSpec
from kgverify.testing.campaigns.campaign import Campaign
from kgverify.testing.campaigns.result import Sighting, Tally, Tried
from kgverify.testing.checking.failure import Signature

ENGINE = EngineSpec(faults=("last-fact-lost", "visited-leak"))
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


def campaign(**named: object) -> Campaign:
    return Campaign(corpus=Path("corpus"), engine=ENGINE, jobs=2, **named)


def drawn(tally: Tally, width: int = 120, **named: object) -> list[str]:
    console = Screen(file=StringIO(), width=width, height=30, no_color=True)
    console.print(draw(campaign(**named), tally))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def value_of(lines: list[str], title: str) -> str:
    (line,) = [line for line in lines if line.startswith(title)]
    return line.removeprefix(title).strip()


def test_the_dashboard_says_how_far_it_is_what_was_compared_and_what_failed():
    lines = drawn(BUSY, seconds=600.0)
    assert value_of(lines, "engine") == "compiled (eager, cpu), fault last-fact-lost, fault visited-leak"
    assert value_of(lines, "now") == "trying problems"
    assert value_of(lines, "time") == "0:01:23 of 0:10:00, 0:08:37 left"
    assert value_of(lines, "problems") == "12,288 of seed 0, 1,024 of them earlier; 3,072 more in work"
    assert value_of(lines, "compared") == "37,790 candidates, 106,080 steps, 190,112 resolvents"
    assert value_of(lines, "speed") == "136 problems a second"
    assert value_of(lines, "failures") == "2 kinds, in 1,593 problems"
    assert value_of(lines, "stages") == "match_facts 41, recycle 1"
    assert value_of(lines, "classes") == "missing 41, foreign 1"
    assert [line.split(maxsplit=1) for line in lines[-2:]] == [
        ["41", "match_facts stage.match_facts missing"],
        ["1", "recycle resolvents.atoms foreign"],
    ]


def test_the_time_left_is_that_of_the_budget_that_is_spent_first():
    tally = BUSY._replace(total=20_000)
    assert value_of(drawn(tally), "time") == "0:01:23, 0:00:56 left"
    assert value_of(drawn(tally, seconds=100.0), "time") == "0:01:23 of 0:01:40, 0:00:17 left"
    assert value_of(drawn(tally, seconds=50.0), "time") == "0:01:23 of 0:00:50, finishing blocks in progress"


def test_at_the_start_nothing_is_said_that_is_not_known():
    lines = drawn(Tally("try", at_work=3_072), seconds=60.0)
    assert value_of(lines, "speed") == "not known yet"
    assert value_of(lines, "failures") == "none yet"
    assert value_of(drawn(Tally("start")), "now") == "starting 2 processes"
    assert value_of(drawn(Tally("shrink", done=1, total=3)), "now") == "shrinking new divergences: 1 of 3"


def test_after_ctrl_c_it_says_what_is_awaited_and_how_to_end_at_once():
    lines = drawn(BUSY._replace(is_ending=True), seconds=600.0)
    assert "Ctrl-C again ends at once" in value_of(lines, "now")
    assert value_of(lines, "time") == "0:01:23"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_folded_and_there_is_room_for_the_echo_of_ctrl_c(width):
    console = Screen(file=StringIO(), width=width, height=24, no_color=True)
    dashboard = Dashboard(campaign(seconds=600.0))
    signatures = [Signature(f"stage number{i} " * 9, "", "") for i in range(40)]
    sightings = [Sighting(signature=each, index=0, count=40 - i) for i, each in enumerate(signatures)]
    dashboard.watch(BUSY._replace(tried=Tried(sightings=sightings)))
    # As rich's Live does.
    segments = console.render_lines(dashboard, console.options.update(height=None), pad=False)
    lines = ["".join(segment.text for segment in line) for line in segments]
    assert all(len(line) <= width - ECHOED for line in lines)
    assert len(lines) < 24
    assert "and 28 more" in lines[-1]
    if width >= 80:
        assert not any("…" in line for line in lines if "stage number" not in line)


def test_long_lines_go_on_under_their_text_and_commands_are_left_to_be_copied():
    lines = [
        "   differ      1,593 problems; 1,551 of them only in the run of their block, not looked at one by one",
        "   % max_depth 20, max_atoms 6, max_resolvents 120, exclude_query True, policy shortest, 2 slots",
        "   kgverify replay a/very/long/folder/of/reproducers/match-facts-missing-2fc54529.kg   (not shrunk yet)",
    ]
    console = Screen(file=StringIO(), width=80, force_terminal=True, no_color=True)
    print_lines(console, *lines)
    assert console.file.getvalue().splitlines() == [
        "   differ      1,593 problems; 1,551 of them only in the run of their block, not",
        "               looked at one by one",
        "   % max_depth 20, max_atoms 6, max_resolvents 120, exclude_query True, policy",
        "      shortest, 2 slots",
        lines[2],
    ]
    pipe = Screen(file=StringIO(), width=80)
    print_lines(pipe, *lines)
    assert pipe.file.getvalue().splitlines() == lines


# A block of 2,048 problems takes long to end.
IN_A_TERMINAL = """
import os, pty, sys
script = "from kgverify.cli import main; from kgverify.testing.campaigns import campaign; campaign.BLOCK_SIZE = 256; main()"
code = pty.spawn([sys.executable, "-c", script, *sys.argv[1:]])
sys.exit(os.waitstatus_to_exitcode(code))
"""


ESCAPE = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


class Terminal:
    """A command under a pseudo-terminal of 80 columns."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_A_TERMINAL, *words],
            cwd=folder,
            env=dict(os.environ, COLUMNS="80", LINES="24", TERM="xterm", OMP_NUM_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.text = ""

    def read_until(self, pattern: str, seconds: float = 180.0) -> None:
        """Until a pattern was written."""
        deadline = time.monotonic() + seconds
        stream: IO[bytes] = self.process.stdout
        while not re.search(pattern, ESCAPE.sub("", self.text)):
            assert time.monotonic() < deadline, self.text
            chunk = os.read(stream.fileno(), 1 << 16)
            assert chunk, self.text
            self.text += chunk.decode()

    def press_ctrl_c(self) -> None:
        """Type as a person does."""
        self.process.stdin.write(b"\x03")
        self.process.stdin.flush()

    def wait(self) -> int:
        """The exit code, once everything was read."""
        out, _ = self.process.communicate(timeout=300)
        self.text += out.decode()
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals")
def test_on_a_terminal_ctrl_c_ends_cleanly_and_the_same_command_goes_on(tmp_path):
    words = ["fuzz", "--examples", "2048", "--jobs", "1", "--corpus", "corpus"]
    with Terminal(tmp_path, *words) as first:
        first.read_until(r"trying problems")
        first.read_until(r"problems +256 of seed 0")
        first.press_ctrl_c()
        assert first.wait() == 130, first.text
    assert "\x1b[?25h" in first.text  # the cursor is shown again
    assert "Traceback" not in first.text
    after = first.text[first.text.index("NOTHING NEW SO FAR") :]
    num_done = int(re.match(r"NOTHING NEW SO FAR   ([\d,]+) problems", after)[1].replace(",", ""))
    assert 256 <= num_done < 2048
    assert "to resume, run:\r\nkgverify fuzz --examples 2048 --jobs 1 --corpus corpus\r\n" in after

    with Terminal(tmp_path, *words) as again:
        assert again.wait() == 0, again.text
    assert f"NOTHING NEW   2,048 problems, {num_done:,} of them earlier" in again.text
