"""A user's mistake exits with 2, says where it is and how to fix it, and hides our stack."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runs import EAGER, SMALL, Command


def assert_user_error(command: Command, arguments: list[object], where: str, fix: str) -> None:
    finished = command(*arguments)
    assert finished.code == 2
    assert finished.out == ""
    assert "Traceback" not in finished.err
    first, *rest = finished.err.splitlines()
    assert first.startswith(f"error: {where}: ")
    assert rest[-1].startswith("fix: ")
    assert fix in rest[-1]


@pytest.mark.parametrize(
    ("arguments", "where", "fix"),
    [
        (["diff", "--graph", "countris"], "countris", "did you mean 'countries'?"),
        (["diff", "--rules", "none.pl"], "none.pl", ""),
        (["diff", "--policy", "shortst"], "--policy", "did you mean 'shortest'?"),
        (["diff", "--policy", "none.safetensors"], "none.safetensors", "safetensors"),
        (["diff", "--fault", "fact-cup", *SMALL], "--fault", "did you mean 'fact-cap'?"),
        (["diff", "--mode", "egaer", *SMALL], "--mode", "eager"),
        (["diff", "--device", "tpu", *SMALL], "--device", "cpu"),
        (["diff", "--slots", "0", *SMALL, "--mode", "eager"], "--slots", "slots >= 1"),
        (["diff", "--corruptions", "foo"], "--corruptions", "all"),
        (["diff", "--corruptions", "-2"], "--corruptions", "0 or more"),
        (["diff", "--queries", "0"], "--queries", "1 or more"),
        (["diff", "--seed", "-1", "--policy", "two_tower"], "--seed", ""),
        (["diff", "--split", "tset", *EAGER], "--split", "did you mean 'test'?"),
        (["diff", "--limits", "max_depth=0"], "--limits max_depth", "from 1 to"),
        (["diff", "--limits", "max_atoms=99"], "--limits max_atoms", "from 1 to"),
        (["diff", "one.h5"], "one.h5", "kgverify diff EXPECTED.h5 ACTUAL.h5"),
        (["diff", "one.h5", "two.h5"], "one.h5", "check the path"),
        (["diff", "one.h5", "two.h5", "--lockstep"], "--lockstep", "leave"),
        (["diff", "one.h5", "two.h5", "--fault", "fact-cap"], "--fault", "leave"),
        (["diff", "one.h5", "two.h5", "--jobs", "2"], "--jobs", "leave it out"),
        (["diff", "--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"], "--scheduler", "one of the two"),
        (["record", "--engine", "compiled", "--jobs", "2", "-o", "x.h5"], "--jobs", "leave it out"),
        (["record", "--engine", "referenc", "-o", "x.h5"], "--engine", "did you mean 'reference'?"),
        (["record", "--engine", "reference", "--fault", "fact-cap", "-o", "x.h5"], "--fault", "--engine compiled"),
        (["record", "--engine", "reference", *SMALL, "-o", "none/x.h5"], "none/x.h5", "create none first"),
        (["record", "--engine", "reference", "--split", "vaild", "-o", "x.h5"], "--split", "did you mean 'valid'?"),
        (["train", "--limits", "max_atoms=99", "-o", "x.safetensors"], "--limits max_atoms", "from 1 to"),
        (["show", "none.h5"], "none.h5", "check the path"),
        (["show", "none.h5", "--step", "1"], "--step", "--candidate"),
        (["shrink", "none"], "none/report.json", "--save"),
        (["record", "--engine", "none.py:Engine", "-o", "x.h5"], "--engine", "check the path"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_a_mistake_is_reported_with_its_location_and_its_fix(
    command: Command,
    arguments: list[object],
    where: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    assert_user_error(command, arguments, where, fix)
    assert list(tmp_path.iterdir()) == []


def test_a_candidate_or_step_that_the_trace_lacks_is_reported_with_the_valid_range(command: Command, tmp_path: Path):
    path = tmp_path / "run.h5"
    assert command("record", "--engine", "reference", *SMALL, "-o", path).code == 0
    finished = command("show", path, "--candidate", 6)
    assert finished.code == 2
    assert "expected a candidate from 0 to 5, found 6" in finished.err
    finished = command("show", path, "--candidate", 0, "--step", -1)
    assert finished.code == 2
    assert "found -1" in finished.err


def test_a_file_other_than_a_trace_is_reported(command: Command, tmp_path: Path):
    (tmp_path / "x.h5").write_text("no trace")
    assert_user_error(command, ["show", tmp_path / "x.h5"], str(tmp_path / "x.h5"), "")


@pytest.mark.parametrize("name", ["record", "diff", "train"])
def test_json_that_cannot_be_written_is_reported_before_anything_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    forbid_runs(monkeypatch)
    options = {
        "record": ["--engine", "reference", "-o", tmp_path / "run.h5"],
        "diff": EAGER,
        "train": ["-o", tmp_path / "x.safetensors"],
    }
    for path in (tmp_path / "none" / "report.json", tmp_path):
        finished = command(name, *options[name], "--json", path)
        assert finished.code == 2
        assert f"error: {path}: cannot be written" in finished.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_path_where_no_run_can_be_saved_is_reported_before_anything_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    forbid_runs(monkeypatch)
    (tmp_path / "file").write_text("")
    finished = command("diff", *EAGER, "--save", tmp_path / place)
    assert finished.code == 2
    assert "fix: give a folder, or a path where one can be created" in finished.err


def forbid_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it runs")

    monkeypatch.setattr("kgverify.graphs.load.load_graph", fail)


def test_an_existing_trace_is_overwritten_only_on_request(command: Command, tmp_path: Path):
    path = tmp_path / "run.h5"
    options = ["record", "--engine", "reference", *SMALL, "-o", path]
    assert command(*options).code == 0
    before = path.read_bytes()
    finished = command(*options, "--seed", 1)
    assert (finished.code, finished.out) == (2, "")
    assert f"error: {path}: exists already" in finished.err
    assert path.read_bytes() == before
    assert command(*options, "--seed", 1, "--force").code == 0
    assert path.read_bytes() != before
    assert command(*options, "--resume").code == 0


@pytest.mark.deep
@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize(
    ("number", "code", "last"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        (signal.SIGHUP, 129, "ended by SIGHUP"),
    ],
)
def test_an_interrupted_recording_reports_what_is_safe_and_how_to_resume(
    tmp_path: Path, number: int, code: int, last: str
):
    options = ["record", "--engine", "reference", "--corruptions", "all", "--shard-steps", "50", "-o", "run.h5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kgverify", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    manifest = tmp_path / "run.h5.partial" / "manifest.json"
    while not manifest.is_file() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (code, "")
    safe, rest = err.split("\n", 1)
    assert re.fullmatch(r"[1-9][\d,]* candidates with [\d,]+ steps are safe in run\.h5\.partial", safe), err
    assert rest == f"resume with: kgverify {' '.join(options)} --resume\n{last}\n"
    again = [sys.executable, "-m", "kgverify", *options, "--resume"]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "of them from before" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["diff", "--nonsense"], ["diff", "--queries", "many"], ["record", "--engine", "x"], ["report"]],
)
def test_what_is_no_command_line_exits_with_2(command: Command, arguments: list[str]):
    finished = command(*arguments)
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert finished.err


@pytest.mark.parametrize("group", [[], ["trace"], ["audit"]])
def test_a_group_without_a_command_prints_its_help_with_whole_summaries(command: Command, group: list[str]):
    finished = command(*group)
    assert finished.code == 2
    lines = (finished.out + finished.err).splitlines()
    assert lines[0].startswith(" ".join(["Usage: kgverify", *group]))
    assert "COMMAND" in lines[0]
    assert [line for line in lines[1:] if line.endswith("...")] == []
