"""`kgverify trace convert` and `export`, and `record --level`."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import kgverify as kv
from kgverify.dialects import ReferenceEngine
from kgverify.program.outcomes import STEP_STAGES

LEVELS = ("steps", "digests", "deep")
STAGES = [stage.value for stage in STEP_STAGES]


class FewResolvents(ReferenceEngine):
    """Drops resolvents without saying so."""

    def __init__(self, program, limits, policy):
        super().__init__(program, kv.Limits(max_resolvents=5), policy)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    for level in LEVELS:
        for name, engine in (("", "reference"), ("limited-", FewResolvents)):
            options = kv.RecordingOptions(level=level)
            path = folder / f"{name}{level}.h5"
            kv.record("countries", path, engine, queries=1, corruptions=3, options=options)
    return folder


@pytest.mark.parametrize("level", LEVELS)
def test_a_conversion_prints_the_sizes_of_both_files(command, recorded: Path, tmp_path: Path, level: str):
    source, target = recorded / f"{level}.h5", tmp_path / "a.h5"
    done = command("trace", "convert", source, target, "--archive")
    trace = kv.open_trace(target)
    counts = f"{trace.num_candidates} candidates, {trace.num_steps} steps"
    before, after = (path.stat().st_size for path in (source, target))
    assert before != after
    per_step = after / trace.num_steps
    assert done.stdout == f"{target}: {counts}, {after:,} bytes of {before:,}, {per_step:.1f} bytes a step\n"


@pytest.mark.parametrize("level", LEVELS)
def test_an_export_has_a_row_for_each_step(command, recorded: Path, tmp_path: Path, level: str):
    trace = kv.open_trace(recorded / "steps.h5").load()
    counts = trace.columns.candidates.num_steps[[0, 2, 3]]
    for suffix in ("jsonl", "csv", "npz"):
        words = ("trace", "export", recorded / f"{level}.h5", "--candidates", "0,2-3", "--to", tmp_path / f"a.{suffix}")
        assert command(*words).exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["candidate"] for row in rows] == np.repeat([0, 2, 3], counts).tolist()
    assert [row["digest"] for row in rows[: counts[0]]] == [f"{d:016x}" for d in trace.digests.sequence[: counts[0]]]
    with (tmp_path / "a.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["candidates.num_steps"].tolist() == counts.tolist()
        assert ("resolvents.atoms" in arrays) == ("goal" in rows[0]) == (level != "digests")
    if level == "digests":
        done = command("show", recorded / "digests.h5", "--json", tmp_path / "a.json")
        assert "not recorded" in done.stdout
        shown = json.loads((tmp_path / "a.json").read_text())["candidates"]
        assert {each["log_probability"] for each in shown} == {None}
    else:
        assert len(rows[0]["resolvents"]) == int(trace.columns.steps.num_resolvents[0])
        assert rows[0]["goal"] == [rows[0]["atom"]]
        assert ("stages" in rows[0]) == (level == "deep")


@pytest.mark.parametrize(("expected", "actual"), [("deep", "deep"), ("steps", "deep"), ("digests", "steps")])
def test_traces_of_any_levels_are_compared_saved_and_shown(
    command, recorded: Path, tmp_path: Path, expected: str, actual: str
):
    paths = recorded / f"{expected}.h5", recorded / f"limited-{actual}.h5"
    done = command("diff", *paths, "--json", tmp_path / "a.json", "--save", tmp_path / "run")
    report = json.loads((tmp_path / "a.json").read_text())
    assert (done.exit_code, report["verdict"]) == (1, "DIVERGE")
    first = report["divergences"][0]
    assert (first["field"] == "digests.sequence") == ("digests" in (expected, actual))
    assert first["field"].startswith("stage.") == (expected == actual == "deep")
    shown = command("show", tmp_path / "run", "--divergence", 1, "--json", tmp_path / "b.json")
    assert (shown.exit_code, first["atom"] in shown.stdout) == (0, True)
    if expected == actual == "deep":
        assert "limit at step" in done.stdout
        assert "found in the recorded outputs of the stages" in done.stdout
        stages = {each["stage"]: each for each in json.loads((tmp_path / "b.json").read_text())["stages"]}
        assert {stages[name]["mark"] for name in ("match_rules", "match_facts", "prune", "revisit")} == {"agrees"}
        assert stages["revisit"]["expected"] == stages["revisit"]["actual"] != []
        assert (stages["limit"]["mark"], stages["limit"]["is_culprit"]) == ("differs", True)


def test_what_the_stages_gave_is_shown_and_exported(command, recorded: Path, tmp_path: Path):
    shown = command("show", recorded / "deep.h5", "--candidate", 0, "--step", 0, "--json", tmp_path / "a.json")
    step = json.loads((tmp_path / "a.json").read_text())
    assert [*step["stages"]] == STAGES
    assert step["stages"]["select"] == step["goal"]
    assert step["stages"]["finish"] == [step["outcome"]]
    assert all(stage in shown.stdout for stage in STAGES)
    assert command("trace", "export", recorded / "deep.h5", "--to", tmp_path / "a.jsonl").exit_code == 0
    row = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert {each["stage"]: each["gave"] for each in row["stages"]} == step["stages"]
