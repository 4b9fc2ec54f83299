"""Each divergence states its own evidence, in every rendering; two faults of one stage are two causes."""

import re
from functools import partial
from typing import Any
from xml.etree import ElementTree

import pytest
from run_engines import countries_run, eager_pipeline

import kgverify as kv
from kgverify import Divergence, Equality
from kgverify.comparison.classify import Finding, Surroundings
from kgverify.comparison.step_view import StepView
from kgverify.program.outcomes import DifferenceClass
from kgverify.report.render.github import render_annotations
from kgverify.report.render.html import build_page
from kgverify.report.render.junit import render_junit
from kgverify.report.wording import describe_divergence, describe_kind
from kgverify.runs.run import reference_pipeline
from kgverify.verification.judgement import FULL, Effort
from kgverify.verification.replay import Seen, separate
from kgverify.verification.verify import Verification, verify

STATED = re.compile(r"(\w+)(?: at step (\d+))? of .+? \(candidate (\d+), query \d+, \w+ side\): ([^\n]*)")


def verify_capped(effort: Effort, *, lockstep: bool) -> Verification:
    run = countries_run(num_corruptions=10)
    pipelines = reference_pipeline(run), eager_pipeline(run, faults=("fact-cap",))
    return verify(run, *pipelines, effort=effort, equality=Equality(determinism=False, lockstep=lockstep))


@pytest.mark.parametrize("lockstep", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_each_divergence_states_its_own_evidence_where_most_are_not_replayed(lockstep: bool):
    found = verify_capped(FULL._replace(replayed=6, explained=0), lockstep=lockstep)
    assumed = [each for each in found.report.divergences if each.is_assumed]
    assert len(assumed) > 5
    assert len({each.evidence for each in assumed}) > 2
    for each in assumed:
        assert each.confidence <= 0.5
        assert "not replayed itself" in each.evidence
        *shown, last = each.expected
        more = re.fullmatch(r"\.\.\. and (\d+) more", last)
        assert each.evidence.startswith(f"{len(shown) + (int(more[1]) if more else 1)} resolvent")
    (cause,) = found.report.causes
    assert cause.num_assumed == len(assumed)
    assert f"{len(assumed)} not replayed" in str(found.report)
    assert any("splits no loss" in note for note in found.report.notes) is lockstep
    check_renderings(found)


def check_renderings(found: Verification) -> None:
    """Require that no rendering states other evidence than that of a divergence."""
    report = found.report
    known = {describe_divergence(each) for each in report.divergences}
    annotations = render_annotations(report).replace("%0A", "\n").replace("%25", "%")
    stated = [match[0] for match in STATED.finditer(annotations)]
    xml = render_junit(report, found.expected)
    stated += [(each.text or "").split("\n")[0] for each in ElementTree.fromstring(xml).iter("failure")]
    assert {*stated} <= known
    assert f"{sum(each.is_assumed for each in report.divergences)} not replayed" in annotations
    firsts = {(each.query, each.side): each for each in reversed(report.divergences)}
    assert all(describe_kind(each) in xml.decode() for each in firsts.values())
    page = build_page(report, found.expected, found.actual, found.stepped)
    for row, cause in zip(page["rows"], report.causes, strict=False):
        own, detail = report.divergences[cause.first], row["detail"]
        assert detail is None or (row["first"] is own and detail["found"].startswith(describe_kind(own)))


@pytest.mark.usefixtures("experiments")
@pytest.mark.deep
def test_two_faults_that_lose_facts_are_two_causes_in_lockstep():
    engine = kv.Evaluator(mode="eager", device="cpu", faults=("fact-cap", "last-fact-lost"))
    equality = Equality(determinism=False, lockstep=True)
    report = kv.verify("countries", engine, queries=1, corruptions=3, equality=equality)
    assert [(cause.stage, cause.kind.value) for cause in report.causes] == [("match_facts", "missing")] * 2
    conditions = "\n".join(cause.condition for cause in report.causes)
    assert "facts at position 50 or later (from 0) in their predicate's segment are missing" in conditions
    assert "facts that match last, the query included, are missing" in conditions


def seen_in(stage: str, kind: str, *outputs: tuple[Any, Any] | None, goal: Any = ()) -> list[Seen]:
    """Divergences of a stage with these outputs; without outputs, one that was not replayed."""
    divergence = Divergence(
        candidate=0, atom="", query=0, side="", step=0, stage=stage, field="", level="choice", expected="", actual="",
        kind=DifferenceClass(kind),
    )  # fmt: skip
    view = StepView(0, goal, (), 0, 0, 0, 0)
    finding = Finding(DifferenceClass(kind), "", 1.0)
    return [Seen(divergence, finding, Surroundings(view, view, each)) for each in outputs]


def situations_of(seen: list[Seen]) -> list[str]:
    return [each.situation for each in separate(seen)]


def test_what_one_rule_explains_and_what_was_not_replayed_is_no_further_cause():
    def limits(*outputs: Any) -> list[str]:
        return situations_of(seen_in("limit", "limit", *outputs))

    def outcomes(*outputs: tuple[int, int]) -> list[str]:
        return situations_of(seen_in("finish", "outcome", *outputs))

    by_atoms, by_resolvents = (((), 0, 0), ((), 1, 0)), (((), 0, 0), ((), 0, 1))
    assert limits(by_resolvents, None, by_resolvents) == [""] * 3
    names = ["more dropped by max_atoms", "more dropped by max_resolvents"]
    assert limits(by_atoms, by_resolvents, None, by_resolvents) == [*names, names[1], names[1]]
    # OPEN, PROVED, FAILED, DEPTH_LIMIT: shifted, exchanged, all taken for one; and two faults.
    assert outcomes((0, 1), (2, 3), (1, 2)) == [""] * 3
    assert outcomes((1, 2), (2, 1)) == outcomes((0, 1), (2, 1)) == ["", ""]
    assert outcomes((1, 0), (2, 1)) == ["PROVED expected", "FAILED expected"]
    assert outcomes((0, 3), (2, 1)) == ["OPEN expected", "FAILED expected"]


def test_two_rules_that_together_explain_every_changed_atom_are_two_situations():
    def situations(stage: str, kind: str, *changes: tuple[Any, Any], goal: Any) -> list[str]:
        outputs = [tuple(((1, 0, atoms),) for atoms in pair) for pair in changes]
        return situations_of(seen_in(stage, kind, *outputs, goal=goal))

    # Bodies of two atoms, and one atom in the rest of the goal.
    a, b, query = (0, 1, 2), (0, 3, 4), (0, 5, 6)
    resolve = partial(situations, "resolve", "substituted", goal=(query, (1, -1, 5)))
    rest = ((a, b, (1, 7, 5)), (a, b, (1, -1, 5)))
    merged = (((0, -1, -2), b, (1, 7, 5)), ((0, -1, -1), b, (1, 7, 5)))
    both = ((0, -1, -2), b, (1, 7, 5)), ((0, -1, -1), b, (1, -1, 5))
    names = ["the rest of the goal is left as it was", "different variables become one"]
    assert resolve(rest, merged, both) == [*names, names[0]]
    assert resolve(rest, rest) == resolve(merged, merged) == resolve(both, both) == ["", ""]
