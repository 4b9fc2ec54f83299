"""What torch is allowed to round products of float32 to: the settings found, and what depends on them."""

from collections.abc import Callable
from typing import Any, Final

import torch

from kgverify.audit.environment import read_settings
from kgverify.audit.finding import Finding, Unmeasured, describe_error
from kgverify.audit.numerics.values import Difference, Look, differences, keep
from kgverify.engines.compiled.execution.device import products_set_to

SETTINGS: Final = ("highest", "high", "medium")
"""Of `torch.set_float32_matmul_precision`: on CUDA the last two allow TF32, on some CPUs the last one bfloat16."""

MECHANISM: Final = (
    "a setting of the process, or of the environment, lets products of float32 be made of factors with 10 bits of"
    " mantissa (TF32), or 7 (bfloat16); any library that is imported can set it"
)


def audit_settings(run: Callable[[], Any], name: str, *, device: torch.device, is_pinned: bool | None = None) -> Look:
    """Whether what comes out depends on the settings that the process happens to have.

    run:       gives the result, the same each time
    is_pinned: whether it is a finding that a setting changes something though the process is now at `highest`: so it is
               of an engine that declares its precision. If not given, only what the present setting changes is one
    Measures: `tf32_largest_difference`, and how many of the `settings_differing` from `highest` change bits.
    """
    now = keep(run())
    results: dict[str, Any] = {}
    unmeasured = []
    for setting in SETTINGS:
        with products_set_to(setting):
            try:
                results[setting] = keep(run())
            except Exception as error:  # A kernel may not be there under a setting.
                unmeasured.append(Unmeasured(audit="tf32", reason=f"{name}, {setting}: {describe_error(error)}"))
    findings = []
    found = read_settings()
    changed = {setting: _first(results.get("highest"), result) for setting, result in results.items()}
    of_now = _first(results.get("highest"), now)
    if of_now is not None:
        findings.append(_finding(name, f"as it is set ({_describe(found)})", of_now))
    elif is_pinned:
        findings += [_finding(name, f"set to {setting}", each) for setting, each in changed.items() if each is not None]
    if device.type != "cuda":
        unmeasured.append(
            Unmeasured(audit="tf32", reason="TF32 itself needs a CUDA device; settings for a CPU were tried")
        )
    gaps = [each.largest for each in changed.values() if each is not None]
    measures = {"settings_differing": float(len(gaps)), "tf32_largest_difference": max(gaps, default=0.0)}
    return Look(tuple(findings), tuple(unmeasured), measures)


def _first(expected: Any, actual: Any) -> Difference | None:
    return None if expected is None else next(differences(expected, actual), None)


def _describe(settings: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value not in ("False", "none"))


def _finding(name: str, what: str, difference: Difference) -> Finding:
    return Finding(
        audit="tf32",
        mechanism=MECHANISM,
        finding=f"{name}: {what}, against highest: {difference}",
        where=name,
        remedy='torch.set_float32_matmul_precision("highest") where the scores are made, or declare the precision and its error',
    )
