"""`kgverify evaluate`: what it prints and writes, its exit codes, Ctrl-C, several processes; docs/evaluating.md."""

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runs import EAGER, Command
from warm_commands import run_shell

from kgverify import UserError
from kgverify.program.outcomes import Outcome
from kgverify.prover.evaluator import parse_memory

# `kgverify.cli.progress` is a module, and so is what the commands import from it.
PROGRESS = importlib.import_module("kgverify.cli.progress")
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "evaluating.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- command: (?P<command>.*?) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(PAGE.partition("## Several machines")[0])]
WIDE = ("--mode", "eager", "--device", "cpu")
FEW = ("--queries", "3", "--corruptions", "6", *EAGER)


def squash(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_an_evaluation_prints_metrics_counts_speed_and_what_was_checked(command: Command, tmp_path: Path):
    finished = command("evaluate", *FEW, "--json", tmp_path / "found.json")
    assert (finished.code, finished.err) == (0, "")
    assert finished.out.startswith("EVALUATED   36 candidates in 6 rankings\n")
    assert "graph countries, 3 queries of test, 6 corruptions, seed 0" in finished.out
    for word in ("mean_reciprocal_rank", "hits_at_10", "proved", "limited", "candidates/s", "µs each", "warm-up"):
        assert word in finished.out
    assert "36 also proved by the reference: 36 equal, 0 different" in finished.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["metrics"]["both.realistic.mean_reciprocal_rank"] > 0
    assert len(found["metrics"]) == 36
    assert found["outcomes"].keys() == {outcome.name.lower() for outcome in Outcome}
    assert found["check"]["num_equal"] == found["num_candidates"] == 36


def test_json_on_standard_output_is_alone_there(command: Command):
    finished = command("evaluate", *FEW, "--check", "0", "--json", "-")
    assert json.loads(finished.out)["check"] is None
    assert finished.code == 3
    assert finished.err.startswith("INCONCLUSIVE")
    assert "because nothing was checked by the reference; to accept that: --minimum none" in finished.err
    assert "check         none" in finished.err


def test_a_fault_exits_with_1_and_says_how_to_find_the_step(command: Command):
    finished = command("evaluate", *FEW, "--fault", "fact-cap")
    assert finished.code == 1
    assert finished.out.startswith("DIVERGE")
    assert "results differ from the reference; the first\n  locatedInCR(armenia, asia)" in finished.out
    (hint,) = re.findall(r"^  kgverify (diff --queries 1 .*?)   #", finished.out, re.MULTILINE)
    assert command(*hint.split()).code == 1


def test_an_evaluation_resumes_from_its_folder_and_refuses_that_of_another(command: Command, tmp_path: Path):
    folder = tmp_path / "run"
    first = command("evaluate", *FEW, "--part-size", "10", "--save", folder)
    assert (first.code, first.err) == (0, "")
    (folder / "part-000001.npz").unlink()
    again = command("evaluate", *FEW, "--part-size", "10", "--save", folder)
    assert "1 of 3 parts in" in again.out
    assert "; 2 were finished before" in again.out
    done = command("evaluate", *FEW, "--part-size", "10", "--save", folder, "--memory", "100MiB")
    assert "every part was finished before" in done.out
    assert json.loads((folder / "summary.json").read_text())["num_parts_resumed"] == 3
    other = command("evaluate", *FEW, "--part-size", "10", "--save", folder, "--seed", "1")
    assert other.code == 2
    assert "seed is 0 there and 1 here" in other.err


def test_rank_only_gives_the_same_ranks_and_reports_the_skipped_candidates(command: Command, tmp_path: Path):
    options = ("evaluate", "--queries", "2", *WIDE)
    found = []
    for name in ([], ["--rank-only"]):
        finished = command(*options, *name, "--json", tmp_path / "found.json")
        assert (finished.code, finished.err) == (0, "")
        found.append((finished.out, json.loads((tmp_path / "found.json").read_text())))
    (text, every), (ranked_text, ranked) = found
    assert ranked["metrics"] == every["metrics"]
    assert (every["rank_only"], every["num_left_out"]) == (False, 0)
    assert ranked["rank_only"]
    assert ranked["num_left_out"] == ranked["num_candidates"] - sum(ranked["outcomes"].values()) > 0
    assert "left out" not in text
    assert f"left out      {ranked['num_left_out']:,} of {ranked['num_candidates']:,} candidates" in ranked_text


def test_with_a_fault_for_ranks_alone_the_hint_is_of_a_diff(command: Command):
    finished = command("evaluate", *FEW, "--rank-only", "--fault", "fact-cap")
    assert finished.code == 1
    (hint,) = re.findall(r"^  kgverify (diff --queries 1 .*?)   #", finished.out, re.MULTILINE)
    assert "rank-only" not in hint


@pytest.mark.parametrize(
    ("arguments", "where", "fix"),
    [
        (["--rank-only", "--fault", "no-push-down"], "--rank-only", "leave --rank-only out"),
        (["--memory", "lots"], "--memory", "8GiB"),
        (["--memory", "1KiB"], "--memory", "more memory"),
        (["--precision", "fp8"], "--precision", "float32"),
        (["--corruptions", "-2"], "--corruptions", "all"),
        (["--queries", "0"], "--queries", "1 or more"),
        (["--slots", "0"], "--slots", "slots >= 1"),
        (["--save", "/dev/null/run"], "/dev/null/run", "a folder"),
        (["--graph", "countris"], "countris", "did you mean 'countries'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_reported_with_its_location_and_its_fix(
    command: Command, arguments: list[str], where: str, fix: str
):
    finished = command("evaluate", *FEW, *arguments)
    assert finished.code == 2
    assert finished.err.startswith(f"error: {where}: ")
    assert fix in finished.err.splitlines()[-1]


@pytest.mark.parametrize(("text", "size"), [("8GiB", 8 << 30), ("500M", 500 << 20), ("1.5 kb", 1536), ("77", 77)])
def test_a_size_is_read_as_it_is_written(text: str, size: int):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "8 apples", "GiB"])
def test_a_malformed_size_is_refused(text: str):
    with pytest.raises(UserError):
        parse_memory(text)


def start(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kgverify", "evaluate", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.deep
@pytest.mark.usefixtures("heeds_signals")
def test_ctrl_c_ends_after_the_part_in_flight_and_the_command_goes_on_later(command: Command, tmp_path: Path):
    arguments = ["--part-size", "30", "--corruptions", "12", "--check", "9", *WIDE, "--save", str(tmp_path / "run")]
    process = start(arguments)
    while not (tmp_path / "run" / "part-000000.npz").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "stopping after the current part" in err
    assert re.search(r"\d+ of \d+ parts are done; resume with: kgverify evaluate --part-size 30", err)
    done = [path.name for path in (tmp_path / "run").iterdir()]
    assert not any(name.endswith(".tmp") for name in done)
    resumed = command("evaluate", *arguments)
    assert resumed.code == 0
    assert f"; {len(done) - 1:,} were finished before" in resumed.out


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@pytest.mark.deep
def test_two_processes_leave_the_parts_and_the_metrics_of_one(command: Command, tmp_path: Path):
    arguments = ["--queries", "12", "--corruptions", "8", "--part-size", "30", "--check", "9", *WIDE]
    port = str(free_port())
    processes = [
        start(
            [*arguments, "--save", str(tmp_path / "two")],
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(2)
    ]
    (out, err), silent = (process.communicate(timeout=300) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], err + silent[1]
    assert silent == ("", "")
    assert "by 2 processes" in out
    assert command("evaluate", *arguments, "--save", tmp_path / "one").code == 0
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).glob("part-*")} for name in ("one", "two")]
    assert len(files[0]) > 5
    assert files[0] == files[1]
    metrics = [json.loads((tmp_path / name / "summary.json").read_text())["metrics"] for name in ("one", "two")]
    assert metrics[0] == metrics[1]


def test_several_processes_need_a_folder(command: Command, monkeypatch: pytest.MonkeyPatch):
    class Member:
        index, size = 0, 4

    monkeypatch.setattr(importlib.import_module("kgverify.cli.commands.evaluate"), "join_process_group", Member)
    finished = command("evaluate", *FEW)
    assert finished.code == 2
    assert finished.err == "error: --save: 4 processes need a folder\nfix: give --save DIR\n"


def test_in_a_log_a_line_now_and_then_says_how_long_it_will_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(PROGRESS, "SECONDS_BETWEEN_LINES", 0.0)
    with PROGRESS.show_work("evaluating", 3_000) as progress:
        progress(1_500)
    assert re.fullmatch(r"evaluating: 1,500 of 3,000, [\d,]+/s, 0:00:00 left\n", capsys.readouterr().err)


def test_every_block_of_the_page_is_executed_here():
    assert {block["kind"] for block in BLOCKS} == {"text", "console", "python"}
    assert all(block["command"] for block in BLOCKS if block["kind"] == "text")


@pytest.mark.deep
def test_the_page_does_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Run the blocks in order; a text block is the output of its command, except for speeds."""
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        if block["kind"] == "python":
            exec(compile(block["text"], "evaluating.md", "exec"), {})
            assert capsys.readouterr().out.strip() != ""
        elif block["kind"] == "console":
            done = run_shell(block["text"], tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            done = run_shell(block["command"], tmp_path)
            timeless = [line for line in block["text"].splitlines() if not line.startswith("speed")]
            for line in timeless:
                assert squash(line) in squash(done.stdout), done.stdout + done.stderr
