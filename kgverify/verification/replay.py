"""The explanation of divergences: each step is replayed in both engines with every stage probed, classified and grouped by cause.

The earliest stage whose output differs is at fault.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from kgverify.comparison.classify import (
    Finding,
    Surroundings,
    classify,
    describe_recorded,
    find_surroundings,
    group_causes,
)
from kgverify.comparison.compare import Comparer
from kgverify.comparison.inference.infer import adopt_guess, follows_inference, name_in_dialect, order_of_stages
from kgverify.comparison.inference.single_fault import StepProgram, explain_by_one_stage
from kgverify.comparison.inference.step_difference import StepDifference
from kgverify.comparison.locate import first_difference, is_close, locate_difference, name_stage, starts_wrong
from kgverify.comparison.modulo import normalise_outputs, normalise_steps
from kgverify.comparison.result import Cause, Divergence
from kgverify.comparison.step_view import StepReader, StepView, Views, outcome_name
from kgverify.engines.adapters.stepwise import AtomIds, read_positions
from kgverify.engines.adapters.stepwise import Goal as PlainGoal
from kgverify.engines.protocol import (
    Engine,
    Positions,
    ProbedEngine,
    candidate_set,
    positions_of,
    take_position,
    take_positions,
)
from kgverify.errors import count_of
from kgverify.program.atoms import Atom, Goal, encode_variable
from kgverify.program.outcomes import STEP_STAGES, DifferenceClass, GoalKind, Origin, Outcome, Stage
from kgverify.step.clauses import number_variables
from kgverify.trace.model.columns import Columns, select_candidates
from kgverify.trace.model.stage_items import StageOutputs, ends_alike, read_step_outputs
from kgverify.trace.model.trace import Trace
from kgverify.verification.effort import FULL, Effort
from kgverify.verification.score_sources import find_score_source
from kgverify.verification.separate import Seen, separate
from kgverify.verification.stagewise import StageFault, find_later_faults, is_own

ASSUMED_CONFIDENCE: Final = 0.5
"""The most confidence in the class of a divergence that was not replayed."""

NOT_REPLAYED: Final = "the step was not replayed itself, its stage and class are those of others that differ alike"
INFERRED: Final = "the engine does not show this stage, which was inferred from its step"
NOT_REPEATED: Final = "the step gives other results when it is repeated: the engine does not repeat itself"
OTHERS: Final = 4
"""The candidates whose steps are taken together with a step, to find out whether it depends on them."""
MOST_SLOTS: Final = 256
"""The slots to fill with such steps."""
FOREIGN: Final[dict[str, Any]] = {"kind": DifferenceClass.FOREIGN, "confidence": 0.8}
"""The class of a step that depends on other slots."""
INFERRED_SHARE: Final = 0.7
"""The confidence left to a class whose stage was inferred."""

_Signature = tuple[str, str, bool, bool, DifferenceClass, str]


class Replayed(NamedTuple):
    """A divergence after its step was replayed.

    outputs: the two outputs of the stage at fault, if the replay shows them
    views:   the two steps that differ, if they are not those that were compared first
    like:    a divergence whose stage and class it gets, if it was not replayed itself
    is_inferred: whether the stage was inferred from the result of the step, which the engine repeated
    situation:   the origin of wrong scores, in words, if they belong to another step
    """

    divergence: Divergence
    outputs: tuple[Any, Any] | None = None
    views: tuple[StepView, StepView] | None = None
    like: "Replayed | None" = None
    is_inferred: bool = False
    situation: str = ""


def _without_nan(view: StepView) -> StepView:
    """Return the step with 0 for each NaN score, since NaN equals nothing."""
    return view._replace(resolvents=tuple(r._replace(score=0.0) if r.score != r.score else r for r in view.resolvents))


def _move(divergence: Divergence, stage: Stage, **changes: Any) -> Divergence:
    """Return the divergence with another stage, and without the class that went with the former."""
    return msgspec.structs.replace(
        divergence, stage=stage.value, kind=DifferenceClass.UNCLASSIFIED, evidence="", confidence=0.0, **changes
    )


def _of_machinery(divergence: Divergence) -> Divergence:
    return _move(divergence, Stage.RECYCLE, is_replayed=True)


def _outputs_of(view: StepView) -> StageOutputs:
    """Return the outputs of stages that a recorded step shows."""
    items = tuple((each.kind, each.origin_kind, each.origin, tuple(map(tuple, each.atoms))) for each in view.resolvents)
    return {
        Stage.LIMIT: (items, view.dropped_atoms, view.dropped_resolvents),
        Stage.SCORE: tuple(each.score for each in view.resolvents),
        Stage.CHOOSE: view.choice,
        Stage.FINISH: view.outcome,
    }


def _shows_stages(outputs: StageOutputs, until: Stage) -> bool:
    """Return whether outputs show every stage before another one but `select`, so that nothing has to be inferred."""
    return all(stage in outputs for stage in STEP_STAGES[: STEP_STAGES.index(until)] if stage is not Stage.SELECT)


def _ask_from(position: Positions, goal: PlainGoal) -> Positions:
    """Return a position with the query and the depth of another one, at which a goal was visited again and again.

    The depth stays, since an engine may be wrong from some depth on.
    """
    num = int(position.num_goals[0])
    sizes, atoms = np.full(num, len(goal), np.uint16), np.array(goal * num, np.int32)
    return position._replace(num_atoms=sizes, atoms=atoms.reshape(-1, 3))


def _make_unprovable(atom: AtomIds, num: int) -> list[AtomIds]:
    """Return atoms with a variable of their own each, which nothing deletes from a goal that begins with an atom."""
    lowest = min(0, *atom[1:]) - 1
    return [(atom[0], term, term) for term in range(lowest, lowest - num, -1)]


def find_position(columns: Columns, candidate: int, step: int) -> Positions:
    """Return the position before a step of a candidate."""
    return take_position(positions_of(select_candidates(columns, np.array([candidate]))), step)


class Explainer:
    """The explanation of a comparison's divergences, by both engines and the expected run, whose steps they repeat.

    views:    both steps of each divergence that belongs to a step
    lockstep: whether to find further faults behind the first one of a step
    is_repeating: whether both engines repeat themselves; else a step that is right when repeated shows no more than that
    """

    def __init__(
        self,
        expected: Trace,
        comparer: Comparer,
        views: Views,
        engines: tuple[Engine, Engine],
        *,
        lockstep: bool = False,
        is_repeating: bool = True,
        effort: Effort = FULL,
    ) -> None:
        self._effort, self._is_repeating = effort, is_repeating
        self._columns = expected.columns
        self._limits = expected.header.limits.with_defaults()
        self._comparer = comparer
        self._names, self._tolerance = comparer.names, comparer.score_tolerance
        self._modulo = comparer.modulo
        self._views = views
        self._expected, self._actual = engines
        self._lockstep = lockstep
        self._reader = StepReader(self._normalise(expected.columns))
        self._alone: list[str] = []
        self._among: list[bool] = []

    def replay(self, divergences: tuple[Divergence, ...]) -> list[Replayed]:
        """Name the stage of each divergence by replaying its step, or a whole derivation by itself.

        If a step is right when repeated alone, the batch machinery around it was wrong (`recycle`), or what the step before
        left (`advance`). A probe counts only if it ends as the engine's own step does; for an engine without such a probe the
        stage is inferred from its step. In lockstep a step may yield several divergences: one for each stage at fault by
        itself, and one for the machinery if the step differs in another way in its batch.
        """
        seen: dict[_Signature, dict[tuple[str, DifferenceClass, str], Replayed]] = {}
        groups = []
        columns = self._reader.columns
        source = None if self._lockstep else find_score_source(columns, divergences, self._views, self._tolerance)
        for i, divergence in enumerate(divergences):
            if source is not None and divergence.field == "resolvents.score":
                moved = _move(divergence, Stage.RECYCLE)
                moved = msgspec.structs.replace(moved, kind=source.kind, evidence=source.evidence, confidence=0.9)
                groups.append([Replayed(moved, situation=source.situation)])
                continue
            if divergence.stage not in (*STEP_STAGES, Stage.RECYCLE) or divergence.field == "candidates.atom":
                groups.append([Replayed(divergence)])
                continue
            alike = seen.setdefault(self._sign(divergence), {})
            if i >= self._effort.replayed and i % 10 and len(alike) == 1:
                (((stage, _, _), like),) = alike.items()
                if stage == divergence.stage and divergence.kind is not DifferenceClass.UNCLASSIFIED:
                    # Its class rests on its own resolvents.
                    groups.append([Replayed(divergence)])
                    continue
                evidence = f"{describe_recorded(divergence, self._surround(Replayed(divergence)))}; {NOT_REPLAYED}"
                assumed = msgspec.structs.replace(divergence, stage=stage, is_assumed=True, evidence=evidence)
                groups.append([Replayed(assumed, like=like)])
                continue
            found = self._replay(divergence)
            named = self.classify(found[0])
            alike.setdefault((found[0].divergence.stage, named.kind, named.situation), found[0])
            groups.append(found)
        return [each for group in groups for each in group]

    def _sign(self, divergence: Divergence) -> _Signature:
        """Return what the recorded steps themselves show of a divergence: field, missing, extra, class, situation."""
        has_missing, has_extra = (value != ["nothing more"] for value in (divergence.expected, divergence.actual))
        found = self.classify(Replayed(divergence))
        return divergence.stage, divergence.field, has_missing, has_extra, found.kind, found.situation

    def _replay(self, divergence: Divergence) -> list[Replayed]:
        if divergence.field.startswith("candidates."):
            return [Replayed(self._replay_candidate(divergence))]
        found = self._replay_step(divergence)
        if not self._lockstep or found.outputs is None or starts_wrong(divergence):
            return [found]
        return [found, *self._find_behind(found.divergence)]

    def _replay_step(self, divergence: Divergence) -> Replayed:
        """Replay a step; if its goal was already wrong, first the step that produced the goal."""
        step = divergence.step
        for at in (step - 1, step) if step > 0 and starts_wrong(divergence) else (step,):
            position = find_position(self._columns, divergence.candidate, at)
            probes = self._probe(position)
            order = order_of_stages(self._limits.dialect)
            stage = first_difference(*probes, self._tolerance, order) if probes else None
            fault = StageFault(stage, probes[0][stage], probes[1][stage]) if probes and stage else None
            is_shown = fault is not None and probes is not None and _shows_stages(probes[1], fault.stage)
            if fault and is_shown and probes and self._repeats(probes[1], divergence, at):
                return self._name(divergence, fault)
            alone = self._normalise(self._actual.step(position))
            if self._agrees_alone(self._normalise(self._expected.step(position)), alone):
                if fault and fault.stage is Stage.ADVANCE:
                    # A step does not show the goal that it leaves.
                    return self._name(divergence, fault)
                continue
            own = normalise_outputs(read_step_outputs(alone), self._modulo)
            if fault and is_shown and probes and ends_alike(probes[1], own, 2 * self._tolerance):
                return self._name(divergence, fault)
            if self._depends_on_others(divergence, at, alone):
                found = _of_machinery(divergence)
                evidence = "the step lists other clauses alone than among others: it depends on other slots"
                return Replayed(msgspec.structs.replace(found, **FOREIGN, evidence=evidence))
            return self._infer(divergence, position, probes, own, alone)
        return Replayed(self._judge_right_step(divergence))

    def _depends_on_others(self, divergence: Divergence, step: int, alone: Columns) -> bool:
        """Return whether a step, wrong alone, lists other clauses among others: in any slot, with the other slots in use.

        A stage that leaves a part of its list as it was lists the same among others, if what was there is the same. So
        the step is taken again only if it lists other clauses than in its run, or a resolvent of no clause.
        """
        candidate = divergence.candidate
        views = self._views.get((candidate, step)) if step == divergence.step else None
        resolvents = StepReader(alone).read(0).resolvents
        clauses = [r.clause for r in resolvents]
        has_gap = any(r.kind == GoalKind.GOAL and r.origin_kind == Origin.NONE for r in resolvents)
        is_other = views is not None and clauses != [r.clause for r in views[1].resolvents]
        if not self._comparer.has_origins or not (has_gap or is_other):
            return False
        if len(self._among) >= self._effort.alone:
            return all(self._among)
        group = np.arange(max(0, candidate - OTHERS), candidate + 1)
        positions = positions_of(select_candidates(self._columns, group))
        num, own = len(positions.depth), int(self._columns.candidates.num_steps[group[:-1]].sum()) + step
        slots = self._actual.info.layout.get("slots", OTHERS)
        times = 1 + -(-min(slots, MOST_SLOTS) // num)
        repeated = take_positions(positions, np.tile(np.arange(num), times))
        reader = StepReader(self._normalise(self._actual.step(repeated)))
        rows = range(own, num * times, num)
        self._among.append(any([r.clause for r in reader.read(row).resolvents] != clauses for row in rows))
        return self._among[-1]

    def _agrees_alone(self, expected: Columns, actual: Columns) -> bool:
        """Return whether two single steps agree in all that both engines know."""
        left, right = StepReader(expected).read(0), StepReader(actual).read(0)
        known = self._comparer.expected.fields & self._comparer.actual.fields
        numbers = [name for name in ("dropped_atoms", "dropped_resolvents") if f"steps.{name}" in known]
        has_origins = self._comparer.has_origins
        sides = [[(r.content, r.clause if has_origins else None) for r in side.resolvents] for side in (left, right)]
        return sides[0] == sides[1] and all(
            (
                left.chosen == right.chosen,
                left.outcome == right.outcome,
                all(getattr(left, name) == getattr(right, name) for name in numbers),
                not self._comparer.has_scores
                or all(
                    is_close(e.score, a.score, self._tolerance)
                    for e, a in zip(left.resolvents, right.resolvents, strict=True)
                ),
            )
        )

    def _repeats(self, outputs: StageOutputs, divergence: Divergence, step: int) -> bool:
        """Return whether a probe ends as the actual engine's run recorded the step."""
        views = self._views.get((divergence.candidate, step)) if step == divergence.step else None
        if views is None:
            return False
        return ends_alike(outputs, normalise_outputs(_outputs_of(views[1]), self._modulo), 2 * self._tolerance)

    def _infer(
        self,
        divergence: Divergence,
        position: Positions,
        probes: tuple[StageOutputs, StageOutputs] | None,
        own: StageOutputs,
        alone: Columns,
    ) -> Replayed:
        """Infer the stage from the step, taken alone, of an engine that does not show it."""
        if not self._comparer.has_origins:
            # The resolvents were explained by the program, and that is all that is known.
            return Replayed(divergence)
        probe = probes[1] if probes is not None else {}
        shown = first_difference(probes[0], probe, self._tolerance) if probes is not None else None
        if shown not in (None, Stage.LIMIT) and not _shows_stages(probe, Stage.LIMIT):
            return Replayed(msgspec.structs.replace(divergence, stage=shown.value), is_inferred=True)
        guesses = self._explain_by_one_stage(position, alone)
        if guesses:
            guesses = self._ask(position, guesses)
        if guesses and (guesses[0].stage, guesses[0].kind) == (Stage.RESOLVE, DifferenceClass.REORDERED):
            # Each kind of clause is in order, and `limit` lists both.
            guesses = [guesses[0]._replace(stage=Stage.LIMIT)]
        return Replayed(adopt_guess(divergence, guesses[0]) if guesses else divergence, is_inferred=True)

    def _ask(self, position: Positions, guesses: list[StepDifference]) -> list[StepDifference]:
        """Return the guesses that the engine's steps from other goals allow, or what these steps say instead."""
        suspects = {r.clause for r in (*guesses[0].missing, *guesses[0].extra)}
        for goal, doubted in self._list_questions(position, guesses[0], {each.stage for each in guesses}):
            asked = _ask_from(position, goal)
            columns = [self._normalise(engine.step(asked)) for engine in (self._expected, self._actual)]
            listed = [{r.clause: r.content for r in StepReader(each).read(0).resolvents} for each in columns]
            if listed[0] == listed[1]:
                is_tried = bool(suspects & listed[0].keys())
                left = [each for each in guesses if not is_tried or each.stage not in doubted]
            else:
                found = self._explain_by_one_stage(asked, columns[1])
                left = [each for each in guesses if each.stage in {other.stage for other in found}]
                if not left and guesses[0].stage in doubted:
                    left = [each._replace(evidence=f"from another goal: {each.evidence}") for each in found]
            guesses = left or guesses
        return guesses

    def _list_questions(
        self, position: Positions, guess: StepDifference, stages: set[Stage]
    ) -> Iterator[tuple[PlainGoal, tuple[Stage, ...]]]:
        """Yield goals to ask about, and the stages that are not at fault if the engine takes the step from one rightly.

        No atom behind the selected one can be proved or was visited: matching, resolving and the limits decide alone.
        """
        _, ((*_, goal),) = read_positions(position)
        selected, most, inference = goal[0], self._limits.max_atoms, self._comparer.program.origins
        if most < 2 or inference is None:
            return
        yield (selected, *_make_unprovable(selected, 1)), (Stage.MATCH_RULES, Stage.MATCH_FACTS)
        if stages >= {Stage.PRUNE, Stage.RESOLVE}:
            free = (selected[0], encode_variable(0), encode_variable(1))
            yield (free, *_make_unprovable(free, 1)), (Stage.RESOLVE,)
        query = tuple(position.candidates.atom[0].tolist())
        fact = next((each for each in inference.clauses.facts if each != query), None)
        if fact is None:
            return
        changed = (*guess.missing, *guess.extra)
        if guess.stage is Stage.LIMIT:
            # A goal of the same length, of which a resolvent is as long as the limit allows after pruning.
            rules = inference.clauses.rules
            longest = max((len(rules[r.origin][1]) for r in changed if r.origin_kind == Origin.RULE), default=0)
            num_open = min(len(goal) - 1, most - longest)
            if num_open >= 0:
                yield (
                    (selected, *[fact] * (len(goal) - 1 - num_open), *_make_unprovable(selected, num_open)),
                    (guess.stage,),
                )
        elif guess.stage is Stage.RESOLVE and len(guess.missing) == len(guess.extra) == 1:
            # Behind a fact nothing is resolved, and only `rename` can change a variable.
            left, right = (r.atoms for r in changed)
            same = [i for i, (atom, other) in enumerate(zip(left, right, strict=False)) if atom == other]
            rest = number_variables(left[: same[-1]] + left[same[-1] + 1 :] if same and len(left) >= most else left)
            if len(rest) < most:
                yield (fact, *rest), (guess.stage,)

    def _explain_by_one_stage(self, position: Positions, alone: Columns) -> list[StepDifference]:
        """Return the stages whose fault alone explains the step, the likeliest first."""
        inference = self._comparer.program.origins
        if inference is None:
            return []
        _, (goals,) = read_positions(position)
        visited = [number_variables(iter(goal)) for goal in goals]
        predicate, first, second = position.candidates.atom[0].tolist()
        program = StepProgram(inference.clauses, self._limits, visited, (predicate, first, second))
        steps = (StepReader(self._normalise(each)).read(0) for each in (self._expected.step(position), alone))
        known = self._comparer.expected.fields & self._comparer.actual.fields
        has_counts = "steps.dropped_resolvents" in known
        return explain_by_one_stage(program, *steps, has_origins=True, has_counts=has_counts)

    def _judge_right_step(self, divergence: Divergence) -> Divergence:
        """Name the stage of a step that is right when repeated: the machinery around it, or what the step before left.

        If the whole derivation, run without others, goes wrong at the same step, `advance` hands on a wrong state: goals
        visited, for example, which a repeated step is given anew. The first of these is put there by `recycle`.
        """
        step = divergence.step
        if step < 1:
            return _of_machinery(divergence)
        if len(self._alone) >= self._effort.alone:
            is_of_state = set(self._alone) == {Stage.ADVANCE.value}
            return _move(divergence, Stage.ADVANCE) if is_of_state else _of_machinery(divergence)
        judged = self._judge_alone(divergence)
        self._alone.append(judged.stage)
        return judged

    def _judge_alone(self, divergence: Divergence) -> Divergence:
        """Name the stage of a step that is right when repeated, by the whole derivation without others."""
        step, candidate = divergence.step, divergence.candidate
        alone = self._actual.prove(candidate_set(self._columns).take(np.array([candidate])))
        if int(alone.candidates.num_steps[0]) <= step:
            return _of_machinery(divergence)
        reader, first = StepReader(self._normalise(alone)), self._reader.first_step[candidate]
        expected, actual = self._reader.read(first + step), reader.read(step)
        is_first_wrong = all(
            locate_difference(self._reader.read(first + i), reader.read(i), self._names, i == 0, self._tolerance)
            is None
            for i in range(step)
        )
        difference = locate_difference(expected, actual, self._names, False, self._tolerance)
        if not is_first_wrong or difference is None:
            return _of_machinery(divergence)
        extra = {each.atoms for each in actual.resolvents} - {each.atoms for each in expected.resolvents}
        if self._reader.read(first).goal in extra:
            return _of_machinery(divergence)
        return _move(divergence, Stage.ADVANCE, is_replayed=True)

    def _normalise(self, columns: Columns) -> Columns:
        """Return steps as they are compared."""
        return normalise_steps(columns, self._modulo, self._comparer.not_compared) if self._modulo else columns

    def _probe(self, position: Positions) -> tuple[StageOutputs, StageOutputs] | None:
        probes = self._probe_as_is(position)
        return self._normalise_outputs(probes) if probes is not None else None

    def _normalise_outputs(self, probes: tuple[StageOutputs, StageOutputs]) -> tuple[StageOutputs, StageOutputs]:
        return normalise_outputs(probes[0], self._modulo), normalise_outputs(probes[1], self._modulo)

    def _find_later(self, culprit: Stage, probes: tuple[StageOutputs, StageOutputs]) -> Iterator[StageFault]:
        """Yield further faults of a step. A stage judged by the engine's own outputs is judged in the engine's own order."""
        if not self._modulo:
            yield from find_later_faults(culprit, *probes, self._limits, self._tolerance)
            return
        for is_normal, outputs in ((False, probes), (True, self._normalise_outputs(probes))):
            for fault in find_later_faults(culprit, *outputs, self._limits, self._tolerance):
                if is_own(fault.stage) != is_normal:
                    yield fault

    def _probe_as_is(self, position: Positions) -> tuple[StageOutputs, StageOutputs] | None:
        if isinstance(self._expected, ProbedEngine) and isinstance(self._actual, ProbedEngine):
            return self._expected.probe(position), self._actual.probe(position)
        return None

    def _name(self, divergence: Divergence, fault: StageFault) -> Replayed:
        named = msgspec.structs.replace(name_stage(divergence, *fault, self._names), is_replayed=True)
        return Replayed(named, (fault.expected, fault.actual))

    def _find_behind(self, first: Divergence) -> Iterator[Replayed]:
        """Yield the further faults of a step, behind the first stage at fault."""
        if not follows_inference(self._limits.dialect):
            return
        position = find_position(self._columns, first.candidate, first.step)
        as_is = self._probe_as_is(position)
        if as_is is None:
            return
        step = self._actual.step(position)
        recorded, alone = StepReader(step).read(0), StepReader(self._normalise(step)).read(0)
        for fault in self._find_later(Stage(first.stage), as_is):
            right = recorded._replace(choice=fault.expected) if fault.stage is Stage.CHOOSE else alone
            wrong = recorded if fault.stage is Stage.CHOOSE else alone
            yield self._name(first, fault)._replace(views=(right, wrong))
        compared = self._views.get((first.candidate, first.step))
        if compared is None:
            return
        # The batch machinery is at fault as well if the step, wrong alone, differs in another way in its batch.
        views = _without_nan(alone), _without_nan(compared[1])
        difference = locate_difference(*views, self._names, first.step == 0, self._tolerance)
        if difference is not None:
            other = msgspec.structs.replace(
                first, field=difference.field, expected=difference.expected, actual=difference.actual
            )
            yield Replayed(_of_machinery(other), views=(alone, compared[1]))

    def _replay_candidate(self, divergence: Divergence) -> Divergence:
        """Repeat a whole derivation alone, if all of its steps agree but its result does not.

        One that ends in the same wrong way without any others is ended by `finish`, not by `recycle`, unless it is still
        OPEN: then nothing ended it, and the loop around the steps stopped.
        """
        alone = np.array([divergence.candidate])
        expected = self._columns.candidates
        actual = self._actual.prove(candidate_set(self._columns).take(alone)).candidates
        if divergence.stage == Stage.RECYCLE:
            wanted, ends = (
                (count_of(int(side.num_steps[i]), "step"), outcome_name(int(side.outcome[i])))
                for side, i in ((expected, divergence.candidate), (actual, 0))
            )
            is_its_own = ends != wanted and divergence.actual in ends and actual.outcome[0] != Outcome.OPEN
            return _move(divergence, Stage.FINISH, is_replayed=True) if is_its_own else divergence
        sums = float(expected.log_probability[divergence.candidate]), float(actual.log_probability[0])
        agrees = (
            actual.outcome[0] == expected.outcome[divergence.candidate]
            and actual.is_limited[0] == expected.is_limited[divergence.candidate]
            and is_close(*sums, 1e-9 * max(1.0, abs(sums[0])) + 2 * self._tolerance * max(1, int(actual.num_steps[0])))
        )
        return _of_machinery(divergence) if agrees else divergence

    def group(self, replayed: list[Replayed]) -> tuple[tuple[Divergence, ...], tuple[Cause, ...]]:
        """Return the divergences with their classes, and their causes."""
        seen = [Seen(each.divergence, self.classify(each), self._surround(each)) for each in replayed]
        findings = separate(seen)
        divergences = [each.divergence for each in replayed]
        return group_causes(*name_in_dialect(divergences, findings, self._limits.dialect))

    def classify(self, replayed: Replayed) -> Finding:
        """Return the class of one divergence."""
        if replayed.like is not None:
            found = self.classify(replayed.like)
            confidence = min(found.confidence, ASSUMED_CONFIDENCE)
            return found._replace(evidence=replayed.divergence.evidence, confidence=confidence)
        found = classify(replayed.divergence, self._surround(replayed))
        if not self._is_repeating and not replayed.situation and found.kind is DifferenceClass.FOREIGN:
            found = found._replace(evidence=NOT_REPEATED, confidence=ASSUMED_CONFIDENCE)
        if replayed.situation:
            return found._replace(situation=replayed.situation)
        if not replayed.is_inferred:
            return found
        return found._replace(
            evidence=f"{found.evidence}; {INFERRED}", confidence=round(INFERRED_SHARE * found.confidence, 2)
        )

    def _surround(self, replayed: Replayed) -> Surroundings:
        """Collect what the class of a divergence depends on."""
        divergence = replayed.divergence
        around = find_surroundings(
            divergence,
            self._reader,
            replayed.views or self._views.get((divergence.candidate, divergence.step)),
            error_bound=2 * self._tolerance,
            draw=self._comparer.draws.get((divergence.query, divergence.side), ""),
            has_scores=self._comparer.has_scores,
        )
        expected, actual = around.expected, around.actual
        is_wrong_goal = expected is not None and actual is not None and expected.goal != actual.goal
        goals = self._all_goals if is_wrong_goal else frozenset()
        return around._replace(outputs=replayed.outputs, other_goals=goals)

    @cached_property
    def _all_goals(self) -> frozenset[Goal]:
        """The goals of the expected derivations, and the queries of both sides."""
        goals = (self._reader.read(row).goal for row in range(len(self._columns.steps.depth)))
        queries = self._comparer.actual.columns.candidates.atom.tolist()
        return frozenset((*goals, *((Atom(*query),) for query in queries)))
