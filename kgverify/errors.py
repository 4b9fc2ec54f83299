"""The two kinds of error: a user's mistake, reported with its fix, and a bug in kgverify, reported with its stack trace."""

from collections.abc import Iterable
from difflib import get_close_matches


class KgverifyError(Exception):
    """The base class of the errors that kgverify raises."""


class UserError(KgverifyError):
    """A mistake in the input, with its location, what was expected and found, and how to fix it.

    where: a location such as `train.txt:7`, an option or a file; may be empty
    fix:   the advice to the user; may be empty

    Example:
        >>> import kgverify as kv
        >>> try:
        ...     kv.load_graph("countris")
        ... except kv.UserError as error:
        ...     print(error.fix)
        did you mean 'countries'?
    """

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        self.message = message
        self.where = where
        self.fix = fix
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text}\nfix: {fix}" if fix else text)


class InternalError(KgverifyError):
    """A bug in kgverify: a violated invariant."""


def suggest(found: str, known: Iterable[str]) -> str:
    """Return `did you mean 'locatedIn'?` for the closest of the known names; empty if no name is close."""
    close = get_close_matches(found, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def first_line(text: str) -> str:
    """Return the first line that is not blank, without surrounding spaces; empty if all lines are blank."""
    return text.strip().partition("\n")[0].strip()


def describe_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(str(error))}".removesuffix(": ")
