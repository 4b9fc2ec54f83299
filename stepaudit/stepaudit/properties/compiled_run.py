"""A record of calls of a compiled function: its graphs, each run of a graph, and each compilation with its reason."""

import logging
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo import utils as dynamo_utils

from stepaudit.audited_function import Function, Inputs, Subject, call_with, seeding
from stepaudit.errors import describe_error
from stepaudit.options import AuditOptions
from stepaudit.properties.captured_values import CapturedState, CapturedValue, find_captured_values
from stepaudit.report import ReportBuilder
from stepaudit.source_lines import find_node_line, find_stack_line
from stepaudit.values import copy_tensor, find_storage, is_on_cuda, list_tensors

LOGGERS: Final = ("torch", "torch._dynamo", "torch._inductor", "torch._functorch", "torch._subclasses", "torch.fx")
"""The compiler's loggers, which write a traceback for each error of a step that is traced."""
_STATIC: Final = "_dynamo_static_input_type"
_MOST_METRICS: Final = 4096
_READING: Final = {"item", "tolist", "nonzero", "masked_select", "unique", "_local_scalar_dense", "cpu", "to", "numpy"}


@dataclass(frozen=True)
class GraphInput:
    """A tensor input of a graph. source: the compiler's name for it; where: the first line that uses it."""

    source: str
    where: str
    is_static: bool


@dataclass
class Graph:
    """A compiled graph.

    lines:      the lines of its operations, except operations that return a value to the host
    sizes:      its symbolic sizes: the sources, such as `L['rows'].size()[0]`, and the value when the graph was made
    conditions: the conditions on these sizes, each with the line that required it
    """

    inputs: list[GraphInput | None]
    num_nodes: int
    lines: set[str]
    sizes: dict[Any, tuple[list[str], int]]
    conditions: list[tuple[Any, str]]
    addresses: list[list[int]] = field(default_factory=list)

    def find_refusal(self, dimension: int, size: int) -> str:
        """Return the last line whose condition fails for a different size of this dimension; empty if all conditions hold."""
        ending = f".size()[{dimension}]"
        given = {
            symbol: size if any(source.endswith(ending) for source in sources) else held
            for symbol, (sources, held) in self.sizes.items()
        }
        return next((line for asked, line in reversed(self.conditions) if asked.xreplace(given) == False), "")  # noqa: E712


@dataclass(frozen=True)
class Compilation:
    """One attempt of the compiler at one frame.

    number: the number of the recompilation of this frame, from 0; call: the number of the call that caused it
    """

    frame: str
    number: int
    call: int
    function: str
    reason: str
    fail_reason: str
    fail_where: str
    seconds: float
    graph: Graph | None

    @property
    def is_past_limit(self) -> bool:
        """True if the compiler gave up because the frame had been compiled too often."""
        return "limit" in self.fail_reason and "recompil" in self.fail_reason.lower()


@dataclass
class Call:
    """A call of the compiled function.

    snapshot: the values of its output when it returned; memory: their addresses at that time, 0 for none
    num_runs: the number of compiled graphs that ran
    """

    inputs: Inputs
    output: Any
    seconds: float
    num_runs: int = 0

    def __post_init__(self) -> None:
        """Read the output."""
        tensors = list_tensors(self.output)
        self.memory = [(path, find_storage(tensor)) for path, tensor in tensors]
        self.snapshot = [(path, copy_tensor(tensor)) for path, tensor in tensors]


@dataclass
class CompiledRun:
    """The examination of a subject: its captured values, its eager waits, and the record of its compiled calls.

    found:    the values that the function captures
    is_cuda:  whether the function reads a tensor on a CUDA device
    waits:    for each eager call, the number of waits by line and cause
    compiled: the compiled function, which can be called again only within `silencing_compiler`
    breaks:   (reason, line) of graph breaks; error: the error that ended the calls
    unmarked: the addresses of arguments that the caller did not mark as static; the compiler itself marks parameters
    changed_in_eager: the outputs of eager calls that later eager calls change
    messages: the compiler's messages, and `warned` its warnings, with the reasons why it captured no CUDA graph
    """

    subject: Subject
    options: AuditOptions
    report: ReportBuilder
    found: CapturedState = field(init=False)
    is_cuda: bool = field(init=False)
    waits: list[Counter[tuple[str, str]]] = field(default_factory=list)
    compiled: Function = field(init=False)
    calls: list[Call] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    compilations: list[Compilation] = field(default_factory=list)
    breaks: list[tuple[str, str]] = field(default_factory=list)
    error: BaseException | None = None
    num_kernels: int = 0
    unmarked: set[int] = field(default_factory=set)
    changed_in_eager: set[str] = field(default_factory=set)
    messages: list[logging.LogRecord] = field(default_factory=list)
    warned: list[warnings.WarningMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the values that the function captures."""
        self.function = self.subject.function
        self.found = find_captured_values(self.function)
        self.is_cuda = is_on_cuda((self.subject.inputs(0), [captured.get() for captured in self.found]))

    def all_inputs(self) -> list[Inputs]:
        """Make the arguments of all calls, which share memory as the originals do."""
        return self.subject.joint_inputs(range(self.subject.calls))

    def list_captured_tensors(self) -> list[tuple[CapturedValue, Tensor]]:
        """List the tensors that the function captures now."""
        return [(each, value) for each in self.found if isinstance(value := each.get(), Tensor)]


class WatchingBackend:
    """Inductor, or a backend of the user, as a backend that records every graph and every run of a graph."""

    def __init__(self, options: AuditOptions) -> None:
        self.graphs: list[Graph] = []
        self.num_runs = 0
        self.holds_addresses = True
        self._compile: Any
        if options.backend == "inductor":
            self._compile = torch._TorchCompileInductorWrapper("default", options.of_inductor, options.dynamic)  # type: ignore[no-untyped-call]
        else:
            self._compile = torch._TorchCompileWrapper(
                options.backend, None, dict(options.backend_options), options.dynamic
            )  # type: ignore[no-untyped-call]

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Compile a graph."""
        graph = _describe(module)
        self.graphs.append(graph)
        compiled = self._compile(module, inputs)

        def run(*values: Any) -> Any:
            self.num_runs += 1
            if self.holds_addresses:
                graph.addresses.append([v.data_ptr() if isinstance(v, Tensor) else 0 for v in values])
            return compiled(*values)

        return run

    def get_compiler_config(self) -> Any:
        """Return the configuration of Inductor; none for other backends."""
        return getattr(self._compile, "get_compiler_config", dict)()

    def reset(self) -> None:
        """Forget captured graphs."""
        self._compile.reset()


def _describe(module: torch.fx.GraphModule) -> Graph:
    inputs: list[GraphInput | None] = []
    num_nodes = 0
    lines: set[str] = set()
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            num_nodes += 1
            if getattr(node.target, "__name__", str(node.target)) not in _READING:
                lines.add(find_node_line(node))
        if node.op != "placeholder":
            continue
        source, value = getattr(node, "_dynamo_source", None), node.meta.get("example_value")
        if source is None or not isinstance(value, Tensor):
            inputs.append(None)
            continue
        where = next(filter(None, map(find_node_line, (*node.users, node))), "")
        marks = node.meta.get("tensor_dict") or {}
        inputs.append(GraphInput(_name_source(source), where, marks.get(_STATIC) is not None))
    return Graph(inputs, num_nodes, lines, *_read_sizes())


def _read_sizes() -> tuple[dict[Any, tuple[list[str], int]], list[tuple[Any, str]]]:
    """Return the symbolic sizes of the graph that is being compiled, and the conditions on them."""
    context = torch._guards.TracingContext.try_get()
    shapes = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    if shapes is None:
        return {}, []
    # The second form was used before torch 2.11.
    held = shapes.backed_var_to_val if hasattr(shapes, "backed_var_to_val") else shapes.var_to_val
    sizes = {
        symbol: ([*map(_name_source, sources)], held[symbol])
        for symbol, sources in shapes.var_to_sources.items()
        if symbol in held
    }
    asked = [(guard.expr, re.search(r"\S+\.py:\d+", str(guard.sloc))) for guard in shapes.guards]
    return sizes, [(expression, named[0]) for expression, named in asked if named]


def _name_source(source: Any) -> str:
    """Return the name of a source. It was a method before torch 2.11 and is an attribute since."""
    return str(source.name() if callable(source.name) else source.name)


@contextmanager
def logging_from(
    level: int, names: Iterable[str], *handlers: logging.Handler, is_quiet: bool = False
) -> Iterator[None]:
    """Let loggers log from a level on, also to additional handlers, or only to these if quiet."""
    with ExitStack() as stack:
        for logger in map(logging.getLogger, names):
            kept = [] if is_quiet else logger.handlers
            propagates = logger.propagate and not is_quiet
            stack.enter_context(patch.multiple(logger, handlers=[*kept, *handlers], propagate=propagates))
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
        yield


@contextmanager
def silencing_compiler() -> Iterator[None]:
    """Reset the compiler before and after, and silence its warnings, even if warnings are errors.

    All other compiled functions of this process are compiled again at their next call.
    """
    with warnings.catch_warnings(), logging_from(logging.CRITICAL, LOGGERS):
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        try:
            yield
        finally:
            torch._dynamo.reset()


def compile_anew(run: CompiledRun, backend: WatchingBackend | None = None) -> Function:
    """Compile the function, by a new backend unless one is given: torch keeps one result for equal backends."""
    return torch.compile(run.function, backend=backend or WatchingBackend(run.options), dynamic=run.options.dynamic)


def run_compiled(run: CompiledRun) -> None:
    """Call the function through Inductor, with separate arguments for each call, and keep all outputs.

    As long as every call is compiled anew, and there are arguments, more calls are made, up to the recompile limit.
    """
    from torch._inductor import metrics

    subject, backend = run.subject, WatchingBackend(run.options)
    run.compiled = compile_anew(run, backend)
    metrics.reset()
    dynamo_utils.clear_compilation_metrics()
    dynamo_utils.set_compilation_metrics_limit(_MOST_METRICS)
    run.graphs = backend.graphs
    inputs = run.all_inputs()
    run.unmarked = {each.data_ptr() for _, each in list_tensors(inputs) if not hasattr(each, _STATIC)}
    num_seen = last_compiling = 0
    for number in range(max(subject.calls, torch._dynamo.config.recompile_limit + 2)):
        if number >= len(inputs):
            if number - last_compiling > 1:
                break
            try:
                inputs.append(subject.inputs(number))
            except Exception:
                # There are no more.
                break
        runs_before, graphs_before = backend.num_runs, len(backend.graphs)
        call, run.error = make_call(run.compiled, inputs[number], number)
        call.num_runs = backend.num_runs - runs_before
        fresh = dynamo_utils.get_compilation_metrics()[num_seen:]
        for each in fresh:
            run.compilations.append(_read_compilation(each, number, backend.graphs[graphs_before:], run.compilations))
        num_seen += len(fresh)
        last_compiling = number if fresh else last_compiling
        if run.error is not None:
            break
        run.calls.append(call)
    backend.holds_addresses = False
    run.num_kernels = metrics.generated_kernel_count
    run.breaks = [(r.reason, find_stack_line(r.user_stack)) for r in dynamo_utils.graph_break_reasons]


def is_overwritten(error: BaseException | None) -> bool:
    """Return whether an error says that a tensor was read after a replay of a captured graph had taken its memory back."""
    return error is not None and "CUDAGraphs that has been overwritten" in str(error)


class RepeatedCallError(Exception):
    """A call raised when it was repeated, although it returned the first time. The message says how."""


def repeat_calls(compiled: Function, inputs: list[Inputs]) -> None:
    """Make calls of a function that was compiled for them. RepeatedCallError if one raises."""
    for number, given in enumerate(inputs):
        torch.manual_seed(number)
        try:
            call_with(compiled, given)
        except Exception as error:
            raise RepeatedCallError(f"call {number + 1}, repeated, raises {describe_error(error)}") from error


def make_call(function: Function, inputs: Inputs, number: int) -> tuple[Call, BaseException | None]:
    """Make one call, with the same random numbers each time. Return it with the error that it raised."""
    output, error = None, None
    with seeding(number):
        began = time.perf_counter()
        try:
            output = call_with(function, inputs)
            if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
        except Exception as raised:
            error = raised
        seconds = time.perf_counter() - began
    return Call(inputs, output, seconds), error


def _read_compilation(each: Any, call: int, fresh: list[Graph], before: list[Compilation]) -> Compilation:
    frame, _, attempt = str(each.compile_id or "?/0").rpartition("/")
    where = f"{each.co_filename}:{each.co_firstlineno}" if each.co_filename else ""
    if not where:
        where = next((other.function for other in before if other.frame == frame), "")
    fail_where = f"{each.fail_user_frame_filename}:{each.fail_user_frame_lineno}"
    return Compilation(
        frame=frame,
        # A restart of the same attempt is written `0/1_1`.
        number=int(attempt.partition("_")[0] or 0),
        call=call,
        function=where,
        reason=each.recompile_reason or "",
        fail_reason=each.fail_reason or "",
        fail_where=fail_where if each.fail_user_frame_filename else "",
        seconds=each.entire_frame_compile_time_s or 0.0,
        graph=fresh[-1] if fresh else None,
    )
