"""The text that a stepper prints at its position."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table

from kgverify.errors import count_of
from kgverify.escaping import make_visible
from kgverify.report.derivations import Derivation, Line, Pair
from kgverify.report.proof_tree import TreeLine
from kgverify.report.render.screen import FittedTable, Text, list_pairs
from kgverify.report.stepper.stage_walk import MOVES, SEARCH, Mark, StageLine, Stepper
from kgverify.report.wording import LEVEL_MEANINGS, cause_label, clip, describe_finding, describe_kind, value_lines

MOST_ITEMS: Final = 40
"""The items of a stage shown for each side."""

SUMMARY_CHARACTERS: Final = 44
"""The most characters of a stage's value in the list of stages."""

_MARKS: Final = {
    "same": "",
    "missing": "- missing",
    "extra": "+ extra",
    "changed": "≠ changed",
    "moved": "↕ moved",
    "score": "≠ score",
}
_STYLES: Final = {Mark.AGREES: "green", Mark.DIFFERS: "bold red", Mark.FOLLOWS: "yellow", Mark.NOT_HELD: "dim"}
_SIDES: Final = {"expected": "green", "actual": "red"}
"""The sides and their colours."""


def render_help() -> RenderableType:
    """Render the moves."""
    table = Table.grid(padding=(0, 3))
    more = {SEARCH: "search: divergences with all these words (`/ asia score`)", "h": "this help", "q": "quit"}
    more["arrows"] = "in a terminal: down and up for n and p, right and left for f and b"
    more["space"] = "in a terminal: scroll down; page keys scroll both ways"
    for name, what in (MOVES | more).items():
        table.add_row(Text(f"  {name}", style="bold"), what)
    return table


def render_position(stepper: Stepper) -> RenderableType:
    """Render the current position: the whole step, or one stage of it."""
    if stepper.position.is_tree:
        return Group(*_title(stepper), *_trees(stepper))
    _, derivation, stages = stepper.document()
    is_divergent = stepper.position.step == stepper.divergence.step
    if 0 <= stepper.position.stage < len(stages):
        return Group(*_title(stepper), *_one_stage(stepper, stages))
    parts = [*_title(stepper), *(_about(stepper) if is_divergent else ())]
    if derivation is not None:
        parts += _derivation(derivation)
    if stages:
        parts += [Text("stage by stage", style="bold"), _list_stages(stages)]
    elif is_divergent:
        parts.append(_two_columns(value_lines(stepper.divergence.expected), value_lines(stepper.divergence.actual)))
    return Group(*parts)


def _title(stepper: Stepper) -> Iterator[RenderableType]:
    report, divergence, step = stepper.report, stepper.divergence, stepper.position.step
    number, total = stepper.position.divergence + 1, len(report.divergences)
    title = Text(f"\ndivergence {number:,} of {total:,}", style="bold")
    if 0 <= divergence.cause < len(report.causes):
        title.append(f"   cause {divergence.cause + 1} of {len(report.causes)}: ", style="default")
        title.append(make_visible(cause_label(report, divergence.cause)), style="red")
    yield title
    line = f"  candidate {divergence.candidate}: {clip(divergence.atom)}   query {divergence.query}, {divergence.side} side"
    yield _text(line)
    if step >= 0:
        counts = stepper.num_steps
        having = f"{counts[0]}" if counts[0] == counts[1] else f"{counts[0]} expected, {counts[1]} actual"
        where = Text(f"  step {step}", style="bold").append(f" of {having}", style="default")
        if step == divergence.step:
            where.append("   <- diverges here", style="red")
        elif divergence.step >= 0:
            where.append(f"   ({'before' if step < divergence.step else 'after'} the divergent step {divergence.step})")
        yield where


def _about(stepper: Stepper) -> Iterator[RenderableType]:
    divergence = stepper.divergence
    yield _text(f"  {divergence.stage}: {clip(describe_kind(divergence))}; {describe_finding(divergence)}")
    yield _text(f"  level {divergence.level.value}: {LEVEL_MEANINGS[divergence.level]}")
    if divergence.later_steps:
        follow = "follows" if divergence.later_steps == 1 else "follow"
        yield Text(f"  {count_of(divergence.later_steps, 'later step')} {follow} from it", style="dim")


def _derivation(derivation: Derivation) -> Iterator[RenderableType]:
    """Render the steps before, each with the clause that made the next goal; the note; and both sides."""
    if derivation.before:
        grid = Table.grid("step", "", "", "", padding=(0, 2))
        grid.columns[0].no_wrap = True
        yield FittedTable(
            grid,
            [
                (
                    f"    step {each.step}",
                    Text(*("agrees", "green") if each.agrees else ("differs too", "yellow")),
                    _text(each.goal),
                    _text(f"by {each.clause}", "dim"),
                )
                for each in derivation.before
            ],
        )
    if derivation.note:
        yield _text(f"  {derivation.note}", "yellow")
    if derivation.goals or derivation.pairs:
        yield FittedTable(_make_table(has_marks=True), _rows(derivation))


def _make_table(*, has_marks: bool = False) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0 if has_marks else 1))
    if has_marks:
        table.add_column(no_wrap=True)
    for side, style in _SIDES.items():
        table.add_column(side, header_style=style, ratio=1)
    return table


def _rows(derivation: Derivation) -> Iterator[tuple[str | Text, ...]]:
    yield (Text("goal", style="bold"),)
    for i, atoms in enumerate(derivation.goals):
        differs = atoms.differs and not derivation.note
        mark = "≠ differs" if differs else ""
        arrow = "-> " if derivation.goal_is_culprit and not i else ""
        sides = zip(atoms, _SIDES.values(), strict=True)
        yield f"  {arrow}{mark}", *(_text(text or "", style if differs else "") for text, style in sides)
    yield (Text("resolvents", style="bold"),)
    for pair in derivation.pairs:
        if pair.mark == "hidden":
            yield "", Text(f"... {pair.num_hidden} more, {pair.num_differing} of them different", style="dim")
        else:
            lines = zip((pair.expected, pair.actual), _SIDES.values(), strict=True)
            arrow = "->" if pair.is_culprit else "  "
            yield f"{arrow} {_MARKS[pair.mark]}", *(_resolvent(pair, line, style) for line, style in lines)


def _resolvent(pair: Pair, line: Line | None, style: str) -> Text:
    if line is None:
        return Text("")
    text = _text(f"{'*' if line.is_chosen else ' '} {line.goal}", "" if pair.mark == "same" else style)
    text.append(f"   {line.score}", style="dim")
    if line.clause:
        text.append(f"\n    by {make_visible(line.clause)}", style="dim")
    return text


def _list_stages(stages: Sequence[StageLine]) -> FittedTable:
    table = Table("", "", *_SIDES, box=None, padding=(0, 2, 0, 0), show_header=False)
    for column in table.columns[:2]:
        column.no_wrap = True
    rows = []
    for line in stages:
        name = _text(f"{'->' if line.is_culprit else '  '} {line.stage}", "bold" if line.is_culprit else "")
        left, right = (_summary(items) for items in (line.expected, line.actual))
        is_one = line.mark is Mark.AGREES or left == right
        sides = (_text(left, "dim"), Text("")) if is_one else (_text(left, "green"), _text(right, "red"))
        rows.append((name, Text(line.mark.value, style=_STYLES[line.mark]), *sides))
    return FittedTable(table, rows)


def _summary(items: Sequence[str]) -> str:
    if len(items) != 1:
        return count_of(len(items), "item") if items else ""
    return items[0] if len(items[0]) <= SUMMARY_CHARACTERS else f"{items[0][: SUMMARY_CHARACTERS - 1]}…"


def _trees(stepper: Stepper) -> Iterator[RenderableType]:
    trees = stepper.trees()
    keys = [[(line.depth, line.atom, line.clause) for line in tree] for tree in trees]
    for tree, others, (name, style) in zip(trees, reversed(keys), _SIDES.items(), strict=True):
        yield Text(f"  {name}", style=f"bold {style}")
        if not tree:
            yield Text("    not determined by the steps that the trace contains", style="dim")
        yield list_pairs([_tree_line(line, stepper.position.step, others, style) for line in tree], style="")


def _tree_line(line: TreeLine, step: int, others: Sequence[tuple[int, str, str]], style: str) -> tuple[Text, Text]:
    """Render an atom of a proof tree. step: the current one; others: the lines of the other tree."""
    is_selected = line.step >= 0
    label = Text(
        f"    step {line.step}" if is_selected else f"    {line.note}", "bold" if line.step == step >= 0 else "dim"
    )
    text = _text(f"{'  ' * line.depth}{line.atom}", "" if (line.depth, line.atom, line.clause) in others else style)
    return label, text.append(f"   {f'by {line.clause}' if line.clause else line.note if is_selected else ''}", "dim")


def _one_stage(stepper: Stepper, stages: Sequence[StageLine]) -> Iterator[RenderableType]:
    number = stepper.position.stage
    line = stages[number]
    title = _text(f"  {'-> ' if line.is_culprit else ''}stage {line.stage}", "bold")
    title.append(f"   {line.mark.value}", style=_STYLES[line.mark])
    yield title.append(f"   {number + 1} of {len(stages)}", style="dim")
    if line.is_culprit and stepper.position.step == stepper.divergence.step:
        yield from _about(stepper)
    if line.note:
        yield _text(f"  {line.note}", "dim")
    if line.expected or line.actual:
        yield _two_columns(line.expected, line.actual)
    strip = Text("  stages: ", style="dim")
    for index, each in enumerate(stages):
        style = f"{_STYLES[each.mark]} reverse" if index == number else _STYLES[each.mark]
        strip.append(each.stage, style=style).append("  ")
    yield strip


def _two_columns(expected: Sequence[str], actual: Sequence[str]) -> FittedTable:
    """Render items of both sides; items that only one side has are marked."""
    columns = [
        _marked(these, others, sign, style)
        for (these, others, sign), style in zip(
            ((expected, actual, "-"), (actual, expected, "+")), _SIDES.values(), strict=True
        )
    ]
    return FittedTable(_make_table(), zip_longest(*columns, fillvalue=Text("")))


def _marked(these: Sequence[str], others: Sequence[str], sign: str, style: str) -> list[Text]:
    shown = [_text(f"  {item}") if item in others else _text(f"{sign} {item}", style) for item in these[:MOST_ITEMS]]
    rest = len(these) - MOST_ITEMS
    return [*shown, Text(f"  ... and {rest:,} more", style="dim")] if rest > 0 else shown


def _text(text: str, style: str = "") -> Text:
    return Text(make_visible(text), style=style)
