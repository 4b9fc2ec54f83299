"""Lines of the user's source: of a stack, of a read of a name, of a function."""

import dis
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch

_TORCH: Final = str(Path(torch.__file__).parent)
_AUDIT: Final = str(Path(__file__).parent)
_IN_TEXT: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_IN_COMMENT: Final = re.compile(r"#\s*(?P<file>[^\s#:]+\.py):(?P<line>\d+) in \w+")


def is_users(filename: str) -> bool:
    """Whether a file is neither torch's nor of the audits themselves, nor made by the compiler."""
    typed = filename.startswith(("<stdin>", "<string>", "<ipython"))
    made = (filename.startswith("<") and not typed) or "torchinductor" in filename
    return not made and not filename.startswith((_TORCH, _AUDIT)) and "importlib" not in filename


def calling_line(frame: FrameType | None, function: Callable[..., Any] | None = None) -> str:
    """The innermost line of the user's among those that a frame was called from; what called the audit is none."""
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name) and not _is_library(name):
            return f"{name}:{frame.f_lineno}"
        if name.startswith(_AUDIT) and frame.f_code.co_name == "make_call":
            break
        frame = frame.f_back
    return definition_line(function) if function is not None else ""


def _is_library(filename: str) -> bool:
    """Of the standard library: what stands between a user's line and torch."""
    return filename.startswith(str(Path(inspect.__file__).parent)) and "site-packages" not in filename


def stack_line(stack: Sequence[traceback.FrameSummary]) -> str:
    """The innermost line of the user's in a stack, outermost first; empty if there is none."""
    for summary in reversed(stack):
        if is_users(summary.filename):
            return f"{summary.filename}:{summary.lineno}"
    return ""


def text_line(text: str, files: Iterable[str] = ()) -> str:
    """The innermost line of the user's that a traceback in a text names, or a comment with the end of a file's name.

    files: whose ends such comments may name. Empty if there is none.
    """
    found = [(m["file"], m["line"]) for m in _IN_TEXT.finditer(text) if is_users(m["file"])]
    if found:
        return f"{found[-1][0]}:{found[-1][1]}"
    for match in _IN_COMMENT.finditer(text):
        for file in files:
            if file.endswith(match["file"]) and is_users(file):
                return f"{file}:{match['line']}"
    return ""


def whole_path(line: str, files: Iterable[str]) -> str:
    """A line whose file is told by the end of its name alone, with the whole name, if one of these files or a module's fits."""
    ending, _, number = line.rpartition(":")
    if Path(ending).is_absolute():
        return line
    modules = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    for file in (*files, *modules):
        if file.endswith(ending):
            return f"{file}:{number}"
    return line


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """The code that a call runs: of a function, a method, a partial, a module or an object that can be called."""
    seen = 0
    while seen < 8:
        seen += 1
        if isinstance(function, torch.nn.Module):
            function = function.forward
        elif hasattr(function, "func") and not hasattr(function, "__code__"):
            function = function.func
        elif hasattr(function, "__wrapped__") and not hasattr(function, "__code__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            function = function.__func__
        elif hasattr(function, "__code__"):
            code = function.__code__
            return code if isinstance(code, CodeType) else None
        else:
            function = type(function).__call__
    return None


def definition_line(function: Callable[..., Any]) -> str:
    """Where a function is defined; its name if it has no line."""
    code = code_of(function)
    if code is None:
        return getattr(function, "__name__", type(function).__name__)
    return f"{code.co_filename}:{code.co_firstlineno}"


def return_line(function: Callable[..., Any]) -> str:
    """The last line from which a function returns something; its definition if it returns nothing."""
    code = code_of(function)
    if code is None:
        return definition_line(function)
    line, before = 0, None
    for instruction in dis.get_instructions(code):
        number = instruction.positions.lineno if instruction.positions else None
        if instruction.opname == "RETURN_VALUE" and before is not None and number:
            line = number
        before = instruction
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def reading_line(codes: Iterable[CodeType], name: str) -> str:
    """The first line that reads a variable, a global or an attribute of this name in some codes; empty if none does."""
    for code in codes:
        for instruction in dis.get_instructions(code):
            number = instruction.positions.lineno if instruction.positions else None
            is_read = instruction.opname.startswith("LOAD_") or instruction.opname == "IMPORT_FROM"
            read = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            if is_read and name in read and number and instruction.opname not in ("LOAD_CONST", "LOAD_CLOSURE"):
                return f"{code.co_filename}:{number}"
    return ""
