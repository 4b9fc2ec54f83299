"""A step of both sides: derivations and stages side by side, proof trees, and what a trace does not hold."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from report_runs import SavedRun, change

import kgverify as kv
from kgverify.comparison.compare import Comparer
from kgverify.comparison.step_view import Names, ResolventView, StepView
from kgverify.program.atoms import Atom, encode_variable
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.report import step_document
from kgverify.report.proof_tree import build_tree, read_bodies
from kgverify.report.step_document import MOST_PAIRS, Derivation, DerivationReader, walk_stages
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.digests import compute_digests

RULE = "locatedInCR(X, Z) <- neighborOf(X, Y), locatedInCR(Y, Z)"


def reader_of(run: SavedRun, *, is_stepped: bool = True) -> DerivationReader:
    report, traces = run.report, run.report.traces
    stepped = traces.stepped if is_stepped else None
    return DerivationReader(
        traces.expected, traces.actual, report.divergences, lockstep=report.lockstep, stepped=stepped
    )


def with_column(trace: kv.Trace, level: str, field: str, edit) -> kv.Trace:
    """Return a trace with one column edited."""
    rows = getattr(trace.columns, level)
    values = getattr(rows, field).copy()
    edit(values)
    columns = trace.columns._replace(**{level: rows._replace(**{field: values})})
    return replace(trace, columns=columns, digests=compute_digests(columns))


def first_of_change(trace: kv.Trace, level: str, field: str, edit) -> tuple[DerivationReader, kv.Divergence]:
    """Return a reader and the first divergence of a trace from itself with one column edited."""
    changed = with_column(trace, level, field, edit)
    found = Comparer(trace, changed).compare().divergences
    return DerivationReader(trace, changed, found), found[0]


def walk(reader: DerivationReader, first: kv.Divergence) -> dict[str, tuple[str, bool, str]]:
    """Return the mark, whether it is the culprit, and the note of each stage."""
    lines = walk_stages(reader, first.candidate, first.step, first)
    return {line.stage: (line.mark.value, line.is_culprit, line.note) for line in lines}


def add(index: int, value: float):
    def edit(values):
        values[index] += value

    return edit


def test_of_many_resolvents_the_culprit_and_the_chosen_stay(hostile: SavedRun):
    pairs = reader_of(hostile).read(hostile.report.divergences[0]).pairs
    shown = [pair for pair in pairs if pair.mark != "hidden"]
    assert len(shown) == MOST_PAIRS
    assert any(pair.is_culprit for pair in shown)
    assert sum(line.is_chosen for pair in shown for line in pair[1:3] if line) == 2
    assert sum(pair.num_hidden for pair in pairs) > 0


def test_in_lockstep_the_saved_steps_show_both_sides_of_every_divergence(in_lockstep: SavedRun):
    reader = reader_of(in_lockstep)
    assert len(in_lockstep.report.divergences) > 100
    for each in in_lockstep.report.divergences:
        found = reader.read(each)
        assert found.note == ""
        assert not any(atoms.differs for atoms in found.goals)
        assert "missing" in {pair.mark for pair in found.pairs} or any(pair.num_differing for pair in found.pairs)
        assert [pair.is_culprit for pair in found.pairs].count(True) == 1
        expected, actual = reader.trees(each)
        assert (bool(expected), actual) == (True, ())


def test_a_step_that_the_engine_did_not_return_is_reported(in_lockstep: SavedRun):
    """The steps are paired by what they are steps of, so that one lost step does not shift the others."""
    traces = in_lockstep.report.traces
    first = in_lockstep.report.divergences[0]
    num_steps = traces.expected.columns.candidates.num_steps
    lost = sum(num_steps[: first.candidate]) + first.step
    columns = traces.stepped.columns
    columns = select_candidates(columns, np.delete(np.arange(len(columns.candidates.query)), lost))
    stepped = replace(traces.stepped, columns=columns, digests=compute_digests(columns))
    others = [each for each in in_lockstep.report.divergences if each.candidate != first.candidate]
    reader = DerivationReader(traces.expected, traces.actual, others, lockstep=True, stepped=stepped)
    assert all(not reader.read(each).note for each in others)
    notes = [reader.read_step(first.candidate, step).note for step in range(num_steps[first.candidate])]
    assert notes.count("The actual side has no such step.") == 1


@pytest.mark.parametrize(
    ("level", "field", "edit", "culprit", "place"),
    [
        ("steps", "outcome", add(0, 1), "finish", 5),
        ("steps", "dropped_atoms", add(0, 5), "limit", 2),
        ("resolvents", "score", add(0, 99.0), "score", "score"),
        ("resolvents", "origin", add(0, 2), "match_rules", "missing"),
        ("resolvents", "atoms", lambda values: values[0].__setitem__(1, 3), "", "changed"),
        ("steps", "goal_atoms", lambda values: values[1].__setitem__(1, not values[1][1]), "(input)", "goal"),
    ],
)
def test_what_is_read_off_two_traces_has_its_stage_and_the_arrow(
    agreeing: SavedRun, level: str, field: str, edit, culprit: str, place: int | str
):
    reader, first = first_of_change(agreeing.report.traces.expected, level, field, edit)
    lines = walk(reader, first)
    stages = [*lines]
    found = [stage for stage, (_, is_culprit, _) in lines.items() if is_culprit]
    assert found == [culprit] if culprit else len(found) == 1
    index = stages.index(found[0])
    assert {mark for mark, *_ in [*lines.values()][:index]} <= {"agrees", "not held"}
    assert "differs" not in {mark for mark, *_ in [*lines.values()][index + 1 :]}
    shown: Derivation = reader.read(first)
    if isinstance(place, int):
        assert [fact.is_culprit for fact in shown.facts].index(True) == place
    elif place == "goal":
        assert shown.goal_is_culprit
        assert shown.goals[0].differs
        assert lines["(input)"][2].startswith("the output of advance in the step before")
    else:
        (pair,) = [pair for pair in shown.pairs if pair.is_culprit]
        assert pair.mark == place


def test_another_choice_is_the_choice_and_the_next_goal_follows(agreeing: SavedRun):
    trace = agreeing.report.traces.expected
    many = int(np.argmax(trace.columns.steps.num_resolvents))

    def edit(values):
        values[many] = (values[many] + 1) % 2

    reader, first = first_of_change(trace, "steps", "choice", edit)
    assert [stage for stage, line in walk(reader, first).items() if line[1]] == ["choose"]
    assert [fact.is_culprit for fact in reader.read(first).facts].index(True) == 4
    at_choice, behind = (reader.sides(first.candidate, first.step + i)[2] for i in (0, 1))
    assert (at_choice, behind) == (True, False)


def test_a_step_that_agrees_agrees_in_every_stage_that_is_held(agreeing: SavedRun):
    traces = agreeing.report.traces
    lacking = {"resolvents.score", "resolvents.origin", "resolvents.origin_kind", "steps.dropped_atoms"}
    for lost, not_held in (
        (set(), {"select", "prune", "revisit"}),
        (lacking, {"select", "prune", "revisit", "match_rules", "match_facts", "limit", "score"}),
    ):
        actual = replace(traces.actual, fields=traces.actual.fields - lost)
        lines = walk_stages(DerivationReader(traces.expected, actual), 0, 0, None)
        assert {line.stage for line in lines if line.mark.value == "not held"} >= not_held
        assert {line.mark.value for line in lines} == {"agrees", "not held"}
        assert next(line for line in lines if line.stage == "choose").mark.value == "agrees"


def test_what_ran_beside_a_step_stands_after_its_stages(faulty: SavedRun):
    first = change(faulty.report.divergences[0], stage="recycle", field="resolvents.atoms", is_replayed=True)
    lines = walk(reader_of(faulty), first)
    assert [*lines][-1] == "recycle"
    assert lines["recycle"][1]
    assert "the steps that run beside it" in lines["recycle"][2]
    assert "differs" not in [mark for mark, *_ in lines.values()][:-1]
    absent = change(first, step=2, field="candidates.num_steps")
    assert [*walk(reader_of(faulty), absent)] == ["recycle"]


def make_side(*predicates: int, resolvents: tuple[ResolventView, ...] = ()) -> step_document.SideStep:
    names = SimpleNamespace(
        atom=lambda atom: f"p{atom[0]}",
        goal=lambda atoms, kind=0: " ".join(f"p{atom[0]}" for atom in atoms),
        clause=lambda kind, index: "",
    )
    fields = {"goal": tuple(Atom(each, -1, -2) for each in predicates), "resolvents": resolvents, "choice": -1}
    view = StepView(**{name: fields.get(name, 0) for name in StepView._fields})
    return step_document.SideStep(view, names, {"resolvents.score"}, dict)


def resolvent(predicate: int, score: float = 0.0) -> ResolventView:
    return ResolventView(int(GoalKind.GOAL), (Atom(predicate, -1, -2),), int(Origin.RULE), predicate, score)


def test_goals_side_by_side_keep_the_atoms_of_both_in_order():
    goals = [each for num in range(4) for each in product(range(2), repeat=num)]
    for left, right in product(goals, repeat=2):
        pairs = list(step_document._align_goals(make_side(*left), make_side(*right)))
        assert [pair[0] for pair in pairs if pair[0] is not None] == [f"p{each}" for each in left]
        assert [pair[1] for pair in pairs if pair[1] is not None] == [f"p{each}" for each in right]
        if left == right:
            assert all(pair[0] == pair[1] for pair in pairs)


def test_nothing_is_missing_on_a_side_that_is_not_shown():
    shown = make_side(1, resolvents=(resolvent(1), resolvent(2)))
    for other in (make_side(1), None):
        for pair, mark in (((shown, other), "missing"), ((other, shown), "extra")):
            found = step_document._align_resolvents(*pair, 0.0)
            assert [each.mark for each in found] == [mark if other else "same"] * 2


@pytest.mark.parametrize(
    ("left", "right", "marks"),
    [
        ((1,), (1, 1), ["same", "extra"]),
        ((1, 1), (1,), ["same", "missing"]),
        ((1, 2), (2, 1), ["moved", "moved", "same"]),
    ],
)
def test_an_extra_one_of_equal_resolvents_has_not_moved(
    left: tuple[int, ...], right: tuple[int, ...], marks: list[str]
):
    sides = (make_side(1, resolvents=tuple(map(resolvent, each))) for each in (left, right))
    assert sorted(pair.mark for pair in step_document._align_resolvents(*sides, 0.0)) == sorted(marks)


@pytest.mark.parametrize(
    ("score", "texts"), [(-1.0000001, ["-1.0", "-1.0000001"]), (-1.25, ["-1", "-1.25"]), (-1.0, ["-1", "-1"])]
)
def test_scores_that_look_alike_and_differ_are_written_out(score: float, texts: list[str]):
    steps = [make_side(1, resolvents=(resolvent(1, each),)) for each in (-1.0, score)]
    (pair,) = step_document._align_resolvents(*steps, 0.0)
    assert pair.mark == ("same" if score == -1.0 else "score")
    assert [line.score for line in pair[1:3]] == texts


def test_the_atoms_of_a_clause_are_below_the_atom_that_it_resolved(faulty: SavedRun):
    expected, actual = (
        [(line.depth, line.atom, line.clause.split(" [")[0], line.step, line.note) for line in tree]
        for tree in reader_of(faulty).trees(faulty.report.divergences[0])
    )
    assert expected == [
        (0, "locatedInCR(armenia, asia)", RULE, 0, ""),
        (1, "neighborOf(armenia, X0)", "fact neighborOf(armenia, iran)", 1, ""),
        (1, "locatedInCR(iran, asia)", RULE, 2, ""),
        (2, "neighborOf(iran, X0)", "fact neighborOf(iran, pakistan)", 3, ""),
        (2, "locatedInCR(pakistan, asia)", "", -1, "a fact"),
    ]
    assert actual[1:] == [
        (1, "neighborOf(armenia, X0)", "", 1, "no clause"),
        (1, "locatedInCR(X0, asia)", "", -1, "open"),
    ]


def step_of(goal: tuple[Atom, ...], rule: int, after: tuple[Atom, ...]) -> StepView:
    kind = GoalKind.GOAL if after else GoalKind.TRUE
    return StepView(0, goal, (ResolventView(kind, after, Origin.RULE, rule, 0.0),), 0, 0, 0, Outcome.OPEN)


def test_what_the_steps_do_not_determine_has_no_tree(faulty: SavedRun):
    trace = faulty.report.traces.expected
    names, bodies = Names(trace), read_bodies(trace)
    rule = next(i for i, body in enumerate(bodies) if len(body) == 2)
    x, y = (encode_variable(i) for i in range(2))
    first, second = (trace.symbols.predicates.index(name) for name in bodies[rule])
    query, left, right = Atom(second, 0, 1), Atom(first, 0, x), Atom(second, x, 1)
    lines = build_tree([step_of((query,), rule, (left, right))], names, bodies)
    # The atoms that no step selected are those of the last resolvent.
    assert [(line.depth, line.atom) for line in lines[1:]] == [(1, names.atom(left)), (1, names.atom(right))]
    for steps, known in (
        ([], bodies),
        # Without rules, after a rule with one atom, and after a step whose goal is not the resolvent before it.
        ([step_of((query,), rule, (left, right))], []),
        ([step_of((query,), 0, (left,))], [bodies[rule][:1]]),
        ([step_of((query,), rule, (left, right)), step_of((left,), rule, ())], bodies),
        # Of two equal atoms, pruning may have left either.
        ([step_of((query,), 0, (left, Atom(second, x, y)))], [(*bodies[rule], bodies[rule][1])]),
    ):
        assert build_tree(steps, names, known) == ()
