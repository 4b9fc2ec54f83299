"""The evaluator's own tick and loop: nothing is lost in them, and the command says so."""

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
