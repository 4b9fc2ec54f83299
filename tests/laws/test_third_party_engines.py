"""Third-party engines from a function, from some stages, or from whole steps: what is checked, and how mistakes are located."""

import sys
from itertools import islice
from typing import ClassVar

import pytest

from kgverify import (
    Limits,
    Problem,
    Resolvent,
    Stage,
    StagedEngine,
    StepwiseEngine,
    UserError,
    check_engine,
    engine_of,
    load_graph,
)
from kgverify.engines.load_engine import load_factory
from kgverify.engines.policy import SHORTEST
from kgverify.laws import draw_problems
from kgverify.program.atoms import NamedAtom
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin
from kgverify.runs.engine_makers import EngineSpec, find_maker
from kgverify.runs.run import reference_pipeline
from kgverify.step.clauses import resolve
from kgverify.testing.campaigns.campaign import Campaign, run_campaign

PROBLEMS = list(islice(draw_problems(7), 96))
"""A fifth of them have a policy that these engines do not know."""


class Textbook(StagedEngine):
    """Resolves as the laws do, and leaves the rest to the class."""

    def resolve(self, goal, excluded):
        for clause in self.clauses_for(goal, excluded):
            shift = min(0, *(term for _, *terms in goal for term in terms))
            head, *body = [
                (p, *(t if t >= 0 else t + shift for t in terms)) for p, *terms in (clause.head, *clause.body)
            ]
            atoms = resolve(goal, head, tuple(body))
            if atoms is not None:
                yield clause, atoms


class PrunesNothing(Textbook):
    def prune(self, resolvents, excluded):
        return resolvents


class PrunesTheQuery(Textbook):
    def prune(self, resolvents, excluded):
        return super().prune(resolvents, None)


class NumbersFromOne(Textbook):
    def rename(self, resolvents):
        return [
            each._replace(atoms=tuple((p, *(t - (t < 0) for t in terms)) for p, *terms in each.atoms))
            for each in super().rename(resolvents)
        ]


class ForgetsWhereItWas(Textbook):
    def revisit(self, resolvents, visited):
        return super().revisit(resolvents, visited[-1:])


class GoesOnAfterTrue(Textbook):
    def close(self, resolvents):
        closed = super().close(resolvents)
        return [*closed, *(each for each in resolvents if each.atoms)] if closed[0].kind == 1 else closed


class CountsNothing(Textbook):
    def limit(self, resolvents):
        return super().limit(resolvents)._replace(dropped_atoms=0)


class PrefersTheLong(Textbook):
    def score(self, goal, resolvents):
        return [-each for each in super().score(goal, resolvents)]


@pytest.mark.deep
def test_an_engine_of_one_stage_conforms():
    report = check_engine(Textbook, problems=PROBLEMS)
    assert report.is_conforming, str(report)
    assert report.num_problems > 60 < report.num_problems + report.num_skipped == 96


@pytest.mark.sample(1, deep=1)
@pytest.mark.parametrize(
    ("engine", "stage"),
    [
        (PrunesNothing, "prune"),
        (PrunesTheQuery, "prune"),
        (NumbersFromOne, "rename"),
        (ForgetsWhereItWas, "revisit"),
        (GoesOnAfterTrue, "close"),
        (CountsNothing, "limit"),
        (PrefersTheLong, "score"),
    ],
)
def test_a_mistake_in_a_stage_is_attributed_to_this_stage(engine, stage):
    report = check_engine(engine, problems=PROBLEMS, laws=())
    assert report.failure is not None
    assert (report.failure.signature.stage, report.failure.signature.field) == (stage, f"stage.{stage}")
    assert f"first divergence: {stage}" in str(report)
    assert report.problem.size <= 5


def test_the_stages_of_the_class_are_those_of_the_reference():
    report = check_engine(Textbook, problems=[each for each in PROBLEMS if each.policy.name == "shortest"], laws=())
    assert report.failure is None


def test_a_stage_beside_true_is_not_scored():
    engine = GoesOnAfterTrue(load_graph("countries").program, Limits(), SHORTEST)
    true, goal = Resolvent((), Origin.FACT, 0), Resolvent(((0, 0, 0),) * 2, Origin.RULE, 0)
    engine.resolve = lambda *_: []
    engine.prune = lambda *_: [true, goal]
    taken = engine.take_step((0, 0, 0), [((0, 0, 1),)])
    assert [(each.kind, each.score) for each in taken.resolvents] == [(GoalKind.TRUE, 0.0), (GoalKind.GOAL, 0.0)]


@pytest.mark.parametrize("base", [StagedEngine, StepwiseEngine])
def test_a_method_that_the_author_owes_is_missed(base):
    engine = base(load_graph("countries").program, Limits(), SHORTEST)
    with pytest.raises(NotImplementedError):
        engine.take_step((0, 0, 0), [((0, 0, 0),)])


def test_all_stages_are_shown_but_the_choice_of_an_atom():
    problem = next(each for each in PROBLEMS if each.policy.name == "shortest" and each.unranked)
    from kgverify.engines.protocol import positions_of, take_position
    from kgverify.testing.problems.merge import merge

    merged = merge([problem])
    run = merged.run
    reference = reference_pipeline(run).engine
    position = take_position(positions_of(reference.prove(merged.unranked)), 0)
    expected = reference.probe(position)
    actual = Textbook(run.graph.program, run.limits, run.policy).probe(position)
    assert {stage: expected[stage] for stage in STEP_STAGES if stage is not Stage.SELECT} == actual


class Batched(StepwiseEngine):
    """Takes the steps of all open derivations at once."""

    batches: ClassVar[list[int]] = []

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        self._textbook = Textbook(program, limits, policy)

    def take_steps(self, queries, visited):
        self.batches.append(len(queries))
        return [self._textbook.take_step(query, goals) for query, goals in zip(queries, visited, strict=True)]


def test_an_engine_can_take_many_steps_at_once():
    assert check_engine(Batched, problems=PROBLEMS[:24]).is_conforming
    assert max(Batched.batches) > 24


@pytest.mark.deep
def test_steps_that_are_too_few_or_empty_are_the_authors_mistake():
    class TooFew(Batched):
        def take_steps(self, queries, visited):
            return super().take_steps(queries, visited)[1:]

    class Empty(StepwiseEngine):
        def take_step(self, query, visited):
            return Textbook(self.program, self.limits, self.policy).take_step(query, visited)._replace(resolvents=[])

    for engine, message in ((TooFew, "expected 1 step, found 0"), (Empty, "expected a resolvent or more")):
        report = check_engine(engine, problems=PROBLEMS[:8])
        assert message in str(report)


@engine_of
def a_toy(goal, clauses):
    """Resolves with facts that are the first atom, and knows no rules."""
    return [(clause, goal[1:]) for clause in clauses if clause.head == goal[0]]


def test_a_function_is_an_engine_under_its_name():
    assert issubclass(a_toy, StagedEngine)
    assert (a_toy.__name__, a_toy.__module__, a_toy.__doc__[:8]) == ("a_toy", __name__, "Resolves")
    facts = (NamedAtom("p", "a", "b"), NamedAtom("p", "b", "b"))
    problem = Problem(facts=facts, unranked=(facts[0], NamedAtom("p", "b", "a")))
    found = str(check_engine(a_toy, problems=[problem], minimum={})).splitlines()
    assert found == [
        "a_toy conforms: 1 problem, 42 laws",
        "exercised: 0 candidates proved, 0 of 0 rules used, 0 of 2 facts used, 0 of 2 steps with a choice",
    ]


@pytest.mark.sample(1, deep=1)
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
    problem = next(each for each in PROBLEMS if each.facts and each.policy.name == "shortest")
    text = str(check_engine(engine, problems=[problem]))
    assert "expected a clause and the atoms that it leaves, found" in text
    assert "fix: yield (clause, [(predicate, first, second), ...])" in text


@engine_of
def stumbles(goal, clauses):
    return [_stumble(clause) for clause in clauses if clause.body]


def _stumble(clause):
    raise LookupError("no room")


@pytest.mark.deep
def test_an_exception_is_reported_with_its_stack_frame_and_a_small_problem():
    report = check_engine(stumbles, problems=PROBLEMS)
    assert report.problem.size == 2
    assert not report.violations
    lines = str(report).splitlines()
    assert "crash: LookupError" in lines
    (first,) = [i for i, line in enumerate(lines) if line.startswith("raised at:")]
    assert [line.rsplit(" in ", 1)[1] for line in lines[first : first + 3]] == ["_stumble", "<listcomp>", "stumbles"]
    with pytest.raises(AssertionError) as raised:
        report.raise_if_broken()
    assert isinstance(raised.value.__cause__, LookupError)


ENGINES = """
from kgverify.engines.reference.engine import ReferenceEngine


class Plain:
    "The reference, without a name, and without the policy two_tower."

    def __init__(self, program, limits, policy):
        if policy.name != "shortest":
            raise NotImplementedError
        self.engine = ReferenceEngine(program, limits, policy)

    def prove(self, candidates):
        return self.engine.prove(candidates)

    def step(self, positions):
        return self.engine.step(positions)


class Nothing:
    def __init__(self, program, limits, policy):
        raise NotImplementedError


class Group:
    Plain = Plain


def half(program, limits, policy):
    return object()
"""


@pytest.fixture
def engines(tmp_path, monkeypatch):
    (tmp_path / "plain_engines.py").write_text(ENGINES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["plain_engines:Plain", "plain_engines:Group.Plain"])
def test_a_campaign_takes_an_engine_of_two_methods_and_passes_over_policies_that_it_does_not_know(engines, name):
    result = run_campaign(Campaign(corpus=engines / "corpus", engine=EngineSpec(name), examples=64))
    assert result.is_passed
    assert result.num_problems == 64
    assert 0 < result.num_skipped < 32


def test_a_campaign_in_which_nothing_was_compared_is_not_passed(engines):
    result = run_campaign(Campaign(corpus=engines / "corpus", engine=EngineSpec("plain_engines:Nothing"), examples=8))
    assert (result.num_skipped, result.is_vacuous, result.is_passed, result.new) == (8, True, False, [])


def test_a_campaign_says_at_once_what_an_engine_lacks(engines):
    with pytest.raises(UserError, match="method prove"):
        run_campaign(Campaign(corpus=engines / "corpus", engine=EngineSpec("plain_engines:half"), examples=8))


def test_an_engine_is_named_by_its_file_as_well(engines, monkeypatch):
    # Other tests import another file of this name.
    monkeypatch.delitem(sys.modules, "plain_engines", raising=False)
    assert load_factory("plain_engines.py:Plain", "") is load_factory("plain_engines:Plain", "")
    with pytest.raises(UserError, match="did you mean 'Plain'"):
        find_maker(EngineSpec(f"{engines}/plain_engines.py:Plian"))


def test_the_reference_is_an_engine_by_name(tmp_path):
    result = run_campaign(Campaign(corpus=tmp_path, engine=EngineSpec("reference"), examples=8))
    assert (result.is_passed, result.num_skipped) == (True, 0)
