"""The weights that come with kgverify, and the command that makes such weights."""

import os
import re
import shlex
import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from run_engines import UNEXPLAINED
from warm_commands import run_shell

from kgverify import Equality, Limits, UserError, Verdict, load_graph
from kgverify.engines.policy import check_policy, read_policy
from kgverify.prover.training.train import train_policy
from kgverify.ranking.rank import MRR, RANK_TOLERANCE, compute_metrics
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, load_policy, reference_pipeline
from kgverify.verification.verify import verify

WEIGHTS = resources.files("kgverify.engines.weights")
DOCUMENTED = re.findall(
    r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", WEIGHTS.joinpath("README.md").read_text(), re.MULTILINE
)


def shipped_run(num_queries: int, num_corruptions: int) -> Run:
    graph = load_graph("countries")
    policy = load_policy("trained", graph, Limits(), 0)
    return Run(graph, policy=policy, num_queries=num_queries, num_corruptions=num_corruptions)


def test_the_shipped_weights_fit_the_embedded_graph_and_are_small():
    run = shipped_run(1, 0)
    check_policy(run.policy, run.graph.program, run.limits)
    assert WEIGHTS.joinpath("countries.safetensors").stat().st_size < 300_000


@pytest.mark.parametrize("row", DOCUMENTED, ids=[row[0] for row in DOCUMENTED])
def test_the_reference_reaches_the_documented_metrics(row: tuple[str, ...]):
    run = shipped_run(24, int(row[0]))
    pipeline = reference_pipeline(run)
    candidates = pipeline.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    columns = pipeline.engine.prove(candidates)
    metrics = compute_metrics(pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE))
    found = [metrics[f"{side}.realistic.mean_reciprocal_rank"] for side in ("head", "tail", "both")]
    assert [f"{value:.3f}" for value in found] == list(row[1:])


def test_two_sizes_are_documented():
    assert [row[0] for row in DOCUMENTED] == ["4", "50"]


def test_the_engines_agree_with_the_trained_policy():
    run = shipped_run(3, 4)
    judged = evaluator_pipeline(run, mode="eager", device="cpu", slots=32)
    report = verify(
        run, reference_pipeline(run), judged, effort=UNEXPLAINED, equality=Equality(determinism=False)
    ).report
    assert report.verdict is Verdict.AGREE
    assert report.metrics.expected == report.metrics.actual


@pytest.mark.deep
def test_the_fact_cap_costs_the_trained_policy_more_than_three_tenths():
    run = shipped_run(24, 4)
    judged = evaluator_pipeline(run, faults=["fact-cap"], mode="eager", device="cpu", slots=128)
    report = verify(
        run, reference_pipeline(run), judged, effort=UNEXPLAINED, equality=Equality(determinism=False)
    ).report
    assert report.verdict is Verdict.DIVERGE
    assert report.first_cause.stage == "match_facts"
    assert report.metrics.expected[MRR] >= 0.80
    assert report.metrics.expected[MRR] - report.metrics.actual[MRR] >= 0.30


def test_another_graph_has_no_shipped_weights():
    graph = load_graph("countries")
    with pytest.raises(UserError, match="kgverify ships no trained weights") as raised:
        load_policy("trained", replace(graph, rules=graph.rules[:1]), Limits(), 0)
    assert "kgverify train --graph countries" in raised.value.fix


def run_train(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_shell(f"kgverify train {shlex.join(arguments)}", cwd)


def test_the_command_writes_weights_and_reports_their_training_data(tmp_path: Path):
    done = run_train("-o", "w.safetensors", "--rounds", "1", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"w\.safetensors: [\d,]+ decisions of [\d,]+ proofs \([\d,]+ queries\), loss [\d.]+ nats\n", done.stdout
    )
    check_policy(read_policy(tmp_path / "w.safetensors"), load_graph("countries").program, Limits())
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_path_that_cannot_be_written_is_refused_before_any_training(tmp_path: Path):
    done = run_train("-o", "missing/w.safetensors", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


@pytest.mark.data
@pytest.mark.exhaustive
@pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set")
def test_on_the_published_graph_training_reaches_four_fifths_and_the_fact_cap_takes_three_tenths():
    graph = load_graph("countries_s3")
    run = Run(graph, policy=train_policy(graph, seed=0).policy, num_queries=24, num_corruptions=4)
    judged = evaluator_pipeline(run, faults=["fact-cap"], mode="eager", device="cpu", slots=128)
    report = verify(
        run, reference_pipeline(run), judged, effort=UNEXPLAINED, equality=Equality(determinism=False)
    ).report
    assert report.metrics.expected[MRR] >= 0.80
    assert report.metrics.expected[MRR] - report.metrics.actual[MRR] >= 0.30
