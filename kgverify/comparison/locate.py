"""The stage of a difference, inferred from two recorded steps.

The inferred stage is the earliest one whose recorded output differs. Replaying the step in both engines, stage by stage,
is more exact: see `kgverify.verification.replay`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from kgverify.comparison.result import NOTHING_MORE, Divergence, Level, Value
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import Names, ResolventView, StepView, canonical, list_unshared, outcome_name
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin, Stage
from kgverify.trace.model.stage_items import StageOutputs

if TYPE_CHECKING:
    from kgverify.comparison.inference.step_difference import StepDifference

MOST_SHOWN = 12
"""The most differing items to list; the rest are counted."""


OF_ACTUAL: Final = "after a near-tie, from the beam that the actual side kept"
"""The evidence for a divergence in a level of the actual side that the expected side has not taken."""


class Difference(NamedTuple):
    """The first field in which two steps differ, with its stage and both values.

    found: the explanation of the resolvents, if the clauses that made them are not known
    """

    stage: Stage
    field: str
    expected: Value
    actual: Value
    found: "StepDifference | None" = None


def locate_difference(
    expected: StepView,
    actual: StepView,
    names: Names,
    is_first_step: bool,
    score_tolerance: float,
) -> Difference | None:
    """Return the earliest recorded field in which two steps differ, or None if they agree."""
    before = Stage.RECYCLE if is_first_step else Stage.ADVANCE
    if expected.goal != actual.goal:
        return Difference(before, "steps.goal_atoms", names.goal(expected.goal), names.goal(actual.goal))
    if expected.depth != actual.depth:
        return Difference(before, "steps.depth", expected.depth, actual.depth)
    contents = [[r.content for r in step.resolvents] for step in (expected, actual)]
    clauses = [[r.clause for r in step.resolvents] for step in (expected, actual)]
    if contents[0] != contents[1] or clauses[0] != clauses[1]:
        return _locate_in_resolvents(StepPair(expected, actual), names)
    for field in ("dropped_atoms", "dropped_resolvents"):
        counts = getattr(expected, field), getattr(actual, field)
        if counts[0] != counts[1]:
            return Difference(Stage.LIMIT, f"steps.{field}", *counts)
    scores = [
        (e, a)
        for e, a in zip(expected.resolvents, actual.resolvents, strict=True)
        if not is_close(e.score, a.score, score_tolerance)
    ]
    if scores:
        texts = [[f"{r.score!r} for {names.goal(r.atoms, r.kind)}" for r in side] for side in zip(*scores, strict=True)]
        return Difference(Stage.SCORE, "resolvents.score", shorten(texts[0]), shorten(texts[1]))
    if expected.choice != actual.choice:
        return Difference(Stage.CHOOSE, "steps.choice", render_choice(expected, names), render_choice(actual, names))
    if expected.outcome != actual.outcome:
        return Difference(Stage.FINISH, "steps.outcome", outcome_name(expected.outcome), outcome_name(actual.outcome))
    return None


def is_close(expected: float, actual: float, tolerance: float) -> bool:
    """Return whether two numbers are equal within an absolute tolerance. NaN is not equal to anything."""
    return expected == actual or abs(expected - actual) <= tolerance


def level_of_step(expected: StepView, actual: StepView, difference: Difference) -> Level:
    """Return the level of the difference of two steps, as far as it shows within the step."""
    if expected.outcome != actual.outcome:
        return Level.OUTCOME
    if expected.chosen != actual.chosen:
        return Level.CHOICE
    if difference.field == "resolvents.score":
        return Level.TOLERANCE
    is_order = difference.field in ("resolvents.order", "resolvents.origin", "steps.choice")
    return Level.ORDER if is_order and _is_same(expected.resolvents, actual.resolvents) else Level.RENAMING


def _is_same(expected: Sequence[ResolventView], actual: Sequence[ResolventView]) -> bool:
    """Return whether two lists have the same contents in any order."""
    return len(expected) == len(actual) and Counter(r.content for r in expected) == Counter(r.content for r in actual)


def shorten(items: Iterable[str]) -> list[str]:
    """Return the first items, and the number of further ones."""
    listed = list(items)
    if len(listed) <= MOST_SHOWN:
        return listed
    return [*listed[:MOST_SHOWN], f"... and {len(listed) - MOST_SHOWN} more"]


def render_choice(step: StepView, names: Names) -> str:
    """Render the choice of a step: its index, its score, and the resolvent."""
    if step.chosen is None:
        return f"index {step.choice}, not a resolvent"
    chosen = step.resolvents[step.choice]
    return f"index {step.choice}, score {chosen.score!r}: {names.goal(chosen.atoms, chosen.kind)}"


def _locate_in_resolvents(pair: StepPair, names: Names) -> Difference:
    """Locate a difference of resolvents: missing or extra clauses indicate matching, changed atoms indicate later stages."""
    if not any(pair.only):
        left, right = (shorten(map(names.resolvent, step.resolvents)) for step in pair.steps)
        return Difference(Stage.RESOLVE, "resolvents.order", left, right)
    left, right = (shorten(map(names.resolvent, side)) or NOTHING_MORE for side in pair.only)
    return Difference(_stage_of(pair), "resolvents.origin" if _is_same(*pair.only) else "resolvents.atoms", left, right)


def _stage_of(pair: StepPair) -> Stage:
    missing, extra = ({r.clause: r for r in side} for side in pair.only)
    if {r.kind for side in pair.only for r in side} <= {GoalKind.FALSE, GoalKind.STOP}:
        return Stage.CLOSE
    shared = missing.keys() & extra.keys()
    if shared:
        return _stage_of_change(missing[min(shared)], extra[min(shared)])
    dropped = [step.dropped_atoms + step.dropped_resolvents for step in pair.steps]
    totals = [len(step.resolvents) + num for step, num in zip(pair.steps, dropped, strict=True)]
    if totals[0] == totals[1] and dropped[0] != dropped[1]:
        return Stage.LIMIT
    return Stage.MATCH_FACTS if any(kind == Origin.FACT for kind, _ in (*missing, *extra)) else Stage.MATCH_RULES


def _stage_of_change(expected: ResolventView, actual: ResolventView) -> Stage:
    """Return the stage at which the same clause made two different resolvents."""
    if expected.kind == actual.kind and canonical(expected.atoms) == canonical(actual.atoms):
        return Stage.RENAME
    shorter, longer = sorted((expected.atoms, actual.atoms), key=len)
    rest = iter(longer)
    if len(shorter) != len(longer) and all(atom in rest for atom in shorter):
        return Stage.PRUNE
    return Stage.RESOLVE


def starts_wrong(divergence: Divergence) -> bool:
    """Return whether the step begins with a wrong goal, made by the step before if there is one."""
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
    """Render two outputs of a stage with names; for lists, render only the items that differ, with their clauses."""
    if stage in _RENDER_SINGLE:
        return _RENDER_SINGLE[stage](expected, names), _RENDER_SINGLE[stage](actual, names)
    if stage is Stage.LIMIT:
        dropped = [_render_dropped(each[1:]) for each in (expected, actual)]
        if dropped[0] != dropped[1]:
            return dropped[0], dropped[1]
        expected, actual = expected[0], actual[0]
    only = ([], []) if stage is Stage.SCORE else list_unshared(expected, actual)
    left, right = (
        shorten(_render_item(stage, item, names) for item in side) or NOTHING_MORE
        for side in (only if any(only) else (expected, actual))
    )
    return left, right


def render_output(stage: Stage, output: Any, names: Names) -> Iterator[str]:
    """Render the output of a stage with names, item by item."""
    if stage in _RENDER_SINGLE:
        yield str(_RENDER_SINGLE[stage](output, names))
        return
    if stage is Stage.LIMIT:
        output, *dropped = output
        if any(dropped):
            yield _render_dropped(dropped)
    yield from (_render_item(stage, item, names) for item in output)


def _render_dropped(counts: Any) -> str:
    return f"dropped {counts[0]} by max_atoms, {counts[1]} by max_resolvents"


def _render_goal(value: Any, names: Names) -> str:
    kind, atoms, depth = value
    return f"{names.goal(tuple(Atom(*a) for a in atoms), kind)} at depth {depth}"


_RENDER_SINGLE: Final[Mapping[Stage, Callable[[Any, Names], Value]]] = {
    Stage.SELECT: lambda value, names: names.atom(value),
    Stage.CHOOSE: lambda value, names: int(value),
    Stage.ADVANCE: _render_goal,
    Stage.FINISH: lambda value, names: outcome_name(value),
}
"""The functions that render the outputs of stages with a single value."""


def _render_item(stage: Stage, item: Any, names: Names) -> str:
    if stage is Stage.SCORE:
        return repr(item)
    if stage in (Stage.MATCH_RULES, Stage.MATCH_FACTS):
        return names.clause(Origin.RULE if stage is Stage.MATCH_RULES else Origin.FACT, item)
    kind, origin_kind, origin, atoms = item if len(item) == 4 else (GoalKind.GOAL, *item)
    return names.resolvent(ResolventView(kind, tuple(Atom(*a) for a in atoms), origin_kind, origin, 0.0))
