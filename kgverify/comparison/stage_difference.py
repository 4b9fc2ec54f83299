"""The first stage of a step whose outputs differ, and both outputs in words."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kgverify.comparison.block import BlockComparer
from kgverify.comparison.inference.dialects import order_of_stages
from kgverify.comparison.locate import is_close, list_missing, shorten
from kgverify.comparison.modulo.outputs import normalise_outputs
from kgverify.comparison.result import Divergence, Value
from kgverify.comparison.step_view import Names, ResolventView, outcome_name
from kgverify.program.atoms import Atom
from kgverify.program.dialect import OURS
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import STEP_STAGES, Stage
from kgverify.trace.model.stage_items import StageOutputs, StageReader

Outputs = tuple[Any, Any]
"""The expected and the actual output of a stage."""


class StageNamer:
    """Names the stages of the divergences of one block from what both traces, of level `deep`, recorded."""

    def __init__(self, block: BlockComparer) -> None:
        self._block = block
        self._stages = StageReader(block.pair.expected.columns), StageReader(block.pair.actual.columns)
        self._is_recorded = all(reader.has_stages for reader in self._stages)

    def name(self, divergence: Divergence) -> tuple[Divergence, Outputs | None]:
        """Return the divergence with the earliest stage that both sides recorded and that differs, and its outputs.

        If the stages of a step agree and the step differs, `recycle` is at fault: the machinery around the stages. The
        divergence stays as it is where a side has no such step or did not record the stages.
        """
        is_of_step = divergence.step >= 0 and divergence.field.startswith(("steps.", "resolvents."))
        if not self._is_recorded or not is_of_step:
            return divergence, None
        is_wrong_before = starts_wrong(divergence)
        if is_wrong_before and not divergence.step:
            # Nothing before it went wrong: it began wrong.
            return divergence, None
        block = self._block
        step = 0 if block.lockstep else divergence.step - is_wrong_before
        expected, actual = (
            normalise_outputs(stages.read(reader.first_step[divergence.candidate] + step), block.pair.modulo)
            for stages, reader in zip(self._stages, block.readers, strict=True)
        )
        order = order_of_stages(block.pair.expected.header.limits.dialect or OURS)
        stage = first_difference(expected, actual, block.pair.score_tolerance, order)
        if stage is not None:
            outputs = expected[stage], actual[stage]
            return name_stage(divergence, stage, *outputs, block.names), outputs
        decisive = [Stage.ADVANCE] if is_wrong_before else STEP_STAGES
        if all(each in expected and each in actual for each in decisive):
            return msgspec.structs.replace(divergence, stage=Stage.RECYCLE.value), None
        return divergence, None


def starts_wrong(divergence: Divergence) -> bool:
    """Return whether the step begins with a wrong goal, which the step before made, if there is one."""
    return divergence.field in ("steps.goal_atoms", "steps.depth")


def name_stage(divergence: Divergence, stage: Stage, expected: Any, actual: Any, names: Names) -> Divergence:
    """Return the divergence with a stage, and with the difference of the stage's two outputs."""
    values = render_difference(stage, expected, actual, names)
    return msgspec.structs.replace(
        divergence, stage=stage.value, field=f"stage.{stage.value}", expected=values[0], actual=values[1]
    )


def first_difference(
    expected: StageOutputs, actual: StageOutputs, tolerance: float, order: Sequence[Stage] = STEP_STAGES
) -> Stage | None:
    """Return the earliest stage, in the order of a dialect, that both engines show and whose outputs differ."""
    shown = (stage for stage in order if stage in expected and stage in actual)
    return next((s for s in shown if not is_same_output(s, expected[s], actual[s], tolerance)), None)


def is_same_output(stage: Stage, expected: Any, actual: Any, tolerance: float) -> bool:
    """Return whether two outputs of a stage are equal, scores within the tolerance."""
    if stage is Stage.SCORE:
        return len(expected) == len(actual) and all(
            is_close(e, a, tolerance) for e, a in zip(expected, actual, strict=True)
        )
    return bool(expected == actual)


def render_difference(stage: Stage, expected: Any, actual: Any, names: Names) -> tuple[Value, Value]:
    """Render two outputs of a stage in names; of lists only the items that differ, with their clauses."""
    if stage is Stage.LIMIT:
        dropped = [_render_dropped(each[1:]) for each in (expected, actual)]
        if dropped[0] != dropped[1]:
            return dropped[0], dropped[1]
        expected, actual = expected[0], actual[0]
    if stage in (Stage.SELECT, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH):
        return _render_single(stage, expected, names), _render_single(stage, actual, names)
    if stage is Stage.SCORE:
        return shorten(map(repr, expected)), shorten(map(repr, actual))
    left, right = list_missing(expected, actual), list_missing(actual, expected)
    if not left and not right:
        left, right = list(expected), list(actual)
    return tuple(  # type: ignore[return-value]
        shorten(_render_item(stage, item, names) for item in side) or ["nothing more"] for side in (left, right)
    )


def render_output(stage: Stage, output: Any, names: Names) -> Iterator[str]:
    """Render the output of a stage in names, item by item."""
    if stage in (Stage.SELECT, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH):
        yield str(_render_single(stage, output, names))
        return
    if stage is Stage.SCORE:
        yield from map(repr, output)
        return
    if stage is Stage.LIMIT:
        output, *dropped = output
        if any(dropped):
            yield _render_dropped(dropped)
    yield from (_render_item(stage, item, names) for item in output)


def _render_dropped(counts: Any) -> str:
    return f"dropped {counts[0]} by max_atoms, {counts[1]} by max_resolvents"


def _render_single(stage: Stage, value: Any, names: Names) -> Value:
    if stage is Stage.SELECT:
        return names.atom(value)
    if stage is Stage.ADVANCE:
        kind, atoms, depth = value
        return f"{names.goal(tuple(Atom(*a) for a in atoms), kind)} at depth {depth}"
    return outcome_name(value) if stage is Stage.FINISH else int(value)


def _render_item(stage: Stage, item: Any, names: Names) -> str:
    if stage is Stage.MATCH_RULES:
        return names.clause(Origin.RULE, item)
    if stage is Stage.MATCH_FACTS:
        return names.clause(Origin.FACT, item)
    kind, origin_kind, origin, atoms = item if len(item) == 4 else (GoalKind.GOAL, *item)
    return names.resolvent(ResolventView(kind, tuple(Atom(*a) for a in atoms), origin_kind, origin, 0.0))
