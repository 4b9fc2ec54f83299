"""The single stage whose fault explains the recorded list of a step, found by taking the step again with that stage changed.

The program, the limits and the dialect determine which resolvents the clauses make, and which ones pass each filter. If the
result is the expected list, one stage after another is changed: clauses are lost or added, a filter is left out or moved,
another atom is selected. A change that produces exactly the actual list explains it, in any dialect. Two faults in one step
are not explained.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from kgverify.comparison.inference.step_difference import (
    CERTAIN,
    CLEAR,
    GUESSED,
    LIKELY,
    OPEN,
    UNNUMBERED,
    StepDifference,
    rank,
)
from kgverify.comparison.step_pair import NO_CLAUSE, Key, Listed, StepPair, judge_counts
from kgverify.comparison.step_view import content_of, plain
from kgverify.errors import count_of
from kgverify.program.fact_index import Ids
from kgverify.program.limits import Dialect, Filter, Limits
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin, Stage
from kgverify.step.clauses import Atoms, Clause, Clauses, find_embedding, is_permutation, number_variables, shape_of
from kgverify.step.plain_step import (
    SOUND,
    Resolvent,
    Situation,
    Stages,
    close,
    filter_resolvents,
    limit_atoms,
    limit_resolvents,
    match_facts,
    match_rules,
    prune,
    remove_duplicates,
    resolve,
    revisit,
)


class StepProgram:
    """The resolvents that a program makes from one goal, filter by filter.

    visited:     the goals of the derivation, the current one last; they become canonical unless the dialect keeps names
    is_positive: whether the query may be excluded, in a dialect that excludes only positives
    """

    def __init__(
        self, clauses: Clauses, limits: Limits, visited: Sequence[Atoms], query: Ids, *, is_positive: bool = True
    ) -> None:
        self.dialect = limits.dialect
        self._clauses, self.limits = clauses, limits
        self.visited = list(map(number_variables, visited)) if self.dialect.forgets_names else visited
        self._query = query
        is_excluded = is_positive or self.dialect.exclusion != "positives_only"
        self.excluded = clauses.excluded(query) if is_excluded else None

    def list_readings(self) -> "list[StepProgram]":
        """Return the program, and the program for a corruption if the dialect treats it differently."""
        if self.dialect.exclusion != "positives_only":
            return [self]
        return [self, StepProgram(self._clauses, self.limits, self.visited, self._query, is_positive=False)]

    @property
    def remembers(self) -> bool:
        """True if the dialect drops goals that were visited before."""
        return "revisit" in self.dialect.filters and self.dialect.memory != "none"

    def match(self, goal: Atoms) -> list[Resolvent]:
        """Return the resolvent that each clause makes from a goal, in the order of the dialect, before pruning."""
        situation = Situation(self._clauses, self.limits, self.excluded, (*self.visited, goal))
        return resolve(situation, match_rules(situation, goal[0]), match_facts(situation, goal[0]))

    def make_excluded(self, goal: Atoms) -> list[Resolvent]:
        """Return the resolvent that the query would make from a goal, if it must not serve as a fact."""
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
        """Return whether an atom, perhaps with variables, unifies with any fact, including the excluded one."""
        return bool(self._clauses.facts_like(atom, None))

    def prune(self, atoms: Atoms) -> Atoms:
        """Prune some atoms, if the dialect prunes, and return the rest in canonical variables."""
        prunes = "prune" in self.dialect.filters
        return number_variables(atom for atom in atoms if not prunes or not self.is_fact(atom))

    def list(
        self,
        made: Sequence[Resolvent],
        fixed: Collection[Resolvent] = (),
        *,
        max_atoms: int | None = None,
        max_resolvents: int | None = None,
        stages: Stages = SOUND,
        **changes: Any,
    ) -> Listed:
        """Return the resolvents that pass the filters; by default, the filters of the dialect with its limits.

        fixed:   resolvents that have been pruned already
        stages:  the functions of the filters
        changes: changed fields of the dialect
        """
        is_fixed = {(each.clause, each.atoms) for each in fixed}

        def prune_others(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
            return [
                each if (each.clause, each.atoms) in is_fixed else prune(situation, [each])[0] for each in resolvents
            ]

        stages = stages._replace(
            prune=prune_others if is_fixed else stages.prune,
            limit_atoms=partial(limit_atoms, most=max_atoms),
            limit_resolvents=partial(stages.limit_resolvents, most=max_resolvents),  # type: ignore[call-arg]
        )
        limits = replace(self.limits, dialect=replace(self.dialect, **changes))
        situation = Situation(self._clauses, limits, self.excluded, self.visited)
        left, dropped_atoms, dropped_resolvents = filter_resolvents(situation, made, stages).taken
        keys = ((each.kind, number_variables(each.atoms), each.clause) for each in left)
        return Listed(tuple(keys), dropped_atoms, dropped_resolvents)


def _close_last(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    return close(situation, resolvents[::-1])[::-1]


def _limit_last(
    situation: Situation, resolvents: Sequence[Resolvent], most: int | None = None
) -> tuple[list[Resolvent], int]:
    kept, num_dropped = limit_resolvents(situation, resolvents[::-1], most)
    return kept[::-1], num_dropped


def _remember(part: slice) -> Stages:
    """Return stages that remember only a part of the visited goals."""
    return SOUND._replace(
        revisit=lambda situation, resolvents: revisit(situation._replace(visited=situation.visited[part]), resolvents)
    )


def _keep_firsts(key: Callable[[Atoms], object]) -> Stages:
    """Return stages that keep only the first of the resolvents with the same key."""

    def remove(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
        firsts: dict[object, Resolvent] = {}
        for each in resolvents:
            firsts.setdefault((each.kind, key(number_variables(each.atoms))), each)
        return list(firsts.values())

    return SOUND._replace(remove_duplicates=remove)


def _keep_lasts(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    return remove_duplicates(situation, resolvents[::-1])[::-1]


_COARSE_KEYS: Final[Mapping[str, Callable[[Atoms], object]]] = {
    "the same atoms in any order": lambda atoms: tuple(sorted(map(shape_of, atoms))),
    "the same atoms apart from variables": lambda atoms: tuple(map(shape_of, atoms)),
    "the same first atom": lambda atoms: atoms[:1],
    "the same last atom": lambda atoms: number_variables(atoms[-1:]),
    "the same predicates": lambda atoms: tuple(atom[0] for atom in atoms),
    "as many atoms": len,
}
"""Keys by which a faulty filter may take different resolvents for equal ones."""


_CHANGES: Final = {
    "the last atom of each longer body is missing": slice(None, -1),
    "the first atom of each longer body is missing": slice(1, None),
    "each body is turned": slice(None, None, -1),
}


def change_bodies(made: Sequence[Resolvent], num_rest: int) -> Iterator[tuple[str, list[Resolvent]]]:
    """Yield each change of all bodies of two atoms or more, in words, with the resolvents that clauses then make.

    num_rest: the number of atoms of the goal after the selected one
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
    """Return whether only one clause is changed, and it lacks only ground atoms or atoms like facts."""
    pairs = [pair for pair in zip(made, changed, strict=True) if pair[0] != pair[1]]
    lost = (atom for own, other in pairs for atom in Counter(own.atoms) - Counter(other.atoms))
    return len(pairs) < 2 and all(min(atom[1:]) >= 0 or is_like_fact(atom) for atom in lost)


def is_changed(atoms: Atoms, made: Atoms) -> bool:
    """Return whether a clause may have made these atoms in place of others: without some, in another order or otherwise bound."""
    shorter, longer = sorted(({atom[0] for atom in atoms}, {atom[0] for atom in made}), key=len)
    if not shorter or not shorter <= longer or min(longer) < 0:
        return False
    pairs = (atoms, made), (made, atoms)
    return is_permutation(atoms, made) or any(find_embedding(*pair, is_loose=True) is not None for pair in pairs)


Item = TypeVar("Item")

ALONE: Final = "a fault of this stage alone explains the step"
"""The end of the evidence for a stage that was found by this search."""

CLEAR_LOSS: Final = 2
"""The fewest resolvents to be dropped before a filter that drops similar ones is likelier than lost clauses."""

MOST_CLAUSES: Final = 4096
"""The most clauses that may match a goal for its step to be taken again."""

ENDS: Final = (GoalKind.TRUE, GoalKind.FALSE, GoalKind.STOP)

STAGE_OF_FILTER: Final[Mapping[Filter, Stage]] = {
    "prune": Stage.PRUNE,
    "revisit": Stage.REVISIT,
    "duplicates": Stage.REVISIT,
    "close": Stage.CLOSE,
    "max_atoms": Stage.LIMIT,
    "max_resolvents": Stage.LIMIT,
}
"""The stage that applies each filter."""


def has_stage(dialect: Dialect, stage: Stage) -> bool:
    """Return whether a stage does anything in a dialect; `revisit` also stands for the filter `duplicates`."""
    if stage is Stage.RENAME:
        return dialect.forgets_names
    applied = {STAGE_OF_FILTER[name] for name in dialect.filters if name != "revisit" or dialect.memory != "none"}
    return stage in applied or stage is Stage.LIMIT or stage not in STAGE_OF_FILTER.values()


TOGETHER: Final = "rules and facts are put together in another order"


def explain_by_one_stage(program: StepProgram, pair: StepPair) -> list[StepDifference]:
    """Explain two steps from the same goal by a fault of one stage, the likeliest first; return nothing if no fault fits."""
    missing, extra = tuple(pair.listed.missing), tuple(pair.listed.extra)
    for reading in program.list_readings() if program.visited[-1] else ():
        made = reading.match(reading.visited[-1])
        if len(made) <= MOST_CLAUSES and (found := _Search(reading, made, pair).find()):
            return [each._replace(evidence=f"{each.evidence}; {ALONE}", missing=missing, extra=extra) for each in found]
    return []


class Change(NamedTuple):
    """A change of one stage. It explains the step if the step, taken again with this change, produces the actual list.

    made:    the resolvents before the filters, if the change affects them
    changes: arguments of `StepProgram.list`
    """

    stage: Stage
    kind: DifferenceClass
    words: str
    changes: Mapping[str, Any] = {}
    made: Sequence[Resolvent] | None = None
    confidence: float = CLEAR


Guesses: TypeAlias = Iterable[Change | StepDifference]
"""Changes to try, and guesses known to fit, in the order of the attempts; the first that fits counts."""


class _Search:
    """The search for a stage whose fault produces the actual list."""

    def __init__(self, program: StepProgram, made: list[Resolvent], pair: StepPair) -> None:
        self._program, self._made, self._pair = program, made, pair
        self._goal = program.visited[-1]
        self._whole = program.list(made)
        self._wanted, self._actual = pair.show(self._whole), pair.read(1)
        self._has_more = any(r.kind != GoalKind.FALSE for r in pair.listed.extra)

    def find(self) -> list[StepDifference]:
        """Return the guesses that fit; none if the program does not produce the expected list, or only names differ."""
        if self._wanted != self._pair.read(0) or self._wanted == self._actual:
            return []
        attempts: tuple[Callable[[], Guesses], ...] = (
            self._change_ends,
            partial(self._take_earlier_goal, CLEAR),
            partial(self._select_another, CLEAR),
            self._change_filters,
            self._keep_visited,
            partial(self._compare_coarsely, CLEAR),
            self._change_counts,
            *(partial(self._count_lost, kind) for kind in (Origin.FACT, Origin.RULE)),
            partial(self._shorten_list, CLEAR),
            self._change_order,
            self._change_limits,
            *(partial(self._move_filters, stage) for stage in self._filter_stages),
            self._change_memory,
            partial(self._change_bodies, CLEAR),
            self._change_atoms,
            self._change_clauses,
            self._lose_proofs,
            self._change_duplicates,
            self._compare_coarsely,
            self._change_order_of_part,
            self._change_bodies,
            self._keep_facts_unseen,
            self._shorten_list,
            self._drop_unvisited,
            self._select_another,
            self._take_earlier_goal,
        )
        guesses = (next(filter(None, map(self._try, attempt())), None) for attempt in attempts)
        return [guess for guess in guesses if guess is not None and has_stage(self._program.dialect, guess.stage)]

    def _try(self, guess: Change | StepDifference) -> StepDifference | None:
        """Return a guess if it fits: if, with its changes, the resolvents that pass the filters are the actual list."""
        if isinstance(guess, StepDifference):
            return guess
        listed = self._program.list(self._made if guess.made is None else guess.made, **guess.changes)
        fits = self._pair.show(listed) == self._actual
        return StepDifference(guess.stage, guess.kind, guess.words, guess.confidence) if fits else None

    def _without(self, *names: Filter) -> dict[str, Any]:
        return {"filters": tuple(name for name in self._program.dialect.filters if name not in names)}

    def _filters(self, name: Filter) -> bool:
        return name in self._program.dialect.filters

    def _judge_proof(self, kind: DifferenceClass) -> DifferenceClass:
        """Return the class for a proof on one side only, if there are no origins to say more; otherwise, return `kind`."""
        is_lost, is_false = self._pair.has_proof
        if self._pair.has_origins or is_lost == is_false:
            return kind
        return DifferenceClass.PROOF_LOST if is_lost else DifferenceClass.FALSE_PROOF

    @cached_property
    def _kind_of_filter(self) -> DifferenceClass:
        """The class of a fault in a filter: EXTRA, MISSING, or the class of a lost or false proof."""
        (wanted, *counts), (actual, *own) = self._wanted, self._actual
        has_more = self._has_more or (wanted == actual and sum(own) > sum(counts))
        return self._judge_proof(DifferenceClass.EXTRA if has_more else DifferenceClass.MISSING)

    @cached_property
    def _is_permuted(self) -> bool:
        """True if both lists have the same resolvents in different orders, and the limits dropped the same number."""
        (wanted, *counts), (actual, *own) = self._wanted, self._actual
        return wanted != actual and Counter(wanted) == Counter(actual) and counts == own

    # Ends and counts

    def _change_ends(self) -> Guesses:
        """Guess that ends such as TRUE and FALSE differ while everything else is equal."""
        wanted, actual = self._wanted.keys, self._actual.keys
        own = [key for key in actual if key[0] in ENDS]
        if own and own[0][0] == GoalKind.TRUE and own[0][1]:
            is_fact = all(self._program.is_fact(atom) for atom in own[0][1] if atom[0] >= 0)
            stage, words = Stage.PRUNE if is_fact else Stage.CLOSE, f"atoms left beside TRUE: {len(own[0][1])}"
            yield StepDifference(stage, DifferenceClass.MALFORMED, words, LIKELY)
        if self._pair.has_origins and any(key[0] == GoalKind.GOAL and key[2][0] == Origin.NONE for key in actual):
            yield StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, "resolvents of no clause are listed")
        proofs = {key[2] for key in wanted if key[0] == GoalKind.TRUE} - {NO_CLAUSE}
        if any(key[2] in proofs and key[0] != GoalKind.TRUE and not key[1] for key in actual):
            words = "a resolvent without atoms is listed, and not as a proof"
            yield StepDifference(Stage.PRUNE, DifferenceClass.EXTRA, words)
        yield from self._compare_ends(own)

    @property
    def _end_stage(self) -> Stage:
        """The stage that puts an end into an empty list."""
        return Stage.CLOSE if self._filters("close") else Stage.LIMIT

    def _compare_ends(self, own: Sequence[Key]) -> Guesses:
        """Guess that the list has ends of another kind, given the ends of the actual side."""
        sides = self._wanted.keys, self._actual.keys
        goals = [[key for key in side if key[0] not in ENDS] for side in sides]
        is_proved = self._pair.has_proof[0]
        is_true = {key[0] for key in own} - {GoalKind.STOP} == {GoalKind.TRUE} and own[0][2] == NO_CLAUSE
        if is_true and (not any(goals) or goals[0] == goals[1]):
            words = "TRUE stands for an empty list"
            is_false = not is_proved and self._pair.has_origins
            return [StepDifference(self._end_stage, DifferenceClass.FALSE_PROOF, words, CERTAIN)] if is_false else []
        names = [", ".join(GoalKind(key[0]).name for key in side if key[0] in ENDS) or "no end" for side in sides]
        if goals[0] != goals[1] or names[0] == names[1] or is_proved or any(key[0] == GoalKind.TRUE for key in own):
            return []
        kinds = DifferenceClass.MISSING, DifferenceClass.OUTCOME, DifferenceClass.EXTRA
        kind = kinds[1 + (len(sides[1]) > len(sides[0])) - (len(sides[1]) < len(sides[0]))]
        return [StepDifference(self._end_stage, kind, f"the list ends with {names[1]}, expected {names[0]}", CERTAIN)]

    @cached_property
    def _counts_in_words(self) -> str:
        """The numbers of dropped resolvents, if only they differ."""
        (wanted, *counts), (actual, *own) = self._wanted, self._actual
        if wanted != actual or not self._pair.has_counts:
            return ""
        return f"dropped (by max_atoms, by max_resolvents): expected {tuple(counts)}, actual {tuple(own)}"

    @cached_property
    def _num_lost(self) -> Counter[int]:
        """The numbers of facts and of rules whose resolvents are not in the expected list."""
        left = Counter(key[2] for key in self._whole.keys)
        return Counter(each.clause[0] for each in self._made if not _take(left, each.clause))

    def _change_counts(self) -> Guesses:
        """Guess that the limits dropped or counted a different number of resolvents, although the lists are equal."""
        lacking = sum(self._wanted[1:]) - sum(self._actual[1:])
        if self._counts_in_words and (lacking <= 0 or not any(self._actual[1:])):
            yield StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, self._counts_in_words)
        if self._counts_in_words and len(self._num_lost) > 1:
            yield StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, self._counts_in_words, OPEN)

    def _count_lost(self, kind: int) -> Guesses:
        """Guess that clauses of a kind are lost or added among those whose resolvents the limits drop."""
        lacking = sum(self._wanted[1:]) - sum(self._actual[1:])
        if self._counts_in_words and lacking and lacking <= self._num_lost[kind]:
            what, found = ("lost", DifferenceClass.MISSING) if lacking > 0 else ("extra", DifferenceClass.EXTRA)
            words = f"{self._counts_in_words}: {count_of(abs(lacking), 'resolvent')} {what} before the limits"
            yield StepDifference(_matching(kind), found, words, OPEN)

    # Other goals

    def _take_earlier_goal(self, confidence: float = GUESSED) -> Guesses:
        """Guess that the list belongs to an earlier goal; this is clear only if it is not just a part of the expected one.

        That a proof is lost is no sign of it, unless goals of the earlier step take its place.
        """
        has_goals = any(r.kind == GoalKind.GOAL for r in self._pair.listed.extra)
        if not has_goals and (confidence >= CLEAR or self._pair.has_proof[0]):
            return
        for back, goal in enumerate(reversed(self._program.visited[:-1]), 1):
            if goal and goal != self._goal:
                words = f"the resolvents are those of the step {back} before this one"
                made = self._program.match(goal)
                yield Change(Stage.ADVANCE, DifferenceClass.STALE, words, {}, made, confidence)

    def _select_another(self, confidence: float = GUESSED) -> Guesses:
        if not self._has_more and (confidence >= CLEAR or self._pair.has_proof[0]):
            return
        for i, atom in enumerate(self._goal):
            if atom != self._goal[0]:
                made = self._program.match((atom, *self._goal[:i], *self._goal[i + 1 :]))
                words = f"atom {i + 1} of the goal is selected"
                yield Change(Stage.SELECT, DifferenceClass.SUBSTITUTED, words, {}, made, confidence)

    # Order

    def _change_order(self) -> Guesses:
        rules, facts = ([each for each in self._made if each.clause[0] == kind] for kind in (Origin.RULE, Origin.FACT))
        is_first = not self._made or self._made[0].clause[0] == Origin.RULE
        together = Stage.RESOLVE if rules and facts else Stage.MATCH_RULES if rules else Stage.MATCH_FACTS

        def join(rules: Sequence[Resolvent], facts: Sequence[Resolvent], is_rules_first: bool) -> list[Resolvent]:
            return [*rules, *facts] if is_rules_first else [*facts, *rules]

        for stage, words, made in (
            (together, TOGETHER, join(rules, facts, not is_first)),
            (together, "the whole list is reversed", self._made[::-1]),
            (Stage.MATCH_FACTS, "the facts are tried in the reverse order", join(rules, facts[::-1], is_first)),
            (Stage.MATCH_RULES, "the rules are tried in the reverse order", join(rules[::-1], facts, is_first)),
        ):
            yield Change(stage, DifferenceClass.REORDERED, words, {}, made)
        if self._is_permuted:
            kinds = {key: whole[2][0] for key, whole in zip(self._wanted.keys, self._whole.keys, strict=True)}
            for kind in (Origin.RULE, Origin.FACT):
                left, right = ([k for k in side[0] if kinds.get(k) == kind] for side in (self._wanted, self._actual))
                if left != right:
                    yield _reorder(kind)
            yield StepDifference(Stage.RESOLVE, DifferenceClass.REORDERED, TOGETHER)

    def _change_order_of_part(self) -> Guesses:
        """Guess that clauses are tried in another order, so that other resolvents remain after the limits or `close`."""
        whole = self._pair.show(self._program.list(self._made, **self._without("max_resolvents", "close")))
        (wanted, *counts), (actual, *own) = self._wanted, self._actual
        is_part = not Counter(actual) - Counter(whole.keys) and len(wanted) == len(actual)
        kinds = {key[2][0] for key in self._whole.keys} | {r.origin_kind for r in self._pair.steps[1].resolvents}
        if wanted != actual and is_part and counts == own and kinds in ({int(Origin.RULE)}, {int(Origin.FACT)}):
            yield _reorder(min(kinds))._replace(confidence=OPEN)

    # Filters

    def _change_filters(self) -> Guesses:
        kind = self._kind_of_filter
        if (
            self._program.remembers
            and self._pair.show(self._program.list(self._made, **self._without("revisit"))) != self._wanted
        ):
            yield Change(Stage.REVISIT, kind, "goals visited before stay", self._without("revisit"))
            for words, part in self._list_memories():
                yield Change(Stage.REVISIT, kind, words, {"stages": _remember(part)})
        if self._shows_facts:
            yield Change(Stage.PRUNE, kind, "atoms that are facts stay", self._without("prune"))
        if self._pair.has_proof[1]:
            yield Change(Stage.CLOSE, kind, "resolvents beside a proof stay", self._without("close"))
        changes = {"stages": SOUND._replace(close=_close_last)}
        yield Change(Stage.CLOSE, DifferenceClass.SUBSTITUTED, "the last proof is kept, not the first", changes)

    def _list_memories(self) -> Iterator[tuple[str, slice]]:
        """Yield the parts of the visited goals that a wrong memory may hold."""
        yield "only the current goal is not visited again", slice(-1, None)
        for num in range(2, len(self._program.visited)):
            yield f"only the last {num} goals are not visited again", slice(-num, None)
        yield "the query does not count as visited", slice(1, None)
        yield "the current goal does not count as visited", slice(None, -1)

    @cached_property
    def _shows_facts(self) -> bool:
        """True if an actual resolvent has an atom that pruning would have deleted."""
        return any(self._program.is_fact(atom) for _, atoms, _ in self._actual.keys for atom in atoms)

    def _keep_facts_unseen(self) -> Guesses:
        """Guess that atoms that are facts stay, although no listed resolvent has one: the other filters drop these."""
        if not self._shows_facts:
            words = "atoms that are facts stay, in resolvents that other filters drop"
            yield Change(Stage.PRUNE, self._kind_of_filter, words, self._without("prune"), None, GUESSED)

    def _compare_coarsely(self, confidence: float = GUESSED) -> Guesses:
        """Guess that a filter takes different resolvents for equal; this is clear only if it drops several of them."""
        kind, num_lost = self._kind_of_filter, len(self._wanted.keys) - len(self._actual.keys)
        if not self._filters("duplicates") or (num_lost < CLEAR_LOSS and confidence >= CLEAR):
            return
        for words, key in _COARSE_KEYS.items():
            said = f"the filter duplicates drops resolvents with {words} as an earlier one"
            yield Change(Stage.REVISIT, kind, said, {"stages": _keep_firsts(key)}, None, confidence)
        words = "of equal resolvents, the last one is kept, not the first"
        changes = {"stages": SOUND._replace(remove_duplicates=_keep_lasts)}
        yield Change(Stage.REVISIT, DifferenceClass.SUBSTITUTED, words, changes, None, confidence)

    def _keep_visited(self) -> Guesses:
        """Guess that only some of the resolvents that equal goals visited before are dropped."""
        if not self._program.remembers or not self._pair.has_origins:
            return
        filters, own = self._program.dialect.filters, self._clauses_of(self._actual)
        i = filters.index("revisit")
        before, after = (self._program.list(self._made, filters=filters[:end]) for end in (i, i + 1))
        visited = self._clauses_of(before) - self._clauses_of(after)
        if stays := visited & own:
            left = [each for each in self._made if each.clause not in visited - own]
            words = f"of the resolvents that are goals visited before, {len(stays):,} of {len(visited):,} stay"
            yield Change(Stage.REVISIT, self._kind_of_filter, words, self._without("revisit"), left)

    def _drop_unvisited(self) -> Guesses:
        """Guess that resolvents are dropped as if they had been visited before."""
        if self._has_more or not self._program.remembers or len(self._program.visited) < 2:
            return
        if self._pair.has_origins and (lost := self._clauses_of(self._whole) - self._clauses_of(self._actual)):
            left = [each for each in self._made if each.clause not in lost]
            words = f"{count_of(len(lost), 'resolvent')} dropped as if visited before"
            yield Change(Stage.REVISIT, self._kind_of_filter, words, {}, left, GUESSED)

    @staticmethod
    def _clauses_of(listed: Listed) -> set[tuple[int, int]]:
        return {key[2] for key in listed.keys}

    @property
    def _filter_stages(self) -> list[Stage]:
        """The stages of filters: the last one first, but `close` before all if a proof is on one side only."""
        is_lost, is_false = self._pair.has_proof
        stages = sorted({STAGE_OF_FILTER[name] for name in self._program.dialect.filters}, key=rank, reverse=True)
        return sorted(stages, key=lambda stage: is_lost != is_false and stage is not Stage.CLOSE)

    def _move_filters(self, stage: Stage) -> Guesses:
        """Guess that a filter of a stage is applied earlier or later than declared."""
        filters = self._program.dialect.filters
        for i, name in enumerate(filters):
            others = self._without(name)["filters"]
            places = []
            for j in range(len(filters)) if STAGE_OF_FILTER[name] is stage else ():
                change = Change(stage, self._kind_of_filter, "", {"filters": (*others[:j], name, *others[j:])})
                if j != i and self._try(change) is not None:
                    places.append(f"before {others[j]}" if j < i else f"after {others[j - 1]}")
            if places:
                words = f"the filter {name} is applied {' or '.join(places)}"
                yield StepDifference(stage, self._kind_of_filter, words)

    def _change_memory(self) -> Guesses:
        other = "set" if self._program.dialect.memory == "sequence" else "sequence"
        words = f"visited goals are compared as by the memory {other}"
        change = Change(Stage.REVISIT, self._kind_of_filter, words, {"memory": other})
        return [change] if self._program.remembers else []

    def _change_duplicates(self) -> Guesses:
        """Guess that only one of equal resolvents is kept, that all of them are, or none, against the dialect."""
        filters = self._program.dialect.filters
        if "duplicates" in filters:
            words, changed = "equal resolvents stay", self._without("duplicates")
        else:
            place = filters.index("close") if "close" in filters else len(filters)
            words = "of equal resolvents, only one is kept"
            changed = {"filters": (*filters[:place], "duplicates", *filters[place:])}
        yield Change(Stage.REVISIT, self._kind_of_filter, words, changed, None, OPEN)
        num = Counter(self._program.prune(each.atoms) for each in self._made)
        left = [each for each in self._made if num[self._program.prune(each.atoms)] == 1]
        if len(left) < len(self._made):
            yield Change(Stage.REVISIT, self._kind_of_filter, "equal resolvents are all dropped", {}, left, OPEN)

    def _lose_proofs(self) -> Guesses:
        """Guess that all proofs of the step are lost together, or that FALSE took the place of the whole list."""
        left = [each for each in self._made if self._program.prune(each.atoms)]
        num = len(self._made) - len(left)
        if not num or not self._filters("close"):
            return
        kind = self._judge_proof(DifferenceClass.OUTCOME if self._has_more else DifferenceClass.MISSING)
        words = "the proof is lost" if num == 1 else f"all {num} proofs of the step are lost"
        yield Change(Stage.CLOSE, kind, words, {}, left, GUESSED if num == 1 else OPEN)
        if left and [key[0] for key in self._actual.keys] == [GoalKind.FALSE]:
            words = f"FALSE stands for TRUE, although {count_of(len(left), 'other resolvent')} would be left"
            yield StepDifference(Stage.CLOSE, kind, words, OPEN)

    # Limits

    def _change_limits(self) -> Guesses:
        limits, kind = self._program.limits, self._judge_proof(DifferenceClass.LIMIT)
        changes: dict[str, Any] = {"stages": SOUND._replace(limit_resolvents=_limit_last)}
        yield Change(Stage.LIMIT, kind, "the last max_resolvents resolvents are kept, not the first", changes)
        if self._whole.dropped_resolvents:
            yield from self._keep_others(kind)
        does_cut = self._program.dialect.long_resolvents == "truncate"
        if does_cut or self._pair.has_counts or len(self._pair.listed.missing) > 1:
            changes = {"max_atoms": limits.max_atoms - 1}
            words = f"resolvents of max_atoms atoms are {'cut' if does_cut else 'dropped'}"
            yield Change(Stage.LIMIT, kind, words, changes)
        changes = {"max_atoms": limits.max_atoms + 1}
        yield Change(Stage.LIMIT, kind, "resolvents of one atom more than max_atoms stay", changes)
        yield Change(Stage.LIMIT, kind, "resolvents of more than max_atoms atoms stay", self._without("max_atoms"))
        otherwise = "reject" if self._program.dialect.long_resolvents == "truncate" else "truncate"
        cut = self._pair.show(self._program.list(self._made, long_resolvents=otherwise))
        if self._filters("max_atoms") and cut.keys == self._actual.keys and self._counts_fit(cut):
            yield StepDifference(Stage.LIMIT, kind, "resolvents of more than max_atoms atoms are cut")

    def _keep_others(self, kind: DifferenceClass) -> Guesses:
        """Guess that the list was too long, and resolvents other than the first ones were kept."""
        whole = self._pair.show(self._program.list(self._made, **self._without("max_resolvents")))
        own = [key for key in self._actual.keys if key[0] not in ENDS[1:]]
        num, most = len(own), self._program.limits.max_resolvents
        if self._pair.has_counts:
            num_made = sum(key[0] not in ENDS[1:] for key in whole.keys)
            is_likely = self._actual[1:] == (self._whole.dropped_atoms, num_made - num)
        else:
            is_likely = abs(num - most) <= 1 or (num > most and own == [*whole.keys[:num]])
        if is_likely and not Counter(own) - Counter(whole.keys):
            words = f"{num} of {len(whole.keys)} resolvents are kept, and others than the first {most}"
            yield StepDifference(Stage.LIMIT, kind, words)
        if [(r.kind, r.clause) for r in self._pair.steps[1].resolvents] == [(GoalKind.TRUE, NO_CLAUSE)]:
            words = "TRUE stands where a list is longer than max_resolvents"
            yield StepDifference(Stage.CLOSE, DifferenceClass.FALSE_PROOF, words, OPEN)

    def _shorten_list(self, confidence: float = GUESSED) -> Guesses:
        """Guess that limits drop more than declared; this is clear only if dropped resolvents were counted."""
        num, most = len(self._actual.keys), self._program.limits.max_atoms
        if self._has_more or self._pair.has_counts != (confidence >= CLEAR):
            return []
        shorter = [({"max_resolvents": num}, f"the list ends after {count_of(num, 'resolvent')}")]
        for atoms in range(most - 1, 0, -1):
            words = f"more than {count_of(atoms, 'atom')}" if atoms < most - 1 else "max_atoms atoms"
            shorter.append(({"max_atoms": atoms}, f"resolvents of {words} are dropped"))
        kind = self._judge_proof(DifferenceClass.LIMIT)
        return [Change(Stage.LIMIT, kind, words, limits, None, confidence) for limits, words in shorter]

    # Atoms

    def _change_bodies(self, confidence: float = GUESSED) -> Guesses:
        """Guess that all rules lose an atom of their bodies, or that the bodies are reversed."""
        is_clear = confidence >= CLEAR
        if is_clear and not self._has_more:
            return
        kind = self._judge_proof(DifferenceClass.SUBSTITUTED if self._has_more else DifferenceClass.MISSING)
        for words, made in change_bodies(self._made, len(self._goal) - 1):
            # If only one rule lacks atoms, they may have been lost in another way, unless pruning would have kept them.
            if not (is_clear and could_be_pruned(self._made, made, self._program.is_like_fact)):
                yield Change(Stage.RESOLVE, kind, words, {}, made, confidence)

    def _change_atoms(self) -> Guesses:
        """Guess that clauses made other atoms."""
        changed = self._find_changed()
        hidden: dict[Clause, Resolvent] = {}
        for _ in range(2) if changed else ():
            made = [changed.get(each.clause) or hidden.get(each.clause) or each for each in self._made]
            listed = self._program.list(made, [*changed.values(), *hidden.values()])
            if self._pair.show(listed) == self._actual:
                guesses = [
                    self._judge_change(each, changed[each.clause].atoms)
                    for each in self._made
                    if each.clause in changed
                ]
                guess = min(guesses, key=lambda each: rank(each.stage))
                yield guess._replace(kind=self._judge_proof(guess.kind))
                return
            hidden = self._find_hidden(listed)

    def _find_changed(self) -> dict[Clause, Resolvent]:
        """Return the actual resolvents of the clauses that made other atoms than they should."""
        wanted = {clause: (kind, atoms) for kind, atoms, clause in self._whole.keys}
        own = {clause: (kind, atoms) for kind, atoms, clause in self._actual.keys if clause != NO_CLAUSE}
        if not self._pair.has_origins:
            own = self._infer_changed()
        return {
            each.clause: each._replace(
                atoms=self._complete(own[each.clause][1], each), kind=GoalKind(own[each.clause][0])
            )
            for each in self._made
            if each.clause in own
            and own[each.clause] != wanted.get(each.clause)
            and own[each.clause][1] != self._program.prune(each.atoms)
        }

    def _complete(self, atoms: Atoms, each: Resolvent) -> Atoms:
        """Return the atoms, with those of the right result that a truncation hides."""
        right, most = self._program.prune(each.atoms), self._program.limits.max_atoms
        is_cut = self._program.dialect.long_resolvents == "truncate" and self._filters("max_atoms")
        return (*atoms, *right[most:]) if is_cut and len(atoms) == most else atoms

    def _infer_changed(self) -> dict[Clause, tuple[int, Atoms]]:
        """Infer the clauses that made the extra resolvents: those of similar missing ones, else of similar dropped ones."""
        missing = Counter(self._wanted.keys) - Counter(self._actual.keys)
        lost = [key[2] for key, shown in zip(self._whole.keys, self._wanted.keys, strict=True) if _take(missing, shown)]
        listed = {key[2] for key in self._whole.keys}
        left = {each.clause: each for each in self._made if each.clause in lost}
        left |= {each.clause: each for each in self._made if each.clause not in listed}
        found: dict[Clause, tuple[int, Atoms]] = {}
        right = Counter(self._program.prune(each.atoms) for each in left.values() if each.clause not in lost)
        for kind, atoms in map(content_of, self._pair.listed.extra):
            if kind == GoalKind.FALSE or _take(right, atoms):
                continue
            clause = next((each.clause for each in left.values() if is_changed(atoms, each.atoms)), None)
            if clause is None:
                return {}
            found[clause] = kind, atoms
            del left[clause]
        return found

    def _find_hidden(self, listed: Listed) -> dict[Clause, Resolvent]:
        """Return results of clauses that may have made other atoms, which a filter then dropped as those of another goal.

        listed: the list with the changes that are known, which is too long, or of which too many were dropped
        """
        surplus = Counter(self._pair.show(listed).keys) - Counter(self._actual.keys)
        shown = zip(self._pair.show(listed).keys, listed.keys, strict=True)
        num = sum(listed[1:]) - sum(self._actual[1:]) if not surplus and self._pair.has_counts else surplus.total()
        clauses = {whole[2] for key, whole in shown if _take(surplus, key)}
        clauses = clauses or {each.clause for each in self._made} - self._clauses_of(listed)
        same = [key[1] for key in self._actual.keys if self._filters("duplicates")]
        same += self._program.visited if self._program.remembers else []
        found: dict[Clause, Resolvent] = {}
        for each in self._made if same else ():
            if len(found) < num and each.clause in clauses:
                atoms = next((atoms for atoms in same if is_changed(atoms, each.atoms)), None)
                found |= {each.clause: each._replace(atoms=atoms)} if atoms else {}
        return found

    def _judge_change(self, each: Resolvent, atoms: Atoms) -> StepDifference:
        """Guess the stage that changed the result of a clause into these atoms."""
        right = self._program.prune(each.atoms)
        own = next((plain(r.atoms) for r in self._pair.steps[1].resolvents if r.clause == each.clause), atoms)
        if self._pair.has_origins and self._program.dialect.forgets_names and number_variables(own) != own:
            # `rename` always numbers variables by first appearance, whatever was resolved and pruned.
            return StepDifference(Stage.RENAME, DifferenceClass.RENAMED, UNNUMBERED)
        solid = number_variables(atom for atom in atoms if atom[0] >= 0)
        if len(solid) < len(atoms) and self._filters("prune") and solid == right:
            return StepDifference(Stage.PRUNE, DifferenceClass.MALFORMED, "holes stay where facts were deleted")
        if len(atoms) == self._program.limits.max_atoms and atoms == number_variables(iter(right[: len(atoms)])):
            return StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, f"atoms beyond {len(atoms)} are cut")
        return self._judge_length(each, atoms, right) or self._judge_substitution(each, atoms, right)

    def _judge_length(self, each: Resolvent, atoms: Atoms, right: Atoms) -> StepDifference | None:
        """Guess the stage that left more or fewer atoms of the result of a clause."""
        kept = find_embedding(atoms, each.atoms) if self._filters("prune") and len(atoms) != len(right) else None
        if kept is None:
            return None
        num = count_of(abs(len(atoms) - len(right)), "atom")
        lost = [atom for i, atom in enumerate(each.atoms) if i not in kept and not self._program.is_fact(atom)]
        if atoms and any(min(atom[1:]) < 0 and not self._program.is_like_fact(atom) for atom in lost):
            words = f"{num} with variables missing, which no fact is like"
            return StepDifference(Stage.RESOLVE, DifferenceClass.SUBSTITUTED, words)
        kind = DifferenceClass.EXTRA if len(atoms) > len(right) else DifferenceClass.MISSING
        return StepDifference(Stage.PRUNE, kind, f"{num} {kind.value} after pruning")

    def _judge_substitution(self, each: Resolvent, atoms: Atoms, right: Atoms) -> StepDifference:
        is_pruned = self._filters("prune") and len(right) < len(each.atoms)
        if is_pruned and Counter(atoms) == Counter(right):
            words = "the atoms that pruning leaves are in another order"
            return StepDifference(Stage.PRUNE, DifferenceClass.SUBSTITUTED, words)
        # A fact that binds nothing does not change any variable.
        is_bare = each.origin_kind == Origin.FACT and min(self._goal[0][1:]) >= 0 and len(atoms) == len(right)
        is_bare = is_bare and self._program.dialect.forgets_names
        words = "the same clause gave different atoms"
        return StepDifference(Stage.RENAME if is_bare else Stage.RESOLVE, DifferenceClass.SUBSTITUTED, words)

    # Clauses

    def _change_clauses(self) -> Guesses:
        """Guess that matching clauses are lost, or that clauses were used that do not match."""
        known = {each.clause for each in self._made}
        attempts = [self._list_added()] if self._pair.has_origins else [[], self._list_added()]
        for added in attempts:
            pool = self._program.put_in_order([*self._made, *added])
            left = self._drop_surplus(pool, added if self._pair.has_origins else ())
            if left is not None and self._counts_fit(left[1]):
                kept = set(map(id, left[0]))
                found = [each for each in added if id(each) in kept]
                lost = [each for each in pool if id(each) not in kept and each.clause in known]
                if lost or found:
                    yield self._judge_clauses(lost, found)

    def _judge_clauses(self, lost: Sequence[Resolvent], added: Sequence[Resolvent]) -> StepDifference:
        kinds = {each.clause[0] for each in (*lost, *added)}
        what = "clause" if len(kinds) > 1 else "rule" if min(kinds) == Origin.RULE else "fact"
        known = {each.clause for each in self._made}
        kind, words = judge_counts(len(lost), len(added), what, sum(each.clause in known for each in added))
        is_open = self._program.remembers and len(self._program.visited) > 1 and bool(lost)
        confidence = LIKELY if is_open or not self._pair.has_origins else CLEAR
        if self._wanted.keys[0][0] == GoalKind.TRUE and len(self._actual.keys) > 1:
            # `close` may have lost the proof and kept the other resolvents.
            confidence = OPEN
        return StepDifference(_matching(min(kinds)), self._judge_proof(kind), words, confidence)

    def _list_added(self) -> list[Resolvent]:
        """Return the actual resolvents of clauses that do not match; if clauses are unknown, what the query would make."""
        if not self._pair.has_origins:
            return self._program.make_excluded(self._goal)
        left = Counter(each.clause for each in self._made)
        return [
            Resolvent(atoms, Origin(clause[0]), clause[1], GoalKind(kind))
            for kind, atoms, clause in self._actual.keys
            if clause != NO_CLAUSE and not _take(left, clause)
        ]

    def _drop_surplus(
        self, pool: list[Resolvent], fixed: Collection[Resolvent]
    ) -> tuple[list[Resolvent], Listed] | None:
        """Return the part of `pool` that produces the actual list, in any order, and its list; None if no part does."""
        own = Counter(self._actual.keys)
        while True:
            listed = self._program.list(pool, fixed)
            shown = self._pair.show(listed).keys
            surplus = Counter(shown) - own
            if not surplus and Counter(shown) == own:
                return pool, listed
            made_by = defaultdict[Any, list[Key]](list)
            for key, whole in zip(shown, listed.keys, strict=True):
                made_by[whole[2]].append(key)
            gone = {id(each) for each in pool if any(_take(surplus, key) for key in made_by[each.clause])}
            if not gone:
                return None
            pool = [each for each in pool if id(each) not in gone]

    def _counts_fit(self, listed: Listed) -> bool:
        """Return whether the dropped counts fit: no larger than computed, since lost resolvents may be among the dropped."""
        return self._actual.dropped_atoms <= listed.dropped_atoms and (
            self._actual.dropped_resolvents <= listed.dropped_resolvents
        )


def _take(left: Counter[Item], key: Item) -> bool:
    """Take one item with this key from the counter; return whether one was left."""
    if left[key] <= 0:
        return False
    left[key] -= 1
    return True


def _matching(kind: int) -> Stage:
    return Stage.MATCH_RULES if kind == Origin.RULE else Stage.MATCH_FACTS


def _reorder(kind: int) -> StepDifference:
    words = f"the {'rules' if kind == Origin.RULE else 'facts'} are tried in another order"
    return StepDifference(_matching(kind), DifferenceClass.REORDERED, words)
