"""The golden traces of `traces/`: they read, they agree, and their commands make them again."""

import hashlib
import json
import runpy
import shlex
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from run_engines import assert_same_columns

import kgverify
from kgverify import Verdict
from kgverify.cli import main
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.model.header import SCHEMA_VERSION
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.recorded import compare_recorded

TRACES = Path(kgverify.__file__).parents[1] / "traces"
ENTRIES = json.loads((TRACES / "manifest.json").read_text())["traces"]

of_every_trace = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])


def test_the_manifest_lists_every_trace_and_both_engines():
    assert sorted(entry["file"] for entry in ENTRIES) == sorted(path.name for path in TRACES.glob("*.h5"))
    assert {read_trace(TRACES / entry["file"]).header.engine.name for entry in ENTRIES} == {"reference", "compiled"}


@of_every_trace
def test_a_golden_trace_is_the_one_of_the_manifest(entry: dict):
    content = (TRACES / entry["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    assert len(content) < 200_000
    trace = read_trace(TRACES / entry["file"])
    assert trace.header.schema_version == entry["schema_version"] == SCHEMA_VERSION
    assert (trace.header.engine.name, trace.header.level) == (entry["engine"], entry["level"])
    assert f"{trace.root:016x}" == entry["root"]
    assert trace.is_complete
    assert KNOWLEDGE_GRAPH.columns_kept(TraceLevel(trace.header.level)) <= trace.fields
    assert (len(trace.columns.candidates.query), len(trace.columns.steps.depth)) == (22, entry["num_steps"])
    assert entry["num_candidates"] == 22


@of_every_trace
def test_the_command_reproduces_the_golden_trace(entry: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program, *arguments = shlex.split(entry["command"])
    assert program == "kgverify"
    assert arguments[-2:] == ["-o", f"traces/{entry['file']}"]
    monkeypatch.setattr(sys, "argv", [program, *arguments[:-1], str(tmp_path / "again.h5")])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    golden, again = read_trace(TRACES / entry["file"]), read_trace(tmp_path / "again.h5")
    # The logarithm is the machine's own: its last bit may be another.
    sums = [trace.columns.candidates.log_probability for trace in (golden, again)]
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-12, atol=0)
    candidates = again.columns.candidates._replace(log_probability=sums[0])
    assert_same_columns(golden.columns, again.columns._replace(candidates=candidates))
    for column, found in zip((*golden.digests, *golden.rankings), (*again.digests, *again.rankings), strict=True):
        np.testing.assert_array_equal(found, column)
    assert golden.root == again.root
    assert golden.symbols == again.symbols
    np.testing.assert_array_equal(again.facts, golden.facts)
    np.testing.assert_array_equal(again.fact_lines, golden.fact_lines)

    def without_versions(header):
        engine = msgspec.structs.replace(header.engine, versions={})
        return msgspec.structs.replace(header, engine=engine, creator="", recording="")

    assert without_versions(again.header) == without_versions(golden.header)


def test_there_is_a_golden_trace_of_every_level():
    assert {entry["level"] for entry in ENTRIES} == set(TraceLevel)


@of_every_trace
def test_a_golden_trace_agrees_with_the_first_one(entry: dict):
    report = compare_recorded(TRACES / ENTRIES[0]["file"], TRACES / entry["file"]).report
    assert report.verdict is (Verdict.INCONCLUSIVE if entry is ENTRIES[0] else Verdict.AGREE)
    assert report.coverage.candidates == 22


@of_every_trace
def test_a_golden_trace_is_converted(entry: dict, tmp_path: Path):
    golden = read_trace(TRACES / entry["file"])
    convert_trace(TRACES / entry["file"], tmp_path / "new.h5")
    converted = read_trace(tmp_path / "new.h5")
    assert_same_columns(golden.columns, converted.columns)
    assert (converted.root, converted.fields) == (golden.root, golden.fields)


def test_the_golden_traces_agree():
    report = compare_recorded(*(TRACES / f"countries-{engine}.h5" for engine in ("reference", "compiled"))).report
    assert report.verdict is Verdict.AGREE
    assert (report.coverage.candidates, report.coverage.not_compared) == (22, ())
    assert report.level is None


def test_the_script_of_the_traces_has_their_commands():
    made = runpy.run_path(str(TRACES / "write_traces.py"))
    names = [f"traces/countries-{name}.h5" for name in made["OPTIONS"]]
    commands = [
        f"kgverify record {options} -o {name}" for name, options in zip(names, made["OPTIONS"].values(), strict=True)
    ]
    assert [entry["command"] for entry in ENTRIES] == commands
    assert "python traces/write_traces.py" in (TRACES / "README.md").read_text()
