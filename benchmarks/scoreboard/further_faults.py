"""Sixty faults with numeric or structural conditions, planted in a prover in Python by their predicates alone.

They were written after the features of conditions were frozen, and no feature was added for them.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NamedTuple

import kgverify as kv
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.trace.model.columns import concatenate, select_candidates


class Prover(kv.StagedEngine):
    """A sound prover, whose hooks the faults replace. `loses` and `alters` decide by plain facts of the step."""

    fault: "Fault | None" = None
    is_broken = False

    @cached_property
    def by_argument(self) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for fact in self.facts:
            p, a, b = fact.head
            for key in ((p, a, None), (p, None, b), (p, None, None), (p, a, b)):
                found.setdefault(key, []).append(fact)
        return found

    @cached_property
    def segment(self) -> dict[tuple[int, int], tuple[int, int]]:
        """The position of each clause among those of its predicate, and their number."""
        found, counts = {}, {}
        for clauses in (self.rules, self.facts):
            counts.clear()
            for each in clauses:
                counts[each.head[0]] = counts.get(each.head[0], -1) + 1
                found[each.origin_kind, each.origin] = counts[each.head[0]]
            for each in clauses:
                key = each.origin_kind, each.origin
                found[key] = found[key], counts[each.head[0]] + 1
        return found

    def hook(self, name: str) -> Callable[..., bool]:
        fault = self.fault
        return fault.holds if fault is not None and fault.hook == name else lambda *given: False

    def take_step(self, query, visited):
        step = super().take_step(query, visited)
        return step._replace(resolvents=[_false()]) if self.is_broken else step

    def _run_stages(self, query, visited):
        # A probe runs the stages as well, from any goal.
        self.depth, self.query = len(visited) - 1, query
        return super()._run_stages(query, visited)

    def resolve(self, goal, excluded):
        p, a, b = goal[0]
        key = p, a if a >= 0 else None, b if b >= 0 else None
        facts = [
            f
            for f in self.by_argument.get(key, ())
            if f.head != excluded and (a != b or a >= 0 or f.head[1] == f.head[2])
        ]
        rules = [r for r in self.rules if r.head[0] == p and _unify(goal[0], _apart(r.head)) is not None]
        lose_fact, lose_rule, alter = self.hook("fact"), self.hook("rule"), self.hook("resolve")
        for clauses, lose in ((rules, lose_rule), (facts, lose_fact)):
            for i, clause in enumerate(clauses):
                position, num = self.segment[clause.origin_kind, clause.origin]
                at = At(self, goal, clause, i, len(clauses), position, num, self.depth)
                if lose(at):
                    continue
                bound = _unify(goal[0], _apart(clause.head))
                atoms = [_bind(_apart(atom), bound) for atom in clause.body] + [_bind(atom, bound) for atom in goal[1:]]
                if alter(at._replace(atoms=tuple(atoms))):
                    atoms = [(q, d, c) for q, c, d in atoms]
                yield clause, atoms

    def prune(self, resolvents, excluded):
        spare = self.hook("prune")
        done = super().prune(resolvents, excluded)
        return [
            old if len(new.atoms) < len(old.atoms) and spare(old.atoms, new.atoms, self.depth) else new
            for old, new in zip(resolvents, done, strict=True)
        ]

    def revisit(self, resolvents, visited):
        keep = self.hook("revisit")
        return [each for each in resolvents if each.atoms not in visited or keep(each.atoms, self.depth)]

    def limit(self, resolvents):
        taken, drop = super().limit(resolvents), self.hook("limit")
        kept = [
            each
            for i, each in enumerate(taken.resolvents)
            if each.kind is not GoalKind.GOAL or not drop(each.atoms, i, self.limits)
        ]
        lost = len(taken.resolvents) - len(kept)
        return taken._replace(resolvents=kept or [_false()], dropped_resolvents=taken.dropped_resolvents + lost)

    def score(self, goal, resolvents):
        wrong = self.hook("score")
        scores = super().score(goal, resolvents)
        return [
            s - 8 * bool(wrong(goal, each.atoms, self.depth, s)) for s, each in zip(scores, resolvents, strict=True)
        ]

    def _choose(self, goal, depth, taken):
        step, skip = super()._choose(goal, depth, taken), self.hook("finish")
        if skip(taken.resolvents[step.choice].kind, depth, self.limits):
            return step._replace(outcome=Outcome.FAILED if step.outcome is not Outcome.FAILED else Outcome.PROVED)
        return step

    def prove(self, candidates, progress=lambda num: None):
        columns, breaks = super().prove(candidates, progress), self.hook("candidate")
        num = len(candidates.query)
        rows = [i for i in range(num) if breaks(candidates, i, num)]
        if not rows:
            return columns
        self.is_broken = True
        try:
            broken = super().prove(candidates.take(rows))
        finally:
            self.is_broken = False
        order = list(range(num))
        for i, row in enumerate(rows):
            order[row] = num + i
        import numpy as np

        return select_candidates(concatenate([columns, broken]), np.array(order))


class At(NamedTuple):
    """A clause that matches at a step."""

    engine: Prover
    goal: Any
    clause: Any
    match: int
    num_matches: int
    position: int
    num: int
    depth: int
    atoms: Any = ()


class Fault(NamedTuple):
    """A fault: what it breaks, and the predicate under which it does."""

    name: str
    hook: str
    holds: Callable[..., bool]


def _false():
    from kgverify.step.plain_step import Resolvent

    return Resolvent((), Origin.NONE, 0, GoalKind.FALSE)


def _apart(atom):
    return (atom[0], *(t if t >= 0 else t - 1000 for t in atom[1:]))


def _bind(atom, bound):
    terms = atom[1:]
    while any(t in bound for t in terms):
        terms = tuple(bound.get(t, t) for t in terms)
    return (atom[0], *terms)


def _unify(left, right):
    bound = {}
    for i in (1, 2):
        a, b = _bind(left, bound)[i], _bind(right, bound)[i]
        if a != b:
            if min(a, b) >= 0:
                return None
            bound[min(a, b)] = max(a, b)
    return bound


def _facts(*rows):
    return [Fault(f"facts: {name}", "fact", holds) for name, holds in rows]


def _num_variables(atoms):
    return len({t for atom in atoms for t in atom[1:] if t < 0})


FAULTS: Final = (
    *_facts(
        ("position 7 or later", lambda x: x.position >= 7),
        ("position 23 or later", lambda x: x.position >= 23),
        ("position 100 or later", lambda x: x.position >= 100),
        ("the first 40 of a segment", lambda x: x.position < 40),
        ("odd positions", lambda x: x.position % 2 == 1),
        ("position 3 modulo 4", lambda x: x.position % 4 == 3),
        ("position 0 modulo 8", lambda x: x.position % 8 == 0),
        ("position 5 modulo 7", lambda x: x.position % 7 == 5),
        ("the last 30 of a segment", lambda x: x.num - 1 - x.position < 30),
        ("the third match and later", lambda x: x.match >= 2),
        ("the first match", lambda x: x.match == 0),
        ("every other match", lambda x: x.match % 2 == 1),
        ("the last but one match", lambda x: x.num_matches - x.match == 2),
        ("first argument 64 or more", lambda x: x.clause.head[1] >= 64),
        ("second argument below 30", lambda x: x.clause.head[2] < 30),
        ("second argument odd", lambda x: x.clause.head[2] % 2 == 1),
        ("first argument 0 modulo 8", lambda x: x.clause.head[1] % 8 == 0),
        ("an argument of 128 or more", lambda x: max(x.clause.head[1:]) >= 128),
        ("depth 3 or more", lambda x: x.depth >= 3),
        ("odd depth", lambda x: x.depth % 2 == 1),
        ("goals of two atoms or more", lambda x: len(x.goal) >= 2),
        ("goals of one atom", lambda x: len(x.goal) == 1),
        ("three matches or more", lambda x: x.num_matches >= 3),
        ("position 10 or later at depth 2 or more", lambda x: x.position >= 10 and x.depth >= 2),
        ("positions 16 to 300", lambda x: 16 <= x.position <= 300),
        ("a free first argument", lambda x: x.goal[0][1] < 0),
        ("a free second argument", lambda x: x.goal[0][2] < 0),
    ),
    Fault("rules: the second of a predicate and later", "rule", lambda x: x.position >= 1),
    Fault("rules: two body atoms or more", "rule", lambda x: len(x.clause.body) >= 2),
    Fault("rules: one body atom", "rule", lambda x: len(x.clause.body) == 1),
    Fault("rules: recursive", "rule", lambda x: any(b[0] == x.clause.head[0] for b in x.clause.body)),
    Fault("rules: depth 2 or more", "rule", lambda x: x.depth >= 2),
    Fault("rules: depth 3", "rule", lambda x: x.depth == 3),
    Fault("rules: goals of three atoms or more", "rule", lambda x: len(x.goal) >= 3),
    Fault("rules: the last match", "rule", lambda x: x.match == x.num_matches - 1 and x.num_matches > 1),
    Fault("resolve: rules swap arguments", "resolve", lambda x: bool(x.clause.body)),
    Fault("resolve: depth 2 or more", "resolve", lambda x: x.depth >= 2),
    Fault("resolve: three atoms", "resolve", lambda x: len(x.atoms) == 3),
    Fault("resolve: the second match and later", "resolve", lambda x: x.match >= 1),
    Fault("prune: two atoms or more before", "prune", lambda old, new, depth: len(old) >= 2),
    Fault("prune: two facts", "prune", lambda old, new, depth: len(old) - len(new) >= 2),
    Fault("prune: depth 2 or more", "prune", lambda old, new, depth: depth >= 2),
    Fault("revisit: depth 2 or more", "revisit", lambda atoms, depth: depth >= 2),
    Fault("revisit: two atoms or more", "revisit", lambda atoms, depth: len(atoms) >= 2),
    Fault("limit: max_atoms atoms", "limit", lambda atoms, i, limits: len(atoms) == limits.max_atoms),
    Fault("limit: index 3 and later", "limit", lambda atoms, i, limits: i >= 3),
    Fault("limit: odd indices", "limit", lambda atoms, i, limits: i % 2 == 1),
    Fault("limit: the last place of max_resolvents", "limit", lambda atoms, i, limits: i == limits.max_resolvents - 1),
    Fault("score: two atoms or more", "score", lambda goal, atoms, depth, s: len(atoms) >= 2),
    Fault("score: no variables", "score", lambda goal, atoms, depth, s: not _num_variables(atoms)),
    Fault("score: two variables or more", "score", lambda goal, atoms, depth, s: _num_variables(atoms) >= 2),
    Fault("score: depth 2 or more", "score", lambda goal, atoms, depth, s: depth >= 2),
    Fault(
        "finish: one step too early",
        "finish",
        lambda kind, depth, limits: depth == limits.max_depth - 2 and kind is GoalKind.GOAL,
    ),
    Fault(
        "finish: proofs at depth 2 or more", "finish", lambda kind, depth, limits: kind is GoalKind.TRUE and depth >= 2
    ),
    Fault("finish: dead ends", "finish", lambda kind, depth, limits: kind is GoalKind.FALSE),
    Fault("candidates: number 64 or later", "candidate", lambda c, i, num: i >= 64),
    Fault("candidates: odd numbers", "candidate", lambda c, i, num: i % 2 == 1),
    Fault("candidates: the last of each 16", "candidate", lambda c, i, num: i % 16 == 15),
    Fault("candidates: the tail side", "candidate", lambda c, i, num: c.side[i] == 1),
    Fault("candidates: first argument 50 or more", "candidate", lambda c, i, num: c.atom[i][1] >= 50),
)
