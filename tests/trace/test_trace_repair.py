"""Checking, repairing and joining: every part is judged, intact parts are kept, the original is never lost."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest
import trace_builders as traces

import kgverify as kv
from kgverify import Part, Rankings, UserError

COLUMNS = traces.make_columns(11, 60)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    traces.write_shards(folder / "a", COLUMNS, traces.RANKINGS)
    traces.write_file(folder / "f", COLUMNS, traces.RANKINGS)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "a", tmp_path / "a")


@pytest.fixture
def file(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "f", tmp_path / "f"))


def shards_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "manifest.json").read_text())["shards"]


def rows_of(shards: list[dict[str, Any]], index: int) -> list[int]:
    begin = sum(shard["num_candidates"] for shard in shards[:index])
    return list(range(begin, begin + shards[index]["num_candidates"]))


def assert_kept(path: Path, lost: list[int] = []) -> None:  # noqa: B006
    traces.assert_same_columns(traces.read(path).columns, traces.take(COLUMNS, np.delete(np.arange(60), lost)))


def test_a_whole_trace_is_whole_and_needs_no_repair(folder, file, tmp_path):
    (tmp_path / "link").symlink_to(file)
    for path in (folder, file):
        report = traces.run("check", path)
        assert (report["code"], report["state"], report["num_candidates"]) == (0, "whole", 60)
        assert not any(part["problem"] for part in report["parts"])
        assert report["root"] == f"{traces.read(path).root:016x}"
    for path in (folder, file, tmp_path / "link"):
        assert not traces.run("repair", path)["is_changed"]
    assert kv.open_trace(folder).fields == kv.open_trace(file).fields
    assert traces.run("check", folder / "shard-00000.h5")["state"] == "unfinished"
    # A trace that is being written is not repaired.
    writer = traces.open_writer(folder)
    assert not traces.run("repair", folder)["is_changed"]
    (folder / "shard-00002.h5").unlink()
    with pytest.raises(UserError, match="this process is writing this trace"):
        traces.run("repair", folder)
    del writer


def test_a_complete_trace_without_a_shard_is_damaged(folder):
    traces.edit_manifest(folder, is_complete=True, shards=[], num_candidates=0, num_steps=0, root="0" * 16)
    report = traces.run("check", folder)
    assert (report["code"], report["state"]) == (1, "damaged")
    assert "lists no shard" in report["parts"][0]["problem"]


def test_every_shard_is_judged(folder):
    traces.flip(folder / "shard-00001.h5", 3000)
    (folder / "shard-00003.h5").unlink()
    report = traces.run("check", folder)
    assert (report["code"], report["state"]) == (1, "damaged")
    assert [part["name"] for part in report["parts"] if part["problem"]] == ["shard-00001.h5", "shard-00003.h5"]
    with pytest.raises(UserError) as caught:
        traces.read(folder)
    assert "shard-00001.h5" in caught.value.where
    shutil.copy(folder / "shard-00002.h5", folder / "shard-00001.h5")
    with pytest.raises(UserError, match=r"found \[2\], expected \[1\]"):
        traces.read(folder)


@pytest.mark.parametrize("damage", ["missing", "doubled"])
def test_the_loss_of_a_shard_is_reported_exactly_and_the_others_are_kept(folder, damage):
    shards, name = shards_of(folder), "shard-00002.h5"
    if damage == "missing":
        (folder / name).unlink()
    else:
        shutil.copy(folder / "shard-00001.h5", folder / name)
    report = traces.run("repair", folder)
    (loss,) = report["losses"]
    assert report["code"] == 1
    assert [loss[key] for key in ("name", "num_candidates", "num_steps")] == [
        shards[2][key] for key in ("name", "num_candidates", "num_steps")
    ]
    assert loss["reason"]
    assert not traces.read(folder).is_complete
    assert_kept(folder, rows_of(shards, 2))
    assert report["original"] == str(folder.parent / "a.unrepaired")
    assert (folder.parent / "a.unrepaired" / "shard-00003.h5").is_file()
    # The second time nothing is left to do.
    assert not traces.run("repair", folder)["is_changed"]


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_a_lost_manifest_is_made_anew_from_the_shards(folder, content):
    if content is None:
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_bytes(content)
    assert traces.run("check", folder)["state"] == "damaged"
    assert traces.run("repair", folder)["num_candidates"] == 60
    # Nobody can tell whether there was a further shard.
    assert not traces.read(folder).is_complete
    assert_kept(folder)


def test_a_shard_under_another_number_is_a_loss_if_the_manifest_is_lost(folder):
    shards = shards_of(folder)
    (folder / "manifest.json").unlink()
    (folder / shards[-1]["name"]).rename(folder / "shard-00090.h5")
    losses = traces.run("repair", folder)["losses"]
    assert [loss["name"] for loss in losses] == ["manifest.json", "shard-00090.h5"]
    assert_kept(folder, rows_of(shards, len(shards) - 1))


def test_a_trace_with_a_gap_cannot_be_resumed_after_another_repair(folder):
    partial = folder.rename(folder.with_name("a.partial"))
    for name in ("shard-00001.h5", shards_of(partial)[-1]["name"]):
        (partial / name).unlink()
        report = traces.run("repair", partial)
        assert (report["is_changed"], report["is_resumable"]) == (True, False)


@pytest.mark.parametrize("name", ["candidates/query", "header", "resolvents/score"])
def test_nothing_is_kept_of_a_damaged_file_and_nothing_is_changed(file, name):
    with h5py.File(file) as stored:
        offset = stored[name].id.get_offset()
    traces.flip(file, offset)
    before = file.read_bytes()
    with pytest.raises(UserError, match="nothing of it can be kept"):
        traces.run("repair", file)
    assert file.read_bytes() == before
    assert [each.name for each in file.parent.iterdir()] == ["f"]


@pytest.mark.parametrize("has_manifest", [True, False])
def test_no_flipped_bit_becomes_a_wrong_candidate(made, tmp_path, has_manifest):
    shards = shards_of(made / "a")
    for number, at in enumerate(np.random.default_rng(1).integers(0, 20_000, 3).tolist()):
        folder = shutil.copytree(made / "a", tmp_path / str(number))
        index = number % len(shards)
        path = folder / shards[index]["name"]
        traces.flip(path, at % path.stat().st_size)
        if not has_manifest:
            (folder / "manifest.json").unlink()
        num_kept = traces.run("repair", folder)["num_candidates"]
        assert_kept(folder, rows_of(shards, index) if has_manifest or num_kept < 60 else [])


def test_pieces_of_a_shard_that_was_written_are_not_kept_beside_it(tmp_path):
    writer = traces.open_writer(tmp_path / "a", shard_steps=20, commit_seconds=0)
    partial, pieces = tmp_path / "a.partial", {}
    for row in range(0, 40, 2):
        writer.append(traces.rows(COLUMNS, row, row + 2))
        pieces |= {path.name: path.read_bytes() for path in partial.glob("shard-*-*.h5")}
    listed = {path.name for path in partial.glob("shard-*.h5")}
    assert pieces.keys() - listed
    for name, content in pieces.items():
        (partial / name).write_bytes(content)
    (partial / "manifest.json").write_text("{")
    del writer
    report = traces.run("repair", partial)
    assert (report["num_candidates"], report["is_resumable"]) == (40, True)
    assert {path.name for path in partial.glob("shard-*.h5")} == listed
    traces.assert_same_columns(traces.read(partial).columns, traces.rows(COLUMNS, 40))


def test_a_full_disk_leaves_the_original_as_it_was(folder, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    (folder / "shard-00002.h5").unlink()
    monkeypatch.setattr("os.link", fail)
    monkeypatch.setattr("os.pwritev", fail)
    with pytest.raises(UserError, match=r"No space left on device \(.* bytes free\); nothing was changed"):
        traces.run("repair", folder)
    assert [each.name for each in folder.parent.iterdir()] == ["a"]


# Joining.


@pytest.mark.parametrize("count", [1, 3])
def test_writers_in_any_number_and_order_make_the_same_trace(tmp_path, file, count):
    paths = [tmp_path / f"part-{index}" for index in range(count)]
    for index, path in enumerate(paths):
        mine = Rankings(*(column[index::count] for column in traces.RANKINGS))
        traces.write_shards(path, traces.take(COLUMNS, range(59 - index, -1, -count)), mine, part=Part(index, count))
    manifest = traces.run("join", *paths[::-1], "-o", tmp_path / "joined")
    joined, whole = traces.read(tmp_path / "joined"), traces.read(file)
    assert joined.is_complete
    assert int(manifest["root"], 16) == joined.root == whole.root
    assert traces.run("check", tmp_path / "joined")["state"] == "whole"
    for found, expected in zip(joined.rankings, whole.rankings, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not (tmp_path / "joined.partial").exists()


@pytest.mark.parametrize(("level", "is_archived"), [("digests", False), ("steps", True)])
def test_what_is_joined_keeps_its_level_and_packing(tmp_path, level, is_archived):
    options = {
        "level": level,
        "is_archived": is_archived,
        "header": msgspec.structs.replace(traces.HEADER, recording="same"),
    }
    whole = traces.write_file(tmp_path / "whole", COLUMNS, **options)
    for name, bounds in (("a", (0, 20)), ("b", (20, 60))):
        traces.write_file(tmp_path / name, traces.rows(COLUMNS, *bounds), **options)
    traces.run("join", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "joined")
    joined = traces.read(tmp_path / "joined")
    assert (joined.root, joined.fields, joined.header) == (whole.root, whole.fields, whole.header)
    with h5py.File(tmp_path / "joined" / "shard-00000.h5") as file:
        assert (file["candidates/query"].fletcher32) == is_archived


def test_missing_and_doubled_parts_and_candidates_and_other_runs_are_named(tmp_path):
    def record(name: str, *bounds: int, rankings: Rankings | None = None, **options: Any) -> None:
        traces.write_shards(tmp_path / name, traces.rows(COLUMNS, *bounds), rankings, 60, shard_steps=10**6, **options)

    for index in range(3):
        record(f"p{index}", index, 60, 3, part=Part(index, 3))
    traces.write_shards(tmp_path / "p3", traces.rows(COLUMNS, 0, 60, 3), part=Part(0, 3))
    (tmp_path / "p3").rename(tmp_path / "p3.partial")
    record("p4", 0, 60, 3, part=Part(5, 2**30))
    for name, begin, end in (("a", 0, 30), ("b", 29, 60), ("c", 31, 60), ("d", 30, 60)):
        record(name, begin, end, rankings=traces.RANKINGS if name in "ad" else None)
    record("e", 30, 60, header=msgspec.structs.replace(traces.HEADER, creator="x"))
    doubled = f"query {COLUMNS.candidates.query[29]}, "
    atom = ", ".join(map(str, COLUMNS.candidates.atom[29]))
    for names, match in {
        ("p0", "p2"): "rank 1 of 3 has no trace",
        ("p0", "p1", "p2", "p2"): "found 20 candidates more than once: ",
        ("p0", "p1", "p2", "a"): r"the traces of the processes of one recording, found .*p0 .*, .*a \(no rank\)",
        ("p3.partial",): "is not complete: resume",
        ("p4",): "rank 0 of 1073741824 has no trace",
        ("a", "b"): rf"found 1 candidate more than once: {doubled}.*{atom}",
        ("a", "e"): "header: differs in creator from that of",
        ("a", "d"): "ranked in more than one",
    }.items():
        with pytest.raises(UserError, match=f"(?s){match}"):
            traces.run("join", *(tmp_path / each for each in names), "-o", tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.partial").exists()
    assert traces.run("join", tmp_path / "a", tmp_path / "c", "-o", tmp_path / "out")["num_candidates"] == 59
    traces.run("join", tmp_path / "a", tmp_path / "d", "-o", tmp_path / "both", "--drop-rankings")
    assert traces.read(tmp_path / "both").rankings is None
