"""What a step may cost, from a file of TOML: a limit for each measure, as a gate for CI."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kgverify.audit.report import Finding, Overrun, Unmeasured
from kgverify.errors import UserError, suggest

_MEGABYTE: Final = 1e6

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
    "max_waits_per_replay": ("waits_per_replay", 1),
    "max_launches_per_candidate": ("launches_per_candidate", 1),
    "max_findings": ("findings", 1),
}
"""Of a budget: the measure that it limits, and the unit that it is told in."""


def read_budget(path: Path) -> dict[str, float]:
    """The limits of a file. UserError for a file that is none, a key that is not known, or a limit that is no number."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where=str(path), fix="give a file of TOML") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f"is no TOML: {error}", where=str(path), fix="write lines such as max_graph_breaks = 0"
        ) from None
    return check_budget(data, str(path))


def check_budget(data: Mapping[str, Any], where: str = "budget") -> dict[str, float]:
    """The limits, if each is known and a number of 0 or more. UserError if not."""
    for key, limit in data.items():
        if key not in KEYS:
            raise UserError(
                f"unknown key {key!r}", where=where, fix=suggest(key, KEYS) or f"choose of {', '.join(KEYS)}"
            )
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
            raise UserError(f"expected a number of 0 or more for {key}, found {limit!r}", where=where, fix=f"{key} = 0")
    return {key: float(limit) for key, limit in data.items()}


def exceed_budget(
    budget: Mapping[str, float], measures: Mapping[str, float], findings: tuple[Finding, ...] = ()
) -> tuple[tuple[Overrun, ...], tuple[Unmeasured, ...]]:
    """The measures beyond their limits, and the limits whose measure is not there."""
    known = {**measures, "findings": len(findings)}
    overruns, unmeasured = [], []
    for key, allowed in budget.items():
        name, unit = KEYS[key]
        if name not in known:
            unmeasured.append(Unmeasured(audit="budget", reason=f"{key}: {name} was not measured"))
        elif known[name] / unit > allowed:
            overruns.append(Overrun(key=key, measured=known[name] / unit, allowed=allowed))
    return tuple(overruns), tuple(unmeasured)
