"""Shards: committed is committed, unfinished is unfinished, and resuming leaves no seam."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from trace_builders import (
    FACTS,
    HEADER,
    RANKINGS,
    SYMBOLS,
    assert_same_columns,
    assert_same_trace,
    make_columns,
    open_writer,
    write_file,
)

from kgverify import UserError
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.files import manifest as module
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.digests import compute_sequence, root_digest
from kgverify.trace.model.schema import SEQUENCE
from kgverify.trace.read.trace_file import TraceFile, check_same_run, read_trace
from kgverify.trace.write.writer import _root_of

COLUMNS = make_columns(11, 60)


def append_from(writer, start=0, stop=60):
    for i in range(start, stop, 3):
        writer.append(select_candidates(COLUMNS, np.arange(i, min(i + 3, stop))))


def record(path, **options):
    with open_writer(path, HEADER, SYMBOLS, facts=FACTS, shard_steps=20, **options) as writer:
        append_from(writer, writer.num_committed)
        writer.set_rankings(RANKINGS)


def leave_unfinished(path, stop=40):
    def interrupted():
        with open_writer(path, HEADER, SYMBOLS, facts=FACTS, shard_steps=20) as writer:
            append_from(writer, stop=stop)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_shards_read_as_one_file_does(tmp_path):
    record(tmp_path / "many")
    write_file(tmp_path / "one", HEADER, SYMBOLS, COLUMNS, RANKINGS, facts=FACTS)
    assert len(list((tmp_path / "many").glob("shard-*.h5"))) > 3
    assert_same_trace(read_trace(tmp_path / "many"), read_trace(tmp_path / "one"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["many", "one"]


def test_a_recording_interrupted_before_its_first_shard_is_not_complete(tmp_path):
    leave_unfinished(tmp_path / "a", stop=3)
    partial = tmp_path / "a.partial"
    assert [path.name for path in partial.glob("shard-*.h5")] == ["shard-00000-00000.h5"]
    trace = read_trace(partial)
    assert (trace.source, trace.is_complete) == (str(partial), False)
    assert_same_columns(trace.columns, select_candidates(COLUMNS, np.arange(3)))


def test_the_root_of_a_shard_in_parts_is_that_of_all_its_steps():
    for num in range(2, 12):
        parts = [select_candidates(COLUMNS, np.array([row])) for row in range(num)]
        arrays = [{**KNOWLEDGE_GRAPH.encode(part), SEQUENCE: compute_sequence(part)} for part in parts]
        whole = select_candidates(COLUMNS, np.arange(num))
        root = root_digest(whole.candidates, compute_sequence(whole))
        assert _root_of({name: [each[name] for each in arrays] for name in arrays[0]}) == root


@pytest.mark.parametrize("num_blocks", range(2, 9))
def test_the_root_of_a_file_read_in_blocks_is_that_of_all_its_steps(tmp_path, monkeypatch, num_blocks):
    rows = np.flatnonzero(COLUMNS.candidates.num_steps == 3)[:num_blocks]
    assert len(rows) == num_blocks
    monkeypatch.setattr("kgverify.trace.read.data_file.BLOCK_STEPS", 3)
    write_file(tmp_path / "a", HEADER, SYMBOLS, select_candidates(COLUMNS, rows))
    (file,) = TraceFile(tmp_path / "a").files
    assert len(list(file.split())) == num_blocks
    assert file.verify_content() == read_trace(tmp_path / "a").root


def test_the_manifest_is_compared_with_the_content_of_shards(folder):
    trace = TraceFile(folder)
    trace.verify_content()
    (shard, *others) = trace.shards
    trace.shards = (msgspec.structs.replace(shard, root="0" * 16), *others)
    with pytest.raises(UserError, match="root is"):
        trace.verify_content()


def test_the_manifest_is_compared_with_the_checksums_of_shards(folder):
    edit_manifest(folder, lambda manifest: manifest["shards"][1].update(xxh3="0" * 16))
    for read in (read_trace, TraceFile):
        with pytest.raises(UserError, match="expected 0000000000000000 from the manifest"):
            read(folder)


def test_the_first_of_several_differences_between_shards_is_named():
    def make(number):
        stored = {f"program/{each:02}": SimpleNamespace(checksum=number) for each in range(1, 40)}
        stored["program/00"] = SimpleNamespace(checksum=0)
        return SimpleNamespace(stored=stored, path=Path("a"), has_names=True)

    check_same_run(make(1), make(1))
    with pytest.raises(UserError, match="a:program/01: differs from that of a"):
        check_same_run(make(1), make(2))


def test_a_batch_of_wrong_values_that_fills_a_shard_is_refused(tmp_path):
    wrong = COLUMNS._replace(candidates=COLUMNS.candidates._replace(outcome=COLUMNS.candidates.outcome + np.int8(4)))
    with open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, shard_steps=1) as writer:
        with pytest.raises(UserError, match="expected a code of Outcome"):
            writer.append(wrong, compute_sequence(COLUMNS))
        writer.append(COLUMNS)
    assert_same_columns(read_trace(tmp_path / "a").columns, COLUMNS)


def test_closing_twice_writes_once(tmp_path):
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, shard_steps=20)
    append_from(writer)
    writer.close()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    writer.close()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_each_recording_in_shards_has_its_own_name(tmp_path, whole):
    record(tmp_path / "a")
    write_file(tmp_path / "one", HEADER, SYMBOLS, COLUMNS, RANKINGS, facts=FACTS)
    names = [read_trace(tmp_path / name).header.recording for name in ("a", "one")]
    assert len({*names, whole.header.recording}) == 3
    assert names[1] == ""


def test_a_single_shard_is_not_complete(tmp_path):
    record(tmp_path / "a")
    names = sorted((tmp_path / "a").glob("shard-*.h5"))
    parts = [read_trace(name) for name in names]
    assert not any(part.is_complete for part in parts)
    assert sum(part.root for part in parts) % (1 << 64) == read_trace(tmp_path / "a").root
    assert [part.rankings is not None for part in parts] == [False] * (len(parts) - 1) + [True]


def test_an_error_leaves_the_committed_shards_and_nothing_at_the_path(tmp_path):
    leave_unfinished(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    trace = read_trace(tmp_path / "a.partial")
    num = len(trace.columns.candidates.query)
    assert not trace.is_complete
    assert 0 < num <= 40
    assert_same_columns(trace.columns, select_candidates(COLUMNS, np.arange(num)))
    with pytest.raises(UserError, match=r"no such trace\nfix: .* resume it, or read .*a\.partial"):
        read_trace(tmp_path / "a")


def test_a_resumed_recording_is_the_uninterrupted_one(tmp_path):
    record(tmp_path / "whole")
    leave_unfinished(tmp_path / "a")
    with pytest.raises(UserError, match=r"in the way\nfix: resume it, or delete"):
        record(tmp_path / "a")
    record(tmp_path / "a", resume=True)
    assert not (tmp_path / "a.partial").exists()
    actual, expected = read_trace(tmp_path / "a"), read_trace(tmp_path / "whole")
    assert_same_trace(actual, expected)


def test_every_shard_of_a_resumed_recording_has_the_id_with_which_it_began(tmp_path):
    leave_unfinished(tmp_path / "a")
    began = read_trace(tmp_path / "a.partial").header.recording
    record(tmp_path / "a", resume=True)
    ids = {read_trace(path).header.recording for path in (tmp_path / "a").glob("shard-*.h5")}
    assert ids == {began}
    assert began


def test_resuming_nothing_records_from_the_start(tmp_path):
    record(tmp_path / "a", resume=True)
    assert read_trace(tmp_path / "a").is_complete
    (tmp_path / "b.partial").mkdir()
    record(tmp_path / "b", resume=True)
    assert_same_trace(read_trace(tmp_path / "b"), read_trace(tmp_path / "a"))


@pytest.mark.parametrize(
    ("header", "symbols", "facts", "absent", "place"),
    [
        (msgspec.structs.replace(HEADER, program_sha256="0" * 64), SYMBOLS, FACTS, (), "header"),
        (HEADER, type(SYMBOLS)(SYMBOLS.predicates, (*SYMBOLS.constants, "x")), FACTS, (), "symbols/constants"),
        (HEADER, SYMBOLS, FACTS[::-1], (), "program/facts"),
        (HEADER, SYMBOLS, None, (), "program/facts"),
        (HEADER, SYMBOLS, FACTS, ("resolvents.score",), "resolvents.score"),
    ],
)
def test_another_run_cannot_be_resumed(tmp_path, header, symbols, facts, absent, place):
    leave_unfinished(tmp_path / "a")
    with pytest.raises(UserError, match="resume with the same") as caught:
        open_writer(tmp_path / "a", header, symbols, facts=facts, absent=absent, resume=True)
    assert place in str(caught.value)


def test_damaged_shards_cannot_be_resumed(tmp_path):
    leave_unfinished(tmp_path / "a")
    shard = tmp_path / "a.partial" / "shard-00001.h5"
    content = bytearray(shard.read_bytes())
    content[3000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=r"the data were altered|cut off or damaged"):
        record(tmp_path / "a", resume=True)


def test_a_recording_killed_before_its_last_rename_is_finished_by_resuming(tmp_path, monkeypatch):
    def fail(new, path):
        if new.suffix == ".partial":
            raise KeyboardInterrupt
        original(new, path)

    original = module.put_in_place
    record(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("kgverify.trace.write.writer.put_in_place", fail)
        with pytest.raises(KeyboardInterrupt):
            record(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert not read_trace(tmp_path / "a.partial").is_complete
    record(tmp_path / "a", resume=True)
    assert_same_trace(read_trace(tmp_path / "a"), read_trace(tmp_path / "whole"))


KILLED = """
import os, signal, sys
import numpy as np
sys.path[:0] = {paths!r}
from trace_builders import *
from kgverify.trace.model.columns import (select_candidates)

from kgverify.trace.files import manifest
from kgverify.trace.write import writer as module

countdown = {countdown}
def counted(function):
    def call(*arguments, **options):
        global countdown
        countdown -= 1
        if countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

# Every operation that touches the disk may be the last.
module.write_arrays = counted(module.write_arrays)
os.fsync, os.open = counted(os.fsync), counted(os.open)
manifest.Path.replace = counted(manifest.Path.replace)
manifest.Path.rename = counted(manifest.Path.rename)
manifest.write_all = counted(manifest.write_all)
columns = make_columns(11, 60)
with open_writer({path!r}, HEADER, SYMBOLS, facts=FACTS, shard_steps=20) as writer:
    for i in range(0, 60, 3):
        writer.append(select_candidates(columns, np.arange(i, i + 3)))
        print(writer.num_committed, flush=True)
    writer.set_rankings(RANKINGS)
"""


@pytest.mark.sample(3, deep=12)
@pytest.mark.parametrize(
    ("countdown", "has_old"),
    [(n, False) for n in (1, 2, 4, 6, 7, 8, 9, 10, 11, 17, 30, 44)]
    + [(n, old) for n in range(98, 107) for old in (False, True)],
)
def test_a_killed_writer_loses_nothing_committed(tmp_path, whole, countdown, has_old):
    path = tmp_path / "a"
    if has_old:
        shutil.copytree(whole.source, path)
    code = KILLED.format(
        paths=[str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)],
        countdown=countdown,
        path=str(path),
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        assert countdown > 104
        assert_same_trace(read_trace(path), whole)
        return
    assert done.returncode == -signal.SIGKILL, done.stderr
    num_told = int(done.stdout.split()[-1]) if done.stdout.split() else 0
    partial = tmp_path / "a.partial"
    if path.exists():
        # The old trace, untouched, or the new one after the last rename.
        assert_same_trace(read_trace(path), whole)
    if (partial / "manifest.json").exists():
        trace = read_trace(partial)
        num = len(trace.columns.candidates.query)
        assert not trace.is_complete
        assert num >= num_told
        assert_same_columns(trace.columns, select_candidates(COLUMNS, np.arange(num)))
    else:
        assert num_told == 0 or path.exists()
    record(path, resume=True)
    assert_same_trace(read_trace(path), whole)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "whole"
    record(path)
    return read_trace(path)


def test_a_folder_is_replaced_by_a_folder_and_by_a_file(tmp_path):
    path = tmp_path / "a"
    record(path)
    write_file(path, HEADER, SYMBOLS, COLUMNS)
    assert path.is_file()
    record(path)
    assert path.is_dir()
    record(path)
    assert read_trace(path).is_complete
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def refuse(path, match):
    with pytest.raises(UserError, match=match) as caught:
        read_trace(path)
    assert caught.value.where.startswith(str(path))
    assert caught.value.fix


def edit_manifest(path, change):
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def folder(tmp_path, whole):
    shutil.copytree(whole.source, tmp_path / "a")
    return tmp_path / "a"


def test_files_that_the_manifest_does_not_list_are_ignored(folder, whole):
    (folder / "shard-99999.h5").write_bytes(b"left by a kill")
    assert_same_trace(read_trace(folder), whole)


def test_a_missing_shard(folder):
    (folder / "shard-00002.h5").unlink()
    refuse(folder, "missing, expected because the manifest lists it")


def test_a_missing_last_shard_that_the_manifest_forgets(folder):
    edit_manifest(folder, lambda m: m["shards"].pop())
    refuse(folder, "but its shards add up to")


def test_a_doubled_shard(folder):
    shutil.copy(folder / "shard-00001.h5", folder / "shard-00002.h5")
    refuse(folder, r"found \[1\], expected \[2\]")
    edit_manifest(folder, lambda m: m["shards"].__setitem__(2, m["shards"][1]))
    refuse(folder, "named 'shard-00001.h5', expected a number above that of the shard before")

    def complete_forgery(m):
        m["shards"][2] = m["shards"][1] | {"name": "shard-00002.h5"}
        m["root"] = f"{sum(int(s['root'], 16) for s in m['shards']) % (1 << 64):016x}"
        for name in ("num_candidates", "num_steps"):
            m[name] = sum(s[name] for s in m["shards"])

    edit_manifest(folder, complete_forgery)
    refuse(folder, r"found \[1\], expected \[2\]")
    with pytest.raises(UserError, match=r"shard-00002\.h5 states that it is shard-00001\.h5"):
        TraceFile(folder)


@pytest.mark.parametrize("name", ["num_candidates", "num_steps", "root"])
def test_counts_of_a_shard_are_verified(folder, name):
    def forge(m):
        shard = m["shards"][1]
        if name == "root":
            shard["root"] = "0" * 16
            m["root"] = f"{sum(int(s['root'], 16) for s in m['shards']) % (1 << 64):016x}"
        else:
            shard[name] += 1
            m[name] += 1

    edit_manifest(folder, forge)
    refuse(folder, "from the manifest")


def test_shards_of_another_run(folder, tmp_path):
    header = msgspec.structs.replace(HEADER, creator="other")
    with open_writer(tmp_path / "other", header, SYMBOLS, facts=FACTS, shard_steps=20) as writer:
        append_from(writer)
    other = json.loads((tmp_path / "other" / "manifest.json").read_text())["shards"][1]
    shutil.copy(tmp_path / "other" / "shard-00001.h5", folder / "shard-00001.h5")
    edit_manifest(folder, lambda m: m["shards"].__setitem__(1, other))
    refuse(folder, "header: differs from that of shard-00000.h5")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "x"}, "format is 'x'"),
        ({"schema_version": 3}, "schema version is 3, expected 4"),
        ({"shards": "none"}, "not a manifest"),
        ({"is_complete": 1}, "not a manifest"),
        ({"num_steps": 0}, "add up"),
        ({"shards": [], "num_steps": 0, "num_candidates": 0, "root": "0" * 16}, "lists no shard"),
    ],
)
def test_an_invalid_manifest(folder, change, match):
    edit_manifest(folder, lambda m: m.update(change))
    refuse(folder, match)


def test_a_shard_outside_the_folder_is_not_read(folder):
    edit_manifest(folder, lambda m: m["shards"][0].update(name="../../etc/passwd"))
    refuse(folder, "expected a name such as 'shard-00000.h5'")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_manifest_of_junk(folder, content):
    (folder / "manifest.json").write_bytes(content)
    refuse(folder, "not a manifest")
