"""Stepping through a saved run: by lines, by keys in a terminal, or one divergence at a time."""

import io
import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import EAGER, Command
from warm_commands import run_shell

RUN = ("--queries", "3", "--corruptions", "6", "--no-determinism", *EAGER)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("runs") / "free", "--fault", "fact-cap")


@pytest.fixture(scope="module")
def lockstep_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("runs") / "lockstep", "--fault", "fact-cap", "--lockstep")


def save_run(folder: Path, *options: str) -> Path:
    command = ["kgverify", "diff", *RUN, *options, "--save", str(folder)]
    done = run_shell(shlex.join(command), folder.parent)
    assert done.returncode == 1, done.stderr
    return folder


@pytest.fixture
def stepped(command: Command, monkeypatch: pytest.MonkeyPatch):
    """The views printed for a script of commands, the first one before any of them."""

    def run(folder: Path, *script: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in script)))
        finished = command("show", folder)
        assert (finished.code, finished.err) == (0, "")
        return finished.out.split("\n> ")

    return run


def test_a_run_opens_at_its_first_divergence_with_the_step_side_by_side(stepped, run_dir: Path):
    (first,) = stepped(run_dir)
    assert first.startswith("\ndivergence 1 of 30   cause 1 of 1: match_facts (missing)\n")
    assert "candidate 0: locatedInCR(armenia, asia)   query 0, head side" in first
    assert "step 1 of 4 expected, 2 actual   <- diverges here" in first
    assert "step 0  agrees  locatedInCR(armenia, asia)  by locatedInCR(X, Z)" in first
    assert "-> - missing  * locatedInCR(iran, asia)   -1" in first
    lines = [line.split() for line in first[first.index("stage by stage") :].splitlines()]
    marks = {line[0 if line[0] != "->" else 1]: line for line in lines if len(line) > 1}
    assert marks["match_facts"][:3] == ["->", "match_facts", "differs"]
    assert (marks["select"][1], marks["match_rules"][1]) == ("agrees", "agrees")
    assert marks["rename"][1] == marks["close"][1] == marks["finish"][1] == "follows"
    assert marks["prune"][1:3] == marks["revisit"][1:3] == ["not", "held"]


def test_n_and_p_go_from_divergence_to_divergence_and_stop_at_the_ends(stepped, run_dir: Path):
    views = stepped(run_dir, "p", "n", "n", "p", "d 30", "n", "q", "n")
    numbers = [line for view in views for line in view.splitlines() if "divergence" in line and " of 30" in line]
    assert [line.split()[1] for line in numbers] == ["1", "2", "3", "2", "30"]
    assert "this is the first divergence" in views[1]
    assert "this is the last divergence" in views[6]
    assert len(views) == 8


def test_f_and_b_go_through_the_steps_and_s_through_the_stages(stepped, run_dir: Path):
    views = stepped(run_dir, "b", "b", "f", "f", "f", "f", "o", *"ssss", "S", "S", "S", "S", "o", "S")
    assert "step 0 of 4 expected, 2 actual   (before the divergent step 1)" in views[1]
    assert "differs" not in views[1]
    assert "this is the first step" in views[2]
    assert "step 2 of 4 expected, 2 actual   (after the divergent step 1)" in views[4]
    assert "The actual side has no such step." in views[4]
    assert "neither side has a further step" in views[6]
    assert "<- diverges here" in views[7]
    titles = [view.splitlines()[5].split()[:3] for view in views[8:12]]
    assert [title[-1] if title[0] == "->" else title[1] for title in titles] == [
        "(input)",
        "select",
        "match_rules",
        "match_facts",
    ]
    assert "- fact neighborOf(armenia, iran) [train.txt:382]" in views[11]
    assert "replayed; only the differences" in views[11]
    assert "stage by stage" in views[15]
    assert "stage finish" in views[17]


def test_t_shows_the_proof_tree_and_every_other_move_leaves_it(stepped, run_dir: Path):
    views = stepped(run_dir, "t", "t", "t", "b", "t", "s")
    assert "step 1    neighborOf(armenia, X0)   by fact neighborOf(armenia, iran)" in views[1]
    assert "a fact      locatedInCR(pakistan, asia)" in views[1]
    assert ["resolvents" in view for view in views] == [True, False, True, False, True, False, False]
    assert "stage (input)" in views[6]


def test_a_search_restricts_n_and_p_to_the_divergences_with_every_word(stepped, run_dir: Path):
    views = stepped(run_dir, "/ ARMENIA tail", "p", "n", "/no such words", "n", "/armenia", "/", "p")
    report = json.loads((run_dir / "report.json").read_text())
    found = [
        i for i, each in enumerate(report["divergences"], 1) if "armenia" in each["atom"] and each["side"] == "tail"
    ]
    assert f"{len(found)} of 30 divergences; n and p go through these" in views[1]
    assert f"divergence {found[0]} of 30" in views[1]
    assert "this is the first divergence" in views[2]
    assert f"divergence {found[1]} of 30" in views[3]
    assert "no divergence contains all these words" in views[4]
    assert f"divergence {found[1] + 1} of 30" in views[5]
    assert "n and p go through all divergences again" in views[7]


def test_a_level_is_explained_where_it_is_named(stepped, run_dir: Path):
    views = stepped(run_dir, "b")
    assert "level outcome: the difference changes the outcome of a candidate, not only its steps" in views[0]
    assert "level" not in views[1]


def test_an_unknown_command_or_number_is_reported_and_changes_nothing(stepped, run_dir: Path):
    views = stepped(run_dir, "x", "d", "d 31", "d 0", "c 2", "c one", "h", "", "c 1")
    assert "unknown command 'x'; h lists them" in views[1]
    assert all("d needs the number of a divergence, 1 to 30" in view for view in views[2:5])
    assert all("c needs the number of a cause, 1 to 1" in view for view in views[5:7])
    assert "next divergence" in views[7]
    assert "divergence 1 of 30" in views[8]


@pytest.mark.deep
def test_in_lockstep_both_sides_of_every_step_are_shown(stepped, lockstep_dir: Path):
    views = stepped(lockstep_dir, *["n"] * 20, *["f"] * 3)
    for view in views[:21]:
        assert "<- diverges here" in view
        assert "resolvents" in view
        assert "diverged earlier" not in view
        assert "no such step" not in view
    assert all("parted" not in view for view in views)


def test_one_divergence_is_printed_and_written(command: Command, run_dir: Path):
    finished = command("show", run_dir, "--divergence", 2)
    assert finished.code == 0
    assert finished.out.startswith("\ndivergence 2 of 30 ")
    assert "> " not in finished.out.replace("-> ", "")
    data = json.loads(command("show", run_dir, "--divergence", 2, "--json", "-").out)
    report = json.loads((run_dir / "report.json").read_text())
    assert (data["number"], data["divergence"]) == (2, report["divergences"][1])
    stages = {stage["stage"]: stage for stage in data["stages"]}
    assert list(stages)[:4] == ["(input)", "select", "match_rules", "match_facts"]
    assert stages["match_facts"]["is_culprit"]
    assert stages["match_facts"]["expected"] == report["divergences"][1]["expected"]
    assert {pair["mark"] for pair in data["derivation"]["pairs"]} == {"missing", "extra"}


@pytest.mark.parametrize(
    ("options", "where", "message"),
    [
        (["--divergence", "0"], "--divergence", "expected a divergence from 1 to 30, found 0"),
        (["--divergence", "31"], "--divergence", "found 31"),
        (["--candidate", "0"], "", "expected.h5"),
        (["--json", "-"], "--json", "--divergence N"),
    ],
)
def test_what_does_not_go_with_a_run_is_a_user_error(
    command: Command, run_dir: Path, options: list[str], where: str, message: str
):
    finished = command("show", run_dir, *options)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith(f"error: {where or run_dir}: ")
    assert message in finished.err


def test_a_folder_that_holds_neither_a_run_nor_a_trace_is_reported(command: Command, run_dir: Path, tmp_path: Path):
    finished = command("show", tmp_path)
    assert finished.code == 2
    assert f"error: {tmp_path}: holds neither report.json of a saved run nor manifest.json of a trace" in finished.err
    (tmp_path / "report.json").write_text("{}")
    assert command("show", tmp_path).code == 2
    finished = command("show", run_dir / "actual.h5", "--divergence", 1)
    assert finished.code == 2
    assert "error: --divergence: a trace has no divergences" in finished.err


def test_a_run_that_agrees_has_nothing_to_step_through(command: Command, tmp_path: Path):
    folder = tmp_path / "run"
    assert command("diff", "--queries", 1, "--corruptions", 1, *EAGER, "--save", folder).code == 0
    finished = command("show", folder)
    assert finished.code == 2
    assert "no divergences to step through: AGREE" in finished.err


@pytest.fixture
def terminal(run_dir: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kgverify", "show", str(run_dir)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "24"},
    )
    os.close(theirs)
    yield ours, process
    process.kill()
    process.wait()
    os.close(ours)


def read_until(terminal: int, text: bytes) -> bytes:
    seen, deadline = b"", time.monotonic() + 120
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 1 << 16)
    return seen


def test_in_a_terminal_a_key_is_a_command_and_redraws_the_screen(terminal: tuple[int, subprocess.Popen[bytes]]):
    keys, process = terminal
    first = read_until(keys, b"q quit")
    assert b"\x1b[?1049h" in first
    assert b"-> stage match_facts" in first
    for pressed, shown in (
        (b"n", b"divergence 2 of 30"),
        (b"\x1b[B", b"divergence 3 of 30"),
        (b"\x1b[D", b"step 0"),
        (b"h", b"this help"),
        (b"o", b"more lines: space"),
        (b" ", b"advance"),
    ):
        os.write(keys, pressed)
        seen = read_until(keys, b"q quit")
        assert shown in seen
        assert b"\x1b[H" in seen
    os.write(keys, b"d")
    read_until(keys, b"number of the divergence: ")
    os.write(keys, b"77\x7f\n")
    assert b"divergence 7 of 30" in read_until(keys, b"q quit")
    os.write(keys, b"/")
    read_until(keys, b"words to search for: ")
    os.write(keys, b"armenia\n")
    assert b"n and p go through these" in read_until(keys, b"q quit")
    os.write(keys, b"d\x1b")
    read_until(keys, b"q quit")
    os.write(keys, b"q")
    read_until(keys, b"\x1b[?1049l")
    assert process.wait(10) == 0
