"""The report in a terminal: the steps before the first divergence, the arrow, what follows, and what to type next."""

import io

import pytest
from report_runs import change, without_causes
from rich.table import Table

from kgverify import Report
from kgverify.comparison.result import Attribution, Share
from kgverify.report.render.screen import Screen, Text
from kgverify.report.render.terminal import fit_metrics, print_report
from kgverify.report.wording import METRICS
from kgverify.verification.verify import Verification

NEXT = {"kgverify show run": "step through it"}


def printed(verification: Verification, report: Report | None = None, **options) -> str:
    text = io.StringIO()
    console = Screen(file=text, width=120)
    print_report(report or verification.report, console, **options)
    return text.getvalue()


def test_the_last_agreeing_steps_stand_above_the_arrow(faulty: Verification):
    lines = printed(faulty, expected=faulty.expected).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("first divergence: match_facts at step 1"))
    assert lines[start + 1].split()[0] == "candidate"
    assert lines[start + 2].split() == ["step", "0", "locatedInCR(armenia,", "asia)", "agrees"]
    assert "by locatedInCR(X, Z) <- neighborOf(X, Y), locatedInCR(Y, Z) [rules.txt:1]" in lines[start + 3]
    assert lines[start + 4].startswith("-> step 1 ")
    assert lines[start + 4].rstrip().endswith("neighborOf(armenia, X0), locatedInCR(X0, asia)   match_facts")
    assert "-> step 1 " in printed(faulty)
    assert " step 0 " not in printed(faulty)


def test_a_deep_divergence_has_three_steps_above_it(faulty: Verification):
    num_steps = faulty.expected.columns.candidates.num_steps
    deep = int(num_steps.argmax())
    first = change(faulty.report.divergences[0], candidate=deep, step=int(num_steps[deep]) - 1)
    text = printed(faulty, change(faulty.report, first_cause=first), expected=faulty.expected)
    assert text.count("   agrees") == 3
    for step in range(first.step - 3, first.step):
        assert f"   step {step} " in text


def test_its_consequences_and_the_cost_of_its_cause_are_printed(faulty: Verification):
    text = printed(faulty)
    first = faulty.report.divergences[0]
    assert f"{first.later_steps} later differences follow from this one." in text
    num = faulty.report.causes[0].num_divergences
    assert f"{num} divergences have this cause; it explains 0.5357 of the 0.5357 MRR lost." in text
    one = change(faulty.report, first_cause=change(first, later_steps=1))
    assert "1 later difference follows from this one." in printed(faulty, one)
    plain = printed(faulty, without_causes(faulty.report))
    assert "MRR lost" not in plain
    half = change(
        faulty.report, attribution=Attribution(metric="mrr", expected=0.8, actual=0.4, shares=(Share(0, 0.25, 0.7),))
    )
    assert "it explains 0.2500 of the 0.4000 MRR lost." in printed(faulty, half)


def test_what_to_type_next_is_the_last_line_where_something_diverges(faulty: Verification, agreeing: Verification):
    assert printed(faulty, next_commands=NEXT).endswith("\nnext\n  kgverify show run   # step through it\n")
    assert "next" not in printed(agreeing, next_commands=NEXT)


def test_a_divergence_of_no_step_has_no_steps_and_no_arrow(faulty: Verification):
    first = change(faulty.report.divergences[0], step=-1, field="candidates.outcome", stage="recycle", goal="")
    text = printed(faulty, change(faulty.report, first_cause=first), expected=faulty.expected)
    assert "->" not in text.split("causes")[0]
    assert "agrees" not in text


def test_a_report_as_a_string_has_no_styles_even_if_colors_are_forced(
    faulty: Verification, monkeypatch: pytest.MonkeyPatch
):
    plain = str(faulty.report)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert str(faulty.report) == plain
    assert "\x1b" not in plain


def test_control_characters_of_a_graph_do_not_reach_the_terminal(hostile: Verification):
    text = printed(hostile, expected=hostile.expected, next_commands={"kgverify \x1b[31m": "x"})
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\x1b[31m" in text


@pytest.mark.parametrize("width", [45, 60, 80, 120])
def test_every_word_of_a_cause_is_shown_whole_at_any_width(faulty: Verification, width: int):
    text = io.StringIO()
    print_report(faulty.report, Screen(file=text, width=width))
    words = " ".join(text.getvalue().split("\ncauses")[1].split("#1:")[0].split())
    for each in (
        "match_facts",
        "missing",
        "MRR lost",
        "0.5357",
        "MRR if repaired alone",
        "0.8333",
        "candidate 0, step 1",
    ):
        assert each in words


@pytest.mark.parametrize("width", [20, 30, 45, 80, 120])
def test_every_metric_is_shown_whole_at_any_width(width: int):
    rows = {
        name: [Text(f"1.{i}00{j}").append(f" -> 0.{i}00{j}", "red") for j in range(3)] for i, name in enumerate(METRICS)
    }
    text = io.StringIO()
    Screen(file=text, width=width).print(fit_metrics("", rows))
    words = text.getvalue().split()
    assert "…" not in text.getvalue()
    for i in range(len(METRICS)):
        for j in range(3):
            assert f"1.{i}00{j}" in words
            assert f"0.{i}00{j}" in words


def test_a_folded_line_in_a_table_loses_no_character():
    line = "  by locatedInCR(X, Z) <- neighborOf(X, Y), locatedInCR(Y, Z) [rules.txt:1]"
    for width in range(20, 100):
        text = io.StringIO()
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("step", Text(line))
        Screen(file=text, width=width).print(table)
        assert "".join(text.getvalue().split()) == "step" + "".join(line.split()), width


def test_the_lines_below_the_verdict_are_folded_with_an_indent(faulty: Verification):
    text = io.StringIO()
    print_report(faulty.report, Screen(file=text, width=60))
    header = text.getvalue().partition("first divergence")[0].splitlines()[1:]
    assert any(line.startswith("     ") for line in header)
    assert [line for line in header if line and not line.startswith("  ")] == []
