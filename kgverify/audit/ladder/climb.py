"""The climb from eager upwards, rung by rung, to the first on which a function no longer does what it does in eager."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from kgverify.audit.audited_function import Function, Subject
from kgverify.audit.ladder.observation import Deviation, DeviceLost, Observation, compare_observations, observe
from kgverify.audit.properties.syncs import Reads
from kgverify.audit.values import list_leaves
from kgverify.errors import UserError


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


class Climb(NamedTuple):
    """The result of a rung. num_calls: compared calls; seconds: with compilation; is_lost: whether the device was lost."""

    rung: Rung
    deviations: tuple[Deviation, ...]
    num_calls: int
    seconds: float
    is_lost: bool = False


class Ladder(NamedTuple):
    """A subject on every rung. unsteady: how eager differs from itself; then no rung is compared."""

    unsteady: tuple[Deviation, ...]
    climbs: tuple[Climb, ...]

    @property
    def first(self) -> Climb | None:
        """The lowest rung that deviates."""
        return next((climb for climb in self.climbs if climb.deviations), None)


def climb(
    subject: Subject,
    *,
    rungs: Sequence[Rung] = RUNGS,
    repetitions: int = 2,
    begin: Callable[[str], None] = lambda name: None,
) -> Ladder:
    """Compare every rung with eager, which is first run twice. begin: receives the name of each rung."""
    begin(EAGER.name)
    expected = watch(subject, EAGER, repetitions=repetitions)
    if all(observation.error for observation in expected.values()):
        raise UserError(
            f"already fails in eager: {next(iter(expected.values())).error}",
            where=subject.name,
            fix="check the function and the arguments that make_inputs makes",
        )
    unsteady = find_deviations(expected, watch(subject, EAGER, repetitions=repetitions))
    climbs = []
    for rung in rungs if not unsteady else ():
        if rung is EAGER:
            continue
        begin(rung.name)
        began = time.perf_counter()
        try:
            actual = watch(subject, rung, expected, repetitions=repetitions)
        except DeviceLost as error:
            lost = Deviation("some call", "error", "", f"the device was lost: {error}")
            climbs.append(Climb(rung, (lost,), 0, time.perf_counter() - began, is_lost=True))
            break
        deviations = find_deviations(expected, actual)
        climbs.append(Climb(rung, deviations, len(actual), time.perf_counter() - began))
    return Ladder(unsteady, tuple(climbs))


def find_smallest_part(
    subject: Subject, rung: Rung, begin: Callable[[str], None] = lambda name: None
) -> Subject | None:
    """Return the smallest part that deviates by itself on this rung; None if no part does."""
    found = []
    for part in subject.parts.values():
        begin(part.name)
        expected = watch(part, EAGER)
        if find_deviations(expected, watch(part, rung, expected)):
            found.append(part)
    return min(found, key=_count_operators, default=None)


def _count_operators(subject: Subject) -> int:
    """Count the operators of one call in eager."""
    reads = Reads(subject.function)
    with reads:
        subject.function(*subject.inputs(0))
    return reads.num_operations


Watched = dict[str, Observation]
"""The observations of calls, by the names of these, in order.

call N:           calls with separate arguments
repeated call N:  as many calls on the same arguments, at the same addresses, which hold the result of the eager call before
call 1 again, N:  further calls like the first, on equal arguments
"""


def find_deviations(expected: Watched, actual: Watched) -> tuple[Deviation, ...]:
    """List the deviations, call by call."""
    return tuple(
        deviation for call, before in expected.items() for deviation in compare_observations(before, actual[call], call)
    )


def watch(subject: Subject, rung: Rung, expected: Watched | None = None, *, repetitions: int = 2) -> Watched:
    """Make the calls of a subject on a rung, compiled anew.

    expected: the eager calls. Repeated calls begin from their results, so that rounding does not add up over calls.
    """
    with isolating_compiler():
        function = subject.function if rung.options is None else compile_plainly(subject.function, rung.options)
        seen = {f"call {call + 1}": _call(function, subject.inputs(call), subject) for call in range(subject.calls)}
        held = subject.inputs(0)
        for number in range(subject.calls):
            if expected is not None and number:
                before = expected[f"repeated call {number}"].arguments
                for value, (_, leaf) in zip(before.values(), list_leaves(held), strict=True):
                    if isinstance(leaf, Tensor):
                        leaf.copy_(value)
            seen[f"repeated call {number + 1}"] = _call(function, held, subject)
        for number in range(repetitions):
            seen[f"call 1 again, {number + 1}"] = _call(function, subject.inputs(0), subject)
        return seen


def compile_plainly(function: Function, options: dict[str, Any]) -> Function:
    """Compile any callable, such as a module, through a plain function."""

    def run(*inputs: Any) -> Any:
        return function(*inputs)

    compiled: Function = torch.compile(run, **options)
    return compiled


def _call(function: Function, inputs: tuple[Any, ...], subject: Subject) -> Observation:
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
