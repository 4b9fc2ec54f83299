"""The data of the page's viewer: a table of all divergences, and the steps of the first ones as the stepper shows them."""

import base64
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from markupsafe import Markup

from kgverify.comparison.result import Divergence
from kgverify.escaping import make_visible
from kgverify.report.content import ReportContent
from kgverify.report.derivations import Derivation, Sides
from kgverify.report.stepper.stage_walk import StageLine
from kgverify.report.stepper.stepper import Position, Stepper
from kgverify.report.wording import clip, condition_of, describe_finding, describe_kind, value_lines

MOST_LISTED: Final = 100_000
"""The divergences in the list; JSON has all."""

MOST_STEPPED: Final = 200
"""The divergences whose steps are embedded."""

MOST_STEPS: Final = 60
"""The embedded steps of a derivation, around the divergent one."""

STEP_BUDGET: Final = 12_000_000
"""The characters of the embedded steps before compression."""

MOST_ITEMS: Final = 40
"""The items of a stage's output on each side."""

TEXT_CHARACTERS: Final = 160
"""The most characters of a text in the list."""


class Viewer(NamedTuple):
    """The data of the viewer: the list; the first divergences with their steps, and the proof trees of their candidates.

    divergences, steps: JSON, compressed with deflate, in base64
    """

    divergences: Markup
    steps: Markup
    num_listed: int
    num_stepped: int


_TEXTS: Final[dict[str, Callable[[Divergence], str]]] = {
    "stage": lambda each: each.stage,
    "kind": lambda each: each.kind.value,
    "what": describe_kind,
    "level": lambda each: each.level.value,
    "side": lambda each: each.side,
    "field": lambda each: each.field,
    "atom": lambda each: each.atom,
}
_NUMBERS: Final = ("candidate", "query", "step", "later_steps", "cause")


def build_viewer(stepper: Stepper) -> Viewer:
    """Build the data of the viewer. The stepper is moved."""
    divergences = stepper.report.divergences[:MOST_LISTED]
    writer = _StepWriter(stepper)
    stepped = dict(writer.write())
    return Viewer(
        _compress(msgspec.json.encode(_list(divergences))),
        _compress(msgspec.json.encode({"divergences": stepped, "steps": writer.steps, "trees": writer.trees})),
        len(divergences),
        len(stepped),
    )


def _list(divergences: tuple[Divergence, ...]) -> dict[str, Any]:
    """Return the list as columns, in the order of the report. Text columns hold indices into `texts`."""
    texts: dict[str, int] = {}
    columns: dict[str, list[int]] = {}
    for name, read in _TEXTS.items():
        shown = (clip(read(each), TEXT_CHARACTERS) for each in divergences)
        columns[name] = [texts.setdefault(text, len(texts)) for text in shown]
    for name in _NUMBERS:
        columns[name] = [getattr(each, name) for each in divergences]
    return {"texts": list(texts), "columns": columns}


class _StepWriter:
    """Writes divergences with their steps, until the limits of the page are reached."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._budget = STEP_BUDGET
        self.steps: list[msgspec.Raw] = []
        self.trees: dict[int, msgspec.Raw] = {}
        self._known: dict[tuple[int, int], int] = {}

    def write(self) -> Iterator[tuple[int, msgspec.Raw]]:
        """Yield the index of each divergence with what is shown of it, as JSON."""
        for number, index in enumerate(_order(self._stepper.report)):
            if number >= MOST_STEPPED or self._budget <= 0:
                return
            yield index, self._encode(self._read(index))

    def _encode(self, shown: Any) -> msgspec.Raw:
        encoded = msgspec.json.encode(_make_all_visible(shown))
        self._budget -= len(encoded)
        return msgspec.Raw(encoded)

    def _read(self, index: int) -> dict[str, Any]:
        """Return what the page shows of a divergence.

        num_steps: of the candidate on each side; the page may have fewer
        steps:     indices into the steps of the page, which several divergences of a candidate share
        own:       the summary of a divergence that is not in a step, such as the outcome of a candidate
        """
        stepper = self._stepper
        stepper.position = Position(index, stepper.report.divergences[index].step)
        divergence, num_steps = stepper.divergence, stepper.num_steps
        own = stepper.document().derivation if divergence.step < 0 and max(num_steps) else None
        begin = max(0, min(max(divergence.step, 0) - MOST_STEPS // 2, max(num_steps) - MOST_STEPS))
        numbers = range(begin, min(begin + MOST_STEPS, max(num_steps)))
        if divergence.candidate not in self.trees and any(trees := stepper.trees()):
            self.trees[divergence.candidate] = self._encode(trees)
        return {
            "found": clip(describe_finding(divergence)),
            "condition": condition_of(stepper.report, divergence),
            "expected": _cut(value_lines(divergence.expected)),
            "actual": _cut(value_lines(divergence.actual)),
            "num_steps": num_steps,
            "steps": [self._step(index, divergence, step) for step in numbers],
            "own": own,
        }

    def _step(self, index: int, divergence: Divergence, step: int) -> int:
        """Return the index of a step. The divergent step has an arrow, so that it is not shared."""
        at = divergence.candidate, step
        if step == divergence.step or at not in self._known:
            self._stepper.position = Position(index, step)
            self.steps.append(self._encode(_read_step(self._stepper, "differs" if step == divergence.step else "")))
            if step == divergence.step:
                return len(self.steps) - 1
            self._known[at] = len(self.steps) - 1
        return self._known[at]


def _read_step(stepper: Stepper, mark: str) -> tuple[int, str, Derivation, tuple[StageLine, ...]]:
    """Return the current step as the page shows it: its number, mark, both sides, and stages.

    mark: `agrees`, `differs`, `follows` from an earlier difference, or the side that alone has it; empty if unknown
    """
    step, found, stages = stepper.document()
    derivation = found or Derivation((), step)
    sides = stepper.reader.sides(stepper.divergence.candidate, step)
    cut = (each._replace(expected=_cut(each.expected), actual=_cut(each.actual)) for each in stages)
    return step, mark or _mark(sides, derivation, stages), derivation._replace(before=()), tuple(cut)


def _order(report: ReportContent) -> Iterator[int]:
    """Yield the indices of the listed divergences: the first one of each cause, then the others."""
    num = min(len(report.divergences), MOST_LISTED)
    first = dict.fromkeys(each.first for each in report.causes if each.first < num)
    yield from first
    yield from (index for index in range(num) if index not in first)


def _mark(sides: Sides, derivation: Derivation, stages: tuple[StageLine, ...]) -> str:
    if sides.expected is None or sides.actual is None:
        return "actual only" if sides.expected is None else "expected only"
    if not sides.is_same_way:
        return "follows"
    is_same = all(pair.mark in ("same", "hidden") and not pair.num_differing for pair in derivation.pairs)
    is_same = is_same and not any(atoms.differs for atoms in derivation.goals)
    is_same = is_same and not any(fact.differs for fact in derivation.facts)
    return "agrees" if is_same and not any(line.is_culprit for line in stages) else "differs"


def _cut(items: Any) -> Any:
    """Keep at most `MOST_ITEMS` items, and say how many there are besides."""
    rest = len(items) - MOST_ITEMS
    return type(items)([*items[:MOST_ITEMS], f"… and {rest:,} more"]) if rest > 0 else items


def _make_all_visible(value: Any) -> Any:
    """Make every text of nested data visible."""
    if isinstance(value, str):
        return make_visible(value)
    if isinstance(value, dict):
        return {name: _make_all_visible(each) for name, each in value.items()}
    return [_make_all_visible(each) for each in value] if isinstance(value, tuple | list) else value


def _compress(encoded: bytes) -> Markup:
    # Base64 has no character that HTML would read.
    return Markup(base64.b64encode(zlib.compress(encoded, 9)).decode())
