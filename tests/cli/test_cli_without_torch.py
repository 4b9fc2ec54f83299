"""kgverify as `pip install kgverify` leaves it: without torch, Triton, Hypothesis, pyarrow and distributed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgverify.api.doctor import Finding, State, examine_installation
from kgverify.errors import EXTRAS

ROOT = Path(__file__).parents[2]
RUNNER = f"""
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from kgverify.cli.app import run

for words in json.load(sys.stdin):
    sys.argv = ["kgverify", *words]
    print("$", *words, flush=True)
    code = run()
    print("exit code", int(code), flush=True)
"""
OWN = f"""{Path(__file__).with_name("two_engines.py").read_text(encoding="utf-8")}
from kgverify.engines.reference.engine import ReferenceEngine

class Own(ReferenceEngine):
    pass

class Wrong(Fast):
    def clauses_for(self, goal, excluded):
        clauses = super().clauses_for(goal, excluded)
        return [each for each in clauses if each.body] + [each for each in clauses if not each.body][:50]
"""
SMALL = ("--queries", "1", "--corruptions", "3")


def run_each(folder: Path, *commands: tuple[str, ...], **environment: str) -> list[tuple[int, str]]:
    """Run commands in one interpreter, and return the exit code and the output of each."""
    folders = ROOT / "stepaudit", ROOT, ROOT / "reference", ROOT / "examples" / "padded_engine"
    paths = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(commands),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        check=True,
    )
    parts = done.stdout.split("\n$ ")
    assert len(parts) == len(commands), done.stdout
    return [(int(part.rpartition("exit code ")[2]), part.rpartition("exit code ")[0]) for part in parts]


@pytest.mark.deep
def test_traces_the_reference_reports_and_fuzzing_of_own_engines_need_no_torch(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    done = run_each(
        tmp_path,
        ("record", "--engine", "reference", "-o", "a.h5", *SMALL),
        ("record", "--engine", "own.py:Own", "-o", "b.h5", *SMALL),
        ("diff", "a.h5", "b.h5", "--json", "report.json"),
        ("diff", "--engine", "own.py:Own", "--save", "run", *SMALL),
        ("show", "a.h5", "--candidate", "0"),
        ("report", "run", "--html", "report.html", "--junit", "junit.xml"),
        ("evaluate", "--engine", "own.py:Own", *SMALL, "--minimum", "none"),
        ("fuzz", "--engine", "own.py:Own", "--examples", "8", "--jobs", "1"),
        ("trace", "check", "a.h5"),
        ("trace", "export", "a.h5", "--to", "a.csv"),
        ("trace", "convert", "a.h5", "c.h5", "--level", "digests"),
        ("dialect", "--engine", "own.py:Own", "--examples", "40"),
        ("diff", "--fault", "list"),
    )
    assert [code for code, _ in done] == [0] * len(done), [text for code, text in done if code]
    assert "AGREE" in done[2][1]


@pytest.mark.deep
def test_a_wrong_engine_is_found_reported_shrunk_and_replayed_without_torch(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    done = run_each(
        tmp_path,
        ("diff", "--engine", "own.py:Wrong", "--save", "run", "--queries", "2", "--corruptions", "3"),
        (
            "report",
            "run",
            *(word for each in ("html", "junit", "markdown", "perfetto") for word in (f"--{each}", each)),
        ),
        ("report", "run", "run", "--html", "index.html"),
        ("report", "run", "--github"),
        ("show", "run", "--divergence", "1"),
        ("show", "run", "--explain"),
        ("shrink", "run", "--trust", "-o", "small.kg"),
        ("replay", "small.kg", "--trust"),
        ("diff", "reference", "run/actual.h5"),
        ("fuzz", "--engine", "own.py:Wrong", "--examples", "8", "--jobs", "1", "--minimum", "none"),
    )
    assert [code for code, _ in done] == [1, 0, 0, 0, 0, 0, 0, 1, 1, 1], [text for _, text in done]
    assert "match_facts" in done[0][1]
    assert "still, and in the same way: match_facts" in done[7][1]
    assert all(
        (tmp_path / name).stat().st_size > 500 for name in ("html", "junit", "markdown", "perfetto", "index.html")
    )


def test_a_command_that_needs_an_extra_says_which(tmp_path):
    needs = {
        ("diff", *SMALL): None,
        ("diff", "--mode", "eager", *SMALL): "compiled",
        ("diff", "--fault", "bf16-scores", *SMALL): "compiled",
        ("evaluate", *SMALL, "--minimum", "none"): None,
        ("evaluate", *SMALL, "--rank-only", "--minimum", "none"): None,
        ("bench", *SMALL, "--seconds", "0"): None,
        ("train", "-o", "w.safetensors"): "compiled",
        ("audit", "step", "a.py:step", "--inputs", "a.py:make"): "compiled",
        ("fuzz", "--examples", "4", "--jobs", "1"): "compiled",
        ("record", "--engine", "reference", "-o", "a", "--scheduler", "tcp://127.0.0.1:1", *SMALL): "distributed",
        ("record", "--engine", "reference", "-o", "a.h5", *SMALL): None,
        ("trace", "export", "a.h5", "--to", "a.parquet"): "parquet",
    }
    for (words, extra), (code, text) in zip(needs.items(), run_each(tmp_path, *needs), strict=True):
        assert code == (0 if extra is None else 2), (words, text)
        assert extra is None or f"fix: pip install 'kgverify[{extra}]'" in text, (words, text)
        assert "Traceback" not in text


def test_without_a_compiler_the_plain_evaluator_agrees_and_its_fault_is_that_of_the_readme(tmp_path):
    nowhere = str(tmp_path)
    agrees, differs, shrunk, again, lacks = run_each(
        tmp_path,
        ("diff", "--queries", "5"),
        ("diff", "--fault", "fact-cap", "--save", "run"),
        ("shrink", "run", "-o", "small.kg"),
        ("replay", "small.kg"),
        ("diff", "--mode", "plain", "--fault", "bf16-scores", *SMALL),
        PATH=nowhere,
    )
    assert agrees[0] == 0
    assert "mode plain: torch is not installed; not native, since no C++ compiler is on the PATH" in flat(agrees[1])
    assert differs[0] == 1
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- command: kgverify diff --queries 20")[2]
    shown = [line.rstrip() for block in readme.split("```")[1:6:2] for line in block.splitlines()[1:]]
    assert len(shown) == 17
    printed = flat(differs[1])
    assert [line for line in shown if flat(line) not in printed] == []
    assert (shrunk[0], again[0]) == (0, 1)
    assert "fault fact-cap, compared with reference" in again[1]
    assert lacks[0] == 2
    assert "fix: choose the mode eager, default, reduce-overhead or max-autotune" in lacks[1]


def flat(text: str) -> str:
    """Lines end where the terminal does, and columns are as wide as their longest cell."""
    return " ".join(text.split())


PYTHON = """
import kgverify as kv

for call in (
    lambda: kv.verify("countries", kv.Evaluator(mode="eager"), queries=1),
    lambda: kv.record("countries", "a.h5", kv.Evaluator(mode="eager"), queries=1),
    lambda: kv.fuzz("compiled", examples=4, corpus="corpus"),
    lambda: kv.check_engine("compiled"),
):
    try:
        call()
    except kv.UserError as error:
        print(error.fix)
"""


def test_a_function_that_needs_an_extra_says_which(tmp_path):
    absent = RUNNER.partition("from kgverify")[0]
    done = subprocess.run(
        [sys.executable, "-c", absent + PYTHON],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "reference")])),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["pip install 'kgverify[compiled]'"] * 4


def find(name: str) -> Finding:
    return next(found for found in examine_installation() if found.name == name)


def test_the_doctor_names_what_is_broken(monkeypatch, tmp_path):
    assert find("numpy").state is State.PRESENT
    monkeypatch.setenv("KGVERIFY_DATA", str(tmp_path / "none"))
    assert find("$KGVERIFY_DATA").state is State.BROKEN
    (tmp_path / "jinja2.py").write_text("raise OSError('lib.so')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jinja2", raising=False)
    broken = find("jinja2")
    assert (broken.state, broken.detail) == (State.BROKEN, "OSError: lib.so")


def test_the_doctor_names_the_extra_of_what_is_absent(monkeypatch):
    from kgverify.api import doctor

    def version(package):
        raise doctor.PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", version)
    for package, (extra, _) in EXTRAS.items():
        absent = find(package)
        assert (absent.state, absent.fix) == (State.ABSENT, f"pip install 'kgverify[{extra}]'")


@pytest.mark.parametrize(("found", "state"), [("2.9.1", State.BROKEN), ("2.13.0+cpu", State.PRESENT)])
def test_the_doctor_compares_versions(monkeypatch, found, state):
    from kgverify.api import doctor

    if state is State.PRESENT:
        pytest.importorskip("torch")
    monkeypatch.setattr(doctor, "version", lambda package: found if package == "torch" else "99")
    monkeypatch.setattr(doctor, "requires", lambda package: ["torch<2.14,>=2.10; extra == 'compiled'"])
    assert find("torch").state is state
