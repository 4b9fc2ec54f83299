"""Searches of the reference, judged by an enumeration of derivations, and beams by SWI-Prolog.

The steps are those of the reference, which `judges.derivations` judges; the searches use none of its search.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from judges import draws
from judges.cases import Case
from judges.derivations import (
    KINDS,
    MOST_PROGRAMS,
    ORIGINS,
    OUTCOMES,
    ask,
    build_program,
    encode_queries,
    limits_of,
    render_request,
    show_resolvent,
)
from judges.scores import draw_weights

import kgreference
from kgreference import Dialect, Kind, Outcome, Stages, Step
from kgreference.step import Found, choose_resolvent, find_resolvents, log_softmax
from kgreference.two_tower import TwoTower

MOST_DERIVATIONS: Final = 24
"""A query with more derivations is not enumerated; its beams and samples are judged all the same."""

MOST_GROWING: Final = 3
"""The largest depth in a dialect that lets goals or derivations grow without it."""

Choices = tuple[int, ...]
"""The indices that a path chose: its identity."""

ALL: Final = 10**9


class Uniform:
    """A policy without preference, so that paths of different parents are equal."""

    def scores(self, goal: kgreference.Goal, resolvents: Sequence[kgreference.Resolvent]) -> list[float]:
        """Return the same score for each."""
        return [0.0] * len(resolvents)


class Tree:
    """The derivations of a query, each by its choices. A step of a path is taken when it is first asked for."""

    def __init__(self, start: kgreference.Situation) -> None:
        self._start = start
        self._found: dict[Choices, tuple[kgreference.Situation, Found]] = {}
        self.chosen: dict[Choices, Step] = {}

    def step(self, path: Choices) -> Step:
        """Return the step that ends a path with its last choice."""
        if path not in self.chosen:
            situation, found = self._find(path[:-1])
            stages = Stages(choose=lambda situation, scores: path[-1])
            self.chosen[path] = choose_resolvent(situation, found, stages)
        return self.chosen[path]

    def _find(self, path: Choices) -> tuple[kgreference.Situation, Found]:
        if path not in self._found:
            steps = [self.step(path[:end]) for end in range(1, len(path) + 1)]
            goals = [self._start.goal, *(step.chosen.atoms for step in steps)]
            num_uncounted = 0
            for step in steps:
                num_uncounted = num_uncounted + 1 if step.is_uncounted else 0
            depth = sum(not step.is_uncounted for step in steps)
            situation = self._start._replace(goal=goals[-1], depth=depth, visited={*goals})
            self._found[path] = situation, find_resolvents(situation, Stages(), num_uncounted)
        return self._found[path]

    def children(self, path: Choices) -> list[Choices]:
        """Return the path with each choice added."""
        return [(*path, i) for i in range(len(self.step((*path, 0)).after_limit))]

    def term(self, path: Choices) -> float:
        """Return the log-probability of the last choice of a path."""
        return log_softmax(self.step((*path[:-1], 0)).scores, path[-1])

    def log_probability(self, path: Choices) -> float:
        """Return the log-probability of a path: its terms, added one by one."""
        total = 0.0
        for end in range(1, len(path) + 1):
            total += self.step(path[:end]).log_probability
        return total

    def all_derivations(self) -> list[Choices] | None:
        """Return every derivation, shortest first; None if there are more than `MOST_DERIVATIONS`."""
        ended: list[Choices] = []
        level: list[Choices] = [()]
        while level:
            children = [child for path in level for child in self.children(path)]
            if len(ended) + len(children) > MOST_DERIVATIONS:
                return None
            ended += [child for child in children if self.step(child).outcome is not Outcome.OPEN]
            level = [child for child in children if self.step(child).outcome is Outcome.OPEN]
        return ended


class Row(NamedTuple):
    """A path before a step, its step, and the places and log-probabilities of the children."""

    level: int
    place: int
    parent: int
    log_probability: float
    path: Choices
    step: Step
    children: list[tuple[int, float]]


class Searched(NamedTuple):
    """A search as the definition gives it. ended: level, place, choices, log-probability."""

    rows: list[Row]
    ended: list[tuple[int, int, Choices, float]]
    outcome: Outcome
    is_limited: bool
    log_probability: float


def define_search(tree: Tree, dialect: Dialect, query: kgreference.Atom) -> Searched:
    """Search a tree of derivations. A path is its choices; tables map each to its place and its log-probability."""
    kind, size, seed = read_search(dialect.search)
    level = 0
    places: dict[int, Choices] = dict.fromkeys(range(size if kind == "sample" else 1), ())
    weight: dict[int, float] = dict.fromkeys(places, 0.0)
    parent = dict.fromkeys(places, -1)
    rows: list[Row] = []
    ended: list[tuple[int, int, Choices, float]] = []
    is_limited = False
    while places:
        children = [(place, child) for place, path in places.items() for child in tree.children(path)]
        value = {(place, child): weight[place] + tree.term(child) for place, child in children}
        if kind == "sample":
            drawn = {
                place: draw_child(seed, query, place, level, tree.step((*path, 0)).scores)
                for place, path in places.items()
            }
            kept = {place: (place, (*places[place], index)) for place, index in drawn.items()}
        else:
            ranked = children
            if kind == "beam":
                order = {child: number for number, child in enumerate(children)}
                ranked = sorted(children, key=lambda child: (-value[child], order[child]))
            is_limited |= kind == "all" and len(ranked) > size
            kept = dict(enumerate(ranked[:size]))
        value_at = {place: value[child] for place, child in kept.items()}
        into: dict[int, int] = {}
        for place, (_, child) in kept.items():
            twins = [each for each in kept if is_same_goal(tree.step(child), tree.step(kept[each][1]))]
            if dialect.merge != "none" and twins:
                into[place] = twins[0]
                if place == twins[0]:
                    pooled = [value[kept[each]] for each in twins]
                    value_at[place] = max(pooled) if dialect.merge == "max" else log_sum(pooled)
        for place, path in places.items():
            of_child = {child[-1]: each for each, (by, child) in kept.items() if by == place}
            step = tree.step((*path, 0))
            shown = []
            for i in range(len(step.after_limit)):
                got = of_child.get(i)
                is_own = got == into.get(got, got)
                number = -1 if got is None else got if is_own else -2 - into[got]
                shown.append((number, 0.0 if got is None else value_at[got]))
            best = min(of_child, key=lambda i: of_child[i], default=0)
            step = tree.step((*path, best))
            if not of_child:
                step = step._replace(choice=-1, outcome=Outcome.OPEN)
            rows.append(Row(level, place, parent[place], weight[place], path, step, shown))
            is_limited |= step.dropped_atoms + step.dropped_resolvents > 0
        followed = {place: kept[place] for place in kept if into.get(place, place) == place}
        ended += [
            (level, place, child, value_at[place])
            for place, (_, child) in followed.items()
            if tree.step(child).outcome is not Outcome.OPEN
        ]
        followed = {place: each for place, each in followed.items() if tree.step(each[1]).outcome is Outcome.OPEN}
        parent = {place: by for place, (by, _) in followed.items()}
        places = {place: child for place, (_, child) in followed.items()}
        weight, level = value_at, level + 1
    return Searched(rows, ended, *define_aggregate(tree, dialect, ended, is_limited))


def read_search(text: str) -> tuple[str, int, int]:
    """Return the name, the size and the seed of a search."""
    name, _, rest = text.rstrip(")").partition("(")
    size, _, seed = rest.partition(",")
    return name, int(size), int(seed or 0)


def is_same_goal(left: Step, right: Step) -> bool:
    """Return whether two steps chose the same goal, up to renaming."""
    atoms = [kgreference.canonical(each.chosen.atoms) for each in (left, right)]
    return left.chosen.kind is right.chosen.kind is Kind.GOAL and atoms[0] == atoms[1]


def log_sum(values: Sequence[float]) -> float:
    """Return the logarithm of the sum of probabilities, by the formula of the semantics, whose last bits order a beam."""
    return max(values) + math.log(math.fsum(math.exp(each - max(values)) for each in values))


def draw_child(seed: int, query: kgreference.Atom, sample: int, level: int, scores: Sequence[float]) -> int:
    """Return the index that a sample draws."""
    key = draws.mix(seed)
    for number in (*query, sample, level):
        key = draws.mix(key ^ (number % 2**64))
    point = (key >> 11) / 2**53
    shares = [math.exp(each - max(scores)) for each in scores]
    whole, reached = math.fsum(shares), 0.0
    for index, share in enumerate(shares):
        reached += share / whole
        if reached > point:
            return index
    return len(scores) - 1


def define_aggregate(
    tree: Tree, dialect: Dialect, ended: Sequence[tuple[int, int, Choices, float]], is_limited: bool
) -> tuple[Outcome, bool, float]:
    """Return the outcome and the log-probability of a candidate, by probabilities where these are not too small."""
    distinct = {path: value for _, _, path, value in reversed(ended)}
    proofs = [value for path, value in distinct.items() if tree.step(path).outcome is Outcome.PROVED]
    if not proofs:
        _, _, path, value = min(ended, key=lambda each: (-each[3], each[:2]))
        return tree.step(path).outcome, is_limited, value
    if dialect.aggregate == "max":
        return Outcome.PROVED, is_limited, max(proofs)
    if dialect.aggregate == "sum" or max(proofs) < -30:
        return Outcome.PROVED, is_limited, log_sum(proofs)
    # 1 - (1 - p)(1 - q) ... = p + (1 - p) q + ..., which loses no digits.
    total, complement = 0.0, 1.0
    for value in proofs:
        total += complement * min(1.0, math.exp(value))
        complement *= max(0.0, -math.expm1(value))
    return Outcome.PROVED, is_limited, math.log(total)


def judge_search(tree: Tree, dialect: Dialect, found: kgreference.Search, query: kgreference.Atom) -> str:
    """Return the first difference between a search and the definition; "" if they agree."""
    expected = define_search(tree, dialect, query)
    rows = [
        Row(
            level,
            path.place,
            path.parent,
            path.log_probability,
            tuple(each.choice for each in path.steps),
            step,
            children,
        )
        for level, expansions in enumerate(found.levels)
        for _, path, step, children in expansions
    ]
    for number, (wanted, row) in enumerate(zip(expected.rows, rows, strict=False)):
        for name in Row._fields:
            if getattr(wanted, name) != getattr(row, name):
                return f"row {number}, {name}: expected {getattr(wanted, name)}, found {getattr(row, name)}"
    if len(rows) != len(expected.rows):
        return f"expected {len(expected.rows)} rows, found {len(rows)}"
    ended = [
        (len(path.steps) - 1, path.place, tuple(step.choice for step in path.steps), path.log_probability)
        for path in found.ended
    ]
    if ended != expected.ended:
        return f"ended: expected {expected.ended}, found {ended}"
    if (found.outcome, found.is_limited) != (expected.outcome, expected.is_limited):
        return f"expected {expected.outcome}, {expected.is_limited}, found {found.outcome}, {found.is_limited}"
    if not math.isclose(found.log_probability, expected.log_probability, rel_tol=1e-11, abs_tol=1e-11):
        return f"expected log-probability {expected.log_probability}, found {found.log_probability}"
    return ""


def judge_searches(
    cases: Sequence[Case],
    seen: Counter[str],
    seed: int = 0,
    draw_dialect: Callable[[random.Random], Dialect] | None = None,
) -> list[str]:
    """Return the first difference of each case, with searches and policies drawn at random; half of the dialects, too."""
    wrong = []
    for number, case in enumerate(cases):
        rng = random.Random(f"{seed}:{number}")
        try:
            message = _judge_case(case, rng, seen, draw_dialect)
        except Exception as error:
            message = f"raised {error!r}"
        wrong += [f"{case}: {message}"] * bool(message)
    return wrong


def _judge_case(
    case: Case, rng: random.Random, seen: Counter[str], draw_dialect: Callable[[random.Random], Dialect] | None
) -> str:
    program, limits = build_program(case), limits_of(case)
    seed, name = rng.randrange(10**6), rng.choice(("shortest", "shortest", "uniform", "two_tower"))
    policy: kgreference.Policy = Uniform() if name == "uniform" else kgreference.Shortest()
    if name == "two_tower":
        policy = TwoTower(draw_weights(seed, len(case.facts)))
    usual = draw_dialect(rng) if draw_dialect and rng.random() < 0.5 else kgreference.OURS
    if usual.skips_unary or kgreference.Filter.MAX_ATOMS not in usual.filters:
        limits = limits._replace(max_depth=min(limits.max_depth, MOST_GROWING))
    seen["programs"] += 1
    seen[f"with {type(policy).__name__}"] += 1
    seen["in another dialect"] += usual != kgreference.OURS
    for query in encode_queries(program, case):
        is_positive = rng.random() < 0.5

        def derive(stages: Stages, query=query, is_positive=is_positive) -> kgreference.Derivation:
            return kgreference.derive(program, limits, policy, query, usual, stages, is_positive)

        def search(text: str, merge: str = "none", aggregate: str = "max", query=query, is_positive=is_positive) -> Any:
            switches = {"merge": kgreference.Merge(merge), "aggregate": kgreference.Aggregate(aggregate)}
            dialect = replace(usual, search=text, **switches)
            return dialect, kgreference.search(
                program, limits, policy, query, dialect, kgreference.OUR_STAGES, is_positive
            )

        excluded = kgreference.find_excluded(usual, limits, query, is_positive)
        goal = kgreference.canonical((query,))
        tree = Tree(kgreference.Situation(usual, program, limits, policy, excluded, goal, 0, {goal}))
        drawn = draw_search(rng)
        dialect, found = search(*drawn)
        seen["queries"] += 1
        _count(dialect, found, seen)
        message = (
            judge_search(tree, dialect, found, query)
            or _judge_one(derive(kgreference.OUR_STAGES), search("beam(1)")[1], seen)
            or _judge_everything(tree, search, seen)
            or _judge_samples(
                derive, rng.choice((1, 2, 5)), rng.choice((0, 1, 7, 2**63, 2**64 - 1)), query, search, seen
            )
        )
        if message:
            return f"{query}, {policy}, {dialect}, {is_positive=}: {message}"
    return ""


def draw_search(rng: random.Random) -> tuple[str, str, str]:
    """Draw the switches of a search, with small sizes."""
    kind = rng.choice(("beam", "beam", "beam", "all", "all", "sample"))
    size = rng.choice((1, 2, 2, 3, 3, 4, 5, 8, 12))
    text = f"sample({size}, {rng.choice((0, 1, 2, 2**64 - 1))})" if kind == "sample" else f"{kind}({size})"
    merge = "none" if kind == "sample" else rng.choice(("none", "none", "max", "sum", "sum"))
    return text, merge, rng.choice(("max", "sum", "noisy_or"))


def _judge_one(derivation: kgreference.Derivation, found: kgreference.Search, seen: Counter[str]) -> str:
    """A beam of one path is the greedy derivation, unless rounding makes two different scores equal log-probabilities."""
    total = 0.0
    for number, (wanted, step) in enumerate(zip(derivation.steps, found.steps, strict=False)):
        if wanted != step:
            values = [total + log_softmax(wanted.scores, choice) for choice in (wanted.choice, step.choice)]
            is_rounded = wanted.scores == step.scores and values[0] == values[1] and step.choice < wanted.choice
            seen["scores that rounding makes equal"] += is_rounded
            return "" if is_rounded else f"beam(1), step {number}: expected {wanted}, found {step}"
        total += step.log_probability
    expected = len(derivation.steps), derivation.outcome, derivation.is_limited, derivation.log_probability
    if expected != (len(found.steps), found.outcome, found.is_limited, found.log_probability):
        return f"beam(1): expected {expected}, found {found[-3:]}"
    seen["greedy"] += 1
    return ""


def _judge_everything(tree: Tree, search: Callable[..., Any], seen: Counter[str]) -> str:
    """A search that keeps every child ends with every derivation, and their probabilities add up to 1."""
    derivations = tree.all_derivations()
    seen["enumerated"] += derivations is not None
    if derivations is None:
        return ""
    expected = {choices: tree.log_probability(choices) for choices in derivations}
    for text in (f"beam({ALL})", f"all({ALL})"):
        _, found = search(text)
        ended = {tuple(step.choice for step in path.steps): path.log_probability for path in found.ended}
        if ended != expected or len(found.ended) != len(derivations):
            return f"{text}: expected {expected}, found {ended}"
        if not math.isclose(math.fsum(map(math.exp, ended.values())), 1.0, rel_tol=1e-9):
            return f"{text}: the probabilities of {ended} do not add up to 1"
        is_limited = any(step.dropped_atoms + step.dropped_resolvents for step in tree.chosen.values())
        if found.is_limited != is_limited:
            return f"{text}: is_limited is {found.is_limited}"
    return ""


def _judge_samples(
    derive: Callable[[Stages], kgreference.Derivation],
    num: int,
    seed: int,
    query: kgreference.Atom,
    search: Callable[..., Any],
    seen: Counter[str],
) -> str:
    """Each sample is a derivation of its own, drawn without the others."""
    _, found = search(f"sample({num}, {seed})")
    seen["samples"] += num
    ended = {path.place: path for path in found.ended}
    for sample in range(num):
        levels = iter(range(10**9))

        def choose(situation: Any, scores: Sequence[float], sample=sample, levels=levels) -> int:
            return draw_child(seed, query, sample, next(levels), scores)

        derivation = derive(Stages(choose=choose))
        path = ended.pop(sample)
        if list(path.steps) != derivation.steps or path.log_probability != derivation.log_probability:
            return f"sample {sample} of seed {seed}: expected {derivation}, found {path}"
        seen["samples not greedy"] += any(step.choice != step.scores.index(max(step.scores)) for step in path.steps)
    return f"more samples than {num}" if ended else ""


def _count(dialect: Dialect, found: kgreference.Search, seen: Counter[str]) -> None:
    """Count what occurred in a search."""
    seen[dialect.search.partition("(")[0]] += 1
    seen[found.outcome.name] += 1
    expansions = [each for level in found.levels for each in level]
    children = [child for each in expansions for child in each.children]
    proofs = [path for path in found.ended if path.steps[-1].outcome is Outcome.PROVED]
    lengths = {len(path.steps) for path in found.ended}
    seen["steps"] += len(expansions)
    seen["a child that is not kept"] += any(place == -1 for place, _ in children)
    seen["a path without kept children"] += any(each.step.choice < 0 for each in expansions)
    seen[f"merged by {dialect.merge}"] += any(place < -1 for place, _ in children)
    seen[f"several proofs, {dialect.aggregate}"] += len(proofs) > 1
    seen["ends at several levels"] += len(lengths) > 1
    seen["a gap between places"] += any(
        [each.path.place for each in level] != list(range(len(level))) for level in found.levels
    )
    seen["limited"] += found.is_limited
    for level in found.levels if dialect.search.startswith("beam") else []:
        values = [
            each.path.log_probability + log_softmax(each.step.scores, i)
            for each in level
            for i in range(len(each.children))
        ]
        kept = [place != -1 for each in level for place, _ in each.children]
        worst = [value for value, is_kept in zip(values, kept, strict=True) if is_kept]
        lost = [value for value, is_kept in zip(values, kept, strict=True) if not is_kept]
        seen["a tie at the edge of the beam"] += bool(lost) and max(lost) == min(worst)


def judge_beams(cases: Sequence[Case], seen: Counter[str], kept: Path | None = None) -> list[str]:
    """Return the first difference of each case in beams of several sizes by `shortest`, as Prolog computes them."""
    wrong = []
    for start in range(0, len(cases), MOST_PROGRAMS):
        some = cases[start : start + MOST_PROGRAMS]
        asked = [list(_draw_beams(case, random.Random(start + i))) for i, case in enumerate(some)]
        requests = [
            render_request(case, [f"beam({i}, {size}, {merge})" for i, size, merge in beams])
            for case, beams in zip(some, asked, strict=True)
        ]
        for case, beams, answer in zip(some, asked, ask(requests, kept), strict=True):
            assert answer is not None, f"Prolog cannot answer {case}"
            program = build_program(case)
            queries = encode_queries(program, case)
            for (number, size, merge), expected in zip(beams, answer[4], strict=True):
                message = _judge_beam(program, case, queries[number], size, merge, expected, seen)
                wrong += [f"{case}, query {number}, beam({size}), merge {merge}: {message}"] * bool(message)
    return wrong


def _draw_beams(case: Case, rng: random.Random) -> Iterator[tuple[int, int, str]]:
    for number in range(len(case.queries)):
        yield number, rng.choice((1, 2, 3, 4, 8)), rng.choice(("none", "none", "max"))


def _judge_beam(
    program: kgreference.Program,
    case: Case,
    query: kgreference.Atom,
    size: int,
    merge: str,
    expected: Any,
    seen: Counter[str],
) -> str:
    rows, outcome, is_limited, *aggregated = expected
    for aggregate, value in zip(kgreference.Aggregate, aggregated, strict=True):
        dialect = Dialect(search=f"beam({size})", merge=kgreference.Merge(merge), aggregate=aggregate)
        found = kgreference.search(program, limits_of(case), kgreference.Shortest(), query, dialect)
        if not math.isclose(found.log_probability, value, rel_tol=1e-9, abs_tol=1e-9):
            return f"{aggregate}: expected {value}, found {found.log_probability}"
    seen["beams"] += 1
    _count(dialect, found, seen)
    shown = [
        [
            level,
            path.place,
            path.parent,
            path.log_probability,
            [list(atom) for atom in step.goal],
            _show(step.after_limit),
            [place for place, _ in children],
        ]
        for level, expansions in enumerate(found.levels)
        for _, path, step, children in expansions
    ]
    for number, (wanted, row) in enumerate(zip(rows, shown, strict=False)):
        wanted[5] = [[KINDS[kind], ORIGINS[by], origin, atoms] for kind, by, origin, atoms in wanted[5]]
        if wanted != row:
            return f"row {number}: expected {wanted}, found {row}"
    if len(rows) != len(shown):
        return f"expected {len(rows)} rows, found {len(shown)}"
    if (found.outcome.name, found.is_limited) != (OUTCOMES[outcome], bool(is_limited)):
        return f"expected {OUTCOMES[outcome]}, limited {is_limited}, found {found.outcome.name}, {found.is_limited}"
    return ""


def _show(resolvents: Sequence[kgreference.Resolvent]) -> list[Any]:
    return [show_resolvent(each, is_canonical=True) for each in resolvents]
