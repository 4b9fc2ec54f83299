"""Where what the stages of a step gave differs, and how that is told."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from kgverify.comparison.locate import is_close, shorten
from kgverify.comparison.result import Divergence, Value
from kgverify.comparison.view import Names, outcome_name
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import STEP_STAGES, Stage
from kgverify.trace.model.stage_items import StageOutputs


def starts_wrong(divergence: Divergence) -> bool:
    """Whether the step begins with a wrong goal, which the step before made, if there is one."""
    return divergence.field in ("steps.goal_atoms", "steps.depth")


def name_stage(divergence: Divergence, stage: Stage, expected: Any, actual: Any, names: Names) -> Divergence:
    """The divergence as that stage's, with what differs of its two outputs."""
    values = render_difference(stage, expected, actual, names)
    return msgspec.structs.replace(
        divergence, stage=stage.value, field=f"stage.{stage.value}", expected=values[0], actual=values[1]
    )


def first_difference(expected: StageOutputs, actual: StageOutputs, tolerance: float) -> Stage | None:
    """The earliest stage that both engines show and whose outputs differ."""
    for stage in STEP_STAGES:
        if (
            stage in expected
            and stage in actual
            and not is_same_output(stage, expected[stage], actual[stage], tolerance)
        ):
            return stage
    return None


def is_same_output(stage: Stage, expected: Any, actual: Any, tolerance: float) -> bool:
    """Whether a stage gave the same twice, scores within the tolerance."""
    if stage is Stage.SCORE:
        return len(expected) == len(actual) and all(
            is_close(e, a, tolerance) for e, a in zip(expected, actual, strict=True)
        )
    return bool(expected == actual)


def render_difference(stage: Stage, expected: Any, actual: Any, names: Names) -> tuple[Value, Value]:
    """Two outputs of a stage as a person reads them: of lists only what differs, in names, with provenance."""
    if stage is Stage.LIMIT:
        dropped = [_render_dropped(each[1:]) for each in (expected, actual)]
        if dropped[0] != dropped[1]:
            return dropped[0], dropped[1]
        expected, actual = expected[0], actual[0]
    if stage in (Stage.SELECT, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH):
        return _render_single(stage, expected, names), _render_single(stage, actual, names)
    if stage is Stage.SCORE:
        return shorten(map(repr, expected)), shorten(map(repr, actual))
    left, right = _only(expected, actual), _only(actual, expected)
    if not left and not right:
        left, right = list(expected), list(actual)
    return tuple(  # type: ignore[return-value]
        shorten(_render_item(stage, item, names) for item in side) or ["nothing more"] for side in (left, right)
    )


def render_output(stage: Stage, output: Any, names: Names) -> Iterator[str]:
    """What a stage gave as a person reads it, item by item."""
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
    return f"dropped {counts[0]} for their atoms, {counts[1]} for their place"


def _only(these: Any, others: Any) -> list[Any]:
    left = Counter(others)
    found = []
    for item in these:
        if left[item]:
            left[item] -= 1
        else:
            found.append(item)
    return found


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
    text = names.goal(tuple(Atom(*a) for a in atoms), kind)
    made_by = names.clause(origin_kind, origin)
    return f"{text}   by {made_by}" if made_by else text
