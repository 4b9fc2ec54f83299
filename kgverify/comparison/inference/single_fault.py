"""The one stage whose fault makes the recorded list of a step, found by taking the step again with that stage changed.

The program, the limits and the dialect say what each filter leaves of the resolvents that the clauses make. If this is the
expected list, one stage after another is changed: clauses are lost or added, a filter is left out or moved, another atom is
selected. A change that gives exactly the actual list explains it, in any dialect. Two faults in one step are not explained.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from kgverify.comparison.inference.step_difference import CERTAIN, CLEAR, GUESSED, LIKELY, OPEN, StepDifference, rank
from kgverify.comparison.step_view import StepView, content_of, list_unshared, plain
from kgverify.errors import count_of
from kgverify.program.fact_index import Ids
from kgverify.program.limits import Filter, Limits
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin, Stage
from kgverify.step.clauses import Atoms, Clauses, find_embedding, number_variables
from kgverify.step.plain_step import (
    SOUND,
    Resolvent,
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


class StepProgram:
    """The resolvents that a program gives for one goal, filter by filter.

    visited: the goals of the derivation in canonical variables, the current one last
    """

    def __init__(self, clauses: Clauses, limits: Limits, visited: Sequence[Atoms], query: Ids) -> None:
        self._clauses, self.limits, self.visited = clauses, limits, visited
        self.excluded = clauses.excluded(query)
        self.dialect = limits.dialect

    @property
    def remembers(self) -> bool:
        """True if a goal is not visited twice."""
        return "revisit" in self.dialect.filters and self.dialect.memory != "none"

    def match(self, goal: Atoms) -> list[Resolvent]:
        """Return what each clause makes of a goal, in the order of the dialect, before pruning."""
        situation = Situation(self._clauses, self.limits, self.excluded, (goal,))
        return resolve(situation, match_rules(situation, goal[0]), match_facts(situation, goal[0]))

    def make_excluded(self, goal: Atoms) -> list[Resolvent]:
        """Return what the query makes of a goal, if it may not serve as a fact."""
        if self.excluded is None:
            return []
        number = self._clauses.fact_index[self.excluded]
        atoms = self._clauses.resolve(goal, Origin.FACT, number)
        return [] if atoms is None else [Resolvent(atoms, Origin.FACT, number)]

    def put_in_order(self, made: Iterable[Resolvent]) -> list[Resolvent]:
        """Return resolvents in the order of the dialect, by the numbers of their clauses."""
        is_rules_first, sign = self.dialect.order == "rules_first", -1 if self.dialect.is_reversed else 1
        return sorted(made, key=lambda each: ((each.origin_kind == Origin.RULE) != is_rules_first, sign * each.origin))

    def is_fact(self, atom: Ids) -> bool:
        """Return whether pruning deletes an atom."""
        return atom in self._clauses.fact_index and atom != self.excluded

    def is_like_fact(self, atom: Ids) -> bool:
        """Return whether an atom, perhaps with variables, unifies with a fact, the excluded one among them."""
        return bool(self._clauses.facts_like(atom, None))

    def prune(self, atoms: Atoms) -> Atoms:
        """Return what pruning, if the dialect prunes, leaves of some atoms, in canonical variables."""
        prunes = "prune" in self.dialect.filters
        return number_variables(atom for atom in atoms if not prunes or not self.is_fact(atom))

    def list(
        self,
        made: Sequence[Resolvent],
        fixed: Collection[Resolvent] = (),
        *,
        max_atoms: int | None = None,
        max_resolvents: int | None = None,
        takes_last: bool = False,
        forgets: bool = False,
        **changes: Any,
    ) -> Listed:
        """Return what the filters leave, by default those of the dialect with its limits.

        fixed:      resolvents that are pruned already
        takes_last: whether `close` keeps the last proof instead of the first
        forgets:    whether only the current goal counts as visited
        changes:    fields of the dialect
        """
        is_fixed = {(each.clause, each.atoms) for each in fixed}

        def prune_others(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
            return [
                each if (each.clause, each.atoms) in is_fixed else prune(situation, [each])[0] for each in resolvents
            ]

        def close_last(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
            return close(situation, resolvents[::-1])[::-1]

        stages = SOUND._replace(
            prune=prune_others if is_fixed else prune,
            close=close_last if takes_last else close,
            limit_atoms=partial(limit_atoms, most=max_atoms),
            limit_resolvents=partial(limit_resolvents, most=max_resolvents),
        )
        limits = replace(self.limits, dialect=replace(self.dialect, **changes))
        situation = Situation(self._clauses, limits, self.excluded, self.visited[-1:] if forgets else self.visited)
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
    search = _Search(program, made, (expected, actual), has_origins=has_origins, has_counts=has_counts)
    missing, extra = search.missing, search.extra
    return [each._replace(evidence=f"{each.evidence}; {ALONE}", missing=missing, extra=extra) for each in search.find()]


Guesses: TypeAlias = Iterator[StepDifference | None]
"""Guesses at a stage, in the order in which they are tried, None for those that do not fit; the first that fits counts."""


class _Search:
    """The search for the stage whose fault gives the actual list.

    missing, extra: the resolvents that the actual side lacks, and those that it has beside the expected ones
    """

    def __init__(
        self,
        program: StepProgram,
        made: list[Resolvent],
        steps: tuple[StepView, StepView],
        *,
        has_origins: bool,
        has_counts: bool,
    ) -> None:
        self._program, self._made = program, made
        self._goal = program.visited[-1]
        self._has_origins, self._has_counts = has_origins, has_counts
        self._steps = steps
        self._expected, self._actual = map(self._read, steps)
        self._wanted = program.list(made)
        self._sides = self._keys(self._wanted), self._keys(self._actual)
        left, right = (
            list(zip(self._keys(listed), step.resolvents, strict=True))
            for listed, step in zip((self._expected, self._actual), steps, strict=True)
        )
        only = list_unshared(left, right, itemgetter(0))
        self.missing, self.extra = (tuple(r for _, r in side) for side in only)
        self._has_more = any(r.kind != GoalKind.FALSE for r in self.extra)

    def find(self) -> list[StepDifference]:
        """Return the guesses that fit; none if the program does not give the expected list, or names alone differ."""
        if not self._agrees(self._wanted, self._expected) or self._agrees(self._wanted, self._actual):
            return []
        attempts = (
            self._of_ends(),
            self._of_counts(),
            self._of_short_list(CLEAR),
            self._of_earlier_goal(CLEAR),
            self._select_another(CLEAR),
            self._of_filters(),
            self._of_order(),
            self._of_limit(),
            self._of_memory(),
            self._change_bodies(CLEAR),
            self._of_atoms(),
            self._of_clauses(),
            self._of_lost_proofs(),
            self._of_cut_order(),
            self._change_bodies(),
            self._of_deleted_atoms(),
            self._of_short_list(),
            self._select_another(),
            self._of_earlier_goal(),
        )
        guesses = (next(filter(None, attempt), None) for attempt in attempts)
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

    def _try(
        self,
        stage: Stage,
        kind: DifferenceClass,
        words: str,
        made: Sequence[Resolvent] | None = None,
        confidence: float = CLEAR,
        **changes: Any,
    ) -> StepDifference | None:
        """Return a guess if it fits: if the filters, perhaps changed, leave the actual list of what was made."""
        listed = self._program.list(self._made if made is None else made, **changes)
        return StepDifference(stage, kind, words, confidence) if self._agrees(listed, self._actual) else None

    def _without(self, *names: Filter) -> tuple[Filter, ...]:
        return tuple(name for name in self._program.dialect.filters if name not in names)

    def _judge_proof(self, kind: DifferenceClass) -> DifferenceClass:
        """Return the class of a proof on one side only where no origin says more, or another one."""
        has_proof = [any(kind == GoalKind.TRUE for kind, _, _ in side.keys) for side in (self._expected, self._actual)]
        if self._has_origins or has_proof[0] == has_proof[1]:
            return kind
        return DifferenceClass.PROOF_LOST if has_proof[0] else DifferenceClass.FALSE_PROOF

    def _class_of_filter(self) -> DifferenceClass:
        """Return the class of a filter that lets more through, perhaps in the place of others, or less."""
        return self._judge_proof(DifferenceClass.EXTRA if self._has_more else DifferenceClass.MISSING)

    # Guesses

    def _of_ends(self) -> Guesses:
        """Guess at ends that differ although all else is equal."""
        ends = (GoalKind.TRUE, GoalKind.FALSE, GoalKind.STOP)
        sides = self._sides
        goals = [[key for key in side if key[0] not in ends] for side in sides]
        own = [key for key in sides[1] if key[0] in ends]
        if own and own[0][0] == GoalKind.TRUE and own[0][1]:
            is_fact = all(self._program.is_fact(atom) for atom in own[0][1] if atom[0] >= 0)
            stage, words = Stage.PRUNE if is_fact else Stage.CLOSE, f"atoms left beside TRUE: {len(own[0][1])}"
            yield StepDifference(stage, DifferenceClass.MALFORMED, words, LIKELY)
        if self._has_origins and any(key[0] == GoalKind.GOAL and key[2][0] == Origin.NONE for key in sides[1]):
            yield StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, "resolvents of no clause are listed")
        proofs = {key[2] for key in sides[0] if key[0] == GoalKind.TRUE} - {NO_CLAUSE}
        if any(key[2] in proofs and key[0] != GoalKind.TRUE and not key[1] for key in sides[1]):
            words = "a resolvent without atoms is listed, and not as a proof"
            yield StepDifference(Stage.PRUNE, DifferenceClass.EXTRA, words)
        is_end = not any(goals) or goals[0] == goals[1]
        has_proof = any(key[0] == GoalKind.TRUE for key in sides[0])
        if is_end and {key[0] for key in own} - {GoalKind.STOP} == {GoalKind.TRUE} and own[0][2] == NO_CLAUSE:
            if not has_proof and self._has_origins:
                yield StepDifference(Stage.CLOSE, DifferenceClass.FALSE_PROOF, "TRUE stands for an empty list", CERTAIN)
            return
        names = [", ".join(GoalKind(key[0]).name for key in side if key[0] in ends) or "no end" for side in sides]
        if goals[0] == goals[1] and names[0] != names[1] and GoalKind.TRUE not in {key[0] for key in (*sides[0], *own)}:
            kinds = DifferenceClass.MISSING, DifferenceClass.OUTCOME, DifferenceClass.EXTRA
            lengths = len(sides[0]), len(sides[1])
            kind = kinds[1 + (lengths[1] > lengths[0]) - (lengths[1] < lengths[0])]
            yield StepDifference(Stage.CLOSE, kind, f"the list ends with {names[1]}, expected {names[0]}", CERTAIN)

    def _of_counts(self) -> Guesses:
        """Guess at equal lists of which other numbers were dropped."""
        if self._sides[0] != self._sides[1] or not self._has_counts:
            return
        (wanted, *counts), (_, *own) = self._wanted, self._actual
        words = f"dropped (by max_atoms, by max_resolvents): expected {tuple(counts)}, actual {tuple(own)}"
        lacking = sum(counts) - sum(own)
        if lacking <= 0 or not any(own):
            yield StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, words)
        left = Counter(key[2] for key in wanted)
        kinds = {each.clause[0] for each in self._made if not _take(left, each.clause)}
        if len(kinds) > 1:
            yield StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, words, OPEN)
        words = f"{words}: {count_of(lacking, 'resolvent')} lost before the limits"
        yield StepDifference(_matching(min(kinds, default=Origin.FACT)), DifferenceClass.MISSING, words, OPEN)

    def _of_earlier_goal(self, confidence: float = GUESSED) -> Guesses:
        """Guess at the list of an earlier goal, which is clear where it is more than a part of the expected one."""
        if confidence >= CLEAR and not any(r.kind == GoalKind.GOAL for r in self.extra):
            return
        for back, goal in enumerate(reversed(self._program.visited[:-1]), 1):
            if goal and goal != self._goal:
                words = f"the resolvents are those of the step {back} before this one"
                made = self._program.match(goal)
                yield self._try(Stage.ADVANCE, DifferenceClass.STALE, words, made, confidence)

    def _select_another(self, confidence: float = GUESSED) -> Guesses:
        if confidence >= CLEAR and not self._has_more:
            return
        for i, atom in enumerate(self._goal):
            if atom != self._goal[0]:
                made = self._program.match((atom, *self._goal[:i], *self._goal[i + 1 :]))
                words = f"atom {i + 1} of the goal is selected"
                yield self._try(Stage.SELECT, DifferenceClass.SUBSTITUTED, words, made, confidence)

    def _of_order(self) -> Guesses:
        rules, facts = ([each for each in self._made if each.clause[0] == kind] for kind in (Origin.RULE, Origin.FACT))
        is_first = not self._made or self._made[0].clause[0] == Origin.RULE
        first, second = parts = (rules, facts) if is_first else (facts, rules)
        together = Stage.RESOLVE if rules and facts else Stage.MATCH_RULES if rules else Stage.MATCH_FACTS
        by_facts, by_rules = (
            [each for part in parts for each in (part[::-1] if part is turned else part)] for turned in (facts, rules)
        )
        for made, stage, words in (
            (second + first, together, "rules and facts are put together in another order"),
            (self._made[::-1], together, "the whole list is reversed"),
            (by_facts, Stage.MATCH_FACTS, "the facts are tried in the reverse order"),
            (by_rules, Stage.MATCH_RULES, "the rules are tried in the reverse order"),
        ):
            yield self._try(stage, DifferenceClass.REORDERED, words, made)
        wanted, own = self._sides
        if wanted == own or Counter(wanted) != Counter(own) or not self._counts_agree(self._wanted, self._actual):
            return
        kinds = {key: whole[2][0] for key, whole in zip(wanted, self._wanted.keys, strict=True)}
        for kind, what in ((Origin.RULE, "rules"), (Origin.FACT, "facts")):
            if [key for key in wanted if kinds.get(key) == kind] != [key for key in own if kinds.get(key) == kind]:
                words = f"the {what} are tried in another order"
                yield StepDifference(_matching(kind), DifferenceClass.REORDERED, words)
        words = "rules and facts are put together in another order"
        yield StepDifference(Stage.RESOLVE, DifferenceClass.REORDERED, words)

    def _of_cut_order(self) -> Guesses:
        """Guess at another order of which the limits, or `close`, show another part."""
        whole = self._program.list(self._made, filters=self._without("max_resolvents", "close"))
        wanted, own = self._sides
        is_part = not Counter(own) - Counter(self._keys(whole)) and len(wanted) == len(own)
        if wanted == own or not is_part or not self._counts_agree(self._wanted, self._actual):
            return
        kinds = {key[2][0] for listed in (self._wanted, self._actual) for key in listed.keys}
        if kinds in ({int(Origin.RULE)}, {int(Origin.FACT)}):
            kind = min(kinds)
            words = f"the {'rules' if kind == Origin.RULE else 'facts'} are tried in another order"
            yield StepDifference(_matching(kind), DifferenceClass.REORDERED, words, OPEN)

    def _of_filters(self) -> Guesses:
        kind = self._class_of_filter()
        if self._program.remembers:
            yield self._try(Stage.REVISIT, kind, "goals visited before stay", filters=self._without("revisit"))
            yield self._try(Stage.REVISIT, kind, "only the current goal is not visited again", forgets=True)
        else:
            prunes = "prune" in self._program.dialect.filters
            first: tuple[Filter, ...] = ("prune", "revisit") if prunes else ("revisit",)
            filters = (*first, *self._without("prune", "revisit"))
            for memory in ("sequence", "set"):
                words = "goals visited before are dropped"
                yield self._try(Stage.REVISIT, kind, words, filters=filters, memory=memory)
        yield self._try(Stage.PRUNE, kind, "atoms that are facts stay", filters=self._without("prune"))
        yield self._try(Stage.CLOSE, kind, "resolvents beside a proof stay", filters=self._without("close"))
        words = "the last proof is kept, not the first"
        yield self._try(Stage.CLOSE, DifferenceClass.SUBSTITUTED, words, takes_last=True)

    def _of_memory(self) -> Guesses:
        other = "set" if self._program.dialect.memory == "sequence" else "sequence"
        if self._program.remembers:
            words = f"visited goals are compared as by the memory {other}"
            yield self._try(Stage.REVISIT, self._class_of_filter(), words, memory=other)

    def _of_lost_proofs(self) -> Guesses:
        """Guess at proofs that are lost together."""
        left = [each for each in self._made if self._program.prune(each.atoms)]
        num = len(self._made) - len(left)
        if "close" in self._program.dialect.filters and num:
            kind = self._judge_proof(DifferenceClass.OUTCOME if self._has_more else DifferenceClass.MISSING)
            words = "the proof is lost" if num == 1 else f"all {num} proofs of the step are lost"
            yield self._try(Stage.CLOSE, kind, words, left, GUESSED if num == 1 else OPEN)

    def _of_limit(self) -> Guesses:
        limits, dialect = self._program.limits, self._program.dialect
        kind, stage = self._judge_proof(DifferenceClass.LIMIT), Stage.LIMIT
        if self._wanted.dropped_resolvents:
            ends = (GoalKind.FALSE, GoalKind.STOP)
            whole = self._program.list(self._made, filters=self._without("max_resolvents"))
            every, own = self._keys(whole), [key for key in self._sides[1] if key[0] not in ends]
            num, most = len(own), limits.max_resolvents
            if self._has_counts:
                num_made = sum(key[0] not in ends for key in whole.keys)
                is_likely = self._actual[1:] == (self._wanted.dropped_atoms, num_made - num)
            else:
                is_likely = abs(num - most) <= 1 or (num > most and own == every[:num])
            if is_likely and not Counter(own) - Counter(every):
                words = f"{num} of {len(every)} resolvents are kept, and others than the first {most}"
                yield StepDifference(stage, kind, words)
            if [key[::2] for key in self._actual.keys] == [(GoalKind.TRUE, NO_CLAUSE)]:
                words = "TRUE stands where a list is longer than max_resolvents"
                yield StepDifference(Stage.CLOSE, DifferenceClass.FALSE_PROOF, words, OPEN)
        if self._has_counts or len(self.missing) > 1:
            words = "resolvents of max_atoms atoms are dropped"
            yield self._try(stage, kind, words, max_atoms=limits.max_atoms - 1)
        words = "resolvents of one atom more than max_atoms stay"
        yield self._try(stage, kind, words, max_atoms=limits.max_atoms + 1)
        words = "resolvents of more than max_atoms atoms stay"
        yield self._try(stage, kind, words, filters=self._without("max_atoms"))
        otherwise = "reject" if dialect.long_resolvents == "truncate" else "truncate"
        cut = self._program.list(self._made, long_resolvents=otherwise)
        if "max_atoms" in dialect.filters and self._keys(cut) == self._sides[1] and self._counts_fit(cut):
            yield StepDifference(stage, kind, "resolvents of more than max_atoms atoms are cut")

    def _change_bodies(self, confidence: float = GUESSED) -> Guesses:
        """Guess at rules of which all lose an atom of their bodies, or turn these."""
        is_clear = confidence >= CLEAR
        if is_clear and not self._has_more:
            return
        kind = self._judge_proof(DifferenceClass.SUBSTITUTED if self._has_more else DifferenceClass.MISSING)
        for words, made in change_bodies(self._made, len(self._goal) - 1):
            # What one rule alone lacks may as well be lost otherwise, unless pruning leaves it.
            if not (is_clear and could_be_pruned(self._made, made, self._program.is_like_fact)):
                yield self._try(Stage.RESOLVE, kind, words, made, confidence)

    def _of_short_list(self, confidence: float = GUESSED) -> Guesses:
        """Guess at limits that drop more than the declared ones: as counted, or where nothing was counted."""
        num, most = len(self._actual.keys), self._program.limits.max_atoms
        if self._has_more or self._has_counts != (confidence >= CLEAR):
            return
        shorter = [({"max_resolvents": num}, f"the list ends after {count_of(num, 'resolvent')}")]
        for atoms in range(most - 1, 0, -1):
            words = f"more than {count_of(atoms, 'atom')}" if atoms < most - 1 else "max_atoms atoms"
            shorter.append(({"max_atoms": atoms}, f"resolvents of {words} are dropped"))
        kind = self._judge_proof(DifferenceClass.LIMIT)
        for limit, words in shorter:
            yield self._try(Stage.LIMIT, kind, words, None, confidence, **limit)

    def _of_deleted_atoms(self) -> Guesses:
        """Guess at resolvents without some of their ground atoms, where no clause is known."""
        if self._has_origins or "prune" not in self._program.dialect.filters or not self._has_more:
            return
        left = [content_of(r)[1] for r in self.missing]
        for r in self.extra:
            atoms = content_of(r)[1]
            whole = next((other for other in left if has_lost_ground(atoms, other)), None)
            if whole is None:
                return
            left.remove(whole)
        # `close` lists a proof alone.
        if not left or [kind for kind, _, _ in self._actual.keys] == [GoalKind.TRUE]:
            kind = self._judge_proof(DifferenceClass.MISSING)
            yield StepDifference(Stage.PRUNE, kind, "ground atoms that the facts lack are deleted", GUESSED)

    def _of_atoms(self) -> Guesses:
        """Guess at clauses that made other atoms."""
        if not self._has_origins:
            return
        own = {clause: (kind, atoms) for kind, atoms, clause in self._actual.keys if clause != NO_CLAUSE}
        wanted = {clause: (kind, atoms) for kind, atoms, clause in self._wanted.keys}
        changed, fixed, guesses = [], [], []
        for each in self._made:
            kind, atoms = found = own.get(each.clause, (0, None))
            if atoms is not None and found != wanted.get(each.clause) and atoms != self._program.prune(each.atoms):
                guesses.append(self._guess_change(each, atoms))
                fixed.append(each._replace(atoms=atoms, kind=GoalKind(kind)))
                changed.append(fixed[-1])
            else:
                changed.append(each)
        if guesses and self._agrees(self._program.list(changed, fixed), self._actual):
            guess = min(guesses, key=lambda each: rank(each.stage))
            yield guess._replace(kind=self._judge_proof(guess.kind))

    def _guess_change(self, each: Resolvent, atoms: Atoms) -> StepDifference:
        """Guess at the stage that made these atoms of what a clause gives."""
        right, resolved = self._program.prune(each.atoms), each.atoms
        is_pruned = "prune" in self._program.dialect.filters
        own = next(plain(r.atoms) for r in self._steps[1].resolvents if r.clause == each.clause)
        if number_variables(own) != own:
            # Whatever was resolved and pruned, `rename` numbers its variables by first appearance.
            words = "variables are not numbered by first appearance"
            return StepDifference(Stage.RENAME, DifferenceClass.RENAMED, words)
        solid = number_variables(atom for atom in atoms if atom[0] >= 0)
        if len(solid) < len(atoms) and is_pruned and solid == right:
            return StepDifference(Stage.PRUNE, DifferenceClass.MALFORMED, "holes stay where facts were deleted")
        if len(atoms) == self._program.limits.max_atoms and atoms == number_variables(iter(right[: len(atoms)])):
            return StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, f"atoms beyond {len(atoms)} are cut")
        kept = find_embedding(atoms, resolved)
        if is_pruned and kept is not None and len(atoms) != len(right):
            num = count_of(abs(len(atoms) - len(right)), "atom")
            lost = [atom for i, atom in enumerate(resolved) if i not in kept and not self._program.is_fact(atom)]
            if atoms and any(min(atom[1:]) < 0 and not self._program.is_like_fact(atom) for atom in lost):
                words = f"{num} with variables missing, which no fact is like"
                return StepDifference(Stage.RESOLVE, DifferenceClass.SUBSTITUTED, words)
            kind = DifferenceClass.EXTRA if len(atoms) > len(right) else DifferenceClass.MISSING
            return StepDifference(Stage.PRUNE, kind, f"{num} {kind.value} after pruning")
        stage, words = Stage.RESOLVE, "the same clause gave different atoms"
        if is_pruned and len(right) < len(resolved) and Counter(atoms) == Counter(right):
            stage, words = Stage.PRUNE, "the atoms that pruning leaves are in another order"
        elif each.origin_kind == Origin.FACT and min(self._goal[0][1:]) >= 0 and len(atoms) == len(right):
            # The fact binds nothing.
            stage = Stage.RENAME
        return StepDifference(stage, DifferenceClass.SUBSTITUTED, words)

    def _of_clauses(self) -> Guesses:
        """Guess at clauses that are lost, or that do not match and are there."""
        own = Counter(self._sides[1])
        known = {each.clause for each in self._made}
        added: list[Resolvent] = []
        if self._has_origins:
            left = Counter(each.clause for each in self._made)
            for end, atoms, clause in self._actual.keys:
                if clause != NO_CLAUSE and not _take(left, clause):
                    added.append(Resolvent(atoms, Origin(clause[0]), clause[1], GoalKind(end)))
        else:
            added = self._program.make_excluded(self._goal)
        pool, fixed = self._program.put_in_order([*self._made, *added]), added if self._has_origins else ()
        lost: list[Resolvent] = []
        while True:
            listed = self._program.list(pool, fixed)
            keys = self._keys(listed)
            if Counter(keys) == own:
                break
            surplus = Counter(keys) - own
            gone = [each for each in pool if self._offers(each, listed, surplus)]
            if not gone:
                return
            lost += gone
            pool = [each for each in pool if not any(each is other for other in gone)]
        added = [each for each in added if any(each is other for other in pool)]
        lost = [each for each in lost if each.clause in known]
        if not (lost or added) or not self._counts_fit(listed):
            return
        kinds = {each.clause[0] for each in (*lost, *added)}
        what = "clause" if len(kinds) > 1 else "rule" if min(kinds) == Origin.RULE else "fact"
        first = count_of(len(lost or added), what)
        kind, words = DifferenceClass.EXTRA, f"{first} extra, none missing"
        if lost:
            kind = DifferenceClass.SUBSTITUTED if added else DifferenceClass.MISSING
            words = f"{first} missing, {f'{len(added):,}' if added else 'none'} extra"
        is_open = self._program.remembers and len(self._program.visited) > 1 and bool(lost)
        confidence = LIKELY if is_open or not self._has_origins else CLEAR
        if self._wanted.keys[0][0] == GoalKind.TRUE and len(self._actual.keys) > 1:
            # `close` may have lost the proof, and kept what stands beside it.
            confidence = OPEN
        yield StepDifference(_matching(min(kinds)), self._judge_proof(kind), words, confidence)

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
