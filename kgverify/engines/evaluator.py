"""The evaluator of kgverify for a run: the native one, the one on tensors, or the plain one."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.native.choice import choose_native, why_not_native
from kgverify.engines.plain.choice import choose_plain
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.program.limits import Limits
from kgverify.program.program import Program

if TYPE_CHECKING:
    from kgverify.engines.compiled.state import Layout


def make_evaluator(
    program: Program,
    limits: Limits,
    policy: Policy,
    *,
    mode: str = "auto",
    device: str = "auto",
    precision: str = "float32",
    layout: "Layout | Callable[[], Layout] | None" = None,
    slots: int | None = None,
    stages: Any = None,
    triples: NDArray[np.int32] | None = None,
    **options: Any,
) -> Engine:
    """Make the evaluator in a mode; `options`, `faults` and `name`, are those of every evaluator.

    layout:  includes the slots; a function that chooses it is called only for the evaluator on tensors
    stages:  those of the plain evaluator or of the one on tensors, some of which are replaced
    triples: int32 [n, 3] the split of the queries, which only the plain evaluator needs

    Only the evaluator on tensors has slots; the others ignore them. UserError if the evaluator of the mode does not fit, or is
    not available.
    """
    reasons = choose_native(mode, device, precision, limits, policy, stages)
    if reasons is not None:
        from kgverify.engines.native.engine import NativeEngine

        return NativeEngine(program, limits, policy, reasons=reasons, **options)
    reasons = choose_plain(mode, device, precision, partial(why_not_native, device, precision, limits, policy, stages))
    if reasons is not None:
        from kgverify.engines.plain.engine import PlainEngine
        from kgverify.step.plain_step import SOUND

        return PlainEngine(program, limits, policy, stages=stages or SOUND, triples=triples, reasons=reasons, **options)
    from kgverify.engines.compiled.engine import CompiledEngine
    from kgverify.engines.compiled.layout import choose_layout

    if layout is None:
        sizes = None if slots is None else choose_layout(limits, slots=slots)
    else:
        sizes = layout() if callable(layout) else layout
    return CompiledEngine(
        program,
        limits,
        policy,
        mode=mode,
        device=device,
        precision=precision,
        layout=sizes,
        stages=stages,
        **options,
    )
