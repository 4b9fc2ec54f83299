"""What audits add to, one after the other, until it is a report."""

from dataclasses import dataclass, field

from kgverify.audit.report import Finding, Unmeasured


@dataclass
class Notes:
    """A report in the making; see `AuditReport`."""

    findings: list[Finding] = field(default_factory=list)
    unmeasured: list[Unmeasured] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)
    details: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def find(self, audit: str, *, mechanism: str, finding: str, where: str, remedy: str) -> None:
        """One finding; the same one again is not added."""
        found = Finding(audit=audit, mechanism=mechanism, finding=finding, where=where, remedy=remedy)
        if found not in self.findings:
            self.findings.append(found)

    def skip(self, audit: str, reason: str) -> None:
        """Something that could not be looked at."""
        if not any(each.audit == audit and each.reason == reason for each in self.unmeasured):
            self.unmeasured.append(Unmeasured(audit=audit, reason=reason))
