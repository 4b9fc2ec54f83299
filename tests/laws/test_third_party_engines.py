"""Third-party engines from a function, from some stages, or from whole steps: what is checked, and how mistakes are located."""

import inspect
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from problem_text import problem_of
from textbook import Textbook

import kgverify as kv
from kgverify import Resolvent, Stage, StagedEngine, StepwiseEngine, check_engine, engine_of
from kgverify.laws import draw_problems

PROBLEMS = list(islice(draw_problems(7), 96))
"""A fifth of them have a policy that these engines do not know."""


def prune_the_query(engine, resolvents, excluded):
    return Textbook.prune(engine, resolvents, None)


def number_from_one(engine, resolvents):
    return [
        each._replace(atoms=tuple((p, *(t - (t < 0) for t in terms)) for p, *terms in each.atoms))
        for each in Textbook.rename(engine, resolvents)
    ]


def close_and_go_on(engine, resolvents):
    closed = Textbook.close(engine, resolvents)
    return [*closed, *(each for each in resolvents if each.atoms)] if closed[0].kind == 1 else closed


@pytest.mark.deep
def test_an_engine_of_one_stage_conforms():
    report = check_engine(Textbook, problems=PROBLEMS)
    assert report.is_conforming, str(report)
    assert report.num_problems > 60 < report.num_problems + report.num_skipped == 96


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize(
    ("stage", "wrong"),
    [
        ("prune", prune_the_query),
        ("rename", number_from_one),
        ("close", close_and_go_on),
        ("limit", lambda engine, given: Textbook.limit(engine, given)._replace(dropped_atoms=0)),
    ],
)
def test_a_mistake_in_a_stage_is_attributed_to_this_stage(stage, wrong):
    report = check_engine(type("Wrong", (Textbook,), {stage: wrong}), problems=PROBLEMS, laws=())
    assert (report.failure.signature.stage, report.failure.signature.field) == (stage, f"stage.{stage}")
    assert f"first divergence: {stage}" in str(report)
    assert report.problem.size <= 5


def test_all_stages_are_shown_but_the_choice_of_an_atom(tmp_path):
    sizes = {"queries": 2, "corruptions": 3, "options": kv.RecordingOptions(level="deep")}
    paths = [tmp_path / name for name in ("reference.h5", "textbook.h5")]
    for path, engine in zip(paths, ("reference", Textbook), strict=True):
        kv.record("countries", path, engine, **sizes)
    report = kv.compare(*paths)
    assert report.verdict is kv.Verdict.AGREE
    shown = [{*np.unique(kv.open_trace(path).load().columns.stages.stage).tolist()} for path in paths]
    assert shown[0] - shown[1] == {[*Stage].index(Stage.SELECT)}


def test_what_stands_beside_true_is_not_scored_and_a_method_is_required():
    run = kv.load_graph("countries").program, kv.Limits(), kv.Policy("shortest")
    engine = type("GoesOn", (Textbook,), {"close": close_and_go_on})(*run)
    engine.resolve = lambda *_: []
    engine.prune = lambda *_: [Resolvent((), 2, 0), Resolvent(((0, 0, 0),) * 2, 1, 0)]
    taken = engine.take_step((0, 0, 0), [((0, 0, 1),)])
    assert [(each.kind, each.score) for each in taken.resolvents] == [(1, 0.0), (0, 0.0)]
    for base in (StagedEngine, StepwiseEngine):
        with pytest.raises(NotImplementedError):
            base(*run).take_step((0, 0, 0), [((0, 0, 0),)])


class Batched(StepwiseEngine):
    """Takes the steps of all open derivations at once."""

    batches: ClassVar[list[int]] = []

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        self._textbook = Textbook(program, limits, policy)

    def take_steps(self, queries, visited):
        self.batches.append(len(queries))
        return [self._textbook.take_step(query, goals) for query, goals in zip(queries, visited, strict=True)]


class TooFew(Batched):
    """Forgets a step."""

    def take_steps(self, queries, visited):
        return super().take_steps(queries, visited)[1:]


class Empty(StepwiseEngine):
    """Gives steps without resolvents."""

    def take_step(self, query, visited):
        return Textbook(self.program, self.limits, self.policy).take_step(query, visited)._replace(resolvents=[])


def test_an_engine_can_take_many_steps_at_once_and_not_too_few_or_empty_ones():
    assert check_engine(Batched, problems=PROBLEMS[:24], laws=()).is_conforming
    assert max(Batched.batches) > 24
    for engine, message in ((TooFew, "expected 1 step, found 0"), (Empty, "expected a resolvent or more")):
        assert message in str(check_engine(engine, problems=PROBLEMS[:8], laws=()))


FIRST_LINE = inspect.currentframe().f_lineno + 3


@engine_of
def a_toy(goal, clauses):
    """Resolves with facts that are the first atom, and knows no rules."""
    return [(clause, goal[1:]) for clause in clauses if clause.head == goal[0]]


def test_a_function_is_an_engine_under_its_name():
    assert issubclass(a_toy, StagedEngine)
    assert (a_toy.__name__, a_toy.__module__, a_toy.__doc__[:8]) == ("a_toy", __name__, "Resolves")
    problem = problem_of("p(a, b); p(b, b); ? p(a, b); ? p(b, a)")
    assert str(check_engine(a_toy, problems=[problem], minimum={})).splitlines() == [
        f"a_toy ({Path(__file__).relative_to(Path.cwd())}:{FIRST_LINE}) conforms: 1 problem, 42 laws",
        "exercised: 0 candidates proved, 0 of 0 rules used, 0 of 2 facts used, 0 of 2 steps with a choice",
    ]


@pytest.mark.parametrize(
    "made",
    [
        lambda clause: None,
        lambda clause: [clause.head],
        lambda clause: [(clause, [("p", "a", "b")])],
        lambda clause: [(0, [clause.head])],
        lambda clause: [Resolvent((), clause.origin_kind, clause.origin)],
    ],
)
def test_an_invalid_pair_of_a_clause_and_atoms_is_an_error_that_shows_the_format(made):
    engine = engine_of(lambda goal, clauses: made(clauses[0]) if clauses else [])
    text = str(check_engine(engine, problems=[problem_of("p(a, b); ? p(a, X)")], laws=()))
    assert "expected a clause and the atoms that it leaves, found" in text
    assert "fix: yield (clause, [(predicate, first, second), ...])" in text


@engine_of
def stumbles(goal, clauses):
    return [_stumble(clause) for clause in clauses if clause.body]


def _stumble(clause):
    raise LookupError("no room")


def test_an_exception_is_reported_with_its_stack_frame_and_a_small_problem():
    report = check_engine(stumbles, problems=PROBLEMS[:24])
    assert report.problem.size == 2
    assert not report.violations
    lines = str(report).splitlines()
    assert "crash: LookupError" in lines
    raised = [line.strip() for line in lines if line.strip().startswith("from ")]
    assert [line.partition(" in ")[2].partition(":")[0] for line in raised] == ["_stumble", "<listcomp>", "stumbles"]
    assert raised[0].endswith('_stumble: raise LookupError("no room")')
