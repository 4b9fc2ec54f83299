"""The pictures of a report draw the numbers that it states, and show every name as plain text."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_runs import SavedRun, change
from test_report_notebook import find_hidden

from kgverify.comparison.result import FeatureValue
from kgverify.comparison.step_view import Names
from kgverify.escaping import make_visible
from kgverify.report.render.pictures import MOST_LEAVES, draw_pictures
from kgverify.report.wording import clip, describe_divergence


def draw(run: SavedRun, folder: Path) -> dict[str, list[str]]:
    """Return the texts of each picture that `kgverify report --svg` writes."""
    printed = run.render("--svg", folder)
    assert sorted(f"wrote {path}" for path in folder.iterdir()) == sorted(printed.split("\n")[:-1])
    texts = {}
    for path in folder.iterdir():
        root = ElementTree.fromstring(path.read_text("utf-8"))
        assert {each.tag.partition("}")[2] for each in root.iter()} <= {"svg", "style", "text", "rect", "path"}
        texts[path.stem] = [each.text or "" for each in root.iter() if each.tag.endswith("}text")]
        assert find_hidden("".join(texts[path.stem])) == []
    return texts


def count(texts: list[str]) -> tuple[int, int]:
    """Return the sums of `3 wrong, 4 right`."""
    nums = {
        word: [re.search(rf"(?:^|, )([\d,]+) {word}$|^([\d,]+) {word},", text) for text in texts]
        for word in ("wrong", "right")
    }
    wrong, right = (
        sum(int((each[1] or each[2]).replace(",", "")) for each in found if each) for found in nums.values()
    )
    return wrong, right


@pytest.mark.parametrize("name", ["faulty", "hostile"])
def test_the_pictures_have_the_numbers_of_the_report(name: str, tmp_path: Path, request: pytest.FixtureRequest):
    run = request.getfixturevalue(name)
    texts = draw(run, tmp_path / "pictures")
    report, first = run.report, run.report.first_cause
    assert set(texts) == {"step", "condition", "clauses", "depth", "ranks"}
    # Lines that are too long are folded.
    shown = "".join("".join(texts["step"]).split())
    assert all("".join(clip(each)[:30].split()) in shown for each in first.expected[:MOST_LEAVES])
    whole = " ".join(texts["step"][:2])
    assert whole.startswith(f"{first.stage} at step {first.step} of ")
    assert name == "hostile" or describe_divergence(first) in whole
    assert 1 <= sum(text.startswith("− ") for text in texts["step"]) <= len(first.expected)
    when = report.causes[first.cause].when
    assert count(texts["condition"]) == (when.num_wrong, when.num_right)
    half = texts["clauses"].index("steps by the rules that made an expected resolvent")
    wrong, right = count(texts["clauses"][:half])
    num_steps = sum(each.step >= 0 for each in report.divergences)
    assert (wrong, wrong + right) == (num_steps, report.coverage.steps)
    stage = texts["depth"].index(f"divergences of {first.stage}")
    assert count(texts["depth"][stage:]) == (len(report.divergences), 0)
    num_diverged = len({each.candidate for each in report.divergences})
    assert f"{num_diverged:,} wrong" in texts["depth"][stage - 1]
    sides = [trace.rankings for trace in (report.traces.expected, report.traces.actual)]
    ranks = [(each.optimistic + each.pessimistic) / 2 for each in sides]
    assert {f"{one:g} → {other:g}" for one, other in zip(*ranks, strict=True)} == {
        text for text in texts["ranks"] if "→" in text
    }
    # The true triple comes first.
    trace = report.traces.expected
    true = make_visible(Names(trace).atom(trace.columns.candidates.atom[0].tolist()))
    assert name == "hostile" or sum(text.startswith(f"{true}, ") for text in texts["ranks"]) == 2


def test_a_run_that_agrees_has_no_pictures(agreeing: SavedRun, tmp_path: Path):
    assert agreeing.render("--svg", tmp_path / "pictures") == "no pictures: no step and no rank differs\n"
    assert [*(tmp_path / "pictures").iterdir()] == []


def test_a_report_that_its_traces_contradict_is_drawn(faulty: SavedRun):
    first, cause = faulty.report.first_cause, faulty.report.causes[0]
    values = [FeatureValue(float(i), 0, i % 2) for i in range(1000)]
    when = change(cause.when, values=tuple(values))
    wrong = tuple(
        change(first, candidate=candidate, step=step, stage=f"stage {candidate}")
        for candidate, step in [(10**9, 0), (0, 10**6), (-5, 3), *((i, -1) for i in range(40))]
    )
    report = change(faulty.report, divergences=wrong, first_cause=wrong[0], causes=(change(cause, when=when),))
    sides = faulty.report.traces.expected, faulty.report.traces.actual
    drawn = draw_pictures(report, *sides)
    assert set(drawn) == {"step", "condition", "depth", "ranks"}
    assert all(len(each.render()) < 20_000 for each in drawn.values())
