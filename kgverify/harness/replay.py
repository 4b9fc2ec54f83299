"""Replaying one step in both engines with every stage watched: the earliest stage whose output differs is at fault."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from kgverify.diff.locate import is_close, locate_difference, shorten
from kgverify.diff.result import Divergence, Value
from kgverify.diff.view import Names, StepReader, StepView, outcome_name
from kgverify.engines.protocol import (
    Engine,
    Positions,
    ProbedEngine,
    StageOutputs,
    candidate_set,
    positions_of,
    take_position,
)
from kgverify.logic.atoms import Atom
from kgverify.logic.outcomes import GoalKind, Origin
from kgverify.logic.stages import STEP_STAGES, Stage
from kgverify.trace.columns import Columns, select_candidates

MOST_REPLAYED: Final = 1000
"""Divergences replayed; a further one is taken for one of those that look like it, if these all have one stage."""


class Replayed(NamedTuple):
    """A divergence after its step was replayed.

    outputs: the culprit stage's two outputs, where the replay shows them
    views:   the two steps that differ, if they are not those that were compared first
    """

    divergence: Divergence
    outputs: tuple[Any, Any] | None = None
    views: tuple[StepView, StepView] | None = None


def replay_divergences(
    divergences: tuple[Divergence, ...],
    columns: Columns,
    engines: tuple[Engine, Engine],
    names: Names,
    tolerance: float,
    in_company: Mapping[tuple[int, int], StepView] | None = None,
) -> list[Replayed]:
    """Name the stage of each divergence by replaying its step, or a whole derivation by itself.

    What comes out as expected when it is taken alone was not wrong by itself: the batch machinery around it was
    (`recycle`). A step that comes out wrong again, but not with the stages watched, keeps the stage read off the traces.
    columns: those of the expected trace; tolerance: of scores, absolute; in_company: the actual steps that differ, by
    (candidate, step): one that is wrong alone, and wrong in another way among the others, is two divergences.
    """
    replay = _Replay(columns, engines, names, tolerance)
    stages: dict[tuple[str, str], set[str]] = {}
    replayed = []
    for i, divergence in enumerate(divergences):
        looks = stages.setdefault((divergence.stage, divergence.field), set())
        if i >= MOST_REPLAYED and len(looks) == 1:
            replayed.append(Replayed(msgspec.structs.replace(divergence, stage=min(looks))))
            continue
        found = _replay_one(replay, divergence, in_company or {})
        looks.add(found[0].divergence.stage)
        replayed += found
    return replayed


def _replay_one(
    replay: "_Replay", divergence: Divergence, in_company: Mapping[tuple[int, int], StepView]
) -> list[Replayed]:
    if divergence.stage not in (*STEP_STAGES, Stage.RECYCLE):
        return [Replayed(divergence)]
    if divergence.field.startswith("candidates."):
        return [Replayed(replay.of_candidate(divergence))]
    found = replay.of_step(divergence)
    observed = in_company.get((divergence.candidate, divergence.step))
    if observed is None or found.outputs is None:
        return [found]
    return [found, *replay.of_company(divergence, observed)]


class _Replay:
    """Both engines, and the expected run whose steps they take again."""

    def __init__(self, columns: Columns, engines: tuple[Engine, Engine], names: Names, tolerance: float) -> None:
        self._columns = columns
        self._expected, self._actual = engines
        self._names = names
        self._tolerance = tolerance

    def of_step(self, divergence: Divergence) -> Replayed:
        """The step taken again; where its goal was wrong already, the step that made the goal."""
        step = divergence.step
        for at in (step - 1, step) if _starts_wrong(divergence) else (step,):
            position = position_at(self._columns, divergence.candidate, at)
            if isinstance(self._expected, ProbedEngine) and isinstance(self._actual, ProbedEngine):
                probes = self._expected.probe(position), self._actual.probe(position)
                named, outputs = _name_stage(divergence, *probes, self._names, self._tolerance)
                if outputs is not None:
                    return Replayed(named, outputs)
            if not _agrees_alone(self._expected.step(position), self._actual.step(position), self._tolerance):
                return Replayed(divergence)
        return Replayed(_of_machinery(divergence))

    def of_candidate(self, divergence: Divergence) -> Divergence:
        """What is reported of a whole derivation, where every step agrees: the derivation made again by itself."""
        if divergence.stage == Stage.RECYCLE or divergence.field == "candidates.atom":
            return divergence
        alone = np.array([divergence.candidate])
        expected = self._columns.candidates
        actual = self._actual.prove(candidate_set(self._columns).take(alone)).candidates
        sums = float(expected.log_probability[divergence.candidate]), float(actual.log_probability[0])
        agrees = (
            actual.outcome[0] == expected.outcome[divergence.candidate]
            and actual.is_limited[0] == expected.is_limited[divergence.candidate]
            and is_close(*sums, 1e-9 * max(1.0, abs(sums[0])) + 2 * self._tolerance * max(1, int(actual.num_steps[0])))
        )
        return _of_machinery(divergence) if agrees else divergence

    def of_company(self, divergence: Divergence, observed: StepView) -> list[Replayed]:
        """Whether the actual step, wrong alone, came out otherwise among other slots."""
        if _starts_wrong(divergence):
            return []
        position = position_at(self._columns, divergence.candidate, divergence.step)
        alone = StepReader(self._actual.step(position)).read(0)
        difference = locate_difference(alone, observed, self._names, divergence.step == 0, self._tolerance)
        if difference is None:
            return []
        other = msgspec.structs.replace(
            divergence, field=difference.field, expected=difference.expected, actual=difference.actual
        )
        return [Replayed(_of_machinery(other), views=(alone, observed))]


def _starts_wrong(divergence: Divergence) -> bool:
    return divergence.step > 0 and divergence.field in ("steps.goal_atoms", "steps.depth")


def _of_machinery(divergence: Divergence) -> Divergence:
    return msgspec.structs.replace(divergence, stage=Stage.RECYCLE.value, is_replayed=True)


def _agrees_alone(expected: Columns, actual: Columns, tolerance: float) -> bool:
    left, right = StepReader(expected).read(0), StepReader(actual).read(0)
    return [r.content for r in left.resolvents] == [r.content for r in right.resolvents] and all(
        (
            left.chosen == right.chosen,
            left.outcome == right.outcome,
            left.dropped_atoms == right.dropped_atoms,
            left.dropped_resolvents == right.dropped_resolvents,
            all(is_close(e.score, a.score, tolerance) for e, a in zip(left.resolvents, right.resolvents, strict=True)),
        )
    )


def position_at(columns: Columns, candidate: int, step: int) -> Positions:
    """The position before a step of a candidate."""
    return take_position(positions_of(select_candidates(columns, np.array([candidate]))), step)


def first_difference(expected: StageOutputs, actual: StageOutputs, tolerance: float) -> Stage | None:
    """The earliest stage that both engines show and whose outputs differ."""
    for stage in STEP_STAGES:
        if stage in expected and stage in actual and not _is_same(stage, expected[stage], actual[stage], tolerance):
            return stage
    return None


def _is_same(stage: Stage, expected: Any, actual: Any, tolerance: float) -> bool:
    if stage is Stage.SCORE:
        return len(expected) == len(actual) and all(
            is_close(e, a, tolerance) for e, a in zip(expected, actual, strict=True)
        )
    return bool(expected == actual)


def _name_stage(
    divergence: Divergence, expected: StageOutputs, actual: StageOutputs, names: Names, tolerance: float
) -> tuple[Divergence, tuple[Any, Any] | None]:
    stage = first_difference(expected, actual, tolerance)
    if stage is None:
        return divergence, None
    values = render_difference(stage, expected[stage], actual[stage], names)
    named = msgspec.structs.replace(
        divergence,
        stage=stage.value,
        field=f"stage.{stage.value}",
        expected=values[0],
        actual=values[1],
        is_replayed=True,
    )
    return named, (expected[stage], actual[stage])


def render_difference(stage: Stage, expected: Any, actual: Any, names: Names) -> tuple[Value, Value]:
    """Two outputs of a stage as a person reads them: of lists only what differs, in names, with provenance."""
    if stage is Stage.LIMIT:
        dropped = [f"dropped {each[1]} for their atoms, {each[2]} for their place" for each in (expected, actual)]
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
