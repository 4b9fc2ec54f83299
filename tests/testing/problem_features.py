"""Features: what a problem contains and what its steps do, as names that a distribution counts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

import numpy as np

from kgverify import Limits, Problem, Stage
from kgverify.engines.protocol import ProbedEngine, StageOutputs, positions_of, split_positions
from kgverify.errors import InternalError
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.program.program import NamedRule
from kgverify.ranking.draw import ALL
from kgverify.testing.checking.check import Batch
from kgverify.testing.problems.decode import BULK, count_clauses
from kgverify.trace.model.columns import starts_of

MANY_RESOLVENTS: Final = 16


def _variables(atoms: tuple[NamedAtom, ...]) -> set[Variable]:
    return {term for atom in atoms for term in atom[1:] if isinstance(term, Variable)}


def _repeats(atom: NamedAtom) -> bool:
    return isinstance(atom.first, Variable) and atom.first == atom.second


def _has_query(problem: Problem, first: type, second: type) -> bool:
    """Return whether an unranked query has arguments of these types."""
    return any(isinstance(a, first) and isinstance(b, second) for _, a, b in problem.unranked)


def _predicates(atoms: Iterable[NamedAtom]) -> set[str]:
    return {atom.predicate for atom in atoms}


def _calls(problem: Problem) -> set[tuple[str, str]]:
    """Return each predicate of a rule's head with each one of its body."""
    return {(rule.clause_head.predicate, atom.predicate) for rule in problem.rules for atom in rule.body}


_RULE_CHECKS: Final[dict[str, Callable[[NamedRule, Limits], bool]]] = {
    "a constant in a head": lambda rule, limits: any(isinstance(term, str) for term in rule.clause_head[1:]),
    "a constant in a body": lambda rule, limits: any(isinstance(t, str) for atom in rule.body for t in atom[1:]),
    "a repeated variable in a head": lambda rule, limits: _repeats(rule.clause_head),
    "a repeated variable in a body atom": lambda rule, limits: any(map(_repeats, rule.body)),
    "a variable of the head alone": lambda rule, limits: not _variables((rule.clause_head,)) <= _variables(rule.body),
    "a variable of the body alone": lambda rule, limits: not _variables(rule.body) <= _variables((rule.clause_head,)),
    "a body atom twice": lambda rule, limits: len(set(rule.body)) < len(rule.body),
    "a body of one atom": lambda rule, limits: len(rule.body) == 1,
    "a body of four atoms or more": lambda rule, limits: len(rule.body) >= 4,
    "a body of max_atoms atoms": lambda rule, limits: len(rule.body) == limits.max_atoms,
    "a body of one atom more": lambda rule, limits: len(rule.body) == limits.max_atoms + 1,
}
_QUERY_CHECKS: Final[dict[str, Callable[[Problem], bool]]] = {
    "a ranked query": lambda problem: bool(problem.queries),
    "an unranked ground query": lambda problem: _has_query(problem, str, str),
    "a query that is a fact": lambda problem: not {*problem.facts}.isdisjoint((*problem.queries, *problem.unranked)),
    "a query p(a, X)": lambda problem: _has_query(problem, str, Variable),
    "a query p(X, b)": lambda problem: _has_query(problem, Variable, str),
    "a query p(X, Y)": lambda problem: any(len(_variables((query,))) == 2 for query in problem.unranked),
    "a query p(X, X)": lambda problem: any(map(_repeats, problem.unranked)),
    "all corruptions": lambda problem: problem.num_corruptions == ALL and bool(problem.queries),
    "no corruptions": lambda problem: problem.num_corruptions == 0,
    "weights": lambda problem: problem.policy.name != "shortest",
    "exclude_query off": lambda problem: not problem.limits.exclude_query,
    "ids more than 256 apart": lambda problem: problem.spread.constants >= 254,
    "padding": lambda problem: bool(problem.sizes.atoms or problem.sizes.resolvents),
}
_PROGRAM_CHECKS: Final[dict[str, Callable[[Problem], bool]]] = {
    "no facts": lambda problem: not problem.facts,
    "no rules": lambda problem: not problem.rules,
    "a fact twice": lambda problem: len(set(problem.facts)) < len(problem.facts),
    "a fact p(a, a)": lambda problem: any(first == second for _, first, second in problem.facts),
    f"more than {BULK} facts of a predicate": lambda problem: (
        max(Counter(fact.predicate for fact in set(problem.facts)).values(), default=0) > BULK
    ),
    "a predicate without facts": lambda problem: not set(chain(*_calls(problem))) <= _predicates(problem.facts),
    "a predicate without clauses": lambda problem: (
        not {called for _, called in _calls(problem)}
        <= _predicates(problem.facts) | {head for head, _ in _calls(problem)}
    ),
    "a rule twice": lambda problem: len(set(problem.rules)) < len(problem.rules),
    "three rules of a predicate": lambda problem: (
        max(Counter(rule.clause_head.predicate for rule in problem.rules).values(), default=0) > 2
    ),
    "a rule that calls itself": lambda problem: any(head == called for head, called in _calls(problem)),
    "rules that call each other": lambda problem: any(
        head != called and (called, head) in _calls(problem) for head, called in _calls(problem)
    ),
}
_DERIVATION_CHECKS: Final[dict[str, Callable[[int, int, Limits], bool]]] = {
    "PROVED": lambda outcome, num_steps, limits: outcome == Outcome.PROVED,
    "FAILED": lambda outcome, num_steps, limits: outcome == Outcome.FAILED,
    "DEPTH_LIMIT": lambda outcome, num_steps, limits: outcome == Outcome.DEPTH_LIMIT,
    "PROVED in one step": lambda outcome, num_steps, limits: outcome == Outcome.PROVED and num_steps == 1,
    "PROVED in three steps or more": lambda outcome, num_steps, limits: outcome == Outcome.PROVED and num_steps >= 3,
    "PROVED by the last step allowed": lambda outcome, num_steps, limits: (
        outcome == Outcome.PROVED and num_steps == limits.max_depth
    ),
    "FAILED after three steps or more": lambda outcome, num_steps, limits: outcome == Outcome.FAILED and num_steps >= 3,
}


class _Step(NamedTuple):
    """A step of the reference: what its stages gave, and its problem, query and goal, in ids."""

    outputs: StageOutputs
    problem: Problem
    query: object
    goal: tuple[tuple[int, ...], ...]

    def num_goals(self) -> int:
        return sum(item[0] == GoalKind.GOAL for item in self.outputs[Stage.LIMIT][0])

    def sizes(self) -> list[int]:
        return [len(atoms) for _, _, atoms in self.outputs[Stage.REVISIT]]

    def num_visited(self) -> int:
        return len(self.outputs[Stage.RENAME]) - len(self.outputs[Stage.REVISIT])


_STEP_CHECKS: Final[dict[str, Callable[[_Step], bool]]] = {
    "no resolvent": lambda step: step.outputs[Stage.CLOSE][0][0] == GoalKind.FALSE,
    "one resolvent": lambda step: step.num_goals() == 1,
    "2 to 4 resolvents": lambda step: 2 <= step.num_goals() <= 4,
    f"5 to {MANY_RESOLVENTS} resolvents": lambda step: 5 <= step.num_goals() <= MANY_RESOLVENTS,
    f"more than {MANY_RESOLVENTS} resolvents": lambda step: step.num_goals() > MANY_RESOLVENTS,
    "resolvents of rules and of facts": lambda step: (
        {Origin.RULE, Origin.FACT} <= {item[1] for item in step.outputs[Stage.LIMIT][0]}
    ),
    f"more than {BULK} facts matched": lambda step: len(step.outputs[Stage.MATCH_FACTS]) > BULK,
    "more clauses than the match window": lambda step: (
        len(step.outputs[Stage.MATCH_RULES]) + len(step.outputs[Stage.MATCH_FACTS]) > step.problem.sizes.match_window
    ),
    "a proof by a rule": lambda step: step.outputs[Stage.CLOSE][0][:2] == (GoalKind.TRUE, Origin.RULE),
    "a proof by a fact": lambda step: step.outputs[Stage.CLOSE][0][:2] == (GoalKind.TRUE, Origin.FACT),
    "a proof beside other resolvents": lambda step: (
        step.outputs[Stage.CLOSE][0][0] == GoalKind.TRUE and len(step.sizes()) > 1
    ),
    "an atom pruned, others left": lambda step: any(
        0 < len(after[2]) < len(before[2])
        for before, after in zip(step.outputs[Stage.RESOLVE], step.outputs[Stage.PRUNE], strict=True)
    ),
    "a goal visited before": lambda step: step.num_visited() > 0,
    "every resolvent visited before": lambda step: step.num_visited() > 0 and not step.sizes(),
    "exactly max_atoms atoms": lambda step: (
        step.outputs[Stage.CLOSE][0][0] == GoalKind.GOAL and step.problem.limits.max_atoms in step.sizes()
    ),
    "dropped for its atoms": lambda step: step.outputs[Stage.LIMIT][1] > 0,
    "exactly max_resolvents resolvents": lambda step: (
        step.num_goals() == step.problem.limits.max_resolvents and not step.outputs[Stage.LIMIT][2]
    ),
    "one resolvent beyond max_resolvents": lambda step: step.outputs[Stage.LIMIT][2] == 1,
    "more than one beyond max_resolvents": lambda step: step.outputs[Stage.LIMIT][2] > 1,
    "the query selected in its own derivation": lambda step: (
        step.outputs[Stage.SELECT] == step.query and step.outputs[Stage.ADVANCE][2] > 1
    ),
    "a repeated variable selected": lambda step: step.goal[0][1] == step.goal[0][2] < 0,
    "a variable shared with the rest of the goal": lambda step: any(
        term < 0 and term in atom[1:] for term in step.goal[0][1:] for atom in step.goal[1:]
    ),
    "a choice by score": lambda step: len(set(step.outputs[Stage.SCORE])) > 1,
    "a tie for the highest score": lambda step: (
        list(step.outputs[Stage.SCORE]).count(max(step.outputs[Stage.SCORE])) > 1
    ),
}
_LIMIT_OF_BYTE: Final = 255
_LIMIT_OF_WORD: Final = (1 << 16) - 1
RUN_FEATURES: Final = (
    "FAILED by limits alone",
    "more candidates than slots",
    "ranks that tie",
    "an unproved candidate above a proved one, but for the push-down",
)
BOUNDARY_FEATURES: Final = (
    "one candidate",
    "as many candidates as slots",
    "a pool exactly full",
    "one candidate in the last pool",
    "a match window exactly full",
    "a score window exactly full",
    "one constant",
    "the last fact used",
    "a query p(X, Y) for a fact that begins with the last constant",
    "more than 255 facts of a predicate",
    "more than 65,535 facts of a predicate",
    "more than 255 candidates",
    "more than 255 resolvents",
    "more than 10 steps",
    "ids beyond 65,535",
    "keys of facts beyond 31 bits",
)
"""They are counted once for a run; the others once for each problem."""

ALONE_FEATURES: Final = frozenset(
    ("no facts", "no rules", "padding", "more candidates than slots", "more clauses than the match window")
)
"""They are counted in runs of one problem, since a common run has facts and rules, and sizes of its own."""

FEATURES_BY_TITLE: Final = {
    "program": (*_PROGRAM_CHECKS, *_RULE_CHECKS),
    "queries and settings": tuple(_QUERY_CHECKS),
    "derivations": (*_DERIVATION_CHECKS, *RUN_FEATURES),
    "steps and runs": (*_STEP_CHECKS, *BOUNDARY_FEATURES),
}
ALL_FEATURES: Final = tuple(chain.from_iterable(FEATURES_BY_TITLE.values()))


def boundary_features(batch: Batch) -> Iterator[str]:
    """Yield the features of the sizes of a run."""
    merged, columns = batch.merged, batch.columns
    program, sizes = merged.graph.program, merged.sizes
    candidates, steps, resolvents = columns.candidates, columns.steps, columns.resolvents
    num, num_constants = len(candidates.query), len(program.symbols.constants)
    first_steps = starts_of(candidates.num_steps)[:-1][: sizes.slots]
    of_goals = resolvents.kind[starts_of(steps.num_resolvents)[:-1]] == GoalKind.GOAL
    predicates, first, _ = program.facts.T
    most_facts = int(np.bincount(predicates).max(initial=0))
    open_queries = candidates.atom[(candidates.atom[:, 1:] < 0).all(1)]
    begin_last = predicates[first == num_constants - 1]
    is_used = (resolvents.origin_kind == Origin.FACT) & (resolvents.origin == len(program.facts) - 1)
    checks = {
        "one candidate": num == 1,
        "as many candidates as slots": num == sizes.slots,
        "a pool exactly full": num % sizes.pool == 0,
        "one candidate in the last pool": num % sizes.pool == 1 and num > 1,
        "a match window exactly full": int(count_clauses(program, candidates.atom[: sizes.slots]).sum())
        == sizes.match_window,
        "a score window exactly full": int((steps.num_resolvents * of_goals)[first_steps].sum())
        == max(sizes.score_window, merged.run.limits.max_resolvents),
        "one constant": num_constants == 1,
        "the last fact used": bool(is_used.any()),
        "a query p(X, Y) for a fact that begins with the last constant": bool(
            np.isin(begin_last, open_queries[:, 0]).any()
        ),
        "more than 255 facts of a predicate": most_facts > _LIMIT_OF_BYTE,
        "more than 65,535 facts of a predicate": most_facts > _LIMIT_OF_WORD,
        "more than 255 candidates": num > _LIMIT_OF_BYTE,
        "more than 255 resolvents": int((steps.num_resolvents + steps.dropped_resolvents).max()) > _LIMIT_OF_BYTE,
        "more than 10 steps": int(candidates.num_steps.max()) > 10,
        "ids beyond 65,535": num_constants > _LIMIT_OF_WORD + 1,
        "keys of facts beyond 31 bits": len(program.symbols.predicates) * num_constants**2 > 1 << 31,
    }
    return (name for name, holds in checks.items() if holds)


def count_features(batches: Sequence[Batch]) -> dict[str, int]:
    """Return the number of problems in which each feature occurs, of boundaries that of runs; reference steps are probed."""
    counts: Counter[str] = Counter()
    for batch in batches:
        counts.update(boundary_features(batch))
        for features in _batch_features(batch):
            counts.update(features if len(batch.indices) == 1 else features - ALONE_FEATURES)
    return {name: counts[name] for name in ALL_FEATURES}


def _batch_features(batch: Batch) -> list[set[str]]:
    """Return the features of each problem of a batch."""
    problems = batch.merged.problems
    found = [
        {
            *(name for name, holds in (_PROGRAM_CHECKS | _QUERY_CHECKS).items() if holds(problem)),
            *(
                name
                for name, holds in _RULE_CHECKS.items()
                if any(holds(rule, problem.limits) for rule in problem.rules)
            ),
        }
        for problem in problems
    ]
    columns, rankings = batch.columns, batch.rankings
    candidates, steps = columns.candidates, columns.steps
    owner = batch.merged.owner[candidates.query].tolist()
    for index, outcome, num_steps in zip(
        owner, candidates.outcome.tolist(), candidates.num_steps.tolist(), strict=True
    ):
        limits = problems[index].limits
        found[index].update(name for name, holds in _DERIVATION_CHECKS.items() if holds(outcome, num_steps, limits))
    for index, count in Counter(owner).items():
        if count > problems[index].sizes.slots:
            found[index].add("more candidates than slots")

    engine = batch.pipeline.engine
    if not isinstance(engine, ProbedEngine):
        raise InternalError("the reference cannot be probed")
    positions = positions_of(columns)
    queries = list(map(tuple, candidates.atom.tolist()))
    atoms = list(map(tuple, steps.goal_atoms.tolist()))
    goals = [tuple(atoms[a:b]) for a, b in pairwise(starts_of(steps.num_atoms).tolist())]
    single = split_positions(positions, 1)
    row = 0
    for candidate, num_steps in enumerate(candidates.num_steps.tolist()):
        index = owner[candidate]
        for _ in range(num_steps):
            step = _Step(engine.probe(next(single)), problems[index], queries[candidate], goals[row])
            found[index].update(name for name, holds in _STEP_CHECKS.items() if holds(step))
            row += 1
        last = row - 1
        if candidates.outcome[candidate] == Outcome.FAILED and (
            steps.dropped_atoms[last] or steps.dropped_resolvents[last]
        ):
            found[index].add("FAILED by limits alone")
    if rankings is not None:
        for query in rankings.query[rankings.optimistic != rankings.pessimistic].tolist():
            found[int(batch.merged.owner[query])].add("ranks that tie")
    for index in _pushed_down(batch):
        found[index].add("an unproved candidate above a proved one, but for the push-down")
    return found


def _pushed_down(batch: Batch) -> set[int]:
    """Return the problems in which an unproved candidate scores above a proved one of its query and side."""
    candidates = batch.columns.candidates
    groups: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    for query, side, outcome, value in zip(
        candidates.query.tolist(),
        candidates.side.tolist(),
        candidates.outcome.tolist(),
        candidates.log_probability.tolist(),
        strict=True,
    ):
        groups.setdefault((query, side), ([], []))[outcome == Outcome.PROVED].append(value)
    return {
        int(batch.merged.owner[query])
        for (query, _), (unproved, proved) in groups.items()
        if unproved and proved and max(unproved) > min(proved)
    }
