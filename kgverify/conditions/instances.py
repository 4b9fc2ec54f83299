"""Instances of a cause: the facts, rules, resolvents, steps or candidates that went wrong, and their neighbours that did not.

Which of them went wrong is read off both sides of each step, or off the outputs of the stage at fault if the step was replayed.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, KeysView, Sequence
from enum import StrEnum
from functools import cached_property
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from kgverify.comparison.inference.origins import Clause, Made, OriginInference, StepOrigins
from kgverify.comparison.result import PROOF_CLASSES
from kgverify.comparison.step_view import Content, ResolventView, StepView, content_of
from kgverify.conditions.slot_history import SlotHistory
from kgverify.conditions.slot_turns import Turn
from kgverify.program.atoms import Goal
from kgverify.program.difference_class import DifferenceClass
from kgverify.program.fact_index import ANY, Ids
from kgverify.program.limits import DeclaredLimits
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import Stage
from kgverify.step.clauses import Atoms, number_variables, resolve

Item = TypeVar("Item")


class Unit(StrEnum):
    """The kind of an instance."""

    FACT = "fact"
    RULE = "rule"
    RESOLVENT = "resolvent"
    STEP = "step"
    CANDIDATE = "candidate"


class Candidate(NamedTuple):
    """A candidate of the expected run.

    place:  its position among the candidates of its query and side, from 0, which is the true one
    num_alike: the candidates of its query and side
    rows_left: the candidates after it in the run
    turn:   its turn in the slots of the batch; None if the engine does not name its slots
    history: of the slots, if every slot takes a step at a time
    """

    row: int
    query: int
    side: int
    atom: Ids
    outcome: int
    num_steps: int
    place: int
    is_fact: bool | None
    num_alike: int
    rows_left: int
    turn: Turn | None = None
    history: SlotHistory | None = None

    @property
    def num_in_run(self) -> int:
        """The candidates of its run."""
        return self.row + 1 + self.rows_left

    def is_in_partial_block(self, size: int) -> bool:
        """Return whether it is one of the last candidates of its run, too few for a block of a size."""
        return self.row >= self.num_in_run - self.num_in_run % size


class Run(NamedTuple):
    """The common data of the instances of a run. infer: returns the clauses of a goal, given the candidate's atom as well."""

    limits: DeclaredLimits
    num_candidates: int
    inference: OriginInference | None
    infer: Callable[[Goal, Sequence[int]], StepOrigins | None]
    has_scores: bool
    has_origins: bool
    has_counts: bool
    follows_semantics: bool


class SeenStep:
    """A step that was compared.

    number:  its number in the derivation, from 0
    actual:  None if it agrees
    origins: infers the clauses; None without a program
    earlier: the goals visited before, if they are known
    outputs: both outputs of the stage at fault, if they are known
    """

    def __init__(
        self,
        run: Run,
        candidate: Candidate,
        number: int,
        expected: StepView,
        actual: StepView | None,
        origins: StepOrigins | None,
        earlier: tuple[Goal, ...] | None,
        outputs: tuple[Any, Any] | None = None,
    ) -> None:
        self.run, self.candidate, self.number = run, candidate, number
        self.expected, self.actual, self.origins = expected, actual, origins
        self.earlier, self.outputs = earlier, outputs

    @cached_property
    def num_matches(self) -> Counter[int]:
        """The clauses of each kind that match; none without a program."""
        return Counter(kind for kind, _ in (() if self.origins is None else self.origins.positions))

    @cached_property
    def excluded_match(self) -> int | None:
        """The fact that matches and is excluded since it equals the query; None without one."""
        goal = self.expected.goal
        if self.run.inference is None or not goal:
            return None
        excluded = self.run.inference.clauses.excluded(self.candidate.atom)
        if excluded is None or resolve(canonical(goal[:1]), excluded, ()) is None:
            return None
        return self.run.inference.clauses.fact_index[excluded]

    @cached_property
    def made(self) -> dict[Clause, Made]:
        """The result of each clause that matches, before pruning; empty without a program, or in another dialect."""
        if self.origins is None or not self.run.follows_semantics:
            return {}
        return {made.clause: made for made in self.origins.results}

    @cached_property
    def kept(self) -> dict[Clause, Atoms]:
        """The resolvent of each clause that matches, pruned and renamed."""
        return (
            {} if self.origins is None else {c: atoms for atoms, clauses in self.origins.made.items() for c in clauses}
        )

    @cached_property
    def goal(self) -> Atoms:
        """Its goal, with variables numbered by first appearance."""
        return canonical(self.expected.goal)

    @cached_property
    def shape(self) -> tuple[int, Atoms]:
        """Its depth, and its goal without the names of constants."""
        return self.expected.depth, tuple((p, min(a, 0), min(b, 0)) for p, a, b in self.goal)

    @cached_property
    def steps_since(self) -> dict[Atoms, int]:
        """The steps since each visited goal was last left, 1 for the present one; empty if those before are unknown."""
        every = () if self.earlier is None else (*self.earlier, self.expected.goal)
        return {canonical(goal): len(every) - i for i, goal in enumerate(every)}

    @property
    def visited(self) -> KeysView[Atoms]:
        """The goals visited before this step and in it; empty if those before are unknown."""
        return self.steps_since.keys()

    @cached_property
    def limited(self) -> dict[Clause, int]:
        """The position of each resolvent among those that `limit` receives and that are short enough, if it is known."""
        most = self.run.limits.max_atoms
        if self.earlier is None or most is None:
            return {}
        found: dict[Clause, int] = {}
        position = 0
        for clause in self.made:
            found[clause] = position
            position += self.kept[clause] not in self.visited and len(self.kept[clause]) <= most
        return found

    @cached_property
    def sides(self) -> tuple[dict[Clause, ResolventView], dict[Clause, ResolventView]]:
        """The resolvents of both sides by the clauses that made them, where these are known."""
        expected = self._by_clause(self.expected)
        return expected, expected if self.actual is None else self._by_clause(self.actual)

    def _by_clause(self, step: StepView) -> dict[Clause, ResolventView]:
        if self.run.has_origins:
            return {r.clause: r for r in step.resolvents if r.kind in (GoalKind.GOAL, GoalKind.TRUE)}
        num = Counter(map(content_of, step.resolvents))
        # Of several clauses that make the same it is not known which ones are there.
        whole = (r for r in step.resolvents if num[content_of(r)] >= len(self._clauses_of(content_of(r))))
        return {clause: r for r in whole for clause in self._clauses_of(content_of(r))}

    def _clauses_of(self, content: Content) -> Sequence[Clause]:
        kind, atoms = content
        if self.origins is None or kind not in (GoalKind.GOAL, GoalKind.TRUE):
            return ()
        return self.origins.made.get(atoms, ()) or self.origins.explain(atoms).clauses

    @cached_property
    def changes(self) -> "Changes":
        """The clauses that one side or both sides used; without known origins those of which both sides are certain."""
        expected, actual = (set(side) for side in self.sides)
        implied = self.kept.keys()
        shared = actual & (expected | implied)
        if self.actual is None:
            return Changes(set(), set(), shared - self.uncertain)
        if self.run.has_origins:
            return Changes(expected - actual, actual - expected - implied, shared)
        contents = [set(map(content_of, step.resolvents)) for step in (self.expected, self.actual)]
        only = [
            {c for content in here - there for c in self._clauses_of(content)} for here, there in _both_ways(contents)
        ]
        return Changes(only[0], only[1] - implied, shared - only[0])

    @cached_property
    def uncertain(self) -> set[Clause]:
        """The clauses that make a resolvent of which fewer are listed than there are clauses that make it.

        Both sides of a step may list as many of them and agree, and yet use other clauses.
        """
        listed = Counter(map(content_of, self.expected.resolvents))
        found: set[Clause] = set()
        for atoms, clauses in ({} if self.origins is None else self.origins.made).items():
            num = listed[int(GoalKind.GOAL if atoms else GoalKind.TRUE), atoms]
            if 0 < num < len(clauses):
                found.update(clauses)
        return found

    @property
    def is_cut(self) -> bool:
        """True if a limit has left resolvents out on the expected side: what goes wrong with these does not show."""
        return any(c not in self.sides[0] and atoms not in self.visited for c, atoms in self.kept.items())

    @property
    def is_proved(self) -> bool:
        """True if the expected side has TRUE."""
        return any(r.kind == GoalKind.TRUE for r in self.expected.resolvents)


class Changes(NamedTuple):
    """The clauses that only the expected side used, those that only the actual side did and wrongly, and the others of it."""

    missing: set[Clause]
    extra: set[Clause]
    shared: set[Clause]


def _both_ways(pair: Sequence[set[Content]]) -> tuple[tuple[set[Content], set[Content]], ...]:
    return (pair[0], pair[1]), (pair[1], pair[0])


class Instance(NamedTuple):
    """A fact, rule, resolvent, step or candidate that went wrong, or did not.

    identity: instances of one identity count as one where chance is judged
    clause:   of a fact, a rule or a resolvent
    """

    unit: Unit
    is_wrong: bool
    identity: Hashable
    candidate: Candidate
    step: SeenStep | None = None
    clause: Clause | None = None

    @property
    def run(self) -> Run:
        """The run."""
        assert self.step is not None
        return self.step.run


class Cases(NamedTuple):
    """The instances of one unit, with the words for those that went wrong and those that did not.

    is_by_itself: whether only features of the instances themselves may distinguish them: their steps were chosen by what
                  went wrong
    """

    unit: Unit
    wrong: str
    right: str
    instances: tuple[Instance, ...]
    is_by_itself: bool = False
    hidden: tuple[Instance, ...] = ()


MOST_RIGHT: Final = 4_000
"""The instances that did not go wrong to look at; of more, evenly spread ones."""

MOST_WRONG: Final = 4_000
"""The instances that went wrong to look at."""

MOST_LEFT_OUT: Final = 12
"""The clauses that do not match to compare extra ones with, of each step."""

_SUBSTITUTIONS: Final = (Stage.RESOLVE, Stage.PRUNE, Stage.RENAME)
_CLAUSES: Final = {
    Stage.MATCH_RULES: (Unit.RULE,),
    Stage.MATCH_FACTS: (Unit.FACT,),
    Stage.CLOSE: (Unit.FACT, Unit.RULE),
}
_KIND_OF: Final = {Unit.FACT: Origin.FACT, Unit.RULE: Origin.RULE}


def plain(goal: Iterable[Iterable[int]]) -> Goal:
    """Return a goal as plain tuples."""
    return tuple(tuple(atom) for atom in goal)  # type: ignore[misc]


def canonical(goal: Goal) -> Atoms:
    """Return a goal as plain tuples, its variables numbered by first appearance."""
    return number_variables(iter(plain(goal)))


def collect_cases(
    stage: Stage,
    kind: DifferenceClass,
    differing: Sequence[SeenStep],
    agreeing: Sequence[SeenStep],
    hidden: Sequence[SeenStep],
    tolerance: float,
) -> Iterator[Cases]:
    """Yield the instances of a cause in single steps, the smallest unit first.

    hidden:    steps that other causes hide; the clauses that both sides have there went right
    tolerance: of scores, absolute
    """
    for unit in _CLAUSES.get(stage, ()):
        yield from _collect_clauses(unit, stage, kind, differing, (*agreeing, *hidden))
    if stage in _SUBSTITUTIONS:
        yield _join(Unit.RESOLVENT, "wrong", "right", _changed_resolvents(differing), _kept_resolvents(agreeing))
    elif stage in (Stage.REVISIT, Stage.LIMIT):
        yield from _collect_dropped(stage, kind, differing, agreeing)
    elif stage is Stage.SCORE:
        yield _join(
            Unit.RESOLVENT,
            "scored wrongly",
            "scored rightly",
            _scored(differing, tolerance),
            _kept_resolvents(agreeing),
        )
    comparable = agreeing
    if kind in PROOF_CLASSES:
        comparable = [each for each in agreeing if each.is_proved == (kind is DifferenceClass.PROOF_LOST)]
    cases = _join(
        Unit.STEP, "wrong", "right", (_of_step(each, True) for each in differing), map(_right_step, comparable)
    )
    yield cases._replace(hidden=tuple(map(_right_step, thin(hidden, MOST_RIGHT))))


def _join(unit: Unit, wrong: str, right: str, differing: Iterable[Instance], agreeing: Iterable[Instance]) -> Cases:
    found = [*differing, *agreeing]
    parts = [[each for each in found if each.is_wrong is is_wrong] for is_wrong in (True, False)]
    kept = [thin(part, most) for part, most in zip(parts, (MOST_WRONG, MOST_RIGHT), strict=True)]
    return Cases(unit, wrong, right, (*kept[0], *kept[1]))


def thin(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return at most `most` of the items, drawn at random: a fixed stride would follow any period of theirs."""
    if len(items) <= most:
        return items
    return [items[i] for i in sorted(Random(len(items)).sample(range(len(items)), most))]


def _of_step(step: SeenStep, is_wrong: bool) -> Instance:
    return Instance(Unit.STEP, is_wrong, (plain(step.expected.goal), step.number), step.candidate, step)


def _right_step(step: SeenStep) -> Instance:
    return _of_step(step, False)


def _of_clause(unit: Unit, step: SeenStep, clause: Clause, is_wrong: bool) -> Instance:
    identity: Hashable = clause if unit in _KIND_OF else (clause, plain(step.expected.goal))
    return Instance(unit, is_wrong, identity, step.candidate, step, clause)


# Facts and rules


def _collect_clauses(
    unit: Unit, stage: Stage, kind: DifferenceClass, differing: Sequence[SeenStep], agreeing: Sequence[SeenStep]
) -> Iterator[Cases]:
    labels = {
        DifferenceClass.EXTRA: (False,),
        DifferenceClass.FALSE_PROOF: (False,),
        DifferenceClass.SUBSTITUTED: (True, False),
    }
    for is_missing in labels.get(kind, (True,)):
        found = [(step, *_split(unit, stage, step, is_missing=is_missing)) for step in differing]
        if not any(wrong for _, wrong, _ in found) or not all(wrong or step.is_cut for step, wrong, _ in found):
            # Something else goes wrong in some of these steps.
            continue
        cases = _join(
            unit,
            "missing" if is_missing else "extra",
            "present" if is_missing else "right",
            (
                _of_clause(unit, step, c, c in wrong)
                for step, wrong, right in found
                for c in (*wrong, *right, *(() if is_missing else _left_out(unit, step) - wrong - right))
            ),
            (
                _of_clause(unit, step, c, False)
                for step in agreeing
                for c in (*_clauses(unit, step.changes.shared), *(() if is_missing else _left_out(unit, step)))
            ),
        )
        yield cases._replace(is_by_itself=kind in PROOF_CLASSES)


def _clauses(unit: Unit, found: Iterable[Clause]) -> set[Clause]:
    return {clause for clause in found if clause[0] == _KIND_OF[unit]}


def _left_out(unit: Unit, step: SeenStep) -> set[Clause]:
    """Return some clauses of the selected predicate that do not match: those that nearly do first, and others."""
    if step.run.inference is None or step.origins is None or not step.expected.goal:
        return set()
    if step.outputs is None and (step.is_cut or not _shows_all(step)):
        return set()
    clauses, (p, a, b) = step.run.inference.clauses, step.goal[0]
    if unit is Unit.RULE:
        chosen = [*clauses.rules_of(p)][:MOST_LEFT_OUT]
    else:
        like, every = clauses.fact_index.find_like, clauses.facts_of(p)
        near = [*(like(p, a, ANY) if a >= 0 else ()), *(like(p, ANY, b) if b >= 0 else ())]
        spread = every[:: max(1, len(every) // MOST_LEFT_OUT)]
        chosen = [*near[: MOST_LEFT_OUT // 2], *spread[: MOST_LEFT_OUT // 2]]
        if step.excluded_match is not None:
            chosen.append(step.excluded_match)
    return {clause for i in chosen if (clause := (int(_KIND_OF[unit]), int(i))) not in step.origins.positions}


def _shows_all(step: SeenStep) -> bool:
    """Return whether neither side lacks a resolvent that its clauses made: by a proof, or by a limit."""
    for side in (step.expected, *(() if step.actual is None else (step.actual,))):
        most, num_dropped = step.run.limits.max_resolvents, (side.dropped_atoms or 0, side.dropped_resolvents or 0)
        is_full = most is not None and len(side.resolvents) >= most
        if is_full or any(num_dropped) or any(r.kind == GoalKind.TRUE for r in side.resolvents):
            return False
    return True


def _split(unit: Unit, stage: Stage, step: SeenStep, *, is_missing: bool) -> tuple[set[Clause], set[Clause]]:
    """Return the clauses that the actual side lacks, or else has wrongly, and those that it has rightly."""
    if step.outputs is not None and stage is not Stage.CLOSE:
        expected, actual = ({(int(_KIND_OF[unit]), int(i)) for i in side} for side in step.outputs)
        return (expected - actual if is_missing else actual - expected), expected & actual
    changes = step.changes
    return _clauses(unit, changes.missing if is_missing else changes.extra), _clauses(unit, changes.shared)


# Resolvents


def _kept_resolvents(steps: Iterable[SeenStep]) -> Iterator[Instance]:
    for step in steps:
        for clause in step.sides[0]:
            if clause in step.made:
                yield _of_clause(Unit.RESOLVENT, step, clause, False)


def _changed_resolvents(steps: Iterable[SeenStep]) -> Iterator[Instance]:
    """Yield the resolvents that both sides made by the same clause: wrong if these differ."""
    for step in steps:
        if step.outputs is not None:
            sides = [{(kind, origin): plain(atoms) for *_, kind, origin, atoms in side} for side in step.outputs]
        else:
            sides = [{c: (r.kind, plain(r.atoms)) for c, r in side.items()} for side in step.sides]  # type: ignore[misc]
        for clause in sides[0]:
            if clause in sides[1] and clause in step.made:
                yield _of_clause(Unit.RESOLVENT, step, clause, sides[0][clause] != sides[1][clause])


def _scored(steps: Iterable[SeenStep], tolerance: float) -> Iterator[Instance]:
    for step in steps:
        expected, actual = step.sides
        for clause in expected:
            if clause in actual and clause in step.made:
                scores = expected[clause].score, actual[clause].score
                is_close = scores[0] == scores[1] or abs(scores[0] - scores[1]) <= tolerance
                yield _of_clause(Unit.RESOLVENT, step, clause, not is_close)


def _collect_dropped(
    stage: Stage, kind: DifferenceClass, differing: Sequence[SeenStep], agreeing: Sequence[SeenStep]
) -> Iterator[Cases]:
    """Yield the resolvents that `revisit` or `limit` may drop: wrong if only one side has dropped them."""
    is_extra = kind is DifferenceClass.EXTRA

    def label(step: SeenStep, *, is_wrong: Callable[[Clause], bool]) -> Iterator[Instance]:
        if not step.is_proved:
            for clause in step.made if stage is Stage.LIMIT else _before_limit(step):
                yield _of_clause(Unit.RESOLVENT, step, clause, is_wrong(clause))

    def differs(step: SeenStep) -> Iterator[Instance]:
        left, right = _listed(step)
        moved = _find_moved(step, left, right)
        every = label(step, is_wrong=lambda clause: (clause in left) != (clause in right))
        return (each for each in every if each.clause not in moved)

    instances = [each for step in differing for each in differs(step)]
    agree = (each for step in agreeing for each in label(step, is_wrong=lambda clause: False))
    dropped = [_is_dropped(each) for each in instances if each.is_wrong]
    words = (
        ("kept wrongly", "treated rightly") if is_extra or not any(dropped) else ("dropped wrongly", "treated rightly")
    )
    if dropped:
        yield _join(Unit.RESOLVENT, *words, instances, agree)


def _before_limit(step: SeenStep) -> Iterator[Clause]:
    """Yield the clauses of which a step shows whether `revisit` has dropped what they make: `limit` has not."""
    limits = step.run.limits
    if step.outputs is not None:
        yield from step.made
        return
    left, right = _listed(step)
    last = max((place for place, clause in enumerate(step.made) if clause in left or clause in right), default=-1)
    is_full = limits.max_resolvents is not None and max(len(left), len(right)) >= limits.max_resolvents
    for place, clause in enumerate(step.made):
        is_long = limits.max_atoms is not None and len(step.kept[clause]) > limits.max_atoms
        if not is_long and not (is_full and place > last):
            yield clause


def _find_moved(step: SeenStep, left: set[Clause], right: set[Clause]) -> set[Clause]:
    """Return the clauses that only one side has kept because its list had room, as it dropped others wrongly."""
    most = step.run.limits.max_resolvents
    places = {clause: i for i, clause in enumerate(step.made)}
    found: set[Clause] = set()
    for side, other in ((left, right), (right, left)):
        # A full list ends with its last resolvent; one that is too long does not keep to the limit.
        if most is not None and len(other) == most >= len(side):
            last = max((places.get(clause, -1) for clause in other), default=-1)
            found |= {clause for clause in side - other if places.get(clause, -1) > last}
    return found if found < left ^ right else set()


def _is_dropped(instance: Instance) -> bool:
    assert instance.step is not None
    left, _ = _listed(instance.step)
    return instance.clause in left


def _listed(step: SeenStep) -> tuple[set[Clause], set[Clause]]:
    """Return the clauses whose resolvents each side has kept."""
    if step.outputs is None:
        return set(step.sides[0]), set(step.sides[1])
    lists = [side[0] if side and isinstance(side[-1], int) else side for side in step.outputs]
    left, right = ({(item[-3], item[-2]) for item in side if item[-2:-1]} for side in lists)
    return left, right
