"""The search for the pass, lowering, decomposition, switch or line whose omission repairs a deviating function.

Torch asks one function whether to skip a pass, to replace a lowering by the operator itself, or to leave an operator
whole. This module answers for each item by its name: a pass that runs in two subsystems is one item. If no item is the
cause, Dynamo ends its trace before a line, which leaves that line to eager. The likely causes are tried first within
their kind: passes that changed a graph, and a few switches.
"""

import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from inspect import isclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from torch._inductor.utils import fresh_cache

from stepaudit.isolation import is_device_lost
from stepaudit.ladder.climb import WARM, Climb, Judge, Watched, compiling_without_caches
from stepaudit.minimize import minimize
from stepaudit.options import Rung
from stepaudit.source_lines import is_user_file

PASS: Final = "pass"
LOWERING: Final = "lowering"
DECOMPOSITION: Final = "decomposition"
SWITCH: Final = "switch"
LINE: Final = "line"
_CHANGE: Final = "change"
"""Not a kind of items, but the mark of a pass that changed its graph."""

_KINDS: Final = {
    "pre_grad_passes": PASS,
    "joint_graph_passes": PASS,
    "post_grad_passes": PASS,
    "lowerings": LOWERING,
    "decomposition": DECOMPOSITION,
}

_INDUCTOR, _FUNCTORCH, _DYNAMO = "torch._inductor.config", "torch._functorch.config", "torch._dynamo.config"

SWITCHES: Final[tuple[tuple[str, str, Any], ...]] = tuple(
    (module, setting, value)
    for module, settings in tomllib.loads(Path(__file__).with_name("switches.toml").read_text("utf-8")).items()
    for setting, value in settings.items()
)
"""(module, setting, value that makes the compiler do less)."""
_LIKELY: Final = frozenset(("max_fusion_size", "inplace_buffers", "cpp.simdlen"))
"""The switches that repair most reported miscompilations that any switch repairs: fusion, reuse of memory, vectors."""

_RESUMED: Final = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
"""The name of the rest of a function after a graph break."""

_OF_CACHES: Final = ("fx_graph_cache=False", "enable_autograd_cache=False")


class Item(NamedTuple):
    """Something that the compiler does and can omit.

    kind:  PASS, LOWERING, DECOMPOSITION, SWITCH or LINE
    name:  the name of the pass, of the node of the graph or of the operator; `setting=value`; `file:line`
    where: the subsystems in which the pass ran, the module of the switch, or the function of the line
    value: the setting of the switch, with the value that makes the compiler do less
    """

    kind: str
    name: str
    where: tuple[str, ...]
    is_likely: bool = False
    value: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        if self.kind == LINE:
            return f"compiling {self.name} and what follows it in {', '.join(self.where)}"
        return f"{self.kind} {self.name} ({', '.join(self.where)})"


def describe_repair(items: Sequence[Item]) -> str:
    """Say with which settings, and without which parts of the compiler, a step is right."""
    settings = [f"{item.where[0]}.{item.name}" for item in items if item.kind == SWITCH]
    parts = [str(item) for item in items if item.kind != SWITCH]
    words = (("with", settings), ("without", parts))
    return " and ".join(f"{word} {' and '.join(held)}" for word, held in words if held)


class Culprit(NamedTuple):
    """A smallest set of items without which the subject behaves as in eager.

    num_tried: the number of compilations
    left:      if time ran out, the items that may still contain a culprit; `items` may then be too large
    is_of_caches: whether it deviates with the compiler's caches, but not without them
    """

    items: tuple[Item, ...]
    num_tried: int
    left: tuple[Item, ...] = ()
    is_of_caches: bool = False


def find_culprit(judge: Judge, climb: Climb) -> Culprit:
    """Find a smallest set of items that the compiler must omit; empty if nothing helps.

    Likely passes and switches come first, then the other ones, lowerings and decompositions. Each group is omitted as a
    whole, and then halved. Last comes the last line before which the trace can end. The caller chooses the folder of
    the caches.
    """
    search = _Search(judge, climb)
    with compiling_without_caches():
        for search.judge in (*list_single(judge, climb), judge):
            items, actual = list_items(search.judge, climb.rung)
            if search.judge.judge(actual)[0] or not (climb.rung.has_caches or search.judge is not judge):
                return search.finish(_search_items(search, items), [item for item in items if item.kind != LINE])
    search.is_of_caches = True
    caches = [item for item in _list_switches(climb.rung) if item.name in _OF_CACHES]
    single = next(([item] for item in caches if search.repairs([item])), [])
    return search.finish(single, caches)


def list_single(judge: Judge, climb: Climb) -> list[Judge]:
    """Return the judge of the single call that deviated, if it may deviate alone."""
    name = climb.deviations[0].call
    if not name.startswith("call ") or "again" in name:
        return []
    number, made = int(name.split()[1]) - 1, judge.subject.make_inputs
    one = replace(judge.subject, make_inputs=lambda call: made(number), calls=1, first=number)
    return [Judge(one, replace(judge.options, repetitions=0))]


def _search_items(search: "_Search", items: Sequence[Item]) -> Sequence[Item]:
    kinds = [(kind, is_likely) for is_likely in (True, False) for kind in (PASS, SWITCH)]
    kinds += [(LOWERING, False), (DECOMPOSITION, False)]
    groups = [([item for item in items if (item.kind, item.is_likely) == kind], True) for kind in kinds]
    groups += [([item for item in items if item.kind not in left], False) for left in ((DECOMPOSITION, LINE), (LINE,))]
    groups.append(([item for item in items if item.kind == LINE], False))
    found = (_search_group(search, group, divides=divides) for group, divides in groups)
    return next(filter(None, found), [])


def _search_group(search: "_Search", group: Sequence[Item], *, divides: bool) -> Sequence[Item]:
    if not group:
        return []
    if search.repairs(group):
        single = _halve(search, group)
        return single or minimize(group, lambda part: bool(part) and search.repairs(part))
    # Some items cannot be omitted together, and some are needed.
    if divides and search.has_failed and len(group) > 1:
        middle = len(group) // 2
        halves = (_search_group(search, half, divides=True) for half in (group[:middle], group[middle:]))
        return next(filter(None, halves), [])
    return []


def _halve(search: "_Search", group: Sequence[Item]) -> Sequence[Item]:
    """Return the last single item that repairs the subject, if any; if the last half does not, the first need not be tried."""
    while len(group) > 1:
        middle = len(group) // 2
        group = group[middle:] if search.repairs(group[middle:]) else group[:middle]
    return group if search.repairs(group) else []


def list_items(judge: Judge, rung: Rung) -> tuple[list[Item], Watched]:
    """Make calls on a rung. List the items that take part, with the user's lines in trace order. Return the calls as well."""
    seen: dict[tuple[str, str], dict[str, None]] = {}

    def record(ran: tuple[str, str, str]) -> None:
        kind, name, where = ran
        seen.setdefault((kind, name), {})[where] = None

    @contextmanager
    def listen(send: Callable[[tuple[str, ...]], None]) -> Iterator[None]:
        send_once = cache(lambda *ran: send(ran))

        def answer(subsystem: str, name: str) -> bool:
            if subsystem in _KINDS:
                send_once(_KINDS[subsystem], name, subsystem)
            return False

        def meet(line: str, function: str) -> None:
            if is_user_file(line.rpartition(":")[0]):
                send_once(LINE, line, function)

        with _answering(answer), _watching_passes(lambda name: send_once(_CHANGE, name, "")), _tracing(meet):
            yield

    actual = judge.watch(rung, listen=listen, receive=record)
    items = [
        Item(kind, name, tuple(where), kind == PASS and (_CHANGE, name) in seen)
        for (kind, name), where in seen.items()
        if kind != _CHANGE
    ]
    return items + [item for item in _list_switches(rung) if item.name not in _OF_CACHES], actual


def _list_switches(rung: Rung) -> list[Item]:
    """List the switches of the parts of the compiler that take part on a rung."""
    parts = {"eager": (_DYNAMO,), "inductor": (_INDUCTOR, _FUNCTORCH, _DYNAMO)}
    used = parts.get((rung.options or {}).get("backend", ""), (_FUNCTORCH, _DYNAMO))
    with warnings.catch_warnings():
        # Some settings are deprecated, and some versions of torch lack some.
        warnings.simplefilter("ignore")
        return [
            Item(SWITCH, f"{setting}={value}", (module,), setting in _LIKELY, ((setting, value),))
            for module, setting, value in SWITCHES
            if module in used and getattr(import_module(module), setting, value) != value
        ]


@contextmanager
def compiling_without(items: Sequence[Item]) -> Iterator[None]:
    """Compile without these items."""
    omitted = list_omitted(items)
    with ExitStack() as stack:
        for item in items:
            if item.kind == SWITCH:
                stack.enter_context(import_module(item.where[0]).patch(dict(item.value)))
            elif item.kind == LINE:
                stack.enter_context(_ending_traces(item.name))
        stack.enter_context(_answering(lambda *asked: asked in omitted))
        yield


def list_omitted(items: Sequence[Item]) -> list[tuple[str, str]]:
    """List the subsystems, each with the name in it, that the compiler's bisector must disable to omit some items."""
    return [(where, item.name) for item in items for where in item.where if _KINDS.get(where) == item.kind]


class _Search:
    """The attempts to repair a subject on a rung; an attempt that fails to compile repairs nothing."""

    has_failed = is_of_caches = False

    def __init__(self, judge: Judge, climb: Climb) -> None:
        self.judge, self._climb = judge, climb
        self._attempts = judge.begin_search("repair it")
        # None stands for an attempt that fails in another way.
        self._known: dict[frozenset[Item], bool | None] = {}

    def repairs(self, items: Sequence[Item]) -> bool:
        """Return whether omitting these items repairs the subject.

        Of several lines only the first counts: the trace ends there.
        """
        items = items[:1] if items[0].kind == LINE else items
        key = frozenset(items)
        if key not in self._known:
            if not self._attempts.begin():
                return False
            self._known[key] = self._attempt(items)
        self.has_failed = self._known[key] is None
        return bool(self._known[key])

    def _attempt(self, items: Sequence[Item]) -> bool | None:
        try:
            with compiling_without(items):
                actual = self._run()
                if self.judge.is_right(actual):
                    return True
                deviations, _ = self.judge.judge(actual)
        except RuntimeError:
            if not is_device_lost():
                raise
            self._attempts.is_complete = False
            return False
        known = self._climb.deviations[0].kind
        has_failed = any(each.kind in ("error", "end") and each.kind != known for each in deviations)
        return None if has_failed else False

    def _run(self) -> Watched:
        """Make the calls in the state of the caches in which they deviated."""
        if not self.is_of_caches:
            return self.judge.watch(self._climb.rung)
        with fresh_cache():
            actual = self.judge.watch(self._climb.rung)
            return self.judge.watch(self._climb.rung) if self._climb.caches == WARM else actual

    def finish(self, items: Sequence[Item], all_items: Sequence[Item]) -> Culprit:
        """Return the items with the state of the search."""
        left: Sequence[Item] = ()
        if not self._attempts.is_complete and len(items) != 1:
            untried = frozenset(all_items).difference(*self._known)
            left = items or [each for each in all_items if each in untried]
        return Culprit(tuple(items), self._attempts.num, tuple(left), self.is_of_caches)


@contextmanager
def _tracing(meet: Callable[[str, str], None]) -> Iterator[None]:
    """Call a function for each instruction that Dynamo traces, with its `file:line` and the name of its function."""
    from torch._dynamo import symbolic_convert

    def watched(trace: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def run(translator: Any, instruction: Any) -> Any:
            number = instruction.positions.lineno if instruction.positions else None
            name = _RESUMED.sub(r"\1", translator.f_code.co_name)
            meet(f"{translator.f_code.co_filename}:{number}", name)
            return trace(translator, instruction)

        return run

    with ExitStack() as stack:
        for kind in filter(isclass, vars(symbolic_convert).values()):
            if table := vars(kind).get("dispatch_table"):
                stack.enter_context(patch.object(kind, "dispatch_table", [trace and watched(trace) for trace in table]))
        yield


def _ending_traces(line: str) -> AbstractContextManager[None]:
    """End each trace before a line; the rest of the function is not compiled."""
    from torch._dynamo.exc import Unsupported

    def end(met: str, _: str) -> None:
        if met == line:
            raise Unsupported("left to eager")

    return _tracing(end)


def _answering(answer: Callable[[str, str], bool]) -> AbstractContextManager[Any]:
    """Answer the compiler's question whether to omit something: (subsystem, name) -> bool."""
    from torch._inductor.compiler_bisector import CompilerBisector

    def disable_subsystem(backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        return answer(subsystem, debug_info() if debug_info else "")

    return patch.object(CompilerBisector, "disable_subsystem", staticmethod(disable_subsystem))


def _watching_passes(meet: Callable[[str], None]) -> AbstractContextManager[Any]:
    """Call a function with the name of each pass that changes its graph."""
    from torch.fx.passes.graph_transform_observer import GraphTransformObserver

    def watched(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def run(observer: Any, work: Any) -> Any:
            before = str(observer.gm.graph)
            result = apply(observer, work)
            if str(observer.gm.graph) != before:
                meet(observer.passname)
            return result

        return run

    gm_pass, graph_pass = map(watched, (GraphTransformObserver.apply_gm_pass, GraphTransformObserver.apply_graph_pass))
    return patch.multiple(GraphTransformObserver, apply_gm_pass=gm_pass, apply_graph_pass=graph_pass)
