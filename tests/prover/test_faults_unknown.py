"""Faults of the catalogue in traces that hold goals and successors alone: stage and class must follow from these.

The rules of the inference come from the semantics, and were first measured on other provers. This is the guard against rules
that fit only those.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
import pytest
from fault_programs import case_of
from run_engines import UNEXPLAINED

from kgverify import Engine, Equality, Stage
from kgverify.comparison.compare import Comparer, Options
from kgverify.laws import draw_problems
from kgverify.program.outcomes import STEP_STAGES, GoalKind
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, build_trace, reference_pipeline
from kgverify.testing.problems.merge import merge
from kgverify.trace.model.columns import Columns
from kgverify.trace.model.trace import Trace
from kgverify.verification.verify import verify

UNKNOWN = (
    "resolvents.origin_kind",
    "resolvents.origin",
    "resolvents.score",
    "steps.dropped_atoms",
    "steps.dropped_resolvents",
    "candidates.is_limited",
    "candidates.log_probability",
)
STEP_FAULTS = [
    name
    for name, fault in FAULTS.items()
    if fault.stage in STEP_STAGES and fault.stage not in (Stage.SCORE, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)
]
"""The faults whose steps differ in their resolvents."""

OTHERWISE = {
    # Inferred from results, the stage that puts rules before facts is `resolve`.
    "facts-before-rules": {("resolve", "reordered")},
    # A resolvent without atoms is malformed unless it is a proof.
    "gap-after-pruning": {("prune", "missing"), ("prune", "malformed")},
}

MISTAKEN = {"max-atoms-off-by-one": "match_rules"}
"""The faults whose smallest program shows them no different from one of another stage."""


def record(run: Run, pipeline: Pipeline) -> Trace:
    trace = build_trace(run, pipeline.engine, pipeline.engine.prove(pipeline.draw_for(run)), None)
    return replace(trace, fields=trace.fields - set(UNKNOWN))


def judge(name: str, expected: Trace, actual: Trace) -> Iterator[bool]:
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
            right = {(name, "proof_lost" if has_proof[0] else "false_proof") for name in ("close", fault.stage.value)}
        yield (each.stage, finding.kind.value) in right


@pytest.mark.sample(8, deep=8)
@pytest.mark.parametrize("name", STEP_FAULTS)
def test_the_stage_of_a_fault_follows_from_goals_and_successors(name: str):
    case = case_of(name)
    run = case.run()
    faulty = evaluator_pipeline(run, faults=[name], mode="eager", device="cpu", slots=case.slots)
    judged = list(judge(name, record(run, reference_pipeline(run)), record(run, faulty)))
    assert judged
    assert all(judged) is (name not in MISTAKEN)


class Reticent:
    """An engine that does not know which clauses made its resolvents, nor their scores."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.info = msgspec.structs.replace(engine.info, unknown=UNKNOWN)

    def prove(self, *given: Any) -> Columns:
        return self._engine.prove(*given)

    def step(self, *given: Any) -> Columns:
        return self._engine.step(*given)


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize(
    ("name", "stage", "kind"),
    [
        ("last-fact-lost", "match_facts", "missing"),
        ("rest-not-substituted", "resolve", "substituted"),
        ("any-atom-proves", "close", "false_proof"),
        ("no-revisit-check", "revisit", "extra"),
    ],
)
def test_an_engine_without_origins_is_judged_by_content(name: str, stage: str, kind: str, lockstep: bool):
    case = case_of(name)
    run = case.run()
    judged = evaluator_pipeline(run, faults=[name], mode="eager", device="cpu", slots=case.slots)
    judged = judged._replace(engine=Reticent(judged.engine))
    report = verify(
        run,
        reference_pipeline(run),
        judged,
        effort=UNEXPLAINED,
        equality=Equality(lockstep=lockstep, determinism=False),
    ).report
    causes = {(cause.stage, cause.kind.value): cause.num_divergences for cause in report.causes}
    assert (stage, kind) in causes
    assert report.causes[0].kind.value in (kind, "proof_lost")
    if not lockstep:
        assert causes.keys() <= {(stage, kind), (stage, "proof_lost"), ("close", "proof_lost")}


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [11, 77, 1234])
def test_in_random_programs_the_stage_of_a_fault_is_mostly_right(seed: int):
    counts: Counter[bool] = Counter()
    for problem in islice(draw_problems(seed), 40):
        merged = merge([problem])
        if len(merged.run.graph.program.facts) > 40:
            continue
        expected = record(merged.run, merged.expected)
        for name in STEP_FAULTS:
            faulty = evaluator_pipeline(merged.run, faults=[name], mode="eager", device="cpu", slots=3)
            counts.update(judge(name, expected, record(merged.run, merged.with_unranked(faulty))))
    assert counts.total() > 300
    assert counts[True] >= 0.9 * counts.total(), counts
