"""An output has one writer: the second one is refused by name, a killed one blocks nobody, and no link is followed."""

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
from kgverify.files import writing
from kgverify.files.writing import FOLDER_LOCK, OutputLock, lock_beside, locked_folder

HOLDER = """
import sys
from pathlib import Path
from kgverify.files.writing import lock_beside
lock = lock_beside(Path(sys.argv[1]), "this trace")
print("held", flush=True)
sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_the_lock_of_a_process_that_is_killed_is_free(tmp_path: Path):
    output = tmp_path / "out.h5"
    command = [sys.executable, "-c", HOLDER, str(output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"another process \({holder.pid} on .*\) is writing this trace") as caught:
            lock_beside(output, "this trace")
        assert caught.value.where == str(output)
        assert "wait until it ends" in caught.value.fix
        holder.send_signal(signal.SIGKILL)
    assert (tmp_path / ".out.h5.lock").exists()
    with lock_beside(output, "this trace"):
        pass
    assert names(tmp_path) == []


def test_a_process_takes_a_lock_once_and_its_children_do_not_hold_it(tmp_path: Path):
    lock = lock_beside(tmp_path / "a", "this trace")
    with (
        lock_beside(tmp_path / "b", "this trace"),
        pytest.raises(UserError, match="this process is writing this trace"),
    ):
        lock_beside(tmp_path / "a", "this trace")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    lock.release()
    # A lock that is not released is free once nothing refers to it.
    lock = lock_beside(tmp_path / "a", "this trace")
    del lock
    lock_beside(tmp_path / "a", "this trace").release()
    os.close(read)
    os.close(write)
    os.waitpid(child, 0)


def test_a_locked_folder_is_created_and_deleted_if_it_stays_empty(tmp_path: Path):
    with locked_folder(tmp_path / "a" / "b", "this corpus"):
        assert names(tmp_path / "a" / "b") == [FOLDER_LOCK]
        again = locked_folder(tmp_path / "a" / "b", "this corpus")
        with pytest.raises(UserError, match="this process is writing this corpus"), again:
            pass
    assert names(tmp_path) == []
    with locked_folder(tmp_path / "a", "this corpus"):
        (tmp_path / "a" / "file").touch()
    assert names(tmp_path / "a") == ["file"]


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
        lock_beside(tmp_path / "a", "this trace")
    assert caught.value.fix
    assert victim.read_text() == "years of work"
    assert os.path.lexists(path)


def test_a_lock_that_its_holder_deletes_in_the_meantime_is_taken_again(tmp_path: Path, monkeypatch):
    lock, calls = writing._lock, []

    def delete_first(descriptor: int) -> bool:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / ".a.lock").unlink()
        return lock(descriptor)

    monkeypatch.setattr(writing, "_lock", delete_first)
    with lock_beside(tmp_path / "a", "this trace"):
        assert len(calls) == 2
        with pytest.raises(UserError, match="is writing"):
            lock_beside(tmp_path / "a", "this trace")


# Traces, runs, corpora and evaluations.


def record(path: Path, queries: int = 1, **options: Any) -> None:
    recording = kv.RecordingOptions(as_reference=True, **options)
    kv.record("countries", path, "reference", queries=queries, corruptions=2, options=recording)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    record(folder / "a.h5")
    record(folder / "b.h5", 2)
    record(folder / "shards", 2, shard_steps=9)
    return folder


def test_an_output_that_another_writes_is_left_to_it(inputs: Path, tmp_path: Path):
    output, run = tmp_path / "out", {"queries": 1, "corruptions": 1}
    shutil.copytree(inputs / "shards", tmp_path / "out.partial")
    (tmp_path / "out.partial" / "shard-00001.h5").unlink()
    before = names(tmp_path / "out.partial")
    with lock_beside(output, "this trace"):
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match="is writing this trace"):
                record(output, **options)
        for words in (
            ["convert", inputs / "a.h5", output],
            ["join", inputs / "shards", "-o", output],
            ["repair", tmp_path / "out.partial"],
        ):
            done = invoke(["trace", *words])
            assert (done.exit_code, "is writing this trace" in done.stderr) == (2, True)
    assert names(tmp_path) == ["out.partial"]
    assert names(tmp_path / "out.partial") == before
    output.mkdir()
    with OutputLock(output / FOLDER_LOCK, output, "it"):
        for write in (
            lambda: kv.compare(inputs / "a.h5", inputs / "b.h5", save=output),
            lambda: kv.verify("countries", "reference", **run, save=output),
            lambda: kv.fuzz("reference", corpus=output, examples=1),
            lambda: kv.evaluate("countries", "reference", **run, save=output),
        ):
            with pytest.raises(UserError) as caught:
                write()
            assert "is writing this" in caught.value.message
            assert "wait until it ends" in caught.value.fix
    assert names(output) == []


def test_a_trace_that_another_process_finished_in_the_meantime_is_not_replaced(
    inputs: Path, tmp_path: Path, monkeypatch
):
    original = OutputLock.__init__

    def finish_first(self: OutputLock, path: Path, output: Path, *arguments: Any, **options: Any) -> None:
        shutil.copyfile(inputs / "b.h5", output)
        original(self, path, output, *arguments, **options)

    monkeypatch.setattr(OutputLock, "__init__", finish_first)
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
