"""The settings with which torch may round products of float32, and results that depend on them."""

from collections.abc import Callable
from typing import Any, Final

import torch

from kgverify.audit.report import ReportBuilder
from kgverify.audit.values import copy_values, find_differences
from kgverify.engines.compiled.execution.device import products_set_to
from kgverify.errors import describe_error
from kgverify.runs.machine import read_product_settings

AUDIT: Final = "tf32"
SETTINGS: Final = ("highest", "high", "medium")
"""Values of `torch.set_float32_matmul_precision`: on CUDA the last two allow TF32, on some CPUs the last one bfloat16."""


def audit_settings(
    run: Callable[[], Any], name: str, report: ReportBuilder, *, device: torch.device, is_pinned: bool = False
) -> None:
    """Find out whether a result depends on the present settings of the process.

    run:       returns the result, the same each time
    is_pinned: whether any dependence is a finding, even if the process is at `highest`, as for an engine that declares its
               precision. Otherwise only a change by the present setting is one
    Measures: `tf32_largest_difference`, and `settings_differing`, the number of settings that change bits.
    """
    now = copy_values(run())
    results: dict[str, Any] = {}
    for setting in SETTINGS:
        with products_set_to(setting):
            try:
                results[setting] = copy_values(run())
            except Exception as error:  # A kernel may be missing under a setting.
                report.skip(AUDIT, f"{name}, {setting}: {describe_error(error)}")
    changed = {}
    if "highest" in results:
        found = read_product_settings()
        present = ", ".join(f"{key} {value}" for key, value in found.items() if value not in ("False", "none"))
        compared = {f"set to {setting}": result for setting, result in results.items()}
        compared = {f"as it is set ({present})": now} | compared
        first = {how: next(find_differences(results["highest"], each), None) for how, each in compared.items()}
        changed = {how: difference for how, difference in first.items() if difference is not None}
    is_changed_now = any(how.startswith("as it is set") for how in changed)
    for how, difference in changed.items():
        if how.startswith("as it is set") or (is_pinned and not is_changed_now):
            report.find(
                AUDIT,
                mechanism="a setting of the process, or of the environment, allows products of float32 from factors with 10 bits"
                " of mantissa (TF32), or 7 (bfloat16); any imported library can change it",
                finding=f"{name}: {how}, against highest: {difference}",
                where=name,
                remedy='torch.set_float32_matmul_precision("highest") where the scores are made, or declare the precision and'
                " its error",
            )
    if device.type != "cuda":
        report.skip(AUDIT, "TF32 itself needs a CUDA device; the settings of a CPU were tried")
    gaps = [each.largest for how, each in changed.items() if how.startswith("set to")]
    report.measures["settings_differing"] = float(len(gaps))
    report.measures["tf32_largest_difference"] = max(gaps, default=0.0)
