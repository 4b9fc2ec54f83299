"""A saved run contains its job, from which one function makes it again."""

from pathlib import Path

import msgspec
import pytest

import kgverify as kv
from kgverify import Job, Queries, Reference, load_graph
from kgverify.runs.engine_makers import EngineSpec
from kgverify.runs.job import Engines, Proofs, Source, encode_job, load_run_graph, read_job
from kgverify.verification.save import read_run


def written_in(report, job):
    """Return a report as a reader of its file has it, with another job."""
    content = msgspec.json.encode(msgspec.structs.replace(report, job=encode_job(job)))
    return msgspec.json.decode(content, type=type(report))


@pytest.fixture(scope="module")
def report():
    return kv.verify("countries", "reference", queries=1, corruptions=1)


def test_a_saved_run_contains_the_whole_job(tmp_path):
    pytest.importorskip("kgverify.prover.evaluator", reason="the engine is the compiled one")
    queries = kv.Queries(1, corruptions=2, split="valid", seed=3)
    limits = kv.Limits(max_depth=3)
    equality = kv.Equality(lockstep=True, score_error="float16", modulo="names,order", minimum={"proved": 0})
    kv.verify(
        "countries",
        kv.Evaluator(mode="eager", faults="last-fact-lost"),
        reference=kv.Reference(),
        queries=queries,
        limits=limits,
        equality=equality,
        save=tmp_path / "run",
    )
    job = read_job(read_run(tmp_path / "run").report)
    assert job.engines == Engines(EngineSpec(faults=("last-fact-lost",)), EngineSpec("reference"))
    assert (job.queries, job.proofs, job.equality) == (queries, Proofs(limits, "shortest"), equality)
    again = kv.verify(
        job.source.graph.spec,
        job.engines.engine,
        queries=job.queries,
        limits=job.proofs.limits,
        equality=job.equality,
    )
    assert again.run == read_run(tmp_path / "run").report.run


def test_a_job_reads_the_files_of_its_graph_again(report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("a\tb\tp\n")
    (tmp_path / "more.txt").write_text("b\tQ1\tp\n")
    (tmp_path / "rules.pl").write_text("p(X,Q1) :- p(X,Y).\np(X,Y) :- q(X).\n")
    given = load_graph(
        train=["train.txt", tmp_path / "more.txt"],
        rules="rules.pl",
        columns="head,tail,relation",
        rule_variables="graph",
        skip_rules=True,
    )
    graph = load_run_graph(written_in(report, Job(Source(given))))
    assert graph.program.symbols.constants == ("a", "b", "Q1")
    assert [rule.clause_head.second for rule in graph.rules] == ["Q1"]


def test_a_path_is_not_read_as_a_name(report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "countries").mkdir()
    (tmp_path / "countries" / "train.txt").write_text("a\tp\tb\n")
    assert len(load_run_graph(written_in(report, Job(Source(Path("countries"))))).train) == 1
    assert len(load_run_graph(written_in(report, Job(Source("countries")))).train) == 999


def test_what_was_made_in_python_is_named(report):
    def local(program, limits, policy):
        raise NotImplementedError

    graph = kv.KnowledgeGraph("mine", load_graph("countries").train)
    job = read_job(written_in(report, Job(Source(graph), engines=Engines(local, Reference(jobs=2)))))
    assert job.source.graph.spec == "mine"
    assert job.engines == Engines(EngineSpec(""), EngineSpec("reference"))
    assert job.queries == Queries()


@pytest.mark.parametrize(("spec", "message"), [("-", "standard input"), ("s3://bucket/name", "from a URL")])
def test_the_graph_of_a_stranger_is_a_file_of_this_machine(report, spec, message):
    job = {**report.job, "graph": {"spec": spec}}
    with pytest.raises(kv.UserError, match=message):
        load_run_graph(msgspec.structs.replace(report, job=job))
    for name in ("train", "rules"):
        files = [spec] if name == "train" else spec
        with pytest.raises(kv.UserError, match=message):
            load_run_graph(msgspec.structs.replace(report, job={**job, "graph": {name: files}}))


@pytest.mark.parametrize("change", [{"queries": {"number": "x"}}, {"engine": 3}, {"code": "import os"}])
def test_an_altered_job_is_refused(report, change):
    with pytest.raises(kv.UserError, match="is not a job of kgverify"):
        read_job(msgspec.structs.replace(report, job={**report.job, **change}))
