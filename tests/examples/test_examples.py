"""Every example engine runs as its page says: it agrees with the reference, and its fault is found."""

import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import padded_faults
import pytest
from fast import Fast
from foreign_folder import FOLDER, needs_records
from invoked_commands import invoke
from slow import Slow
from warm_commands import run_shell

import kgverify as kv

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


# The batched prover in torch, and its slow twin.


def test_the_padded_engine_agrees_with_its_twin_on_a_graph() -> None:
    report = kv.verify("countries", engine=Fast, reference=Slow, queries=1, corruptions=3)
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert {"resolvents.origin", "steps.dropped_atoms"} <= set(report.coverage.not_compared)
    assert "Fast (torch, choices by kgverify, cpu, float64)" in " ".join(str(report).split())


def test_the_readme_of_the_padded_engine_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(inspect.getfile(Fast)).parent / "README.md").read_text("utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    (code,) = [content for kind, content in blocks if kind == "python"]
    (printed,) = [content for kind, content in blocks if kind == "text"]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


@pytest.mark.deep
def test_the_padded_engine_agrees_on_generated_problems() -> None:
    kv.assert_equivalent(Fast, reference=Slow, examples=30, minimum="none")


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize("fault", padded_faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_the_padded_engine_is_found(fault: type) -> None:
    with pytest.raises(AssertionError, match="does not agree"):
        kv.assert_equivalent(padded_faults.plant(fault), reference=Slow, examples=16)


# The prover in C.

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@needs_gcc
@pytest.mark.deep
def test_the_commands_for_the_prover_in_c_find_its_fault_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLES / "other_language", folder)
    right, faulty = re.findall(r"```console\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    agreeing = run_shell(right, folder)
    assert agreeing.returncode == 0, agreeing.stderr
    assert "AGREE   6 candidates, 18 steps, 20 resolvents" in agreeing.stdout
    of_candidates = {"candidates.is_limited", "candidates.log_probability"}
    unknown = {"rankings", "steps.dropped_atoms", "steps.dropped_resolvents"} | of_candidates
    assert set(kv.compare(folder / "reference.h5", folder / "c.h5").coverage.not_compared) == unknown
    diverging = run_shell(faulty, folder)
    assert diverging.returncode == 1, diverging.stderr
    first = kv.compare(folder / "reference.h5", folder / "faulty.h5").divergences[0]
    assert (first.stage, first.goal) == ("match_facts", "parent(dan, X0), parent(X0, ann)")
    assert "parent(dan, gus)" in str(first.expected)
    strict = run_shell("gcc -Wall -Wextra -Werror -Wno-format-security -o strict prover.c", folder)
    assert strict.returncode == 0, strict.stderr


# Other people's provers.


@pytest.mark.deep
@pytest.mark.parametrize(
    ("package", "module"),
    [("problog", "problog"), ("pydatalog", "pyDatalog"), ("minikanren", "kanren"), ("pytholog", "pytholog")],
)
def test_the_adapters_of_other_provers_answer_as_the_judges_do_but_for_pytholog(
    package: str, module: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    num_programs = 5 if package == "pydatalog" else 60  # each that hangs takes seconds
    command = [sys.executable, "-m", "benchmarks", "provers", package, "--programs", str(num_programs)]
    command += ["--output", str(tmp_path / "results.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    ((entry,),) = [json.loads((tmp_path / "results.json").read_text())["entries"].values()]
    (table,) = entry["tables"]
    counts = Counter({name: int(cell) for name, cell in zip(table["columns"][1:], table["rows"][0][1:], strict=True)})
    assert counts["programs"] == num_programs
    assert counts["problems"] > 4 * num_programs
    assert (counts["differs"] > 50) == (package == "pytholog")
    assert package != "minikanren" or set(+counts) == {"programs", "problems"}


# Steps that a foreign engine recorded.


def write_trace(*arguments: Any) -> None:
    spec = importlib.util.spec_from_file_location("recorded_steps", EXAMPLES / "recorded_steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_trace(*arguments)


@pytest.mark.deep
@needs_records
def test_the_records_of_a_foreign_engine_are_compared_and_its_cap_is_found(tmp_path: Path) -> None:
    sides = [tmp_path / f"{engine}.h5" for engine in ("eager", "compiled_first")]
    for side in sides:
        write_trace(FOLDER, "countries_s3", side.stem, "forced", side)
    report = kv.compare(*sides)
    assert report.verdict is kv.Verdict.DIVERGE
    assert (report.coverage.candidates, report.coverage.steps, len(report.divergences)) == (507, 507, 273)
    records = dict(np.load(FOLDER / "countries_s3.eager.forced.npz", allow_pickle=False))
    trace = kv.open_trace(sides[0]).load()
    np.testing.assert_array_equal(trace.columns.steps.depth, records["step"])
    np.testing.assert_array_equal(trace.columns.steps.choice, records["action"])
    assert trace.columns.steps.num_atoms.tolist() == np.diff(records["state_ptr"]).tolist()
    run = str(tmp_path / "run")
    assert invoke(["diff", *map(str, sides), "--save", run]).exit_code == 1
    explained = invoke(["show", run, "--explain"])
    assert explained.exit_code == 0
    # The engine matches 50 facts; the records hold none at positions 19 to 52.
    sentence = (
        "in this run, the facts at position 53 or later (from 0) in their predicate's segment are missing: 1,117 of the 1,117"
        ' missing, and 0 of the 4 present; the true bound of "position in its predicate\'s segment" may be any'
        " from 20 to 53: nothing between 19 and 53 was seen"
    )
    assert sentence in " ".join(explained.output.split())
    assert any(sentence in cause.condition for cause in report.causes)
