"""The places of kgverify that can run code, each with the reason why no file reaches it; and the page about them."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BARE = {"eval", "exec", "compile", "__import__"}
METHODS = {
    *("import_module", "spec_from_file_location", "exec_module", "run_path", "run_module", "from_string", "CDLL"),
    *("load_cache_artifacts", "Unpickler", "Popen", "getoutput", "check_output"),
}
OF_MODULES = {("pickle", "loads"), ("pickle", "load"), ("torch", "load"), ("os", "system"), ("os", "popen")}

ALLOWED = {
    "kgverify/__init__.py": {"import_module": "a table in the file"},
    "kgverify/api/doctor.py": {"import_module": "packages that kgverify itself requires, if they are installed"},
    "kgverify/cli/__init__.py": {"exec": "an empty text"},
    "kgverify/cli/command_line.py": {"import_module": "a table in the file"},
    "kgverify/cli/supervise.py": {"CDLL": "the C library that is loaded already"},
    "kgverify/comparison/equal_columns.py": {"CDLL": "the C library that is loaded already"},
    "kgverify/engines/adapters/tensor.py": {"import_module": "torch"},
    "kgverify/engines/table.py": {"import_module": "a table in the file, and entry points of installed packages"},
    "kgverify/prover/tower/launch.py": {"import_module": "a module of kgverify"},
    "kgverify/prover/native/library.py": {"CDLL": "what this user compiled from kgverify's own sources"},
    "kgverify/runs/pool.py": {"loads": "what this command sent to its own workers"},
    "kgverify/prover/faults/plant.py": {"import_module": "a module of kgverify"},
    "kgverify/files/writing.py": {"CDLL": "the C library that is loaded already"},
    "kgverify/files/remote.py": {"import_module": "fsspec and obstore"},
    "kgverify/files/code_identity.py": dict.fromkeys(
        ("compile", "eval"),
        "operations on paths and texts, without builtins, in the source of an engine that the user named",
    ),
    "kgverify/runs/fan_out.py": {"import_module": "dask and distributed"},
    "kgverify/engines/load_engine.py": dict.fromkeys(
        ("import_module", "spec_from_file_location", "exec_module"), "engines that the user named, or trusts"
    ),
    "kgverify/report/tables.py": {"import_module": "pandas, polars and pyarrow"},
    "kgverify/testing/reproducers/text_format.py": {"run_path": "a test that the command wrote"},
    "stepaudit/stepaudit/command.py": dict.fromkeys(
        ("import_module", "spec_from_file_location", "exec_module"), "the step that the user named"
    ),
    "stepaudit/stepaudit/isolation.py": {
        "CDLL": "the libraries that are loaded already",
        "load": "what a fork of this process has sent",
    },
    "stepaudit/stepaudit/ladder/culprit.py": {"import_module": "settings of torch, listed in the file"},
}
"""The calls of each file that may run code, and the reason why a stranger's file does not reach them."""


TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for folder in ("kgverify", "stepaudit/stepaudit")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
NAMED = re.compile(
    rf"\b(?:{'|'.join([*BARE, *METHODS, *(name for _, name in OF_MODULES)])})\(|\b(?:shell|allow_pickle)="
)


def find_calls(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in BARE | METHODS:
            yield function.id
        elif isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if function.attr in METHODS or (owner, function.attr) in OF_MODULES:
                yield function.attr
        for keyword in node.keywords:
            if keyword.arg in ("shell", "allow_pickle") and getattr(keyword.value, "value", True):
                yield f"{keyword.arg}=True"


def test_code_is_run_in_the_listed_places_alone():
    found = {path: set(find_calls(text)) for path, text in TEXTS.items() if NAMED.search(text)}
    assert {path: names for path, names in found.items() if names} == {
        path: {*names} for path, names in ALLOWED.items()
    }


IMPORTING = {
    "subprocess": (
        "kgverify/files/repository.py",
        "kgverify/prover/native/library.py",
        "kgverify/runs/environment.py",
        "stepaudit/ladder/reproducer.py",
    ),
    "pickle": ("kgverify/runs/pool.py",),
    "yaml|marshal|shelve|joblib|cloudpickle|dill|matplotlib|git": (),
}


@pytest.mark.parametrize("modules", IMPORTING)
def test_modules_that_run_programs_or_unpickle_are_imported_in_the_listed_places_alone(modules):
    imported = re.compile(rf"^\s*(?:import|from) (?:{modules})\b", re.MULTILINE)
    found = [path.removeprefix("stepaudit/") for path, text in TEXTS.items() if imported.search(text)]
    assert found == [*IMPORTING[modules]]


def test_the_page_names_tests_that_exist_and_is_linked_and_distributed():
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[^`]+)`", page)
    assert named
    assert all((ROOT / each).exists() for each in named)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "SECURITY.md" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert project["project"]["urls"]["Homepage"] + "/security" in page
    for linking in ("README.md", "docs/fuzzing.md", "docs/your-engine.md"):
        assert "SECURITY.md" in (ROOT / linking).read_text(encoding="utf-8"), linking
