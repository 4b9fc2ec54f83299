"""The report in a terminal: the steps before the first divergence, the arrow, what follows, and what to type next."""

import re
from pathlib import Path

import msgspec
import pytest
from invoked_commands import invoke
from report_runs import SavedRun, change, without_causes

import kgverify as kv


def test_the_last_agreeing_steps_stand_above_the_arrow(faulty: SavedRun):
    lines = faulty.render().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("first divergence: match_facts at step 1"))
    assert lines[start + 1].split()[0] == "candidate"
    assert lines[start + 2].split() == ["step", "0", "locatedInCR(armenia,", "asia)", "agrees"]
    assert "by locatedInCR(X, Z) <- neighborOf(X, Y), locatedInCR(Y, Z) [rules.txt:1]" in lines[start + 3]
    assert lines[start + 4].startswith("-> step 1 ")
    assert lines[start + 4].rstrip().endswith("neighborOf(armenia, X0), locatedInCR(X0, asia)   match_facts")


def test_its_consequences_and_the_cost_of_its_cause_are_printed(faulty: SavedRun):
    text, first = faulty.render(), faulty.report.divergences[0]
    num = faulty.report.causes[0].num_divergences
    assert f"{first.later_steps} later differences follow from this one." in text
    assert f"{num} divergences have this cause; it explains 0.5357 of the 0.5357 MRR lost." in text
    one = change(first, later_steps=1)
    half = {"metric": "mrr", "expected": 0.8, "actual": 0.4, "shares": [{"cause": 0, "share": 0.25, "repaired": 0.7}]}
    changed = change(faulty.report, first_cause=one, divergences=(one, *faulty.report.divergences[1:]))
    text = str(msgspec.convert(msgspec.to_builtins(changed) | {"attribution": half}, kv.Report))
    assert "1 later difference follows from this one." in text
    assert "it explains 0.2500 of the 0.4000 MRR lost." in text
    assert "MRR lost" not in str(without_causes(faulty.report))


def test_what_to_type_next_is_the_last_line_where_something_diverges(faulty: SavedRun, agreeing: SavedRun):
    assert faulty.render().endswith(f"\nnext\n  kgverify show {faulty.folder}   # step through it\n")
    assert "\nnext\n" not in agreeing.render()


@pytest.mark.parametrize("width", [45, 120])
def test_every_word_of_a_cause_and_every_metric_is_shown_whole_at_any_width(faulty: SavedRun, width: int):
    text = faulty.render(width=width)
    header, _, rest = text.partition("\ncauses")
    words = " ".join(rest.split("#1:")[0].split())
    lost, repaired = ("MRR lost", "0.5357"), ("MRR if repaired alone", "0.8333")
    for each in ("match_facts", "missing", *lost, *repaired, "candidate 0, step 1"):
        assert each in words
    metrics = faulty.report.metrics
    for name in ("mean_reciprocal_rank", "hits_at_1", "hits_at_10"):
        for side in ("both", "head", "tail"):
            for values in (metrics.expected, metrics.actual):
                assert f"{values[f'{side}.realistic.{name}']:.4f}" in text.split()
    below = header.partition("first divergence")[0].splitlines()[1:]
    assert [line for line in below if line and not line.startswith("  ")] == []


@pytest.mark.parametrize("corruptions", [8, 12])
def test_candidates_that_are_not_listed_are_counted(tmp_path: Path, corruptions: int):
    kv.record("countries", tmp_path / "a.h5", "reference", queries=1, corruptions=corruptions)
    num = kv.open_trace(tmp_path / "a.h5").num_candidates
    shown = invoke(["show", tmp_path / "a.h5"]).stdout
    assert re.findall(r"\.\.\. and (\d+) more", shown) == ([str(num - 20)] if num > 20 else [])


@pytest.mark.parametrize("num_more", [0, 2])
def test_resolvents_that_are_not_listed_are_counted(tmp_path: Path, num_more: int):
    folder = tmp_path / "many"
    folder.mkdir()
    facts = [f"p(a,c{i})." for i in range(40 + num_more)]
    for name, lines in (
        ("train", [*facts, "r(b,b)."]),
        ("test", ["q(a,b)."]),
        ("rules", ["q(X,Y) :- p(X,Z), r(Z,Y)."]),
    ):
        (folder / f"{name}.pl").write_text("\n".join(lines))
    graph = kv.load_graph(folder)
    kv.record(graph, tmp_path / "a.h5", "reference", queries=1, corruptions=0)
    shown = invoke(["show", tmp_path / "a.h5", "--candidate", 0, "--step", 1]).stdout
    assert re.findall(r"\.\.\. and (\d+) more", shown) == ([str(num_more)] if num_more else [])
