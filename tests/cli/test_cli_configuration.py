"""The configuration file, the options of every command, and completion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import SMALL, Command

from kgverify.cli import configuration
from kgverify.cli.command_line import list_commands, list_options, make_app
from kgverify.cli.entries import ENTRIES
from kgverify.prover.faults.plant import COMPOSITES, FAULTS
from kgverify.trace.read.trace_file import read_trace

MAX_OPTIONS = 160


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_section(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(f"[project]\nname = 'mine'\n[tool.kgverify]\n{text}")
    return path


def test_options_stand_in_the_project_file_and_what_is_typed_wins(command: Command, project: Path):
    path = write_section(
        project, "queries = 1\ncorruptions = 2\nmode = 'eager'\ndevice = 'cpu'\nlimits = {max_depth = 3}\n"
    )
    done = command("diff", "-v")
    assert (done.code, "1 query of test, 2 corruptions a side" in done.out, "max_depth 3" in done.out) == (
        0,
        True,
        True,
    )
    assert f"configuration: {path}" in done.err
    typed = command("diff", "--queries", 2, "--limits", "max_depth=20")
    assert "2 queries of test, 2 corruptions" in typed.out
    assert "configuration" not in typed.err


def test_a_table_of_a_command_is_for_it_alone_and_a_parent_folder_is_searched(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch
):
    (project / "kgverify.toml").write_text(
        "rules = 'own.txt'\nqueries = 1\n[record]\nlevel = 'compact'\n[report]\nhtml = 'x'\n"
    )
    (project / "own.txt").write_text("locatedInCR(X,Y) :- neighborOf(X,Z), locatedInCR(Z,Y).\n")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    done = command("record", "--engine", "reference", "--corruptions", 1, "-o", "x.h5")
    assert done.code == 0, done.err
    assert read_trace(Path("x.h5")).header.level == "compact"


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
def test_a_mistake_in_the_file_is_named_with_its_key(command: Command, project: Path, text: str, where: str, fix: str):
    path = write_section(project, text)
    done = command("diff")
    assert done.code == 2
    shown = " ".join(done.err.split())
    assert where in shown
    assert fix in shown
    assert str(path) in shown or "max_dept" in text


def test_a_command_on_a_file_takes_no_engine_from_the_configuration(command: Command, project: Path):
    assert command("record", "--engine", "reference", *SMALL, "-o", "x.h5").code == 0
    write_section(project, "engine = 'absent.py:Engine'\nfault = ['fact-cap']\n")
    assert command("show", "x.h5").code == 0
    assert command("diff", "x.h5", "x.h5").err == ""
    assert "absent.py" in command("diff").err


def test_an_engine_of_the_configuration_is_supervised(project: Path):
    (project / "prover.py").write_text(
        "import os\n\n\nclass Prover:\n    def __init__(self, program, limits, policy):\n        os._exit(0)\n"
    )
    write_section(project, "engine = 'prover.py:Prover'\n")
    done = subprocess.run(
        [sys.executable, "-m", "kgverify", "diff", *SMALL], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "ended the process with exit code 0" in done.stderr) == (2, True)


def test_a_folder_of_another_user_is_not_searched(project: Path, monkeypatch: pytest.MonkeyPatch):
    write_section(project, "queries = 1\n")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    assert configuration.find_file() == str(project / "pyproject.toml")
    monkeypatch.setattr(os, "getuid", lambda: os.stat(project).st_uid + 1)
    assert configuration.find_file() is None


def test_the_options_of_every_command_stand_anywhere(command: Command, project: Path):
    done = command("-q", "diff", *SMALL, "--json", "x.json")
    assert (done.code, len(done.out.splitlines()), done.err) == (0, 1, "")
    assert (project / "x.json").is_file()
    refused = command("replay", "x.kg", "--json", "-")
    assert (refused.code, "replay has no result as JSON" in refused.err) == (2, True)


def test_the_catalogue_of_faults_is_printed(command: Command):
    done = command("diff", "--fault", "list")
    assert done.code == 0
    assert all(name in done.out for name in ("fact-cap", *COMPOSITES))


def test_the_options_are_few_and_each_is_described():
    commands = list_commands(make_app(*ENTRIES))
    options = [each for app in commands.values() for each in list_options(app) if each.name.startswith("-")]
    assert len(options) <= MAX_OPTIONS
    for app in commands.values():
        for each in app.assemble_argument_collection(parse_docstring=True):
            assert each.parameter.help or not each.parse or each.name == "*", (app.name, each.name)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes_commands_options_and_values(shell):
    script = make_app(*ENTRIES).generate_completion(shell=shell)
    for word in ("evaluate", "corruptions", "max-autotune", "digests", "tiny", *FAULTS):
        assert word in script, word


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("diff --engine ref", "reference"),
        ("diff --graph cou", "countries"),
        ("record --reference comp", "compiled"),
        ("evaluate --policy two", "two_tower"),
        ("diff --fault fact-c", "fact-cap"),
    ],
)
def test_bash_completes_the_names_of_engines_graphs_policies_and_faults(typed: str, completed: str, tmp_path: Path):
    script = tmp_path / "completion.bash"
    script.write_text(make_app(*ENTRIES).generate_completion(shell="bash"))
    words = ["kgverify", *typed.split()]
    code = (
        f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _kgverify kgverify"
        f" {words[-1]} {words[-2]}; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [completed]


def test_completion_is_installed_without_torch(tmp_path: Path):
    code = (
        "import sys; sys.argv = ['kgverify', '--install-completion']\nfrom kgverify.cli.app import run\n"
        "code = run(); print(code, 'torch' in sys.modules)"
    )
    environment = os.environ | {"HOME": str(tmp_path), "SHELL": "/bin/bash"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.stdout == "0 False\n", done.stderr
    assert any(path.is_file() for path in tmp_path.rglob("*kgverify*"))
