"""The judgement of two compared sides, whether run by engines or recorded: the checks before a verdict, and the report."""

import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code
from kgverify.comparison.comparable import StepSource, searches
from kgverify.comparison.compare import Comparer
from kgverify.comparison.equality import Equality
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
"""The fields of `Exercise` that hold an item of evidence, if they are not just the field of the same name."""


class Effort(NamedTuple):
    """The limits on the work that is done in full. `LITTLE` lets known runs reach each limit with little work.

    replayed: the number of divergences replayed one by one. A further divergence gets the stage and the class of those
              with similar recorded steps, if they all have the same ones; but every tenth is replayed
    alone:    the number of derivations run without others, to distinguish faults of the batch machinery from a state
              that was handed on wrongly
    exact:    the most causes for which every subset is evaluated to split the loss
    samples:  the number of orders of the causes that are drawn if there are more causes
    explained: the number of causes whose conditions are sought
    """

    replayed: int = 200
    alone: int = 20
    exact: int = 8
    samples: int = 200
    explained: int = 12

    def replays(self, number: int) -> bool:
        """Return whether a divergence, counted from 0, is replayed even if similar ones were."""
        return number < self.replayed or number % 10 == 0


FULL: Final = Effort()
UNEXPLAINED: Final = FULL._replace(explained=0)
"""The effort for a divergence if only its stage and class matter."""
LITTLE: Final = Effort(replayed=6, alone=2, exact=3, samples=5, explained=0)
"""The effort for known answers."""


def judge_exercise(
    comparison: Comparison, sources: tuple[StepSource, StepSource], outcomes: Outcomes, minimum: Minimum
) -> tuple[Comparison, Exercised]:
    """Return the comparison and the exercise. AGREE becomes INCONCLUSIVE if a side exercised less than the minimum."""
    wanted = minimum if comparison.verdict is Verdict.AGREE else {}
    expected = count_exercise(sources[0], outcomes.expected, wanted)
    # Large traces that are equal in every column have the same exercise.
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
    """Fill unknown items of exercise from the other side; return the sides for which an item stays unknown, and the result.

    Equal resolvents were made by the same clauses, and equal choices lead to the same outcomes. An item that neither side
    knows is not required if the resolvents and choices of both were compared.
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
    """Return a note if both sides ran the same engine in the same mode."""
    if expected != actual:
        return []
    return [f"both sides are of the same engine, {actual.name}, so a fault of it is in both"]


def is_equal(comparison: Comparison) -> bool:
    """Return whether all columns are equal, even in bits."""
    found = comparison.near_ties, comparison.benign, comparison.coverage.not_compared
    return comparison.verdict is Verdict.AGREE and comparison.level is None and not any(found)


def describe_idle(expected: Sequence[str], actual: Sequence[str]) -> list[str]:
    """Return a note that the faults planted in only one side had no effect; return nothing without such faults."""
    planted = [*(each for each in expected if each not in actual), *(each for each in actual if each not in expected)]
    if not planted:
        return []
    return [
        f"the planted fault{'' if len(planted) == 1 else 's'} {', '.join(planted)} changed no step, outcome or rank"
    ]


def require_shown(equality: Equality, expected: EngineInfo) -> Minimum:
    """Return the exercise that AGREE requires: by default, only proofs if the expected engine searched."""
    if equality.minimum is not None or not searches(expected):
        return equality.required
    return {name: number for name, number in equality.required.items() if name == "proved"}


def judge_search(comparison: Comparison, recorded: StepSource, compared: StepSource) -> Comparison:
    """Add what the expected side left undecided, if it searched. AGREE becomes INCONCLUSIVE if it decided no proof."""
    if not searches(recorded.header.engine):
        return comparison
    found, settled = (side.read_column("outcome") for side in (recorded, compared))
    num_open = int((found == Outcome.OPEN).sum())
    num_deep = int(((found == Outcome.DEPTH_LIMIT) & (settled != Outcome.PROVED)).sum())
    undecided = [
        f"{num:,} {what}"
        for num, what in (
            (num_deep, f"follow only by proofs of more than max_depth ({recorded.header.limits.max_depth}) clauses"),
            (num_open, "were not decided before the search's budget of work ended"),
        )
        if num
    ]
    name = recorded.header.engine.name
    notes = [f"the expected side is the reference {name}: any proof counts, not only that on the path of the policy"]
    if undecided:
        notes.append(
            f"undecided, counted apart and no divergence: {' and '.join(undecided)}, of {len(found):,} candidates"
        )
    comparison = msgspec.structs.replace(comparison, notes=(*comparison.notes, *notes))
    if comparison.verdict is not Verdict.AGREE or not num_open or (found == Outcome.PROVED).any():
        return comparison
    ended = Code.SEARCH_ENDED.mark(f"{name} found no proof before its budget of work ended")
    reasons = (*comparison.reasons, ended)
    return msgspec.structs.replace(comparison, verdict=Verdict.INCONCLUSIVE, reasons=reasons)


class Explained(NamedTuple):
    """Two compared sides whose divergences have causes.

    parts:    the comparers that found the divergences; the first one compared the runs as a whole
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
    proves: bool = True,
    **about: Any,
) -> Report:
    """Return the report of two sides. InternalError, without a verdict, if the comparison fails one of its own checks.

    withhold: a function that makes AGREE inconclusive if there is too little evidence, and adds notes
    notes, later_notes: the notes before and after those on rounding
    proves:   whether the expected candidates were proved from their queries, so that the number of proofs can be compared
    about:    further fields of the report
    """
    whole, causes = found.parts[0], found.causes
    check_verdict(found.comparison, found.parts)
    check_causes(found.comparison, causes)
    recount_causes(found.parts, found.comparison.divergences, causes)
    codes = [source.read_column("outcome") for source in found.sources]
    outcomes = Outcomes(*map(count_outcomes, codes))
    comparison, exercised = judge_exercise(found.comparison, found.recorded, outcomes, minimum)
    comparison = withhold(judge_search(comparison, found.recorded[0], found.sources[0]))
    metrics = compute_both_metrics(*(side.rankings for side in found.ranked))
    check_numbers(outcomes, metrics, codes, [side.rankings for side in found.ranked])
    stated = outcomes if proves else Outcomes(actual=outcomes.actual)
    rounding = (*describe_rounding(comparison), *name_way_out(whole, comparison))
    comparison = msgspec.structs.replace(
        comparison,
        self_test=plant_changes(found.parts),
        notes=(
            *comparison.notes,
            *notes,
            *rounding,
            *later_notes,
            *(() if "candidates.outcome" in whole.not_compared else _note_proofs(stated)),
        ),
    )
    return make_report(
        comparison,
        (found.sources[0].header, found.sources[1].header),
        metrics=metrics,
        causes=causes,
        outcomes=stated,
        exercise=exercised,
        minimum=dict(minimum),
        **about,
    )


def make_report(comparison: Comparison, headers: tuple[Header, Header], **about: Any) -> Report:
    """Return the report of a comparison of two sides with these headers; `about` are further fields."""
    return Report(
        **msgspec.structs.asdict(comparison),
        first_cause=find_first(comparison),
        run=headers[0].run,
        limits=headers[0].limits,
        policy=headers[0].policy,
        environment=describe_environment(*headers),
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
    """Count the candidates with each outcome, by name."""
    values, counts = np.unique(outcomes, return_counts=True)
    return {outcome_name(value): num for value, num in zip(values.tolist(), counts.tolist(), strict=True)}


def _note_proofs(outcomes: Outcomes) -> list[str]:
    """Return a note on a difference in the number of proofs, the first thing that readers look for."""
    sides = outcomes.expected, outcomes.actual
    num = [sum(side.values()) for side in sides]
    proved = [side.get(Outcome.PROVED.name, 0) for side in sides]
    if proved[0] == proved[1] or not num[0]:
        return []
    note = f"{proved[0]:,} of {num[0]:,} candidates proved expected, {proved[1]:,} of {num[1]:,} actual"
    return [note if proved[1] else f"no candidate was proved by the actual side: {note}"]


def compute_both_metrics(expected: Rankings | None, actual: Rankings | None) -> Metrics:
    """Compute the expected metrics with the reference, and the actual metrics with `kgverify.ranking`.

    InternalError if both compute different metrics from the same ranks.
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
