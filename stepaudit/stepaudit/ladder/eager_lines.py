"""The lines of a step that run in eager, where no graph shows a deviation by itself."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any

from stepaudit.audited_function import Inputs, Subject
from stepaudit.ladder.climb import Climb, Judge
from stepaudit.ladder.culprit import LINE, list_items
from stepaudit.ladder.observation import name_leaves, repeat_in_eager
from stepaudit.properties.captured_values import find_captured_values
from stepaudit.source_lines import is_user_file
from stepaudit.values import copy_values, is_same


def find_deviating_line(judge: Judge, first: Climb, left_out: str) -> str:
    """Return the line at which eager last changes the deviating argument or captured value in the deviating call.

    For other leaves, if code that was compiled for an earlier call deviates, return the line after which a function runs in
    eager what the compiler has not traced of it. If there is no such line, return the one that is left out to repair the
    step, or else the last one of the step.
    """
    call, kind, path, _ = first.deviations[0]
    count = int(call.removeprefix("repeated ").split()[1].rstrip(","))
    repeats, number = (count, 0) if call.startswith("repeated") else (1, count - 1)
    whole = path if kind == "structure" else kind

    def read(inputs: Inputs) -> Any:
        captured = find_captured_values(judge.subject.function).read_data() if whole == "captured" else {}
        leaves = name_leaves("argument", inputs) if whole == "argument" else captured
        return copy_values([pair for pair in leaves.items() if whole == path or pair[0] == path])

    lines = _list_lines(judge.subject, number, repeats, read)
    if changed := [line for (line, before, _), (_, after, _) in pairwise(lines) if not is_same(before, after)]:
        return changed[-1]
    traced = {item.name for item in (list_items(judge, first.rung)[0] if count > 1 else ()) if item.kind == LINE}
    frames: dict[FrameType | None, list[str]] = {}
    for line, _, frame in lines[:-1]:
        frames.setdefault(frame, []).append(line)
    pairs = (pair for run in frames.values() for pair in pairwise(run))
    departure = next((line for line, later in pairs if line in traced and later not in traced), "")
    return departure or left_out or next((run[-1] for run in frames.values()), "")


def _list_lines(
    subject: Subject, number: int, repeats: int, read: Callable[[Inputs], Any]
) -> list[tuple[str, Any, FrameType | None]]:
    """Make a call again in eager. Return the user's lines, each with what was read before it and with its frame.

    The end of the call is the last one, without a line.
    """
    lines: list[tuple[str, Any, FrameType | None]] = []

    @contextmanager
    def tracing(inputs: Inputs) -> Iterator[None]:
        def meet(frame: FrameType, event: str, _: Any) -> Any:
            if not is_user_file(frame.f_code.co_filename):
                return None
            if event == "line":
                lines.append((f"{frame.f_code.co_filename}:{frame.f_lineno}", read(inputs), frame))
            return meet

        before = sys.gettrace()
        sys.settrace(meet)
        try:
            yield
        finally:
            sys.settrace(before)
            lines.append(("", read(inputs), None))

    repeat_in_eager(subject, number, tracing, repeats)
    return lines
