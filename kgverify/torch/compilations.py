"""The compilations of torch code, counted and timed by torch itself."""

import sys


def count_compilations() -> tuple[int, float]:
    """Return the compilations by `torch.compile` so far in this process, and the seconds that they took."""
    times = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})
    taken = times.get("_compile.compile_inner", ())
    return len(taken), float(sum(taken))
