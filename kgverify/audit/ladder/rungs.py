"""The rungs between eager and the most that `torch.compile` does, each isolated from the others."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from kgverify.audit.audited_function import Function, Inputs, Subject
from kgverify.audit.ladder.observation import Observation, observe
from kgverify.audit.values import list_leaves


class Rung(NamedTuple):
    """A way to run a function.

    adds:    the work of the compiler that the rung below does not do
    options: of `torch.compile`; None leaves the function unchanged
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


class Watched(NamedTuple):
    """The observations of calls, in order.

    fresh:    calls with separate arguments, in number order
    repeated: as many calls on the same arguments, at the same addresses, which hold the result of the eager call before
    again:    further calls like the first, on equal arguments
    """

    fresh: list[Observation]
    repeated: list[Observation]
    again: list[Observation]

    def items(self) -> Iterator[tuple[str, Observation]]:
        """Yield each call with its name."""
        for what, observations in (
            ("call", self.fresh),
            ("repeated call", self.repeated),
            ("call 1 again,", self.again),
        ):
            for number, observation in enumerate(observations, 1):
                yield f"{what} {number}", observation


def watch(subject: Subject, rung: Rung, expected: Watched | None = None, *, repetitions: int = 2) -> Watched:
    """Make the calls of a subject on a rung, compiled anew.

    expected: the eager calls. Repeated calls begin from their results, so that rounding does not add up over calls.
    """
    with isolating_compiler():
        function = compile_on(subject.function, rung)
        fresh = [_call(function, subject.inputs(call), subject) for call in range(subject.calls)]
        held = subject.inputs(0)
        repeated = []
        for number in range(subject.calls):
            if expected is not None and number:
                before = expected.repeated[number - 1].arguments
                for value, (_, leaf) in zip(before.values(), list_leaves(held), strict=True):
                    if isinstance(leaf, Tensor):
                        leaf.copy_(value)
            repeated.append(_call(function, held, subject))
        again = [_call(function, subject.inputs(0), subject) for _ in range(repetitions)]
        return Watched(fresh, repeated, again)


def compile_on(function: Function, rung: Rung) -> Function:
    """Compile a function as the rung does."""
    if rung.options is None:
        return function

    # A module or any other callable is traced through a plain function.
    def run(*inputs: Any) -> Any:
        return function(*inputs)

    compiled: Function = torch.compile(run, **rung.options)
    return compiled


def _call(function: Function, inputs: Inputs, subject: Subject) -> Observation:
    if torch.cuda.is_available():
        # Earlier outputs of a captured graph may be overwritten: they have been copied.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
    return observe(function, inputs, subject.read)


@contextmanager
def isolating_compiler() -> Iterator[None]:
    """Ignore graphs compiled before, in memory or on disk; a failed compilation is an error, not an eager run.

    Generated kernels stay in the cache on disk, whose key is their whole source.
    """
    import torch._functorch.config
    import torch._inductor.config

    torch._dynamo.reset()
    with (
        warnings.catch_warnings(),
        torch._inductor.config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._dynamo.config.patch(suppress_errors=False),
    ):
        # Even where warnings are errors, those of the compiler are not a property of the function.
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch._dynamo.reset()
