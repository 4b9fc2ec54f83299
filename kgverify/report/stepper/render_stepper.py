"""The text that a stepper prints at its position."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table

from kgverify.errors import count_of
from kgverify.escaping import make_visible
from kgverify.report.derivations import Derivation, Line, Pair, StepBefore
from kgverify.report.render.fitted_table import FittedTable
from kgverify.report.render.screen import Text
from kgverify.report.stepper.stage_walk import Mark, StageLine
from kgverify.report.stepper.stepper import MOVES, SEARCH, Stepper
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
    stages = stepper.stages()
    is_divergent = stepper.position.step == stepper.divergence.step
    if 0 <= stepper.position.stage < len(stages):
        return Group(*_title(stepper), *_one_stage(stepper, stages))
    derivation = stepper.derivation()
    parts = [*_title(stepper), *(_about(stepper) if is_divergent else ())]
    if derivation is not None and derivation.before:
        parts += render_before(derivation.before)
    if derivation is not None and derivation.note:
        parts.append(_text(f"  {derivation.note}", "yellow"))
    if derivation is not None and (derivation.goals or derivation.pairs):
        parts.append(_side_by_side(derivation))
    if stages:
        parts += [Text("stage by stage", style="bold"), _list_stages(stages)]
    elif is_divergent:
        parts.append(_two_columns(value_lines(stepper.divergence.expected), value_lines(stepper.divergence.actual)))
    return Group(*parts)


def render_before(steps: Sequence[StepBefore]) -> Iterator[RenderableType]:
    """Render the steps before a divergent one, each with the clause that made the next goal."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(3):
        table.add_column(overflow="fold")
    stacked = Text()
    for each in steps:
        label = Text(*("agrees", "green") if each.agrees else ("differs too", "yellow"))
        goal, clause = _text(each.goal), _text(f"by {each.clause}", "dim")
        table.add_row(f"    step {each.step}", label, goal, clause)
        stacked.append(f"  step {each.step}  ").append(label).append("\n    ").append(goal)
        stacked.append("\n    ").append(clause).append("\n")
    stacked.rstrip()
    yield FittedTable(table, stacked, may_fold=True)


def _title(stepper: Stepper) -> Iterator[RenderableType]:
    report, divergence, step = stepper.report, stepper.divergence, stepper.position.step
    number, total = stepper.position.divergence + 1, len(report.divergences)
    yield Text()
    title = Text(f"divergence {number:,} of {total:,}", style="bold")
    if 0 <= divergence.cause < len(report.causes):
        title.append(f"   cause {divergence.cause + 1} of {len(report.causes)}: ", style="default")
        title.append(make_visible(cause_label(report, divergence.cause)), style="red")
    yield title
    line = f"  candidate {divergence.candidate}: {clip(divergence.atom)}   query {divergence.query}, {divergence.side} side"
    yield _text(line)
    if step >= 0:
        counts = stepper.num_steps
        having = f"{counts[0]}" if counts[0] == counts[1] else f"{counts[0]} expected, {counts[1]} actual"
        where = Text(f"  step {step}", style="bold")
        where.append(f" of {having}", style="default")
        if step == divergence.step:
            where.append("   <- diverges here", style="red")
        elif divergence.step >= 0:
            where.append(f"   ({'before' if step < divergence.step else 'after'} the divergent step {divergence.step})")
        yield where


def _about(stepper: Stepper) -> Iterator[RenderableType]:
    divergence = stepper.divergence
    how = describe_finding(divergence)
    yield _text(f"  {divergence.stage}: {clip(describe_kind(divergence))}; {how}")
    yield _text(f"  level {divergence.level.value}: {LEVEL_MEANINGS[divergence.level]}")
    if divergence.later_steps:
        later = (
            "1 later step follows" if divergence.later_steps == 1 else f"{divergence.later_steps} later steps follow"
        )
        yield Text(f"  {later} from it", style="dim")


def _side_by_side(derivation: Derivation) -> FittedTable:
    """Render both sides beside each other, or below each other where the terminal is too narrow for their words."""
    stacked = Text()

    def add(mark: str, *sides: Text) -> None:
        table.add_row(mark, *sides)
        stacked.append(f"{mark}\n" if mark.strip() else "")
        if sides[0].plain == sides[1].plain:
            stacked.append("  both  ").append(sides[0]).append("\n")
            return
        for name, side in zip(("expected", "actual"), sides, strict=True):
            if side.plain:
                stacked.append(f"  {name}  ").append(side).append("\n")

    table = Table(box=None, padding=(0, 2, 0, 0), expand=False)
    table.add_column(no_wrap=True)
    table.add_column("expected", header_style="green", overflow="fold", ratio=1)
    table.add_column("actual", header_style="red", overflow="fold", ratio=1)
    table.add_row(Text("goal", style="bold"))
    stacked.append("goal\n", "bold")
    for atoms in derivation.goals:
        differs = atoms.differs and not derivation.note
        mark = "≠ differs" if differs else ""
        if derivation.goal_is_culprit and atoms is derivation.goals[0]:
            mark = f"-> {mark}"
        sides = (
            _text(atoms.expected or "", "green" if differs else ""),
            _text(atoms.actual or "", "red" if differs else ""),
        )
        add(f"  {mark}", *sides)
    table.add_row(Text("resolvents", style="bold"))
    stacked.append("resolvents\n", "bold")
    for pair in derivation.pairs:
        if pair.mark == "hidden":
            hidden = Text(f"... {pair.num_hidden} more, {pair.num_differing} of them different", style="dim")
            table.add_row("", hidden)
            stacked.append("  ").append(hidden).append("\n")
        else:
            mark = f"-> {_MARKS[pair.mark]}" if pair.is_culprit else f"   {_MARKS[pair.mark]}"
            add(mark, _resolvent(pair, pair.expected, 0), _resolvent(pair, pair.actual, 1))
    stacked.rstrip()
    return FittedTable(table, stacked, may_fold=True)


def _resolvent(pair: Pair, line: Line | None, side: int) -> Text:
    if line is None:
        return Text("")
    text = _text(f"{'*' if line.is_chosen else ' '} {line.goal}", "" if pair.mark == "same" else ("green", "red")[side])
    text.append(f"   {line.score}", style="dim")
    if line.clause:
        text.append(f"\n    by {make_visible(line.clause)}", style="dim")
    return text


def _list_stages(stages: Sequence[StageLine]) -> FittedTable:
    stacked = Text()
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for wraps in (False, False, True, True):
        table.add_column(no_wrap=not wraps, overflow="fold")
    for line in stages:
        name = _text(f"{'->' if line.is_culprit else '  '} {line.stage}", "bold" if line.is_culprit else "")
        mark, sides = Text(line.mark.value, style=_STYLES[line.mark]), _summaries(line)
        table.add_row(name, mark, *sides)
        stacked.append(name).append("  ").append(mark).append("\n")
        for title, side in zip(("expected", "actual") if sides[1].plain else ("both", ""), sides, strict=True):
            stacked.append_text(Text(f"     {title}  ").append(side).append("\n") if side.plain else Text())
    stacked.rstrip()
    return FittedTable(table, stacked, may_fold=True)


def _summaries(line: StageLine) -> tuple[Text, Text]:
    sides = [_summary(items) for items in (line.expected, line.actual)]
    if line.mark is Mark.AGREES or sides[0] == sides[1]:
        return _text(sides[0], "dim"), Text("")
    if line.mark is Mark.NOT_HELD and not any(sides):
        return Text(""), Text("")
    return _text(sides[0], "green"), _text(sides[1], "red")


def _summary(items: Sequence[str]) -> str:
    if len(items) != 1:
        return count_of(len(items), "item") if items else ""
    return items[0] if len(items[0]) <= SUMMARY_CHARACTERS else f"{items[0][: SUMMARY_CHARACTERS - 1]}…"


def _trees(stepper: Stepper) -> Iterator[RenderableType]:
    trees = stepper.trees()
    lines = [[(line.depth, line.atom, line.clause) for line in tree] for tree in trees]
    for side, (name, style) in enumerate((("expected", "green"), ("actual", "red"))):
        yield Text(f"  {name}", style=f"bold {style}")
        if not trees[side]:
            yield Text("    not determined by the steps that the trace contains", style="dim")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for line, key in zip(trees[side], lines[side], strict=True):
            label = f"    step {line.step}" if line.step >= 0 else f"    {line.note}"
            differs = key not in lines[1 - side]
            text = _text(f"{'  ' * line.depth}{line.atom}", style if differs else "")
            text.append(
                f"   {f'by {line.clause}' if line.clause else line.note if line.step >= 0 else ''}", style="dim"
            )
            is_here = line.step == stepper.position.step >= 0
            table.add_row(Text(label, style="bold" if is_here else "dim"), text)
        yield table


def _one_stage(stepper: Stepper, stages: Sequence[StageLine]) -> Iterator[RenderableType]:
    number = stepper.position.stage
    line = stages[number]
    title = _text(f"  {'-> ' if line.is_culprit else ''}stage {line.stage}", "bold")
    title.append(f"   {line.mark.value}", style=_STYLES[line.mark])
    title.append(f"   {number + 1} of {len(stages)}", style="dim")
    yield title
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
    table = Table(box=None, padding=(0, 2, 0, 1))
    table.add_column("expected", header_style="green", overflow="fold", ratio=1)
    table.add_column("actual", header_style="red", overflow="fold", ratio=1)
    columns = [
        _marked(these, others, sign) for these, others, sign in ((expected, actual, "-"), (actual, expected, "+"))
    ]
    for i in range(max(map(len, columns))):
        table.add_row(*(column[i] if i < len(column) else Text("") for column in columns))
    stacked = Text("\n").join([Text(" expected", "green"), *columns[0], Text(" actual", "red"), *columns[1]])
    return FittedTable(table, stacked, may_fold=True)


def _marked(these: Sequence[str], others: Sequence[str], sign: str) -> list[Text]:
    style = "green" if sign == "-" else "red"
    shown = [_text(f"  {item}") if item in others else _text(f"{sign} {item}", style) for item in these[:MOST_ITEMS]]
    rest = len(these) - MOST_ITEMS
    return [*shown, Text(f"  ... and {rest:,} more", style="dim")] if rest > 0 else shown


def _text(text: str, style: str = "") -> Text:
    return Text(make_visible(text), style=style)
