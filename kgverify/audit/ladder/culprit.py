"""The pass, lowering, decomposition or switch of the compiler without which a deviating function is right.

Torch asks one function whether to skip a pass, to replace a lowering by the operator itself, or to leave an operator whole.
This module answers it, item by item, by name: a pass that runs in two subsystems is one item.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from operator import attrgetter
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from kgverify.audit.audited_function import Subject
from kgverify.audit.ladder.climb import EAGER, Rung, find_deviations, watch
from kgverify.audit.ladder.observation import DeviceLost
from kgverify.runs.delta_debugging import minimize

PASS: Final = "pass"
LOWERING: Final = "lowering"
DECOMPOSITION: Final = "decomposition"
SWITCH: Final = "switch"

_KINDS: Final = {
    "pre_grad_passes": PASS,
    "joint_graph_passes": PASS,
    "post_grad_passes": PASS,
    "lowerings": LOWERING,
    "decomposition": DECOMPOSITION,
}

_INDUCTOR, _FUNCTORCH, _DYNAMO = "torch._inductor.config", "torch._functorch.config", "torch._dynamo.config"

SWITCHES: Final[tuple[tuple[str, str, Any], ...]] = (
    (_INDUCTOR, "triton.cudagraphs", False),
    (_INDUCTOR, "max_autotune", False),
    (_INDUCTOR, "max_fusion_size", 1),
    (_INDUCTOR, "epilogue_fusion", False),
    (_INDUCTOR, "prologue_fusion", False),
    (_INDUCTOR, "combo_kernels", False),
    (_INDUCTOR, "pattern_matcher", False),
    (_INDUCTOR, "inplace_buffers", False),
    (_INDUCTOR, "allow_buffer_reuse", False),
    (_INDUCTOR, "reorder_for_locality", False),
    (_INDUCTOR, "reorder_for_peak_memory", False),
    (_INDUCTOR, "loop_ordering_after_fusion", False),
    (_INDUCTOR, "split_reductions", False),
    (_INDUCTOR, "unroll_reductions_threshold", 1),
    (_INDUCTOR, "layout_optimization", False),
    (_INDUCTOR, "comprehensive_padding", False),
    (_INDUCTOR, "joint_graph_constant_folding", False),
    (_INDUCTOR, "emulate_precision_casts", True),
    (_INDUCTOR, "fallback_random", True),
    (_INDUCTOR, "cpp.simdlen", 1),
    (_INDUCTOR, "cpp.threads", 1),
    (_INDUCTOR, "cpp.enable_unsafe_math_opt_flag", False),
    (_INDUCTOR, "triton.persistent_reductions", False),
    (_INDUCTOR, "use_fast_math", False),
    (_FUNCTORCH, "cse", False),
    (_FUNCTORCH, "view_replay_for_aliased_outputs", True),
    (_DYNAMO, "automatic_dynamic_shapes", False),
    (_DYNAMO, "assume_static_by_default", True),
    (_DYNAMO, "specialize_int", True),
    (_DYNAMO, "guard_nn_modules", True),
    (_DYNAMO, "inline_inbuilt_nn_modules", False),
)
"""(module, setting, value with which the compiler does less)."""


class Item(NamedTuple):
    """Something that the compiler does and can leave out.

    kind:  PASS, LOWERING, DECOMPOSITION or SWITCH
    name:  of the pass; of the node of the graph; of the operator; `setting=value`
    where: the subsystems in which it ran, or the module of the switch
    """

    kind: str
    name: str
    where: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({', '.join(self.where)})"


class Culprit(NamedTuple):
    """A smallest set of items without which the subject does what it does in eager.

    num_tried: the number of compilations; is_complete: whether the time sufficed to try everything
    """

    items: tuple[Item, ...]
    num_tried: int
    is_complete: bool


def find_culprit(
    subject: Subject, rung: Rung, *, seconds: float = 120.0, announce: Callable[[int], None] = lambda num: None
) -> Culprit:
    """Find a smallest set of items that the compiler must leave out; empty where nothing helps.

    seconds: time limit, after which no attempt begins. announce: receives the number of each attempt.
    """
    search = _Search(subject, rung, time.monotonic() + seconds, announce)
    items = list_items(subject, rung)
    of_kind = {kind: [item for item in items if item.kind == kind] for kind in (PASS, SWITCH, LOWERING, DECOMPOSITION)}
    groups = [*of_kind.values(), of_kind[PASS] + of_kind[SWITCH] + of_kind[LOWERING], items]
    for number, group in enumerate(groups):
        if not group:
            continue
        if search.repairs(group):
            return search.finish(minimize(group, lambda part: bool(part) and search.repairs(part)))
        # Some items cannot all be left out together, and some are needed.
        if number < len(of_kind) and search.has_failed:
            for item in group:
                if search.repairs([item]):
                    return search.finish([item])
    return search.finish([])


def list_items(subject: Subject, rung: Rung) -> list[Item]:
    """List all items that take part when the subject is compiled on a rung, and the switches that can be changed."""
    seen: dict[tuple[str, str], list[str]] = {}

    def record(subsystem: str, name: str) -> bool:
        if subsystem in _KINDS:
            subsystems = seen.setdefault((_KINDS[subsystem], name), [])
            if subsystem not in subsystems:
                subsystems.append(subsystem)
        return False

    with _answering(record):
        watch(subject, rung, repetitions=0)
    items = [Item(kind, name, tuple(subsystems)) for (kind, name), subsystems in seen.items()]
    for module, setting, value in SWITCHES:
        found = _read_setting(module, setting)
        if found is not _MISSING and (found is None or found != value):
            items.append(Item(SWITCH, f"{setting}={value}", (module,)))
    return items


@contextmanager
def compiling_without(items: Sequence[Item]) -> Iterator[None]:
    """Compile without these items."""
    left_out = {(item.kind, item.name) for item in items}
    values = {f"{setting}={value}": (module, setting, value) for module, setting, value in SWITCHES}
    with ExitStack() as stack:
        for item in items:
            if item.kind == SWITCH:
                module, setting, value = values[item.name]
                stack.enter_context(import_module(module).patch({setting: value}))
        stack.enter_context(
            _answering(lambda subsystem, name: subsystem in _KINDS and (_KINDS[subsystem], name) in left_out)
        )
        yield


class _Search:
    """The attempts to repair a subject on a rung; an attempt that fails to compile repairs nothing."""

    def __init__(self, subject: Subject, rung: Rung, deadline: float, announce: Callable[[int], None]) -> None:
        self._subject, self._rung, self._deadline, self._announce = subject, rung, deadline, announce
        self._expected = watch(subject, EAGER)
        self._known: dict[frozenset[Item], bool] = {}
        self._is_complete = True
        self.has_failed = False

    def repairs(self, items: Sequence[Item]) -> bool:
        """Return whether leaving out these items repairs the subject."""
        key = frozenset(items)
        if key in self._known:
            return self._known[key]
        if time.monotonic() > self._deadline:
            self._is_complete = False
            return False
        self._announce(len(self._known) + 1)
        try:
            with compiling_without(items):
                actual = watch(self._subject, self._rung, self._expected)
        except DeviceLost:
            self._deadline = time.monotonic()
            self._known[key] = self._is_complete = False
            return False
        deviations = find_deviations(self._expected, actual)
        self.has_failed = any(each.kind == "error" for each in deviations)
        self._known[key] = not deviations
        return not deviations

    def finish(self, items: Sequence[Item]) -> Culprit:
        """Return the items with the state of the search."""
        return Culprit(tuple(items), len(self._known), self._is_complete)


@contextmanager
def _answering(answer: Callable[[str, str], bool]) -> Iterator[None]:
    """Answer the compiler's question whether to leave something out: (subsystem, name) -> bool."""
    from torch._inductor.compiler_bisector import CompilerBisector

    def disable_subsystem(backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        return answer(subsystem, debug_info() if debug_info else "")

    with patch.object(CompilerBisector, "disable_subsystem", staticmethod(disable_subsystem)):
        yield


_MISSING: Final = object()


def _read_setting(module: str, setting: str) -> Any:
    with warnings.catch_warnings():
        # Some settings are deprecated.
        warnings.simplefilter("ignore")
        try:
            return attrgetter(setting)(import_module(module))
        except AttributeError:
            return _MISSING
