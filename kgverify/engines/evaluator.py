"""The evaluator of kgverify for a run: the native one, or the one on tensors."""

from typing import TYPE_CHECKING, Any

from kgverify.engines.native.choice import choose_native
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.program.limits import Limits
from kgverify.program.program import Program

if TYPE_CHECKING:
    from kgverify.engines.compiled.stages.stage_functions import Stages
    from kgverify.engines.compiled.state import Layout


def make_evaluator(
    program: Program,
    limits: Limits,
    policy: Policy,
    *,
    mode: str = "auto",
    device: str = "auto",
    precision: str = "float32",
    layout: "Layout | None" = None,
    slots: int | None = None,
    stages: "Stages | None" = None,
    **options: Any,
) -> Engine:
    """Make the evaluator in a mode; a layout includes the slots. `options`, `faults` and `name`, are those of both.

    The native evaluator has no slots, and ignores them. UserError if it does not fit, or is not available.
    """
    reasons = choose_native(mode, device, precision, limits, policy, stages)
    if reasons is not None:
        from kgverify.engines.native.engine import NativeEngine

        return NativeEngine(program, limits, policy, reasons=reasons, **options)
    from kgverify.engines.compiled.engine import CompiledEngine
    from kgverify.engines.compiled.layout import choose_layout

    if layout is None and slots is not None:
        layout = choose_layout(limits, slots=slots)
    return CompiledEngine(
        program,
        limits,
        policy,
        mode=mode,
        device=device,
        precision=precision,
        layout=layout,
        stages=stages,
        **options,
    )
