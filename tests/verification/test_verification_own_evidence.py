"""Each divergence states its own evidence, in every rendering; two faults of one stage are two causes."""

import re
from functools import partial
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from own_evidence import check_evidence, probe_both
from run_engines import countries_run

from kgverify import Divergence, Equality, Limits, Run, load_graph
from kgverify.comparison.classify import Finding, Surroundings
from kgverify.comparison.step_view import StepView
from kgverify.program.outcomes import DifferenceClass
from kgverify.prover.faults.plant import FAULTS
from kgverify.report.render.github import render_annotations
from kgverify.report.render.html import build_page
from kgverify.report.render.junit import render_junit
from kgverify.report.wording import describe_divergence, describe_kind
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import reference_pipeline
from kgverify.verification.judgement import FULL, Effort
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.replay import Seen, separate
from kgverify.verification.verify import Verification, verify

STATED = re.compile(r"(\w+)(?: at step (\d+))? of .+? \(candidate (\d+), query \d+, \w+ side\): ([^\n]*)")

FEW_REPLAYED = FULL._replace(replayed=6)


def run_with(run: Run, faults: tuple[str, ...], *, lockstep: bool, effort: Effort = FULL) -> tuple[Verification, Any]:
    pipelines = (
        reference_pipeline(run),
        evaluator_pipeline(run, faults=faults, mode="eager", device="cpu", slots=16),
    )
    found = verify(run, *pipelines, effort=effort, equality=Equality(determinism=False, lockstep=lockstep))
    return found, probe_both((pipelines[0].engine, pipelines[1].engine), found.expected.columns)


def not_own(found: Verification, probe: Any) -> list[tuple[int, str]]:
    """The divergences whose evidence is not their own, in the report and in its renderings."""
    report = found.report
    wrong = list(check_evidence(report.divergences, found.expected, found.actual, found.stepped, probe))
    known = {describe_divergence(each) for each in report.divergences}
    texts = render_annotations(report).replace("%0A", "\n").replace("%25", "%")
    wrong += [(-1, match[0]) for match in STATED.finditer(texts) if match[0] not in known]
    failures = ElementTree.fromstring(render_junit(report, found.expected)).iter("failure")
    wrong += [(-1, text) for text in ((each.text or "").split("\n")[0] for each in failures) if text not in known]
    page = build_page(report, found.expected, found.actual, found.stepped)
    for row, cause in zip(page["rows"], report.causes, strict=False):
        own, detail = report.divergences[cause.first], row["detail"]
        if detail is not None and (row["first"] is not own or not detail["found"].startswith(describe_kind(own))):
            wrong.append((cause.first, f"the page states {detail['found']}"))
    return wrong


@pytest.mark.parametrize("lockstep", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_each_divergence_states_its_own_evidence_where_most_are_not_replayed(lockstep: bool):
    run = Run(load_graph("countries"), num_queries=2, num_corruptions=10)
    found, probe = run_with(run, ("fact-cap",), lockstep=lockstep, effort=FEW_REPLAYED)
    assumed = [each for each in found.report.divergences if each.is_assumed]
    assert len(assumed) > 5
    assert len({each.evidence for each in assumed}) > 2
    assert all(each.confidence <= 0.5 and "not replayed itself" in each.evidence for each in assumed)
    assert not_own(found, probe) == []
    (cause,) = found.report.causes
    assert cause.num_assumed == len(assumed)
    assert f"{len(assumed)} not replayed" in str(found.report)
    assert f"{len(assumed)} not replayed" in render_annotations(found.report)
    xml = render_junit(found.report, found.expected).decode()
    firsts = {(each.query, each.side): each for each in reversed(found.report.divergences)}
    assert all(describe_kind(each) in xml for each in firsts.values())
    assert any("splits no loss" in note for note in found.report.notes) is lockstep


@pytest.mark.deep
def test_borrowed_evidence_is_noticed():
    found, probe = run_with(countries_run(), ("fact-cap",), lockstep=False)
    first, *others = found.report.divergences
    other = next(each for each in others if each.evidence != first.evidence)

    lent = msgspec.structs.replace(other, evidence=first.evidence)
    traces = found.expected, found.actual, None
    assert [number for number, _ in check_evidence([first, lent], *traces, probe)] == [1]
    assert list(check_evidence([first, other], *traces, probe)) == []


@pytest.mark.deep
def test_two_faults_that_lose_facts_are_two_causes_in_lockstep():
    run = Run(load_graph("countries"), num_queries=1, num_corruptions=3)
    found, probe = run_with(run, ("fact-cap", "last-fact-lost"), lockstep=True)
    assert [(cause.stage, cause.kind.value) for cause in found.report.causes] == [("match_facts", "missing")] * 2
    conditions = "\n".join(cause.condition for cause in found.report.causes)
    assert "facts at position 50 or later (from 0) in their predicate's segment are missing" in conditions
    assert "facts that match last, the query included, are missing" in conditions
    assert not_own(found, probe) == []


TIGHT = Limits(max_depth=5, max_atoms=3, max_resolvents=4)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "lockstep"), [(name, i % 2 == 1) for i, name in enumerate(list(FAULTS)[::9])])
def test_no_evidence_is_borrowed_whatever_the_fault(name: str, lockstep: bool):
    run = Run(load_graph("random:4"), TIGHT, num_queries=6, num_corruptions=3)
    found, probe = run_with(run, (name,), lockstep=lockstep, effort=FEW_REPLAYED)
    assert not_own(found, probe) == []


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

    a, query = (0, 1, 2), (0, 5, 6)
    resolve = partial(situations, "resolve", "substituted", goal=(query, (1, -1, 5)))
    rest = ((a, (1, 7, 5)), (a, (1, -1, 5)))
    merged = (((0, -1, -2), (1, 7, 5)), ((0, -1, -1), (1, 7, 5)))
    both = ((0, -1, -2), (1, 7, 5)), ((0, -1, -1), (1, -1, 5))
    names = ["the rest of the goal is left as it was", "different variables become one"]
    assert resolve(rest, merged, both) == [*names, names[0]]
    assert resolve(rest, rest) == resolve(merged, merged) == resolve(both, both) == ["", ""]


@pytest.mark.parametrize("name", ["rule-cap", pytest.param("last-fact-lost", marks=pytest.mark.deep)])
def test_recorded_divergences_state_their_own_evidence(name: str):
    run = Run(load_graph("random:4"), TIGHT, num_queries=6, num_corruptions=3)
    found, _ = run_with(run, (name,), lockstep=False)
    expected, actual = found.expected, found.actual
    recorded = compare_recorded(expected, actual).report
    assert recorded.divergences
    assert list(check_evidence(recorded.divergences, expected, actual, None, None)) == []
