"""Audits of functions of tensors under `torch.compile`: is it the compiler, and which property was lost?

`step` compares a function with eager on every rung of the compiler, examines the properties that it can lose, and returns an
`AuditReport`. The names load torch when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kgverify.errors import find_missing_dependency

if TYPE_CHECKING:
    from kgverify.audit.audited_step import step
    from kgverify.audit.budget import read_budget
    from kgverify.audit.render import render_audit
    from kgverify.audit.report import AuditReport, Finding

__all__ = ["AuditReport", "Finding", "read_budget", "render_audit", "step"]

_MODULES: Final = {
    "AuditReport": "report",
    "Finding": "report",
    "read_budget": "budget",
    "render_audit": "render",
    "step": "audited_step",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ImportError as error:
        raise find_missing_dependency(error) or error from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
