"""`kgverify trace convert` and `export`, and `record --level`."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cli_runs import Command

from kgverify import Limits, RecordingOptions, load_graph
from kgverify.program.outcomes import STEP_STAGES
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.model.schema import TraceLevel, has_goals
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import write_again
from kgverify.verification.record import prove_deep, record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    run = Run(load_graph("countries"), num_queries=1, num_corruptions=3)
    for level in TraceLevel:
        record(run, reference_pipeline(run), folder / f"{level.value}.h5", RecordingOptions(level=level.value))
    return folder


@pytest.mark.parametrize("level", list(TraceLevel))
def test_a_converted_trace_is_the_recorded_one_and_agrees(
    command: Command, recorded: Path, tmp_path: Path, level: TraceLevel
):
    done = command("trace", "convert", str(recorded / "deep.h5"), str(tmp_path / "a.h5"), "--level", level.value)
    assert done.code == 0
    assert "bytes a step" in done.out
    assert read_trace(tmp_path / "a.h5").root == read_trace(recorded / f"{level.value}.h5").root
    done = command("diff", str(recorded / "steps.h5"), str(tmp_path / "a.h5"), "--json", "-")
    report = json.loads(done.out)
    assert (done.code, report["verdict"]) == (0, "AGREE")
    done = command("diff", str(recorded / "deep.h5"), str(tmp_path / "a.h5"))
    assert (done.code, "the same recording twice" in done.out) == (3, True)
    assert ("digests.sequence" in report["coverage"]["fields"]) == (not has_goals(level))
    assert bool(report["coverage"]["not_compared"]) == (not has_goals(level))


def test_a_compact_trace_is_raised_and_digests_are_not(command: Command, recorded: Path, tmp_path: Path):
    path = tmp_path / "a.h5"
    assert command("trace", "convert", str(recorded / "compact.h5"), str(path), "--level", "steps").code == 0
    assert read_trace(path).root == read_trace(recorded / "steps.h5").root
    done = command("trace", "convert", str(recorded / "digests.h5"), str(tmp_path / "b.h5"), "--level", "steps")
    assert (done.code, "cannot be restored" in done.err) == (2, True)
    done = command("trace", "convert", str(recorded / "digests.h5"), str(path))
    assert (done.code, "--overwrite" in done.err) == (2, True)
    assert command("trace", "convert", str(recorded / "steps.h5"), str(path), "--archive", "--force").code == 0
    assert path.stat().st_size < (recorded / "steps.h5").stat().st_size / 2
    done = command("trace", "convert", str(recorded / "steps.h5"), str(path), "--force", "--level", "step")
    assert (done.code, "steps" in done.err) == (2, True)


@pytest.mark.parametrize("level", list(TraceLevel))
def test_an_export_has_a_row_for_each_step(command: Command, recorded: Path, tmp_path: Path, level: TraceLevel):
    trace = read_trace(recorded / "steps.h5")
    counts = trace.columns.candidates.num_steps[[0, 2, 3]]
    for suffix in ("jsonl", "csv", "npz"):
        path = tmp_path / f"a.{suffix}"
        source = str(recorded / f"{level.value}.h5")
        done = command("trace", "export", source, "--candidates", "0,2-3", "--to", str(path))
        assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["candidate"] for row in rows] == np.repeat([0, 2, 3], counts).tolist()
    assert [row["digest"] for row in rows[: counts[0]]] == [f"{d:016x}" for d in trace.digests.sequence[: counts[0]]]
    with (tmp_path / "a.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["candidates.num_steps"].tolist() == counts.tolist()
        assert ("resolvents.atoms" in arrays) == ("goal" in rows[0]) == (level is not TraceLevel.DIGESTS)
    if level is not TraceLevel.DIGESTS:
        assert len(rows[0]["resolvents"]) == int(trace.columns.steps.num_resolvents[0])
        assert rows[0]["goal"] == [rows[0]["atom"]]


@pytest.mark.parametrize(
    ("candidates", "name", "match"),
    [
        ("0,99", "a.jsonl", "expected candidates from 0 to"),
        ("2-", "a.jsonl", "numbers and ranges"),
        ("x", "a.jsonl", "numbers and ranges"),
        ("", "a.jsonl", "numbers and ranges"),
        ("3-1", "a.jsonl", "expected candidates"),
        ("all", "a.xls", "unknown format"),
        ("all", "no/folder/a.csv", "cannot be written"),
    ],
)
def test_what_cannot_be_exported(
    command: Command, recorded: Path, tmp_path: Path, candidates: str, name: str, match: str
):
    done = command(
        "trace", "export", str(recorded / "steps.h5"), "--candidates", candidates, "--to", str(tmp_path / name)
    )
    assert done.code == 2
    assert match in done.err
    assert "fix:" in done.err


def test_a_level_can_be_recorded(command: Command, recorded: Path, tmp_path: Path):
    words = ("record", "--engine", "reference", "--queries", 1, "--corruptions", 3)
    assert command(*words, "--level", "compact", "-o", tmp_path / "a.h5").code == 0
    assert read_trace(tmp_path / "a.h5").root == read_trace(recorded / "compact.h5").root
    done = command(*words, "--level", "all", "-o", tmp_path / "b.h5")
    assert (done.code, "unknown value 'all'" in done.err) == (2, True)


def test_a_step_without_its_goals_is_not_shown(command: Command, recorded: Path):
    for level in (TraceLevel.DIGESTS, TraceLevel.COMPACT):
        path = recorded / f"{level.value}.h5"
        assert command("show", path).code == 0
        done = command("show", path, "--candidate", 0, "--step", 0)
        assert (done.code, "keeps no goals" in done.err) == (2, True)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of `recorded` by a prover that drops resolvents without saying so."""
    folder = tmp_path_factory.mktemp("limited")
    run = Run(load_graph("countries"), num_queries=1, num_corruptions=3, limits=Limits(max_resolvents=5))
    pipeline = reference_pipeline(run)
    columns = prove_deep(pipeline.engine, pipeline.draw_for(run))
    trace = build_trace(run, pipeline.engine, columns, pipeline.rank_finite(run, columns.candidates))
    header = msgspec.structs.replace(trace.header, limits=Limits(), level=TraceLevel.DEEP.value)
    write_again(replace(trace, header=header), folder / "deep.h5")
    for level in (TraceLevel.STEPS, TraceLevel.COMPACT, TraceLevel.DIGESTS):
        convert_trace(folder / "deep.h5", folder / f"{level.value}.h5", level)
    return folder


@pytest.mark.sample(5)
@pytest.mark.parametrize("actual", list(TraceLevel))
@pytest.mark.parametrize("expected", list(TraceLevel))
def test_traces_of_any_levels_are_compared_saved_and_shown(
    command: Command, recorded: Path, limited: Path, tmp_path: Path, expected: TraceLevel, actual: TraceLevel
):
    paths = recorded / f"{expected.value}.h5", limited / f"{actual.value}.h5"
    done = command("diff", *paths, "--json", tmp_path / "a.json", "--save", tmp_path / "run")
    report = json.loads((tmp_path / "a.json").read_text())
    assert (done.code, report["verdict"]) == (1, "DIVERGE")
    is_found_by_digest = TraceLevel.DIGESTS in (expected, actual)
    assert (report["divergences"][0]["field"] == "digests.sequence") == is_found_by_digest
    shown = command("show", tmp_path / "run", "--divergence", 1)
    assert (shown.code, report["divergences"][0]["atom"] in shown.out) == (0, True)
    is_found_by_stages = expected == actual == TraceLevel.DEEP
    assert report["divergences"][0]["field"].startswith("stage.") == is_found_by_stages


def test_what_the_stages_gave_is_shown_and_exported(command: Command, recorded: Path, limited: Path, tmp_path: Path):
    shown = command("show", recorded / "deep.h5", "--candidate", 0, "--step", 0, "--json", tmp_path / "a.json")
    step = json.loads((tmp_path / "a.json").read_text())
    assert list(step["stages"]) == [stage.value for stage in STEP_STAGES]
    assert step["stages"]["select"] == step["goal"]
    assert step["stages"]["finish"] == [step["outcome"]]
    assert all(stage.value in shown.out for stage in STEP_STAGES)
    assert command("trace", "export", recorded / "deep.h5", "--to", tmp_path / "a.jsonl").code == 0
    row = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert {each["stage"]: each["gave"] for each in row["stages"]} == step["stages"]
    done = command("diff", recorded / "deep.h5", limited / "deep.h5", "--save", tmp_path / "run")
    assert "limit at step" in done.out
    assert "found in the recorded outputs of the stages" in done.out
    data = command("show", tmp_path / "run", "--divergence", 1, "--json", tmp_path / "b.json")
    assert data.code == 0
    stages = {each["stage"]: each for each in json.loads((tmp_path / "b.json").read_text())["stages"]}
    assert {stages[name]["mark"] for name in ("match_rules", "match_facts", "prune", "revisit")} == {"agrees"}
    assert stages["revisit"]["expected"] == stages["revisit"]["actual"] != []
    assert (stages["limit"]["mark"], stages["limit"]["is_culprit"]) == ("differs", True)


def test_an_unknown_level_is_reported_with_the_closest_one(command: Command, tmp_path: Path):
    done = command("record", "--engine", "reference", "--queries", 1, "--level", "depe", "-o", tmp_path / "a.h5")
    assert (done.code, "deep" in done.err) == (2, True)


def test_what_a_level_leaves_out_is_not_shown_as_a_number(command: Command, recorded: Path, tmp_path: Path):
    done = command("show", recorded / "digests.h5", "--json", tmp_path / "a.json")
    assert "not recorded" in done.out
    candidates = json.loads((tmp_path / "a.json").read_text())["candidates"]
    assert {each["log_probability"] for each in candidates} == {None}
