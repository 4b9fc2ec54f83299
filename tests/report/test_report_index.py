"""The index page of several runs: figures in the order given, trends to one scale, and nothing that runs."""

import re
from pathlib import Path

import pytest
from browser import Browser
from report_runs import HOSTILE, change

from kgverify import UserError
from kgverify.cli.commands.report import report as report_command
from kgverify.report.render.index import MOST_CAUSES, MOST_RUNS, build_trends, render_index, summarize_run
from kgverify.verification.save import TIMES, RunTimes, read_times, save_verification
from kgverify.verification.verify import Verification

WRITTEN = "2026-01-02 03:04 UTC"


def test_trends_share_a_scale_with_0_and_a_missing_value_breaks_the_line():
    low, high, (expected, actual) = build_trends([[1.0, 1.0, 1.0, 1.0], [0.5, None, 0.25, 0.0]])
    assert (low, high) == (0.0, 1.0)
    assert expected["lines"] == ["0.0,0.0 333.33,0.0 666.67,0.0 1000.0,0.0"]
    assert actual == {"lines": ["666.67,75.0 1000.0,100.0"], "points": [(0.0, 50.0), (666.67, 75.0), (1000.0, 100.0)]}
    assert build_trends([[0.0]]) == (0.0, 0.0, [{"lines": [], "points": [(0.0, 100.0)]}])


def test_an_index_has_each_run_with_its_figures(faulty: Verification, agreeing: Verification):
    runs = [
        summarize_run("monday", faulty.report, written=WRITTEN, page="./monday/report.html"),
        summarize_run("tuesday", agreeing.report, written=WRITTEN),
    ]
    text = render_index(runs)
    assert text.index("monday") < text.index("tuesday")
    assert re.findall(r'<strong class="([A-Z]+)">', text) == ["DIVERGE", agreeing.report.verdict.value]
    assert re.findall(r'href="([^"]*)"', text) == ["./monday/report.html"]
    assert "<dt>metric</dt><dd>the difference changes metrics, not only ranks</dd>" in text
    (cause,) = faulty.report.causes
    assert runs[0]["candidates"] == {"match_facts (missing)": cause.num_candidates}
    assert f'style="--h: 1.0">{cause.num_candidates}</td>' in text
    assert runs[0]["mrr"] == (0.8333333333333334, pytest.approx(0.2976, abs=1e-4))


def test_the_run_time_comes_from_the_saved_run(faulty: Verification, tmp_path: Path):
    times = RunTimes(61.25, {"expected: reference": 0.5})
    for name, known in (("timed", times), ("older", None)):
        save_verification(faulty, tmp_path / name, known)
    assert (read_times(tmp_path / "timed"), read_times(tmp_path / "older")) == (times, None)
    report_command([tmp_path / "timed", tmp_path / "older"], html=str(tmp_path / "index.html"))
    text = (tmp_path / "index.html").read_text("utf-8")
    assert '<td class="num">61.2</td>' in text
    assert "<figcaption>Run time, seconds</figcaption>" in text
    save_verification(faulty, tmp_path / "timed")
    assert read_times(tmp_path / "timed") is None
    (tmp_path / "timed" / TIMES).write_text("{}")
    with pytest.raises(UserError, match="is not the run time of a saved run"):
        read_times(tmp_path / "timed")


def test_many_runs_and_causes_are_cut_and_the_page_says_so(faulty: Verification):
    run = summarize_run("night", faulty.report, written=WRITTEN)
    many = {f"made up {i}": 1 for i in range(MOST_CAUSES + 5)}
    text = render_index([run | {"candidates": many}] * (MOST_RUNS + 3))
    assert "The 3 before them are not shown" in text
    assert "… and 5 more causes" in text
    assert text.count('<strong class="DIVERGE">') == MOST_RUNS


def test_the_command_writes_an_index_beside_the_runs(faulty: Verification, tmp_path: Path, capsys):
    names = ("one", "two #1?.x")
    for name in names:
        save_verification(faulty, tmp_path / name)
    (tmp_path / names[1] / "report.html").write_text("a page")
    folders = [tmp_path / name for name in names]
    report_command(folders, html=str(tmp_path / "index.html"))
    assert "wrote" in capsys.readouterr().out
    text = (tmp_path / "index.html").read_text("utf-8")
    assert 'href="./two%20%231%3F.x/report.html"' in text
    assert text.count("<a ") == 1
    with pytest.raises(UserError, match="2 runs make an index page"):
        report_command(folders)
    with pytest.raises(UserError, match="2 runs make an index page"):
        report_command(folders, html="index.html", junit="junit.xml")


def test_names_of_runs_and_causes_are_inert(browser: Browser, faulty: Verification, tmp_path: Path):
    graph = change(faulty.report.run, graph=HOSTILE[0])
    hostile = change(faulty.report, run=graph)
    runs = [summarize_run(name, hostile, written=WRITTEN) | {"candidates": {name: 1}} for name in HOSTILE]
    path = tmp_path / "index.html"
    path.write_text(render_index(runs), "utf-8")
    browser.open(path, color_scheme="dark")
    assert (browser.errors, browser.dialogs, browser.requests) == ([], [], [path.as_uri()])
    assert browser.evaluate("document.querySelectorAll('script, img, [onerror], [onmouseover]').length") == 0
    assert HOSTILE[1] in browser.evaluate("document.body.innerText")
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
