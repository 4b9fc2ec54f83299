"""What a large evaluation found: as data, and as text for a terminal."""

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kgverify.program.limits import Limits
from kgverify.trace.model.header import EngineInfo

_SIDES = ("both", "head", "tail")
_METRICS = ("mean_reciprocal_rank", "hits_at_1", "hits_at_3", "hits_at_10")


class Difference(msgspec.Struct, frozen=True):
    """A candidate that ended otherwise than the reference says."""

    query: int
    side: str
    atom: str
    expected: str
    actual: str


class SpotCheck(msgspec.Struct, frozen=True):
    """What the reference says of some of the candidates.

    largest_error, bound: of log-probabilities that agree, nats: the largest difference, and the largest one allowed
    num_near_ties:        parted from the reference where two scores are closer than the declared error
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
    rank_only:             whether candidates that cannot matter for a rank were left out; how many are `num_left_out`, and
                           what follows is of the others
    outcomes:              candidates by how they ended; `open` ones are a fault of the engine
    true_outcomes:         the same of the true triples, one for each ranking
    num_limited:           candidates in whose derivation a limit dropped something
    num_choices, num_rescored, smallest_gap: between two resolvents or more, where a fast precision makes them; smallest gap
                           in nats, None where none was measured
    num_parts_resumed:     parts that were there already; what follows is of the others
    candidates_per_second: by all processes together; None where all was there already
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
        """Whether every candidate ended, and those checked as the reference says."""
        return not self.outcomes.get("open") and not (self.check and self.check.differences)


def encode_evaluation(report: EvaluationReport) -> bytes:
    """As JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def print_evaluation(report: EvaluationReport, console: Console, diff_command: str = "") -> None:
    """Print the summary; where the reference says otherwise, what to type next."""
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
    for column in ("realistic ranks", *_SIDES):
        table.add_column(column, no_wrap=True)
    for metric in _METRICS:
        values = (report.metrics.get(f"{side}.realistic.{metric}") for side in _SIDES)
        table.add_row(metric, *("-" if value is None else f"{value:.4f}" for value in values))
    return table


def _facts(report: EvaluationReport) -> Text:
    lines = {
        "outcomes": f"{_counts(report.outcomes)}; {report.num_limited:,} limited",
        "true triples": _counts(report.true_outcomes),
        "left out": _left_out(report),
        "choices": _choices(report),
        "speed": _speed(report),
        "check": _check(report.check),
    }
    return Text("".join(f"\n{name:<13} {text}" for name, text in lines.items() if text))


def _counts(counts: dict[str, int]) -> str:
    words = {"open": "left open", "depth_limit": "at the depth limit"}
    return ", ".join(f"{num:,} {words.get(name, name)}" for name, num in counts.items() if num or name == "proved")


def _left_out(report: EvaluationReport) -> str:
    if not report.rank_only:
        return ""
    return f"{report.num_left_out:,} of {report.num_candidates:,} candidates, which do not follow and cannot matter"


def _choices(report: EvaluationReport) -> str:
    if report.smallest_gap is None:
        return ""
    return (
        f"{report.num_choices:,}, of which {report.num_rescored:,} made again in higher precision;"
        f" smallest gap {report.smallest_gap:.3g} nats"
    )


def _speed(report: EvaluationReport) -> str:
    if report.candidates_per_second is None:
        return "nothing was left to do"
    processes = "" if report.num_processes == 1 else f" by {report.num_processes} processes"
    parts = f"{report.num_parts - report.num_parts_resumed:,} of {report.num_parts:,} parts"
    rest = f"; {report.num_parts_resumed:,} were there already" if report.num_parts_resumed else ""
    return (
        f"{report.candidates_per_second:,.0f} candidates/s, {_microseconds(report.candidates_per_second)} µs each{processes}:"
        f" {parts} in {report.seconds:,.1f} s after {report.warm_up_seconds:,.1f} s of warming up{rest}"
    )


def _microseconds(rate: float) -> str:
    return f"{1e6 / rate:,.0f}" if rate < 1e4 else f"{1e6 / rate:.3g}"


def _check(check: SpotCheck | None) -> str:
    if check is None:
        return "none"
    ties = f", {check.num_near_ties:,} parted at a near-tie" if check.num_near_ties else ""
    return (
        f"{check.num_checked:,} proved by the reference as well: {check.num_equal:,} equal{ties},"
        f" {len(check.differences):,} different; scores {check.largest_error:.2g} nats apart, {check.bound:.2g} allowed"
    )


def _differences(differences: tuple[Difference, ...], diff_command: str) -> Text:
    first = differences[0]
    text = Text.assemble(
        (f"\n{len(differences):,} candidates ended otherwise than the reference says; the first", "bold"),
        f"\n  {first.atom} (query {first.query}, {first.side} side)",
        f"\n  expected   {first.expected}\n  actual     {first.actual}",
    )
    if diff_command:
        text.append(f"\n\nnext\n  {diff_command}   # the step, and the stage of the step")
    return text
