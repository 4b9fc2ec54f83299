"""`kgverify report` renders a saved run, without an engine."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import change

from kgverify import UserError
from kgverify.report.report import encode_report
from kgverify.verification.save import read_run, save_verification
from kgverify.verification.verify import Verification

WITHOUT_ENGINES = """
import sys
sys.modules["torch"] = sys.modules["kgreference"] = None
from kgverify.cli import main
sys.argv[0] = "kgverify"
main()
"""


def run_report(*arguments: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, with torch and the reference prover out of reach."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINES, "report", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def run_dir(faulty: Verification, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save_verification(faulty, folder)
    return folder


def test_every_format_is_written_without_an_engine(run_dir: Path, tmp_path: Path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    options = ("--html", "--junit", "out.xml", "--markdown", "--github", "--json", "out.json")
    done = run_report(run_dir, *options, folder=tmp_path, GITHUB_STEP_SUMMARY=str(summary))
    assert (done.returncode, done.stderr) == (0, "")
    for name, start in (("report.html", "<!doctype html>"), ("out.xml", "<?xml"), ("report.md", "## DIVERGE")):
        assert (tmp_path / name).read_text("utf-8").startswith(start)
        assert f"wrote {name}" in done.stdout
    assert "::error title=kgverify%3A match_facts" in done.stdout
    assert summary.read_text("utf-8") == "before\n" + (tmp_path / "report.md").read_text("utf-8")
    assert (tmp_path / "out.json").read_bytes() == (run_dir / "report.json").read_bytes()


def test_with_no_format_the_report_is_printed(run_dir: Path, tmp_path: Path):
    done = run_report(run_dir, folder=tmp_path, GITHUB_STEP_SUMMARY="")
    assert done.returncode == 0
    assert done.stdout.startswith("DIVERGE   ")
    assert list(tmp_path.iterdir()) == []


def test_json_alone_is_on_standard_output(run_dir: Path, tmp_path: Path):
    done = run_report(run_dir, "--json", "-", "--html", "x.html", "--github", folder=tmp_path, GITHUB_STEP_SUMMARY="")
    assert json.loads(done.stdout)["verdict"] == "DIVERGE"
    assert "::error" in done.stderr


@pytest.mark.deep
def test_each_format_goes_to_standard_output_alone(run_dir: Path, tmp_path: Path):
    for option, start in (("--html", "<!doctype html>"), ("--junit", "<?xml"), ("--markdown", "## DIVERGE")):
        done = run_report(run_dir, option, "-", folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(start)
    done = run_report(run_dir, "--markdown", "-", "--html", "x.html", folder=tmp_path)
    assert done.stdout.startswith("## DIVERGE")
    assert done.stderr == "wrote x.html\n"
    both = run_report(run_dir, "--markdown", "-", "--json", "-", folder=tmp_path)
    assert (both.returncode, both.stdout) == (2, "")
    assert "only one format" in both.stderr


def test_a_file_that_cannot_be_written_is_a_user_error(run_dir: Path, tmp_path: Path):
    done = run_report(run_dir, "--html", tmp_path / "no" / "x.html", folder=tmp_path)
    assert done.returncode == 2
    assert "fix: give a path in a folder that exists" in done.stderr


def test_a_run_comes_back_as_it_was_saved(faulty: Verification, run_dir: Path):
    found = read_run(run_dir)
    assert found.report == faulty.report
    assert (found.expected.root, found.actual.root) == (faulty.expected.root, faulty.actual.root)


@pytest.mark.deep
def test_a_lockstep_run_comes_back_with_its_steps_and_without_them_where_they_were_not_saved(
    in_lockstep: Verification, faulty: Verification, tmp_path: Path
):
    save_verification(in_lockstep, tmp_path)
    found = read_run(tmp_path)
    assert found.stepped.root == in_lockstep.stepped.root
    assert "candidates.log_probability" not in found.stepped.fields
    assert len(found.stepped.columns.candidates.query) == len(found.expected.columns.steps.depth)
    (tmp_path / "lockstep.h5").unlink()
    assert read_run(tmp_path).stepped is None
    save_verification(faulty, tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["actual.h5", "expected.h5", "report.json"]


def test_columns_that_a_trace_lacks_are_not_there_when_it_is_saved(faulty: Verification, tmp_path: Path):
    fields = faulty.actual.fields - {"resolvents.score"}
    save_verification(replace(faulty, actual=replace(faulty.actual, fields=fields)), tmp_path)
    assert "resolvents.score" not in read_run(tmp_path).actual.fields


def damage(folder: Path, faulty: Verification, content: bytes) -> Path:
    save_verification(faulty, folder)
    (folder / "report.json").write_bytes(content)
    return folder


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"verdict": "MAYBE"}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_report_is_refused(faulty: Verification, tmp_path: Path, content: bytes):
    with pytest.raises(UserError, match="not a report") as caught:
        read_run(damage(tmp_path, faulty, content))
    assert caught.value.where.endswith("report.json")


def test_a_folder_without_a_report_and_one_without_a_trace_are_refused(faulty: Verification, tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read") as caught:
        read_run(tmp_path)
    assert "kgverify diff --save DIR" in caught.value.fix
    save_verification(faulty, tmp_path)
    (tmp_path / "actual.h5").unlink()
    with pytest.raises(UserError, match="no such trace"):
        read_run(tmp_path)


def test_indices_that_point_to_nothing_are_refused(faulty: Verification, tmp_path: Path):
    report = faulty.report
    beyond = len(report.divergences)
    wrong = [
        change(report, causes=(change(report.causes[0], first=beyond),)),
        change(report, divergences=(change(report.divergences[0], cause=7), *report.divergences[1:])),
        change(report, causes=()),
    ]
    for each in wrong:
        with pytest.raises(UserError, match="points to"):
            read_run(damage(tmp_path, faulty, encode_report(each)))
    stranger = change(report, first_cause=change(report.first_cause, evidence="another"))
    with pytest.raises(UserError, match="first cause is not among"):
        read_run(damage(tmp_path, faulty, encode_report(stranger)))
