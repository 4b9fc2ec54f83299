"""stepaudit: is it the compiler? Audits of functions of tensors under `torch.compile`.

`audit_step` compares a function with eager on every rung of the compiler. It also examines the properties that the
function can lose, and returns an `AuditReport`. Everything public is here; the modules may change without notice.
"""

import os

# Torch then asks the driver's library for devices, which leaves the process able to fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

from stepaudit.audited_function import Keywords
from stepaudit.audited_step import audit_step
from stepaudit.errors import UserError
from stepaudit.options import RUNG_NAMES, AuditOptions
from stepaudit.render import render_annotations, render_audit, render_html, render_json, render_junit, render_markdown
from stepaudit.report import AuditReport, Finding, Overrun, Section, Unmeasured, Verdict, read_budget

__all__ = [
    "RUNG_NAMES",
    "AuditOptions",
    "AuditReport",
    "Finding",
    "Keywords",
    "Overrun",
    "Section",
    "Unmeasured",
    "UserError",
    "Verdict",
    "audit_step",
    "read_budget",
    "render_annotations",
    "render_audit",
    "render_html",
    "render_json",
    "render_junit",
    "render_markdown",
]
