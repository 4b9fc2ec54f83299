"""A miscompilation as a short Python file that needs only torch.

The file is run twice before it is kept. The file contains the minimal graph, or else the source of a function with
everything that it needs.
"""

import ast
import enum
import functools
import inspect
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.fx.graph_module import _format_import_block
from torch.package.importer import ObjMismatchError, ObjNotFoundError, sys_importer

from stepaudit.audited_function import Keywords
from stepaudit.errors import first_line
from stepaudit.ladder.climb import WARM, Climb, Judge
from stepaudit.ladder.culprit import Item, describe_repair
from stepaudit.ladder.evidence import list_settings, render_repair
from stepaudit.ladder.minimal_graph import MinimalGraph, render_graph
from stepaudit.ladder.observation import Deviation
from stepaudit.options import GIVEN
from stepaudit.render import fill_template
from stepaudit.values import is_plain

SECONDS: Final = 300
"""The limit on the CPU time of a run of the file."""
_WALL: Final = 10
"""The limit on wall-clock time, as a multiple of the CPU time: a machine may be busy."""
MOST_WRITTEN: Final = 10_000
"""The largest number of elements of a tensor that is written as source; larger tensors go into a file beside it."""
_LOADING: Final = 'TENSORS = torch.load(__file__.removesuffix(".py") + ".pt", weights_only=True)\n'


class NotStandalone(Exception):
    """A function needs something that cannot be written as source. The message names it."""


class _Source(str):
    """The source of a value, which containers show verbatim."""

    __repr__ = str.__str__


class Bundle:
    """A Python module: definitions in the order in which they are needed.

    name: the function in the module; arguments: an expression in the module; tensors: tensors to save beside it
    """

    def __init__(self) -> None:
        self.name = self.arguments = ""
        self.tensors: list[Tensor] = []
        self._imports: set[str] = {"import torch"}
        self._definitions: list[str] = []
        self._names: dict[str, Any] = {}

    @property
    def source(self) -> str:
        """The source of the module."""
        loading = [_LOADING] if self.tensors else []
        return "\n".join((*sorted(self._imports), "", *loading, *self._definitions))

    def hold(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> "Bundle":
        """Put a function into the module, with arguments for it.

        Functions, classes and plain constants of any module are copied; installed ones are imported. NotStandalone if
        that is impossible.
        """
        self.name = self._write(function)
        if arguments and isinstance(arguments[-1], Keywords):
            self._definitions.append(f"def call(*given):\n    return {self.name}(*given[:-1], **given[-1])\n")
            self.name = "call"
        self.arguments = self._write(arguments)
        return self

    def hold_graph(self, minimal: MinimalGraph) -> "Bundle":
        """Put a graph into the module, as a function of its inputs."""
        graph = minimal.graph
        held = [*graph.named_parameters(), *graph.named_buffers(), *graph.named_children()]
        if held:
            raise NotStandalone(f"the graph holds {held[0][0]}")
        body, needed = render_graph(graph, "graph")
        try:
            imports = _format_import_block(needed, sys_importer).splitlines()
        except (ObjNotFoundError, ObjMismatchError) as error:
            why = first_line(str(error))
            raise NotStandalone(f"the graph needs something that cannot be imported: {why}") from None
        self._imports.update(each for each in imports if re.search(rf"\b{re.split(r'[ .]', each)[-1]}\b", body))
        self._definitions.append(body)
        self.name, self.arguments = "graph", self._write(minimal.arguments)
        return self

    def _write(self, value: Any) -> str:
        """Return an expression for a value, after the definitions that it needs. NotStandalone for other values."""
        kind: Any = type(value)
        if is_plain(value) and kind.__module__ == "builtins":
            text = repr(value)
            return f"float({text!r})" if text in ("inf", "-inf", "nan") else text
        if isinstance(value, (torch.dtype, torch.device)):
            return f"torch.{value!r}" if isinstance(value, torch.device) else repr(value)
        if isinstance(value, Tensor):
            return self._write_tensor(value)
        if isinstance(value, enum.Enum):
            return f"{self._write(kind)}.{value.name}"
        if isinstance(value, functools.partial):
            self._imports.add("import functools")
            given = [*map(self._write, (value.func, *value.args))]
            given += [f"{key}={self._write(each)}" for key, each in value.keywords.items()]
            return f"functools.partial({', '.join(given)})"
        names = getattr(kind, "_fields" if isinstance(value, tuple) else "__dataclass_fields__", None)
        if names is not None and not isinstance(value, type):
            fields = (f"{name}={self._write(getattr(value, name))}" for name in names)
            return f"{self._write(kind)}({', '.join(fields)})"
        for plain in (list, tuple, set, frozenset):
            if isinstance(value, plain):
                return repr(plain(_Source(self._write(each)) for each in value))
        if isinstance(value, dict):
            return repr({_Source(self._write(key)): _Source(self._write(each)) for key, each in value.items()})
        if isinstance(value, types.ModuleType) or (callable(value) and hasattr(value, "__name__")):
            return self._define(value)
        raise NotStandalone(f"a {kind.__module__}.{kind.__name__} cannot be written as source")

    def _write_tensor(self, tensor: Tensor) -> str:
        kind = type(tensor)
        own = "" if kind is Tensor or _is_installed(kind) else f".as_subclass({self._write(kind)})"
        if tensor.numel() > MOST_WRITTEN:
            self.tensors.append(tensor)
            return f"TENSORS[{len(self.tensors) - 1}]{own}"
        device = "" if tensor.device.type == "cpu" else f", device={tensor.device.type!r}"
        held = tensor.detach().as_subclass(Tensor)
        text = _write_values(held, device)
        if not held.is_contiguous():
            text = (
                f"torch.empty_strided({tuple(held.shape)}, {held.stride()}, dtype={held.dtype!r}{device}).copy_({text})"
            )
        return f"{text}{'.requires_grad_()' if tensor.requires_grad else ''}{own}"

    def _define(self, value: Any) -> str:
        """Import a module or what is installed, or define a user's function or class. Return its name."""
        wrapped = _find_wrapped(value)
        if wrapped is None and _is_installed(value):
            return self._import(value)
        kept = wrapped or value
        if isinstance(kept, types.ModuleType):
            raise NotStandalone(f"module {kept.__name__} is used as a whole: import names from it instead")
        if not self._claim(kept.__name__, value):
            return kept.__name__
        found = _parse(kept)
        if isinstance(found, ast.ClassDef):
            scope = vars(sys.modules[kept.__module__])
        else:
            scope = {**kept.__globals__, **inspect.getclosurevars(kept).nonlocals}
            # Annotations are not needed, and would require imports. Decorators that wrap nothing have done their work,
            # such as registering the function.
            found.returns = None
            found.decorator_list = [] if wrapped is None else found.decorator_list
            for node in ast.walk(found):
                if isinstance(node, ast.arg):
                    node.annotation = None
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    node.annotation = ast.Constant("")
        loaded = {node.id for node in ast.walk(found) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        for name in sorted(loaded & scope.keys()):
            text = self._write(scope[name])
            if text != name and self._claim(name, scope[name]):
                self._definitions.append(f"{name} = {text}\n")
        self._definitions.append(ast.unparse(found) + "\n")
        return found.name

    def _import(self, value: Any) -> str:
        is_module = isinstance(value, types.ModuleType)
        module, name = (value.__name__, "") if is_module else (value.__module__, f".{value.__qualname__}")
        if name and getattr(sys.modules[module], name[1:], None) is not value:
            raise NotStandalone(f"{module}{name} cannot be imported")
        self._imports.add(f"import {module}")
        return f"{module}{name}"

    def _claim(self, name: str, value: Any) -> bool:
        """Let a name stand for a value. Return whether it did not before; NotStandalone if it stands for another value."""
        is_new = name not in self._names
        if self._names.setdefault(name, value) is not value:
            raise NotStandalone(f"two things are called {name}")
        return is_new


_Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _parse(value: Any) -> _Definition:
    """Return the definition of a function or a class, without docstrings."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError) as error:
        raise NotStandalone(f"the source of {getattr(value, '__qualname__', value)} cannot be read: {error}") from None
    found = [node for node in ast.walk(tree) if isinstance(node, _Definition)]
    if not found or value.__name__ == "<lambda>":
        raise NotStandalone(f"{value.__qualname__} has no source (a lambda?): make it a function with a name")
    for node in found:
        if ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    found[0].name = value.__name__
    return found[0]


def _find_wrapped(function: Any) -> types.FunctionType | None:
    """Return the user's function that a decorator has wrapped; None for anything else."""
    if not isinstance(function, types.FunctionType):
        return None
    cells = (cell.cell_contents for cell in function.__closure__ or () if _is_installed(function))
    for held in (getattr(function, "__wrapped__", None), *cells):
        if isinstance(held, types.FunctionType) and not _is_installed(held):
            return held
    return None


def _is_installed(value: Any) -> bool:
    """Return whether a value comes with Python or an installed package."""
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(getattr(value, "__module__", ""))
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ in sys.builtin_module_names
    folders = {sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")}
    path = Path(file).resolve()
    return any(path.is_relative_to(Path(folder).resolve()) for folder in folders)


def _write_values(held: Tensor, device: str) -> str:
    shape = f".reshape({tuple(held.shape)})" if held.dim() != 1 else ""
    if held.numel() > 1 and not held.is_complex() and held.dtype != torch.bool:
        counted = torch.arange(held.numel()).to(held.dtype).reshape(held.shape)
        if torch.equal(held.cpu(), counted):
            kind = "" if held.dtype == torch.int64 else f", dtype={held.dtype!r}"
            return f"torch.arange({held.numel()}{kind}{device}){shape}"
    for name, value in (("ones", 1), ("zeros", 0)):
        if held.numel() > 1 and bool((held == value).all()):
            return f"torch.{name}({tuple(held.shape)}, dtype={held.dtype!r}{device})"
    text = repr(held.tolist()).replace("inf", "float('inf')").replace("nan", "float('nan')")
    return f"torch.tensor({text}, dtype={held.dtype!r}{device})"


def write_reproducer(
    judge: Judge,
    climb: Climb,
    path: Path,
    *,
    minimal: MinimalGraph | None = None,
    items: Sequence[Item] = (),
) -> tuple[str, bool]:
    """Write a file that exits with code 1 while the rung still deviates, else with 0.

    It needs only torch. It contains the minimal graph, or else the function's source with everything that it needs. If
    some run of the file does not show the deviation, the file is removed. items: what the repaired file omits

    Returns:
        The reason why there is no file, or an empty text; and whether the file is right with the argument `repaired`.
    """
    subject, deviation, options = judge.subject, climb.deviations[0], climb.rung.options or {}
    is_single = deviation.call.startswith("call ")
    number = int(deviation.call.split()[1]) - 1 if is_single else 0
    attempts: list[tuple[Callable[[], Bundle], Deviation, int]] = []
    if minimal is not None:
        attempts.append((lambda: Bundle().hold_graph(minimal), minimal.deviation, minimal.calls))
    held = subject.function, subject.inputs(number)
    attempts.append((lambda: Bundle().hold(*held), deviation, 1 if is_single else 3))
    obstacles = {
        "the step compiles parts of itself": climb.rung == GIVEN,
        "the backend is a function": callable(options.get("backend")),
        "it is wrong only when a graph is loaded from the caches": climb.caches == WARM,
    }
    why, repair = next((why for why, is_so in obstacles.items() if is_so), ""), render_repair(items)
    for make, shown, calls in () if why else attempts:
        try:
            bundled = make()
        except NotStandalone as error:
            why = str(error)
            continue
        render = partial(
            fill_template,
            "reproducer.py.j2",
            step=subject.name,
            rung=climb.rung.name,
            version=torch.__version__,
            shown=shown,
            right=describe_repair(items),
            source="\n".join(line for line in bundled.source.splitlines() if line.strip()),
            settings=list_settings(judge),
            arguments=bundled.arguments.removeprefix("(").removesuffix(")"),
            calls=calls,
            name=bundled.name,
            options=", ".join(f"{name}={value!r}" for name, value in options.items()),
        )
        path.write_text(render(repair=repair), "utf-8")
        if bundled.tensors:
            torch.save(bundled.tensors, path.with_suffix(".pt"))
        why, is_repaired = _run(path, *(["repaired"] if repair else []))
        if not why:
            if not is_repaired:
                path.write_text(render(repair=""), "utf-8")
            return "", is_repaired
    path.unlink(missing_ok=True)
    path.with_suffix(".pt").unlink(missing_ok=True)
    return why, False


_RUNS: Final = """import os, runpy, sys
import torch._inductor.compile_fx, torch._inductor.cpu_vec_isa
torch._inductor.cpu_vec_isa.pick_vec_isa()
os.environ.update(TORCHINDUCTOR_CACHE_DIR=sys.argv[2])
for word in sys.argv[4:]:
    child = os.fork() if hasattr(os, "fork") else 0
    if not child:
        if hasattr(os, "fork"):
            import resource
            resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), resource.RLIM_INFINITY))
        sys.argv[1:] = [sys.argv[1], word]
        runpy.run_path(sys.argv[1], run_name="__main__")
        sys.exit()
    print("ENDS IN", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def _run(path: Path, *words: str) -> tuple[str, bool]:
    """Run a file twice, and then with each of some words, in processes that import torch once.

    Return the reason why a run without a word shows no deviation, or an empty text; and whether a run with a word shows
    none. Torch's test of the processor stays in the user's folder of caches; the runs have their caches in an empty folder.
    """
    words = ("", "", *words)
    # One thread: torch would start a pool of processes to compile in.
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # -P: modules that lie beside the file must not replace torch's.
            done = subprocess.run(
                [sys.executable, "-P", "-c", _RUNS, str(path), folder, str(SECONDS), *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=2 * _WALL * SECONDS,
                check=False,
                env=environment,
            )
    except subprocess.TimeoutExpired:
        return f"the runs took more than {2 * _WALL * SECONDS} s", False
    said = re.split(r"ENDS IN (-?\d+)\n", done.stdout)
    runs = [*zip(said[::2], map(int, said[1::2]), words, strict=False)] or [(done.stdout, done.returncode, "")]
    for text, code, word in runs:
        if -code == getattr(signal, "SIGXCPU", None):
            return f"it ran for more than {SECONDS} s", False
        if not word and code >= 0 and (code != 1 or "DIFFERS" not in text):
            return f"it ends in exit code {code}: {text.strip()[-300:]}", False
    return "", any(word and code == 0 for _, code, word in runs)
