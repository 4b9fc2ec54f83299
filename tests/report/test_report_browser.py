"""The page in a real browser: it works by keyboard, asks the network for nothing, and runs no text of a graph."""

from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from report_runs import change, without_causes

from kgverify.comparison.result import DifferenceClass
from kgverify.report.render.html import render_html
from kgverify.report.report import Report
from kgverify.verification.verify import Verification

VISIBLE_ROWS = "[...document.querySelectorAll('tbody.entry')].filter(e => !e.hidden).length"
OPEN_DETAILS = "[...document.querySelectorAll('tr.detail')].filter(e => e.offsetHeight > 0).map(e => e.id)"


def open_page(browser: Browser, verification: Verification, folder: Path, report: Report | None = None, **how: Any):
    path = folder / "report.html"
    path.write_text(render_html(report or verification.report, verification.expected, verification.actual), "utf-8")
    browser.open(path, **how)
    return path


def two_kinds(report: Report) -> Report:
    """Without causes, and every third divergence of another stage and class."""
    plain = without_causes(report)
    changed = tuple(
        change(each, stage="score", kind=DifferenceClass.ROUNDING, evidence="by hand") if i % 3 == 0 else each
        for i, each in enumerate(plain.divergences)
    )
    return change(plain, divergences=changed, first_cause=changed[0])


@pytest.mark.sample(0, deep=2)
@pytest.mark.parametrize("name", ["faulty", "agreeing", "in_lockstep", "hostile"])
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_every_page_loads_without_errors_and_requests_itself_alone(
    browser: Browser, tmp_path: Path, request: pytest.FixtureRequest, name: str, color_scheme: str
):
    verification = request.getfixturevalue(name)
    path = open_page(browser, verification, tmp_path, color_scheme=color_scheme)
    assert browser.requests == [path.as_uri()]
    assert (browser.errors, browser.dialogs) == ([], [])
    assert browser.evaluate("document.querySelector('.badge').innerText") == verification.report.verdict.value
    is_dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    assert is_dark == (color_scheme == "dark")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_narrow_window_does_not_scroll_sideways(browser: Browser, faulty: Verification, tmp_path: Path):
    open_page(browser, faulty, tmp_path)
    browser.call("Emulation.setDeviceMetricsOverride", width=420, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_filter_shows_the_rows_with_every_word(browser: Browser, faulty: Verification, tmp_path: Path):
    report = two_kinds(faulty.report)
    open_page(browser, faulty, tmp_path, report)
    num = len(report.divergences)
    assert browser.evaluate(VISIBLE_ROWS) == num
    browser.evaluate("document.getElementById('filter-text').focus()")
    browser.type("SCORE by hand")
    num_scores = sum(each.stage == "score" for each in report.divergences)
    assert 0 < num_scores < num
    assert browser.evaluate(VISIBLE_ROWS) == num_scores
    assert browser.evaluate("shown.innerText") == f"{num_scores} of {num} shown"
    headings = "[...document.querySelectorAll('tbody.heading')].filter(e => !e.hidden).map(e => e.innerText.trim())"
    assert browser.evaluate(headings) == ["score"]
    browser.type(" no such word")
    assert browser.evaluate(VISIBLE_ROWS) == 0


@pytest.mark.parametrize(("select", "value"), [("stage", "score"), ("kind", "rounding")])
def test_the_selects_filter_by_stage_and_class(
    browser: Browser, faulty: Verification, tmp_path: Path, select: str, value: str
):
    report = two_kinds(faulty.report)
    open_page(browser, faulty, tmp_path, report)
    chosen = f"document.getElementById('filter-{select}')"
    options = browser.evaluate(f"[...{chosen}.options].map(e => e.value)")
    assert options[0] == ""
    assert value in options
    browser.evaluate(f"{chosen}.value = '{value}'; {chosen}.dispatchEvent(new Event('change'))")
    assert browser.evaluate(VISIBLE_ROWS) == sum(each.stage == "score" for each in report.divergences)


def test_a_stage_of_the_heat_map_filters_the_table(browser: Browser, faulty: Verification, tmp_path: Path):
    open_page(browser, faulty, tmp_path, two_kinds(faulty.report))
    browser.evaluate("document.querySelector('.heat button[data-stage=score]').focus()")
    browser.press("Enter")
    assert browser.evaluate("document.getElementById('filter-stage').value") == "score"
    assert browser.evaluate("document.activeElement.id") == "filter-stage"


def test_a_row_opens_and_closes_by_keyboard(browser: Browser, faulty: Verification, tmp_path: Path):
    open_page(browser, faulty, tmp_path, two_kinds(faulty.report))
    assert browser.evaluate(OPEN_DETAILS) == ["d1"]
    browser.evaluate("document.getElementById('filter-kind').focus()")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.getAttribute('aria-controls')") == "d1"
    expanded = "document.activeElement.getAttribute('aria-expanded')"
    for key, state, is_open in (("Enter", "false", []), (" ", "true", ["d1"])):
        browser.press(key)
        assert browser.evaluate(expanded) == state
        assert browser.evaluate(OPEN_DETAILS) == is_open
    browser.press("Tab")
    browser.press("Enter")
    assert browser.evaluate(OPEN_DETAILS) == ["d1", "d2"]
    browser.press("Tab", shift=True)
    assert browser.evaluate("document.activeElement.getAttribute('aria-controls')") == "d1"


def test_text_of_a_graph_is_inert(browser: Browser, hostile: Verification, tmp_path: Path):
    open_page(browser, hostile, tmp_path)
    browser.evaluate("document.querySelectorAll('button.open').forEach(e => e.click())")
    assert browser.dialogs == []
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.evaluate("document.querySelectorAll('img, iframe, object, a[href]:not([href^=\"#\"])').length") == 0
    handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
    assert browser.evaluate(handlers) == []
    body = browser.evaluate("document.body.innerText")
    for text in ("<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "{{ 7 * 7 }}"):
        assert text in body
    summary = browser.evaluate("JSON.parse(document.getElementById('summary').textContent).run.graph")
    assert summary == "<script>alert(1)</script>"


def test_even_a_script_that_got_into_the_page_would_not_run(browser: Browser, faulty: Verification, tmp_path: Path):
    path = open_page(browser, faulty, tmp_path)
    text = path.read_text("utf-8")
    added = "<script>alert(1)</script><img src=data:, onerror=alert(2)><img src='https://example.invalid/x'>"
    path.write_text(text.replace("</header>", f"{added}</header>"), "utf-8")
    browser.open(path)
    assert browser.dialogs == []
    assert sorted(browser.forbidden) == sorted(url for url in browser.requests if url != path.as_uri())
    assert "https://example.invalid/x" in browser.forbidden
    assert any("Content Security Policy" in error for error in browser.errors)


def test_without_scripts_every_derivation_is_open(browser: Browser, faulty: Verification, tmp_path: Path):
    path = open_page(browser, faulty, tmp_path, two_kinds(faulty.report))
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.call("Page.navigate", url=path.as_uri())
    num = len(faulty.report.divergences)
    for _ in range(100):
        if browser.evaluate("document.querySelectorAll('tr.detail').length") == num:
            break
    assert len(browser.evaluate(OPEN_DETAILS)) == num
