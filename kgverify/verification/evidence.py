"""The judgement of the evidence behind AGREE: the exercise of both sides, and faults that changed nothing."""

from collections.abc import Sequence
from typing import Final

import msgspec

from kgverify.comparison.exercise.count import count_exercise
from kgverify.comparison.exercise.exercise import Exercised, Minimum, explain_missing
from kgverify.comparison.result import DIGEST, Comparison, Coverage, Verdict
from kgverify.comparison.source import StepSource
from kgverify.report.content import Outcomes
from kgverify.trace.model.header import EngineInfo

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
