"""The audit of values: the first rung that deviates, the smallest part and line that do, the cause, and a script."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import torch

from kgverify.audit import isolation
from kgverify.audit.audited_function import Subject
from kgverify.audit.ladder.climb import (
    RUNGS,
    Climb,
    Judge,
    Ladder,
    Rung,
    climb,
    drawing_as_eager,
    find_smallest_part,
    keeping_caches,
)
from kgverify.audit.ladder.culprit import LINE, Culprit, find_culprit
from kgverify.audit.ladder.minimal_graph import MinimalGraph, find_last_line, find_minimal_graph
from kgverify.audit.ladder.observation import Deviation
from kgverify.audit.ladder.reproducer import Reproducer, write_reproducer
from kgverify.audit.properties.captured_values import find_captured_values
from kgverify.audit.report import AuditReport, Cell, ReportBuilder
from kgverify.audit.source_lines import find_definition
from kgverify.audit.values import USUAL, Precision
from kgverify.runs.machine import describe_environment, read_compiler_settings

AUDIT: Final = "values"
MOST_LISTED: Final = 20
"""Deviations of a rung that a report holds."""
SECONDS: Final = 120.0
"""The limit on the CPU time of the searches for the cause and for the line."""

Announce = Callable[[str], None]


class LadderOptions(NamedTuple):
    """The options of an audit of values.

    rungs:       the ways to run a function that are compared with eager
    reproducer:  the Python file to write if a rung deviates
    seconds:     limit on the CPU time of the searches for the pass, lowering or switch, and the line, that cause it
    repetitions: the number of times that the first call is repeated on equal arguments
    precision:   what counts as equal
    patience:    CPU seconds that the calls of one rung may take, with compilation
    announce:    receives the name of the work that begins
    """

    rungs: Sequence[Rung] = RUNGS
    reproducer: Path | None = None
    seconds: float = SECONDS
    repetitions: int = 2
    precision: Precision = USUAL
    patience: float = isolation.SECONDS
    announce: Announce = lambda what: None


USUALLY: Final = LadderOptions()


def audit_modes(subject: Subject, options: LadderOptions = USUALLY) -> AuditReport:
    """Run a function in eager and on every rung of the compiler, and explain the first rung that deviates.

    The report has the sections `rungs`, `deviations`, and, where a rung deviates, `attribution`. It is INCONCLUSIVE, with the
    section `unsteady`, where eager differs from itself. UserError for a function that raises in eager.
    """
    report = ReportBuilder()
    is_conclusive = audit_values(subject, report, options)
    return report.build(subject.name, describe_compiler(), is_conclusive=is_conclusive)


def describe_compiler() -> dict[str, str]:
    """Describe the versions and settings on which compiled code depends."""
    return describe_environment("cuda" if torch.cuda.is_available() else "cpu", **read_compiler_settings())


def audit_values(subject: Subject, report: ReportBuilder, options: LadderOptions) -> bool:
    """Add what `audit_modes` reports to a report; return whether it is conclusive."""
    # One folder: a kernel that two rungs or attempts share is built once.
    with keeping_caches(options.rungs):
        return _climb_and_attribute(subject, report, options)


def _climb_and_attribute(subject: Subject, report: ReportBuilder, options: LadderOptions) -> bool:
    with report.timing("rungs"):
        ladder = climb(
            subject,
            rungs=options.rungs,
            repetitions=options.repetitions,
            precision=options.precision,
            patience=options.patience,
            begin=lambda name: options.announce(f"{subject.name} on rung {name}"),
        )
    _report_rungs(ladder, report)
    if ladder.unsteady:
        report.skip(AUDIT, "eager differs from itself; seed the random numbers inside of the function")
    if not ladder.judge.is_complete:
        report.skip(AUDIT, "the function can reach more values than are observed")
    for name, why in ladder.impossible:
        report.skip(AUDIT, f"rung {name}: {why}")
    if ladder.first is not None:
        _attribute(subject, ladder, ladder.first, options, report)
    return bool(ladder.climbs) and not ladder.unsteady


def _report_rungs(ladder: Ladder, report: ReportBuilder) -> None:
    report.add_section("unsteady", "how eager differs from itself", _list_deviations("eager", ladder.unsteady))
    climbs: list[dict[str, Cell]] = [
        {
            "name": each.rung.name,
            "adds": each.rung.adds,
            "calls": each.num_calls,
            "deviations": len(each.deviations),
            "rounding": len(each.excuses),
            "caches": each.caches if each.deviations else "on, warm, off" if each.rung.has_caches else "none",
            "random": "eager's, with fallback_random" if each.is_seeded else "as compiled",
            "seconds": each.seconds,
        }
        for each in ladder.climbs
    ]
    report.add_section("rungs", "rungs, against eager", climbs)
    listed = [row for each in ladder.climbs for row in _list_deviations(each.rung.name, each.deviations)]
    report.add_section("deviations", "deviations", listed)
    if any(each.is_seeded for each in ladder.climbs):
        report.details["random_numbers"] = (
            "compiled code draws other random numbers than eager; it is compared with torch._inductor.config.fallback_random",
        )
    excuses = [f"{each.rung.name}: {why}" for each in ladder.climbs for why in each.excuses]
    report.details["rounding"] = tuple(excuses[:MOST_LISTED])


def _list_deviations(rung: str, deviations: Iterable[Deviation]) -> list[dict[str, Cell]]:
    return [{"rung": rung, **each._asdict()} for each in islice(deviations, MOST_LISTED)]


def _attribute(subject: Subject, ladder: Ladder, first: Climb, options: LadderOptions, report: ReportBuilder) -> None:
    """Report the first rung that deviates, with the smallest part and line that show it and what repairs it."""
    name, path, seconds, announce = first.rung.name, options.reproducer, options.seconds, options.announce
    part, judge, minimal = None, ladder.judge, None
    culprit, written, where = Culprit((), 0), Reproducer(None), ""
    # After a lost device nothing more runs in this process.
    if not first.is_lost:
        part = find_smallest_part(subject, first.rung, lambda of: announce(f"{of} alone on rung {name}"))
        if part is not None:
            alone = climb(part, rungs=(first.rung,), precision=judge.precision, patience=judge.patience)
            judge, first = alone.judge, alone.first or first
        smallest = part or subject
        with drawing_as_eager() if first.is_seeded else nullcontext():
            with report.timing("cause"):
                culprit = find_culprit(
                    judge,
                    first,
                    seconds=seconds / 2,
                    announce=lambda num: announce(f"{smallest.name}: attempt {num} to repair it"),
                )
            with report.timing("line"):
                minimal, where = _find_line(judge, first, culprit, seconds / 2, announce)
        if path is not None:
            announce(f"a script of {smallest.name}")
            with report.timing("script"):
                written = write_reproducer(smallest, first, path, minimal=minimal, culprit=culprit)
    left_out = " and ".join(map(str, culprit.items))
    report.details["operations"] = minimal.operations if minimal is not None else ()
    report.details["not_tried"] = tuple(map(str, culprit.left))
    if culprit.left:
        report.skip(
            AUDIT, f"the search ended after {culprit.num_tried} attempts: {len(culprit.left)} items remain; --seconds"
        )
    if minimal is not None and not minimal.is_complete:
        report.skip(AUDIT, "the graph was not minimized to the end: --seconds")
    report.add_section(
        "attribution",
        "attribution",
        [
            {
                "rung": name,
                "caches": first.caches,
                "part": part.name if part is not None else "",
                "line": where,
                "left_out": left_out,
                "num_tried": culprit.num_tried,
                "is_complete": not culprit.left,
                "reproducer": "" if written.path is None else str(written.path),
                "reproducer_problem": written.why,
            }
        ],
    )
    found = first.deviations[0]
    adds = "the compiler's caches" if first.is_of_caches else first.rung.adds
    nothing = f"nothing that was left out repairs it ({culprit.num_tried} attempts)"
    unfinished = f"the search is not finished: {len(culprit.left)} items remain to be tried"
    report.find(
        AUDIT,
        mechanism=f"the rung {name} adds: {adds}",
        finding=f"first deviation on rung {name}, {first.caches}, {found.call}: {found.kind} {found.where}: {found.detail}",
        where=where or (part.name if part is not None else find_definition(subject.function)),
        remedy=f"it is right without {left_out}" if left_out else unfinished if culprit.left else nothing,
    )


def _find_line(
    judge: Judge, first: Climb, culprit: Culprit, seconds: float, announce: Announce
) -> tuple[MinimalGraph | None, str]:
    """Return the minimal graph and the line at which it goes wrong; where no graph shows it, the line left to eager."""
    deviation, minimal, where = first.deviations[0], None, ""
    if first.rung.name != "backend-eager":
        minimal = find_minimal_graph(
            judge, first, seconds=seconds, announce=lambda num: announce(f"attempt {num} to minimize the graph")
        )
        where = minimal.where if minimal is not None else ""
    elif deviation.kind == "captured":
        captured = find_captured_values(judge.subject.function)
        where = next((each.where for each in captured if each.path == deviation.where), "")
    lines = [each.name for each in culprit.items if each.kind == LINE]
    return minimal, where or _find_end(deviation) or next(iter(lines), "") or find_last_line(
        judge.subject, judge.patience
    )


def _find_end(deviation: Deviation) -> str:
    """Return the line at which a call ended the process, if it did and Python knew the line."""
    return deviation.detail.rpartition(" at ")[2] if deviation.kind == "end" and " at " in deviation.detail else ""
