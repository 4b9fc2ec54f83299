"""A saved run: it is rendered without an engine, comes back as it was, and survives full disks, links and damage."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from invoked_commands import invoke
from report_runs import SavedRun, change

import kgverify as kv


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_format_is_written_beside_the_others(faulty: SavedRun, tmp_path: Path):
    (tmp_path / "summary.md").write_text("before\n")
    options = ("--html", "--junit", "out.xml", "--markdown", "--github", "--json", "out.json")
    done = invoke(["report", faulty.folder, *options], tmp_path, GITHUB_STEP_SUMMARY="summary.md")
    assert (done.exit_code, done.stderr) == (0, "")
    for name, start in (("report.html", "<!doctype html>"), ("out.xml", "<?xml"), ("report.md", "## DIVERGE")):
        assert (tmp_path / name).read_text("utf-8").startswith(start)
        assert f"wrote {name}" in done.stdout
    assert "::error title=kgverify%3A match_facts" in done.stdout
    assert (tmp_path / "summary.md").read_text("utf-8") == "before\n" + (tmp_path / "report.md").read_text("utf-8")
    assert (tmp_path / "out.json").read_bytes() == (faulty.folder / "report.json").read_bytes()


def show(folder: Path, number: int) -> dict:
    return json.loads(invoke(["show", folder, "--divergence", number, "--json", "-"]).stdout)


def test_the_steps_of_lockstep_are_saved_and_can_be_absent(in_lockstep: SavedRun, tmp_path: Path):
    run = shutil.copytree(in_lockstep.folder, tmp_path / "run")
    steps = kv.open_trace(run / "lockstep.h5").load()
    assert steps.root == in_lockstep.report.traces.stepped.root
    assert "candidates.log_probability" not in steps.fields
    number = len(in_lockstep.report.divergences)
    assert show(run, number)["derivation"]["note"] == ""
    # Earlier versions did not save them.
    (run / "lockstep.h5").unlink()
    assert "diverged earlier" in show(run, number)["derivation"]["note"]


@pytest.mark.parametrize("call", ["pwritev", "write", "mkdir", "rename"])
def test_a_run_that_finds_no_room_leaves_the_run_before_it(
    faulty: SavedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    folder = shutil.copytree(faulty.folder, tmp_path / "run")
    before = read_files(folder)
    diff = {"engine": "reference", "queries": 1, "corruptions": 1, "equality": kv.Equality(minimum="none")}
    # First the files of one run are moved away, then the files of the other run take their place.
    for num_calls in range(8 if call == "rename" else 1):
        original, left = getattr(os, call), num_calls

        def fail(*arguments, original=original, **options):
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(kv.UserError, match="cannot be written: No space left") as caught:
                kv.verify("countries", save=folder, **diff)
        assert caught.value.fix.startswith("make room")
        assert read_files(folder) == before
    root = kv.verify("countries", save=folder, **diff).traces.actual.root
    assert kv.open_trace(folder / "actual.h5").load().root == root != faulty.report.traces.actual.root


@pytest.mark.parametrize("name", ["expected.h5", "actual.h5", "lockstep.h5", "report.json"])
def test_a_run_follows_no_link(tmp_path: Path, name: str):
    (tmp_path / "run").mkdir()
    (tmp_path / "victim").write_text("years of work")
    (tmp_path / "run" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(kv.UserError, match="is a link"):
        kv.verify("countries", "reference", queries=1, corruptions=1, save=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")] == [name]
    assert (tmp_path / "victim").read_text() == "years of work"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a report"),
        (b'{"verdict": "MAYBE"}', "not a report"),
        (b"\xff\xfe", "not a report"),
        (b"[" * 100_000, "not a report"),
        (lambda r: change(r, causes=(change(r.causes[0], first=len(r.divergences)),)), "a cause points to"),
        (
            lambda r: change(r, divergences=(change(r.divergences[0], cause=7), *r.divergences[1:])),
            "a divergence points",
        ),
        (lambda r: change(r, causes=()), "points to"),
        (lambda r: change(r, minimum={"proof": 1}), "unknown item of evidence 'proof'"),
        (lambda r: change(r, modulo=("order", "case")), "unknown benign difference 'case'"),
        (lambda r: change(r, first_cause=change(r.first_cause, evidence="another")), "first cause is not among"),
        (lambda r: change(r, first_cause=change(r.first_cause, step=1000)), "first cause is not among"),
    ],
)
def test_a_damaged_report_is_refused(faulty: SavedRun, content, message: str):
    folder = faulty.with_report(faulty.report if isinstance(content, bytes) else content(faulty.report))
    if isinstance(content, bytes):
        (folder / "report.json").write_bytes(content)
    done = invoke(["report", folder])
    assert done.exit_code == 2
    assert message in done.stderr
    assert "report.json" in done.stderr


def test_a_folder_without_a_report_and_one_without_a_trace_are_refused(faulty: SavedRun, tmp_path: Path):
    done = invoke(["report", tmp_path])
    assert (done.exit_code, "kgverify diff --save DIR" in done.stderr) == (2, True)
    shutil.copytree(faulty.folder, tmp_path / "run")
    (tmp_path / "run" / "actual.h5").unlink()
    done = invoke(["report", tmp_path / "run"])
    assert (done.exit_code, "no such trace" in done.stderr) == (2, True)


def test_a_report_without_its_traces_cannot_be_drawn(faulty: SavedRun, tmp_path: Path):
    with pytest.raises(kv.UserError, match="without its traces") as caught:
        change(faulty.report).to_html(tmp_path / "report.html")
    assert "kgverify report RUN_DIR --html" in caught.value.fix
    report = change(faulty.report, command="kgverify diff", job=None)
    assert report.with_traces(faulty.report.traces).to_html(tmp_path / "report.html").stat().st_size > 10_000
    assert report.with_traces(faulty.report.traces).command == "kgverify diff"
    assert report.with_traces(faulty.report.traces, command="kgverify compare").command == "kgverify compare"


@pytest.mark.parametrize("names", [("expected.h5", "actual.h5"), ("actual.h5", "expected.h5")])
def test_a_run_is_saved_over_its_own_traces_in_any_order(faulty: SavedRun, tmp_path: Path, names: tuple[str, str]):
    run = shutil.copytree(faulty.folder, tmp_path / "run")
    roots = [kv.open_trace(run / name).load().root for name in names]
    assert invoke(["diff", *(run / name for name in names), "--save", run]).exit_code == 1
    assert [kv.open_trace(run / name).load().root for name in ("expected.h5", "actual.h5")] == roots
