"""The report as JUnit XML: a test case for each query and side."""

from collections import Counter, defaultdict
from typing import Final
from xml.etree import ElementTree

from kgverify.comparison.result import Divergence, Verdict
from kgverify.comparison.step_view import Names, side_name
from kgverify.errors import count_of
from kgverify.escaping import make_lines_visible, make_visible
from kgverify.report import wording
from kgverify.report.content import ReportContent
from kgverify.trace.model.trace import Trace

SUITE: Final = "kgverify"

MOST_CASES: Final = 10_000
"""The maximum number of listed cases, failing ones first, for a file of a few megabytes. One more case stands for the rest."""

MOST_CONDITIONS: Final = 12
"""The maximum number of causes whose sizes and conditions are listed as properties."""

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
    is_inconclusive = report.verdict is Verdict.INCONCLUSIVE
    skipped = _result("skipped", "inconclusive: no divergence found, nothing proved") if is_inconclusive else None
    cases = []
    for query, side in (each for each in groups if each in listed):
        failure = _fail(report, found[query, side]) if (query, side) in found else skipped
        name = f"query {query}, {side}: {names.get((query, side), '')}" if query >= 0 else "candidates"
        cases.append(_make_case(side, name, failure))
    if left:
        num_failing = sum(each in found for each in left)
        text = f"{num_failing:,} of them diverge: the report as JSON lists all"
        failure = _result("failure", text, text, type="others") if num_failing else skipped
        cases.append(_make_case("others", f"{count_of(len(left), 'further ranking')}, not listed", failure))
    text = "\n".join(map(wording.clip, report.reasons))
    error = _result("error", text, text, type="INCONCLUSIVE") if is_inconclusive else None
    cases = [_make_case("verdict", "the comparison decides", error), *cases]
    suites = ElementTree.Element("testsuites", name=SUITE)
    kinds = Counter(result.tag for case in cases for result in case)
    attributes = {
        "name": make_visible(f"{SUITE}: {wording.describe_run(report)}"),
        "tests": f"{len(cases)}",
        "failures": f"{kinds['failure']}",
        "errors": f"{kinds['error']}",
        "skipped": f"{kinds['skipped']}",
    }
    suite = ElementTree.SubElement(suites, "testsuite", attributes)
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(report).items():
        ElementTree.SubElement(properties, "property", name=make_visible(name), value=make_lines_visible(value))
    suite.extend(cases)
    ElementTree.indent(suites)
    xml: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"


def _properties(report: ReportContent) -> dict[str, str]:
    found = {
        "verdict": report.verdict.value,
        "level": report.level.value if report.level else "none",
        "coverage": wording.describe_extent(report),
        "expected": wording.clip(wording.describe_engine(report.environment.expected)),
        "actual": wording.clip(wording.describe_engine(report.environment.actual)),
        "exercise": "\n".join(map(wording.clip, wording.exercise_lines(report))),
        "self_test": wording.clip(wording.describe_self_test(report)),
        "metrics": "\n".join(wording.metric_lines(report)),
        "MRR": wording.describe_loss(report),
        "ranks": "\n".join(map(wording.clip, wording.describe_rules(report))),
        "notes": "\n".join(f"note: {wording.clip(note)}" for note in report.notes),
        "near_ties": str(len(report.near_ties)),
        "modulo": ", ".join(report.modulo),
        **{f"benign_{each.kind}": str(each.num_steps) for each in report.benign},
        **{
            f"cause_{i}": f"{wording.cause_label(report, i)}: {wording.describe_size(cause)}"
            for i, cause in enumerate(report.causes[:MOST_CONDITIONS])
        },
        **{
            f"condition_{i}": f"{wording.cause_label(report, i)}: {wording.clip(cause.condition, wording.MOST_OF_CONDITION)}"
            for i, cause in enumerate(report.causes[:MOST_CONDITIONS])
            if cause.condition
        },
    }
    return {name: value for name, value in found.items() if value}


def _make_case(name_of_class: str, name: str, result: ElementTree.Element | None) -> ElementTree.Element:
    """Return a case with its result; None if it passed."""
    case = ElementTree.Element("testcase", classname=make_visible(f"{SUITE}.{name_of_class}"), name=make_visible(name))
    case.extend([] if result is None else [result])
    return case


def _result(kind: str, message: str, text: str | None = None, **about: str) -> ElementTree.Element:
    result = ElementTree.Element(kind, about, message=message)
    result.text = text
    return result


def _fail(report: ReportContent, divergences: list[Divergence]) -> ElementTree.Element:
    """Return the failure of a query and side, with the condition of the first divergence's cause."""
    first, *more = divergences
    text, condition = make_visible(wording.describe_divergence(first)), wording.condition_of(report, first)
    shown = f"condition of its cause: {condition}\n" if condition else ""
    further = f"\nand {count_of(len(more), 'further divergence')} of this query and side" if more else ""
    whole = make_lines_visible(f"{text}\n{shown}{wording.describe_values(first)}{further}")
    return _result("failure", text, whole, type=make_visible(first.stage))


def _first_atoms(expected: Trace) -> dict[Group, str]:
    """Return the groups in order, each with its first candidate, which is the true triple."""
    candidates, names = expected.columns.candidates, Names(expected)
    atoms: dict[Group, str] = {}
    for row, (query, side) in enumerate(zip(candidates.query.tolist(), candidates.side.tolist(), strict=True)):
        group = query, side_name(side)
        if group not in atoms:
            atoms[group] = wording.clip(names.atom(tuple(candidates.atom[row].tolist())))
    return atoms
