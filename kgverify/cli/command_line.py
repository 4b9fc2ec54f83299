"""The words of a command, which cyclopts reads: it turns a function's parameters into options, with their help and errors."""

import io
import logging
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Any, Final, get_args

from cyclopts import App, Parameter
from cyclopts.argument import Argument, Token
from cyclopts.exceptions import (
    CoercionError,
    ConsumeMultipleError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from cyclopts.help import HelpEntry, HelpPanel

from kgverify.cli.configuration import apply_configuration
from kgverify.cli.entries import ENTRIES, MOST_COLUMNS, find_width, render_rows
from kgverify.cli.output import END, CatalogueAsked, settings
from kgverify.cli.progress import SafeConsole, check_writable, log, print_note, print_warning
from kgverify.errors import NotWritten, UserError, first_line, suggest
from kgverify.escaping import make_visible
from kgverify.progress import LOGGER
from kgverify.report.render.screen import Text

_KINDS: Final[Mapping[Any, str]] = {int: "a whole number", float: "a number", bool: "true or false"}


def call(words: Sequence[str]) -> int:
    """Run a command, and return its exit code. UserError for words that it does not take."""
    if words[0] == "--install-completion":
        path = make_app(*ENTRIES).install_completion()
        print_note(f"written: {path}; it is read by new shells")
        return 0
    log(make_visible(f"{datetime.now():%Y-%m-%d %H:%M:%S} {shlex.join(['kgverify', *words])}") + "\n")
    words = [word for word in _name_files(words) if (word, words[0]) != (END, "bisect")]
    app = make_app(words[0], configuration=partial(apply_configuration, ENTRIES[words[0]].compares))
    _log_notes()
    if len(words) == 1 and app[words[0]].default_command is None:
        app([words[0], "--help"])
        return 2
    check_writable(settings.json_path)
    try:
        code = app(words)
    except CatalogueAsked:
        from kgverify.cli.options import print_catalogue

        print_catalogue()
        return 0
    except CycloptsError as error:
        raise _as_user_error(error) from None
    except UserError as error:
        where = name_option(error.where, app, words)
        kind = NotWritten if isinstance(error, NotWritten) else UserError
        raise kind(error.message, where=where, fix=error.fix, details=error.details).with_traceback(
            error.__traceback__
        ) from None
    return code if isinstance(code, int) else 0


def make_app(*names: str, configuration: Callable[..., None] | None = None) -> App:
    """Return the application with some of the commands."""
    app = App(
        name="kgverify",
        help_format="plaintext",
        help_formatter=HelpText(),
        help_epilogue="",
        help_flags=("--help", "-h"),
        version_flags=(),
        default_parameter=Parameter(
            negative_iterable="", allow_repeating=True, show_default=_show_default, show_env_var=False
        ),
        config=configuration,
        console=SafeConsole(width=min(SafeConsole().width, MOST_COLUMNS)),
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name in names:
        module, _, attribute = ENTRIES[name].place.partition(":")
        found: Callable[..., Any] | Mapping[str, Callable[..., Any] | App] = getattr(
            import_module(f"kgverify.cli.{module}"), attribute
        )
        if callable(found):
            app.command(found, name=name)
        else:
            group = App(name=name, help=ENTRIES[name].summary)
            app.command(group)
            for inner, function in found.items():
                group.command(function, name=inner)
    return app


def list_commands(app: App, *words: str) -> dict[tuple[str, ...], App]:
    """Return the leaf commands of an application by their words."""
    leaves: dict[tuple[str, ...], App] = {}
    for name, each in app.resolved_commands().items():
        if not name.startswith("-"):
            leaves |= {(*words, name): each} if each.default_command else list_commands(each, *words, name)
    return leaves


def list_options(app: App) -> list[Argument]:
    """Return the arguments and options of a leaf command."""
    return [each for each in app.assemble_argument_collection() if each.parse]


def render_command_help(app: App, words: Sequence[str]) -> str:
    """Return the help of a leaf command."""
    shown = io.StringIO()
    app([*words, "--help"], console=SafeConsole(width=MOST_COLUMNS, file=shown))
    return shown.getvalue().strip()


def name_option(where: str, app: App, words: Sequence[str]) -> str:
    """Return the typed option for the argument that an error is about; return any other location unchanged.

    where: the argument, perhaps with its value, as in `engine mine.py:Engine`
    """
    from kgverify.cli.options import KEYS

    typed = {word.split("=")[0] for word in words}
    where, space, value = where.partition(" ")
    for each in _find_options(app, words):
        options = [name for name in each.names if name.startswith("-")]
        if options and where in (each.field_info.name, options[0].lstrip("-").replace("-", "_")):
            return next((name for name in options if name in typed), options[0]) + space + value
        if options and where in KEYS.get(options[0], ()):
            return f"{options[0]} {where}"
    return where + space + value


def _find_options(app: App, words: Sequence[str]) -> list[Argument]:
    """Return the arguments and options of the command that some words name."""
    _, apps, _ = app.parse_commands(list(words))
    return list_options(apps[-1]) if apps[-1].default_command else []


def _show_default(value: Any) -> str | None:
    return None if value is None or value is False or value == () else str(value)


def _name_files(words: Sequence[str]) -> list[str]:
    """Insert the default file name for each format of `kgverify report` given without one, and join `-` to its option."""
    files = {}
    if words[0] == "report":
        from kgverify.report.render.formats import FORMATS

        files = {f"--{name}": each.file for name, each in FORMATS.items()}
    named: list[str] = []
    for word, following in zip(words, [*words[1:], END], strict=True):
        if word in files and following.startswith("--"):
            named.append(f"{word}={files[word]}")
        elif word == "-" and named and named[-1].startswith("--") and "=" not in named[-1]:
            named[-1] += "=-"
        else:
            named.append(word)
    return named


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if settings.is_verbose:
            print_note(record.getMessage(), style="dim")
        else:
            log(f"{make_visible(record.getMessage())}\n")


def _log_notes() -> None:
    """Print the messages of the logger `kgverify` with `--verbose`, and log them with `--log`."""
    LOGGER.handlers = [each for each in LOGGER.handlers if not isinstance(each, _Notes)]
    LOGGER.setLevel(logging.NOTSET)
    if settings.is_verbose or settings.log_path is not None:
        LOGGER.addHandler(_Notes())
        LOGGER.setLevel(logging.INFO)


def _as_user_error(error: CycloptsError) -> UserError:
    """Return the error in the usual form: where, what, and how to fix it."""
    help_text = f"{' '.join(['kgverify', *(error.command_chain or ()), '--help'])} lists the options"
    unused = getattr(error, "unused_tokens", None)
    if isinstance(error, UnknownOptionError):
        return _explain_option(error, help_text)
    if isinstance(error, UnknownCommandError) and unused:
        known = [name for name in error.app or () if not name.startswith("-")]
        return UserError(
            "unknown command", where=unused[0], fix=suggest(unused[0], known) or f"choose {', '.join(known)}"
        )
    if isinstance(error, CoercionError) and error.token is not None:
        return _explain_value(error, error.token, help_text)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        is_empty = not error.argument.tokens and error.keyword is None and not isinstance(error, ConsumeMultipleError)
        where = error.keyword or error.argument.name
        return UserError("is missing" if is_empty else "needs a value", where=where, fix=help_text)
    if isinstance(error, UnusedCliTokensError) and unused:
        return UserError("unexpected argument", where=unused[0], fix=help_text)
    return UserError(str(error), fix=help_text)


def _explain_option(error: UnknownOptionError, help_text: str) -> UserError:
    """Explain an option of the command line, or a key of a configuration file, that the command does not have."""
    names = [name for each in error.argument_collection for name in each.names if name.startswith("-")]
    where = error.token.keyword or error.token.value
    if error.token.source == "cli":
        return UserError("unknown option", where=where, fix=suggest(where, names) or help_text)
    key = where.strip("[]").replace("][", ".").lstrip("-")
    fix = suggest(key, [name.lstrip("-") for name in names]) or "remove it"
    return UserError("unknown key", where=f"{error.token.source}: {key}", fix=fix)


def _explain_value(error: CoercionError, token: Token, help_text: str) -> UserError:
    """Explain a value of the wrong type, or a value that is not among the choices."""
    where = token.keyword or (error.argument.name if error.argument else "")
    if token.source not in ("", "cli"):
        where = f"{token.source}: {where.strip('[]')}"
    if choices := [str(each) for each in get_args(error.target_type)]:
        fix = suggest(token.value, choices) or f"choose one of {', '.join(choices)}"
        return UserError(f"unknown value {token.value!r}", where=where, fix=fix)
    kind = _KINDS.get(error.target_type, "another value")
    return UserError(f"expected {kind}, found {token.value!r}", where=where, fix=help_text)


class HelpText:
    """The help of a command: names beside descriptions, in groups, with the defaults."""

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        """Print the line with the words of the command."""
        text = re.sub(r"\s+", " ", getattr(usage, "plain", str(usage))).strip()
        console.print(Text(text if text.startswith("Usage:") else f"Usage: {text}"))

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Print the description."""
        console.print()
        console.print(Text(_plain(description, console)))

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        """Print a group of options, or of commands."""
        if not panel.entries:
            return
        rows = [(_label(each), _describe(each, console)) for each in panel.entries]
        title = "Options" if panel.title == "Parameters" else panel.title
        console.print(Text("\n".join(["", f"{title}:", *render_rows(rows, find_width())])))


def _label(entry: HelpEntry) -> str:
    if entry.positional_label:
        return entry.positional_label
    # Show only how to change a switch from its default: on if it is off, and off if it is on.
    names = entry.negative_names if entry.default == "True" else (*entry.positive_names, *entry.positive_shorts)
    kinds = dict.fromkeys(each.strip("(.)") for each in (entry.metavar or "").split("|") if "MAPPING" not in each)
    return f"{', '.join(names)} {'|'.join(kinds).replace('STR', 'TEXT')}".strip()


def _describe(entry: HelpEntry, console: Any) -> str:
    text = _plain(entry.description, console)
    if entry.choices:
        text += f" One of {', '.join(entry.choices)}."
    if entry.required:
        text += " Required."
    if entry.default == "True":
        return f"Do not: {text[0].lower()}{text[1:]}"
    return f"{text} [default: {entry.default}]" if entry.default else text


def _plain(text: Any, console: Any) -> str:
    """Return a text of cyclopts without the line breaks of a docstring."""
    if text is None:
        return ""
    plain = getattr(text, "plain", None)
    if plain is None:
        with console.capture() as captured:
            console.print(text, soft_wrap=True)
        plain = captured.get()
    paragraphs = re.split(r"\n\s*\n", plain.strip())
    return "\n\n".join(re.sub(r"\s+", " ", each) for each in paragraphs)


MAX_SHOWN: Final = 20
LOGGERS: Final = (
    "torch._subclasses.fake_tensor",
    "torch._dynamo",
    "torch._dynamo.convert_frame",
    "torch._inductor",
    "torch._inductor.compile_fx",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.select_algorithm",
    "torch._inductor.utils",
)
"""The torch loggers that print warnings while an engine runs."""


@contextmanager
def warnings_afterwards() -> Iterator[None]:
    """Collect the warnings of Python and torch until the context ends, and then print each once, with its count."""
    seen: Counter[str] = Counter()

    def collect(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            seen[f"{record.name}: {first_line(record.getMessage())}"] += 1
        return record.levelno < logging.WARNING

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        seen[f"{category.__name__}: {first_line(str(message))} ({filename}:{lineno})"] += 1

    for name in LOGGERS:
        logging.getLogger(name).addFilter(collect)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show  # type: ignore[assignment]  # the other arguments are not needed
            yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(collect)
        for text, num in list(seen.items())[:MAX_SHOWN]:
            print_warning(text + (f" ({num:,} times)" if num > 1 else ""))
        if len(seen) > MAX_SHOWN:
            print_warning(f"... and {len(seen) - MAX_SHOWN:,} other warnings")
