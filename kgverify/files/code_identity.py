"""The identity of code: names and digests of everything that affects the results of an engine.

Every result that outlives its process is stored with such an identity and reused only if the identity is equal: parts of an
evaluation, logs of campaigns, recordings to resume, the work of other machines, and stored graphs. A third-party engine is
identified by its module and by all modules and files that its source names, recursively except for installed packages. Code
that starts other processes, or whose source does not name its inputs, cannot be identified, and its results are never reused.
"""

import ast
import hashlib
import os
import pathlib
import platform
import re
import shlex
import shutil
import stat
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from kgverify.errors import UserError
from kgverify.files.reading import open_descriptor
from kgverify.files.writing import write_file
from kgverify.version import IMPORTED_AT

Code: TypeAlias = dict[str, str]
"""The digest or version of each name, such as `helper.py`, `numpy` and `$SEED`."""

UNIDENTIFIED: Final = "cannot be identified: "
"""The beginning of the value for a name whose content is unknown."""
EDITED: Final = f"{UNIDENTIFIED}it was edited after it was imported"

_OWN: Final = ("kgverify", "kgreference")
_DEPENDENCIES: Final = ("h5py", "msgspec", "numpy", "safetensors", "torch", "triton", "xxhash")
_CACHES: Final = (".pyc", ".pyo")

_FOREIGN: Final = re.compile(
    r"builtins|cffi|clr|cpp_extension|ctypes|docker|grpc|httpx?|janus\w*|jpype|juliacall|lupa|matlab|oct2py|paramiko|pexpect"
    r"|py4j|pyswip|requests?|rpy2|runpy|sh|socket|subprocess|urllib3|websockets?|xmlrpc|zmq"
)
"""Modules that run other processes, other languages, or code that no import statement names."""
_LIBRARY: Final = re.compile(
    r"__future__|abc|array|base64|binascii|bisect|c?math|collections(\.abc)?|contextlib|contextvars|copy|copyreg|csv|dataclasses"
    r"|datetime|decimal|difflib|enum|fractions|functools|gc|graphlib|hashlib|heapq|hmac|importlib|io|itertools|json|keyword"
    r"|logging|numbers|operator|os(\.path)?|pathlib|pprint|queue|random|re|reprlib|statistics|string|struct|sys|textwrap"
    r"|threading|time|tomllib|traceback|types|typing|unicodedata|warnings|weakref|zlib"
)
"""The modules of the standard library that read nothing, or read only through the calls below."""
_MEMBERS: Final = {
    "importlib": re.compile("import_module"),
    "io": re.compile("BytesIO|StringIO|open"),
    "os": re.compile("environ|fspath|getenv|linesep|path|sep|PathLike"),
    "pathlib": re.compile("(Pure)?(Posix)?Path"),
    "sys": re.compile(
        r"byteorder|exit|float_info|[gs]etrecursionlimit|getsizeof|hash_info|intern|maxsize|path|std(err|out)|version_info"
    ),
}
"""The permitted members of modules that can also read inputs that the source does not name."""
_FOREIGN_CALLS: Final = re.compile(
    r"exec([lv]\w*|_module)?|eval|__import__|import_module|load_library|popen|system|(create_sub|posix_)?(process|spawn)\w*"
    r"|__(builtins|getattribute|globals|loader|spec|subclasses)__|attrgetter|methodcaller|getattr|globals|input|locals|setattr|vars|cwd|home|expand(user|vars)|connect"
    r"|argv|stdin|getcwdb?|from_pretrained|l?stat|get([acm]time|size)|is_dir|isdir|readlink|walk|urlopen"
)
_METHODS: Final = ("eval", "exec", "input", "system")
"""Names that are refused as functions, but are common as methods of objects that are not modules."""
_READING: Final = re.compile(
    r"\w*(File|IO)|exists|is_?file|\w*(fromfile|fromtxt|listdir|scandir|iterdir|glob)|memmap|parse(_?file)?|scan_\w+"
    r"|from_file|(safe_)?open\w*|load(?!s$)\w*|read\w*"
)
_IN_MEMORY: Final = ("BytesIO", "StringIO")
_ENVIRONMENT: Final = re.compile("environb?|getenvb?")
_OF_PATHS: Final = re.compile(
    "Path|path|abspath|dirname|join|realpath|parent|absolute|joinpath|resolve|with_name|with_suffix"
)
"""The attributes in expressions whose value is known without running an engine."""
_PATH_MODULES: Final = {"os": os, "os.path": os.path, "pathlib": pathlib, "pathlib.Path": Path} | {
    f"os.path.{each.__name__}": each for each in (os.path.abspath, os.path.dirname, os.path.join, os.path.realpath)
}
"""The modules and functions that an expression with a known value may use."""
_loaded: Final[WeakKeyDictionary[ModuleType, str]] = WeakKeyDictionary()
"""The digests of the files of modules at the time when each module was first identified."""


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
    """Return the identity of engines, given by the names that imported them: `MODULE:NAME` or `FILE.py:NAME`.

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
    """Describe, by name, what differs between two identities and, unless `changed_only`, what cannot be identified."""
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

    what: the stored work, such as "parts"; fix: an alternative to accepting the changes
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
    """Return the file of a module, if it has one, and the folders of its submodules. The module need not be loaded."""
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
    """Return the folders of installed packages, and the folders of the standard library."""
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
    """Add a module, and everything that its source names, to an identity."""
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
        if (seed := os.environ.get("PYTHONHASHSEED")) is not None:
            code["$PYTHONHASHSEED"] = seed
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
        self._parents = {id(child): node for node in self._nodes for child in ast.iter_child_nodes(node)}
        self._modules: list[str] = []
        """The modules that the source imports, by full name."""
        self._imported: dict[str, str] = {}
        """The full name of each name that the source imports; a relative import keeps its dots."""
        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._modules.append(alias.name)
                    top = alias.name.partition(".")[0]
                    self._imported[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                self._modules.append(base)
                prefix = f"{base}." if node.module else base
                self._imported |= {alias.asname or alias.name: prefix + alias.name for alias in node.names}
        self._bound = _list_bindings(self._nodes)
        self._texts = {
            node.value for node in self._nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def find_modules(self, root: Path) -> Iterator[tuple[str, Path]]:
        """Yield the modules that the source names, with their packages, and their files. root: the folder of the engine."""
        package = self._name if self._path.stem == "__init__" else self._name.rpartition(".")[0]
        names = [self._name]
        if any(self._name_of(node) in ("import_module", "__import__") for node in self._nodes):
            names += [text for text in self._texts if text.replace(".", "_").isidentifier()]
        for name in (*self._modules, *self._imported.values()):
            try:
                names.append(resolve_name(name, package))
            except ImportError:
                names.append(name.lstrip("."))
        for name in dict.fromkeys(names):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                module = ".".join(parts[:length])
                with suppress(ImportError, ValueError):
                    if (found := _find_module(module, self._path.parent, root)[0]) is not None:
                        yield module, found

    def add_inputs(self, code: Code) -> str:
        """Add the files and variables that the source names. Return why it may read others; empty if it cannot."""
        for text in (each for each in self._texts if each and len(each) < 256 and "\0" not in each):
            for path, key in {Path(text).resolve(): f"./{text}", (self._path.parent / text).resolve(): text}.items():
                _add_file(path, key, code)
        return self._check_origins() or next(filter(None, (self._check_use(node, code) for node in self._nodes)), "")

    def _check_origins(self) -> str:
        """Return an import, or a use of a module, that may read something that the source does not name."""
        for module in self._modules:
            is_whole = f"{module}.*" in self._imported.values()
            if module.partition(".")[0] in sys.stdlib_module_names and (is_whole or not _LIBRARY.fullmatch(module)):
                return f"imports {module}"
        named = [each for each in self._modules if not each.startswith(".")] + [*self._imported.values()]
        uses: list[tuple[str, str, str]] = [(each, *each.rpartition(".")[::2]) for each in named]
        for node in self._nodes:
            if (origin := self._qualify(node)) is not None:
                if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and not _is_installed(origin):
                    return f"assigns to {origin}"
                parent = self._parents[id(node)]
                # A module is also a member of the modules that import it: `random._os` is `os`.
                module = origin.rpartition(".")[2].lstrip("_")
                uses.append((origin, module, parent.attr if isinstance(parent, ast.Attribute) else ""))
        for origin, module, member in uses:
            # A relative import names a module of the engine itself.
            parts = [each.lstrip("_") for each in origin.split(".")][-1 if origin.startswith(".") else 0 :]
            if any(map(_FOREIGN.fullmatch, parts)) or (module in _MEMBERS and not _MEMBERS[module].fullmatch(member)):
                return f"uses {origin}.{member}".rstrip(".")
        return ""

    def _check_use(self, node: ast.AST, code: Code) -> str:
        """Add the variable or file that a node reads, if its name is known without running code; else return the problem."""
        name, origin, parent = self._name_of(node), self._qualify(node), self._parents.get(id(node))
        call = parent if isinstance(parent, ast.Call) and parent.func is node else None
        is_local = isinstance(node, ast.Name) and node.id in self._bound and node.id not in self._imported
        is_method = isinstance(node, ast.Attribute) and origin is None
        if not isinstance(getattr(node, "ctx", None), ast.Load) or is_local:
            return ""
        if _ENVIRONMENT.fullmatch(name):
            return self._add_variable(node, code)
        if is_method and (name in _METHODS or (call is None and not name.startswith("__"))):
            return ""
        if _FOREIGN_CALLS.fullmatch(name) and not (call and _names_member(name, call)):
            return f"calls {name}"
        if _READING.fullmatch(name) and name not in _IN_MEMORY and not (call and self._reads_known(call, code)):
            return f"calls {name} on a file that its source does not name"
        return ""

    def _add_variable(self, node: ast.AST, code: Code) -> str:
        """Add the environment variable that a node reads to an identity, if the name of the variable is known."""
        reader = parent if isinstance(parent := self._parents[id(node)], ast.Attribute) else node
        match self._parents[id(reader)]:
            case (
                ast.Call(func=used, args=[key, *_])
                | ast.Subscript(value=used, slice=key)
                | ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[used])
            ):
                name = self._evaluate(key)
                if used is reader and isinstance(name, str):
                    if (value := os.environ.get(name)) is not None:
                        code[f"${name}"] = hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()
                    return ""
        return "reads a variable of the environment that its source does not name"

    def _reads_known(self, call: ast.Call, code: Code) -> bool:
        """Add the file that a call reads to an identity; return whether its path is known."""
        origin, name, sources = self._qualify(call.func), self._name_of(call.func), list[ast.expr]()
        is_method = isinstance(call.func, ast.Attribute) and origin is None
        if is_method:
            sources = [call.func.value]  # type: ignore[attr-defined]
        elif call.args and (origin is None or _is_installed(origin)):
            sources = [*call.args, *(each.value for each in call.keywords if each.arg != "dtype")]
        if not sources or any(not isinstance(e, ast.Constant) and self._evaluate(e) is None for e in sources[1:]):
            return False
        if (name != "open" or isinstance(call.func, ast.Attribute)) and self._is_file(sources[0]):
            return True
        path = self._evaluate(sources[0])
        if not isinstance(path, Path if is_method else (str, Path)):
            return False
        if _add_file(Path(path).resolve(), os.path.relpath(path, self._path.parent), code):
            return True
        # If the call takes only paths, a file that does not exist is known to be absent.
        return self._takes_paths(call, path) and not Path(path).exists()

    def _takes_paths(self, call: ast.Call, path: str | Path) -> bool:
        return isinstance(path, Path) or (isinstance(call.func, ast.Name) and self._name_of(call.func) == "open")

    def _is_file(self, node: ast.AST | None) -> bool:
        """Return whether an expression is an open file. The call that opened it is checked separately."""
        if isinstance(node, ast.Name):
            values = self._bound.get(node.id, [None]) if node.id not in self._imported else [None]
            return all(isinstance(each, ast.Call) and self._is_file(each) for each in values)
        is_local = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._bound
        return isinstance(node, ast.Call) and not is_local and self._name_of(node.func) in ("File", "open", *_IN_MEMORY)

    def _evaluate(self, node: ast.AST | None, depth: int = 16) -> str | Path | None:
        """Return the constant text or path of an expression; None if it is unknown."""
        known: dict[str, object] = {}
        for each in () if node is None else ast.walk(node):
            match each:
                case ast.Name(id="__file__"):
                    known["__file__"] = str(getattr(sys.modules.get(self._name), "__file__", None) or self._path)
                case ast.Name(id=name) if self._imported.get(name) in _PATH_MODULES:
                    known[name] = _PATH_MODULES[self._imported[name]]
                case ast.Name(id=name) if name not in self._imported and len(self._bound.get(name, ())) == 1 and depth:
                    known[name] = self._evaluate(self._bound[name][0], depth - 1)
                case ast.Constant(value=str()) | ast.BinOp(op=ast.Add() | ast.Div()) | ast.Call(keywords=[]):
                    pass
                case ast.Attribute(attr=attr) if _OF_PATHS.fullmatch(attr):
                    pass
                case ast.expr():
                    return None
        if node is not None and None not in known.values():
            with suppress(AttributeError, OSError, TypeError, ValueError):
                value = eval(compile(ast.Expression(cast(ast.expr, node)), "", "eval"), {"__builtins__": {}, **known})
                return value if isinstance(value, str | Path) else None
        return None

    def _name_of(self, node: ast.AST) -> str:
        """Return the last component of a name or an attribute, as it was before an import renamed it."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id).rpartition(".")[2]
        return node.attr if isinstance(node, ast.Attribute) else ""

    def _qualify(self, node: ast.AST) -> str | None:
        """Return the full name of the member of an imported module that an expression uses; None if it uses none."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        base = self._qualify(node.value) if isinstance(node, ast.Attribute) else None
        return f"{base}.{node.attr}" if isinstance(node, ast.Attribute) and base is not None else None


def _names_member(name: str, call: ast.Call) -> bool:
    """Return whether a call imports a module, or gets an attribute, that is named by a text and reads nothing."""
    match call.args:
        case [ast.Constant(value=str()), *_] if name in ("import_module", "__import__"):
            return True
        case [_, ast.Constant(value=str(text)), *_] if name == "getattr":
            return not any(each.fullmatch(text) for each in (_FOREIGN_CALLS, _READING, _ENVIRONMENT))
    return False


def _list_bindings(nodes: Sequence[ast.AST]) -> dict[str, list[ast.AST | None]]:
    """Return what is bound to each name of a module, in any scope, except by imports; None for anything but an expression."""
    values: dict[int, ast.AST | None] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            values |= {id(target): node.value for target in node.targets}
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            values[id(node.target)] = node.value
        elif isinstance(node, ast.withitem):
            values[id(node.optional_vars)] = node.context_expr
    bound: dict[str, list[ast.AST | None]] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.setdefault(node.id, []).append(values.get(id(node)))
        elif not isinstance(node, ast.alias | ast.keyword):
            for name in (getattr(node, each, None) for each in ("arg", "name", "rest")):
                if isinstance(name, str):
                    bound.setdefault(name, []).append(None)
    return bound


def _is_installed(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top in _OWN or (bool(top) and _version_of(top) is not None)


def _add_file(path: Path, key: str, code: Code) -> bool:
    """Add a file to an identity, if the path is a file."""
    with suppress(OSError):
        if path.is_file():
            code[key] = hash_file(path)
            return True
    return False


COMPILERS: Final = ("g++", "clang++", "c++")


def find_compiler() -> str | None:
    """Return the path of a C++ compiler; None without one."""
    found = _search(os.environ.get("PATH"))
    if found is None:
        # A compiler may be installed while this process runs.
        _search.cache_clear()
    return found


@lru_cache(maxsize=4)
def _search(folders: str | None) -> str | None:
    """Search for the compilers, once for each value of PATH."""
    return next((found for name in COMPILERS if (found := shutil.which(name, path=folders))), None)


def identify_compilers() -> Code:
    """Return the digests of the compilers."""
    found = {"compiler": find_compiler(), "$CXX": shutil.which(os.environ.get("CXX", ""))}
    return {name: hash_file(Path(path)) for name, path in found.items() if path}


def read_driver() -> str:
    """Return the version text of NVIDIA's GPU driver; empty without a driver."""
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as file:
        return file.readline()
    return ""


CACHE: Final = "KGVERIFY_CACHE"
"""The environment variable for the cache folder; if it is empty, there is no cache."""
_SHARED: Final = stat.S_IWGRP | stat.S_IWOTH
"""The permissions of others to write to a file or folder."""


def find_cache() -> Path | None:
    """Return the cache folder, which need not exist; None if there is no cache."""
    named = os.environ.get(CACHE)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    with suppress(RuntimeError):
        return (Path(base) if base else Path.home() / ".cache") / "kgverify"
    return None


def is_private(path: Path) -> bool:
    """Return whether a path belongs to this user, and only this user and root can change it or a folder above it."""
    with suppress(OSError):
        path = path.resolve()
        above = [each.lstat() for each in path.parents]
        return _is_own(path.lstat()) and all(
            each.st_uid in (0, os.geteuid()) and (each.st_mode & stat.S_ISVTX or not each.st_mode & _SHARED)
            for each in above
        )
    return False


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, for this user only. OSError as for `os.mkdir`."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700)


def has_mark(path: Path | None) -> bool:
    """Return whether `keep_mark` left a file here. Nobody else can have created it."""
    return path is not None and path.is_file() and is_private(path)


def keep_mark(path: Path | None, text: str) -> None:
    """If possible, write a file that tells later processes what was done."""
    with suppress(OSError, UserError):
        if path is not None:
            make_private(path.parent)
            write_file(path, f"{text}\n")


@contextmanager
def open_private(path: Path, *, purpose: str, max_bytes: int | None = None) -> Iterator[int]:
    """Open a file in a cache once, and yield its descriptor. UserError unless only this user and root can change it."""
    with open_descriptor(path, purpose=purpose, max_bytes=max_bytes) as descriptor:
        if not (_is_own(os.fstat(descriptor)) and is_private(path.parent)):
            raise UserError(
                "belongs to others, or they can replace it",
                where=str(path),
                fix=f"let {CACHE} name a folder that only you can write, like all folders above it",
            )
        yield descriptor


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _SHARED
