"""The lines of a step that run in eager, where no graph shows a deviation by itself."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any

from stepaudit.audited_function import Inputs
from stepaudit.ladder.climb import Climb, Judge
from stepaudit.ladder.culprit import LINE, list_items
from stepaudit.ladder.observation import name_leaves, repeat_in_eager
from stepaudit.properties.captured_values import find_captured_values
from stepaudit.source_lines import is_user_file
from stepaudit.values import copy_values, is_same


def find_deviating_line(judge: Judge, first: Climb) -> str:
    """Return the line at which eager last changes the deviating argument or captured value in the deviating call.

    For other leaves return the line after which eager runs a line that the compiler has not traced. Return an empty text
    if there is no such line.
    """
    _, kind, path, _ = first.deviations[0]
    whole = path if kind == "structure" else kind

    def read(inputs: Inputs) -> Any:
        captured = find_captured_values(judge.subject.function).read_data() if whole == "captured" else {}
        leaves = name_leaves("argument", inputs) if whole == "argument" else captured
        return copy_values([pair for pair in leaves.items() if whole == path or pair[0] == path])

    lines = _list_lines(judge, first.deviations[0].call, read)
    if changed := [line for (line, before), (_, after) in pairwise(lines) if not is_same(before, after)]:
        return changed[-1]
    traced = {item.name for item in list_items(judge, first.rung)[0] if item.kind == LINE}
    return next((line for (line, _), (later, _) in pairwise(lines[:-1]) if later not in traced), "")


def _list_lines(judge: Judge, name: str, read: Callable[[Inputs], Any]) -> list[tuple[str, Any]]:
    """Make a call again in eager. Return the user's lines that it runs, each with what was read before it ran.

    The last pair has no line.
    """
    subject, words = judge.subject, name.replace(",", "").split()
    repeats = int(words[2]) if words[0] == "repeated" else 1
    number = 0 if words[0] == "repeated" else int(words[1]) - 1
    lines: list[tuple[str, Any]] = []

    @contextmanager
    def tracing(inputs: Inputs) -> Iterator[None]:
        def meet(frame: FrameType, event: str, _: Any) -> Any:
            if not is_user_file(frame.f_code.co_filename):
                return None
            if event == "line":
                lines.append((f"{frame.f_code.co_filename}:{frame.f_lineno}", read(inputs)))
            return meet

        before = sys.gettrace()
        sys.settrace(meet)
        try:
            yield
        finally:
            sys.settrace(before)
            lines.append(("", read(inputs)))

    repeat_in_eager(subject, number, tracing, repeats)
    return lines
