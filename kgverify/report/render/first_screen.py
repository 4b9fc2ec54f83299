"""The first screen of the page: the verdict, the first wrong step on both sides, its condition, and its cost."""

from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final, NamedTuple

from kgverify.comparison.result import NOTHING_MORE, Value
from kgverify.escaping import make_visible
from kgverify.report import wording
from kgverify.report.content import ReportContent
from kgverify.report.render.template import Values, read_packed, render_template

MOST_ROWS: Final = 5
"""The maximum number of lines shown of a difference; the page shows all of them further down."""

TEXT_CHARACTERS: Final = 120
"""The maximum number of characters of a line of a difference."""

Marked = tuple[str, str, str]
"""A text in three parts: the middle part differs from the other side."""


class Row(NamedTuple):
    """A line of a difference; a side that lacks it is None."""

    mark: str
    expected: Marked | None
    actual: Marked | None


def render_first_screen(report: ReportContent) -> str:
    """Return the first screen as an HTML fragment, for example for a notebook. It contains no script and requests nothing."""
    return render_template(
        "fragment.html",
        escape=make_visible,
        is_markup=True,
        report=report,
        first=read_first_screen(report),
        style=read_packed("first_screen.css"),
    )


def read_first_screen(report: ReportContent) -> Values:
    """Return the computed parts of the first screen: the rows of the first difference, and the bar of its cost."""
    first, whole = report.first_cause, report.attribution
    rows = compare_values(first.expected, first.actual) if first is not None else []
    largest = max(whole.expected, whole.actual) if whole is not None else 0.0
    return {
        "rows": rows[:MOST_ROWS],
        "num_more": max(0, len(rows) - MOST_ROWS),
        "bars": [
            (side, round(1000 * value / largest, 1))
            for side, value in (("expected", whole.expected), ("actual", whole.actual))
        ]
        if whole is not None and largest > 0
        else [],
        "level": wording.LEVEL_MEANINGS[report.level] if report.level is not None else "",
        # Only the first part is open at first.
        "source": wording.number_of_source(report, first.cause) if first is not None else 0,
        "condition": wording.condition_of(report, first).partition("; ") if first is not None else ("", "", ""),
    }


def compare_values(expected: Value, actual: Value) -> list[Row]:
    """Align both values of a divergence line by line, and mark what differs."""
    left, right = (
        [wording.clip(line, TEXT_CHARACTERS) for line in wording.value_lines(each)] for each in (expected, actual)
    )
    if NOTHING_MORE in (expected, actual) or isinstance(expected, list) != isinstance(actual, list):
        # Items on one side, and a remark on the other.
        if actual == NOTHING_MORE or not isinstance(actual, list):
            return [Row("", None, _whole(right[0])), *(Row("− missing", _whole(text), None) for text in left)]
        return [Row("", _whole(left[0]), None), *(Row("+ extra", None, _whole(text)) for text in right)]
    rows = []
    for tag, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            rows += [Row("", (text, "", ""), (text, "", "")) for text in left[a:b]]
        elif b - a == d - c:
            rows += [Row("≠ differs", *_mark(*pair)) for pair in zip(left[a:b], right[c:d], strict=True)]
        else:
            rows += [Row("− missing", _whole(text), None) for text in left[a:b]]
            rows += [Row("+ extra", None, _whole(text)) for text in right[c:d]]
    # A difference of each kind comes first, since the rows may be cut, and equal rows come last.
    marks = [row.mark for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (not marks[i], marks.index(marks[i]) < i, i))
    return [rows[i] for i in order]


def _whole(text: str) -> Marked:
    return ("", text, "")


def _mark(left: str, right: str) -> tuple[Marked, Marked]:
    """Split two texts into the beginning that they share, the part that differs, and the end that they share."""
    begin = _count_shared(left, right)
    end = _count_shared(left[begin:][::-1], right[begin:][::-1])
    return _split(left, begin, end), _split(right, begin, end)


def _count_shared(left: str, right: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _split(text: str, begin: int, end: int) -> Marked:
    return text[:begin], text[begin : len(text) - end], text[len(text) - end :]
