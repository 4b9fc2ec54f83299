"""Every fault of the catalogue is found in its stage, however little an engine shows; without a fault nothing is found."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fault_programs import CASES, PATHS, WALKS, Case, case_of
from invoked_commands import invoke
from run_engines import UNEXPLAINED, evaluator_pipeline, needs_data, staged_pipeline

from kgverify import Columns, Engine, Equality, Limits, Report, Run, Stage, Trace, UserError, Verdict, load_graph
from kgverify import Evaluator as EvaluatorOptions
from kgverify.comparison.compare import Comparer, Options
from kgverify.engines.protocol import ProbedEngine
from kgverify.program.outcomes import STEP_STAGES, DifferenceClass, GoalKind, Origin, Outcome
from kgverify.prover.faults import pool_faults, step_faults  # noqa: F401 - they fill the registry
from kgverify.prover.faults.fault import PLANTERS, Carrier
from kgverify.prover.faults.plant import COMPOSITES, FAULTS, find_carriers, find_faults
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import PAD
from kgverify.ranking.rank import MRR, RANK_TOLERANCE, compute_metrics
from kgverify.runs.run import Pipeline, build_trace, load_policy, reference_pipeline
from kgverify.trace.write.writer import write_again
from kgverify.verification.record import prove_deep
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.verify import verify

EAGER_FAULTS = [name for name in FAULTS if find_carriers(name) != (Carrier.PLAIN,)]
STEP_FAULTS = [name for name, fault in FAULTS.items() if fault.stage in STEP_STAGES]
PLAIN_FAULTS = list(PLANTERS[Carrier.PLAIN])
AMBIGUOUS = {"offset-renaming": {"substituted"}, "overwritten-output": {"foreign", "stale"}}
"""The classes of the faults with another class in their smallest programs, or with two."""


def judge(run: Run, *names: str, slots: int | None = 2, mode: Any = "eager") -> Pipeline:
    return evaluator_pipeline(run, faults=names, mode=mode, device="cpu", slots=slots)


def compare(run: Run, judged: Pipeline, **options: Any) -> Report:
    equality = Equality(determinism=False, minimum={}, **options)
    return verify(run, reference_pipeline(run), judged, effort=UNEXPLAINED, equality=equality).report


def stages_in(report: Report) -> set[str]:
    return {divergence.stage for divergence in report.divergences}


@pytest.mark.sample(14, deep=14)
@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "eager") for name in EAGER_FAULTS), *((name, "plain") for name in PLAIN_FAULTS)]
)
def test_a_fault_is_found_in_its_stage(name: str, mode: str) -> None:
    case, fault = case_of(name), FAULTS[name]
    run = case.run()
    report = compare(run, judge(run, name, mode=mode, slots=case.slots if mode == "eager" else None))
    assert report.verdict is Verdict.DIVERGE
    assert stages_in(report) == {fault.stage.value}
    assert {cause.kind.value for cause in report.causes} == AMBIGUOUS.get(name, {fault.expected_kind.value})
    assert report.environment.actual.faults == (name,)
    assert report.environment.expected.faults == ()


@pytest.mark.sample(4, deep=8)
@pytest.mark.parametrize("case", dict.fromkeys((WALKS, *CASES.values())))
def test_without_a_fault_nothing_is_found(case: Case) -> None:
    run = case.run()
    assert compare(run, judge(run, slots=case.slots)).verdict is Verdict.AGREE


class Silent:
    """An engine without its probe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.info = engine.info

    def prove(self, *given: Any) -> Columns:
        return self._engine.prove(*given)

    def step(self, *given: Any) -> Columns:
        return self._engine.step(*given)


@pytest.mark.sample(3, deep=8)
@pytest.mark.parametrize("name", STEP_FAULTS)
def test_the_stage_of_an_engine_that_shows_none_is_inferred_from_its_step(name: str) -> None:
    case = case_of(name)
    run = case.run()
    judged = judge(run, name, slots=case.slots)
    engine = Silent(judged.engine)
    assert not isinstance(engine, ProbedEngine)
    first = compare(run, judged._replace(engine=engine)).divergences[0]
    # Without outputs of stages, an order of rules and facts is that of `resolve`, as docs/verdicts.md says.
    assert first.stage == ("resolve" if name == "facts-before-rules" else FAULTS[name].stage)
    if first.field.startswith(("steps.", "resolvents.")) and first.stage != "advance":
        assert not first.is_replayed
        assert "inferred from its step" in first.evidence
        assert first.confidence <= 0.7


def record_deep(run: Run, pipeline: Pipeline, path: Path) -> Path:
    trace = build_trace(run, pipeline.engine, prove_deep(pipeline.engine, pipeline.draw_for(run)), None)
    write_again(replace(trace, header=msgspec.structs.replace(trace.header, level="deep")), path)
    return path


@pytest.mark.sample(1, deep=4)
@pytest.mark.parametrize("name", ["overwritten-output", *{FAULTS[name].stage: name for name in EAGER_FAULTS}.values()])
def test_recorded_stages_name_the_stage_that_a_replay_names(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    run = case.run()
    expected, actual = reference_pipeline(run), judge(run, name, slots=case.slots)
    paths = record_deep(run, expected, tmp_path / "e.h5"), record_deep(run, actual, tmp_path / "a.h5")
    live, recorded = (
        {(each.candidate, each.step): each.stage for each in report.divergences if each.step >= 0}
        for report in (compare(run, actual), compare_recorded(*paths).report)
    )
    assert recorded == live


UNKNOWN = (
    "resolvents.origin_kind",
    "resolvents.origin",
    "resolvents.score",
    "steps.dropped_atoms",
    "steps.dropped_resolvents",
    "candidates.is_limited",
    "candidates.log_probability",
)
OTHERWISE = {
    # Inferred from results, the stage that puts rules before facts is `resolve`.
    "facts-before-rules": {("resolve", "reordered")},
    # A resolvent without atoms is malformed unless it is a proof.
    "gap-after-pruning": {("prune", "missing"), ("prune", "malformed")},
    # Its smallest program shows it no different from a fault of another stage.
    "max-atoms-off-by-one": {("match_rules", "missing")},
}


def judge_findings(name: str, expected: Trace, actual: Trace) -> Iterator[bool]:
    """Say of each wrong step whether its stage and class are right."""
    comparer = Comparer(expected, actual, Options(explains=True))
    comparison = comparer.compare()
    fault = FAULTS[name]
    for each, finding in zip(comparison.divergences, comparer.findings, strict=True):
        if not each.field.startswith("resolvents."):
            continue
        views = comparer.views[each.candidate, each.step]
        has_proof = [any(r.kind == GoalKind.TRUE for r in view.resolvents) for view in views]
        right = OTHERWISE.get(name, {(fault.stage.value, fault.expected_kind.value)})
        if has_proof[0] != has_proof[1]:
            # Where more than one stage can have made the difference, `close` is named.
            right = {(stage, "proof_lost" if has_proof[0] else "false_proof") for stage in ("close", fault.stage.value)}
        yield (each.stage, finding.kind.value) in right


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in STEP_FAULTS
        if FAULTS[name].stage not in (Stage.SCORE, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)
    ],
)
def test_the_stage_of_a_fault_follows_from_goals_and_successors(name: str) -> None:
    case = case_of(name)
    run = case.run()
    traces = []
    for pipeline in (reference_pipeline(run), judge(run, name, slots=case.slots)):
        trace = build_trace(run, pipeline.engine, pipeline.engine.prove(pipeline.draw_for(run)), None)
        traces.append(replace(trace, fields=trace.fields - set(UNKNOWN)))
    findings = list(judge_findings(name, *traces))
    assert findings
    assert all(findings)


SOUND = Stages(SCORES["shortest"])
GROWTH = Case(
    "e(a, b) e(b, c)\ng(X, Y) <- g(Y, X), k(X, Z)\ng(X, Y) <- e(X, Z), k(Z, Y)",
    "g(a, c) g(b, c)",
    Limits(max_depth=8, max_atoms=4),
)
VARIABLES = Case("e(a, b)\ng(X, Y) <- k(A, B), k(C, D), k(E, F), k(G, H), k(X, Y)", "g(a, c)")


def forget_full_goals(tables: Any, atoms: Any, *given: Any) -> Any:
    return SOUND.revisit(tables, atoms, *given) & (atoms[:, -1, 0] == PAD)


def forget_visited(derivations: Any, *given: Any) -> Any:
    return SOUND.advance(derivations, *given)._replace(visited=derivations.visited)


def forget_last_of_full_goal(tables: Any, items: Any, head: Any, goal: Any, offset: int) -> Any:
    atoms = SOUND.resolve(tables, items, head, goal, offset).clone()
    atoms[goal[:, -1, 0] != PAD, -1] = PAD
    return atoms


def number_variables_in_three_bits(atoms: Any) -> Any:
    named = SOUND.rename(atoms)
    return named.where((named >= -7) | (named == PAD), 0)


@pytest.mark.parametrize(
    ("case", "stage", "wrong", "is_silent"),
    [
        (WALKS._replace(limits=Limits(max_atoms=1)), "revisit", forget_full_goals, False),
        (WALKS, "advance", forget_visited, False),
        (GROWTH, "resolve", forget_last_of_full_goal, True),
        # All resolvents have the right length, and those of a goal as long as the limit allows are dropped.
        (GROWTH._replace(program=GROWTH.program.split("g(X, Y) <- e")[0]), "resolve", forget_last_of_full_goal, True),
        (VARIABLES, "rename", number_variables_in_three_bits, True),
        # The resolvent is as long as the limit allows.
        (VARIABLES._replace(limits=Limits(max_atoms=5)), "rename", number_variables_in_three_bits, True),
    ],
)
def test_a_fault_at_an_exact_size_or_in_the_state_is_found_in_its_stage(
    case: Case, stage: str, wrong: Any, is_silent: bool
) -> None:
    run = case.run()
    judged = staged_pipeline(run, SOUND._replace(**{stage: wrong}), slots=2)
    report = compare(run, judged._replace(engine=Silent(judged.engine)) if is_silent else judged)
    assert {(each.stage, each.is_replayed) for each in report.divergences if not is_silent} <= {(stage, True)}
    assert stages_in(report) == {stage}


class WithGaps(Silent):
    """An engine that lists resolvents of no clause: in every slot, or only in the first ones of each batch."""

    num_slots = np.inf

    def prove(self, *given: Any) -> Columns:
        return self._spoil(super().prove(*given))

    def step(self, *given: Any) -> Columns:
        return self._spoil(super().step(*given))

    def _spoil(self, columns: Columns) -> Columns:
        owner = np.repeat(np.arange(len(columns.candidates.num_steps)), columns.candidates.num_steps)
        slot = np.repeat(owner, columns.steps.num_resolvents)
        is_gap = (slot < self.num_slots) & (columns.resolvents.kind == GoalKind.GOAL)
        kinds = np.where(is_gap, np.uint8(Origin.NONE), columns.resolvents.origin_kind)
        return columns._replace(resolvents=columns.resolvents._replace(origin_kind=kinds))


@pytest.mark.parametrize(("num_slots", "stage"), [(1, "recycle"), (np.inf, "limit")])
def test_resolvents_of_no_clause_are_put_there_by_limit_or_by_recycle_if_they_depend_on_the_slot(
    num_slots: float, stage: str
) -> None:
    run = WALKS._replace(num_corruptions=0).run()
    judged = judge(run)
    engine = WithGaps(judged.engine)
    engine.num_slots = num_slots
    assert stages_in(compare(run, judged._replace(engine=engine))) == {stage}


@pytest.mark.parametrize("place", [0, 49, 50, 59])
def test_exactly_what_needs_a_fact_beyond_the_first_fifty_is_lost(place: int) -> None:
    facts = " ".join(f"edge(start, m{i})" for i in range(60))
    case = Case(f"{facts} last(m{place}, end)\npath(X, Y) <- edge(X, Z), last(Z, Y)", "path(start, end)")
    run = case.run()
    report = compare(run, judge(run, "fact-cap"))
    assert report.verdict is (Verdict.DIVERGE if place >= 50 else Verdict.AGREE)
    if place >= 50:
        cause = report.first_cause
        assert (cause.stage, cause.is_replayed, cause.step) == ("match_facts", True, 1)
        assert cause.goal == "edge(start, X0), last(X0, end)"
        assert cause.expected == [f"fact edge(start, m{i})" for i in range(50, 60)]
        assert cause.actual == ["nothing more"]


def test_in_lockstep_every_wrong_step_is_listed_under_its_own_candidate() -> None:
    """Two faults of one derivation, the second no consequence of the first."""
    early = " ".join(f"edge(f{i}, g{i})" for i in range(50))
    rule = "path(X, Y) <- edge(X, Z), edge(Z, W), last(W, Y)"
    run = Case(f"{early} edge(a, b) edge(b, c) last(c, d)\n{rule}", "path(f1, d) path(a, d)", num_corruptions=2).run()
    report = compare(run, judge(run, "fact-cap", slots=4), lockstep=True)
    candidates = reference_pipeline(run).draw_for(run)
    symbols = run.graph.program.symbols
    for each in report.divergences:
        p, a, b = candidates.atom[each.candidate].tolist()
        assert each.atom == f"{symbols.predicates[p]}({symbols.constants[a]}, {symbols.constants[b]})"
        assert each.query == candidates.query[each.candidate]
    steps = [(each.candidate, each.step) for each in report.divergences]
    assert len({*steps}) == len(steps) > len({candidate for candidate, _ in steps})
    assert len(compare(run, judge(run, "fact-cap", slots=4)).divergences) < len(steps)


@pytest.mark.deep
@pytest.mark.data
@needs_data
def test_on_family_the_lost_facts_are_named_with_their_lines_and_v10_proves_nothing() -> None:
    run = Run(load_graph("family"), num_queries=10, num_corruptions=2)
    report = compare(run, judge(run, "fact-cap", slots=128))
    assert stages_in(report) == {"match_facts"}
    cause = report.first_cause
    assert cause.expected
    assert all("[train.txt:" in fact for fact in cause.expected)
    pipeline = judge(run, "v10", slots=16)
    outcomes = [each.engine.prove(each.draw_for(run)).candidates.outcome for each in (judge(run), pipeline)]
    assert [bool((outcome == Outcome.PROVED).any()) for outcome in outcomes] == [True, False]


def test_faults_compose_in_order_and_each_once() -> None:
    names = [fault.name for fault in find_faults(["last-argmax", "v10", "fact-cap", "last-argmax"])]
    assert names == ["last-argmax", *COMPOSITES["v10"].parts]
    run = WALKS.run()
    both = judge(run, "rule-cap", "sticky-outcome", slots=WALKS.slots)
    assert both.engine.info.faults == ("rule-cap", "sticky-outcome")
    assert {"match_rules", "recycle"} <= stages_in(compare(run, both, lockstep=True))
    for names in (EAGER_FAULTS, EAGER_FAULTS[::-1]):
        pipeline = judge(run, *names, slots=3)
        assert len(pipeline.engine.prove(pipeline.draw_for(run)).candidates.query)


def test_the_catalogue_says_of_each_fault_what_a_reader_needs() -> None:
    assert set().union(*PLANTERS.values()) == FAULTS.keys(), (
        "a fault is an entry of kgverify/prover/faults/catalogue.toml, and a function of a module *_faults.py beside it"
    )
    assert {*Stage} - {fault.stage for fault in FAULTS.values()} == {Stage.SHARD, Stage.SELECT, Stage.METRIC}, (
        "add a fault of a new stage to kgverify/prover/faults/catalogue.toml"
    )
    for name, fault in FAULTS.items():
        assert name == fault.name
        assert all((fault.breaks, fault.seen_in, fault.needs))
        assert fault.expected_kind is not DifferenceClass.UNCLASSIFIED
    assert {part for composite in COMPOSITES.values() for part in composite.parts} <= FAULTS.keys()
    assert not COMPOSITES.keys() & FAULTS.keys()


@pytest.mark.parametrize(
    ("name", "limits", "mode", "message"),
    [
        ("one-draw", Limits(), "plain", "follows one"),
        ("one-draw", case_of("one-draw").limits, "eager", "mode 'eager' does not carry"),
        ("rule-cap", case_of("one-draw").limits, "plain", "mode 'plain' does not carry"),
    ],
)
def test_a_fault_is_refused_where_it_cannot_be_planted(name: str, limits: Limits, mode: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        judge(PATHS._replace(limits=limits).run(), name, mode=mode, slots=None)


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ("first-compile", "did you mean 'first-compiled'?"),
        ("fact-cup", "did you mean 'fact-cap'?"),
        ("zzz", "choose one that `kgverify diff --fault list` shows"),
    ],
)
def test_an_unknown_fault_is_refused_with_the_nearest_among_faults_and_composites(wrong: str, fix: str) -> None:
    with pytest.raises(UserError, match=f"unknown fault '{wrong}'") as caught:
        EvaluatorOptions(faults=wrong)
    assert caught.value.fix == fix


def test_the_list_names_every_fault_and_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['kgverify', 'diff', '--fault', 'list', '--json', '-']\n"
        "from kgverify.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False"
    listed = msgspec.json.decode(done.stdout)
    assert [each["name"] for each in listed["faults"]] == list(FAULTS)
    assert [each["name"] for each in listed["composites"]] == list(COMPOSITES)
    assert "stale-resolvents" in done.stderr


# A metric that fell, its causes, and what each repair brings.

SHIPPED = "diff --policy trained --queries 24 --corruptions 4 --mode eager --device cpu --no-determinism"


def report_on(faults: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Return the report as data and as text. The shares add up to the loss that the metrics show."""
    path = folder / "report.json"
    done = invoke([*SHIPPED.split(), "--fault", faults, "--json", str(path), *options])
    assert done.exit_code == 1, done.output
    report = msgspec.json.decode(path.read_bytes())
    attribution, metrics = report["attribution"], report["metrics"]
    lost = metrics["expected"][MRR] - metrics["actual"][MRR]
    assert sum(each["share"] for each in attribution["shares"]) == pytest.approx(lost, abs=1e-12)
    assert {each["cause"] for each in attribution["shares"]} == set(range(len(report["causes"])))
    return report, re.sub(r"\s+", " ", done.output)


def causes_of(report: dict[str, Any]) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """Return candidates, lost MRR and the MRR if repaired alone, for each stage, class and situation."""
    shares = {share["cause"]: share for share in report["attribution"]["shares"]}
    return {
        (cause["stage"], cause["kind"], cause["situation"]): (
            cause["num_candidates"],
            f"{shares[i]['share']:.4f}",
            f"{shares[i]['repaired']:.4f}",
        )
        for i, cause in enumerate(report["causes"])
    }


@pytest.mark.deep
def test_the_first_compiled_evaluator_has_three_causes_and_the_report_separates_them(tmp_path: Path) -> None:
    report, printed = report_on("first-compiled", tmp_path, "--limits", "max_resolvents=3")
    shares = "match_facts explains 0.2718, rank explains 0.1506, close explains 0.0116 of the 0.4340 MRR lost"
    assert "first divergence: match_facts at step 1" in printed
    assert shares in printed
    assert "mean_reciprocal_rank 0.8486 -> 0.4146 0.8160 -> 0.3910 0.8812 -> 0.4382" in printed
    # Repairing any one leaves most of the loss, and the ranking alone even adds to it.
    assert causes_of(report) == {
        ("close", "outcome", "a false proof"): (4, "0.0116", "0.4181"),
        ("match_facts", "missing", ""): (198, "0.2718", "0.5271"),
        ("rank", "rank", ""): (27, "0.1506", "0.4076"),
    }


@pytest.mark.deep
def test_at_the_default_limit_a_fault_of_ranking_is_found_though_it_changes_no_rank(tmp_path: Path) -> None:
    report, _ = report_on("first-compiled", tmp_path)
    assert {cause["stage"] for cause in report["causes"]} == {"match_facts", "rank"}


@pytest.mark.deep
def test_each_set_of_repairs_of_the_first_compiled_evaluator_has_its_metric() -> None:
    graph, limits = load_graph("countries"), Limits(max_resolvents=3)
    run = Run(graph, limits, load_policy("trained", graph, limits, 0), num_queries=24, num_corruptions=4)
    parts = COMPOSITES["first-compiled"].parts
    metrics = {}
    for faults in (each for num in range(len(parts) + 1) for each in combinations(parts, num)):
        pipeline = judge(run, *faults, slots=None)
        candidates = pipeline.engine.prove(pipeline.draw_for(run)).candidates
        metrics[faults] = round(compute_metrics(pipeline.rank(candidates, run.triples, RANK_TOLERANCE))[MRR], 4)
    cap, collision, push = "fact-cap", "scatter-collision", "no-push-down"
    assert metrics == {
        (cap, collision, push): 0.4146,
        (collision, push): 0.4545,
        (cap, push): 0.4181,
        (cap, collision): 0.4076,
        (push,): 0.5358,
        (collision,): 0.5931,
        (cap,): 0.4181,
        (): 0.8486,
    }
