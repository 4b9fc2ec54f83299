"""Stored conclusions are reused for the code, the weights and the settings that gave them, and for no others."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_conclusions import CONCLUSIONS, REFUSED

import kgverify as kv
from kgverify import UserError
from kgverify.engines.load_engine import load_factory
from kgverify.engines.policy import make_two_tower, write_policy
from kgverify.files.code_identity import UNIDENTIFIED, identify_engines, list_changes, refuse_changes
from kgverify.prover.native.library import why_not_available
from kgverify.runs import run

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """
import json
import os
from pathlib import Path

import helper
import kgverify as kv
import pack


def bind(atom, bound):
    terms = atom[1:]
    while any(term in bound for term in terms):
        terms = tuple(bound.get(term, term) for term in terms)
    return atom[0], *terms


def unify(left, right):
    bound = {}
    for i in (1, 2):
        a, b = bind(left, bound)[i], bind(right, bound)[i]
        if a != b and min(a, b) >= 0:
            return None
        if a != b:
            bound[min(a, b)] = max(a, b)
    return bound


def rename(atom):
    return atom[0], *(term if term >= 0 else term - 1000 for term in atom[1:])


def has_bug():
    import late

    data = json.loads(Path(__file__).with_name("data.json").read_text())
    return helper.BUG or pack.BUG or late.BUG or data["bug"] or os.environ.get("MY_BUG") == "1"


@kv.engine_of
def engine(goal, clauses):
    num = 0
    for clause in clauses:
        bound = unify(goal[0], rename(clause.head))
        if bound is not None and (num := num + 1) <= (1 if has_bug() else 1000):
            yield clause, [bind(rename(a), bound) for a in clause.body] + [bind(a, bound) for a in goal[1:]]


other = engine
"""
FILES = {
    "my.py": ENGINE,
    "helper.py": "BUG = False",
    "pack/__init__.py": "from .deep import BUG",
    "pack/deep.py": "BUG = False",
    "late.py": "BUG = False",
    "data.json": '{"bug": false}',
    "facts.tsv": "a\tp\tb\nb\tp\tc\n",
}
OF_ENGINE = {
    "log of an engine", "log of a reference", "parts", "parts of two engines", "recording",
    "recording of a reference",
}  # fmt: skip
WITH_LIMITS = {each for each in CONCLUSIONS if each.startswith(("parts", "compact", "deep", "recording"))}
NATIVE = {"native library", "parts of the native evaluator"}


def append(name: str, text: str = "\n# another\n") -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes() + text.encode())

    return edit


def wrap_compiler(folder: Path) -> None:
    compiler = folder / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)


EDITS: dict[str, tuple[Callable[[Path], None], str, set[str]]] = {
    "nothing": (lambda folder: None, "", set()),
    "the engine": (append("work/my.py"), "", OF_ENGINE),
    "a module that it imports": (append("work/helper.py"), "", OF_ENGINE),
    "a module that a package imports": (append("work/pack/deep.py"), "", OF_ENGINE),
    "a module imported while it proves": (append("work/late.py"), "", OF_ENGINE),
    "a file that it reads": (append("work/data.json", " "), "", OF_ENGINE),
    "a variable that it reads": (lambda folder: None, "MY_BUG=1", OF_ENGINE),
    "kgverify": (append("code/kgverify/ranking/rank.py"), "", {*CONCLUSIONS} - {"native library"}),
    "the reference prover": (append("code/kgreference/__init__.py"), "", {*CONCLUSIONS} - {"native library"}),
    "the C++ sources": (append("code/kgverify/prover/native/stages.h"), "", {*CONCLUSIONS}),
    "the compiler": (wrap_compiler, "", {*CONCLUSIONS} - {"graph"}),
    "a dependency": (lambda folder: None, "numpy=0.1", {*CONCLUSIONS} - {"native library"}),
    "the weights": (
        lambda folder: write_weights(folder / "work", 2),
        "",
        {"parts with weights", "parts of the native evaluator"},
    ),
    "the limits": (lambda folder: None, "limits", WITH_LIMITS),
    "the dialect": (lambda folder: None, "dialect", {*CONCLUSIONS} - {"native library", "graph"}),
}


def write_weights(folder: Path, seed: int) -> None:
    policy = make_two_tower(kv.load_graph("countries").program, kv.Limits(), seed=seed)
    write_policy(policy, folder / "weights.safetensors")


def conclude(folder: Path, word: str = "") -> dict[str, bool | str]:
    environment = dict(os.environ)
    environment |= {"PYTHONPATH": str(folder / "code"), "KGVERIFY_CACHE": str(folder / "cache")}
    environment |= {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("KGVERIFY_LIBRARIES", None)
    name, _, value = word.partition("=")
    if name.startswith("MY"):
        environment[name] = value
    command = [sys.executable, str(ROOT / "tests" / "runs" / "stored_conclusions.py"), word]
    done = subprocess.run(command, cwd=folder / "work", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, bool | str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def concluded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that kgverify stores, and with the code that gave it."""
    if (obstacle := why_not_available()) is not None:
        pytest.skip(obstacle)
    folder = tmp_path_factory.mktemp("stored") / "before"
    for name, text in FILES.items():
        path = folder / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_weights(folder / "work", 1)
    for source in (ROOT / "kgverify", ROOT / "reference" / "kgreference"):
        shutil.copytree(source, folder / "code" / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    assert not any(conclude(folder).values())
    return folder


@pytest.mark.sample(0, deep=3)
@pytest.mark.parametrize("name", EDITS)
def test_no_conclusion_is_reused_after_an_edit_of_its_inputs(concluded: Path, name: str) -> None:
    edit, word, affected = EDITS[name]
    folder = concluded.parent / name.replace(" ", "-")
    shutil.copytree(concluded, folder)
    edit(folder)
    found = conclude(folder, word)
    assert {each for each, is_reused in found.items() if is_reused is True} == {*CONCLUSIONS} - affected
    for each, refused in found.items():
        assert not isinstance(refused, str) or refused.startswith(REFUSED), (each, refused)


@pytest.mark.parametrize(
    "source",
    [
        "import json\nKNOWN = json.load(open('known.json'))",
        "from pathlib import Path\nHERE = Path(__file__).parent\nKNOWN = (HERE / 'known.json').read_text()",
        "from pathlib import Path\nPATH = Path(__file__).with_name('known.json')\ndef engine(): return PATH.read_bytes()",
        "import json\nwith open('known.json') as file:\n    KNOWN = json.load(file)",
        "from pathlib import Path\nKNOWN = Path(__file__).with_name('known' + '.json').read_text()",
        "import os\nHERE = os.path.dirname(__file__)\nKNOWN = open(os.path.join(HERE, 'known.json')).read()",
        "from pathlib import Path\nKNOWN = Path(__file__).with_name('known.json').exists()",
    ],
)
def test_a_file_that_the_source_names_is_an_input(tmp_path: Path, source: str) -> None:
    (tmp_path / "known.json").write_text("1")
    before = identify(tmp_path, source)
    (tmp_path / "known.json").write_text("2")
    assert [*list_changes(before, identify(tmp_path, source))] == ["known.json"]


@pytest.mark.parametrize(
    "source",
    [
        "import os\nBUG = os.environ.get('MY_' + 'BUG')",
        "from os import getenv as get\nNAME = 'MY_BUG'\nBUG = get(NAME)",
        "from os import environ as e\nBUG = 'MY_BUG' in e and e['MY_BUG']",
    ],
)
def test_a_variable_that_the_source_names_is_an_input(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_BUG", raising=False)
    before = identify(tmp_path, source)
    monkeypatch.setenv("MY_BUG", "1")
    assert [*list_changes(before, identify(tmp_path, source))] == ["$MY_BUG"]


def test_the_order_of_sets_is_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    before = identify(tmp_path, "")
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert [*list_changes(before, identify(tmp_path, ""))] == ["$PYTHONHASHSEED"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def engine():\n    import pack.deep", "pack/deep.py"),
        ("from pack import deep", "pack/deep.py"),
        ("import importlib\nDEEP = importlib.import_module('pack.deep')", "pack/deep.py"),
        ("import spaces.deep", "spaces/deep.py"),
        ("from pack import other", "spaces/deep.py"),
        ("import inner", "inner/deep.py"),
        ("import inner.other", "inner/deep.py"),
    ],
)
def test_every_way_of_importing_is_followed(tmp_path: Path, source: str, name: str) -> None:
    for package in ("pack", "spaces", "inner"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "deep.py").write_text("1")
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "other.py").write_text("import spaces.deep")
    (tmp_path / "inner" / "__init__.py").write_text("from . import deep as one" if source == "import inner" else "")
    (tmp_path / "inner" / "other.py").write_text("from .deep import one")
    before = identify(tmp_path, source)
    (tmp_path / name).write_text("2")
    assert [*list_changes(before, identify(tmp_path, source))] == [name]


def test_a_module_that_was_edited_after_it_was_imported_is_never_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "edited_engine.py"
    path.write_text("def engine(program, limits, policy): ...")
    name = f"{path}:engine"
    load_factory(name, "--engine")
    before = identify_engines([name])
    assert not list_changes(before, before)
    path.write_text("def engine(program, limits, policy): 1")
    assert "edited after it was imported" in list_changes(before, identify_engines([name]))["edited_engine.py"]
    monkeypatch.delitem(sys.modules, "edited_engine")


def identify(folder: Path, source: str) -> dict[str, str]:
    (folder / "probe.py").write_text(source)
    return identify_engines([f"{folder / 'probe.py'}:engine"])


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "from ctypes import CDLL",
        "import os\ndef engine(): os.system('prover')",
        "import importlib\ndef engine(name): return importlib.import_module(name)",
        "def engine(text): exec(text)",
        "def engine(path): return open(path).read()",
        "import json\nKNOWN = json.load(open('known.json'))\ndef engine(path): return open(path).read()",
        "import numpy as np\ndef engine(path): return np.load(path)",
        "from torch.utils.cpp_extension import load",
        "import os\ndef flag(name): return os.environ.get(name)",
        "import os\nBUG = any(name.startswith('MY_') for name in os.environ)",
        "from os import environb as e\nBUG = e.get(b'MY_BUG')",
        "import os\nBUG = os.path.expandvars('$MY_BUG')",
        "import os\ndef engine(read): return read('MY_BUG', os.environ)",
        "from math import *",
        "import helper\ndef engine(): helper.BUG = 1",
        "import json\nDATA = json.load(open('known.json'))\nKNOWN = open(DATA['file']).read()",
        "PATH = 'known.json'\nopen(PATH)\ndef engine(PATH): return open(PATH).read()",
        "read = open\ndef engine(path): return read(path)",
        "from importlib import import_module as get\nHELPER = get('hel' + 'per')",
        "import builtins\nRUN = getattr(builtins, 'ev' + 'al')",
        "import xml.etree.ElementTree as ET\nKNOWN = ET.parse('known.xml')",
        "import sqlite3",
        "import asyncio",
        "import sys\nBUG = len(sys.argv)",
        "import random\nHERE = random._os.getcwd()",
        "KNOWN = __loader__.get_data('known.json')",
    ],
)
def test_code_that_its_source_does_not_name_is_never_reused(tmp_path: Path, source: str) -> None:
    code = identify(tmp_path, source)
    assert any(value.startswith(UNIDENTIFIED) for value in code.values())
    changes = list_changes(code, code)
    assert [*changes] == ["probe.py (inputs)"]
    with pytest.raises(UserError, match="cannot be identified") as caught:
        refuse_changes(changes, (), where="here", what="parts", fix="start again")
    assert "--accept-changed 'probe.py (inputs)'" in caught.value.fix
    refuse_changes(changes, ["probe.py (inputs)"], where="here", what="parts", fix="start again")


def test_a_module_of_the_engine_may_have_the_name_of_one_that_runs_other_code(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "requests.py").write_text("BUG = 1")
    (tmp_path / "pack" / "__init__.py").write_text("from .requests import BUG\nUSED = BUG")
    assert {*identify(tmp_path, "import pack")} == {"probe.py", "pack/__init__.py", "pack/requests.py"}


def test_an_engine_without_a_name_is_never_reused() -> None:
    assert list_changes(code := identify_engines(["an engine MyEngine"]), code)


def test_installed_packages_are_known_by_their_versions_and_the_standard_library_by_that_of_python(
    tmp_path: Path,
) -> None:
    code = identify(tmp_path, "import json\nimport numpy as np\nimport kgverify")
    assert {*code} == {"probe.py", "numpy"}


SMALL: dict[str, Any] = {"queries": 2, "corruptions": 3}
EVALUATION = kv.EvaluationOptions(part_size=4, check=8, minimum="none")
CHANGE = "helper.py changed: absent there, 2 here"


@pytest.fixture
def edit_helper(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def edit() -> None:
        monkeypatch.setattr(run, "identify_engines", lambda names: {"helper.py": "2"})

    return edit


def test_parts_of_changed_code_resume_if_accepted_and_every_later_report_says_so(
    tmp_path: Path, edit_helper: Callable[[], None]
) -> None:
    save = tmp_path / "parts"
    first = kv.evaluate("countries", "reference", save=save, **SMALL, options=EVALUATION)
    assert (first.num_parts_resumed, first.accepted) == (0, ())
    same = kv.evaluate("countries", "reference", save=save, **SMALL, options=EVALUATION)
    assert f"reused        {first.num_parts} of {first.num_parts} parts, finished before by the same code" in str(same)
    edit_helper()
    for accepted in ((), ("numpy",)):
        options = replace(EVALUATION, accept_changed=accepted)
        with pytest.raises(UserError, match=CHANGE) as caught:
            kv.evaluate("countries", "reference", save=save, **SMALL, options=options)
        assert "--accept-changed helper.py" in caught.value.fix
    (save / "part-000000.npz").unlink()
    for accepted in (("helper.py",), ()):
        options = replace(EVALUATION, accept_changed=accepted)
        report = kv.evaluate("countries", "reference", save=save, **SMALL, options=options)
        assert (report.metrics, report.accepted) == (first.metrics, (CHANGE,))
        assert f"finished before by other code, as accepted\n              {CHANGE}" in str(report)


def test_a_recording_of_changed_code_resumes_if_accepted(tmp_path: Path, edit_helper: Callable[[], None]) -> None:
    path, partial = tmp_path / "a.h5", tmp_path / "a.h5.partial"
    run: dict[str, Any] = {"queries": 4, "corruptions": 30}
    deep = kv.RecordingOptions(level="deep")

    def stop(num: int) -> None:
        if (partial / "code.json").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kv.record("countries", path, "reference", progress=stop, **run, options=deep)
    edit_helper()
    with pytest.raises(UserError, match=CHANGE):
        kv.record("countries", path, "reference", **run, options=replace(deep, resume=True))
    accepting = replace(deep, resume=True, accept_changed=["helper.py"])
    code = (partial / "code.json").read_bytes()
    (partial / "code.json").unlink()
    with pytest.raises(UserError, match="recording cannot be identified"):
        kv.record("countries", path, "reference", **run, options=accepting)
    (partial / "code.json").write_bytes(code)
    recording = kv.record("countries", path, "reference", **run, options=accepting)
    assert recording.num_resumed > 0
    assert recording.accepted == (CHANGE,)


def test_a_campaign_tries_again_what_other_code_tried_and_notes_it(
    tmp_path: Path, edit_helper: Callable[[], None]
) -> None:
    options: dict[str, Any] = {
        "examples": 10,
        "corpus": tmp_path / "corpus",
        "options": kv.FuzzOptions(minimum="none"),
    }
    kv.fuzz("reference", **options)
    assert kv.fuzz("reference", **options).num_resumed == 10
    edit_helper()
    anew = kv.fuzz("reference", **options)
    assert anew.num_resumed == 0
    assert f"all problems are tried again: {CHANGE}" in str(anew)
    assert kv.fuzz("reference", **options).notes == []


def test_the_lines_of_a_check_add_up_to_its_differences() -> None:
    engine = kv.Evaluator(mode="eager", device="cpu", faults="last-fact-lost")
    report = kv.evaluate("countries", engine, **SMALL, options=replace(EVALUATION, check=64))
    assert report.check is not None
    counts = (report.check, report.check.again, report.check.rankings)
    num_different = sum(each.num_checked - each.num_equal - each.num_near_ties for each in counts)
    assert num_different == len(report.check.differences) > 0
    assert f"{len(report.check.differences)} results differ" in str(report)
