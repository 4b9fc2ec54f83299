"""The conditions of planted faults, as reports state them."""

import re
from pathlib import Path
from typing import Any

import pytest

import kgverify as kv
from kgverify import Report
from kgverify.comparison.result import Cause
from kgverify.report.render.terminal import explain_causes

pytestmark = pytest.mark.usefixtures("experiments")


def report_on(
    *faults: str,
    graph: str = "countries",
    queries: int = 2,
    corruptions: int = 20,
    lockstep: bool = False,
    slots: int = 64,
    **limits: int,
) -> Report:
    return kv.verify(
        graph,
        kv.Evaluator(mode="eager", device="cpu", faults=faults, slots=slots),
        queries=queries,
        corruptions=corruptions,
        limits=kv.Limits(**limits),
        equality=kv.Equality(determinism=False, minimum={}, lockstep=lockstep),
    )


def cause_of(*faults: str, **options: Any) -> Cause:
    cause = report_on(*faults, **options).causes[0]
    assert cause.when is not None
    assert cause.condition == cause.when.sentence
    return cause


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def read_everywhere(report: Report) -> list[str]:
    """Return the report as text, JSON and HTML, with single blanks."""
    written = Path(report.to_json("report.json")).read_text(), Path(report.to_html("report.html")).read_text()
    return [" ".join(text.split()) for text in (str(report), *written)]


def test_the_cap_of_facts_is_stated_with_its_counts():
    report = report_on("fact-cap")
    found = report.causes[0].when
    assert re.fullmatch(
        r"in this run, the facts at position 50 or later \(from 0\) in their predicate's segment are missing:"
        r" ([\d,]+) of the \1 missing, and 0 of the [\d,]+ present; confirmed by experiment, ([\d,]+) of \2 as predicted:"
        r" wrong at fact .*, and right at fact .*",
        found.sentence,
    )
    assert found.is_exact
    assert found.wrong_inside == found.num_wrong > 100
    assert found.right_inside == 0 < found.num_right
    assert found.chance < 1e-6
    assert (found.experiment.verdict, len(found.experiment.pair)) == ("confirmed", 2)
    assert sum(each.num_wrong for each in found.values) == found.num_wrong
    assert all(not each.num_wrong for each in found.values if each.value < 50)
    assert all("position 50 or later" in text for text in read_everywhere(report))
    lines = list(explain_causes(report, 1))
    assert any(line.strip().startswith("chance: at most ") for line in lines)
    with pytest.raises(kv.UserError, match="expected a divergence from 1 to"):
        list(explain_causes(report, 0))


@pytest.mark.deep
def test_two_conditions_of_one_stage_are_two_causes_with_their_own_loss():
    report = report_on("fact-cap", "last-fact-lost", queries=3)
    assert [(cause.stage, cause.kind.value) for cause in report.causes] == [("match_facts", "missing")] * 2
    texts = read_everywhere(report)
    for cause, words in zip(report.causes, ("position 50 or later", "that match last"), strict=True):
        assert words in cause.when.sentence
        assert cause.when.wrong_inside == cause.when.num_wrong > 10
        assert (cause.when.num_conditions, len(cause.when.experiment.pair)) == (1, 2)
        assert all(words in text for text in texts)
    # A step in which both lose facts is repaired only if both are.
    both = [each for each in report.divergences if each.other_cause >= 0]
    alone = [each for each in report.divergences if each.other_cause < 0]
    assert both
    assert {each.cause for each in alone} | {each.cause for each in both} == {0, 1}
    split = report.attribution
    assert sum(share.share for share in split.shares) == pytest.approx(split.expected - split.actual)
    assert all(share.share > 0 and share.repaired < split.expected for share in split.shares)
    for number, cause in enumerate(report.causes, 1):
        lines = list(explain_causes(report, cause.first + 1))
        assert lines[0].startswith(f"#{number} match_facts (missing): ")
        assert cause.reproduce == f"kgverify shrink RUN_DIR --divergence {cause.first + 1}"
        assert cause.reproduce in lines[-1]


TIGHT = {
    "graph": "random:1",
    "slots": 5,
    "queries": 10,
    "corruptions": 8,
    "max_depth": 5,
    "max_atoms": 3,
    "max_resolvents": 4,
}


SLOW = (
    "rule-cap",
    "max-atoms-off-by-one",
    "queries-beyond-slots",
    "packed-fact-keys",
    "repeated-head-variable",
    "proof-ends-batch",
)
"""Faults whose conditions only the exhaustive tier looks for: other cases have conditions of the same kinds."""


@pytest.mark.parametrize(
    ("fault", "options", "words"),
    [
        # Where the query itself matches last it is excluded, and the engine loses no fact: only experiments show it.
        ("last-fact-lost", {}, "in this run, the facts that match last, the query included, are missing: "),
        *(
            pytest.param(*each, marks=pytest.mark.exhaustive if each[0] in SLOW else pytest.mark.deep)
            for each in (
                ("rule-cap", {}, "in this run, the rules with the index 2 (from 0) are missing"),
                (
                    "max-atoms-off-by-one",
                    {"max_atoms": 3},
                    "of max_atoms atoms and that equal no goal visited before are dropped wrongly",
                ),
                ("max-depth-off-by-one", {"max_depth": 4}, "another goal and with 1 step left to max_depth are wrong"),
                (
                    "queries-beyond-slots",
                    {"slots": 16},
                    "the candidates in slots used before are wrong",
                ),
                ("chunk-boundary-dropped", {"corruptions": 50}, "whose position among the candidates is 15 modulo 16"),
                # Names of what an engine confuses.
                (
                    "captured-variables",
                    {**TIGHT, "queries": 2, "corruptions": 5},
                    "if the rule's variables, numbered from 0, are not renamed apart from the goal's",
                ),
                (
                    "packed-fact-keys",
                    TIGHT,
                    "has the key of one when keys have 8 bits for each argument are wrong",
                ),
                (
                    "repeated-head-variable",
                    TIGHT,
                    "match the selected atom argument by argument but not as a whole are extra",
                ),
                # In the run alone, every fact resolvent is wrong; experiments find that it needs a shared variable.
                ("rest-not-substituted", {}, "that change if the rest of the goal stays as it was are wrong"),
                # Conditions of the batch are confirmed by further runs.
                (
                    "sticky-outcome",
                    {"slots": 8},
                    "proved any candidate before and that do not end PROVED",
                ),
                (
                    "proof-ends-batch",
                    {"slots": 8},
                    "during which another slot proves a candidate are wrong",
                ),
                # Where everything went wrong, experiments construct what is right.
                ("last-argmax", {}, "in this run, the steps with a gap of 0 between the two highest scores are wrong"),
                # Lockstep uses the steps behind a wrong one as well.
                ("fact-cap", {"lockstep": True}, "position 50 or later"),
            )
        ),
    ],
)
def test_the_condition_of_a_fault_is_stated(fault: str, options: dict[str, Any], words: str):
    cause = cause_of(fault, **options)
    assert words in cause.condition, cause.condition
    assert cause.when.is_exact or cause.when.experiment.verdict == "confirmed"
    if fault == "last-argmax":
        assert cause.when.num_right == 0
    if fault == "max-depth-off-by-one":
        # The bars are those of the first feature, a flag, and not of the steps that are left.
        assert cause.when.features == ("chooses a goal", "steps left to max_depth")
        assert [each.value for each in cause.when.values] == [0, 1]
        assert [each.num_wrong for each in cause.when.values] == [0, cause.when.num_wrong]


def test_an_agreement_has_no_condition():
    assert report_on(queries=1).causes == ()
