"""The evaluator of kgverify for a run: the native one, or the one on tensors."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.prover.native.choice import choose_native

if TYPE_CHECKING:
    from kgverify.prover.stages.stage_functions import Stages
    from kgverify.prover.state import Layout


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
    stages: "Stages | None" = None,
    **options: Any,
) -> Engine:
    """Make the evaluator in a mode; `options`, `faults` and `name`, are those of both evaluators.

    layout: includes the slots; a function that chooses it is called only for the evaluator on tensors

    The native evaluator has no slots, and ignores them. UserError if it does not fit, or is not available.
    """
    reasons = choose_native(mode, device, precision, limits, policy, stages)
    if reasons is not None:
        from kgverify.prover.native.engine import NativeEngine

        return NativeEngine(program, limits, policy, reasons=reasons, **options)
    from kgverify.prover.engine import CompiledEngine
    from kgverify.prover.layout import choose_layout

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
