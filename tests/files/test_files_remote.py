"""Graphs and traces at URLs: the same checks as on disk, and errors that name the URL."""

import threading
from pathlib import Path
from typing import Any

import pytest

import kgverify as kv
from kgverify import UserError
from kgverify.files import remote as remote_files
from kgverify.files.remote import Remote, fetched, find_local, find_remote
from kgverify.files.writing import make_folders, write_file
from kgverify.trace.maintain.check import check_trace

pytest.importorskip("fsspec", reason="kgverify[storage] is not installed")
SMALL: dict[str, Any] = {"queries": 2, "corruptions": 3}


def test_a_graph_is_the_same_at_a_url(store: Any, tmp_path: Path) -> None:
    make_folders(tmp_path / "tiny")
    for name, text in (("train.txt", "p(a,b).\np(b,c).\n"), ("test.txt", "p(a,c).\n"), ("rules.txt", "")):
        store.pipe_file(f"/bucket/tiny/{name}", text.encode())
        write_file(tmp_path / "tiny" / name, text)
    there, here = kv.load_graph("memory://bucket/tiny"), kv.load_graph(tmp_path / "tiny")
    assert (there.name, there.program.sha256) == (here.name, here.program.sha256)
    assert kv.load_graph(f"file://{tmp_path}/tiny").program.sha256 == here.program.sha256
    with pytest.raises(UserError, match="no such file") as caught:
        kv.load_graph("memory://bucket/tin")
    assert caught.value.where == "memory://bucket/tin"


@pytest.mark.parametrize("shard_steps", [1_000_000, 20])
def test_a_trace_is_recorded_checked_and_compared_at_a_url(store: Any, tmp_path: Path, shard_steps: int) -> None:
    kv.record(
        "countries", tmp_path / "a.h5", "reference", **SMALL, options=kv.RecordingOptions(shard_steps=shard_steps)
    )
    for path in ("memory://bucket/a.h5", Path("memory://bucket/a.h5")):
        done = kv.record(
            "countries",
            path,
            "reference",
            **SMALL,
            options=kv.RecordingOptions(shard_steps=shard_steps, overwrite=True),
        )
        assert done.path == "memory://bucket/a.h5"
    with pytest.raises(UserError, match="exists already"):
        kv.record("countries", "memory://bucket/a.h5", "reference", **SMALL)
    here, there = check_trace(tmp_path / "a.h5"), check_trace(Path("memory://bucket/a.h5"))
    assert (there.path, there.state, there.root) == ("memory://bucket/a.h5", "whole", here.root)
    assert len(there.parts) == len(here.parts)
    assert (
        kv.compare(tmp_path / "a.h5", "memory://bucket/a.h5", equality=kv.Equality(minimum="none")).verdict.value
        == "AGREE"
    )


def test_an_altered_object_is_found_and_named(store: Any) -> None:
    kv.record("countries", "memory://bucket/a.h5", "reference", **SMALL, options=kv.RecordingOptions(shard_steps=20))
    content = bytearray(store.cat_file("/bucket/a.h5/shard-00001.h5"))
    content[-9] ^= 1
    store.pipe_file("/bucket/a.h5/shard-00001.h5", bytes(content))
    with pytest.raises(UserError, match=r"altered|damaged") as caught:
        kv.open_trace("memory://bucket/a.h5")
    assert caught.value.where == "memory://bucket/a.h5/shard-00001.h5"


@pytest.mark.parametrize("url", ["https://a/b", "zip://a::s3://b/c", "ssh://a/b"])
def test_other_protocols_are_refused(url: str) -> None:
    with pytest.raises(UserError, match="is not supported"):
        find_remote(url)


@pytest.mark.parametrize("url", ["s3://", "s3://a/../b", "s3://a//b", "memory://a::s3://b"])
def test_what_names_no_object_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="expected a URL"):
        find_remote(url)


def test_a_file_url_is_a_local_path() -> None:
    assert find_local("file:///a/b") == find_local(Path("file:///a/b")) == Path("/a/b")
    with pytest.raises(UserError, match="another machine"):
        find_local("file://host/a")


def test_what_writes_to_the_disk_alone_refuses_a_url() -> None:
    for write in (lambda path: write_file(path, b""), make_folders):
        with pytest.raises(UserError, match="is a URL"):
            write(Path("s3://bucket/a"))


def test_a_copy_is_deleted(store: Any) -> None:
    store.pipe_file("/bucket/a", b"content")
    with fetched("memory://bucket/a") as copy:
        assert copy.read_bytes() == b"content"
    assert not copy.exists()


def find(url: str) -> Remote:
    remote = find_remote(url)
    assert remote is not None
    return remote


@pytest.mark.parametrize("size", [0, 1, 8, 9, 23])
def test_a_large_object_is_copied_in_pieces(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(remote_files, "_PIECE", 8)
    store.pipe_file("/bucket/a", bytes(range(size)))
    assert find("memory://bucket/a").fetch(tmp_path).read_bytes() == bytes(range(size))


@pytest.mark.parametrize("content", [b"12", b"1234"])
def test_an_object_of_another_size_than_was_listed_is_refused(
    store: Any, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pipe_file("/bucket/a", content)
    info = type(store).info
    monkeypatch.setattr(type(store), "info", lambda *arguments, **options: info(*arguments, **options) | {"size": 3})
    with pytest.raises(UserError, match="was replaced"):
        find("memory://bucket/a").fetch(tmp_path)


def test_an_object_that_is_replaced_between_two_pieces_is_refused(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = type(store).cat_file

    def replace(self: Any, key: str, **options: Any) -> bytes:
        found: bytes = read(self, key, **options)
        self.pipe_file(key, b"b" * 12)
        return found

    monkeypatch.setattr(remote_files, "_PIECE", 8)
    store.pipe_file("/bucket/a", b"a" * 12)
    monkeypatch.setattr(type(store), "cat_file", replace)
    with pytest.raises(UserError, match="was replaced"):
        find("memory://bucket/a").fetch(tmp_path)


def make_folder(folder: Path) -> Path:
    make_folders(folder)
    for name in ("a", "b", "manifest"):
        write_file(folder / name, name.encode())
    return folder


def test_files_are_sent_side_by_side_and_the_last_one_alone(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, put, order = threading.Barrier(2), type(store).put_file, []

    def put_together(self: Any, source: str, key: str, **options: Any) -> None:
        if not key.endswith("manifest"):
            # One after the other, they would wait forever.
            together.wait(timeout=20)
        order.append(key[-1])
        put(self, source, key, **options)

    monkeypatch.setattr(type(store), "put_file", put_together)
    remote = find("memory://bucket/run")
    remote.send(make_folder(tmp_path / "run"), last="manifest")
    assert (sorted(order[:2]), order[2:]) == (["a", "b"], ["t"])
    assert remote.list_files() == {"a": 1, "b": 1, "manifest": 8}


def test_after_an_error_the_last_file_is_not_sent(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = type(store).put_file

    def refuse(self: Any, source: str, key: str, **options: Any) -> None:
        if key.endswith("b"):
            raise PermissionError("read only")
        put(self, source, key, **options)

    monkeypatch.setattr(type(store), "put_file", refuse)
    remote = find_remote("memory://bucket/run")
    assert remote is not None
    with pytest.raises(UserError, match="cannot be written"):
        remote.send(make_folder(tmp_path / "run"), last="manifest")
    assert "manifest" not in remote.list_files()
