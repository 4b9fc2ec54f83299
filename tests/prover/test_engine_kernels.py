"""The Triton kernels against the stages that they stand in for; without a GPU in Triton's interpreter."""

from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest
import torch
from engine_checks import try_few_clauses_at_a_time

from kgverify import Limits, Problem, UserError, load_graph
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.prover import execution_choice
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution_choice import Demand, choose_evaluation_layout, choose_layout, estimate_bytes
from kgverify.prover.program.tables import build_tables
from kgverify.prover.stages.choose import build_parameters, score_two_tower
from kgverify.prover.tick.tick import empty_derivations, empty_pool, empty_work
from kgverify.prover.tower.launch import PRECISIONS, draw_goals
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, reference_pipeline
from kgverify.testing.checking.check import Checker
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import PolicySpec
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.schema import TraceLevel

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.prover.fused.record import StepLog
from kgverify.prover.fused.ticks import FusedTicks, build_scoring
from kgverify.prover.tower.launch import build_tower_parameters, build_tower_score

X, Y, Z = map(Variable, "XYZ")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize("lockstep", [False, True])
def test_the_fused_kernels_take_the_steps_of_the_reference(lockstep: bool) -> None:
    problems = [replace(problem, policy=PolicySpec("shortest")) for problem in islice(draw_problems(5, 0), 2)]
    problems.append(replace(problems[0], policy=PolicySpec("two_tower")))
    assert not list(Checker(compiled_maker(mode="fused", device=DEVICE.type), lockstep=lockstep).check(problems)[0])


@pytest.mark.deep
def test_every_atom_of_more_than_a_hundred_resolvents_is_recorded() -> None:
    names = [f"c{number}" for number in range(110)]
    of = NamedAtom
    rule = NamedRule(of("r", X, Y), (of("p", X, Z), of("q", Z, Y)))
    problem = Problem(facts=tuple(of("p", "a", name) for name in names), rules=(rule,), unranked=(of("r", "a", "c7"),))
    assert not list(Checker(compiled_maker(mode="fused", device=DEVICE.type)).check([problem])[0])


@pytest.mark.deep
def test_slots_with_more_clauses_than_a_warp_tries_at_once_are_taken_up_by_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kgverify.prover.fused import ticks

    monkeypatch.setattr(ticks, "_WARP", 4)
    try_few_clauses_at_a_time(monkeypatch)
    problems = [replace(problem, policy=PolicySpec("shortest")) for problem in islice(draw_problems(6, 3), 4)]
    assert not list(Checker(compiled_maker(mode="fused", device=DEVICE.type)).check(problems)[0])


@pytest.mark.sample(0, deep=0)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_fused_kernels_choose_as_the_reference_does_in_every_precision(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_choice, "resolve_precision", lambda *_: precision)
    run = small_run("two_tower")
    candidates = reference_pipeline(run).draw_for(run)
    layout = choose_layout(run.limits, slots=4)
    engine = CompiledEngine(run.graph.program, run.limits, run.policy, mode="fused", device=DEVICE.type, layout=layout)
    ticks = engine._ticks
    assert isinstance(ticks, FusedTicks)
    # So that every choice counts as close.
    assert ticks.scoring is not None
    ticks.scoring = ticks.scoring._replace(margin=100.0)
    actual, expected = engine.prove(candidates), reference_pipeline(run).engine.prove(candidates)
    assert actual.steps.choice.tolist() == expected.steps.choice.tolist()
    assert actual.resolvents.atoms.tolist() == expected.resolvents.atoms.tolist()
    evaluation = engine.evaluate(candidates)
    assert evaluation.results.outcome.tolist() == expected.candidates.outcome.tolist()
    num_choices = int((expected.steps.num_resolvents > 1).sum())
    assert num_choices > 0
    assert evaluation.num_rescored == evaluation.num_choices == num_choices


def test_a_fused_tick_that_is_not_available_says_why() -> None:
    graph = load_graph("countries")
    limits = Limits(max_atoms=9)
    with pytest.raises(UserError, match="goals of at most 7 atoms"):
        CompiledEngine(graph.program, limits, make_two_tower(graph.program, limits, seed=1), mode="fused")
    limits = Limits()
    policy = make_two_tower(graph.program, limits, seed=1, hidden=520)
    with pytest.raises(UserError, match="hidden widths"):
        CompiledEngine(graph.program, limits, policy, mode="fused")
    with pytest.raises(UserError, match="a fault in one of the stages"):
        evaluator_pipeline(
            Run(graph, limits, SHORTEST, num_queries=1, num_corruptions=1), faults=["fact-cap"], mode="fused"
        )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_tower_kernel_scores_as_the_stage_does_to_its_precision(precision: str) -> None:
    graph, limits = load_graph("countries"), Limits()
    policy = make_two_tower(graph.program, limits, seed=1, embedding=50, hidden=64, blocks=2)
    goals = draw_goals(policy, limits.max_atoms, 0, DEVICE, 100)
    resolvents = draw_goals(policy, limits.max_atoms, 1, DEVICE, 130)
    slot = torch.arange(130, device=DEVICE) % 100
    exact = score_two_tower(build_parameters(policy, DEVICE, torch.float64), goals, resolvents, slot)
    parameters = build_tower_parameters(policy, precision, DEVICE)
    scores = build_tower_score(precision)(parameters, goals, resolvents, slot)
    bound = {"float32": 1e-5, "bf16x3": 3e-4, "bf16": 0.1, "fp16": 2e-2}[precision]
    assert (scores - exact).abs().max() < bound
    if precision == "bf16":
        assert (scores - exact).abs().max() > 1e-3


def test_a_precision_that_needs_a_gpu_is_refused_without_one() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    graph, limits = load_graph("countries"), Limits()
    policy = make_two_tower(graph.program, limits, seed=1)
    with pytest.raises(UserError, match="needs a CUDA device"):
        CompiledEngine(graph.program, limits, policy, mode="eager", precision="bf16x3")
    with pytest.raises(UserError, match="unknown precision"):
        CompiledEngine(graph.program, limits, policy, mode="eager", precision="fp8")


@pytest.mark.deep
@pytest.mark.parametrize("slots", [3, 64])
def test_an_evaluation_ends_every_candidate_as_a_proof_with_steps_does(slots: int) -> None:
    problems = list(islice(draw_problems(9, 0), 40))
    for problem in problems:
        merged = merge([problem])
        pipeline = compiled_maker()(merged.run, merged.sizes._replace(slots=slots))
        candidates = pipeline.draw_for(merged.run)
        ended = []
        results = pipeline.engine.evaluate(candidates, ended.append).results
        expected = pipeline.engine.prove(candidates).candidates
        assert results.outcome.tolist() == expected.outcome.tolist()
        assert results.is_limited.tolist() == expected.is_limited.tolist()
        np.testing.assert_array_equal(results.log_probability, expected.log_probability)
        assert sum(ended) == len(candidates.query)


def small_run(policy: str) -> Run:
    """A query of countries, with a corruption on each side and steps that choose."""
    graph, limits = load_graph("countries"), Limits(max_depth=5)
    weights = make_two_tower(graph.program, limits, seed=1, embedding=16, hidden=32, blocks=1)
    return Run(graph, limits, weights if policy == "two_tower" else SHORTEST, num_queries=1, num_corruptions=1)


class Fused(NamedTuple):
    """An engine in mode `fused`, with candidates that take more than one pool, and what it proves of them."""

    engine: CompiledEngine
    candidates: CandidateSet
    columns: Columns


@pytest.fixture(scope="module")
def fused() -> Fused:
    run = small_run("shortest")
    candidates = reference_pipeline(run).draw_for(run)
    layout = choose_layout(run.limits, slots=3, pool=3)
    engine = CompiledEngine(run.graph.program, run.limits, run.policy, mode="fused", device=DEVICE.type, layout=layout)
    return Fused(engine, candidates, engine.prove(candidates))


@pytest.mark.exhaustive
def test_digests_without_steps_are_those_of_the_steps(fused: Fused) -> None:
    engine, candidates, columns = fused
    found = engine.evaluate(candidates, has_digests=True).digests
    assert found is not None
    assert found.num_steps.tolist() == columns.candidates.num_steps.tolist()
    for actual, expected in zip(found.digests, compute_digests(columns), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert len(columns.steps.depth) > len(candidates.query) > engine.layout.pool


@pytest.mark.sample(0, deep=0)
@pytest.mark.parametrize("level", list(TraceLevel))
def test_what_is_recorded_pool_by_pool_is_what_is_proved(fused: Fused, level: TraceLevel) -> None:
    engine, candidates, expected = fused
    ended: list[int] = []
    parts = [each.read() for each in engine.record(candidates, ended.append, level=level)]
    assert len(parts) > 1
    assert sum(ended) == len(candidates.query)
    columns = concatenate([part for part, _ in parts])
    sequence = np.concatenate([digests for _, digests in parts if digests is not None])
    np.testing.assert_array_equal(sequence, compute_digests(expected).sequence)
    if level is TraceLevel.DIGESTS:
        for name, found in columns.candidates._asdict().items():
            np.testing.assert_array_equal(found, getattr(expected.candidates, name), name)
        assert len(columns.steps.depth) == len(expected.steps.depth)
        return
    if level is TraceLevel.COMPACT:
        assert not columns.steps.goal_atoms.size
        assert not columns.resolvents.num_atoms.any()
        without = expected.resolvents.num_atoms * 0, expected.resolvents.atoms[:0]
        expected = expected._replace(
            steps=expected.steps._replace(
                num_atoms=expected.steps.num_atoms * 0, goal_atoms=expected.steps.goal_atoms[:0]
            ),
            resolvents=expected.resolvents._replace(num_atoms=without[0], atoms=without[1]),
        )
    for group, other in zip(columns, expected, strict=True):
        for name, found, wanted in zip(group._fields, group, other, strict=True):
            assert found.dtype == wanted.dtype, name
            np.testing.assert_array_equal(found, wanted, name)


def test_stages_record_with_atoms_and_without_digests() -> None:
    run = small_run("shortest")
    candidates = reference_pipeline(run).draw_for(run)
    layout = choose_layout(run.limits, slots=3, pool=3)
    engine = CompiledEngine(run.graph.program, run.limits, run.policy, mode="eager", device="cpu", layout=layout)
    parts = [each.read() for each in engine.record(candidates, level=TraceLevel.DIGESTS)]
    assert {digests for _, digests in parts} == {None}
    columns = concatenate([part for part, _ in parts])
    assert columns.resolvents.atoms.tolist() == engine.prove(candidates).resolvents.atoms.tolist()


def test_digests_without_steps_are_refused_where_ticks_are_not_fused() -> None:
    graph, limits = load_graph("countries"), Limits()
    engine = CompiledEngine(graph.program, limits, SHORTEST, mode="eager", device=DEVICE.type)
    candidates = CandidateSet(np.zeros(1, np.int32), np.zeros(1, np.int8), graph.queries("test")[:1])
    with pytest.raises(UserError, match="only mode `fused`"):
        engine.evaluate(candidates, has_digests=True)


def test_steps_are_taken_out_of_the_log_before_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepLog, "has_room", lambda _: False)
    problem = next(iter(draw_problems(5, 2)))
    problem = replace(problem, policy=PolicySpec("shortest"))
    assert not list(Checker(compiled_maker(mode="fused", device=DEVICE.type)).check([problem])[0])


def test_slots_are_halved_where_limits_make_many_take_more_than_an_engine_may() -> None:
    program, device = load_graph("countries").program, torch.device("cuda")
    for limits in (Limits(max_depth=1000), Limits(max_resolvents=1 << 20)):
        layout = choose_evaluation_layout(program, limits, SHORTEST, device, 1 << 20, Demand(1 << 40))
        assert 1 < layout.slots < 1 << 16
    with pytest.raises(UserError, match="more than 8 GiB"):
        choose_evaluation_layout(
            program, Limits(max_depth=1000), SHORTEST, device, 1 << 20, Demand(1 << 40, slots=1 << 16)
        )


@pytest.mark.parametrize(("hidden", "precision"), [(256, "fp16"), (300, "fp16"), (4, "float32")])
def test_the_estimate_of_fused_ticks_counts_the_features_of_every_precision(hidden: int, precision: str) -> None:
    program, limits, nowhere = load_graph("countries").program, Limits(), torch.device("meta")
    policy = make_two_tower(program, limits, seed=1, embedding=8, hidden=hidden, blocks=1)
    layout = choose_layout(limits, slots=1 << 16, score_window=1 << 16)
    buffers = (
        empty_derivations(layout, limits.max_depth, nowhere),
        empty_work(layout, nowhere),
        empty_pool(layout, nowhere),
    )
    tables = build_tables(program, layout.atoms, nowhere)
    ticks = FusedTicks(tables, limits, layout, build_scoring(precision, policy, nowhere), buffers)
    of_features = ticks._features.nbytes
    wide, narrow = (estimate_bytes(layout, limits, each, is_fused=True) for each in (policy, SHORTEST))
    assert wide - narrow >= of_features > 0
