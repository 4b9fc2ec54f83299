"""The answers of searches, judged by their clauses: a constant is an answer if the clauses of a proof prove the ground query."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from judges.cases import Case
from judges.derivations import build_program, encode_queries, limits_of
from judges.searches import Uniform, log_sum

import kgreference
from kgreference import Dialect, Filter, OriginKind, Outcome, Step

FILTERS = (Filter.PRUNE, Filter.REVISIT, Filter.MAX_ATOMS, Filter.MAX_RESOLVENTS)
"""All but `close`, which keeps one of the answers of a step."""

Atom = tuple[int, int, int]


def judge_answers(cases: Sequence[Case], seen: Counter[str], seed: int = 0) -> list[str]:
    """Return the first difference of each case, for a query with a variable in either argument."""
    wrong = []
    for number, case in enumerate(cases):
        rng = random.Random(f"{seed}:{number}")
        program, limits = build_program(case), limits_of(case)
        for predicate, first, second in encode_queries(program, case):
            constant = max(first, second, 0)
            query = kgreference.Atom(predicate, *rng.choice([(constant, -1), (-1, constant)]))
            message = _judge_query(program, limits, query, rng, seen) if program.constants else ""
            wrong += [f"{case}, {query}: {message}"] * bool(message)
    return wrong


def _draw_dialect(rng: random.Random) -> Dialect:
    size = rng.choice((1, 2, 5, 20))
    dialect = Dialect(
        filters=rng.choice([FILTERS, FILTERS, FILTERS[1:], kgreference.OURS.filters]),
        search=rng.choice([f"beam({size})", f"all({size})", f"sample({size}, {size})"]),
        aggregate=rng.choice(list(kgreference.Aggregate)),
        forgets_names=rng.random() < 0.6,
        long_resolvents=rng.choice(list(kgreference.LongResolvents)),
        order=rng.choice(list(kgreference.Order)),
    )
    return replace(dialect, memory=kgreference.Memory.NONE) if rng.random() < 0.3 else dialect


def _judge_query(
    program: kgreference.Program,
    limits: kgreference.Limits,
    query: kgreference.Atom,
    rng: random.Random,
    seen: Counter[str],
) -> str:
    dialect = _draw_dialect(rng)
    found = kgreference.search(program, limits, rng.choice([kgreference.Shortest(), Uniform()]), query, dialect)
    constants = range(len(program.constants))
    values: dict[int, list[float]] = {}
    counted = set()
    for path in found.ended:
        choices = tuple(step.choice for step in path.steps)
        if path.steps[-1].outcome is Outcome.PROVED and choices not in counted:
            counted.add(choices)
            answers = [each for each in constants if proves(program, substitute(query, each), path.steps)]
            seen["proofs"] += 1
            seen["proofs of every constant"] += len(answers) == len(constants) > 1
            if len(answers) not in (1, len(constants)):
                return f"the clauses of {choices} prove the query for {answers}"
            for answer in answers:
                values.setdefault(answer, []).append(path.log_probability)
    expected = {answer: aggregate(dialect.aggregate, of_answer) for answer, of_answer in values.items()}
    scores = kgreference.score_answers(found)
    seen["queries"] += 1
    seen["several answers"] += len(expected) > 1
    seen["several proofs of an answer"] += any(len(of_answer) > 1 for of_answer in values.values())
    if scores.keys() != expected.keys():
        return f"expected the answers {expected}, found {scores}"
    if not all(math.isclose(scores[each], expected[each], rel_tol=1e-9, abs_tol=1e-9) for each in scores):
        return f"expected the scores {expected}, found {scores}"
    entity, *others = rng.sample(constants, rng.randint(1, len(constants)))
    ranks = kgreference.rank_answers(scores, entity, others)
    # The place in a list sorted by (is reached, score), first and last among equals.
    keys = [(each in scores, scores.get(each, 0.0)) for each in (entity, *others)]
    ordered = sorted(keys, reverse=True)
    best = 1 + ordered.index(keys[0])
    worst = len(ordered) - ordered[::-1].index(keys[0])
    seen["the true entity is reached"] += entity in scores
    if tuple(ranks) != (best, (best + worst) / 2, worst):
        return f"expected ranks from {best} to {worst}, found {ranks}"
    return ""


def aggregate(kind: kgreference.Aggregate, values: Sequence[float]) -> float:
    """Return the aggregated log-probability of proofs that are not very improbable."""
    if kind is kgreference.Aggregate.NOISY_OR:
        wrong = math.prod(max(0.0, 1.0 - math.exp(each)) for each in values)
        return log_sum(values) if max(values) < -15 else math.log(1.0 - wrong)
    return max(values) if kind is kgreference.Aggregate.MAX else log_sum(values)


def substitute(query: Atom, entity: int) -> Atom:
    """Put an entity in the place of the variable."""
    predicate, first, second = query
    return predicate, entity if first < 0 else first, entity if second < 0 else second


def proves(program: kgreference.Program, query: Atom, steps: Sequence[Step]) -> bool:
    """Return whether the clauses of a proof resolve a ground query, each the leftmost atom, to nothing.

    Atoms that a step of the proof deleted without resolving them are deleted here, too. Variables are tuples.
    """
    goal: list[tuple] = [query]
    for number, step in enumerate(steps):
        kind, origin = step.chosen.origin_kind, step.chosen.origin
        head, body = program.rules[origin] if kind is OriginKind.RULE else (program.facts[origin], ())
        head, *body = [(p, *(term if term >= 0 else (number, term) for term in terms)) for p, *terms in (head, *body)]
        bindings: dict = {}

        def walk(term, bindings=bindings):
            while term in bindings:
                term = bindings[term]
            return term

        if head[0] != goal[0][0]:
            return False
        for left, right in zip(head[1:], goal[0][1:], strict=True):
            one, other = walk(left), walk(right)
            if one != other and not isinstance(one, tuple) and not isinstance(other, tuple):
                return False
            if one != other:
                bindings.update({one: other} if isinstance(one, tuple) else {other: one})
        goal = [(p, *map(walk, terms)) for p, *terms in (*body, *goal[1:])]
        goal = [goal[i] for i in find_kept(step)]
    return not goal


def find_kept(step: Step) -> list[int]:
    """Return the positions of the atoms of the chosen resolvent among those that resolution gave.

    Pruning deletes ground atoms that are facts; truncation deletes the last atoms.
    """
    chosen = step.chosen
    (resolved,) = [each.atoms for each in step.after_resolve if each[2:] == chosen[2:]]
    (pruned,) = [each.atoms for each in step.after_prune if each[2:] == chosen[2:]] or [resolved]
    kept = []
    remaining = list(pruned)
    for position, atom in enumerate(resolved):
        if remaining and atom == remaining[0]:
            kept.append(position)
            del remaining[0]
    assert not remaining
    return kept[: len(chosen.atoms)]
