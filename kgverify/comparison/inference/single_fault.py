"""The single stage whose fault explains the recorded list of a step, found by taking the step again with that stage changed.

The program, the limits and the dialect determine which resolvents the clauses make, and which ones pass each filter. If the
result is the expected list, one stage after another is changed: clauses are lost or added, a filter is left out or moved,
another atom is selected. A change that produces exactly the actual list explains it, in any dialect. Two faults in one step
are not explained.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
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


class StepProgram:
    """The resolvents that a program makes from one goal, filter by filter.

    visited: the goals of the derivation in canonical variables, the current one last
    """

    def __init__(self, clauses: Clauses, limits: Limits, visited: Sequence[Atoms], query: Ids) -> None:
        self._clauses, self.limits, self.visited = clauses, limits, visited
        self.excluded = clauses.excluded(query)
        self.dialect = limits.dialect

    @property
    def remembers(self) -> bool:
        """True if the dialect drops goals that were visited before."""
        return "revisit" in self.dialect.filters and self.dialect.memory != "none"

    def match(self, goal: Atoms) -> list[Resolvent]:
        """Return the resolvent that each clause makes from a goal, in the order of the dialect, before pruning."""
        situation = Situation(self._clauses, self.limits, self.excluded, (goal,))
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
        takes_last: bool = False,
        forgets: bool = False,
        **changes: Any,
    ) -> Listed:
        """Return the resolvents that pass the filters; by default, the filters of the dialect with its limits.

        fixed:      resolvents that have been pruned already
        takes_last: whether `close` keeps the last proof instead of the first
        forgets:    whether only the current goal counts as visited
        changes:    changed fields of the dialect
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
"""The end of the evidence for a stage that was found by this search."""

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

TOGETHER: Final = "rules and facts are put together in another order"


def explain_by_one_stage(program: StepProgram, pair: StepPair) -> list[StepDifference]:
    """Explain two steps from the same goal by a fault of one stage, the likeliest first; return nothing if no fault fits."""
    dialect = program.dialect
    if not program.visited[-1] or not dialect.forgets_names or dialect.exclusion == "positives_only":
        return []
    made = program.match(program.visited[-1])
    if len(made) > MOST_CLAUSES:
        return []
    missing, extra = tuple(pair.listed.missing), tuple(pair.listed.extra)
    found = _Search(program, made, pair).find()
    return [each._replace(evidence=f"{each.evidence}; {ALONE}", missing=missing, extra=extra) for each in found]


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
            self._change_counts,
            partial(self._shorten_list, CLEAR),
            partial(self._take_earlier_goal, CLEAR),
            partial(self._select_another, CLEAR),
            self._change_filters,
            self._keep_visited,
            self._change_order,
            self._change_limits,
            self._swap_filters,
            self._change_memory,
            partial(self._change_bodies, CLEAR),
            self._change_atoms,
            self._change_clauses,
            self._lose_proofs,
            self._change_duplicates,
            self._change_order_of_part,
            self._change_bodies,
            self._delete_atoms,
            self._shorten_list,
            self._drop_unvisited,
            self._select_another,
            self._take_earlier_goal,
        )
        guesses = (next(filter(None, map(self._try, attempt())), None) for attempt in attempts)
        return [guess for guess in guesses if guess is not None]

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
        return self._judge_proof(DifferenceClass.EXTRA if self._has_more else DifferenceClass.MISSING)

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

    def _compare_ends(self, own: Sequence[Key]) -> Guesses:
        """Guess that the list has ends of another kind, given the ends of the actual side."""
        sides = self._wanted.keys, self._actual.keys
        goals = [[key for key in side if key[0] not in ENDS] for side in sides]
        is_proved = self._pair.has_proof[0]
        is_true = {key[0] for key in own} - {GoalKind.STOP} == {GoalKind.TRUE} and own[0][2] == NO_CLAUSE
        if is_true and (not any(goals) or goals[0] == goals[1]):
            words = "TRUE stands for an empty list"
            is_false = not is_proved and self._pair.has_origins
            return [StepDifference(Stage.CLOSE, DifferenceClass.FALSE_PROOF, words, CERTAIN)] if is_false else []
        names = [", ".join(GoalKind(key[0]).name for key in side if key[0] in ENDS) or "no end" for side in sides]
        if goals[0] != goals[1] or names[0] == names[1] or is_proved or any(key[0] == GoalKind.TRUE for key in own):
            return []
        kinds = DifferenceClass.MISSING, DifferenceClass.OUTCOME, DifferenceClass.EXTRA
        kind = kinds[1 + (len(sides[1]) > len(sides[0])) - (len(sides[1]) < len(sides[0]))]
        return [StepDifference(Stage.CLOSE, kind, f"the list ends with {names[1]}, expected {names[0]}", CERTAIN)]

    def _change_counts(self) -> Guesses:
        """Guess that a different number of resolvents was dropped, although the lists are equal."""
        (wanted, *counts), (actual, *own) = self._wanted, self._actual
        if wanted != actual or not self._pair.has_counts:
            return
        words = f"dropped (by max_atoms, by max_resolvents): expected {tuple(counts)}, actual {tuple(own)}"
        lacking = sum(counts) - sum(own)
        if lacking <= 0 or not any(own):
            yield StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, words)
        left = Counter(key[2] for key in self._whole.keys)
        kinds = {each.clause[0] for each in self._made if not _take(left, each.clause)}
        if len(kinds) > 1:
            yield StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, words, OPEN)
        words = f"{words}: {count_of(lacking, 'resolvent')} lost before the limits"
        yield StepDifference(_matching(min(kinds, default=Origin.FACT)), DifferenceClass.MISSING, words, OPEN)

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
        if self._program.remembers:
            memories: list[tuple[str, dict[str, Any]]] = [
                ("goals visited before stay", self._without("revisit")),
                ("only the current goal is not visited again", {"forgets": True}),
            ]
        else:
            first: tuple[Filter, ...] = ("prune", "revisit") if self._filters("prune") else ("revisit",)
            filters = (*first, *self._without("prune", "revisit")["filters"])
            words = "goals visited before are dropped"
            memories = [(words, {"filters": filters, "memory": memory}) for memory in ("sequence", "set")]
        return [
            *(Change(Stage.REVISIT, kind, *each) for each in memories),
            Change(Stage.PRUNE, kind, "atoms that are facts stay", self._without("prune")),
            Change(Stage.CLOSE, kind, "resolvents beside a proof stay", self._without("close")),
            Change(
                Stage.CLOSE,
                DifferenceClass.SUBSTITUTED,
                "the last proof is kept, not the first",
                {"takes_last": True},
            ),
        ]

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

    def _swap_filters(self) -> Guesses:
        """Guess that two filters that follow each other are applied in the other order."""
        filters = self._program.dialect.filters
        for i, (first, second) in enumerate(pairwise(filters)):
            swapped = (*filters[:i], second, first, *filters[i + 2 :])
            stage = max(STAGE_OF_FILTER[first], STAGE_OF_FILTER[second], key=rank)
            words = f"the filter {second} is applied before {first}"
            yield Change(stage, self._kind_of_filter, words, {"filters": swapped})

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
        if self._whole.dropped_resolvents:
            yield from self._keep_others(kind)
        if self._pair.has_counts or len(self._pair.listed.missing) > 1:
            changes = {"max_atoms": limits.max_atoms - 1}
            yield Change(Stage.LIMIT, kind, "resolvents of max_atoms atoms are dropped", changes)
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

    def _delete_atoms(self) -> Guesses:
        """Guess that resolvents have lost some of their ground atoms, if clauses are unknown."""
        if self._pair.has_origins or not self._filters("prune") or not self._has_more:
            return []
        left = [atoms for _, atoms in map(content_of, self._pair.listed.missing)]
        for _, atoms in map(content_of, self._pair.listed.extra):
            whole = next((other for other in left if has_lost_ground(atoms, other)), None)
            if whole is None:
                return []
            left.remove(whole)
        # `close` lists only the proof.
        if not left or [key[0] for key in self._actual.keys] == [GoalKind.TRUE]:
            kind = self._judge_proof(DifferenceClass.MISSING)
            return [StepDifference(Stage.PRUNE, kind, "ground atoms that the facts lack are deleted", GUESSED)]
        return []

    def _change_atoms(self) -> Guesses:
        """Guess that clauses made other atoms."""
        if not self._pair.has_origins:
            return
        own, wanted = (
            {clause: (kind, atoms) for kind, atoms, clause in listed.keys} for listed in (self._actual, self._whole)
        )
        changed = {
            each.clause: each._replace(atoms=own[each.clause][1], kind=GoalKind(own[each.clause][0]))
            for each in self._made
            if each.clause in own
            and own[each.clause] != wanted.get(each.clause)
            and own[each.clause][1] != self._program.prune(each.atoms)
        }
        made = [changed.get(each.clause, each) for each in self._made]
        if changed and self._pair.show(self._program.list(made, changed.values())) == self._actual:
            guesses = [self._judge_change(each, own[each.clause][1]) for each in self._made if each.clause in changed]
            guess = min(guesses, key=lambda each: rank(each.stage))
            yield guess._replace(kind=self._judge_proof(guess.kind))

    def _judge_change(self, each: Resolvent, atoms: Atoms) -> StepDifference:
        """Guess the stage that changed the result of a clause into these atoms."""
        right = self._program.prune(each.atoms)
        own = next(plain(r.atoms) for r in self._pair.steps[1].resolvents if r.clause == each.clause)
        if number_variables(own) != own:
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
        words = "the same clause gave different atoms"
        return StepDifference(Stage.RENAME if is_bare else Stage.RESOLVE, DifferenceClass.SUBSTITUTED, words)

    # Clauses

    def _change_clauses(self) -> Guesses:
        """Guess that matching clauses are lost, or that clauses were used that do not match."""
        known = {each.clause for each in self._made}
        added = self._list_added()
        pool = self._program.put_in_order([*self._made, *added])
        found = self._drop_surplus(pool, added if self._pair.has_origins else ())
        if found is None:
            return
        left = set(map(id, found[0]))
        added = [each for each in added if id(each) in left]
        lost = [each for each in pool if id(each) not in left and each.clause in known]
        if (lost or added) and self._counts_fit(found[1]):
            yield self._judge_clauses(lost, added)

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
