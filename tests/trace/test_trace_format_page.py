"""The specification and the code say the same, and its example works."""

import re
import runpy
from pathlib import Path

import h5py
import numpy as np
import pytest
from trace_builders import FACTS, HEADER, RANKINGS, SYMBOLS, make_columns, open_writer

from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.read.trace_file import read_trace

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")


def test_the_example_writes_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "trace_without_kgverify.py"))
    trace = read_trace(tmp_path / "mine.trace.h5")
    assert trace.is_complete
    assert trace.header.engine.name == "my-prover"
    assert trace.symbols == Symbols(("locatedIn",), ("paris", "france"))
    assert trace.columns.candidates.atom.tolist() == [[0, 0, 1]]
    assert trace.columns.resolvents.kind.tolist() == [1]
    known = {"candidates.outcome", "steps.depth", "steps.choice", "steps.outcome"}
    assert trace.fields & KNOWLEDGE_GRAPH.optional == known
    for stored, computed in zip(trace.digests, compute_digests(trace.columns), strict=True):
        np.testing.assert_array_equal(stored, computed)


def test_the_page_lists_every_dataset_as_the_code_has_it():
    listed = re.findall(r"^\| `/([a-z_/]+)` \| ([^|]+) \[([^\]]+)\] (MUST|SHOULD|MAY) \|", PAGE, re.MULTILINE)
    assert [(path, dtype.strip(), must == "MUST") for path, dtype, _, must in listed] == [
        (f.path, " or ".join(np.dtype(d).name for d in f.dtypes), f.is_required) for f in KNOWLEDGE_GRAPH.columns
    ]
    assert all(
        ("3" in shape) == bool(f.width) for (_, _, shape, _), f in zip(listed, KNOWLEDGE_GRAPH.columns, strict=True)
    )


@pytest.fixture
def reader():
    path = ROOT / "examples" / "read_trace_without_kgverify.py"
    assert path.name in PAGE
    source = path.read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert len([line for line in source.splitlines() if line.strip()]) <= 50
    return runpy.run_path(str(path))["read_trace"]


def assert_same_arrays(found, path):
    trace = read_trace(path)
    for group, columns in (*trace.columns._asdict().items(), ("rankings", trace.rankings)):
        for name, column in columns._asdict().items():
            if f"{group}/{name}" in found:
                np.testing.assert_array_equal(found[f"{group}/{name}"], column)
    kept = {name.replace(".", "/") for name in trace.fields}
    assert kept <= found.keys()
    np.testing.assert_array_equal(found["digests/sequence"], trace.digests.sequence)


def test_the_example_reads_every_golden_trace(reader):
    paths = sorted((ROOT / "traces").glob("*.h5"))
    assert len(paths) > 5
    for path in paths:
        assert_same_arrays(reader(path), path)


def test_the_example_reads_shards_and_pieces_and_refuses_what_was_altered(reader, tmp_path):
    columns = make_columns(1, 30)
    with open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, shard_steps=10) as writer:
        for row in range(30):
            writer.append(select_candidates(columns, np.array([row])))
        writer.set_rankings(RANKINGS)
    assert_same_arrays(reader(tmp_path / "a"), tmp_path / "a")
    writer = open_writer(tmp_path / "b", HEADER, SYMBOLS, facts=FACTS, commit_seconds=0)
    for row in range(5):
        writer.append(select_candidates(columns, np.array([row])))
    assert reader(tmp_path / "b.partial")["candidates/query"].tolist() == columns.candidates.query[:5].tolist()
    shard = tmp_path / "a" / "shard-00000.h5"
    with h5py.File(shard) as file:
        offset = file["steps/choice"].id.get_offset()
    content = bytearray(shard.read_bytes())
    content[offset] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match="steps/choice was altered"):
        reader(tmp_path / "a")
