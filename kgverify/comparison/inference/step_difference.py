"""The stage and the class of a difference between two steps that show only goals and resolvents.

The resolvents of both sides are paired by content, up to the names of variables. The unpaired ones are explained by the
clauses that could have made them. A proof on one side only is explained first, whatever else differs. The rules follow from
the order of the stages (docs/semantics.md): they name the earliest stage that can have made the difference.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.inference.origins import MOST_ATOMS, Deviation, Explanation, StepOrigins, count_clauses
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import Content, ResolventView, StepReader, StepView, content_of, list_unshared, plain
from kgverify.errors import count_of
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin, Stage
from kgverify.step.clauses import Atoms, Clause, find_embedding, is_permutation, number_variables
from kgverify.trace.model.trace import Trace

LEAST_REACHED: Final = 3
"""The number of lists that must be cut at an undeclared size before this size counts as a limit."""

MOST_SAMPLED: Final = 20
"""The number of steps to look at for a limit."""

FindOrigins = Callable[[int, StepView], StepOrigins | None]
"""A function that takes a candidate and one of its steps, and returns the inference for the step's goal."""


class LimitsSeen(NamedTuple):
    """The limits of one side of a comparison.

    resolvents: the numbers of resolvents at which lists may have been cut: the declared limit, and a limit that was seen
    atoms:      the same for the atoms of a resolvent
    most:       the largest number of resolvents in a step
    longest:    the largest number of atoms in a resolvent
    """

    resolvents: frozenset[int]
    atoms: frozenset[int]
    most: int
    longest: int


def find_limits(trace: Trace, find_origins: FindOrigins) -> LimitsSeen:
    """Find the limits that a trace declares or shows.

    A list is seen to be cut if the program implies more resolvents. A cap on the rules or the facts of a predicate also makes
    lists equally long, but only if rules make the same number of resolvents in each list. A limit on atoms is seen if a rule
    has resolvents in the trace, but none in steps where they would be longer.
    """
    columns, limits, reader = trace.columns, trace.header.limits, StepReader(trace.columns)

    def sample(rows: NDArray[np.int64]) -> _Sample:
        """Yield the first few of some steps, with their inference."""
        for row in rows[:MOST_SAMPLED].tolist():
            step = reader.read(row)
            origins = find_origins(int(np.searchsorted(reader.first_step, row, side="right")) - 1, step)
            if origins is not None:
                yield step, origins

    counts = columns.steps.num_resolvents.astype(np.int64)
    sizes = columns.resolvents.num_atoms[columns.resolvents.kind == GoalKind.GOAL]
    most, longest = (int(each.max(initial=0)) for each in (counts, sizes))
    resolvents, atoms = ({getattr(limits, name, None)} for name in ("max_resolvents", "max_atoms"))
    if most > 1 and _is_list_limit(sample(np.flatnonzero(counts == most)), most):
        resolvents.add(most)
    largest = np.argsort(-columns.steps.num_atoms.astype(np.int64), kind="stable")
    if longest and _is_atom_limit(sample(largest), sample(np.arange(len(counts))), longest):
        atoms.add(longest)
    return LimitsSeen(frozenset(filter(None, resolvents)), frozenset(filter(None, atoms)), most, longest)


_Sample: TypeAlias = Iterator[tuple[StepView, StepOrigins]]
"""Some steps of a trace, with their inference."""


def _makers(step: StepView, origins: StepOrigins) -> list[tuple[Clause, ...]]:
    """Return the clauses that make each resolvent of a step."""
    return [origins.made.get(number_variables(plain(r.atoms)), ()) for r in step.resolvents]


def _is_list_limit(full: _Sample, most: int) -> bool:
    num_rules = [
        sum(any(kind == Origin.RULE for kind, _ in clauses) for clauses in _makers(*step))
        for step in full
        if step[1].count_made(()) > most
    ]
    return len(num_rules) >= LEAST_REACHED and len(set(num_rules)) > 1


def _is_atom_limit(large: _Sample, every: _Sample, longest: int) -> bool:
    made = (item for _, origins in large for item in origins.made.items())
    too_long = {c for atoms, clauses in made if len(atoms) > longest for c in clauses if c[0] == Origin.RULE}
    return bool(too_long) and any(
        r.kind == GoalKind.GOAL and not too_long.isdisjoint(clauses)
        for step, origins in every
        for r, clauses in zip(step.resolvents, _makers(step, origins), strict=True)
    )


CERTAIN: Final = 1.0
CLEAR: Final = 0.95
"""The confidence if clauses explain both sides exactly."""
LIKELY: Final = 0.8
"""The confidence if a clause explains a resolvent up to a deviation."""
OPEN: Final = 0.6
"""The confidence if rules and facts explain a resolvent equally well, or if a limit was only seen, not declared."""
GUESSED: Final = 0.4
"""The confidence without a program, or without an explanation."""


class Given(NamedTuple):
    """The data used to explain two steps.

    origins:     the inference for their goal; None without a program
    earlier:     the candidate's steps before this one
    limits:      of the expected and the actual side
    num_symbols: the number of predicates and of constants
    """

    origins: StepOrigins | None
    earlier: Sequence[StepView]
    limits: tuple[LimitsSeen, LimitsSeen]
    num_symbols: tuple[int, int]


class StepDifference(NamedTuple):
    """The stage and the class of a difference, with the resolvents that only one side has."""

    stage: Stage
    kind: DifferenceClass
    evidence: str = ""
    confidence: float = CLEAR
    missing: tuple[ResolventView, ...] = ()
    extra: tuple[ResolventView, ...] = ()


def rank(stage: Stage) -> int:
    """Return the position of a stage in the order of all stages."""
    return list(Stage).index(stage)


def explain_difference(pair: StepPair, given: Given) -> list[StepDifference]:
    """Explain the difference of two steps from the same goal by the contents of their resolvents, which must differ.

    The likeliest stage is first. Another one follows only where TRUE may be due to pruning or to `close`.
    """
    return _Explainer(pair, given).explain()


def explain_stopping(pair: StepPair) -> StepDifference | None:
    """Explain two lists that are equal except for STOP, an engine's own terminal action; None if that is not the case."""
    expected, actual = ([r for r in step.resolvents if r.kind == GoalKind.STOP] for step in pair.steps)
    if len(expected) == len(actual) or (without := pair.without_stopping()).contents.missing or without.contents.extra:
        return None
    kind = DifferenceClass.MISSING if len(expected) > len(actual) else DifferenceClass.EXTRA
    words = (
        f"STOP is {kind.value}, and apart from it the lists are equal: the switch `stopping` of a dialect declares it"
    )
    left, right = list_unshared(expected, actual, content_of)
    return StepDifference(Stage.CLOSE, kind, words, CERTAIN, tuple(left), tuple(right))


UNNUMBERED: Final = "variables are not numbered by first appearance"

_CUT: Final = StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, "a long resolvent is cut, and not dropped", LIKELY)

_REASONS: Final = {
    Stage.PRUNE: "pruning deletes facts and nothing else, and leaves no holes",
    Stage.RESOLVE: "resolution puts the atoms into a goal",
    Stage.CLOSE: "closing puts TRUE, FALSE and other ends into the list",
    Stage.LIMIT: "everything that is expected is there as well, so the list is counted too long",
}
"""The reason why each stage is at fault for a malformed resolvent."""

_FLAWS: Final[dict[str, Callable[[ResolventView, tuple[int, int]], object]]] = {
    "an unknown kind": lambda r, _: r.kind not in tuple(GoalKind),
    "atoms beside TRUE": lambda r, _: r.kind == GoalKind.TRUE and r.atoms,
    "atoms beside FALSE": lambda r, _: r.kind == GoalKind.FALSE and r.atoms,
    "atoms beside STOP": lambda r, _: r.kind == GoalKind.STOP and r.atoms,
    "no atoms": lambda r, _: r.kind == GoalKind.GOAL and not r.atoms,
    "a hole": lambda r, _: r.kind == GoalKind.GOAL and any(atom[0] < 0 for atom in r.atoms),
    "an id that the program lacks": lambda r, num: (
        r.kind == GoalKind.GOAL and any(p >= num[0] or max(a, b) >= num[1] for p, a, b in r.atoms)
    ),
}
"""The tests for flaws of resolvents, given the number of predicates and of constants."""


class _Explainer:
    def __init__(self, pair: StepPair, given: Given) -> None:
        self._pair, self._given, self._origins, self._limits = pair, given, given.origins, given.limits
        self._all = [step.resolvents for step in pair.steps]
        self._goal = plain(pair.steps[0].goal)
        self._visited = [self._goal, *(plain(step.goal) for step in given.earlier)]
        self._sides, self._contents = pair.contents.sides, pair.contents.keys
        self._missing, self._extra = pair.contents.missing, pair.contents.extra

    def explain(self) -> list[StepDifference]:
        """Return the first explanation that applies, with each stage that fits."""
        attempts = (
            self._of_proof,
            self._of_malformed,
            self._of_ends,
            self._of_names_or_order,
            self._of_earlier_step,
            self._of_duplicates,
            self._of_revisit,
            self._of_limit,
            self._of_clauses,
        )
        found = next(filter(None, (attempt() for attempt in attempts)))
        is_open = found.stage is Stage.PRUNE and any(r.kind == GoalKind.TRUE and not r.atoms for r in self._extra)
        found = found._replace(
            confidence=round(found.confidence, 2), missing=tuple(self._missing), extra=tuple(self._extra)
        )
        if not is_open:
            return [found]
        # Where other resolvents stay beside TRUE, `close` hid none of them.
        is_alone = all(r.kind == GoalKind.TRUE for r in self._all[1])
        stages = (Stage.CLOSE, Stage.PRUNE) if is_alone else (Stage.PRUNE, Stage.CLOSE)
        return [found._replace(stage=stage) for stage in stages]

    # Proofs, malformed states and ends

    def _of_proof(self) -> StepDifference | None:
        is_lost, is_false = self._pair.has_proof
        if is_lost == is_false:
            return None
        num = len(self._sides[is_lost])
        other = count_of(num, "other resolvent") if num else "no resolvents"
        if is_lost:
            why, confidence = self._explain_proof(CERTAIN, GUESSED)
            found = self._blame(DifferenceClass.PROOF_LOST, confidence)
            proof = self._origins.explain(()) if self._origins is not None and not num else None
            if proof is not None and proof.deviation is Deviation.NONE:
                why += f"; a fault of {self._matching(proof, self._all[0][0]).value} would look the same"
            return found._replace(evidence=f"TRUE is lost: {other} instead; {why}")
        left = [r for r in self._all[1] if r.kind == GoalKind.TRUE and r.atoms]
        why, confidence = self._explain_proof(OPEN, CERTAIN)
        if left:
            why = f"atoms left beside TRUE: {len(left[0].atoms)}; {why}"
        found = self._blame(DifferenceClass.FALSE_PROOF, confidence)
        lost = len(self._missing) if 0 < len(self._missing) < num else num
        place = f"{lost:,} of {other}" if lost < num else other
        verb = "is" if lost == 1 else "are"
        return found._replace(evidence=f"TRUE stands where {place} {verb} expected; {why}")

    def _blame(self, kind: DifferenceClass, confidence: float) -> StepDifference:
        """Return the stage that turned a proof into something else, or something else into TRUE; else `close`."""
        is_lost = kind is DifferenceClass.PROOF_LOST
        proofs = [r for r in self._all[0] if r.kind == GoalKind.TRUE] if is_lost else self._missing
        blamed = [StepDifference(Stage.CLOSE, kind, "", LIKELY)]
        for r in self._extra if self._origins is not None else ():
            if self._find_flaw(r):
                blamed.append(StepDifference(self._stage_of_flaw(r), kind, "", LIKELY))
            elif is_lost or r.kind == GoalKind.TRUE:
                found, partner = self._choose(r, proofs)
                if partner is not None:
                    blamed.append(self._judge_pair(partner, r, found))
                elif not is_lost and found is not None and found.deviation is not Deviation.NONE:
                    blamed.append(self._judge_extra(r, found))
        known = (each for each in blamed if each.kind is not DifferenceClass.UNSOUND)
        earliest = min(known, key=lambda each: rank(each.stage))
        return earliest._replace(kind=kind, confidence=min(confidence, earliest.confidence))

    def _explain_proof(self, implied: float, not_implied: float) -> tuple[str, float]:
        """Explain TRUE; choose the confidence depending on whether the program implies it."""
        if self._origins is None:
            return "without facts and rules, nothing says which side is right", (implied + not_implied) / 2
        found = self._origins.explain(())
        if found.deviation is Deviation.NONE:
            return f"it is made by {count_clauses(found.clauses)} of the program (inferred)", implied
        if found.deviation is Deviation.PROVED:
            return found.detail, LIKELY
        return f"no clause of the program makes it: {found.detail}", not_implied

    def _of_malformed(self) -> StepDifference | None:
        left, right = ([r for r in side if self._find_flaw(r)] for side in self._all)
        left, right = list_unshared(left, right, content_of)
        malformed = right or left
        if not malformed:
            return None
        flaws = Counter(map(self._find_flaw, malformed))
        stage = min(map(self._stage_of_flaw, malformed), key=rank)
        words = ", ".join(f"{num} with {flaw}" for flaw, num in flaws.most_common())
        words += f" among the {'actual' if right else 'expected'} resolvents; {_REASONS[stage]}"
        return StepDifference(stage, DifferenceClass.MALFORMED, words)

    def _find_flaw(self, r: ResolventView) -> str:
        """Return the flaw that makes a resolvent malformed; empty for a well-formed resolvent."""
        return next((words for words, has_flaw in _FLAWS.items() if has_flaw(r, self._given.num_symbols)), "")

    def _stage_of_flaw(self, r: ResolventView) -> Stage:
        atoms = plain(atom for atom in r.atoms if atom[0] >= 0)
        if r.kind != GoalKind.GOAL:
            has_facts = self._origins is not None and atoms and all(map(self._origins.is_pruned, atoms))
            return Stage.PRUNE if has_facts else Stage.CLOSE
        if not r.atoms:
            # Either padding counts as a resolvent, or nothing is left of a resolvent although it is not a proof.
            if self._origins is not None and () in self._origins.made:
                return Stage.CLOSE
            has_room = self._origins is not None and len(self._origins.results) > len(self._sides[0])
            return Stage.PRUNE if self._missing or has_room else Stage.LIMIT
        # A hole stands for a deleted fact, or for a missing atom of a body.
        is_pruned = self._origins is None or self._origins.explain(atoms).deviation <= Deviation.PRUNED_MORE
        return Stage.PRUNE if len(atoms) < len(r.atoms) and is_pruned else Stage.RESOLVE

    def _of_ends(self) -> StepDifference | None:
        """Explain ends that differ: FALSE on one side and nothing on the other, or resolvents beside TRUE or FALSE."""
        ends = [Counter(r.kind for r in side if r.kind != GoalKind.GOAL) for side in self._all]
        if not any(self._sides):
            if ends[0] == ends[1]:
                return None
            is_lost = ends[0][GoalKind.FALSE] > ends[1][GoalKind.FALSE]
            kind = DifferenceClass.MISSING if is_lost else DifferenceClass.EXTRA
            counted = count_of(len(self._all[0]), "resolvent")
            words = f"FALSE is {kind.value}: {counted} expected, {len(self._all[1]):,} actual"
            return StepDifference(Stage.CLOSE, kind, words, CERTAIN)
        is_alone = [ends[i].total() in (0, len(side)) and ends[i].total() <= 1 for i, side in enumerate(self._all)]
        if is_alone[0] == is_alone[1]:
            return None
        words = "an end stands beside other resolvents, and not alone"
        return StepDifference(Stage.CLOSE, DifferenceClass.OUTCOME, words)

    # Names, order, copies

    def _of_names_or_order(self) -> StepDifference | None:
        left, right = self._contents
        if self._missing or self._extra or not left:
            return None
        if left == right:
            words = "the same resolvents, with different variables"
            return StepDifference(Stage.RENAME, DifferenceClass.RENAMED, words, CERTAIN)
        origins = [list(map(self._origin_of, side)) for side in self._contents]
        confidence = CLEAR if all(is_sure for side in origins for _, is_sure in side) else OPEN
        stage, what = Stage.RESOLVE, "rules and facts are put together in another order"
        if [kind for kind, _ in origins[0]] == [kind for kind, _ in origins[1]]:
            pairs = zip(left, right, origins[0], strict=True)
            is_rules = any(a != b and kind == Origin.RULE for a, b, (kind, _) in pairs)
            stage = Stage.MATCH_RULES if is_rules else Stage.MATCH_FACTS
            what = f"the {'rules' if is_rules else 'facts'} are tried in another order"
        if left == right[::-1]:
            what += ", the list is reversed"
        words = f"the same {count_of(len(left), 'resolvent')} in a different order: {what}; origins inferred"
        return StepDifference(stage, DifferenceClass.REORDERED, words, confidence)

    def _origin_of(self, content: Content) -> tuple[int, bool]:
        """Return the kind of clause that made a resolvent, and whether only this kind can have made it."""
        found = self._explain_content(content)
        kinds = found.kinds if found else frozenset()
        if len(kinds) == 1:
            return min(kinds), found is not None and found.deviation is Deviation.NONE
        return (Origin.FACT if self._is_like_fact(content[1]) else Origin.RULE), False

    def _is_like_fact(self, atoms: Atoms) -> bool:
        """Return whether a resolvent can be the rest of the goal, as after matching a fact."""
        rest = iter(self._goal[1:])
        return all(any(predicate == other[0] for other in rest) for predicate, _, _ in atoms)

    def _explain_content(self, content: Content) -> Explanation | None:
        kind, atoms = content
        if self._origins is None or kind not in (GoalKind.GOAL, GoalKind.TRUE):
            return None
        return self._origins.explain(atoms)

    def _of_earlier_step(self) -> StepDifference | None:
        """Recognize the resolvents of an earlier step."""
        if not self._contents[1] or self._contents[1][0][0] != GoalKind.GOAL:
            return None
        if self._origins is not None and all(self._is_of_this_goal(content_of(r)) for r in self._extra):
            return None
        for back, step in enumerate(reversed(self._given.earlier), 1):
            if plain(step.goal) != self._goal and [content_of(r) for r in step.resolvents] == self._contents[1]:
                words = f"the resolvents are those of the step {back} before this one"
                return StepDifference(Stage.ADVANCE, DifferenceClass.STALE, words)
        return None

    def _is_of_this_goal(self, content: Content) -> bool:
        """Return whether a clause makes this resolvent from the goal, perhaps cut at a limit on atoms."""
        found = self._explain_content(content)
        return found is not None and (found.deviation is Deviation.NONE or self._is_cut(content))

    def _is_cut(self, content: Content) -> bool:
        """Return whether a resolvent is a longer one cut at a limit on atoms."""
        if self._origins is None or not any(len(content[1]) in side.atoms for side in self._limits):
            return False
        return any(each.deviation is Deviation.TRUNCATED for each in self._origins.explain_otherwise(content[1]))

    def _of_duplicates(self) -> StepDifference | None:
        """Recognize that one side lists equal resolvents once. A single pair may also be two facts, one of them missing."""
        left, right = map(Counter, self._contents)
        for few, many, kind in ((right, left, DifferenceClass.MISSING), (left, right, DifferenceClass.EXTRA)):
            repeated = [num for num in many.values() if num > 1]
            is_clear = len(repeated) > 1 or max(repeated, default=0) > 2
            if is_clear and few.keys() == many.keys() and max(few.values()) == 1:
                words = f"equal resolvents are listed once on one side: {many.total()} against {few.total()}"
                return StepDifference(Stage.REVISIT, kind, words, LIKELY)
        return None

    def _of_revisit(self) -> StepDifference | None:
        """Recognize goals visited before. At a limit, one that stays pushes out another resolvent, or the reverse."""
        lost = "are dropped, perhaps as the same in another order"
        for i, found, own, kind, what in (
            (1, self._extra, self._missing, DifferenceClass.EXTRA, "stay"),
            (0, self._missing, self._extra, DifferenceClass.MISSING, lost),
        ):
            if not found or not all(map(self._was_visited, found)) or not self._is_all_implied(found):
                continue
            # An exceeded limit on atoms is better evidence than having the atoms of an earlier goal in another order.
            if not i and self._find_atom_limit() is not None:
                continue
            if not own or (len(own) <= len(found) and self._is_full(i)):
                words = f"{count_of(len(found), 'resolvent')} with the atoms of goals visited before {what}"
                return StepDifference(Stage.REVISIT, kind, words)
        return None

    # Limits

    def _is_full(self, i: int) -> bool:
        """Return whether a side's list has as many resolvents as a limit allows, or as the longest list of a side."""
        num = len(self._contents[i])
        return any(num in side.resolvents or num == side.most for side in self._limits)

    def _is_lost_before_limit(self) -> bool:
        """Return whether the expected list is full, and the actual one skips the missing resolvents and continues in order."""
        if self._origins is None or not self._missing or not self._is_full(0):
            return False
        visited = [set(number_variables(iter(goal))) for goal in self._visited]
        longest = max(side.longest for side in self._limits)
        implied = [
            (int(GoalKind.GOAL), atoms)
            for atoms in self._origins.in_order()
            if len(atoms) <= longest and set(atoms) not in visited
        ]
        lost = {content_of(r) for r in self._missing}
        num = len(self._contents[0])
        return implied[:num] == self._contents[0] and [c for c in implied if c not in lost][:num] == self._contents[1]

    def _of_limit(self) -> StepDifference | None:
        if not self._is_all_implied([*self._missing, *self._extra]):
            return None
        return self._find_atom_limit() or self._find_list_limit()

    def _is_all_implied(self, resolvents: Iterable[ResolventView]) -> bool:
        if self._origins is None:
            return True
        explained = (self._explain_content(content_of(r)) for r in resolvents)
        return all(found is not None and found.deviation is Deviation.NONE for found in explained)

    def _find_list_limit(self) -> StepDifference | None:
        sizes = [len(side) for side in self._contents]
        num_made = self._origins.count_made(self._visited) if self._origins is not None else max(sizes) + 1
        if self._missing and self._extra:
            if sizes[0] != sizes[1] or sizes[0] >= num_made or not self._is_full(0) or self._is_lost_before_limit():
                return None
            words = f"both keep {sizes[0]} of the {num_made} resolvents that the clauses make, and not the same ones"
            return StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, words)
        shorter, longer = min(sizes), max(sizes)
        is_start = self._contents[0][:shorter] == self._contents[1][:shorter]
        side, other = (self._limits[sizes.index(size)] for size in (shorter, longer))
        if not is_start or not shorter:
            return None
        if shorter in side.resolvents:
            words = f"the list of {count_of(longer, 'resolvent')} is cut at {shorter}"
            confidence = CLEAR if shorter != side.most else LIKELY
            return StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, words, confidence)
        # The list has one less than a limit allows. After a single lost match, a further clause would have filled its place.
        if longer in other.resolvents and longer - shorter == 1:
            words = f"the resolvents kept are {shorter} instead of {longer}, of the {num_made} that the clauses make"
            return StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, words, LIKELY if num_made > longer else OPEN)
        return None

    def _find_atom_limit(self) -> StepDifference | None:
        for found, own, limits in (
            (self._missing, self._extra, self._limits[1]),
            (self._extra, self._missing, self._limits[0]),
        ):
            if not found or (own and not self._is_lost_before_limit()):
                continue
            fewest = min(len(r.atoms) for r in found)
            if 0 < limits.longest < fewest and {limits.longest, fewest} & limits.atoms:
                words = f"{count_of(len(found), 'resolvent')} of {count_of(fewest, 'atom')} or more dropped"
                words += f", and none has more than {limits.longest}"
                return StepDifference(Stage.LIMIT, DifferenceClass.LIMIT, words, OPEN)
        return None

    # Clauses

    def _of_clauses(self) -> StepDifference:
        """Explain the remaining differences, resolvent by resolvent, and name the earliest stage."""
        unpaired = list(self._missing)
        judged: list[StepDifference] = []
        # Resolvents that a limit lets in because earlier ones are lost are not extra.
        for r in () if self._is_lost_before_limit() else self._extra:
            found, partner = self._choose(r, unpaired)
            if partner is not None:
                unpaired.remove(partner)
                judged.append(self._judge_pair(partner, r, found))
            else:
                judged.append(self._judge_extra(r, found))
        num_unsound = sum(each.kind is DifferenceClass.UNSOUND for each in judged)
        if len(unpaired) <= num_unsound:
            # Resolvents that no clause makes replace the missing ones.
            unpaired = []
        lost = list(map(self._judge_missing, unpaired))
        if len(lost) > 1 and not self._contents[1] and len({each.stage for each in lost}) > 1:
            words = f"all {len(lost)} resolvents are missing, of rules and facts alike"
            return StepDifference(Stage.CLOSE, DifferenceClass.MISSING, words, OPEN)
        return self._join([*judged, *lost])

    def _join(self, judged: list[StepDifference]) -> StepDifference:
        stage = min((each.stage for each in judged), key=rank)
        decisive = [each for each in judged if each.stage is stage]
        kinds = Counter(each.kind for each in decisive)
        kind = kinds.most_common(1)[0][0]
        what = {Stage.MATCH_RULES: "rule", Stage.MATCH_FACTS: "fact"}.get(stage, "resolvent")
        missing, extra = kinds[DifferenceClass.MISSING], kinds[DifferenceClass.EXTRA]
        if missing and extra:
            kind = DifferenceClass.SUBSTITUTED
        evidence = f"{len(decisive)} of {len(self._contents[1])} resolvents are {kind.value}"
        if kind in (DifferenceClass.MISSING, DifferenceClass.EXTRA, DifferenceClass.SUBSTITUTED) and missing + extra:
            evidence = f"{count_of(missing, what) if missing else f'no {what}s'} missing, {extra or 'none'} extra"
            if stage is Stage.PRUNE:
                evidence = f"other atoms are {kind.value} in {count_of(len(decisive), 'resolvent')}"
        if self._extra and self._is_lost_before_limit():
            evidence += f", {len(self._extra):,} let in by the limit in their place"
        reasons = Counter(each.evidence for each in decisive if each.evidence)
        if reasons:
            evidence += f": {reasons.most_common(1)[0][0]}"
        rest = len(judged) - len(decisive)
        if rest:
            evidence += f"; in later stages {rest} more"
        evidence += "; origins inferred" if self._origins is not None else "; no program to infer origins from"
        return StepDifference(stage, kind, evidence, min(each.confidence for each in decisive))

    def _choose(
        self, r: ResolventView, unpaired: list[ResolventView]
    ) -> tuple[Explanation | None, ResolventView | None]:
        """Choose the explanation of an extra resolvent, and the missing resolvent of the same clause, if there is one.

        A clause that makes something else is the best explanation if its correct result is missing.
        """
        found = self._explain_content(content_of(r))
        if found is None or self._origins is None:
            return None, self._find_alike(r, unpaired)
        is_surplus = [content_of(other) for other in self._all[1]].count(content_of(r)) > len(found.clauses)
        is_made = found.deviation is Deviation.NONE
        otherwise = self._origins.explain_otherwise(content_of(r)[1])
        for each in [found] if is_made and not is_surplus else otherwise:
            for other in unpaired:
                own = self._explain_content(content_of(other))
                if own is not None and set(own.clauses) & set(each.clauses):
                    return each, other
        if is_made or found.deviation is Deviation.UNKNOWN:
            return found, None if is_made else self._find_alike(r, unpaired)
        # The clause's correct result is present: more likely, another clause matched, or a limit cut a resolvent that the
        # expected side dropped.
        likely = [Deviation.MATCH, *([Deviation.TRUNCATED] if self._is_cut(content_of(r)) else [])]
        return next((each for kind in likely for each in otherwise if each.deviation is kind), found), None

    def _find_alike(self, r: ResolventView, unpaired: Sequence[ResolventView]) -> ResolventView | None:
        return next((other for other in unpaired if _relate(r, other) is not None), None)

    def _judge_pair(self, expected: ResolventView, actual: ResolventView, found: Explanation | None) -> StepDifference:
        """Judge two different resolvents of the same clause."""
        own = self._explain_content(content_of(expected))
        why = next((each.detail for each in (found, own) if each is not None and each.detail), "")
        is_sure = own is not None and own.deviation is Deviation.NONE
        confidence = LIKELY if is_sure else OPEN
        deviation = _find_deviation(expected, actual, (own, found))
        is_pruned = deviation in (Deviation.PRUNED_LESS, Deviation.PRUNED_MORE, Deviation.PROVED, Deviation.TRUNCATED)
        is_unnumbered = [content_of(r)[1] == plain(r.atoms) for r in (expected, actual)] == [True, False]
        if deviation is Deviation.MATCH:
            return self._judge_extra(actual, found)
        if deviation is Deviation.TRUNCATED and self._is_cut(content_of(actual)):
            return _CUT._replace(confidence=confidence)
        if is_pruned:
            is_more = deviation is not Deviation.TRUNCATED and len(actual.atoms) > len(expected.atoms)
            kind = DifferenceClass.EXTRA if is_more else DifferenceClass.MISSING
            return StepDifference(Stage.PRUNE, kind, why, confidence)
        if is_unnumbered:
            return StepDifference(Stage.RENAME, DifferenceClass.RENAMED, UNNUMBERED, confidence)
        is_moved = deviation is Deviation.ATOM_ORDER and own and self._origins and self._origins.deletes_by(own.clauses)
        stage, why = Stage.PRUNE if is_moved else Stage.RESOLVE, why or "the same clause gave other atoms"
        return StepDifference(stage, DifferenceClass.SUBSTITUTED, why, confidence)

    def _judge_extra(self, r: ResolventView, found: Explanation | None) -> StepDifference:
        """Judge a resolvent that only the actual side has."""
        extra = DifferenceClass.EXTRA
        if found is None:
            return StepDifference(self._matching(None, r), extra, "", GUESSED)
        is_listed = not found.clauses or self._is_listed(found.clauses)
        unsound = Stage.RESOLVE, DifferenceClass.UNSOUND, f"no clause makes them; {found.detail}", LIKELY
        otherwise = (Stage.RESOLVE, DifferenceClass.SUBSTITUTED, found.detail, OPEN) if not is_listed else unsound
        by_deviation: dict[Deviation, tuple[Stage, DifferenceClass, str, float]] = {
            Deviation.MATCH: (self._matching(found, r), extra, found.detail, LIKELY),
            Deviation.PRUNED_LESS: (Stage.PRUNE, extra, found.detail, OPEN),
            Deviation.PRUNED_MORE: (Stage.PRUNE, DifferenceClass.MISSING, found.detail, OPEN),
        }
        if not is_listed:
            by_deviation[Deviation.PROVED] = by_deviation[Deviation.PRUNED_MORE]
        if found.deviation is Deviation.NONE:
            is_visited = self._was_visited(r)
            words = "they equal goals visited before"
            return StepDifference(Stage.REVISIT, extra, words) if is_visited else self._judge_match(found, r, extra)
        if found.deviation is Deviation.TRUNCATED and self._is_cut(content_of(r)):
            return _CUT
        return StepDifference(*by_deviation.get(found.deviation, otherwise))

    def _is_listed(self, clauses: Iterable[Clause]) -> bool:
        """Return whether the actual side has the correct results of all these clauses."""
        if self._origins is None:
            return False
        listed = {clause for _, atoms in self._contents[1] for clause in self._origins.made.get(atoms, ())}
        return listed.issuperset(clauses)

    def _judge_missing(self, r: ResolventView) -> StepDifference:
        """Judge a resolvent that only the expected side has."""
        missing = DifferenceClass.MISSING
        if self._was_visited(r):
            words = "they have the atoms of goals visited before, in any order"
            return StepDifference(Stage.REVISIT, missing, words, LIKELY)
        found = self._explain_content(content_of(r))
        if found is None or not found.clauses:
            return StepDifference(self._matching(None, r), missing, "", GUESSED)
        return self._judge_match(found, r, missing)

    def _judge_match(self, found: Explanation, r: ResolventView, kind: DifferenceClass) -> StepDifference:
        """Judge a resolvent that some clauses make exactly, and that one side lacks."""
        needs_both = self._origins is not None and all(map(self._origins.needs_all_bindings, found.clauses))
        why = "they match only if both argument pairs are unified together" if needs_both else ""
        confidence = OPEN if len(found.kinds) > 1 else CLEAR
        if kind is DifferenceClass.MISSING and len(self._visited) > 1 and not needs_both:
            why, confidence = "a fault of revisit would look the same", min(confidence, LIKELY)
        return StepDifference(self._matching(found, r), kind, why, confidence)

    def _matching(self, found: Explanation | None, r: ResolventView) -> Stage:
        """Return the stage that finds the clauses of a resolvent."""
        kinds = found.kinds if found is not None else frozenset()
        if len(kinds) == 1:
            return Stage.MATCH_FACTS if Origin.FACT in kinds else Stage.MATCH_RULES
        return Stage.MATCH_FACTS if self._is_like_fact(plain(r.atoms)) else Stage.MATCH_RULES

    def _was_visited(self, r: ResolventView) -> bool:
        """Return whether a resolvent has the same set of atoms as a goal visited before."""
        _, atoms = content_of(r)
        return bool(atoms) and any(set(atoms) == set(number_variables(iter(goal))) for goal in self._visited)


def _find_deviation(expected: ResolventView, actual: ResolventView, found: Iterable[Explanation | None]) -> Deviation:
    """Return the smallest deviation of two resolvents of a clause from its result, or else their deviation from each other."""
    deviations = {each.deviation for each in found if each is not None} - {Deviation.NONE}
    if deviations <= {Deviation.UNKNOWN}:
        relation = _relate(actual, expected)
        return Deviation.VARIABLES if relation is None else relation
    return min(deviations)


def _relate(actual: ResolventView, expected: ResolventView) -> Deviation | None:
    """Return the deviation by which both resolvents may be from the same clause; None if they are too different."""
    (_, atoms), (_, others) = content_of(actual), content_of(expected)
    shorter, longer = sorted((atoms, others), key=len)
    if not shorter or len(longer) > MOST_ATOMS:
        return None
    if len(shorter) < len(longer):
        is_part = find_embedding(shorter, longer) is not None
        return (Deviation.PRUNED_MORE if atoms is shorter else Deviation.PRUNED_LESS) if is_part else None
    if is_permutation(atoms, others):
        return Deviation.ATOM_ORDER
    return Deviation.VARIABLES if find_embedding(atoms, others, is_loose=True) is not None else None
