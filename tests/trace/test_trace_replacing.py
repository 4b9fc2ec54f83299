"""Outputs are replaced so that a kill at any moment leaves the old or the new one, to be found and resumed."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import kgverify as kv
from kgverify import UserError
from kgverify.trace.files import manifest
from kgverify.trace.maintain.check import WHOLE, check_trace
from kgverify.trace.maintain.join import unite
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.save import read_run, save_verification
from kgverify.verification.verify import Verification

KILLED = 9
CHANGES = ("open", "os.", "shutil.", "ctypes.dlsym")
"""The beginnings of the names of audit events that precede a change of the disk, among others."""


def record(path: Path, *, seed: int = 1, shard_steps: int = 20, resume: bool = False) -> None:
    options = kv.RecordingOptions(shard_steps=shard_steps, resume=resume, overwrite=True)
    kv.record("countries", path, "reference", queries=2, corruptions=3, seed=seed, options=options)


def convert(path: Path) -> None:
    convert_trace(path.parent / "new.h5", path, level=None, is_archived=False)


def join(path: Path) -> None:
    unite([path.parent / "new.h5"], path)


def record_one_file(path: Path) -> None:
    record(path, shard_steps=1_000_000)


def run_until(number: int, work: Callable[[], object]) -> bool:
    """Run work in a process that is killed before one of its changes of the disk; return whether it was."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    seen = 0

    def count(event: str, _: object) -> None:
        nonlocal seen
        if event.startswith(CHANGES) and (seen := seen + 1) > number:
            os._exit(KILLED)

    try:
        sys.addaudithook(count)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.fixture(params=["exchange", "renames"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an old trace to replace, and another one."""
    if request.param == "renames":

        def refuse(first: Path, second: Path) -> None:
            raise OSError

        monkeypatch.setattr(manifest, "exchange", refuse)
    record(tmp_path / "old.h5", seed=0)
    record(tmp_path / "new.h5")
    return tmp_path


def root_of(path: Path) -> int:
    assert check_trace(path).state == WHOLE
    return kv.open_trace(path).load().root


@pytest.mark.sample(0, deep=3)
@pytest.mark.parametrize("work", [record, record_one_file, convert, join])
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_trace(folder: Path, work: Callable[[Path], None]) -> None:
    path, old, new = folder / "out.h5", root_of(folder / "old.h5"), root_of(folder / "new.h5")
    found, number, num_kills = set(), 0, 0
    has_exchange = manifest.exchange.__name__ == "exchange"
    while True:
        shutil.rmtree(folder / "out.h5.partial", ignore_errors=True)
        for each in folder.glob("*out.h5*"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        shutil.copytree(folder / "old.h5", path)
        if not run_until(number, lambda: work(path)):
            break
        num_kills += 1
        if path.exists():
            found.add(root_of(path))
        else:
            assert not has_exchange, f"nothing is there after a kill before change {number}"
            with pytest.raises(UserError) as caught:
                kv.open_trace(path)
            assert "out.h5.replaced" in caught.value.fix
            found.add(root_of(folder / "out.h5.replaced"))
        record(path, resume=True)
        assert root_of(path) == new
        assert {each.name for each in folder.iterdir()} == {"old.h5", "new.h5", "out.h5"}
        number += 3
    assert num_kills >= 15
    assert found == {old, new}


@pytest.mark.deep
def test_an_evaluation_that_is_killed_at_any_moment_resumes(tmp_path: Path) -> None:
    options = kv.EvaluationOptions(part_size=4, check=0, minimum="none")

    def evaluate(save: Path | None = None) -> dict[str, float]:
        return kv.evaluate("countries", "reference", queries=2, corruptions=3, options=options, save=save).metrics

    expected = evaluate()
    num_kills = 0
    for number in range(1000):
        save = tmp_path / str(number)
        if not run_until(number, partial(evaluate, save)):
            break
        num_kills += 1
        assert evaluate(save) == expected
    assert num_kills >= 15


@pytest.mark.exhaustive
def test_a_saved_run_that_is_replaced_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    def save(folder: Path, *, seed: int = 0, lockstep: bool = False) -> kv.Report:
        equality = kv.Equality(lockstep=lockstep, minimum="none")
        run = {"queries": 1, "corruptions": 2, "seed": seed}
        return kv.verify("countries", "reference", **run, equality=equality, save=folder)

    old, new = ((tmp_path / name) for name in ("old", "new"))
    reports = [save(old, lockstep=True), save(new, seed=1)]
    expected, actual = read_trace(new / "expected.h5"), read_trace(new / "actual.h5")
    verification = Verification(reports[1], expected, actual, None)
    found, num_kills = set(), 0
    for number in range(1000):
        folder = tmp_path / str(number)
        shutil.copytree(old, folder)
        if not run_until(number, lambda folder=folder: save_verification(verification, folder)):
            break
        num_kills += 1
        report = read_run(folder).report
        found.add(reports.index(report))
        assert (folder / "lockstep.h5").exists() == (report == reports[0])
        save_verification(verification, folder)
        assert read_run(folder).report == reports[1]
    assert num_kills >= 15
    assert found == {0, 1}
