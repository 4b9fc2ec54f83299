"""kgverify as `pip install kgverify` leaves it: without torch, Triton, Hypothesis, pyarrow and distributed."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from invoked_commands import invoke
from warm_commands import WITHOUT_EXPERIMENTS

from kgverify import Evaluator
from kgverify.errors import EXTRAS
from kgverify.report.render.formats import FORMATS

ROOT = Path(__file__).parents[2]
RUNNER = f"""
import json, os, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from kgverify.cli.app import run
from kgverify.conditions import confirm

if {WITHOUT_EXPERIMENTS!r} in os.environ:
    confirm.MOST_ROUNDS = 0
for words in json.load(sys.stdin):
    sys.argv = ["kgverify", *words]
    print("$", *words, flush=True)
    code = run()
    print("exit code", int(code), flush=True)
"""
OWN = f"""{Path(__file__).with_name("two_engines.py").read_text(encoding="utf-8")}
from kgverify.dialects import ReferenceEngine

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
def test_own_engines_are_recorded_compared_fuzzed_and_shrunk_without_torch(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    small = "--queries 1 --corruptions 3"
    lines = {
        f"record --engine reference -o a.h5 {small}": 0,
        f"record --engine own.py:Own -o b.h5 {small}": 0,
        "diff a.h5 b.h5 --json report.json": 0,
        "show a.h5 --candidate 0": 0,
        f"evaluate --engine own.py:Own {small} --minimum none": 0,
        "fuzz --engine own.py:Own --examples 4 --jobs 1 --minimum none": 0,
        "trace check a.h5": 0,
        "trace export a.h5 --to a.csv": 0,
        "trace convert a.h5 c.h5 --level digests": 0,
        "dialect --engine own.py:Own --examples 20": 0,
        "diff --fault list": 0,
        "diff --engine own.py:Wrong --save run --queries 1 --corruptions 2": 1,
        f"report run {' '.join(f'--{name} {name}' for name in FORMATS)}": 0,
        "report run --github": 0,
        "show run --divergence 1": 0,
        "show run --explain": 0,
        "shrink run --trust -o small.kg --max-calls 30": 0,
        "replay small.kg --trust": 1,
        "diff reference run/actual.h5": 1,
        "fuzz --engine own.py:Wrong --examples 8 --jobs 1 --minimum none": 1,
    }
    words = (tuple(line.split()) for line in lines)
    done = dict(zip(lines, run_each(tmp_path, *words, **{WITHOUT_EXPERIMENTS: "1"}), strict=True))
    assert {line: code for line, (code, _) in done.items()} == lines, done
    assert "AGREE" in done["diff a.h5 b.h5 --json report.json"][1]
    assert "still, and in the same way: match_facts" in done["replay small.kg --trust"][1]
    assert all((tmp_path / name).stat().st_size > 500 for name in FORMATS)


def test_a_command_that_needs_an_extra_says_which(tmp_path):
    needs = {
        ("diff", *SMALL): None,
        ("diff", "--mode", "eager", *SMALL): "compiled",
        ("diff", "--fault", "bf16-scores", *SMALL): "compiled",
        ("evaluate", *SMALL, "--minimum", "none"): None,
        ("evaluate", *SMALL, "--rank-only", "--minimum", "none"): None,
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


@pytest.mark.deep
def test_without_a_compiler_the_plain_evaluator_agrees_and_its_fault_is_that_of_the_readme(tmp_path):
    nowhere = str(tmp_path)
    agrees, differs, shrunk, again, lacks = run_each(
        tmp_path,
        ("diff", *SMALL),
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


def test_a_function_that_needs_an_extra_says_which(tmp_path):
    calls = (
        "verify('countries', kv.Evaluator(mode='eager'), queries=1)",
        "record('countries', 'a.h5', kv.Evaluator(mode='eager'), queries=1)",
        "fuzz('compiled', examples=4, corpus='corpus')",
        "check_engine('compiled')",
    )
    tries = [f"try: kv.{call}\nexcept kv.UserError as error: print(error.fix)\n" for call in calls]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([RUNNER.partition("from kgverify")[0], "import kgverify as kv", *tries])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "reference")])),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["pip install 'kgverify[compiled]'"] * 4


def find_all(*words: str) -> dict[str, dict[str, str]]:
    """Return the findings of the doctor by name."""
    return {each["name"]: each for each in json.loads(invoke(["doctor", *words, "--json", "-"]).stdout)}


def test_the_doctor_names_what_is_broken_and_the_extra_of_what_is_absent(monkeypatch, tmp_path):
    assert find_all()["numpy"]["state"] == "present"
    monkeypatch.setenv("KGVERIFY_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("kgverify.api.doctor.version", lambda package: "2.9.1" if package == "torch" else "99")
    monkeypatch.setattr("kgverify.api.doctor.requires", lambda package: ["torch<2.14,>=2.10; extra == 'compiled'"])
    found = find_all()
    assert (found["$KGVERIFY_DATA"]["state"], found["torch"]["state"]) == ("broken", "broken")

    def version(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr("kgverify.api.doctor.version", version)
    found = find_all()
    for package, (extra, _) in EXTRAS.items():
        assert (found[package]["state"], found[package]["fix"]) == ("absent", f"pip install 'kgverify[{extra}]'")


@pytest.mark.deep
@pytest.mark.parametrize("has_torch", [False, True])
def test_every_evaluator_of_this_machine_and_the_planted_faults_pass_the_self_test(monkeypatch, has_torch):
    # Compiled ticks take a minute; the deep tier compares them with eager ones in tests/prover.
    monkeypatch.setattr(Evaluator, "why_not_compiled", lambda self: "left out")
    if not has_torch:
        monkeypatch.setattr(Evaluator, "list_modes", lambda self: ["plain"])
    found = {name: each["state"] for name, each in find_all("--self-test").items() if name.startswith("self-test")}
    modes = {"native", "eager"} if has_torch else {"plain"}
    assert {f"self-test: mode {mode}" for mode in modes} < found.keys()
    assert {*found.values()} == {"present"}
