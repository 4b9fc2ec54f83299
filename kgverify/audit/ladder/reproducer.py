"""A miscompilation as one Python file that needs only torch, and is run once to check it."""

import io
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx.graph_module import _format_import_block
from torch.package.importer import ObjMismatchError, ObjNotFoundError, sys_importer

from kgverify.audit.audited_function import Inputs, Subject
from kgverify.audit.ladder.climb import Climb, compile_plainly, isolating_compiler
from kgverify.audit.ladder.culprit import Culprit
from kgverify.audit.ladder.source_bundle import Bundle, NotStandalone, bundle, bundle_arguments
from kgverify.audit.values import copy_values
from kgverify.errors import first_line
from kgverify.files.writing import make_folders, write_file

MOST_WRITTEN: Final = 20_000
"""Most elements of arguments that are written into the file; more of them go into a file beside it."""

SECONDS: Final = 300


class Reproducer(NamedTuple):
    """The written file, or None; shows: whether it ended in exit code 1, as it must; why: the reason if not."""

    path: Path | None
    shows: bool
    why: str = ""


def write_reproducer(subject: Subject, climb: Climb, path: Path, culprit: Culprit | None = None) -> Reproducer:
    """Write a file that ends in exit code 1 while the rung still deviates, else 0, without kgverify.

    It holds the function's source with everything it needs; where there is no source, the graph that Dynamo traces, which
    cannot show a defect of the tracing.
    """
    # The first call that deviated, if its arguments were separate.
    call = climb.deviations[0].call
    number = int(call.split()[-1]) - 1 if call.startswith("call ") and "again" not in call else 0
    why = ""
    attempts: list[Callable[[], Bundle]] = [partial(bundle, subject.function, subject.inputs(number))]
    # A defect of the tracing does not show in the traced graph.
    if climb.rung.name != "backend-eager":
        attempts.append(partial(_bundle_graph, subject, number))
    for attempt in attempts:
        try:
            text = _render(subject, climb, culprit, attempt(), path)
        except NotStandalone as error:
            why = str(error)
            continue
        make_folders(path.parent)
        write_file(path, text)
        # -P: modules that lie beside the file must not replace torch's.
        command = [sys.executable, "-P", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode == 1 and "DIFFERS" in done.stdout:
            return Reproducer(path, True)
        why = f"it ends in exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}"
    return Reproducer(path if path.exists() else None, False, why)


def _trace(subject: Subject, inputs: Inputs) -> list[tuple[torch.fx.GraphModule, Inputs]]:
    """Return the graphs that Dynamo traces, each with copies of the arguments of its first run."""
    graphs: dict[int, tuple[torch.fx.GraphModule, Inputs]] = {}

    def keep(graph: torch.fx.GraphModule, _: list[Any]) -> Any:
        def run(*arguments: Any) -> Any:
            if id(graph) not in graphs:
                graphs[id(graph)] = graph, copy_values(arguments)
            return graph(*arguments)

        return run

    with isolating_compiler():
        try:
            compile_plainly(subject.function, {"backend": keep, "dynamic": False})(*inputs)
        except Exception:
            return []
    return list(graphs.values())


def _bundle_graph(subject: Subject, number: int) -> Bundle:
    """Bundle the graph as a function of its inputs."""
    graphs = _trace(subject, subject.inputs(number))
    if len(graphs) != 1:
        raise NotStandalone(f"Dynamo traces {len(graphs)} graphs")
    graph, arguments = graphs[0]
    held = [*graph.named_parameters(), *graph.named_buffers(), *graph.named_children()]
    if held:
        raise NotStandalone(f"the graph holds {held[0][0]}")
    code = graph.graph.python_code("self")
    try:
        imports = _format_import_block(code.globals, sys_importer)
    except (ObjNotFoundError, ObjMismatchError) as error:
        raise NotStandalone(f"the graph needs something that cannot be imported: {first_line(str(error))}") from None
    body = code.src.replace("def forward(self, ", "def graph(").replace("def forward(self", "def graph(")
    return Bundle(f"import torch\n{imports}\n\n{body.strip()}", "graph", *bundle_arguments(arguments))


_MAIN: Final = '''
def clone(arguments):
    return torch.utils._pytree.tree_map(lambda each: each.clone() if isinstance(each, torch.Tensor) else each, arguments)


def run(function):
    """Return the outputs and the changed arguments of three calls at the same addresses."""
    arguments, seen = clone(ARGUMENTS), []
    for _ in range(3):
        for own, first in zip(torch.utils._pytree.tree_leaves(arguments), torch.utils._pytree.tree_leaves(ARGUMENTS)):
            if isinstance(own, torch.Tensor):
                own.copy_(first)
        try:
            given = function(*arguments)
        except Exception as error:
            seen.append(type(error).__name__)
            continue
        seen.append(clone((given, arguments)))
    return torch.utils._pytree.tree_leaves(seen)


def is_same(first, second):
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return type(first) is type(second) and (first == second or first != first)
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.is_floating_point():
        try:
            torch.testing.assert_close(second, first, equal_nan=True)
        except AssertionError:
            return False
        return True
    return torch.equal(first, second)


expected, actual = run({name}), run(torch.compile({name}, **{options!r}))
differing = [i for i, (first, second) in enumerate(zip(expected, actual)) if not is_same(first, second)]
if differing or len(expected) != len(actual):
    at = differing[0] if differing else -1
    print("DIFFERS with", {options!r}, "on torch", torch.__version__)
    print("eager:   ", expected[at])
    print("compiled:", actual[at])
    raise SystemExit(1)
print("the same on torch", torch.__version__)
'''


def _render(subject: Subject, climb: Climb, culprit: Culprit | None, bundled: Bundle, path: Path) -> str:
    first = climb.deviations[0]
    about = [
        f"{subject.name}: right in eager, not on rung {climb.rung.name} (torch {torch.__version__}).",
        "",
        f"{first.call}: {first.kind} {first.where}: {first.detail}",
    ]
    if culprit is not None and culprit.items:
        about += ["", "Right again without " + " and ".join(map(str, culprit.items)) + "."]
    about += ["", "Exit code 1 while it differs, 0 when it no longer does."]
    docstring = "\n".join(about).replace("\\", "\\\\").replace('"""', "'''")
    tensors = _write_tensors(bundled.tensors, path)
    main = _MAIN.replace("{name}", bundled.name).replace("{options!r}", repr(climb.rung.options))
    return f'"""{docstring}\n"""\n\n{bundled.source}\n\n{tensors}\nARGUMENTS = {bundled.arguments}\n{main}'


def _write_tensors(tensors: list[Tensor], path: Path) -> str:
    if sum(tensor.numel() for tensor in tensors) <= MOST_WRITTEN:
        return "TENSORS = [\n" + "".join(f"    {_write(tensor)},\n" for tensor in tensors) + "]\n"
    make_folders(path.parent)
    content = io.BytesIO()
    torch.save(tensors, content)
    write_file(path.with_suffix(".pt"), content.getvalue())
    return 'TENSORS = torch.load(__file__.removesuffix(".py") + ".pt", weights_only=True)\n'


def _write(tensor: Tensor) -> str:
    device = "" if tensor.device.type == "cpu" else f", device={tensor.device.type!r}"
    text = f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype!r}{device})"
    text = text.replace("inf", "float('inf')").replace("nan", "float('nan')")
    if tensor.is_contiguous():
        return text
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return f"torch.empty_strided({shape}, {stride}, dtype={tensor.dtype!r}{device}).copy_({text})"
