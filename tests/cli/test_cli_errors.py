"""A user's mistake exits with 2, says where it is and how to fix it, and hides our stack."""

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
        (["diff", "--slots", "0", *SMALL, "--mode", "eager"], "layout.slots", "slots >= 1"),
        (["diff", "--corruptions", "foo"], "--corruptions", "all"),
        (["diff", "--corruptions", "-2"], "--corruptions", "0 or more"),
        (["diff", "--queries", "0"], "--queries", "1 or more"),
        (["diff", "--seed", "-1", "--policy", "two_tower"], "--seed", ""),
        (["diff", "--split", "tset", *EAGER], "split", "did you mean 'test'?"),
        (["diff", "--max-depth", "0"], "max_depth", "from 1 to"),
        (["diff", "--max-atoms", "99"], "max_atoms", "from 1 to"),
        (["diff", "one.h5"], "one.h5", "kgverify diff EXPECTED.h5 ACTUAL.h5"),
        (["diff", "one.h5", "two.h5"], "one.h5", "check the path"),
        (["diff", "one.h5", "two.h5", "--lockstep"], "--lockstep", "leave"),
        (["diff", "one.h5", "two.h5", "--fault", "fact-cap"], "--fault", "leave"),
        (["record", "--engine", "referenc", "-o", "x.h5"], "--engine", "did you mean 'reference'?"),
        (["record", "--engine", "reference", "--fault", "fact-cap", "-o", "x.h5"], "--fault", "--engine compiled"),
        (["record", "--engine", "reference", *SMALL, "-o", "none/x.h5"], "none/x.h5", "create none first"),
        (["show", "none.h5"], "none.h5", "check the path"),
        (["show", "none.h5", "--step", "1"], "--step", "--candidate"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_with_its_place_and_its_fix(
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


def test_a_candidate_or_step_that_the_trace_lacks_is_told_with_what_it_has(command: Command, tmp_path: Path):
    path = tmp_path / "run.h5"
    assert command("record", "--engine", "reference", *SMALL, "-o", path).code == 0
    finished = command("show", path, "--candidate", 6)
    assert finished.code == 2
    assert "expected a candidate from 0 to 5, found 6" in finished.err
    finished = command("show", path, "--candidate", 0, "--step", -1)
    assert finished.code == 2
    assert "found -1" in finished.err


def test_a_file_that_is_no_trace_is_told(command: Command, tmp_path: Path):
    (tmp_path / "x.h5").write_text("no trace")
    assert_user_error(command, ["show", tmp_path / "x.h5"], str(tmp_path / "x.h5"), "")


def test_json_that_cannot_be_written_is_told(command: Command, tmp_path: Path):
    path = tmp_path / "none" / "report.json"
    options = ["--engine", "reference", *SMALL, "-o", tmp_path / "run.h5"]
    finished = command("record", *options, "--json", path)
    assert finished.code == 2
    assert f"error: {path}: cannot be written" in finished.err


def test_a_path_to_save_that_is_a_file_is_told(command: Command, tmp_path: Path):
    (tmp_path / "file").write_text("")
    finished = command("diff", *SMALL, *EAGER, "--no-determinism", "--save", tmp_path / "file")
    assert finished.code == 2
    assert "fix: give a path that is free or a folder" in finished.err


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["diff", "--nonsense"], ["diff", "--queries", "many"], ["record", "--engine", "x"]]
)
def test_what_is_no_command_line_exits_with_2(command: Command, arguments: list[str]):
    finished = command(*arguments)
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert finished.err
