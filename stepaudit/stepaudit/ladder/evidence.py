"""The evidence of the first deviation: values side by side, and the repair as code."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor

from stepaudit.ladder.climb import Climb, Judge
from stepaudit.ladder.culprit import LINE, SWITCH, Item, list_omitted
from stepaudit.ladder.observation import VALUES
from stepaudit.options import GIVEN, WITHOUT_CACHES
from stepaudit.render import fill_template
from stepaudit.report import Cell
from stepaudit.values import find_other_elements

MOST_ELEMENTS: Final = 8
"""The largest number of elements that are shown side by side."""


def list_values(judge: Judge, first: Climb) -> Iterator[dict[str, Cell]]:
    """List the first elements at which the first deviating leaf deviates: eager's value, the compiled one, and float64's.

    ulps: between eager's and the compiled value, in units in the last place of eager's; empty for values without any
    """
    call, kind, path, _ = first.deviations[0]
    if kind not in VALUES or first.observed is None:
        return
    exact = judge.read_float64(call)
    before, after = (each.leaves(kind).get(path) for each in (judge.expected[call], first.observed))
    true = exact.leaves(kind).get(path) if exact is not None else None
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        yield _compare("", before, after, None)
    elif (before.shape, before.dtype, before.device) == (after.shape, after.dtype, after.device):
        before, after = before.detach(), after.detach()
        is_float = before.is_floating_point()
        true = true.detach() if is_float and isinstance(true, Tensor) and true.shape == before.shape else None
        others = find_other_elements(before, after, judge.options.precision).nonzero().tolist()
        for index in islice(others, MOST_ELEMENTS):
            one, other = (each[tuple(index)].item() for each in (before, after))
            exactly = None if true is None else true[tuple(index)].item()
            yield _compare(str(index), one, other, exactly, torch.finfo(before.dtype) if is_float else None)


def _compare(index: str, before: Any, after: Any, true: Any, unit: Any = None) -> dict[str, Cell]:
    # A difference of infinities has no size.
    gap = abs(after - before) if unit is not None else math.inf
    return {
        "index": index,
        "eager": repr(before),
        "compiled": repr(after),
        "float64": "" if true is None else repr(true),
        "ulps": f"{gap / (unit.eps * max(abs(before), unit.tiny)):.3g}" if gap < math.inf else "",
    }


def render_repair(items: Sequence[Item]) -> str:
    """Render Python that lets the compiler omit some items, until its context `repair` ends. Empty if one is a line."""
    if not items or any(item.kind == LINE for item in items):
        return ""
    patches = [(item.where[0], dict(item.value)) for item in items if item.kind == SWITCH]
    omitted = list_omitted(items)
    if omitted:
        # The keys of the caches do not tell that something was omitted.
        patches += [(module.__name__, held) for module, held in WITHOUT_CACHES]
    return fill_template("repair.py.j2", patches=patches, omitted=omitted).strip()


def list_settings(judge: Judge) -> list[str]:
    """List the statements that set the compiler as it was set on every rung, after their import."""
    return ["import torch._inductor.config", "torch._inductor.config.fallback_random = True"] if judge.draws else []


def explain_repair(judge: Judge, climb: Climb, items: Sequence[Item]) -> str:
    """Return Python that repeats a repair by hand; empty if nothing repairs the step."""
    if lines := [item for item in items if item.kind == LINE]:
        return f"# Move {lines[0].name} and what follows it into a function with @torch.compiler.disable."
    if not items:
        return ""
    held = (climb.rung.options or {}).items()
    options = ", ".join(f"{option}={getattr(value, '__name__', repr(value))}" for option, value in held)
    name = judge.subject.name
    compiled = name if climb.rung == GIVEN else f"torch.compile({name}, {options})"
    calls = ("with repair:", f"    {compiled}(...)  # as in eager")
    return "\n".join(("import torch", *list_settings(judge), render_repair(items), *calls))
