"""The report of a comparison, as every renderer reads it, `--json` writes it and `kgverify.verify` returns it."""

from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

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
from kgverify.engines.protocol import CompilerCaches
from kgverify.errors import UserError
from kgverify.escaping import escape_json
from kgverify.files.writing import write_file
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
        """Return the expected trace, or its candidate of the first divergence alone; None without its goals."""


class Report(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The result of a comparison with what it rests on.

    first_cause: the first lost or false proof, else the first divergence; None without divergences
    causes:      the divergences grouped; attribution: the cost of each cause
    lockstep:    whether every step was compared separately, from the expected goal
    command:     the command that made the report, without its output options; empty if no command did
    reasons_of_actual: the reasons for the actual engine's device, mode and precision; empty if it gives no reasons
    self_test:   the changes planted before the verdict was given, all of which the comparison reported
    caches:      the actual engine's use of the compiler's caches; None if it does not report it
    ranking_rules: the rules by which two recorded traces that differ were ranked; None with engines, or if nothing shows them
    exercise:    the evidence behind the verdict: what the candidates and steps of each side exercised
    minimum:     the exercise that AGREE required of both sides
    job:         the graph, the queries, the engines, their limits and the policies, as `kgverify.runs.job` reads them; None
                 for two recorded traces

    Example:
        >>> import kgverify as kv
        >>> report = kv.verify("countries", kv.Evaluator(mode="eager", faults="fact-cap"), queries=1, corruptions=1)
        >>> print(repr(report).splitlines()[0])
        DIVERGE   4 candidates, ...
        >>> report.to_json("report.json").stat().st_size > 1000
        True
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
    limits: DeclaredLimits
    policy: PolicyInfo
    environment: Environment
    causes: tuple[Cause, ...] = ()
    attribution: Attribution | None = None
    outcomes: Outcomes = Outcomes()
    command: str = ""
    reasons_of_actual: tuple[str, ...] = ()
    caches: CompilerCaches | None = None
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
        # Not a field: what is encoded is the report alone.
        copied.__dict__["traces_compared"] = traces
        return copied

    def to_json(self, path: str | Path) -> Path:
        """Write the report as JSON (docs/report.schema.json).

        Args:
            path: The file, which is overwritten.

        Returns:
            The path of the file.

        Raises:
            UserError: If the file cannot be written.
        """
        write_file(path, encode_report(self))
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML page, on which every divergence can be stepped through.

        Args:
            path: The file, which is overwritten.

        Returns:
            The path of the file.

        Raises:
            UserError: If the file cannot be written, or if the report was read from a file and has no traces.
        """
        return self._write(path, "html")

    def to_perfetto(self, path: str | Path) -> Path:
        """Write the run as a timeline that ui.perfetto.dev and chrome://tracing open: JSON of the Trace Event Format.

        Args:
            path: The file, which is overwritten.

        Returns:
            The path of the file.

        Raises:
            UserError: If the file cannot be written, or if the report was read from a file and has no traces.
        """
        return self._write(path, "perfetto")

    def _write(self, path: str | Path, name: str) -> Path:
        from kgverify.report.render.formats import FORMATS

        if self.traces is None:
            raise UserError(
                "this report was read without its traces, which the file shows",
                where=str(path),
                fix=f"save the run with `save=`, and render it with `kgverify report RUN_DIR --{name}`",
            )
        write_file(path, FORMATS[name].render(self, self.traces))
        return Path(path)

    def __str__(self) -> str:
        """Return the report as the terminal shows it, 120 columns wide."""
        from kgverify.report.render.terminal import draw_text, print_report

        return draw_text(lambda console: print_report(self, console))

    def __repr__(self) -> str:
        """Return the verdict, what was compared, and the first divergence."""
        from kgverify.report.render.terminal import summary_lines

        return "\n".join(summary_lines(self))

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        from kgverify.report.render.terminal import print_report, render_notebook

        return render_notebook(lambda console: print_report(self, console))


def find_first(comparison: Comparison, causes: tuple[Cause, ...]) -> Divergence | None:
    """Return the divergence to show first: a lost or false proof if there is one, else the first of all."""
    if causes and causes[0].kind in PROOF_CLASSES:
        return comparison.divergences[causes[0].first]
    return comparison.divergences[0] if comparison.divergences else None


def encode_report(report: msgspec.Struct) -> bytes:
    """Encode a report as indented JSON with a final newline."""
    return escape_json(msgspec.json.format(msgspec.json.encode(report), indent=2)) + b"\n"


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of a report. Its descriptions are the docstrings, without their examples."""
    schema = msgspec.json.schema(Report)
    for definition in schema["$defs"].values():
        if "description" in definition:
            definition["description"] = definition["description"].split("\n\n    Example:")[0].rstrip()
    return schema
