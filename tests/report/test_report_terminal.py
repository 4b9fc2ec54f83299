"""The report in a terminal: the steps before the first divergence, the arrow, what follows, and what to type next."""

import re
from pathlib import Path

import pytest
from invoked_commands import invoke
from readers import STYLES
from report_runs import SavedRun

import kgverify as kv


def test_the_last_agreeing_steps_stand_above_the_arrow_and_what_to_type_next_is_the_last_line(
    faulty: SavedRun, agreeing: SavedRun
):
    text = faulty.render()
    lines = text[text.index("first divergence: match_facts at step 1") :].splitlines()
    assert lines[2].split() == ["step", "0", "locatedInCR(armenia,", "asia)", "agrees"]
    assert lines[4].startswith("-> step 1 ")
    assert lines[4].rstrip().endswith("neighborOf(armenia, X0), locatedInCR(X0, asia)   match_facts")
    assert text.endswith(f"\nnext\n  kgverify show {faulty.folder}   # step through it\n")
    assert "\nnext\n" not in agreeing.render()


@pytest.mark.parametrize("width", [45, 120])
def test_every_word_of_a_cause_and_every_metric_is_shown_whole_at_any_width(faulty: SavedRun, width: int):
    # Without a terminal, the width would be another.
    text = STYLES.sub("", faulty.render(width=width, FORCE_COLOR="1", TERM="xterm"))
    header, _, rest = text.partition("\ncauses")
    words = " ".join(rest.split("#1:")[0].split())
    lost, repaired = ("MRR lost", "0.5357"), ("MRR if repaired alone", "0.8333")
    for each in ("match_facts", "missing", *lost, *repaired, "candidate 0, step 1"):
        assert each in words
    # In a list, the number of a cause stands alone.
    assert bool(re.search(r"(?m)^1 *$", text)) == (width == 45)
    metrics = faulty.report.metrics
    for name in ("mean_reciprocal_rank", "hits_at_1", "hits_at_10"):
        for side in ("both", "head", "tail"):
            for values in (metrics.expected, metrics.actual):
                assert f"{values[f'{side}.realistic.{name}']:.4f}" in text.split()
    below = header.partition("first divergence")[0].splitlines()[1:]
    assert [line for line in below if line and not line.startswith("  ")] == []


@pytest.mark.parametrize("num", [20, 21, 22])
def test_a_trace_of_any_number_of_candidates_counts_those_that_are_not_listed(tmp_path: Path, num: int):
    lines = (
        f'{{"candidate": ["p", "a", "c{i}"]}}\n{{"goal": [["p", "a", "c{i}"]], "successors": []}}\n' for i in range(num)
    )
    (tmp_path / "a.jsonl").write_text("".join(lines))
    assert invoke(["trace", "import", tmp_path / "a.jsonl", "-o", tmp_path / "a.h5"]).exit_code == 0
    shown = invoke(["show", tmp_path / "a.h5"]).stdout
    assert [int(found) for found in re.findall(r"\.\.\. and (\d+) more", shown)] == [num - 20] * (num > 20)
    assert len(re.findall(r"(?m)^\d+ +p\(a, c\d+\)", shown)) == 20


def test_the_header_of_a_trace_names_the_engine_with_its_faults(faulty: SavedRun):
    for role, faults in (("expected", ()), ("actual", ("fact-cap",))):
        header = kv.open_trace(faulty.folder / f"{role}.h5").load().header
        engine, run = header.engine, header.run
        assert engine.faults == faults
        lines = invoke(["show", faulty.folder / f"{role}.h5"], COLUMNS="150").stdout.splitlines()
        about = ", ".join(filter(None, (engine.mode, engine.device, engine.precision, *faults)))
        assert lines[0].rstrip() == f"{engine.name}   {about}"
        queries = f"{run.num_queries} queries of {run.split}"
        assert lines[1].rstrip() == f"  graph {run.graph}, {queries}, policy {header.policy.name}"


@pytest.mark.parametrize("num_more", [0, 2])
def test_candidates_and_resolvents_that_are_not_listed_are_counted(tmp_path: Path, num_more: int):
    facts = "".join(f"p(a,c{i}).\n" for i in range(40 + num_more)) + "".join(f"q(a,d{i}).\n" for i in range(20))
    test = "".join(f"q(a,c{i}).\n" for i in range(20 + num_more))
    for name, text in (("train", f"{facts}r(b,b)."), ("test", test), ("rules", "q(X,Y) :- p(X,Z), r(Z,Y).")):
        (tmp_path / f"{name}.pl").write_text(text)
    kv.record(kv.load_graph(tmp_path), tmp_path / "a.h5", "reference", corruptions=0)
    num_candidates = kv.open_trace(tmp_path / "a.h5").num_candidates
    for words, num_left in (([], num_candidates - 20), (["--candidate", 0, "--step", 1], num_more)):
        shown = invoke(["show", tmp_path / "a.h5", *words]).stdout
        assert re.findall(r"\.\.\. and (\d+) more", shown) == ([str(num_left)] if num_left else [])
