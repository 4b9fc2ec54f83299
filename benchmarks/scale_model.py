"""A model of `kgverify evaluate --scheduler`: what limits 1 to 10,000 workers, from times that were measured here.

    python benchmarks/scale_model.py --measure
    python benchmarks/scale_model.py --part-seconds 30 --workers 1 10 100 1000 10000

`--measure` runs empty parts on local workers, which gives the costs of the client, the scheduler and the store, and then an
evaluation by 1 and 2 workers, whose seconds the model has to predict. Without it the costs are those of `MEASURED`.

The model is a simulation by events. A part goes through the client (sent), the scheduler, a worker, the scheduler again, the
client (fetched) and the store. Each of these serves one part at a time, the store several. A worker runs one part and holds
another. Workers fail at random; their parts are repeated.
"""

import argparse
import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

STATIONS: Final = ("client", "scheduler", "fetching", "store", "network")
HELD: Final = 2
"""The parts that dask gives to a worker with one thread: one to run, and one to begin next."""
_MOST_DOUBLED: Final = 6
DETECTION: Final = 1.0
"""Seconds until the scheduler knows that a worker is lost."""


class Costs(NamedTuple):
    """The costs of a part outside of its worker, in seconds unless noted.

    send:      of the client, to send it
    schedule:  of the scheduler, for all that it does for the part
    fetch:     of the client, to receive its result, transfer excluded
    store:     to write its file
    latency:   of a message
    make:      of a worker, to import what it needs before its first part
    restart:   until a lost worker is back
    merge:     of the client at the end, to join the results and hash them
    num_bytes: of a result; bandwidth: bytes a second, of the client's network
    """

    send: float
    schedule: float
    fetch: float
    store: float
    latency: float
    make: float
    restart: float
    merge: float
    num_bytes: int
    bandwidth: float = 1.25e9


MEASURED: Final = Costs(
    send=4.8e-4,
    schedule=3.7e-3,
    fetch=3.2e-3,
    store=1.2e-2,
    latency=5e-4,
    make=1.7,
    restart=2.0,
    merge=6.1e-5,
    num_bytes=19_915,
)
"""Those of two cores of an AMD EPYC that other work used as well, with dask 2026.8 and Python 3.11."""


class Load(NamedTuple):
    """The work: seconds of each part, float64 [P], and who does it.

    failures:      of a worker in an hour
    store_threads: parts that are stored at the same time
    ahead:         parts sent for each worker
    """

    parts: Sequence[float]
    num_workers: int
    failures: float = 0.0
    store_threads: int = 1
    ahead: int = 4


class Simulated(NamedTuple):
    """The end of a simulation: its seconds, those of the merge in them, the share of time each station was busy, and losses."""

    seconds: float
    merge: float
    busy: dict[str, float]
    num_lost: int


class _Station:
    """A queue with some servers. `serve` returns when the work ends; calls must come in order of time."""

    def __init__(self, num_servers: int = 1) -> None:
        self._free = [0.0] * num_servers
        self.busy = 0.0

    def serve(self, now: float, seconds: float) -> float:
        end = max(now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, end)
        self.busy += seconds
        return end


class _Simulation:
    """The state of a simulation."""

    def __init__(self, costs: Costs, load: Load, seed: int) -> None:
        self._costs, self._load = costs, load
        self._random = np.random.default_rng(seed)
        self._events: list[tuple[float, int, str, int]] = []
        self._numbers = itertools.count()
        self.stations = {name: _Station(load.store_threads if name == "store" else 1) for name in STATIONS}
        self._waiting = deque(range(len(load.parts)))
        self._ready: deque[int] = deque()
        num = load.num_workers
        self._held: list[list[int]] = [[] for _ in range(num)]
        self._is_made, self._is_up = [False] * num, [True] * num
        self._turn = [0] * num
        """Counts the failures of a worker, so that the end of a part that was lost is ignored."""
        self._idle = deque(range(num))
        self._num_sent = self._num_done = self.num_lost = 0

    def run(self) -> float:
        """Return the seconds until all parts are stored."""
        if self._load.failures:
            for worker in range(self._load.num_workers):
                self._plan_failure(0.0, worker)
        self._send_more(0.0)
        now = 0.0
        while self._num_done < len(self._load.parts):
            now, _, what, which = heapq.heappop(self._events)
            getattr(self, f"_{what}")(now, which)
        return now

    def _at(self, time: float, what: str, which: int) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), what, which))

    def _send_more(self, now: float) -> None:
        """Let the client send parts, as many as it keeps under way."""
        room = self._load.ahead * self._load.num_workers - (self._num_sent - self._num_done)
        for _ in range(min(room, len(self._waiting))):
            self._num_sent += 1
            self._at(self.stations["client"].serve(now, self._costs.send), "sent", self._waiting.popleft())

    def _sent(self, now: float, part: int) -> None:
        end = self.stations["scheduler"].serve(now + self._costs.latency, self._costs.schedule / 2)
        self._at(end, "offer", part)

    def _offer(self, now: float, part: int) -> None:
        self._ready.append(part)
        self._assign(now)

    def _assign(self, now: float) -> None:
        """Give ready parts to workers with room, those without any first."""
        while self._ready and self._idle:
            worker = self._idle.popleft()
            held = self._held[worker]
            if not self._is_up[worker] or len(held) == HELD:
                continue
            held.append(self._ready.popleft())
            if len(held) < HELD:
                self._idle.append(worker)
            if len(held) == 1:
                self._begin(now + self._costs.latency, worker)

    def _begin(self, now: float, worker: int) -> None:
        seconds = self._load.parts[self._held[worker][0]]
        if not self._is_made[worker]:
            seconds += self._costs.make
        self._at(now + seconds, "end", worker * (1 << 20) + self._turn[worker])

    def _end(self, now: float, which: int) -> None:
        worker, turn = divmod(which, 1 << 20)
        if turn != self._turn[worker]:
            return
        self._is_made[worker] = True
        held = self._held[worker]
        part = held.pop(0)
        if held:
            self._begin(now, worker)
        # The client hears of it from the scheduler.
        served = self.stations["scheduler"].serve(now + self._costs.latency, self._costs.schedule / 2)
        self._at(served, "noticed", worker)
        self._at(served + self._costs.latency, "arrive", part)

    def _noticed(self, now: float, worker: int) -> None:
        if self._is_up[worker] and len(self._held[worker]) < HELD:
            # A worker without work comes first.
            (self._idle.append if self._held[worker] else self._idle.appendleft)(worker)
            self._assign(now)

    def _arrive(self, now: float, part: int) -> None:
        moved = self.stations["network"].serve(now, self._costs.num_bytes / self._costs.bandwidth)
        self._at(self.stations["fetching"].serve(moved, self._costs.fetch), "store", part)

    def _store(self, now: float, part: int) -> None:
        self._at(self.stations["store"].serve(now, self._costs.store), "stored", part)

    def _stored(self, now: float, part: int) -> None:
        self._num_done += 1
        self._send_more(now)

    def _plan_failure(self, now: float, worker: int) -> None:
        self._at(now + self._random.exponential(3600 / self._load.failures), "fail", worker)

    def _fail(self, now: float, worker: int) -> None:
        self.num_lost += bool(self._held[worker])
        for part in self._held[worker]:
            self._at(now + DETECTION, "offer", part)
        self._held[worker], self._is_up[worker], self._is_made[worker] = [], False, False
        self._turn[worker] += 1
        self._at(now + self._costs.restart, "back", worker)

    def _back(self, now: float, worker: int) -> None:
        self._is_up[worker] = True
        self._idle.append(worker)
        self._assign(now)
        self._plan_failure(now, worker)


def simulate(costs: Costs, load: Load, seed: int = 0) -> Simulated:
    """Return the time that the work takes, and what was busy."""
    simulation = _Simulation(costs, load, seed)
    seconds = simulation.run()
    merge = costs.merge * len(load.parts)
    busy = {name: station.busy / seconds for name, station in simulation.stations.items()}
    busy["store"] /= load.store_threads
    return Simulated(seconds + merge, merge, busy, simulation.num_lost)


def draw_parts(num: int, mean: float, spread: float, seed: int = 0) -> list[float]:
    """Draw the seconds of parts, lognormal. spread: the standard deviation in means."""
    sigma = np.sqrt(np.log(1 + spread**2))
    drawn = np.random.default_rng(seed).lognormal(-(sigma**2) / 2, sigma, num) * mean
    return [float(each) for each in drawn]


def find_part_seconds(costs: Costs, num_workers: int, options: argparse.Namespace) -> float:
    """Return the least mean seconds of a part, a power of two, for which the overhead is below 5 %; inf if failures forbid it."""
    served = max(costs.send, costs.schedule, costs.fetch, costs.store / options.store_threads)
    # Shorter ones would keep a station busy all the time.
    power = max(-4, math.ceil(math.log2(served * num_workers)))
    for seconds in (2.0 ** (power + i) for i in range(_MOST_DOUBLED)):
        if overhead(costs, num_workers, seconds, options)[0] < 0.05:
            return seconds
    return math.inf


def overhead(
    costs: Costs, num_workers: int, part_seconds: float, options: argparse.Namespace
) -> tuple[float, Simulated]:
    """Return the seconds beyond those of ideal workers, relative to these, and the simulation.

    Ideal workers never fail, wait or start, and share the work evenly.
    """
    parts = draw_parts(options.parts_per_worker * num_workers, part_seconds, options.spread)
    load = Load(parts, num_workers, options.failures, options.store_threads)
    found = simulate(costs, load)
    return found.seconds / (sum(parts) / num_workers) - 1, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 100, 1000, 10000])
    parser.add_argument("--part-seconds", type=float, default=30.0)
    parser.add_argument("--parts-per-worker", type=int, default=100)
    parser.add_argument("--spread", type=float, default=0.3)
    parser.add_argument("--failures", type=float, default=0.01, help="of a worker in an hour")
    parser.add_argument("--store-threads", type=int, default=8)
    parser.add_argument("--store-seconds", type=float, default=None, help="such as 0.1 for an object store")
    parser.add_argument(
        "--measure", type=int, nargs="+", metavar="N", help="measure the costs, and evaluations by N workers"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of the evaluation by one worker that is measured")
    options = parser.parse_args()
    costs = MEASURED
    if options.measure:
        from scale_measurement import measure

        costs = measure(options.seconds, options.measure)
    if options.store_seconds is not None:
        costs = costs._replace(store=options.store_seconds)
    print(costs)
    print("\n| workers | seconds | overhead | merge | busiest | its share of the time | lost | part for 5 % |")
    print("|---|---|---|---|---|---|---|---|")
    for num in options.workers:
        beyond, found = overhead(costs, num, options.part_seconds, options)
        name = max(found.busy, key=lambda name: found.busy[name])
        least = find_part_seconds(costs, num, options)
        print(
            f"| {num:,} | {found.seconds:,.0f} | {beyond:.1%} | {found.merge:,.0f} s | {name} | {found.busy[name]:.1%} |"
            f" {found.num_lost:,} | {least:g} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
