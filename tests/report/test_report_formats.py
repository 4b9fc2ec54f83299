"""Every format is well-formed whatever the names are, and says what the report says."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest
from report_runs import HOSTILE, change, with_many_causes, without_causes

from kgverify import Verdict
from kgverify.escaping import (
    escape_markdown,
    escape_markdown_block,
    escape_markdown_code,
    escape_script,
)
from kgverify.report.render import junit
from kgverify.report.render.github import (
    MOST_ERRORS,
    annotate,
    render_annotations,
    render_markdown,
)
from kgverify.report.render.html import render_html
from kgverify.report.render.junit import render_junit
from kgverify.report.wording import clip
from kgverify.verification.verify import Verification

VOID = {"meta", "link", "br", "img", "input", "hr", "col"}
MAY_STAY_OPEN = {"html", "body", "head"}


class Outline(HTMLParser):
    """The elements and attributes of a page; fails where elements overlap."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(params=["faulty", "agreeing", "in_lockstep", "hostile"])
def verification(request: pytest.FixtureRequest) -> Verification:
    return request.getfixturevalue(request.param)


def inconclusive(verification: Verification) -> Verification:
    report = change(verification.report, verdict=Verdict.INCONCLUSIVE, reasons=("the limits differ", "x\x00<y>&"))
    return Verification(report, verification.expected, verification.actual)


def html_of(verification: Verification) -> str:
    return render_html(verification.report, verification.expected, verification.actual)


def test_the_page_is_well_formed_and_points_to_nothing_outside(verification: Verification):
    text = html_of(verification)
    outline = Outline(text)
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in outline.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "video", "audio")
        assert not {"src", "srcset", "action", "xlink:href", "background"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
        for pointer in ("aria-controls", "aria-labelledby"):
            assert attributes.get(pointer, ids[0]) in ids
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    scripts = [attributes for tag, attributes in outline.tags if tag == "script"]
    assert sum("type" not in attributes for attributes in scripts) == 1


def test_the_data_in_the_page_is_json_and_cannot_end_its_element(hostile: Verification):
    text = html_of(hostile)
    data = re.search(r'<script type="application/json" id="summary">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in data
    summary = json.loads(data)
    assert summary["run"]["graph"] == HOSTILE[0]
    assert summary["first_cause"]["atom"] == hostile.report.divergences[0].atom
    odd = {"key</script>": ["<!--", "a&b", "\u2028\u2029", "]]>"]}
    script = escape_script(msgspec.json.encode(odd))
    assert json.loads(script) == odd
    assert not set("<>&\u2028\u2029") & set(script)


def test_names_of_a_graph_come_out_as_text(hostile: Verification):
    text = re.sub(r'<script type="application/json".*?</script>', "", html_of(hostile), flags=re.DOTALL)
    for hostile_text in ("<script>alert(1)", "<img", "\"' onmouseover", "\x1b", "\x00", "\u202e"):
        assert hostile_text not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{ 7 * 7 }}{% raw %}" in text
    assert r"\x1b[31m" in text


def test_the_page_states_every_limit(verification: Verification):
    limits = change(verification.report.limits, exclude_query=False)
    text = render_html(change(verification.report, limits=limits), verification.expected, verification.actual)
    for name in ("max_depth", "max_atoms", "max_resolvents"):
        assert f"{name} {getattr(limits, name)}" in text
    assert "exclude_query False" in text


def test_junit_has_a_case_for_each_query_and_side(verification: Verification):
    root = ElementTree.fromstring(render_junit(verification.report, verification.expected))
    (suite,) = root
    cases = suite.findall("testcase")
    candidates = verification.expected.columns.candidates
    groups = set(zip(candidates.query.tolist(), candidates.side.tolist(), strict=True))
    assert len(cases) == int(suite.get("tests")) == len(groups) + 1
    failing = {(each.query, each.side) for each in verification.report.divergences}
    failures = [case for case in cases if case.find("failure") is not None]
    assert len(failures) == int(suite.get("failures")) == len(failing)
    for case, (query, side) in zip(failures, sorted(failing), strict=True):
        assert case.get("name").startswith(f"query {query}, {side}: ")
        assert case.find("failure").get("type") == "match_facts"
        assert "expected:" in case.find("failure").text
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)
    assert int(suite.get("errors")) == int(suite.get("skipped")) == 0


def test_junit_lists_a_bounded_number_of_cases_and_counts_the_others(
    verification: Verification, monkeypatch: pytest.MonkeyPatch
):
    (whole,) = ElementTree.fromstring(render_junit(verification.report, verification.expected))
    num_failing, num_cases = int(whole.get("failures", "")), int(whole.get("tests", "")) - 1
    for most in (1, num_failing) if num_failing else ():
        monkeypatch.setattr(junit, "MOST_CASES", most)
        (suite,) = ElementTree.fromstring(render_junit(verification.report, verification.expected))
        cases = suite.findall("testcase")
        # The verdict, the cases listed, and the one for all others.
        assert len(cases) == int(suite.get("tests", "")) == 1 + most + (most < num_cases)
        assert len(suite.findall("testcase/failure")) == int(suite.get("failures", ""))
        if most < num_cases:
            assert (cases[-1].find("failure") is None) == (most == num_failing)
        assert all(case.find("failure") is not None for case in cases[1 : 1 + most])


def test_an_inconclusive_run_is_an_error_in_junit_and_passes_nothing(agreeing: Verification):
    changed = inconclusive(agreeing)
    (suite,) = ElementTree.fromstring(render_junit(changed.report, changed.expected))
    cases = suite.findall("testcase")
    assert cases[0].find("error").get("message").startswith("the limits differ")
    assert r"x\x00<y>&" in cases[0].find("error").text
    assert all(case.find("skipped") is not None for case in cases[1:])
    assert (suite.get("errors"), suite.get("skipped")) == ("1", str(len(cases) - 1))


def test_divergences_of_a_query_that_the_trace_lacks_are_cases_too(faulty: Verification):
    odd = change(faulty.report.divergences[0], query=99, side="tail")
    report = change(faulty.report, divergences=(*faulty.report.divergences, odd))
    (suite,) = ElementTree.fromstring(render_junit(report, faulty.expected))
    assert suite.findall("testcase")[-1].get("name") == "query 99, tail: "


def test_markdown_tables_have_as_many_cells_in_every_row(verification: Verification):
    text = render_markdown(verification.report)
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    tables = re.findall(r"(?m)(?:^\|.*\n)+", outside)
    assert tables
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    # Of elements a page holds code and breaks of lines alone, and comments that part words.
    assert set(re.findall(r"<[^>]*>", outside)) <= {"<code>", "</code>", "<!-- -->", "<br>"}
    assert text.startswith(f"## {verification.report.verdict.value}: ")


def test_markdown_names_the_causes_the_loss_and_the_first_divergence(faulty: Verification):
    text = render_markdown(faulty.report)
    share = faulty.report.attribution.shares[0]
    assert f"match_facts (missing) explains {share.share:.4f}" in text
    assert "| match_facts (missing)<br>in this run, the facts " in text
    assert "kgverify show expected.h5 --candidate" in text
    number = faulty.report.divergences.index(faulty.report.first_cause) + 1
    assert f"kgverify show . --divergence {number}\n" in text
    assert "### Causes" not in render_markdown(without_causes(faulty.report))


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", "a&#124;b"),
        ("match_facts", "match_facts"),
        ("_a_", "&#95;a&#95;"),
        ("<b>", "&#60;b&#62;"),
        ("two\nlines", "two&#92;nlines"),
        ("@all", "&#64;<!-- -->all"),
        ("[x](y)", "&#91;x&#93;(y)"),
        ("a\\|b", "a&#92;&#124;b"),
    ],
)
def test_markdown_escapes(text: str, escaped: str):
    assert escape_markdown(text) == escaped


def test_markdown_code_holds_any_text():
    assert escape_markdown_code("p(a, X0)") == "`p(a, X0)`"
    assert escape_markdown_code("a`b|c") == "<code>a&#96;b&#124;c</code>"
    assert escape_markdown_code("") == ""
    assert escape_markdown_block("x\n````\ny") == "`````text\nx\n````\ny\n`````"


def test_annotations_are_escaped_and_one_line_each(verification: Verification):
    lines = render_annotations(verification.report).splitlines()
    for line in lines:
        assert re.fullmatch(r"::(error|warning|notice) title=[^:,]*::[^\r\n]*", line)
        assert re.search(r"%(?!25|0A|0D|3A|2C)", line) is None
    kinds = [line.split(" ")[0] for line in lines]
    assert kinds == ["::error"] * len(verification.report.causes) + ["::notice"]


def test_annotations_escape_as_the_runner_reads_them():
    assert annotate("error", "a: b, 100%", "x\r\n::warning::y%0A") == (
        "::error title=a%3A b%2C 100%25::x\\r%0A\\x3a:warning::y%250A"
    )


def test_annotations_stop_where_github_stops_showing_them(faulty: Verification):
    lines = render_annotations(with_many_causes(faulty.report, 40)).splitlines()
    assert sum(line.startswith("::error") for line in lines) == MOST_ERRORS
    plain = render_annotations(without_causes(faulty.report)).splitlines()
    assert sum(line.startswith("::error") for line in plain) == min(MOST_ERRORS, len(faulty.report.divergences))
    assert render_annotations(inconclusive(faulty).report).startswith("::warning title=kgverify%3A INCONCLUSIVE::")


def test_long_text_is_cut():
    assert clip("x" * 500, 400) == "x" * 400 + "… (100 more characters)"


def test_the_report_survives_its_json(verification: Verification):
    report = verification.report
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report
