"""A kill at any moment leaves what was committed, and the old or the new output, to be found and resumed."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trace_builders as traces
from invoked_commands import invoke

import kgverify as kv
from kgverify import UserError

KILLED = 9
CHANGES = ("open", "os.", "shutil.", "ctypes.dlsym")
"""The beginnings of the names of audit events that precede a change of the disk, among others."""


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


def kills(stride: int, work: Callable[[], object]) -> Iterator[int]:
    """Kill the work at regular intervals of changes of the disk, until it ends; yield after each kill."""
    for number in range(0, 1000, stride):
        if not run_until(number, work):
            break
        yield number
    assert number > 30


def refuse(first: Path, second: Path) -> None:
    raise OSError


def root_of(path: Path) -> int:
    assert traces.run("check", path)["state"] == "whole"
    return kv.open_trace(path).load().root


COLUMNS = traces.make_columns(11, 60)


@pytest.mark.parametrize("stride", [61, pytest.param(29, marks=pytest.mark.deep)])
def test_a_writer_that_is_killed_loses_nothing_committed(tmp_path: Path, stride: int) -> None:
    path, log = tmp_path / "a", tmp_path / "log"

    def write() -> None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with traces.open_writer(path, shard_steps=20, resume=True) as writer:
            for begin in range(writer.num_appended, 60, 3):
                writer.append(traces.rows(COLUMNS, begin, begin + 3))
                os.pwrite(descriptor, f"{writer.num_committed:02}".encode(), 0)
            writer.set_rankings(traces.RANKINGS)

    write()
    whole = traces.read(path)
    shutil.rmtree(path)
    log.unlink()
    for _ in kills(stride, write):
        partial = tmp_path / "a.partial"
        num_told = int(log.read_text() or 0) if log.exists() else 0
        if (partial / "manifest.json").exists():
            trace = traces.read(partial)
            num = len(trace.columns.candidates.query)
            assert not trace.is_complete
            assert num >= num_told
            traces.assert_same_columns(trace.columns, traces.rows(COLUMNS, num))
        else:
            assert num_told == 0 or path.exists()
        write()
        traces.assert_same_trace(traces.read(path), whole)
        log.unlink()
        assert [each.name for each in tmp_path.iterdir()] == ["a"]
        shutil.rmtree(path)


def record(path: Path, *, seed: int = 1, resume: bool = False) -> None:
    options = kv.RecordingOptions(shard_steps=20, resume=resume, overwrite=True)
    kv.record("countries", path, "reference", queries=2, corruptions=3, seed=seed, options=options)


WORKS: dict[str, Callable[[Path], object]] = {
    "record": record,
    "convert": lambda path: traces.run("convert", path.parent / "new.h5", path, "--overwrite"),
    "join": lambda path: traces.run("join", path.parent / "new.h5", "-o", path, "--overwrite"),
}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("work", "has_exchange"), [("record", True), ("record", False), ("convert", True), ("join", False)]
)
def test_a_kill_leaves_the_old_or_the_new_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, has_exchange: bool
) -> None:
    if not has_exchange:
        monkeypatch.setattr("kgverify.trace.files.manifest.exchange", refuse)
    record(tmp_path / "old.h5", seed=0)
    record(tmp_path / "new.h5")
    path, old, new = tmp_path / "out.h5", root_of(tmp_path / "old.h5"), root_of(tmp_path / "new.h5")
    shutil.copytree(tmp_path / "old.h5", path)
    found = set()
    for number in kills(29, lambda: WORKS[work](path)):
        if path.exists():
            found.add(root_of(path))
        else:
            assert not has_exchange, f"nothing is there after a kill before change {number}"
            with pytest.raises(UserError) as caught:
                kv.open_trace(path)
            assert "out.h5.replaced" in caught.value.fix
            found.add(root_of(tmp_path / "out.h5.replaced"))
        record(path, resume=True)
        assert root_of(path) == new
        assert {each.name for each in tmp_path.iterdir()} == {"old.h5", "new.h5", "out.h5"}
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(tmp_path / "old.h5", path)
    assert found <= {old, new}
    assert old in found


@pytest.mark.deep
@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_repair_that_is_killed_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
) -> None:
    if not has_exchange:
        monkeypatch.setattr("kgverify.trace.maintain.repair.exchange", refuse)
    path, whole = tmp_path / "a", tmp_path / "whole"
    traces.write_shards(whole, COLUMNS, batch=3)

    def damage() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(tmp_path / "a.unrepaired", ignore_errors=True)
        shutil.copytree(whole, path)
        (path / "shard-00001.h5").unlink()

    damage()
    for _ in kills(41, lambda: traces.run("repair", path)):
        traces.run("repair", path)
        assert 0 < len(traces.read(path).columns.candidates.query) < 60
        assert (tmp_path / "a.unrepaired" / "shard-00000.h5").exists()
        damage()


@pytest.mark.deep
def test_a_saved_run_that_is_replaced_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    def save(folder: Path, *, seed: int = 1, lockstep: bool = False) -> None:
        equality, sizes = kv.Equality(lockstep=lockstep, minimum="none"), {"queries": 1, "corruptions": 2}
        kv.verify("countries", "reference", **sizes, seed=seed, equality=equality, save=folder)

    old, new, folder = ((tmp_path / name) for name in ("old", "new", "run"))
    save(old, seed=0, lockstep=True)
    save(new)
    expected = [traces.read(each / "expected.h5").root for each in (old, new)]
    shutil.copytree(old, folder)
    found = set()
    for _ in kills(11, lambda: save(folder)):
        done = invoke(["report", folder])
        assert done.exit_code in (0, 1, 3), done.stderr
        seed = json.loads((folder / "report.json").read_text())["job"]["queries"]["seed"]
        found.add(seed)
        assert traces.read(folder / "expected.h5").root == expected[seed]
        assert (folder / "lockstep.h5").exists() == (seed == 0)
        shutil.rmtree(folder)
        shutil.copytree(old, folder)
    assert 0 in found
