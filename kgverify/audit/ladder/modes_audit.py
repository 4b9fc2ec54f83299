"""Is it the compiler? A subject on every rung; where one deviates, the smallest part that does, what repairs it, a reproducer."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from kgverify.runs.machine import describe_environment
from kgverify.audit.report import SCHEMA_VERSION
from kgverify.audit.ladder.culprit import Culprit, find_culprit
from kgverify.audit.ladder.climb import Climb, Ladder, climb, find_smallest_part
from kgverify.audit.ladder.rungs import RUNGS, Rung
from kgverify.audit.ladder.reproducer import Reproducer, write_reproducer
from kgverify.audit.audited_function import Subject
from kgverify.comparison.result import Verdict

MOST_LISTED = 20
"""Deviations of a rung that a report holds."""


class Deviating(msgspec.Struct, frozen=True, kw_only=True):
    """A call that differs from eager's. kind and where: as of `Difference`"""

    call: str
    kind: str
    where: str
    detail: str


class RungReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rung. num_deviations: of all calls; the first of them are listed"""

    name: str
    adds: str
    num_calls: int
    num_deviations: int
    deviations: tuple[Deviating, ...]
    seconds: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Where a deviation comes from.

    part:       the smallest that shows it by itself; empty where only the whole does
    left_out:   without these passes, lowerings or switches it is right; empty where none was found
    is_complete: whether there was time to try everything
    """

    rung: str
    part: str
    left_out: tuple[str, ...]
    num_tried: int
    is_complete: bool
    reproducer: str = ""
    reproducer_shows: bool = False
    reproducer_problem: str = ""


class ModesReport(msgspec.Struct, frozen=True, kw_only=True):
    """A subject on the ladder. unsteady: how eager differs from itself; then nothing is said of the rungs."""

    subject: str
    verdict: Verdict
    rungs: tuple[RungReport, ...]
    unsteady: tuple[Deviating, ...] = ()
    attribution: Attribution | None = None
    environment: dict[str, str] = {}
    schema_version: int = SCHEMA_VERSION


def audit_modes(
    subject: Subject,
    *,
    rungs: Sequence[Rung] = RUNGS,
    reproducer: Path | None = None,
    seconds: float = 120.0,
    repetitions: int = 2,
    phase: Callable[[str], None] = lambda what: None,
) -> ModesReport:
    """Climb, and explain the first rung that deviates.

    reproducer: the Python file that is written then. seconds: for the search for what repairs. phase: told of what is done next
    """
    ladder = climb(
        subject, rungs=rungs, repetitions=repetitions, begin=lambda name: phase(f"{subject.name} on rung {name}")
    )
    attribution = None
    if ladder.first is not None:
        attribution = _attribute(subject, ladder.first, reproducer, seconds, phase)
    return _report(ladder, attribution)


def _attribute(
    subject: Subject, first: Climb, path: Path | None, seconds: float, phase: Callable[[str], None]
) -> Attribution:
    if first.is_lost:
        # Nothing more can be run in this process.
        return Attribution(rung=first.rung.name, part="", left_out=(), num_tried=0, is_complete=False)
    part = find_smallest_part(subject, first.rung, lambda name: phase(f"{name} alone on rung {first.rung.name}"))
    smallest = part or subject
    at = first
    if part is not None:
        of_part = climb(part, rungs=(first.rung,)).first
        at = of_part or first
    culprit: Culprit = find_culprit(
        smallest, first.rung, seconds=seconds, tell=lambda num: phase(f"{smallest.name}: attempt {num} to repair it")
    )
    written = Reproducer(None, False)
    if path is not None:
        phase(f"a reproducer of {smallest.name}")
        written = write_reproducer(smallest, at, path, culprit)
    return Attribution(
        rung=first.rung.name,
        part="" if part is None else part.name,
        left_out=tuple(map(str, culprit.items)),
        num_tried=culprit.num_tried,
        is_complete=culprit.is_complete,
        reproducer="" if written.path is None else str(written.path),
        reproducer_shows=written.shows,
        reproducer_problem=written.why,
    )


def _report(ladder: Ladder, attribution: Attribution | None) -> ModesReport:
    verdict = Verdict.AGREE if ladder.first is None else Verdict.DIVERGE
    return ModesReport(
        subject=ladder.subject,
        verdict=Verdict.INCONCLUSIVE if ladder.unsteady or not ladder.climbs else verdict,
        rungs=tuple(
            RungReport(
                name=each.rung.name,
                adds=each.rung.adds,
                num_calls=each.num_calls,
                num_deviations=len(each.deviations),
                deviations=tuple(
                    Deviating(call=call, kind=found.kind, where=found.where, detail=found.detail)
                    for call, found in each.deviations[:MOST_LISTED]
                ),
                seconds=each.seconds,
            )
            for each in ladder.climbs
        ),
        unsteady=tuple(
            Deviating(call=call, kind=found.kind, where=found.where, detail=found.detail)
            for call, found in ladder.unsteady[:MOST_LISTED]
        ),
        attribution=attribution,
        environment=describe_environment(
            "cuda" if torch.cuda.is_available() else "cpu", caches="graphs compiled anew, kernels kept by source"
        ),
    )
