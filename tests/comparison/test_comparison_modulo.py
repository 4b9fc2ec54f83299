"""Equality up to names, order and duplicates: what is benign is counted apart, and everything else is still found."""

import re
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from comparison_traces import (
    small_lockstep_trace,
    small_trace,
    with_column,
    with_columns,
    with_element,
    with_header,
)
from run_engines import UNEXPLAINED
from twins import TwinEngine, select_resolvents, twin

import kgverify as kv
from kgverify import Equality, UserError, Verdict, load_graph
from kgverify.comparison.compare import compare
from kgverify.comparison.modulo import parse_modulo
from kgverify.engines.protocol import Sizes
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.outcomes import STEP_STAGES
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.testing.checking.check import prepare_batches
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.model.columns import no_stage_items, starts_of
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import write_again
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.verify import verify

KINDS = ["names", "order", "duplicates", "names,order", "names,order,duplicates"]


def shallow_trace() -> Trace:
    trace = small_trace()
    return replace(trace, columns=trace.columns._replace(stages=no_stage_items()))


def counted(comparison) -> dict[str, int]:
    return {each.kind: each.num_steps for each in comparison.benign}


def differing(expected: Trace, actual: Trace, modulo: str) -> set[tuple[int, int]]:
    comparison = compare(expected, actual, equality=Equality(modulo=modulo.split(",") if modulo else ()))
    ties = {(each.candidate, each.step) for each in comparison.near_ties}
    return ties | {(each.candidate, each.step) for each in comparison.divergences}


@pytest.mark.parametrize("kinds", KINDS)
def test_twins_agree_up_to_what_makes_them_differ(kinds: str):
    expected = shallow_trace()
    for sides in ((expected, twin(expected, 3, kinds=kinds)), (twin(expected, 3, kinds=kinds), expected)):
        report = compare_recorded(*sides, equality=Equality(modulo=kinds.split(","))).report
        assert report.verdict is Verdict.AGREE
        assert report.self_test.columns > 20
        assert set(counted(report)) == set(report.modulo) == set(kinds.split(","))
        assert report.coverage.steps == len(expected.columns.steps.depth)
    assert compare(expected, twin(expected, 3, kinds=kinds)).verdict is Verdict.DIVERGE


@pytest.mark.parametrize("kind", ["names", "order", "duplicates"])
def test_one_kind_does_not_excuse_another(kind: str):
    expected = shallow_trace()
    others = [each for each in ("names", "order", "duplicates") if each != kind]
    assert compare(expected, twin(expected, 4, kinds=kind), equality=Equality(modulo=others)).verdict is Verdict.DIVERGE


def test_equal_traces_have_no_benign_differences():
    comparison = compare(small_trace(), small_trace(), equality=Equality(modulo=["names", "order", "duplicates"]))
    assert comparison.verdict is Verdict.AGREE
    assert comparison.benign == ()


def test_a_benign_difference_shows_both_sides_without_those_of_other_kinds():
    comparison = compare(shallow_trace(), twin(shallow_trace(), 3), equality=Equality(modulo=["names", "order"]))
    names, order = comparison.benign
    assert order.field == "resolvents.order"
    assert sorted(order.expected) == sorted(order.actual)
    assert names.field in ("resolvents.atoms", "steps.goal_atoms")
    assert names.expected != names.actual


def test_none_declares_that_no_difference_is_benign():
    assert parse_modulo("none") == frozenset()
    assert parse_modulo(None) is None
    assert parse_modulo("names, order") == parse_modulo(["order", "names"]) == {"names", "order"}
    with pytest.raises(UserError, match="none excludes other kinds"):
        parse_modulo("none,names")


def test_the_rule_of_each_field_says_what_was_declared():
    rules = {
        each.field: each.rule
        for each in compare(small_trace(), small_trace(), equality=Equality(modulo=["names", "order"])).equality
    }
    assert rules["resolvents.atoms"] == "equal up to names of variables and the order of resolvents"
    assert rules["steps.goal_atoms"] == "equal up to names of variables"
    assert rules["steps.outcome"] == "equal"


def test_a_real_difference_beside_benign_ones_is_found_in_its_step():
    expected = shallow_trace()
    steps = expected.columns.steps
    step = len(steps.depth) - 1
    outcome = steps.outcome.copy()
    outcome[step] = (outcome[step] + 1) % 4
    actual = twin(with_column(expected, "steps.outcome", outcome), 5)
    comparison = compare(expected, actual, equality=Equality(modulo=["names", "order"]))
    (found,) = comparison.divergences
    assert (found.field, found.candidate) == ("steps.outcome", len(expected.columns.candidates.query) - 1)
    assert comparison.benign


def test_atoms_of_a_goal_in_another_order_are_a_difference():
    expected = shallow_trace()
    counts = expected.columns.steps.num_atoms
    row = int(np.argmax(counts > 1))
    atoms = expected.columns.steps.goal_atoms.copy()
    begin, end = starts_of(counts)[row : row + 2]
    atoms[begin:end] = atoms[begin:end][::-1]
    actual = with_column(expected, "steps.goal_atoms", atoms)
    assert (
        compare(expected, actual, equality=Equality(modulo=["names", "order", "duplicates"])).verdict is Verdict.DIVERGE
    )


def test_a_tie_that_another_order_breaks_otherwise_is_a_near_tie():
    expected = small_lockstep_trace()
    columns = expected.columns._replace(stages=no_stage_items())
    steps, scores = columns.steps, columns.resolvents.score
    starts, atoms = starts_of(steps.num_resolvents), starts_of(columns.resolvents.num_atoms)
    contents = [columns.resolvents.atoms[a:b].tolist() for a, b in pairwise(atoms)]
    highest = [
        begin + np.flatnonzero(scores[begin:end] == scores[begin:end].max())
        for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]
    step = next(i for i, rows in enumerate(highest) if contents[rows[0]] != contents[rows[-1]])
    begin, end = starts[step : step + 2]
    rows = np.arange(len(scores))
    rows[begin:end] = rows[begin:end][::-1]
    choice = steps.choice.copy()
    choice[step] = int(np.argmax(scores[rows[begin:end]]))
    turned = select_resolvents(columns, rows, steps.num_resolvents)
    turned = turned._replace(steps=turned.steps._replace(choice=choice))
    comparison = compare(expected, with_columns(expected, turned), lockstep=True, equality=Equality(modulo=["order"]))
    assert comparison.divergences == ()
    (tie,) = comparison.near_ties
    assert (tie.candidate, tie.gap) == (step, 0.0)
    assert tie.expected.split(": ")[1] != tie.actual.split(": ")[1]


def test_names_do_not_count_where_an_engine_has_its_own():
    expected = shallow_trace()
    actual = twin(expected, 6, kinds="names")
    engine = msgspec.structs.replace(actual.header.engine, name="theirs", variables="own")
    actual = replace(actual, header=msgspec.structs.replace(actual.header, engine=engine))
    comparison = compare(expected, actual)
    assert comparison.verdict is Verdict.AGREE
    assert comparison.modulo == ("names",)
    assert any("variables of theirs have numbers of their own" in note for note in comparison.notes)
    assert compare(expected, actual, equality=Equality(modulo=())).verdict is Verdict.DIVERGE


def test_origins_of_repeated_resolvents_agree_if_they_have_one_in_common():
    expected = shallow_trace()
    columns = expected.columns
    rows = np.repeat(np.arange(len(columns.resolvents.kind)), 2)
    doubled = select_resolvents(columns, rows, 2 * columns.steps.num_resolvents)
    resolvents = doubled.resolvents
    origin = resolvents.origin.copy()
    origin[::2] = np.where(resolvents.origin_kind[::2] == 1, (origin[::2] + 1) % 3, origin[::2])
    steps = doubled.steps._replace(choice=2 * doubled.steps.choice)
    doubled = doubled._replace(resolvents=resolvents._replace(origin=origin), steps=steps)
    actual = with_columns(expected, doubled)
    # Each score counts twice.
    sums = columns.candidates.log_probability - np.log(2) * columns.candidates.num_steps
    actual = with_column(actual, "candidates.log_probability", sums)
    assert compare(expected, actual, equality=Equality(modulo=["duplicates"])).verdict is Verdict.AGREE
    wrong = with_column(actual, "resolvents.origin", np.where(resolvents.origin_kind == 1, 7, origin).astype(np.int32))
    assert compare(expected, wrong, equality=Equality(modulo=["duplicates"])).verdict is Verdict.DIVERGE


def test_sums_that_count_repeated_resolvents_without_scores_are_not_compared():
    expected = shallow_trace()
    repeated = twin(expected, 3, kinds="duplicates")
    actual = replace(
        with_column(repeated, "resolvents.score", np.zeros_like(repeated.columns.resolvents.score)),
        fields=repeated.fields - {"resolvents.score"},
    )
    assert compare(expected, actual, equality=Equality(modulo=["duplicates"])).verdict is Verdict.AGREE
    # The sums of the others are.
    is_repeated = repeated.columns.steps.num_resolvents != expected.columns.steps.num_resolvents
    owner = np.repeat(np.arange(len(expected.columns.candidates.query)), expected.columns.candidates.num_steps)
    alone = int(np.setdiff1d(owner, owner[is_repeated])[0])
    wrong = with_element(actual, "candidates.log_probability", alone, lambda value: value - 1)
    (found,) = compare(expected, wrong, equality=Equality(modulo=["duplicates"])).divergences
    assert (found.candidate, found.field) == (alone, "candidates.log_probability")


def without_goals(trace: Trace, path: Path, *, keeps_all: bool) -> Trace:
    """A trace of digests; kgverify's own writer keeps the first of the three."""
    write_again(with_header(trace, level=TraceLevel.STEPS.value), path)
    convert_trace(path, path, TraceLevel.DIGESTS)
    lowered = read_trace(path)
    return replace(lowered, digests=trace.digests) if keeps_all else lowered


@pytest.mark.parametrize(
    ("kinds", "keeps_all", "verdict"),
    [
        ("names", True, Verdict.AGREE),
        ("order", True, Verdict.AGREE),
        ("names,order", True, Verdict.INCONCLUSIVE),
        ("duplicates", True, Verdict.INCONCLUSIVE),
        ("names", False, Verdict.INCONCLUSIVE),
    ],
)
def test_digests_decide_what_they_are_blind_to_and_leave_the_rest_open(
    tmp_path: Path, kinds: str, keeps_all: bool, verdict: Verdict
):
    expected, actual = (
        without_goals(trace, tmp_path / f"{i}.h5", keeps_all=keeps_all)
        for i, trace in enumerate((shallow_trace(), twin(shallow_trace(), 8, kinds=kinds)))
    )
    comparison = compare(expected, actual, equality=Equality(modulo=kinds.split(",")))
    assert comparison.verdict is verdict
    if verdict is Verdict.AGREE:
        assert counted(comparison).keys() == {kinds}
    else:
        assert any("a trace without goals does not show whether" in reason for reason in comparison.reasons)


def test_an_unknown_kind_is_refused():
    with pytest.raises(UserError, match="unknown kind of differences 'case'"):
        kv.compare("a.h5", "b.h5", equality=kv.Equality(modulo="case"))
    with pytest.raises(UserError, match="none excludes"):
        kv.compare("a.h5", "b.h5", equality=kv.Equality(modulo=["none", "names"]))


@pytest.mark.parametrize("num", [60, pytest.param(1000, marks=pytest.mark.deep)])
def test_random_problems_give_no_false_alarm(num: int):
    for seed, batch in enumerate(prepare_batches(list(islice(draw_problems(11), num)))):
        for kinds in KINDS:
            comparison = compare(
                batch.expected, twin(batch.expected, seed, kinds=kinds), equality=Equality(modulo=kinds.split(","))
            )
            assert comparison.verdict is Verdict.AGREE
            assert comparison.coverage.steps == len(batch.expected.columns.steps.depth)


@pytest.mark.sample(1, deep=5)
@pytest.mark.parametrize("fault", [name for name, each in FAULTS.items() if each.stage in STEP_STAGES])
def test_faults_are_found_in_twins_where_they_are_found_without(fault: str):
    num = 0
    for seed, batch in enumerate(prepare_batches(list(islice(draw_problems(3), 60)))):
        run = batch.merged.run
        pipeline = batch.merged.with_unranked(compiled_maker(faults=(fault,))(run, batch.merged.sizes))
        actual = build_trace(run, pipeline.engine, pipeline.engine.prove(pipeline.draw_for(run)), None)
        found = differing(batch.expected, actual, "names,order")
        assert differing(batch.expected, twin(actual, seed), "names,order") == found
        num += len(found)
    # The first changes the order alone; the second shows with many constants only.
    assert num or fault in ("facts-before-rules", "packed-fact-keys")


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("fault", ["", "fact-cap"])
def test_an_engine_of_its_own_names_and_order_is_judged_by_the_rest(fault: str, lockstep: bool):
    run = Run(load_graph("countries"), num_queries=1, num_corruptions=2)
    pipeline = compiled_maker(faults=(fault,) if fault else ())(run, Sizes())
    pipeline = pipeline._replace(engine=TwinEngine(pipeline.engine))
    equality = Equality(lockstep=lockstep, modulo=["names", "order"])
    report = verify(run, reference_pipeline(run), pipeline, equality=equality, effort=UNEXPLAINED).report
    assert [cause.stage for cause in report.causes] == (["match_facts"] if fault else [])
    assert [each.kind for each in report.benign] == ["names", "order"]
    text = str(report)
    assert "equal up to names of variables and the order of resolvents" in text
    assert text.index("benign differences") > text.index("first divergence" if fault else "self-test")


def test_the_page_lists_benign_differences_after_the_causes(tmp_path: Path):
    recorded = compare_recorded(shallow_trace(), twin(shallow_trace(), 3), equality=Equality(modulo=["names", "order"]))
    page = recorded.report.with_traces(recorded).to_html(tmp_path / "page.html").read_text()
    assert re.search("names of variables: [0-9]+ steps of 22 candidates", page)
