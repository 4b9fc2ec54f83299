"""Reading: what is no regular file, what is too long or almost empty on disk, and standard input."""

import io
import os
import re
import socket
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from kgverify import UserError
from kgverify.files.reading import MAX_BYTES, MIN_EXPANDED_BYTES, open_file, read_file
from kgverify.graphs.formats.reading import read_text


def _refused(path: Path, max_bytes: int = MAX_BYTES) -> UserError:
    with pytest.raises(UserError) as caught:
        read_file(path, purpose="a budget", max_bytes=max_bytes)
    assert caught.value.where == str(path)
    assert caught.value.fix
    return caught.value


def test_files_and_resources_of_a_package_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"content")
    assert read_file(path, purpose="a budget") == b"content"
    assert read_file(files("kgverify").joinpath("py.typed"), purpose="a mark") == b""
    with open_file(path, purpose="a budget") as file:
        assert os.pread(file.fileno(), 3, 1) == b"ont"
        assert file.read() == b"content"


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to("a")
    assert read_file(tmp_path / "b", purpose="a budget") == b"content"


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "circle").symlink_to("circle")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(tmp_path / "socket"))
        kinds = {name: _refused(tmp_path / name).message for name in ("pipe", "link", "circle", "socket", ".", "none")}
    assert "a pipe" in kinds["pipe"]
    assert "a pipe" in kinds["link"]
    assert "a folder" in kinds["."]
    assert all(kinds[name].startswith("cannot be read: ") for name in ("circle", "socket", "none"))
    assert "a device" in _refused(Path("/dev/zero")).message
    assert "NUL" in _refused(tmp_path / "a\0b").message


@pytest.mark.skipif(sys.platform != "linux", reason="these files are Linux's")
@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/kcore", "/proc/self/maps", "/sys/kernel/mm/ksm/run"])
def test_files_that_the_system_makes_are_refused(path: str) -> None:
    if os.access(path, os.R_OK):
        assert "on disk" in _refused(Path(path)).message


def test_long_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"content")
    assert read_file(path, purpose="a budget", max_bytes=7) == b"content"
    assert _refused(path, max_bytes=6).message == "takes 7 bytes, expected at most 6"


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="holes cannot be found on this system")
def test_files_that_are_almost_empty_on_disk_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.write(b"content")
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="almost empty"), open_file(path, purpose="a trace"):
        pass
    honest = bytes(MIN_EXPANDED_BYTES + 1)
    path.write_bytes(honest)
    assert read_file(path, purpose="a trace") == honest


def test_a_dash_is_standard_input_only_where_the_user_may_have_typed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"typed")))
    assert "No such file" in _refused(Path("-")).message
    assert read_file(Path("-"), purpose="a trace", standard_input=True) == b"typed"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"typed")))
    with pytest.raises(UserError, match="more than 4 bytes"):
        read_file(Path("-"), purpose="a trace", standard_input=True, max_bytes=4)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="closed"):
        read_file(Path("-"), purpose="a trace", standard_input=True)


OWN_FILES = {
    "comparison/recorded/evidence.py": "manifests that were read before",
    "conditions/features.py": "a resource of this package",
    "prover/execution/device.py": "the limits of this process, from the system",
    "prover/native/library.py": "resources of this package",
    "prover/faults/plant.py": "a resource of this package",
    "report/render/template.py": "a resource of this package",
    "bench.py": "the processor, from the system",
    "api/versions.py": "the version of torch, from its package",
    "testing/campaigns/campaign.py": "a file that a worker has just written",
}
"""The modules that read files without `kgverify.files`, and which."""


def test_every_input_is_opened_in_one_place() -> None:
    package = Path(str(files("kgverify")))
    opening = re.compile(r"\.read_(text|bytes)\(|\.open\(\"r|np\.load\(|json\.load\(|tomllib\.load\(")
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if opening.search(path.read_text("utf-8"))
    }
    elsewhere = {name for name in found if not name.startswith("files/")}
    assert {name for name in elsewhere if not name.startswith(tuple(OWN_FILES))} == set()
    assert [name for name in OWN_FILES if not any(each.startswith(name) for each in elsewhere)] == []


def test_a_line_of_a_graph_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"a\tb\tc\n" + b"9" * (17 << 20))
    with pytest.raises(UserError, match=r"train\.txt:2: expected a shorter line"):
        read_text(path)
    path.write_bytes(b"a\tb\tc\n" * (3 << 20))
    assert read_text(path).text.count("\n") == 3 << 20
