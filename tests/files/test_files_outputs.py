"""Traces, runs, corpora and evaluations: one writer each, and a full disk leaves what was there."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import kgverify as kv
from kgverify import UserError
from kgverify.files.writing import FOLDER_LOCK, OutputLock, lock_beside
from kgverify.runs.engine_makers import PLAIN
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.trace.maintain.join import unite
from kgverify.trace.maintain.repair import convert_trace, repair_trace
from kgverify.trace.read.trace_file import read_trace


def record(path: Path, queries: int = 1, **options: Any) -> None:
    kv.record(
        "countries",
        path,
        "reference",
        queries=queries,
        corruptions=2,
        options=kv.RecordingOptions(as_reference=True, **options),
    )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    record(folder / "a.h5")
    record(folder / "b.h5", 2)
    record(folder / "shards", 2, shard_steps=9)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_trace_that_another_writes_is_left_to_it(inputs: Path, tmp_path: Path):
    output = tmp_path / "out"
    shutil.copytree(inputs / "shards", tmp_path / "out.partial")
    (tmp_path / "out.partial" / "shard-00001.h5").unlink()
    writers = (
        lambda: record(output),
        lambda: record(output, resume=True),
        lambda: record(output, overwrite=True),
        lambda: convert_trace(inputs / "a.h5", output),
        lambda: unite([inputs / "shards"], output),
        lambda: repair_trace(tmp_path / "out.partial"),
    )
    before = names(tmp_path / "out.partial")
    with lock_beside(output, "this trace"):
        for write in writers:
            with pytest.raises(UserError, match="is writing this trace"):
                write()
    assert names(tmp_path) == ["out.partial"]
    assert names(tmp_path / "out.partial") == before


def test_a_trace_that_another_process_finished_in_the_meantime_is_not_replaced(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original = OutputLock.__init__

    def finish_first(self: OutputLock, path: Path, output: Path, *arguments: object, **options: object) -> None:
        shutil.copyfile(inputs / "b.h5", output)
        original(self, path, output, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(OutputLock, "__init__", finish_first)
    with pytest.raises(UserError, match="already exists"):
        record(tmp_path / "out.h5")
    assert read_trace(tmp_path / "out.h5").root == read_trace(inputs / "b.h5").root
    assert names(tmp_path) == ["out.h5"]


@pytest.mark.parametrize("name", ["out.h5", "out.h5.partial", ".out.h5.lock"])
def test_a_recording_follows_no_link(inputs: Path, tmp_path: Path, name: str):
    (tmp_path / "victim").mkdir()
    shutil.copyfile(inputs / "a.h5", tmp_path / "victim" / "file")
    before = (tmp_path / "victim" / "file").read_bytes()
    for target in ("victim", "victim/file", "victim/new"):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(UserError, match="is a link, which is not followed"):
            record(tmp_path / "out.h5", 2, overwrite=True)
        assert names(tmp_path / "victim") == ["file"]
        (tmp_path / name).unlink()
    assert (tmp_path / "victim" / "file").read_bytes() == before


def test_a_planted_shard_is_not_written_to(inputs: Path, tmp_path: Path):
    (tmp_path / "out.h5.partial").mkdir()
    (tmp_path / "victim").write_text("")
    os.link(tmp_path / "victim", tmp_path / "out.h5.partial" / "shard-00000.h5")
    options = kv.RecordingOptions(shard_steps=1, resume=True)
    kv.record("countries", tmp_path / "out.h5", "reference", queries=1, corruptions=1, options=options)
    assert (tmp_path / "victim").read_text() == ""


def test_folders_that_another_writes_are_left_to_it(inputs: Path, tmp_path: Path):
    for write in (
        lambda: kv.compare(inputs / "a.h5", inputs / "b.h5", save=tmp_path / "out"),
        lambda: kv.verify("countries", "reference", queries=1, corruptions=1, save=tmp_path / "out"),
        lambda: run_campaign(Campaign(corpus=tmp_path / "out", engine=PLAIN, examples=1)),
        lambda: kv.evaluate("countries", "reference", queries=1, corruptions=1, save=tmp_path / "out"),
    ):
        (tmp_path / "out").mkdir(exist_ok=True)
        with OutputLock(tmp_path / "out" / FOLDER_LOCK, tmp_path / "out", "it"), pytest.raises(UserError) as caught:
            write()
        assert "is writing this" in caught.value.message
        assert "wait until it ends" in caught.value.fix
        assert names(tmp_path / "out") == []
    assert names(tmp_path) == ["out"]
