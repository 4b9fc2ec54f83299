"""The compiler's caches: their hits and misses in a run, and runs with fresh caches."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NamedTuple

from kgverify.engines.protocol import CompilerCaches

_is_fresh: ContextVar[bool] = ContextVar("is_fresh", default=False)


class CacheCounts(NamedTuple):
    """The hits and misses of this process so far, for Inductor and AOTAutograd; kernels in Triton's cache, or -1."""

    graph_hits: int
    graph_misses: int
    autograd_hits: int
    autograd_misses: int
    kernels: int


_COUNTED: Final = (
    ("inductor", "fxgraph_cache_hit"),
    ("inductor", "fxgraph_cache_miss"),
    ("aot_autograd", "autograd_cache_hit"),
    ("aot_autograd", "autograd_cache_miss"),
)


def count_caches() -> CacheCounts:
    """Return torch's counts so far, without importing anything."""
    module = sys.modules.get("torch._dynamo.utils")
    counters: Any = module.counters if module is not None else {}
    counts = [int(counters.get(part, {}).get(name, 0)) for part, name in _COUNTED]
    return CacheCounts._make((*counts, _count_kernels()))


def _count_kernels() -> int:
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    try:
        return sum(1 for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return -1


def describe_caches(mode: str, before: CacheCounts) -> CompilerCaches:
    """Describe the use of the caches since a count was taken."""
    now = count_caches()
    counts = {name: getattr(now, name) - getattr(before, name) for name in CacheCounts._fields[:-1]}
    kernels = max(0, now.kernels) - max(0, before.kernels) if max(now.kernels, before.kernels) >= 0 else None
    state = _state(mode, counts["graph_hits"], counts["graph_misses"], kernels)
    return CompilerCaches(state=state, kernels_added=kernels, **counts)


def _state(mode: str, hits: int, misses: int, kernels: int | None) -> str:
    if mode == "eager":
        return "unused"
    if _is_fresh.get():
        return "fresh"
    if mode == "fused":
        return "unknown" if kernels is None else "cold" if kernels > 0 else "warm"
    if not _is_enabled():
        return "disabled"
    if hits and misses:
        return "partly warm"
    return "warm" if hits else "cold" if misses else "unused"


def _is_enabled() -> bool:
    config = sys.modules.get("torch._inductor.config")
    return config is None or bool(config.fx_graph_cache and not config.force_disable_caches)


@contextmanager
def fresh_caches() -> Iterator[None]:
    """Compile everything anew, in temporary caches."""
    import torch._inductor.utils as utils

    fresh: Any = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    with fresh():
        before = _is_fresh.set(True)
        try:
            yield
        finally:
            _is_fresh.reset(before)
