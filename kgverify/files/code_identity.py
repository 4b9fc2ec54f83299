"""The identity of code: everything that decides the conclusions of an engine, as names and digests.

Every conclusion that outlives its process is stored with such an identity, and reused for an equal one only: parts of an
evaluation, logs of campaigns, recordings to resume, the work of other machines, stored graphs. An engine of a third party is
identified by its module and by all modules and files that its source names, followed as far as they are not installed.
Code that starts other processes, or whose inputs its source does not name, cannot be identified, and is never reused.
"""

import ast
import hashlib
import os
import platform
import re
import shlex
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from kgverify.errors import UserError
from kgverify.version import IMPORTED_AT

Code: TypeAlias = dict[str, str]
"""Name to digest or version, such as `helper.py`, `numpy` and `$SEED`."""

UNIDENTIFIED: Final = "cannot be identified: "
"""The beginning of the value of a name whose content is not known."""
EDITED: Final = f"{UNIDENTIFIED}it was edited after it was imported"

_OWN: Final = ("kgverify", "kgreference")
_DEPENDENCIES: Final = ("h5py", "msgspec", "numpy", "safetensors", "torch", "triton", "xxhash")
_CACHES: Final = (".pyc", ".pyo")

_FOREIGN: Final = re.compile(
    r"cffi|clr|cpp_extension|ctypes|docker|grpc|httpx?|janus\w*|jpype|juliacall|lupa|matlab|oct2py|paramiko|pexpect|py4j"
    r"|pyswip|requests?|rpy2|runpy|sh|socket|subprocess|urllib3|websockets?|xmlrpc|zmq"
)
"""Modules that run other processes, other languages, or code that no import names."""
_FOREIGN_CALLS: Final = re.compile(
    r"exec([lv]\w*|_module)?|eval|__import__|import_module|popen|system|(create_sub|posix_)?(process|spawn)\w*"
)
_READING: Final = re.compile(
    r"File|\w*(fromfile|fromtxt|listdir|scandir|iterdir|glob)|memmap|(safe_)?open|load(?!s$)\w*|read\w*"
)
_loaded: Final[WeakKeyDictionary[ModuleType, str]] = WeakKeyDictionary()
"""The digests that the files of modules had when these were first identified."""


@cache
def identify_own_code() -> Code:
    """Return the identity of kgverify, its reference prover, its C++ sources and weights, and its dependencies."""
    code = {"python": f"{platform.python_implementation()} {platform.python_version()}{' -O' * sys.flags.optimize}"}
    digests: dict[str, Any] = {}
    for package in _OWN:
        spec = find_spec(package)
        root = Path(str(spec.origin)).parent if spec else Path()
        for path in sorted(each for each in root.rglob("*") if each.suffix not in _CACHES and each.is_file()):
            name = f"{package}/*{path.suffix}"
            digest = digests.setdefault(name, hashlib.sha256())
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + hash_file(path).encode())
            if path.stat().st_mtime >= IMPORTED_AT:
                code[name] = EDITED
    for name in _DEPENDENCIES:
        with suppress(PackageNotFoundError):
            code[name] = version(name)
    return {name: digest.hexdigest() for name, digest in digests.items()} | code


def digest_code(code: Mapping[str, str]) -> str:
    """Return the SHA-256 of an identity: 64 hexadecimal digits."""
    return hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.sha256).hexdigest()


def identify_engines(names: Sequence[str]) -> Code:
    """Return the identity of engines by the names that imported them, `MODULE:NAME` or `FILE.py:NAME`.

    Any other name stands for an engine that cannot be identified.
    """
    code: Code = {}
    for name in names:
        module, separator, _ = name.rpartition(":")
        path = Path(module).resolve()
        if separator and path.suffix == ".py" and path.is_file():
            _follow(path.stem, path, code)
        elif separator and (found := _find_module(module, Path.cwd())[0]) is not None:
            _follow(module, found, code)
        else:
            code[name] = f"{UNIDENTIFIED}it has no name by which it can be imported again"
    return code


def list_changes(there: Mapping[str, str], here: Mapping[str, str], *, changed_only: bool = False) -> dict[str, str]:
    """Describe what differs between two identities and, unless `changed_only`, what cannot be identified, by name."""
    changes = {}
    for name in dict.fromkeys((*there, *here)):
        old, new = there.get(name, "absent"), here.get(name, "absent")
        unidentified = next((each for each in (new, old) if each.startswith(UNIDENTIFIED)), None)
        if old == new and (changed_only or unidentified is None):
            continue
        if unidentified is not None:
            changes[name] = f"{name} {unidentified}"
        else:
            changes[name] = f"{name} changed: {_shorten(old)} there, {_shorten(new)} here"
    return changes


def refuse_changes(changes: Mapping[str, str], accepted: Collection[str], *, where: str, what: str, fix: str) -> None:
    """Raise a UserError that names the changes, unless all of them are accepted.

    what: the stored work, such as "parts"; fix: another way out than accepting
    """
    if left := {name: text for name, text in changes.items() if name not in accepted}:
        options = " ".join(f"--accept-changed {shlex.quote(name)}" for name in left)
        raise UserError(
            f"holds {what} that other code may have made: {'; '.join(left.values())}",
            where=where,
            fix=f"{fix}; or, if that does not affect the {what}: {options} (in Python: accept_changed)",
        )


def _shorten(value: str) -> str:
    return f"{value[:12]}…" if len(value) == 64 else value


def _file_of(module: object, ending: str = "") -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) and file.endswith(ending) else None


def _find_module(name: str, *folders: Path) -> tuple[Path | None, list[str]]:
    """Return the file of a module, which need not be loaded, if it has one; and the folders of its own modules."""
    module = sys.modules.get(name)
    if module is not None:
        return _file_of(module), [*getattr(module, "__path__", ())]
    parent = name.rpartition(".")[0]
    searched = _find_module(parent, *folders)[1] if parent else [*map(str, folders), *sys.path]
    spec = PathFinder.find_spec(name, searched)
    if spec is None:
        return None, []
    file = Path(spec.origin).resolve() if spec.has_location and spec.origin else None
    return file, [*(spec.submodule_search_locations or ())]


@cache
def _installed_folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders of installed packages, and those of the standard library."""
    paths = {name: os.path.realpath(path) + os.sep for name, path in sysconfig.get_paths().items()}
    packages = {paths["purelib"], paths["platlib"]}
    packages |= {each + os.sep for each in map(os.path.realpath, sys.path) if each.endswith("-packages")}
    return tuple(packages), (paths["stdlib"], paths["platstdlib"])


@cache
def _version_of(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    names = packages_distributions().get(package, ())
    return " ".join(f"{name} {version(name)}" for name in sorted({*names})) or None


def _follow(name: str, path: Path, code: Code) -> None:
    """Add a module and all that its source names to an identity."""
    waiting, seen, root = [(name, path)], set[Path](), path.parents[name.count(".")]
    while waiting:
        name, path = waiting.pop()
        if path in seen or name.partition(".")[0] in _OWN:
            continue
        seen.add(path)
        packages, library = _installed_folders()
        top = name.partition(".")[0]
        if str(path).startswith(packages):
            if (installed := _version_of(top)) is not None:
                code[top] = installed
                continue
        elif str(path).startswith(library):
            continue
        suffix = next((each for each in EXTENSION_SUFFIXES if path.name.endswith(each)), path.suffix)
        stem = f"{name}.__init__" if path.stem == "__init__" else name
        key = f"{stem.replace('.', '/')}{suffix}"
        digest = hash_file(path)
        loaded = [each for each in list(sys.modules.values()) if _file_of(each, path.name) == path]
        code[key] = digest if all(_loaded.setdefault(each, digest) == digest for each in loaded) else EDITED
        if path.suffix == ".py":
            with suppress(SyntaxError, ValueError):
                source = _Source(ast.parse(path.read_bytes()), name, path)
                if reason := source.add_inputs(code):
                    code.setdefault(f"{key} (inputs)", f"{UNIDENTIFIED}it {reason}")
                waiting += source.find_modules(root)


class _Source:
    """The syntax tree of a module that is not installed."""

    def __init__(self, tree: ast.AST, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._nodes = list(ast.walk(tree))
        self._imports = [node for node in self._nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        self._calls = [(_name_of(node.func), node) for node in self._nodes if isinstance(node, ast.Call)]
        self._names = {_name_of(node) for node in self._nodes}
        self._texts = {
            node.value for node in self._nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def find_modules(self, root: Path) -> Iterator[tuple[str, Path]]:
        """Yield the modules that it names and their files, with their packages. root: the folder of the engine."""
        package = self._name if self._path.stem == "__init__" else self._name.rpartition(".")[0]
        names = [self._name]
        if {"import_module", "__import__"} & self._names:
            names += [text for text in self._texts if text.replace(".", "_").isidentifier()]
        for node in self._imports:
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            else:
                base = node.module or ""
                with suppress(ImportError):
                    base = resolve_name("." * node.level + base, package) if node.level else base
                names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in dict.fromkeys(names):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                module = ".".join(parts[:length])
                with suppress(ImportError, ValueError):
                    if (found := _find_module(module, self._path.parent, root)[0]) is not None:
                        yield module, found

    def add_inputs(self, code: Code) -> str:
        """Add the files and variables that its texts name; return why others are possible, empty if they are not."""
        named = set()
        for text in (each for each in self._texts if each and len(each) < 256 and "\0" not in each):
            for path, key in {Path(text).resolve(): f"./{text}", (self._path.parent / text).resolve(): text}.items():
                with suppress(OSError):
                    if path.is_file():
                        code[key] = hash_file(path)
                        named.add(text)
            if {"environ", "getenv"} & self._names and text in os.environ:
                code[f"${text}"] = hashlib.sha256(os.environ[text].encode()).hexdigest()
        modules = {
            part
            for node in self._imports
            for alias in node.names
            for part in f"{getattr(node, 'module', '') or ''}.{alias.name}".split(".")
        }
        if foreign := sorted(filter(_FOREIGN.fullmatch, modules)):
            return f"imports {foreign[0]}"
        for name, call in self._calls:
            is_literal = bool(call.args) and isinstance(call.args[0], ast.Constant)
            may_be_method = name in ("eval", "exec") and not isinstance(call.func, ast.Name)
            if _FOREIGN_CALLS.fullmatch(name) and not may_be_method and not (is_literal and "import" in name):
                return f"calls {name}"
        for _ in range(2):
            for node in self._nodes:
                if isinstance(node, ast.Assign | ast.withitem):
                    value, targets = (
                        (node.value, node.targets)
                        if isinstance(node, ast.Assign)
                        else (node.context_expr, [node.optional_vars])
                    )
                    if _mentions(value, named):
                        named |= {_name_of(each) for each in targets if each is not None}
        unknown = [name for name, call in self._calls if _READING.fullmatch(name) and not _mentions(call, named)]
        return f"calls {unknown[0]} on a file that its source does not name" if unknown else ""


def _mentions(tree: ast.AST, names: Collection[str]) -> bool:
    """Return whether an expression holds one of these names or texts."""
    return any((node.value if isinstance(node, ast.Constant) else _name_of(node)) in names for node in ast.walk(tree))


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
