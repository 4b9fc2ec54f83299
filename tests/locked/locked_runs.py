"""Running the cases of the table in this process, with what they print, return and write, and normalizing their text."""

import contextlib
import io
import json
import pprint
import re
import shlex
import shutil
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import locked_calls
import pytest
from locked_commands import COMMANDS, MADE

import kgverify as kv
from kgverify.cli.app import run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUTPUTS = HERE / "outputs"
OUTCOMES = ("PROVED", "FAILED", "DEPTH_LIMIT")
"""Keys of the JSON that are left out where their number is 0."""

MAX_ITEMS = 2

OF_THE_MACHINE = ("version", "doctor", "bench", "audit-wrong-step", "evaluate-rank-only")
"""Cases whose whole output depends on the machine, or on the code that draws a sample: it is not stored."""

CASES = [*COMMANDS, *locked_calls.CALLS]
STATED: dict[str, dict[str, Any]] = tomllib.loads((HERE / "stated.toml").read_text("utf-8"))

NAMES = {
    "candidates": "coverage.candidates",
    "steps": "coverage.steps",
    "divergent": "divergences.#",
    "candidate": "divergences.0.candidate",
    "step": "divergences.0.step",
    "stage": "divergences.0.stage",
    "field": "divergences.0.field",
    "class": "divergences.0.kind",
    "causes": "causes.#",
    "mrr_expected": "metrics.expected.both.realistic.mean_reciprocal_rank",
    "mrr_actual": "metrics.actual.both.realistic.mean_reciprocal_rank",
    "proved_expected": "outcomes.expected.PROVED",
    "proved_actual": "outcomes.actual.PROVED",
}
"""The paths of stated names in the JSON of a report. Other names are paths themselves; `#` is a length."""


@dataclass(frozen=True)
class Finished:
    """The end of a command or call.

    code: the exit code of a command; for a call 0, or the name of the exception that it raised
    data: the JSON that a command wrote, the report that a call returned, or its dictionary
    """

    code: int | str
    out: str
    err: str
    files: dict[str, bytes]
    data: Any

    @property
    def text(self) -> str:
        """All that was printed, on one line, so that it does not matter where lines are wrapped."""
        return " ".join(f"{self.out} {self.err}".split())

    def find(self, name: str) -> Any:
        """Return the figure of a stated name."""
        is_report = isinstance(self.data, dict) and "coverage" in self.data
        path = NAMES.get(name, name) if is_report else name
        found, keys = self.data, path.split(".")
        while keys:
            # A key may have dots of its own, such as the name of a metric.
            num = next(n for n in range(len(keys), 0, -1) if n == 1 or ".".join(keys[:n]) in found)
            key, keys = ".".join(keys[:num]), keys[num:]
            if key == "#":
                found = len(found)
            elif isinstance(found, list):
                found = found[int(key)]
            else:
                found = found.get(key, 0) if key in OUTCOMES else found[key]
        return found


class Workspace:
    """A folder with the inputs, in which the cases run, and in which what several of them read is made once."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(HERE / "inputs", folder, dirs_exist_ok=True)
        for name in ("traces", "examples"):
            shutil.copytree(ROOT / name, folder / name)
        self._folder = folder
        self._made: set[str] = set()

    def finish(self, name: str) -> Finished:
        """Run a case; the files that it writes are read and removed."""
        with self._inside():
            words, call = COMMANDS.get(name, ""), locked_calls.CALLS.get(name)
            self._make(words or " ".join(call.reads))
            before = self._list()
            code, out, err, data = _call(call) if call else (*_print(lambda: _run_command(words)), None)
            new = sorted(self._list() - before, reverse=True)
            files = {str(path): path.read_bytes() for path in sorted(new) if path.is_file()}
            for path in new:
                path.rmdir() if path.is_dir() else path.unlink()
        if name in COMMANDS:
            data = json.loads(files.get("result.json") or (out if out.startswith("{") else "null"))
        return Finished(code, out, err, files, data)

    def _make(self, words: str) -> None:
        for name in MADE.keys() & {word.split("/")[0] for word in shlex.split(words)} - self._made:
            made = MADE[name]
            self._made.add(name)
            if callable(made):
                self._make(" ".join(made.reads))
                made()
            else:
                self._make(made)
                code, _, err = _print(lambda made=made: _run_command(made))
                assert code in (0, 1), f"{made}: {err}"
            assert Path(name).exists(), name

    @staticmethod
    def _list() -> set[Path]:
        return {path for path in Path().rglob("*") if "__pycache__" not in path.parts}

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(self._folder):
            patch.setenv("COLUMNS", "120")
            patch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
            patch.syspath_prepend(str(self._folder))
            yield


def _run_command(words: str) -> int:
    words, _, keys = words.partition(" < ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kgverify", *shlex.split(words)])
        typed = Path(keys).read_bytes() if keys else b""
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), "utf-8"))
        return run()


def _call(call: Callable[[], Any]) -> tuple[int | str, str, str, Any]:
    returned: Any = None

    def act() -> int | str:
        nonlocal returned
        try:
            returned = call()
        except (kv.UserError, AssertionError) as error:
            print(error)
            return type(error).__name__
        return 0

    code, out, err = _print(act)
    if isinstance(returned, kv.Report):
        out += str(returned)
        path = returned.to_json("returned.json")
        returned = json.loads(path.read_bytes())
        path.unlink()
    return code, out, err, returned


def _print(act: Callable[[], Any]) -> tuple[Any, str, str]:
    """Return what an action returns, and what it prints."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = act()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    return code, out, err


PATTERNS = [
    (r"\x1b\[[0-9;?]*[a-zA-Z]", ""),
    (r"(/[\w.-]+)*/locked\d+\b", "<folder>"),
    (re.escape(str(ROOT)), "<repository>"),
    (r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?\S*)?", "<date>"),
    (r"\b(Linux|macOS|Darwin|Windows)-[\w.+-]+", "<platform>"),
    (r"(?<![\w.])\d+\.\d+\.\d+(\.?[a-z+]\w*)*", "<version>"),
    (r"\b[0-9a-f]{12,}\b", "<digest>"),
    (r"\b\d[\d.,]*(e-?\d+)? (of \d[\d.,]* )?(seconds?|minutes?|s|ms|us|µs|ns|min)\b", "<time>"),
    (r"\b\d[\d.,]* ([kKMGT]i?B|bytes)\b( of \d[\d,]*\d)?", "<size>"),
    (r"'(num_cpus|num_bytes|size|\w*seconds?)': [\d.e+-]+", r"'\1': <number>"),
    (r"\b\d[\d,.]* (candidates|problems|steps)(/s| a second)\b", r"<number> \1\2"),
    (r"(?m)^\d+\.\d$", "<number>"),
    (r"compiler's cache (warm|cold)", "compiler's cache <state>"),
]


def normalize(text: str) -> str:
    """Replace what depends on the machine, the day and the versions."""
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    text = re.sub(r"\d+\.\d{7,}(e-?\d+)?", lambda match: f"{float(match[0]):.6g}", text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def render(name: str, finished: Finished) -> str:
    """Return the whole normalized output of a case."""
    if name in OF_THE_MACHINE:
        return f"exit {finished.code}\n(the output depends on the machine)\n"
    parts = [f"exit {finished.code}"]
    streams = {"output": finished.out, "errors": finished.err}
    parts += [f"----- {name}\n{_render_text(text)}" for name, text in streams.items() if text.strip()]
    parts += [f"----- {name}\n{_render_file(name, content)}" for name, content in finished.files.items()]
    if isinstance(finished.data, dict) and not finished.files and not finished.out:
        parts.append(_render_data(finished.data))
    return normalize("\n".join(parts)) + "\n"


def _render_text(text: str) -> str:
    if text.startswith("{"):
        return _render_data(json.loads(text))
    return text


def _render_data(data: Any) -> str:
    return pprint.pformat(_shorten(data), width=160, compact=True, sort_dicts=False)


def _shorten(data: Any) -> Any:
    """Round floats, whose last digits depend on the machine, and replace all but the first item of long lists by a hash."""
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        # The order of unknown columns depends on the hashes of their names, which Python randomizes.
        return {key: sorted(value) if key == "unknown" else _shorten(value) for key, value in data.items()}
    if not isinstance(data, list):
        return data
    items = [_shorten(value) for value in data]
    if len(items) <= MAX_ITEMS or not isinstance(items[0], dict):
        return items
    rest = normalize(repr(items[1:])).encode()
    return [items[0], f"{len(items) - 1} more, with hash {zlib.crc32(rest)}"]


def _render_file(name: str, content: bytes) -> str:
    kind = Path(name).suffix
    if kind in (".h5", ".npz", ".safetensors") or "campaign" in name or name.endswith("times.json"):
        return "(not stored)"
    text = content.decode()
    if kind == ".html":
        reader = _Words()
        reader.feed(text)
        return "\n".join(reader.lines)
    return _render_text(text) if kind == ".json" else text


class _Words(HTMLParser):
    """The text of a page, without scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._is_hidden = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._is_hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._is_hidden = False

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._is_hidden:
            self.lines.append(" ".join(data.split()))
