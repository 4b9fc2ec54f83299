"""The model of many workers against cases whose times are known."""

import pytest
from scale_model import HELD, MEASURED, Costs, Load, simulate

FREE = Costs(
    send=0, schedule=0, fetch=0, store=0, latency=0, make=0, restart=0, merge=0, num_bytes=0, bandwidth=float("inf")
)


def test_without_costs_workers_are_ideal() -> None:
    found = simulate(FREE, Load([2.0] * 12, 4))
    assert found.seconds == 6.0
    assert found.num_lost == 0


@pytest.mark.parametrize("station", ["send", "schedule", "fetch", "store"])
def test_a_station_that_is_too_slow_decides_the_time(station: str) -> None:
    found = simulate(FREE._replace(**{station: 0.5}), Load([1.0] * 100, 50))
    assert found.seconds == pytest.approx(50, rel=0.06)
    name = {"send": "client", "schedule": "scheduler", "fetch": "fetching"}.get(station, station)
    assert max(found.busy, key=lambda each: found.busy[each]) == name
    assert found.busy[name] > 0.9


def test_the_network_is_a_station() -> None:
    found = simulate(FREE._replace(num_bytes=1000, bandwidth=100.0), Load([1.0] * 20, 20))
    assert found.seconds == pytest.approx(201)


def test_several_results_are_stored_at_the_same_time() -> None:
    one, four = (simulate(FREE._replace(store=1.0), Load([0.1] * 40, 10, store_threads=n)).seconds for n in (1, 4))
    assert one == pytest.approx(40, abs=1)
    assert four == pytest.approx(10, abs=1)


def test_what_a_lost_worker_held_is_repeated() -> None:
    load = Load([10.0] * 60, 3, failures=60.0)
    found = simulate(FREE._replace(restart=5.0, make=2.0), load, seed=1)
    assert found.num_lost > 3
    least = 200 + 2
    assert least < found.seconds < least + found.num_lost * (10 * HELD + 5 + 2 + 1)


def test_workers_start_once() -> None:
    assert simulate(FREE._replace(make=3.0), Load([1.0] * 10, 2)).seconds == 8.0


def test_the_overhead_is_small_for_a_hundred_workers() -> None:
    parts = [30.0] * 2000
    assert simulate(MEASURED, Load(parts, 100, store_threads=8)).seconds < 1.05 * 30.0 * 20
