"""Traces of every dialect: they contradict nothing, are judged by their own steps, and compare only with their own kind."""

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import kgverify as kv
from kgverify import Limits, Stage, load_graph
from kgverify.comparison.classify import Finding
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.inference.infer import UNNAMED, follows_inference, name_in_dialect, order_of_stages
from kgverify.comparison.result import Divergence, Level
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.program.limits import FILTERS, OURS, VALUES, DeclaredLimits
from kgverify.program.outcomes import STEP_STAGES, DifferenceClass, GoalKind, Outcome
from kgverify.runs.retake import retake_steps
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.model.consistency import Contradictions
from kgverify.trace.model.trace import Trace


def trace_in(dialect: Dialect, **limits: int) -> Trace:
    run = Run(load_graph("countries"), Limits(dialect=dialect, **limits), num_queries=1, num_corruptions=2)
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    return build_trace(run, pipeline.engine, columns, pipeline.rank_finite(run, columns.candidates))


def any_dialect(rng: random.Random) -> Dialect:
    values = {name: rng.choice(choices) for name, choices in VALUES.items()}
    return Dialect(**values, filters=tuple(rng.sample(FILTERS, rng.randint(3, len(FILTERS)))))


def contradictions_of(trace: Trace) -> list[str]:
    found = Contradictions()
    found.add(trace.columns, trace.header, trace.fields)
    return found.describe()


@pytest.mark.deep
def test_a_trace_of_any_dialect_contradicts_nothing_and_is_judged_by_its_own_steps():
    rng, seen = random.Random(5), set()
    for _ in range(14):
        dialect = any_dialect(rng)
        trace = trace_in(dialect, max_depth=rng.randint(2, 5), max_atoms=2, max_resolvents=rng.randint(1, 6))
        assert contradictions_of(trace) == [], dialect
        # The recorded positions do not say which candidates are positives.
        if dialect.exclusion != "positives_only":
            retaken, num_left = retake_steps(trace, ReferenceEngine, DeclaredLimits())
            compared = Comparer(retaken, trace).compare()
            assert (num_left, compared.divergences, compared.reasons) == (0, (), ()), dialect
        steps, kinds = trace.columns.steps, trace.columns.resolvents.kind
        seen |= {"stop"} if (kinds == GoalKind.STOP).any() else set()
        seen |= {"uncounted"} if (np.diff(steps.depth.astype(int)) == 0).any() else set()
        seen |= {"dropped"} if steps.dropped_atoms.any() else set()
    assert seen == {"stop", "uncounted", "dropped"}


def test_uncounted_steps_of_a_trace_without_depths_are_not_counted():
    trace = trace_in(Dialect(skips_unary=True), max_depth=3)
    depth = trace.columns.steps.depth
    assert (np.diff(depth.astype(int)) == 0).any()
    steps = trace.columns.steps._replace(depth=np.zeros_like(depth))
    without = replace(trace, columns=trace.columns._replace(steps=steps), fields=trace.fields - {"steps.depth"})
    retaken, num_left = retake_steps(without, ReferenceEngine, DeclaredLimits())
    assert num_left == 0
    assert retaken.columns.steps.depth.tolist() == depth.tolist()


def test_an_uncounted_step_contradicts_the_default_dialect():
    trace = trace_in(Dialect(skips_unary=True))
    limits = msgspec.structs.replace(trace.header.limits, dialect=OURS)
    other = replace(trace, header=msgspec.structs.replace(trace.header, limits=limits))
    assert any("depth that does not follow" in each for each in contradictions_of(other))


def test_traces_of_different_dialects_are_compared_only_if_the_user_allows_it():
    expected, actual = trace_in(OURS), trace_in(Dialect(ties="random"))
    reason = "the dialects differ: ties is realistic in the expected dialect and random in the actual one"
    found = Comparer(expected, actual).compare()
    assert (found.verdict.value, found.reasons) == ("INCONCLUSIVE", (reason,))
    allowed = Comparer(expected, actual, Options(equality=kv.Equality(allow_dialects=True))).compare()
    assert (allowed.verdict.value, reason in allowed.notes) == ("AGREE", True)
    free = [trace_in(Dialect(exclusion=each), exclude_query=False) for each in ("always", "never")]
    assert Comparer(*free).compare().verdict.value == "AGREE"


def test_an_unproved_candidate_is_ranked_as_the_dialect_says():
    for unproved, outcomes in (("subtract_100", {"FAILED"}), ("log_probability", {"PROVED"})):
        run = Run(load_graph("countries"), Limits(dialect=Dialect(unproved=unproved)), num_queries=1)
        candidates = trace_in(OURS).columns.candidates
        candidates = candidates._replace(outcome=np.full_like(candidates.outcome, Outcome.FAILED))
        pipeline = reference_pipeline(run)._replace(rank=lambda ranked, *_: ranked)
        ranked = pipeline.rank_in_dialect(run, candidates)
        assert {Outcome(each).name for each in ranked.outcome.tolist()} == outcomes
    with pytest.raises(kv.UserError, match="ranks rest on the default dialect"):
        kv.evaluate("countries", "reference", queries=1, limits=run.limits)


def divergence(stage: str, field: str = "resolvents.atoms") -> Divergence:
    return Divergence(
        candidate=0, atom="", query=0, side="", step=0, stage=stage, field=field, level=Level.OUTCOME, expected=1, actual=2
    )  # fmt: skip


def named(stage: Stage, dialect: Dialect, field: str = "resolvents.atoms") -> tuple[str, str]:
    finding = Finding(DifferenceClass.MISSING, "seen", 0.9)
    ((one,), (why,)) = name_in_dialect([divergence(stage.value, field)], [finding], dialect)
    return one.stage, why.evidence


def test_a_stage_is_named_only_where_its_rules_hold():
    assert named(Stage.REVISIT, OURS) == ("revisit", "seen")
    forgetful = Dialect(filters=("prune", "close"))
    assert named(Stage.MATCH_FACTS, forgetful) == ("match_facts", "seen")
    assert named(Stage.REVISIT, forgetful) == (UNNAMED, "seen; no stage is named: the dialect does not apply revisit")
    assert named(Stage.MATCH_FACTS, Dialect(memory="set"))[0] == UNNAMED
    capped = Dialect(filters=("max_resolvents", "prune", "close"))
    assert named(Stage.LIMIT, capped)[1].endswith("in another order: max_resolvents, prune, close")
    assert named(Stage.PRUNE, capped, "stage.prune")[1].endswith("its filter max_resolvents shows no output of its own")
    swapped = Dialect(filters=("close", "prune", "max_atoms"))
    assert named(Stage.CLOSE, swapped, "stage.close") == ("close", "seen")
    assert (follows_inference(Dialect(is_reversed=True)), follows_inference(swapped)) == (True, False)


def test_stages_are_walked_in_the_order_of_the_dialect():
    assert order_of_stages(OURS) == STEP_STAGES
    walked = order_of_stages(Dialect(filters=("close", "max_atoms", "revisit")))
    assert walked[4:8] == (Stage.CLOSE, Stage.RENAME, Stage.REVISIT, Stage.LIMIT)
