"""The figures of an evaluation, recomputed from its rankings: these are the queries asked, and the reference's metrics agree."""

import numpy as np

from kgverify.evaluation.part_file import PartResult
from kgverify.program.outcomes import Outcome
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.run import Run


def find_wrong_figures(
    run: Run, results: PartResult, report: EvaluationReport, metrics: dict[str, float]
) -> tuple[str, ...]:
    """Describe every figure of the report that does not follow from its rankings, the results of all parts.

    metrics: the reference's, of the same rankings
    """
    return (
        *_check_rankings(run, results, report),
        *_check_counts(results, report),
        *(
            f"{name} is {report.metrics.get(name)}, by the reference {metrics.get(name)}"
            for name in sorted({*metrics, *report.metrics})
            if metrics.get(name) != report.metrics.get(name)
        ),
    )


def _check_rankings(run: Run, results: PartResult, report: EvaluationReport) -> list[str]:
    num = min(run.num_queries, len(run.graph.queries(run.split)))
    asked = np.arange(2 * num)
    found = results.query.astype(np.int64) * 2 + results.side
    wrong = []
    if not np.array_equal(found, asked):
        odd = np.setxor1d(found, asked)
        which = f"; the first: query {odd[0] // 2}, side {odd[0] % 2}" if len(odd) else ", repeated or in another order"
        wrong.append(f"{len(asked):,} rankings were asked for and {len(found):,} were computed{which}")
    if (report.num_queries, report.num_rankings) != (num, len(asked)):
        wrong.append(f"{report.num_rankings:,} rankings of {report.num_queries:,} queries are reported")
    best, worst = results.optimistic, results.pessimistic
    is_rank = (best >= 1) & (best <= worst) & (worst <= results.num_ranked) & (best % 1 == 0) & (worst % 1 == 0)
    if not is_rank.all():
        row = int(np.argmin(is_rank))
        wrong.append(
            f"query {results.query[row]}, side {results.side[row]} has rank {best[row]:g} to {worst[row]:g}"
            f" among {results.num_ranked[row]}"
        )
    return wrong


def _check_counts(results: PartResult, report: EvaluationReport) -> list[str]:
    num_ranked = results.num_ranked.astype(np.int64)
    by_outcome = results.num_outcomes.astype(np.int64).T
    num_proved = by_outcome.sum(0)
    pairs = {
        "candidates": (num_ranked.sum(), report.num_candidates),
        "limited candidates": (results.num_limited.sum(dtype=np.int64), report.num_limited),
        "candidates left out": ((num_ranked - num_proved).sum(), report.num_left_out),
        "choices": (sum(results.num_choices.tolist()), report.num_choices),
        "choices made again": (sum(results.num_rescored.tolist()), report.num_rescored),
    }
    for outcome in Outcome:
        name = outcome.name.lower()
        pairs[f"{name} candidates"] = by_outcome[outcome].sum(), report.outcomes[name]
        pairs[f"{name} true triples"] = (results.outcome == outcome).sum(), report.true_outcomes[name]
    wrong = [
        f"{actual:,} {name} are reported, and the rankings have {expected:,}"
        for name, (expected, actual) in pairs.items()
        if expected != actual
    ]
    smallest = min(results.smallest_gap.tolist())
    if report.smallest_gap != (None if smallest == float("inf") else smallest):
        wrong.append(f"the smallest gap of a choice is {report.smallest_gap}, and of the parts' {smallest}")
    is_counted = num_proved <= num_ranked if report.rank_only else num_proved == num_ranked
    if not is_counted.all():
        row = int(np.argmin(is_counted))
        wrong.append(
            f"query {results.query[row]}, side {results.side[row]} has {num_ranked[row]:,} candidates,"
            f" and outcomes of {num_proved[row]:,}"
        )
    return wrong
