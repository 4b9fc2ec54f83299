"""Laws of clauses: each resolvent is what its clause makes of the goal, and every proved candidate is true."""

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache, partial
from string import ascii_letters

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import StepView
from kgverify.errors import count_of
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.laws.presumptions import (
    FORGETS_NAMES,
    KNOWS_EXCLUDED,
    NEVER_STOPS,
    OUR_CLAUSES,
    OUR_FILTERS,
    OUR_MEMORY,
    PROOF_BEFORE_LIMITS,
    PRUNES,
    REJECTS,
)
from kgverify.program.fact_index import Ids
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.program.stages import Stage
from kgverify.step.clauses import Atoms, number_variables
from kgverify.step.plain_step import Situation, filter_resolvents, match_facts, match_rules, prune, rename, resolve
from kgverify.step.resolvent import Resolvent

Relation = NDArray[np.float32]
"""float32 [C, C]: 1 where the atom of a predicate with these two constants follows, else 0."""


class Model:
    """The least model of rules and facts in ids (van Emden and Kowalski 1976).

    Rules are applied to all constants at once until nothing new follows. A rule's body is a product of relations, and of a
    vector for each term: a constant's selects it, a variable's is all ones. So a variable of the head alone stands for every
    constant, and the product is summed over the variables that the head lacks.
    """

    def __init__(self, facts: Iterable[Ids], rules: Iterable[tuple[Ids, Atoms]], constants: Iterable[int]) -> None:
        self._place = {constant: i for i, constant in enumerate(constants)}
        self._size = max(1, len(self._place))
        self._relations: dict[int, Relation] = {}
        for predicate, a, b in facts:
            self._relation(predicate)[self._place[a], self._place[b]] = 1
        rules = list(rules)
        is_new = True
        while is_new:
            is_new = False
            for head, body in rules:
                is_new |= self._apply(head, body)

    def has_instance(self, atom: Ids) -> bool:
        """Return whether some instance of an atom follows; equal variables stand for one constant."""
        predicate, a, b = atom
        relation = self._relation(predicate)
        rows = relation if a < 0 else relation[self._place[a] : self._place[a] + 1]
        found = rows if b < 0 else rows[:, self._place[b] : self._place[b] + 1]
        return bool(np.diagonal(relation).any() if a == b and a < 0 else found.any())

    def _relation(self, predicate: int) -> Relation:
        if predicate not in self._relations:
            self._relations[predicate] = np.zeros((self._size, self._size), np.float32)
        return self._relations[predicate]

    def _apply(self, head: Ids, body: Atoms) -> bool:
        """Add the instances of a head that follow from the relations of its body; return whether any is new."""
        letters: dict[int, str] = {}
        *labels, last = (
            "".join(letters.setdefault(term, ascii_letters[len(letters)]) for term in atom[1:])
            for atom in (*body, head)
        )
        identity, ones = np.eye(self._size, dtype=np.float32), np.ones(self._size, np.float32)
        vectors = [identity[self._place[term]] if term >= 0 else ones for term in letters]
        operands = [*(self._relation(predicate) for predicate, _, _ in body), *vectors]
        out = "".join(dict.fromkeys(last))
        subscripts = f"{','.join([*labels, *letters.values()])}->{out}"
        path = _path(subscripts, tuple(each.shape for each in operands))
        derived = np.einsum(subscripts, *operands, optimize=path) > 0
        holds, relation = derived if len(out) == 2 else np.diag(derived), self._relation(head[0])
        is_new = bool((holds & (relation == 0)).any())
        relation[holds] = 1
        return is_new


@lru_cache(maxsize=1 << 12)
def _path(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> list[object]:
    operands = [np.empty(shape, np.float32) for shape in shapes]
    path: list[object] = np.einsum_path(subscripts, *operands, optimize="greedy")[0]
    return path


MOST_CONSTANTS = 150
"""A problem with more constants is not checked, since its model is too large."""


def _steps(case: Case) -> Iterator[tuple[int, StepView, Ids | None]]:
    """Yield each step's row, the step, and the excluded atom."""
    atoms = case.columns.candidates.atom.tolist()
    excluded = [case.clauses.excluded(atom) for atom in atoms]
    for row, owner in enumerate(case.owner.tolist()):
        step = case.steps[row]
        if step.goal:
            yield row, step, excluded[owner]


def _apply_clauses(case: Case, goal: Atoms, excluded: Ids | None) -> list[Resolvent]:
    """Return what each clause makes of a goal, pruned and renamed."""
    situation = Situation(case.clauses, case.limits, excluded, (goal,))
    made = resolve(situation, match_rules(situation, goal[0]), match_facts(situation, goal[0]))
    return rename(situation, prune(situation, made))


@law(
    "Each resolvent is what the clause that it names makes of the goal: the clause matches the selected atom and is not the"
    " excluded atom; its body and the rest of the goal under the most general unifier, facts but the excluded atom deleted,"
    " variables numbered, are the resolvent.",
    needs_rows=False,
    presumes=(PRUNES, REJECTS, KNOWS_EXCLUDED, FORGETS_NAMES),
)
def _made_by_clause(case: Case) -> Iterator[Finding]:
    apply = cache(partial(_apply_clauses, case))
    for row, step, excluded in _steps(case):
        yields = {each.clause: each for each in apply(step.goal, excluded)}
        for each in step.resolvents:
            if each.kind in (GoalKind.FALSE, GoalKind.STOP):
                continue
            made = yields.get((each.origin_kind, each.origin))
            found = (GoalKind.TRUE if each.kind == GoalKind.TRUE else GoalKind.GOAL, each.atoms)
            if made is None:
                stage = Stage.MATCH_RULES if each.origin_kind == Origin.RULE else Stage.MATCH_FACTS
                expected = "no resolvent of this clause, which does not match the selected atom"
                if each.origin_kind == Origin.FACT and case.clauses.facts[each.origin] == excluded:
                    expected = "no resolvent of this fact, which is the excluded atom"
                yield case.of_step(row, stage, "origin", expected, case.names.resolvent(each))
                break
            if found != _kind(made):
                kind, atoms = _kind(made)
                yield case.of_step(
                    row,
                    _stage_of_atoms(case, each.atoms, made.atoms, excluded),
                    "resolvent",
                    case.names.goal(atoms, kind),  # type: ignore[arg-type]
                    case.names.resolvent(each),
                )
                break


@law(
    "Every clause that matches the selected atom gives a resolvent, or what it gives is a visited goal, comes after TRUE,"
    " or is counted as dropped by a limit.",
    needs_rows=False,
    presumes=(OUR_CLAUSES, OUR_FILTERS, OUR_MEMORY, REJECTS, KNOWS_EXCLUDED, FORGETS_NAMES, NEVER_STOPS),
)
def _complete_step(case: Case) -> Iterator[Finding]:
    apply = cache(partial(_apply_clauses, case))
    visited: list[Atoms] = []
    owner = -1
    for row, step, excluded in _steps(case):
        if int(case.owner[row]) != owner:
            owner, visited = int(case.owner[row]), []
        visited.append(step.goal)
        situation = Situation(case.clauses, case.limits, excluded, visited)
        left, taken, _ = filter_resolvents(situation, apply(step.goal, excluded))
        counts = taken.dropped_atoms, taken.dropped_resolvents
        found, wanted = (
            [each.clause for each in listed if each.kind != GoalKind.FALSE]
            for listed in (step.resolvents, taken.resolvents)
        )
        if found != wanted:
            missing = next((each for each in left[Stage.REVISIT] if each.clause in {*wanted} - {*found}), None)
            expected = _describe(case, missing) if missing else count_of(len(wanted), "resolvent")
            yield case.of_step(
                row,
                Stage.CLOSE if taken.resolvents[0].kind == GoalKind.TRUE else _stage(missing),
                "resolvents",
                expected,
                "no such resolvent",
            )
        elif counts != (step.dropped_atoms, step.dropped_resolvents):
            expected = f"{counts[0]} dropped for their atoms, {counts[1]} beyond max_resolvents"
            actual = f"{step.dropped_atoms} dropped for their atoms, {step.dropped_resolvents} beyond max_resolvents"
            yield case.of_step(row, Stage.LIMIT, "dropped", expected, actual)


@law(
    "A goal of one atom that a fact other than the excluded atom matches is proved by the step: TRUE alone.",
    needs_rows=False,
    presumes=(PROOF_BEFORE_LIMITS, KNOWS_EXCLUDED),
)
def _fact_proves(case: Case) -> Iterator[Finding]:
    for row, step, excluded in _steps(case):
        if len(step.goal) != 1 or (step.resolvents[:1] and step.resolvents[0].kind == GoalKind.TRUE):
            continue
        facts = case.clauses.facts_like(step.goal[0], excluded)
        if facts:
            expected = f"TRUE, by {case.names.clause(Origin.FACT, facts[0])}"
            actual = case.names.resolvent(step.resolvents[0]) if step.resolvents else "no resolvent"
            yield case.of_step(row, Stage.MATCH_FACTS, "resolvents", expected, actual)


@law(
    "A PROVED candidate, or an instance of it, lies in the least model of its program, from whose facts the excluded atom is"
    " taken out.",
    needs_rows=False,
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
    """Return the stage that made the wrong atoms."""
    if number_variables(iter(found)) == wanted:
        return Stage.RENAME
    facts = case.clauses.fact_index
    if number_variables(atom for atom in found if atom not in facts or atom == excluded) == wanted:
        return Stage.PRUNE
    rest = iter(wanted)
    if all(any(atom == each for each in rest) for atom in found):
        # Some atoms are missing: the last ones, or others.
        return Stage.LIMIT if len(found) == case.limits.max_atoms and wanted[: len(found)] == found else Stage.PRUNE
    return Stage.RESOLVE


def _kind(made: Resolvent) -> tuple[int, Atoms]:
    return (GoalKind.GOAL if made.atoms else GoalKind.TRUE), made.atoms


def _stage(made: Resolvent | None) -> Stage:
    if made is None:
        return Stage.LIMIT
    return Stage.MATCH_RULES if made.origin_kind == Origin.RULE else Stage.MATCH_FACTS


def _describe(case: Case, made: Resolvent) -> str:
    kind, atoms = _kind(made)
    return f"{case.names.goal(atoms, kind)}   by {case.names.clause(made.origin_kind, made.origin)}"  # type: ignore[arg-type]
