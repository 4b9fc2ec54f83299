"""Semantic wrong edits: mistakes that a competent engineer makes, addressed by function and syntax.

An entry of `semantic/*.toml` names a function (`function`, `Class.method`, a class, or a constant) and holds two patterns
in Python, `find` and `replace`. A pattern is an expression or some statements. It is compared as a syntax tree: local
names in it stand for any local names of the function, consistently; everything else is compared exactly; a statement
`...` stands for any statements. An entry without a function is text of the C++ sources, in any layout.
An edited module is written anew from its tree, without comments.
"""

import ast
import builtins
import copy
import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
LISTS: Final = Path(__file__).with_name("semantic")
PACKAGES: Final = ("kgverify", "stepaudit", "reference")
NATIVE_SUFFIXES: Final = (".h", ".cpp", ".cu", ".cuh")
MIN_WORDS: Final = 3
"""The fewest words of a description."""
_BUILTINS: Final = frozenset(dir(builtins))
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, *_COMPREHENSIONS)
_NAME_FIELDS: Final = {
    (ast.Name, "id"),
    (ast.arg, "arg"),
    (ast.ExceptHandler, "name"),
    (ast.MatchAs, "name"),
    (ast.MatchStar, "name"),
    (ast.FunctionDef, "name"),
}
_IGNORED_FIELDS: Final = ("ctx", "type_comment", "kind")

Captured: TypeAlias = tuple[list[ast.stmt], ...]


class EditError(ValueError):
    """An entry that does not apply, or not to one place only."""


class SemanticEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wrong edit.

    function: the qualified name of the edited function, class or constant; "" for text of the C++ sources
    module:   the base name of the module, for a function name that several modules define
    find:     the pattern of the original code
    replace:  the pattern of the wrong code; "" deletes statements
    what:     a description of the mistake
    list:     the name of the list
    """

    function: str = ""
    module: str = ""
    find: str
    replace: str
    what: str
    list: str = ""

    @property
    def digest(self) -> str:
        """A hash of the edit."""
        content = "\0".join((self.function, self.module, self.find, self.replace))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.list}: {self.what} ({self.function or 'C++'})"


@dataclass(frozen=True)
class Definition:
    """A function, class or constant, with the names of its module and of Python, which stand for themselves in patterns."""

    path: Path
    tree: ast.Module
    node: ast.stmt
    exact: frozenset[str]

    @cached_property
    def local(self) -> frozenset[str]:
        """The names that functions, lambdas and comprehensions in the definition bind, except by an import."""
        names: set[str] = set()

        def visit(node: ast.AST, *, is_inner: bool) -> None:
            if is_inner:
                names.update(_bound_name(node))
            inside = (is_inner and not isinstance(node, ast.ClassDef)) or isinstance(node, _SCOPES)
            for child in ast.iter_child_nodes(node):
                visit(child, is_inner=inside)

        visit(self.node, is_inner=False)
        for node in ast.walk(self.node):
            if isinstance(node, ast.Global):
                names.difference_update(node.names)
        return frozenset(names)


class Place(NamedTuple):
    """The part of a definition that fits a pattern: an expression of a parent, or statements of a body."""

    parent: ast.AST
    field: str
    index: int | None
    length: int
    names: dict[str, str]
    captured: Captured


class Planted(NamedTuple):
    """A file with an edit made in it."""

    path: Path
    text: str


def read_lists(folder: Path = LISTS) -> list[SemanticEdit]:
    """Read the entries of every list of a folder. msgspec.ValidationError for a malformed one."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        entries = msgspec.convert(tomllib.loads(path.read_text()).get("edit", []), list[SemanticEdit])
        found += [msgspec.structs.replace(entry, list=path.stem) for entry in entries]
    return found


def check_lists(edits: Iterable[SemanticEdit], sources: "Sources") -> list[str]:
    """Describe the entries that do not apply, are listed twice, or lack a description."""
    problems = []
    seen: set[str] = set()
    for edit in edits:
        try:
            sources.plant(edit)
        except (EditError, SyntaxError) as error:
            problems.append(f"{edit}: {error}")
        if edit.digest in seen:
            problems.append(f"listed twice: {edit}")
        seen.add(edit.digest)
        if len(edit.what.split()) < MIN_WORDS:
            problems.append(f"lacks a description: {edit}")
    return problems


class Sources:
    """The sources of the packages below a folder, in which edits are made."""

    def __init__(self, root: Path = ROOT) -> None:
        files = [path for folder in PACKAGES for path in sorted((root / folder).rglob("*"))]
        self._native = {path: path.read_text() for path in files if path.suffix in NATIVE_SUFFIXES}
        self._definitions: dict[str, list[Definition]] = {}
        for path in files:
            if path.suffix == ".py":
                for name, definition in read_definitions(path):
                    self._definitions.setdefault(name, []).append(definition)

    def plant(self, edit: SemanticEdit) -> Planted:
        """Make an edit. EditError unless it fits exactly one place and changes the code there."""
        return self._plant_python(edit) if edit.function else self._plant_native(edit)

    def _plant_native(self, edit: SemanticEdit) -> Planted:
        tokens = re.findall(r"\w+|[^\w\s]", edit.find)
        pattern = r"\s*".join(rf"\b{token}\b" if token[-1].isalnum() else re.escape(token) for token in tokens)
        found = [
            (path, match)
            for path, text in self._native.items()
            if edit.module in ("", path.stem)
            for match in re.finditer(pattern, text)
        ]
        path, match = _only(found, "C++ sources")
        return Planted(path, match.string[: match.start()] + edit.replace + match.string[match.end() :])

    def _plant_python(self, edit: SemanticEdit) -> Planted:
        named = self._definitions.get(edit.function, [])
        if not named:
            raise EditError(f"nothing is called {edit.function}")
        hinted = [each for each in named if edit.module in ("", each.path.stem)]
        find, wrong = parse_patterns(edit.find, edit.replace)
        places = [(each, place) for each in hinted or named for place in _places(find, each)]
        definition, place = _only(places, edit.function)
        unknown = _names_of(wrong) - definition.exact - definition.local - set(place.names)
        if unknown:
            raise EditError(f"the replacement has unknown names: {', '.join(sorted(unknown))}")
        return Planted(definition.path, _edited_text(definition, place, wrong))


def read_definitions(path: Path) -> Iterator[tuple[str, Definition]]:
    """Yield the definitions of a module with their qualified names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    exact = _BUILTINS | _module_names(tree)
    for name, node in _definitions(tree.body, ""):
        yield name, Definition(path, tree, node, exact)


def _only(found: list[Any], where: str) -> Any:
    if len(found) != 1:
        raise EditError(f"fits {len(found)} places of {where}, expected one")
    return found[0]


def parse_patterns(find: str, replace: str) -> tuple[ast.expr | list[ast.stmt], ast.expr | list[ast.stmt]]:
    """Return both patterns as expressions, if both are, otherwise as statements."""
    left, right = ast.parse(find).body, ast.parse(replace).body
    if not left:
        raise EditError("the pattern is empty")
    if len(left) == len(right) == 1:
        (first,), (second,) = left, right
        if isinstance(first, ast.Expr) and isinstance(second, ast.Expr) and not _is_wildcard(first):
            return first.value, second.value
    return left, right


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            yield from ((prefix + name, node) for name in names)
        else:
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from _definitions(getattr(node, field, []), prefix)


def _module_names(tree: ast.Module) -> set[str]:
    names = {name for name, _ in _definitions(tree.body, "")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return names


def _bound_name(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return []
    return [
        name for kind, field in _NAME_FIELDS if isinstance(node, kind) and isinstance(name := getattr(node, field), str)
    ]


def _names_of(pattern: ast.expr | list[ast.stmt]) -> set[str]:
    """Return the names that a pattern reads and does not bind itself."""
    nodes = list(ast.walk(ast.Module(pattern, []) if isinstance(pattern, list) else pattern))
    bound = {name for node in nodes for name in _bound_name(node)}
    imported = {each.asname or each.name for each in nodes if isinstance(each, ast.alias)}
    return {node.id for node in nodes if isinstance(node, ast.Name)} - bound - imported


def _is_wildcard(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is Ellipsis


def _places(pattern: ast.expr | list[ast.stmt], definition: Definition) -> Iterator[Place]:
    """Yield each place of a definition that fits a pattern, in each way in which it does."""
    matcher = _Matcher(definition)
    outside = ast.Module([definition.node], [])
    for parent in ast.walk(outside):
        for field, value in ast.iter_fields(parent):
            if isinstance(pattern, list):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    for index in range(len(value)):
                        for num, names, captured in matcher.match_start(pattern, value[index:], {}, ()):
                            yield Place(parent, field, index, num, names, captured)
            else:
                children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
                for place, child in children:
                    if isinstance(child, ast.expr):
                        for names, captured in matcher.match(pattern, child, {}, ()):
                            yield Place(parent, field, place, 1, names, captured)


_Fit: TypeAlias = tuple[dict[str, str], Captured]


class _Matcher:
    """Fits patterns to the code of a definition. Each way to fit is what names stand for, and what wildcards captured."""

    def __init__(self, definition: Definition) -> None:
        self._exact, self._local = definition.exact, definition.local

    def match(self, pattern: Any, node: Any, names: dict[str, str], captured: Captured) -> Iterator[_Fit]:
        """Fit a node or a plain value."""
        if isinstance(pattern, list):
            if isinstance(node, list):
                for num, *fit in self.match_start(pattern, node, names, captured):
                    if num == len(node):
                        yield fit[0], fit[1]
        elif isinstance(pattern, ast.AST):
            if type(pattern) is type(node):
                fields = [each for each in pattern._fields if each not in _IGNORED_FIELDS]
                yield from self._match_fields(pattern, node, fields, names, captured)
        elif type(pattern) is type(node) and pattern == node:
            yield names, captured

    def match_start(
        self, pattern: list[Any], nodes: list[Any], names: dict[str, str], captured: Captured
    ) -> Iterator[tuple[int, dict[str, str], Captured]]:
        """Fit a list to the start of another; yield the number of fitting nodes as well."""
        if not pattern:
            yield 0, names, captured
        elif _is_wildcard(pattern[0]):
            for size in range(len(nodes) + 1):
                for num, *fit in self.match_start(pattern[1:], nodes[size:], names, (*captured, nodes[:size])):
                    yield size + num, fit[0], fit[1]
        elif nodes:
            for first in self.match(pattern[0], nodes[0], names, captured):
                for num, *fit in self.match_start(pattern[1:], nodes[1:], *first):
                    yield 1 + num, fit[0], fit[1]

    def _match_fields(
        self, pattern: ast.AST, node: ast.AST, fields: list[str], names: dict[str, str], captured: Captured
    ) -> Iterator[_Fit]:
        if not fields:
            yield names, captured
            return
        field, *rest = fields
        left, right = getattr(pattern, field, None), getattr(node, field, None)
        if (type(pattern), field) in _NAME_FIELDS and isinstance(left, str) and isinstance(right, str):
            bound = self._bind(left, right, names)
            fits = iter([] if bound is None else [(bound, captured)])
        else:
            fits = self.match(left, right, names, captured)
        for fit in fits:
            yield from self._match_fields(pattern, node, rest, *fit)

    def _bind(self, left: str, right: str, names: dict[str, str]) -> dict[str, str] | None:
        if right not in self._local:
            return names if left == right else None
        if left != right and left in self._exact:
            return None
        if left in names:
            return names if names[left] == right else None
        return None if right in names.values() else {**names, left: right}


def _edited_text(definition: Definition, place: Place, wrong: ast.expr | list[ast.stmt]) -> str:
    """Return the source of the module with the place replaced. EditError if nothing changes."""
    tree, node, parent = copy.deepcopy((definition.tree, definition.node, place.parent))
    old = ast.dump(tree)
    value, new = getattr(parent, place.field), _fill(copy.deepcopy(wrong), place)
    if place.index is None:
        setattr(parent, place.field, new)
    else:
        value[place.index : place.index + place.length] = new if isinstance(new, list) else [new]
        if not value and place.field == "body":
            value.append(ast.Pass())
    if isinstance(parent, ast.Module):
        # The place is the whole definition.
        values = [each for outer in ast.walk(tree) for _, each in ast.iter_fields(outer)]
        (body,) = (each for each in values if isinstance(each, list) and node in each)
        index = body.index(node)
        body[index : index + 1] = parent.body
    if ast.dump(tree) == old:
        raise EditError("changes nothing")
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    compile(text, str(definition.path), "exec", ast.PyCF_ONLY_AST)
    return text


def _fill(new: Any, place: Place) -> Any:
    """Give a replacement the names of the code, and the statements that wildcards captured."""
    captured = iter(place.captured)

    def fill_list(nodes: list[Any]) -> list[Any]:
        return [part for node in nodes for part in (next(captured, []) if _is_wildcard(node) else [fill(node)])]

    def fill(node: Any) -> Any:
        for field, value in ast.iter_fields(node):
            if (type(node), field) in _NAME_FIELDS and isinstance(value, str):
                setattr(node, field, place.names.get(value, value))
            elif isinstance(value, list) and value and isinstance(value[0], ast.AST):
                setattr(node, field, fill_list(value))
            elif isinstance(value, ast.AST):
                fill(value)
        return node

    return fill_list(new) if isinstance(new, list) else fill(new)
