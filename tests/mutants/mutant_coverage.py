"""The lines of the modules under trial that each test, or other check, executes: recorded once, then read by every trial."""

import ast
import contextlib
import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import msgspec
from mutant import MODULE, PARTS, ROOT, Mutant, files_of

PASSED: Final = "passed"
_WORD: Final = re.compile(r"\w+")


class RecordedTest(msgspec.Struct, frozen=True, kw_only=True):
    """A test or another check, run alone in a forked process.

    test:    its name
    status:  `PASSED`, or what it was instead
    seconds: wall-clock time, fixtures included
    lines:   the lines executed in each file, as the hexadecimal digits of a number whose bit N stands for line N
    """

    test: str
    status: str
    seconds: float
    lines: dict[str, str]


class Coverage:
    """The tests that judge, their times, and the lines that they execute."""

    def __init__(self, runs: Iterable[RecordedTest]) -> None:
        passed = [run for run in runs if run.status == PASSED]
        self.tests = [run.test for run in passed]
        self.seconds = {run.test: run.seconds for run in passed}
        self._tests_of: dict[tuple[str, int], int] = {}
        for index, run in enumerate(passed):
            for path, digits in run.lines.items():
                for line in _lines_of(int(digits, 16)):
                    self._tests_of[path, line] = self._tests_of.get((path, line), 0) | 1 << index

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the statement of a mutant.

        Of a constant, those that execute a line that names it, or one made of it.
        """
        if mutant.function == MODULE:
            return self.tests_of_lines(line for name in names_made_of(mutant) for line in _lines_that_name(name))
        first, last = mutant.lines
        return self.tests_of_lines((mutant.path, line) for line in range(first, last + 1))

    def tests_of_lines(self, lines: Iterable[tuple[str, int]]) -> list[str]:
        """Return the tests that execute one of some lines."""
        found = 0
        for line in lines:
            found |= self._tests_of.get(line, 0)
        return [self.tests[index] for index in _lines_of(found)]


class LineRecorder:
    """Records the lines executed in some files, in all threads, from `start` to `stop`."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._lines: dict[str, set[int]] = {str(ROOT / path): set() for path in paths}

    def start(self) -> None:
        """Begin to record."""
        if sys.version_info >= (3, 12):
            tool = sys.monitoring.COVERAGE_ID
            sys.monitoring.use_tool_id(tool, "mutants")
            sys.monitoring.register_callback(tool, sys.monitoring.events.LINE, self._note)
            sys.monitoring.set_events(tool, sys.monitoring.events.LINE)
            # Lines that an earlier recorder noted are disabled until then.
            sys.monitoring.restart_events()
        else:
            tracers = {path: _tracer(lines) for path, lines in self._lines.items()}

            def enter(frame: FrameType, event: str, argument: Any) -> Any:
                return tracers.get(frame.f_code.co_filename)

            threading.settrace(enter)
            sys.settrace(enter)

    def stop(self) -> dict[str, str]:
        """Stop recording; return the lines as `RecordedTest` has them."""
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)
            sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
        else:
            sys.settrace(None)
            threading.settrace(None)
        return {
            str(Path(path).relative_to(ROOT)): f"{sum(1 << line for line in lines):x}"
            for path, lines in self._lines.items()
            if lines
        }

    def _note(self, code: CodeType, line: int) -> Any:
        lines = self._lines.get(code.co_filename)
        if lines is not None:
            lines.add(line)
        return sys.monitoring.DISABLE


def _tracer(lines: set[int]) -> Callable[[FrameType, str, Any], Any]:
    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    return trace


def source_hash() -> str:
    """Return a hash of the package, the reference and the tests."""
    hasher = hashlib.sha256()
    for folder in ("kgverify", "reference", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.parent.name != "mutants":
                hasher.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return hasher.hexdigest()[:16]


def read_runs(path: Path) -> dict[str, RecordedTest]:
    """Read the recorded runs, by name. Lines recorded for other texts of the modules become those that they are now.

    A file begins with the texts of the modules, by path. It is written again if they have changed.
    """
    stored = path.read_bytes().splitlines() if path.exists() else []
    texts = {each: (ROOT / each).read_text(encoding="utf-8") for each in every_file()}
    before = msgspec.json.decode(stored[0], type=dict[str, str]) if stored else {}
    runs = {}
    for line in stored[1:]:
        # The last line is incomplete if a recording was killed while it wrote it.
        with contextlib.suppress(msgspec.DecodeError):
            run = msgspec.json.decode(line, type=RecordedTest)
            runs[run.test] = run
    if texts != before:
        moves = {each: _moves(before.get(each, ""), text) for each, text in texts.items() if before.get(each) != text}
        runs = {name: _move(run, moves) for name, run in runs.items()}
        path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in (texts, *runs.values())))
    return runs


def _moves(before: str, after: str) -> list[int]:
    """Return where each line of a text, by its number, is in another, as bits; an added line belongs to both beside it."""
    left, right = before.splitlines(), after.splitlines()
    moves = [0] * (len(left) + 2)
    for kind, begin, end, to_begin, to_end in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            for number in range(begin, end):
                moves[number + 1] |= 2 << number - begin + to_begin
        else:
            for number in range(begin + 1, end + 1) if kind == "replace" else (begin, begin + 1):
                moves[number] |= (1 << to_end) - (1 << to_begin) << 1
    return moves


def _move(run: RecordedTest, moves: Mapping[str, Sequence[int]]) -> RecordedTest:
    lines = {}
    for path, digits in run.lines.items():
        if path in moves:
            found = 0
            for number in _lines_of(int(digits, 16)):
                found |= moves[path][number]
            digits = f"{found:x}"
        lines[path] = digits
    return msgspec.structs.replace(run, lines=lines)


def every_file() -> Sequence[str]:
    """Return the modules of all parts."""
    return [path for part in PARTS for path in files_of(part)]


def names_made_of(mutant: Mutant) -> list[str]:
    """Return the name of a mutant's constant, and the constants of its module that are made of it."""
    names: list[str] = []
    for node in ast.parse((ROOT / mutant.path).read_bytes()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            used = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            if node.lineno == mutant.node[0] or not used.isdisjoint(names):
                names.append(ast.unparse(target))
    return names


def _lines_that_name(name: str) -> Iterator[tuple[str, int]]:
    for path in every_file():
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if name in line and name in _WORD.findall(line):
                yield path, number


def _lines_of(mask: int) -> Iterator[int]:
    """Yield the positions of the bits that are set."""
    digits = bin(mask)[:1:-1]
    found = digits.find("1")
    while found >= 0:
        yield found
        found = digits.find("1", found + 1)
