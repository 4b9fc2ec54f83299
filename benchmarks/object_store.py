"""A trace and an evaluation in an object store, against the local disk of the same machine.

    AWS_ENDPOINT_URL=http://127.0.0.1:5055 python benchmarks/object_store.py s3://bucket/bench --folder /tmp --server 4711

The bucket must exist, and credentials be in the environment. Both sides take turns in one run; the least of some repeats.
`raw` is the same file sent and fetched by the store's own client, in one call each, which bounds what kgverify can reach.

A store on the same machine takes its processor's time. So the times of the processor are given too, as far as they can be
had: of this process, and of the store, of which `--server` is the process.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from synthetic_trace import make_steps
from trace_writing import write_shards

import kgverify as kv
from kgverify.files.remote import find_remote, sent_to
from kgverify.trace.files.manifest import MANIFEST
from kgverify.trace.maintain.check import check_trace


class Seconds(NamedTuple):
    """The seconds that work took: of the clock, and of the processor by this process and by the store."""

    clock: float
    own: float
    store: float


def read_clocks(server: psutil.Process | None) -> Seconds:
    store = 0.0 if server is None else sum(server.cpu_times()[:2])
    return Seconds(time.perf_counter(), time.process_time(), store)


def time_sides(
    sides: dict[str, Callable[[], Any]], repeats: int, server: psutil.Process | None
) -> tuple[dict[str, Seconds], dict[str, Any]]:
    """Return the least seconds of each side, and what each returned at last."""
    taken: dict[str, list[Seconds]] = {name: [] for name in sides}
    found: dict[str, Any] = {}
    for _ in range(repeats):
        for name, work in sides.items():
            began = read_clocks(server)
            found[name] = work()
            taken[name].append(Seconds(*(end - begin for begin, end in zip(began, read_clocks(server), strict=True))))
    return {name: Seconds(*map(min, zip(*rows, strict=True))) for name, rows in taken.items()}, found


def show(what: str, best: dict[str, Seconds], num_bytes: int, note: str) -> None:
    local = best["disk"]
    cells = [
        f"{name} {each.clock:.2f} s ({num_bytes / each.clock / 1e6:,.0f} MB/s, {local.clock / each.clock:.2f}x;"
        f" processor {each.own:.2f} s, {local.own / each.own:.2f}x, store {each.store:.2f} s)"
        for name, each in best.items()
    ]
    print(f"{what}: {', '.join(cells)}; {note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="a folder of the store, which is overwritten")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--server", type=lambda text: psutil.Process(int(text)), default=None, metavar="PID")
    options = parser.parse_args()
    trace, raw = find_remote(f"{options.url}/trace.h5"), find_remote(f"{options.url}/raw")
    assert trace is not None
    assert raw is not None
    client = trace.open_store()
    columns = make_steps(options.steps)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        local = Path(name) / "trace.h5"

        def write_local() -> None:
            if local.exists():
                shutil.rmtree(local)
            write_shards(local, [(columns, None)])

        def write_remote() -> None:
            with sent_to(trace, MANIFEST) as path:
                write_shards(path, [(columns, None)])

        write_local()
        (shard,) = local.glob("shard-*.h5")
        num_bytes = shard.stat().st_size
        print(f"one shard of {options.steps:,} steps, {num_bytes / 1e6:,.0f} MB")
        sides = {
            "disk": write_local,
            "store": write_remote,
            "raw put": lambda: client.put_file(str(shard), raw.key),
        }
        best, _ = time_sides(sides, options.repeats, options.server)
        show("written", best, num_bytes, "")
        sides = {
            "disk": lambda: check_trace(local).root,
            "store": lambda: check_trace(trace.url).root,
            "raw get": lambda: len(client.cat_file(raw.key)),
        }
        best, found = time_sides(sides, options.repeats, options.server)
        show("verified", best, num_bytes, f"digests {'equal' if found['disk'] == found['store'] else 'DIFFER'}")
        sides = {
            "disk": lambda: kv.compare(local, local, equality=kv.Equality(minimum="none")).verdict.value,
            "store": lambda: kv.compare(local, trace.url, equality=kv.Equality(minimum="none")).verdict.value,
        }
        best, found = time_sides(sides, options.repeats, options.server)
        show("compared with the disk's", best, num_bytes, f"{found['disk']} and {found['store']}")
        client.rm_file(raw.key)

        # In a new folder each time, so that nothing is resumed.
        turns = iter(range(1000))

        def evaluate(save: str) -> Any:
            given = kv.EvaluationOptions(part_size=128, check=0, minimum="none")
            where = f"{save}-{next(turns)}"
            report = kv.evaluate("countries", "reference", queries=24, corruptions=50, options=given, save=where)
            return report.num_parts, report.metrics

        sides = {"disk": lambda: evaluate(f"{name}/run"), "store": lambda: evaluate(f"{options.url}/run")}
        best, found = time_sides(sides, options.repeats, options.server)
        same = "equal" if found["disk"] == found["store"] else "DIFFERENT"
        seconds = best["store"].clock - best["disk"].clock
        print(
            f"evaluated in {found['disk'][0]} parts: disk {best['disk'].clock:.2f} s, store {best['store'].clock:.2f} s,"
            f" {seconds / found['disk'][0] * 1e3:.0f} ms a part more; metrics {same}"
        )
        for turn in range(next(turns)):
            run = find_remote(f"{options.url}/run-{turn}")
            assert run is not None
            for file in run.list_files():
                client.rm_file(run.join(file).key)


if __name__ == "__main__":
    main()
