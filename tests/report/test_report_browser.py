"""The page in a real browser: it works by keyboard, asks the network for nothing, and runs no text of a graph."""

import json
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from report_runs import SavedRun

import kgverify as kv
from kgverify.codes import SECTIONS
from kgverify.report.stepper import Position, Stepper
from kgverify.report.wording import describe_divergence

SHOWN = "shown.innerText"
IS_IN_SIGHT = (
    "(r => r.width > 0 && r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && r.right <= innerWidth)"
    "(document.querySelector('{}').getBoundingClientRect())"
)
SEEN = """(() => {
  const seen = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const range = document.createRange(), element = texts.currentNode.parentElement;
    range.selectNodeContents(texts.currentNode);
    const box = range.getBoundingClientRect();
    if (!box.width || box.bottom < 0 || box.top > innerHeight || !element.checkVisibility()) continue;
    const { backgroundColor, color } = getComputedStyle(element.closest("tr > *, [role=option], button") || element);
    seen.push([texts.currentNode.data, Math.round(box.left), Math.round(box.top), backgroundColor, color]);
  }
  return JSON.stringify([seen, document.activeElement.id]);
})()"""
"""The texts in sight with their places and colours, and the element that has the focus."""
WIDTHS = ((1280, 800), pytest.param(390, 844, marks=pytest.mark.deep))
MARKS = {
    "missing": "− missing",
    "extra": "+ extra",
    "changed": "≠ changed",
    "moved": "↕ moved",
    "score": "≠ score",
}
"""The words beside a line with two resolvents that differ."""


def open_page(
    browser: Browser,
    run: SavedRun,
    folder: Path,
    report: kv.Report | None = None,
    size: tuple[int, int] = (1280, 1600),
    **how: Any,
):
    path = folder / "report.html"
    path.write_text(run.render("--html", "-", report=report), "utf-8")
    browser.open(path, **how)
    width, height = size
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.wait_for("!document.getElementById('viewer-state')?.textContent")
    return path


def stepper_of(run: SavedRun) -> Stepper:
    """Return the stepper of the terminal, which the page imitates."""
    return Stepper(run.report, run.report.traces.expected, run.report.traces.actual)


@pytest.mark.deep
@pytest.mark.parametrize(("name", "color_scheme"), [("faulty", "dark"), ("in_lockstep", "light")])
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
    browser.call("Emulation.setDeviceMetricsOverride", width=420, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_search_lists_the_divergences_with_every_word(browser: Browser, faulty: SavedRun, tmp_path: Path):
    open_page(browser, faulty, tmp_path)
    divergences = faulty.report.divergences
    num_found = sum("armenia" in each.atom and each.side == "tail" for each in divergences)
    assert browser.evaluate(SHOWN) == f"{len(divergences)} shown"
    browser.evaluate("document.getElementById('filter-text').focus()")
    browser.type("ARMENIA tail")
    assert 0 < num_found < len(divergences)
    assert browser.evaluate(SHOWN) == f"{num_found} of {len(divergences)} shown"
    browser.type(" no such word")
    assert browser.evaluate("document.querySelectorAll('[role=option]').length") == 0
    assert browser.evaluate(SHOWN) == "no divergence fits the search"
    browser.evaluate("list.focus()")
    browser.press("n")
    assert browser.evaluate("message.innerText") == "no divergence fits the search"


def test_the_keys_of_the_terminal_move_and_the_address_names_the_step(
    browser: Browser, faulty: SavedRun, tmp_path: Path
):
    """The page is at the position of the stepper after each key, and shows what the stepper has there."""
    open_page(browser, faulty, tmp_path)
    stepper = stepper_of(faulty)
    assert browser.evaluate("location.hash") == ""
    stage_texts = (
        "[...document.querySelectorAll('button.stage')].map(e => e.innerText.replace('➤ ', '').split(/:? *\\n/))"
    )
    for key in "nfbbpnnfffffottp":
        reason = stepper.move(key)
        browser.press(key)
        assert browser.evaluate("message.innerText") == reason
        number, step, *_ = stepper.position
        assert browser.evaluate("location.hash") in ("", f"#divergence={number + 1}&step={step}")
        for selector, text in {
            "h3.at": f"Divergence {number + 1} of 30",
            "#h-step a": f"Step {step}",
            "[aria-selected=true] b": str(number + 1),
        }.items():
            assert browser.evaluate(f"document.querySelector('{selector}').innerText") == text
        typed = browser.evaluate("['go-divergence', 'go-cause'].map(id => document.getElementById(id).value)")
        assert typed == [f"{number + 1}", f"{stepper.divergence.cause + 1}"]
        assert browser.evaluate("document.querySelector('[aria-current=step]').dataset.step") == str(step)
        shown = [[texts[0].rstrip(": "), texts[-1]] for texts in browser.evaluate(stage_texts)]
        assert shown == [[line.stage, line.mark.value] for line in stepper.document().stages]
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
    for number, cause in enumerate(faulty.report.causes, 1):
        browser.evaluate("list.focus()")
        browser.press("c")
        assert browser.evaluate("document.activeElement.id") == "go-cause"
        # A number that is already there is no change of the field.
        go = f"(e => {{ e.value = {number}; e.dispatchEvent(new Event('change')) }})(document.activeElement)"
        browser.evaluate(go)
        step = faulty.report.divergences[cause.first].step
        assert browser.evaluate("location.hash") == f"#divergence={cause.first + 1}&step={step}"
    # Keys with a modifier belong to the browser: Ctrl-F searches the page.
    before = browser.evaluate("location.hash")
    for modifier in ("ctrlKey", "metaKey", "altKey"):
        event = f"new KeyboardEvent('keydown', {{key: 'f', {modifier}: true, bubbles: true, cancelable: true}})"
        assert browser.evaluate(f"document.body.dispatchEvent({event})")
    assert browser.evaluate("location.hash") == before


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_has_the_wrong_step_with_its_condition_and_its_cost(
    browser: Browser, faulty: SavedRun, tmp_path: Path, width: int, height: int
):
    open_page(browser, faulty, tmp_path, size=(width, height))
    first = faulty.report.first_cause
    for selector in (".badge", ".where", ".difference", ".first .cost", ".first summary", "nav"):
        assert browser.evaluate(IS_IN_SIGHT.format(selector)), selector
    condition = browser.evaluate("document.querySelector('.first summary').innerText")
    assert faulty.report.causes[0].condition.startswith(condition)
    assert browser.evaluate("document.querySelector('.where').innerText") == describe_divergence(first)
    missing = "[...document.querySelectorAll('.difference .differs .left b')].map(e => e.innerText)"
    assert browser.evaluate(missing) == [" ".join(each.split()) for each in first.expected]


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_a_key_changes_what_is_in_sight_and_back_undoes_it(
    browser: Browser, faulty: SavedRun, tmp_path: Path, width: int, height: int
):
    open_page(browser, faulty, tmp_path, fragment="#divergence=1&step=1", size=(width, height))
    for key in "ffffbnppsSsottdc/hgN":
        browser.evaluate("document.activeElement.blur()")
        before = browser.evaluate(SEEN)
        browser.press(key)
        after = browser.evaluate(SEEN)
        assert (after == before) == (key == "N"), key
        if key != "N":
            browser.evaluate("history.back()")
            browser.wait_for(f"{SEEN} === {json.dumps(before)}")
            browser.evaluate("history.forward()")
            browser.wait_for(f"{SEEN} === {json.dumps(after)}")


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_a_link_or_a_button_changes_what_is_in_sight(
    browser: Browser, faulty: SavedRun, tmp_path: Path, width: int, height: int
):
    open_page(browser, faulty, tmp_path, size=(width, height))
    # The links of codes lead to the docs.
    links = "[...document.querySelectorAll('a[href^=\"#\"], button')].filter(e => e.checkVisibility())"
    num = browser.evaluate(f"{links}.length")
    assert num > 30
    for i in range(num):
        browser.evaluate(f"{links}[{i}]?.scrollIntoView({{block: 'center'}})")
        before = browser.evaluate(SEEN)
        browser.evaluate(f"{links}[{i}]?.click()")
        browser.wait_for(f"{SEEN} !== {json.dumps(before)}")


def test_an_address_opens_its_step_with_both_sides_in_sight(browser: Browser, faulty: SavedRun, tmp_path: Path):
    open_page(browser, faulty, tmp_path, fragment="#divergence=3&step=0")
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.evaluate("document.querySelector('#h-step a').getAttribute('href')") == "#divergence=3&step=0"
    goals = goals_of(stepper_of(faulty), 3, 0)
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
    browser.evaluate("location.hash = '#divergence=3&step=1&stage=match_facts'")
    browser.wait_for(f"{opened}?.innerText.includes('match_facts')")
    stepper = stepper_of(faulty)
    stepper.position = Position(2, 1)
    document = stepper.document()
    marks = "[...document.querySelectorAll('#viewer td.mark')].map(e => e.lastChild?.data)"
    shown = [mark for mark in browser.evaluate(marks) if mark in MARKS.values()]
    assert shown == [MARKS[pair.mark] for pair in document.derivation.pairs if pair.mark in MARKS] != []
    (stage,) = (line for line in document.stages if line.stage == "match_facts")
    alone = [item for item in stage.expected if item not in stage.actual]
    alone += [item for item in stage.actual if item not in stage.expected]
    assert browser.evaluate("[...document.querySelectorAll('.item.only')].map(e => e.innerText)") == alone != []
    for i, side in enumerate(("left", "right")):
        chosen = [pair[1 + i] for pair in document.derivation.pairs if pair[1 + i] and pair[1 + i].is_chosen]
        by = f"[...document.querySelectorAll('.timeline tr.current .{side} .by code')].map(e => e.innerText)"
        assert browser.evaluate(by) == [each.clause or each.goal for each in chosen]
    browser.evaluate("location.hash = '#divergence=3&step=1&stage=finish'")
    browser.wait_for(f"{opened}?.innerText.includes('finish')")
    link = f"{opened}.closest('tr').nextSibling.querySelector('a').hash"
    assert browser.evaluate(link) == "#divergence=3&step=1&stage=finish"
    browser.evaluate("location.hash = '#divergence=2'")
    browser.wait_for("document.querySelector('h3.at').innerText.startsWith('Divergence 2 ')")
    for address, reason in {
        "#divergence=31&step=<img>": "this page has no divergence 31; it lists 1 to 30",
        "#divergence=2&step=99": "this page has no step 99 of divergence 2",
        "#divergence=2&step=1&stage=<b>": "this step has no stage <b>",
        "#nothing": "this page has nothing at #nothing",
    }.items():
        browser.evaluate(f"location.hash = '{address}'")
        browser.wait_for(f"message.innerText === '{reason}'")
        assert browser.evaluate(IS_IN_SIGHT.format("#message"))
        assert browser.evaluate("document.querySelector('h3.at').innerText") == "Divergence 2 of 30"


def test_the_timeline_shows_the_goal_of_each_side_or_that_it_has_no_such_step(
    browser: Browser, faulty: SavedRun, tmp_path: Path
):
    open_page(browser, faulty, tmp_path)
    stepper = stepper_of(faulty)
    rows = "[...document.querySelectorAll('.timeline tbody tr')].map(r => [...r.cells].slice(1).map(c => c.firstChild.innerText))"
    goals = [goals_of(stepper, 1, step) for step in range(max(stepper.reader.num_steps(stepper.divergence)))]
    assert any("" in sides for sides in goals)
    assert browser.evaluate(rows) == [[goal or "no such step" for goal in sides] for sides in goals]


def test_the_proof_tree_opens_by_key_and_leads_to_its_steps(browser: Browser, faulty: SavedRun, tmp_path: Path):
    open_page(browser, faulty, tmp_path)
    browser.press("t")
    stepper = stepper_of(faulty)
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


def test_text_of_a_graph_is_inert(browser: Browser, hostile: SavedRun, tmp_path: Path):
    open_page(browser, hostile, tmp_path)
    browser.evaluate("document.querySelectorAll('button.open').forEach(e => e.click())")
    assert browser.dialogs == []
    assert browser.evaluate("[...document.scripts].filter(e => !e.type).length") == 1
    assert browser.evaluate("document.scripts.length") == 5
    outside = f'a[href]:not([href^="#"]):not([href^="{SECTIONS}"])'
    assert browser.evaluate(f"document.querySelectorAll('img, iframe, object, {outside}').length") == 0
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


def test_even_a_script_that_got_into_the_page_would_not_run(browser: Browser, faulty: SavedRun, tmp_path: Path):
    path = open_page(browser, faulty, tmp_path)
    text = path.read_text("utf-8")
    added = "<script>alert(1)</script><img src=data:, onerror=alert(2)><img src='https://example.invalid/x'>"
    path.write_text(text.replace("</header>", f"{added}</header>"), "utf-8")
    browser.open(path)
    assert browser.dialogs == []
    assert sorted(browser.forbidden) == sorted(url for url in browser.requests if url != path.as_uri())
    assert "https://example.invalid/x" in browser.forbidden
    assert any("Content Security Policy" in error for error in browser.errors)
