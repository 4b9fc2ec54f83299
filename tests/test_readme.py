"""Every block of the README is executed: commands are run, outputs are compared, Python is run."""

import re
from pathlib import Path

import pytest
from warm_commands import run_shell

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- command: (?P<command>.*?) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(README)]
SET_UP = "python3 -m venv .venv && .venv/bin/pip install -q -e "


def squash(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_every_block_is_of_a_kind_that_a_test_here_executes():
    assert {block["kind"] for block in BLOCKS} == {"text", "console", "python"}


def test_the_divergence_shown_is_the_one_that_the_command_finds(tmp_path):
    shown = [block for block in BLOCKS if block["kind"] == "text"]
    (command,) = [block["command"] for block in shown if block["command"]]
    result = run_shell(f"{command} --mode eager", tmp_path)
    assert result.returncode == 1, result.stderr
    printed = squash(result.stdout)
    for block in shown:
        assert squash(block["text"]) in printed


@pytest.mark.deep
def test_the_first_command_sets_everything_up_and_ends_in_agreement(tmp_path):
    commands = [block["text"].strip() for block in BLOCKS if block["text"].startswith("python3 -m venv")]
    assert len(commands) == 2
    main_job, tests = commands
    assert main_job.startswith(SET_UP)
    assert tests.startswith(SET_UP)
    kgverify = main_job.rsplit(" && ", 1)[1].removeprefix(".venv/bin/")
    result = run_shell(f"{kgverify} --mode eager", tmp_path, is_warm=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("AGREE   1,120 candidates")


def test_ci_runs_the_test_command_of_the_readme():
    # `.ci/run` takes the line from the README; what it looks for must be there, once.
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "grep -E '^python3 -m venv .*pytest' README.md" in script
    assert len(re.findall(r"^python3 -m venv .*pytest.*$", README, re.MULTILINE)) == 1


@pytest.mark.deep
def test_the_other_commands_run_one_after_the_other(tmp_path):
    commands = [
        block["text"]
        for block in BLOCKS
        if block["kind"] == "console" and not block["text"].startswith("python3 -m venv")
    ]
    assert len(commands) == 4
    for command in commands:
        result = run_shell(command, tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.deep
def test_the_python_blocks_print_what_the_text_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = []
    for block in BLOCKS:
        if block["kind"] == "python":
            exec(compile(block["text"], "README.md", "exec"), {"__name__": "readme"})
            printed.append(capsys.readouterr().out.splitlines())
    in_short, own_engine, recorded = printed
    assert [line.split()[0] for line in in_short if not line.startswith(" ")] == [
        "AGREE",
        "DIVERGE",
        "DIVERGE",
    ]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert own_engine[0].startswith("AGREE   22 candidates")
    assert recorded == ["AGREE", "22"]
