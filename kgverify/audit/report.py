"""What audits find, as data: for a terminal, for JSON, for a budget."""

from typing import Final

import msgspec

SCHEMA_VERSION: Final = 1


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One property that was lost.

    audit:     the audit that found it: `graph-breaks`, `recompilations`, ...
    mechanism: what torch does there, in general
    finding:   what was seen here
    where:     `file:line`, or the name of what has no line
    remedy:    what to do
    """

    audit: str
    mechanism: str
    finding: str
    where: str
    remedy: str


class Overrun(msgspec.Struct, frozen=True, kw_only=True):
    """A measure beyond its budget. key: of the budget, such as `max_graph_breaks`"""

    key: str
    measured: float
    allowed: float


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit could not look at here, and why."""

    audit: str
    reason: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The audits of one subject.

    measures:   named numbers: `graph_breaks`, `recompilations`, `syncs_per_step`, ... times in seconds, memory in bytes
    details:     the lists behind some measures, by their names
    environment: torch, device, mode, precision, state of the caches, threads, TF32
    """

    subject: str
    findings: tuple[Finding, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    measures: dict[str, float] = {}
    overruns: tuple[Overrun, ...] = ()
    details: dict[str, tuple[str, ...]] = {}
    environment: dict[str, str] = {}
    schema_version: int = SCHEMA_VERSION

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found and no budget exceeded."""
        return not self.findings and not self.overruns


def first_line(text: str) -> str:
    """What a message says first; empty if it says nothing."""
    return text.strip().splitlines()[0].strip() if text.strip() else ""


def describe_error(error: BaseException) -> str:
    """Its type and what it says first."""
    return f"{type(error).__name__}: {first_line(str(error))}".removesuffix(": ")
