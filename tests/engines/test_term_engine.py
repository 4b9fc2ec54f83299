"""`engine_of(terms=True)`: a step on names; and `OutcomeEngine`: a black box."""

import ast
import inspect
import textwrap

import numpy as np
import pytest

import kgverify as kv
from kgverify import UserError, load_graph
from kgverify.conformance import NotConforming
from kgverify.dialects import ReferenceEngine
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import positions_of
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import NamedRule, Program
from kgverify.trace.model.columns import CandidateSet

X, Y, Z = map(Variable, "XYZ")
PROGRAM = Program.from_names(
    [NamedAtom("p", "a", "b"), NamedAtom("q", "b", "c")],
    [NamedRule(NamedAtom("p", X, Y), (NamedAtom("q", X, Z), NamedAtom("q", Z, Y)))],
)
QUERY = CandidateSet(np.array([0], np.int32), np.array([2], np.int8), np.array([[0, 0, 1]], np.int32))


@kv.engine_of(terms=True, memory="goals")
def naive(goal, program):
    found = []
    for head, body in (*program.rules, *((fact, ()) for fact in program.facts.of(goal[0][0]))):
        atoms = [goal[0], *program.rename(head, *body), *goal[1:]]
        for i in (1, 2):
            old, new = sorted((atoms[0][i], atoms[1][i]), key=lambda term: term[0] != "?")
            atoms = [tuple(new if t == old and t[0] == "?" else t for t in atom) for atom in atoms]
        found += [[a for a in atoms[2:] if a not in program.facts]] if atoms[0] == atoms[1] else []
    return [True] if [] in found else found or [False]


class ReferenceOutcomes(kv.OutcomeEngine):
    def decide_all(self, queries):
        symbols = self.program.symbols
        atoms = [
            (symbols.predicate_ids[p], *(-1 - int(t[1:]) if t[0] == "?" else symbols.constant_ids[t] for t in terms))
            for p, *terms in queries
        ]
        zeros = np.zeros(len(atoms), np.int32)
        candidates = CandidateSet(zeros, zeros.astype(np.int8), np.array(atoms, np.int32).reshape(-1, 3))
        found = ReferenceEngine(self.program, self.limits, self.policy).prove(candidates).candidates
        return self.answers([bool(each == Outcome.PROVED) for each in found.outcome], found.log_probability.tolist())

    def answers(self, is_proved, scores):
        return is_proved


class ReferenceScores(ReferenceOutcomes):
    def answers(self, is_proved, scores):
        return list(zip(is_proved, scores, strict=True))


class WrongScores(ReferenceOutcomes):
    def answers(self, is_proved, scores):
        return [(each, score - 1e-3) for each, score in zip(is_proved, scores, strict=True)]


class ProvesAll(kv.OutcomeEngine):
    def decide(self, query):
        return True


def make(function, **options):
    return kv.engine_of(function, terms=True, **options)(PROGRAM, kv.Limits(), SHORTEST)


def resolvents(columns):
    ends = np.cumsum(columns.resolvents.num_atoms)
    parts = np.split(columns.resolvents.atoms, ends[:-1]) if len(ends) else []
    return [(GoalKind(k).name, part.tolist()) for k, part in zip(columns.resolvents.kind, parts, strict=True)]


def test_a_complete_naive_step_on_names_agrees_with_the_reference():
    report = kv.verify("countries", naive, queries=1, corruptions=3)
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert "resolvents.origin" in report.coverage.not_compared
    lines = {
        node.lineno
        for node in ast.walk(
            ast.parse(textwrap.dedent(inspect.getsource(naive.find_successors.__closure__[0].cell_contents)))
        )
        if isinstance(node, ast.stmt)
    }
    assert len(lines) <= 10


def test_goals_go_from_step_to_step_with_the_names_that_the_function_gave():
    seen = []

    def step(goal, program):
        seen.append((goal, program.visited[-1], program.query))
        return [[("q", "?own", "b"), ("q", "?own", "?other")], None] if len(seen) == 1 else [False]

    columns = make(step).prove(QUERY)
    query = ("p", "a", "b")
    assert seen == [((query,), (query,), query), *[((("q", "?own", "b"), ("q", "?own", "?other")),) * 2 + (query,)]]
    assert resolvents(columns) == [("GOAL", [[1, -1, 1], [1, -1, -2]]), ("STOP", []), ("FALSE", [])]
    assert columns.candidates.outcome.tolist() == [Outcome.FAILED]


def test_the_excluded_query_is_no_fact():
    facts = []
    make(lambda goal, program: [facts.append(program.facts), True][1:]).prove(QUERY)
    (found,) = facts
    assert list(found) == [("q", "b", "c")]
    assert len(found) == 1
    assert found.of("p") == []
    assert ("p", "a", "b") not in found
    engine = kv.engine_of(lambda goal, program: [facts.append(program.facts), True][1:], terms=True)
    engine(PROGRAM, kv.Limits(exclude_query=False), SHORTEST).prove(QUERY)
    assert list(facts[1]) == [("p", "a", "b"), ("q", "b", "c")]


def test_a_step_without_successors_and_unknown_names_are_recorded():
    columns = make(lambda goal, program: []).prove(QUERY)
    assert columns.steps.num_resolvents.tolist() == [0]
    assert columns.steps.choice.tolist() == [-1]
    assert columns.candidates.log_probability.tolist() == [0.0]
    columns = make(lambda goal, program: [[("new", "a", "other")], True]).prove(QUERY)
    assert resolvents(columns) == [("GOAL", [[2, 0, 3]]), ("TRUE", [])]


def test_a_teacher_forced_step_on_names_is_the_step_of_the_run():
    graph = load_graph("countries")
    triples = graph.queries("test")[:3]
    queries = CandidateSet(np.arange(3, dtype=np.int32), np.full(3, 2, np.int8), triples.astype(np.int32))
    engine = naive(graph.program, kv.Limits(), SHORTEST)
    columns = engine.prove(queries)
    stepped = engine.step(positions_of(columns))
    for name in ("num_atoms", "num_resolvents", "choice", "outcome", "goal_atoms"):
        assert np.array_equal(getattr(columns.steps, name), getattr(stepped.steps, name)), name


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "found NoneType"),
        ("abc", "found str"),
        ([1], "found the successor 1"),
        ([[("p", "a")]], "found the successor"),
        ([[("p", "a", 3)]], "found 3 in an atom"),
    ],
)
def test_another_result_is_refused_with_the_signature(result, message):
    with pytest.raises(UserError, match=message) as caught:
        make(lambda goal, program: result).prove(QUERY)
    assert "function(goal, program) -> list of successors" in caught.value.fix


def test_names_that_look_like_variables_are_refused():
    program = Program.from_names([NamedAtom("p", "?a", "b")])
    with pytest.raises(UserError, match="looks like a variable"):
        naive(program, kv.Limits(), SHORTEST)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((3,), {}), ((len,), {"memory": "sets"}), ((len,), {"terms": True, "memory": "set"})],
)
def test_wrong_arguments_of_engine_of_are_refused(arguments, options):
    with pytest.raises(UserError):
        kv.engine_of(*arguments, **options)


@pytest.mark.parametrize(("engine", "num_compared"), [(ReferenceOutcomes, 4), (ReferenceScores, 5)])
@pytest.mark.parametrize("lockstep", [False, True])
def test_a_black_box_is_compared_by_what_it_tells(engine, num_compared, lockstep):
    assert (
        kv.verify("countries", engine, queries=2, corruptions=2, equality=kv.Equality(lockstep=lockstep))
        .reasons[0]
        .startswith("too little was exercised: unknown rules used, 1 required (actual)")
    )
    report = kv.verify(
        "countries", engine, queries=2, corruptions=2, equality=kv.Equality(lockstep=lockstep, minimum="proved=1")
    )
    assert report.verdict is kv.Verdict.AGREE
    assert len(report.coverage.fields) == num_compared
    assert report.coverage.steps == 0
    assert {"steps.choice", "resolvents.atoms", "candidates.num_steps"} <= set(report.coverage.not_compared)
    assert "the steps of" in str(report)
    assert ("ranked by PROVED or not alone" in " ".join(str(report).split())) == (num_compared == 4)


def test_the_stage_of_a_black_boxes_difference_is_admitted_to_be_unknown():
    report = kv.verify("countries", ProvesAll, queries=3, corruptions=3)
    assert report.verdict is kv.Verdict.DIVERGE
    divergence = report.first_divergence
    assert divergence.field == "candidates.outcome"
    assert divergence.confidence <= 0.1
    assert "any stage may be at fault" in divergence.evidence
    assert report.metrics.expected != report.metrics.actual


def test_scores_of_a_black_box_are_compared_within_the_accepted_error():
    assert kv.verify("countries", WrongScores, queries=1, corruptions=2).first_divergence.field == (
        "candidates.log_probability"
    )
    accepted = kv.verify(
        "countries", WrongScores, queries=1, corruptions=2, equality=kv.Equality(score_error=1e-2, minimum="proved=1")
    )
    assert accepted.verdict is kv.Verdict.AGREE


def test_a_black_box_can_be_checked_and_fuzzed(tmp_path):
    report = kv.check_engine(ReferenceOutcomes, examples=8)
    assert {"reported-once", "repetition"} <= set(report.laws)
    assert "made-by-clause" in report.left_out
    assert report.is_conforming, str(report)
    with pytest.raises(NotConforming, match="any stage may be at fault"):
        kv.assert_equivalent(ProvesAll, examples=8)


def test_problems_with_limits_that_an_engine_does_not_support_are_skipped():
    class Narrow(ReferenceOutcomes):
        def setup(self):
            if self.limits.max_atoms > 3:
                raise NotImplementedError("goals of more than 3 atoms")

    report = kv.check_engine(Narrow, examples=8, minimum={})
    assert report.is_conforming, str(report)
    assert report.num_skipped > 0 < report.num_problems


@pytest.mark.parametrize("answer", [None, 1, "PROVED", (True,), (True, "high"), (1.0, 2.0)])
def test_another_answer_of_a_black_box_is_refused(answer):
    engine = type("Odd", (kv.OutcomeEngine,), {"decide": lambda self, query: answer})
    with pytest.raises(UserError, match="decide"):
        engine(PROGRAM, kv.Limits(), SHORTEST).prove(QUERY)


def test_answers_with_scores_for_some_queries_only_are_refused():
    class HalfScored(kv.OutcomeEngine):
        def decide_all(self, queries):
            return [True, (True, -0.5)]

    twice = CandidateSet(*(np.repeat(column, 2, axis=0) for column in QUERY))
    with pytest.raises(UserError, match="found scores for some queries only"):
        HalfScored(PROGRAM, kv.Limits(), SHORTEST).prove(twice)


def test_a_black_box_takes_few_lines():
    assert len(inspect.getsource(ProvesAll).strip().splitlines()) <= 6


def test_a_black_box_takes_no_step():
    with pytest.raises(UserError, match="steps of a black box are unknown"):
        ProvesAll(PROGRAM, kv.Limits(), SHORTEST).step(None)


def test_a_black_box_is_asked_by_names_and_by_variables():
    asked = []
    engine = type("Asked", (kv.OutcomeEngine,), {"decide": lambda self, query: asked.append(query) or True})
    atoms = np.array([[0, 0, 1], [1, -1, 0], [1, 2, -2]], np.int32)
    engine(PROGRAM, kv.Limits(), SHORTEST).prove(CandidateSet(np.zeros(3, np.int32), np.full(3, 2, np.int8), atoms))
    assert asked == [("p", "a", "b"), ("q", "?0", "a"), ("q", "c", "?1")]
