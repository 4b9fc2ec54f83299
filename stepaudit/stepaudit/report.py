"""The result of an audit: findings, measures and tables, the same for every audit; and the builder to which audits add."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

from stepaudit.budget import Overrun, find_overruns
from stepaudit.environment import read_cpu_seconds

SCHEMA_VERSION: Final = 3

Cell: TypeAlias = bool | int | float | str


class Verdict(StrEnum):
    """The verdict of an audit: INCONCLUSIVE if the function differs from itself."""

    AGREE = "AGREE"
    DIVERGE = "DIVERGE"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, kw_only=True)
class Finding:
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


@dataclass(frozen=True, kw_only=True)
class Unmeasured:
    """Something that an audit could not examine, and the reason."""

    audit: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table. rows: each with the same keys, which are the columns."""

    title: str
    rows: tuple[dict[str, Cell], ...]


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """The result of the audits of one function.

    verdict:     DIVERGE with findings or overruns; INCONCLUSIVE where the function differs from itself
    unmeasured:  what could not be examined here, with the reason
    measures:    named numbers: `graph_breaks`, `recompilations`, `syncs_per_step`, ... times in seconds, memory in bytes
    overruns:    measures beyond the budget
    details:     the lists behind some measures, by their names
    sections:    tables, by their names
    environment: torch, device, mode, precision, state of the caches, threads, TF32
    """

    subject: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    measures: dict[str, float] = field(default_factory=dict)
    overruns: tuple[Overrun, ...] = ()
    details: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sections: dict[str, Section] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def is_clean(self) -> bool:
        """True if there is no finding and no measure beyond the budget."""
        return not self.findings and not self.overruns

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values that `json` writes."""
        return asdict(self)


@dataclass
class ReportBuilder:
    """The report that audits add to, one after the other."""

    findings: list[Finding] = field(default_factory=list)
    unmeasured: list[Unmeasured] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)
    details: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sections: dict[str, Section] = field(default_factory=dict)

    def find(self, audit: str, *, mechanism: str, finding: str, where: str, remedy: str) -> None:
        """Add a finding, unless it is already there."""
        found = Finding(audit=audit, mechanism=mechanism, finding=finding, where=where, remedy=remedy)
        if found not in self.findings:
            self.findings.append(found)

    def skip(self, audit: str, reason: str) -> None:
        """Add something that could not be examined."""
        skipped = Unmeasured(audit=audit, reason=reason)
        if skipped not in self.unmeasured:
            self.unmeasured.append(skipped)

    @contextmanager
    def timing(self, work: str) -> Iterator[None]:
        """Measure the CPU seconds of a part of the audit, those of its processes included."""
        began = read_cpu_seconds()
        try:
            yield
        finally:
            self.measures[f"cpu_seconds_{work}"] = read_cpu_seconds() - began

    def add_section(self, name: str, title: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add a table, unless it has no rows."""
        held = tuple(map(dict, rows))
        if held:
            self.sections[name] = Section(title=title, rows=held)

    def build(
        self,
        subject: str,
        environment: dict[str, str],
        *,
        budget: Mapping[str, float] | None = None,
        is_conclusive: bool = True,
    ) -> AuditReport:
        """Make the report, with the measures beyond a budget."""
        overruns, missing = find_overruns(budget or {}, {**self.measures, "findings": len(self.findings)})
        for reason in missing:
            self.skip("budget", reason)
        verdict = Verdict.DIVERGE if self.findings or overruns else Verdict.AGREE
        return AuditReport(
            subject=subject,
            verdict=verdict if is_conclusive else Verdict.INCONCLUSIVE,
            findings=tuple(self.findings),
            unmeasured=tuple(self.unmeasured),
            measures=dict(self.measures),
            overruns=overruns,
            details=dict(self.details),
            sections=dict(self.sections),
            environment=environment,
        )
