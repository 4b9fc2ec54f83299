"""An output has one writer: the second one is refused by name, and nobody has to wait for a killed one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert list(tmp_path.iterdir()) == []


def test_one_process_cannot_take_a_lock_twice(tmp_path: Path):
    with (
        lock_beside(tmp_path / "a", "this trace"),
        lock_beside(tmp_path / "b", "this trace"),
        pytest.raises(UserError, match="this process is writing this trace"),
    ):
        lock_beside(tmp_path / "a", "this trace")


def test_a_lock_that_is_not_released_is_free_once_nothing_refers_to_it(tmp_path: Path):
    lock = lock_beside(tmp_path / "a", "this trace")
    del lock
    lock_beside(tmp_path / "a", "this trace").release()


def test_a_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path):
    lock = lock_beside(tmp_path / "a", "this trace")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    lock.release()
    lock_beside(tmp_path / "a", "this trace").release()
    os.close(read)
    os.close(write)
    os.waitpid(child, 0)


def test_a_folder_is_created_and_deleted_if_it_stays_empty(tmp_path: Path):
    with locked_folder(tmp_path / "a" / "b", "this corpus"):
        assert [each.name for each in (tmp_path / "a" / "b").iterdir()] == [FOLDER_LOCK]
        again = locked_folder(tmp_path / "a" / "b", "this corpus")
        with pytest.raises(UserError, match="this process is writing this corpus"), again:
            pass
    assert list(tmp_path.iterdir()) == []
    with locked_folder(tmp_path / "a", "this corpus"):
        (tmp_path / "a" / "file").touch()
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["file"]


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
    path = tmp_path / ".a.lock"
    lock, num_calls = writing._lock, 0

    def delete_first(descriptor: int) -> bool:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            path.unlink()
        return lock(descriptor)

    monkeypatch.setattr(writing, "_lock", delete_first)
    with OutputLock(path, tmp_path / "a", "this trace"):
        assert num_calls == 2
        with pytest.raises(UserError, match="is writing"):
            OutputLock(path, tmp_path / "a", "this trace")


def test_the_content_of_a_lock_is_not_printed_unless_it_names_a_process(tmp_path: Path):
    for content, expected in (
        (b"kgverify 7 host-1.example\n", "another process (7 on host-1.example)"),
        (b"kgverify 7 \x1b[31mhost\n", "another process"),
        (b"kgverify \n", "another process"),
        (b"", "another process"),
    ):
        assert writing._name_holder(content) == expected
