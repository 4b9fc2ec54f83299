"""Parts of reports against their definitions: goals side by side, steps of one side, and lines about an evaluation."""

import io
from itertools import product
from types import SimpleNamespace

import pytest
from report_runs import change
from rich.text import Text

from kgverify import EngineInfo, Limits
from kgverify.comparison.exercise.exercise import Exercise
from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.report import step_document
from kgverify.report.evaluation import EvaluationReport, _counts, _differences, _speed
from kgverify.report.render.screen import Screen
from kgverify.report.steps import (
    MOST_CANDIDATES,
    MOST_RESOLVENTS,
    _render_stages,
    render_derivation,
    render_step,
    render_trace,
)
from kgverify.trace.model.header import Header, PolicyInfo
from kgverify.verification.verify import Verification

NAMES = SimpleNamespace(
    atom=lambda atom: f"p{atom[0]}",
    goal=lambda atoms, kind=0: " ".join(f"p{atom[0]}" for atom in atoms),
    clause=lambda kind, index: "",
)


def step(*predicates: int, resolvents: tuple[ResolventView, ...] = (), choice: int = -1) -> StepView:
    goal = tuple(Atom(each, -1, -2) for each in predicates)
    fields = {"goal": goal, "resolvents": resolvents, "choice": choice}
    return StepView(**{name: fields.get(name, 0) for name in StepView._fields})


def side_of(view: StepView) -> step_document.SideStep:
    return step_document.SideStep(view, NAMES, {"resolvents.score"}, dict)


def test_goals_side_by_side_keep_the_atoms_of_both_in_order():
    goals = [each for num in range(4) for each in product(range(2), repeat=num)]
    for left, right in product(goals, repeat=2):
        pairs = list(step_document._align_goals(side_of(step(*left)), side_of(step(*right))))
        assert [pair[0] for pair in pairs if pair[0] is not None] == [f"p{each}" for each in left]
        assert [pair[1] for pair in pairs if pair[1] is not None] == [f"p{each}" for each in right]
        if left == right:
            assert all(pair[0] == pair[1] for pair in pairs)
        num_paired = sum(pair[0] is not None and pair[1] is not None for pair in pairs)
        assert len(pairs) == len(left) + len(right) - num_paired
    assert [pair[0] for pair in step_document._align_goals(side_of(step(1)), None)] == ["p1"]


def resolvent(predicate: int, score: float = 0.0) -> ResolventView:
    return ResolventView(int(GoalKind.GOAL), (Atom(predicate, -1, -2),), int(Origin.RULE), predicate, score)


@pytest.mark.parametrize("has_both", [False, True])
def test_nothing_is_missing_on_a_side_that_is_not_shown(has_both: bool):
    shown = side_of(step(1, resolvents=(resolvent(1), resolvent(2))))
    other = side_of(step(1)) if has_both else None
    for pair, mark in (((shown, other), "missing"), ((other, shown), "extra")):
        found = step_document._align_resolvents(*pair, 0.0)
        assert [each.mark for each in found] == [mark if has_both else "same"] * 2


@pytest.mark.parametrize(
    ("score", "texts"), [(-1.0000001, ["-1.0", "-1.0000001"]), (-1.25, ["-1", "-1.25"]), (-1.0, ["-1", "-1"])]
)
def test_scores_that_look_alike_and_differ_are_written_out(score: float, texts: list[str]):
    steps = [side_of(step(1, resolvents=(resolvent(1, each),))) for each in (-1.0, score)]
    (pair,) = step_document._align_resolvents(*steps, 0.0)
    assert pair.mark == ("same" if score == -1.0 else "score")
    assert [line.score for line in pair[1:3]] == texts


def test_a_step_that_chose_nothing_leads_to_nothing():
    resolvents = (resolvent(3), resolvent(4))
    for choice, by in ((-1, "nothing"), (0, "p3"), (1, "p4"), (2, "nothing")):
        view = step(1, resolvents=resolvents, choice=choice)
        assert step_document.describe_step(5, view, NAMES, agrees=True)[:3] == (5, "p1", by)


def test_outcomes_without_candidates_are_left_out_but_proofs_are_always_counted():
    assert (
        _counts({"proved": 0, "failed": 3, "open": 0, "depth_limit": 2}) == "0 proved, 3 failed, 2 at the depth limit"
    )
    assert _counts({"proved": 1200, "failed": 0, "open": 1}) == "1,200 proved, 1 left open"


def test_the_speed_of_several_processes_says_how_many():
    report = SimpleNamespace(
        candidates_per_second=100.0, num_parts=3, num_parts_resumed=0, seconds=1.0, warm_up_seconds=0.0
    )
    for num, text in ((1, ""), (2, " by 2 processes"), (3, " by 3 processes")):
        report.num_processes = num
        assert f"µs each{text}:" in _speed(report)


@pytest.mark.parametrize(("num_missing", "num_unsupported"), [(0, 0), (1, 0), (0, 1), (2, 3)])
def test_atoms_of_the_least_model_that_are_wrong_are_named(num_missing: int, num_unsupported: int):
    model = SimpleNamespace(
        num_missing=num_missing, num_unsupported=num_unsupported, missing="p(a, b)", unsupported="p(c, d)"
    )
    report = SimpleNamespace(wrong_figures=(), check=SimpleNamespace(model=model, differences=()), prover="reference")
    text = _differences(report, "").plain
    assert ("the least model misses p(a, b)" in text) == bool(num_missing)
    assert ("the least model has p(c, d), which does not follow" in text) == bool(num_unsupported)


def test_a_report_with_its_traces_keeps_the_command_that_made_it(faulty: Verification):
    report = change(faulty.report, command="kgverify diff", job=None)
    assert report.with_traces(faulty).command == "kgverify diff"
    assert report.with_traces(faulty, command="kgverify compare").command == "kgverify compare"
    assert change(report, command="").with_traces(faulty).command == ""
    assert report.with_traces(faulty).traces is faulty


def test_a_planted_fault_that_is_found_is_not_called_idle(faulty: Verification, agreeing: Verification):
    assert faulty.report.environment.actual.faults == ("fact-cap",)
    for each in (faulty, agreeing):
        assert not any("changed no step" in note for note in each.report.notes)


def test_of_several_results_that_differ_the_first_is_shown():
    found = [
        SimpleNamespace(atom=f"p(a, {name})", query=query, side="tail", expected="proved", actual="failed")
        for query, name in ((4, "b"), (5, "c"), (6, "d"))
    ]
    report = SimpleNamespace(wrong_figures=(), check=SimpleNamespace(model=None, differences=found), prover="other")
    lines = _differences(report, "").plain.strip().splitlines()
    assert lines[0].startswith("3 results differ from other; the first")
    assert [" ".join(line.split()) for line in lines[1:4]] == [
        "p(a, b) (query 4, tail side)",
        "expected proved",
        "actual failed",
    ]


def test_an_evaluation_without_proofs_exercised_too_little():
    proved = Exercise(outcomes={"PROVED": 1})
    for outcomes, is_enough in (({}, False), ({"proved": 0}, False), ({"proved": 1}, True)):
        report = SimpleNamespace(check=SimpleNamespace(exercise=proved), outcomes=outcomes, minimum={"proved": 1})
        assert bool(EvaluationReport.reasons.fget(report)) != is_enough


def test_the_steps_of_a_derivation_are_lines_without_gaps():
    found = {"goal": "p(a, b)", "score": None, "clause": "fact p(a, b)"}
    candidate = dict.fromkeys(("query", "side", "outcome", "is_limited", "log_probability"))
    steps = [{"goal": [f"p{number}"], "choice": 0, "resolvents": [found]} for number in range(3)]
    text = io.StringIO()
    Screen(file=text, width=120).print(
        render_derivation({**candidate, "candidate": 7, "atom": "p(a, b)", "steps": steps})
    )
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert [line[:2] for line in lines] == [
        ["candidate", "7:"],
        ["step", "goal"],
        *([f"{i}", f"p{i}"] for i in range(3)),
    ]


@pytest.mark.parametrize("num_more", [-1, 0, 1])
def test_resolvents_that_are_not_listed_are_counted(num_more: int):
    found = {"goal": "p(a, b)", "score": None, "clause": None}
    step = dict.fromkeys(("choice", "outcome", "dropped_atoms", "dropped_resolvents"))
    data = {
        **step,
        "candidate": 0,
        "atom": "p(a, b)",
        "step": 0,
        "goal": ["p(a, b)"],
        "resolvents": [found] * (MOST_RESOLVENTS + num_more),
        "stages": {"resolve": ["p(a, b)"] * (MOST_RESOLVENTS + num_more)},
    }
    text = io.StringIO()
    Screen(file=text, width=120).print(render_step(data))
    assert text.getvalue().count("... and 1 more") == 2 * (num_more > 0)
    assert text.getvalue().count("more") == 2 * (num_more > 0)


@pytest.mark.parametrize("num_more", [-1, 0, 1, 2])
def test_candidates_that_are_not_listed_are_counted(num_more: int):
    num = MOST_CANDIDATES + num_more
    candidate = dict.fromkeys(("outcome", "atom", "side"), "") | dict.fromkeys(("query", "num_steps"), 0)
    view = SimpleNamespace(
        header=Header(engine=EngineInfo("e"), limits=Limits(), policy=PolicyInfo("p"), program_sha256=""),
        num_candidates=num,
        candidate=lambda row: candidate | {"is_limited": False, "log_probability": None},
        summary=lambda: (
            dict.fromkeys(("num_candidates", "num_steps", "num_resolvents"), num)
            | {"root_digest": "", "is_complete": True}
        ),
    )
    view.trace = view
    rest = [each.plain for each in render_trace(view).renderables if isinstance(each, Text)][1:]
    assert [text.split(";")[0] for text in rest] == ([f"... and {num_more} more"] if num_more > 0 else [])


@pytest.mark.parametrize("num_more", [-1, 0, 1, 2])
def test_lines_of_a_stage_that_are_not_shown_are_counted(num_more: int):
    _, table = _render_stages({"resolve": ["p(a)"] * (MOST_RESOLVENTS + num_more)})
    (cell,) = table.columns[1].cells
    lines = cell.plain.splitlines()
    assert lines.count("p(a)") == min(MOST_RESOLVENTS, MOST_RESOLVENTS + num_more)
    rest = [line.split(";")[0] for line in lines if line != "p(a)"]
    assert rest == ([f"... and {num_more} more"] if num_more > 0 else [])


def test_outcomes_without_candidates_are_left_out_except_proofs():
    assert _counts({"proved": 0, "failed": 2, "open": 0}) == "0 proved, 2 failed"
    assert _counts({"proved": 1_200, "failed": 0, "open": 3}) == "1,200 proved, 3 left open"


def test_the_side_without_a_step_is_named_before_choices_that_differ():
    missing = ["", "The expected side has no such step.", "The actual side has no such step."]
    beyond = "The two derivations diverged before this step: differences here are consequences."
    for sides, is_same_way, note in (
        ((1, 2), True, missing[0]),
        ((None, 2), True, missing[1]),
        ((1, None), False, missing[2]),
        ((1, 2), False, beyond),
    ):
        reader = SimpleNamespace(
            sides=lambda *_, found=(*sides, is_same_way): found,
            _derive=lambda step, expected, actual, note: step_document.Derivation((), step, note=note),
        )
        assert step_document.DerivationReader.read_step(reader, 0, 1).note == note
