"""The laws: no false alarm on engines without a fault, an alarm on engines with one, in readable reports."""

from itertools import islice, permutations

import pytest
from fault_search import find_breakers

from kgverify import Limits, Problem, Stage, UserError
from kgverify.dialects import Dialect
from kgverify.laws import LAWS, Law, check_laws, compiled_maker, draw_problems, find_law
from kgverify.laws.statements.clause_laws import Model
from kgverify.laws.statements.compare_runs import differing
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.limits import OURS, VALUES
from kgverify.program.program import NamedRule, Program
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.run import reference_pipeline
from kgverify.step.clauses import Clauses
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import PolicySpec

EVERY = list(LAWS.values())
X, Y, Z = map(Variable, "XYZ")

CAUGHT_BY = {
    "rule-cap": "rule-order",
    "fact-cap": "crowded-predicate",
    "last-fact-lost": "fact-order",
    "query-matched": "made-by-clause",
    "packed-fact-keys": "made-by-clause",
    "offset-renaming": "canonical",
    "no-revisit-check": "no-visited-goal",
    "order-blind-hash": "visited-goals",
    "scatter-collision": "sound",
    "empty-goal-ends": "redundant-subgoal",
    "dead-end-open": "terminal-alone",
    "true-not-alone": "fact-proves",
    "max-atoms-off-by-one": "limits",
    "facts-before-rules": "clause-order",
    "bf16-scores": "score-formula",
    "last-argmax": "first-highest",
    "log-probability-after-end": "log-probability",
    "max-depth-off-by-one": "outcome",
    "stale-resolvents": "goal-is-choice",
    "sticky-outcome": "slots",
    "visited-not-cleared": "candidate-order",
    "chunk-boundary-dropped": "reported-once",
    "stream-per-chunk": "draw-by-query",
    "known-triples": "filtered-draw",
    "optimistic-ties": "ranks",
}


def make_reference(run, sizes):
    return reference_pipeline(run)


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize("make", [make_reference, compiled_maker()], ids=["reference", "eager"])
def test_no_law_is_broken_by_an_engine_without_a_fault(make):
    violations = check_laws(make, list(islice(draw_problems(7), 32)), EVERY, most=1)
    assert [str(each) for each in violations] == []


@pytest.mark.sample(5, deep=6)
@pytest.mark.parametrize(("fault", "law"), CAUGHT_BY.items())
def test_a_fault_breaks_its_law(fault, law):
    assert fault in FAULTS
    assert law in find_breakers(compiled_maker(faults=[fault]), [find_law(law)], most_problems=960)


def test_a_violation_names_the_problem_alone():
    law = find_law("terminal-alone")
    violations = law.check(compiled_maker(faults=["dead-end-open"]), list(islice(draw_problems(0), 32)), most=2)
    assert len(violations) == 2
    for each in violations:
        assert each.group == (each.problem,)
        assert str(each).startswith("law broken: terminal-alone (close")
        assert str(each.problem).splitlines()[0] in str(each)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        ("repeated-head-variable", "match_rules"),
        ("query-matched", "match_facts"),
        ("rest-not-substituted", "resolve"),
        ("query-pruned", "prune"),
        ("packed-fact-keys", "prune"),
        ("offset-renaming", "rename"),
        ("truncated-goals", "limit"),
    ],
)
def test_a_resolvent_that_its_clause_does_not_make_names_the_stage(fault, stage):
    problems = list(islice(draw_problems(0), 192))
    found = find_law("made-by-clause").check(compiled_maker(faults=[fault]), problems, most=1)
    assert [each.stage for each in found] == [stage]


def test_an_exception_is_reported_for_the_problem_that_causes_it():
    def make(run, sizes):
        if any(name.endswith("poison") for name in run.graph.program.symbols.constants):
            raise ZeroDivisionError("poison")
        return reference_pipeline(run)

    problems = list(islice(draw_problems(0), 6))
    poisoned = Problem(queries=(NamedAtom("p", "a", "poison"),), limits=problems[0].limits)
    (violation,) = check_laws(make, [*problems, poisoned], [find_law("outcome")])
    assert (violation.index, violation.problem, violation.field) == (6, poisoned, "exception")
    assert violation.actual == "ZeroDivisionError: poison"


def same_as(make_other):
    """Return the law that another way of running the same engine changes nothing."""

    def find(case):
        other = make_other(case.run, case.merged.sizes).engine
        return differing(case, other.prove(case.candidates), Stage.RECYCLE)

    return Law("mode", "The engine run in another mode takes the same steps.", find)


def test_two_ways_to_run_one_engine_are_a_law():
    problems = list(islice(draw_problems(0), 32))
    assert not same_as(compiled_maker()).check(compiled_maker(), problems)
    found = same_as(compiled_maker(faults=["last-argmax"])).check(compiled_maker(), problems, most=1)
    assert found[0].field == "choice"


def test_an_unknown_law_is_the_users_mistake():
    with pytest.raises(UserError, match="did you mean 'sound'"):
        find_law("sounds")


def test_names_of_laws_are_unique_and_statements_are_sentences():
    for name, law in LAWS.items():
        assert name == law.name
        assert law.statement.rstrip(")").endswith(".")
    assert len(LAWS) >= 40


def test_every_law_holds_in_our_dialect_and_some_are_left_out_of_others():
    assert all(law.holds_in(OURS) for law in EVERY)
    reasons = {law.name: law.explain_absence(Dialect(skips_unary=True)) for law in EVERY}
    assert {name for name, reason in reasons.items() if reason} == {"crowded-predicate", "goal-is-choice", "outcome"}
    assert reasons["outcome"] == "the depth does not count steps with one resolvent"
    of_any = {law.name for law in EVERY if law.holds_in(None)}
    assert {"alone", "renaming", "reported-once"} < of_any
    assert find_law("sound").explain_absence(None) == "the semantics of the reference are unknown"


def test_each_presumption_fails_in_some_dialect():
    dialects = [
        *(Dialect(**{name: value}) for name, values in VALUES.items() for value in values),
        *(Dialect(filters=each) for each in permutations(OURS.filters)),
        Dialect(filters=()),
        Dialect(memory="none"),
        Dialect(filters=("revisit", "close", "max_atoms", "max_resolvents"), long_resolvents="truncate"),
    ]
    for presumption in {each for law in EVERY for each in law.presumes or ()}:
        assert presumption.holds_in(OURS)
        assert not all(map(presumption.holds_in, dialects)), presumption.reason


def program_of(facts, rules, queries=()):
    return Program.from_names([NamedAtom(*fact) for fact in facts], rules, [NamedAtom(*query) for query in queries])


def test_the_model_is_the_least_one():
    rules = [
        NamedRule(NamedAtom("t", X, Z), (NamedAtom("e", X, Y), NamedAtom("t", Y, Z))),
        NamedRule(NamedAtom("t", X, Y), (NamedAtom("e", X, Y),)),
        NamedRule(NamedAtom("all", X, Y), (NamedAtom("t", Z, "c"),)),
        NamedRule(NamedAtom("same", X, X), (NamedAtom("e", X, Y),)),
        NamedRule(NamedAtom("never", X, Y), (NamedAtom("t", X, X),)),
    ]
    program = program_of([("e", "a", "b"), ("e", "b", "c")], rules)
    ids, clauses = program.symbols.predicate_ids, Clauses(program, exclude_query=False)
    model = Model(clauses.facts, clauses.rules, range(3))
    true = {(p, a, b) for p in ids.values() for a in range(3) for b in range(3) if model.has_instance((p, a, b))}
    assert {each for each in true if each[0] == ids["t"]} == {(ids["t"], 0, 1), (ids["t"], 1, 2), (ids["t"], 0, 2)}
    assert sum(each[0] == ids["all"] for each in true) == 9
    assert {each[1:] for each in true if each[0] == ids["same"]} == {(0, 0), (1, 1)}
    assert not any(each[0] == ids["never"] for each in true)
    assert model.has_instance((ids["same"], -1, -1))
    assert not model.has_instance((ids["e"], -1, -1))
    assert model.has_instance((ids["e"], -1, -2))


def test_the_model_is_the_references():
    from kgreference.model import least_model
    from kgverify.engines.reference.engine import build_reference_program

    num_atoms = 0
    for problem in islice(draw_problems(3), 80):
        program = merge([problem]).graph.program
        if len(program.symbols.constants) > 12:
            continue
        clauses = Clauses(program, exclude_query=False)
        num = len(program.symbols.constants)
        model = Model(clauses.facts, clauses.rules, range(num))
        expected = {tuple(atom) for atom in least_model(build_reference_program(program))}
        found = {
            (p, a, b)
            for p in range(len(program.symbols.predicates))
            for a in range(num)
            for b in range(num)
            if model.has_instance((p, a, b))
        }
        assert found == expected
        num_atoms += len(found)
    assert num_atoms > 1000


def test_laws_judge_two_tower_too():
    limits = Limits(max_depth=4, max_atoms=3, max_resolvents=3)
    problem = Problem(
        facts=tuple(NamedAtom("p", "a", f"c{i}") for i in range(5)),
        rules=(NamedRule(NamedAtom("q", X, Z), (NamedAtom("p", X, Y), NamedAtom("q", Y, Z))),),
        queries=(NamedAtom("q", "a", "c1"),),
        limits=limits,
        policy=PolicySpec("two_tower", seed=3),
    )
    assert check_laws(compiled_maker(), [problem], EVERY) == []
    broken = check_laws(compiled_maker(faults=["stale-weights"]), [problem], [find_law("score-formula")])
    assert [each.stage for each in broken] == ["score"]
