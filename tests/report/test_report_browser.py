"""The page in a real browser: it works by keyboard, asks the network for nothing, and runs no text of a graph."""

from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from report_runs import change, enlarged, with_many_causes, without_causes

from kgverify import Report
from kgverify.program.outcomes import DifferenceClass
from kgverify.report.render.html import MOST_LISTED, render_html
from kgverify.report.stepper import Position, Stepper
from kgverify.verification.verify import Verification

SHOWN = "shown.innerText"
OPTIONS = "[...document.querySelectorAll('[role=option]')]"
OPEN_DETAILS = "[...document.querySelectorAll('tr.detail')].filter(e => e.offsetHeight > 0).map(e => e.id)"


def open_page(browser: Browser, verification: Verification, folder: Path, report: Report | None = None, **how: Any):
    path = folder / "report.html"
    path.write_text(render_html(report or verification.report, verification.expected, verification.actual), "utf-8")
    browser.open(path, **how)
    browser.wait_for("!document.getElementById('viewer-state')?.textContent")
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


def test_the_search_lists_the_divergences_with_every_word(browser: Browser, faulty: Verification, tmp_path: Path):
    report = two_kinds(faulty.report)
    open_page(browser, faulty, tmp_path, report)
    num = len(report.divergences)
    assert browser.evaluate(SHOWN) == f"{num} shown"
    browser.evaluate("document.getElementById('filter-text').focus()")
    browser.type("SCORE by hand")
    num_scores = sum(each.stage == "score" for each in report.divergences)
    assert 0 < num_scores < num
    assert browser.evaluate(SHOWN) == f"{num_scores} of {num} shown"
    stages = f"{OPTIONS}.map(e => e.querySelector('.what').innerText.split(' ')[1])"
    assert set(browser.evaluate(stages)) == {"score"}
    browser.type(" no such word")
    assert browser.evaluate(f"{OPTIONS}.length") == 0
    browser.evaluate("list.focus()")
    browser.press("n")
    assert browser.evaluate("message.innerText") == "no divergence fits the search"


def test_the_selects_and_the_heat_map_filter_the_list(browser: Browser, faulty: Verification, tmp_path: Path):
    report = two_kinds(faulty.report)
    open_page(browser, faulty, tmp_path, report)
    num = len(report.divergences)
    shown = f"{sum(each.stage == 'score' for each in report.divergences)} of {num} shown"
    for select, value in (("stage", "score"), ("kind", "rounding")):
        chosen = f"document.getElementById('filter-{select}')"
        options = browser.evaluate(f"[...{chosen}.options].map(e => e.value)")
        assert options[0] == ""
        assert value in options
        for choice, text in ((value, shown), ("", f"{num} shown")):
            browser.evaluate(f"{chosen}.value = '{choice}'; {chosen}.dispatchEvent(new Event('change'))")
            assert browser.evaluate(SHOWN) == text
    browser.evaluate("document.querySelector('.heat button[data-stage=score]').focus()")
    browser.press("Enter")
    assert browser.evaluate("document.getElementById('filter-stage').value") == "score"
    assert browser.evaluate("document.activeElement.id") == "filter-stage"
    assert browser.evaluate(SHOWN) == shown


def test_the_keys_of_the_terminal_move_and_the_address_names_the_step(
    browser: Browser, faulty: Verification, tmp_path: Path
):
    """The page is at the position of the stepper after each key, and shows what the stepper has there."""
    open_page(browser, faulty, tmp_path)
    stepper = Stepper(faulty.report, faulty.expected, faulty.actual)
    assert browser.evaluate("location.hash") == ""
    for key in "nfbbpnnfffffottp":
        reason = stepper.move(key)
        browser.press(key)
        assert browser.evaluate("message.innerText") == reason
        number, step, *_ = stepper.position
        assert browser.evaluate("location.hash") in ("", f"#divergence={number + 1}&step={step}")
        assert browser.evaluate("document.querySelector('h3.at').innerText") == f"Divergence {number + 1} of 30"
        assert browser.evaluate("document.querySelector('#h-step a').innerText") == f"Step {step}"
        assert browser.evaluate("document.querySelector('[aria-current=step]').dataset.step") == str(step)
        assert browser.evaluate("document.querySelector('[aria-selected=true] b').innerText") == str(number + 1)
        stages = [[line.stage, line.mark.value] for line in stepper.document().stages]
        shown = (
            "[...document.querySelectorAll('button.stage')].map(e => e.innerText.replace('➤ ', '').split(/:? *\\n/))"
        )
        assert [[each[0].rstrip(": "), each[-1]] for each in browser.evaluate(shown)] == stages
        announced = browser.evaluate("announced.textContent")
        assert announced.startswith(f"Divergence {number + 1}, step {step}: ")
    browser.evaluate("document.querySelector('.timeline button').focus()")
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.dataset.step") == "0"
    browser.press("n")
    assert browser.evaluate("document.activeElement.id") == "position"
    browser.press("S", shift=True)
    browser.press("s")
    assert browser.evaluate("document.querySelectorAll('button.stage[aria-expanded=true]').length") == 1
    browser.press("d")
    assert browser.evaluate("document.activeElement.id") == "go-divergence"
    browser.type("30")
    browser.press("Enter")
    assert browser.evaluate("location.hash") == f"#divergence=30&step={faulty.report.divergences[29].step}"


def test_an_address_opens_its_step_with_both_sides_in_sight(browser: Browser, faulty: Verification, tmp_path: Path):
    open_page(browser, faulty, tmp_path, fragment="#divergence=3&step=0")
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.evaluate("document.querySelector('#h-step a').getAttribute('href')") == "#divergence=3&step=0"
    goals = goals_of(Stepper(faulty.report, faulty.expected, faulty.actual), 3, 0)
    for side, goal in zip(("left", "right"), goals, strict=True):
        cell = f"document.querySelector('.timeline tr.current .{side}')"
        assert browser.evaluate(f"{cell}.querySelector('code').innerText") == goal
        edges = browser.evaluate(f"(r => [r.left, r.right])({cell}.getBoundingClientRect())")
        assert 0 <= edges[0] < edges[1] <= 390
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.evaluate("document.querySelector('button.stage[data-stage=\"3\"]').click()")
    assert browser.evaluate("location.hash") == "#divergence=3&step=0&stage=match_facts"
    browser.evaluate("location.hash = '#divergence=3&step=1&stage=finish'")
    opened = "document.querySelector('button.stage[aria-expanded=true]')"
    browser.wait_for(f"{opened}?.innerText.startsWith('finish')")
    link = f"{opened}.closest('tr').nextSibling.querySelector('a').hash"
    assert browser.evaluate(link) == "#divergence=3&step=1&stage=finish"
    browser.evaluate("location.hash = '#divergence=2'")
    browser.wait_for("document.querySelector('h3.at').innerText.startsWith('Divergence 2 ')")
    browser.evaluate("location.hash = '#divergence=31&step=<img>'")
    assert browser.evaluate("document.querySelector('h3.at').innerText") == "Divergence 2 of 30"


def test_the_proof_tree_opens_by_key_and_leads_to_its_steps(browser: Browser, faulty: Verification, tmp_path: Path):
    open_page(browser, faulty, tmp_path)
    browser.press("t")
    stepper = Stepper(faulty.report, faulty.expected, faulty.actual)
    tree = stepper.reader.trees(stepper.divergence)[0]
    shown = "[...document.querySelectorAll('.tree .left li')].map(e => e.querySelector('code').innerText)"
    assert browser.evaluate(shown) == [line.atom for line in tree]
    assert browser.evaluate("document.querySelectorAll('.tree .left ul ul').length") == max(line.depth for line in tree)
    browser.evaluate("document.querySelector('.tree button').click()")
    assert browser.evaluate("location.hash") == "#divergence=1&step=0"
    browser.press("n")
    assert browser.evaluate("document.querySelector('.tree').open")
    browser.press("t")
    assert not browser.evaluate("document.querySelector('.tree').open")


def goals_of(stepper: Stepper, number: int, step: int) -> list[str]:
    stepper.position = Position(number - 1, step)
    found = stepper.document().derivation
    assert found is not None
    return [", ".join(atoms[side] for atoms in found.goals if atoms[side]) for side in (0, 1)]


@pytest.mark.deep
def test_a_browser_that_cannot_decompress_says_so(browser: Browser, faulty: Verification, tmp_path: Path):
    path = open_page(browser, faulty, tmp_path)
    browser.call("Page.addScriptToEvaluateOnNewDocument", source="delete globalThis.DecompressionStream")
    browser.call("Page.navigate", url=path.as_uri() + "?again")
    browser.wait_for("document.getElementById('viewer-state')?.textContent.includes('lacks DecompressionStream')")
    assert browser.evaluate("document.getElementById('viewer').hidden")
    assert browser.evaluate("document.querySelectorAll('tbody.entry').length") == len(faulty.report.causes)


@pytest.mark.deep
def test_a_hundred_thousand_divergences_are_listed_and_few_of_them_are_elements(
    browser: Browser, faulty: Verification, tmp_path: Path
):
    report = enlarged(faulty.report, MOST_LISTED + 5)
    open_page(browser, faulty, tmp_path, report)
    assert "of which the first 100,000 are listed" in browser.evaluate(
        "document.getElementById('divergences').innerText"
    )
    assert browser.evaluate(SHOWN) == "100,000 shown"
    browser.evaluate("list.focus()")
    browser.press("End")
    assert browser.evaluate("location.hash").startswith("#divergence=100000&")
    assert "kgverify show . --divergence 100000" in browser.evaluate("position.innerText")
    browser.wait_for("document.querySelector('[aria-selected=true] b')?.innerText === '100000'")
    assert 0 < browser.evaluate("document.querySelectorAll('[role=option]').length") < 60
    for key, number in (("ArrowUp", 99_999), ("p", 99_998), ("Home", 1)):
        browser.press(key)
        assert browser.evaluate("document.querySelector('h3.at').innerText") == f"Divergence {number:,} of 100,005"
    assert browser.errors == []


@pytest.mark.deep
def test_print_has_the_step_without_the_controls(browser: Browser, faulty: Verification, tmp_path: Path):
    open_page(browser, faulty, tmp_path, fragment="#divergence=2")
    browser.call("Emulation.setEmulatedMedia", media="print")
    for hidden in (".moves", "#list", ".filters", ".help"):
        assert browser.evaluate(f"getComputedStyle(document.querySelector('#viewer {hidden}')).display") == "none"
    assert browser.evaluate("document.querySelector('.timeline').offsetHeight > 0")
    assert browser.evaluate("document.querySelectorAll('button.stage').length > 10")
    assert browser.evaluate("getComputedStyle(document.querySelector('.timeline')).maxHeight") == "none"


def test_a_row_opens_and_closes_by_keyboard(browser: Browser, faulty: Verification, tmp_path: Path):
    open_page(browser, faulty, tmp_path, with_many_causes(faulty.report, 5))
    assert browser.evaluate(OPEN_DETAILS) == ["d1"]
    browser.evaluate("document.querySelector('.heat tr:last-child button').focus()")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.getAttribute('aria-controls')") == "d1"
    expanded = "document.activeElement.getAttribute('aria-expanded')"
    for key, state, is_open in (("Enter", "false", []), (" ", "true", ["d1"])):
        browser.press(key)
        assert browser.evaluate(expanded) == state
        assert browser.evaluate(OPEN_DETAILS) == is_open
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.hash") == "#divergence=1"
    browser.press("Tab")
    browser.press("Enter")
    assert browser.evaluate(OPEN_DETAILS) == ["d1", "d2"]
    browser.press("Tab", shift=True)
    browser.press("Tab", shift=True)
    assert browser.evaluate("document.activeElement.getAttribute('aria-controls')") == "d1"


def test_text_of_a_graph_is_inert(browser: Browser, hostile: Verification, tmp_path: Path):
    open_page(browser, hostile, tmp_path)
    browser.evaluate("document.querySelectorAll('button.open').forEach(e => e.click())")
    assert browser.dialogs == []
    assert browser.evaluate("[...document.scripts].filter(e => !e.type).length") == 1
    assert browser.evaluate("document.scripts.length") == 5
    assert browser.evaluate("document.querySelectorAll('img, iframe, object, a[href]:not([href^=\"#\"])').length") == 0
    handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
    assert browser.evaluate(handlers) == []
    body = browser.evaluate("document.body.innerText")
    viewed = browser.evaluate("document.getElementById('viewer').innerText")
    assert "<script>alert(1)</script>" in viewed
    assert "</script><img src=x onerror=alert(2)>" in viewed
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
    num = path.read_text("utf-8").count('<tr class="detail"')
    assert num > 10
    browser.wait_for(f"document.querySelectorAll('tr.detail').length === {num}")
    assert len(browser.evaluate(OPEN_DETAILS)) == num
    assert "need JavaScript" in browser.evaluate("document.body.innerText")
