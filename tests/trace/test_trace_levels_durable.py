"""Levels and packings with pieces, repair, joining and conversion: whatever was appended is there again, at its level."""

import errno
import itertools
from contextlib import suppress

import numpy as np
import pytest
from trace_builders import FACT_LINES, FACTS, HEADER, RULES, SYMBOLS, make_columns, open_writer, write_file

from kgverify import UserError
from kgverify.trace.files.manifest import partial_of
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.maintain.join import unite
from kgverify.trace.maintain.repair import convert_trace, repair_trace
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import read_trace

COLUMNS = make_columns(5, 24)
CASES = list(itertools.product(("digests", "compact", "steps"), (False, True)))
OPTIONS = {"facts": FACTS, "fact_lines": FACT_LINES, "rules": RULES}


class Killed(Exception):
    pass


def part(low, high):
    return select_candidates(COLUMNS, np.arange(low, high))


def write_whole(path, level, is_archived, columns=COLUMNS):
    write_file(path, HEADER, SYMBOLS, columns, level=level, is_archived=is_archived, **OPTIONS)
    return read_trace(path)


def leave_unfinished(path, level, is_archived, has_shard=True):
    """A recording that was stopped after one piece or none, and two more batches."""
    options = OPTIONS | {"level": level, "is_archived": is_archived}
    with suppress(Killed), open_writer(path, HEADER, SYMBOLS, **options) as writer:
        writer.append(part(0, 10))
        if has_shard:
            writer.commit()
        writer.append(part(10, 15))
        writer.append(part(15, 20))
        raise Killed
    return options


@pytest.mark.sample(4)
@pytest.mark.parametrize("has_shard", [True, False])
@pytest.mark.parametrize(("level", "is_archived"), CASES)
def test_a_killed_recording_is_read_and_resumed(tmp_path, level, is_archived, has_shard):
    whole = write_whole(tmp_path / "whole.h5", level, is_archived)
    path = tmp_path / "t.h5"
    options = leave_unfinished(path, level, is_archived, has_shard)
    found = read_trace(partial_of(path))
    assert (len(found.columns.candidates.query), found.fields, found.is_complete) == (20, whole.fields, False)
    assert check_trace(partial_of(path)).state == "unfinished"
    with open_writer(path, HEADER, SYMBOLS, resume=True, **options) as writer:
        assert writer.num_appended == 20
        writer.append(part(20, 24))
    assert (read_trace(path).root, read_trace(path).fields) == (whole.root, whole.fields)
    assert check_trace(path).state == "whole"


@pytest.mark.parametrize(("level", "is_archived"), CASES)
def test_a_torn_recording_is_repaired_at_its_level(tmp_path, level, is_archived):
    path = tmp_path / "t.h5"
    options = leave_unfinished(path, level, is_archived)
    partial = partial_of(path)
    (partial / "shard-00001.h5.tmp").write_bytes(b"cut off")
    report = repair_trace(partial)
    assert (report.is_changed, report.num_candidates, report.losses, report.is_resumable) == (False, 20, (), True)
    last = partial / "shard-00000-00001.h5"
    last.write_bytes(last.read_bytes()[:-9])
    report = repair_trace(partial)
    assert (report.is_changed, report.num_candidates, report.is_resumable) == (True, 10, True)
    assert [(loss.name, loss.num_candidates) for loss in report.losses] == [(last.name, 10)]
    assert [DataFile(shard).is_archived for shard in sorted(partial.glob("*.h5"))] == [is_archived]
    with open_writer(path, HEADER, SYMBOLS, resume=True, **options) as writer:
        writer.append(part(10, 24))
    assert read_trace(path).root == write_whole(tmp_path / "whole.h5", level, is_archived).root


@pytest.mark.parametrize(("level", "is_archived"), CASES)
def test_an_unfinished_recording_is_converted_with_its_pieces(tmp_path, level, is_archived):
    path, target = tmp_path / "t.h5", tmp_path / "c.partial"
    leave_unfinished(path, "steps", False)
    done = convert_trace(partial_of(path), target, TraceLevel(level), is_archived=is_archived)
    assert done.num_candidates == 20
    assert read_trace(target).root == read_trace(partial_of(path)).root


@pytest.mark.parametrize(("level", "is_archived"), CASES)
def test_what_is_joined_keeps_its_level_and_packing(tmp_path, level, is_archived):
    whole = write_whole(tmp_path / "whole.h5", level, is_archived)
    bounds = (0, 9), (9, 24)
    for i, (low, high) in enumerate(bounds):
        write_whole(tmp_path / f"{i}.h5", level, is_archived, part(low, high))
    unite([tmp_path / "0.h5", tmp_path / "1.h5"], tmp_path / "joined")
    joined = read_trace(tmp_path / "joined")
    assert (joined.root, joined.fields, joined.header) == (whole.root, whole.fields, whole.header)
    assert DataFile(tmp_path / "joined" / "shard-00000.h5").is_archived == is_archived


@pytest.mark.parametrize(("level", "is_archived"), CASES)
def test_a_full_disk_leaves_what_was_appended(tmp_path, level, is_archived, monkeypatch):
    path = tmp_path / "t.h5"
    options = OPTIONS | {"level": level, "is_archived": is_archived}
    writer = open_writer(path, HEADER, SYMBOLS, **options)
    writer.append(part(0, 20))
    writer.commit()
    writer.append(part(20, 22))
    with monkeypatch.context() as patch:
        patch.setattr("kgverify.trace.files.manifest.os.pwritev", fail)
        with pytest.raises(
            UserError, match=r"No space left on device \(.* bytes free\); the first 20 candidates are safe"
        ):
            writer.commit()
    with open_writer(path, HEADER, SYMBOLS, resume=True, **options) as writer:
        writer.append(part(20, 24))
    assert read_trace(path).root == write_whole(tmp_path / "whole.h5", level, is_archived).root


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_conversion_onto_a_full_disk_leaves_nothing(tmp_path, is_archived, monkeypatch):
    write_whole(tmp_path / "t.h5", "steps", False)
    monkeypatch.setattr("kgverify.trace.files.manifest.os.pwritev", fail)
    with pytest.raises(UserError, match="No space left on device"):
        convert_trace(tmp_path / "t.h5", tmp_path / "c.h5", is_archived=is_archived)
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5"]


def test_a_piece_that_is_a_link_is_refused(tmp_path):
    path = tmp_path / "t.h5"
    leave_unfinished(path, "steps", False)
    piece = partial_of(path) / "shard-00000-00001.h5"
    piece.rename(tmp_path / "elsewhere")
    piece.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        read_trace(partial_of(path))


def fail(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
