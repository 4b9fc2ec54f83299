"""Laws of clauses: each resolvent follows from the goal by its clause, and every proved candidate is true."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from string import ascii_letters

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.errors import count_of
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import (
    FORGETS_NAMES,
    KNOWS_EXCLUDED,
    NEVER_STOPS,
    OUR_CLAUSES,
    OUR_FILTERS,
    OUR_MEMORY,
    PROOF_BEFORE_LIMITS,
    PRUNES,
    REJECTS,
    law,
)
from kgverify.laws.statements.compare_runs import describe_dropped
from kgverify.program.fact_index import Ids
from kgverify.program.outcomes import GoalKind, Origin, Outcome, Stage
from kgverify.step.clauses import Atoms, number_variables
from kgverify.step.plain_step import Resolvent, Situation, filter_resolvents

Relation = NDArray[np.float32]
"""float32 [C, C]: 1 if the atom of a predicate and these two constants follows from the program, else 0."""


class Model:
    """The least model of rules and facts in ids (van Emden and Kowalski 1976).

    Rules are applied to all constants at once until nothing new follows. A rule's body is a product of relations and of
    a vector for each term. The vector of a constant selects that constant; the vector of a variable is all ones. So a
    variable that occurs only in the head stands for every constant. The product is summed over the variables that the
    head lacks.
    """

    def __init__(self, facts: Iterable[Ids], rules: Iterable[tuple[Ids, Atoms]], constants: Iterable[int]) -> None:
        self._place = {constant: i for i, constant in enumerate(constants)}
        self._size = max(1, len(self._place))
        self._relations = defaultdict[int, Relation](lambda: np.zeros((self._size, self._size), np.float32))
        for predicate, a, b in facts:
            self._relations[predicate][self._place[a], self._place[b]] = 1
        rules = list(rules)
        while sum(self._apply(head, body) for head, body in rules):
            pass

    def has_instance(self, atom: Ids) -> bool:
        """Return whether some instance of an atom follows; equal variables stand for the same constant."""
        predicate, a, b = atom
        relation = self._relations[predicate]
        if a == b and a < 0:
            return bool(np.diagonal(relation).any())
        rows, columns = (slice(None) if term < 0 else self._place[term] for term in (a, b))
        return bool(relation[rows, columns].any())

    def _apply(self, head: Ids, body: Atoms) -> bool:
        """Add the instances of a head that follow from the relations of its body; return whether any is new."""
        letters: dict[int, str] = {}
        *labels, last = (
            "".join(letters.setdefault(term, ascii_letters[len(letters)]) for term in atom[1:])
            for atom in (*body, head)
        )
        identity, ones = np.eye(self._size, dtype=np.float32), np.ones(self._size, np.float32)
        vectors = [identity[self._place[term]] if term >= 0 else ones for term in letters]
        operands = [*(self._relations[predicate] for predicate, _, _ in body), *vectors]
        out = "".join(dict.fromkeys(last))
        subscripts = f"{','.join([*labels, *letters.values()])}->{out}"
        path = _path(subscripts, tuple(each.shape for each in operands))
        derived = np.einsum(subscripts, *operands, optimize=path) > 0
        holds, relation = derived if len(out) == 2 else np.diag(derived), self._relations[head[0]]
        is_new = bool((holds & (relation == 0)).any())
        relation[holds] = 1
        return is_new


@lru_cache(maxsize=1 << 12)
def _path(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> list[object]:
    operands = [np.empty(shape, np.float32) for shape in shapes]
    path: list[object] = np.einsum_path(subscripts, *operands, optimize="greedy")[0]
    return path


MOST_CONSTANTS = 150
"""The largest number of constants for which a problem is checked; with more, its model is too large."""


def _steps(case: Case) -> Iterator[tuple[tuple[int, int], StepView, Ids | None]]:
    """Yield the place of each step with a goal, the step, and the excluded atom."""
    excluded = [case.clauses.excluded(atom) for atom in case.columns.candidates.atom.tolist()]
    return ((at, step, excluded[at[0]]) for at, step in case.walk() if step.goal)


@law(
    "Each resolvent is what the clause that it names makes of the goal: the clause matches the selected atom and is not the"
    " excluded atom; its body and the rest of the goal under the most general unifier, facts but the excluded atom deleted,"
    " variables numbered, are the resolvent.",
    runs_again=False,
    presumes=(PRUNES, REJECTS, KNOWS_EXCLUDED, FORGETS_NAMES),
)
def _made_by_clause(case: Case) -> Iterator[Finding]:
    for at, step, excluded in _steps(case):
        yields = {each.clause: each for each in case.apply_clauses(step.goal, excluded)}
        for each in step.resolvents:
            if each.kind in (GoalKind.FALSE, GoalKind.STOP):
                continue
            made, found = yields.get(each.clause), case.names.resolvent(each)
            if made is None:
                expected = "no resolvent of this clause, which does not match the selected atom"
                if each.origin_kind == Origin.FACT and case.clauses.facts[each.origin] == excluded:
                    expected = "no resolvent of this fact, which is the excluded atom"
                yield Finding(*at, _stage(each), "origin", expected, found)
                break
            if (each.kind == GoalKind.TRUE, each.atoms) != (not made.atoms, made.atoms):
                stage = _stage_of_atoms(case, each.atoms, made.atoms, excluded)
                yield Finding(*at, stage, "resolvent", _name(case, made), found)
                break


@law(
    "Every clause that matches the selected atom gives a resolvent, or what it gives is a visited goal, comes after TRUE,"
    " or is counted as dropped by a limit.",
    runs_again=False,
    presumes=(OUR_CLAUSES, OUR_FILTERS, OUR_MEMORY, REJECTS, KNOWS_EXCLUDED, FORGETS_NAMES, NEVER_STOPS),
)
def _complete_step(case: Case) -> Iterator[Finding]:
    for (row, number), step, excluded in _steps(case):
        visited = [each.goal for each in case.derivations[row][: number + 1]]
        situation = Situation(case.clauses, case.limits, excluded, visited)
        left, taken, _ = filter_resolvents(situation, case.apply_clauses(step.goal, excluded))
        found, wanted = (
            [each.clause for each in listed if each.kind != GoalKind.FALSE]
            for listed in (step.resolvents, taken.resolvents)
        )
        if found != wanted:
            missing = next((each for each in left[Stage.REVISIT] if each.clause in {*wanted} - {*found}), None)
            stage, expected = Stage.LIMIT, count_of(len(wanted), "resolvent")
            if missing is not None:
                stage = _stage(missing)
                expected = f"{_name(case, missing)}   by {case.names.clause(*missing.clause)}"
            if taken.resolvents[0].kind == GoalKind.TRUE:
                stage = Stage.CLOSE
            yield Finding(row, number, stage, "resolvents", expected, "no such resolvent")
        elif describe_dropped(taken) != describe_dropped(step):
            yield Finding(row, number, Stage.LIMIT, "dropped", describe_dropped(taken), describe_dropped(step))


@law(
    "A goal of one atom that a fact other than the excluded atom matches is proved by the step: TRUE alone.",
    runs_again=False,
    presumes=(PROOF_BEFORE_LIMITS, KNOWS_EXCLUDED),
)
def _fact_proves(case: Case) -> Iterator[Finding]:
    for at, step, excluded in _steps(case):
        if len(step.goal) != 1 or (step.resolvents[:1] and step.resolvents[0].kind == GoalKind.TRUE):
            continue
        facts = case.clauses.facts_like(step.goal[0], excluded)
        if facts:
            expected = f"TRUE, by {case.names.clause(Origin.FACT, facts[0])}"
            actual = case.names.resolvent(step.resolvents[0]) if step.resolvents else "no resolvent"
            yield Finding(*at, Stage.MATCH_FACTS, "resolvents", expected, actual)


@law(
    "A PROVED candidate, or an instance of it, lies in the least model of its program, from whose facts the excluded atom is"
    " taken out.",
    runs_again=False,
    presumes=(REJECTS,),
)
def _sound(case: Case) -> Iterator[Finding]:
    candidates, clauses = case.columns.candidates, case.clauses
    predicates, constants = case.program.symbols.predicates, case.program.symbols.constants
    facts_of = case.by_problem(clauses.facts, lambda fact: predicates[fact[0]])
    rules_of = case.by_problem(clauses.rules, lambda rule: predicates[rule[0][0]])
    constants_of = case.by_problem(range(len(constants)), constants.__getitem__)

    @cache
    def model_of(index: int, excluded: Ids | None) -> Model:
        facts = (fact for fact in facts_of.get(index, ()) if fact != excluded)
        return Model(facts, rules_of.get(index, ()), constants_of.get(index, ()))

    for row in np.flatnonzero(candidates.outcome == Outcome.PROVED).tolist():
        index = int(case.merged.owner[candidates.query[row]])
        p, a, b = candidates.atom[row].tolist()
        names = predicates[p], *(constants[term] for term in (a, b) if term >= 0)
        if len(constants_of.get(index, ())) > MOST_CONSTANTS or {*map(case.problem_of_name, names)} != {index}:
            continue
        if not model_of(index, clauses.excluded((p, a, b))).has_instance((p, a, b)):
            yield Finding(row, -1, Stage.CLOSE, "outcome", "an outcome other than PROVED: no proof exists", "PROVED")


def _stage_of_atoms(case: Case, found: Atoms, wanted: Atoms, excluded: Ids | None) -> Stage:
    """Return the stage that produced the wrong atoms."""
    if number_variables(found) == wanted:
        return Stage.RENAME
    facts = case.clauses.fact_index
    if number_variables(atom for atom in found if atom not in facts or atom == excluded) == wanted:
        return Stage.PRUNE
    rest = iter(wanted)
    if all(any(atom == each for each in rest) for atom in found):
        # Some atoms are missing: the last ones, or others.
        return Stage.LIMIT if len(found) == case.limits.max_atoms and wanted[: len(found)] == found else Stage.PRUNE
    return Stage.RESOLVE


def _stage(made: Resolvent | ResolventView) -> Stage:
    return Stage.MATCH_RULES if made.origin_kind == Origin.RULE else Stage.MATCH_FACTS


def _name(case: Case, made: Resolvent) -> str:
    return case.names.goal(made.atoms, GoalKind.GOAL if made.atoms else GoalKind.TRUE)  # type: ignore[arg-type]
