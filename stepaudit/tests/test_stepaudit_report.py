"""The public names of `stepaudit`, and its reports: as text, as a page, as XML, and for GitHub."""

import dataclasses
import inspect
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console

import stepaudit
from stepaudit import AuditReport, Finding, Overrun, Unmeasured, Verdict, render_audit
from stepaudit.report import ReportBuilder

ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("kgverify", "kgreference"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
import torch
import stepaudit

report = stepaudit.audit_step(
    lambda rows: rows.cumsum(0) * 2, lambda: (torch.ones(3),), calls=1, rungs=("backend-eager",)
)
assert report.is_clean, report
print(report.verdict, report.measures["graphs"], *(row["deviations"] for row in report.sections["rungs"].rows))
"""


@pytest.mark.exhaustive
def test_a_step_is_audited_without_kgverify():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["AGREE", "1", "0"], done.stderr


@pytest.mark.parametrize("name", stepaudit.__all__)
def test_every_public_name_is_documented(name: str):
    value = getattr(stepaudit, name)
    if inspect.isfunction(value) or inspect.isclass(value):
        assert value.__doc__


def make_report(**options: object) -> AuditReport:
    report = ReportBuilder()
    for _ in range(2):
        report.find("syncs", mechanism="the host waits", finding="a value is read", where="a.py:1", remedy="[keep] it")
        report.skip("launches", "no CUDA device")
    report.measures |= {"compile_seconds": 2.0, "graph_nodes": 12.0}
    report.details["recompilations"] = tuple(f"call {number}" for number in range(20))
    report.add_section("builds", "builds", [{"mode": "eager", "num_close": 1234, "is_right": True, "gap": 0.5}])
    report.add_section("empty", "nothing", [])
    report.listings["minimal graph"] = "def graph(x0):\n    return x0 < 1"
    report.caveat = "up to 99 ulps"
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
    for part in render_audit(make_report(budget={"max_findings": 0.0, "max_graph_nodes": 11.0})):
        console.print(part, highlight=False)
    text = console.export_text()
    parts = [
        "DIVERGE   1 finding, 2 over budget; up to 99 ulps   step",
        "syncs   a.py:1",
        "fix: [keep] it",
        "1,234",
        "yes",
        "0.5",
        "and 8 more",
        "def graph(x0):",
        "2.00 s",
        "over budget: max_findings: 1, allowed 0",
        "over budget: max_graph_nodes: 12, allowed 11",
        "not measured: launches: no CUDA device",
        "environment: torch 2",
    ]
    found = [text.find(part) for part in parts]
    assert -1 not in found, text
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("compile_seconds", 2.0, "2.00 s"),
        ("device_seconds_per_step", 0.0015, "1.500 ms"),
        ("copied_bytes_per_step", 2_500_000, "2.50 MB"),
        ("graph_nodes", 12_345.0, "12,345"),
        ("syncs_per_step", 0.25, "0.25"),
    ],
)
def test_a_measure_is_shown_in_its_unit(key: str, value: float, shown: str):
    builder = ReportBuilder()
    builder.measures[key] = value
    report = builder.build("step", {})
    console = Console(width=100, record=True, file=io.StringIO())
    for part in render_audit(report):
        console.print(part, highlight=False)
    assert re.search(rf"{key.removeprefix('num_').replace('_', ' ')} +{re.escape(shown)}\s", console.export_text())
    assert f"<dd>{shown}</dd>" in stepaudit.render_html(report)


def test_a_report_is_written_as_json():
    assert json.loads(stepaudit.render_json(make_report())) == json.loads(json.dumps(dataclasses.asdict(make_report())))
    assert json.loads(stepaudit.render_json(make_hostile_report()))["subject"] == HOSTILE


HOSTILE = "a\x1b[2J\u202e<b>|@x ::error::"


def make_hostile_report() -> AuditReport:
    report = ReportBuilder()
    report.find("syncs", mechanism=HOSTILE, finding=HOSTILE, where=HOSTILE, remedy=HOSTILE)
    report.skip("launches", HOSTILE)
    return report.build(HOSTILE, {"torch": HOSTILE}, budget={"max_findings": 0.0})


def test_a_page_and_an_annotation_show_hidden_characters_as_escapes():
    page = stepaudit.render_html(make_hostile_report())
    assert page.startswith("<!DOCTYPE html>")
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "<b>" not in page
    lines = stepaudit.render_annotations(make_hostile_report()).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::error", "::notice"]
    assert not any("\x1b" in line for line in lines)


def test_junit_has_a_case_for_each_finding_limit_and_property_that_was_not_measured():
    root = ElementTree.fromstring(stepaudit.render_junit(make_hostile_report()).encode())
    (suite,) = root
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "1",
    }
    assert [case.get("classname") for case in suite] == [
        "stepaudit",
        "stepaudit.syncs",
        "stepaudit.budget",
        "stepaudit.launches",
    ]
    assert "\\x1b" in suite[1][0].get("message", "")
    open_suite = ElementTree.fromstring(stepaudit.render_junit(make_report(is_conclusive=False)).encode())[0]
    assert open_suite.get("errors") == "1"
    assert (
        "no CUDA device"
        in ReportBuilder(unmeasured=[Unmeasured(audit="values", reason="no CUDA device")])
        .build("step", {}, is_conclusive=False)
        .headline
    )


def test_markdown_has_a_row_for_each_finding_and_no_markup_of_strangers():
    text = stepaudit.render_markdown(make_hostile_report())
    assert text.startswith("### stepaudit: DIVERGE ")
    assert text.count("\n| syncs |") == 1
    assert "<b>" not in text
    assert "|@" not in text
    assert stepaudit.render_markdown(ReportBuilder().build("step", {})) == "### stepaudit: AGREE step\n"


class Page(HTMLParser):
    """The texts of a page: the cells of its tables row by row, the terms of its lists, and its listings."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {name: [] for name in ("td", "dt", "dd", "pre", "span", "h1", "li")}
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in {*self.open} & {*self.texts}:
            self.texts[tag][-1] += data


def test_a_page_shows_the_values_of_the_json_with_the_verdict_first():
    report = make_report(budget={"max_findings": 0.0})
    held = json.loads(stepaudit.render_json(report))
    page = stepaudit.render_html(report)
    texts = Page(page).texts
    assert texts["span"] == [held["verdict"]]
    assert texts["h1"] == [held["subject"]]
    assert page.index('class="badge') < page.index(held["findings"][0]["finding"])
    assert texts["td"] == ["eager", "1,234", "yes", "0.5"]
    assert [*held["sections"]["builds"]["rows"][0].values()] == ["eager", 1234, True, 0.5]
    assert texts["pre"] == [held["listings"]["minimal graph"]]
    assert texts["li"][:20] == held["details"]["recompilations"]
    named = dict(zip(texts["dt"], texts["dd"], strict=True))
    assert (named["compile seconds"], named["graph nodes"], named["torch"]) == ("2.00 s", "12", "2")
    assert {named[name] for name in ("line", "because", "fix")} == {
        held["findings"][0][name] for name in ("where", "mechanism", "remedy")
    }
