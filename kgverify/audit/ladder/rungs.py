"""The rungs between eager and the most that `torch.compile` does, each isolated from the others."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from kgverify.audit.ladder.observation import Observation, observe
from kgverify.audit.audited_function import Function, Inputs, Subject, leaves


class Rung(NamedTuple):
    """A way to run a function.

    adds:    what it does that the rung below does not
    options: of `torch.compile`; None leaves the function as it is
    """

    name: str
    adds: str
    options: dict[str, Any] | None


EAGER: Final = Rung("eager", "nothing", None)

RUNGS: Final = (
    EAGER,
    Rung("backend-eager", "tracing by Dynamo", {"backend": "eager"}),
    Rung("aot-eager", "functionalization by AOTAutograd", {"backend": "aot_eager"}),
    Rung("aot-eager-decomposed", "decompositions and the partitioner", {"backend": "aot_eager_decomp_partition"}),
    Rung("default", "Inductor: its passes, lowerings and generated kernels", {"backend": "inductor"}),
    Rung("reduce-overhead", "CUDA graphs", {"backend": "inductor", "mode": "reduce-overhead"}),
    Rung("max-autotune", "kernels chosen by measuring", {"backend": "inductor", "mode": "max-autotune"}),
)

NAMES: Final = tuple(rung.name for rung in RUNGS)


class Watched(NamedTuple):
    """What calls did, in order.

    fresh:    calls with arguments of their own, in number order
    repeated: as many calls on the same arguments, at the same addresses, holding what the call before leaves in eager
    again:    the first call made some times more, on equal arguments
    """

    fresh: list[Observation]
    repeated: list[Observation]
    again: list[Observation]

    def items(self) -> Iterator[tuple[str, Observation]]:
        """Each call with its name."""
        for what, observations in (
            ("call", self.fresh),
            ("repeated call", self.repeated),
            ("call 1 again,", self.again),
        ):
            for number, observation in enumerate(observations, 1):
                yield f"{what} {number}", observation


def watch(subject: Subject, rung: Rung, expected: Watched | None = None, *, repetitions: int = 2) -> Watched:
    """Make the calls of a subject on a rung. Nothing compiled before is used.

    expected: in eager. Repeated calls begin from what it left, so that roundings do not add up over calls.
    """
    with isolated():
        function = compile_on(subject.function, rung)
        fresh = [_call(function, subject.inputs(call), subject) for call in range(subject.calls)]
        held = subject.inputs(0)
        repeated = []
        for number in range(subject.calls):
            if expected is not None and number:
                _put(expected.repeated[number - 1].arguments, held)
            repeated.append(_call(function, held, subject))
        again = [_call(function, subject.inputs(0), subject) for _ in range(repetitions)]
        return Watched(fresh, repeated, again)


def compile_on(function: Function, rung: Rung) -> Function:
    """The function as the rung runs it."""
    if rung.options is None:
        return function

    # A module or any other callable is traced through a function of its own.
    def run(*inputs: Any) -> Any:
        return function(*inputs)

    compiled: Function = torch.compile(run, **rung.options)
    return compiled


def _call(function: Function, inputs: Inputs, subject: Subject) -> Observation:
    if torch.cuda.is_available():
        # What a captured graph gave out before may be overwritten: it has been copied.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
    return observe(function, inputs, subject.read)


def _put(arguments: dict[str, Any], held: Inputs) -> None:
    """Give tensors the values that they are expected to hold, in place."""
    for before, (_, leaf) in zip(arguments.values(), leaves(held), strict=True):
        if isinstance(leaf, Tensor):
            leaf.copy_(before)


@contextmanager
def isolated() -> Iterator[None]:
    """Without graphs that were compiled before, in memory or on disk, and without compile failures turned into eager runs.

    Generated kernels are kept on disk by their whole source, and so cannot be others.
    """
    import torch._functorch.config
    import torch._inductor.config

    torch._dynamo.reset()
    with ExitStack() as stack:
        # Where warnings are errors, those of the compiler itself are no property of the function.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch._inductor.config.patch(fx_graph_cache=False, fx_graph_remote_cache=False))
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        stack.enter_context(torch._dynamo.config.patch(suppress_errors=False))
        try:
            yield
        finally:
            torch._dynamo.reset()
