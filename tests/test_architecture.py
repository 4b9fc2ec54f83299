"""The architecture, as far as a machine can check it: imports point down, modules stay small, names say what they hold."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kgreference
import kgverify

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [Path(package.__file__).parent for package in (kgverify, kgreference)]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
MOST_LINES = 400
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "core", "misc", "shared", "tools"}


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path) -> set[str]:
    """The packages that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_imports_point_down():
    done = run_python("-c", "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])")
    assert done.returncode == 0, done.stdout + done.stderr
    kept, broken = re.search(r"Contracts: (\d+) kept, (\d+) broken", done.stdout).groups()
    assert (int(kept) >= 5, int(broken)) == (True, 0)


def test_importing_kgverify_loads_neither_torch_nor_h5py():
    done = run_python("-c", "import kgverify, sys; print(*{'torch', 'h5py', 'numpy'} & sys.modules.keys())")
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_one_module_knows_h5py():
    assert [name_of(path) for path in MODULES if "h5py" in imports_of(path)] == ["kgverify/trace/hdf5/datasets.py"]


def test_torch_is_imported_by_the_compiled_engine_and_its_faults_alone():
    rooms = {"/".join(name_of(path).split("/")[:3]) for path in MODULES if "torch" in imports_of(path)}
    allowed = ("kgverify/engines/compiled", "kgverify/faults", "kgverify/training", "kgverify/audit", "kgverify/bench")
    # Inside of functions only.
    allowed += ("kgverify/runs/machine.py", "kgverify/runs/profiling.py")
    assert {room for room in rooms if not room.startswith(allowed)} == set()
    assert "kgverify/engines/compiled" in rooms


def test_the_reference_needs_the_standard_library_and_numpy_in_its_scoring():
    own = [path for path in MODULES if path.is_relative_to(PACKAGES[1])]
    foreign = {
        name_of(path): names for path in own if (names := imports_of(path) - sys.stdlib_module_names - {"kgreference"})
    }
    assert foreign == {"reference/kgreference/two_tower.py": {"numpy"}}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_small_and_says_in_its_first_line_what_it_is(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES, "a module that passes 400 lines wants splitting"
    assert ast.get_docstring(ast.parse(text))
    parts = {*path.relative_to(ROOT).with_suffix("").parts}
    assert not parts & NAMES_THAT_SAY_NOTHING


def test_the_style_is_the_linters():
    for arguments in (("check",), ("format", "--check")):
        done = run_python("-m", "ruff", *arguments, "--no-cache", ".")
        assert done.returncode == 0, done.stdout + done.stderr


def test_test_files_have_names_of_their_own():
    """pytest imports them by their base names."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)


def test_every_type_is_checked_strictly():
    done = run_python("-m", "mypy", "--cache-dir", os.devnull)
    assert done.returncode == 0, done.stdout + done.stderr
