"""The audit of values: the first deviating rung, the deviating line, the cause, and a script."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from stepaudit.audited_function import Subject
from stepaudit.ladder.climb import (
    Climb,
    Judge,
    Ladder,
    climb,
    drawing_as_eager,
    keeping_caches,
)
from stepaudit.ladder.culprit import LINE, Culprit, find_culprit
from stepaudit.ladder.minimal_graph import MinimalGraph, find_last_line, find_minimal_graph
from stepaudit.ladder.observation import Deviation
from stepaudit.ladder.reproducer import write_reproducer
from stepaudit.options import USUALLY, AuditOptions
from stepaudit.properties.captured_values import find_captured_values
from stepaudit.report import Cell, ReportBuilder
from stepaudit.source_lines import find_definition

AUDIT: Final = "values"
MOST_LISTED: Final = 20
"""The largest number of deviations of a rung in a report."""


def audit_values(subject: Subject, report: ReportBuilder, options: AuditOptions = USUALLY) -> bool:
    """Run a function in eager and on every rung of the compiler, and explain the first rung that deviates.

    The report gets the sections `rungs` and `deviations`, and `attribution` if a rung deviates. If eager differs from
    itself, it gets the section `unsteady`. UserError for a function that raises in eager.

    Returns:
        Whether the comparison is conclusive.
    """
    # One folder of caches serves all: a kernel that two rungs or attempts share is built once.
    with keeping_caches(options.ladder):
        with report.timing("rungs"):
            ladder = climb(subject, options)
        _report_rungs(ladder, report)
        if ladder.unsteady:
            report.skip(AUDIT, _explain_unsteady(subject))
        # After the device was lost, nothing more can run in this process.
        can_run = not ladder.unsteady and not any(each.is_lost for each in ladder.climbs)
        num_operations = ladder.judge.control[1] if can_run else 0
        if can_run and not num_operations:
            report.skip(AUDIT, "no operation of torch ran: nothing was compared")
        if ladder.judge.unproven:
            where = ladder.judge.unproven[0]
            report.skip(
                AUDIT, f"{where}: may be rounding, and runs with other roundings do not do here what eager does"
            )
        if not find_captured_values(subject.function).is_complete:
            report.skip(AUDIT, "the function can reach more values than are observed")
        for name, why in ladder.impossible:
            report.skip(AUDIT, f"rung {name}: {why}")
        if ladder.first is not None:
            _attribute(subject, ladder.judge, ladder.first, options.script, report)
    is_open = bool(ladder.unsteady or ladder.judge.unproven) or not num_operations
    return bool(ladder.climbs) and (not is_open or (ladder.first is not None and not ladder.unsteady))


def _explain_unsteady(subject: Subject) -> str:
    """Say why eager may differ from itself: the state that a call changes and that nothing can restore, if any is seen."""
    kept = find_captured_values(subject.function).unrestored
    if kept:
        return f"eager differs from itself: {', '.join(kept)} cannot be restored; make it an argument"
    return "eager differs from itself; seed the random numbers inside of the function"


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


def _attribute(subject: Subject, judge: Judge, first: Climb, path: Path | None, report: ReportBuilder) -> None:
    """Report the first deviating rung, with the line that shows the deviation and the change that repairs it."""
    name, culprit, minimal, where, problem = first.rung.name, Culprit((), 0), None, "", ""
    # Nothing more can run in this process after the device was lost.
    if not first.is_lost:
        with drawing_as_eager(first.is_seeded):
            with report.timing("cause"):
                culprit = find_culprit(judge, first)
            with report.timing("line"):
                if name != "backend-eager":
                    minimal = find_minimal_graph(judge, first)
                where = _find_line(judge, first, culprit, minimal)
        if path is not None:
            judge.options.announce(f"a script of {subject.name}")
            with report.timing("script"):
                problem = write_reproducer(subject, first, path, minimal=minimal, culprit=culprit)
    left_out = " and ".join(map(str, culprit.items))
    report.details["operations"] = minimal.operations if minimal is not None else ()
    report.details["not_tried"] = tuple(map(str, culprit.left))
    if culprit.left:
        report.skip(
            AUDIT,
            f"the search ended after {culprit.num_tried} attempts: {len(culprit.left)} items remain; give more seconds",
        )
    if minimal is not None and not minimal.is_complete:
        report.skip(AUDIT, "the graph was not minimized to the end: give more seconds")
    row = {
        "rung": name,
        "caches": first.caches,
        "line": where,
        "left_out": left_out,
        "num_tried": culprit.num_tried,
        "is_complete": not culprit.left,
        "reproducer": "" if path is None or problem or first.is_lost else str(path),
        "reproducer_problem": problem,
    }
    report.add_section("attribution", "attribution", [row])
    found = first.deviations[0]
    adds = "the compiler's caches" if first.is_of_caches else first.rung.adds
    nothing = f"nothing that was left out repairs it ({culprit.num_tried} attempts)"
    unfinished = f"the search is not finished: {len(culprit.left)} items remain to be tried"
    report.find(
        AUDIT,
        mechanism=f"the rung {name} adds: {adds}",
        finding=f"first deviation on rung {name}, {first.caches}, {found.call}: {found.kind} {found.where}: {found.detail}",
        where=where or find_definition(subject.function),
        remedy=f"it is right without {left_out}" if left_out else unfinished if culprit.left else nothing,
    )


def _find_line(judge: Judge, first: Climb, culprit: Culprit, minimal: MinimalGraph | None) -> str:
    """Return the line at which the minimal graph goes wrong.

    If no graph shows the deviation, return the line left to eager.
    """
    deviation = first.deviations[0]
    if minimal is not None and minimal.where:
        return minimal.where
    if first.rung.name == "backend-eager" and deviation.kind == "captured":
        captured = find_captured_values(judge.subject.function)
        if where := next((each.where for each in captured if each.path == deviation.where), ""):
            return where
    # If a call ended the process, Python may know the line.
    ended = deviation.detail.rpartition(" at ")[2] if deviation.kind == "end" and " at " in deviation.detail else ""
    lines = [each.name for each in culprit.items if each.kind == LINE]
    return ended or next(iter(lines), "") or find_last_line(judge)
