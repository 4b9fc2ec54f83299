"""Work on a dask cluster: the same results with lost workers, duplicate calls and a restarted scheduler."""

import os
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dask_machines import Machines, start_machines
from run_engines import assert_same_columns, countries_run

import kgverify as kv
from kgverify import UserError
from kgverify.runs import fan_out
from kgverify.runs.fan_out import DaskWorkers, check_address, reference_over
from kgverify.runs.run import reference_pipeline

distributed = pytest.importorskip("distributed", reason="kgverify[distributed] is not installed")
dask = pytest.importorskip("dask")

SMALL: dict[str, Any] = {"queries": 4, "corruptions": 5}


@pytest.fixture(scope="module")
def address() -> Any:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster.scheduler_address


PRIVATE = ("tls://10.0.0.1:8786", "tcp://127.0.0.1:8786", "localhost:8786", "tcp://[::1]:8786", "inproc://a/1")
OPEN = ("tcp://10.0.0.1:8786", "10.0.0.1:8786", "ws://a:1", "tcp://127.0.0.1.example.org:1")


def test_a_connection_that_others_may_hear_needs_the_users_word() -> None:
    for address in PRIVATE:
        check_address(address)
    for address in OPEN:
        with pytest.raises(UserError, match="not encrypted") as caught:
            check_address(address)
        assert "REQUIRE_ENCRYPTION=False" in caught.value.fix
    with dask.config.set({"distributed.comm.require-encryption": False}):
        check_address(OPEN[0])
    for address in ("", "://a", "tls://"):
        with pytest.raises(UserError, match="expected the address"):
            check_address(address)


def test_an_evaluation_and_a_recording_are_the_same_on_a_cluster(address: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "engine": "reference"}
    here = kv.evaluate("countries", **options, options=kv.EvaluationOptions(part_size=8, check=4))
    save = tmp_path / "parts"
    there = kv.evaluate(
        "countries", save=save, **options, options=kv.EvaluationOptions(part_size=8, check=4, scheduler=address)
    )
    assert (there.metrics, there.identity, there.verdict) == (here.metrics, here.identity, here.verdict)
    assert len(list(save.glob("part-*.npz"))) == there.num_parts > 2
    (save / "part-000001.npz").unlink()
    again = kv.evaluate(
        "countries", save=save, **options, options=kv.EvaluationOptions(part_size=8, check=4, scheduler=address)
    )
    assert (again.metrics, again.num_parts_resumed) == (here.metrics, here.num_parts - 1)
    kv.record("countries", tmp_path / "here.h5", **options)
    kv.record("countries", tmp_path / "there.h5", **options, options=kv.RecordingOptions(scheduler=address))
    assert_same_columns(*(kv.open_trace(tmp_path / name).load().columns for name in ("here.h5", "there.h5")))


def test_an_error_of_a_call_is_raised_here(address: str) -> None:
    with DaskWorkers(address) as workers:
        with pytest.raises(UserError, match="no such graph"):
            workers.submit(kv.load_graph, "nowhere").result(60)
        assert workers.submit(sum, [1, 2]).result(60) == 3


def test_a_worker_with_other_code_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DaskWorkers(address) as workers, monkeypatch.context() as changed:
        # What this process sends; its workers are threads, and find their own code.
        code = fan_out.identify_code(()) | {"kgverify/*.h": "other"}
        changed.setattr(fan_out, "_identify", lambda engines: code)
        with pytest.raises(UserError, match=r"has other code: kgverify/\*\.h changed: other there"):
            workers.submit(sum, [1]).result(60)


def test_a_scheduler_that_does_not_answer_and_a_missing_package_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        reference = kv.Reference(scheduler="tcp://127.0.0.1:1")
        kv.verify("countries", "reference", reference=reference, queries=1, corruptions=1)

    monkeypatch.setattr(distributed, "Client", partial(distributed.Client, timeout=0.5))
    with pytest.raises(UserError, match="no scheduler answers"):
        run()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r"pip install 'kgverify\[distributed\]'"):
        run()


def _end_process(mark: str) -> str:
    """End the process of the first worker that comes here."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return "done"
    os._exit(1)


@pytest.mark.deep
def test_a_restarted_scheduler_is_harmless() -> None:
    run = countries_run()
    expected = reference_pipeline(run)
    candidates = expected.draw_for(run)
    columns = expected.engine.prove(candidates)
    with start_machines() as machines:
        machines.start_worker()
        with reference_over(run, scheduler=machines.address) as pipeline:
            assert_same_columns(columns, pipeline.engine.prove(candidates))
            _end_all(machines)
            again = threading.Timer(2, lambda: (machines.start_scheduler(), machines.start_worker()))
            again.start()
            assert_same_columns(columns, pipeline.engine.prove(candidates))
            again.join()


def _end_all(machines: Machines) -> None:
    for process in machines.processes:
        process.kill()
        process.wait()


@pytest.mark.deep
def test_the_work_of_a_lost_worker_is_repeated_and_a_lost_scheduler_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fan_out, "RECONNECT_SECONDS", 0.5)
    with start_machines() as machines:
        machines.start_worker()
        machines.start_worker()
        with DaskWorkers(machines.address) as workers:
            assert workers.submit(_end_process, str(tmp_path / "mark")).result(60) == "done"
            with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
                _end_all(machines)
                with pytest.raises(UserError, match="no scheduler answers"):
                    workers.submit(time.sleep, 0).result(60)


@pytest.mark.deep
def test_certificates_are_required_where_the_scheduler_has_them(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="makes the certificate")
    made = distributed.Security.temporary()
    certificate, key = tmp_path / "machines.crt", tmp_path / "machines.key"
    certificate.write_text(made.tls_ca_file)
    key.write_text(made.tls_scheduler_key)
    files = ("--tls-ca-file", str(certificate), "--tls-cert", str(certificate), "--tls-key", str(key))
    with start_machines(*files, protocol="tls") as machines:
        machines.start_worker()
        with pytest.raises(UserError, match="no scheduler answers"):
            DaskWorkers(machines.address)
        ours = {"ca-file": str(certificate), "client.cert": str(certificate), "client.key": str(key)}
        changed = {f"distributed.comm.tls.{name}": value for name, value in ours.items()}
        with dask.config.set(changed), DaskWorkers(machines.address) as workers:
            assert workers.submit(sum, [1, 2]).result(60) == 3


@pytest.mark.deep
def test_a_campaign_on_a_cluster_finds_what_it_finds_here(address: str, tmp_path: Path) -> None:
    engine, options = kv.Evaluator(mode="eager", device="cpu", faults="fact-cap"), kv.FuzzOptions(minimum="none")
    here = kv.fuzz(engine, examples=6, corpus=tmp_path / "here", options=options)
    options = replace(options, scheduler=address)
    there = kv.fuzz(engine, examples=6, corpus=tmp_path / "there", options=options)
    assert here.num_problems == there.num_problems == 6
    assert [(each.signature, each.num_problems, each.program) for each in there.divergences] == [
        (each.signature, each.num_problems, each.program) for each in here.divergences
    ]
