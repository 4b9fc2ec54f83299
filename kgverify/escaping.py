r"""Escapes that make strangers' text safe to show, with one function for each medium.

A graph, a trace, a report, an engine or a file may contain any text. Without escapes, a character without a glyph could hide
in a name, reverse the text around it, or control a terminal; `##[error]` and `::error::` control the runner of a CI job, which
reads every line of a log. Each becomes an escape such as `\u202e`. If a program reads the output, its reader decodes the
escape.

Escaping text a second time changes nothing, so text quoted in a message looks the same as text printed directly.
"""

import re
from html import escape
from itertools import chain
from typing import Final

_HIDDEN: Final = (
    # Control characters, lone surrogates, and the separators of lines and paragraphs.
    (0x00, 0x1F), (0x7F, 0x9F), (0x2028, 0x2029), (0xD800, 0xDFFF),
    # Format characters (category Cf), which reverse, join or separate their neighbours. None is needed to read a name, not
    # even the joiners inside emoji.
    (0xAD, 0xAD), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD), (0x70F, 0x70F), (0x890, 0x891), (0x8E2, 0x8E2),
    (0x180E, 0x180E), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF), (0xFFF0, 0xFFFB),
    (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A),
    # Other characters that Unicode lists as ignorable, so they are invisible: fillers, variation selectors, tags.
    (0x34F, 0x34F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x3164, 0x3164), (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF),
    # Code points that never become characters; XML forbids some of them.
    (0xFDD0, 0xFDEF), *((plane + 0xFFFE, plane + 0xFFFF) for plane in range(0, 0x110000, 0x10000)),
)  # fmt: skip
"""The first and last code point of each range of characters that are never shown unescaped."""

_MOST_REPLACED: Final = 50
"""The maximum number of hidden characters that are replaced one by one in JSON."""

_CLASS: Final = "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in _HIDDEN)
# GitHub and Azure read `##[` and `##vso[` anywhere in a line, TeamCity `##teamcity[`.
MARKED: Final = re.compile(rf"[{_CLASS}]|(?<=#)#(?=(?a:\w)*\[)")
"""A character that is never shown unescaped."""
# GitHub reads `::` after blanks, and Buildkite reads the others at the start of a line.
_AT_START: Final = re.compile(
    rf"^(?:(?![{_CLASS}])\s)*(?::(?=:)|-(?=-- )|\+(?=\+\+ )|~(?=~~ )|\^(?=\^\^ ))", re.MULTILINE
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _show(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _is_plain(text: str) -> bool:
    """Return whether a line certainly needs no escape, like most lines."""
    return text.isascii() and text.isprintable() and "##" not in text and not _AT_START.match(text)


def make_visible(text: str) -> str:
    r"""Return a stranger's text as one line for people, with escapes such as `\n` and `\u200b`."""
    if _is_plain(text):
        return text
    shown = MARKED.sub(lambda match: _show(match[0]), text)
    start = _AT_START.match(shown)
    return f"{shown[: start.end() - 1]}{_show(start[0][-1])}{shown[start.end() :]}" if start else shown


def make_lines_visible(text: str) -> str:
    """Return a text with newlines from kgverify as lines for people, each escaped like in `make_visible`."""
    return "\n".join(map(make_visible, text.split("\n"))) if "\n" in text else make_visible(text)


def find_escapes(lines: str) -> dict[int, str]:
    """Return the positions of the characters that `make_lines_visible` would escape in lines, with their escapes."""
    if all(map(_is_plain, lines.split("\n"))):
        return {}
    marked = ((match.start(), match[0]) for match in MARKED.finditer(lines) if match[0] != "\n")
    starts = ((match.end() - 1, match[0][-1]) for match in _AT_START.finditer(lines))
    return {position: _show(character) for position, character in chain(marked, starts)}


_ASCII: Final = bytes(range(0x7F))
_MARKED_BYTES: Final = re.compile(rb"##(?=\w*\[)")


def escape_json(encoded: bytes) -> bytes:
    r"""Return JSON that decodes to the same values, with `\u` escapes for characters that must not be shown."""
    if b"##" in encoded:
        encoded = _MARKED_BYTES.sub(rb"#\\u0023", encoded)
    # All hidden characters except newlines occur only in strings. A report takes many megabytes, so each occurring character
    # is replaced everywhere. A pattern takes 50 times as long, but no longer if thousands of characters occur.
    rest = encoded.translate(None, _ASCII)
    hidden = [character for character in set(rest.decode()) if MARKED.match(character)] if rest else []
    if len(hidden) > _MOST_REPLACED:
        return MARKED.sub(lambda match: _escape_in_json(match[0]), encoded.decode()).encode()
    for character in hidden:
        encoded = encoded.replace(character.encode(), _escape_in_json(character).encode())
    return encoded


def _escape_in_json(character: str) -> str:
    if character in "\n\r\t":
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


_IN_SCRIPTS: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def escape_script(encoded: bytes) -> str:
    """Return JSON for an HTML script element. It contains no `<`, so nothing can end the element."""
    return escape_json(encoded).decode().translate(_IN_SCRIPTS)


def escape_data(text: str) -> str:
    """Return lines as the message of a GitHub workflow command."""
    return make_lines_visible(text).replace("%", "%25").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Return a text as one line for a property value of a GitHub workflow command."""
    return escape_data(make_visible(text)).replace(":", "%3A").replace(",", "%2C")


_SPECIAL: Final = re.compile(r"[^\w\s.,;:()+=%/'\"?-]|(?<![^\W_])_|_(?![^\W_])|://|www")


def escape_markdown(text: str) -> str:
    """Return a text as one line, with an entity for every character special to Markdown, HTML or GitHub."""
    return _SPECIAL.sub(lambda match: "".join(map(_as_entity, match[0])), _collapse(text))


def _collapse(text: str) -> str:
    return " ".join(make_visible(text).split())


def _as_entity(character: str) -> str:
    # GitHub looks for mentions and issues in the decoded text, which a comment splits.
    return f"&#{ord(character)};" + ("<!-- -->" if character in "@#" else "")


def escape_markdown_code(text: str) -> str:
    """Return a text as one line of Markdown code, which also works in a table."""
    line = _collapse(text)
    if not line:
        return ""
    return f"<code>{escape_markdown(line)}</code>" if re.search(r"[`|\\<]", line) else f"`{line}`"


def escape_markdown_block(lines: str) -> str:
    """Return lines as a Markdown code block, even if they contain backticks."""
    shown = make_lines_visible(lines)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}text\n{shown}\n{mark}"


def escape_cell(text: str) -> str:
    """Return a text as one line for a CSV cell. A spreadsheet reads a cell beginning with `=`, `+`, `-` or `@` as a formula."""
    shown = make_visible(text)
    return f"'{shown}" if shown.lstrip().startswith(tuple("=+-@＝＋－＠")) else shown


def escape_notebook(lines: str) -> str:
    """Return lines as HTML for a notebook's output, in the colours of its light or dark page."""
    # It scrolls in a narrow notebook instead of folding.
    style = "color: inherit; background: transparent; font-family: monospace; overflow-x: auto; white-space: pre"
    return f'<pre style="{style}">{escape(make_lines_visible(lines))}</pre>'


class ShownAsText:
    """A value that `print` and a notebook show as text, and whose `repr` is the first line of it."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the first line of the text."""
        return f"<{type(self).__name__} {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        """Return the text for a notebook."""
        return escape_notebook(str(self))
