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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    r"builtins|cffi|clr|cpp_extension|ctypes|docker|grpc|httpx?|janus\w*|jpype|juliacall|lupa|matlab|oct2py|paramiko|pexpect"
    r"|py4j|pyswip|requests?|rpy2|runpy|sh|socket|subprocess|urllib3|websockets?|xmlrpc|zmq"
)
"""Modules that run other processes, other languages, or code that no import names."""
_LIBRARY: Final = re.compile(
    r"__future__|abc|array|base64|binascii|bisect|c?math|collections(\.abc)?|contextlib|contextvars|copy|copyreg|csv|dataclasses"
    r"|datetime|decimal|difflib|enum|fractions|functools|gc|graphlib|hashlib|heapq|hmac|importlib|io|itertools|json|keyword"
    r"|logging|numbers|operator|os(\.path)?|pathlib|pprint|queue|random|re|reprlib|statistics|string|struct|sys|textwrap"
    r"|threading|time|tomllib|traceback|types|typing|unicodedata|warnings|weakref|zlib"
)
"""The modules of the standard library that read nothing, or only by the calls below."""
_MEMBERS: Final = {
    "importlib": re.compile("import_module"),
    "io": re.compile("BytesIO|StringIO|open"),
    "os": re.compile("environ|fspath|getenv|linesep|path|sep|PathLike"),
    "pathlib": re.compile("(Pure)?(Posix)?Path"),
    "sys": re.compile(
        r"byteorder|exit|float_info|[gs]etrecursionlimit|getsizeof|hash_info|intern|maxsize|path|std(err|out)|version_info"
    ),
}
"""The members that may be used of modules that can also read inputs that no source names."""
_FOREIGN_CALLS: Final = re.compile(
    r"exec([lv]\w*|_module)?|eval|__import__|import_module|load_library|popen|system|(create_sub|posix_)?(process|spawn)\w*"
    r"|__(builtins|getattribute|globals|loader|spec|subclasses)__|attrgetter|methodcaller|getattr|globals|input|locals|setattr|vars|cwd|home|expand(user|vars)|connect"
    r"|argv|stdin|getcwdb?|from_pretrained|l?stat|get([acm]time|size)|is_dir|isdir|readlink|walk|urlopen"
)
_METHODS: Final = ("eval", "exec", "input", "system", "walk")
"""Names that are foreign as functions, and usual as methods of objects that are not modules."""
_READING: Final = re.compile(
    r"\w*(File|IO)|exists|is_?file|\w*(fromfile|fromtxt|listdir|scandir|iterdir|glob)|memmap|parse(_?file)?|scan_\w+"
    r"|from_file|(safe_)?open\w*|load(?!s$)\w*|read\w*"
)
_IN_MEMORY: Final = ("BytesIO", "StringIO")
_ENVIRONMENT: Final = ("environ", "environb", "getenv", "getenvb")
_PATHS: Final[dict[str, Callable[..., Any]]] = {
    "pathlib.Path": Path,
    **{f"os.path.{each.__name__}": each for each in (os.path.abspath, os.path.dirname, os.path.join, os.path.realpath)},
}
_PATH_METHODS: Final = ("absolute", "joinpath", "resolve", "with_name", "with_suffix")
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
        self._imports = [node for node in self._nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        self._calls = {id(node.func): node for node in self._nodes if isinstance(node, ast.Call)}
        self._imported = {
            alias.asname or alias.name.partition(".")[0]: f"{'.' * node.level}{node.module or ''}.{alias.name}"
            if isinstance(node, ast.ImportFrom)
            else alias.name
            if alias.asname
            else alias.name.partition(".")[0]
            for node in self._imports
            for alias in node.names
        }
        self._bound = _list_bindings(self._nodes)
        self._names = {self._name_of(node) for node in self._nodes}
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
        """Add the files and variables that it names; return why others are possible, empty if they are not."""
        for text in (each for each in self._texts if each and len(each) < 256 and "\0" not in each):
            for path, key in {Path(text).resolve(): f"./{text}", (self._path.parent / text).resolve(): text}.items():
                _add_file(path, key, code)
        reasons = (self._check_imports(), self._check_environment(code), self._check_calls(code))
        return next(filter(None, reasons), "")

    def _check_imports(self) -> str:
        """Return what it imports, or uses of an imported module, that may read what no source names."""
        for node in self._imports:
            for alias in node.names:
                module = (
                    (node.module or "" if not node.level else "") if isinstance(node, ast.ImportFrom) else alias.name
                )
                if foreign := sorted(filter(_FOREIGN.fullmatch, f"{module}.{alias.name}".split("."))):
                    return f"imports {foreign[0]}"
                is_library = module.partition(".")[0] in sys.stdlib_module_names
                if is_library and (not _LIBRARY.fullmatch(module) or alias.name == "*"):
                    return f"imports {module}"
                members = _MEMBERS.get(module) if isinstance(node, ast.ImportFrom) else None
                if members and not members.fullmatch(alias.name):
                    return f"imports {module}.{alias.name}"
        members_of = {id(node.value): node.attr for node in self._nodes if isinstance(node, ast.Attribute)}
        for each in self._nodes:
            if (origin := self._qualify(each)) is None:
                continue
            if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load) and not _is_installed(origin):
                return f"assigns to {origin}"
            # Modules are also members of those that import them: `random._os` is `os`.
            last = origin.rpartition(".")[2].lstrip("_")
            if _FOREIGN.fullmatch(last):
                return f"uses {origin}"
            if last in _MEMBERS and not _MEMBERS[last].fullmatch(member := members_of.get(id(each), "")):
                return f"uses {origin}.{member}".rstrip(".")
        return ""

    def _check_environment(self, code: Code) -> str:
        """Add the variables that it reads by names that are known without running it."""
        keys: dict[int, ast.AST] = {}
        for node in self._nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=read, attr="get" | "setdefault" | "pop"), args=[key, *_]):
                    keys[id(read)] = key
                case ast.Call(func=read, args=[key, *_]) if self._name_of(read) == "getenv":
                    keys[id(read)] = key
                case ast.Subscript(value=read, slice=key):
                    keys[id(read)] = key
                case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[read]):
                    keys[id(read)] = key
        for node in self._nodes:
            if self._name_of(node) in _ENVIRONMENT:
                name = self._resolve(keys.get(id(node)))
                if not isinstance(name, str):
                    return "reads a variable of the environment that its source does not name"
                if (value := os.environ.get(name)) is not None:
                    code[f"${name}"] = hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()
        return ""

    def _check_calls(self, code: Code) -> str:
        """Add the files that it reads by paths that are known without running it."""
        for node in self._nodes:
            name, call, origin = self._name_of(node), self._calls.get(id(node)), self._qualify(node)
            is_local = isinstance(node, ast.Name) and node.id in self._bound and node.id not in self._imported
            is_value = call is None and isinstance(node, ast.Attribute) and origin is None and not name.startswith("__")
            if not isinstance(getattr(node, "ctx", None), ast.Load) or is_local or is_value:
                continue
            is_method = isinstance(node, ast.Attribute) and origin is None and name in _METHODS
            is_method &= name != "walk" or "Path" not in self._names
            if _FOREIGN_CALLS.fullmatch(name) and not is_method and not (call and self._names_member(name, call)):
                return f"calls {name}"
            if _READING.fullmatch(name) and name not in _IN_MEMORY and not (call and self._reads_known(call, code)):
                return f"calls {name} on a file that its source does not name"
        return ""

    def _names_member(self, name: str, call: ast.Call) -> bool:
        """Return whether a call imports, or gets from an object, what its text names, and nothing that reads."""
        texts = [each.value if isinstance(each, ast.Constant) else None for each in call.args]
        if name in ("import_module", "__import__"):
            return isinstance(next(iter(texts), None), str)
        text = texts[1] if name == "getattr" and len(texts) > 1 else None
        reads = isinstance(text, str) and (_FOREIGN_CALLS.fullmatch(text) or _READING.fullmatch(text))
        return isinstance(text, str) and not reads and text not in _ENVIRONMENT

    def _reads_known(self, call: ast.Call, code: Code) -> bool:
        """Add the file that a call reads to an identity; return whether its path is known."""
        origin, is_method = self._qualify(call.func), isinstance(call.func, ast.Attribute)
        if is_method and origin is None:
            source, others = call.func.value, []  # type: ignore[attr-defined]
        elif call.args and (origin is None or _is_installed(origin)):
            source, *others = call.args
            others += [each.value for each in call.keywords if each.arg != "dtype"]
        else:
            return False
        if any(not isinstance(each, ast.Constant) and self._resolve(each) is None for each in others):
            return False
        name = self._name_of(call.func)
        if (name != "open" or is_method) and self._is_file(source):
            return True
        path = self._resolve(source)
        if not isinstance(path, Path) and (path is None or (is_method and origin is None)):
            return False
        key = os.path.relpath(path, self._path.parent)
        # A file that does not exist is known to be absent, if the call takes nothing but paths.
        is_path = isinstance(path, Path) or (name == "open" and not is_method)
        return _add_file(Path(path).resolve(), key, code) or (is_path and not Path(path).exists())

    def _is_file(self, node: ast.AST) -> bool:
        """Return whether an expression is an open file; the call that opened it is checked by itself."""
        if isinstance(node, ast.Name):
            values = self._bound.get(node.id, [None]) if node.id not in self._imported else [None]
            return all(isinstance(each, ast.Call) and self._is_file(each) for each in values)
        is_local = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._bound
        return isinstance(node, ast.Call) and not is_local and self._name_of(node.func) in ("File", "open", *_IN_MEMORY)

    def _resolve(self, node: ast.AST | None, depth: int = 16) -> str | Path | None:
        """Return the text or the path that an expression always has, None if that is not known."""
        if node is None or not depth:
            return None
        values: list[Any] = []
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id="__file__"):
                return str(getattr(sys.modules.get(self._name), "__file__", None) or self._path)
            case ast.Name(id=name) if name not in self._imported and len(self._bound.get(name, ())) == 1:
                return self._resolve(self._bound[name][0], depth - 1)
            case ast.Attribute(value=value, attr="parent"):
                path = self._resolve(value, depth - 1)
                return path.parent if isinstance(path, Path) else None
            case ast.BinOp(left=left, op=ast.Add() | ast.Div(), right=right):
                values = [self._resolve(each, depth - 1) for each in (left, right)]
                with suppress(TypeError):
                    result = values[0] + values[1] if isinstance(node.op, ast.Add) else values[0] / values[1]
                    return result if isinstance(result, str | Path) else None
            case ast.Call(func=function, args=[*given], keywords=[]):
                values = [self._resolve(each, depth - 1) for each in given]
                make: Any = _PATHS.get(self._qualify(function) or "")
                if isinstance(function, ast.Attribute) and function.attr in _PATH_METHODS:
                    base = self._resolve(function.value, depth - 1)
                    make = getattr(base, function.attr) if isinstance(base, Path) else None
                if make is not None and None not in values:
                    with suppress(TypeError, ValueError, OSError):
                        result = make(*values)
                        return result if isinstance(result, str | Path) else None
        return None

    def _name_of(self, node: ast.AST) -> str:
        """Return the last name of a name or an attribute, as it was before an import renamed it."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id).rpartition(".")[2]
        return node.attr if isinstance(node, ast.Attribute) else ""

    def _qualify(self, node: ast.AST) -> str | None:
        """Return the full name of what an expression takes from an imported module, None if it takes nothing."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        base = self._qualify(node.value) if isinstance(node, ast.Attribute) else None
        return f"{base}.{node.attr}" if isinstance(node, ast.Attribute) and base is not None else None


def _list_bindings(nodes: Sequence[ast.AST]) -> dict[str, list[ast.AST | None]]:
    """Return what is bound to each name of a module, in any scope but by imports: None where it is no expression."""
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
    """Add a file, if it is one, to an identity."""
    with suppress(OSError):
        if path.is_file():
            code[key] = hash_file(path)
            return True
    return False
