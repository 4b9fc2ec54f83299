"""Loading an engine, or another object, from a named module or file, and describing the exceptions that it raises."""

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final, NoReturn

from kgverify.engines.table import list_names
from kgverify.errors import UserError, cut_middle, describe_error, find_missing_dependency, suggest
from kgverify.files.code_identity import identify_engines
from kgverify.interrupts import is_interrupt

SIGNATURE: Final = "a class, or a function of (program, limits, policy), that makes an engine"
"""The signature that error messages show."""
MAX_FRAMES: Final = 4
MAX_DETAILS: Final = 24
"""The lines of an exception's message that an error quotes."""
_COMPILED_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
_PACKAGES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN_FILES: Final = f"{Path(__file__).parents[1]}{os.sep}"


def load_factory(name: str, where: str, signature: str = SIGNATURE) -> Any:
    """Import `MODULE:NAME`, also from the current folder, or `FILE.py:NAME`. UserError if it cannot be loaded.

    signature: what the object is, for error messages

    This runs code. If the name of the engine comes from a file, call `require_trust` first.
    """
    module_name, _, path = name.rpartition(":")
    is_file = module_name.endswith(".py") and ("/" in module_name or Path(module_name).is_file())
    if not path or not module_name or not (is_file or re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module_name)):
        names = list_names() if signature is SIGNATURE else ()
        raise UserError(
            f"kgverify cannot make the {'engine' if names else 'object'} {name!r}",
            where=where,
            fix=suggest(name, names) or f"give {', '.join((*names, 'MODULE:NAME'))} or FILE.py:NAME, {signature}",
        )
    try:
        with refuse_exit():
            module = _import_file(Path(module_name), where, signature) if is_file else _import_module(module_name)
        # The imported code is the code that is on disk now.
        identify_engines([name])
    except UserError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            if module_name.endswith(".py"):
                raise UserError(f"no such file {module_name!r}", where=where, fix="check the path") from None
            raise UserError(
                f"cannot import {module_name!r}: {error}",
                where=where,
                fix="run this where Python finds the module, or name its file: path/to/file.py:NAME",
            ) from None
        raise UserError(
            f"{module_name!r} cannot be imported: {describe_raised(error)}",
            where=where,
            fix="repair the module; importing it must neither raise an exception nor exit",
        ) from None
    return _find_attribute(module, path, module_name, where, signature)


def _find_attribute(module: Any, path: str, name: str, where: str, signature: str) -> Any:
    for part in path.split("."):
        known = dir(module)
        module = getattr(module, part, None)
        if module is None:
            raise UserError(f"{name!r} has no {path!r}", where=where, fix=suggest(part, known) or f"name {signature}")
    return module


@contextmanager
def refuse_exit() -> Iterator[None]:
    """Let `os._exit` raise SystemExit in this process until the context ends, since a test run would end without a failure."""
    end, own = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:
            end(status)
        raise SystemExit(status)

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = end


def _import_module(name: str) -> Any:
    here = str(Path.cwd())
    # The current folder may belong to a stranger, so it is searched only if it contains the module.
    is_here = PathFinder.find_spec(name.partition(".")[0], [here]) is not None
    with _searched_first(here) if is_here else nullcontext():
        return importlib.import_module(name)


@contextmanager
def _searched_first(folder: str) -> Iterator[None]:
    """Find modules in a folder before all others until the context ends, and after all others from then on.

    An engine may import other modules of its folder later, but they must not replace an installed module.
    """
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _import_file(path: Path, where: str, signature: str) -> Any:
    """Import a file under the name that other files in its folder use, unless another module has this name."""
    path = path.resolve()
    if not path.is_file():
        raise UserError(f"there is no file {path.name!r}", where=where, fix=f"give FILE.py:NAME, {signature}")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).name == path.name and Path(file).resolve() == path:
            return module
    name = path.stem
    if name in sys.modules or not name.isidentifier():
        name = re.sub(r"\W", "_", name) + "_" + hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _searched_first(str(path.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def describe_raised(error: BaseException) -> str:
    """Return the type and the message of an exception, and the file and the line that raised it."""
    if isinstance(error, SystemExit):
        text = f"it ended the process (SystemExit: {error.code})"
    else:
        text = describe_error(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} ({error.filename}:{error.lineno})"
    frames = _find_frames(error)
    return f"{text} ({show_path(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else text


def detail_raised(error: BaseException) -> list[str]:
    """Return the lines of the user's code that led to an exception, the innermost first, and the rest of its message."""
    rest = [line.rstrip() for line in str(error).strip().split("\n")[1:] if line.strip()]
    return [*list_raised(error), *cut_middle(rest, MAX_DETAILS)]


def list_raised(error: BaseException) -> list[str]:
    """Return the lines of the user's code that led to an exception, the innermost first."""
    frames = reversed(_find_frames(error)[-MAX_FRAMES:])
    return [f"from {show_path(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line or ''}" for frame in frames]


def show_path(file: str) -> str:
    """Return the path of a file, relative to the current folder if it is inside."""
    with suppress(OSError):
        if Path(file).is_relative_to(Path.cwd()):
            return os.path.relpath(file)
    return file


def _find_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an exception in the user's code, the innermost last; without such frames, those in packages."""
    every = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(("<", _OWN_FILES))
    ]
    # torch names the line that it compiled in the message, not in the traceback.
    for path, number, name in _COMPILED_FRAME.findall(str(error).partition("from user code")[2]):
        every.append(traceback.FrameSummary(path, int(number), name))
    return [frame for frame in every if not frame.filename.startswith(_PACKAGES)] or every


def pass_on(error: BaseException) -> None:
    """Raise an exception again that the engine did not cause: a Ctrl-C, or a package that cannot be imported."""
    if is_interrupt(error):
        raise error
    if missing := find_missing_dependency(error):
        raise missing from error
