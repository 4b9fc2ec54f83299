"""The specification and the code say the same, and its examples work."""

import re
import runpy
from pathlib import Path

import h5py
import numpy as np
import pytest
from trace_builders import RANKINGS, flip, make_columns, make_stages, open_writer, read, rows

from kgverify import Symbols
from kgverify.kinds import KNOWLEDGE_GRAPH

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")


def test_the_example_writes_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "trace_without_kgverify.py"))
    trace = read(tmp_path / "mine.trace.h5")
    assert trace.is_complete
    assert trace.header.engine.name == "my-prover"
    assert trace.symbols == Symbols(("locatedIn",), ("paris", "france"))
    assert trace.columns.candidates.atom.tolist() == [[0, 0, 1]]
    assert trace.columns.resolvents.kind.tolist() == [1]
    known = {"candidates.outcome", "steps.depth", "steps.choice", "steps.outcome"}
    assert trace.fields & KNOWLEDGE_GRAPH.optional == known


def test_the_page_lists_every_dataset_as_the_code_has_it():
    listed = re.findall(r"^\| `/([a-z_/]+)` \| ([^|]+) \[([^\]]+)\] (MUST|SHOULD|MAY) \|", PAGE, re.MULTILINE)
    assert [(path, dtype.strip(), must == "MUST", "3" in shape) for path, dtype, shape, must in listed] == [
        (f.path, " or ".join(np.dtype(d).name for d in f.dtypes), f.is_required, bool(f.width))
        for f in KNOWLEDGE_GRAPH.columns
    ], "list each column of kgverify/trace/model/columns.py in docs/traces.md, in the same order"
    for name, column in make_stages(1, 9)._asdict().items():
        assert f"| `/stages/{name}` | {column.dtype}" in PAGE, name


@pytest.fixture
def reader():
    path = ROOT / "examples" / "read_trace_without_kgverify.py"
    assert path.name in PAGE
    source = path.read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert len([line for line in source.splitlines() if line.strip()]) <= 50
    return runpy.run_path(str(path))["read_trace"]


def assert_same_arrays(found, path):
    trace = read(path)
    for group, columns in (*trace.columns._asdict().items(), ("rankings", trace.rankings)):
        for name, column in columns._asdict().items():
            if f"{group}/{name}" in found:
                np.testing.assert_array_equal(found[f"{group}/{name}"], column)
    assert {name.replace(".", "/") for name in trace.fields} <= found.keys()
    np.testing.assert_array_equal(found["digests/sequence"], trace.digests.sequence)


def test_the_example_reads_every_golden_trace(reader):
    paths = sorted((ROOT / "traces").glob("*.h5"))
    assert len(paths) == 5
    for path in paths:
        assert_same_arrays(reader(path), path)


def test_the_example_reads_shards_and_pieces_and_refuses_what_was_altered(reader, tmp_path):
    columns = make_columns(1, 30)
    with open_writer(tmp_path / "a", shard_steps=10) as writer:
        for row in range(30):
            writer.append(rows(columns, row, row + 1))
        writer.set_rankings(RANKINGS)
    assert_same_arrays(reader(tmp_path / "a"), tmp_path / "a")
    writer = open_writer(tmp_path / "b", commit_seconds=0)
    for row in range(5):
        writer.append(rows(columns, row, row + 1))
    assert reader(tmp_path / "b.partial")["candidates/query"].tolist() == columns.candidates.query[:5].tolist()
    shard = tmp_path / "a" / "shard-00000.h5"
    with h5py.File(shard) as file:
        offset = file["steps/choice"].id.get_offset()
    flip(shard, offset)
    with pytest.raises(ValueError, match="steps/choice was altered"):
        reader(tmp_path / "a")
