"""The audit of values: the first deviating rung, the deviating line, the cause, and a script."""

import math
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final

from torch._inductor.utils import fresh_cache

from stepaudit.audited_function import Subject
from stepaudit.errors import describe_error
from stepaudit.isolation import is_device_lost
from stepaudit.ladder.climb import Climb, Judge, Ladder, climb, warm_up_compiler
from stepaudit.ladder.culprit import LINE, Culprit, describe_repair, find_culprit
from stepaudit.ladder.custom_operators import find_wrong_operators
from stepaudit.ladder.eager_lines import find_deviating_line
from stepaudit.ladder.evidence import explain_repair, list_values
from stepaudit.ladder.minimal_graph import MinimalGraph, find_minimal_graph, render_graph
from stepaudit.ladder.observation import OVERWRITTEN, VALUES, Deviation
from stepaudit.ladder.reproducer import write_reproducer
from stepaudit.options import USUALLY, AuditOptions
from stepaudit.properties.captured_values import find_captured_values
from stepaudit.report import Cell, ReportBuilder
from stepaudit.source_lines import find_definition
from stepaudit.values import Other

AUDIT: Final = "values"
MOST_LISTED: Final = 20
"""The largest number of deviations of a rung in a report."""
LARGE_EXCUSE: Final = 64.0
"""The units in the last place from which an excused difference stands in the line of the verdict."""


def audit_values(subject: Subject, report: ReportBuilder, options: AuditOptions = USUALLY) -> bool:
    """Run a function in eager and on every rung of the compiler, and explain the first rung that deviates.

    The report gets the sections `rungs` and `deviations`, and `values` and `attribution` if a rung deviates. If eager
    differs from itself, it gets the section `unsteady`. UserError for a function that raises in eager.

    Returns:
        Whether the comparison is conclusive.
    """
    # One folder of caches serves all: a kernel that two rungs or attempts share is built once.
    if any(rung.has_caches for rung in options.ladder):
        warm_up_compiler()
    with fresh_cache():
        with report.timing("rungs"):
            ladder = climb(subject, options)
        if ladder.unsteady:
            report.skip(AUDIT, f"eager differs from itself: {_explain_unsteady(ladder)}")
        elif ladder.judge.source is not None:
            report.details["order"] = (
                f"eager differs from itself, which bounds the rounding: {ladder.judge.source.text}",
            )
        # After the device was lost, nothing more can run in this process.
        can_run = not ladder.unsteady and not any(each.is_lost for each in ladder.climbs)
        num_operations = ladder.judge.control[1] if can_run else 0
        if can_run and not num_operations:
            report.skip(AUDIT, "no operation of torch ran: nothing was compared")
        _report_uncompared(ladder, report)
        if can_run:
            find_wrong_operators(ladder.judge.control[2], report, options)
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
            _attribute(subject, ladder, ladder.first, options.script, report)
        _report_rungs(ladder, report)
    is_open = bool(ladder.unsteady or ladder.judge.unproven) or not num_operations
    return bool(ladder.climbs) and (not is_open or (ladder.first is not None and not ladder.unsteady))


def _explain_unsteady(ladder: Ladder) -> str:
    """Say why eager differs from itself: the state that a call changes and that nothing can restore, or the operation."""
    kept = find_captured_values(ladder.judge.subject.function).unrestored
    if kept:
        return f"{', '.join(kept)} cannot be restored; make it an argument"
    return ladder.judge.source.text if ladder.judge.source is not None else "nothing shows why"


def _report_rungs(ladder: Ladder, report: ReportBuilder) -> None:
    report.add_section("unsteady", "how eager differs from itself", _list_deviations("eager", ladder.unsteady))
    climbs: list[dict[str, Cell]] = [
        {
            "name": each.rung.name,
            "adds": each.rung.adds,
            "calls": each.num_calls,
            "deviations": len(each.deviations),
            "rounding": len(each.excuses),
            "caches": each.caches if each.rung.has_caches else "none",
            "seconds": each.seconds,
        }
        for each in ladder.climbs
    ]
    report.add_section("rungs", "rungs, against eager", climbs)
    listed = [row for each in ladder.climbs for row in _list_deviations(each.rung.name, each.deviations)]
    report.add_section("deviations", "deviations", listed)
    if ladder.judge.draws:
        report.details["random_numbers"] = (
            "compiled code draws other random numbers than eager; it is compared with torch._inductor.config.fallback_random",
        )
    excuses = [(each.rung.name, why) for each in ladder.climbs for why in each.excuses]
    report.details["rounding"] = tuple(f"{rung}: {why}" for rung, why in excuses[:MOST_LISTED])
    # Other values than floats have no size, and are always stated.
    sizes = [(math.inf if why.ulps is None else why.ulps, rung, why) for rung, why in excuses]
    if sizes and (largest := max(sizes, key=itemgetter(0)))[0] > LARGE_EXCUSE:
        _, rung, why = largest
        report.caveat = f"rounding excuses {why.size} in {why.where} on rung {rung}, {why.call}"


def _report_uncompared(ladder: Ladder, report: ReportBuilder) -> None:
    """Report differences that do not count as deviations, and values that cannot be compared."""
    report.details["signed_zeros"] = tuple(ladder.judge.signs)
    report.details["errors"] = tuple(ladder.judge.errors)
    leaves = (pair for seen in ladder.judge.expected.values() for kind in VALUES for pair in seen.leaves(kind).items())
    opaque = {f"{path} ({leaf.kind})": None for path, leaf in leaves if isinstance(leaf, Other) and not leaf.text}
    names = [each.rung.name for each in ladder.climbs if not each.rung.draws_as_eager]
    streams = f"how far torch's random numbers advance on {', '.join(names)}, which draw from streams of their own"
    report.details["not_compared"] = (
        *(f"{each}: only its class" for each in opaque),
        *([streams] if names and ladder.judge.draws else []),
    )


def _list_deviations(rung: str, deviations: Iterable[Deviation]) -> list[dict[str, Cell]]:
    return [{"rung": rung, **each._asdict()} for each in islice(deviations, MOST_LISTED)]


def _attribute(subject: Subject, ladder: Ladder, first: Climb, path: Path | None, report: ReportBuilder) -> None:
    """Report the first deviating rung, with the line that shows the deviation and the change that repairs it."""
    judge, name, culprit, minimal, where, problem = ladder.judge, first.rung.name, Culprit((), 0), None, "", ""
    is_repaired = False
    # Nothing more can run in this process after the device was lost.
    if not first.is_lost:
        with report.timing("cause"):
            culprit = find_culprit(judge, first)
        try:
            with report.timing("line"):
                if name != "backend-eager" and not culprit.is_of_caches:
                    minimal = find_minimal_graph(judge, first)
                where = _find_line(judge, first, culprit, minimal)
        except RuntimeError as error:
            if not is_device_lost():
                raise
            report.skip(AUDIT, f"the device was lost while the graph was minimized: {describe_error(error)}")
        if path is not None:
            judge.options.announce(f"a script of {subject.name}")
            with report.timing("script"):
                problem, is_repaired = write_reproducer(judge, first, path, minimal=minimal, items=culprit.items)
    left_out = " and ".join(map(str, culprit.items))
    found = first.deviations[0]
    report.add_section("values", f"{found.call}: {found.where}, value by value", list_values(judge, first))
    if minimal is not None:
        report.listings["minimal graph"], _ = render_graph(minimal.graph, "graph")
        report.listings |= {f"kernel {kernel}": source for kernel, source in minimal.kernels.items()}
    report.listings["repair"] = explain_repair(judge, first, culprit.items)
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
        "repaired_by": f"python {path} repaired" if is_repaired else "",
    }
    report.add_section("attribution", "attribution", [row])
    adds = "the compiler's caches" if culprit.is_of_caches else first.rung.adds
    audit, remedy = AUDIT, f"nothing that was left out repairs it ({culprit.num_tried} attempts)"
    if OVERWRITTEN in found.detail:
        audit, remedy = "overwritten-outputs", "keep a clone of it"
    elif left_out:
        remedy = f"it is right {describe_repair(culprit.items)}"
    elif culprit.left:
        remedy = f"the search is not finished: {len(culprit.left)} items remain to be tried"
    right = [each.rung.name for each in ladder.climbs[ladder.climbs.index(first) :] if not each.deviations]
    finding = (
        f"first deviation on rung {name}, {first.caches}, {found.call}: {found.kind} {found.where}: {found.detail}"
    )
    finding += f"; right again on {', '.join(right)}" if right else ""
    where = where or find_definition(subject.function)
    report.find(audit, finding, where, mechanism=f"the rung {name} adds: {adds}", remedy=remedy)


def _find_line(judge: Judge, first: Climb, culprit: Culprit, minimal: MinimalGraph | None) -> str:
    """Return the line at which the minimal graph goes wrong.

    If no graph shows the deviation, return the line at which eager makes the difference, or the line left to eager.
    """
    deviation = first.deviations[0]
    if minimal is not None and minimal.where:
        return minimal.where
    # If a call ended the process, or read lost memory, Python or torch may know the line.
    is_known = deviation.kind == "end" or OVERWRITTEN in deviation.detail
    ended = deviation.detail.rpartition(" at ")[2] if is_known and " at " in deviation.detail else ""
    lines = [each.name for each in culprit.items if each.kind == LINE]
    return ended or find_deviating_line(judge, first, next(iter(lines), ""))
