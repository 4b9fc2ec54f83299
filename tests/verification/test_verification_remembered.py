"""A success of the known answers counts in later processes for identical code alone."""

import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from kgverify.errors import InternalError
from kgverify.files.cache import CACHE
from kgverify.verification.self_testing import remembered
from kgverify.verification.self_testing.remembered import check_once, identify_code, remembering


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "identify_code", lambda: "this code")
    return tmp_path / "cache" / "known-answers"


def num_checks(*names: str, allowed: bool = True) -> int:
    """Return how many of some checks run."""
    run: list[str] = []
    checks: dict[str, Callable[[], None]] = {name: lambda: run.append("") for name in names}
    if allowed:
        with remembering():
            check_once(checks)
    else:
        check_once(checks)
    return len(run)


def test_a_success_is_remembered_for_identical_code_alone(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert num_checks("pairs") == 1
    assert num_checks("pairs") == 0
    assert num_checks("pairs", "files") == 1
    assert num_checks("pairs", allowed=False) == 1
    monkeypatch.setattr(remembered, "identify_code", lambda: "other code")
    assert num_checks("pairs") == 1
    # It is not certain what runs.
    monkeypatch.setattr(remembered, "identify_code", lambda: None)
    assert num_checks("pairs") == 1
    assert num_checks("pairs") == 1


def test_a_wrong_answer_is_not_remembered(folder: Path):
    def fail() -> None:
        raise InternalError("wrong")

    for _ in range(2):
        with pytest.raises(InternalError), remembering():
            check_once({"pairs": fail})
    assert not folder.exists()


def test_only_whole_entries_count_and_a_folder_that_cannot_be_used_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    assert num_checks("pairs") == 1
    (entry,) = folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    assert num_checks("pairs") == 1
    monkeypatch.setenv(CACHE, str(entry / "below a file"))
    assert num_checks("pairs") == 1
    monkeypatch.setenv(CACHE, "")
    assert num_checks("pairs") == 1
    assert num_checks("pairs") == 1


def test_code_that_changes_during_a_check_is_not_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch):
    names = iter(["old code", "new code"])
    monkeypatch.setattr(remembered, "identify_code", lambda: next(names))
    assert num_checks("pairs") == 1
    assert not folder.exists()


def test_old_entries_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remembered, "MOST_KEPT", 3)
    for number in range(5):
        num_checks(str(number))
    assert len(list(folder.iterdir())) == 3


def test_the_hash_is_of_all_files_of_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "judged_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "answers.json").write_text("1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(remembered, "_PACKAGES", ("judged_package",))
    invalidate_caches()
    module = import_module("judged_package")
    monkeypatch.setattr(remembered, "IMPORTED_AT", time.time() + 60)
    hashes = [identify_code()]
    (package / "answers.json").write_text("2")
    hashes.append(identify_code())
    (package / "added.py").write_text("")
    hashes.append(identify_code())
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", "AVX2")
    hashes.append(identify_code())
    assert None not in hashes
    assert len(set(hashes)) == 4
    assert identify_code() == hashes[-1]
    # Neither a module that no file has, nor a file that changed since it was imported.
    monkeypatch.setitem(sys.modules, "judged_package.planted", types.ModuleType("judged_package.planted"))
    assert identify_code() is None
    monkeypatch.delitem(sys.modules, "judged_package.planted")
    assert identify_code() == hashes[-1]
    monkeypatch.setattr(remembered, "IMPORTED_AT", time.time() - 60)
    assert identify_code() is None
    assert module.__file__


def count_checks(script: str, arguments: list[str], folder: Path, exit_code: int) -> list[int]:
    """Return how many checks print a line when a command runs once, and once more."""
    counts = []
    for _ in range(2):
        command = [sys.executable, "-c", script, "diff", *arguments]
        environment = {**os.environ, CACHE: str(folder / "cache")}
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
        assert ended.returncode == exit_code, ended.stderr
        counts.append(ended.stdout.count("checked"))
    return counts


RUN = "from kgverify.cli.app import app\napp(sys.argv[1:])\n"


def test_the_command_remembers_what_it_checked(tmp_path: Path):
    root = Path(__file__).parent.parent.parent
    script = (
        "import sys\n"
        "from kgverify.verification import verify\n"
        "verify.check_known_pairs = verify.check_known_files = lambda *args, **kwargs: print('checked')\n"
    )
    traces = [str(root / "traces" / f"countries-{name}.h5") for name in ("reference", "compiled")]
    assert count_checks(script + RUN, traces, tmp_path, 0) == [2, 0]


WRONG = """
from kgverify import Limits
from kgverify.engines.reference.engine import ReferenceEngine


class Wrong(ReferenceEngine):
    def __init__(self, program, limits, policy):
        super().__init__(program, Limits(limits.max_depth, limits.max_atoms, 1), policy)
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("engine", "counts"),
    [(["--mode", "eager", "--fault", "last-fact-lost"], [1, 0]), (["--engine", "wrong.py:Wrong"], [1, 1])],
)
def test_known_conditions_are_remembered_beside_kgverifys_own_engines_alone(
    engine: list[str], counts: list[int], tmp_path: Path
):
    (tmp_path / "wrong.py").write_text(WRONG)
    script = (
        "import sys\n"
        "from kgverify.verification import verify\n"
        "verify.check_known_conditions = lambda *args: print('checked')\n"
    )
    arguments = ["--queries", "1", "--corruptions", "3", *engine]
    assert count_checks(script + RUN, arguments, tmp_path, 1) == counts
