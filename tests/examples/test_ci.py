"""The workflow for GitHub Actions, the hook and the slim image of `examples/ci`; the steps of the workflow are executed."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from invoked_commands import invoke
from warm_commands import run_shell

import kgverify as kv

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "ci"
TEXT = (FOLDER / "github-workflow.yml").read_text(encoding="utf-8")
JOBS = yaml.safe_load(TEXT)["jobs"]
PAGE = (FOLDER.parents[1] / "docs" / "ci.md").read_text(encoding="utf-8")
PROVER = """
from kgverify.dialects import ReferenceEngine


class Engine(ReferenceEngine):
    def prove(self, candidates, progress=None):
        columns = super().prove(candidates)
        ends = columns.candidates
        return columns._replace(candidates=ends._replace(is_limited=1 - ends.is_limited))
"""


def test_versions_are_pinned_and_jobs_end():
    uses = re.findall(r"uses: (.*)", TEXT)
    assert len(uses) == 8
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each) for each in uses)
    for job in JOBS.values():
        assert job["timeout-minutes"] <= 20
        assert re.fullmatch(r"ubuntu-\d\d\.04", job["runs-on"])
        installed = [each["run"] for each in job["steps"] if "pip install" in each.get("run", "")]
        assert installed
        assert all(re.search(r"torch==\d|@ \$KGVERIFY", each) for each in installed)
    assert not any("torch" in str(each) or "compiled" in str(each) for each in JOBS["compare"]["steps"])


def test_every_command_of_the_files_exists_and_the_page_names_them():
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert all(f"examples/ci/{name}" in PAGE for name in texts)
    found = [line for text in texts.values() for line in re.findall(r"(?:run:|entry:) (kgverify .*)", text)]
    assert len(found) == 4
    for _, command, *words in map(shlex.split, found):
        shown = invoke([command, "--help"], COLUMNS="200").stdout
        options = {*re.findall(r"--?[\w-]+", shown), "--log"}
        assert {word for word in words if word.startswith("-")} <= options, command


@pytest.mark.deep
@pytest.mark.parametrize("is_right", [True, False])
def test_the_steps_of_the_workflow_compare_without_torch_and_annotate_the_engine(tmp_path: Path, is_right: bool):
    graph = tmp_path / "data" / "graph"
    graph.mkdir(parents=True)
    (graph / "train.txt").write_text("ann\tparent\tbob\nann\tparent\tdan\nbob\tparent\tcid\n")
    (graph / "test.txt").write_text("ann\tgrandparent\tcid\n")
    (graph / "rules.pl").write_text("grandparent(X,Y) :- parent(X,Z), parent(Z,Y).\n")
    (tmp_path / "my_prover.py").write_text(PROVER.replace("1 - ends", "ends") if is_right else PROVER)
    (golden,) = re.findall(r"^#   (kgverify record .*)$", TEXT, re.MULTILINE)
    assert run_shell(golden, tmp_path).returncode == 0
    absent = tmp_path / "absent"
    (absent / "torch").mkdir(parents=True)
    (absent / "torch" / "__init__.py").write_text('raise ModuleNotFoundError("no torch here", name="torch")')
    printed, failed = "", False
    for name, job in JOBS.items():
        settings = {each: value for each, value in yaml.safe_load(TEXT)["env"].items() if each != "KGVERIFY"}
        paths = [*([str(absent)] if name == "compare" else []), os.environ.get("PYTHONPATH", "")]
        exported = {**settings, "PYTHONPATH": os.pathsep.join(paths), "GITHUB_STEP_SUMMARY": "summary.md"}
        lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in exported.items())
        for step in job["steps"]:
            command = step.get("run", "pip")
            if command.startswith("pip") or (step.get("if") == "failure()") != failed:
                continue
            done = run_shell(f"{lines}{command}", tmp_path, is_warm=name == "record")
            failed |= done.returncode != 0
            printed += done.stdout
            assert done.returncode in ((0,) if is_right or "diff" not in command else (1,)), done.stderr
    assert failed is not is_right
    assert ("::error file=my_prover.py,line=6,title=" in printed) is not is_right
    assert ("DIVERGE" in (tmp_path / "compare.log").read_text()) is not is_right
    if not is_right:
        assert "kgverify" in (tmp_path / "summary.md").read_text()
        assert all((tmp_path / name).stat().st_size for name in ("report.html", "junit.xml"))
    assert kv.open_trace(tmp_path / "now.h5").num_candidates == kv.open_trace(tmp_path / "golden.h5").num_candidates
