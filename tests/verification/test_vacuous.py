"""Comparisons that prove nothing end INCONCLUSIVE, whoever makes them; those that prove something do not."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from run_engines import countries_run, eager_pipeline

import kgverify as kv
from kgverify import Problem, Verdict
from kgverify.comparison.comparable import MemorySource, open_source
from kgverify.comparison.compare import Comparer
from kgverify.comparison.exercise import count
from kgverify.comparison.exercise.count import count_exercise
from kgverify.comparison.exercise.exercise import ITEMS, MINIMUM, parse_minimum
from kgverify.comparison.step_view import StepReader
from kgverify.dialects import ReferenceEngine
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin
from kgverify.report.content import Outcomes
from kgverify.report.wording import describe_stages
from kgverify.runs.engine_makers import find_maker
from kgverify.runs.run import reference_pipeline
from kgverify.testing.checking.check import Checker, verify_problems
from kgverify.testing.problems.merge import merge
from kgverify.trace.model.columns import Columns
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.judgement import judge_exercise
from kgverify.verification.verify import verify

FACTS = "parent(ann, bob).\nparent(ann, dan).\nparent(bob, cid).\nparent(dan, eve).\n"
RULE = "grandparent(X, Y) :- parent(X, Z), parent(Z, Y).\n"
QUERY = "grandparent(ann, cid).\n"
EAGER = kv.Evaluator(mode="eager", device="cpu")

Outcome = tuple[Verdict, str]
"""A verdict and its reasons."""


@kv.engine_of
def never_proves(goal, clauses):
    return []


class Blind(ReferenceEngine):
    """An engine that shows neither its steps nor its outcomes."""

    @property
    def info(self) -> kv.EngineInfo:
        names = {
            f"{group}.{name}" for group in ("steps", "resolvents") for name in Columns.__annotations__[group]._fields
        }
        hidden = names | {"candidates.num_steps", "candidates.outcome"}
        return msgspec.structs.replace(super().info, name="blind", unknown=tuple(sorted(hidden)))

    def prove(self, *arguments: Any) -> Columns:
        columns = super().prove(*arguments)
        steps, resolvents = (type(each)(*(part[:0] for part in each)) for each in (columns.steps, columns.resolvents))
        candidates = columns.candidates._replace(num_steps=columns.candidates.num_steps * 0)
        return columns._replace(steps=steps, resolvents=resolvents, candidates=candidates)


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
    limits: kv.Limits | None = None,
    split: str = "test",
    **equality: Any,
) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        graph = graph_of(folder, facts=facts, rules=rules, queries=queries)
        report = kv.verify(
            graph,
            engine,
            reference=reference,
            queries=kv.Queries(corruptions=2, split=split),
            limits=limits,
            equality=kv.Equality(**equality),
        )
        return report.verdict, "; ".join(report.reasons)

    return run


def compare_recorded(level: str = "steps", **parts: str) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        graph = graph_of(folder, **parts)
        kv.record(graph, folder / "expected.h5", "reference", corruptions=2, options=kv.RecordingOptions(level=level))
        kv.record(
            graph,
            folder / "actual.h5",
            kv.Evaluator(mode="eager", device="cpu"),
            corruptions=2,
            options=kv.RecordingOptions(level=level),
        )
        report = kv.compare(folder / "expected.h5", folder / "actual.h5")
        return report.verdict, "; ".join(report.reasons)

    return run


def fuzz(examples: int | None, seconds: float | None = None, **options: Any) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        result = kv.fuzz(
            "reference", corpus=folder / "corpus", examples=examples, seconds=seconds, options=kv.FuzzOptions(**options)
        )
        return result.verdict, "; ".join(result.reasons)

    return run


def check(problems: list[Problem] | None, engine: Any = "reference", **options: Any) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        found = kv.check_engine(engine, problems=problems, laws=[], **options)
        with pytest.raises(AssertionError, match=r"inconclusive|nothing was checked"):
            found.raise_if_broken()
        return found.verdict, "; ".join(found.reasons)

    return run


def evaluate(
    parts: dict[str, str] | None = None,
    engine: Any = EAGER,
    reference: Any = "reference",
    *,
    corruptions: int | str = 2,
    limits: kv.Limits | None = None,
    **options: Any,
) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        report = kv.evaluate(
            graph_of(folder, **(parts or {})),
            engine,
            reference=reference,
            corruptions=corruptions,
            limits=limits,
            options=kv.EvaluationOptions(**options),
        )
        assert not report.is_sound
        return report.verdict, "; ".join(report.reasons)

    return run


NO_RULES = {"rules": ""}
MISTYPED_HEAD = {"rules": RULE.replace("grandparent", "grandparnet")}
NO_MATCHING_FACTS = {"facts": FACTS.replace("parent(", "child(")}
ONE_WAY = {"facts": "parent(ann, bob).\nparent(bob, cid).\n"}
KNOWN_ANYWAY = {"rules": "", "queries": "parent(ann, bob).\n"}

USELESS_RULE = {"rules": "parent(X, Y) :- married(X, Z), parent(Z, Y).\n", "queries": "parent(bob, cid).\n"}
ONE_ENTITY = {"facts": "p(a, a).\n", "rules": "q(X, Y) :- p(X, Y).\n", "queries": "q(a, a).\n"}
NOT_EXCLUDED = kv.Limits(exclude_query=False)

PROBLEMS = list(islice(draw_problems(0), 20))

VACUOUS: dict[str, Callable[[Path], Outcome]] = {
    "a graph without rules": verify_graph(**NO_RULES),
    "a graph without rules, by the evaluator": verify_graph(EAGER, **NO_RULES),
    "a graph without rules, in lockstep": verify_graph(EAGER, lockstep=True, **NO_RULES),
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
    "the evaluator against itself without rules": verify_graph(EAGER, reference=EAGER, **NO_RULES),
    "an evaluation without rules": evaluate(NO_RULES),
    "an evaluation of a mistyped rule head": evaluate(MISTYPED_HEAD),
    "an evaluation in which nothing is proved": evaluate(NO_MATCHING_FACTS),
    "an evaluation without a check": evaluate(check=0),
    "an evaluation that checks one candidate": evaluate(check=1),
    "an evaluation without corruptions": evaluate(corruptions=0),
    "an evaluation of known facts": evaluate(USELESS_RULE, limits=NOT_EXCLUDED),
    "an evaluation of one entity": evaluate(ONE_ENTITY),
    "an evaluation by engines that never prove": evaluate(engine=never_proves, reference=never_proves),
    "ranks alone, without rules": evaluate(NO_RULES, rank_only=True, corruptions="all"),
    "ranks alone, of a mistyped rule head": evaluate(MISTYPED_HEAD, rank_only=True, corruptions="all"),
    "ranks alone, where everything is left out": evaluate(NO_MATCHING_FACTS, rank_only=True, corruptions="all"),
    "known facts that are not excluded": verify_graph(**KNOWN_ANYWAY, limits=NOT_EXCLUDED),
    "known facts and a useless rule": verify_graph(**USELESS_RULE, limits=NOT_EXCLUDED),
    "known facts by the evaluator": verify_graph(EAGER, **USELESS_RULE, limits=NOT_EXCLUDED),
    "the facts themselves as queries": verify_graph(split="train"),
    "one entity": verify_graph(**ONE_ENTITY),
    "two entities": verify_graph(facts="p(a, b).\n", rules="q(X, Y) :- p(X, Y).\n", queries="q(a, b).\n"),
    "queries of an unknown relation": verify_graph(queries="cousin(ann, cid).\n"),
    "queries of unknown entities": verify_graph(queries="grandparent(yan, zoe).\n"),
    "limits that leave no choice": verify_graph(limits=kv.Limits(max_resolvents=1)),
    "rules that only go round": verify_graph(rules="grandparent(X, Y) :- grandparent(Y, X).\n"),
    "a rule of other arguments": verify_graph(rules=RULE.replace("(X, Y) :-", "(Y, X) :-")),
    "a rule of an unknown entity": verify_graph(rules="grandparent(zoe, Y) :- parent(zoe, Y).\n"),
    "rules in other letters": verify_graph(rules=RULE.replace("p", "P")),
    "a rule of a missing relation": verify_graph(rules="grandparent(X, Y) :- aunt(X, Y).\n"),
    "a planted fault without rules": verify_graph(replace(EAGER, faults="fact-cap"), **NO_RULES),
    "benign differences of nothing": verify_graph(modulo="names,order,duplicates", **NO_RULES),
    "an accepted error of nothing": verify_graph(score_error=1e9, **NO_RULES),
    "an engine that never proves, without rules": verify_graph(never_proves, **NO_RULES),
    "engines that never prove, in lockstep": verify_graph(never_proves, reference=never_proves, lockstep=True),
    "limits that end every proof, in lockstep": verify_graph(EAGER, lockstep=True, limits=kv.Limits(max_depth=1)),
    "a mistyped rule head, in lockstep": verify_graph(EAGER, lockstep=True, **MISTYPED_HEAD),
    "engines that show nothing": verify_graph(Blind, reference=Blind),
    "engines that show nothing, without rules": verify_graph(Blind, reference=Blind, **NO_RULES),
    "engines that show nothing, on problems": check(PROBLEMS, Blind, reference=Blind),
    "one problem many times": check(PROBLEMS[:1] * 20),
    "one generated problem": check(None, examples=1),
    "problems without facts to match": check([replace(each, facts=each.facts[:1], rules=()) for each in PROBLEMS]),
    "a campaign without time": fuzz(None, seconds=0),
    "a campaign in lockstep of which more is required": fuzz(2, lockstep=True, minimum="choices=100000"),
    "deep traces without rules": compare_recorded("deep", **NO_RULES),
    "digests of known facts": compare_recorded("digests", **KNOWN_ANYWAY),
    "compact traces of one entity": compare_recorded("compact", **ONE_ENTITY),
}

SAMPLE = {
    "one entity",
    "a planted fault without rules",
    "no problems",
    "an evaluation without a check",
    "engines that show nothing",
    "a campaign without time",
}
"""The cases of the default tests."""


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=() if each in SAMPLE else pytest.mark.deep) for each in VACUOUS]
)
def test_a_comparison_that_exercises_too_little_is_inconclusive(tmp_path: Path, case: str):
    verdict, reasons = VACUOUS[case](tmp_path)
    assert verdict is Verdict.INCONCLUSIVE
    assert reasons.startswith(("too little was exercised: ", "nothing was c"))


@pytest.mark.parametrize("engine", ["reference", EAGER], ids=["reference", "compiled"])
def test_the_smallest_comparison_that_proves_something_agrees(tmp_path: Path, engine: Any):
    assert verify_graph(engine)(tmp_path) == (Verdict.AGREE, "")


@pytest.mark.deep
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
    with pytest.raises(kv.UserError, match="minimum"):
        parse_minimum(declared)


@pytest.mark.deep
def test_a_divergence_stays_one_however_little_was_exercised(tmp_path: Path):
    verdict, _ = verify_graph(
        never_proves, **NO_RULES, queries="parent(ann, bob).\n", limits=kv.Limits(exclude_query=False)
    )(tmp_path)
    assert verdict is Verdict.DIVERGE


@pytest.mark.deep
def test_a_fault_without_effect_is_named():
    run = countries_run()
    idle = kv.verify("countries", kv.Evaluator(mode="eager", faults="max-atoms-off-by-one"), queries=1, corruptions=1)
    assert "the planted fault max-atoms-off-by-one changed no step, outcome or rank" in idle.notes
    assert not any("planted" in note for note in verify(run, reference_pipeline(run), eager_pipeline(run)).report.notes)
    found = kv.verify("countries", kv.Evaluator(mode="eager", faults="fact-cap"), queries=1, corruptions=1)
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


def test_a_report_says_that_both_sides_are_of_one_engine(tmp_path: Path):
    graph = graph_of(tmp_path)
    note = "both sides are of the same engine, reference, so a fault of it is in both"
    assert note in kv.verify(graph, "reference", corruptions=2).notes
    assert note not in kv.verify(graph, kv.Evaluator(mode="eager", device="cpu"), corruptions=2).notes


@pytest.mark.exhaustive
def test_a_scope_in_which_nothing_is_proved_is_no_proof(tmp_path):
    engine = f"{__file__}:never_proves"
    result = kv.fuzz(engine, reference=engine, scope="tiny", corpus=tmp_path)
    assert result.num_problems == 33_632
    assert result.verdict is kv.Verdict.INCONCLUSIVE
    assert not result.is_proof


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep), pytest.param(2, marks=pytest.mark.deep)])
def test_the_exercise_is_that_of_the_steps_one_by_one(seed: int):
    for problem in islice(draw_problems(seed), 10):
        trace = verify_problems(merge([problem]), compiled_maker()).expected
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


def test_goals_that_were_revisited_are_counted_where_the_stage_before_is_known(tmp_path: Path):
    path = tmp_path / "deep.h5"
    kv.record("countries", path, "reference", queries=1, corruptions=2, options=kv.RecordingOptions(level="deep"))
    trace = read_trace(path)
    assert count_exercise(MemorySource(trace), None).stages["revisit"] > 0
    for stage in ("revisit", "rename"):
        bit = 1 << [each.value for each in STEP_STAGES].index(stage)
        stages = trace.columns.stages._replace(told=trace.columns.stages.told & ~np.array(bit, np.uint16))
        fewer = replace(trace, columns=trace.columns._replace(stages=stages))
        assert "revisit" not in count_exercise(MemorySource(fewer), None).stages


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
    [pytest.param(0, 50, marks=pytest.mark.deep), pytest.param(50, 1250, marks=pytest.mark.exhaustive)],
)
def test_a_random_problem_agrees_if_and_only_if_it_gives_evidence(first: int, last: int):
    make, num_enough = find_maker("reference"), 0
    for problem in islice(draw_problems(5), first, last):
        report = verify_problems(merge([problem]), make, kv.Equality(determinism=False, minimum=MINIMUM)).report
        has_enough = all(getattr(report.exercise.actual, name) >= 1 for name in ITEMS)
        assert (report.verdict, bool(report.reasons)) == (
            (Verdict.AGREE, False) if has_enough else (Verdict.INCONCLUSIVE, True)
        )
        num_enough += has_enough
    assert 0.1 < num_enough / (last - first) < 0.9


@pytest.mark.deep
def test_a_check_of_random_problems_gives_evidence_together():
    failures, exercise = Checker(compiled_maker()).check(list(islice(draw_problems(6), 200)))
    assert failures == []
    assert all(getattr(exercise, name) > 20 for name in ITEMS)


def test_the_verdict_names_the_limit_that_decided_and_a_value_that_would_not():
    def lines(limits: kv.Limits) -> str:
        return " ".join(str(kv.verify("countries", "reference", queries=2, corruptions=5, limits=limits)).split())

    cut = lines(kv.Limits(max_resolvents=3))
    found = re.search(
        r"([\d,]+) of ([\d,]+) steps were cut: the verdict holds only for max_resolvents 3; max_resolvents (\d+)", cut
    )
    assert found, cut
    enough = lines(kv.Limits(max_resolvents=int(found[3])))
    assert "steps were cut" not in enough
    assert "no step reached max_resolvents or max_atoms: a fault there would not have been seen" in enough
    few = lines(kv.Limits(max_atoms=1))
    found = re.search(r"steps were cut: the verdict holds only for max_atoms 1; max_atoms (\d+) would cut none", few)
    assert found, few
    evaluated = " ".join(
        str(
            kv.evaluate("countries", engine="reference", queries=2, corruptions=5, limits=kv.Limits(max_resolvents=3))
        ).split()
    )
    assert "the verdict holds only for max_resolvents 3" in evaluated
