"""Measure walks: `python tools/walks.py verification/verify.py:verify:run --revision HEAD~9 --revision HEAD`.

A walk follows one parameter, without running anything, through the calls that pass it on, or pass on what is computed from
it; it enters each function once. A *stay* is a run of functions entered in one file, a *room* a file, a *return* a stay in
a file left before, a *climb* a move to a file of a higher import floor. Entries are `FILE:FUNCTION:PARAMETER`.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = "kgverify", "reference/kgreference"
WALKS = [
    "read/trace_file.py:read_trace:path",
    "verification/recorded.py:compare_recorded:expected",
    "verification/verify.py:verify:run",
    "shrinking/shrink.py:shrink:failure",
    "evaluation/evaluate.py:evaluate:run",
]
"""Reading a row, a diff of two files, a diff of engines, shrinking, and an evaluated candidate."""
PARTS = ast.Attribute | ast.Subscript | ast.Starred


class Function(NamedTuple):
    """A function, or a method of the class `owner`."""

    module: str
    owner: str
    node: ast.FunctionDef


class Project:
    """The functions, classes and imports of a tree."""

    def __init__(self, root: Path) -> None:
        self.names: dict[str, dict[str, str]] = {}
        self.functions: dict[str, Function] = {}
        self.classes: set[str] = set()
        for folder in FOLDERS:
            for path in sorted((root / folder).rglob("*.py")):
                parts = path.relative_to((root / folder).parent).with_suffix("").parts
                self._read(".".join(parts).removesuffix(".__init__"), ast.parse(path.read_text()))

    def _read(self, module: str, tree: ast.Module) -> None:
        names = self.names[module] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
        for node in tree.body:
            owner = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else ""
            self.classes.add(owner)
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(each, ast.FunctionDef):
                    self.functions[f"{owner or module}.{each.name}"] = Function(module, owner, each)

    def resolve(self, module: str, name: str) -> str:
        """Return the path of a dotted name in a module, through the imports that hand it on."""
        first, _, rest = name.partition(".")
        path = self.names.get(module, {}).get(first)
        return self.resolve(*path.rpartition(".")[::2]) + (rest and f".{rest}") if path else f"{module}.{name}"

    def floor(self, module: str, floors: dict[str, int]) -> int:
        """Return 1 more than the highest floor of the modules that a module imports."""
        if module not in floors:
            floors[module] = 0
            imported = {path if path in self.names else path.rpartition(".")[0] for path in self.names[module].values()}
            floors[module] = 1 + max([self.floor(each, floors) for each in imported if each in self.names], default=0)
        return floors[module]

    def measure(self, entry: str) -> str:
        """Return the stays, rooms, returns and climbs of a walk."""
        file, name, parameter = entry.split(":")
        ending = f".{file.removesuffix('.py').replace('/', '.')}.{name}"
        found = [each for path, each in self.functions.items() if f".{path}".endswith(ending)]
        if len(found) != 1:
            return f"{len(found)} functions"
        walk = Walk(self)
        walk.enter(found[0], {parameter})
        stays = [module for index, module in enumerate(walk.modules) if walk.modules[index - 1 : index] != [module]]
        floors: dict[str, int] = {}
        climbs = sum(self.floor(after, floors) > self.floor(before, floors) for before, after in pairwise(stays))
        return f"{len(stays)} / {len(set(stays))} / {len(stays) - len(set(stays))} / {climbs}"


class Walk:
    """A walk: the modules of the functions that it entered, in order."""

    def __init__(self, project: Project) -> None:
        self.project, self.modules, self.passed = project, list[str](), set[int]()

    def enter(self, function: Function, names: set[str]) -> None:
        """Enter a function in which some names are followed, unless the walk passed it before."""
        if id(function.node) in self.passed:
            return
        self.passed.add(id(function.node))
        self.modules.append(function.module)
        types = {"self": function.owner, "cls": function.owner}
        for each in [*function.node.args.args, *function.node.args.kwonlyargs]:
            types.setdefault(each.arg, self.type_of(each.annotation, function, {}))
        for node in _in_order(function.node):
            target, value = _binding(node)
            if isinstance(node, ast.Call):
                self.call(node, function, names, types)
            elif target and value:
                if isinstance(target, ast.Name):
                    types[target.id] = self.type_of(value, function, types)
                if _is_followed(value, names):
                    names |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)} - {"self"}

    def call(self, node: ast.Call, function: Function, names: set[str], types: dict[str, str]) -> None:
        """Enter the called function if something followed is passed to it, or if it is a method of something followed."""
        target = self.target(node.func, function, types)
        if target:
            parameters = [each.arg for each in target.node.args.args]
            is_bound = parameters[:1] in (["self"], ["cls"])
            given = [*zip(parameters[is_bound:], node.args, strict=False)]
            given += [(each.arg, each.value) for each in node.keywords if each.arg]
            given += [(parameters[0], node.func.value)] if is_bound and isinstance(node.func, ast.Attribute) else []
            passed = {name for name, value in given if _is_followed(value, names)}
            if passed:
                self.enter(target, passed)

    def target(self, called: ast.expr, function: Function, types: dict[str, str]) -> Function | None:
        """Return the function of the project that a call enters, or None if it is not known."""
        path = self.project.resolve(function.module, ast.unparse(called))
        path = f"{path}.__init__" if path in self.project.classes else path
        if isinstance(called, ast.Attribute) and path not in self.project.functions:
            path = f"{self.type_of(called.value, function, types)}.{called.attr}"
        return self.project.functions.get(path)

    def type_of(self, value: ast.expr | None, function: Function, types: dict[str, str]) -> str:
        """Return the path of the class of a value, or of an annotation; "" if it is not known."""
        if isinstance(value, ast.Call):
            called = self.target(value.func, function, types)
            is_made = called is None or called.node.name == "__init__"
            return self.type_of(value.func, function, {}) if is_made else self.type_of(called.node.returns, called, {})
        name = str(value.value) if isinstance(value, ast.Constant) else ast.unparse(value) if value else ""
        path = types.get(name) or self.project.resolve(function.module, name.partition(" |")[0])
        return path if path in self.project.classes else ""


def _is_followed(value: ast.expr, names: set[str]) -> bool:
    """Return whether a value is followed, a part of something followed, or made from it."""
    parts = [value.value] if isinstance(value, PARTS) else []
    if isinstance(value, ast.Call):
        parts = [value.func, *value.args, *(each.value for each in value.keywords)]
    elif isinstance(value, ast.Tuple | ast.List):
        parts = value.elts
    return any(_is_followed(each, names) for each in parts) or (isinstance(value, ast.Name) and value.id in names)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node, each after its parts, but a loop before its body."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.For):
            yield child
        yield from _in_order(child)
        yield child


def _binding(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    target = (
        getattr(node, "target", None) or getattr(node, "optional_vars", None) or getattr(node, "targets", [None])[0]
    )
    return target, getattr(node, "value", None) or getattr(node, "iter", None) or getattr(node, "context_expr", None)


def main() -> None:
    """Print a table of walks, one column for each revision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="*", default=WALKS, metavar="FILE:FUNCTION:PARAMETER")
    parser.add_argument("--revision", action="append", help="a git revision; without any, the working tree")
    options = parser.parse_args()
    projects = {} if options.revision else {"working tree": Project(ROOT)}
    for revision in options.revision or ():
        archive = subprocess.run(["git", "archive", revision, *FOLDERS], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
                files.extractall(folder, filter="data")
            projects[revision] = Project(Path(folder))
    sys.stdout.write(f"{'stays / rooms / returns / climbs':56}{''.join(f'{name:>24}' for name in projects)}\n")
    for entry in options.entries:
        sys.stdout.write(f"{entry:56}{''.join(f'{each.measure(entry):>24}' for each in projects.values())}\n")


if __name__ == "__main__":
    main()
