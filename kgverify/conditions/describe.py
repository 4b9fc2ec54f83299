"""The conditions of the causes of a comparison, found among their steps and among steps and candidates that agree."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import compress, permutations
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import has_steps
from kgverify.comparison.compare import Comparer
from kgverify.comparison.inference.infer import follows_inference
from kgverify.comparison.locate import OF_ACTUAL, level_of_step, locate_difference, starts_wrong
from kgverify.comparison.result import NO_CANDIDATE, PROOF_CLASSES, Cause, Divergence, Level, count_candidates
from kgverify.comparison.step_view import StepView
from kgverify.conditions.batch import Actual, CandidateReader
from kgverify.conditions.confirm import CONFIRMED, Tested, adopt, confirm, may_be_one, split, transfer
from kgverify.conditions.experiment import Engines, Tried
from kgverify.conditions.features import Feature, read_mistakes
from kgverify.conditions.find import OF_WHOLE_STEPS, Found, find_condition, settle
from kgverify.conditions.instances import Cases, Fault, Instance, Run, SeenStep, Unit, canonical, thin
from kgverify.conditions.levels import LevelReader
from kgverify.conditions.sentence import show
from kgverify.program.outcomes import SEARCH_STAGES, STEP_STAGES, Stage
from kgverify.trace.model.schema import has_goals

FindSplits: TypeAlias = Callable[[], Mapping[str, NDArray[np.int32]] | None]
"""A function that returns the triples of each split other than train, int32 [n, 3] in ids; None if they are unknown."""

MOST_CANDIDATES: Final = 1_000
"""The most candidates to read for each group: candidates of a cause, and candidates without a divergence."""

MOST_READ: Final = 200
"""The number of divergences to read at once when dividing a cause."""

MOST_STEPS: Final = 2_000
"""The most agreeing steps to compare with."""

MOST_CHANCE_ALIKE: Final = 0.05
"""The largest chance that the condition of another cause explains a lost or false proof by coincidence."""

_OF_CANDIDATES: Final = (Stage.RECYCLE, Stage.CORRUPT, Stage.ADVANCE, Stage.FINISH, Stage.AGGREGATE)

_ORDER: Final[dict[str, int]] = {stage.value: i for i, stage in enumerate(STEP_STAGES)}


class Replays(NamedTuple):
    """The steps of divergences in lockstep, and the replayed outputs of stages.

    views:    in lockstep, both versions of the step of each divergence
    outputs:  both outputs of the stage at fault for each replayed divergence
    near_ties: steps that differ, but are no divergences
    """

    views: Mapping[tuple[int, int], tuple[StepView, StepView]] | None = None
    outputs: Sequence[tuple[Any, Any] | None] = ()
    lockstep: bool = False
    near_ties: Sequence[Any] = ()


RECORDED: Final = Replays()
"""The value for a comparison that has only the recorded steps."""


def describe_conditions(
    causes: tuple[Cause, ...],
    divergences: tuple[Divergence, ...],
    comparer: Comparer,
    most: int,
    *,
    replays: Replays = RECORDED,
    own: Sequence[Feature] = (),
    engines: Engines | None = None,
    find_splits: FindSplits = lambda: None,
) -> tuple[tuple[Divergence, ...], tuple[Cause, ...]]:
    """Return the divergences, and the causes with their conditions. A cause with two conditions becomes two causes.

    Causes outside of derivations have no conditions, nor do traces that hold only digests.

    most:    the number of causes to describe, from the first
    own:     the features that the engine under test declares
    engines: both engines, for experiments; None if they are not available
    find_splits: a function that returns the triples of the splits other than train; None if they are unknown
    """
    if not causes[:most] or not all(has_goals(source.header.level) for source in comparer.sources):
        return divergences, causes
    reader = _Reader(causes, divergences, comparer, replays, find_splits)
    if replays.lockstep:
        # What the engine declares for the steps of its own run says nothing of the steps that it takes from other goals.
        own = [each for each in own if not each.is_declared or Unit.CANDIDATE in each.of]

    def seek(number: int) -> Found | None:
        cause = causes[number]
        # Scores that belong to another step are already explained.
        is_explained = cause.situation.startswith("scores of ")
        further = (*own, *read_mistakes({divergences[i].evidence.partition(": ")[2] for i in reader.members[number]}))
        return None if is_explained else find_condition(cause.stage, cause.kind, reader.collect(number), further)

    sought = {i: found for i in range(min(most, len(causes))) if (found := seek(i)) is not None}

    def test(number: int, found: Found) -> Tested:
        if engines is None:
            return Tested(settle(found))
        return _confirm(causes[number].stage, found, partial(reader.test, number, engines), reader.describe)

    tested = {
        number: test(number, adopt(best, [found for i, found in sought.items() if i != number]))
        for number, best in sought.items()
    }
    described: list[Cause] = []
    numbers: dict[int, int] = {}
    others: dict[int, int] = {}
    for number in _join_same_faults(reader, tested, seek, test):
        cause, each = _count(causes[number], reader.members[number], divergences), tested.get(number)
        stated = [(cause, reader.members[number])]
        if each is not None:
            # Without experiments, one condition may look like two.
            parts = reader.divide(number, each.found) if _is_certain(each) else None
            if parts is None:
                stated = [(_state(cause, each), reader.members[number])]
            else:
                others |= {i: len(described) + (i in parts[0]) for i in parts[2]}
                both = zip(split(each, reader.describe), parts[:2], strict=True)
                stated = [(_state(_count(cause, members, divergences), part), members) for part, members in both]
        for described_cause, members in stated:
            numbers |= dict.fromkeys(members, len(described))
            described.append(described_cause)
    if engines is not None:
        command = "kgverify shrink RUN_DIR --divergence"
        described = [msgspec.structs.replace(each, reproduce=f"{command} {each.first + 1}") for each in described]
    numbered = (
        msgspec.structs.replace(each, cause=numbers.get(i, each.cause), other_cause=others.get(i, -1))
        for i, each in enumerate(divergences)
    )
    return tuple(_name_as(described[each.cause], each) if each.cause >= 0 else each for each in numbered), tuple(
        described
    )


def _name_as(cause: Cause, divergence: Divergence) -> Divergence:
    """Return a divergence with the stage and the class of its cause; a lost or false proof keeps its class."""
    kind = divergence.kind if divergence.kind in PROOF_CLASSES else cause.kind
    if (divergence.stage, divergence.kind) == (cause.stage, kind):
        return divergence
    return msgspec.structs.replace(
        divergence,
        stage=cause.stage,
        kind=kind,
        evidence=f"{divergence.evidence}; what is {cause.kind.value} meets the condition of this cause",
    )


def _join_same_faults(
    reader: "_Reader",
    tested: dict[int, Tested],
    seek: Callable[[int], Found | None],
    test: Callable[[int, Found], Tested],
) -> list[int]:
    """Join causes that one condition explains exactly, since they are one fault.

    These are a lost or false proof and a cause that names what is lost or extra; a cause without a certain condition and
    another one, if the condition of both is simpler than theirs; and two causes of one certain condition. Return the numbers
    of the causes that are left, each at the place of its first part.
    """
    places = {i: i for i in reader.members if i >= 0}
    for number, other in permutations(sorted(tested, key=lambda i: (not reader.is_of_proof(i), i)), 2):
        own, named = tested[number], tested[other]
        if not {number, other} <= places.keys() or reader.is_of_proof(other):
            continue
        # What is recorded of a level distinguishes its stages.
        if own.found.cases.unit is Unit.LEVEL and reader.stage_of(number) != reader.stage_of(other):
            continue
        is_of_proof = reader.is_of_proof(number)
        is_same = (
            _is_certain(own)
            and may_be_one(own.found.condition, named.found.condition)
            and own.found.table.is_wrong.sum() <= named.found.table.is_wrong.sum()
        )
        num_named = sum(not reader.is_of_proof(i) for i in tested)
        may_join = (
            is_same or transfer(own.found, named.found, num_named, MOST_CHANCE_ALIKE) is not None
            if is_of_proof
            else (is_same or not _is_certain(own))
            and own.found.cases.is_like(named.found.cases)
            # Outputs of stages are better evidence for two faults than a condition for one.
            and not any(map(reader.is_shown, (*reader.members[number], *reader.members[other])))
        )
        if not may_join:
            continue
        apart = {i: reader.members[i] for i in (number, other)}
        reader.assign({number: [], other: sorted([*apart[number], *apart[other]])})
        again = seek(other)
        joined: Tested | None = None
        # The class of a wrong level depends on its children. No experiment tests a condition of levels.
        of_levels = again is not None and again.cases.unit is Unit.LEVEL
        moved = transfer(again, named.found) if again is not None and is_of_proof else None
        if moved is not None:
            joined = named._replace(found=moved)
        elif again is not None and again.is_exact and (of_levels or reader.is_in_all_steps(other, again)):
            costs = [each.found.condition.cost for each in (own, named) if each.found.condition.tests]
            if is_same or (again.condition.cost < min(costs, default=inf) + of_levels and not is_of_proof):
                joined = test(other, again)
        if joined is None or not (moved is not None or _is_certain(joined) or of_levels):
            reader.assign(apart)
            continue
        tested[other] = joined
        places[other] = min(places[other], places.pop(number))
    return sorted(places, key=places.__getitem__)


def _is_certain(tested: Tested) -> bool:
    return tested.experiment is not None and tested.experiment.verdict == CONFIRMED


def _state(cause: Cause, tested: Tested) -> Cause:
    shown = show(cause.stage, tested.found, tested.experiment)
    return msgspec.structs.replace(cause, condition=shown.sentence, when=shown)


def _count(cause: Cause, members: Sequence[int], divergences: tuple[Divergence, ...]) -> Cause:
    """Return a cause with the counts of some of its divergences."""
    own = [divergences[i] for i in members]
    return msgspec.structs.replace(
        cause,
        num_candidates=count_candidates(own),
        num_queries=len({each.query for each in own}),
        num_divergences=len(own),
        num_assumed=sum(each.is_assumed for each in own),
        num_later=sum(each.later_steps for each in own),
        first=members[0],
    )


def _confirm(
    stage: str, found: Found, test: Callable[[Found, int], Tried | str], describe: Callable[[Instance], str]
) -> Tested:
    """Test a condition. If the run shows no condition of the smallest unit, experiments look for one."""
    start = found.start
    is_smaller = start is not None and found.cases.unit is not start.cases.unit and stage not in OF_WHOLE_STEPS
    if start is not None and (not found.condition.tests or is_smaller):
        better = confirm(stage, start, test, describe)
        experiment = better.experiment
        if better.found.condition.tests and experiment is not None and experiment.verdict == CONFIRMED:
            return better
    return confirm(stage, found, test, describe) if found.condition.tests else Tested(found)


class _Reader:
    """A reader of the instances of causes in compared traces, with the inference of their clauses.

    members: the divergences of each cause, ascending
    """

    def __init__(
        self,
        causes: tuple[Cause, ...],
        divergences: tuple[Divergence, ...],
        comparer: Comparer,
        replays: Replays,
        find_splits: FindSplits,
    ) -> None:
        self._causes, self._divergences, self._comparer, self._replays = causes, divergences, comparer, replays
        self._find_splits = find_splits
        self.members = defaultdict[int, list[int]](list)
        # The steps in which each candidate goes wrong, and those that may have handed on a wrong goal.
        self._wrong = defaultdict[int, list[int]](list)
        self._handed = defaultdict[int, set[int]](set)
        for i, each in enumerate(divergences):
            self.members[each.cause].append(i)
            if each.expected != NO_CANDIDATE:
                self._wrong[each.candidate].append(each.step)
                if starts_wrong(each):
                    self._handed[each.candidate].add(each.step)
        for tie in (*comparer.comparison.near_ties, *replays.near_ties):
            self._wrong[tie.candidate].append(tie.step)
        header = comparer.sources[0].header
        dialect = header.limits.dialect
        self._run = Run(
            limits=header.limits,
            inference=comparer.program.origins,
            infer=comparer.program.at,
            has_scores=comparer.has_scores,
            has_origins=comparer.has_origins,
            has_counts={"steps.dropped_atoms", "steps.dropped_resolvents"}.isdisjoint(comparer.not_compared),
            follows_semantics=dialect is not None and follows_inference(dialect),
        )
        self._num_candidates = comparer.sources[0].num_candidates
        self._steps: dict[int, list[SeenStep]] = {}
        self._is_sample = False

    def stage_of(self, number: int) -> str:
        """Return the stage of a cause."""
        return self._causes[number].stage

    def is_of_proof(self, number: int) -> bool:
        """Return whether a cause says no more than that a proof is lost or false."""
        return self._causes[number].kind in PROOF_CLASSES

    def is_shown(self, divergence: int) -> bool:
        """Return whether the outputs of the stage of a divergence are known."""
        return divergence < len(self._replays.outputs) and self._replays.outputs[divergence] is not None

    def assign(self, members: Mapping[int, list[int]]) -> None:
        """Change the divergences of some causes."""
        for number, own in members.items():
            self.members[number] = own
            self._steps.pop(number, None)

    def is_in_all_steps(self, number: int, found: Found) -> bool:
        """Return whether each step of a cause that was read has an instance that went wrong."""
        wrong = {
            (each.candidate.row, each.step.number) for each in found.cases.instances if each.is_wrong and each.step
        }
        return wrong >= {(step.candidate.row, step.number) for step in self._differing(number)}

    def _fault(self, number: int) -> Fault:
        cause = self._causes[number]
        return Fault(Stage(cause.stage), cause.kind, self._comparer.score_tolerance)

    def divide(self, number: int, found: Found) -> tuple[list[int], list[int], list[int]] | None:
        """Return the divergences of each of two conditions, and the divergences that meet both.

        Return None unless a cause has two conditions, and each explains something in the run that the other does not.
        """
        table = found.table
        held = [part.holds(table.values) & table.is_wrong for part in found.condition.parts]
        if len(held) == 1 or (held[0] <= held[1]).all() or (held[1] <= held[0]).all():
            return None
        first, second = self._read_parts(number, found)
        members, both = {*self.members[number]}, first & second
        # Divergences that match both conditions count for the first, unless the second would then have no divergence.
        second = second - first or second
        first = members - second
        return (sorted(first), sorted(second), sorted(both)) if first and second else None

    def _read_parts(self, number: int, found: Found) -> list[set[int]]:
        """Return, for each of two conditions, the divergences with wrong instances that meet it, as far as known."""
        members, held = self.members[number], [set[int](), set[int]()]
        places = {(self._divergences[i].candidate, self._divergences[i].step): i for i in members}
        for start in range(0, len(members), MOST_READ):
            some = members[start : start + MOST_READ]
            if found.cases.unit is Unit.CANDIDATE:
                instances = [self._instance(self._divergences[i].candidate, True) for i in some]
            else:
                in_steps = [i for i in some if self._divergences[i].step >= 0]
                steps = list(self._read_differing(in_steps, self._causes[number].stage))
                every = [cases for cases in self._fault(number).collect(steps) if cases.is_like(found.cases)]
                instances = [each for cases in every for each in cases.instances if each.is_wrong]
            for part, condition in zip(held, found.condition.parts, strict=True):
                holds = found.table.predict(condition, instances)
                for each in () if holds is None else compress(instances, holds):
                    row, step = each.candidate.row, each.step.number if each.step is not None else -1
                    part.add(places.get((row, step), places.get((row, -1), -1)))
        return [part - {-1} for part in held]

    def collect(self, number: int) -> Iterator[Cases]:
        """Yield the instances of a cause, the smallest unit first."""
        cause, members = self._causes[number], self.members[number]
        in_steps = any(self._divergences[i].step >= 0 for i in members)
        if cause.stage in (Stage.RECYCLE, Stage.CORRUPT, Stage.AGGREGATE) or not in_steps:
            yield from self._collect_candidates(cause, members)
        if in_steps and (differing := self._differing(number)):
            others = [i for i in range(len(self._causes)) if i != number]
            # In steps in which a later stage was shown to be the first to go wrong, this stage was right.
            place = _ORDER.get(cause.stage, len(_ORDER))
            later = [
                i
                for i in others
                if _ORDER.get(self._causes[i].stage, -1) > place and all(map(self.is_shown, self.members[i]))
            ]
            right = [*self._agreeing, *(step for i in later for step in self._differing(i))]
            hidden = [step for i in others if i not in later for step in self._differing(i)]
            for cases in self._fault(number).collect(differing, right, hidden):
                yield cases._replace(is_sample=cases.is_sample or self._is_sample or len(members) > MOST_CANDIDATES)

    def test(self, number: int, engines: Engines, found: Found, seed: int) -> Tried | str:
        """Test a condition of a cause by an experiment, or return why it is not testable."""
        cause, unit = self._causes[number], found.cases.unit
        if cause.stage in (Stage.CORRUPT, *SEARCH_STAGES):
            return f"it is one of {'the draw of candidates' if cause.stage == Stage.CORRUPT else 'whole searches'}"
        if unit is Unit.CANDIDATE:
            own = {*self.members[number]}
            hidden = {each.candidate for i, each in enumerate(self._divergences) if i not in own}
            return engines.try_batches(found, hidden, seed)
        if cause.stage not in STEP_STAGES or cause.stage == Stage.ADVANCE:
            return "it is not one of single steps"
        return engines.try_steps(
            self._fault(number), found, seed, is_one_sided=unit is Unit.STEP and len(self._causes) > 1
        )

    def describe(self, instance: Instance) -> str:
        """Describe the problem of an instance with names, so that it can be built again: its clause, goal, depth and query.

        Of the goals visited before, those that a resolvent equals or contains are named.
        """
        names, step = self._comparer.names, instance.step
        if step is None:
            who = instance.candidate
            return f"{names.atom(who.atom)} as number {who.row + 1:,} of a run of {who.num_in_run:,}"
        clause = f"{names.clause(*instance.clause)} for " if instance.clause is not None else ""
        kept = [Counter(atoms) for atoms in step.kept.values()]
        visited = (
            f", goal {number} was {names.goal(goal)}"
            for number, goal in enumerate(step.earlier, 1)
            if any(Counter(canonical(goal)) <= atoms for atoms in kept)
        )
        where = f"depth {step.expected.depth}, query {names.atom(instance.candidate.atom)}{''.join(visited)}"
        return f"{clause}{names.goal(step.expected.goal)} ({where})"

    def _differing(self, number: int) -> list[SeenStep]:
        """Return the steps of a cause, for a bounded number of divergences."""
        if number not in self._steps:
            members = [i for i in self.members[number] if self._divergences[i].step >= 0]
            is_of_step = self._causes[number].stage in (*STEP_STAGES, *SEARCH_STAGES[:-1], Stage.RECYCLE)
            stage = self._causes[number].stage
            read = self._read_differing(thin(members, MOST_CANDIDATES), stage, follows=stage == Stage.SCORE)
            self._steps[number] = list(read) if is_of_step else []
        return self._steps[number]

    def _collect_candidates(self, cause: Cause, members: Sequence[int]) -> Iterator[Cases]:
        found = [self._divergences[i] for i in members]
        if cause.stage == Stage.CORRUPT:
            yield from self._collect_drawn(found)
            return
        if cause.stage not in _OF_CANDIDATES or any(each.expected == NO_CANDIDATE for each in found):
            return
        wrong = sorted({each.candidate for each in found if each.candidate < self._num_candidates})
        right = thin([row for row in range(self._num_paired) if row not in self._wrong], MOST_CANDIDATES)
        instances = [self._instance(row, True) for row in wrong] + [self._instance(row, False) for row in right]
        if cause.stage == Stage.AGGREGATE:
            instances.sort(key=lambda each: each.candidate.row)
            reader, _ = self._read(np.array([each.candidate.row for each in instances]))
            for i, each in enumerate(instances):
                each.step = self._see(reader, (i, each.candidate.row), max(0, each.candidate.num_steps - 1))
        is_sample = len(right) < self._num_paired - len(self._wrong)
        yield Cases(Unit.CANDIDATE, "wrong", "right", tuple(instances), is_sample=is_sample)

    def _collect_drawn(self, found: Sequence[Divergence]) -> Iterator[Cases]:
        """Yield the candidates that only the actual side has, and those that it lacks, among its others."""
        splits, header = self._find_splits(), self._comparer.sources[1].header
        for side, words in ((1, ("extra", "right")), (0, ("missing", "present"))):
            only = {each.candidate for each in found if (each.expected == NO_CANDIDATE) == bool(side)}
            wrong = {each.candidate for each in self._divergences if (each.expected == NO_CANDIDATE) == bool(side)}
            candidates = self._comparer.read_candidates(side)
            rows_of_actual = None if side else self._actual_rows
            reader = CandidateReader(
                candidates, None, header.engine, self._run.inference, splits=splits, actual_rows=rows_of_actual
            )
            right = [row for row in range(len(candidates.query)) if row not in wrong]
            rows = [*thin(sorted(only), MOST_CANDIDATES), *thin(right, MOST_CANDIDATES)]
            instances = (Instance(Unit.CANDIDATE, row in only, row, reader.read(row)) for row in rows)
            yield Cases(Unit.CANDIDATE, *words, tuple(instances))

    def _instance(self, row: int, is_wrong: bool) -> Instance:
        return Instance(Unit.CANDIDATE, is_wrong, row, self._candidates.read(row))

    @cached_property
    def _num_paired(self) -> int:
        """The number of candidates; if not all divergences are listed, only those before the last listed one."""
        is_cut = self._comparer.num_found > len(self._comparer.comparison.divergences)
        return max(self._wrong, default=0) if is_cut else self._num_candidates

    @cached_property
    def _actual_rows(self) -> NDArray[np.int64]:
        """The row of each expected candidate in the actual run, -1 if it is not there: int64 [N]."""
        rows = np.full(self._num_candidates, -1)
        rows[self._comparer.paired_rows] = self._comparer.counterparts(self._comparer.paired_rows)
        return rows

    @cached_property
    def _candidates(self) -> CandidateReader:
        actual, num = self._comparer.sources[1], self._num_candidates
        rows = np.arange(num)
        is_in_order = actual.num_candidates == num and np.array_equal(self._actual_rows, rows)
        is_alike = has_steps(actual.header.engine) and is_in_order
        return CandidateReader(
            self._comparer.read_candidates(0),
            Actual(*(actual.read_column(name).tolist() for name in Actual._fields)) if is_alike else None,
            actual.header.engine,
            self._run.inference,
            None if self._replays.lockstep else lambda: self._read(rows),
            actual_rows=self._actual_rows,
        )

    def _read(self, rows: NDArray[np.int64]) -> tuple[LevelReader, LevelReader]:
        """Return readers of the steps of some candidates on both sides."""
        pair, dialect = self._comparer.pair_of(rows), self._run.limits.dialect if self._run.has_scores else None
        return LevelReader(pair.expected.columns, dialect), LevelReader(pair.actual.columns, dialect)

    @cached_property
    def _agreeing(self) -> list[SeenStep]:
        """Steps that agree: all steps of candidates without a divergence, and the steps before a first divergence."""
        right = [row for row in range(self._num_paired) if row not in self._wrong]
        started = [row for row, steps in self._wrong.items() if steps[0] >= 0 and row < self._num_paired]
        rows = np.array(sorted([*thin(right, MOST_CANDIDATES), *thin(started, MOST_CANDIDATES)]), np.int64)
        if not len(rows):
            return []
        reader, other = self._read(rows)
        places = []
        for i, row in enumerate(rows.tolist()):
            # The paths of a level compete, so it is right as a whole or not at all.
            wrong = [n for s in self._wrong.get(row, ()) for n in getattr(reader.find_level(i, s), "places", [s])]
            end = int(reader.columns.candidates.num_steps[i])
            if wrong and not self._replays.lockstep:
                end = min(end, *wrong)
                places += [(i, number) for number, _, level in self._follow(reader, other, i, end) if level is None]
            handed = {parent for step in self._handed[row] for parent, _ in reader.read_path(i, step)[-1:]}
            places += [(i, n) for n in range(end) if n not in wrong and n not in handed]
        self._is_sample = len(rows) < len(right) + len(started) or len(places) > MOST_STEPS
        return [self._see(reader, (i, int(rows[i])), number) for i, number in thin(places, MOST_STEPS)]

    def _follow(
        self, reader: LevelReader, other: LevelReader, i: int, first: int
    ) -> Iterator[tuple[int, StepView, Level | None]]:
        """Yield the steps of a candidate behind its first divergence, as long as both sides take them from the same goals.

        A search has no such steps, since its paths compete.

        They are as good as the steps before it. Each has its number, the actual step, and the level of its difference, which
        is None if it agrees, and TOLERANCE if nothing but scores differs.
        """
        num = min(int(each.columns.candidates.num_steps[i]) for each in (reader, other))
        for number in range(first + 1, num):
            left, right = (each.read(each.first_step[i] + number) for each in (reader, other))
            if left.goal != right.goal or reader.find_level(i, number) is not None:
                return
            difference = locate_difference(left, right, self._comparer.names, False, self._comparer.score_tolerance)
            yield number, right, None if difference is None else level_of_step(left, right, difference)

    def _read_differing(self, members: Sequence[int], stage: str, *, follows: bool = False) -> Iterator[SeenStep]:
        """Yield the steps of divergences that start from a goal of both sides, or the steps that handed on wrong goals.

        stage:   the stage whose outputs are needed
        follows: whether the steps behind them from the same goals belong to them, if they differ in nothing but scores
        """
        rows = np.array(sorted({self._divergences[i].candidate for i in members}), np.int64)
        if not len(rows) or int(rows[-1]) >= self._num_candidates:
            return
        reader, other = self._read(rows)
        places = {candidate: i for i, candidate in enumerate(rows.tolist())}
        for member in members:
            each = self._divergences[member]
            at = places[each.candidate], each.candidate
            if each.step >= int(reader.columns.candidates.num_steps[at[0]]) or each.evidence.endswith(OF_ACTUAL):
                continue
            if starts_wrong(each):
                if (path := reader.read_path(at[0], each.step)) and each.stage == Stage.ADVANCE:
                    yield self._see(reader, at, path[-1][0])
                elif each.stage == Stage.RECYCLE:
                    yield self._see(reader, at, each.step)
                continue
            if stage in SEARCH_STAGES:
                beam, (start, stop) = reader.find_level(at[0], each.step), other.first_step[at[0] : at[0] + 2]
                every = [] if beam is None else [self._see(reader, at, number) for number in beam.places]
                choices = [] if self._replays.lockstep else other.columns.steps.choice[start:stop].tolist()
                yield from [e for e in every if choices[e.number : e.number + 1] != [e.expected.choice]] or every
                continue
            actual = self._actual_of(each, at[0], other)
            if actual is not None:
                # The outputs are those of the stage of the divergence, which may belong to a cause of another stage now.
                outputs = self._replays.outputs[member] if self.is_shown(member) and each.stage == stage else None
                seen = self._see(reader, at, each.step, actual, outputs)
                if seen.expected.goal == actual.goal:
                    yield seen
            if follows and not self._replays.lockstep:
                for number, right, level in self._follow(reader, other, at[0], each.step):
                    if level is Level.TOLERANCE:
                        yield self._see(reader, at, number, right)

    def _actual_of(self, divergence: Divergence, row: int, reader: LevelReader) -> StepView | None:
        """Return the actual step of a divergence, given the row of its candidate in `reader`; None if it is missing."""
        if self._replays.views is not None:
            views = self._replays.views.get((divergence.candidate, divergence.step))
            return None if views is None else views[1]
        has_step = divergence.step < int(reader.columns.candidates.num_steps[row])
        return reader.read(reader.first_step[row] + divergence.step) if has_step else None

    def _see(
        self,
        reader: LevelReader,
        at: tuple[int, int],
        number: int,
        actual: StepView | None = None,
        outputs: tuple[Any, Any] | None = None,
    ) -> SeenStep:
        """Read a step of a candidate, given the candidate's rows in `reader` and in the whole trace."""
        first, candidate = reader.first_step[at[0]], self._candidates.read(at[1])
        expected = reader.read(first + number)
        origins, level = self._comparer.program.at(expected.goal, candidate.atom), reader.find_level(at[0], number)
        rows = (
            range(first, first + number) if level is None else [first + i for i, _ in reader.read_path(at[0], number)]
        )
        earlier = tuple(map(reader.goal_of, rows))
        return SeenStep(self._run, candidate, number, expected, actual, origins, earlier, outputs, level)
