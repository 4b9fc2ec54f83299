"""How the tick runs: eager, or through `torch.compile` in one of its modes; one place decides."""

import os
import shutil
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import torch

from kgverify.engines.compiled.execution.pinned_arithmetic import pinned_arithmetic
from kgverify.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])

FUSED: Final = "fused"
"""The mode that is none of `torch.compile`: ticks of Triton kernels, captured in CUDA graphs."""

MODES: Final = ("eager", "default", "reduce-overhead", "max-autotune", FUSED)


def resolve_device(device: str) -> torch.device:
    """`auto` takes CUDA where there is one. UserError for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("no CUDA device is available", where="--device", fix="use --device cpu")
    try:
        return torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}", where="--device", fix="use auto, cpu or cuda") from None


def resolve_mode(mode: str, device: torch.device, why_not_fused: str | None = "it is not to be had here") -> str:
    """`auto` is `fused` on CUDA, or `reduce-overhead` where something stands in the way.

    On a CPU it is `default`, or `eager` where no C++ compiler is found.
    """
    if mode == "auto":
        if device.type == "cuda":
            return FUSED if why_not_fused is None else "reduce-overhead"
        return "default" if has_cpp_compiler() and why_not_compiled() is None else "eager"
    if mode not in MODES:
        raise UserError(f"unknown mode {mode!r}", where="--mode", fix=f"choose auto, {', '.join(MODES)}")
    if mode == FUSED:
        if why_not_fused is not None:
            raise UserError(
                f"mode {mode!r} cannot be had: {why_not_fused}",
                where="--mode",
                fix="use --mode auto, which finds another",
            )
        return mode
    if mode != "eager" and (obstacle := why_not_compiled()) is not None:
        raise UserError(
            f"mode {mode!r} would run eagerly: {obstacle}", where="--mode", fix="unset it, or use --mode eager"
        )
    if mode != "eager" and device.type == "cpu" and not has_cpp_compiler():
        raise UserError(
            f"mode {mode!r} needs a C++ compiler and none is on the PATH",
            where="--mode",
            fix="install g++ or clang, or use --mode eager",
        )
    return mode


def why_not_compiled() -> str | None:
    """What makes `torch.compile` leave functions as they are, silently; None where nothing does."""
    for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        if os.environ.get(name) == "1":
            return f"{name}=1 turns torch.compile off"
    return None


def has_cpp_compiler() -> bool:
    """Whether the CPU backend of `torch.compile` finds a compiler."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def compile_function(function: Function, mode: str) -> Function:
    """The function compiled in a mode, its whole graph at once; `eager` leaves it as it is.

    Each call compiles a code object of its own: engines must not share one recompile limit, past which a frame
    silently runs eager.
    """
    if mode == "eager":
        return function
    # Takes two seconds, and eager runs do without.
    import torch._dynamo.exc
    import torch._inductor

    own = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    # One thread for generated CPU loops: they are short, and where cores are shared the barriers between threads cost
    # more than the loops. Matrix products keep their own threads.
    chosen = {**torch._inductor.list_mode_options(mode), "cpp.threads": 1}
    compiled = torch.compile(own, fullgraph=True, dynamic=False, options=chosen)

    def run(*arguments: Any) -> Any:
        with _told_of_failures(mode):
            return compiled(*arguments)

    return cast(Function, run)


class _told_of_failures:
    """Inside, what cannot be compiled is an error, and a UserError.

    With TORCHDYNAMO_SUPPRESS_ERRORS it would run eagerly instead, and be taken for compiled. A class, as a generator would
    cost more at each tick.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._was_suppressed = False

    def __enter__(self) -> None:
        self._was_suppressed = torch._dynamo.config.suppress_errors
        if self._was_suppressed:
            torch._dynamo.config.suppress_errors = False

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._was_suppressed:
            torch._dynamo.config.suppress_errors = True
        if not isinstance(error, torch._dynamo.exc.TorchDynamoException) or "out of memory" in str(error).lower():
            return
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        raise UserError(
            f"mode {self._mode!r} cannot be compiled: {type(error).__name__}: {' '.join(lines[:3])}",
            where="--mode",
            fix="use --mode eager, which compiles nothing",
        ) from error


@contextmanager
def on_device(device: torch.device, has_products: bool) -> Iterator[None]:
    """Work on a device: on a GPU, kernels go to this one; on a CPU, a policy without matrix products has one thread.

    Its loops are short, and lose more to the barriers between threads than they gain. Then the number of threads is restored.
    The arithmetic is pinned (`pinned_arithmetic`).
    """
    if device.type == "cuda":
        with torch.cuda.device(device), pinned_arithmetic():
            yield
        return
    if has_products:
        with pinned_arithmetic():
            yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
