"""Mutants: every edit that can be made in the files judged, named by what it changes, and the few that are tried."""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from mutant_edits import Edit, constant_edits, find_edits

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = {
    "reference": (
        "reference/kgreference",
        ("corrupt", "derivation", "metric", "model", "policy", "program", "rank", "step", "terms", "two_tower"),
    ),
    "compiled": (
        "kgverify/engines/compiled",
        ("choose", "layout", "match", "pool", "positions", "record", "resolve", "state", "tables", "tick"),
    ),
    "differ": (
        "kgverify/comparison",
        ("align", "causes", "classify", "compare", "fields", "locate", "preconditions", "rankings", "result", "view"),
    ),
}
"""Folder and modules of each part."""
MOST_OF_A_FUNCTION: Final = 4
MODULE: Final = "(module)"
"""Stands for the function of a constant."""


@dataclass(frozen=True, order=True)
class Mutant:
    """One edit of one file.

    path:     of the file, from the root of the repository
    function: the function or method at the top of the file that the edit is in, by its qualified name; for a module's
              constant `MODULE`
    operator: what kind of edit it is
    before:   the lines edited, each without its indentation
    after:    the same lines with the edit made
    edit:     the edit itself, at the place where it stands now
    """

    path: str
    function: str
    operator: str
    before: str
    after: str
    edit: Edit

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What names the mutant whatever else changes in the file."""
        return self.path, self.function, self.operator, self.before, self.after

    @property
    def digest(self) -> str:
        """The key, short; also what puts mutants in an order that has nothing to do with the text."""
        return hashlib.sha256("\0".join(self.key).encode()).hexdigest()[:16]

    def source(self) -> str:
        """The whole file with the edit made."""
        return _apply(_read(self.path), self.edit).decode()

    def __str__(self) -> str:
        return f"{self.path} {self.function}: {self.operator}: {self.before} -> {self.after}"


@cache
def generate(part: str) -> tuple[Mutant, ...]:
    """Every mutant of a part; of edits that read alike in one function, the first."""
    folder, modules = PARTS[part]
    return tuple(mutant for module in modules for mutant in _of_file(f"{folder}/{module}.py"))


def select(mutants: Sequence[Mutant]) -> list[Mutant]:
    """A fixed choice: at most `MOST_OF_A_FUNCTION` of each function, of as many kinds of edit; which, is left to a hash."""
    chosen: dict[tuple[str, str], dict[str, Mutant]] = {}
    for mutant in sorted(mutants, key=lambda each: each.digest):
        of_function = chosen.setdefault((mutant.path, mutant.function), {})
        if len(of_function) < MOST_OF_A_FUNCTION:
            of_function.setdefault(mutant.operator, mutant)
    return sorted(mutant for of_function in chosen.values() for mutant in of_function.values())


def sample(mutants: Sequence[Mutant], num: int) -> list[Mutant]:
    """So many of the mutants, always the same."""
    return sorted(mutants, key=lambda each: each.digest)[:num]


def _of_file(path: str) -> Iterator[Mutant]:
    source = _read(path)
    original = compile(source, path, "exec", dont_inherit=True, optimize=0)
    seen = set()
    for function, edit in _edits(ast.parse(source), source):
        mutant = Mutant(path, function, edit.operator, *_lines(source, edit), edit)
        if mutant.key in seen:
            continue
        seen.add(mutant.key)
        try:
            changed = compile(_apply(source, edit), path, "exec", dont_inherit=True, optimize=0)
        except SyntaxError:
            continue
        if changed.co_consts != original.co_consts or changed.co_code != original.co_code:
            yield mutant


def _edits(tree: ast.Module, source: bytes) -> Iterator[tuple[str, Edit]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from ((node.name, edit) for edit in find_edits(source, node))
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield from ((f"{node.name}.{method.name}", edit) for edit in find_edits(source, method))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield from ((MODULE, edit) for edit in constant_edits(source, node.value))


@cache
def _read(path: str) -> bytes:
    """A file as it was when it was first read; an edit's place means nothing in another."""
    return (ROOT / path).read_bytes()


def _apply(source: bytes, edit: Edit) -> bytes:
    return source[: edit.begin] + edit.text.encode() + source[edit.end :]


def _lines(source: bytes, edit: Edit) -> tuple[str, str]:
    """The lines that an edit touches, before and after it."""
    begin = source.rfind(b"\n", 0, edit.begin) + 1
    end = source.find(b"\n", edit.end)
    before = source[begin:end]
    after = before[: edit.begin - begin] + edit.text.encode() + before[edit.end - begin :]
    return _one_line(before), _one_line(after)


def _one_line(text: bytes) -> str:
    return " ".join(line.strip() for line in text.decode().splitlines())
