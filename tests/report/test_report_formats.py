"""Every format is well-formed whatever the names are, and says what the report as JSON says."""

import base64
import json
import re
import zlib
from xml.etree import ElementTree

import msgspec
import pytest
from readers import Page
from report_runs import SavedRun, change, enlarged, with_many_causes, without_causes

import kgverify as kv
from kgverify.codes import SECTIONS
from kgverify.comparison.result import NO_CANDIDATE


def inconclusive(report: kv.Report) -> kv.Report:
    return change(report, verdict=kv.Verdict.INCONCLUSIVE, reasons=("the limits differ", "x\x00<y>&"))


def read_junit(run: SavedRun, report: kv.Report | None = None) -> ElementTree.Element:
    (suite,) = ElementTree.fromstring(run.render("--junit", "-", report=report))
    return suite


def test_the_report_survives_its_json(any_run: SavedRun):
    encoded = (any_run.folder / "report.json").read_bytes()
    found = msgspec.json.decode(encoded, type=kv.Report)
    assert change(found, job=None) == change(any_run.report, job=None)
    assert msgspec.json.encode(found.job) == msgspec.json.encode(any_run.report.job)
    assert any_run.render("--json", "-").encode() == encoded


def test_the_page_is_well_formed_and_points_to_nothing_outside(any_run: SavedRun):
    text = any_run.render("--html", "-")
    tags = [(each.tag, each.about) for each in Page(text).root.all()]
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "video", "audio")
        assert not {"src", "srcset", "action", "xlink:href", "background"} & attributes.keys()
        # The sections of the codes are the only pages to which it leads.
        assert re.match(rf"#|{re.escape(SECTIONS)}kg\d+$", attributes.get("href", "#"))
        assert not [name for name in attributes if name.startswith("on")]
        for pointer in ("aria-controls", "aria-labelledby"):
            assert attributes.get(pointer, ids[0]) in ids
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert not re.search(r"url\(|@import", style)
    assert sum("type" not in attributes for tag, attributes in tags if tag == "script") == 1


def test_names_of_a_graph_come_out_as_text(hostile: SavedRun):
    page = hostile.render("--html", "-")
    scripts = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert not any("<" in script for script in scripts)
    text = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    for name in ("<script>alert(1)", "<img", "\"' onmouseover", "\x1b", "\x00", "\u202e"):
        assert name not in text
    for name in ("&lt;script&gt;alert(1)&lt;/script&gt;", "{{ 7 * 7 }}{% raw %}", r"\x1b[31m"):
        assert name in text


@pytest.mark.parametrize("make", [with_many_causes, lambda report, num: without_causes(enlarged(report, num))])
def test_two_thousand_divergences_make_a_page_of_bounded_size(faulty: SavedRun, make):
    html = faulty.render("--html", "-", report=make(faulty.report, 2000))
    assert html.count('<tbody class="entry') == 100
    detailed = html.count('<tr class="detail"')
    assert 10 < detailed <= 30
    assert '<p class="soft">… and 1,900 more in report.json</p>' in html
    assert f'<p class="soft">To keep the page small {100 - detailed} rows do not open' in html
    data = re.findall(r'<script type="[a-z/]*" id="[a-z-]*">([^<]*)</script>', html)
    assert len(html.encode()) - sum(map(len, data)) < 200_000


@pytest.mark.deep
def test_texts_as_long_as_their_author_liked_are_cut(faulty: SavedRun):
    report = without_causes(enlarged(faulty.report, 500))
    texts = {"atom": "x" * 100_000, "goal": "y" * 100_000, "expected": ["z" * 9_999] * 13}
    long = tuple(change(each, **texts) for each in report.divergences)
    html = faulty.render("--html", "-", report=change(report, divergences=long, first_cause=long[0]))
    assert len(html.encode()) < 1_500_000


def test_junit_passes_the_rankings_that_it_does_not_list_if_none_of_them_diverges(
    faulty: SavedRun, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kgverify.report.render.junit.MOST_CASES", 2)
    plain = without_causes(faulty.report)
    *_, others = read_junit(faulty, change(plain, divergences=(plain.first_cause,))).findall("testcase")
    assert others.find("failure") is None


@pytest.mark.parametrize("most", [1, 4])
def test_junit_lists_a_bounded_number_of_cases_and_counts_the_others(
    faulty: SavedRun, monkeypatch: pytest.MonkeyPatch, most: int
):
    num_failing = int(read_junit(faulty).get("failures"))
    monkeypatch.setattr("kgverify.report.render.junit.MOST_CASES", most)
    suite = read_junit(faulty)
    cases = suite.findall("testcase")
    # The verdict, the cases listed, and the one for all others.
    assert len(cases) == int(suite.get("tests")) == 1 + most + 1
    assert len(suite.findall("testcase/failure")) == int(suite.get("failures"))
    assert all(case.find("failure") is not None for case in cases[1 : 1 + min(most, num_failing)])
    assert (cases[-1].find("failure") is None) == (most >= num_failing)


def test_an_inconclusive_run_is_an_error_in_junit_and_passes_nothing(agreeing: SavedRun):
    suite = read_junit(agreeing, inconclusive(agreeing.report))
    cases = suite.findall("testcase")
    assert cases[0].find("error").get("message").startswith("the limits differ")
    assert r"x\x00<y>&" in cases[0].find("error").text
    assert all(case.find("skipped") is not None for case in cases[1:])
    assert (suite.get("errors"), suite.get("skipped")) == ("1", str(len(cases) - 1))


def test_divergences_of_a_query_that_the_trace_lacks_are_cases_too(faulty: SavedRun):
    odd = change(faulty.report.divergences[0], query=99, side="tail")
    suite = read_junit(faulty, change(faulty.report, divergences=(*faulty.report.divergences, odd)))
    assert suite.findall("testcase")[-1].get("name") == "query 99, tail: "


def test_markdown_tables_have_the_same_number_of_cells_in_every_row(any_run: SavedRun):
    text = any_run.render("--markdown", "-")
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    tables = re.findall(r"(?m)(?:^\|.*\n)+", outside)
    assert tables
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    # Of elements a page holds code and breaks of lines alone, and comments that part words.
    assert set(re.findall(r"<[^>]*>", outside)) <= {"<code>", "</code>", "<!-- -->", "<br>"}
    assert text.startswith(f"## {any_run.report.verdict.value}: ")


def test_a_candidate_that_only_the_actual_side_has_is_not_shown_in_the_expected_trace(faulty: SavedRun):
    extra = change(faulty.report.first_cause, expected=NO_CANDIDATE)
    others = [each for each in faulty.report.divergences if each != faulty.report.first_cause]
    text = faulty.render(
        "--markdown", "-", report=change(faulty.report, divergences=(extra, *others), first_cause=extra)
    )
    assert "kgverify show . --divergence" in text
    assert "kgverify show expected.h5" not in text


def test_annotations_are_escaped_and_one_line_each(any_run: SavedRun):
    lines = any_run.render("--github").splitlines()
    for line in lines:
        assert re.fullmatch(r"::(error|warning|notice) (file=[^:,]*,line=\d+,)?title=[^:,]*::[^\r\n]*", line)
        assert re.search(r"%(?!25|0A|0D|3A|2C)", line) is None
    kinds = [line.split(" ")[0] for line in lines]
    assert kinds == ["::error"] * len(any_run.report.causes) + ["::notice"]


def test_annotations_stop_where_github_stops_showing_them(faulty: SavedRun):
    for report in (with_many_causes(faulty.report, 40), without_causes(faulty.report)):
        assert faulty.render("--github", report=report).count("::error") == 10
    shown = faulty.render("--github", report=inconclusive(faulty.report))
    assert shown.startswith("::warning title=kgverify%3A INCONCLUSIVE::")


def test_the_viewer_has_every_divergence_with_all_of_its_steps(faulty: SavedRun):
    page = faulty.render("--html", "-")
    data = dict(re.findall(r'<script type="[a-z/]*" id="([a-z-]*)">([^<]*)</script>', page))
    listed, stepped = (
        json.loads(zlib.decompress(base64.b64decode(data[name]))) for name in ("divergence-data", "step-data")
    )
    divergences = faulty.report.divergences
    assert [listed["texts"][code] for code in listed["columns"]["atom"]] == [each.atom for each in divergences]
    assert [*map(int, sorted(stepped["divergences"], key=int))] == [*range(len(divergences))]
    for index, found in stepped["divergences"].items():
        steps = [stepped["steps"][number] for number in found["steps"]]
        assert [number for number, *_ in steps] == list(range(max(found["num_steps"])))
        own = divergences[int(index)].step
        assert [number for number, mark, *_ in steps if mark == "differs"] == [own]
        assert [line[0] for line in steps[own][3] if line[5]] == ["match_facts"]
