"""The report as one self-contained HTML file, where the reader can step through every divergence."""

import base64
import hashlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from markupsafe import Markup

from kgverify.comparison.result import Divergence
from kgverify.escaping import escape_script, make_visible
from kgverify.program.limits import OURS
from kgverify.program.outcomes import DifferenceClass
from kgverify.report import wording
from kgverify.report.content import ReportContent
from kgverify.report.next_steps import show_divergence
from kgverify.report.render.first_screen import read_first_screen
from kgverify.report.render.pictures import draw_pictures
from kgverify.report.render.template import Values, read_packed, render_template
from kgverify.report.step_document import (
    MARKS,
    Derivation,
    DerivationReader,
    StepDocument,
    read_derivations,
    read_document,
)
from kgverify.report.stepper import MOST_ITEMS, MOVES
from kgverify.trace.model.trace import Trace

MOST_LISTED: Final = 100_000
"""The maximum number of divergences in the list; the JSON report has all."""

MOST_STEPPED: Final = 200
"""The maximum number of divergences whose steps are embedded."""

MOST_STEPS: Final = 60
"""The maximum number of embedded steps of a derivation, around the divergent step."""

STEP_BUDGET: Final = 12_000_000
"""The maximum number of characters of the embedded steps before compression."""

TEXT_CHARACTERS: Final = 160
"""The maximum number of characters of a text in the list."""

MOST_DETAILED: Final = 30
"""The number of rows that open to a derivation; the viewer shows more."""

MOST_ROWS: Final = 100
"""The maximum number of rows in the table; the viewer and the JSON report list more divergences."""

MOST_MEMBERS: Final = 10
"""The maximum number of further divergences listed for a cause."""

MOST_NEAR_TIES: Final = 50
"""The maximum number of near-ties listed."""

DETAIL_BUDGET: Final = 40_000
"""The maximum number of characters of the details of all rows, as JSON."""

DETAIL_MARKUP: Final = 1_500
"""The number of characters of markup around a derivation and its values."""

MOST_CAUSE_LABELS: Final = 1000
"""The maximum number of causes that the viewer names."""

ROW_CHARACTERS: Final = 120
"""The maximum number of characters of a text in a closed row."""


def render_html(report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None) -> str:
    """Render the page. All text is escaped, and the page forbids all requests and all scripts except its own.

    stepped: in lockstep, the actual steps from the expected goals, so that both sides of each can be shown
    """
    script = read_packed("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    labels = [wording.cause_label(report, i) for i in range(min(len(report.causes), MOST_CAUSE_LABELS))]
    # The words that the viewer shares with the page, and a summary for programs.
    words = {
        "levels": wording.LEVEL_MEANINGS,
        "marks": MARKS,
        "causes": [wording.clip(label, ROW_CHARACTERS) for label in labels],
        "firsts": [each.first for each in report.causes[:MOST_CAUSE_LABELS]],
        "total": len(report.divergences),
    }
    summary = {
        "verdict": report.verdict,
        "level": report.level,
        "run": report.run,
        "coverage": report.coverage,
        "self_test": report.self_test,
        "metrics": report.metrics,
        "num_divergences": len(report.divergences),
        "num_near_ties": len(report.near_ties),
        "modulo": report.modulo,
        "benign": report.benign,
        "first_cause": report.first_cause,
        "causes": report.causes[:MOST_DETAILED],
        "attribution": report.attribution,
        "ranking_rules": report.ranking_rules,
    }
    return render_template(
        "report.html",
        escape=make_visible,
        is_markup=True,
        **build_page(report, expected, actual, stepped),
        report=report,
        first=read_first_screen(report),
        first_number=wording.number_of_first(report),
        limits={k: v for k, v in msgspec.structs.asdict(report.limits).items() if v is not None and v != OURS},
        most_steps=MOST_STEPS,
        meanings=wording.LEVEL_MEANINGS,
        moves=MOVES,
        words=Markup(escape_script(msgspec.json.encode(words))),
        most_near_ties=MOST_NEAR_TIES,
        row_characters=ROW_CHARACTERS,
        of_traces=wording.OF_TRACES,
        style=read_packed("first_screen.css", "report.css"),
        script=script,
        script_hash=Markup(f"sha256-{digest}"),
        summary=Markup(escape_script(msgspec.json.encode(summary))),
    )


def build_page(report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None) -> Values:
    """Return the parts of the page that are computed: metrics, charts, the rows of causes, commands and the viewer."""
    reader = read_derivations(report, expected, actual, stepped)
    rows = _list_rows(report, reader)
    return {
        "metrics": tuple(wording.metric_rows(report, lacking="")),
        "pictures": [Markup(each.render(is_alone=False)) for each in draw_pictures(report, expected, actual).values()],
        "rows": rows,
        "marks": MARKS,
        "sources": wording.list_sources(report),
        "commands": rows[0]["detail"]["commands"] if rows else ["kgverify show expected.h5"],
        "viewer": build_viewer(report, reader) if report.divergences else None,
    }


def build_viewer(report: ReportContent, reader: DerivationReader) -> Values:
    """Return the data of the viewer: the list; and the first divergences with their steps, and the trees of their candidates.

    Both are JSON, compressed with deflate and encoded in base64. Divergences of a candidate share steps, to which they refer
    by index. The divergent step has an arrow and is not shared.
    """
    listed = report.divergences[:MOST_LISTED]
    budget = STEP_BUDGET
    steps: list[msgspec.Raw] = []
    trees: dict[int, msgspec.Raw] = {}
    stepped: dict[int, msgspec.Raw] = {}
    known: dict[tuple[int, int, int], int] = {}

    def encode(shown: Any) -> msgspec.Raw:
        nonlocal budget
        encoded = msgspec.json.encode(_make_all_visible(shown))
        budget -= len(encoded)
        return msgspec.Raw(encoded)

    def write_step(index: int, step: int) -> int:
        divergence = listed[index]
        at = divergence.candidate, step, index if step == divergence.step else -1
        if at not in known:
            known[at] = len(steps)
            steps.append(encode(_read_step(reader, divergence, step)))
        return known[at]

    # First the first divergence of each cause, then the others.
    order = dict.fromkeys((*(each.first for each in report.causes if each.first < len(listed)), *range(len(listed))))
    for index in islice(order, MOST_STEPPED):
        if budget <= 0:
            break
        divergence = listed[index]
        num_steps = reader.num_steps(divergence)
        begin = max(0, min(max(divergence.step, 0) - MOST_STEPS // 2, max(num_steps) - MOST_STEPS))
        if divergence.candidate not in trees and any(both := reader.trees(divergence)):
            trees[divergence.candidate] = encode(both)
        # `own` is the derivation of a divergence that is not in a step, such as one in a candidate's outcome.
        is_whole = divergence.step < 0 and max(num_steps)
        shown = {
            "found": wording.clip(wording.describe_finding(divergence)),
            "condition": wording.condition_of(report, divergence),
            "expected": _cut(wording.value_lines(divergence.expected)),
            "actual": _cut(wording.value_lines(divergence.actual)),
            "num_steps": num_steps,
            "steps": [write_step(index, step) for step in range(begin, min(begin + MOST_STEPS, max(num_steps)))],
            "own": read_document(reader, divergence, divergence.step).derivation if is_whole else None,
        }
        stepped[index] = encode(shown)
    return {
        "divergences": _compress(_list(listed)),
        "steps": _compress({"divergences": stepped, "steps": steps, "trees": trees}),
        "num_listed": len(listed),
        "num_stepped": len(stepped),
    }


_TEXTS: Final[dict[str, Callable[[Divergence], str]]] = {
    "stage": lambda each: each.stage,
    "kind": lambda each: each.kind.value,
    "what": wording.describe_kind,
    "level": lambda each: each.level.value,
    "side": lambda each: each.side,
    "field": lambda each: each.field,
    "atom": lambda each: each.atom,
}
_NUMBERS: Final = ("candidate", "query", "step", "later_steps", "cause")


def _list(divergences: Sequence[Divergence]) -> Values:
    """Return the list as columns, in the order of the report. Text columns contain indices into `texts`."""
    texts: dict[str, int] = {}
    columns: dict[str, list[int]] = {}
    for name, read in _TEXTS.items():
        shown = (wording.clip(read(each), TEXT_CHARACTERS) for each in divergences)
        columns[name] = [texts.setdefault(text, len(texts)) for text in shown]
    for name in _NUMBERS:
        columns[name] = [getattr(each, name) for each in divergences]
    return {"texts": list(texts), "columns": columns}


def _read_step(reader: DerivationReader, divergence: Divergence, step: int) -> tuple[Any, ...]:
    """Return a step as the page shows it: its number, mark, both sides, and stages.

    The mark is `agrees`, `differs`, `follows` (from an earlier difference), or the only side that has the step.
    """
    document = read_document(reader, divergence, step)
    mark = "differs" if step == divergence.step else _mark(reader, divergence.candidate, document)
    derivation = document.derivation or Derivation((), step)
    stages = [each._replace(expected=_cut(each.expected), actual=_cut(each.actual)) for each in document.stages]
    return step, mark, derivation._replace(before=()), stages


def _mark(reader: DerivationReader, candidate: int, document: StepDocument) -> str:
    expected, actual, is_same_way = reader.sides(candidate, document.step)
    if expected is None or actual is None:
        return "actual only" if expected is None else "expected only"
    if not is_same_way:
        return "follows"
    derivation = document.derivation or Derivation((), document.step)
    differs = any(pair.num_differing or pair.mark not in ("same", "hidden") for pair in derivation.pairs)
    differs |= any(each.differs for each in derivation.goals) or any(each.differs for each in derivation.facts)
    return "differs" if differs or any(line.is_culprit for line in document.stages) else "agrees"


def _cut(items: Sequence[str]) -> tuple[str, ...]:
    """Keep at most `MOST_ITEMS` items, and say how many more there are."""
    rest = len(items) - MOST_ITEMS
    return (*items[:MOST_ITEMS], f"… and {rest:,} more") if rest > 0 else tuple(items)


def _make_all_visible(value: Any) -> Any:
    """Make every text in nested data visible."""
    if isinstance(value, str):
        return make_visible(value)
    if isinstance(value, dict):
        return {name: _make_all_visible(each) for name, each in value.items()}
    return [_make_all_visible(each) for each in value] if isinstance(value, tuple | list) else value


def _compress(value: Values) -> Markup:
    # Base64 has no character that HTML would read.
    return Markup(base64.b64encode(zlib.compress(msgspec.json.encode(value), 9)).decode())


def _list_rows(report: ReportContent, reader: DerivationReader) -> list[Values]:
    """Return a row for each cause in the order of the report; without causes, a row for each divergence, by stage.

    A row includes the details of its first divergence unless the page would get too large.
    """
    members: dict[int, list[Divergence]] = defaultdict(list)
    for each in report.divergences:
        members[each.cause].append(each)
    shares = wording.shares_of(report)
    rows: list[Values] = [
        {
            "number": cause.first + 1,
            "first": report.divergences[cause.first],
            "members": members[i],
            "cause": cause,
            "stage": cause.stage,
            "kind": cause.kind.value,
            "what": ": ".join(filter(None, (cause.kind.value, wording.clip(cause.situation, ROW_CHARACTERS)))),
            "num_later": cause.num_later,
            "share": shares.get(i),
            "condition": wording.clip(cause.condition, wording.MOST_OF_CONDITION),
            "source": wording.describe_source(cause),
            "source_number": wording.number_of_source(report, i),
        }
        for i, cause in enumerate(report.causes[:MOST_ROWS])
    ] or [
        {
            "number": i + 1,
            "first": each,
            "members": [each],
            "stage": each.stage,
            "kind": "" if each.kind is DifferenceClass.UNCLASSIFIED else each.kind.value,
            "what": wording.clip(wording.describe_kind(each), ROW_CHARACTERS),
            "num_later": each.later_steps,
            "share": None,
            "condition": "",
            "source": "",
        }
        for i, each in enumerate(report.divergences[:MOST_ROWS])
    ]
    if not report.causes:
        rows.sort(key=lambda row: wording.stage_order(row["stage"]))
    budget = DETAIL_BUDGET
    for i, row in enumerate(rows):
        row["detail"] = _describe_first(report, reader, row) if i < MOST_DETAILED and budget >= 0 else None
        budget -= row["detail"]["size"] if row["detail"] else 0
    return rows


def _describe_first(report: ReportContent, reader: DerivationReader, row: Values) -> Values:
    """Return the details of a row's first divergence: what was found and how, both sides, and further divergences."""
    first, derivation = row["first"], reader.read(row["first"])
    # In lockstep the actual engine's own run has a different step there.
    actual_candidate = None if report.lockstep else reader.actual_candidate(first)
    shown = derivation, wording.value_lines(first.expected), wording.value_lines(first.actual)
    found = f"{wording.describe_difference(first)}; {wording.describe_finding(first)}"
    others = [each for each in row["members"] if each is not first]
    return {
        "found": wording.clip(found),
        "derivation": derivation,
        "members": others[:MOST_MEMBERS],
        "num_more": max(0, len(others) - MOST_MEMBERS),
        "commands": [each.text for each in show_divergence(first, row["number"], actual_candidate)],
        "size": len(msgspec.json.encode(shown)) + DETAIL_MARKUP,
    }
