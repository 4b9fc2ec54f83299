"""The lines of the user's files that a divergence is about, found without running them."""

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

from kgverify.comparison.result import Divergence
from kgverify.errors import UserError
from kgverify.files.reading import read_file
from kgverify.graphs.graph import GraphFiles
from kgverify.report.content import ReportContent
from kgverify.runs.job import read_job
from kgverify.verification.stage_source import AUTHORS

_MAX_BYTES: Final = 1 << 22
_CLAUSE: Final = re.compile(r"\[([^\[\]]+):(\d+)\]")
"""The file and the line of a clause in a value of a divergence."""


class Place(NamedTuple):
    """A line of a file, whose path is relative to the current folder."""

    file: str
    line: int


def find_place(report: ReportContent, divergence: Divergence, engine: str = "") -> Place | None:
    """Return the function of the engine that takes the stage at fault; else the first fact or rule that differs.

    engine: `FILE.py:NAME` or `MODULE:NAME` of an engine whose traces were compared

    None if neither is in a file below the current folder.
    """
    source = next((each.source for each in report.causes if report.divergences[each.first] is divergence), None)
    if source is not None and (file := _below(source.file)) is not None and file.is_file():
        return Place(str(file), source.line)
    try:
        graph = read_job(report).source.graph
    except UserError:
        # The report was altered.
        graph = None
    return _find_function(engine, divergence.stage) or _find_clause(graph, divergence)


def _find_function(spec: str, stage: str) -> Place | None:
    module, _, name = spec.rpartition(":")
    file = _below(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    if not module or file is None:
        return None
    try:
        tree = ast.parse(read_file(file, purpose="the code of an engine", max_bytes=_MAX_BYTES))
    except (UserError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    definitions = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
    found, seen = definitions.get(name.partition(".")[0]), set()
    first = found
    while isinstance(found, ast.ClassDef) and found.name not in seen:
        seen.add(found.name)
        lines = {each.name: each.lineno for each in found.body if isinstance(each, ast.FunctionDef)}
        if at := next((lines[each] for each in (stage, *AUTHORS) if each in lines), None):
            return Place(str(file), at)
        # Its first base class, if it is in the same file.
        found = next((definitions.get(each.id) for each in found.bases if isinstance(each, ast.Name)), None)
    return None if first is None else Place(str(file), first.lineno)


def _find_clause(graph: object, divergence: Divergence) -> Place | None:
    if not isinstance(graph, GraphFiles):
        return None
    given = (*graph.train, graph.valid, graph.test, graph.rules)
    paths = {Path(each).name: each for each in given if each is not None}
    for value in (divergence.expected, divergence.actual):
        for name, line in _CLAUSE.findall("\n".join(map(str, value if isinstance(value, list) else [value]))):
            if (file := _below(paths.get(name) or f"{graph.spec or '.'}/{name}")) is not None and file.is_file():
                return Place(str(file), int(line))
    return None


def _below(path: str) -> Path | None:
    """Return a path relative to the current folder; None if it is not below."""
    try:
        whole = Path(path).resolve()
        return whole.relative_to(Path.cwd())
    except (OSError, ValueError, RuntimeError):
        return None
