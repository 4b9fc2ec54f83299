"""The judgement of two compared sides, run by engines or recorded: the checks before a verdict, and the report."""

import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import StepSource
from kgverify.comparison.compare import Comparer
from kgverify.comparison.exercise.count import count_exercise
from kgverify.comparison.exercise.exercise import Exercised, Minimum, explain_missing
from kgverify.comparison.result import DIGEST, Cause, Comparison, Coverage, Verdict
from kgverify.comparison.step_view import outcome_name
from kgverify.errors import InternalError
from kgverify.program.outcomes import Outcome
from kgverify.ranking.rank import compute_metrics
from kgverify.report.content import Environment, Metrics, Outcomes, find_first
from kgverify.report.report import Report
from kgverify.runs.environment import note_self_test
from kgverify.trace.model.columns import Rankings
from kgverify.trace.model.header import EngineInfo, Header
from kgverify.trace.model.trace import Trace
from kgverify.verification.planted_changes import (
    check_causes,
    check_numbers,
    check_verdict,
    plant_changes,
    recount_causes,
)
from kgverify.verification.rounding import describe_rounding, name_way_out
from kgverify.version import __version__

_FIELDS: Final = {"proved": ("outcomes",), "rules": ("rules", "num_rules", "unused_rules")}
"""The fields of `Exercise` that hold an item of evidence, if it is not its own field."""


def judge_exercise(
    comparison: Comparison, sources: tuple[StepSource, StepSource], outcomes: Outcomes, minimum: Minimum
) -> tuple[Comparison, Exercised]:
    """Return the comparison, INCONCLUSIVE instead of AGREE if a side exercised less than the minimum, and the exercise."""
    wanted = minimum if comparison.verdict is Verdict.AGREE else {}
    expected = count_exercise(sources[0], outcomes.expected, wanted)
    # Large traces that are equal in every column exercise the same.
    is_same = expected.counted != expected.steps and is_equal(comparison)
    exercised = Exercised(expected, expected if is_same else count_exercise(sources[1], outcomes.actual, wanted))
    hidden, exercised = _judge_unknown(comparison.coverage, exercised, sources, wanted)
    faults = [source.header.engine.faults for source in sources]
    is_idle = comparison.verdict is Verdict.AGREE and not comparison.near_ties and not comparison.benign
    notes = (*comparison.notes, *describe_idle(*faults)) if is_idle else comparison.notes
    comparison = msgspec.structs.replace(comparison, notes=notes)
    reasons = explain_missing({"expected": exercised.expected, "actual": exercised.actual}, wanted, hidden)
    if reasons:
        comparison = msgspec.structs.replace(comparison, verdict=Verdict.INCONCLUSIVE, reasons=reasons)
    return comparison, exercised


def _judge_unknown(
    coverage: Coverage, exercised: Exercised, sources: Sequence[StepSource], minimum: Minimum
) -> tuple[dict[str, list[str]], Exercised]:
    """Return the sides whose exercise of an item stays unknown, and the exercise with what the other side shows.

    Equal resolvents were made by the same clauses, and equal choices lead to the same outcomes. An item that neither side
    knows is not required where steps were compared in both.
    """
    absent = {name for source in sources for name in source.header.absent}
    compared = set(coverage.fields) if coverage.steps else set()
    if DIGEST in compared:
        compared |= {"resolvents.atoms", "steps.choice"} - absent
    has_resolvents = "resolvents.atoms" in compared
    is_followed = has_resolvents and "steps.choice" in compared
    sides = msgspec.structs.asdict(exercised)
    hidden: dict[str, list[str]] = {}
    for name in minimum:
        unknown = [role for role, side in sides.items() if getattr(side, name) is None]
        if len(unknown) == 1 and (is_followed or (has_resolvents and name == "rules")):
            own, other = sides[unknown[0]], next(side for role, side in sides.items() if role not in unknown)
            values = {field: getattr(other, field) for field in _FIELDS.get(name, (name,))}
            sides[unknown[0]] = msgspec.structs.replace(own, inferred=(*own.inferred, name), **values)
        elif unknown and not is_followed:
            hidden[name] = unknown
    return hidden, Exercised(**sides)


def describe_same(expected: EngineInfo, actual: EngineInfo) -> list[str]:
    """Return a note that both sides are of one engine in one mode; nothing if they are not."""
    if expected != actual:
        return []
    return [f"both sides are of the same engine, {actual.name}, so a fault of it is in both"]


def is_equal(comparison: Comparison) -> bool:
    """Return whether nothing differs in any column, not even in bits."""
    found = comparison.near_ties, comparison.benign, comparison.coverage.not_compared
    return comparison.verdict is Verdict.AGREE and comparison.level is None and not any(found)


def describe_idle(expected: Sequence[str], actual: Sequence[str]) -> list[str]:
    """Return a note that the faults planted in one side alone changed nothing; without faults nothing."""
    planted = [*(each for each in expected if each not in actual), *(each for each in actual if each not in expected)]
    if not planted:
        return []
    return [
        f"the planted fault{'' if len(planted) == 1 else 's'} {', '.join(planted)} changed no step, outcome or rank"
    ]


class Explained(NamedTuple):
    """Two sides that were compared, whose divergences have causes.

    parts:    what the divergences were found by; the first one compared the runs as a whole
    recorded: both sides as they were recorded, whose exercise is counted
    sources:  both sides as they were compared
    ranked:   both sides with the ranks that were compared
    """

    comparison: Comparison
    causes: tuple[Cause, ...]
    parts: tuple[Comparer, ...]
    recorded: tuple[StepSource, StepSource]
    sources: tuple[StepSource, StepSource]
    ranked: Sequence[Trace | StepSource]


def judge(
    found: Explained,
    minimum: Minimum,
    *,
    withhold: Callable[[Comparison], Comparison],
    notes: Sequence[str] = (),
    later_notes: Sequence[str] = (),
    **about: Any,
) -> Report:
    """Return the report of two sides. InternalError, and no verdict, if the comparison fails a check of its own.

    withhold: makes AGREE inconclusive if there is too little evidence, and adds notes
    notes, later_notes: the notes before those on rounding, and after them
    about:    further fields of the report
    """
    whole, causes = found.parts[0], found.causes
    check_verdict(found.comparison, found.parts)
    check_causes(found.comparison, causes)
    recount_causes(found.parts, found.comparison.divergences, causes)
    codes = [source.gather_column("outcome", np.arange(source.num_candidates)) for source in found.sources]
    outcomes = Outcomes(*map(count_outcomes, codes))
    comparison, exercised = judge_exercise(found.comparison, found.recorded, outcomes, minimum)
    comparison = withhold(comparison)
    metrics = _compute_metrics(*(side.rankings for side in found.ranked))
    check_numbers(outcomes, metrics, codes, [side.rankings for side in found.ranked])
    rounding = (*describe_rounding(comparison), *name_way_out(whole, comparison))
    comparison = msgspec.structs.replace(
        comparison,
        self_test=plant_changes(found.parts),
        notes=(*comparison.notes, *notes, *rounding, *later_notes, *_note_proofs(outcomes)),
    )
    headers = [source.header for source in found.sources]
    return Report(
        **msgspec.structs.asdict(comparison),
        metrics=metrics,
        first_cause=find_first(comparison, causes),
        run=headers[0].run,
        limits=headers[0].limits,
        policy=headers[0].policy,
        environment=describe_environment(*headers),
        causes=causes,
        outcomes=outcomes,
        exercise=exercised,
        minimum=dict(minimum),
        **about,
    )


def describe_environment(expected: Header, actual: Header) -> Environment:
    """Describe this machine and both engines."""
    return Environment(
        kgverify=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        num_cpus=os.cpu_count() or 1,
        expected=expected.engine,
        actual=actual.engine,
        self_test=note_self_test(),
    )


def count_outcomes(outcomes: NDArray[np.int8]) -> dict[str, int]:
    """Count the outcomes of candidates, by name."""
    values, counts = np.unique(outcomes, return_counts=True)
    return {outcome_name(value): num for value, num in zip(values.tolist(), counts.tolist(), strict=True)}


def _note_proofs(outcomes: Outcomes) -> list[str]:
    """Return a note on a difference in the number of proofs, which readers look for first."""
    sides = outcomes.expected, outcomes.actual
    num = [sum(side.values()) for side in sides]
    proved = [side.get(Outcome.PROVED.name, 0) for side in sides]
    if proved[0] == proved[1]:
        return []
    note = f"{proved[0]:,} of {num[0]:,} candidates proved expected, {proved[1]:,} of {num[1]:,} actual"
    return [note if proved[1] else f"no candidate was proved by the actual side: {note}"]


def _compute_metrics(expected: Rankings | None, actual: Rankings | None) -> Metrics:
    """Compute the expected metrics by the reference, and the actual ones by `kgverify.ranking`.

    InternalError if the two disagree on the same ranks.
    """
    from kgverify.engines.reference.ranking import compute_metrics as compute_by_reference

    computed = []
    for rankings, compute, check in (
        (expected, compute_by_reference, compute_metrics),
        (actual, compute_metrics, compute_by_reference),
    ):
        ranks = rankings if rankings is not None and len(rankings.query) else None
        computed.append({} if ranks is None else compute(ranks))
        if ranks is not None and check(ranks) != computed[-1]:
            raise InternalError("the reference computes other metrics from the same ranks")
    return Metrics(*computed)
