"""The command `stepaudit FILE.py:STEP --inputs FILE.py:MAKE`. Its options are the fields of `AuditOptions`."""

import importlib.util
import os
import re
import shutil
import sys
import textwrap
import traceback
from argparse import SUPPRESS, Action, ArgumentParser, BooleanOptionalAction, Namespace
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, get_args, get_origin

import torch
from rich.console import Console

from stepaudit import render
from stepaudit.audited_step import audit_step
from stepaudit.environment import describe_environment
from stepaudit.errors import UserError, describe_error, make_lines_visible, make_visible, suggest
from stepaudit.isolation import Received, run_isolated
from stepaudit.options import EAGER, AuditOptions
from stepaudit.report import AuditReport, ReportBuilder, Verdict

EXIT_CODES: Final = {Verdict.AGREE: 0, Verdict.DIVERGE: 1, Verdict.INCONCLUSIVE: 3}
_BAD_INPUT, _BUG, _INTERRUPTED, _CLOSED_PIPE = 2, 70, 130, 141
_LONGEST: Final = 86_400.0
"""The limit on the CPU seconds of a whole audit, each part of which has a limit of its own."""
_PIPE_WIDTH: Final = 120
"""The width of a report that is written to a pipe or a log."""

_FORMS: Final[dict[str, tuple[Callable[[AuditReport], str], str]]] = {
    "json": (render.render_json, "as JSON"),
    "html": (render.render_html, "as a page"),
    "junit": (render.render_junit, "as JUnit XML"),
}
"""The forms of a report that have an option, each with what renders it."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        where, _, what = message.rpartition(": ")
        where = where.removeprefix("argument ") or "the command"
        raise UserError(what, where=where, fix=f"{self.prog} --help lists the options")


class _KeepPair(Action):
    """An option that adds a pair to a mapping. A value is a literal of Python, or else a text."""

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        key, sign, text = values.partition("=")
        if not sign:
            parser.error(f"argument {option_string}: expected KEY=VALUE, found {values!r}")
        try:
            value = literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), key: value})


def make_parser(program: str) -> ArgumentParser:
    """Return the parser of the command. Values that are not typed are not in its result."""
    words = f"{program} FILE.py:STEP --inputs FILE.py:MAKE [OPTIONS]"
    parser = _Parser(
        prog=program,
        usage="\n".join(textwrap.wrap(words, max(20, shutil.get_terminal_size().columns - 8))),
        description="Compare a step with eager on every rung of torch.compile, and examine the properties that it can lose.",
        epilog="Exit codes: 0 clean, 1 with findings or over budget, 2 bad input, 3 inconclusive, 70 a bug in stepaudit.",
        allow_abbrev=False,
        add_help=False,
        argument_default=SUPPRESS,
    )
    parser.add_argument("function", metavar="FILE.py:STEP", help="the step, or MODULE:STEP; its file is imported")
    parser.add_argument(
        "--inputs",
        metavar="FILE.py:MAKE",
        required=True,
        help="make(call) returns the arguments of a call, numbered from 0: a tuple, or a dict of keyword arguments",
    )
    described = re.findall(r"^ {4}(\w+): (.+?)(?=^ {4}\w|^$|\Z)", getdoc(AuditOptions) or "", re.MULTILINE | re.DOTALL)
    texts = {name: re.sub(r"\s+", " ", text).strip().replace("%", "%%") for name, text in described}
    for each in fields(AuditOptions):
        if how := _describe_option(each.type):
            has_default = type(each.default) in (int, float, str) and each.default != ""
            text = texts.get(each.name, "") + (f" [default: {each.default}]" if has_default else "")
            parser.add_argument(_name_option(each.name), dest=each.name, help=text, **how)
    for name, (_, text) in _FORMS.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write the report {text}; - for standard output")
    parser.add_argument("--github", action="store_true", help="print annotations; append to $GITHUB_STEP_SUMMARY")
    parser.add_argument("--quiet", "-q", action="store_true", help="print the line of the verdict alone")
    parser.add_argument("--help", "-h", action="store_true", help="print this text")
    return parser


def _name_option(field: str) -> str:
    """Return the option of a field. An option that may be repeated has the singular, such as `--rung` of `rungs`."""
    repeated = {each.name for each in fields(AuditOptions) if get_origin(each.type) in (Sequence, Mapping)}
    return f"--{(field.removesuffix('s') if field in repeated else field).replace('_', '-')}"


def _describe_option(hint: Any) -> dict[str, Any] | None:
    """Return how the parser reads a value of a type; None for types that only Python can give."""
    if get_origin(hint) is Sequence:
        return {"action": "append", "metavar": "NAME"}
    if get_origin(hint) is Mapping:
        return {"action": _KeepPair, "metavar": "KEY=VALUE"}
    kinds = hint, *get_args(hint)
    if bool in kinds:
        return {"action": BooleanOptionalAction}
    if Path in kinds:
        return {"metavar": "FILE"}
    kind = next((each for each in (int, float, str) if each in kinds), None)
    return {"type": kind, "metavar": {int: "NUMBER", float: "NUMBER", str: "NAME"}[kind]} if kind else None


def run_command(words: Sequence[str], program: str = "stepaudit") -> int:
    """Audit the step that the words name, print and write the report, and return the exit code. UserError for bad input."""
    parser, console = make_parser(program), _make_console(to_error=False)
    if {"--help", "-h"} & set(words):
        console.print(parser.format_help().rstrip(), soft_wrap=True)
        return 0
    given = vars(parser.parse_args(words))
    names = given.pop("function"), given.pop("inputs")
    files = {form: given.pop(form) for form in _FORMS if form in given}
    for form, file in files.items():
        _check_writable(file, f"--{form}")
    is_quiet, is_github = (given.pop(name, False) for name in ("quiet", "github"))
    errors = _make_console(to_error=True)
    try:
        with errors.status("") as status:
            announce = partial(_announce, errors, status, is_quiet)
            report = _audit_apart(names, given, announce)
    except UserError as error:
        field, space, value = error.where.partition(" ")
        options = {_name_option(each.name) for each in fields(AuditOptions)}
        option = f"--{field.replace('_', '-')}"
        where = f"{option}{space}{value}" if option in options else error.where
        raise UserError(error.message, where=where, fix=error.fix) from error
    # The files come first: whoever reads the text may close the pipe.
    for form, file in files.items():
        _write(_FORMS[form][0](report), file)
    # What goes to standard output as a file must not be mixed with text.
    shown = errors if "-" in files.values() else console
    for part in render.render_audit(report, is_brief=is_quiet):
        shown.print(part)
    if is_github:
        shown.file.write(render.render_annotations(report))
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            with open(summary, "a", encoding="utf-8") as file:
                file.write(render.render_markdown(report))
    return EXIT_CODES[report.verdict]


def _audit_apart(names: tuple[str, str], given: dict[str, Any], announce: Callable[[str], None]) -> AuditReport:
    """Audit a step, on a machine with a GPU in a process of its own: this one loads nothing of the step, nor uses CUDA."""

    def audit(announce: Callable[[Any], None]) -> AuditReport:
        function, make = load(names[0], "FILE.py:STEP"), load(names[1], "--inputs")
        return audit_step(function, make, **given, announce=announce)

    if not torch.cuda.is_available():
        return audit(announce)
    received = Received(announce)
    end = run_isolated(lambda send: send(audit(send)), received, seconds=_LONGEST, is_first=True)
    if not end:
        report: AuditReport = received.result
        return report
    if f"rung {EAGER.name}" in received.part or received.part == "starting":
        raise UserError(
            f"ends the process without the compiler: {end}", where=names[0], fix="audit a step that returns"
        )
    lost = ReportBuilder()
    line = end.rpartition(" at ")[2] if " at " in end else names[0]
    lost.find("values", f"the process ended: {end}, while {received.part}", line)
    return lost.build(names[0].rpartition(":")[2], describe_environment(), budget={}, is_conclusive=True)


def main() -> int:
    """Run the command line, and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = run_command(sys.argv[1:])
        sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return _BAD_INPUT
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except Exception:
        sys.stderr.write(make_lines_visible(traceback.format_exc()))
        sys.stderr.write("This is a bug in stepaudit: please report it with the lines above.\n")
        return _BUG
    return code


def load(name: str, where: str) -> Any:
    """Import `FILE.py:NAME` or `MODULE:NAME`, also from the current folder. UserError if that fails. This runs code."""
    module_name, _, path = name.rpartition(":")
    if not module_name or not path:
        raise UserError(f"expected FILE.py:NAME, found {name!r}", where=where, fix="give for example step.py:step")
    try:
        found: Any = _import(module_name)
    except FileNotFoundError as error:
        raise UserError(f"no such file {error.filename!r}", where=where, fix="check the path") from None
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{module_name!r} cannot be imported: {describe_error(error)}", where=where, fix="repair the module"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            fix = suggest(part, dir(found)) or "name a function of tensors"
            raise UserError(f"{module_name!r} has no {path!r}", where=where, fix=fix)
        found = getattr(found, part)
    return found


def _import(name: str) -> ModuleType:
    """Import a module, or a file, once, under its own name unless another module has it."""
    file = Path(name)
    if file.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        return import_module(name)
    path = str(file.resolve(strict=True))
    known = {getattr(each, "__file__", None): each for each in list(sys.modules.values())}
    if path in known:
        return known[path]
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(file.stem if file.stem not in sys.modules else path, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _make_console(*, to_error: bool) -> Console:
    console = Console(stderr=to_error, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _announce(console: Console, status: Any, is_quiet: bool, work: str) -> None:
    """Show the present work in a terminal, else as a line on standard error."""
    if console.is_terminal:
        status.update(make_visible(work))
    elif not is_quiet and "attempt" not in work:
        console.print(make_visible(work), soft_wrap=True)


def _check_writable(file: str, where: str) -> None:
    path = Path(file).absolute()
    if file != "-" and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise UserError(f"{file!r} cannot be written", where=where, fix="name a file in a folder that exists")


def _write(text: str, file: str) -> None:
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text, "utf-8")
