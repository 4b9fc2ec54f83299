"""The moves through the divergences of a saved run, and the text that a terminal prints at each position."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from kgverify.comparison.result import Cause, Divergence
from kgverify.errors import UserError, count_of
from kgverify.escaping import make_visible
from kgverify.report.content import ReportContent
from kgverify.report.next_steps import NextStep, read_source, show_cause, show_divergence
from kgverify.report.proof_tree import TreeLine
from kgverify.report.render.screen import FittedTable, Text, list_pairs
from kgverify.report.step_document import (
    MARKS,
    Derivation,
    Line,
    Mark,
    Pair,
    StageLine,
    StepDocument,
    read_derivations,
    read_document,
)
from kgverify.report.wording import (
    LEVEL_MEANINGS,
    cause_label,
    clip,
    describe_finding,
    describe_kind,
    describe_later,
    value_lines,
)
from kgverify.trace.model.trace import Trace

MOVES: Final = {
    "n": "next divergence",
    "p": "previous divergence",
    "f": "forward: next step of the derivation",
    "b": "back: previous step",
    "s": "next stage of the step",
    "S": "previous stage",
    "o": "out: the whole divergent step again",
    "t": "the derivation as a proof tree, and back",
    "d": "divergence N, from 1 (`d 3`)",
    "c": "first divergence of cause N, from 1 (`c 2`)",
}
"""The moves and their descriptions; `d` and `c` take a number."""

SEARCH: Final = "/"
"""The prefix of a search; `n` and `p` then move only through the divergences that contain its words."""


MOST_ITEMS: Final = 40
"""The maximum number of items of a stage shown for each side."""

_STYLES: Final = {Mark.AGREES: "green", Mark.DIFFERS: "bold red", Mark.FOLLOWS: "yellow", Mark.NOT_HELD: "dim"}
_SIDES: Final = {"expected": "green", "actual": "red"}
"""The sides and their colours."""


MOST_CAUSES: Final = 12
"""The maximum number of other causes to which the steps of a divergence lead on."""


class ShownDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """A divergence of a saved run: `kgverify show RUN_DIR --divergence N`.

    number:     its number, from 1; total: the number of divergences of the run
    cause:      its cause, with the engine's code of the stage; None if it has none
    derivation: the step side by side, a `Derivation`; None for a difference that is in no step
    stages:     the stages of the step on both sides, each a `StageLine`
    """

    number: int
    total: int
    divergence: Divergence
    cause: Cause | None
    derivation: dict[str, Any] | None
    stages: list[dict[str, Any]]


class Position(NamedTuple):
    """The position of a stepper.

    divergence: index in the report
    step:       index in its candidate's derivation; -1 if the divergence is not in a step
    stage:      index in the walk through the step; -1 for the whole step
    is_tree:    whether the proof tree is shown instead of the step
    """

    divergence: int
    step: int
    stage: int = -1
    is_tree: bool = False


class Stepper:
    """A cursor over the divergences of a report. UserError for a report without divergences, and for an unknown number.

    stepped: as in `DerivationReader`
    """

    def __init__(self, report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None) -> None:
        if not report.divergences:
            raise UserError(
                f"the run has no divergences to step through: {report.verdict.value}",
                where=expected.source,
                fix="show a trace of it: kgverify show RUN_DIR/expected.h5",
            )
        self.report = report
        self.reader = read_derivations(report, expected, actual, stepped)
        self.position = Position(0, report.divergences[0].step)
        self.words = ""
        self._found: list[int] | None = None

    @property
    def divergence(self) -> Divergence:
        """The current divergence, to whose derivation the current step belongs."""
        return self.report.divergences[self.position.divergence]

    def document(self) -> StepDocument:
        """Return the current step side by side, and stage by stage."""
        return read_document(self.reader, self.divergence, self.position.step)

    def search(self, words: str) -> str:
        """Restrict `n` and `p` to the divergences that contain every word, and go to the next one. Return the result in words.

        Case does not matter. An empty search lifts the restriction.
        """
        self.words, self._found = words, None
        wanted = words.lower().split()
        if not wanted:
            return "n and p go through all divergences again"
        texts = map(search_text, self.report.divergences)
        found = [i for i, text in enumerate(texts) if all(word in text for word in wanted)]
        if not found:
            self.words = ""
            return "no divergence contains all these words"
        self._found = found
        at = next((i for i in found if i >= self.position.divergence), found[0])
        self.go_to(at + 1)
        return f"{len(found):,} of {len(self.report.divergences):,} divergences; n and p go through these"

    def go_to(self, number: int) -> None:
        """Go to a divergence; numbers begin at 1. UserError for an unknown number."""
        num = len(self.report.divergences)
        if not 1 <= number <= num:
            raise UserError(
                f"expected a divergence from 1 to {num}, found {number}", where="divergence", fix="choose one of these"
            )
        self.position = Position(number - 1, self.report.divergences[number - 1].step)

    def move(self, name: str, number: int | None = None) -> str:
        """Make a move of `MOVES`, with a number for `d` and `c`. Return why the move is impossible, or an empty text."""
        position = self.position
        match name:
            case "d" | "c":
                return self._jump(name, number)
            case "n" | "p":
                return self._to_divergence(forward=name == "n")
            case "f" | "b":
                return self._to_step(position.step + (1 if name == "f" else -1))
            case "s" | "S":
                return self._to_stage(1 if name == "s" else -1)
            case "t" if not position.is_tree and not any(self.reader.trees(self.divergence)):
                return "a tree would show no more than the steps"
            case "t":
                self.position = position._replace(
                    is_tree=not position.is_tree, stage=-1 if position.is_tree else position.stage
                )
            case _:
                self.position = Position(position.divergence, self.divergence.step)
        return ""

    def data(self) -> "ShownDivergence":
        """Return the current divergence, the step side by side, and its stages, for JSON."""
        report, divergence, (_, derivation, stages) = self.report, self.divergence, map(_as_data, self.document())
        cause = report.causes[divergence.cause] if 0 <= divergence.cause < len(report.causes) else None
        return ShownDivergence(
            number=self.position.divergence + 1,
            total=len(report.divergences),
            divergence=divergence,
            cause=cause,
            derivation=derivation,
            stages=stages,
        )

    def lead_on(self, folder: str | Path) -> list[NextStep]:
        """Return the steps that lead on from the current divergence of the run saved in a folder."""
        report, divergence = self.report, self.divergence
        has_cause = 0 <= divergence.cause < len(report.causes)
        actual = None if report.lockstep else self.reader.actual_candidate(divergence)
        _, *shows = show_divergence(divergence, self.position.divergence + 1, actual, folder)
        others = (show_cause(report, i, folder) for i in range(len(report.causes)) if i != divergence.cause)
        return [
            *(read_source(report.causes[divergence.cause]) if has_cause else ()),
            *shows,
            *islice(others, MOST_CAUSES),
        ]

    def _jump(self, name: str, number: int | None) -> str:
        causes = self.report.causes
        num = len(causes) if name == "c" else len(self.report.divergences)
        what = "cause" if name == "c" else "divergence"
        if not num:
            return "the divergences were not grouped into causes"
        if number is None or not 1 <= number <= num:
            return f"{name} needs the number of a {what}, 1 to {num}"
        self.go_to(causes[number - 1].first + 1 if name == "c" else number)
        return ""

    def _to_divergence(self, *, forward: bool) -> str:
        listed: Sequence[int] = range(len(self.report.divergences)) if self._found is None else self._found
        after = bisect_right(listed, self.position.divergence)
        index = after if forward else bisect_left(listed, self.position.divergence) - 1
        if not 0 <= index < len(listed):
            return f"this is the {'last' if forward else 'first'} divergence"
        self.go_to(listed[index] + 1)
        return ""

    def _to_step(self, step: int) -> str:
        if step >= max(self.reader.num_steps(self.divergence)):
            return "neither side has a further step"
        if step < min(0, self.divergence.step):
            return "this is the first step"
        self.position = Position(self.position.divergence, step)
        return ""

    def _to_stage(self, by: int) -> str:
        stages = self.document().stages
        if not stages:
            return "both sides have no step here"
        stage = self.position.stage + by if self.position.stage >= 0 or by > 0 else len(stages) - 1
        if stage >= len(stages):
            return "this is the last stage; f goes to the next step"
        self.position = self.position._replace(stage=max(-1, stage), is_tree=False)
        return ""


def search_text(divergence: Divergence) -> str:
    """Return the text that a search matches, which is the text of the list in the page."""
    each = divergence
    words = (each.atom, each.stage, describe_kind(each), each.side, each.level.value)
    return f"{' '.join(words)} candidate {each.candidate} query {each.query}".lower()


def _as_data(value: Any) -> Any:
    """Convert named tuples to objects, recursively."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _as_data(each) for name, each in value._asdict().items()}
    return [_as_data(each) for each in value] if isinstance(value, tuple) else value


def render_help() -> RenderableType:
    """Render the moves."""
    more = {
        SEARCH: "search: divergences with all these words (`/ asia score`)",
        "h": "this help",
        "q": "quit",
    }
    table = Table.grid(padding=(0, 3))
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
    place = f"   query {divergence.query}, {divergence.side} side" if divergence.query >= 0 else ""
    yield _text(f"  candidate {divergence.candidate}: {clip(divergence.atom)}{place}")
    if step >= 0:
        counts = stepper.reader.num_steps(divergence)
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
    if later := describe_later(divergence):
        yield Text(f"  {later}", style="dim")


def _derivation(derivation: Derivation) -> Iterator[RenderableType]:
    """Render the previous steps, each with the clause that made the next goal; the note; and both sides."""
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
            yield f"{arrow} {MARKS[pair.mark]}", *(_resolvent(pair, line, style) for line, style in lines)


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
    return items[0] if len(items) == 1 else count_of(len(items), "item") if items else ""


def _trees(stepper: Stepper) -> Iterator[RenderableType]:
    trees = stepper.reader.trees(stepper.divergence)
    keys = [[(line.depth, line.atom, line.clause) for line in tree] for tree in trees]
    for tree, others, (name, style) in zip(trees, reversed(keys), _SIDES.items(), strict=True):
        yield Text(f"  {name}", style=f"bold {style}")
        if not tree:
            yield Text("    not determined by the steps that the trace contains", style="dim")
        yield list_pairs([_tree_line(line, stepper.position.step, others, style) for line in tree], style="")


def _tree_line(line: TreeLine, step: int, others: Sequence[tuple[int, str, str]], style: str) -> tuple[Text, Text]:
    """Render an atom of a proof tree. step: the current step; others: the lines of the other tree."""
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
    """Render items of both sides, and mark the items that only one side has."""
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
