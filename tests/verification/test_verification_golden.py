"""The golden traces of `traces/`: they read, they agree, and their commands make them again."""

import hashlib
import json
import runpy
import shlex
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from invoked_commands import invoke
from run_engines import assert_same_columns

import kgverify as kv
from kgverify import Trace, TraceLevel, Verdict
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.outcomes import Outcome

TRACES = Path(kv.__file__).parents[1] / "traces"
ENTRIES = json.loads((TRACES / "manifest.json").read_text())["traces"]

of_every_trace = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])


def read(path: Path) -> Trace:
    return kv.open_trace(path).load()


def test_the_manifest_lists_every_trace_with_its_command_and_both_engines():
    assert sorted(entry["file"] for entry in ENTRIES) == sorted(path.name for path in TRACES.glob("*.h5"))
    assert {entry["engine"] for entry in ENTRIES} == {"reference", "compiled"}
    assert {entry["level"] for entry in ENTRIES} == set(TraceLevel)
    made = runpy.run_path(str(TRACES / "write_traces.py"))["OPTIONS"]
    commands = [f"kgverify record {options} -o traces/countries-{name}.h5" for name, options in made.items()]
    assert [entry["command"] for entry in ENTRIES] == commands
    assert "python traces/write_traces.py" in (TRACES / "README.md").read_text()


@of_every_trace
def test_a_golden_trace_is_the_one_of_the_manifest_and_agrees_with_the_first(entry: dict, tmp_path: Path):
    content = (TRACES / entry["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    assert len(content) < 200_000
    trace = read(TRACES / entry["file"])
    header = trace.header
    assert (header.schema_version, header.engine.name, header.level) == tuple(
        entry[name] for name in ("schema_version", "engine", "level")
    )
    assert (f"{trace.root:016x}", trace.is_complete) == (entry["root"], True)
    assert KNOWLEDGE_GRAPH.columns_kept(TraceLevel(header.level)) <= trace.fields
    assert (len(trace.columns.candidates.query), len(trace.columns.steps.depth)) == (22, entry["num_steps"])
    # Worked out by hand in tests/whole_commands: 5 of the 22 candidates are proved. The MRR with all unproved is 0.3095.
    assert (trace.columns.candidates.outcome == Outcome.PROVED).sum() == 5
    report = kv.compare(TRACES / ENTRIES[0]["file"], TRACES / entry["file"])
    assert report.verdict is (Verdict.INCONCLUSIVE if entry is ENTRIES[0] else Verdict.AGREE)
    assert (report.coverage.candidates, report.level) == (22, None)
    for values in (report.metrics.expected, report.metrics.actual):
        assert values["both.realistic.mean_reciprocal_rank"] == 0.875
    assert invoke(["trace", "convert", TRACES / entry["file"], tmp_path / "new.h5"]).exit_code == 0
    converted = read(tmp_path / "new.h5")
    assert_same_columns(trace.columns, converted.columns)
    assert (converted.root, converted.fields) == (trace.root, trace.fields)


@of_every_trace
def test_the_command_reproduces_the_golden_trace(entry: dict, tmp_path: Path):
    program, *arguments = shlex.split(entry["command"])
    assert program == "kgverify"
    assert arguments[-2:] == ["-o", f"traces/{entry['file']}"]
    assert invoke([*arguments[:-1], tmp_path / "again.h5"]).exit_code == 0
    golden, again = read(TRACES / entry["file"]), read(tmp_path / "again.h5")
    # The logarithm is the machine's own: its last bit may be another.
    sums = [trace.columns.candidates.log_probability for trace in (golden, again)]
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-12, atol=0)
    candidates = again.columns.candidates._replace(log_probability=sums[0])
    assert_same_columns(golden.columns, again.columns._replace(candidates=candidates))
    for trace in (golden, again):
        assert trace.rankings is not None
    tables: list[Any] = [(*trace.digests, *trace.rankings, trace.facts, trace.fact_lines) for trace in (golden, again)]
    for column, found in zip(*tables, strict=True):
        np.testing.assert_array_equal(found, column)
    assert (again.root, again.symbols) == (golden.root, golden.symbols)
    headers = [
        msgspec.structs.replace(
            each.header, engine=msgspec.structs.replace(each.header.engine, versions={}), creator="", recording=""
        )
        for each in (golden, again)
    ]
    assert headers[0] == headers[1]


def test_an_engine_is_compared_with_a_stored_trace_in_one_command(tmp_path: Path):
    golden = tmp_path / "golden.h5"
    kv.record("countries", golden, "reference", queries=2, corruptions=5)
    told = ["diff", "--reference", golden, "--engine", "compiled", "--mode", "plain"]
    agreed = invoke([*told, "--json", tmp_path / "agreed.json"], tmp_path)
    assert agreed.exit_code == 0, agreed.output
    assert "reference (python, cpu" in agreed.stdout
    lost = invoke([*told, "--fault", "fact-cap", "--save", "run"], tmp_path)
    assert lost.exit_code == 1, lost.output
    assert "first divergence: match_facts" in lost.stdout
    assert "of the actual trace are not recorded, and were computed" in lost.stdout
    assert invoke(["show", "run", "--divergence", 1], tmp_path).exit_code == 0
    # In Python, and by position, with an engine of somebody else.
    (tmp_path / "mine.py").write_text("from kgverify.dialects import ReferenceEngine as Mine\n")
    assert invoke(["diff", golden, "mine.py:Mine"], tmp_path).exit_code == 0
    assert kv.compare(golden, kv.Evaluator(mode="plain", faults="fact-cap")).verdict is Verdict.DIVERGE


def test_what_a_stored_trace_cannot_judge_is_refused(tmp_path: Path):
    kv.record("countries", tmp_path / "tower.h5", "reference", queries=1, corruptions=1, policy="two_tower")
    kv.record("countries", tmp_path / "few.h5", "reference", queries=1, corruptions=1)
    assert invoke(["trace", "convert", "few.h5", "digests.h5", "--level", "digests"], tmp_path).exit_code == 0
    for words, text in (
        ("--reference tower.h5", "was recorded with the policy 'two_tower'"),
        ("--reference digests.h5", "does not hold facts"),
        ("--reference few.h5 --queries 3", "--queries: applies only if kgverify runs both engines"),
        ("--reference none.h5", "none.h5: no such trace"),
    ):
        refused = invoke(f"diff {words} --engine compiled --mode plain", tmp_path)
        assert (refused.exit_code, text in refused.stderr) == (2, True), refused.output
