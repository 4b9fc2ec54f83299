"""The command compares, records and shows environments, with the exit codes and formats of the others."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from invoked_commands import Invoked, invoke

WALKS = Path(__file__).with_name("placed_walks.py")
SMALL = ("--slots", "3", "--steps", "40")


def run(words: str, folder: Path, **variables: str) -> Invoked:
    return invoke(
        [*words.replace("@", f"{WALKS}:").split(), *(SMALL if "show" not in words else ())], folder, **variables
    )


def test_the_exit_code_is_the_verdict_and_a_saved_run_can_be_shown_again(tmp_path: Path):
    assert run("env diff @right @right", tmp_path).exit_code == 0
    assert run("env diff @right @right --minimum truncated=1000", tmp_path).exit_code == 3
    done = run("env diff @right @other_reward --save run --json found.json --html page.html", tmp_path)
    assert (done.exit_code, done.stderr) == (1, "")
    assert "kgverify env show run" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["format"], found["divergences"][0]["stage"]) == ("kgverify environments 1", "reward")
    assert found["next"][0]["command"] == ["kgverify", "env", "show", "run", "--json", "-"]
    page = (tmp_path / "page.html").read_text()
    assert page == (tmp_path / "run" / "report.html").read_text()
    assert not re.search(r"<script|src=|url\(", page)
    shown = run("env show run", tmp_path)
    assert shown.exit_code == 0
    assert done.stdout.startswith(shown.stdout.rstrip())
    third = run("env show run --divergence 3 --json -", tmp_path)
    assert f"divergence: reward at step {found['divergences'][2]['step']}" in third.stderr
    assert json.loads(third.stdout)["windows"] == found["windows"]
    assert run("env show run --divergence 0", tmp_path).exit_code == 2


def test_a_recorded_environment_is_compared_and_anything_else_is_refused(tmp_path: Path):
    done = run("env record @right -o walk.h5", tmp_path)
    assert (done.exit_code, done.stdout.startswith("walk.h5: 3 slots, 40 actions each")) == (0, True)
    assert run("env diff walk.h5 @right", tmp_path).exit_code == 0
    assert run("env diff @other_reward walk.h5", tmp_path).exit_code == 1
    (tmp_path / "note.txt").write_text("no trace")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_text('{"format": "kgverify report 1"}')
    refused = (
        "env diff absent.h5 @right", "env diff note.txt @right", "env diff walk.h5 @absent", "env diff absent:it @right",
        "env diff @right @right --lockstep --tolerance nothing", "env diff @right @right --save note.txt/run",
        "env show run", "env show absent", "env record walk.h5 -o other.h5", "env record @right -o absent/walk.h5",
        "env diff @right @right --minimum solved=1", "env diff walk.h5 @right --lockstep",
    )  # fmt: skip
    for words in refused:
        done = run(words, tmp_path)
        assert (done.exit_code, done.stdout) == (2, ""), (words, done)
        assert re.search(r"^error: .*\nfix: ", done.stderr), done.stderr


@pytest.mark.parametrize("name", ["raises", "few_rows", "other_shape", "objects"])
def test_a_hostile_environment_ends_with_the_code_of_bad_input(name: str, tmp_path: Path):
    for words in (f"env diff @right @{name}", f"env diff @{name} @right", f"env record @{name} -o x.h5"):
        done = run(words, tmp_path)
        assert (done.exit_code, done.stdout) == (2, ""), done
        assert not re.search(r"\x1b|^::|bug in kgverify", done.stderr, re.MULTILINE)


@pytest.mark.deep
def test_the_fixture_fails_with_the_report_and_if_it_is_never_called(tmp_path: Path):
    (tmp_path / "test_walks.py").write_text(
        f"SIDES = ['{WALKS}:right', '{WALKS}:other_reward']\n"
        "def test_equal(assert_environments_agree):\n"
        "    assert assert_environments_agree(SIDES[0], SIDES[0], slots=2, steps=30).verdict.value == 'AGREE'\n"
        "def test_other(assert_environments_agree):\n    assert_environments_agree(*SIDES, slots=2, steps=30)\n"
        "def test_too_few(assert_environments_agree):\n    assert_environments_agree(SIDES[0], SIDES[0], slots=1, steps=1)\n"
        "def test_idle(assert_environments_agree):\n    pass\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_walks.py"]
    printed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "3 failed, 1 passed" in printed
    assert re.search(r"first divergence: reward at step \d+ of slot", printed)
    assert "too little was exercised" in printed
    assert "the test never calls assert_environments_agree" in printed
