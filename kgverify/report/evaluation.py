"""The report of a large evaluation, as data and as text for a terminal."""

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kgverify.program.limits import Limits
from kgverify.report.wording import METRICS, SIDES
from kgverify.trace.model.header import EngineInfo


class Difference(msgspec.Struct, frozen=True):
    """A candidate whose outcome differs from the reference."""

    query: int
    side: str
    atom: str
    expected: str
    actual: str


class SpotCheck(msgspec.Struct, frozen=True):
    """The comparison of some candidates with the reference.

    largest_error, bound: the largest difference of log-probabilities that agree, and the largest allowed one, nats
    num_near_ties:        candidates that differ from the reference because two scores are closer than the declared error
    """

    num_asked: int
    num_checked: int
    num_equal: int
    num_near_ties: int
    largest_error: float
    bound: float
    differences: tuple[Difference, ...]


class EvaluationReport(msgspec.Struct, frozen=True):
    """A finished evaluation.

    metrics:               PyKEEN's keys, `both.realistic.mean_reciprocal_rank`
    rank_only:             whether candidates that cannot affect a rank were skipped, `num_left_out` of them; the
                           following fields count the others
    outcomes:              the number of candidates by outcome; `open` ones are a fault of the engine
    true_outcomes:         the number of true triples by outcome, one for each ranking
    num_limited:           candidates in whose derivation a limit dropped something
    num_choices, num_rescored, smallest_gap: choices between two or more resolvents, those repeated in a higher precision,
                           and the smallest gap of their scores in nats, None if it was not measured
    num_parts_resumed:     parts that an earlier run finished; the following fields are about the others
    candidates_per_second: the throughput of all processes together; None if every part was finished before
    """

    kgverify: str
    graph: str
    split: str
    num_queries: int
    num_corruptions: int
    seed: int
    policy: str
    policy_sha256: str
    limits: Limits
    engine: EngineInfo
    identity: str
    metrics: dict[str, float]
    num_rankings: int
    num_candidates: int
    rank_only: bool
    num_left_out: int
    outcomes: dict[str, int]
    true_outcomes: dict[str, int]
    num_limited: int
    num_choices: int
    num_rescored: int
    smallest_gap: float | None
    num_parts: int
    num_parts_resumed: int
    num_processes: int
    seconds: float
    warm_up_seconds: float
    candidates_per_second: float | None
    check: SpotCheck | None

    @property
    def is_sound(self) -> bool:
        """True if every candidate ended, and those checked agree with the reference."""
        return not self.outcomes.get("open") and not (self.check and self.check.differences)


def encode_evaluation(report: EvaluationReport) -> bytes:
    """Encode the report as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def print_evaluation(report: EvaluationReport, console: Console, diff_command: str = "") -> None:
    """Print the summary and, if the reference disagrees, the command to run next."""
    console.print(_headline(report), _metrics(report), _facts(report), highlight=False)
    if report.check is not None and report.check.differences:
        console.print(_differences(report.check.differences, diff_command), highlight=False, soft_wrap=True)


def _headline(report: EvaluationReport) -> Text:
    verdict = ("EVALUATED", "bold green") if report.is_sound else ("DIVERGE", "bold red")
    engine = report.engine
    corruptions = "all" if report.num_corruptions < 0 else f"{report.num_corruptions:,}"
    faults = f", faults {', '.join(engine.faults)}" if engine.faults else ""
    return Text.assemble(
        verdict,
        f"   {report.num_candidates:,} candidates in {report.num_rankings:,} rankings\n",
        f"  graph {report.graph or '?'}, {report.num_queries:,} queries of {report.split}, {corruptions} corruptions,"
        f" seed {report.seed}\n  {engine.name} ({engine.mode}, {engine.device}, {engine.precision}{faults}),"
        f" policy {report.policy}\n",
    )


def _metrics(report: EvaluationReport) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0))
    for column in ("realistic ranks", *SIDES):
        table.add_column(column, no_wrap=True)
    for metric in METRICS:
        values = (report.metrics.get(f"{side}.realistic.{metric}") for side in SIDES)
        table.add_row(metric, *("-" if value is None else f"{value:.4f}" for value in values))
    return table


def _facts(report: EvaluationReport) -> Text:
    lines = {
        "outcomes": f"{_counts(report.outcomes)}; {report.num_limited:,} limited",
        "true triples": _counts(report.true_outcomes),
    }
    if report.rank_only:
        lines["left out"] = (
            f"{report.num_left_out:,} of {report.num_candidates:,} candidates, which are not provable and cannot affect a rank"
        )
    if report.smallest_gap is not None:
        lines["choices"] = (
            f"{report.num_choices:,}, of which {report.num_rescored:,} repeated in higher precision;"
            f" smallest gap {report.smallest_gap:.3g} nats"
        )
    lines |= {"speed": _speed(report), "check": _check(report.check)}
    return Text("".join(f"\n{name:<13} {text}" for name, text in lines.items() if text))


def _counts(counts: dict[str, int]) -> str:
    words = {"open": "left open", "depth_limit": "at the depth limit"}
    return ", ".join(f"{num:,} {words.get(name, name)}" for name, num in counts.items() if num or name == "proved")


def _speed(report: EvaluationReport) -> str:
    if report.candidates_per_second is None:
        return "every part was finished before"
    processes = "" if report.num_processes == 1 else f" by {report.num_processes} processes"
    parts = f"{report.num_parts - report.num_parts_resumed:,} of {report.num_parts:,} parts"
    rest = f"; {report.num_parts_resumed:,} were finished before" if report.num_parts_resumed else ""
    return (
        f"{report.candidates_per_second:,.0f} candidates/s, {_microseconds(report.candidates_per_second)} µs each{processes}:"
        f" {parts} in {report.seconds:,.1f} s after {report.warm_up_seconds:,.1f} s of warm-up{rest}"
    )


def _microseconds(rate: float) -> str:
    return f"{1e6 / rate:,.0f}" if rate < 1e4 else f"{1e6 / rate:.3g}"


def _check(check: SpotCheck | None) -> str:
    if check is None:
        return "none"
    ties = f", {check.num_near_ties:,} differ from a near-tie on" if check.num_near_ties else ""
    return (
        f"{check.num_checked:,} also proved by the reference: {check.num_equal:,} equal{ties},"
        f" {len(check.differences):,} different; scores {check.largest_error:.2g} nats apart, {check.bound:.2g} allowed"
    )


def _differences(differences: tuple[Difference, ...], diff_command: str) -> Text:
    first = differences[0]
    text = Text.assemble(
        (f"\n{len(differences):,} candidates differ from the reference; the first", "bold"),
        f"\n  {first.atom} (query {first.query}, {first.side} side)",
        f"\n  expected   {first.expected}\n  actual     {first.actual}",
    )
    if diff_command:
        text.append(f"\n\nnext\n  {diff_command}   # shows the step and the stage")
    return text
