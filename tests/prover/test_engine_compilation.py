"""The kernels of fused ticks compile for Hopper, also where there is no GPU; other sizes and graphs compile nothing anew."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

SCRIPT = Path(__file__).with_name("compile_for_hopper.py")


@pytest.mark.exhaustive
@pytest.mark.skipif(platform.machine() != "x86_64", reason="Triton's assembler for NVIDIA is for x86-64 here")
@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="the Hopper kernel is written for Triton 3.6")
def test_other_numbers_of_slots_other_limits_and_another_graph_compile_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    compiled = {graph: int(num) for graph, num, _ in map(str.split, done.stdout.splitlines())}
    assert compiled == {"countries": 13, "random:7": 0, "random:8": 0}
