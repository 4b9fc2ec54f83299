"""Audits of functions of tensors under `torch.compile`: is it the compiler, and which property was lost?

`audit_step` examines a compiled step property by property, `audit_modes` finds the first rung of the compiler on which it
deviates from eager, and `audit_numerics` examines its arithmetic. Each returns an `AuditReport`. The names load torch when
they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kgverify.audit.audited_function import Subject, make_subject
    from kgverify.audit.budget import read_budget
    from kgverify.audit.ladder.climb import RUNGS, Rung
    from kgverify.audit.ladder.modes_audit import audit_modes
    from kgverify.audit.numerics import audit_numerics
    from kgverify.audit.properties.step_audit import audit_step
    from kgverify.audit.render import render_audit
    from kgverify.audit.report import AuditReport, Finding

__all__ = [
    "RUNGS",
    "AuditReport",
    "Finding",
    "Rung",
    "Subject",
    "audit_modes",
    "audit_numerics",
    "audit_step",
    "make_subject",
    "read_budget",
    "render_audit",
]

_MODULES: Final = {
    "RUNGS": "ladder.climb",
    "AuditReport": "report",
    "Finding": "report",
    "Rung": "ladder.climb",
    "Subject": "audited_function",
    "audit_modes": "ladder.modes_audit",
    "audit_numerics": "numerics",
    "audit_step": "properties.step_audit",
    "make_subject": "audited_function",
    "read_budget": "budget",
    "render_audit": "render",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
