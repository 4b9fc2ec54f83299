r"""User errors, and text that is safe to show.

A step, its file or an exception may contain any text. Characters without a glyph, which could command a terminal, and the
beginnings of commands to the runner of a CI job become escapes such as `\u202e`.
"""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final

# The runners of GitHub, Azure and TeamCity recognize `##[` and `##vso[` anywhere in a line, and `::` after blanks.
_COMMAND: Final = re.compile(r"(?<=#)#(?=\w*\[)|^\s*:(?=:)")
_NARROW: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Fillers and variation selectors, which `isprintable` mistakes for glyphs."""
_SPECIAL: Final = re.compile(r"[^\w\s.,;:()+=%/'\"?-]|(?<![^\W_])_|_(?![^\W_])|://|www")


class UserError(Exception):
    """A mistake of the user, with its location and how to fix it.

    where: a location such as `step.py:7`, or an option; fix: advice for the user
    """

    def __init__(self, message: str, where: str, fix: str) -> None:
        self.message, self.where, self.fix = message, where, fix
        super().__init__(message, where, fix)

    def __str__(self) -> str:
        """Return the location and the message, and the fix on a separate line."""
        return f"{make_visible(f'{self.where}: {self.message}')}\nfix: {make_visible(self.fix)}"


def suggest(found: str, known: Iterable[str]) -> str:
    """Return `did you mean 'default'?` for the closest of the known names; empty if no name is close."""
    close = get_close_matches(found, known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def check_names(what: str, names: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Raise UserError for an unknown name. where: the location of the names, if `what` does not say it."""
    for name in names:
        if name not in known:
            fix = suggest(name, known) or f"choose from {', '.join(known)}"
            raise UserError(f"unknown {what} {name!r}", where=where or what, fix=fix)


def first_line(text: str) -> str:
    """Return the first line that is not blank; empty if all lines are blank."""
    return text.strip().partition("\n")[0].strip()


def describe_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(str(error))}".removesuffix(": ")


def _escape(text: str) -> str:
    return text.encode("unicode_escape").decode()


def make_visible(text: str) -> str:
    r"""Return a text as one line, with escapes such as `\n` and `\u200b`."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else _escape(each) for each in text)
    text = _NARROW.sub(lambda match: _escape(match[0]), text)
    return _COMMAND.sub(lambda match: f"{match[0][:-1]}\\x{ord(match[0][-1]):02x}", text)


def make_lines_visible(text: str) -> str:
    """Apply `make_visible` to each line of a text."""
    return "\n".join(map(make_visible, text.split("\n")))


def escape_markdown(text: str) -> str:
    """Return a text in one line, with every character special to Markdown, HTML or GitHub as an entity."""
    return _SPECIAL.sub(lambda match: "".join(map(_as_entity, match[0])), " ".join(make_visible(text).split()))


def _as_entity(character: str) -> str:
    # GitHub looks for mentions and issues in the decoded text, which a comment splits.
    return f"&#{ord(character)};" + ("<!-- -->" if character in "@#" else "")
