"""The evaluator's own tick and loop: nothing is lost in them, and the command says so."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kgverify.audit.evaluator.audited_tick import build_tick_subject
from kgverify.audit.properties.captured_values import find_captured_values
from kgverify.audit.properties.colliding_writes import find_colliding_writes
from kgverify.audit.properties.compiled_run import CompileSetting
from kgverify.audit.properties.guard_holes import find_guard_holes
from kgverify.audit.properties.syncs import watch_eager_reads
from kgverify.audit.report import ReportBuilder
from kgverify.cli.app import app
from kgverify.errors import UserError
from kgverify.graphs.load import load_graph
from kgverify.runs.run import Run

RUNNER = CliRunner()


def run_command(*options: str) -> int:
    return RUNNER.invoke(app, ["audit", "compile", *options], catch_exceptions=False).exit_code


@pytest.mark.deep
def test_the_tick_reads_nothing_collides_nowhere_and_is_guarded():
    run = Run(graph=load_graph("countries"), num_queries=1, num_corruptions=2)
    subject = build_tick_subject(run, device="cpu", slots=4)
    found, report = find_captured_values(subject.function), ReportBuilder()
    reads = watch_eager_reads(subject)
    assert reads.num_operations > 100
    assert not any(reads.lines)
    find_colliding_writes(subject, found, report)
    # Each change runs the tick, so the last ones are left out.
    find_guard_holes(subject, CompileSetting(dynamic=False), found, report, seconds=10)
    assert report.findings == []
    # What is dropped is written as zeros, however often.
    assert report.measures["colliding_scatters"] == 0
    assert report.measures["guard_perturbations"] >= 1


@pytest.mark.exhaustive
def test_the_command_finds_nothing_in_the_evaluator_and_writes_what_it_saw(tmp_path: Path):
    path, budget = tmp_path / "audit.json", tmp_path / "budget.toml"
    budget.write_text("max_graph_breaks = 0\nmax_recompilations = 0\nmax_graph_nodes = 10\n", encoding="utf-8")
    options = ["--queries", "1", "--corruptions", "2", "--slots", "4", "--device", "cpu", "--mode", "default"]
    code = run_command(*options, "--stages", "0", "--no-fresh", "--budget", str(budget), "--json", str(path))
    data = json.loads(path.read_text(encoding="utf-8"))
    tick, loop = data["reports"]
    assert (tick["findings"], loop["findings"]) == ([], [])
    assert [each["key"] for each in tick["overruns"]] == ["max_graph_nodes"]
    assert (code, data["is_clean"]) == (1, False)
    assert (tick["measures"]["graphs"], tick["measures"]["graph_breaks"], tick["measures"]["recompilations"]) == (
        1,
        0,
        0,
    )
    assert loop["measures"]["recompilations"] == 0
    assert loop["measures"]["ticks"] == loop["measures"]["looks"] > 0


def test_a_mode_that_compiles_nothing_is_a_mistake():
    with pytest.raises(UserError, match="nothing is compiled in mode eager"):
        run_command("--mode", "eager", "--device", "cpu")


def test_a_mistake_in_the_budget_is_reported_before_anything_is_compiled(tmp_path: Path):
    budget = tmp_path / "budget.toml"
    budget.write_text("max_graph_brakes = 0\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"did you mean 'max_graph_breaks'\?"):
        run_command("--budget", str(budget))
