"""The report as JUnit XML: a test case for each query and side."""

from collections import defaultdict
from typing import Final
from xml.etree import ElementTree

from kgverify.comparison.result import Divergence, Verdict
from kgverify.comparison.step_view import Names, side_name
from kgverify.errors import count_of
from kgverify.escaping import make_lines_visible, make_visible
from kgverify.report.content import ReportContent
from kgverify.report.wording import (
    MOST_OF_CONDITION,
    cause_label,
    clip,
    describe_coverage,
    describe_divergence,
    describe_engine,
    describe_run,
    describe_values,
    exercise_lines,
)
from kgverify.trace.model.trace import Trace

SUITE: Final = "kgverify"

MOST_CASES: Final = 10_000
"""The cases listed, those that fail first: a file of a few megabytes. One further case stands for the others."""

MOST_CONDITIONS: Final = 12
"""The causes whose conditions are listed as properties."""

Group = tuple[int, str]
"""A query and a side."""


def render_junit(report: ReportContent, expected: Trace) -> bytes:
    """Render UTF-8 XML. A case fails with its first divergence; an inconclusive run has one error and skipped cases."""
    found: dict[Group, list[Divergence]] = defaultdict(list)
    for each in report.divergences:
        found[each.query, each.side].append(each)
    names = _first_atoms(expected)
    groups = [*names, *sorted(found.keys() - names.keys())]
    by_need = sorted(groups, key=lambda each: each not in found)
    listed, left = set(by_need[:MOST_CASES]), by_need[MOST_CASES:]
    groups = [each for each in groups if each in listed]
    num_failing_left = sum(each in found for each in left)
    num_cases, num_failures = len(groups) + bool(left), len(found) - num_failing_left + bool(num_failing_left)
    is_inconclusive = report.verdict is Verdict.INCONCLUSIVE
    suites = ElementTree.Element("testsuites", name=SUITE)
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name=make_visible(f"{SUITE}: {describe_run(report)}"),
        tests=str(num_cases + 1),
        failures=str(num_failures),
        errors=str(int(is_inconclusive)),
        skipped=str(num_cases - num_failures if is_inconclusive else 0),
    )
    properties = ElementTree.SubElement(suite, "properties")
    values = {
        "verdict": report.verdict.value,
        "level": report.level.value if report.level else "none",
        "coverage": describe_coverage(report),
        "expected": clip(describe_engine(report.environment.expected)),
        "actual": clip(describe_engine(report.environment.actual)),
        "exercise": "\n".join(map(clip, exercise_lines(report))),
        "near_ties": str(len(report.near_ties)),
        **({"modulo": ", ".join(report.modulo)} if report.modulo else {}),
        **{f"benign_{each.kind}": str(each.num_steps) for each in report.benign},
        **{
            f"condition_{i}": _describe_cause(report, i)
            for i, cause in enumerate(report.causes[:MOST_CONDITIONS])
            if cause.condition
        },
    }
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=make_lines_visible(value))
    verdict = ElementTree.SubElement(suite, "testcase", classname=f"{SUITE}.verdict", name="the comparison decides")
    reasons = "\n".join(map(clip, report.reasons))
    if is_inconclusive:
        error = ElementTree.SubElement(verdict, "error", type="INCONCLUSIVE", message=reasons)
        error.text = reasons
    for group in groups:
        query, side = group
        atom = names.get(group, "")
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=make_visible(f"{SUITE}.{side}"),
            name=make_visible(f"query {query}, {side}: {atom}"),
        )
        if found[group]:
            first, *more = found[group]
            text = describe_divergence(first)
            failure = ElementTree.SubElement(
                case, "failure", type=make_visible(first.stage), message=make_visible(text)
            )
            further = f"\nand {count_of(len(more), 'further divergence')} of this query and side" if more else ""
            condition = _condition_of(report, first)
            failure.text = make_lines_visible(f"{make_visible(text)}\n{condition}{describe_values(first)}{further}")
        elif is_inconclusive:
            ElementTree.SubElement(case, "skipped", message="inconclusive: no divergence found, nothing proved")
    if left:
        name = f"{count_of(len(left), 'further ranking')}, not listed"
        case = ElementTree.SubElement(suite, "testcase", classname=f"{SUITE}.others", name=name)
        if num_failing_left:
            text = f"{num_failing_left:,} of them diverge: the report as JSON lists all"
            ElementTree.SubElement(case, "failure", type="others", message=text).text = text
        elif is_inconclusive:
            ElementTree.SubElement(case, "skipped", message="inconclusive: no divergence found, nothing proved")
    ElementTree.indent(suites)
    xml: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"


def _describe_cause(report: ReportContent, cause: int) -> str:
    """Return a cause with its condition, in one line."""
    return f"{cause_label(report, cause)}: {clip(report.causes[cause].condition, MOST_OF_CONDITION)}"


def _condition_of(report: ReportContent, divergence: Divergence) -> str:
    """Return the line with the condition of a divergence's cause; empty without one."""
    condition = report.causes[divergence.cause].condition if 0 <= divergence.cause < len(report.causes) else ""
    return f"condition of its cause: {clip(condition, MOST_OF_CONDITION)}\n" if condition else ""


def _first_atoms(expected: Trace) -> dict[Group, str]:
    """Return the groups in order, each with its first candidate, the true one."""
    candidates, names = expected.columns.candidates, Names(expected)
    atoms: dict[Group, str] = {}
    for row, (query, side) in enumerate(zip(candidates.query.tolist(), candidates.side.tolist(), strict=True)):
        group = query, side_name(side)
        if group not in atoms:
            atoms[group] = clip(names.atom(tuple(candidates.atom[row].tolist())))
    return atoms
