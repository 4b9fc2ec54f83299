"""Kernels compiled ahead, without a GPU: what is launched in between is not run."""

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.prover.execution.device import compile_ahead, launch


class Kernel:
    """Notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: self.calls.append(("run", grid, arguments, options))

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.calls.append(("compile", grid, arguments, options))


def test_what_is_compiled_ahead_is_launched_afterwards() -> None:
    kernel = Kernel()
    compile_ahead(lambda: launch(kernel, 3, (1,), (2,), BLOCK=8))
    launch(kernel, 3, (1,), (2,), BLOCK=8)
    assert kernel.calls == [("compile", (3,), (1, 2), {"BLOCK": 8}), ("run", (3,), (1, 2), {"BLOCK": 8})]


def test_after_a_failure_kernels_are_launched_again() -> None:
    def fail() -> None:
        raise ValueError("no such kernel")

    kernel = Kernel()
    with pytest.raises(ValueError, match="no such kernel"):
        compile_ahead(fail)
    launch(kernel, 1, ())
    assert [what for what, *_ in kernel.calls] == ["run"]
