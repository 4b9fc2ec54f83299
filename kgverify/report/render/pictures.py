"""The pictures of a report: each answers one question, in the page and on a slide."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import inf, log10
from pathlib import Path
from textwrap import wrap
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import NO_CANDIDATE, FeatureValue
from kgverify.comparison.step_view import Names
from kgverify.errors import count_of
from kgverify.escaping import make_visible
from kgverify.files.writing import explained, write_file
from kgverify.program.outcomes import Origin, Side
from kgverify.ranking.rank import find_truth, key_of
from kgverify.report import wording
from kgverify.report.content import ComparedTraces, ReportContent
from kgverify.report.render.first_screen import compare_values
from kgverify.report.render.svg import LETTER, ROW, Bar, Line, Picture, Text
from kgverify.trace.model.columns import Rankings, starts_of
from kgverify.trace.model.trace import Trace

MOST_LEAVES: Final = 8
"""The maximum number of resolvents in the picture of a step."""

MOST_BARS: Final = 12
"""The maximum number of bars of a group, or of queries."""

MOST_VALUES: Final = 200
"""The maximum number of values of a feature that are drawn."""

LABEL: Final = 58
"""The maximum number of characters of a label."""

WIDTH: Final = 420
"""The length of the longest bar, in pixels."""

Shapes = list[Text | Bar | Line]


def draw_pictures(report: ReportContent, expected: Trace, actual: Trace) -> dict[str, Picture]:
    """Return the pictures of a report by name, without those whose data the run lacks."""
    pictures = {
        "step": draw_step(report),
        "condition": draw_condition(report),
        "clauses": draw_clauses(report, expected),
        "depth": draw_depth(report),
        "ranks": draw_ranks(expected, actual),
    }
    return {name: picture for name, picture in pictures.items() if picture is not None}


def write_pictures(report: ReportContent, run: ComparedTraces, folder: str | Path) -> list[Path]:
    """Write the pictures of a report into a folder, each as an SVG image with its name; return their paths."""
    paths = []
    folder = Path(folder)
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, picture in draw_pictures(report, run.expected, run.actual).items():
        paths.append(folder / f"{name}.svg")
        write_file(paths[-1], picture.render())
    return paths


def draw_step(report: ReportContent) -> Picture | None:
    """Draw the first wrong step: its goal above the values that differ on both sides, and the loss."""
    first = report.first_cause
    if first is None:
        return None
    rows = sorted(compare_values(first.expected, first.actual), key=lambda row: not row.mark)
    shapes: Shapes = []
    end = 0
    for side, name in enumerate(("expected", "actual")):
        x, y = side * (LABEL + 6) * LETTER, 4 * ROW
        engine = getattr(report.environment, name)
        shapes += [
            Text(x, y - ROW, _cut(f"{name}: {engine.name}"), f"bold {name}"),
            Text(x, y, _cut(first.goal or first.atom)),
        ]
        for row in rows[:MOST_LEAVES]:
            value = row.actual if side else row.expected
            if value or row.mark:
                sign, _, word = row.mark.partition(" ")
                shown = f"{sign} {''.join(value)}".strip() if value else word.replace("extra", "nothing")
                style = "bold wrong" if row.mark else ""
                shapes.append(Line(x + 5, 4 * ROW + 5, f"V{y + ROW - 4}H{x + 22}", "" if value else "lacking"))
                lines = wrap(make_visible(shown), LABEL, subsequent_indent="  ", max_lines=2, placeholder=" …")
                shapes += [Text(x + 26, y + (1 + 0.75 * i) * ROW, line, style) for i, line in enumerate(lines)]
            y += 2 * ROW
        end = y
    if len(rows) > MOST_LEAVES:
        shapes.append(Text(0, end + ROW, f"… and {len(rows) - MOST_LEAVES:,} more", "soft"))
        end += ROW
    # The shapes leave room for two lines.
    title = wrap(wording.describe_divergence(first), 2 * LABEL, max_lines=2, placeholder=" …")
    return Picture("\n".join(title), (*shapes, *_draw_loss(report, end + ROW)))


def _draw_loss(report: ReportContent, y: float) -> Iterator[Text | Bar]:
    whole = report.attribution
    if whole is None or max(whole.expected, whole.actual) <= 0:
        return
    yield Text(0, y + ROW, f"MRR {wording.describe_loss(report)}")
    for i, (name, value) in enumerate((("expected", whole.expected), ("actual", whole.actual))):
        width = WIDTH * value / max(whole.expected, whole.actual)
        yield Bar(0, y + (1.5 + i) * ROW, round(width, 1), ROW - 4, name)
        yield Text(width + 8, y + (2.1 + i) * ROW, f"{value:.4f} {name}", name)


def draw_condition(report: ReportContent) -> Picture | None:
    """Draw the instances that went wrong and the others along the feature of the first cause's condition."""
    first = report.first_cause
    cause = report.causes[first.cause] if first is not None and 0 <= first.cause < len(report.causes) else None
    if cause is None or cause.when is None or not (cause.when.values and cause.when.features):
        return None
    groups = [
        (f"{count_of(2, cause.when.unit)[2:]} by {name}, from each value on", _merge(values))
        for name, values in zip(cause.when.features, (cause.when.values, *cause.when.more_values), strict=False)
    ]
    title = f"Right and wrong along the condition of {wording.cause_label(report, first.cause if first else -1)}"
    return Picture(wording.clip(title, 2 * LABEL), tuple(_draw_bars(groups)))


def _merge(values: Sequence[FeatureValue]) -> list[tuple[str, int, int]]:
    """Return the numbers of wrong and right instances, of several values together if there are many, but never across a bound."""
    values = values[:MOST_VALUES]
    for num in range(1, len(values) + 1):
        chunks = [
            same[i : i + num]
            for _, group in groupby(values, key=lambda each: (each.num_wrong > 0, each.num_right > 0))
            for same in [list(group)]
            for i in range(0, len(same), num)
        ]
        if len(chunks) <= MOST_BARS:
            break
    return [
        (f"{chunk[0].value:,.12g}", sum(each.num_wrong for each in chunk), sum(each.num_right for each in chunk))
        for chunk in chunks
    ]


def draw_clauses(report: ReportContent, expected: Trace) -> Picture | None:
    """Draw the compared steps by the predicate of the selected atom, and by the rules that made a resolvent."""
    steps, resolvents = expected.columns.steps, expected.columns.resolvents
    num_steps = expected.columns.candidates.num_steps.tolist()
    # A report from elsewhere may refer to steps that the trace does not have.
    wrong = {
        (each.candidate, each.step)
        for each in report.divergences
        if each.expected != NO_CANDIDATE
        and 0 <= each.candidate < len(num_steps)
        and 0 <= each.step < num_steps[each.candidate]
    }
    if "steps.goal_atoms" not in expected.fields or not wrong:
        return None
    first_step = starts_of(expected.columns.candidates.num_steps)
    is_wrong = np.zeros(len(steps.num_atoms), bool)
    is_compared = np.ones(len(steps.num_atoms), bool)
    for candidate, step in wrong:
        is_wrong[first_step[candidate] + step : first_step[candidate] + step + 1] = True
        if not report.lockstep:
            is_compared[first_step[candidate] + step + 1 : first_step[candidate + 1]] = False
    names = Names(expected)
    has_atom = is_compared & (steps.num_atoms > 0)
    selected = steps.goal_atoms[starts_of(steps.num_atoms)[:-1][has_atom], 0]
    groups = [("steps by the predicate of the selected atom", _count(selected, is_wrong[has_atom], names.predicate))]
    if {"resolvents.origin", "resolvents.origin_kind"} <= expected.fields:
        step_of = np.repeat(np.arange(len(steps.num_resolvents)), steps.num_resolvents)
        is_rule = (resolvents.origin_kind == Origin.RULE) & is_compared[step_of]
        # A step counts once for each rule.
        pairs = np.unique(np.stack([resolvents.origin[is_rule], step_of[is_rule]], 1), axis=0)
        rules = _count(pairs[:, 0], is_wrong[pairs[:, 1]], lambda rule: names.clause(Origin.RULE, rule))
        groups.append(("steps by the rules that made an expected resolvent", rules))
    return Picture("Compared steps, right and wrong", tuple(_draw_bars(groups)))


def _count(keys: NDArray[np.integer], is_wrong: NDArray[np.bool_], name: object) -> list[tuple[str, int, int]]:
    """Return the name of each key with its number of wrong and right rows, the most wrong first."""
    wrong, both = Counter(keys[is_wrong].tolist()), Counter(keys.tolist())
    order = sorted(both, key=lambda key: (-wrong[key], -both[key]))
    return [(name(key), wrong[key], both[key] - wrong[key]) for key in order]  # type: ignore[operator]


def _draw_bars(groups: Iterable[tuple[str, Sequence[tuple[str, int, int]]]]) -> Iterator[Text | Bar]:
    """Draw a bar for each row of each group: its wrong part, and its right part."""
    y = 2 * ROW
    yield Text(0, y, "wrong", "bold wrong")
    yield Text(7 * LETTER, y, "right", "bold right")
    for title, rows in groups:
        shown = rows[:MOST_BARS]
        most = max([1, *(wrong + right for _, wrong, right in shown)])
        begin = (max((len(_cut(label)) for label, *_ in shown), default=0) + 2) * LETTER
        y += 2 * ROW
        yield Text(0, y, title, "soft")
        for label, wrong, right in shown:
            y += ROW
            yield Text(0, y, _cut(label))
            widths = [round(WIDTH * num / most, 1) for num in (wrong, right)]
            yield Bar(begin, y - 12, widths[0], ROW - 5, "wrong")
            yield Bar(begin + widths[0], y - 12, widths[1], ROW - 5, "right")
            nums = ", ".join(f"{num:,} {word}" for num, word in ((wrong, "wrong"), (right, "right")) if num)
            yield Text(begin + sum(widths) + 8, y, nums, "wrong" if wrong else "soft")
        if len(rows) > len(shown):
            y += ROW
            yield Text(0, y, f"… and {len(rows) - len(shown):,} more", "soft")


def draw_depth(report: ReportContent) -> Picture | None:
    """Draw the growth of divergence over the steps, and the divergences of each stage by step; several steps may share a bar."""
    divergences = [each for each in report.divergences if each.expected != NO_CANDIDATE]
    if not divergences:
        return None
    width = max(1, -(-(max(each.step for each in divergences) + 1) // MOST_BARS))
    parts = [(each.stage, max(each.step, -1) // width) for each in divergences]
    firsts = dict(
        sorted(((each.candidate, at) for each, (_, at) in zip(divergences, parts, strict=True)), key=lambda x: -x[1])
    )

    def name(part: int) -> str:
        first = part * width
        return "in no step" if part < 0 else f"step {first}" if width == 1 else f"steps {first} to {first + width - 1}"

    total = max(report.coverage.candidates, len(firsts))
    diverged = [(part, sum(0 <= each <= part for each in firsts.values())) for part in range(max(firsts.values()) + 1)]
    groups = [("candidates that have diverged by then", [(name(part), num, total - num) for part, num in diverged])]
    for stage in sorted({stage for stage, _ in parts}, key=wording.stage_order)[:MOST_BARS]:
        nums = Counter(part for each, part in parts if each == stage)
        groups.append((f"divergences of {wording.clip(stage)}", [(name(part), nums[part], 0) for part in sorted(nums)]))
    return Picture("Growth of divergence", tuple(_draw_bars(groups)))


def draw_ranks(expected: Trace, actual: Trace) -> Picture | None:
    """Draw the realistic rank of each query and side on both sides, those that change most first."""
    sides = [_read_ranks(each.rankings) for each in (expected, actual) if each.rankings is not None]
    if len(sides) < 2:
        return None
    shared = sorted(
        sides[0].keys() & sides[1].keys(), key=lambda key: (-abs(log10(sides[1][key] / sides[0][key])), key)
    )
    changed = sum(sides[0][key] != sides[1][key] for key in shared)
    if not changed:
        return None
    shown = shared[:MOST_BARS]
    truth, name = find_truth(expected.columns.candidates, expected.labels, expected.rankings), Names(expected).atom
    true = {key: name(atom) for key, atom in zip(truth.key.tolist(), truth.atom.tolist(), strict=True)}
    labels = [
        f"{_cut(true.get(key_of(query, side), f'query {query}'))}, {Side(side).name.lower()}" for query, side in shown
    ]
    begin = (max(map(len, labels)) + 2) * LETTER
    decades = max(1.0, log10(max(side[key] for side in sides for key in shown)))
    shapes: Shapes = [
        Text(0, 2 * ROW, "expected", "bold expected"),
        Text(10 * LETTER, 2 * ROW, "actual", "bold actual"),
    ]
    bottom = (3 + len(shown)) * ROW + 4
    for decade in range(int(decades) + 1):
        x = round(begin + WIDTH * decade / decades, 1)
        shapes += [Text(x, 3 * ROW, f"{10**decade:,}", "soft"), Line(x, 3 * ROW + 4, f"V{bottom}")]
    for y, (key, label) in enumerate(zip(shown, labels, strict=True), 4):
        at = [round(begin + WIDTH * log10(side[key]) / decades, 1) for side in sides]
        shapes += [Text(0, y * ROW, label), Line(at[0], y * ROW - 5, f"H{at[1]}")]
        shapes += [Bar(x - 4, y * ROW - 9, 8, 8, name) for x, name in zip(at, ("expected", "actual"), strict=True)]
        shapes.append(Text(begin + WIDTH + 16, y * ROW, f"{sides[0][key]:g} → {sides[1][key]:g}", "soft"))
    title = f"Ranks of the true triples: {changed:,} of {count_of(len(shared), 'rank')} changed"
    return Picture(f"{title}, the largest changes" if len(shared) > len(shown) else title, tuple(shapes))


def _read_ranks(rankings: Rankings | None) -> dict[tuple[int, int], float]:
    if rankings is None:
        return {}
    realistic = (rankings.optimistic + rankings.pessimistic) / 2
    keys = zip(rankings.query.tolist(), rankings.side.tolist(), strict=True)
    return {key: rank for key, rank in zip(keys, realistic.tolist(), strict=True) if 1 <= rank < inf}


def _cut(text: str) -> str:
    """Return a text as one visible line that fits its place."""
    shown = make_visible(text)
    return shown if len(shown) <= LABEL else f"{shown[: LABEL - 1]}…"
