"""Count the product's lines of code and statements: `python tools/size.py`, with `--check` against `size_limits.json`.

Stubs count, too. A line counts if it holds a token other than a comment or docstring. Statements are counted beside
lines, so that packed lines are no progress. The limits only fall.
"""

import ast
import io
import json
import pathlib
import sys
import tokenize

ROOTS = "kgverify", "stepaudit", "reference/kgreference"
IGNORED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count(source: str) -> tuple[int, int]:
    """Return the lines of code and the statements of a module."""
    tree = ast.parse(source)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    docstrings = {
        line
        for node in statements
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in IGNORED
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstrings), len(statements)


def main() -> None:
    """Print the size of each package and folder, and the sum. Exit with 1 if a limit is exceeded."""
    base = pathlib.Path(__file__).parent.parent
    sums: dict[str, list[int]] = {}
    for root in ROOTS:
        for path in sorted((*(base / root).rglob("*.py"), *(base / root).rglob("*.pyi"))):
            inner = path.relative_to(base / root).parts
            if "tests" in inner:
                continue
            sizes = count(path.read_text())
            for name in {"sum", root, f"{root}/{inner[0]}" if len(inner) > 1 else root}:
                row = sums.setdefault(name, [0, 0])
                row[0] += sizes[0]
                row[1] += sizes[1]
    for name, (lines, statements) in sorted(sums.items(), key=lambda item: -item[1][0]):
        sys.stdout.write(f"{lines:7,} lines {statements:7,} statements  {name}\n")
    if "--check" in sys.argv:
        limits = json.loads((base / "tools" / "size_limits.json").read_text())
        sizes = dict(zip(("lines", "statements"), sums["sum"], strict=True))
        for unit, size in sizes.items():
            if size > limits[unit]:
                sys.exit(
                    f"{size:,} {unit} exceed the limit of {limits[unit]:,} in tools/size_limits.json: remove some elsewhere"
                )


if __name__ == "__main__":
    main()
