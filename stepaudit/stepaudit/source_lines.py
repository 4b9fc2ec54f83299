"""Lines of the user's source: in a stack or a text, and the lines that read a name or define a function."""

import dis
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch

_TORCH: Final = str(Path(torch.__file__).parent)
_AUDIT: Final = str(Path(__file__).parent)
_LIBRARY: Final = str(Path(inspect.__file__).parent)
_IN_TEXT: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_IN_COMMENT: Final = re.compile(r"#\s*(?P<file>[^\s#:]+\.py):(?P<line>\d+) in \w+")
_GENERATED: Final = re.compile(r"torchinductor|/c[a-z2-7]{51}\.py$")
"""Files of Inductor's caches."""
_DEEPEST: Final = 8


def is_user_file(filename: str) -> bool:
    """Return whether a file is the user's or in an installed package: not torch's, Python's or a generated one."""
    typed = filename.startswith(("<stdin>", "<string>", "<ipython"))
    generated = (filename.startswith("<") and not typed) or _GENERATED.search(filename) is not None
    librarys = filename.startswith(_LIBRARY) and "site-packages" not in filename
    return not (generated or librarys or filename.startswith((_TORCH, _AUDIT)) or "importlib" in filename)


def find_calling_line(frame: FrameType | None, function: Callable[..., Any] | None = None) -> str:
    """Return the innermost user line from which a frame was called; the definition of the function if there is no such line.

    The caller of the audit itself does not count.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            return f"{name}:{frame.f_lineno}"
        if name.startswith(_AUDIT) and frame.f_code.co_name == "make_call":
            break
        frame = frame.f_back
    return find_definition(function) if function is not None else ""


def find_stack_line(stack: Sequence[traceback.FrameSummary]) -> str:
    """Return the innermost user line of a stack, outermost first; empty if there is no such line."""
    for summary in reversed(stack):
        if is_user_file(summary.filename):
            return f"{summary.filename}:{summary.lineno}"
    return ""


def find_line_in_text(text: str, files: Iterable[str] = ()) -> str:
    """Return the innermost user line that a traceback, or else a comment, in a text names; empty if there is no such line.

    files: the files whose names a comment may abbreviate to their ends
    """
    found = [(m["file"], m["line"]) for m in _IN_TEXT.finditer(text) if is_user_file(m["file"])]
    if found:
        return f"{found[-1][0]}:{found[-1][1]}"
    for match in _IN_COMMENT.finditer(text):
        for file in files:
            if file.endswith(match["file"]) and is_user_file(file):
                return f"{file}:{match['line']}"
    return ""


def find_node_line(node: torch.fx.Node) -> str:
    """Return the user line of a node of a graph; empty if there is no such line."""
    return find_line_in_text(node.meta.get("stack_trace") or "")


def find_code(function: Callable[..., Any]) -> CodeType | None:
    """Return the code that a call of a function, a method, a partial, a module or a callable object runs."""
    for _ in range(_DEEPEST):
        if isinstance(function, torch.nn.Module):
            function = function.forward
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            return code
        inner = (getattr(function, name, None) for name in ("func", "__wrapped__", "__func__"))
        function = next(filter(None, inner), type(function).__call__)
    return None


def list_codes(code: CodeType) -> Iterator[tuple[CodeType, tuple[str, ...]]]:
    """Yield a code and all codes in it, each with the names of the globals and attributes that it uses."""
    yield code, code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from list_codes(constant)


def find_definition(function: Callable[..., Any]) -> str:
    """Return the line that defines a function; its name if it has no line."""
    code = find_code(function)
    if code is None:
        return getattr(function, "__name__", type(function).__name__)
    return f"{code.co_filename}:{code.co_firstlineno}"


def find_return(function: Callable[..., Any]) -> str:
    """Return the last line from which a function returns; its definition if there is no such line."""
    code = find_code(function)
    if code is None:
        return find_definition(function)
    returns = [each.positions for each in dis.get_instructions(code) if each.opname == "RETURN_VALUE"]
    lines = (positions.lineno for positions in reversed(returns) if positions is not None)
    return f"{code.co_filename}:{next(filter(None, lines), code.co_firstlineno)}"


def find_read(codes: Iterable[CodeType], name: str) -> str:
    """Return the first line of some codes that reads a variable, global or attribute of this name; empty if none does."""
    for code in codes:
        for instruction in dis.get_instructions(code):
            number = instruction.positions.lineno if instruction.positions else None
            is_read = instruction.opname.startswith("LOAD_") or instruction.opname == "IMPORT_FROM"
            read = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            if is_read and name in read and number and instruction.opname not in ("LOAD_CONST", "LOAD_CLOSURE"):
                return f"{code.co_filename}:{number}"
    return ""
