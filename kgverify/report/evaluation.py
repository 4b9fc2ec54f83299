"""The report of a large evaluation, and the comparison of two, as data and as text for a terminal."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np
from rich.console import Group
from rich.table import Table as Grid

from kgverify.codes import Code, Coded
from kgverify.comparison.exercise.exercise import NOT_EXERCISED, Exercise, advise_minimum, explain_missing
from kgverify.comparison.result import Verdict
from kgverify.engines.policy import SHORTEST
from kgverify.errors import UserError, check_known, count_of, use_words
from kgverify.escaping import ShownAsText, make_lines_visible, make_visible
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.intervals import FLIPS, PairedDifference
from kgverify.ranking.rank import compute_metrics
from kgverify.ranking.rules import take_rows
from kgverify.report.render.screen import FittedTable, Screen, Text
from kgverify.report.render.terminal import STYLES, draw_text, fit_metrics
from kgverify.report.tables import Row, Table, to_pandas
from kgverify.report.wording import METRICS, SIDES, describe_choices, describe_exercise, describe_limits
from kgverify.trace.model.columns import Rankings
from kgverify.trace.model.header import FROM_SCORES, EngineInfo
from kgverify.trace.model.score_tolerance import OWN_ENGINES

if TYPE_CHECKING:
    import pandas


_Rank = Annotated[float, msgspec.Meta(ge=1)]
_DTYPES: Final = ("i4", "i1", "u4", "f8", "f8")


class Difference(msgspec.Struct, frozen=True):
    """A candidate whose outcome differs from the reference."""

    query: int
    side: str
    atom: str
    expected: str
    actual: str


class Strength(msgspec.Struct, frozen=True):
    """The strength of a sample.

    chance: the chance that the sample would have revealed a defect in 1 % of the population
    share:  the smallest share of the population in which the sample reveals a defect with a chance of 99 %
    """

    chance: float
    share: float


class CheckedRankings(msgspec.Struct, frozen=True):
    """The rankings that the reference recomputed: draw, derivations and ranks.

    num_near_ties: rankings that differ, but only as the declared error of scores allows
    """

    num_rankings: int
    num_checked: int
    num_equal: int
    num_near_ties: int
    strength: Strength


class CheckedAgain(msgspec.Struct, frozen=True):
    """The candidates of the sample that the engine proved again, each by itself."""

    num_checked: int = 0
    num_equal: int = 0
    num_near_ties: int = 0


class CheckedModel(msgspec.Struct, frozen=True):
    """The check of the least model: whether the rules conclude exactly its atoms.

    is_complete:              whether every rule was applied to the whole model
    num_missing, missing:     the number of atoms that follow but are not in the model, and the first of them
    num_unsupported, unsupported: the number of its atoms that do not follow from others, and the first of them
    """

    num_atoms: int
    is_complete: bool
    num_missing: int
    missing: str
    num_unsupported: int
    unsupported: str


class SpotCheck(msgspec.Struct, frozen=True):
    """The check of some rankings and of single candidates by the reference.

    num_asked:            the number of derivations asked for
    key:                  the hash of all results, which selected the sample
    num_derived:          the candidates that the reference derived
    num_checked, num_equal, num_near_ties: counts of the single candidates; a near-tie differs from the reference because two
                          scores are closer than the declared error
    largest_error, bound: the largest difference of log-probabilities that agree, and the largest allowed difference, nats
    strength:             the strength of the sample of single candidates
    model:                the check of the least model, with `rank_only`
    differences:          the differences of single candidates and rankings, by query
    exercise:             the exercise of the reference's derivations of the sample
    again:                the candidates that this process proved again, including those of parts proved by an earlier process
    """

    num_asked: int
    key: str
    num_derived: int
    rankings: CheckedRankings
    differences: tuple[Difference, ...]
    num_checked: int = 0
    num_equal: int = 0
    num_near_ties: int = 0
    largest_error: float = 0.0
    bound: float = 0.0
    strength: Strength = Strength(0.0, 1.0)
    model: CheckedModel | None = None
    exercise: Exercise = NOT_EXERCISED
    again: CheckedAgain = CheckedAgain()

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        model = self.model
        return not self.differences and not (model and (model.num_missing or model.num_unsupported))


class QueryRank(msgspec.Struct, frozen=True):
    """The ranks of a query on a side, and the end of its true triple."""

    query: int
    head: str
    relation: str
    tail: str
    side: Annotated[str, msgspec.Meta(pattern="^(head|tail)$")]
    num_ranked: int
    optimistic: _Rank
    pessimistic: _Rank
    outcome: str
    log_probability: float


class EvaluationReport(
    ShownAsText, msgspec.Struct, frozen=True, tag_field="format", tag="kgverify evaluation report 1"
):
    """A finished evaluation.

    metrics:               PyKEEN's keys, `both.realistic.mean_reciprocal_rank`
    rank_only:             whether the `num_left_out` candidates that cannot affect a rank were skipped or stopped; the
                           following fields count the others, and the choices of all derivations
    outcomes:              the number of candidates by outcome; `open` ones are a fault of the engine
    true_outcomes:         the number of true triples by outcome, one for each ranking
    num_limited:           the number of candidates in whose derivations a limit dropped something
    num_choices, num_rescored, smallest_gap: the choices between two or more resolvents, the choices repeated in a higher
                           precision, and the smallest gap between their scores in nats; None if it was not measured
    num_parts_resumed:     the number of parts that an earlier run finished; the following fields are about the others
    accepted:              the changes of code between the parts that the user accepted, in words
    candidates_per_second: the throughput of all processes together; None if every part was finished before
    wrong_figures:         figures that do not follow from the rankings, or differ from the reference's metrics
    reference:             the name of the engine that also proved a sample
    minimum:               the exercise that is required of the sample
    triples_sha256:        the hash of the queries, the known triples and the domains
    ties:                  the scores that tie; a tied true triple has the mean of its optimistic and its pessimistic rank
    intervals:             the 95 % interval of each metric: percentiles of a bootstrap over queries
    ranks:                 the ranks of each query; `to_pandas` gives them as a data frame
    aggregate, num_unseen: the aggregation of rule confidences that gave the ranks, if no engine did
    num_confidences:       the number of rules with a confidence other than 1
    """

    kgverify: str
    graph: str
    split: str
    num_queries: int
    num_corruptions: int
    seed: int
    limits: Limits
    engine: EngineInfo
    identity: str
    metrics: dict[str, float]
    num_rankings: int
    num_candidates: int
    num_left_out: int
    outcomes: dict[str, int]
    true_outcomes: dict[str, int]
    num_limited: int
    num_choices: int
    num_rescored: int
    smallest_gap: float | None
    check: SpotCheck | None
    policy: str = ""
    policy_sha256: str = ""
    rank_only: bool = False
    num_parts: int = 1
    num_parts_resumed: int = 0
    num_processes: int = 1
    seconds: float = 0.0
    warm_up_seconds: float = 0.0
    candidates_per_second: float | None = None
    wrong_figures: tuple[str, ...] = ()
    reference: str = "reference"
    minimum: dict[str, int] = {}
    accepted: tuple[str, ...] = ()
    triples_sha256: str = ""
    ties: str = ""
    intervals: dict[str, tuple[float, float]] = {}
    ranks: tuple[QueryRank, ...] = ()
    aggregate: str = ""
    num_unseen: int = 0
    num_confidences: int = 0

    @property
    def reasons(self) -> tuple[Coded, ...]:
        """The reasons why the check is inconclusive if it found no difference."""
        if self.check is None:
            text = f"nothing was checked by {self.prover}; {advise_minimum()}"
            return (Code.NOTHING_COMPARED.mark(text),) if self.minimum else ()
        if self._follows_scores and not self.check.is_equal:
            reason = (
                f"{self.engine.name} chooses by its own scores, and {self.prover} by those of the policy {self.policy}"
            )
            advice = "check it with --reference ENGINE, an engine with the same scores"
            text = use_words(f"{reason}: other results are no evidence of a fault; {advice}")
            return (Code.OWN_SCORES.mark(text),)
        if self.check.num_near_ties and not self.check.num_equal:
            text = "no checked candidate is equal: all differ from a choice between nearly equal scores on"
            return (Code.AFTER_NEAR_TIES.mark(text),)
        actual = Exercise(outcomes={Outcome.PROVED.name: self.outcomes.get("proved", 0)})
        return explain_missing({"expected": self.check.exercise, "actual": actual}, self.minimum)

    @property
    def verdict(self) -> Verdict:
        """AGREE if every candidate ended, the checked ones agree with the reference, and all figures follow from the rankings.

        INCONCLUSIVE if all of this holds, but the checked candidates exercised too little, or differ while the engine follows
        scores of its own and the reference those of `shortest`.
        """
        is_equal = self.check is None or self.check.is_equal or self._follows_scores
        if self.outcomes.get("open") or not is_equal or self.wrong_figures:
            return Verdict.DIVERGE
        return Verdict.INCONCLUSIVE if self.reasons else Verdict.AGREE

    @property
    def _follows_scores(self) -> bool:
        """True if the engine chooses by its own scores, and kgverify's reference by the policy that nobody needs to name."""
        return self.engine.mode.endswith(FROM_SCORES) and self.reference in OWN_ENGINES and self.policy == SHORTEST.name

    @property
    def is_sound(self) -> bool:
        """True if the verdict is AGREE."""
        return self.verdict is Verdict.AGREE

    @property
    def prover(self) -> str:
        """The engine that proved the sample, in words."""
        return "the reference" if self.reference == "reference" else self.reference

    @property
    def rankings(self) -> Rankings:
        """The ranks as arrays. UserError without ranks, as in the file of an earlier version."""
        if not self.ranks:
            raise UserError("has no ranks of its queries", where="ranks", fix="evaluate again with this version")
        rows = [(r.query, Side[r.side.upper()], r.num_ranked, r.optimistic, r.pessimistic) for r in self.ranks]
        table = np.array(rows, [(name, kind) for name, kind in zip(Rankings._fields, _DTYPES, strict=True)])
        return Rankings(*(table[name] for name in Rankings._fields))

    @property
    def ranked_by(self) -> str:
        """The engine or the aggregation that gave the ranks, in words."""
        engine = self.engine
        if self.aggregate:
            unseen = f", {self.num_unseen:,} unseen predictions added to those of each rule" if self.num_unseen else ""
            return f"rule confidences, aggregated by {self.aggregate}{unseen}"
        faults = f", faults {', '.join(engine.faults)}" if engine.faults else ""
        (choices,) = describe_choices([engine], self.policy)
        return f"{engine.name} ({engine.mode}, {engine.device}, {engine.precision}{faults}), {choices}"

    def to_pandas(self, table: str = "queries") -> "pandas.DataFrame":
        """Return a table of the evaluation as a data frame of pandas.

        Args:
            table: `queries`, a row for each query and side; `relations`, the metrics of each relation and side, from realistic
                ranks; or `metrics`, all metrics, with their 95 % intervals for realistic ranks.

        Raises:
            UserError: There is no such table, or pandas is not installed.

        Example:
            >>> import kgverify as kv
            >>> report = kv.evaluate("countries", "reference", queries=1, corruptions=3)
            >>> report.to_pandas()[["head", "relation", "tail", "side", "realistic"]].values.tolist()[0]
            ['palau', 'locatedInCR', 'oceania', 'head', 1.0]
        """
        frame: pandas.DataFrame = to_pandas(list_evaluation(self, table))
        return frame

    def __str__(self) -> str:
        """Return the report as the terminal shows it, 120 columns wide."""
        return draw_text(lambda console: print_evaluation(self, console))


def _list_queries(report: EvaluationReport) -> Iterator[Row]:
    for each in report.ranks:
        yield msgspec.structs.asdict(each) | {"realistic": (each.optimistic + each.pessimistic) / 2}


def _list_relations(report: EvaluationReport) -> Iterator[Row]:
    relation, rankings = np.array([each.relation for each in report.ranks], object), report.rankings
    for name in dict.fromkeys(relation.tolist()):
        chosen = take_rows(rankings, np.flatnonzero(relation == name))
        metrics = compute_metrics(chosen)
        for side in SIDES:
            num = int((chosen.side == Side[side.upper()]).sum()) if side != "both" else len(chosen.side)
            values = {metric: metrics.get(f"{side}.realistic.{metric}") for metric in METRICS}
            if num:
                yield {"relation": name, "side": side, "num_rankings": num, **values}


def _list_metrics(report: EvaluationReport) -> Iterator[Row]:
    for key, value in report.metrics.items():
        low, high = report.intervals.get(key, (float("nan"), float("nan")))
        side, rank_type, metric = key.split(".")
        yield {"side": side, "rank_type": rank_type, "metric": metric, "value": value, "low": low, "high": high}


TABLES: Final[dict[str, tuple[dict[str, Any], Callable[[EvaluationReport], Iterator[Row]]]]] = {
    "queries": (
        {
            "query": int, "head": str, "relation": str, "tail": str, "side": str, "num_ranked": int, "optimistic": float,
            "realistic": float, "pessimistic": float, "outcome": str, "log_probability": float,
        },
        _list_queries,
    ),
    "relations": (
        {"relation": str, "side": str, "num_rankings": int, **dict.fromkeys(METRICS, float)},
        _list_relations,
    ),
    "metrics": (
        {"side": str, "rank_type": str, "metric": str, "value": float, "low": float, "high": float},
        _list_metrics,
    ),
}  # fmt: skip
"""The columns of each table of an evaluation, and the function that lists its rows."""


def list_evaluation(report: EvaluationReport, table: str) -> Table:
    """Return a table of an evaluation. UserError for an unknown one."""
    check_known(table, TABLES, "table", "table")
    columns, list_rows = TABLES[table]
    return Table(columns, list_rows(report))


class EvaluationComparison(
    ShownAsText, msgspec.Struct, frozen=True, tag_field="format", tag="kgverify evaluation comparison 1"
):
    """The paired comparison of two evaluations of the same queries.

    first, second: the engine or the aggregation of each, in words
    differences:   the difference of each metric of realistic ranks, by its key
    """

    graph: str
    split: str
    num_queries: int
    first: str
    second: str
    differences: dict[str, PairedDifference]

    def __str__(self) -> str:
        """Return the comparison as the terminal shows it, 120 columns wide."""
        return draw_text(self.print)

    def print(self, console: Screen) -> None:
        """Print the comparison."""
        head = f"COMPARED   {count_of(self.num_queries, 'query')} of {make_visible(self.graph or '?')}, {self.split}\n"
        sides = f"  first   {make_visible(self.first)}\n  second  {make_visible(self.second)}\n"
        grid = Grid(
            "realistic ranks",
            "first",
            "second",
            "difference",
            "95 % interval",
            "p",
            "differ",
            box=None,
            padding=(0, 3, 0, 0),
        )
        rows = [
            (
                metric, f"{each.first:.4f}", f"{each.second:.4f}", f"{each.difference:+.4f}",
                f"{each.low:+.4f} to {each.high:+.4f}", f"{each.p_value:.2g}", f"{each.num_differing:,}",
            )
            for metric in METRICS
            for each in [self.differences[f"both.realistic.{metric}"]]
        ]  # fmt: skip
        how = f"interval: Student's paired t over queries, from those that differ; p: sign-flip test, {FLIPS:,} flips"
        console.print(Group(Text(head + sides), FittedTable(grid, rows, may_fold=False), Text(f"\n{how}")))


def print_evaluation(report: EvaluationReport, console: Screen, diff_command: str = "") -> None:
    """Print the summary and, if the reference disagrees, the command to run next."""
    # Printed together, they would be joined to text that is folded without an indent.
    console.print(Group(_headline(report), _metrics(report), _facts(report)))
    if report.verdict is Verdict.DIVERGE:
        console.print(_differences(report, diff_command), soft_wrap=True)


def _headline(report: EvaluationReport) -> Text:
    name = "EVALUATED" if report.is_sound else report.verdict.value
    corruptions = "all corruptions" if report.num_corruptions < 0 else count_of(report.num_corruptions, "corruption")
    lines = [
        f"  graph {report.graph or '?'}, {count_of(report.num_queries, 'query')} of {report.split}, {corruptions},"
        f" seed {report.seed}",
        f"  {report.ranked_by}",
        *(f"  because {reason}" for reason in report.reasons if report.verdict is Verdict.INCONCLUSIVE),
    ]
    text = Text(name, style=STYLES[report.verdict])
    text.append(
        f"   {count_of(report.num_candidates, 'candidate')} in {count_of(report.num_rankings, 'ranking')}\n", "default"
    )
    return text.append("".join(f"{make_visible(line)}\n" for line in lines), "default")


def _metrics(report: EvaluationReport) -> FittedTable:
    shown = {key: f"{value:.4f}" for key, value in report.metrics.items()}
    rows = {metric: [shown.get(f"{side}.realistic.{metric}", "-") for side in SIDES] for metric in METRICS}
    intervals = {key: f"{low:.4f} to {high:.4f}" for key, (low, high) in report.intervals.items()}
    for metric, cells in rows.items():
        cells += [intervals.get(f"both.realistic.{metric}", "-")] * bool(intervals)
    return fit_metrics("realistic ranks", rows, *["both, 95 %"] * bool(intervals))


def _facts(report: EvaluationReport) -> Text:
    faults, gap = ", ".join(report.engine.faults), report.smallest_gap
    of_check = describe_limits(report.limits, report.check.exercise) if report.check is not None else []
    lines = {
        "outcomes": f"{_counts(report.outcomes)}; {report.num_limited:,} limited",
        "true triples": _counts(report.true_outcomes),
        "note": f"the planted {faults} changed no result that was checked"
        if faults and report.verdict is not Verdict.DIVERGE
        else "",
        "left out": f"{report.num_left_out:,} of {count_of(report.num_candidates, 'candidate')}, which are not provable"
        " and cannot affect a rank"
        if report.rank_only
        else "",
        "choices": f"{report.num_choices:,}, of which {report.num_rescored:,} repeated in higher precision;"
        f" smallest gap {gap:.3g} nats"
        if gap is not None
        else "",
        "limits": f";\n{'':<13} ".join(of_check),
        "rules": (
            "each applied once, its body matched in facts alone, different variables for different constants"
            if report.aggregate
            else f"the confidences of {report.num_confidences:,} were read and not used: --aggregate ranks by them"
        )
        if report.num_confidences or report.aggregate
        else "",
        "ties": f"{report.ties}; all known triples are filtered" if report.aggregate else "",
        "reused": _describe_reuse(report),
        "speed": _speed(report) if not report.aggregate else "",
        **_check(report.check, make_visible(report.prover)),
    }
    return Text("".join(f"\n{name:<13} {make_lines_visible(text)}" for name, text in lines.items() if text))


def _describe_reuse(report: EvaluationReport) -> str:
    if not report.num_parts_resumed:
        return ""
    code = "other code, as accepted" if report.accepted else "the same code"
    parts = f"{report.num_parts_resumed:,} of {count_of(report.num_parts, 'part')}, finished before by {code}"
    return f"\n{'':<13} ".join([parts, *report.accepted])


def _counts(counts: dict[str, int]) -> str:
    words = {"open": "left open", "depth_limit": "at the depth limit"}
    return ", ".join(f"{num:,} {words.get(name, name)}" for name, num in counts.items() if num or name == "proved")


def _speed(report: EvaluationReport) -> str:
    if report.candidates_per_second is None:
        return "every part was finished before"
    rate = report.candidates_per_second
    each = f"{1e6 / rate:,.0f}" if rate < 1e4 else f"{1e6 / rate:.3g}"
    processes = "" if report.num_processes == 1 else f" by {count_of(report.num_processes, 'process')}"
    parts = f"{report.num_parts - report.num_parts_resumed:,} of {count_of(report.num_parts, 'part')}"
    rest = f"; {report.num_parts_resumed:,} were finished before" if report.num_parts_resumed else ""
    return (
        f"{rate:,.0f} candidates/s, {each} µs each{processes}:"
        f" {parts} in {report.seconds:,.1f} s after {report.warm_up_seconds:,.1f} s of warm-up{rest}"
    )


def _check(check: SpotCheck | None, prover: str) -> dict[str, str]:
    if check is None:
        return {"check": "none"}
    rankings, model = check.rankings, check.model
    return {
        "check": f"{check.num_checked:,} also proved by {prover}: {_compared(check)};"
        f" scores {check.largest_error:.2g} nats apart, {check.bound:.2g} allowed"
        if check.num_checked
        else "",
        "proved again": f"{check.again.num_checked:,} by themselves: {_compared(check.again)}"
        if check.again.num_checked
        else "",
        "exercised": describe_exercise(check.exercise),
        "rankings": f"{rankings.num_checked:,} of {rankings.num_rankings:,} recomputed by {prover}: {_compared(rankings)}"
        + (f"; the check took {count_of(check.num_derived, 'derivation')}" if check.num_checked else ""),
        "least model": f"{count_of(model.num_atoms, 'atom')}, {model.num_missing:,} missing"
        f" and {model.num_unsupported:,} unsupported by the rules"
        f"{'' if model.is_complete else '; too large to be checked completely'}"
        if model is not None
        else "",
        "confidence": (
            f"a defect in 1 % of the rankings would have been seen with {_percent(rankings.strength.chance)},"
            f" in 1 % of the candidates with {_percent(check.strength.chance)};\n{'':<13} "
            f"with 99 %, one in {_percent(rankings.strength.share)} or {_percent(check.strength.share)}"
            if check.num_checked
            else f"a defect in 1 % of the rankings would have been seen with {_percent(rankings.strength.chance)};"
            f" with 99 %, one in {_percent(rankings.strength.share)}"
        ),
    }


def _compared(check: SpotCheck | CheckedRankings | CheckedAgain) -> str:
    ties = f", {check.num_near_ties:,} differ from a near-tie on" if check.num_near_ties else ""
    num_different = check.num_checked - check.num_equal - check.num_near_ties
    return f"{check.num_equal:,} equal{ties}, {num_different:,} different"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _differences(report: EvaluationReport, diff_command: str) -> Text:
    check = report.check
    model = check.model if check else None
    lines = [f"wrong figure: {figure}" for figure in report.wrong_figures]
    if model and model.num_missing:
        lines.append(f"the least model misses {model.missing}, which follows from its atoms")
    if model and model.num_unsupported:
        lines.append(f"the least model has {model.unsupported}, which does not follow from its atoms")
    text = Text("".join(f"\n{make_visible(line)}" for line in lines))
    if not check or not check.differences:
        return text
    first = check.differences[0]
    text.append(f"\n{len(check.differences):,} results differ from {make_visible(report.prover)}; the first", "bold")
    for line in (
        f"  {first.atom} (query {first.query}, {first.side} side)",
        f"  expected   {first.expected}",
        f"  actual     {first.actual}",
    ):
        text.append(f"\n{make_visible(line)}")
    if model and model.num_missing:
        text.append(use_words("\n\nnext\n  leave --rank-only out: without the least model all candidates are proved"))
    elif diff_command:
        text.append(f"\n\nnext\n  {make_visible(diff_command)}   # shows the step and the stage")
    return text
