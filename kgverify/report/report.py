"""The report as data, as `--json` writes it and every renderer reads it."""

from typing import Any, Final

import msgspec

from kgverify.comparison.result import (
    Attribution,
    Cause,
    Comparison,
    Coverage,
    Divergence,
    FieldRule,
    Level,
    NearTie,
    Verdict,
)
from kgverify.engines.protocol import CompilerCaches
from kgverify.program.limits import Limits
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo, RunInfo


class Metrics(msgspec.Struct, frozen=True):
    """The metrics of both sides, with PyKEEN's keys; empty without rankings."""

    expected: dict[str, float] = {}
    actual: dict[str, float] = {}


class Outcomes(msgspec.Struct, frozen=True):
    """The number of candidates of each side by the name of their outcome."""

    expected: dict[str, int] = {}
    actual: dict[str, int] = {}


NO_OUTCOMES: Final = Outcomes()


class Determinism(msgspec.Struct, frozen=True):
    """The repeatability of each engine: True if two runs were equal; None if it was not checked."""

    expected: bool | None = None
    actual: bool | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the software that made the report."""

    kgverify: str
    python: str
    platform: str
    num_cpus: int
    expected: EngineInfo
    actual: EngineInfo


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison with what it rests on.

    first_cause: the first divergence; None without divergences
    causes:      the divergences grouped; attribution: the cost of each cause
    lockstep:    whether every step was compared separately, from the expected goal
    command:     the command that made the report, without its output options; empty if no command did
    reasons_of_actual: the reasons for the actual engine's device, mode and precision; empty if it gives no reasons
    caches:      the actual engine's use of the compiler's caches; None if it does not report it
    """

    verdict: Verdict
    coverage: Coverage
    metrics: Metrics
    divergences: tuple[Divergence, ...]
    first_cause: Divergence | None
    near_ties: tuple[NearTie, ...]
    level: Level | None
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    equality: tuple[FieldRule, ...]
    determinism: Determinism
    lockstep: bool
    run: RunInfo
    limits: Limits
    policy: PolicyInfo
    environment: Environment
    causes: tuple[Cause, ...] = ()
    attribution: Attribution | None = None
    outcomes: Outcomes = NO_OUTCOMES
    command: str = ""
    reasons_of_actual: tuple[str, ...] = ()
    caches: CompilerCaches | None = None


def build_report(
    comparison: Comparison,
    header: Header,
    environment: Environment,
    metrics: Metrics,
    determinism: Determinism,
    *,
    lockstep: bool = False,
    causes: tuple[Cause, ...] = (),
    attribution: Attribution | None = None,
    outcomes: Outcomes = NO_OUTCOMES,
    reasons_of_actual: tuple[str, ...] = (),
    caches: CompilerCaches | None = None,
) -> Report:
    """Combine a comparison with its context. `header` is the expected trace's."""
    first = comparison.divergences[0] if comparison.divergences else None
    return Report(
        verdict=comparison.verdict,
        coverage=comparison.coverage,
        metrics=metrics,
        divergences=comparison.divergences,
        first_cause=first,
        near_ties=comparison.near_ties,
        level=comparison.level,
        reasons=comparison.reasons,
        notes=comparison.notes,
        equality=comparison.equality,
        determinism=determinism,
        lockstep=lockstep,
        run=header.run,
        limits=header.limits,
        policy=header.policy,
        environment=environment,
        causes=causes,
        attribution=attribution,
        outcomes=outcomes,
        reasons_of_actual=reasons_of_actual,
        caches=caches,
    )


def encode_report(report: Report) -> bytes:
    """Encode the report as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of a report."""
    return msgspec.json.schema(Report)
