"""Is it the compiler? A compiled step looked at rung by rung and property by property."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgverify.audit.properties.step_audit import audit_step

__all__ = ["audit_step"]


def __getattr__(name: str) -> Any:
    # What is found can be read without torch.
    if name == "audit_step":
        from kgverify.audit.properties.step_audit import audit_step

        return audit_step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
