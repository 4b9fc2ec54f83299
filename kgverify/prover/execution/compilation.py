"""The modes of execution, and the compilation of functions in a mode: eager, or through `torch.compile`."""

import os
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import torch

from kgverify.engines.plain.choice import PLAIN
from kgverify.engines.table import Built
from kgverify.errors import UserError
from kgverify.files.code_identity import (
    digest_code,
    find_cache,
    find_compiler,
    identify_own_code,
    is_private,
    make_private,
    read_driver,
)
from kgverify.progress import slow_part
from kgverify.prover.native.choice import NATIVE, why_not_compiled

Function = TypeVar("Function", bound=Callable[..., Any])

FUSED: Final = "fused"
"""The mode that does not use `torch.compile`: ticks of Triton kernels, captured in CUDA graphs."""

MODES: Final = ("eager", "default", "reduce-overhead", "max-autotune", FUSED, NATIVE)
"""The measured modes; `native` is another evaluator, which `kgverify.prover.evaluator` makes."""


def resolve_mode(mode: str, device: torch.device, why_not_fused: str | None = "it is not available here") -> str:
    """Return the mode; `auto` is `fused` on CUDA, or `reduce-overhead` if there is an obstacle to `fused`.

    On a CPU `auto` is `default`, or `eager` if no C++ compiler is found.
    """
    if mode == "auto":
        if device.type == "cuda":
            return FUSED if why_not_fused is None else "reduce-overhead"
        return "default" if find_compiler() and why_not_compiled() is None else "eager"
    if mode not in (*MODES, PLAIN):
        raise UserError(f"unknown mode {mode!r}", where="mode", fix=f"choose auto, {', '.join(MODES)}, {PLAIN}")
    if mode in (NATIVE, PLAIN):
        raise UserError(
            f"mode {mode!r} uses neither tensors nor torch.compile", where="mode", fix="use --mode default or eager"
        )
    if mode == FUSED:
        if why_not_fused is not None:
            raise UserError(
                f"mode {mode!r} is not available: {why_not_fused}",
                where="mode",
                fix="use --mode auto, which finds another",
            )
        return mode
    if mode != "eager" and (obstacle := why_not_compiled()) is not None:
        raise UserError(
            f"mode {mode!r} would run eagerly: {obstacle}", where="mode", fix="unset it, or use --mode eager"
        )
    if mode != "eager" and device.type == "cpu" and not find_compiler():
        raise UserError(
            f"mode {mode!r} needs a C++ compiler and none is on the PATH",
            where="mode",
            fix="install g++ or clang, or use --mode eager",
        )
    return mode


def find_kernels() -> Built:
    """Describe the fused kernels, which depend on the sources, torch, Triton, the GPU and its driver."""
    here = {"gpu": torch.cuda.get_device_name(), "driver": read_driver(), "torch": torch.__version__}
    code = identify_own_code() | here
    digest, folder = digest_code(code), find_cache()
    return Built("fused kernels", digest, None if folder is None else folder / "kernels" / f"{digest}.tried")


def captures_graphs(mode: str, device: torch.device) -> bool:
    """Return whether ticks are captured in CUDA graphs in this mode."""
    return device.type == "cuda" and mode not in ("eager", "default")


def compile_function(function: Function, mode: str) -> Function:
    """Compile a function in a mode, as a single graph; return it unchanged for `eager`.

    Each call compiles a separate code object: engines must not share one recompile limit, past which a frame silently runs
    eagerly. A compilation that fails is a UserError.
    """
    if mode == "eager":
        return function
    # This takes two seconds, and eager runs do not need it.
    import torch._dynamo.exc
    import torch._inductor

    _use_private_cache()
    own = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    # One thread for generated CPU loops: they are short, and on shared cores the barriers between threads cost more
    # than the loops. Matrix products keep their own threads.
    chosen = {**torch._inductor.list_mode_options(mode), "cpp.threads": 1}
    compiled = torch.compile(own, fullgraph=True, dynamic=False, options=chosen)
    is_compiled = False

    def run(*arguments: Any) -> Any:
        nonlocal is_compiled
        with _explained_failures(mode):
            if is_compiled:
                return compiled(*arguments)
            with slow_part("compiling", "about a minute, or seconds if cached"), warnings.catch_warnings():
                # These warnings are torch's own: before the first CUDA graph, its pool captures a graph without a
                # launch, and Inductor uses deprecated functions. If warnings are errors, either would fail the
                # compilation.
                warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
                warnings.simplefilter("ignore", DeprecationWarning)
                result = compiled(*arguments)
            is_compiled = True
            return result

    return cast(Function, run)


def _use_private_cache() -> None:
    """Let Inductor keep its compiled code, which it runs later, where nobody else can write.

    UserError if that is impossible.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    make_private(Path(default_cache_dir()))
    # Precompiled headers are there, even if TORCHINDUCTOR_CACHE_DIR names another folder.
    torch._inductor.config.cpp_cache_precompile_headers &= is_private(Path(default_cache_dir()))
    base, is_chosen = find_cache(), "TORCHINDUCTOR_CACHE_DIR" in os.environ
    if base is not None and not is_chosen and not is_private(Path(cache_dir())):
        make_private(base / "inductor")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(base / "inductor")
    if not is_private(Path(cache_dir())):
        raise UserError(
            "others can write in this folder of compiled code, or replace it",
            where=cache_dir(),
            fix="let TORCHINDUCTOR_CACHE_DIR name a folder that only you can write, like all folders above it",
        )


class _explained_failures:
    """A context in which a failed compilation is a UserError.

    With TORCHDYNAMO_SUPPRESS_ERRORS the function would run eagerly instead, but be reported as compiled. This is a
    class because a generator would cost more at each tick.
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
            where="mode",
            fix="use --mode eager, which compiles nothing",
        ) from error
