"""The evaluator's arithmetic: it has no findings, and faults planted in a stage are found."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.command_script import run_words
from benchmarks.numerics.__main__ import main
from benchmarks.numerics.choose_stage import audit_choose
from benchmarks.numerics.evaluator import audit_evaluator, audit_score_batches, name_goal
from benchmarks.numerics.precision_ladder import (
    ChoiceStates,
    climb_precisions,
    collect_choice_states,
    compare_choices,
    find_choices,
    score_states,
)
from benchmarks.numerics.products import (
    PrecisionScore,
    make_narrow_product,
    make_score,
    multiply_as_tf32,
    round_mantissa,
)
from kgverify.audit.report import ReportBuilder
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution.device import products_set_to
from kgverify.prover.layout import choose_layout
from kgverify.prover.stages.choose import (
    SCORES,
    Parameters,
    build_parameters,
    choose,
    score_shortest,
    score_two_tower,
)
from kgverify.prover.stages.recycle import recycle
from kgverify.prover.stages.stage_functions import build_stages
from kgverify.prover.state import NO_CANDIDATE, OPEN, Choices, Derivations, Pool
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.run import Run, load_policy
from kgverify.trace.model.columns import CandidateSet

CPU = torch.device("cpu")
GRAPH = load_graph("countries")
RUN = Run(GRAPH, policy=load_policy("two_tower", GRAPH, Limits(), 0), num_queries=2, num_corruptions=3)


@pytest.fixture(scope="module")
def candidates() -> CandidateSet:
    return draw_candidates(RUN.graph, RUN.split, RUN.queries, RUN.num_corruptions, RUN.seed)


@pytest.fixture(scope="module")
def engine() -> CompiledEngine:
    layout = choose_layout(RUN.limits, slots=16, pool=16)
    return CompiledEngine(GRAPH.program, RUN.limits, RUN.policy, mode="eager", device="cpu", layout=layout)


@pytest.fixture(scope="module")
def states(engine: CompiledEngine, candidates: CandidateSet) -> ChoiceStates:
    return collect_choice_states(engine.prove(candidates), RUN.limits.max_atoms)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_choose_is_the_semantics_on_ties_at_every_place_eager_and_compiled():
    look = ReportBuilder()
    audit_choose(look, device=CPU)
    assert not look.findings
    assert not look.unmeasured
    assert look.measures["choices_planted"] > 30


def choose_by_topk(kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
    return choose(kind, num_resolvents, score)._replace(choice=score.topk(1, 1).indices[:, 0])


def choose_last(kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
    last = score.shape[1] - 1 - score.flip(1).argmax(1)
    return choose(kind, num_resolvents, score)._replace(choice=last)


def choose_passing_over_nan(kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
    return choose(kind, num_resolvents, score.nan_to_num(nan=0.0))


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        (choose_by_topk, "planted steps differ"),
        (choose_last, "planted steps differ"),
        (choose_passing_over_nan, "are NaN"),
    ],
)
def test_a_choose_that_relies_on_another_order_is_found(stage, says: str):
    look = ReportBuilder()
    audit_choose(look, stage, device=CPU, mode=None)
    (finding,) = look.findings
    assert says in finding.finding
    assert finding.where == "choose"


def test_the_states_are_those_that_the_engine_scored(engine: CompiledEngine, states: ChoiceStates, candidates):
    columns = engine.prove(candidates)
    wanted = np.repeat(columns.steps.num_resolvents > 1, columns.steps.num_resolvents.astype(np.int64))
    parameters = build_parameters(RUN.policy, CPU, torch.float32)
    scores = score_states(score_two_tower, parameters, states, CPU)
    np.testing.assert_allclose(scores, columns.resolvents.score[wanted], atol=1e-5)
    best, _, _ = find_choices(scores, states)
    chosen = columns.steps.choice[columns.steps.num_resolvents > 1]
    assert (best - states.first[:-1]).tolist() == chosen.tolist()
    assert name_goal(GRAPH.program, states.goal[0]).startswith("locatedInCR(")


def test_no_choice_of_a_run_lies_beyond_its_bound_in_any_precision(states: ChoiceStates):
    look = ReportBuilder()
    rungs = climb_precisions(RUN.policy, states, CPU, str, look, max_atoms=RUN.limits.max_atoms)
    assert not look.findings
    assert [rung.precision for rung in rungs] == ["fp64", "fp32", "bf16x3", "tf32", "fp16", "bf16"]
    assert {rung.num_beyond for rung in rungs} == {0}
    errors = [rung.largest_error for rung in rungs]
    assert errors[0] == 0 < errors[1] < errors[2] < errors[3] < errors[5]
    assert rungs[-1].num_close > 0
    assert "emulated" in look.unmeasured[0].reason


def score_some_wrongly(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
    """Wrong by 10 nats where the first atom's ids have an even sum."""
    scores = score_two_tower(parameters, goals, resolvents, slot)
    return torch.where(resolvents[:, 0].sum(-1) % 2 == 0, scores - 10, scores)


def test_flips_are_listed_with_their_gaps_and_those_beyond_the_bound_are_counted(states: ChoiceStates):
    parameters = build_parameters(RUN.policy, CPU, torch.float64)
    exact = score_states(score_two_tower, parameters, states, CPU)
    wrong = score_states(score_some_wrongly, parameters, states, CPU)
    planted = PrecisionScore("planted", "native", score_some_wrongly, parameters)
    rung = compare_choices(planted, states, exact, wrong, 0.01, str, 3)
    assert rung.num_flips >= rung.num_beyond > 0
    assert len(rung.flips) == min(3, rung.num_flips)
    gaps = [flip.gap for flip in rung.flips]
    assert gaps == sorted(gaps, reverse=True)
    assert rung.flips[0].gap > rung.flips[0].bound
    assert rung.flips[0].bound == 0.02
    wide = compare_choices(planted, states, exact, wrong, 100.0, str, 3)
    assert (wide.num_flips, wide.num_beyond) == (rung.num_flips, 0)


def test_a_score_beyond_its_declared_error_is_a_finding(states: ChoiceStates, monkeypatch: pytest.MonkeyPatch):
    parameters = build_parameters(RUN.policy, CPU, torch.float32)
    planted = PrecisionScore("planted", "native", score_some_wrongly, parameters)
    monkeypatch.setattr("benchmarks.numerics.precision_ladder.estimate_score_error", lambda *_: 0.01)
    look = ReportBuilder()
    climb_precisions(RUN.policy, states, CPU, str, look, max_atoms=6, scores=[planted])
    assert [finding.audit for finding in look.findings] == ["precision", "precision"]
    assert "twice the declared error" in look.findings[0].finding


def test_a_policy_without_products_has_no_ladder(states: ChoiceStates):
    look = ReportBuilder()
    policy = load_policy("shortest", GRAPH, Limits(), 0)
    assert climb_precisions(policy, states, CPU, str, look, max_atoms=6) == []
    assert look.sections == {}
    assert "no products" in look.unmeasured[0].reason


def test_rounding_a_mantissa_is_the_rounding_of_bfloat16_where_it_keeps_as_many_bits():
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 1e3
    values = torch.cat((values, torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 1.00390625, 3.4e38])))
    assert torch.equal(round_mantissa(values[:-1], 7), values[:-1].bfloat16().float())
    assert round_mantissa(torch.tensor([torch.nan]), 7).isnan().all()
    assert torch.equal(round_mantissa(values, 23 - 0 - 1)[2:3], round_mantissa(values[2:3], 22))


def test_emulated_products_are_between_float32_and_bfloat16(states: ChoiceStates):
    parameters = build_parameters(RUN.policy, CPU, torch.float32)
    exact = score_states(score_two_tower, build_parameters(RUN.policy, CPU, torch.float64), states, CPU)

    def error(score) -> float:
        return float(np.abs(score_states(score, parameters, states, CPU) - exact).max())

    bf16 = error(make_score(make_narrow_product(torch.bfloat16)))
    assert error(score_two_tower) < error(make_score(multiply_as_tf32)) < bf16


def test_the_evaluator_s_scores_do_not_depend_on_the_batch_beyond_their_error(states: ChoiceStates):
    stages = build_stages(SCORES["two_tower"])
    look = ReportBuilder()
    audit_score_batches(RUN, states, stages, look, CPU, 7e-5)
    assert not look.findings

    def drifting(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
        return score_shortest(parameters, goals, resolvents, slot) + 1e-3 * len(resolvents)

    audit_score_batches(RUN, states, stages._replace(score=drifting), look, CPU, 7e-5)
    (finding,) = look.findings
    assert finding.audit == "batch-size"


def test_settings_and_autocast_around_the_evaluator_change_no_bit(engine: CompiledEngine, candidates: CandidateSet):
    expected = engine.evaluate(candidates).results.log_probability.tobytes()
    with products_set_to("medium"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert engine.evaluate(candidates).results.log_probability.tobytes() == expected
        again = CompiledEngine(GRAPH.program, RUN.limits, RUN.policy, mode="eager", device="cpu", layout=engine.layout)
        assert again.info.score_error == engine.info.score_error
        assert again.evaluate(candidates).results.log_probability.tobytes() == expected


def recycle_into_few_places(pool: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    """Results of different candidates go to one place."""
    reports = (derivations.outcome != OPEN) & (derivations.pool_index != NO_CANDIDATE)
    after, renewed = recycle(pool, derivations)
    place = torch.where(reports, derivations.pool_index % 4, len(pool.query) - 1)
    log_probability = after.log_probability.index_put((place,), derivations.log_probability)
    return after._replace(log_probability=log_probability), renewed


@pytest.mark.deep
def test_a_planted_scatter_is_found_in_the_evaluator_at_its_line_and_nothing_else_is():
    stages = build_stages(SCORES["two_tower"])._replace(recycle=recycle_into_few_places)
    report = audit_evaluator(RUN, device="cpu", mode="eager", stages=stages)
    assert {finding.audit for finding in report.findings} == {"duplicate-scatters"}
    source, first = inspect.getsourcelines(recycle_into_few_places)
    line = first + next(i for i, text in enumerate(source) if "index_put" in text)
    assert report.findings[0].where.endswith(f"test_numerics.py:{line}")


@pytest.mark.deep
def test_the_command_finds_nothing_in_the_evaluator_and_writes_what_it_saw(tmp_path: Path, capsys):
    path = tmp_path / "numerics.json"
    options = [
        "--policy",
        "two_tower",
        "--queries",
        "1",
        "--corruptions",
        "2",
        "--mode",
        "eager",
        "--device",
        "cpu",
        "--json",
        str(path),
    ]
    assert run_words(main, options) == 0
    assert capsys.readouterr().out.startswith("clean   compiled evaluator on countries")
    report = json.loads(path.read_text())
    assert report["findings"] == []
    assert {row["precision"] for row in report["sections"]["precisions"]["rows"]} >= {"fp64", "fp32", "tf32", "bf16"}
    assert report["environment"]["float32_matmul_precision"] == "highest"
