"""Comparisons that prove nothing end INCONCLUSIVE, whoever makes them; those that prove something do not."""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kgverify as kv
from kgverify import Limits, Verdict
from kgverify.comparison.exercise.exercise import Exercise, Exercised
from kgverify.dialects import ReferenceEngine
from kgverify.laws import draw_problems

FACTS = "parent(ann, bob).\nparent(ann, dan).\nparent(bob, cid).\nparent(dan, eve).\n"
RULE = "grandparent(X, Y) :- parent(X, Z), parent(Z, Y).\n"
QUERY = "grandparent(ann, cid).\n"
EAGER = kv.Evaluator(mode="eager", device="cpu")
MINIMUM = {"proved": 1, "rules": 1, "choices": 1}


@kv.engine_of
def never_proves(goal, clauses):
    return []


class Blind(ReferenceEngine):
    """An engine that shows neither its steps nor its outcomes."""

    @property
    def info(self) -> kv.EngineInfo:
        groups = kv.Columns.__annotations__
        names = {f"{group}.{name}" for group in ("steps", "resolvents") for name in groups[group]._fields}
        hidden = names | {"candidates.num_steps", "candidates.outcome"}
        return msgspec.structs.replace(super().info, name="blind", unknown=tuple(sorted(hidden)))

    def prove(self, *arguments: Any) -> kv.Columns:
        columns = super().prove(*arguments)
        steps, resolvents = (type(each)(*(part[:0] for part in each)) for each in (columns.steps, columns.resolvents))
        candidates = columns.candidates._replace(num_steps=columns.candidates.num_steps * 0)
        return columns._replace(steps=steps, resolvents=resolvents, candidates=candidates)


def graph_of(folder: Path, *, facts: str = FACTS, rules: str = RULE, queries: str = QUERY) -> kv.KnowledgeGraph:
    for name, text in (("train.txt", facts), ("test.txt", queries), ("rules.pl", rules)):
        (folder / name).write_text(text)
    return kv.load_graph(folder)


def verify(
    folder: Path, parts: dict[str, str], engine: Any = "reference", *, split: str = "test", **options: Any
) -> Any:
    options = {"queries": kv.Queries(corruptions=2, split=split), **options}
    return kv.verify(graph_of(folder, **parts), engine, **options)


def compare(folder: Path, parts: dict[str, str], level: str) -> Any:
    graph, options = graph_of(folder, **parts), kv.RecordingOptions(level=level)
    for name, engine in (("a", "reference"), ("b", EAGER)):
        kv.record(graph, folder / name, engine, corruptions=2, options=options)
    return kv.compare(folder / "a", folder / "b")


def fuzz(folder: Path, parts: dict[str, Any], **options: Any) -> Any:
    return kv.fuzz("reference", corpus=folder / "corpus", **{"examples": None, **parts}, **options)


def check(folder: Path, parts: dict[str, Any], engine: Any = "reference", **options: Any) -> Any:
    found = kv.check_engine(engine, laws=[], **parts, **options)
    with pytest.raises(AssertionError, match=r"inconclusive|nothing was checked"):
        found.raise_if_broken()
    return found


def evaluate(folder: Path, parts: dict[str, str], engine: Any = EAGER, *, corruptions: Any = 2, **options: Any) -> Any:
    own = {name: options.pop(name) for name in ("check", "rank_only") if name in options}
    settings = kv.EvaluationOptions(**own)
    report = kv.evaluate(graph_of(folder, **parts), engine, corruptions=corruptions, options=settings, **options)
    assert not report.is_sound
    return report


NO_RULES = {"rules": ""}
MISTYPED_HEAD = {"rules": RULE.replace("grandparent", "grandparnet")}
NO_MATCHING_FACTS = {"facts": FACTS.replace("parent(", "child(")}
USELESS_RULE = {"rules": "parent(X, Y) :- married(X, Z), parent(Z, Y).\n", "queries": "parent(bob, cid).\n"}
ONE_ENTITY = {"facts": "p(a, a).\n", "rules": "q(X, Y) :- p(X, Y).\n", "queries": "q(a, a).\n"}
NOT_EXCLUDED, LOCKSTEP = Limits(exclude_query=False), kv.Equality(lockstep=True)
NEITHER = {"engine": never_proves, "reference": never_proves}
PROBLEMS = list(islice(draw_problems(0), 20))

VACUOUS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a graph without rules": (verify, NO_RULES, {}),
    "a graph without rules, in lockstep": (verify, NO_RULES, {"engine": EAGER, "equality": LOCKSTEP}),
    "a planted fault without rules": (verify, NO_RULES, {"engine": replace(EAGER, faults="fact-cap")}),
    "benign differences of nothing": (verify, NO_RULES, {"equality": kv.Equality(modulo="names", score_error=1e9)}),
    "a mistyped rule head": (verify, MISTYPED_HEAD, {}),
    "no matching facts": (verify, NO_MATCHING_FACTS, {}),
    "known facts that are not excluded": (verify, USELESS_RULE, {"limits": NOT_EXCLUDED}),
    "the facts themselves as queries": (verify, {}, {"split": "train"}),
    "queries that nothing proves": (verify, {"queries": "grandparent(cid, ann).\n"}, {}),
    "queries of an unknown relation": (verify, {"queries": "cousin(ann, cid).\n"}, {}),
    "one entity": (verify, ONE_ENTITY, {}),
    "rules that only go round": (verify, {"rules": "grandparent(X, Y) :- grandparent(Y, X).\n"}, {}),
    "a rule of an unknown entity": (verify, {"rules": "grandparent(zoe, Y) :- parent(zoe, Y).\n"}, {}),
    "limits that end every proof": (verify, {}, {"limits": Limits(max_depth=1)}),
    "limits that leave no choice": (verify, {}, {"limits": Limits(max_resolvents=1)}),
    "engines that never prove": (verify, {}, NEITHER),
    "engines that show nothing": (verify, {}, {"engine": Blind, "reference": Blind}),
    "more required than there is": (verify, {}, {"equality": kv.Equality(minimum={"proved": 1000})}),
    "traces without rules": (compare, NO_RULES, {"level": "deep"}),
    "digests in which nothing is proved": (compare, NO_MATCHING_FACTS, {"level": "digests"}),
    "an almost empty campaign": (fuzz, {"examples": 1}, {}),
    "a campaign without time": (fuzz, {"seconds": 0}, {}),
    "engines that never prove, on problems": (check, {"problems": PROBLEMS}, NEITHER),
    "no problems": (check, {"problems": []}, {}),
    "one problem many times": (check, {"problems": PROBLEMS[:1] * 20}, {}),
    "an evaluation without rules": (evaluate, NO_RULES, {}),
    "an evaluation without a check": (evaluate, {}, {"check": 0}),
    "an evaluation without corruptions": (evaluate, {}, {"corruptions": 0}),
    "an evaluation of known facts": (evaluate, USELESS_RULE, {"limits": NOT_EXCLUDED}),
    "an evaluation by engines that never prove": (evaluate, {}, NEITHER),
    "ranks alone, of a mistyped rule head": (evaluate, MISTYPED_HEAD, {"rank_only": True, "corruptions": "all"}),
}


@pytest.mark.sample(11)
@pytest.mark.parametrize("case", VACUOUS)
def test_a_comparison_that_exercises_too_little_is_inconclusive(tmp_path: Path, case: str):
    run, parts, options = VACUOUS[case]
    found = run(tmp_path, parts, **options)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "; ".join(found.reasons).startswith(("too little was exercised: ", "nothing was c"))


@pytest.mark.parametrize("level", [None, "digests", "deep"])
def test_the_smallest_comparison_that_proves_something_agrees(tmp_path: Path, level: str | None):
    report = verify(tmp_path, {}, EAGER) if level is None else compare(tmp_path, {}, level)
    assert (report.verdict, report.reasons) == (Verdict.AGREE, ())


def test_the_user_lowers_the_minimum(tmp_path: Path):
    def run(minimum: Any) -> Any:
        return verify(tmp_path, NO_RULES, equality=kv.Equality(minimum=minimum))

    assert run({}).verdict is Verdict.AGREE
    report = run("proved=1,rules=1")
    assert report.verdict is Verdict.INCONCLUSIVE
    how = report.reasons[0].partition("--minimum ")[2].partition(",")[0]
    assert run(how).verdict is Verdict.AGREE


@pytest.mark.parametrize(
    ("declared", "minimum"),
    [(None, MINIMUM), ("none", {}), ({}, {}), ("rules=2, proved=1", {"proved": 1, "rules": 2}), ({"rules": 0}, {})],
)
def test_a_minimum_is_parsed(declared: Any, minimum: dict[str, int]):
    assert kv.Equality(minimum=declared).required == minimum


@pytest.mark.parametrize("declared", ["", "rule=1", "rules", "rules=-1", "rules=1.5", "rules=1,rules=2", {"rules": -1}])
def test_a_wrong_minimum_is_refused(declared: Any):
    with pytest.raises(kv.UserError, match="minimum"):
        kv.Equality(minimum=declared)


def test_a_divergence_stays_one_however_little_was_exercised(tmp_path: Path):
    known = NO_RULES | {"queries": "parent(ann, bob).\n"}
    assert verify(tmp_path, known, never_proves, limits=NOT_EXCLUDED).verdict is Verdict.DIVERGE


@pytest.mark.parametrize(("fault", "is_idle"), [("max-atoms-off-by-one", True), ("fact-cap", False)])
def test_a_fault_without_effect_is_named(fault: str, is_idle: bool):
    engine = kv.Evaluator(mode="eager", device="cpu", faults=fault)
    report = kv.verify("countries", engine, queries=1, corruptions=1, equality=kv.Equality(determinism=False))
    assert (
        any(f"the planted fault {fault} changed no step, outcome or rank" in note for note in report.notes) is is_idle
    )


def test_a_report_says_that_both_sides_are_of_one_engine(tmp_path: Path):
    note = "both sides are of the same engine, reference, so a fault of it is in both"
    assert note in verify(tmp_path, {}).notes
    assert note not in verify(tmp_path, {}, EAGER).notes


def count_one_by_one(trace: kv.Trace) -> dict[str, int]:
    """Count the steps in which each stage acted, in plain Python."""
    columns, rules = trace.columns, trace.rules
    names = ("match_rules", "match_facts", "resolve", "prune", "rename", "close", "limit", "score", "choose")
    found = dict.fromkeys(names, 0)
    row = atom = 0
    for num, num_atoms, *dropped in zip(
        *(getattr(columns.steps, name).tolist() for name in ("num_resolvents", "num_atoms")),
        columns.steps.dropped_atoms.tolist(),
        columns.steps.dropped_resolvents.tolist(),
        strict=True,
    ):
        kinds, origins, scores = set(), set(), set()
        is_pruned = is_renamed = False
        for i in range(row, row + num):
            size, origin = int(columns.resolvents.num_atoms[i]), int(columns.resolvents.origin_kind[i])
            body = len(rules[columns.resolvents.origin[i]].body) if origin == 1 else 0
            is_pruned |= origin != 0 and size < num_atoms - 1 + body
            is_renamed |= bool((columns.resolvents.atoms[atom : atom + size, 1:] < 0).any())
            atom += size
            kinds.add(int(columns.resolvents.kind[i]))
            origins.add(origin)
            scores.add(float(columns.resolvents.score[i]))
        row += num
        acted = (1 in origins, 2 in origins, bool(kinds & {0, 1}), is_pruned, is_renamed, bool(kinds & {1, 2}))
        for name, has_acted in zip(names, (*acted, any(dropped), len(scores) > 1, num > 1), strict=True):
            found[name] += has_acted
    return found


@pytest.mark.parametrize("graph", ["countries", "random:3", "random:8", "random:12"])
def test_the_exercise_is_that_of_the_steps_one_by_one(graph: str):
    limits, equality = Limits(max_depth=4, max_atoms=3, max_resolvents=4), kv.Equality(determinism=False)
    report = kv.verify(graph, "reference", queries=3, corruptions=2, limits=limits, equality=equality)
    trace, exercise = report.traces.expected, report.exercise.expected
    assert exercise.stages == count_one_by_one(trace)
    kind, origin = trace.columns.resolvents.origin_kind, trace.columns.resolvents.origin
    assert [exercise.rules, exercise.facts] == [len(set(origin[kind == each].tolist())) for each in (1, 2)]
    assert (exercise.steps, exercise.counted) == (len(trace.columns.steps.depth),) * 2
    assert exercise.choices == exercise.stages["choose"]
    assert exercise.proved == int((trace.columns.candidates.outcome == 1).sum())
    has_enough = all(getattr(report.exercise.actual, name) >= 1 for name in MINIMUM)
    assert report.verdict is (Verdict.AGREE if has_enough else Verdict.INCONCLUSIVE)
    assert bool(report.reasons) is not has_enough


def test_a_large_trace_is_read_on_until_the_minimum_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = [tmp_path / "large.h5", tmp_path / "other.h5"]
    for path, engine in zip(paths, ("reference", EAGER), strict=True):
        kv.record("countries", path, engine, queries=8, corruptions=20)
    every = kv.compare(*paths).exercise.expected
    monkeypatch.setattr("kgverify.comparison.exercise.count.COUNTED_STEPS", 64)
    report = kv.compare(*paths)
    some = report.exercise.expected
    assert report.verdict is Verdict.AGREE
    assert 0 < some.counted < some.steps == every.steps == every.counted
    assert some.rules >= 1
    assert f"counted in {some.counted:,} of {some.steps:,}" in " ".join(str(report).split())
    assert kv.compare(*paths, equality=kv.Equality(minimum={"choices": every.steps})).exercise.expected == every


def test_the_verdict_names_the_limit_that_decided_and_a_value_that_would_not():
    def lines(limits: Limits, run: Any = kv.verify) -> str:
        return " ".join(str(run("countries", "reference", queries=2, corruptions=5, limits=limits)).split())

    cut = r"[\d,]+ of [\d,]+ steps were cut: the verdict holds only for (\w+) \d+; \1 (\d+) would cut none"
    for name, number in (("max_resolvents", 3), ("max_atoms", 1)):
        found = re.search(cut, lines(Limits(**{name: number})))
        assert found, name
        assert found[1] == name
        assert "steps were cut" not in lines(Limits(**{name: int(found[2])}))
    enough = "no step reached max_resolvents or max_atoms: a fault there would not have been seen"
    assert enough in lines(Limits())
    assert "the verdict holds only for max_resolvents 3" in lines(Limits(max_resolvents=3), kv.evaluate)


@pytest.mark.parametrize(
    ("expected", "actual", "text"),
    [
        ({"max_depth": 0}, {"max_depth": 48}, "48 derivations ended at the limit"),
        ({"max_depth": 1}, {"max_depth": 0}, "1 derivation ended at the limit"),
        ({}, {"max_atoms": 1}, "1 of 2,000 steps was cut"),
        ({"max_depth": 0}, {"max_depth": 0}, "no step reached max_depth: a fault there would not have been seen"),
    ],
)
def test_a_limit_counts_as_reached_if_either_side_reached_it(expected, actual, text):
    report = kv.verify("countries", "reference", queries=1, corruptions=1)
    sides = (Exercise(limits=each, counted=2_000) for each in (expected, actual))
    lines = str(msgspec.structs.replace(report, exercise=Exercised(*sides)))
    assert text in lines
    assert ("no step reached" in lines) is text.startswith("no step")


def test_advice_fits_what_was_compared(tmp_path: Path):
    for name, queries in (("one", 2), ("two", 2)):
        kv.record("countries", tmp_path / name, ReferenceEngine, queries=queries, corruptions=5)
    recorded = kv.compare(tmp_path / "one", tmp_path / "two")
    ran = kv.verify("countries", "reference", queries=2, corruptions=5)
    assert "record again with max_resolvents=14 or max_atoms=2, or record more queries" in " ".join(
        str(recorded).split()
    )
    assert "lower a limit with max_resolvents=14" in " ".join(str(ran).split())


def test_the_longest_list_of_two_comparisons_is_the_longer_one():
    one, other = (Exercise(largest={"max_atoms": num}, stages={"close": num}) for num in (3, 4))
    assert (one.plus(other).largest, one.plus(other).stages) == ({"max_atoms": 4}, {"close": 7})
