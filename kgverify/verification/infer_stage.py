"""The stage at fault in a step of an engine that does not show its stages, inferred from the step's result.

Fused kernels, compiled code and other people's engines do several stages at once. The expected outputs of the stages tell up to
which stage a clause should have come; where this is not enough, the engine takes a step from another goal, of which some
stages have nothing to do. Such goals separate matching, resolution and the limits from the stages after them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kgverify.comparison.locate import canonical
from kgverify.comparison.stage_difference import first_difference
from kgverify.engines.adapters.stepwise import Goal as PlainGoal
from kgverify.engines.protocol import Engine, Positions
from kgverify.program.atoms import Atom, Goal, encode_variable
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import STEP_STAGES, Stage
from kgverify.trace.model.stage_items import StageOutputs, read_step_outputs

Clause: TypeAlias = tuple[int, int]
"""An `Origin` and the index of a rule or fact."""


def shows_stages(outputs: StageOutputs, until: Stage) -> bool:
    """Return whether outputs show every stage before another one but `select`, so that nothing has to be inferred."""
    return all(stage in outputs for stage in STEP_STAGES[: STEP_STAGES.index(until)] if stage is not Stage.SELECT)


class Asked(NamedTuple):
    """The resolvents that each engine has in a step from some goal: the atoms by clause, in the order of the list."""

    expected: Mapping[Clause, Goal]
    actual: Mapping[Clause, Goal]


class KnownFact(NamedTuple):
    """A fact that may serve in the derivation of the query."""

    clause: Clause
    atom: Atom


class StepInference:
    """The inference for one step.

    ask:  takes a step of both engines from goals visited, the current one last
    fact: a fact to ask with, which `prune` deletes, and which resolves a goal without changing the rest; None if unknown
    """

    def __init__(
        self,
        expected: StageOutputs,
        actual: StageOutputs,
        limits: Limits,
        tolerance: float,
        goals: Sequence[PlainGoal],
        ask: Callable[[Sequence[PlainGoal]], Asked],
        fact: KnownFact | None = None,
    ) -> None:
        self._expected, self._actual, self._limits, self._tolerance = expected, actual, limits, tolerance
        # Many clauses lead to the same question.
        self._goals, self._ask, self._fact = goals, cache(ask), fact
        (self._wanted, *self._counts), (self._got, *self._own_counts) = expected[Stage.LIMIT], actual[Stage.LIMIT]
        self._matched = {
            *((int(Origin.RULE), clause) for clause in expected[Stage.MATCH_RULES]),
            *((int(Origin.FACT), clause) for clause in expected[Stage.MATCH_FACTS]),
        }
        stages = (Stage.RESOLVE, Stage.PRUNE, Stage.RENAME, Stage.REVISIT)
        self._resolved, self._pruned, self._renamed, self._left = (
            {(kind, clause): atoms for kind, clause, atoms in expected[stage]} for stage in stages
        )

    def find(self) -> Stage | None:
        """Return the stage at fault; None if the step is as expected."""
        found = first_difference(self._expected, self._actual, self._tolerance)
        if found is not Stage.LIMIT:
            return found
        kinds = [side[0][0] if side else GoalKind.FALSE for side in (self._wanted, self._got)]
        if GoalKind.TRUE in kinds:
            return self._of_proof(kinds[1])
        if not self._got and not any((*self._counts, *self._own_counts)):
            # FALSE is missing from a list that nothing was dropped from.
            return Stage.CLOSE
        wanted, got = (
            {(kind, clause): atoms for of, kind, clause, atoms in side if of == GoalKind.GOAL}
            for side in (self._wanted, self._got)
        )
        return (
            self._of_origins()
            or self._of_atoms(got)
            or self._of_extra(wanted, got)
            or self._of_missing(wanted, got)
            or self._of_order()
        )

    def _of_proof(self, got_kind: int) -> Stage:
        wanted, got = (side[0][1:3] if side else (0, 0) for side in (self._wanted, self._got))
        if got_kind == GoalKind.TRUE:
            if got[0] == Origin.NONE:
                return Stage.CLOSE
            if got not in self._matched:
                # Where a proof is expected too, a clause that the engine does not find elsewhere is only its name.
                is_found = wanted == (0, 0) or self._limits.max_atoms < 2 or got in self._ask_unprovable().actual
                return self._matching(got) if is_found else Stage.CLOSE
            if self._pruned[got] != ():
                return Stage.PRUNE
            # A later proof than the first, or other resolvents beside it.
            if wanted == got:
                return Stage.CLOSE
            return self._of_lost_match(wanted) or self._of_turned_match(wanted, got) or Stage.CLOSE
        if any(item[1:3] == wanted for item in self._got):
            return Stage.PRUNE
        lost = self._of_lost_match(wanted, is_sure=True)
        if (
            lost is None
            and self._resolved[wanted]
            and any(self._own_counts)
            and self._of_lost_match(wanted) is not None
        ):
            # The limits hide the match and dropped something. Had its atoms been pruned, nothing could have dropped it.
            return Stage.PRUNE
        return lost or self._of_lost_match(wanted) or Stage.CLOSE

    def _of_origins(self) -> Stage | None:
        """Recognize the right resolvents in the right order, of which some have the clauses of others."""
        wanted, got = ([item[3] for item in side if item[0] == GoalKind.GOAL] for side in (self._wanted, self._got))
        clauses = Counter(item[1:3] for item in self._got)
        # A clause makes one resolvent of a goal.
        return Stage.LIMIT if wanted == got and max(clauses.values(), default=0) > 1 else None

    def _of_atoms(self, got: dict[Clause, Any]) -> Stage | None:
        """Find a clause that made other atoms."""
        for clause, atoms in got.items():
            if clause not in self._renamed or atoms == self._renamed[clause]:
                continue
            expected, actual = _goal(self._renamed[clause]), _goal(atoms)
            # Whatever was resolved and pruned, `rename` numbers its variables by first appearance.
            if canonical(expected) == canonical(actual) or canonical(actual) != actual:
                return Stage.RENAME
            if len(actual) == self._limits.max_atoms and actual == expected[: len(actual)]:
                return self._of_change_within_limits(clause) or Stage.LIMIT
            # `prune` takes ground atoms out of what was resolved, and nothing else.
            rest = _goal(self._resolved[clause]) if len(actual) > len(expected) else expected
            is_less = len(actual) != len(expected) and _is_part(actual, rest)
            if is_less and _num_open(actual) == _num_open(rest):
                return Stage.RESOLVE if self._loses_open_atoms(clause) else Stage.PRUNE
            if list(map(_shape, actual)) == list(map(_shape, expected)) and self._is_renamed(clause, actual):
                return Stage.RENAME
            return Stage.RENAME if self._is_renamed_unresolved(expected, actual) else Stage.RESOLVE
        return None

    def _is_renamed_unresolved(self, expected: Goal, actual: Goal) -> bool:
        """Return whether variables that went wrong go wrong as well where nothing is resolved: behind a fact of the goal.

        `rename` depends on nothing but the resolvent, and `resolve` on the goal and the clause. A resolvent that is too long
        to stand behind a fact is asked for without one of its atoms.
        """
        if self._fact is None or not _has_wrong_variables(expected, actual):
            return False
        pairs = zip(expected, actual, strict=True)
        right = [i for i, (wanted, got) in enumerate(pairs) if wanted == got]
        rests = [expected[:i] + expected[i + 1 :] for i in right[::-1]] if self._is_full(expected) else [expected]
        for rest in map(canonical, rests):
            if self._is_full(rest):
                return False
            asked = self._ask(((self._fact.atom, *rest),) * len(self._goals))
            wanted, got = (side.get(self._fact.clause) for side in asked)
            if wanted is not None and got is not None and _has_wrong_variables(wanted, got):
                return True
        return False

    def _is_full(self, atoms: Goal) -> bool:
        return len(atoms) >= self._limits.max_atoms

    def _of_change_within_limits(self, clause: Clause) -> Stage | None:
        """Return the stage that changes the atoms of a clause's resolvent that the limits keep, of a goal of the same length.

        The resolvent asked for has as many atoms as the limits allow: the goal's other atoms are facts, which `prune` deletes.
        None if the atoms are right, or if no such goal can be asked for.
        """
        selected, num_rest = Atom(*self._goals[-1][0]), len(self._goals[-1]) - 1
        num_open = min(num_rest, self._limits.max_atoms - (len(self._resolved[clause]) - num_rest))
        if num_open < 0:
            return None
        facts = [self._fact.atom] * (num_rest - num_open) if self._fact is not None else []
        asked = self._ask(((selected, *facts, *_unprovable(selected, num_open)),) * len(self._goals))
        expected, actual = (side.get(clause) for side in asked)
        if expected is None or actual is None or expected == actual:
            return None
        if canonical(expected) == canonical(actual):
            return Stage.RENAME
        rest = sorted((expected, actual), key=len)
        is_pruned = len(expected) != len(actual) and _is_part(*rest) and _num_open(rest[0]) == _num_open(rest[1])
        return Stage.PRUNE if is_pruned else Stage.RESOLVE

    def _is_renamed(self, clause: Clause, actual: Goal) -> bool:
        """Return whether variables that differ from the expected ones come from one side of the resolution.

        A variable of the body that is one of the goal's, or one of both that became two, was lost by `resolve`.
        """
        num_of_body = len(self._resolved[clause]) - len(self._goals[-1]) + 1
        left = iter(enumerate(self._resolved[clause]))
        pairs: dict[tuple[int, int], set[bool]] = {}
        for atom, own in zip(self._pruned[clause], actual, strict=True):
            place = next(place for place, other in left if other == atom)
            for terms in zip(atom[1:], own[1:], strict=True):
                if terms[0] < 0:
                    pairs.setdefault(terms, set()).add(place < num_of_body)
        return all(
            sides == others
            for (wanted, found), sides in pairs.items()
            for (other, same), others in pairs.items()
            if (wanted == other) != (found == same)
        )

    def _of_extra(self, wanted: dict[Clause, Any], got: dict[Clause, Any]) -> Stage | None:
        for clause in got:
            if clause in wanted:
                continue
            if clause[0] == Origin.NONE:
                # No clause matched: the list is counted right, and not filled.
                return Stage.LIMIT
            if clause not in self._matched:
                return self._matching(clause)
            if clause not in self._left:
                return Stage.REVISIT
            if len(self._left[clause]) > self._limits.max_atoms:
                return Stage.LIMIT
        if len(set(got)) > self._limits.max_resolvents:
            return Stage.LIMIT
        return None

    def _of_missing(self, wanted: dict[Clause, Any], got: dict[Clause, Any]) -> Stage | None:
        missing = [clause for clause in wanted if clause not in got]
        totals = [
            sum(item[0] == GoalKind.GOAL for item in side) + sum(counts)
            for side, counts in ((self._wanted, self._counts), (self._got, self._own_counts))
        ]
        if totals[0] == totals[1]:
            return Stage.LIMIT if missing or self._counts != self._own_counts else None
        if not missing and totals[1] < totals[0]:
            # The difference is among the resolvents that `limit` drops.
            for clause in self._left:
                if clause not in got and (stage := self._of_lost_match(clause, is_sure=True)) is not None:
                    return stage
            hidden = (self._of_change_within_limits(clause) for clause in self._left if clause not in got)
            return next(filter(None, hidden), Stage.LIMIT)
        for clause in missing:
            stage = self._of_lost_match(clause)
            if stage is not None:
                return stage
        if totals[1] > totals[0]:
            if not self._counts[1] and self._own_counts[1] and len(self._got) < self._limits.max_resolvents:
                # A resolvent would have found room. Nothing was dropped from an empty list.
                return Stage.LIMIT if got else Stage.CLOSE
            revisited = [clause for clause in self._renamed if clause not in self._left]
            return Stage.REVISIT if revisited else self._matching((int(Origin.FACT), 0))
        if not missing:
            return Stage.LIMIT
        if all(len(self._left[clause]) == self._limits.max_atoms for clause in missing):
            # As long as the limit allows, and lost with no other goal visited as well: dropped without being counted.
            asked = self._ask((self._goals[-1],) * len(self._goals))
            if asked.expected.keys() >= {*missing} and asked.actual.keys().isdisjoint(missing):
                return self._of_change_within_limits(missing[0]) or Stage.LIMIT
        if not got and not any(self._own_counts):
            # All are gone at once: none of several matches was lost, and `revisit` judges them one by one.
            return Stage.CLOSE if len(missing) > 1 else Stage.REVISIT
        return Stage.REVISIT

    def _of_order(self) -> Stage:
        """Name the stage of the same clauses in another order, or some of them twice."""
        wanted, got = ([item[1:3] for item in side] for side in (self._wanted, self._got))
        if Counter(wanted) != Counter(got):
            return Stage.LIMIT
        for kind in (Origin.RULE, Origin.FACT):
            left, right = ([clause for clause in side if clause[0] == kind] for side in (wanted, got))
            if left != right:
                return self._matching((int(kind), 0))
        # Rules and facts are in order, and not put together in order.
        return Stage.LIMIT

    def _of_lost_match(self, clause: Clause, *, is_sure: bool = False) -> Stage | None:
        """Return the stage that matches a clause if the engine loses it from another goal as well.

        is_sure: whether to return None if the limits drop the clause there
        """
        if self._limits.max_atoms < 2:
            return None if is_sure else self._matching(clause)
        asked = self._ask_unprovable()
        if clause in asked.actual or (is_sure and clause not in asked.expected):
            return None
        return self._matching(clause)

    def _ask_unprovable(self) -> Asked:
        """Ask with the first atom of the goal before an atom that nothing can prove: no resolvent is empty or visited.

        The depth stays, since an engine may be wrong from some depth on.
        """
        return self._ask_before_unprovable(Atom(*self._goals[-1][0]))

    def _ask_before_unprovable(self, atom: Atom) -> Asked:
        return self._ask(((atom, *_unprovable(atom, 1)),) * len(self._goals))

    def _of_turned_match(self, wanted: Clause, got: Clause) -> Stage | None:
        """Return the stage that matches two clauses of one kind if the engine lists them in another order as well."""
        if self._limits.max_atoms < 2 or wanted[0] != got[0]:
            return None
        pairs = [[clause for clause in side if clause in (wanted, got)] for side in self._ask_unprovable()]
        return self._matching(wanted) if pairs == [[wanted, got], [got, wanted]] else None

    def _loses_open_atoms(self, clause: Clause) -> bool:
        """Return whether a clause gives fewer atoms with variables if the selected atom has only variables."""
        if self._limits.max_atoms < 2:
            return False
        atom = Atom(self._goals[-1][0][0], encode_variable(0), encode_variable(1))
        expected, actual = (side.get(clause) for side in self._ask_before_unprovable(atom))
        return expected is not None and actual is not None and _num_open(actual) < _num_open(expected)

    @staticmethod
    def _matching(clause: Clause) -> Stage:
        return Stage.MATCH_RULES if clause[0] == Origin.RULE else Stage.MATCH_FACTS


def ask_engines(engines: tuple[Engine, Engine], position: Positions, goals: Sequence[PlainGoal]) -> Asked:
    """Take a step of both engines from goals visited, the current one last, with the query of a position."""
    asked = Positions(
        position.candidates,
        np.array([len(goals) - 1], np.uint16),
        np.array([len(goals)], np.uint32),
        np.array([len(goal) for goal in goals], np.uint16),
        np.array([atom for goal in goals for atom in goal], np.int32).reshape(-1, 3),
    )
    listed = (read_step_outputs(engine.step(asked))[Stage.LIMIT][0] for engine in engines)
    return Asked(*({(int(kind), int(clause)): _goal(atoms) for _, kind, clause, atoms in items} for items in listed))


def _unprovable(atom: Atom, num: int) -> Iterator[Atom]:
    """Yield atoms with a variable of their own each, which nothing deletes from a goal that begins with an atom."""
    first = 1 + max((-1 - term for term in atom[1:] if term < 0), default=-1)
    return (Atom(atom.predicate, *[encode_variable(number)] * 2) for number in range(first, first + num))


def _has_wrong_variables(expected: Goal, actual: Goal) -> bool:
    """Return whether two goals of one length differ in places where variables are expected, and in no others."""
    if len(expected) != len(actual) or expected == actual:
        return False
    pairs = ((wanted, got) for both in zip(expected, actual, strict=True) for wanted, got in zip(*both, strict=True))
    return all(wanted == got or wanted < 0 for wanted, got in pairs)


def _goal(atoms: Any) -> Goal:
    return tuple(Atom(*atom) for atom in atoms)


def _is_part(shorter: Goal, longer: Goal) -> bool:
    """Return whether the atoms of one goal, without their variables' numbers, appear in the other in order."""
    rest = iter([_shape(atom) for atom in longer])
    return all(_shape(atom) in rest for atom in shorter)


def _shape(atom: Atom) -> tuple[int, int, int]:
    return atom.predicate, max(atom.first, -1), max(atom.second, -1)


def _num_open(goal: Goal) -> int:
    """Count the atoms with a variable."""
    return sum(min(atom[1:]) < 0 for atom in goal)
