"""The one stage whose fault makes the recorded list of a step, found by taking the step again with that stage changed.

The program, the limits and the dialect say what each filter leaves of the resolvents that the clauses make. If this is the
expected list, one stage after another is changed: clauses are lost or added, a filter is left out or moved, another atom is
selected. A change that gives exactly the actual list explains it, in any dialect. Two faults in one step are not explained.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from kgverify.comparison.inference.step_difference import CERTAIN, CLEAR, GUESSED, LIKELY, OPEN, StepDifference
from kgverify.comparison.step_view import ResolventView, StepView, content_of, list_missing, plain
from kgverify.errors import count_of
from kgverify.program.dialect import Filter
from kgverify.program.difference_class import DifferenceClass
from kgverify.program.fact_index import Ids
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import Stage
from kgverify.step.clauses import Atoms, Clauses, number_variables
from kgverify.step.plain_step import (
    SOUND,
    Situation,
    close,
    filter_resolvents,
    limit_atoms,
    limit_resolvents,
    match_facts,
    match_rules,
    prune,
    resolve,
)
from kgverify.step.renaming import find_embedding
from kgverify.step.resolvent import Resolvent

Clause: TypeAlias = tuple[int, int]
"""An `Origin` and the index of a rule or a fact."""

Key: TypeAlias = tuple[int, Atoms, Clause]
"""A resolvent: its kind, its atoms in canonical variables, and the clause that made it."""

NO_CLAUSE: Final[Clause] = (int(Origin.NONE), 0)


class Listed(NamedTuple):
    """The list that a step offers, and what the limits dropped."""

    keys: tuple[Key, ...]
    dropped_atoms: int
    dropped_resolvents: int


class Variation(NamedTuple):
    """Changes of the filters. takes_last: whether `close` keeps the last proof; None stands for no limit."""

    filters: tuple[Filter, ...]
    max_atoms: int | None
    max_resolvents: int | None
    memory: str
    truncates: bool
    takes_last: bool = False


class StepProgram:
    """The resolvents that a program gives for one goal, filter by filter.

    visited: the goals of the derivation in canonical variables, the current one last
    """

    def __init__(self, clauses: Clauses, limits: Limits, visited: Sequence[Atoms], query: Ids) -> None:
        self._clauses, self._query, self.limits, self.visited = clauses, query, limits, visited
        self.excluded = clauses.excluded(query)
        self.dialect = limits.dialect
        self.usual = Variation(
            self.dialect.filters,
            limits.max_atoms,
            limits.max_resolvents,
            self.dialect.memory,
            self.dialect.long_resolvents == "truncate",
        )

    @property
    def remembers(self) -> bool:
        """True if a goal is not visited twice."""
        return "revisit" in self.dialect.filters and self.dialect.memory != "none"

    def forget_earlier_goals(self) -> "StepProgram":
        """Return the same program with the current goal alone as visited."""
        return StepProgram(self._clauses, self.limits, self.visited[-1:], self._query)

    def match(self, goal: Atoms) -> list[Resolvent]:
        """Return what each clause makes of a goal, in the order of the dialect, before pruning."""
        situation = Situation(self._clauses, self.limits, self.excluded, (goal,))
        return resolve(situation, match_rules(situation, goal[0]), match_facts(situation, goal[0]))

    def make_excluded(self, goal: Atoms) -> Resolvent | None:
        """Return what the query makes of a goal if it may serve as a fact."""
        if self.excluded is None:
            return None
        number = self._clauses.fact_index[self.excluded]
        atoms = self._clauses.resolve(goal, Origin.FACT, number)
        return None if atoms is None else Resolvent(atoms, Origin.FACT, number)

    def put_in_order(self, made: Iterable[Resolvent]) -> list[Resolvent]:
        """Return resolvents in the order of the dialect, by the numbers of their clauses."""
        is_rules_first, is_reversed = self.dialect.order == "rules_first", self.dialect.is_reversed

        def place(each: Resolvent) -> tuple[bool, int]:
            kind, number = each.clause
            return (kind == Origin.RULE) != is_rules_first, -number if is_reversed else number

        return sorted(made, key=place)

    def is_fact(self, atom: Ids) -> bool:
        """Return whether pruning deletes an atom."""
        return atom in self._clauses.fact_index and atom != self.excluded

    def is_like_fact(self, atom: Ids) -> bool:
        """Return whether an atom, perhaps with variables, unifies with a fact, the excluded one among them."""
        return bool(self._clauses.facts_like(atom, None))

    def prune(self, atoms: Atoms) -> Atoms:
        """Return atoms without those that are facts, in canonical variables."""
        return number_variables(atom for atom in atoms if not self.is_fact(atom))

    def list(
        self, made: Sequence[Resolvent], variation: Variation | None = None, fixed: Collection[Resolvent] = ()
    ) -> Listed:
        """Return what the filters leave, by default the usual ones. fixed: resolvents that are pruned already."""
        variation = variation or self.usual
        is_fixed = {(each.clause, each.atoms) for each in fixed}

        def prune_others(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
            return [
                each if (each.clause, each.atoms) in is_fixed else prune(situation, [each])[0] for each in resolvents
            ]

        def close_last(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
            return close(situation, resolvents[::-1])[::-1]

        limits = {"max_atoms": variation.max_atoms, "max_resolvents": variation.max_resolvents}
        dialect = replace(
            self.dialect,
            filters=tuple(name for name in variation.filters if limits.get(name, 1) is not None),
            memory=variation.memory,
            long_resolvents="truncate" if variation.truncates else "reject",
        )
        stages = SOUND._replace(
            prune=prune_others if is_fixed else prune,
            close=close_last if variation.takes_last else close,
            limit_atoms=partial(limit_atoms, most=variation.max_atoms),
            limit_resolvents=partial(limit_resolvents, most=variation.max_resolvents),
        )
        situation = Situation(self._clauses, replace(self.limits, dialect=dialect), self.excluded, self.visited)
        left, dropped_atoms, dropped_resolvents = filter_resolvents(situation, made, stages).taken
        keys = ((each.kind, number_variables(each.atoms), each.clause) for each in left)
        return Listed(tuple(keys), dropped_atoms, dropped_resolvents)


_CHANGES: Final = {
    "the last atom of each longer body is missing": slice(None, -1),
    "the first atom of each longer body is missing": slice(1, None),
    "each body is turned": slice(None, None, -1),
}


def change_bodies(made: Sequence[Resolvent], num_rest: int) -> Iterator[tuple[str, list[Resolvent]]]:
    """Yield what clauses make if all bodies of two atoms or more are changed, with the change in words.

    num_rest: the number of atoms of the goal behind the selected one
    """
    for words, change in _CHANGES.items():
        changed = [_change(each, num_rest, change) for each in made]
        if changed != made:
            yield words, changed


def _change(each: Resolvent, num_rest: int, change: slice) -> Resolvent:
    num = len(each.atoms) - num_rest
    if each.clause[0] != Origin.RULE or num < 2:
        return each
    return each._replace(atoms=(*each.atoms[:num][change], *each.atoms[num:]))


def could_be_pruned(
    made: Sequence[Resolvent], changed: Sequence[Resolvent], is_like_fact: Callable[[Ids], bool]
) -> bool:
    """Return whether a single clause is changed, and lacks ground atoms alone, or atoms like facts."""
    pairs = [pair for pair in zip(made, changed, strict=True) if pair[0] != pair[1]]
    lost = (atom for own, other in pairs for atom in Counter(own.atoms) - Counter(other.atoms))
    return len(pairs) < 2 and all(min(atom[1:]) >= 0 or is_like_fact(atom) for atom in lost)


def has_lost_ground(shorter: Atoms, longer: Atoms) -> bool:
    """Return whether the shorter goal is the longer one without some ground atoms."""
    kept = find_embedding(shorter, longer)
    return (
        kept is not None
        and len(shorter) < len(longer)
        and all(min(atom[1:]) >= 0 for i, atom in enumerate(longer) if i not in kept)
    )


Item = TypeVar("Item")

ALONE: Final = "a fault of this stage alone explains the step"
"""The end of the evidence where a stage was found so."""

MOST_CLAUSES: Final = 4096
"""The clauses that match a goal beyond which its step is not taken again."""


def _guess(stage: Stage, kind: DifferenceClass, evidence: str, confidence: float = CLEAR) -> StepDifference:
    return StepDifference(stage, kind, f"{evidence}; {ALONE}", confidence)


def explain_by_one_stage(
    program: StepProgram, expected: StepView, actual: StepView, *, has_origins: bool, has_counts: bool
) -> list[StepDifference]:
    """Explain two steps from the same goal by the fault of one stage: the likeliest first; none if no fault fits.

    has_origins, has_counts: whether both sides know the clauses that made their resolvents, and what the limits dropped
    """
    dialect = program.dialect
    if not program.visited[-1] or not dialect.forgets_names or dialect.exclusion == "positives_only":
        return []
    made = program.match(program.visited[-1])
    if len(made) > MOST_CLAUSES:
        return []
    search = _Search(program, made, expected, actual, has_origins=has_origins, has_counts=has_counts)
    missing, extra = search.differing()
    return [each._replace(missing=tuple(missing), extra=tuple(extra)) for each in search.find()]


class _Search:
    def __init__(
        self,
        program: StepProgram,
        made: list[Resolvent],
        expected: StepView,
        actual: StepView,
        *,
        has_origins: bool,
        has_counts: bool,
    ) -> None:
        self._program, self._made = program, made
        self._goal = program.visited[-1]
        self._has_origins, self._has_counts = has_origins, has_counts
        self._steps = expected, actual
        self._expected, self._actual = (self._read(step) for step in (expected, actual))
        self._wanted = program.list(made)

    def differing(self) -> tuple[list[ResolventView], list[ResolventView]]:
        """Return the resolvents that the actual side lacks, and those that it has beside the expected ones."""
        left, right = (
            [(self._key(key), r) for key, r in zip(listed.keys, step.resolvents, strict=True)]
            for listed, step in zip((self._expected, self._actual), self._steps, strict=True)
        )
        lacking = list_missing(left, right, itemgetter(0)), list_missing(right, left, itemgetter(0))
        return [r for _, r in lacking[0]], [r for _, r in lacking[1]]

    def find(self) -> list[StepDifference]:
        """Return the guesses that fit; none if the program does not give the expected list, or names alone differ."""
        if not self._agrees(self._wanted, self._expected) or self._agrees(self._wanted, self._actual):
            return []
        guesses = (
            search()
            for search in (
                self._of_ends,
                self._of_counts,
                partial(self._of_short_list, CLEAR),
                partial(self._of_earlier_goal, CLEAR),
                partial(self._select_another, CLEAR),
                self._of_filters,
                self._of_order,
                self._of_limit,
                self._of_memory,
                partial(self._change_bodies, CLEAR),
                self._of_atoms,
                self._of_clauses,
                self._of_lost_proofs,
                self._of_cut_order,
                self._change_bodies,
                self._of_deleted_atoms,
                self._of_short_list,
                self._select_another,
                self._of_earlier_goal,
            )
        )
        return [guess for guess in guesses if guess is not None]

    # Lists

    def _read(self, step: StepView) -> Listed:
        keys = tuple((*content_of(r), (int(r.clause[0]), int(r.clause[1]))) for r in step.resolvents)
        return Listed(keys, step.dropped_atoms, step.dropped_resolvents)

    def _key(self, key: Key) -> Key:
        kind, atoms, clause = key
        return kind, atoms, clause if self._has_origins else NO_CLAUSE

    def _keys(self, listed: Listed) -> list[Key]:
        return list(map(self._key, listed.keys))

    def _agrees(self, listed: Listed, other: Listed) -> bool:
        return self._keys(listed) == self._keys(other) and self._counts_agree(listed, other)

    def _counts_agree(self, listed: Listed, other: Listed) -> bool:
        return not self._has_counts or listed[1:] == other[1:]

    def _fits(
        self, made: Sequence[Resolvent], variation: Variation | None = None, fixed: Collection[Resolvent] = ()
    ) -> bool:
        return self._agrees(self._program.list(made, variation, fixed), self._actual)

    def _judge_proof(self, kind: DifferenceClass) -> DifferenceClass:
        """Return the class of a proof on one side only where no origin says more, or another one."""
        has_proof = [any(kind == GoalKind.TRUE for kind, _, _ in side.keys) for side in (self._expected, self._actual)]
        if self._has_origins or has_proof[0] == has_proof[1]:
            return kind
        return DifferenceClass.PROOF_LOST if has_proof[0] else DifferenceClass.FALSE_PROOF

    def _class_of_filter(self) -> DifferenceClass:
        """Return the class of a filter that lets more through, perhaps in the place of others, or less."""
        return self._judge_proof(DifferenceClass.EXTRA if self._has_more() else DifferenceClass.MISSING)

    # Guesses

    def _of_ends(self) -> StepDifference | None:
        """Guess at ends that differ although all else is equal."""
        ends = (GoalKind.TRUE, GoalKind.FALSE, GoalKind.STOP)
        sides = [self._keys(side) for side in (self._expected, self._actual)]
        goals = [[key for key in side if key[0] not in ends] for side in sides]
        own = [key for key in sides[1] if key[0] in ends]
        if own and own[0][0] == GoalKind.TRUE and own[0][1]:
            is_fact = all(self._program.is_fact(atom) for atom in own[0][1] if atom[0] >= 0)
            evidence = f"atoms left beside TRUE: {len(own[0][1])}"
            return _guess(Stage.PRUNE if is_fact else Stage.CLOSE, DifferenceClass.MALFORMED, evidence, LIKELY)
        if self._has_origins and any(key[0] == GoalKind.GOAL and key[2][0] == Origin.NONE for key in sides[1]):
            return _guess(Stage.LIMIT, DifferenceClass.LIMIT, "resolvents of no clause are listed")
        proofs = {key[2] for key in sides[0] if key[0] == GoalKind.TRUE} - {NO_CLAUSE}
        if any(key[2] in proofs and key[0] != GoalKind.TRUE and not key[1] for key in sides[1]):
            evidence = "a resolvent without atoms is listed, and not as a proof"
            return _guess(Stage.PRUNE, DifferenceClass.EXTRA, evidence)
        is_end = not any(goals) or goals[0] == goals[1]
        if is_end and {key[0] for key in own} - {GoalKind.STOP} == {GoalKind.TRUE} and own[0][2] == NO_CLAUSE:
            if any(key[0] == GoalKind.TRUE for key in sides[0]) or not self._has_origins:
                return None
            return _guess(Stage.CLOSE, DifferenceClass.FALSE_PROOF, "TRUE stands for an empty list", CERTAIN)
        if goals[0] != goals[1] or any(key[0] == GoalKind.TRUE for side in sides for key in side):
            return None
        names = [", ".join(GoalKind(key[0]).name for key in side if key[0] in ends) or "no end" for side in sides]
        if names[0] == names[1]:
            return None
        kinds = DifferenceClass.MISSING, DifferenceClass.EXTRA, DifferenceClass.OUTCOME
        lengths = len(sides[0]), len(sides[1])
        kind = kinds[2] if lengths[0] == lengths[1] else kinds[lengths[1] > lengths[0]]
        return _guess(Stage.CLOSE, kind, f"the list ends with {names[1]}, expected {names[0]}", CERTAIN)

    def _of_counts(self) -> StepDifference | None:
        """Guess at equal lists of which other numbers were dropped."""
        if self._keys(self._wanted) != self._keys(self._actual) or not self._has_counts:
            return None
        (wanted, *counts), (_, *own) = self._wanted, self._actual
        evidence = f"dropped (by max_atoms, by max_resolvents): expected {tuple(counts)}, actual {tuple(own)}"
        lacking = sum(counts) - sum(own)
        if lacking <= 0 or not any(own):
            return _guess(Stage.LIMIT, DifferenceClass.LIMIT, evidence)
        left = Counter(key[2] for key in wanted)
        kinds = {each.clause[0] for each in self._made if not _take(left, each.clause)}
        if len(kinds) > 1:
            return _guess(Stage.LIMIT, DifferenceClass.LIMIT, evidence, OPEN)
        evidence = f"{evidence}: {count_of(lacking, 'resolvent')} lost before the limits"
        return _guess(_matching(min(kinds, default=Origin.FACT)), DifferenceClass.MISSING, evidence, OPEN)

    def _of_earlier_goal(self, confidence: float = GUESSED) -> StepDifference | None:
        """Guess at the list of an earlier goal, which is clear where it is more than a part of the expected one."""
        if confidence >= CLEAR and not any(r.kind == GoalKind.GOAL for r in self.differing()[1]):
            return None
        for back, goal in enumerate(reversed(self._program.visited[:-1]), 1):
            if goal and goal != self._goal and self._fits(self._program.match(goal)):
                evidence = f"the resolvents are those of the step {back} before this one"
                return _guess(Stage.ADVANCE, DifferenceClass.STALE, evidence, confidence)
        return None

    def _select_another(self, confidence: float = GUESSED) -> StepDifference | None:
        if confidence >= CLEAR and not self._has_more():
            return None
        for i in range(1, len(self._goal)):
            goal = (self._goal[i], *self._goal[:i], *self._goal[i + 1 :])
            if self._goal[i] != self._goal[0] and self._fits(self._program.match(goal)):
                evidence = f"atom {i + 1} of the goal is selected"
                kind = DifferenceClass.SUBSTITUTED
                return _guess(Stage.SELECT, kind, evidence, confidence)
        return None

    def _has_more(self) -> bool:
        """Return whether the actual side has something that the expected side lacks."""
        return any(r.kind != GoalKind.FALSE for r in self.differing()[1])

    def _of_order(self) -> StepDifference | None:
        rules, facts = ([each for each in self._made if each.clause[0] == kind] for kind in (Origin.RULE, Origin.FACT))
        is_first = not self._made or self._made[0].clause[0] == Origin.RULE
        joined = (rules, facts) if is_first else (facts, rules)
        for made, stage, words in (
            (joined[1] + joined[0], Stage.RESOLVE, "rules and facts are put together in another order"),
            (self._made[::-1], Stage.RESOLVE, "the whole list is reversed"),
            (self._reverse(joined, Origin.FACT), Stage.MATCH_FACTS, "the facts are tried in the reverse order"),
            (self._reverse(joined, Origin.RULE), Stage.MATCH_RULES, "the rules are tried in the reverse order"),
        ):
            if made != self._made and self._fits(made):
                return _guess(self._stage_of_order(stage, rules, facts), DifferenceClass.REORDERED, words)
        wanted, own = self._keys(self._wanted), self._keys(self._actual)
        if wanted == own or Counter(wanted) != Counter(own) or not self._counts_agree(self._wanted, self._actual):
            return None
        kinds = self._kinds_of()
        for kind, stage, words in (
            (Origin.RULE, Stage.MATCH_RULES, "the rules are tried in another order"),
            (Origin.FACT, Stage.MATCH_FACTS, "the facts are tried in another order"),
        ):
            if [key for key in wanted if kinds.get(key) == kind] != [key for key in own if kinds.get(key) == kind]:
                return _guess(stage, DifferenceClass.REORDERED, words)
        words = "rules and facts are put together in another order"
        return _guess(Stage.RESOLVE, DifferenceClass.REORDERED, words)

    def _of_cut_order(self) -> StepDifference | None:
        """Guess at another order of which the limits, or `close`, show another part."""
        usual = self._program.usual
        filters = tuple(name for name in usual.filters if name not in ("max_resolvents", "close"))
        whole = self._program.list(self._made, usual._replace(filters=filters))
        sides = [self._keys(side) for side in (self._wanted, self._actual)]
        is_part = not Counter(sides[1]) - Counter(self._keys(whole)) and len(sides[0]) == len(sides[1])
        if sides[0] == sides[1] or not is_part or not self._counts_agree(self._wanted, self._actual):
            return None
        kinds = {key[2][0] for listed in (self._wanted, self._actual) for key in listed.keys}
        if kinds not in ({int(Origin.RULE)}, {int(Origin.FACT)}):
            return None
        kind = min(kinds)
        words = f"the {'rules' if kind == Origin.RULE else 'facts'} are tried in another order"
        return _guess(_matching(kind), DifferenceClass.REORDERED, words, OPEN)

    @staticmethod
    def _stage_of_order(stage: Stage, rules: Sequence[Resolvent], facts: Sequence[Resolvent]) -> Stage:
        """Return the matching stage where only its clauses match."""
        if stage is Stage.RESOLVE and not (rules and facts):
            return Stage.MATCH_RULES if rules else Stage.MATCH_FACTS
        return stage

    @staticmethod
    def _reverse(joined: tuple[list[Resolvent], list[Resolvent]], kind: Origin) -> list[Resolvent]:
        return [each for part in joined for each in (part[::-1] if part and part[0].clause[0] == kind else part)]

    def _kinds_of(self) -> dict[Key, int]:
        """Return the kind of the clause that made each expected resolvent."""
        listed = zip(self._keys(self._wanted), self._wanted.keys, strict=True)
        return {key: whole[2][0] for key, whole in listed}

    def _of_filters(self) -> StepDifference | None:
        usual = self._program.usual

        def without(name: Filter) -> tuple[Filter, ...]:
            return tuple(each for each in usual.filters if each != name)

        kind = self._class_of_filter()
        if self._program.remembers:
            if self._fits(self._made, usual._replace(filters=without("revisit"))):
                return _guess(Stage.REVISIT, kind, "goals visited before stay")
            forgetful = self._program.forget_earlier_goals()
            if self._agrees(forgetful.list(self._made), self._actual):
                return _guess(Stage.REVISIT, kind, "only the current goal is not visited again")
        else:
            for memory in ("sequence", "set"):
                first: tuple[Filter, ...] = ("prune", "revisit") if "prune" in usual.filters else ("revisit",)
                others = tuple(name for name in without("prune") if name != "revisit")
                remembering = usual._replace(filters=(*first, *others), memory=memory)
                if self._fits(self._made, remembering):
                    return _guess(Stage.REVISIT, kind, "goals visited before are dropped")
        if "prune" in usual.filters and self._fits(self._made, usual._replace(filters=without("prune"))):
            return _guess(Stage.PRUNE, kind, "atoms that are facts stay")
        if "close" in usual.filters:
            if self._fits(self._made, usual._replace(filters=without("close"))):
                return _guess(Stage.CLOSE, kind, "resolvents beside a proof stay")
            if self._fits(self._made, usual._replace(takes_last=True)):
                return _guess(Stage.CLOSE, DifferenceClass.SUBSTITUTED, "the last proof is kept, not the first")
        return None

    def _of_memory(self) -> StepDifference | None:
        usual = self._program.usual
        other = "set" if usual.memory == "sequence" else "sequence"
        if not self._program.remembers or not self._fits(self._made, usual._replace(memory=other)):
            return None
        return _guess(Stage.REVISIT, self._class_of_filter(), f"visited goals are compared as by the memory {other}")

    def _of_lost_proofs(self) -> StepDifference | None:
        """Guess at proofs that are lost together."""
        is_pruned = "prune" in self._program.usual.filters
        left = [each for each in self._made if (self._program.prune(each.atoms) if is_pruned else each.atoms)]
        num = len(self._made) - len(left)
        if "close" not in self._program.usual.filters or not num or not self._fits(left):
            return None
        kind = self._judge_proof(DifferenceClass.OUTCOME if self._has_more() else DifferenceClass.MISSING)
        if num == 1:
            return _guess(Stage.CLOSE, kind, "the proof is lost", GUESSED)
        return _guess(Stage.CLOSE, kind, f"all {num} proofs of the step are lost", OPEN)

    def _of_limit(self) -> StepDifference | None:
        usual, program = self._program.usual, self._program
        kind = self._judge_proof(DifferenceClass.LIMIT)
        most = usual.max_resolvents or 0
        if "max_resolvents" in usual.filters and self._wanted.dropped_resolvents:
            ends = (GoalKind.FALSE, GoalKind.STOP)
            whole = program.list(self._made, usual._replace(max_resolvents=None))
            own = [key for key in self._keys(self._actual) if key[0] not in ends]
            extra = Counter(own) - Counter(self._keys(whole))
            num = len(own)
            is_counted = self._actual.dropped_resolvents == len(self._made_before_cap(whole)) - num
            if self._has_counts:
                is_likely = is_counted and self._actual.dropped_atoms == self._wanted.dropped_atoms
            else:
                is_likely = abs(num - most) <= 1 or (num > most and own == self._keys(whole)[:num])
            if not extra and is_likely:
                evidence = f"{num} of {len(whole.keys)} resolvents are kept, and others than the first {most}"
                return _guess(Stage.LIMIT, kind, evidence)
            if [key[0] for key in self._actual.keys] == [GoalKind.TRUE] and self._actual.keys[0][2] == NO_CLAUSE:
                evidence = "TRUE stands where a list is longer than max_resolvents"
                return _guess(Stage.CLOSE, DifferenceClass.FALSE_PROOF, evidence, OPEN)
        atoms = usual.max_atoms
        if "max_atoms" in usual.filters and atoms is not None:
            for changed, words in (
                (usual._replace(max_atoms=atoms - 1), "resolvents of max_atoms atoms are dropped"),
                (usual._replace(max_atoms=atoms + 1), "resolvents of one atom more than max_atoms stay"),
                (usual._replace(max_atoms=None), "resolvents of more than max_atoms atoms stay"),
            ):
                missing, _ = self.differing()
                is_alone = changed.max_atoms == atoms - 1 and not self._has_counts and len(missing) < 2
                if not is_alone and self._fits(self._made, changed):
                    return _guess(Stage.LIMIT, kind, words)
            cut = program.list(self._made, usual._replace(truncates=not usual.truncates))
            if self._keys(cut) == self._keys(self._actual) and self._counts_fit(cut):
                return _guess(Stage.LIMIT, kind, "resolvents of more than max_atoms atoms are cut")
        return None

    def _made_before_cap(self, whole: Listed) -> list[Key]:
        return [key for key in whole.keys if key[0] not in (GoalKind.FALSE, GoalKind.STOP)]

    def _change_bodies(self, confidence: float = GUESSED) -> StepDifference | None:
        """Guess at rules of which all lose an atom of their bodies, or turn these."""
        is_clear = confidence >= CLEAR
        if is_clear and not self._has_more():
            return None
        for words, made in change_bodies(self._made, len(self._goal) - 1):
            # What one rule alone lacks may as well be lost otherwise, unless pruning leaves it.
            if self._fits(made) and not (is_clear and could_be_pruned(self._made, made, self._program.is_like_fact)):
                kind = DifferenceClass.SUBSTITUTED if self._has_more() else DifferenceClass.MISSING
                return _guess(Stage.RESOLVE, self._judge_proof(kind), words, confidence)
        return None

    def _of_short_list(self, confidence: float = GUESSED) -> StepDifference | None:
        """Guess at limits that drop more than the declared ones: as counted, or where nothing was counted."""
        usual, num = self._program.usual, len(self._actual.keys)
        if self._has_more() or self._has_counts != (confidence >= CLEAR):
            return None
        shorter = [(usual._replace(max_resolvents=num), f"the list ends after {count_of(num, 'resolvent')}")]
        for atoms in range((usual.max_atoms or 0) - 1, 0, -1):
            words = f"more than {count_of(atoms, 'atom')}" if atoms < (usual.max_atoms or 0) - 1 else "max_atoms atoms"
            shorter.append((usual._replace(max_atoms=atoms), f"resolvents of {words} are dropped"))
        for changed, words in shorter:
            if self._fits(self._made, changed):
                kind = self._judge_proof(DifferenceClass.LIMIT)
                return _guess(Stage.LIMIT, kind, words, confidence)
        return None

    def _of_deleted_atoms(self) -> StepDifference | None:
        """Guess at resolvents without some of their ground atoms, where no clause is known."""
        missing, extra = self.differing()
        if self._has_origins or "prune" not in self._program.usual.filters or not self._has_more():
            return None
        left = [content_of(r)[1] for r in missing]
        for r in extra:
            atoms = content_of(r)[1]
            whole = next((other for other in left if has_lost_ground(atoms, other)), None)
            if whole is None:
                return None
            left.remove(whole)
        # `close` lists a proof alone.
        if left and [kind for kind, _, _ in self._actual.keys] != [GoalKind.TRUE]:
            return None
        kind = self._judge_proof(DifferenceClass.MISSING)
        return _guess(Stage.PRUNE, kind, "ground atoms that the facts lack are deleted", GUESSED)

    def _of_atoms(self) -> StepDifference | None:
        """Guess at clauses that made other atoms."""
        if not self._has_origins:
            return None
        own = {clause: (kind, atoms) for kind, atoms, clause in self._actual.keys if clause != NO_CLAUSE}
        changed, fixed, guesses = [], [], []
        wanted = {clause: (kind, atoms) for kind, atoms, clause in self._wanted.keys}
        for each in self._made:
            found = own.get(each.clause)
            if found is None or found == wanted.get(each.clause):
                changed.append(each)
                continue
            if found[1] == self._right_atoms(each):
                changed.append(each)
                continue
            fixed.append(each._replace(atoms=found[1], kind=GoalKind(found[0])))
            changed.append(fixed[-1])
            guesses.append(self._guess_change(each, found[1]))
        if not guesses or not self._fits(changed, fixed=fixed):
            return None
        guess = min(guesses, key=lambda each: list(Stage).index(each.stage))
        return guess._replace(kind=self._judge_proof(guess.kind))

    def _right_atoms(self, each: Resolvent) -> Atoms:
        is_pruned = "prune" in self._program.usual.filters
        return self._program.prune(each.atoms) if is_pruned else number_variables(iter(each.atoms))

    def _guess_change(self, each: Resolvent, atoms: Atoms) -> StepDifference:
        """Guess at the stage that made these atoms of what a clause gives."""
        right, resolved = self._right_atoms(each), each.atoms
        is_pruned = "prune" in self._program.usual.filters
        own = next(plain(r.atoms) for r in self._steps[1].resolvents if r.clause == each.clause)
        if number_variables(own) != own:
            # Whatever was resolved and pruned, `rename` numbers its variables by first appearance.
            return _guess(Stage.RENAME, DifferenceClass.RENAMED, "variables are not numbered by first appearance")
        solid = number_variables(atom for atom in atoms if atom[0] >= 0)
        if len(solid) < len(atoms) and is_pruned and solid == right:
            return _guess(Stage.PRUNE, DifferenceClass.MALFORMED, "holes stay where facts were deleted")
        if len(atoms) == self._program.usual.max_atoms and atoms == number_variables(iter(right[: len(atoms)])):
            return _guess(Stage.LIMIT, DifferenceClass.LIMIT, f"atoms beyond {len(atoms)} are cut")
        kept = find_embedding(atoms, resolved)
        if is_pruned and kept is not None and len(atoms) != len(right):
            lost = [atom for i, atom in enumerate(resolved) if i not in kept]
            num = abs(len(atoms) - len(right))
            kind = DifferenceClass.EXTRA if len(atoms) > len(right) else DifferenceClass.MISSING
            wrong = [atom for atom in lost if not self._program.is_fact(atom)]
            if atoms and any(min(atom[1:]) < 0 and not self._program.is_like_fact(atom) for atom in wrong):
                words = f"{count_of(num, 'atom')} with variables missing, which no fact is like"
                return _guess(Stage.RESOLVE, DifferenceClass.SUBSTITUTED, words)
            return _guess(Stage.PRUNE, kind, f"{count_of(num, 'atom')} {kind.value} after pruning")
        if is_pruned and len(right) < len(resolved) and Counter(atoms) == Counter(right):
            return _guess(
                Stage.PRUNE, DifferenceClass.SUBSTITUTED, "the atoms that pruning leaves are in another order"
            )
        binds_nothing = each.origin_kind == Origin.FACT and min(self._goal[0][1:]) >= 0
        stage = Stage.RENAME if binds_nothing and len(atoms) == len(right) else Stage.RESOLVE
        return _guess(stage, DifferenceClass.SUBSTITUTED, "the same clause gave different atoms")

    def _of_clauses(self) -> StepDifference | None:
        """Guess at clauses that are lost, or that do not match and are there."""
        own = Counter(self._keys(self._actual))
        known = {each.clause for each in self._made}
        added: list[Resolvent] = []
        if self._has_origins:
            left = Counter(each.clause for each in self._made)
            for end, atoms, clause in self._actual.keys:
                if clause != NO_CLAUSE and not _take(left, clause):
                    added.append(Resolvent(atoms, Origin(clause[0]), clause[1], GoalKind(end)))
        elif (made := self._program.make_excluded(self._goal)) is not None:
            added = [made]
        pool, fixed = self._program.put_in_order([*self._made, *added]), added if self._has_origins else ()
        lost: list[Resolvent] = []
        while True:
            listed = self._program.list(pool, fixed=fixed)
            keys = self._keys(listed)
            if Counter(keys) == own:
                break
            surplus = Counter(keys) - own
            gone = [each for each in pool if self._offers(each, listed, surplus)]
            if not gone:
                return None
            lost += gone
            pool = [each for each in pool if not any(each is other for other in gone)]
        added = [each for each in added if any(each is other for other in pool)]
        lost = [each for each in lost if each.clause in known]
        if not (lost or added) or not self._counts_fit(listed):
            return None
        kinds = {each.clause[0] for each in (*lost, *added)}
        what = "clause" if len(kinds) > 1 else "rule" if min(kinds) == Origin.RULE else "fact"
        first = count_of(len(lost or added), what)
        if lost and added:
            kind, words = DifferenceClass.SUBSTITUTED, f"{first} missing, {len(added):,} extra"
        elif lost:
            kind, words = DifferenceClass.MISSING, f"{first} missing, none extra"
        else:
            kind, words = DifferenceClass.EXTRA, f"{first} extra, none missing"
        is_open = self._program.remembers and len(self._program.visited) > 1 and bool(lost)
        confidence = LIKELY if is_open or not self._has_origins else CLEAR
        judged = self._judge_proof(kind)
        if self._wanted.keys[0][0] == GoalKind.TRUE and len(self._actual.keys) > 1:
            # `close` may have lost the proof, and kept what stands beside it.
            confidence = OPEN
        return _guess(_matching(min(kinds)), judged, words, confidence)

    def _offers(self, each: Resolvent, listed: Listed, surplus: Counter[Key]) -> bool:
        """Return whether a clause makes a resolvent of the list that the actual side lacks."""
        return any(
            key[2] == each.clause and _take(surplus, self._key(key)) for key in listed.keys if key[2] == each.clause
        )

    def _counts_fit(self, listed: Listed) -> bool:
        """Return whether as much was dropped as recorded, or less since more of it is lost."""
        return not self._has_counts or (
            self._actual.dropped_atoms <= listed.dropped_atoms
            and self._actual.dropped_resolvents <= listed.dropped_resolvents
        )


def _take(left: Counter[Item], key: Item) -> bool:
    """Take one of what is left; return whether there was one."""
    if left[key] <= 0:
        return False
    left[key] -= 1
    return True


def _matching(kind: int) -> Stage:
    return Stage.MATCH_RULES if kind == Origin.RULE else Stage.MATCH_FACTS
