"""Checking, repairing and joining: every part is judged, intact parts are kept, the original is never lost."""

import json
import shutil

import h5py
import msgspec
import numpy as np
import pytest
from trace_builders import FACTS, HEADER, RANKINGS, SYMBOLS, assert_same_columns, make_columns, open_writer, write_file

from kgverify import UserError
from kgverify.trace.files.manifest import Part, ShardError, lock_trace
from kgverify.trace.maintain import repair as module
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.maintain.join import PartsError, unite
from kgverify.trace.maintain.repair import repair_trace
from kgverify.trace.model.columns import Rankings, select_candidates
from kgverify.trace.read.trace_file import read_trace

COLUMNS = make_columns(11, 60)


def record(path, rows=range(60), *, rankings=RANKINGS, header=HEADER, **options):
    with open_writer(path, header, SYMBOLS, facts=FACTS, **{"shard_steps": 20, **options}) as writer:
        for row in rows:
            writer.append(select_candidates(COLUMNS, np.array([row])))
        if rankings is not None:
            writer.set_rankings(rankings)


@pytest.fixture(scope="module")
def folder_made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "a"
    record(path)
    return path


@pytest.fixture
def folder(folder_made, tmp_path):
    return shutil.copytree(folder_made, tmp_path / "a")


@pytest.fixture
def file(tmp_path):
    write_file(tmp_path / "f", HEADER, SYMBOLS, COLUMNS, RANKINGS, facts=FACTS)
    return tmp_path / "f"


def offset_of(path, name):
    with h5py.File(path) as file:
        return file[name].id.get_offset()


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def rows_of(manifest, index):
    ends = np.cumsum([0, *(shard["num_candidates"] for shard in manifest["shards"])])
    return np.arange(ends[index], ends[index + 1])


def test_a_whole_trace_is_whole_and_needs_no_repair(folder, file):
    for path in (folder, file):
        report = check_trace(path)
        assert (report.state, report.num_candidates) == ("whole", 60)
        assert not any(part.problem for part in report.parts)
        assert report.root == f"{read_trace(path).root:016x}"
        assert not repair_trace(path).is_changed


def test_a_whole_trace_is_no_work_where_no_repair_could_be_written(folder, file, tmp_path):
    (tmp_path / "link").symlink_to(file)
    assert not repair_trace(tmp_path / "link").is_changed
    with lock_trace(folder):
        assert not repair_trace(folder).is_changed
        (folder / "shard-00002.h5").unlink()
        with pytest.raises(UserError, match="this process is writing this trace"):
            repair_trace(folder)


def test_a_damaged_trace_is_checked_once(folder, monkeypatch):
    checked = []
    monkeypatch.setattr(module, "check_trace", lambda path: checked.append(path) or check_trace(path))
    (folder / "shard-00002.h5").unlink()
    assert repair_trace(folder).is_changed
    assert checked == [folder]


def test_every_shard_is_judged(folder):
    flip(folder / "shard-00001.h5", 3000)
    (folder / "shard-00003.h5").unlink()
    report = check_trace(folder)
    assert report.state == "damaged"
    assert [part.name for part in report.parts if part.problem] == ["shard-00001.h5", "shard-00003.h5"]
    with pytest.raises(UserError) as caught:
        read_trace(folder)
    assert "shard-00001.h5" in caught.value.where
    shutil.copy(folder / "shard-00002.h5", folder / "shard-00001.h5")
    with pytest.raises(ShardError) as caught:
        read_trace(folder)
    assert (caught.value.name, caught.value.reason) == ("shard-00001.h5", "misplaced")


def test_a_missing_shard_is_reported_exactly_and_the_others_are_kept(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "shard-00002.h5").unlink()
    report = repair_trace(folder)
    shard = manifest["shards"][2]
    assert [(loss.name, loss.num_candidates, loss.num_steps) for loss in report.losses] == [
        ("shard-00002.h5", shard["num_candidates"], shard["num_steps"])
    ]
    trace = read_trace(folder)
    assert not trace.is_complete
    assert_same_columns(trace.columns, select_candidates(COLUMNS, np.delete(np.arange(60), rows_of(manifest, 2))))
    assert (folder.parent / "a.unrepaired" / "shard-00003.h5").is_file()
    # The second time nothing is left to do.
    assert not repair_trace(folder).is_changed


def test_a_doubled_shard_is_dropped(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    shutil.copy(folder / "shard-00001.h5", folder / "shard-00003.h5")
    (loss,) = repair_trace(folder).losses
    assert (loss.name, loss.num_candidates) == ("shard-00003.h5", manifest["shards"][3]["num_candidates"])
    assert loss.reason
    kept = np.delete(np.arange(60), rows_of(manifest, 3))
    assert_same_columns(read_trace(folder).columns, select_candidates(COLUMNS, kept))


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_a_lost_manifest_is_made_anew_from_the_shards(folder, content):
    if content is None:
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_bytes(content)
    assert check_trace(folder).state == "damaged"
    report = repair_trace(folder)
    assert report.num_candidates == 60
    trace = read_trace(folder)
    # That no further shard was there, nobody can tell.
    assert not trace.is_complete
    assert_same_columns(trace.columns, COLUMNS)


@pytest.mark.parametrize("name", ["candidates/query", "steps/num_resolvents", "header", "resolvents/score"])
def test_nothing_is_kept_of_a_damaged_file_and_nothing_touched(file, name):
    flip(file, offset_of(file, name))
    before = file.read_bytes()
    with pytest.raises(UserError, match="nothing of it can be kept"):
        repair_trace(file)
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["f"]


@pytest.mark.parametrize("has_manifest", [True, False])
def test_no_flipped_bit_becomes_a_wrong_candidate(folder_made, tmp_path, has_manifest):
    for number, at in enumerate(np.random.default_rng(1).integers(0, 20_000, 12).tolist()):
        folder = shutil.copytree(folder_made, tmp_path / str(number))
        shards = json.loads((folder / "manifest.json").read_text())
        shard = number % len(shards["shards"])
        path = folder / shards["shards"][shard]["name"]
        flip(path, at % path.stat().st_size)
        if not has_manifest:
            (folder / "manifest.json").unlink()
        repair_trace(folder)
        columns, kept = read_trace(folder).columns, np.arange(60)
        if has_manifest or len(columns.candidates.query) < 60:
            kept = np.delete(kept, rows_of(shards, shard))
        assert_same_columns(columns, select_candidates(COLUMNS, kept))


def test_pieces_of_a_shard_that_was_written_are_not_kept_beside_it(tmp_path):
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, shard_steps=20, commit_seconds=0)
    partial, pieces = tmp_path / "a.partial", {}
    for row in range(40):
        writer.append(select_candidates(COLUMNS, np.array([row])))
        pieces |= {path.name: path.read_bytes() for path in partial.glob("shard-*-*.h5")}
    listed = {path.name for path in partial.glob("shard-*.h5")}
    assert pieces.keys() - listed
    for name, content in pieces.items():
        (partial / name).write_bytes(content)
    (partial / "manifest.json").write_text("{")
    del writer
    report = repair_trace(partial)
    assert (report.num_candidates, report.is_resumable) == (40, True)
    assert {path.name for path in partial.glob("shard-*.h5")} == listed
    assert_same_columns(read_trace(partial).columns, select_candidates(COLUMNS, np.arange(40)))


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_repair_that_is_killed_between_its_renames_is_finished_by_the_next(folder, monkeypatch, has_exchange):
    num_renames = 0

    def rename(old, new):
        nonlocal num_renames
        if str(old).endswith(".repaired") and (num_renames := num_renames + 1) == 2 - has_exchange:
            raise KeyboardInterrupt
        original(old, new)

    def exchange(first, second):
        raise KeyboardInterrupt if has_exchange else OSError

    (folder / "shard-00002.h5").unlink()
    original = module.os.rename
    with monkeypatch.context() as patch:
        if not has_exchange:
            patch.setattr(module.os, "rename", rename)
        patch.setattr(module, "exchange", exchange)
        with pytest.raises(KeyboardInterrupt):
            repair_trace(folder)
    assert folder.exists() == has_exchange
    repair_trace(folder)
    assert len(read_trace(folder).columns.candidates.query) < 60
    assert (folder.parent / "a.unrepaired").is_dir()


def test_a_full_disk_leaves_the_original_as_it_was(folder, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    (folder / "shard-00002.h5").unlink()
    monkeypatch.setattr(module.os, "link", fail)
    monkeypatch.setattr("kgverify.trace.files.manifest.os.pwritev", fail)
    with pytest.raises(UserError, match=r"No space left on device \(.* bytes free\); nothing was changed"):
        repair_trace(folder)
    assert [p.name for p in folder.parent.iterdir()] == ["a"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_writers_in_any_number_and_order_make_the_same_trace(tmp_path, file, count):
    paths = []
    for index in range(count):
        path = tmp_path / f"part-{index}"
        mine = Rankings(*(column[index::count] for column in RANKINGS))
        record(path, range(59 - index, -1, -count), part=Part(index, count), rankings=mine)
        assert (path / "manifest.json").is_file()
        paths.append(path)
    manifest = unite(paths[::-1], tmp_path / "joined", like=file)
    joined, whole = read_trace(tmp_path / "joined"), read_trace(file)
    assert joined.is_complete
    assert int(manifest.root, 16) == joined.root == whole.root
    assert check_trace(tmp_path / "joined").state == "whole"
    for found, expected in zip(joined.rankings, whole.rankings, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not (tmp_path / "joined.partial").exists()


def test_a_missing_and_a_doubled_part_are_named(tmp_path):
    for index in range(3):
        record(tmp_path / f"p{index}", range(index, 60, 3), part=Part(index, 3), rankings=None)
    with pytest.raises(PartsError, match="part 1 of 3 missing") as caught:
        unite([tmp_path / "p0", tmp_path / "p2"], tmp_path / "out")
    assert (caught.value.missing, caught.value.doubled) == (("part 1 of 3",), ())
    with pytest.raises(PartsError, match=r"part 2 of 3 \(.*p2, .*p2\) doubled"):
        unite([tmp_path / name for name in ("p0", "p1", "p2", "p2")], tmp_path / "out")
    shutil.copytree(tmp_path / "p0", tmp_path / "p3.partial")
    with pytest.raises(PartsError, match="did not finish"):
        unite([tmp_path / "p3.partial"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_a_missing_and_a_doubled_candidate_are_named(tmp_path, file):
    for name, rows in (("a", range(30)), ("b", range(29, 60)), ("c", range(31, 60))):
        record(tmp_path / name, rows, rankings=None, shard_steps=10**6)
    with pytest.raises(PartsError, match="found 1 candidate more than once: query") as caught:
        unite([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    query, atom = COLUMNS.candidates.query[29], COLUMNS.candidates.atom[29].tolist()
    (name,) = caught.value.doubled
    assert name.startswith(f"query {query}, ")
    assert ", ".join(map(str, atom)) in name
    with pytest.raises(PartsError, match="1 missing candidate") as caught:
        unite([tmp_path / "a", tmp_path / "c"], tmp_path / "out", like=file)
    assert caught.value.missing[0].startswith(f"query {COLUMNS.candidates.query[30]}, ")
    assert unite([tmp_path / "a", tmp_path / "c"], tmp_path / "out").num_candidates == 59


def test_traces_of_other_runs_and_rankings_of_one_query_are_not_joined(tmp_path):
    record(tmp_path / "a", range(30))
    record(tmp_path / "b", range(30, 60), header=msgspec.structs.replace(HEADER, creator="x"))
    with pytest.raises(UserError, match="header: differs from that of"):
        unite([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    record(tmp_path / "c", range(30, 60))
    with pytest.raises(PartsError, match="ranked in more than one"):
        unite([tmp_path / "a", tmp_path / "c"], tmp_path / "out")
    unite([tmp_path / "a", tmp_path / "c"], tmp_path / "out", drop_rankings=True)
    assert read_trace(tmp_path / "out").rankings is None


def test_a_part_is_resumed_as_that_part(tmp_path):
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, shard_steps=5, part=Part(0, 2))
    writer.append(COLUMNS)
    del writer
    with pytest.raises(UserError, match=r"part 0 of 2 of a recording, expected part 1 of 2"):
        open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, part=Part(1, 2), resume=True)
    with pytest.raises(UserError, match=r"part 0 of 2 of a recording, expected no part"):
        open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, resume=True)
    with open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, part=Part(0, 2), resume=True):
        pass
    assert read_trace(tmp_path / "a").is_complete
