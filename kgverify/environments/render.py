"""A report on two environments as text for a terminal, and as HTML."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table

from kgverify.comparison.exercise.exercise import describe_minimum
from kgverify.comparison.result import Divergence
from kgverify.environments.content import EnvironmentContent, EnvironmentInfo
from kgverify.environments.rows import Window
from kgverify.errors import count_of
from kgverify.escaping import make_visible
from kgverify.report import wording
from kgverify.report.render.github import MOST_CAUSES
from kgverify.report.render.screen import FittedTable, Screen, Text, list_pairs
from kgverify.report.render.template import read_packed, render_template
from kgverify.report.render.terminal import STYLES, print_next


def describe_sides(report: EnvironmentContent) -> str:
    """Describe both sides: `Env against VectorEnv`."""
    return f"{wording.clip(report.expected.name)} against {wording.clip(report.actual.name)}"


def list_facts(report: EnvironmentContent) -> Iterator[tuple[str, str]]:
    """Yield what was compared, and how, as titles and texts."""
    yield "expected", _describe_side(report.expected)
    yield "actual", _describe_side(report.actual)
    size = f"{count_of(report.slots, 'slot')}, {count_of(report.steps, 'action')} each, seeds from {report.seed}"
    how = "each step from the expected state (lockstep)" if report.lockstep else "each side from its own state"
    yield "compared", f"{size}; {count_of(report.coverage.steps, 'row')}, {how}"
    if report.minimum:
        yield "required", describe_minimum(report.minimum)
    if report.rounding:
        yield "rounding", wording.clip(report.rounding)
    if (found := report.shrunk) is not None:
        size = f"{count_of(found.slots, 'slot')} and {count_of(found.steps, 'action')}, seed {found.seed}"
        start = ", from a state" if found.states is not None else ""
        again = "" if found.repeats else "; another run did not show it"
        yield "shrunk to", f"{size}{start}: {wording.clip(wording.describe_divergence(found.divergence))}{again}"
    if report.near_ties:
        first = report.near_ties[0]
        where = f"first {wording.clip(first.atom)}, step {first.step}"
        ends = f"expected {wording.clip(first.expected)}, actual {wording.clip(first.actual)} [{first.code}]"
        num = count_of(len(report.near_ties), "step")
        yield "near-ties", f"{num}, whose end is decided by the last place of a number; {where}: {ends}"
    if report.self_test is not None:
        yield "self-test", f"a change planted in each of {count_of(report.self_test.columns, 'column')} was reported"
    yield from (("note", wording.clip(note)) for note in report.notes)


def _describe_side(side: EnvironmentInfo) -> str:
    ends = f"{side.terminated:,} terminated, {side.truncated:,} truncated"
    parts = [f"{count_of(side.episodes, 'episode')} ended ({ends})", count_of(side.resets, "reset")]
    mode = [f"autoreset {wording.clip(side.autoreset)}"] if side.autoreset else []
    return f"{wording.clip(side.name)}: {', '.join([*parts, count_of(side.rewards, 'nonzero reward'), *mode])}"


def list_causes(report: EnvironmentContent) -> Iterator[tuple[str, str]]:
    """Yield each cause with its size, and its condition."""
    for cause in report.causes[:MOST_CAUSES]:
        what = ", ".join(filter(None, (cause.kind.value, wording.clip(cause.situation))))
        size = f"{count_of(cause.num_divergences, 'difference')} in {count_of(cause.num_candidates, 'slot')}"
        condition = wording.clip(cause.condition, wording.MOST_OF_CONDITION)
        yield make_visible(f"{cause.stage} ({what}): {size}"), condition


def find_window(report: EnvironmentContent, divergence: Divergence | None) -> Window | None:
    """Return the rows around a divergence; None if the report does not have them."""
    return next((each for each in report.windows if report.divergences[each.divergence] is divergence), None)


def print_report(
    report: EnvironmentContent,
    console: Screen,
    *,
    divergence: Divergence | None = None,
    next_commands: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print a report, with the first divergence or another one, and the steps that lead on."""
    console.print(Group(*_render(report, divergence or report.first_divergence)))
    if report.divergences:
        print_next(console, next_commands)


def _render(report: EnvironmentContent, shown: Divergence | None) -> Iterator[RenderableType]:
    yield Text(report.verdict.value, style=STYLES[report.verdict]).append(f"   {describe_sides(report)}", "default")
    yield from (Text(make_visible(f"  because {reason}"), style="yellow") for reason in report.reasons)
    yield from (f"  {title}: {text}" for title, text in list_facts(report))
    if shown is not None:
        which = "first divergence" if shown is report.first_divergence else "divergence"
        title = Text(
            f"\n{which}: {make_visible(shown.stage)} at step {shown.step} of {wording.clip(shown.atom)}", "bold"
        )
        yield title.append(f"   (of {len(report.divergences):,})", style="dim")
        window = find_window(report, shown)
        if window is not None:
            yield _render_window(window)
        yield list_pairs(
            (
                ("   field", wording.clip(shown.field)),
                ("   difference", shown.kind.code.mark(wording.clip(wording.describe_kind(shown)))),
                ("   expected", Text("\n".join(wording.value_lines(shown.expected)), style="green")),
                ("   actual", Text("\n".join(wording.value_lines(shown.actual)), style="red")),
            )
        )
    if report.causes:
        yield Text("\ncauses", style="bold")
    for number, (cause, condition) in enumerate(list_causes(report), 1):
        yield f"#{number} {cause}"
        if condition:
            yield Text(f"   {condition}")


_COLOURS: Final = {"expected": "green", "actual": "red", "": ""}


def _render_window(window: Window) -> RenderableType:
    table = Table("", *(title for title, _ in window.heads), box=None, padding=(0, 3, 0, 0))
    rows = [
        [Text(f"   {wording.clip(name)}"), *(Text(text, _COLOURS[role]) for text, role in cells)]
        for name, cells in window.lines
    ]
    return FittedTable(table, rows, may_fold=False)


def render_html(report: EnvironmentContent) -> bytes:
    """Render the page. All text is escaped, and the page forbids all requests and all scripts."""
    page = render_template(
        "environment.html",
        escape=make_visible,
        is_markup=True,
        filters=(describe_sides, list_facts, list_causes, find_window),
        report=report,
        further=[each for each in report.divergences if each is not report.first_divergence][:MOST_LISTED],
        style=read_packed("first_screen.css", "report.css"),
    )
    return page.encode()


MOST_LISTED: Final = 100
"""The maximum number of further divergences on the page; the JSON report has all."""
