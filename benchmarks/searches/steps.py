"""The steps of somebody else's prover, written from docs/semantics.md: unification, filters and scores.

Only the default dialect, and the switch `stopping`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

import kgverify
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.program import Program
from kgverify.step.plain_step import Resolvent, Taken

Atom: TypeAlias = tuple[int, int, int]
Goal: TypeAlias = tuple[Atom, ...]
FALSE: Final = Resolvent((), Origin.NONE, 0, GoalKind.FALSE)
STOP: Final = Resolvent((), Origin.NONE, 0, GoalKind.STOP)


def walk(term: int, bindings: dict[int, int]) -> int:
    """Return the term to which a term is bound in the end."""
    while term in bindings:
        term = bindings[term]
    return term


def unify(atom: Atom, other: Atom) -> dict[int, int] | None:
    """Return the bindings that make two atoms of one predicate equal, or None. Negative terms are variables."""
    bindings: dict[int, int] = {}
    for left, right in zip(atom[1:], other[1:], strict=True):
        x, y = walk(left, bindings), walk(right, bindings)
        if x == y:
            continue
        if y < 0:
            bindings[y] = x
        elif x < 0:
            bindings[x] = y
        else:
            return None
    return bindings


def substitute(atoms: Iterable[Atom], bindings: dict[int, int]) -> Goal:
    """Return atoms with every bound variable replaced."""
    return tuple([(p, walk(a, bindings), walk(b, bindings)) for p, a, b in atoms])


def rename(atoms: Iterable[Atom]) -> Goal:
    """Number the variables by first appearance."""
    names: dict[int, int] = {}
    renamed = []
    for p, *terms in atoms:
        a, b = (term if term >= 0 else names.setdefault(term, -1 - len(names)) for term in terms)
        renamed.append((p, a, b))
    return tuple(renamed)


class Prover:
    """The clauses of a program, and the resolvents of a goal."""

    def __init__(self, program: Program, limits: kgverify.Limits) -> None:
        self.limits = limits
        self.facts: list[Atom] = [(p, a, b) for p, a, b in program.facts.tolist()]
        self.known = set(self.facts)
        self.rules: dict[int, list[tuple[int, Atom, Goal]]] = {}
        for number, rule in enumerate(program.rules):
            head, *body = ((p, a, b) for p, a, b in (rule.clause_head, *rule.body))
            self.rules.setdefault(head[0], []).append((number, head, tuple(body)))
        self.index: dict[tuple[int, int, int], list[int]] = {}
        for number, (p, a, b) in enumerate(self.facts):
            for key in ((p, -1, -1), (p, a, -1), (p, -1, b), (p, a, b)):
                self.index.setdefault(key, []).append(number)

    def resolve(self, goal: Goal, excluded: Atom | None) -> list[Resolvent]:
        """Return the resolvents of a goal with every clause, pruned and renamed."""
        (p, a, b), rest = goal[0], goal[1:]
        shift = min(0, *[min(atom[1:]) for atom in goal])
        made = []
        for number, head, body in self.rules.get(p, ()):
            apart = [(q, x + shift * (x < 0), y + shift * (y < 0)) for q, x, y in (head, *body)]
            bindings = unify(goal[0], apart[0])
            if bindings is not None:
                made.append((Origin.RULE, number, substitute((*apart[1:], *rest), bindings)))
        for number in self.index.get((p, max(a, -1), max(b, -1)), ()):
            bindings = unify(goal[0], self.facts[number])
            if bindings is not None and self.facts[number] != excluded:
                made.append((Origin.FACT, number, substitute(rest, bindings)))
        return [
            Resolvent(rename(atom for atom in atoms if atom not in self.known or atom == excluded), kind, number)
            for kind, number, atoms in made
        ]

    def take(self, visited: Sequence[Goal], excluded: Atom | None) -> Taken:
        """Return the resolvents of the last visited goal after the stage `limit`, without scores."""
        seen = set(visited)
        new = [each for each in self.resolve(visited[-1], excluded) if each.atoms not in seen]
        proofs = [each._replace(kind=GoalKind.TRUE) for each in new if not each.atoms]
        if proofs:
            return Taken(proofs[:1])
        short = [each for each in new if len(each.atoms) <= self.limits.max_atoms]
        kept = short[: self.limits.max_resolvents]
        dropped = len(new) - len(short), len(short) - len(kept)
        if new and self.limits.dialect.stopping == "where_no_terminal":
            kept.append(STOP)
        return Taken(kept or [FALSE], *dropped)


class Scorer:
    """A policy, for many goals at once."""

    def __init__(self, policy: kgverify.Policy) -> None:
        self.weights = {name: np.asarray(array, np.float64) for name, array in policy.weights.items()}
        self.is_shortest = policy.name == "shortest"

    def score(self, goals: Sequence[Goal], taken: Sequence[Sequence[Resolvent]]) -> list[list[float]]:
        """Return the scores of the resolvents of each goal."""
        if self.is_shortest:
            return [
                [
                    score_shortest(each) if each.atoms else -64.0 * (each.kind == GoalKind.STOP) * (len(made) > 1)
                    for each in made
                ]
                for made in taken
            ]
        firsts = dict.fromkeys(goal for goal in [*goals, *(each.atoms for made in taken for each in made)] if goal)
        towers = self.embed(list(firsts))
        row = {goal: number for number, goal in enumerate(firsts)}
        scale = towers.shape[1] ** -0.5
        return [
            [float(towers[row[goal]] @ towers[row[each.atoms]]) * scale if each.atoms else 0.0 for each in made]
            for goal, made in zip(goals, taken, strict=True)
        ]

    def embed(self, goals: Sequence[Goal]) -> Any:
        """Return the embedding of each goal: [n, h]."""
        weights = self.weights
        terms = np.concatenate([weights["embedding.constant"], weights["embedding.variable"][::-1]])
        width = max(map(len, goals))
        atoms = np.zeros((len(goals), width, 3), np.int64)
        is_atom = np.zeros((len(goals), width, 1), bool)
        for number, goal in enumerate(goals):
            atoms[number, : len(goal)], is_atom[number, : len(goal)] = goal, True
        # Variable number v is row -1 - v of the table, counted from its end.
        parts = weights["embedding.predicate"][atoms[..., 0]] + terms[atoms[..., 1]] - terms[atoms[..., 2]]
        x = np.where(is_atom, parts, 0.0).sum(1) / is_atom.sum(1)
        x = x @ weights["input.weight"].T + weights["input.bias"]
        block = 0
        while f"block.{block}.weight" in weights:
            w, b, scale, shift = (
                weights[f"block.{block}.{part}"] for part in ("weight", "bias", "norm.weight", "norm.bias")
            )
            x = x + np.maximum(x @ w.T + b, 0.0)
            x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * scale + shift
            block += 1
        return x


def score_shortest(resolvent: Resolvent) -> float:
    """Return the score of a goal by the policy `shortest`."""
    atoms = resolvent.atoms
    return -(len(atoms) + len({term for _, a, b in atoms for term in (a, b) if term < 0}) / 64)


MASK: Final = (1 << 64) - 1


def mix(x: int) -> int:
    """Return the splitmix64 step of a word."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def draw(*words: int) -> float:
    """Return a number from 0 to 1 that depends on a seed and some words."""
    key = 0
    for word in words:
        key = mix(key ^ (word & MASK))
    return (key >> 11) * 2.0**-53
