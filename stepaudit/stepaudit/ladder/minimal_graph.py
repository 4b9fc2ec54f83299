"""The smallest graph that deviates on a rung, found by delta debugging over its nodes, and then over its data."""

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from stepaudit.audited_function import Inputs, Subject, seeding
from stepaudit.ladder.climb import Climb, Judge, compiling_without_caches, watch
from stepaudit.ladder.culprit import list_single
from stepaudit.ladder.observation import SIGNED_ZERO, Deviation
from stepaudit.minimize import Attempts, minimize
from stepaudit.options import Rung
from stepaudit.source_lines import find_node_line
from stepaudit.values import count_writes, deepcopy_values, find_storage, list_tensors


class MinimalGraph(NamedTuple):
    """A graph that deviates, and no longer deviates without any one of its nodes.

    arguments:   the inputs of the graph; calls: the number of calls until it deviates
    where:       the line of the operation that made, or last wrote, the deviating leaf
    kernels:     the sources of the kernels that Inductor generated for it, by their names
    is_complete: whether there was time to try everything
    """

    graph: GraphModule
    arguments: Inputs
    calls: int
    deviation: Deviation
    where: str
    kernels: dict[str, str]
    is_complete: bool


def find_minimal_graph(judge: Judge, climb: Climb) -> MinimalGraph | None:
    """Minimize a graph that Dynamo traces from the call that deviated; None if no graph deviates by itself.

    The caller chooses the folder of the caches.
    """
    attempts = judge.begin_search("minimize the graph")
    with compiling_without_caches():
        (traced,) = list_single(judge, climb) or [judge]
        for graph, arguments in trace_graphs(traced):
            for calls in (1, 2):
                search = _Search(judge, climb, calls, attempts)
                if search.deviates(graph, arguments):
                    return search.run(graph, arguments)
    return None


def trace_graphs(judge: Judge) -> Iterator[tuple[GraphModule, Inputs]]:
    """Trace the graphs that Dynamo makes from a subject's calls, each with copies of the arguments of its first run.

    The tracing itself may end the process; the list is then empty.
    """
    graphs: dict[int, tuple[GraphModule, Inputs]] = {}

    def keep(graph: GraphModule, _: list[Any]) -> Any:
        def run(*arguments: Any) -> Any:
            if id(graph) not in graphs:
                graphs[id(graph)] = graph, deepcopy_values(arguments)
            return graph(*arguments)

        return run

    rung = Rung("traced", "nothing", {"backend": keep, "dynamic": False})
    if not any(each.end for each in judge.watch(rung).values()):
        watch(judge.subject, rung, repetitions=0)
    yield from graphs.values()


class _Recorder(Interpreter):
    """A run of a graph.

    copies:  copies of each node's result; same: the earlier node that returned the same object
    written: the memory that each node wrote in place
    """

    def __init__(self, graph: GraphModule, arguments: Inputs) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.copies: dict[Node, Any] = {}
        self.same: dict[Node, Node] = {}
        self.written: dict[Node, set[int]] = {}
        self._first: dict[int, Node] = {}
        self.run(*deepcopy_values(arguments))

    def run_node(self, n: Node) -> Any:
        """Run a node and record it."""
        given = [(tensor, count_writes(tensor)) for _, tensor in list_tensors([*map(self.env.get, n.all_input_nodes)])]
        result = super().run_node(n)
        self.written[n] = {find_storage(tensor) for tensor, num in given if count_writes(tensor) != num}
        first = self._first.setdefault(id(result), n)
        if isinstance(result, Tensor) and first is not n:
            self.same[n] = first
        self.copies[n] = deepcopy_values(result)
        return result


Kept = tuple[Node | int, ...]
"""The remaining nodes, and the numbers of the remaining outputs."""


class _Search:
    """The removal of nodes and outputs of a graph, as long as it deviates in some calls."""

    def __init__(self, judge: Judge, climb: Climb, calls: int, attempts: Attempts) -> None:
        self._options, self._rung, self._calls = replace(judge.options, repetitions=0), climb.rung, calls
        self._attempts, self._kind = attempts, climb.deviations[0].kind
        self._raises = bool(judge.expected[climb.deviations[0].call].error)

    def run(self, graph: GraphModule, arguments: Inputs) -> MinimalGraph:
        """Remove the parts of a deviating graph that are not needed."""
        *nodes, last = graph.graph.nodes
        kept: Kept = tuple(node for node in nodes if node.op != "placeholder")
        # The tensors inside of a transformation of `torch.func` cannot be copied, so it cannot be taken apart.
        is_whole = self._raises or any("_functorch" in getattr(each.target, "__module__", "") for each in nodes)
        if not is_whole:
            with seeding(0):
                run = _Recorder(graph, arguments)
            whole, given = graph, dict(zip(graph.graph.find_nodes(op="placeholder"), arguments, strict=True))
            outputs: Any = last.args[0] if isinstance(last.args[0], (tuple, list)) else last.args

            def still_deviates(part: Kept) -> bool:
                if not self._attempts.begin():
                    return False
                try:
                    built = _build(whole, run, given, outputs, part)
                except Exception:  # A part of a graph may not be a valid graph.
                    return False
                return self.deviates(*built)

            kept = minimize((*kept, *range(len(outputs))), still_deviates)
            graph, arguments = _build(whole, run, given, outputs, kept)
        arguments = self._simplify(graph, arguments)
        deviation, kernels = self._found
        lines = [find_node_line(each) for each in kept if isinstance(each, Node)]
        origin = "" if is_whole else _find_origin(graph, arguments, deviation)
        where = origin or next(filter(None, reversed(lines)), "")
        return MinimalGraph(graph, arguments, self._calls, deviation, where, kernels, self._attempts.is_complete)

    def deviates(self, graph: GraphModule, arguments: Inputs) -> bool:
        """Return whether a deviation of a graph resembles that of the whole subject. Keep the first one, and the kernels."""
        subject = Subject("graph", graph, lambda call: deepcopy_values(arguments), calls=self._calls)
        judge = Judge(subject, self._options)
        if not self._raises and any(each.error for each in judge.expected.values()):
            return False
        kernels: dict[str, str] = {}
        actual = judge.watch(self._rung, listen=_reading_kernels, receive=lambda code: kernels.update(code[1]))
        found, _ = judge.judge(actual)
        # A part that fails in another way than the whole shows a different problem.
        alike = [each for each in found if each.kind == self._kind or not {each.kind, self._kind} & {"error", "end"}]
        if alike:
            self._found = alike[0], kernels
        return bool(alike)

    def _simplify(self, graph: GraphModule, arguments: Inputs) -> Inputs:
        """Replace the values of arguments by simple ones, as long as the graph still deviates."""
        held = list(arguments)
        for number, value in enumerate(arguments):
            for simple in _list_simple(value):
                if not self._attempts.begin():
                    return tuple(held)
                if self.deviates(graph, (*held[:number], simple, *held[number + 1 :])):
                    held[number] = simple
                    break
        return tuple(held)


def _build(
    whole: GraphModule, run: _Recorder, given: dict[Node, Any], outputs: Sequence[Any], kept: Kept
) -> tuple[GraphModule, Inputs]:
    """Build the graph of the kept nodes. Values that it reads from removed nodes become inputs."""
    made, is_kept = Graph(), frozenset(kept)
    arguments: list[Any] = []
    copies: dict[Node, Node] = {}
    first: list[Node] = []

    def find(node: Node) -> Node:
        origin = node
        while origin not in copies and origin not in given and origin in run.same:
            origin = run.same[origin]
        if origin not in copies:
            value = given[origin] if origin in given else run.copies[origin]
            with made.inserting_before(first[0]) if first else nullcontext():
                copies[origin] = made.placeholder(f"x{len(arguments)}")
            arguments.append(value)
        return copies[origin]

    for node in whole.graph.nodes:
        if node in is_kept:
            copies[node] = made.node_copy(node, find)
            first[:] = first or [copies[node]]
    made.output(tuple(torch.fx.node.map_arg(each, find) for number, each in enumerate(outputs) if number in is_kept))
    return GraphModule(whole, made), tuple(deepcopy_values(arguments))


def _list_simple(value: Any) -> list[Tensor]:
    if not isinstance(value, Tensor) or value.numel() < 2 or not value.is_contiguous() or value.is_complex():
        return []
    if value.is_cuda and not value.is_floating_point():
        # A wrong index would end the use of the device.
        return []
    if value.dtype == torch.bool:
        return [torch.ones_like(value), torch.zeros_like(value)]
    counted = torch.arange(value.numel(), device=value.device).to(value.dtype).reshape(value.shape)
    return [each.detach().requires_grad_(value.requires_grad) for each in (counted, torch.ones_like(value))]


def _reading_kernels(send: Callable[[Any], None]) -> AbstractContextManager[Any]:
    """Send the kernels of each graph that Inductor compiles."""
    from torch._inductor.graph import GraphLowering

    return patch.object(GraphLowering, "save_output_code", lambda code: send(("kernels", read_kernels(code))))


def read_kernels(code: str) -> dict[str, str]:
    """Return the sources of the kernels in a module that Inductor generated, by their names."""
    kernels = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            texts = [each.value for each in node.value.args if isinstance(each, ast.Constant)]
            sources = [dedent(each).strip() for each in texts if isinstance(each, str) and "\n" in each]
            if sources and ast.unparse(node.value.func).startswith("async_compile."):
                kernels[ast.unparse(node.targets[0])] = sources[-1]
    return kernels


def render_graph(graph: GraphModule, name: str) -> tuple[str, dict[str, Any]]:
    """Render a graph as a function. Each operation is followed by the user's line that it comes from.

    Returns:
        The source of the function, and the globals that it needs.
    """
    code = graph.graph.python_code("self")
    nodes, numbers = list(graph.graph.nodes), code._lineno_map or {}
    lines = []
    for number, line in enumerate(code.src.splitlines(), 1 - code._prologue_start):
        text = line.partition(";  ")[0].rstrip()
        text = text.replace("def forward(self, ", f"def {name}(").replace("def forward(self", f"def {name}(")
        where = find_node_line(nodes[numbers.get(number) or 0]) if text.startswith(" ") else ""
        lines.append(f"{text}  # {Path(where).name}" if where else text)
    return "\n".join(filter(None, lines)), code.globals


def _find_origin(graph: GraphModule, arguments: Inputs, deviation: Deviation) -> str:
    """Return the line of the node that last wrote the memory of the deviating leaf, or made this memory, or the leaf."""
    number = deviation.where.partition("[")[2].partition("]")[0]
    nodes = list(graph.graph.nodes)
    held = {"argument": [node for node in nodes if node.op == "placeholder"], "output": nodes[-1].args[0]}
    kind = deviation.where.partition("[")[0] if deviation.kind in ("stride", SIGNED_ZERO) else deviation.kind
    if kind not in held or not number.isdigit():
        return ""
    made, run = held[kind][int(number)], _Recorder(graph, arguments)
    if not isinstance(made, Node):
        return ""
    memory = {node: find_storage(run.env[node]) for node in nodes[:-1] if isinstance(run.env[node], Tensor)}
    own = memory.get(made, 0)
    writers = [node for node in reversed(nodes) if own and own in run.written[node]]
    makers = [node for node, each in memory.items() if own and each == own]
    # A view computes nothing, unless it is of an argument.
    return next(filter(None, map(find_node_line, (*writers, *makers[:1], made))), "")
