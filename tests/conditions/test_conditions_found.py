"""The conditions of planted faults, as reports state them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kgverify as kv
from kgverify import Report, load_graph
from kgverify.comparison.result import Cause
from kgverify.report.render.junit import render_junit
from kgverify.report.render.terminal import explain_causes
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, reference_pipeline
from kgverify.verification.verify import verify


def report_on(
    *faults: str,
    graph: str = "countries",
    queries: int = 3,
    corruptions: int = 50,
    lockstep: bool = False,
    slots: int = 64,
    **limits: int,
) -> Report:
    run = Run(load_graph(graph), kv.Limits(**limits), num_queries=queries, num_corruptions=corruptions)
    actual = evaluator_pipeline(run, faults=list(faults), mode="eager", device="cpu", slots=slots)
    equality = kv.Equality(determinism=False, minimum={}, lockstep=lockstep)
    found = verify(run, reference_pipeline(run), actual, equality=equality)
    return found.report.with_traces(found)


def cause_of(*faults: str, **options: Any) -> Cause:
    cause = report_on(*faults, **options).causes[0]
    assert cause.when is not None
    assert cause.condition == cause.when.sentence
    return cause


def test_the_cap_of_facts_is_stated_with_its_counts():
    report = report_on("fact-cap", queries=6)
    found = report.causes[0].when
    assert found is not None
    assert re.fullmatch(
        r"in this run, the facts at position 50 or later \(from 0\) in their predicate's segment are missing:"
        r" ([\d,]+) of \1 missing, 0 of [\d,]+ present; confirmed by experiment, ([\d,]+) of \2 as predicted:"
        r" wrong at fact .*, and right at fact .*",
        found.sentence,
    )
    assert found.is_exact
    assert found.wrong_inside == found.num_wrong > 100
    assert found.right_inside == 0 < found.num_right
    assert found.chance < 1e-6
    assert found.experiment is not None
    assert found.experiment.verdict == "confirmed"
    assert len(found.experiment.pair) == 2
    assert sum(each.num_wrong for each in found.values) == found.num_wrong
    assert all(not each.num_wrong for each in found.values if each.value < 50)
    for text in (str(report), render_junit(report, report.traces.expected).decode()):
        assert "in this run, the facts at position 50 or later" in " ".join(text.split())
    assert "position 50 or later" in json.dumps(json.loads(Path(report.to_json("report.json")).read_text())["causes"])
    assert "position 50 or later" in Path(report.to_html("report.html")).read_text()
    lines = list(explain_causes(report, 1))
    assert any(line.strip().startswith("chance: at most ") for line in lines)
    assert any("#" in line and line.rstrip().endswith(" / 0") for line in lines[3:-1])
    with pytest.raises(kv.UserError, match="expected a divergence from 1 to"):
        list(explain_causes(report, 0))


def test_two_conditions_of_one_stage_are_two_causes_with_their_own_loss():
    report = report_on("fact-cap", "last-fact-lost", queries=6)
    assert [(cause.stage, cause.kind.value) for cause in report.causes] == [("match_facts", "missing")] * 2
    cap, last = (cause.when for cause in report.causes)
    for found, words in ((cap, "position 50 or later"), (last, "that match last")):
        assert words in found.sentence
        assert found.wrong_inside == found.num_wrong > 10
        assert found.num_conditions == 1
        assert found.experiment is not None
        assert len(found.experiment.pair) == 2
        texts = str(report), render_junit(report, report.traces.expected).decode()
        pages = Path(report.to_json("report.json")).read_text(), Path(report.to_html("report.html")).read_text()
        assert all(words in " ".join(text.split()) for text in (*texts, *pages))
    # A step in which both lose facts is repaired only if both are.
    both = [each for each in report.divergences if each.other_cause >= 0]
    alone = [each for each in report.divergences if each.other_cause < 0]
    assert both
    assert {each.cause for each in alone} | {each.cause for each in both} == {0, 1}
    split = report.attribution
    assert sum(share.share for share in split.shares) == pytest.approx(split.expected - split.actual)
    assert all(share.share > 0 and share.repaired < split.expected for share in split.shares)
    for cause in (1, 2):
        first = report.causes[cause - 1].first + 1
        lines = list(explain_causes(report, first))
        assert lines[0].startswith(f"#{cause} match_facts (missing): ")
        assert f"kgverify shrink RUN_DIR --divergence {first} writes" in lines[-1]
        assert report.causes[cause - 1].reproduce == f"kgverify shrink RUN_DIR --divergence {first}"


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("fault", "limits", "words"),
    [
        ("rule-cap", {}, "in this run, the rules with the index 2 (from 0) are missing"),
        (
            "max-atoms-off-by-one",
            {"max_atoms": 3},
            "in this run, the resolvents of max_atoms atoms are dropped wrongly",
        ),
        ("max-depth-off-by-one", {"max_depth": 4}, "another goal and with 1 step left to max_depth are wrong"),
        (
            "queries-beyond-slots",
            {"slots": 16, "corruptions": 20},
            "in this run, the candidates in slots used before are wrong",
        ),
        ("chunk-boundary-dropped", {}, "whose position among the candidates is 15 modulo 16"),
    ],
)
def test_conditions_of_catalogued_faults(fault: str, limits: dict[str, int], words: str):
    cause = cause_of(fault, **limits)
    assert words in cause.condition, cause.condition
    assert cause.when.is_exact


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "captured-variables",
            "that change if the rule's variables, numbered from 0, are not renamed apart from the goal's",
        ),
        (
            "packed-fact-keys",
            "that is not a fact but has the key of one when keys have 8 bits for each argument are wrong",
        ),
        ("repeated-head-variable", "that match the selected atom argument by argument but not as a whole are extra"),
        (
            "sequential-substitution",
            "in this run, the resolvents that change if each variable is replaced only once are wrong",
        ),
    ],
)
def test_conditions_name_what_an_engine_confuses(fault: str, words: str):
    tight = {"queries": 10, "corruptions": 8, "max_depth": 5, "max_atoms": 3, "max_resolvents": 4}
    cause = cause_of(fault, graph="random:1", slots=5, **tight)
    assert words in cause.condition, cause.condition
    assert cause.when.experiment.verdict == "confirmed"


def test_an_exception_that_only_experiments_show_makes_another_condition_exact():
    # Where the query itself matches last it is excluded, and the engine loses no fact.
    cause = cause_of("last-fact-lost")
    assert "in this run, the facts that match last, the query included, are missing: " in cause.condition, (
        cause.condition
    )
    assert cause.when.is_exact
    assert cause.when.num_wrong == cause.when.wrong_inside > 100
    assert cause.when.right_inside == 0
    assert cause.when.experiment.verdict == "confirmed"


def test_a_run_that_does_not_decide_is_decided_by_experiments():
    # In the run alone, every fact resolvent is wrong; experiments find that it needs a shared variable.
    cause = cause_of("rest-not-substituted")
    assert "where the selected atom shares a variable with a later one" in cause.condition, cause.condition
    assert cause.when.experiment.verdict == "confirmed"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("sticky-outcome", "proved any candidate before and that do not end PROVED"),
        ("proof-ends-batch", "in this run, the candidates during which another slot proves a candidate are wrong"),
        pytest.param("step-budget", "or more steps after the start of their chunk are wrong", marks=pytest.mark.deep),
    ],
)
def test_conditions_of_the_batch_are_confirmed_by_further_runs(fault: str, words: str):
    cause = cause_of(fault, slots=8, corruptions=20)
    assert words in cause.condition, cause.condition
    assert cause.when.experiment.verdict == "confirmed"


def test_where_everything_went_wrong_experiments_construct_what_is_right():
    cause = cause_of("last-argmax")
    assert "in this run, the steps with a gap of 0 between the two highest scores are wrong" in cause.condition
    assert cause.when.num_right == 0
    assert cause.when.experiment.verdict == "confirmed"


def test_lockstep_uses_the_steps_behind_a_wrong_one_as_well():
    report = report_on("fact-cap", lockstep=True, corruptions=20)
    assert "position 50 or later" in report.causes[0].condition


def test_an_agreement_has_no_condition():
    assert report_on(queries=1).causes == ()
