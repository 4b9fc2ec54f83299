"""Traces, reports and graphs in a notebook, and the tables of a trace as data frames."""

import copy
import pickle
import re
import sys
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_runs import HOSTILE

import kgverify as kv
from kgverify.program.atoms import NamedAtom
from kgverify.report.render.terminal import COLOURS
from kgverify.report.tables import TABLES, list_table, to_pandas, to_polars
from kgverify.trace.write.writer import write_again
from kgverify.verification.verify import Verification

FRAMES = {"to_pandas": "pandas", "to_polars": "polars"}


class Parsed(HTMLParser):
    """The elements of a page, with the text and the styles in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.styles: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert [name for name, _ in attrs] == ["style"]
        self.styles.add(attrs[0][1])

    def handle_data(self, data):
        self.text += data


def find_hidden(text: str) -> list[str]:
    return [each for each in text if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "a.h5"
    return kv.record("countries", path, "reference", queries=1, corruptions=3).path


def displays(verification: Verification, folder: Path) -> dict[str, str]:
    write_again(verification.expected, folder / "a.h5")
    trace = kv.open_trace(folder / "a.h5")
    shown = {"report": verification.report, "trace": trace, "candidate": trace.candidate(0), "step": trace.step(0, 0)}
    return {name: each._repr_html_() for name, each in shown.items()}


def test_what_a_notebook_shows_is_text_in_two_elements(faulty, hostile, tmp_path):
    for number, verification in enumerate((faulty, hostile)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, html in displays(verification, folder).items():
            parsed = Parsed(html)
            assert parsed.tags == {"pre", "span"}, name
            assert find_hidden(parsed.text) == [], name
            assert all("url" not in style for style in parsed.styles)
            assert len(html) < 100_000


def test_a_notebook_shows_what_the_terminal_shows(faulty):
    shown = [line.rstrip() for line in Parsed(faulty.report._repr_html_()).text.splitlines()]
    assert shown == [line.rstrip() for line in str(faulty.report).rstrip("\n").splitlines()]


def test_a_graph_is_shown_by_its_first_rules_and_triples():
    graph = kv.load_graph("countries")
    assert repr(graph) == "<KnowledgeGraph countries: 999 train, 24 valid, 24 test, 3 rules, 3 domains>"
    text = Parsed(graph._repr_html_()).text
    assert "locatedInCR(X, Z) <- neighborOf(X, Y), locatedInCR(Y, Z)" in text
    assert "... and 989 more" in text
    hostile = kv.KnowledgeGraph(HOSTILE[0], train=tuple(NamedAtom(name, name, name) for name in HOSTILE))
    parsed = Parsed(hostile._repr_html_())
    assert (parsed.tags, find_hidden(parsed.text)) == ({"pre"}, [])


def test_a_trace_prints_as_the_terminal_shows_it_and_its_repr_is_a_line(recorded, monkeypatch):
    monkeypatch.chdir(recorded.parent)
    trace = kv.open_trace(recorded.name)
    line = f"a.h5: reference, {trace.num_candidates} candidates, {trace.num_steps} steps"
    assert repr(trace) == f"<RecordedTrace {line}>"
    assert repr(trace.load()) == f"<Trace {line}>"
    for each in (trace, trace.candidate(0), trace.step(0, 0)):
        shown = [text.rstrip() for text in str(each).rstrip("\n").splitlines()]
        assert shown == [text.rstrip() for text in Parsed(each._repr_html_()).text.splitlines()]


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("shard_steps", [1_000_000, 5])
def test_an_opened_trace_pickles_and_is_opened_again(tmp_path, monkeypatch, shard_steps):
    monkeypatch.chdir(tmp_path)
    options = kv.RecordingOptions(shard_steps=shard_steps)
    kv.record("countries", "a.h5", "reference", queries=1, corruptions=3, options=options)
    trace = kv.open_trace("a.h5", is_lazy=True)
    step, root, content = trace.step(0, 0), trace.load().root, pickle.dumps(trace)
    monkeypatch.chdir("/")
    again = pickle.loads(content)
    assert type(again) is type(trace)
    assert (again.num_candidates, again.num_steps) == (trace.num_candidates, trace.num_steps)
    assert again.step(0, 0) == step
    assert copy.copy(again).load().root == root
    (tmp_path / "a.h5").rename(tmp_path / "b.h5")
    with pytest.raises(kv.UserError, match="no such trace"):
        pickle.loads(content)


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_colours_can_be_read_on_light_and_dark_pages(page):
    for colour in COLOURS.values():
        low, high = sorted((luminance(colour), luminance(page)))
        assert (high + 0.05) / (low + 0.05) >= 4, colour


@pytest.mark.parametrize("table", TABLES)
def test_both_data_frames_have_the_rows_of_the_table(recorded, table):
    trace = kv.open_trace(recorded)
    rows = list(list_table(trace.load(), table).rows)
    pandas, polars = trace.to_pandas(table), trace.to_polars(table)
    assert pandas.to_dict("records") == polars.to_dicts() == rows
    columns = trace.load().columns
    lengths = {
        "candidates": trace.num_candidates,
        "steps": trace.num_steps,
        "resolvents": len(columns.resolvents.kind),
        "rankings": 2,
    }
    assert len(rows) == lengths[table]
    if table == "candidates":
        assert np.array_equal(pandas["num_steps"], columns.candidates.num_steps)
    if table == "resolvents":
        assert pandas.groupby(["candidate", "step"])["is_chosen"].sum().isin([0, 1]).all()


@pytest.mark.parametrize("table", TABLES)
def test_a_table_without_rows_has_the_same_columns_and_types(recorded, table):
    trace = kv.open_trace(recorded)
    none = np.arange(0)
    assert (to_polars(list_table(trace.load(), table, none)).schema) == trace.to_polars(table).schema
    empty, full = to_pandas(list_table(trace.load(), table, none)), trace.to_pandas(table)
    assert list(empty) == list(full)
    numbers = full.select_dtypes(["number", "bool"])
    assert len(numbers.columns)
    assert (empty.dtypes[numbers.columns] == numbers.dtypes).all()


def test_a_frame_of_some_candidates(recorded):
    frame = kv.open_trace(recorded).to_pandas("steps", candidates="1-2")
    assert set(frame["candidate"]) == {1, 2}


@pytest.mark.parametrize("level", ["digests", "compact", "deep"])
def test_frames_have_the_columns_that_the_level_keeps(level, tmp_path):
    trace = kv.open_trace(
        kv.record(
            "countries",
            tmp_path / "a.h5",
            "reference",
            queries=1,
            corruptions=1,
            options=kv.RecordingOptions(level=level),
        ).path
    )
    frame = trace.to_pandas()
    # The goals of a compact trace are rebuilt.
    assert ("goal" in frame) == (level != "digests")
    assert ("stages" in frame) == (level == "deep")
    assert len(trace.to_polars("resolvents")) == (frame["num_resolvents"].sum() if level != "digests" else 0)


@pytest.mark.parametrize(("method", "package"), FRAMES.items())
def test_a_missing_package_names_its_extra(recorded, monkeypatch, method, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(kv.UserError, match=re.escape(f"{package}, which is not installed")) as caught:
        getattr(kv.open_trace(recorded), method)()
    assert caught.value.fix == f"pip install 'kgverify[{package}]'"


def test_what_a_trace_has_not_is_an_error_with_a_fix(recorded):
    trace = kv.open_trace(recorded)
    with pytest.raises(kv.UserError, match="did you mean 'resolvents'"):
        trace.to_pandas("resolvent")
    with pytest.raises(kv.UserError, match="expected candidates from 0 to"):
        trace.to_pandas(candidates="999")
    with pytest.raises(kv.UserError, match="expected a candidate from 0 to"):
        trace.candidate(999)


def test_the_blocks_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "which.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile("\n".join(blocks), "which.md", "exec"), names)
    tables = re.findall(r"^\| `(\w+)` \| (`(?:candidate|query)`.*) \|$", page, re.MULTILINE)
    assert len(tables) == 4
    for table, columns in tables:
        held = list(names["trace"].to_pandas(table))
        assert [name for name in re.findall(r"\w+", columns) if name != "stages"] == held
