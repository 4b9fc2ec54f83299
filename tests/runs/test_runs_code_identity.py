"""Stored conclusions are reused for the code, the weights and the settings that gave them, and for no others."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kgverify as kv
from kgverify.engines.load_engine import load_factory
from kgverify.files.code_identity import UNIDENTIFIED, identify_engines, list_changes, refuse_changes
from kgverify.runs import run


def identify(folder: Path, source: str) -> dict[str, str]:
    (folder / "probe.py").write_text(source)
    return identify_engines([f"{folder / 'probe.py'}:engine"])


PATHS = "from pathlib import Path\nP = Path(__file__).with_name('known.json')\n"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import json\nKNOWN = json.load(open('known.json'))", "known.json"),
        ("from pathlib import Path\nHERE = Path(__file__).parent\nK = (HERE / 'known.json').read_text()", "known.json"),
        (PATHS + "def f(): return P.read_bytes()", "known.json"),
        (PATHS.replace("known.json", "known' + '.json") + "K = P.read_text()", "known.json"),
        (PATHS + "K = P.exists()", "known.json"),
        ("import os\nP = os.path.dirname(__file__)\nK = open(os.path.join(P, 'known.json')).read()", "known.json"),
        ("import os\nBUG = os.environ.get('MY_' + 'BUG')", "$MY_BUG"),
        ("from os import environ as e\nBUG = 'MY_BUG' in e and e['MY_BUG']", "$MY_BUG"),
        ("", "$PYTHONHASHSEED"),
        ("def engine():\n    import pack.deep", "pack/deep.py"),
        ("from pack import deep", "pack/deep.py"),
        ("import importlib\nDEEP = importlib.import_module('pack.deep')", "pack/deep.py"),
        ("import spaces.deep", "spaces/deep.py"),
        ("import inner", "inner/deep.py"),
    ],
)
def test_every_file_variable_and_module_that_the_source_names_is_an_input(
    tmp_path: Path, source: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "known.json").write_text("1")
    for package in ("pack", "spaces", "inner"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "deep.py").write_text("1")
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "other.py").write_text("import spaces.deep")
    (tmp_path / "inner" / "__init__.py").write_text("from . import deep as one" if source == "import inner" else "")
    (tmp_path / "inner" / "other.py").write_text("from .deep import one")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    before = identify(tmp_path, source)
    if name.startswith("$"):
        monkeypatch.setenv(name[1:], "2")
    else:
        (tmp_path / name).write_text("2")
    assert [*list_changes(before, identify(tmp_path, source))] == [name]


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
    with pytest.raises(kv.UserError, match="cannot be identified") as caught:
        refuse_changes(changes, (), where="here", what="parts", fix="start again")
    assert "--accept-changed 'probe.py (inputs)'" in caught.value.fix
    refuse_changes(changes, ["probe.py (inputs)"], where="here", what="parts", fix="start again")


def test_an_engine_without_a_name_and_a_module_edited_after_its_import_are_never_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list_changes(code := identify_engines(["an engine MyEngine"]), code)
    path = tmp_path / "edited_engine.py"
    path.write_text("def engine(program, limits, policy): ...")
    name = f"{path}:engine"
    load_factory(name, "--engine")
    before = identify_engines([name])
    assert not list_changes(before, before)
    path.write_text("def engine(program, limits, policy): 1")
    assert "edited after it was imported" in list_changes(before, identify_engines([name]))["edited_engine.py"]
    monkeypatch.delitem(sys.modules, "edited_engine")


def test_installed_packages_are_known_by_their_versions_and_own_modules_by_their_content(tmp_path: Path) -> None:
    assert {*identify(tmp_path, "import json\nimport numpy as np\nimport kgverify")} == {"probe.py", "numpy"}
    # A module of the engine may have the name of one that runs other code.
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "requests.py").write_text("BUG = 1")
    (tmp_path / "pack" / "__init__.py").write_text("from .requests import BUG\nUSED = BUG")
    assert {*identify(tmp_path, "import pack")} == {"probe.py", "pack/__init__.py", "pack/requests.py"}


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
        with pytest.raises(kv.UserError, match=CHANGE) as caught:
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
    with pytest.raises(kv.UserError, match=CHANGE):
        kv.record("countries", path, "reference", **run, options=replace(deep, resume=True))
    accepting = replace(deep, resume=True, accept_changed=["helper.py"])
    code = (partial / "code.json").read_bytes()
    (partial / "code.json").unlink()
    with pytest.raises(kv.UserError, match="recording cannot be identified"):
        kv.record("countries", path, "reference", **run, options=accepting)
    (partial / "code.json").write_bytes(code)
    recording = kv.record("countries", path, "reference", **run, options=accepting)
    assert recording.num_resumed > 0
    assert recording.accepted == (CHANGE,)


def test_a_campaign_tries_again_what_other_code_tried_and_notes_it(
    tmp_path: Path, edit_helper: Callable[[], None]
) -> None:
    pytest.importorskip("kgverify.prover.engine")
    given: dict[str, Any] = {"examples": 4, "corpus": tmp_path / "corpus", "options": kv.FuzzOptions(minimum="none")}
    kv.fuzz("reference", **given)
    assert kv.fuzz("reference", **given).num_resumed == 4
    edit_helper()
    shutil.copytree(tmp_path / "corpus", tmp_path / "accepting")
    options = replace(given["options"], accept_changed=["helper.py"])
    accepting = kv.fuzz("reference", **given | {"corpus": tmp_path / "accepting", "options": options})
    assert accepting.notes == [f"earlier problems count although code changed, as accepted: {CHANGE}"]
    assert accepting.num_resumed == 4
    anew = kv.fuzz("reference", **given)
    assert (anew.num_resumed, anew.notes) == (0, [f"all problems are tried again: {CHANGE}"])
    assert anew.notes[0] in str(anew)
    assert kv.fuzz("reference", **given).notes == []
