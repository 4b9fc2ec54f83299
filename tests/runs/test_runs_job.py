"""A saved run contains its job, from which it is made again."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import kgverify as kv
from kgverify.dialects import ReferenceEngine
from kgverify.runs.engine_makers import EngineSpec, find_factory
from kgverify.runs.job import encode_job, load_run_graph, read_job


def read_written(report: Any, job: kv.Job) -> Any:
    """Return a report as a reader of its file has it, with another job."""
    content = msgspec.json.encode(msgspec.structs.replace(report, job=encode_job(job)))
    return msgspec.json.decode(content, type=type(report))


@pytest.fixture(scope="module")
def report() -> Any:
    return kv.verify("countries", "reference", queries=1, corruptions=1)


def test_a_report_contains_the_whole_job() -> None:
    pytest.importorskip("kgverify.prover.engine")
    given: dict[str, Any] = {
        "queries": kv.Queries(1, corruptions=2, split="valid", seed=3),
        "limits": kv.Limits(max_depth=3),
        "equality": kv.Equality(lockstep=True, score_error="float16", modulo="names,order", minimum={"proved": 0}),
    }
    engine = kv.Evaluator(mode="eager", device="cpu", slots=16, faults="last-fact-lost")
    report = kv.verify("countries", engine, reference=kv.Reference(), **given)
    job = read_job(msgspec.json.decode(msgspec.json.encode(report), type=type(report)))
    expected = EngineSpec(mode="eager", device="cpu", faults=("last-fact-lost",))
    assert job.engines == kv.Engines(expected, EngineSpec("reference"))
    assert job.proofs == kv.Proofs(given["limits"], "shortest")
    assert {"queries": job.queries, "limits": job.proofs.limits, "equality": job.equality} == given
    assert kv.verify(job.source.graph.spec, "reference", **given).run == report.run


def test_a_job_reads_the_files_of_its_graph_again(report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("a\tb\tp\n")
    (tmp_path / "more.txt").write_text("b\tQ1\tp\n")
    (tmp_path / "rules.pl").write_text("p(X,Q1) :- p(X,Y).\np(X,Y) :- q(X).\n")
    options: dict[str, Any] = {"columns": "head,tail,relation", "rule_variables": "graph", "skip_rules": True}
    given = kv.load_graph(train=["train.txt", tmp_path / "more.txt"], rules="rules.pl", **options)
    graph = load_run_graph(read_written(report, kv.Job(kv.Source(given))))
    assert graph.program.symbols.constants == ("a", "b", "Q1")
    assert [rule.clause_head.second for rule in graph.rules] == ["Q1"]
    # A path is not read as a name.
    (tmp_path / "countries").mkdir()
    (tmp_path / "countries" / "train.txt").write_text("a\tp\tb\n")
    sources = kv.Source(Path("countries")), kv.Source("countries")
    graphs = [load_run_graph(read_written(report, kv.Job(source))) for source in sources]
    assert [len(graph.train) for graph in graphs] == [1, 999]


def test_what_was_made_in_python_is_named(report: Any) -> None:
    def local(program: kv.Program, limits: kv.Limits, policy: kv.Policy) -> kv.Engine:
        raise NotImplementedError

    graph = kv.KnowledgeGraph("mine", kv.load_graph("countries").train)
    job = read_job(read_written(report, kv.Job(kv.Source(graph), engines=kv.Engines(local, kv.Reference(jobs=2)))))
    assert job.source.graph.spec == "mine"
    assert job.engines == kv.Engines(EngineSpec(""), EngineSpec("reference"))
    assert job.queries == kv.Queries()
    importable = read_job(read_written(report, kv.Job(engines=kv.Engines(ReferenceEngine)))).engines.engine
    assert importable == EngineSpec(f"{ReferenceEngine.__module__}:{ReferenceEngine.__name__}")
    assert find_factory(importable.name, "engine") is ReferenceEngine


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": {"spec": "-"}}, "standard input"),
        ({"graph": {"train": ["-"]}}, "standard input"),
        ({"graph": {"rules": "s3://bucket/name"}}, "from a URL"),
        ({"queries": {"number": "x"}}, "is not a job of kgverify"),
        ({"engine": 3}, "is not a job of kgverify"),
        ({"code": "import os"}, "is not a job of kgverify"),
    ],
)
def test_an_altered_job_and_a_graph_that_this_machine_does_not_have_are_refused(
    report: Any, changes: dict[str, Any], message: str
) -> None:
    altered = msgspec.structs.replace(report, job={**report.job, **changes})
    with pytest.raises(kv.UserError, match=message):
        load_run_graph(altered) if "graph" in changes else read_job(altered)
