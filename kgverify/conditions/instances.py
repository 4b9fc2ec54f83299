"""Instances of a cause: the facts, rules, resolvents, steps or candidates that went wrong, and neighbours that did not.

Both sides of each step show which instances went wrong; if the step was replayed, the outputs of the stage at fault do.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kgverify.comparison.inference.origins import Made, OriginInference, StepOrigins
from kgverify.comparison.result import PROOF_CLASSES
from kgverify.comparison.step_view import Content, ResolventView, StepView, content_of, plain
from kgverify.conditions.batch import Candidate, Turn
from kgverify.conditions.levels import Level
from kgverify.program.atoms import Goal
from kgverify.program.fact_index import ANY, Ids
from kgverify.program.limits import DeclaredLimits
from kgverify.program.outcomes import SEARCH_STAGES, DifferenceClass, GoalKind, Origin, Stage
from kgverify.step.clauses import Atoms, Clause, number_variables, resolve

Item = TypeVar("Item")


class Unit(StrEnum):
    """The kind of an instance."""

    FACT = "fact"
    RULE = "rule"
    RESOLVENT = "resolvent"
    STEP = "step"
    LEVEL = "level"
    CANDIDATE = "candidate"
    RESET = "reset"


class Unknown(Exception):
    """The error raised if a feature needs data of an instance that are unknown."""


def known(value: Item | None) -> Item:
    """Return a value; raise Unknown if it is None."""
    if value is None:
        raise Unknown
    return value


class Run(NamedTuple):
    """The common data of a run's instances. infer: a function that returns the clauses of a goal, given a candidate's atom."""

    limits: DeclaredLimits
    inference: OriginInference | None
    infer: Callable[[Goal, Sequence[int]], StepOrigins | None]
    has_scores: bool
    has_origins: bool
    has_counts: bool
    follows_semantics: bool


@dataclass(eq=False)
class SeenStep:
    """A compared step.

    number:  its number in the derivation, from 0
    actual:  the actual step; None if it agrees
    origins: the inference of its clauses; None without a program
    earlier: the goals visited before
    outputs: both outputs of the stage at fault, if they are known
    level:   its level; None without a search
    """

    run: Run
    candidate: Candidate
    number: int
    expected: StepView
    actual: StepView | None
    origins: StepOrigins | None
    earlier: tuple[Goal, ...]
    outputs: tuple[Any, Any] | None = None
    level: Level | None = None

    @cached_property
    def num_matches(self) -> Counter[int]:
        """The number of matching clauses of each kind; 0 without a program."""
        return Counter(kind for kind, _ in (() if self.origins is None else self.origins.positions))

    @cached_property
    def excluded_match(self) -> int | None:
        """The matching fact that is excluded because it equals the query; None if no such fact matches."""
        goal = self.expected.goal
        if self.run.inference is None or not goal:
            return None
        excluded = self.run.inference.clauses.excluded(self.candidate.atom)
        if excluded is None or resolve(canonical(goal[:1]), excluded, ()) is None:
            return None
        return self.run.inference.clauses.fact_index[excluded]

    @cached_property
    def indexed_facts(self) -> Sequence[int]:
        """The facts of the selected predicate with the first constant of the selected atom, the query included, ascending."""
        p, a, b = known(self.goal[0] if self.goal else None)
        facts = known(self.run.inference).clauses.fact_index
        return facts.find_like(p, *((a, ANY) if a >= 0 else (ANY, max(b, ANY))))

    @cached_property
    def made(self) -> dict[Clause, Made]:
        """The result of each matching clause, before pruning; empty without a program, or in an unsupported dialect."""
        if self.origins is None or not self.run.follows_semantics:
            return {}
        return {made.clause: made for made in self.origins.results}

    @cached_property
    def kept(self) -> dict[Clause, Atoms]:
        """The resolvent of each matching clause, pruned and renamed."""
        made = {} if self.origins is None else self.origins.made
        return {clause: atoms for atoms, clauses in made.items() for clause in clauses}

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
        """The number of steps since each visited goal was last the current one; 1 for the goal of this step."""
        every = (*self.earlier, self.expected.goal)
        return {canonical(goal): len(every) - i for i, goal in enumerate(every)}

    @property
    def visited(self) -> KeysView[Atoms]:
        """The goals visited up to and including this step."""
        return self.steps_since.keys()

    @cached_property
    def limited(self) -> dict[Clause, tuple[int, int, int]]:
        """The position of each resolvent among those that `limit` receives.

        It is counted among the short enough ones, among all, and among the short enough ones of its own kind.
        """
        most = self.run.limits.max_atoms
        if most is None:
            return {}
        found: dict[Clause, tuple[int, int, int]] = {}
        num_short = Counter[int]()
        num = 0
        for clause in self.made:
            found[clause] = num_short.total(), num, num_short[clause[0]]
            is_new = self.kept[clause] not in self.visited
            num_short[clause[0]] += is_new and len(self.kept[clause]) <= most
            num += is_new
        return found

    @cached_property
    def scores(self) -> list[float]:
        """The scores of the expected resolvents, the highest first. Raises Unknown if a side has no scores."""
        resolvents = known(self.expected.resolvents if self.run.has_scores else None)
        return sorted((float(r.score) for r in resolvents), reverse=True)

    @cached_property
    def sides(self) -> tuple[dict[Clause, ResolventView], dict[Clause, ResolventView]]:
        """The resolvents of both sides by the clauses that made them, as far as these are known."""
        expected = self._by_clause(self.expected)
        return expected, expected if self.actual is None else self._by_clause(self.actual)

    def _by_clause(self, step: StepView) -> dict[Clause, ResolventView]:
        if self.run.has_origins:
            return {r.clause: r for r in step.resolvents if r.kind in (GoalKind.GOAL, GoalKind.TRUE)}
        num = Counter(map(content_of, step.resolvents))
        # If several clauses make the same resolvent, it is unknown which of them were used, unless all were.
        whole = (r for r in step.resolvents if num[content_of(r)] >= len(self._clauses_of(content_of(r))))
        return {clause: r for r in whole for clause in self._clauses_of(content_of(r))}

    def _clauses_of(self, content: Content) -> Sequence[Clause]:
        kind, atoms = content
        if self.origins is None or kind not in (GoalKind.GOAL, GoalKind.TRUE):
            return ()
        return self.origins.made.get(atoms, ()) or self.origins.explain(atoms).clauses

    @cached_property
    def changes(self) -> "Changes":
        """The clauses that one side or both sides used; if origins are unknown, only the certain ones."""
        expected, actual = (set(side) for side in self.sides)
        implied = self.kept.keys()
        shared = actual & (expected | implied)
        if self.actual is None:
            return Changes(set(), set(), shared - self.uncertain)
        if self.run.has_origins:
            return Changes(expected - actual, actual - expected - implied, shared)
        left, right = (set(map(content_of, step.resolvents)) for step in (self.expected, self.actual))
        missing, extra = (
            {c for content in only for c in self._clauses_of(content)} for only in (left - right, right - left)
        )
        return Changes(missing, extra - implied, shared - missing)

    @cached_property
    def uncertain(self) -> set[Clause]:
        """The clauses that make the same resolvent, if a side lists it fewer times than there are such clauses.

        The sides of a step may list the same resolvents, and still have used different clauses.
        """
        sides = [Counter(map(content_of, side.resolvents)) for side in (self.expected, self.actual) if side is not None]
        found: set[Clause] = set()
        for atoms, clauses in ({} if self.origins is None else self.origins.made).items():
            content = int(GoalKind.GOAL if atoms else GoalKind.TRUE), atoms
            if any(0 < listed[content] < len(clauses) for listed in sides):
                found.update(clauses)
        return found

    @property
    def is_cut(self) -> bool:
        """True if a limit dropped resolvents on the expected side: their faults do not show."""
        return any(c not in self.sides[0] and atoms not in self.visited for c, atoms in self.kept.items())

    @property
    def is_proved(self) -> bool:
        """True if the expected side has TRUE."""
        return any(r.kind == GoalKind.TRUE for r in self.expected.resolvents)


class Changes(NamedTuple):
    """The clauses that only the expected side used, those that only the actual side used wrongly, and its other clauses."""

    missing: set[Clause]
    extra: set[Clause]
    shared: set[Clause]


@dataclass(eq=False)
class Instance:
    """A fact, rule, resolvent, step, level or candidate that went wrong, or did not.

    identity: instances of the same identity count as one when chance is judged
    step:     its step; the first one of a level, the last one of a search
    clause:   the clause of a fact, a rule or a resolvent
    """

    unit: Unit
    is_wrong: bool
    identity: Hashable
    candidate: Candidate
    step: SeenStep | None = None
    clause: Clause | None = None

    @property
    def location(self) -> str:
        """Its candidate and step, in words."""
        return f"candidate {self.candidate.row}" + (f", step {self.step.number}" if self.step else "")

    @property
    def groups(self) -> Mapping[str, Hashable]:
        """The groups to which it belongs: the words for instances of the same group, and the group."""
        clause = {"by one clause": self.clause} if self.unit in (Unit.RULE, Unit.RESOLVENT) else {}
        atom = self.identity if self.step is None or self.unit is Unit.LEVEL else self.step.goal[:1]
        return {**clause, "with one selected atom": atom, "of one query": self.candidate.query}

    @cached_property
    def resolvents(self) -> list["Instance"]:
        """The resolvents of its step, before pruning."""
        return [replace(self, unit=Unit.RESOLVENT, clause=clause) for clause in self.seen.made]

    @cached_property
    def seen(self) -> SeenStep:
        """Its step. Raises Unknown for a candidate."""
        return known(self.step)

    @property
    def level(self) -> Level:
        """Its level; the last one of a candidate. Raises Unknown without a search."""
        return known(self.seen.level)

    @cached_property
    def by(self) -> Clause:
        """Its clause. Raises Unknown for a step or a candidate, and for a clause that the program lacks."""
        clause, inference = known(self.clause), self.seen.run.inference
        return known(clause if inference is None or inference.has(clause) else None)

    @cached_property
    def inference(self) -> OriginInference:
        """The inference of clauses. Raises Unknown without a program."""
        return known(self.seen.run.inference)

    @cached_property
    def head(self) -> Ids:
        """The fact, or the head of the rule."""
        return self.inference.clauses.clause((), *self.by)[0]

    @cached_property
    def body(self) -> Atoms:
        """The body of the rule; empty for a fact."""
        return self.inference.clauses.clause((), *self.by)[1]

    @cached_property
    def made(self) -> Made:
        """The result of its clause before pruning. Raises Unknown if it does not match, or in an unsupported dialect."""
        return known(self.seen.made.get(self.by))

    @cached_property
    def kept(self) -> Atoms:
        """The resolvent of its clause, pruned and renamed. Raises Unknown if the clause does not match."""
        return known(self.seen.kept.get(self.by))

    @cached_property
    def score(self) -> float:
        """The expected score of its resolvent. Raises Unknown if a side has no scores, or the resolvent is not listed."""
        known(self.seen.run.has_scores or None)
        return float(known(self.seen.sides[0].get(self.by)).score)

    @cached_property
    def selected(self) -> Ids:
        """The selected atom of its step. Raises Unknown for an empty goal."""
        goal = self.seen.expected.goal
        return known(goal[0] if goal else None)

    @property
    def turn(self) -> Turn:
        """The turn of its candidate. Raises Unknown if the engine does not declare its slots."""
        return known(self.candidate.turn)


def or_none(value: Callable[[Instance], Item]) -> Callable[[Instance], Item | None]:
    """Return a function that returns None if the value is unknown."""

    def read(instance: Instance) -> Item | None:
        try:
            return value(instance)
        except Unknown:
            return None

    return read


class Cases(NamedTuple):
    """The instances of one unit, with the words for those that went wrong and those that did not.

    is_by_itself: whether only features of the instances themselves may distinguish them, because their steps were chosen
                  by what went wrong
    is_sample:    whether some instances of the run were left out
    scope:        words behind the noun for what all instances have in common
    """

    unit: Unit
    wrong: str
    right: str
    instances: tuple[Instance, ...]
    is_by_itself: bool = False
    hidden: tuple[Instance, ...] = ()
    is_sample: bool = False
    scope: str = ""

    def is_like(self, other: "Cases") -> bool:
        """Return whether the instances of both are of the same kind, and go wrong alike."""
        return (self.unit, self.wrong) == (other.unit, other.wrong)


MOST_RIGHT: Final = 4_000
"""The most instances that did not go wrong to examine; more are thinned out."""

MOST_WRONG: Final = 4_000
"""The most instances that went wrong to examine; more are thinned out."""

TIED: Final = "with a tie and "
"""The scope of steps that differ in nothing but the choice among equal scores."""

MOST_LEFT_OUT: Final = 12
"""The most clauses of each step that do not match and are compared with extra ones."""

_SUBSTITUTIONS: Final = (Stage.RESOLVE, Stage.PRUNE, Stage.RENAME)
_CLAUSES: Final = {
    Stage.MATCH_RULES: (Unit.RULE,),
    Stage.MATCH_FACTS: (Unit.FACT,),
    Stage.CLOSE: (Unit.FACT, Unit.RULE),
}
_KIND_OF: Final = {Unit.FACT: Origin.FACT, Unit.RULE: Origin.RULE}


def canonical(goal: Goal) -> Atoms:
    """Return a goal as plain tuples, with variables numbered by first appearance."""
    return number_variables(plain(goal))


Labelled: TypeAlias = tuple[SeenStep, Sequence[tuple[Clause, bool]]]
"""A step, and its clauses, each with whether it went wrong."""


class Fault(NamedTuple):
    """The fault of a cause. tolerance: of scores, absolute."""

    stage: Stage
    kind: DifferenceClass
    tolerance: float

    def collect(
        self, differing: Sequence[SeenStep], agreeing: Sequence[SeenStep] = (), hidden: Sequence[SeenStep] = ()
    ) -> Iterator[Cases]:
        """Yield the instances of steps, the smallest unit first.

        hidden: steps that other causes hide; the clauses that both sides have in common there are right
        """
        for unit in _CLAUSES.get(self.stage, ()):
            yield from self._collect_clauses(unit, differing, (*agreeing, *hidden))
        if self.stage in _SUBSTITUTIONS:
            yield collect_labelled(Unit.RESOLVENT, map(_label_changed, differing), _list_made(agreeing))
        elif self.stage in (Stage.REVISIT, Stage.LIMIT):
            yield from self._collect_dropped(differing, agreeing)
        elif self.stage is Stage.SCORE:
            scored = collect_labelled(Unit.RESOLVENT, map(self._label_scored, differing), _list_made(agreeing))
            yield scored._replace(wrong="scored wrongly", right="scored rightly")
        if self.stage in SEARCH_STAGES:
            yield _join(Unit.LEVEL, (*_of_levels(differing, True), *_of_levels(agreeing, False)))
        if self.kind in PROOF_CLASSES:
            is_lost = self.kind is DifferenceClass.PROOF_LOST
            agreeing = [each for each in agreeing if each.is_proved == is_lost]
        cases = _join(Unit.STEP, (*(_of_step(each, True) for each in differing), *map(_of_step, agreeing)))
        scope = TIED if self.kind is DifferenceClass.TIE else ""
        yield cases._replace(hidden=tuple(map(_of_step, thin(hidden, MOST_RIGHT))), scope=scope)

    def _collect_clauses(
        self, unit: Unit, differing: Sequence[SeenStep], agreeing: Sequence[SeenStep]
    ) -> Iterator[Cases]:
        labels = {
            DifferenceClass.EXTRA: (False,),
            DifferenceClass.FALSE_PROOF: (False,),
            DifferenceClass.SUBSTITUTED: (True, False),
        }
        for is_missing in labels.get(self.kind, (True,)):

            def list_others(step: SeenStep, is_missing: bool = is_missing) -> set[Clause]:
                return set() if is_missing else _left_out(unit, step)

            found = [(step, *self._split(unit, step, is_missing)) for step in differing]
            if not any(wrong for _, wrong, _ in found) or not all(wrong or step.is_cut for step, wrong, _ in found):
                # In some of these steps, something else goes wrong.
                continue
            labelled = (
                (step, [(c, c in wrong) for c in (*wrong, *right, *(list_others(step) - wrong - right))])
                for step, wrong, right in found
            )
            right_ones = ((step, (*_select(unit, step.changes.shared), *list_others(step))) for step in agreeing)
            words = ("missing", "present") if is_missing else ("extra", "right")
            cases = collect_labelled(unit, labelled, right_ones)
            cases = cases._replace(wrong=words[0], right=words[1], is_by_itself=self.kind in PROOF_CLASSES)
            if not is_missing and all(map(or_none(lambda each: each.head[0] == each.selected[0]), cases.instances)):
                # Of the clauses that do not match, `_left_out` takes some.
                cases = cases._replace(is_sample=True, scope="of the selected predicate ")
            yield cases

    def _split(self, unit: Unit, step: SeenStep, is_missing: bool) -> tuple[set[Clause], set[Clause]]:
        """Return the clauses that the actual side lacks, or those that it has wrongly, and the clauses that it has rightly."""
        if step.outputs is not None and self.stage is not Stage.CLOSE:
            expected, actual = ({(int(_KIND_OF[unit]), int(i)) for i in side} for side in step.outputs)
            return (expected - actual if is_missing else actual - expected), expected & actual
        changes = step.changes
        return _select(unit, changes.missing if is_missing else changes.extra), _select(unit, changes.shared)

    def _label_scored(self, step: SeenStep) -> Labelled:
        """Label the resolvents that both sides made with the same clause: wrong if their scores differ."""
        pairs = ((c, left.score, step.sides[1][c].score) for c, left in step.sides[0].items() if c in step.sides[1])
        labels = [(c, a != b and not abs(a - b) <= self.tolerance) for c, a, b in pairs if c in step.made]
        return step, labels

    def _collect_dropped(self, differing: Sequence[SeenStep], agreeing: Sequence[SeenStep]) -> Iterator[Cases]:
        """Yield the resolvents that `revisit` or `limit` may drop: wrong if only one side dropped them."""

        def list_clauses(step: SeenStep) -> Iterable[Clause]:
            if step.is_proved:
                return ()
            return step.made if self.stage is Stage.LIMIT else _before_limit(step)

        labelled = []
        for step in differing:
            left, right = _listed(step)
            moved = _find_moved(step, left, right)
            clauses = (
                clause
                for clause in list_clauses(step)
                if clause not in moved | (set() if step.run.has_origins else step.uncertain)
            )
            labelled.append((step, [(clause, (clause in left) != (clause in right)) for clause in clauses]))
        dropped = [clause in _listed(step)[0] for step, labels in labelled for clause, is_wrong in labels if is_wrong]
        if dropped:
            word = "dropped" if any(dropped) and self.kind is not DifferenceClass.EXTRA else "kept"
            cases = collect_labelled(Unit.RESOLVENT, labelled, ((step, list_clauses(step)) for step in agreeing))
            yield cases._replace(wrong=f"{word} wrongly", right="treated rightly")


def collect_labelled(
    unit: Unit, differing: Iterable[Labelled], agreeing: Iterable[tuple[SeenStep, Iterable[Clause]]]
) -> Cases:
    """Return the instances of labelled clauses, and of clauses of steps that agree."""
    wrong = (_of_clause(unit, step, clause, is_wrong) for step, labels in differing for clause, is_wrong in labels)
    right = (_of_clause(unit, step, clause) for step, clauses in agreeing for clause in clauses)
    return _join(unit, (*wrong, *right))


def _join(unit: Unit, instances: Iterable[Instance]) -> Cases:
    parts: dict[bool, list[Instance]] = {True: [], False: []}
    for each in instances:
        parts[each.is_wrong].append(each)
    thinned = *thin(parts[True], MOST_WRONG), *thin(parts[False], MOST_RIGHT)
    return Cases(unit, "wrong", "right", thinned, is_sample=len(thinned) < sum(map(len, parts.values())))


def thin(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return at most `most` of the items, drawn at random: a fixed stride might coincide with a period of the items."""
    if len(items) <= most:
        return items
    return [items[i] for i in sorted(Random(len(items)).sample(range(len(items)), most))]


def _of_step(step: SeenStep, is_wrong: bool = False) -> Instance:
    return Instance(Unit.STEP, is_wrong, (plain(step.expected.goal), step.number), step.candidate, step)


def _of_levels(steps: Iterable[SeenStep], is_wrong: bool) -> Iterator[Instance]:
    first = {step.level.draw: step for step in steps if step.level}
    return (Instance(Unit.LEVEL, is_wrong, level, step.candidate, step) for level, step in first.items())


def _of_clause(unit: Unit, step: SeenStep, clause: Clause, is_wrong: bool = False) -> Instance:
    identity: Hashable = clause if unit in _KIND_OF else (clause, plain(step.expected.goal))
    return Instance(unit, is_wrong, identity, step.candidate, step, clause)


def _select(unit: Unit, found: Iterable[Clause]) -> set[Clause]:
    return {clause for clause in found if clause[0] == _KIND_OF[unit]}


def _left_out(unit: Unit, step: SeenStep) -> set[Clause]:
    """Return some clauses of the selected predicate that do not match: first those that nearly match, then others."""
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
    """Return whether both sides list all resolvents that their clauses made: no proof or limit dropped any."""
    for side in (step.expected, *(() if step.actual is None else (step.actual,))):
        most, num_dropped = step.run.limits.max_resolvents, (side.dropped_atoms or 0, side.dropped_resolvents or 0)
        is_full = most is not None and len(side.resolvents) >= most
        if is_full or any(num_dropped) or any(r.kind == GoalKind.TRUE for r in side.resolvents):
            return False
    return True


# Resolvents


def _list_made(steps: Iterable[SeenStep]) -> Iterator[tuple[SeenStep, list[Clause]]]:
    return ((step, [clause for clause in step.sides[0] if clause in step.made]) for step in steps)


def _label_changed(step: SeenStep) -> Labelled:
    """Label the resolvents that both sides made with the same clause: wrong if they differ.

    Resolvents that a proof, a limit or a visited goal hides from the expected list are inferred.
    """
    left: Mapping[Clause, object]
    right: Mapping[Clause, object]
    if step.outputs is not None:
        left, right = ({(kind, i): plain(atoms) for *_, kind, i, atoms in side} for side in step.outputs)
    else:
        left, right = ({c: (r.kind, plain(r.atoms)) for c, r in side.items()} for side in step.sides)
        made = {c: (GoalKind.GOAL if atoms else GoalKind.TRUE, atoms) for c, atoms in step.kept.items()}
        left = {**made, **left}
    return step, [(c, left[c] != right[c]) for c in left if c in right and c in step.made]


def _before_limit(step: SeenStep) -> Iterator[Clause]:
    """Yield the clauses whose resolvents `limit` did not drop, or `revisit` had to, so that the step shows its effect."""
    limits = step.run.limits
    if step.outputs is not None:
        yield from step.made
        return
    left, right = _listed(step)
    last = max((place for place, clause in enumerate(step.made) if clause in left or clause in right), default=-1)
    is_full = limits.max_resolvents is not None and max(len(left), len(right)) >= limits.max_resolvents
    for place, clause in enumerate(step.made):
        is_long = limits.max_atoms is not None and len(step.kept[clause]) > limits.max_atoms
        if step.kept[clause] in step.visited or not (is_long or (is_full and place > last)):
            yield clause


def _find_moved(step: SeenStep, left: set[Clause], right: set[Clause]) -> set[Clause]:
    """Return the clauses that only one side kept because it had wrongly dropped others, so that its list had room."""
    most = step.run.limits.max_resolvents
    places = {clause: i for i, clause in enumerate(step.made)}
    found: set[Clause] = set()
    for side, other in ((left, right), (right, left)):
        # Clauses after the last one of a full list were cut; a list that is too long did not obey the limit.
        if most is not None and len(other) == most >= len(side):
            last = max((places.get(clause, -1) for clause in other), default=-1)
            found |= {clause for clause in side - other if places.get(clause, -1) > last}
    return found if found < left ^ right else set()


def _listed(step: SeenStep) -> tuple[set[Clause], set[Clause]]:
    """Return the clauses whose resolvents each side kept."""
    if step.outputs is None:
        return set(step.sides[0]), set(step.sides[1])
    lists = (side[0] if side and isinstance(side[-1], int) else side for side in step.outputs)
    left, right = ({(item[-3], item[-2]) for item in side if item[-2:-1]} for side in lists)
    return left, right
