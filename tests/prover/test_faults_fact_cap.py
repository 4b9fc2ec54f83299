"""The fault `fact-cap`: whatever needs more than the first 50 facts of a predicate is lost."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from fault_programs import needs_data
from run_engines import UNEXPLAINED

from kgverify import Equality, KnowledgeGraph, Stage, UserError, Verdict, load_graph
from kgverify.comparison.result import Level
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Outcome
from kgverify.program.program import NamedRule
from kgverify.prover.faults.fault import FACT_CAP
from kgverify.prover.faults.plant import FAULTS, find_faults
from kgverify.ranking.rank import MRR
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, reference_pipeline
from kgverify.verification.verify import Verification, verify


def verify_with_fault(run: Run, slots: int, *, lockstep: bool = False) -> Verification:
    judged = evaluator_pipeline(run, faults=["fact-cap"], mode="eager", device="cpu", slots=slots)
    return verify(
        run,
        reference_pipeline(run),
        judged,
        effort=UNEXPLAINED,
        equality=Equality(determinism=False, lockstep=lockstep, minimum={}),
    )


def graph_where_only_a_late_fact_helps(place: int) -> KnowledgeGraph:
    """60 facts `edge(start, m_i)`; from m_i with i the place alone does a `last` edge lead on to the end."""
    edges = [NamedAtom("edge", "start", f"m{i}") for i in range(60)]
    last = NamedAtom("last", f"m{place}", "end")
    x, y, z = map(Variable, "XYZ")
    rule = NamedRule(NamedAtom("path", x, y), (NamedAtom("edge", x, z), NamedAtom("last", z, y)))
    return KnowledgeGraph(
        f"only the fact at place {place} helps",
        train=(*edges, last),
        test=(NamedAtom("path", "start", "end"),),
        rules=(rule,),
    )


@pytest.mark.parametrize(("place", "is_lost"), [(0, False), (49, False), (50, True), (54, True), (59, True)])
def test_exactly_what_needs_a_fact_beyond_the_first_fifty_is_lost(place: int, is_lost: bool):
    run = Run(graph_where_only_a_late_fact_helps(place), num_queries=1, num_corruptions=0)
    verification = verify_with_fault(run, slots=2)
    report = verification.report
    assert set(verification.expected.columns.candidates.outcome.tolist()) == {Outcome.PROVED}
    assert set(verification.actual.columns.candidates.outcome.tolist()) == {
        Outcome.FAILED if is_lost else Outcome.PROVED
    }
    assert report.verdict is (Verdict.DIVERGE if is_lost else Verdict.AGREE)
    if is_lost:
        assert (report.first_cause.stage, report.first_cause.is_replayed) == ("match_facts", True)
        assert (report.first_cause.step, report.level) == (1, Level.OUTCOME)


def test_the_lost_facts_are_named_one_by_one():
    run = Run(graph_where_only_a_late_fact_helps(54), num_queries=1, num_corruptions=0)
    cause = verify_with_fault(run, slots=2).report.first_cause
    assert cause.goal == "edge(start, X0), last(X0, end)"
    assert cause.expected == [f"fact edge(start, m{i})" for i in range(50, 60)]
    assert cause.actual == ["nothing more"]


def parse_atom(text: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"(?:fact )?(\w+)\((\w+), (\w+)\)(?: \[.*\])?", text)
    assert match, text
    return match[1], match[2], match[3]


@pytest.fixture(scope="module")
def family() -> tuple[Run, Verification]:
    run = Run(load_graph("family"), num_queries=20, num_corruptions=3)
    return run, verify_with_fault(run, slots=128)


@pytest.mark.deep
@pytest.mark.data
@needs_data
def test_on_family_the_first_divergence_can_be_checked_by_hand_from_what_is_printed(family: tuple[Run, Verification]):
    run, verification = family
    report, program = verification.report, run.graph.program
    assert report.verdict is Verdict.DIVERGE
    cause = report.first_cause
    assert (cause.stage, cause.is_replayed, cause.actual) == ("match_facts", True, ["nothing more"])

    selected = parse_atom(cause.goal.split("), ")[0] + ")" if "), " in cause.goal else cause.goal)
    ids = program.symbols.predicate_ids[selected[0]]
    of_predicate = program.facts[program.facts[:, 0] == ids]
    lines = (family_folder() / "train.txt").read_text().splitlines()
    assert cause.expected
    for text in cause.expected:
        fact = parse_atom(text)
        # It matches the selected atom, argument by argument; X0, X1 are variables.
        assert fact[0] == selected[0]
        assert all(s == f or re.fullmatch(r"X\d+", s) for s, f in zip(selected[1:], fact[1:], strict=True))
        # It stands in the file, on the line that is printed.
        line = int(re.search(r"train\.txt:(\d+)", text)[1])
        assert fact == parse_atom(lines[line - 1].strip().replace(",", ", ").replace(",  ", ", ").rstrip("."))
        # Its place among the facts of its predicate is beyond the cap.
        row = [ids, *(program.symbols.constant_ids[name] for name in fact[1:])]
        (place,) = np.flatnonzero((of_predicate == row).all(1)).tolist()
        assert place >= FACT_CAP


def family_folder() -> Path:
    return Path(os.environ["KGVERIFY_DATA"]) / "family"


@pytest.mark.deep
@pytest.mark.data
@needs_data
def test_on_family_the_metric_falls_and_every_first_divergence_is_of_the_planted_stage(
    family: tuple[Run, Verification],
):
    _, verification = family
    report = verification.report
    assert report.level is Level.METRIC
    assert report.metrics.actual[MRR] < report.metrics.expected[MRR]
    assert {each.stage for each in report.divergences} == {"match_facts"}
    assert all(each.is_replayed for each in report.divergences)
    assert report.environment.actual.faults == ("fact-cap",)
    assert report.environment.expected.faults == ()


def test_in_lockstep_every_wrong_step_is_listed_under_its_own_candidate():
    """Two faults of one derivation, the second no consequence of the first."""
    early = [NamedAtom("edge", f"f{i}", f"g{i}") for i in range(FACT_CAP)]
    late = [NamedAtom("edge", "a", "b"), NamedAtom("edge", "b", "c")]
    x, y, z, w = map(Variable, "XYZW")
    rule = NamedRule(
        NamedAtom("path", x, y), (NamedAtom("edge", x, z), NamedAtom("edge", z, w), NamedAtom("last", w, y))
    )
    graph = KnowledgeGraph(
        "two late facts",
        train=(*early, *late, NamedAtom("last", "c", "d")),
        test=(NamedAtom("path", "f1", "d"), NamedAtom("path", "a", "d")),
        rules=(rule,),
    )
    run = Run(graph, num_queries=2, num_corruptions=2)
    verification = verify_with_fault(run, slots=4, lockstep=True)
    report = verification.report
    assert report.verdict is Verdict.DIVERGE
    candidates = verification.expected.columns.candidates
    steps = set()
    for each in report.divergences:
        atom = tuple(candidates.atom[each.candidate].tolist())
        symbols = run.graph.program.symbols
        named = f"{symbols.predicates[atom[0]]}({symbols.constants[atom[1]]}, {symbols.constants[atom[2]]})"
        assert each.atom == named
        assert each.query == candidates.query[each.candidate]
        assert 0 <= each.step < candidates.num_steps[each.candidate]
        assert (each.candidate, each.step) not in steps
        steps.add((each.candidate, each.step))
        if each.stage == "match_facts":
            assert each.is_replayed
    per_candidate = np.bincount([candidate for candidate, _ in steps], minlength=len(candidates.query))
    assert per_candidate.max() > 1
    free = verify_with_fault(run, slots=4).report
    assert len(free.divergences) < len(report.divergences)


def test_the_catalogue_names_each_fault_by_its_name_and_a_stage_of_a_step():
    for name, fault in FAULTS.items():
        assert name == fault.name
        assert fault.stage in Stage
        assert fault.breaks
        assert fault.seen_in
    assert find_faults(["fact-cap"]) == (FAULTS["fact-cap"],)


def test_an_unknown_fault_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="unknown fault 'fact-cup'") as caught:
        find_faults(["fact-cup"])
    assert caught.value.fix == "did you mean 'fact-cap'?"


def test_no_fault_is_the_evaluator_as_it_is():
    run = Run(graph_where_only_a_late_fact_helps(54), num_queries=1, num_corruptions=0)
    judged = evaluator_pipeline(run, faults=[], mode="eager", device="cpu", slots=2)
    assert judged.engine.info.faults == ()
    assert verify(run, reference_pipeline(run), judged, equality=Equality(minimum={})).report.verdict is Verdict.AGREE
