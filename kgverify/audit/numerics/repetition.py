"""The same arguments twice: do equal bits come out, eager and compiled, of small and of large shapes?"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kgverify.audit.report import Finding, Unmeasured, describe_error
from kgverify.audit.numerics.batch import batch_size, tile
from kgverify.audit.values import (
    Difference,
    Look,
    bits_of,
    devices_of,
    differences,
    in_mode,
    keep,
    user_line,
)
from kgverify.audit.audited_function import Function, Inputs, Subject

MECHANISM: Final = (
    "atomics and reductions whose order is left open round differently each time; draws from a global generator and"
    " memory that was not written differ, too"
)
LARGE: Final = 1 << 20
"""Elements of the largest argument where shapes are large: some kernels divide their work only then."""


class Taken(NamedTuple):
    """An operation: its name, the user's line, and hashes of what it took and gave."""

    name: str
    where: str
    inputs: int
    outputs: int


def audit_repetition(
    subject: Subject,
    *,
    modes: Sequence[str] = ("eager", "default"),
    repetitions: int = 3,
    batch_axis: int | None = 0,
    batched: Sequence[int] | None = None,
    large: int | None = None,
) -> Look:
    """Call with equal arguments several times, in each mode; every leaf of the result and of the arguments counts.

    modes:   `eager`, or modes of `torch.compile`
    large:   elements that arguments are repeated to along the batch axis, for calls beside the others; on CUDA a
             million if not given, and none on a CPU
    """
    inputs = subject.inputs(0)
    calls = sorted({0, subject.calls // 2, subject.calls - 1})
    if large is None and "cuda" in devices_of(inputs):
        large = LARGE
    variants = [("" if call == 0 else f", call {call}", partial(subject.inputs, call)) for call in calls]
    if large is not None and batch_axis is not None:
        factor = _factor(inputs, batch_axis, batched, large)
        if factor > 1:
            title = f", arguments {factor} times as large"
            variants.append((title, partial(_tiled, subject, batch_axis, batched, factor)))
    look = Look(measures={"repetitions": float(repetitions)})
    for mode in modes:
        function = in_mode(subject.function, mode)
        for title, make in variants:
            seen = _repeat(subject, function, mode, title, make, repetitions)
            look = look.join(seen)
            if seen.findings or seen.unmeasured:
                # Of one kind one is enough.
                break
    return look


def _tiled(subject: Subject, batch_axis: int, batched: Sequence[int] | None, factor: int) -> Inputs:
    return tile(subject.inputs(0), batch_axis, batched, factor)


def _factor(inputs: Inputs, batch_axis: int, batched: Sequence[int] | None, large: int) -> int:
    if batch_size(inputs, batch_axis, batched) == 0:
        return 1
    sizes = [leaf.numel() for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    return -(-large // max(1, *sizes, 1))


def _repeat(
    subject: Subject, function: Function, mode: str, title: str, make: Callable[[], Inputs], repetitions: int
) -> Look:
    try:
        results = [_call(function, make()) for _ in range(repetitions)]
    except Exception as error:  # What the user's function or the compiler raises is told, whatever it is.
        reason = f"{subject.name}, mode {mode}{title}: {describe_error(error)}"
        return Look(unmeasured=(Unmeasured(audit="repetition", reason=reason),))
    for number, result in enumerate(results[1:], 2):
        found = next(differences(results[0], result), None)
        if found is None:
            continue
        return Look(findings=(_finding(subject, mode, title, make, number, found),))
    return Look()


def _call(function: Function, inputs: Inputs) -> Any:
    """The result, and the arguments as the call left them."""
    result = function(*inputs)
    return keep((result, inputs))


def _finding(
    subject: Subject, mode: str, title: str, make: Callable[[], Inputs], number: int, found: Difference
) -> Finding:
    where, operation = subject.name, ""
    if mode == "eager":
        taken = first_varying(subject.function, make)
        if taken is not None:
            where, operation = taken.where, f"; first {taken.name}, whose arguments are equal"
    return Finding(
        audit="repetition",
        mechanism=MECHANISM,
        finding=f"{subject.name}, mode {mode}{title}: calls 1 and {number} with equal arguments differ: {found}{operation}",
        where=where,
        remedy="use the deterministic variant of the operation (torch.use_deterministic_algorithms(True) names it),"
        " or give it a generator with a seed",
    )


class OperationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation with hashes of its arguments' and its results' bits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.taken: list[Taken] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and note it."""
        kwargs = kwargs or {}
        before = _hash((args, kwargs))
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        # What memory that is not yet written holds is nobody's difference.
        after = 0 if name.startswith(("empty", "new_empty")) else _hash(out)
        self.taken.append(Taken(f"torch.ops.{func}", user_line(), before, after))
        return out


def first_varying(function: Function, make: Callable[[], Inputs]) -> Taken | None:
    """The first operation, run eagerly twice, whose arguments are equal and whose result differs."""
    logs = []
    for _ in range(2):
        inputs = make()
        with OperationLog() as log:
            function(*inputs)
        logs.append(log.taken)
    pairs: Iterator[tuple[Taken, Taken]] = zip(*logs, strict=False)
    return next((a for a, b in pairs if a.inputs == b.inputs and a.outputs != b.outputs), None)


def _hash(tree: Any) -> int:
    """Of the bits of all tensors in it; of large ones on the host as well."""
    digest = xxhash.xxh3_64()
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            digest.update(np.ascontiguousarray(bits_of(leaf.detach()).cpu().numpy()).tobytes())
    return digest.intdigest()
