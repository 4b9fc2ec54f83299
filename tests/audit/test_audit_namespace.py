"""The public names of `kgverify.audit`."""

import inspect
import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import kgverify.audit
from kgverify.audit import AuditReport, Finding, render_audit
from kgverify.audit.budget import Overrun
from kgverify.audit.report import ReportBuilder
from kgverify.comparison.result import Verdict


@pytest.mark.parametrize("name", kgverify.audit.__all__)
def test_every_public_name_is_documented(name: str):
    value = getattr(kgverify.audit, name)
    assert name in dir(kgverify.audit)
    if inspect.isfunction(value):
        assert "Args:" in value.__doc__
        assert "Returns:" in value.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'stepp'"):
        kgverify.audit.stepp  # noqa: B018  reading the attribute is the test


def test_importing_the_namespace_does_not_load_torch():
    code = "import kgverify.audit, sys; print('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


def make_report(**options: object) -> AuditReport:
    report = ReportBuilder()
    for _ in range(2):
        report.find("syncs", mechanism="the host waits", finding="a value is read", where="a.py:1", remedy="[keep] it")
        report.skip("launches", "no CUDA device")
    report.measures |= {"compile_seconds": 2.0, "graph_nodes": 12.0}
    report.details["recompilations"] = tuple(f"call {number}" for number in range(20))
    report.add_section("builds", "builds", [{"mode": "eager", "num_close": 1234, "is_right": True, "gap": 0.5}])
    report.add_section("empty", "nothing", [])
    return report.build("step", {"torch": "2"}, **options)


def test_a_report_holds_each_finding_once_and_no_empty_section():
    report = make_report()
    assert [type(each) for each in report.findings] == [Finding]
    assert len(report.unmeasured) == 1
    assert list(report.sections) == ["builds"]
    assert (report.verdict, report.is_clean) == (Verdict.DIVERGE, False)
    assert make_report(is_conclusive=False).verdict is Verdict.INCONCLUSIVE
    assert ReportBuilder().build("step", {}).verdict is Verdict.AGREE


def test_a_budget_counts_findings_and_names_measures_that_are_missing():
    report = make_report(budget={"max_findings": 0.0, "max_graph_nodes": 12.0, "max_launches_per_step": 1.0})
    assert report.overruns == (Overrun(key="max_findings", measured=1.0, allowed=0.0),)
    assert report.unmeasured[-1].reason == "max_launches_per_step: launches_per_step was not measured"


def test_a_report_is_rendered_in_reading_order():
    console = Console(width=100, record=True, file=io.StringIO())
    for part in render_audit(make_report(budget={"max_findings": 0.0})):
        console.print(part, highlight=False)
    text = console.export_text()
    parts = [
        "1 finding, 1 over budget   step",
        "syncs   a.py:1",
        "fix: [keep] it",
        "1,234",
        "yes",
        "0.5",
        "2.00 s",
        "and 8 more",
        "over budget: max_findings: 1, allowed 0",
        "not measured: launches: no CUDA device",
        "environment: torch 2",
    ]
    found = [text.find(part) for part in parts]
    assert -1 not in found, text
    assert found == sorted(found)
