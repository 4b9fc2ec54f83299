"""A miscompilation as one short Python file that needs only torch, and is run twice before it is handed over."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch.fx.graph_module import _format_import_block
from torch.package.importer import ObjMismatchError, ObjNotFoundError, sys_importer

from stepaudit.audited_function import Subject
from stepaudit.errors import first_line
from stepaudit.ladder.climb import COLD, OFF, Climb
from stepaudit.ladder.culprit import Culprit
from stepaudit.ladder.minimal_graph import MinimalGraph
from stepaudit.ladder.observation import Deviation
from stepaudit.ladder.source_bundle import Bundle, NotStandalone
from stepaudit.render import fill_template
from stepaudit.source_lines import find_node_line

SECONDS: Final = 300
"""The most CPU time of a run of the file."""
_WALL: Final = 10
"""The most time on the clock, as a multiple of the CPU time: a machine may be busy."""


class Reproducer(NamedTuple):
    """The written file, or None where no file shows the deviation by itself; why: the reason."""

    path: Path | None
    why: str = ""


def write_reproducer(
    subject: Subject,
    climb: Climb,
    path: Path,
    *,
    minimal: MinimalGraph | None = None,
    culprit: Culprit | None = None,
) -> Reproducer:
    """Write a file that ends in exit code 1 while the rung still deviates, else 0. It needs only torch.

    It holds the minimal graph, or else the function's source with everything it needs. A file that does not
    show the deviation, each time it is run, is removed.
    """
    deviation = climb.deviations[0]
    number = int(deviation.call.split()[1]) - 1 if deviation.call.startswith("call ") else 0
    attempts: list[tuple[Callable[[], Bundle], Deviation, int]] = []
    if minimal is not None:
        attempts.append((partial(_bundle_graph, minimal), minimal.deviation, minimal.calls))
    calls = 1 if deviation.call.startswith("call ") else 3
    attempts.append((lambda: Bundle().hold(subject.function, subject.inputs(number)), deviation, calls))
    why = ""
    for make, shown, num_calls in attempts:
        try:
            bundled = make()
            text = _render(subject, climb, shown, culprit, bundled, num_calls)
        except NotStandalone as error:
            why = str(error)
            continue
        path.write_text(text, "utf-8")
        if bundled.tensors:
            torch.save(bundled.tensors, path.with_suffix(".pt"))
        why = _run(path)
        if not why:
            return Reproducer(path)
    path.unlink(missing_ok=True)
    path.with_suffix(".pt").unlink(missing_ok=True)
    return Reproducer(None, why)


_TWICE: Final = """import os, runpy, sys
import torch._inductor.compile_fx, torch._inductor.cpu_vec_isa
torch._inductor.cpu_vec_isa.pick_vec_isa()
os.environ.update(TORCHINDUCTOR_CACHE_DIR=sys.argv[2])
for _ in range(2):
    child = os.fork() if hasattr(os, "fork") else 0
    if not child:
        if hasattr(os, "fork"):
            import resource
            resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), resource.RLIM_INFINITY))
        runpy.run_path(sys.argv[1], run_name="__main__")
        sys.exit()
    print("ENDS IN", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def _run(path: Path) -> str:
    """Run a file twice, in processes that import torch once; return why it does not show a deviation, or nothing.

    Torch's trial of the processor stays in the user's folder of caches; the caches of the runs are in an empty one.
    """
    # One thread: torch would start a pool of processes to compile in.
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # -P: modules that lie beside the file must not replace torch's.
            done = subprocess.run(
                [sys.executable, "-P", "-c", _TWICE, str(path), folder, str(SECONDS)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=2 * _WALL * SECONDS,
                check=False,
                env=environment,
            )
    except subprocess.TimeoutExpired:
        return f"two runs took more than {2 * _WALL * SECONDS} s"
    said = re.split(r"ENDS IN (-?\d+)\n", done.stdout)
    runs = [*zip(said[::2], map(int, said[1::2]), strict=False)] or [(done.stdout, done.returncode)]
    for text, code in runs:
        if -code == getattr(signal, "SIGXCPU", None):
            return f"it ran for more than {SECONDS} s"
        if code >= 0 and (code != 1 or "DIFFERS" not in text):
            return f"it ends in exit code {code}: {text.strip()[-300:]}"
    return ""


def _bundle_graph(minimal: MinimalGraph) -> Bundle:
    """Bundle a graph as a function of its inputs, each line with the user's line from which it comes."""
    graph = minimal.graph
    held = [*graph.named_parameters(), *graph.named_buffers(), *graph.named_children()]
    if held:
        raise NotStandalone(f"the graph holds {held[0][0]}")
    for node in graph.graph.nodes:
        node.meta = {"line": find_node_line(node)}
    code = graph.graph.python_code("self")
    try:
        imports = _format_import_block(code.globals, sys_importer)
    except (ObjNotFoundError, ObjMismatchError) as error:
        raise NotStandalone(f"the graph needs something that cannot be imported: {first_line(str(error))}") from None
    body = _strip(code.src.replace("def forward(self, ", "def graph(").replace("def forward(self", "def graph("))
    needed = (
        each for each in imports.splitlines() if re.search(rf"\b{re.escape(re.split(r'[ .]', each)[-1])}\b", body)
    )
    return Bundle().hold_source(needed, body, "graph", minimal.arguments)


def _strip(body: str) -> str:
    lines = (line.partition(";  ")[0].rstrip() for line in body.strip().splitlines())
    return "\n".join(line for line in lines if line)


def _render(
    subject: Subject,
    climb: Climb,
    shown: Deviation,
    culprit: Culprit | None,
    bundled: Bundle,
    calls: int,
) -> str:
    about = [
        f"{subject.name}: right in eager, not on rung {climb.rung.name} (torch {torch.__version__}).",
        f"{shown.kind} {shown.where}: {shown.detail}",
    ]
    if culprit is not None and culprit.items:
        about.append("Right without " + " and ".join(map(str, culprit.items)) + ".")
    settings = ["torch._inductor.config.fallback_random = True"] if climb.is_seeded else []
    if climb.caches == OFF:
        settings += [
            "torch._inductor.config.fx_graph_cache = False",
            "torch._functorch.config.enable_autograd_cache = False",
        ]
    elif climb.caches != COLD:
        raise NotStandalone("it is wrong only when a graph is loaded from the caches")
    return fill_template(
        "reproducer.py.j2",
        about="\n".join(about).replace("\\", "\\\\").replace('"""', "'''"),
        source="\n".join(line for line in bundled.source.splitlines() if line.strip()),
        settings=settings,
        kind=shown.kind,
        arguments=bundled.arguments.removeprefix("(").removesuffix(")"),
        calls=calls,
        name=bundled.name,
        options=", ".join(f"{name}={value!r}" for name, value in (climb.rung.options or {}).items()),
    )
