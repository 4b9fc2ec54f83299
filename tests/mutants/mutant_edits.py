"""The small wrong edits of a function, found in its syntax tree; each replaces a piece of text.

Texts for readers, annotations, decorators and defaults are never edited.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Edit(NamedTuple):
    """Put `text` in place of the bytes from `begin` to `end` of a source."""

    operator: str
    begin: int
    end: int
    text: str


COMPARISONS: Final = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
ARITHMETIC: Final = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
NAMES: Final = {
    "all": "any",
    "any": "all",
    "amax": "amin",
    "amin": "amax",
    "argmax": "argmin",
    "ceil": "floor",
    "max": "min",
    "maximum": "minimum",
    "min": "max",
    "minimum": "maximum",
    "sorted": "list",
    "zeros": "ones",
    "zeros_like": "ones_like",
}
"""Functions and methods that are easily confused."""
COMMUTATIVE: Final = frozenset({"array_equal", "max", "maximum", "min", "minimum"})
"""Functions whose arguments may be swapped."""
TRANSFORMS: Final = frozenset({"abs", "clamp", "copy", "cumsum", "flatten", "flip", "neg", "squeeze", "to", "astype"})
"""Methods whose call can be replaced by their object."""
KEYWORDS: Final = frozenset({"axis", "copy", "default", "initial", "key", "kind", "max", "min", "right", "start"})
"""Arguments without which a call works, but does something else."""


def find_edits(source: bytes, function: ast.FunctionDef) -> Iterator[Edit]:
    """Yield every edit of a function, in the order of the text."""
    finder = _Finder(source)
    for statement in function.body:
        finder.visit(statement)
    yield from sorted(finder.edits, key=lambda edit: (edit.begin, edit.end, edit.operator, edit.text))


def constant_edits(source: bytes, value: ast.expr) -> Iterator[Edit]:
    """Yield every edit of a constant whose value is a number or an expression of numbers."""
    finder = _Finder(source)
    finder.visit(value)
    yield from (edit for edit in finder.edits if edit.operator == "number")


class _Finder(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.edits: list[Edit] = []
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def _begin(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        return self.source[self._begin(node) : self._end(node)].decode()

    def _add(self, operator: str, begin: int, end: int, text: str) -> None:
        self.edits.append(Edit(operator, begin, end, text))

    def _replace(self, operator: str, node: ast.expr | ast.stmt, text: str) -> None:
        self._add(operator, self._begin(node), self._end(node), text)

    def _replace_between(self, operator: str, left: int, right: int, old: str, new: str) -> None:
        """Replace an operator between two operands, among brackets and comments."""
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[left:right])
        found = re.search(rb"\s+".join(re.escape(word.encode()) for word in old.split()), gap)
        assert found, (old, gap)
        self._add(operator, left + found.start(), left + found.end(), new)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip a text for readers, whose parts have positions only since Python 3.12."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Skip `strict` of a `zip`, which guards against mistakes that no caller makes."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            old, others = COMPARISONS[type(operator)]
            for new in others:
                self._replace_between("comparison", self._end(left), self._begin(right), old, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_between("and-or", self._end(left), self._begin(right), old, new)
        for value in node.values:
            self._replace("condition left out", value, str(isinstance(node.op, ast.And)))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC:
            old, new = ARITHMETIC[type(node.op)]
            self._replace_between("arithmetic", self._end(node.left), self._begin(node.right), old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        signs: dict[type[ast.unaryop], str] = {ast.Not: "not", ast.Invert: "~", ast.USub: "-"}
        is_number = isinstance(node.operand, ast.Constant) and node.operand.value == 0
        if type(node.op) in signs and not is_number:
            self._replace_between(
                "sign left out", self._begin(node), self._begin(node.operand), signs[type(node.op)], ""
            )
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace("truth value", node, str(not value))
        elif isinstance(value, int):
            self._replace("number", node, str(value + 1))
            if value:
                self._replace("number", node, str(value - 1))
        elif isinstance(value, float):
            self._replace("number", node, str(value * 2 if value else 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        is_fixed = name in COMMUTATIVE or any(isinstance(each, ast.Starred) for each in node.args)
        for left, right in zip(node.args, node.args[1:], strict=False) if not is_fixed else ():
            texts = self._text(left), self._text(right)
            if texts[0] != texts[1] and not any(
                isinstance(each, ast.Constant | ast.JoinedStr) for each in (left, right)
            ):
                between = self.source[self._end(left) : self._begin(right)].decode()
                self._add("arguments swapped", self._begin(left), self._end(right), texts[1] + between + texts[0])
        for keyword in node.keywords:
            if keyword.arg in KEYWORDS:
                self._leave_out_keyword(node, keyword)
        if name in NAMES:
            self._add("other function", self._end(function) - len(name), self._end(function), NAMES[name])
        if isinstance(function, ast.Attribute) and name in TRANSFORMS:
            self._replace("call left out", node, self._text(function.value))
        self.generic_visit(node)

    def _leave_out_keyword(self, call: ast.Call, keyword: ast.keyword) -> None:
        begin, end = self._begin(keyword), self._end(keyword)
        after = re.match(rb"\s*,\s*", self.source[end : self._end(call)])
        if after:
            end += after.end()
        else:
            before = re.search(rb",\s*$", self.source[self._begin(call) : begin])
            begin = self._begin(call) + before.start() if before else begin
        self._add("argument left out", begin, end, "")

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is not None:
                self._replace("bound left out", bound, "")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._force(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._force(node.test)
        self.generic_visit(node)

    def _force(self, test: ast.expr) -> None:
        for text in ("True", "False"):
            if self._text(test) != text:
                self._replace("condition fixed", test, text)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._replace("condition fixed", condition, "True")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Yield | ast.YieldFrom):
            self.generic_visit(node)
            return
        self._replace("statement left out", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace("statement left out", node, "pass")
        if type(node.op) in ARITHMETIC:
            old, new = ARITHMETIC[type(node.op)]
            self._replace_between("arithmetic", self._end(node.target), self._begin(node.value), old + "=", new + "=")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Subscript):
            self._replace("statement left out", node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("statement left out", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace("statement left out", node, "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace("statement left out", node, "pass")
