"""The configuration file, the options of every command, and completion."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoked_commands import SMALL

import kgverify as kv


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_section(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(f"[project]\nname = 'mine'\n[tool.kgverify]\n{text}")
    return path


def test_options_stand_in_the_project_file_and_what_is_typed_wins(command, project: Path):
    path = write_section(project, "queries = 1\ncorruptions = 2\nengine = 'reference'\nlimits = {max_depth = 3}\n")
    done = command("diff", "-v", "--minimum", "none")
    assert done.exit_code == 0
    assert "1 query of test, 2 corruptions a side" in done.stdout
    assert "max_depth 3" in done.stdout
    assert f"configuration: {path}" in done.stderr
    typed = command("diff", "--queries", 2, "--limits", "max_depth=20")
    assert "2 queries of test, 2 corruptions" in typed.stdout
    assert "configuration" not in typed.stderr


def test_a_table_of_a_command_is_for_it_alone_and_a_parent_folder_is_searched(
    command, project: Path, monkeypatch: pytest.MonkeyPatch
):
    text = "rules = 'own.txt'\nqueries = 1\n[record]\nlevel = 'digests'\n[report]\nhtml = 'x'\n"
    (project / "kgverify.toml").write_text(text)
    (project / "own.txt").write_text("locatedInCR(X,Y) :- neighborOf(X,Z), locatedInCR(Z,Y).\n")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    record = ("record", "--engine", "reference", "--corruptions", 1, "-o")
    done = command(*record, "x.h5")
    assert done.exit_code == 0, done.stderr
    assert kv.open_trace("x.h5").header.level == "digests"
    # The file of another user could name an engine of theirs.
    monkeypatch.setattr(os, "getuid", lambda: project.stat().st_uid + 1)
    assert command(*record, "y.h5").exit_code == 0
    assert kv.open_trace("y.h5").header.level == "steps"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner")
@pytest.mark.parametrize(
    ("folder", "mode", "is_used"), [(".", 0o755, True), (".", 0o1777, False), ("below", 0o755, False)]
)
def test_the_file_of_another_user_counts_only_in_the_current_folder_and_if_not_everybody_can_put_it_there(
    command, project: Path, monkeypatch: pytest.MonkeyPatch, folder: str, mode: int, is_used: bool
):
    (project / "kgverify.toml").write_text("[record]\nlevel = 'digests'\n")
    (project / "below").mkdir()
    project.chmod(mode)
    monkeypatch.chdir(project / folder)
    real = os.stat

    def stat_as_of_others(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        values = list(found)
        values[stat.ST_UID] += str(path).endswith("kgverify.toml")
        return os.stat_result(values)

    monkeypatch.setattr(os, "stat", stat_as_of_others)
    assert command("record", "--engine", "reference", *SMALL, "-o", "x.h5").exit_code == 0
    assert kv.open_trace("x.h5").header.level == ("digests" if is_used else "steps")


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("querys = 3\n", "querys: unknown key", "did you mean 'queries'?"),
        ("[tool.kgverify.diff]\nlockstop = true\n", "lockstop: unknown key", "did you mean 'lockstep'?"),
        ("mode = 'egaer'\n", "mode: unknown value 'egaer'", "did you mean 'eager'?"),
        ("queries = 'many'\n", "queries: expected a whole number, found 'many'", "--help"),
        ("limits = {max_dept = 3}\n", "unknown key 'max_dept'", "did you mean 'max_depth'?"),
        ("queries = \n", "cannot be read", "repair it"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_key(command, project: Path, text: str, where: str, fix: str):
    path = write_section(project, text)
    done = command("diff")
    assert done.exit_code == 2
    shown = " ".join(done.stderr.split())
    assert where in shown
    assert fix in shown
    assert str(path) in shown or "max_dept" in text


def test_a_command_on_a_file_takes_no_engine_from_the_configuration(command, project: Path):
    assert command("record", "--engine", "reference", *SMALL, "-o", "x.h5").exit_code == 0
    write_section(project, "engine = 'absent.py:Engine'\nfault = ['fact-cap']\n")
    assert command("show", "x.h5").exit_code == 0
    assert command("diff", "x.h5", "x.h5").stderr == ""
    assert "absent.py" in command("diff").stderr


def test_the_options_of_every_command_stand_anywhere(command, project: Path):
    done = command("-q", "diff", "--engine", "reference", *SMALL, "--json", "x.json")
    assert (done.exit_code, len(done.stdout.splitlines()), done.stderr) == (0, 1, "")
    assert (project / "x.json").is_file()


def install(shell: str, folder: Path) -> Path:
    """Install the completion of a shell in a home folder without torch, and return the script."""
    code = (
        "import sys, runpy\nsys.argv = ['kgverify', '--install-completion']\n"
        "try: runpy.run_module('kgverify', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    environment = os.environ | {"HOME": str(folder), "SHELL": f"/bin/{shell}"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=folder
    )
    assert done.stdout.endswith("0 False\n"), done.stderr
    (script,) = (path for path in folder.rglob("*kgverify*") if path.is_file())
    return script


@pytest.mark.deep
def test_zsh_completes_commands_options_and_values(command, tmp_path: Path):
    script = install("zsh", tmp_path).read_text()
    faults = re.findall(r"^│ ([a-z][\w-]*) +│", command("diff", "--fault", "list").stdout, re.MULTILINE)
    assert "fact-cap" in faults
    for word in ("evaluate", "corruptions", "max-autotune", "digests", *faults):
        assert word in script, word


def test_bash_completes_commands_options_and_values(tmp_path: Path):
    script = install("bash", tmp_path)
    for typed, completed in {
        "evalu": "evaluate",
        "diff --corrup": "--corruptions",
        "diff --engine ref": "reference",
        "diff --graph cou": "countries",
        "record --reference comp": "compiled",
        "record --level dig": "digests",
        "evaluate --policy two": "two_tower",
        "diff --fault fact-c": "fact-cap",
    }.items():
        words = ["kgverify", *typed.split()]
        code = (
            f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _kgverify kgverify"
            f" {words[-1]} {words[-2]}; echo ${{COMPREPLY[@]}}"
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [completed]
