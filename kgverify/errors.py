"""The two kinds of error: a user's mistake, reported with its fix, and a bug in kgverify, reported with its stack trace."""

import contextlib
import os
import re
import sys
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Final, TypeVar

from kgverify.escaping import make_lines_visible, make_visible

on_command_line: Final[ContextVar[bool]] = ContextVar("on_command_line", default=False)
"""True while the command line runs, which shows hints in its own words."""

_OPTION: Final = re.compile(
    r"(?<![\w-])--(?:(?:graph|limits|tune) (?=[a-z]+[_=])|(mode|device) ([a-z]+)|([a-z-]+(?: N\b)?))"
)
_ARGUMENTS: Final = {
    "tune": "kgverify.Evaluator(...)",
    "limits": "kgverify.Limits(...)",
    "score-error": "accepted_error",
    "json": "the dictionary",
    "candidate N": "candidate(N)",
}
"""Python's counterparts of options, except arguments of the same name."""
# A text with a command, or with the words of both, stays as it is.
_AS_TYPED: Final = re.compile(r"\b(?:kgverify|pip|torchrun) [a-z]|\bin Python\b")


def use_words(text: str) -> str:
    """Return a hint with Python's arguments in place of options, unless the command line shows it."""
    if on_command_line.get() or "--" not in text or _AS_TYPED.search(text):
        return text

    def name(found: re.Match[str]) -> str:
        key, value, option = found.groups()
        if key:
            return f'kgverify.Evaluator({key}="{value}")'
        return _ARGUMENTS.get(option, option.replace("-", "_")) if option else ""

    return _OPTION.sub(name, text)


class KgverifyError(Exception):
    """The base class of the errors that kgverify raises."""

    def __str__(self) -> str:
        """Return the text as lines that are safe to show."""
        return make_lines_visible(super().__str__())


class UserError(KgverifyError):
    """A mistake in the input, with its location, what was expected and found, and how to fix it.

    where:   a location such as `train.txt:7`, an option or a file; may be empty
    fix:     the advice to the user; may be empty
    details: further lines of the message, such as an engine's own exception

    Example:
        >>> import kgverify as kv
        >>> try:
        ...     kv.load_graph("countris")
        ... except kv.UserError as error:
        ...     print(error.fix)
        did you mean 'countries'?
    """

    def __init__(self, message: str, *, where: str = "", fix: str = "", details: Iterable[str] = ()) -> None:
        # Messages quote files, where a name may take megabytes.
        shown = (_shorten(_name_copies(text)) for text in (message, where, fix))
        self.message, self.where, self.fix = message, where, fix = tuple(shown)
        self.details = tuple(_shorten(_name_copies(line)) for line in details)
        text = make_visible(f"{where}: {message}" if where else message)
        lines = [text, *(f"  {make_visible(line)}" for line in self.details)]
        super().__init__("\n".join([*lines, f"fix: {make_visible(fix)}"] if fix else lines))

    def __str__(self) -> str:
        """Return the text as lines that are safe to show, with the fix in the words of the command line or of Python."""
        lines = super().__str__().split("\n")
        return "\n".join([*lines[:-1], use_words(lines[-1])] if self.fix else lines)


class NotWritten(UserError):
    """A result that cannot be written, since a disk is full."""


class MissingDependency(UserError):
    """A package that cannot be imported: it is missing, or its installation is broken."""


class InternalError(KgverifyError):
    """A bug in kgverify: a violated invariant."""


_MAX_CHARACTERS: Final = 4_000
_MAX_NAME: Final = 200
_MAX_NAMES: Final = 1_000


def _shorten(text: str) -> str:
    """Return a text, without its middle if it is too long to read."""
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


def cut_middle(lines: Sequence[str], most: int) -> list[str]:
    """Return lines, without those in the middle if there are more than `most`, and one for their number."""
    half = most // 2
    if len(lines) <= 2 * half + 1:
        return [*lines]
    return [*lines[:half], f"... {len(lines) - 2 * half:,} lines more", *lines[-half:]]


_copies: Final[dict[str, str]] = {}


def show_path_as(path: str, shown: str) -> None:
    """Make errors show a path, and the paths inside it, under another name, such as the URL of a copied file."""
    _copies[path] = shown


def _name_copies(text: str) -> str:
    for path, shown in _copies.items():
        text = text.replace(path, shown)
    return text


_OWN: Final = ("kgverify", "kgreference", "__main__")
_OWN_FILES: Final = f"{Path(__file__).parent}{os.sep}", contextlib.__file__
"""The beginnings of the paths of frames that are not the user's."""

_Error = TypeVar("_Error", bound=BaseException)

EXTRAS: Final[Mapping[str, tuple[str, str]]] = {
    "torch": ("compiled", "the compiled evaluator needs"),
    "triton": ("gpu", "fused kernels need"),
    "hypothesis": ("fuzz", "the strategies for Hypothesis need"),
    "pytest": ("fuzz", "tests of your engine need"),
    "pyarrow": ("parquet", "Parquet needs"),
    "pandas": ("pandas", "data frames of pandas need"),
    "polars": ("polars", "data frames of polars need"),
    "distributed": ("distributed", "work on several machines needs"),
    "fsspec": ("storage", "object stores need"),
    "obstore": ("storage", "object stores need"),
}
"""The extra of kgverify that installs each optional package, and what needs the package."""


def find_missing_dependency(error: BaseException, where: str = "") -> MissingDependency | None:
    """Return the error to raise in place of an error while importing another package; None for any other error."""
    if isinstance(error, MissingDependency):
        return error
    if isinstance(error, ImportError):
        names = [(error.name or "").partition(".")[0]]
    else:
        # A module's code runs while it is imported.
        frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
        names = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    foreign = [name for name in names if name not in _OWN]
    if not foreign:
        return None
    package = foreign[0] or "a package"
    if isinstance(error, ModuleNotFoundError) and error.name == package and package in EXTRAS:
        extra, needs = EXTRAS[package]
        return MissingDependency(
            f"{needs} {package}, which is not installed", where=where, fix=f"pip install 'kgverify[{extra}]'"
        )
    if package in sys.stdlib_module_names and isinstance(error, ModuleNotFoundError):
        # Such as fcntl on Windows.
        return MissingDependency(
            f"kgverify needs Python's module {package}, which Python lacks on this system ({sys.platform})",
            where=where,
            fix="use Linux or macOS; on Windows, WSL 2 or a container: docs/install.md",
        )
    return MissingDependency(
        f"{package} cannot be imported: {describe_error(error)}",
        where=where,
        fix=f"install {package} in this environment, or repair its installation",
    )


def keep_users_frames(error: _Error) -> _Error:
    """Return an exception without the frames of kgverify in its traceback and in those of its causes.

    A bug keeps its frames. A cause is dropped if it is a UserError that only kgverify's code raised.
    """
    users = _drop_own(error.__traceback__)
    if users is not None or isinstance(error, UserError):
        error.__traceback__ = users
    if (cause := error.__cause__) is not None:
        keep_users_frames(cause)
        if isinstance(cause, UserError) and cause.__traceback__ is None:
            error.__cause__ = None
    return error


def _drop_own(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    rest, frame = _drop_own(traceback.tb_next), traceback.tb_frame
    is_own = frame.f_code.co_filename.startswith(_OWN_FILES)
    return rest if is_own else TracebackType(rest, frame, traceback.tb_lasti, traceback.tb_lineno)


def suggest(found: str, known: Iterable[str]) -> str:
    """Return `did you mean 'locatedIn'?` for the closest of the known names; empty if no name is close."""
    if len(found) > _MAX_NAME:
        return ""
    # The time grows with the product of the lengths and with the number of names. Among many names, compare only neighbours.
    names = [name for name in known if len(name) <= _MAX_NAME]
    if len(names) > _MAX_NAMES:
        names.sort()
        middle = bisect(names, found)
        names = names[max(0, middle - _MAX_NAMES // 2) : middle + _MAX_NAMES // 2]
    close = get_close_matches(found, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def check_known(name: str, known: Iterable[str], what: str, where: str) -> None:
    """Raise UserError for a name that is not among the known ones; the fix is the closest of them, or all of them."""
    names = tuple(known)
    if name not in names:
        fix = suggest(name, names) or f"choose one of {', '.join(names)}"
        raise UserError(f"unknown {what} {name!r}", where=where, fix=fix)


def first_line(text: str) -> str:
    """Return the first line that is not blank, without surrounding spaces; empty if all lines are blank."""
    return text.strip().partition("\n")[0].strip()


def describe_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(str(error))}".removesuffix(": ")


def count_of(num: int, one: str) -> str:
    """Return a number with its noun: `1 rule`, `2,000 queries`, `3 processes`; an upper-case noun keeps its case."""
    if num == 1:
        return f"1 {one}"
    ends_in_ies = one[-1] == "y" and one[-2] not in "aeiou"
    many = f"{one[:-1]}ies" if ends_in_ies else one + ("es" if one.endswith("s") else "s")
    return f"{num:,} {many.upper() if one.isupper() else many}"
