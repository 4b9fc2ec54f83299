"""Comparisons that prove nothing end INCONCLUSIVE, whoever makes them; those that prove something do not."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from run_engines import countries_run, eager_pipeline

import kgverify as kv
from kgverify.comparison.compare import Comparer
from kgverify.comparison.exercise import count
from kgverify.comparison.exercise.count import count_exercise
from kgverify.comparison.exercise.minimum import ITEMS, MINIMUM, parse_minimum
from kgverify.comparison.result import Verdict
from kgverify.comparison.source import MemorySource, open_source
from kgverify.comparison.step_view import StepReader
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.report.content import Outcomes
from kgverify.report.exercise import describe_stages
from kgverify.runs.run import reference_pipeline
from kgverify.testing.checking.check import check_and_count, verify_problems
from kgverify.testing.checking.engine_makers import compiled_maker, find_maker
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.problem import Problem
from kgverify.verification.evidence import judge_exercise
from kgverify.verification.verify import verify

FACTS = "parent(ann, bob).\nparent(ann, dan).\nparent(bob, cid).\nparent(dan, eve).\n"
RULE = "grandparent(X, Y) :- parent(X, Z), parent(Z, Y).\n"
QUERY = "grandparent(ann, cid).\n"

Outcome = tuple[Verdict, str]
"""A verdict and its reasons."""


@kv.engine_of
def never_proves(goal, clauses):
    return []


def graph_of(folder: Path, *, facts: str = FACTS, rules: str = RULE, queries: str = QUERY) -> kv.KnowledgeGraph:
    for name, text in (("train.txt", facts), ("test.txt", queries), ("rules.pl", rules)):
        (folder / name).write_text(text)
    return kv.load_graph(folder)


def verify_graph(
    engine: Any = "reference",
    reference: Any = "reference",
    *,
    facts: str = FACTS,
    rules: str = RULE,
    queries: str = QUERY,
    **options: Any,
) -> Callable[[Path], Outcome]:
    on = {"mode": "eager", "device": "cpu"} if "compiled" in (engine, reference) else {}

    def run(folder: Path) -> Outcome:
        graph = graph_of(folder, facts=facts, rules=rules, queries=queries)
        report = kv.verify(graph, engine, reference=reference, corruptions=2, **on, **options)
        return report.verdict, "; ".join(report.reasons)

    return run


def compare_recorded(level: str = "steps", **parts: str) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        graph = graph_of(folder, **parts)
        for name in ("expected.h5", "actual.h5"):
            kv.record(graph, folder / name, "reference", corruptions=2, level=level)
        report = kv.compare(folder / "expected.h5", folder / "actual.h5")
        return report.verdict, "; ".join(report.reasons)

    return run


def fuzz(examples: int, **options: Any) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        result = kv.fuzz("reference", corpus=folder / "corpus", examples=examples, **options)
        return result.verdict, "; ".join(result.reasons)

    return run


def check(problems: list[Problem], engine: Any = "reference", **options: Any) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        found = kv.check_engine(engine, problems=problems, laws=[], **options)
        with pytest.raises(AssertionError, match=r"inconclusive|nothing was checked"):
            found.raise_if_broken()
        return found.verdict, "; ".join(found.reasons)

    return run


def evaluate(**parts: str) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        report = kv.evaluate(graph_of(folder, **parts), mode="eager", device="cpu", corruptions=2)
        assert not report.is_sound
        return report.verdict, "; ".join(report.reasons)

    return run


NO_RULES = {"rules": ""}
MISTYPED_HEAD = {"rules": RULE.replace("grandparent", "grandparnet")}
NO_MATCHING_FACTS = {"facts": FACTS.replace("parent(", "child(")}
ONE_WAY = {"facts": "parent(ann, bob).\nparent(bob, cid).\n"}
KNOWN_ANYWAY = {"rules": "", "queries": "parent(ann, bob).\n"}

PROBLEMS = list(islice(draw_problems(0), 20))

VACUOUS: dict[str, Callable[[Path], Outcome]] = {
    "a graph without rules": verify_graph(**NO_RULES),
    "a graph without rules, by the evaluator": verify_graph("compiled", **NO_RULES),
    "a graph without rules, in lockstep": verify_graph("compiled", lockstep=True, **NO_RULES),
    "a mistyped rule head": verify_graph(**MISTYPED_HEAD),
    "no matching facts": verify_graph(**NO_MATCHING_FACTS),
    "one way alone": verify_graph(**ONE_WAY),
    "queries that are facts": verify_graph(**KNOWN_ANYWAY),
    "queries that nothing proves": verify_graph(queries="grandparent(cid, ann).\n"),
    "limits that end every proof": verify_graph(limits=kv.Limits(max_depth=1)),
    "limits that drop every body": verify_graph(limits=kv.Limits(max_atoms=1)),
    "engines that never prove": verify_graph(never_proves, reference=never_proves),
    "more required than there is": verify_graph(minimum={"proved": 1000}),
    "traces without rules": compare_recorded(**NO_RULES),
    "traces of a mistyped rule head": compare_recorded(**MISTYPED_HEAD),
    "compact traces without rules": compare_recorded("compact", **NO_RULES),
    "digests in which nothing is proved": compare_recorded("digests", **NO_MATCHING_FACTS),
    "deep traces in which nothing is proved": compare_recorded("deep", **NO_MATCHING_FACTS),
    "an almost empty campaign": fuzz(1),
    "a campaign of which more is required": fuzz(20, minimum="proved=100000"),
    "engines that never prove, on problems": check(PROBLEMS, never_proves, reference=never_proves),
    "problems without rules": check([replace(each, rules=()) for each in PROBLEMS]),
    "no problems": check([]),
    "the evaluator against itself without rules": verify_graph("compiled", reference="compiled", **NO_RULES),
    "an evaluation without rules": evaluate(**NO_RULES),
    "an evaluation of a mistyped rule head": evaluate(**MISTYPED_HEAD),
    "an evaluation in which nothing is proved": evaluate(**NO_MATCHING_FACTS),
}


@pytest.mark.parametrize("case", VACUOUS)
def test_a_comparison_that_exercises_too_little_is_inconclusive(tmp_path: Path, case: str):
    verdict, reasons = VACUOUS[case](tmp_path)
    assert verdict is Verdict.INCONCLUSIVE
    assert reasons.startswith(("too little was exercised: ", "nothing was c"))


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_the_smallest_comparison_that_proves_something_agrees(tmp_path: Path, engine: str):
    assert verify_graph(engine)(tmp_path) == (Verdict.AGREE, "")


@pytest.mark.parametrize("level", ["digests", "compact", "deep"])
def test_the_smallest_traces_that_prove_something_agree(tmp_path: Path, level: str):
    assert compare_recorded(level)(tmp_path) == (Verdict.AGREE, "")


def test_the_user_lowers_the_minimum(tmp_path: Path):
    assert verify_graph(minimum={}, **NO_RULES)(tmp_path) == (Verdict.AGREE, "")
    verdict, reasons = verify_graph(minimum="proved=1,rules=1", **NO_RULES)(tmp_path)
    assert verdict is Verdict.INCONCLUSIVE
    how = reasons.partition("--minimum ")[2].partition(",")[0]
    assert verify_graph(minimum=how, **NO_RULES)(tmp_path) == (Verdict.AGREE, "")


@pytest.mark.parametrize(
    ("declared", "minimum"),
    [
        (None, dict(MINIMUM)),
        ("none", {}),
        ({}, {}),
        ("rules=2, proved=1", {"proved": 1, "rules": 2}),
        ({"choices": 3, "rules": 0}, {"choices": 3}),
    ],
)
def test_a_minimum_is_parsed(declared: Any, minimum: dict[str, int]):
    assert parse_minimum(declared) == minimum


@pytest.mark.parametrize(
    "declared", ["", "rule=1", "rules", "rules=-1", "rules=1.5", "rules=1,rules=2", {"rules": -1}, {"rules": True}]
)
def test_a_wrong_minimum_is_refused(declared: Any):
    with pytest.raises(kv.UserError, match="--minimum"):
        parse_minimum(declared)


def test_a_divergence_stays_one_however_little_was_exercised(tmp_path: Path):
    verdict, _ = verify_graph(
        never_proves, **NO_RULES, queries="parent(ann, bob).\n", limits=kv.Limits(exclude_query=False)
    )(tmp_path)
    assert verdict is Verdict.DIVERGE


def test_a_fault_without_effect_is_named():
    run = countries_run()
    idle = kv.verify("countries", mode="eager", queries=1, corruptions=1, faults="max-atoms-off-by-one")
    assert idle.notes == ("the planted fault max-atoms-off-by-one changed no step, outcome or rank",)
    assert not any("planted" in note for note in verify(run, reference_pipeline(run), eager_pipeline(run)).report.notes)
    found = kv.verify("countries", mode="eager", queries=1, corruptions=1, faults="fact-cap")
    assert not any("planted" in note for note in found.notes)


def count_one_by_one(trace: Any) -> dict[str, int]:
    """Count the steps in which each stage acted, in plain Python."""
    reader, rules = StepReader(trace.columns), trace.rules
    found = dict.fromkeys(
        ("match_rules", "match_facts", "resolve", "prune", "rename", "close", "limit", "score", "choose"), 0
    )
    for row in range(len(trace.columns.steps.depth)):
        step = reader.read(row)
        made = [each for each in step.resolvents if each.origin_kind != Origin.NONE]
        added = [len(rules[each.origin].body) if each.origin_kind == Origin.RULE else 0 for each in made]
        found["match_rules"] += any(each.origin_kind == Origin.RULE for each in made)
        found["match_facts"] += any(each.origin_kind == Origin.FACT for each in made)
        found["resolve"] += any(each.kind in (GoalKind.GOAL, GoalKind.TRUE) for each in step.resolvents)
        found["prune"] += any(len(r.atoms) < len(step.goal) - 1 + n for r, n in zip(made, added, strict=True))
        found["rename"] += any(min(a, b) < 0 for each in step.resolvents for _, a, b in each.atoms)
        found["close"] += any(each.kind in (GoalKind.TRUE, GoalKind.FALSE) for each in step.resolvents)
        found["limit"] += bool(step.dropped_atoms or step.dropped_resolvents)
        found["score"] += len({each.score for each in step.resolvents}) > 1
        found["choose"] += len(step.resolvents) > 1
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_exercise_is_that_of_the_steps_one_by_one(seed: int):
    for problem in islice(draw_problems(seed), 10):
        trace = verify_problems([problem], compiled_maker()).expected
        outcomes = trace.columns.candidates.outcome
        exercise = count_exercise(MemorySource(trace), {"PROVED": int((outcomes == 1).sum())})
        assert exercise.stages == count_one_by_one(trace)
        made = {
            (int(k), int(o))
            for k, o in zip(trace.columns.resolvents.origin_kind, trace.columns.resolvents.origin, strict=True)
        }
        assert (exercise.rules, exercise.facts) == tuple(
            sum(k == each for k, _ in made) for each in (Origin.RULE, Origin.FACT)
        )
        assert (exercise.steps, exercise.counted) == (len(trace.columns.steps.depth),) * 2
        assert exercise.choices == exercise.stages["choose"]


def test_a_large_trace_is_read_on_until_the_minimum_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(count, "COUNTED_STEPS", 64)
    path = (
        kv.record("countries", tmp_path / "large.h5", "reference", queries=8, corruptions=20) and tmp_path / "large.h5"
    )
    source = open_source(path)
    some = count_exercise(source, {"PROVED": 1}, MINIMUM)
    assert 0 < some.counted < some.steps == source.num_steps
    assert (some.rules or 0) >= 1
    every = count_exercise(source, {"PROVED": 1}, {"choices": source.num_steps})
    assert every.counted == every.steps
    monkeypatch.undo()
    assert every == count_exercise(source, {"PROVED": 1})
    monkeypatch.setattr(count, "COUNTED_STEPS", 64)
    comparer = Comparer(path, shutil.copy(path, tmp_path / "other.h5"))
    found, exercised = judge_exercise(comparer.compare(), comparer.recorded, Outcomes({"PROVED": 1}, {}), MINIMUM)
    assert (found.verdict, exercised.expected, exercised.actual) == (Verdict.AGREE, some, some)
    assert describe_stages(some).endswith(f" of {some.counted:,} steps; counted in {some.counted:,} of {some.steps:,}")


@pytest.mark.parametrize(
    ("first", "last"),
    [pytest.param(0, 250, marks=pytest.mark.deep), pytest.param(250, 1250, marks=pytest.mark.exhaustive)],
)
def test_a_random_problem_agrees_if_and_only_if_it_gives_evidence(first: int, last: int):
    make, num_enough = find_maker("reference"), 0
    for problem in islice(draw_problems(5), first, last):
        report = verify_problems([problem], make, minimum=MINIMUM).report
        has_enough = all(getattr(report.exercise.actual, name) >= 1 for name in ITEMS)
        assert (report.verdict, bool(report.reasons)) == (
            (Verdict.AGREE, False) if has_enough else (Verdict.INCONCLUSIVE, True)
        )
        num_enough += has_enough
    assert 0.1 < num_enough / (last - first) < 0.9


@pytest.mark.deep
def test_a_check_of_random_problems_gives_evidence_together():
    failures, exercise = check_and_count(list(islice(draw_problems(6), 200)), compiled_maker())
    assert failures == []
    assert all(getattr(exercise, name) > 20 for name in ITEMS)
