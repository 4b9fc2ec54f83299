"""Mutants: the edits of the files under trial, each named by its change, and the choice of those that are tried."""

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
        "reference/kgreference/corrupt.py",
        "reference/kgreference/derivation.py",
        "reference/kgreference/metric.py",
        "reference/kgreference/model.py",
        "reference/kgreference/policy.py",
        "reference/kgreference/program.py",
        "reference/kgreference/rank.py",
        "reference/kgreference/step.py",
        "reference/kgreference/terms.py",
        "reference/kgreference/two_tower.py",
    ),
    "compiled": (
        "kgverify/engines/compiled/layout.py",
        "kgverify/engines/compiled/program/tables.py",
        "kgverify/engines/compiled/stages/choose.py",
        "kgverify/engines/compiled/stages/match.py",
        "kgverify/engines/compiled/stages/recycle.py",
        "kgverify/engines/compiled/stages/resolve.py",
        "kgverify/engines/compiled/state.py",
        "kgverify/engines/compiled/tick/slots.py",
        "kgverify/engines/compiled/tick/step_record.py",
        "kgverify/engines/compiled/tick/tick.py",
    ),
    "differ": (
        "kgverify/comparison/align.py",
        "kgverify/comparison/block.py",
        "kgverify/comparison/classify.py",
        "kgverify/comparison/comparable.py",
        "kgverify/comparison/compare.py",
        "kgverify/comparison/equal_columns.py",
        "kgverify/comparison/locate.py",
        "kgverify/comparison/rankings.py",
        "kgverify/comparison/result.py",
        "kgverify/comparison/step_view.py",
    ),
}
"""The modules of each part."""
MOST_OF_A_FUNCTION: Final = 4
MODULE: Final = "(module)"
"""The function name under which a constant of the module is filed."""


@dataclass(frozen=True, order=True)
class Mutant:
    """One edit of one file.

    path:     path of the file, from the root of the repository
    function: qualified name of the outermost function or method that contains the edit; `MODULE` for a constant
    operator: kind of edit
    before:   edited lines, without indentation
    after:    the same lines with the edit made
    edit:     the edit and its position in the file
    """

    path: str
    function: str
    operator: str
    before: str
    after: str
    edit: Edit

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """The name of the mutant, which survives other changes of the file."""
        return self.path, self.function, self.operator, self.before, self.after

    @property
    def digest(self) -> str:
        """A hash of the key, which also puts mutants in an order unrelated to their text."""
        return hashlib.sha256("\0".join(self.key).encode()).hexdigest()[:16]

    def source(self) -> str:
        """Return the whole file with the edit made."""
        return _apply(_read(self.path), self.edit).decode()

    def __str__(self) -> str:
        return f"{self.path} {self.function}: {self.operator}: {self.before} -> {self.after}"


@cache
def generate(part: str) -> tuple[Mutant, ...]:
    """Return every mutant of a part; of edits that read alike in one function, only the first."""
    return tuple(mutant for path in PARTS[part] for mutant in _mutants_of_file(path))


def select(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Choose at most `MOST_OF_A_FUNCTION` mutants of each function, each a different kind of edit, by a hash."""
    chosen: dict[tuple[str, str], dict[str, Mutant]] = {}
    for mutant in sorted(mutants, key=lambda each: each.digest):
        of_function = chosen.setdefault((mutant.path, mutant.function), {})
        if len(of_function) < MOST_OF_A_FUNCTION:
            of_function.setdefault(mutant.operator, mutant)
    return sorted(mutant for of_function in chosen.values() for mutant in of_function.values())


def sample(mutants: Sequence[Mutant], num: int) -> list[Mutant]:
    """Return `num` of the mutants, always the same ones."""
    return sorted(mutants, key=lambda each: each.digest)[:num]


def _mutants_of_file(path: str) -> Iterator[Mutant]:
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
    """Return a file as it was when first read: positions of edits refer to that text."""
    return (ROOT / path).read_bytes()


def _apply(source: bytes, edit: Edit) -> bytes:
    return source[: edit.begin] + edit.text.encode() + source[edit.end :]


def _lines(source: bytes, edit: Edit) -> tuple[str, str]:
    """Return the lines that an edit touches, before and after it."""
    begin = source.rfind(b"\n", 0, edit.begin) + 1
    end = source.find(b"\n", edit.end)
    before = source[begin:end]
    after = before[: edit.begin - begin] + edit.text.encode() + before[edit.end - begin :]
    return _one_line(before), _one_line(after)


def _one_line(text: bytes) -> str:
    return " ".join(line.strip() for line in text.decode().splitlines())
