"""Names as they stand in a reproducer: bare where that is clear, else in single quotes with escapes."""

import re
from typing import Final

PLAIN: Final = re.compile(r"[a-z0-9]\w*", re.ASCII)
"""A predicate or a constant that needs no quotes."""
VARIABLE: Final = re.compile(r"[A-Z]\w*|_\w+", re.ASCII)
"""A variable's name."""

_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{1,6})\\|\\(.)", re.DOTALL)
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_SIGNS = {"n": "\n", "t": "\t"}


def quote(name: str) -> str:
    """A predicate's or a constant's name."""
    if PLAIN.fullmatch(name):
        return name
    escaped = escape(name).replace("'", "\\'")
    return f"'{escaped}'"


def escape(text: str) -> str:
    """The text on one line, of signs that can be printed."""

    def show(sign: str) -> str:
        return _ESCAPED.get(sign) or (sign if sign.isprintable() else f"\\x{ord(sign):x}\\")

    return "".join(map(show, text))


def escape_line(text: str) -> str:
    """The same, for a value of which blanks at the ends are stripped where it is read."""
    escaped = escape(text)
    if escaped.startswith(" "):
        escaped = f"\\x20\\{escaped[1:]}"
    return f"{escaped[:-1]}\\x20\\" if escaped.endswith(" ") else escaped


def unescape(text: str) -> str:
    """The text that `escape` was given."""

    def read(match: re.Match[str]) -> str:
        if match[1]:
            code = int(match[1], 16)
            return chr(code) if code < 0x110000 else match[0]
        return _SIGNS.get(match[2], match[2])

    return _ESCAPE.sub(read, text)
