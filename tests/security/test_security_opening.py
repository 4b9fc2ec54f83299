"""Opening a stranger's file runs no code: every command, on every kind of file, in a folder full of canaries."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_files import Folder

from kgverify.cli.command_line import list_commands, list_options, make_app
from kgverify.cli.entries import ENTRIES
from kgverify.report.render.formats import FORMATS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TINY = "--queries 1 --corruptions 1 --device cpu"

BASE = {
    "diff": f"{TINY} --mode eager",
    "evaluate": f"{TINY} --mode eager --check 1 --minimum none",
    "golden": "NEW.golden --queries 1 --corruptions 1 --engine reference",
    "record": "--queries 1 --corruptions 1 --engine reference -o NEW.h5",
    "report": "run",
    "show": "run --divergence 1",
    "shrink": "run --calls 0",
    "replay": "engine-0.kg",
    "fuzz": "--examples 1 --jobs 1 --corpus NEW",
    "train": "-o NEW.safetensors --rounds 1 --epochs 1",
    "bisect": "HEAD --queries 1 --corruptions 1",
    "dialect": "run/expected.h5",
    "doctor": "",
    "env diff": "env/expected.h5 env/actual.h5",
    "env record": "absent:walk -o NEW.h5",
    "env show": "env",
    "why": "neighborOf(iran,iraq) --limit 1",
    "audit step": "step.py:step --inputs step.py:make --calls 1 --rung backend-eager",
    "trace convert": "run/expected.h5 NEW.h5",
    "trace import": "steps.jsonl -o NEW.h5",
    "trace export": "run/expected.h5 --to NEW.jsonl",
    "trace check": "run/expected.h5",
    "trace repair": "run/expected.h5",
    "trace join": "run/expected.h5 -o NEW",
}
"""The words with which each command ends soon."""

PATHS_AS_TEXT = {"graph", "policy", *FORMATS}
"""Parameters that name a file although their type is a text."""

WRITTEN = {*FORMATS, "svg", "output", "pytest", "pytest_file", "plot", "reproducer", "target", "to"}
"""Parameters that name a file to write: one hostile file that is there before is enough."""

KIND_OF = {
    ("replay", "file"): "reproducer",
    ("shrink", "folder"): "run",
    ("show", "path"): "trace",
    ("dialect", "trace"): "trace",
    ("report", "folders"): "run",
    ("fuzz", "corpus"): "corpus",
    ("fuzz", "dialect"): "toml",
    ("trace import", "source"): "lines",
    **{(name, "path"): "trace" for name in ("trace export", "trace check", "trace repair")},
    ("trace convert", "source"): "trace",
}
"""The files, besides those of every kind, that a parameter takes and that name code."""


def walk() -> Iterator[tuple[str, Any]]:
    """Yield the name of every command with its parsed form."""
    for words, each in list_commands(make_app(*ENTRIES)).items():
        yield " ".join(words), each


def file_parameters(command: Any) -> Iterator[tuple[str, str]]:
    """Yield the parameters that name a file or a folder, each with its option; empty for an argument."""
    for each in list_options(command):
        name = each.field_info.name
        if "Path" in str(each.hint) or name in PATHS_AS_TEXT:
            yield name, each.name if each.name.startswith("-") else ""


def invocations(folder: Folder, *, is_whole: bool) -> list[list[str]]:
    """Return the words of every command with hostile files and folders, at each parameter that names one.

    is_whole: with every file, also to write to, and the commands by themselves; else with one file or folder in turn, and
              those that name code
    """
    files, folders = folder.write_contents()
    every = []
    for name, function in walk():
        base = BASE[name].split()
        if is_whole:
            every.append([*name.split(), *base])
        for parameter, option in file_parameters(function):
            own = folder.of_kind.get(KIND_OF.get((name, parameter), ""), [])
            tried = [*files, *folders, *own]
            if parameter in WRITTEN or (parameter == "save" and name != "evaluate"):
                tried = [files[-1], folders[-1]] if is_whole else []
            elif not is_whole:
                tried = [tried[len(every) % (len(tried) - len(own))], *own]
            for number, file in enumerate(tried):
                if option:
                    rest = without(base, option, "-o" if parameter == "output" else option)
                    every.append([*name.split(), *rest, option, file])
                elif parameter == "actual":
                    every.append([*name.split(), "run/expected.h5", file])
                else:
                    following = ["run/actual.h5"] if parameter == "expected" else []
                    every.append([*name.split(), file, *following, *base[1 if name != "diff" else len(base) :]])
                for i, word in enumerate(every[-1]):
                    # What a command writes must not be there before.
                    every[-1][i] = word.replace("NEW", f"new-{len(every)}-{number}")
    return every


def without(words: list[str], *options: str) -> list[str]:
    """Return the words without an option and its value."""
    at = next((i for i, word in enumerate(words) if word in options), None)
    return words if at is None else words[:at] + words[at + 2 :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = Folder(tmp_path_factory.mktemp("strange") / "folder")
    yield made
    assert not made.mark.exists()


def python(*words: str, cwd: Path = ROOT, **options: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "reference", *sys.path[1:])))
    options |= {"cwd": cwd, "env": {**os.environ, "PYTHONPATH": path}}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=300, **options)


def open_all(folder: Folder, commands: list[list[str]]) -> dict[str, Any]:
    done = python(str(HERE / "opening.py"), str(folder.path), input=json.dumps(commands))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_command_is_tried():
    names = {name for name, _ in walk()}
    assert names == set(BASE), "say in BASE of tests/security/test_security_opening.py how a new command ends soon"
    parameters = {(name, parameter) for name, function in walk() for parameter, _ in file_parameters(function)}
    assert set(KIND_OF) <= parameters


@pytest.mark.parametrize(
    "is_whole",
    [
        pytest.param(False, marks=pytest.mark.deep, id="refused"),
        pytest.param(True, marks=pytest.mark.exhaustive, id="whole"),
    ],
)
def test_no_command_runs_code_of_a_strangers_folder(folder, is_whole):
    found = open_all(folder, invocations(folder, is_whole=is_whole))
    assert found["seen"] == []
    bugs = {words: each for words, each in found["codes"].items() if each[0] not in (0, 1, 2, 3)}
    assert not bugs
    named = [f"replay {file}" for file in folder.of_kind["reproducer"]]
    for words in (*named, *(f"shrink {run} --calls 0" for run in folder.of_kind["run"])):
        code, text = found["codes"][words]
        assert (code, "names the engine" in text) == (2, True)


@pytest.mark.deep
def test_the_canaries_and_the_hook_notice_code(folder):
    """The same files, trusted, show what the other test would see."""
    trusted = open_all(folder, [["replay", "engine-0.kg", "--trust"], ["replay", "engine-2.kg", "--trust"]])
    assert any("executes" in each for each in trusted["seen"])
    assert any(": ran " in each for each in trusted["seen"])
    pickle.loads(folder.contents["pickle"])
    assert folder.mark.exists()
    folder.mark.unlink()


@pytest.mark.deep
@pytest.mark.parametrize("start", [("-P", "-c", "from kgverify.cli import main; main()"), ("-m", "kgverify")])
def test_neither_the_command_nor_its_processes_import_modules_of_the_current_folder(folder, start):
    words = BASE["record"].replace("NEW", f"new{start[0]}").split()
    done = python(*start, "record", *words, "--jobs", "2", cwd=folder.path)
    assert done.returncode == 0, done.stderr
    assert not folder.mark.exists(), folder.mark.read_text()
