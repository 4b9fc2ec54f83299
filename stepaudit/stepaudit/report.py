"""The result of an audit (findings, measures and tables), the builder to which audits add, and limits on the measures.

A budget of limits, from a TOML file, is a gate for CI.
"""

import errno
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

from stepaudit.environment import read_cpu_seconds
from stepaudit.errors import UserError, check_names

SCHEMA_VERSION: Final = 4

_LARGEST: Final = 1 << 16
"""The size limit of a budget file, in bytes."""

_COUNTS: Final = (
    *("graph_breaks", "recompilations", "calls_run_eagerly", "guard_holes", "syncs_per_step", "colliding_scatters"),
    *("aliased_outputs", "overwritten_outputs", "unstable_inputs", "unstable_outputs", "copied_inputs_per_step"),
    *("launches_per_step", "aten_calls_per_step", "kernels_generated", "compile_seconds", "graphs", "graph_nodes"),
    "findings",
)
KEYS: Final[dict[str, tuple[str, float]]] = {f"max_{name}": (name, 1) for name in _COUNTS} | {
    "max_copied_mb_per_step": ("copied_bytes_per_step", 1e6),
    "max_device_ms_per_step": ("device_seconds_per_step", 1e-3),
    "max_compiled_ms_per_step": ("compiled_seconds_per_step", 1e-3),
    "max_peak_memory_mb": ("peak_memory_bytes", 1e6),
}
"""The measure that each limit applies to, and the unit of the limit."""

AUDITS: Final[dict[str, dict[str, str]]] = tomllib.loads(Path(__file__).with_name("findings.toml").read_text("utf-8"))
"""The audits that find something, each with its mechanism and its usual remedy."""

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
    mechanism: what torch does in such a place, in general
    finding:   what was seen here
    where:     `file:line`, or a name if there is no line
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
    """A table. rows: all rows have the same keys, which are the columns."""

    title: str
    rows: tuple[dict[str, Cell], ...]


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """A measure beyond its limit. key: the key in the budget, such as `max_graph_breaks`."""

    key: str
    measured: float
    allowed: float


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """The result of the audits of one function.

    verdict:     DIVERGE with findings or overruns; INCONCLUSIVE if the function differs from itself
    unmeasured:  the things that could not be examined here, with the reasons
    measures:    named numbers: `graph_breaks`, `recompilations`, `syncs_per_step`, ... times in seconds, memory in bytes
    overruns:    measures beyond the budget
    details:     the lists behind some measures, by their names
    sections:    tables, by their names
    listings:    source code, by its name: the minimal graph, the kernels generated for it, and the repair
    caveat:      a part of the verdict's line: the largest difference that counts as rounding, if it is large
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
    listings: dict[str, str] = field(default_factory=dict)
    caveat: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def is_clean(self) -> bool:
        """True if there is no finding and no measure beyond the budget."""
        return not self.findings and not self.overruns

    @property
    def headline(self) -> str:
        """The line of the verdict without the subject: the findings, or else why it is inconclusive; and the caveat."""
        num = len(self.findings)
        parts = [f"{num} finding{'s' if num > 1 else ''}"] if num else []
        parts += [f"{len(self.overruns)} over budget"] if self.overruns else []
        is_open = self.verdict is Verdict.INCONCLUSIVE
        parts = parts or ([each.reason for each in self.unmeasured[:1]] if is_open else ["clean"])
        return "; ".join(filter(None, (", ".join(parts), self.caveat)))

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
    listings: dict[str, str] = field(default_factory=dict)
    caveat: str = ""

    def find(self, audit: str, finding: str, where: str, **texts: str) -> None:
        """Add a finding, unless it is already there. texts: a mechanism or remedy other than those of the audit."""
        found = Finding(audit=audit, finding=finding, where=where, **AUDITS[audit] | texts)
        if found not in self.findings:
            self.findings.append(found)

    def skip(self, audit: str, reason: str) -> None:
        """Add something that could not be examined."""
        skipped = Unmeasured(audit=audit, reason=reason)
        if skipped not in self.unmeasured:
            self.unmeasured.append(skipped)

    @contextmanager
    def timing(self, work: str) -> Iterator[None]:
        """Measure the CPU seconds of a part of the audit, including its child processes."""
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
        """Build the report, with the measures that exceed a budget."""
        overruns, missing = find_overruns(budget or {}, {**self.measures, "findings": len(self.findings)})
        for reason in missing:
            self.skip("budget", reason)
        verdict = Verdict.DIVERGE if self.findings or overruns else Verdict.AGREE
        return AuditReport(
            **vars(self) | {"findings": tuple(self.findings), "unmeasured": tuple(self.unmeasured)},
            subject=subject,
            verdict=verdict if is_conclusive else Verdict.INCONCLUSIVE,
            overruns=overruns,
            environment=environment,
        )


def read_budget(path: Path) -> dict[str, float]:
    """Read the limits of a file.

    Args:
        path: a TOML file with lines such as `max_graph_breaks = 0`.

    Returns:
        The limits by name; `audit_step` takes them as its budget.

    Raises:
        UserError: for an unreadable file, an unknown key, or a limit that is not a number of 0 or more.
    """
    try:
        data = tomllib.loads(_read_text(path))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), fix="give a TOML file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"is not TOML: {error}", where=str(path), fix="write lines like max_graph_breaks = 0"
        ) from error
    return check_budget(data, str(path))


def _read_text(path: Path) -> str:
    """Return the text of a small regular file. A pipe or a device, which would wait or never end, raises an OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            raise OSError(errno.EINVAL, f"not a regular file of at most {_LARGEST:,} bytes")
        return (file.read(_LARGEST) or b"").decode()


def check_budget(data: Mapping[str, Any], where: str = "budget") -> dict[str, float]:
    """Return the limits. UserError if a key is unknown or a limit is not a number of 0 or more."""
    check_names("key", data, KEYS, where)
    for key, limit in data.items():
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
            raise UserError(f"expected a number of 0 or more for {key}, found {limit!r}", where=where, fix=f"{key} = 0")
    return {key: float(limit) for key, limit in data.items()}


def find_overruns(
    budget: Mapping[str, float], measures: Mapping[str, float]
) -> tuple[tuple[Overrun, ...], tuple[str, ...]]:
    """Return the measures beyond their limits, and a reason for each limit that could not be checked."""
    overruns, missing = [], []
    for key, allowed in budget.items():
        name, unit = KEYS[key]
        if name not in measures:
            missing.append(f"{key}: {name} was not measured")
        elif measures[name] / unit > allowed:
            overruns.append(Overrun(key=key, measured=measures[name] / unit, allowed=allowed))
    return tuple(overruns), tuple(missing)
