"""Mutants: the edits of the files under trial, each named by its change, and the choice of those that are tried."""

import ast
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from mutant_edits import Edit, constant_edits, find_edits

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = {
    "reference": ("reference/kgreference",),
    "compiled": ("kgverify/engines/compiled", "kgverify/engines/endings.py"),
    "native": ("kgverify/engines/native",),
    "adapters": ("kgverify/engines/adapters", "kgverify/engines/reference"),
    "comparison": ("kgverify/comparison",),
    "verification": ("kgverify/verification",),
    "evaluation": ("kgverify/evaluation", "kgverify/ranking"),
    "trace": ("kgverify/trace/model", "kgverify/trace/read", "kgverify/trace/write", "kgverify/trace/hdf5"),
    "testing": (
        "kgverify/testing/checking",
        "kgverify/testing/problems",
        "kgverify/testing/shrinking",
        "kgverify/testing/campaigns",
    ),
    "report": (
        "kgverify/report/content.py",
        "kgverify/report/derivations.py",
        "kgverify/report/evaluation.py",
        "kgverify/report/report.py",
        "kgverify/report/steps.py",
    ),
    "runs": ("kgverify/runs",),
}
"""The files and folders of each part: everything that a verdict or a reported number rests on."""
CHECKS: Final = ("adding_up.py", "planted_changes.py", "recount.py")
"""What checks the judge: a wrong edit there weakens a check, and changes no verdict or number."""
UNPLANTABLE: Final = frozenset({"gluon.jit"})
"""Decorators of functions that only one kind of GPU runs."""
MOST_OF_A_FUNCTION: Final = 3
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
    lines:    first and last line of the innermost statement that contains the edit, without the statements inside of it
    node:     first and last line of the function or constant
    """

    path: str
    function: str
    operator: str
    before: str
    after: str
    edit: Edit
    lines: tuple[int, int] = field(compare=False, default=(0, 0))
    node: tuple[int, int] = field(compare=False, default=(0, 0))

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

    @property
    def is_change(self) -> bool:
        """True if the function or constant can be compiled with the edit made, and its code changes."""
        source = _read(self.path)
        lines = source.splitlines(keepends=True)
        begin, end = (sum(map(len, lines[:number])) for number in (self.node[0] - 1, self.node[1]))
        changed = source[begin : self.edit.begin] + self.edit.text.encode() + source[self.edit.end : end]
        prefix = b"if True:\n" if source[begin : begin + 1].isspace() else b""
        try:
            return _constants(prefix + changed) != _constants(prefix + source[begin:end])
        except SyntaxError:
            return False

    def __str__(self) -> str:
        return f"{self.path} {self.function}: {self.operator}: {self.before} -> {self.after}"


@cache
def generate(part: str) -> tuple[Mutant, ...]:
    """Return every edit of a part, changes or not; of those that read alike in one function, only the first."""
    return tuple(mutant for path in files_of(part) for mutant in _mutants_of_file(path))


def files_of(part: str) -> list[str]:
    """Return the modules of a part."""
    files: list[Path] = []
    for name in PARTS[part]:
        path = ROOT / name
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [str(file.relative_to(ROOT)) for file in files if not set(CHECKS) & set(file.parts)]


def select(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Choose at most `MOST_OF_A_FUNCTION` mutants of each function, each a different kind of edit, by a hash."""
    chosen: dict[tuple[str, str], dict[str, Mutant]] = {}
    for mutant in sorted(mutants, key=lambda each: each.digest):
        of_function = chosen.setdefault((mutant.path, mutant.function), {})
        if len(of_function) < MOST_OF_A_FUNCTION and mutant.operator not in of_function and mutant.is_change:
            of_function[mutant.operator] = mutant
    return sorted(mutant for of_function in chosen.values() for mutant in of_function.values())


def sample(mutants: Sequence[Mutant], num: int) -> list[Mutant]:
    """Return `num` of the mutants, always the same ones."""
    return sorted(mutants, key=lambda each: each.digest)[:num]


def _mutants_of_file(path: str) -> Iterator[Mutant]:
    source = _read(path)
    seen = set()
    for function, node, edit in _edits(ast.parse(source), source):
        assert node.end_lineno is not None
        mutant = Mutant(
            path,
            function,
            edit.operator,
            *_lines(source, edit),
            edit,
            _statement(source, node, edit),
            (node.lineno, node.end_lineno),
        )
        if mutant.key not in seen:
            yield mutant
        seen.add(mutant.key)


def _edits(tree: ast.Module, source: bytes) -> Iterator[tuple[str, ast.stmt, Edit]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from ((node.name, node, edit) for edit in _edits_of(source, node))
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    name = f"{node.name}.{method.name}"
                    yield from ((name, method, edit) for edit in _edits_of(source, method))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield from ((MODULE, node, edit) for edit in constant_edits(source, node.value))


def _edits_of(source: bytes, node: ast.FunctionDef) -> Iterator[Edit]:
    if not UNPLANTABLE & {ast.unparse(each) for each in node.decorator_list}:
        yield from find_edits(source, node)


@lru_cache(maxsize=2)
def _constants(text: bytes) -> tuple[object, bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(text, "", "exec", dont_inherit=True)
    return code.co_consts, code.co_code


def _statement(source: bytes, node: ast.stmt, edit: Edit) -> tuple[int, int]:
    line = source.count(b"\n", 0, edit.begin) + 1
    spans = []
    for each in ast.walk(node):
        if isinstance(each, ast.stmt) and each.end_lineno is not None:
            inner = getattr(each, "body", None) or getattr(each, "cases", None)
            first = (
                getattr(inner[0], "lineno", getattr(getattr(inner[0], "pattern", None), "lineno", 0)) if inner else 0
            )
            spans.append((each.lineno, max(each.lineno, first - 1) if first else each.end_lineno))
    fitting = [span for span in spans if span[0] <= line <= span[1]]
    return min(fitting, key=lambda span: (span[1] - span[0], span), default=(line, line))


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
