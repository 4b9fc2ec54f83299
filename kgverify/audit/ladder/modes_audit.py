"""The audit of compile modes: the first rung that deviates, the smallest part that does, the cause, and a reproducer."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import torch

from kgverify.audit.audited_function import Subject
from kgverify.audit.ladder.climb import RUNGS, Climb, Rung, climb, find_smallest_part
from kgverify.audit.ladder.culprit import find_culprit
from kgverify.audit.ladder.observation import Deviation
from kgverify.audit.ladder.reproducer import Reproducer, write_reproducer
from kgverify.audit.report import AuditReport, Cell, ReportBuilder
from kgverify.runs.machine import describe_environment

AUDIT: Final = "modes"
MOST_LISTED: Final = 20
"""Deviations of a rung that a report holds."""

Announce = Callable[[str], None]


def audit_modes(
    subject: Subject,
    *,
    rungs: Sequence[Rung] = RUNGS,
    reproducer: Path | None = None,
    seconds: float = 120.0,
    repetitions: int = 2,
    announce: Announce = lambda what: None,
) -> AuditReport:
    """Run a function in eager and on every rung of the compiler, and explain the first rung that deviates.

    Args:
        subject: the function with its arguments; `make_subject` makes one.
        rungs: the ways to run it that are compared with eager.
        reproducer: the Python file to write if a rung deviates.
        seconds: time limit of the search for the pass, lowering or switch that causes the deviation.
        repetitions: the number of times that the first call is repeated on equal arguments.
        announce: receives the name of the work that begins.

    Returns:
        A report with the sections `rungs`, `deviations`, and, where a rung deviates, `attribution`; INCONCLUSIVE with
        the section `unsteady` where eager differs from itself.

    Raises:
        UserError: for a function that raises in eager.
    """
    ladder = climb(
        subject, rungs=rungs, repetitions=repetitions, begin=lambda name: announce(f"{subject.name} on rung {name}")
    )
    report = ReportBuilder()
    report.add_section("unsteady", "how eager differs from itself", _list_deviations("eager", ladder.unsteady))
    climbs = (
        {"name": rung.name, "adds": rung.adds, "calls": calls, "deviations": len(deviations), "seconds": took}
        for rung, deviations, calls, took, _ in ladder.climbs
    )
    report.add_section("rungs", "rungs, against eager", climbs)
    listed = [row for each in ladder.climbs for row in _list_deviations(each.rung.name, each.deviations)]
    report.add_section("deviations", "deviations", listed)
    if ladder.unsteady:
        report.skip(AUDIT, "eager differs from itself; seed the random numbers inside of the function")
    if ladder.first is not None:
        _attribute(subject, ladder.first, reproducer, seconds, announce, report)
    environment = describe_environment(
        "cuda" if torch.cuda.is_available() else "cpu", caches="graphs compiled anew, kernels kept by source"
    )
    return report.build(subject.name, environment, is_conclusive=bool(ladder.climbs) and not ladder.unsteady)


def _list_deviations(rung: str, deviations: Iterable[Deviation]) -> list[dict[str, Cell]]:
    return [{"rung": rung, **each._asdict()} for each in islice(deviations, MOST_LISTED)]


def _attribute(
    subject: Subject, first: Climb, path: Path | None, seconds: float, announce: Announce, report: ReportBuilder
) -> None:
    """Report the first rung that deviates, with the smallest part that shows it and what repairs it."""
    name = first.rung.name
    part, left_out, tried, written = None, "", "no attempt, as the device was lost", Reproducer(None, False)
    num_tried, is_complete = 0, False
    # After a lost device nothing more runs in this process.
    if not first.is_lost:
        part = find_smallest_part(subject, first.rung, lambda of: announce(f"{of} alone on rung {name}"))
        smallest = part or subject
        culprit = find_culprit(
            smallest,
            first.rung,
            seconds=seconds,
            announce=lambda num: announce(f"{smallest.name}: attempt {num} to repair it"),
        )
        left_out, num_tried, is_complete = " and ".join(map(str, culprit.items)), culprit.num_tried, culprit.is_complete
        tried = f"{num_tried} attempts" + ("" if is_complete else ", then the time limit was reached: --seconds")
        if path is not None:
            announce(f"a reproducer of {smallest.name}")
            shown = climb(part, rungs=(first.rung,)).first if part is not None else None
            written = write_reproducer(smallest, shown or first, path, culprit)
    report.add_section(
        "attribution",
        "attribution",
        [
            {
                "rung": name,
                "part": part.name if part is not None else "",
                "left_out": left_out,
                "num_tried": num_tried,
                "is_complete": is_complete,
                "reproducer": "" if written.path is None else str(written.path),
                "reproducer_shows": written.shows,
                "reproducer_problem": written.why,
            }
        ],
    )
    found = first.deviations[0]
    report.find(
        AUDIT,
        mechanism=f"the rung {name} adds: {first.rung.adds}",
        finding=f"first deviation on rung {name}, {found.call}: {found.kind} {found.where}: {found.detail}",
        where=part.name if part is not None else f"{subject.name}: no stage shows it by itself",
        remedy=f"it is right without {left_out}" if left_out else f"nothing that was left out repairs it ({tried})",
    )
