"""A budget: limits on the measures of a step, from a TOML file, as a gate for CI."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepaudit.errors import UserError, suggest

_MEGABYTE: Final = 1e6
_LARGEST: Final = 1 << 20
"""The bytes of a file that are read."""

KEYS: Final[dict[str, tuple[str, float]]] = {
    "max_graph_breaks": ("graph_breaks", 1),
    "max_recompilations": ("recompilations", 1),
    "max_calls_run_eagerly": ("calls_run_eagerly", 1),
    "max_guard_holes": ("guard_holes", 1),
    "max_syncs_per_step": ("syncs_per_step", 1),
    "max_colliding_scatters": ("colliding_scatters", 1),
    "max_aliased_outputs": ("aliased_outputs", 1),
    "max_overwritten_outputs": ("overwritten_outputs", 1),
    "max_unstable_inputs": ("unstable_inputs", 1),
    "max_unstable_outputs": ("unstable_outputs", 1),
    "max_copied_inputs_per_step": ("copied_inputs_per_step", 1),
    "max_copied_mb_per_step": ("copied_bytes_per_step", _MEGABYTE),
    "max_launches_per_step": ("launches_per_step", 1),
    "max_device_ms_per_step": ("device_seconds_per_step", 1e-3),
    "max_aten_calls_per_step": ("aten_calls_per_step", 1),
    "max_kernels_generated": ("kernels_generated", 1),
    "max_compile_seconds": ("compile_seconds", 1),
    "max_graphs": ("graphs", 1),
    "max_graph_nodes": ("graph_nodes", 1),
    "max_peak_memory_mb": ("peak_memory_bytes", _MEGABYTE),
    "max_findings": ("findings", 1),
}
"""The measure that each limit is for, and the unit in which the limit is given."""


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """A measure beyond its limit. key: in the budget, such as `max_graph_breaks`."""

    key: str
    measured: float
    allowed: float


def read_budget(path: Path) -> dict[str, float]:
    """Read the limits of a file.

    Args:
        path: a TOML file with lines such as `max_graph_breaks = 0`.

    Returns:
        The limits by name; `audit_step` takes them as its budget.

    Raises:
        UserError: for an unreadable file, an unknown key, or a limit that is not a number of 0 or more.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.loads(file.read(_LARGEST).decode())
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), fix="give a TOML file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"is not TOML: {error}", where=str(path), fix="write lines like max_graph_breaks = 0"
        ) from error
    return check_budget(data, str(path))


def check_budget(data: Mapping[str, Any], where: str = "budget") -> dict[str, float]:
    """Return the limits. UserError if a key is unknown or a limit is not a number of 0 or more."""
    for key, limit in data.items():
        if key not in KEYS:
            fix = suggest(key, KEYS) or f"choose from {', '.join(KEYS)}"
            raise UserError(f"unknown key {key!r}", where=where, fix=fix)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
            raise UserError(f"expected a number of 0 or more for {key}, found {limit!r}", where=where, fix=f"{key} = 0")
    return {key: float(limit) for key, limit in data.items()}


def find_overruns(
    budget: Mapping[str, float], measures: Mapping[str, float]
) -> tuple[tuple[Overrun, ...], tuple[str, ...]]:
    """Return the measures beyond their limits, and a reason for each limit that could not be checked."""
    overruns, missing = [], []
    for key, allowed in budget.items():
        name, unit = KEYS[key]
        if name not in measures:
            missing.append(f"{key}: {name} was not measured")
        elif measures[name] / unit > allowed:
            overruns.append(Overrun(key=key, measured=measures[name] / unit, allowed=allowed))
    return tuple(overruns), tuple(missing)
