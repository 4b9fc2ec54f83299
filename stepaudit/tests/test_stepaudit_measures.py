"""The measures of an audit: launches, memory, and the settings that were changed."""

import os
from typing import Any

import pytest
import torch
import torch._inductor.config as config

from stepaudit import audit_step
from stepaudit.environment import describe_environment
from stepaudit.properties.launches import _REGION, _count_events, _find_peak, _silencing_stderr, take_profile


def test_the_events_of_a_profile_are_counted() -> None:
    def event(name: str, kind: str, ts: float = 5.0, dur: float = 2.0) -> dict[str, Any]:
        return {"name": name, "cat": kind, "ts": ts, "dur": dur}

    found = _count_events(
        [
            event(_REGION, "user_annotation", 4.0, 10.0),
            event("add", "kernel", 1.0),
            event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy"),
            event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
            event("Memset (Device)", "gpu_memset"),
            event("cudaLaunchKernel", "cuda_runtime", 3.9),
            event("cudaLaunchKernel", "cuda_runtime", 4.0),
            event("cuLaunchKernel", "cuda_driver", 14.0),
            event("cudaGraphLaunch", "cuda_runtime"),
            event("other", "python_function"),
        ]
    )
    assert (found.kernels, found.copies, found.device_seconds) == (1, 2, pytest.approx(8e-6))
    assert (found.launches, found.replays) == (2, 1)


def test_the_peak_of_memory_is_found_in_the_order_of_time() -> None:
    def event(ts: int, num_bytes: int, name: str = "[memory]") -> dict[str, Any]:
        return {"name": name, "ts": str(ts), "args": {"Bytes": num_bytes}}

    # 3, 8, 1 and 5 bytes are held.
    events = [event(10, 4), event(1, 3), event(2, 5), event(9, -7), {"name": "add"}, event(0, 99, "other")]
    assert _find_peak(events) == 8
    assert _find_peak([]) == 0


def test_errors_are_printed_again_after_a_profile() -> None:
    before = os.fstat(2)
    with _silencing_stderr():
        assert os.fstat(2).st_rdev == os.stat(os.devnull).st_rdev
    assert os.fstat(2)[:3] == before[:3]


@pytest.mark.deep
def test_work_on_a_cpu_is_profiled_with_its_memory() -> None:
    found = take_profile(lambda: torch.ones(1 << 20).sum().item(), is_cuda=False)
    assert found.peak_memory >= 4 << 20
    assert found.wall_seconds > 0
    assert found.kernels == 0


def test_the_settings_of_the_compiler_are_those_that_were_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHINDUCTOR_X", "TRITON_ANY", "TRITON_CACHE_DIR", "OTHER"):
        monkeypatch.setenv(name, "1")
    with config.patch(max_autotune=not config.max_autotune):
        described = describe_environment(mode="default")
    assert (described["TORCHINDUCTOR_X"], described["TRITON_ANY"], described["mode"]) == ("1", "1", "default")
    assert not described.keys() & {"TRITON_CACHE_DIR", "OTHER"}
    assert described["torch._inductor.config.max_autotune"] == str(not config.max_autotune)
    own = [each for each in described if each.startswith("torch._inductor.config.")]
    assert len(own) < len(config._config) / 4


@pytest.mark.deep
def test_the_time_of_a_call_is_measured_on_both_sides() -> None:
    report = audit_step(lambda rows: rows.sin() + 1, lambda: (torch.ones(64),), calls=1, rungs=(), speed=True)
    rows = {str(row["run"]): row for row in report.sections["speed"].rows}
    assert list(rows) == ["eager", "compiled"]
    for name, row in rows.items():
        assert row["median, us"] == pytest.approx(report.measures[f"{name}_seconds_per_step"] * 1e6)
        assert float(row["calls per round"]) > 0
    ratio = report.measures["eager_seconds_per_step"] / report.measures["compiled_seconds_per_step"]
    assert report.measures["speedup"] == pytest.approx(ratio)
