"""Helpers of all benchmarks: parsers, tables, and the record of a run."""

import argparse
import inspect
import io
import platform
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TextIO

ROOT: Final = Path(__file__).parents[1]


def make_parser(benchmark: Callable[..., Any]) -> argparse.ArgumentParser:
    """Return a parser for the options of a benchmark, which its docstring describes."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks {benchmark.__name__.removeprefix('run_').replace('_', '-')}",
        description=inspect.getdoc(benchmark),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def print_row(*cells: object) -> None:
    """Print a row of a Markdown table at once, so that what was measured is there even if the rest is not."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_header(*titles: str) -> None:
    """Print the head of a Markdown table."""
    print_row(*titles)
    print("|" + "---|" * len(titles), flush=True)


class Recorder(io.TextIOBase):
    """A stream that passes everything on, and keeps the rows of tables and the other lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""
        self._columns: list[str] | None = None
        self.tables: list[list[dict[str, str]]] = []
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        """Write a text, and keep its whole lines."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._keep(line)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def _keep(self, line: str) -> None:
        if not line.startswith("|"):
            self._columns = None
            self.lines += [line] if line.strip() else []
            return
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if self._columns is None:
            self._columns = cells
            self.tables.append([])
        elif set(line) > set("|-") or "-" not in line:
            # Two columns may have one title.
            self.tables[-1].append(
                {
                    title if title and title not in self._columns[:i] else f"{title} {i}".strip(): cell
                    for i, (title, cell) in enumerate(zip(self._columns, cells, strict=False))
                }
            )


def describe_machine() -> dict[str, str | int]:
    """Return the machine, the versions and the revision that figures belong to."""
    import os

    found: dict[str, str | int] = {"processor": _processor(), "cores": len(os.sched_getaffinity(0))}
    found |= {"python": platform.python_version(), "system": platform.platform()}
    for package in ("torch", "triton", "numpy", "h5py"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    import torch

    if torch.cuda.is_available():
        found["gpu"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    for name, words in (("revision", ("rev-parse", "HEAD")), ("changed", ("status", "--porcelain"))):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        found[name] = done.stdout.strip() if name == "revision" else len(done.stdout.splitlines())
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
