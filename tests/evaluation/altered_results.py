"""Results of an evaluation that are altered in one value, which its check must find wrong."""

from collections.abc import Iterator
from copy import copy
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import InternalError
from kgverify.evaluation.closure import check_model
from kgverify.evaluation.judge import ComparedCandidates, ComparedRanking, Judge, find_wrong_figures, word_outcome
from kgverify.evaluation.parts import PartResult
from kgverify.program.outcomes import Outcome
from kgverify.program.program import Program
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.run import Run
from kgverify.trace.model.columns import Candidates


def find_altered_candidates(judge: Judge, sample: Candidates, compared: ComparedCandidates) -> int:
    """Alter the first and the last equal candidate of a sample, and return the number of alterations, all of them found.

    InternalError for one that is not found.
    """
    rows = np.flatnonzero(compared.is_equal & ~judge.find_endings(sample.atom).is_unclear)
    altered = [
        (name, row, sample._replace(**{name: _set(getattr(sample, name), row, change)}))
        for row in dict.fromkeys(rows[[0, -1]].tolist() if len(rows) else [])
        for name, change in (
            ("outcome", (sample.outcome[row] + 1) % len(Outcome)),
            ("is_limited", 1 - sample.is_limited[row]),
            ("log_probability", sample.log_probability[row] + 2 * compared.bound[row] + 1e-6),
            ("log_probability", sample.log_probability[row] - 2 * compared.bound[row] - 1e-6),
        )
    ]
    for name, row, other in altered:
        if row not in judge.compare_single(other).wrong.tolist():
            raise InternalError(f"the check did not find that {name} of candidate {row} was altered")
    return len(altered)


def with_results(judge: Judge, results: PartResult) -> Judge:
    """Return a judge of other results."""
    other = copy(judge)
    other.results = results
    return other


def find_altered_rankings(judge: Judge, compared: list[ComparedRanking], ranks: list[tuple[float, float]]) -> int:
    """Alter every figure of the first and the last equal ranking; otherwise like `find_altered_candidates`."""
    equal = [i for i, each in enumerate(compared) if each.is_equal]
    num = 0
    for i in dict.fromkeys([equal[0], equal[-1]] if equal else []):
        drawn = compared[i].drawn
        for name, results in _alter(judge.results, drawn.row, compared[i]):
            (found,) = with_results(judge, results).compare_rankings([drawn], [ranks[i]])
            if found.wrong is None:
                raise InternalError(f"the check did not find that {name} of ranking {drawn.row} was altered")
            num += 1
    return num


def _alter(results: PartResult, row: int, compared: ComparedRanking) -> Iterator[tuple[str, PartResult]]:
    """Yield results with one value altered, by more than errors within the bounds explain."""
    figures = {each.name: each for each in compared.figures}
    num = int(results.num_ranked[row])
    changes: list[tuple[str, int | float]] = [("num_ranked", num + 1)]
    for name in ("optimistic", "pessimistic"):
        figure = figures[f"{name} rank"]
        changes += [(name, figure.low - 1), (name, figure.high + 1)]
    if np.isfinite(figures["log-probability of the true triple"].high):
        changes.append(("outcome", (int(results.outcome[row]) + 1) % len(Outcome)))
        margin = 2 * figures["log-probability of the true triple"].margin + 1e-6
        changes += [("log_probability", results.log_probability[row] + sign * margin) for sign in (-1, 1)]
    if results.drawn[row]:  # 0 where they were not listed
        changes.append(("drawn", int(results.drawn[row]) ^ 1))
    if "candidates limited" in figures:
        changes.append(("num_limited", int(figures["candidates limited"].high) + 1))
    for name, value in changes:
        yield name, results._replace(**{name: _set(getattr(results, name), row, value)})
    for outcome in Outcome:
        counted = figures.get(f"candidates {word_outcome(outcome)}")
        if counted is None:
            continue
        counts = results.num_outcomes[row].copy()
        donor = max((each for each in Outcome if each != outcome), key=counts.__getitem__)
        surplus = int(counted.high) + 1 - int(counts[outcome])
        # As many in all as before, unless only what is PROVED must be counted: no sum shows it.
        left = int(counts[donor]) - surplus
        if left >= 0 or outcome is Outcome.PROVED:
            counts[[outcome, donor]] = counted.high + 1, max(0, left)
            yield "num_outcomes", results._replace(num_outcomes=_set(results.num_outcomes, row, counts))


def find_altered_figures(run: Run, results: PartResult, report: EvaluationReport, metrics: dict[str, float]) -> int:
    """Alter every figure of a report that follows from its rankings; otherwise like `find_altered_candidates`."""
    replace = msgspec.structs.replace
    counts = (
        "num_candidates",
        "num_limited",
        "num_left_out",
        "num_queries",
        "num_rankings",
        "num_choices",
        "num_rescored",
    )
    reports = [(name, replace(report, **{name: getattr(report, name) + 1})) for name in counts]
    reports.append(("smallest_gap", replace(report, smallest_gap=(report.smallest_gap or 0.0) + 1)))
    for name in ("metrics", "outcomes", "true_outcomes"):
        of = getattr(report, name)
        reports += [
            (
                f"{name}.{key}",
                replace(report, **{name: of | {key: np.nextafter(value, 2) if name == "metrics" else value + 1}}),
            )
            for key, value in of.items()
        ]
    last = len(results.query) - 1
    altered = [(name, results, each) for name, each in reports]
    altered += [
        (name, results._replace(**{name: _set(getattr(results, name), row, value)}), report)
        for name, row, value in (
            ("query", 0, last + 1),
            ("side", last, 0),
            ("optimistic", 0, 0.5),
            ("pessimistic", last, float(results.num_ranked[last]) + 1),
        )
    ]
    if not report.rank_only:
        # A candidate that is lost, and reported as left out.
        counts_of_last = results.num_outcomes[last].copy()
        outcome = Outcome(int(counts_of_last.argmax()))
        counts_of_last[outcome] -= 1
        outcomes = report.outcomes | {outcome.name.lower(): report.outcomes[outcome.name.lower()] - 1}
        lost = results._replace(num_outcomes=_set(results.num_outcomes, last, counts_of_last))
        altered.append(("num_outcomes", lost, replace(report, outcomes=outcomes, num_left_out=report.num_left_out + 1)))
    for name, other, each in altered:
        if not find_wrong_figures(run, other, each, metrics):
            raise InternalError(f"the check did not find that {name} was altered")
    return len(altered)


def find_removed_atom(program: Program, keys: NDArray[np.int64], key: int) -> int:
    """Remove a derived atom from a closed model; otherwise like `find_altered_candidates`."""
    size = max(1, len(program.symbols.constants))
    facts = program.facts.astype(np.int64)
    derived = np.setdiff1d(keys, (facts[:, 0] * size + facts[:, 1]) * size + facts[:, 2], assume_unique=True)
    if not len(derived):
        return 0
    removed = derived[key % len(derived)]
    rules = [rule for rule in program.rules if rule.clause_head.predicate == removed // size**2]
    found = check_model(program, keys[keys != removed], rules=rules)
    if found.is_complete and not len(found.missing):
        raise InternalError("the check did not find that an atom was removed from the least model")
    return 1


def _set(column: NDArray[Any], row: int, value: Any) -> Any:
    altered = column.copy()
    altered[row] = value
    return altered
