"""Replaying one step in both engines with every stage watched: the earliest stage whose output differs is at fault."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from kgverify.comparison.locate import is_close, locate_difference
from kgverify.comparison.result import Divergence
from kgverify.comparison.stage_difference import first_difference, name_stage, starts_wrong
from kgverify.comparison.step_view import Names, StepReader, StepView
from kgverify.engines.protocol import (
    Engine,
    Positions,
    ProbedEngine,
    candidate_set,
    positions_of,
    take_position,
)
from kgverify.program.limits import Limits
from kgverify.program.stages import STEP_STAGES, Stage
from kgverify.trace.model.columns import Columns, select_candidates
from kgverify.trace.model.stage_items import StageOutputs
from kgverify.verification.stagewise import StageFault, later_faults

ALL_REPLAYED: Final = 200
"""So many divergences are replayed one by one. A further one is taken for one of those that look like it, if these all have
one stage; every tenth is replayed all the same."""


class Replayed(NamedTuple):
    """A divergence after its step was replayed.

    outputs: the culprit stage's two outputs, where the replay shows them
    views:   the two steps that differ, if they are not those that were compared first
    like:    the one that it is taken for, where it was not replayed itself
    """

    divergence: Divergence
    outputs: tuple[Any, Any] | None = None
    views: tuple[StepView, StepView] | None = None
    like: "Replayed | None" = None


def replay_divergences(
    divergences: tuple[Divergence, ...],
    columns: Columns,
    engines: tuple[Engine, Engine],
    names: Names,
    tolerance: float,
    lockstep: "Lockstep | None" = None,
) -> list[Replayed]:
    """Name the stage of each divergence by replaying its step, or a whole derivation by itself.

    What comes out as expected when it is taken alone was not wrong by itself: the batch machinery around it was
    (`recycle`). A step that comes out wrong again, but not with the stages watched, keeps the stage read off the traces.
    columns: those of the expected trace; tolerance: of scores, absolute. In lockstep a step may be several divergences: of
    each stage that is at fault by itself, and of the machinery if the step is wrong in another way among the others.
    """
    replay = _Replay(columns, engines, names, tolerance, lockstep)
    seen: dict[tuple[str, str, bool, bool], dict[str, Replayed]] = {}
    replayed = []
    for i, divergence in enumerate(divergences):
        has_missing, has_extra = (value != ["nothing more"] for value in (divergence.expected, divergence.actual))
        alike = seen.setdefault((divergence.stage, divergence.field, has_missing, has_extra), {})
        if i >= ALL_REPLAYED and i % 10 and len(alike) == 1:
            ((stage, like),) = alike.items()
            replayed.append(Replayed(msgspec.structs.replace(divergence, stage=stage), like=like))
            continue
        found = _replay_one(replay, divergence)
        alike.setdefault(found[0].divergence.stage, found[0])
        replayed += found
    return replayed


def _replay_one(replay: "_Replay", divergence: Divergence) -> list[Replayed]:
    if divergence.stage not in (*STEP_STAGES, Stage.RECYCLE):
        return [Replayed(divergence)]
    if divergence.field.startswith("candidates."):
        return [Replayed(replay.of_candidate(divergence))]
    found = replay.of_step(divergence)
    if replay.lockstep is None or found.outputs is None or starts_wrong(divergence):
        return [found]
    return [found, *replay.behind(found.divergence, replay.lockstep)]


class Lockstep(NamedTuple):
    """What the faults behind the first one of a step are told by.

    observed: the actual steps that differ, by (candidate, step)
    """

    observed: Mapping[tuple[int, int], StepView]
    limits: Limits


class _Replay:
    """Both engines, and the expected run whose steps they take again."""

    def __init__(
        self,
        columns: Columns,
        engines: tuple[Engine, Engine],
        names: Names,
        tolerance: float,
        lockstep: Lockstep | None,
    ) -> None:
        self._columns = columns
        self._expected, self._actual = engines
        self._names = names
        self._tolerance = tolerance
        self.lockstep = lockstep

    def of_step(self, divergence: Divergence) -> Replayed:
        """The step taken again; where its goal was wrong already, the step that made the goal."""
        step = divergence.step
        for at in (step - 1, step) if step > 0 and starts_wrong(divergence) else (step,):
            position = position_at(self._columns, divergence.candidate, at)
            probes = self._probe(position)
            stage = first_difference(*probes, self._tolerance) if probes else None
            if probes and stage:
                return self._name(divergence, StageFault(stage, probes[0][stage], probes[1][stage]))
            if not _agrees_alone(self._expected.step(position), self._actual.step(position), self._tolerance):
                return Replayed(divergence)
        return Replayed(_of_machinery(divergence))

    def _probe(self, position: Positions) -> tuple[StageOutputs, StageOutputs] | None:
        if isinstance(self._expected, ProbedEngine) and isinstance(self._actual, ProbedEngine):
            return self._expected.probe(position), self._actual.probe(position)
        return None

    def _name(self, divergence: Divergence, fault: StageFault) -> Replayed:
        named = msgspec.structs.replace(name_stage(divergence, *fault, self._names), is_replayed=True)
        return Replayed(named, (fault.expected, fault.actual))

    def behind(self, first: Divergence, lockstep: Lockstep) -> list[Replayed]:
        """What else is wrong in a step, behind the culprit."""
        position = position_at(self._columns, first.candidate, first.step)
        probes = self._probe(position)
        if probes is None:
            return []
        found = []
        alone = StepReader(self._actual.step(position)).read(0)
        for fault in later_faults(Stage(first.stage), *probes, lockstep.limits, self._tolerance):
            replayed = self._name(first, fault)
            right = alone._replace(choice=fault.expected) if fault.stage is Stage.CHOOSE else alone
            found.append(replayed._replace(views=(right, alone)))
        observed = lockstep.observed.get((first.candidate, first.step))
        if observed is not None:
            found += self._of_company(first, alone, observed)
        return found

    def _of_company(self, divergence: Divergence, alone: StepView, observed: StepView) -> list[Replayed]:
        """Whether the actual step, wrong alone, came out otherwise among other slots."""
        views = _without_nan(alone), _without_nan(observed)
        difference = locate_difference(*views, self._names, divergence.step == 0, self._tolerance)
        if difference is None:
            return []
        other = msgspec.structs.replace(
            divergence, field=difference.field, expected=difference.expected, actual=difference.actual
        )
        return [Replayed(_of_machinery(other), views=(alone, observed))]

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


def _without_nan(view: StepView) -> StepView:
    """The step with 0 for scores that are no number, which would equal nothing."""
    return view._replace(resolvents=tuple(r._replace(score=0.0) if r.score != r.score else r for r in view.resolvents))


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
