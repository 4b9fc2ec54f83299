"""Features: what a problem contains and what its steps do, as names that campaigns count."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from kgverify.engines.protocol import ProbedEngine, StageOutputs, positions_of, take_position
from kgverify.errors import InternalError
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.program.program import NamedRule
from kgverify.program.stages import Stage
from kgverify.ranking.corrupt import ALL
from kgverify.testing.checking.check import Batch
from kgverify.testing.problems.problem import Problem
from kgverify.testing.problems.shapes import BULK
from kgverify.trace.model.columns import starts_of

MANY_RESOLVENTS: Final = 16

PROGRAM_FEATURES: Final = (
    "no facts",
    "no rules",
    "a fact twice",
    "a fact p(a, a)",
    f"more than {BULK} facts of a predicate",
    "a predicate without facts",
    "a predicate without clauses",
    "a rule twice",
    "three rules of a predicate",
    "a rule that calls itself",
    "rules that call each other",
    "a constant in a head",
    "a constant in a body",
    "a repeated variable in a head",
    "a repeated variable in a body atom",
    "a variable of the head alone",
    "a variable of the body alone",
    "a body atom twice",
    "a body of one atom",
    "a body of four atoms or more",
    "a body of max_atoms atoms",
    "a body of one atom more",
)
QUERY_FEATURES: Final = (
    "a ranked query",
    "an unranked ground query",
    "a query that is a fact",
    "a query p(a, X)",
    "a query p(X, b)",
    "a query p(X, Y)",
    "a query p(X, X)",
    "all corruptions",
    "no corruptions",
    "weights",
    "exclude_query off",
    "ids more than 256 apart",
    "padding",
)
RUN_FEATURES: Final = (
    "PROVED",
    "FAILED",
    "DEPTH_LIMIT",
    "PROVED in one step",
    "PROVED in three steps or more",
    "PROVED by the last step allowed",
    "FAILED after three steps or more",
    "FAILED by limits alone",
    "more candidates than slots",
    "ranks that tie",
    "an unproved candidate above a proved one, but for the push-down",
)
STEP_FEATURES: Final = (
    "no resolvent",
    "one resolvent",
    "2 to 4 resolvents",
    f"5 to {MANY_RESOLVENTS} resolvents",
    f"more than {MANY_RESOLVENTS} resolvents",
    "resolvents of rules and of facts",
    f"more than {BULK} facts matched",
    "more clauses than the match window",
    "a proof by a rule",
    "a proof by a fact",
    "a proof beside other resolvents",
    "an atom pruned, others left",
    "a goal visited before",
    "every resolvent visited before",
    "exactly max_atoms atoms",
    "dropped for its atoms",
    "exactly max_resolvents resolvents",
    "one resolvent beyond max_resolvents",
    "more than one beyond max_resolvents",
    "the query selected in its own derivation",
    "a repeated variable selected",
    "a variable shared with the rest of the goal",
    "a choice by score",
    "a tie for the highest score",
)
FEATURES_BY_TITLE: Final = {
    "program": PROGRAM_FEATURES,
    "queries and settings": QUERY_FEATURES,
    "derivations": RUN_FEATURES,
    "steps": STEP_FEATURES,
}
ALL_FEATURES: Final = (*PROGRAM_FEATURES, *QUERY_FEATURES, *RUN_FEATURES, *STEP_FEATURES)


def program_features(problem: Problem) -> Iterator[str]:
    """Yield the features of a problem's facts and rules."""
    facts, rules = problem.facts, problem.rules
    by_predicate: dict[str, int] = {}
    for fact in dict.fromkeys(facts):
        by_predicate[fact.predicate] = by_predicate.get(fact.predicate, 0) + 1
    heads = [rule.clause_head.predicate for rule in rules]
    called = {atom.predicate for rule in rules for atom in rule.body}
    calls: dict[str, set[str]] = {}
    for rule in rules:
        calls.setdefault(rule.clause_head.predicate, set()).update(atom.predicate for atom in rule.body)
    checks = {
        "no facts": not facts,
        "no rules": not rules,
        "a fact twice": len(set(facts)) < len(facts),
        "a fact p(a, a)": any(first == second for _, first, second in facts),
        f"more than {BULK} facts of a predicate": max(by_predicate.values(), default=0) > BULK,
        "a predicate without facts": not (called | set(heads)) <= by_predicate.keys(),
        "a predicate without clauses": not called <= by_predicate.keys() | set(heads),
        "a rule twice": len(set(rules)) < len(rules),
        "three rules of a predicate": any(heads.count(head) > 2 for head in heads),
        "a rule that calls itself": any(head in others for head, others in calls.items()),
        "rules that call each other": any(
            other != head and head in calls.get(other, ()) for head, others in calls.items() for other in others
        ),
    }
    yield from (name for name, holds in checks.items() if holds)
    for rule in rules:
        yield from _rule_features(rule, problem.limits)


def _rule_features(rule: NamedRule, limits: Limits) -> Iterator[str]:
    head, body = rule.clause_head, rule.body
    in_head, in_body = _variables((head,)), _variables(body)
    checks = {
        "a constant in a head": any(isinstance(term, str) for term in head[1:]),
        "a constant in a body": any(isinstance(term, str) for atom in body for term in atom[1:]),
        "a repeated variable in a head": _repeats(head),
        "a repeated variable in a body atom": any(map(_repeats, body)),
        "a variable of the head alone": bool(in_head - in_body),
        "a variable of the body alone": bool(in_body - in_head),
        "a body atom twice": len(set(body)) < len(body),
        "a body of one atom": len(body) == 1,
        "a body of four atoms or more": len(body) >= 4,
        "a body of max_atoms atoms": len(body) == limits.max_atoms,
        "a body of one atom more": len(body) == limits.max_atoms + 1,
    }
    return (name for name, holds in checks.items() if holds)


def query_features(problem: Problem) -> Iterator[str]:
    """Yield the features of a problem's queries and settings."""
    every = (*problem.queries, *problem.unranked)
    facts = set(problem.facts)
    for _, first, second in problem.unranked:
        if isinstance(first, Variable):
            if isinstance(second, Variable):
                yield "a query p(X, X)" if first == second else "a query p(X, Y)"
            else:
                yield "a query p(X, b)"
        else:
            yield "a query p(a, X)" if isinstance(second, Variable) else "an unranked ground query"
    checks = {
        "a ranked query": bool(problem.queries),
        "a query that is a fact": any(query in facts for query in every),
        "all corruptions": problem.num_corruptions == ALL and bool(problem.queries),
        "no corruptions": problem.num_corruptions == 0,
        "weights": problem.policy.name != "shortest",
        "exclude_query off": not problem.limits.exclude_query,
        "ids more than 256 apart": problem.spread.constants >= 254,
        "padding": bool(problem.sizes.atoms or problem.sizes.resolvents),
    }
    yield from (name for name, holds in checks.items() if holds)


def derivation_features(outcome: int, num_steps: int, limits: Limits) -> Iterator[str]:
    """Yield the features of a candidate's outcome."""
    yield Outcome(outcome).name
    if outcome == Outcome.PROVED:
        if num_steps == 1:
            yield "PROVED in one step"
        if num_steps >= 3:
            yield "PROVED in three steps or more"
        if num_steps == limits.max_depth:
            yield "PROVED by the last step allowed"
    if outcome == Outcome.FAILED and num_steps >= 3:
        yield "FAILED after three steps or more"


def step_features(outputs: StageOutputs, problem: Problem, query: object, goal: tuple[object, ...]) -> Iterator[str]:
    """Yield the features of one step of the reference, from its stage outputs; query and goal in ids."""
    limits = problem.limits
    selected, facts = outputs[Stage.SELECT], outputs[Stage.MATCH_FACTS]
    num_clauses = len(outputs[Stage.MATCH_RULES]) + len(facts)
    kept, dropped_atoms, dropped_resolvents = outputs[Stage.LIMIT]
    scores = outputs[Stage.SCORE]
    closed = outputs[Stage.CLOSE]
    survivors = [len(atoms) for _, _, atoms in outputs[Stage.REVISIT]]
    num_goals = sum(item[0] == GoalKind.GOAL for item in kept)
    origins = {item[1] for item in kept}
    rest = {term for atom in goal[1:] for term in atom[1:] if term < 0}  # type: ignore[index]
    num_dropped_by_visit = len(outputs[Stage.RENAME]) - len(outputs[Stage.REVISIT])
    checks = {
        "no resolvent": closed[0][0] == GoalKind.FALSE,
        "one resolvent": num_goals == 1,
        "2 to 4 resolvents": 2 <= num_goals <= 4,
        f"5 to {MANY_RESOLVENTS} resolvents": 5 <= num_goals <= MANY_RESOLVENTS,
        f"more than {MANY_RESOLVENTS} resolvents": num_goals > MANY_RESOLVENTS,
        "resolvents of rules and of facts": {Origin.RULE, Origin.FACT} <= origins,
        f"more than {BULK} facts matched": len(facts) > BULK,
        "more clauses than the match window": num_clauses > problem.sizes.match_window,
        "a proof by a rule": closed[0][:2] == (GoalKind.TRUE, Origin.RULE),
        "a proof by a fact": closed[0][:2] == (GoalKind.TRUE, Origin.FACT),
        "a proof beside other resolvents": closed[0][0] == GoalKind.TRUE and len(survivors) > 1,
        "an atom pruned, others left": any(
            0 < len(after[2]) < len(before[2])
            for before, after in zip(outputs[Stage.RESOLVE], outputs[Stage.PRUNE], strict=True)
        ),
        "a goal visited before": num_dropped_by_visit > 0,
        "every resolvent visited before": num_dropped_by_visit > 0 and not survivors,
        "exactly max_atoms atoms": closed[0][0] == GoalKind.GOAL and limits.max_atoms in survivors,
        "dropped for its atoms": dropped_atoms > 0,
        "exactly max_resolvents resolvents": num_goals == limits.max_resolvents and not dropped_resolvents,
        "one resolvent beyond max_resolvents": dropped_resolvents == 1,
        "more than one beyond max_resolvents": dropped_resolvents > 1,
        "the query selected in its own derivation": selected == query and outputs[Stage.ADVANCE][2] > 1,
        "a repeated variable selected": selected[1] == selected[2] and selected[1] < 0,
        "a variable shared with the rest of the goal": any(term in rest for term in selected[1:] if term < 0),
        "a choice by score": len(scores) > 1 and len(set(scores)) > 1,
        "a tie for the highest score": list(scores).count(max(scores)) > 1,
    }
    return (name for name, holds in checks.items() if holds)


def _variables(atoms: tuple[NamedAtom, ...]) -> set[Variable]:
    return {term for atom in atoms for term in atom[1:] if isinstance(term, Variable)}


def _repeats(atom: NamedAtom) -> bool:
    return isinstance(atom.first, Variable) and atom.first == atom.second


def count_features(batches: Sequence[Batch]) -> dict[str, int]:
    """Return the number of problems in which each feature occurs; the steps of the reference are probed for it."""
    counts: Counter[str] = Counter()
    for batch in batches:
        for features in _batch_features(batch):
            counts.update(features)
    return {name: counts[name] for name in ALL_FEATURES}


def _batch_features(batch: Batch) -> list[set[str]]:
    """Return the features of each problem of a batch."""
    problems = batch.merged.problems
    found = [{*program_features(problem), *query_features(problem)} for problem in problems]
    columns, rankings = batch.expected.columns, batch.expected.rankings
    candidates, steps = columns.candidates, columns.steps
    owner = batch.merged.owner[candidates.query].tolist()
    for index, outcome, num_steps in zip(
        owner, candidates.outcome.tolist(), candidates.num_steps.tolist(), strict=True
    ):
        found[index].update(derivation_features(outcome, num_steps, problems[index].limits))
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
    row = 0
    for candidate, num_steps in enumerate(candidates.num_steps.tolist()):
        index = owner[candidate]
        for _ in range(num_steps):
            outputs = engine.probe(take_position(positions, row))
            found[index].update(step_features(outputs, problems[index], queries[candidate], goals[row]))
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
    candidates = batch.expected.columns.candidates
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
