"""The report as data: what `--json` writes and every rendering starts from."""

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
    """Metrics of both sides, keyed as PyKEEN keys them; empty where there was no ranking."""

    expected: dict[str, float] = {}
    actual: dict[str, float] = {}


class Outcomes(msgspec.Struct, frozen=True):
    """How many candidates of each side ended in which outcome, by its name."""

    expected: dict[str, int] = {}
    actual: dict[str, int] = {}


NO_OUTCOMES: Final = Outcomes()


class Determinism(msgspec.Struct, frozen=True):
    """Whether each engine, run twice, did the same; None where it was not checked."""

    expected: bool | None = None
    actual: bool | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where and by what the report was made."""

    kgverify: str
    python: str
    platform: str
    num_cpus: int
    expected: EngineInfo
    actual: EngineInfo


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison with what it rests on.

    first_cause: the first divergence; None where there is none
    causes:      the divergences grouped; attribution: what each cause cost
    lockstep:    whether every step was compared by itself, from the expected goal
    command:     the command that made the report, less where it wrote it; empty where none did
    reasons_of_actual: why the actual engine ran on this device, in this mode and precision; empty where it does not say
    caches:      what of the actual engine came out of the compiler's caches; None where it does not say
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
    """Put a comparison together with what surrounds it. `header` is the expected trace's."""
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
    """The report as JSON, indented, one final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def report_schema() -> dict[str, Any]:
    """The JSON Schema of a report."""
    return msgspec.json.schema(Report)
