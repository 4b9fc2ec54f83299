"""Files appear whole or not at all, no link is followed, modes are kept, and every failure has a remedy."""

import errno
import os
import resource
import signal
import stat
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from kgverify import UserError
from kgverify.files import writing
from kgverify.files.writing import append_to_file, check_writable, make_folders, renamed_into, replaced, write_file


@contextmanager
def longest_file(num_bytes: int):
    """Let the system refuse longer files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "old").write_text("old")
    return tmp_path / "old"


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def fill(path: Path) -> None:
    with replaced(path) as temporary:
        temporary.write_text("new")


def append(path: Path) -> None:
    append_to_file(path, b"new" * 3000)


WRITERS = [lambda path: write_file(path, "new"), lambda path: write_file(path, b"new", is_durable=True), fill]
of_every_writer = pytest.mark.parametrize("write", WRITERS)


@of_every_writer
def test_a_file_is_replaced_keeps_its_permissions_and_leaves_its_other_name_alone(output: Path, write):
    output.chmod(0o640)
    os.link(output, output.with_name("link"))
    write(output)
    assert output.read_text() == "new"
    assert stat.S_IMODE(output.stat().st_mode) == 0o640
    assert output.with_name("link").read_text() == "old"
    assert names(output.parent) == ["link", "old"]


@pytest.mark.parametrize("write", [*WRITERS, append, check_writable])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((f"link to {target}", "is a link, which is not followed") for target in ("old", "nothing", ".")),
        ("none/file", "No such file"),
        ("old/file", "Not a directory"),
        ("x" * 300, "name too long"),
        (".", "Is a directory|not a regular file"),
    ],
)
def test_a_path_that_cannot_be_written_is_explained_and_no_link_is_followed(
    output: Path, write, name: str, reason: str
):
    if name.startswith("link"):
        (output.parent / name).symlink_to(name.removeprefix("link to "))
    before = names(output.parent)
    with pytest.raises(UserError, match=reason) as caught:
        write(output.parent / name)
    assert caught.value.fix
    assert output.read_text() == "old"
    assert names(output.parent) == before


def test_a_file_with_a_second_name_is_not_appended_to(output: Path):
    os.link(output, output.with_name("link"))
    with pytest.raises(UserError, match="has a second name"):
        append(output.with_name("link"))
    assert output.read_text() == "old"


def test_a_folder_may_be_a_link(tmp_path: Path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "here").symlink_to("large disk")
    write_file(tmp_path / "here" / "file", "new")
    assert make_folders(tmp_path / "here" / "a" / "b") == [tmp_path / "here" / "a", tmp_path / "here" / "a" / "b"]
    assert names(tmp_path / "large disk") == ["a", "file"]
    (tmp_path / "dangling").symlink_to("nothing")
    with pytest.raises(UserError, match="is a link"):
        make_folders(tmp_path / "dangling" / "a")


@of_every_writer
@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("open", errno.EROFS),
        ("write", errno.ENOSPC),
        ("fsync", errno.EIO),
        ("replace", errno.EDQUOT),
        ("fchmod", errno.ENOSPC),
    ],
)
def test_a_disk_that_fails_leaves_the_old_file_and_nothing_else(output: Path, monkeypatch, write, call, number):
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    is_made = write in {"write": WRITERS[:2], "fsync": WRITERS[1:2]}.get(call, WRITERS)
    with pytest.raises(UserError) if is_made else nullcontext() as caught:
        write(output)
    monkeypatch.undo()
    if is_made:
        assert f"cannot be written: {os.strerror(number)}" in caught.value.message
        assert "the file that was there is unchanged" in caught.value.message
        assert ("bytes free" in caught.value.message) == (number == errno.ENOSPC)
        assert caught.value.fix
    assert output.read_text() == ("old" if is_made else "new")
    assert names(output.parent) == ["old"]


@pytest.mark.parametrize("write", [lambda path: write_file(path, bytes(9000)), append])
def test_a_file_that_grows_beyond_a_limit_or_may_not_be_written_stays_as_it_was(output: Path, write, monkeypatch):
    with longest_file(4096), pytest.raises(UserError, match="File too large"):
        write(output)
    monkeypatch.setattr(os, "access", lambda *arguments, **options: False)
    with pytest.raises(UserError, match="Permission denied"):
        write_file(output, "new")
    assert output.read_text() == "old"
    assert names(output.parent) == ["old"]


def test_temporary_names_cannot_be_guessed_and_are_deleted_after_errors_and_by_the_next_writer(output: Path):
    def interrupt() -> None:
        with renamed_into(output) as temporary:
            temporary.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert (output.read_text(), names(output.parent)) == ("old", ["old"])
    found = []
    for _ in range(2):
        with renamed_into(output) as temporary:
            found.append(temporary.name)
    assert found[0] != found[1]
    assert output.name in found[0]
    for name in (found[0], found[0].replace("old", "other")):
        (output.parent / name).touch()
    writing.remove_temporary(output.parent, output)
    assert names(output.parent) == sorted([found[0].replace("old", "other"), "old"])


def test_a_temporary_name_that_somebody_planted_is_not_written_through(output: Path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda num_bytes=8: "00" * num_bytes)
    with renamed_into(output) as temporary:
        pass
    temporary.symlink_to("victim")
    with pytest.raises(UserError, match="exists"):
        write_file(output, "new")
    assert not (output.parent / "victim").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="these names are Linux's")
def test_devices_pipes_and_descriptors_by_name_are_written_to(tmp_path: Path):
    write_file("/dev/null", "x")
    with pytest.raises(UserError, match="No space left on device\n"):
        write_file("/dev/full", "x")
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")
    with pytest.raises(UserError, match="cannot be written") as caught:
        write_file(tmp_path / "pipe", "x")
    assert "start the reader" in caught.value.fix
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", "x")
    assert os.read(reader, 9) == b"x"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with (tmp_path / "file").open("wb") as file:
        file.write(b"before ")
        file.flush()
        write_file(f"/dev/fd/{file.fileno()}", "now")
        append_to_file(f"/proc/self/fd/{file.fileno()}", b" after")
    assert (tmp_path / "file").read_text() == "before now after"


def test_new_files_have_ordinary_permissions_and_checks_and_temporary_folders_leave_nothing(tmp_path: Path):
    check_writable(tmp_path / "new")
    writing.check_folder(tmp_path / "a" / "b")
    for number, error, match in ((errno.ENOSPC, UserError, "No space left"), (errno.ECONNREFUSED, OSError, "refused")):
        with pytest.raises(error, match=match), writing.temporary_folder("kgverify-", str(tmp_path)):
            raise OSError(number, os.strerror(number))
    (tmp_path / ".kgverify-staged-of-a-killed-process").mkdir()
    with writing.staging_folder(tmp_path) as staged:
        assert names(tmp_path) == [staged.name]
    assert names(tmp_path) == []
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
