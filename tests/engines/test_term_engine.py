"""`engine_of(terms=True)`: a step on names; and `OutcomeEngine`: a black box."""

import numpy as np
import pytest

import kgverify as kv
from kgverify import CandidateSet, Limits, NamedAtom, Program, UserError, load_graph
from kgverify.dialects import ReferenceEngine
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import positions_of
from kgverify.program.atoms import parse_atoms
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import parse_rules

PROGRAM = Program.from_names(parse_atoms("p(a,b) q(b,c)"), parse_rules("p(X,Y) q(X,Z) q(Z,Y)"))
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
    """The reference, which returns no scores, or scores with an error."""

    error: float | None = None

    def decide_all(self, queries):
        symbols = self.program.symbols
        atoms = [
            (symbols.predicate_ids[p], *(-1 - int(t[1:]) if t[0] == "?" else symbols.constant_ids[t] for t in terms))
            for p, *terms in queries
        ]
        zeros = np.zeros(len(atoms), np.int32)
        candidates = CandidateSet(zeros, zeros.astype(np.int8), np.array(atoms, np.int32).reshape(-1, 3))
        found = ReferenceEngine(self.program, self.limits, self.policy).prove(candidates).candidates
        answers = [bool(each == Outcome.PROVED) for each in found.outcome]
        return answers if self.error is None else list(zip(answers, found.log_probability - self.error, strict=True))


class ReferenceScores(ReferenceOutcomes):
    error = 0.0


class WrongScores(ReferenceOutcomes):
    error = 1e-3


class ProvesAll(kv.OutcomeEngine):
    def decide(self, query):
        return True


def make(function, limits=None, **options):
    return kv.engine_of(function, terms=True, **options)(PROGRAM, limits or Limits(), SHORTEST)


def resolvents(columns):
    ends = np.cumsum(columns.resolvents.num_atoms)
    parts = np.split(columns.resolvents.atoms, ends[:-1]) if len(ends) else []
    return [(GoalKind(k).name, part.tolist()) for k, part in zip(columns.resolvents.kind, parts, strict=True)]


def test_a_naive_step_on_names_agrees_with_the_reference_and_repeats_its_steps():
    report = kv.verify("countries", naive, queries=1, corruptions=1)
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert "resolvents.origin" in report.coverage.not_compared
    graph = load_graph("countries")
    triples = graph.queries("test")[:3].astype(np.int32)
    queries = CandidateSet(np.arange(3, dtype=np.int32), np.full(3, 2, np.int8), triples)
    engine = naive(graph.program, Limits(), SHORTEST)
    columns = engine.prove(queries)
    stepped = engine.step(positions_of(columns))
    for name in ("num_atoms", "num_resolvents", "choice", "outcome", "goal_atoms"):
        assert np.array_equal(getattr(columns.steps, name), getattr(stepped.steps, name)), name


def test_goals_go_from_step_to_step_with_the_names_that_the_function_gave():
    seen, successor = [], (("q", "?own", "b"), ("q", "?own", "?other"))

    def step(goal, program):
        seen.append((goal, program.visited[-1], program.query))
        return [list(successor), None] if len(seen) == 1 else [False]

    columns = make(step).prove(QUERY)
    query = ("p", "a", "b")
    assert seen == [((query,), (query,), query), (successor, successor, query)]
    assert resolvents(columns) == [("GOAL", [[1, -1, 1], [1, -1, -2]]), ("STOP", []), ("FALSE", [])]
    assert columns.candidates.outcome.tolist() == [Outcome.FAILED]


def test_the_excluded_query_is_no_fact():
    facts = []

    def step(goal, program):
        facts.append(program.facts)
        return [True]

    for excludes in (True, False):
        make(step, Limits(exclude_query=excludes)).prove(QUERY)
    assert [list(each) for each in facts] == [[("q", "b", "c")], [("p", "a", "b"), ("q", "b", "c")]]
    assert (len(facts[0]), facts[0].of("p"), ("p", "a", "b") in facts[0]) == (1, [], False)


def test_a_step_without_successors_and_unknown_names_are_recorded():
    columns = make(lambda goal, program: []).prove(QUERY)
    assert columns.steps.num_resolvents.tolist() == [0]
    assert columns.steps.choice.tolist() == [-1]
    assert columns.candidates.log_probability.tolist() == [0.0]
    columns = make(lambda goal, program: [[("new", "a", "other")], True]).prove(QUERY)
    assert resolvents(columns) == [("GOAL", [[2, 0, 3]]), ("TRUE", [])]


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


def test_names_that_look_like_variables_and_wrong_arguments_are_refused():
    with pytest.raises(UserError, match="looks like a variable"):
        naive(Program.from_names([NamedAtom("p", "?a", "b")]), Limits(), SHORTEST)
    for function, options in ((3, {}), (len, {"memory": "sets"}), (len, {"terms": True, "memory": "set"})):
        with pytest.raises(UserError):
            kv.engine_of(function, **options)


@pytest.mark.parametrize(("engine", "num_compared"), [(ReferenceOutcomes, 4), (ReferenceScores, 5)])
@pytest.mark.parametrize("lockstep", [False, True])
def test_a_black_box_is_compared_by_its_answers(engine, num_compared, lockstep):
    first, report = (
        kv.verify(
            "countries",
            engine,
            reference="reference",
            queries=2,
            corruptions=2,
            equality=kv.Equality(lockstep=lockstep, minimum=each),
        )
        for each in (None, "proved=1")
    )
    assert first.reasons[0].startswith("too little was exercised: unknown rules used, 1 required (actual)")
    assert report.verdict is kv.Verdict.AGREE
    assert len(report.coverage.fields) == num_compared
    assert report.coverage.steps == 0
    assert {"steps.choice", "resolvents.atoms", "candidates.num_steps"} <= set(report.coverage.not_compared)
    assert "the steps of" in str(report)
    assert ("ranked by PROVED or not alone" in " ".join(str(report).split())) == (num_compared == 4)


def test_a_wrong_outcome_and_a_score_beyond_the_accepted_error_are_found_at_an_unknown_stage():
    report = kv.verify("countries", ProvesAll, queries=3, corruptions=3)
    assert (report.verdict, report.first_divergence.field) == (kv.Verdict.DIVERGE, "candidates.outcome")
    assert report.first_divergence.confidence <= 0.1
    assert "any stage may be at fault" in report.first_divergence.evidence
    assert report.metrics.expected != report.metrics.actual
    options = {"reference": "reference", "queries": 1, "corruptions": 2}
    report = kv.verify("countries", WrongScores, **options)
    assert report.first_divergence.field == "candidates.log_probability"
    equality = kv.Equality(score_error=1e-2, minimum="proved=1")
    assert kv.verify("countries", WrongScores, equality=equality, **options).verdict is kv.Verdict.AGREE


def test_a_black_box_can_be_checked_and_limits_that_it_does_not_support_are_skipped():
    class Narrow(ReferenceOutcomes):
        def setup(self):
            if self.limits.max_atoms > 3:
                raise NotImplementedError("goals of more than 3 atoms")

    report = kv.check_engine(Narrow, reference="reference", examples=8, minimum={})
    assert {"reported-once", "repetition"} <= set(report.laws)
    assert "made-by-clause" in report.left_out
    assert report.is_conforming, str(report)
    assert report.num_skipped > 0 < report.num_problems
    with pytest.raises(AssertionError, match="any stage may be at fault"):
        kv.assert_equivalent(ProvesAll, examples=8)


@pytest.mark.parametrize("answer", [None, 1, "PROVED", (True,), (True, "high"), (1.0, 2.0)])
def test_another_answer_of_a_black_box_and_scores_for_some_queries_only_are_refused(answer):
    odd = type("Odd", (kv.OutcomeEngine,), {"decide": lambda self, query: answer})
    half = type("HalfScored", (kv.OutcomeEngine,), {"decide_all": lambda self, queries: [True, (True, -0.5)]})
    twice = CandidateSet(*(np.repeat(column, 2, axis=0) for column in QUERY))
    for engine, queries, match in ((odd, QUERY, "decide"), (half, twice, "found scores for some queries only")):
        with pytest.raises(UserError, match=match):
            engine(PROGRAM, Limits(), SHORTEST).prove(queries)


def test_a_black_box_is_asked_by_names_and_variables_and_takes_no_step():
    asked = []
    engine = type("Asked", (kv.OutcomeEngine,), {"decide": lambda self, query: asked.append(query) or True})
    atoms = np.array([[0, 0, 1], [1, -1, 0], [1, 2, -2]], np.int32)
    made = engine(PROGRAM, Limits(), SHORTEST)
    made.prove(CandidateSet(np.zeros(3, np.int32), np.full(3, 2, np.int8), atoms))
    assert asked == [("p", "a", "b"), ("q", "?0", "a"), ("q", "c", "?1")]
    with pytest.raises(UserError, match="steps of a black box are unknown"):
        made.step(None)
