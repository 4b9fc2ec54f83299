"""The content of a report: the data that every renderer reads."""

from typing import Any, Protocol, Self

import msgspec

from kgverify.codes import Coded
from kgverify.comparison.exercise.exercise import Exercised
from kgverify.comparison.result import (
    PROOF_CLASSES,
    Attribution,
    Benign,
    Cause,
    Comparison,
    Coverage,
    Divergence,
    FieldRule,
    Level,
    NearTie,
    RankingRules,
    Rounding,
    SelfTest,
    Verdict,
)
from kgverify.program.limits import DeclaredLimits
from kgverify.trace.model.header import EngineInfo, PolicyInfo, RunInfo
from kgverify.trace.model.trace import Trace


class Metrics(msgspec.Struct, frozen=True):
    """The metrics of both sides, with PyKEEN's keys; empty without rankings."""

    expected: dict[str, float] = {}
    actual: dict[str, float] = {}


class Outcomes(msgspec.Struct, frozen=True):
    """The number of candidates of each side by the name of their outcome."""

    expected: dict[str, int] = {}
    actual: dict[str, int] = {}


class Determinism(msgspec.Struct, frozen=True):
    """The repeatability of each engine: True if a second run of a sample agreed; None if it was not checked.

    expected_within, actual_within: the largest difference of a score between the two runs, in words: `to the bit` if
                                    none, `in the same batch` if an engine gives other results in another batch
    expected_sample, actual_sample: the candidates in the second run
    """

    expected: bool | None = None
    actual: bool | None = None
    expected_within: str = ""
    actual_within: str = ""
    expected_sample: int | None = None
    actual_sample: int | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the software that made the report.

    self_test: whether `kgverify doctor --self-test` passed there, and what of it kgverify's CI does not test
    """

    kgverify: str
    python: str
    platform: str
    num_cpus: int
    expected: EngineInfo
    actual: EngineInfo
    self_test: str = ""


class ComparedTraces(Protocol):
    """The traces that a report was made from."""

    @property
    def expected(self) -> Trace:
        """The expected trace in memory."""

    @property
    def actual(self) -> Trace:
        """The actual trace in memory."""

    @property
    def stepped(self) -> Trace | None:
        """The actual engine's steps from the expected goals in lockstep; else None."""

    def excerpt(self) -> Trace | None:
        """Return the expected trace, or only its candidate with the first divergence; None if the trace lacks its goals."""


class ReportContent(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The data of a report; `kgverify.Report` documents the fields."""

    verdict: Verdict
    coverage: Coverage
    metrics: Metrics
    divergences: tuple[Divergence, ...]
    first_cause: Divergence | None
    near_ties: tuple[NearTie, ...]
    level: Level | None
    reasons: tuple[Coded, ...]
    notes: tuple[str, ...]
    equality: tuple[FieldRule, ...]
    determinism: Determinism = Determinism()
    lockstep: bool = False
    run: RunInfo
    limits: DeclaredLimits
    policy: PolicyInfo
    environment: Environment
    causes: tuple[Cause, ...] = ()
    attribution: Attribution | None = None
    outcomes: Outcomes = Outcomes()
    command: str = ""
    reasons_of_actual: tuple[str, ...] = ()
    self_test: SelfTest | None = None
    ranking_rules: RankingRules | None = None
    job: dict[str, Any] | None = None
    modulo: tuple[str, ...] = ()
    benign: tuple[Benign, ...] = ()
    exercise: Exercised | None = None
    minimum: dict[str, int] = {}
    rounding: Rounding | None = None

    @property
    def first_divergence(self) -> Divergence | None:
        """The first lost or false proof, else the first divergence; None without divergences."""
        return self.first_cause

    @property
    def traces(self) -> ComparedTraces | None:
        """The traces that the report was made from; None for a report read from a file."""
        traces: ComparedTraces | None = self.__dict__.get("traces_compared")
        return traces

    def with_traces(self, traces: ComparedTraces, *, command: str = "", job: dict[str, Any] | None = None) -> Self:
        """Return a copy that refers to its traces, and contains its job and the command that made it."""
        copied = msgspec.structs.replace(self, command=command or self.command, job=job or self.job)
        # Not a field: only the report itself is encoded.
        copied.__dict__["traces_compared"] = traces
        return copied


def find_first(comparison: Comparison) -> Divergence | None:
    """Return the divergence to show first: the first lost or false proof, else the first of all divergences."""
    of_proof = (each for each in comparison.divergences if each.kind in PROOF_CLASSES)
    return next(of_proof, comparison.divergences[0] if comparison.divergences else None)
