"""An output has one writer: the second one is refused by name, a killed one blocks nobody, and no link is followed."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoked_commands import invoke

import kgverify as kv
from kgverify import UserError

HOLDER = """
import sys
import kgverify as kv
header = kv.Header(kv.EngineInfo("mine"), kv.DeclaredLimits(), kv.PolicyInfo(""), "")
writer = kv.TraceWriter(sys.argv[1], header, kv.Symbols((), ()))
print("held", flush=True)
sys.stdin.read()
"""
SMALL = {"queries": 1, "corruptions": 1}


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def record(path: Path, queries: int = 1, **options: Any) -> None:
    recording = kv.RecordingOptions(as_reference=True, **options)
    kv.record("countries", path, "reference", queries=queries, corruptions=2, options=recording)


def hold(path: Path) -> kv.TraceWriter:
    """Begin to write a trace."""
    header = kv.Header(kv.EngineInfo("mine"), kv.DeclaredLimits(), kv.PolicyInfo(""), "")
    return kv.TraceWriter(path, header, kv.Symbols((), ()))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    record(folder / "a.h5")
    record(folder / "b.h5", 2)
    record(folder / "shards", 2, shard_steps=9)
    return folder


def test_an_output_that_another_process_writes_is_left_to_it_until_it_is_killed(inputs: Path, tmp_path: Path):
    output = tmp_path / "out.h5"
    command = [sys.executable, "-c", HOLDER, str(output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match=rf"process \({holder.pid} on .*\) is writing this trace") as caught:
                record(output, **options)
            assert caught.value.where == str(output)
            assert "wait until it ends" in caught.value.fix
        for words in (["convert", inputs / "a.h5", output], ["join", inputs / "shards", "-o", output]):
            done = invoke(["trace", *words])
            assert (done.exit_code, "is writing this trace" in done.stderr) == (2, True)
        holder.send_signal(signal.SIGKILL)
    assert (tmp_path / ".out.h5.lock").exists()
    record(output)
    assert names(tmp_path) == ["out.h5"]


def test_a_process_takes_a_lock_once_and_its_children_do_not_hold_it(tmp_path: Path):
    writer = hold(tmp_path / "a")
    with hold(tmp_path / "b"), pytest.raises(UserError, match="this process is writing this trace"):
        hold(tmp_path / "a")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    # A lock that is not released is free once nothing refers to it.
    del writer
    with hold(tmp_path / "a"):
        pass
    os.close(read)
    os.close(write)
    os.waitpid(child, 0)


@pytest.mark.parametrize("kind", ["link", "hard link", "file", "folder", "pipe"])
def test_something_else_at_the_name_of_a_lock_is_left_alone(tmp_path: Path, kind: str):
    victim, path = tmp_path / "victim", tmp_path / ".a.lock"
    victim.write_text("years of work")
    plant = {
        "link": lambda: path.symlink_to(victim),
        "hard link": lambda: os.link(victim, path),
        "file": lambda: path.write_text("mine"),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
    }
    plant[kind]()
    with pytest.raises(UserError) as caught:
        hold(tmp_path / "a")
    assert caught.value.fix
    assert victim.read_text() == "years of work"
    assert os.path.lexists(path)


def test_a_lock_that_its_holder_deletes_in_the_meantime_is_taken_again(tmp_path: Path, monkeypatch):
    lock, calls = fcntl.flock, []

    def delete_first(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / ".a.lock").unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", delete_first)
    with hold(tmp_path / "a"):
        assert len(calls) == 2
        with pytest.raises(UserError, match="is writing"):
            hold(tmp_path / "a")


def test_a_folder_has_one_writer_and_is_deleted_if_it_stays_empty(inputs: Path, tmp_path: Path):
    with hold(tmp_path / "out"):
        shutil.copytree(inputs / "shards", tmp_path / "out.partial", dirs_exist_ok=True)
        (tmp_path / "out.partial" / "shard-00001.h5").unlink()
        before = names(tmp_path / "out.partial")
        done = invoke(["trace", "repair", tmp_path / "out.partial"])
        assert (done.exit_code, "is writing this trace" in done.stderr) == (2, True)
        assert names(tmp_path / "out.partial") == before
    output = tmp_path / "run"
    output.mkdir()
    with (output / ".kgverify.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for write in (
            lambda: kv.compare(inputs / "a.h5", inputs / "b.h5", save=output),
            lambda: kv.verify("countries", "reference", **SMALL, save=output),
            lambda: kv.fuzz("reference", corpus=output, examples=1),
            lambda: kv.evaluate("countries", "reference", **SMALL, save=output),
        ):
            with pytest.raises(UserError, match="is writing this") as caught:
                write()
            assert "wait until it ends" in caught.value.fix
    assert names(output) == [".kgverify.lock"]
    shutil.rmtree(output)
    with pytest.raises(UserError):
        kv.evaluate("countries", "reference", queries=0, save=output)
    assert not output.exists()


def test_a_trace_that_another_process_finished_in_the_meantime_is_not_replaced(
    inputs: Path, tmp_path: Path, monkeypatch
):
    lock = fcntl.flock

    def finish_first(descriptor: int, operation: int) -> None:
        shutil.copyfile(inputs / "b.h5", tmp_path / "out.h5")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    with pytest.raises(UserError, match="already exists"):
        record(tmp_path / "out.h5")
    assert (tmp_path / "out.h5").read_bytes() == (inputs / "b.h5").read_bytes()
    assert names(tmp_path) == ["out.h5"]


@pytest.mark.parametrize("name", ["out.h5", "out.h5.partial", ".out.h5.lock"])
def test_a_recording_follows_no_link(tmp_path: Path, name: str):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("years of work")
    for target in ("victim", "victim/file", "victim/new"):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(UserError, match="is a link, which is not followed"):
            record(tmp_path / "out.h5", 2, overwrite=True)
        assert names(tmp_path / "victim") == ["file"]
        (tmp_path / name).unlink()
    assert (tmp_path / "victim" / "file").read_text() == "years of work"


def test_a_planted_shard_is_not_written_to(tmp_path: Path):
    (tmp_path / "out.h5.partial").mkdir()
    (tmp_path / "victim").write_text("")
    os.link(tmp_path / "victim", tmp_path / "out.h5.partial" / "shard-00000.h5")
    record(tmp_path / "out.h5", shard_steps=1, resume=True)
    assert (tmp_path / "victim").read_text() == ""
