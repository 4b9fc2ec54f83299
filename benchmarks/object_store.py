"""A trace and an evaluation in an object store, against the local disk of the same machine.

    AWS_ENDPOINT_URL=http://127.0.0.1:5055 python benchmarks/object_store.py s3://bucket/bench --folder /tmp --steps 1000000

The bucket must exist, and credentials be in the environment. Both sides take turns in one run; the least of some repeats.
`raw` is the same file sent and fetched by the store's own client, in one call each, which bounds what kgverify can reach.
"""

import argparse
import importlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from synthetic_trace import make_steps
from trace_writing import write_shards

import kgverify as kv
from kgverify.files.remote import find_remote, sent_to
from kgverify.trace.files.manifest import MANIFEST
from kgverify.trace.maintain.check import check_trace


def time_sides(sides: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the least seconds of each side, and what each returned at last."""
    best: dict[str, float] = {}
    found: dict[str, Any] = {}
    for _ in range(repeats):
        for name, work in sides.items():
            began = time.perf_counter()
            found[name] = work()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - began)
    return best, found


def show(what: str, best: dict[str, float], num_bytes: int, note: str) -> None:
    local = best["disk"]
    cells = [
        f"{name} {seconds:.2f} s ({num_bytes / seconds / 1e6:,.0f} MB/s, {local / seconds:.2f}x)"
        for name, seconds in best.items()
    ]
    print(f"{what}: {', '.join(cells)}; {note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="a folder of the store, which is overwritten")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    trace, raw = find_remote(f"{options.url}/trace.h5"), find_remote(f"{options.url}/raw")
    assert trace is not None
    assert raw is not None
    client = importlib.import_module("fsspec").filesystem(trace.protocol, use_listings_cache=False)
    columns = make_steps(options.steps)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        local = Path(name) / "trace.h5"

        def write_local() -> None:
            if local.exists():
                shutil.rmtree(local)
            write_shards(local, [(columns, None)], has_journal=False)

        def write_remote() -> None:
            with sent_to(trace, MANIFEST) as path:
                write_shards(path, [(columns, None)], has_journal=False)

        write_local()
        (shard,) = local.glob("shard-*.h5")
        num_bytes = shard.stat().st_size
        print(f"one shard of {options.steps:,} steps, {num_bytes / 1e6:,.0f} MB")
        sides = {
            "disk": write_local,
            "store": write_remote,
            "raw put": lambda: client.put_file(str(shard), raw.key),
        }
        best, _ = time_sides(sides, options.repeats)
        show("written", best, num_bytes, "")
        sides = {
            "disk": lambda: check_trace(local).root,
            "store": lambda: check_trace(trace.url).root,
            "raw get": lambda: len(client.cat_file(raw.key)),
        }
        best, found = time_sides(sides, options.repeats)
        show("verified", best, num_bytes, f"digests {'equal' if found['disk'] == found['store'] else 'DIFFER'}")
        sides = {
            "disk": lambda: kv.compare(local, local, minimum="none").verdict.value,
            "store": lambda: kv.compare(local, trace.url, minimum="none").verdict.value,
        }
        best, found = time_sides(sides, options.repeats)
        show("compared with the disk's", best, num_bytes, f"{found['disk']} and {found['store']}")
        client.rm(raw.key)

        # In a new folder each time, so that nothing is resumed.
        turns = iter(range(1000))

        def evaluate(save: str) -> Any:
            given: dict[str, Any] = {"queries": 24, "corruptions": 50, "part_size": 128, "check": 0, "minimum": "none"}
            report = kv.evaluate("countries", "reference", save=f"{save}-{next(turns)}", **given)
            return report.num_parts, report.metrics

        sides = {"disk": lambda: evaluate(f"{name}/run"), "store": lambda: evaluate(f"{options.url}/run")}
        best, found = time_sides(sides, options.repeats)
        same = "equal" if found["disk"] == found["store"] else "DIFFERENT"
        seconds = best["store"] - best["disk"]
        print(
            f"evaluated in {found['disk'][0]} parts: disk {best['disk']:.2f} s, store {best['store']:.2f} s,"
            f" {seconds / found['disk'][0] * 1e3:.0f} ms a part more; metrics {same}"
        )
        for turn in range(next(turns)):
            client.rm(f"{find_remote(options.url).key}/run-{turn}", recursive=True) if client.exists(
                f"{find_remote(options.url).key}/run-{turn}"
            ) else None


if __name__ == "__main__":
    main()
