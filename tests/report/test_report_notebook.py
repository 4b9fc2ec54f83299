"""Traces, reports and graphs in a notebook, and the tables of a trace as data frames."""

import copy
import pickle
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rich.console
from readers import Page
from report_runs import HOSTILE

import kgverify as kv
from kgverify.report.render.first_screen import render_first_screen
from kgverify.report.wording import describe_divergence


def parse(text: str) -> tuple[set[str], set[str | None], str]:
    """Return the tags of a page, the styles of its elements, which have no other attributes, and its text."""
    root = Page(text).root
    assert all([*each.about] == ["style"] for each in root.all())
    return {each.tag for each in root.all()}, {each.about["style"] for each in root.all()}, root.text


def find_hidden(text: str) -> list[str]:
    return [each for each in text if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "a.h5"
    return kv.record("countries", path, "reference", queries=1, corruptions=3).path


def test_what_a_notebook_shows_is_text_in_one_element(faulty, hostile):
    for verification in (faulty, hostile):
        trace = kv.open_trace(verification.folder / "expected.h5")
        for name, each in enumerate((trace, trace.candidate(0), trace.step(0, 0))):
            html = each._repr_html_()
            tags, styles, text = parse(html)
            assert tags == {"pre"}, name
            assert find_hidden(text) == [], name
            assert all("url" not in style for style in styles)
            assert len(html) < 100_000


def test_a_graph_is_shown_by_its_first_rules_and_triples():
    graph = kv.load_graph("countries")
    assert repr(graph) == "<KnowledgeGraph countries: 999 train, 24 valid, 24 test, 3 rules, 3 domains>"
    text = parse(graph._repr_html_())[2]
    assert "locatedInCR(X, Z) <- neighborOf(X, Y), locatedInCR(Y, Z)" in text
    assert "... and 989 more" in text
    hostile = kv.KnowledgeGraph(HOSTILE[0], train=tuple(kv.NamedAtom(name, name, name) for name in HOSTILE))
    tags, _, text = parse(hostile._repr_html_())
    assert (tags, find_hidden(text)) == ({"pre"}, [])


def test_the_first_screen_is_a_fragment_without_a_script(faulty, hostile, agreeing):
    for verification in (faulty, hostile, agreeing):
        root = Page(render_first_screen(verification.report)).root
        assert not {"script", "html", "body", "img", "a"} & {each.tag for each in root.all()}
        assert not [
            name for each in root.all() for name in each.about if name.startswith("on") or name in ("src", "href")
        ]
        assert verification.report.verdict.value in root.text
        assert find_hidden(root.text) == []
        first = verification.report.first_cause
        assert first is None or describe_divergence(first) in root.text


def test_a_trace_prints_as_the_terminal_shows_it_and_its_repr_is_a_line(recorded, monkeypatch):
    monkeypatch.chdir(recorded.parent)
    trace = kv.open_trace(recorded.name)
    line = f"a.h5: reference, {trace.num_candidates} candidates, {trace.num_steps} steps"
    assert repr(trace) == f"<RecordedTrace {line}>"
    assert repr(trace.load()) == f"<Trace {line}>"
    for each in (trace, trace.candidate(0), trace.step(0, 0)):
        shown = [text.rstrip() for text in str(each).rstrip("\n").splitlines()]
        assert shown == [text.rstrip() for text in parse(each._repr_html_())[2].splitlines()]


def test_a_notebook_shows_each_value_once_and_hints_in_words_of_python(faulty, recorded, monkeypatch):
    displayed: list[object] = []
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=displayed.append))
    trace, proofs = kv.open_trace(recorded), kv.why("locatedInCR(armenia, asia)")
    for each in (faulty.report, trace, trace.candidate(0), proofs):
        assert str(each)
        assert Page(each._repr_html_()).root.text
    assert displayed == []
    assert "kgverify.shrink(report)" in faulty.report._repr_html_()
    assert "locatedInCR(armenia, asia)" in repr(proofs) != str(proofs)
    long = kv.open_trace(faulty.folder / "expected.h5")
    assert "; candidate(N) shows one" in str(long)
    assert "--" not in str(kv.UserError("no GPU", fix="leave --rank-only out, or use --mode eager with --tune slots=8"))
    assert 'Evaluator(mode="eager") with slots=8' in str(
        kv.UserError("no GPU", fix="use --mode eager with --tune slots=8")
    )
    assert "--mode plain" in str(kv.UserError("no GPU", fix="use kgverify diff --mode plain"))


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


def test_both_data_frames_have_the_rows_of_each_table(recorded):
    trace = kv.open_trace(recorded)
    columns = trace.load().columns
    lengths = {"candidates": trace.num_candidates, "steps": trace.num_steps, "rankings": 2}
    frames = {}
    for table in (*lengths, "resolvents"):
        frames[table] = frame = trace.to_pandas(table)
        assert frame.to_dict("records") == trace.to_polars(table).to_dicts()
        assert len(frame) == lengths.get(table, len(columns.resolvents.kind))
        some = trace.to_pandas(table, candidates="1-2")
        assert set(some.get("candidate", [1, 2])) == {1, 2}
        assert some.to_dict("records") == trace.to_polars(table, candidates="1-2").to_dicts()
    assert np.array_equal(frames["candidates"]["num_steps"], columns.candidates.num_steps)
    assert frames["resolvents"].groupby(["candidate", "step"])["is_chosen"].sum().isin([0, 1]).all()


def test_what_a_trace_has_not_is_an_error_with_a_fix(recorded, monkeypatch):
    trace = kv.open_trace(recorded)
    for package in ("pandas", "polars"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(kv.UserError, match=f"{package}, which is not installed") as caught:
                getattr(trace, f"to_{package}")()
            assert caught.value.fix == f"pip install 'kgverify[{package}]'"
    for call, match in (
        (lambda: trace.to_pandas("resolvent"), "did you mean 'resolvents'"),
        (lambda: trace.to_pandas(candidates="999"), "expected candidates from 0 to"),
        (lambda: trace.candidate(999), "expected a candidate from 0 to"),
    ):
        with pytest.raises(kv.UserError, match=match):
            call()
