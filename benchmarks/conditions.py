"""Score the conditions of causes."""

import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

import kgverify as kv
from benchmarks.shared import make_parser
from kgverify.comparison.equality import Equality
from kgverify.comparison.inference.origins import OriginInference
from kgverify.comparison.step_view import StepReader, StepView
from kgverify.conditions import describe, instances
from kgverify.conditions.batch import Candidate, CandidateReader
from kgverify.conditions.confirm import Tested
from kgverify.conditions.features import Feature, Scale, features_of, read_features
from kgverify.conditions.find import Found
from kgverify.conditions.instances import Cases, Instance, SeenStep, Unit, canonical
from kgverify.conditions.search import MODULI, MOST_OF_MODULUS
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Positions, make_positions
from kgverify.graphs.load import load_graph
from kgverify.program.atoms import Atom
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.prover.faults.plant import FAULTS as CATALOGUE
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, load_policy, reference_pipeline
from kgverify.step.clauses import Atoms, Clauses, number_variables
from kgverify.trace.model.columns import CandidateSet, concatenate, select_candidates
from kgverify.verification.verify import verify

# Sixty faults


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


FURTHER_FAULTS: Final = (
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


# Pairs of faults


OF_CANDIDATES: Final = "candidate"
"""The hook of faults that break whole candidates."""


def count_own(run: Run, faults: tuple[Fault, Fault, Fault], *, lockstep: bool) -> tuple[int, int]:
    """Return in how many steps the first fault changes what the second alone does not, and the reverse.

    faults: both, one by one, and as one

    Only steps from the goals of the sound engine count: without lockstep, those up to the first wrong one of a candidate.
    """
    sound = Prover(run.graph.program, run.limits, run.policy)
    candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    if faults[0].hook == OF_CANDIDATES:
        num = len(candidates.query)
        rows = [{i for i in range(num) if fault.holds(candidates, i, num)} for fault in faults[:2]]
        return len(rows[0] - rows[1]), len(rows[1] - rows[0])
    columns = sound.prove(candidates)
    reader = StepReader(columns)
    positions = [
        (row, i, [reader.goal_of(reader.first_step[row] + k) for k in range(i + 1)])
        for row, num in enumerate(columns.candidates.num_steps.tolist())
        for i in range(num)
    ]
    expected, first, second, both = (_step(run, fault, candidates, positions) for fault in (None, *faults))
    own = [0, 0]
    ended: set[int] = set()
    for i, (row, *_) in enumerate(positions):
        if row in ended:
            continue
        own[0] += both[i] != second[i]
        own[1] += both[i] != first[i]
        if both[i] != expected[i] and not lockstep:
            ended.add(row)
    return own[0], own[1]


def _step(
    run: Run, fault: Fault | None, candidates: CandidateSet, positions: Sequence[tuple[int, int, Any]]
) -> list[StepView]:
    """Take a step from each position, with a fault or without one."""
    engine = Prover(run.graph.program, run.limits, run.policy)
    engine.fault = fault
    goals = [goal for *_, visited in positions for goal in visited]
    columns = engine.step(
        Positions(
            candidates.take([row for row, *_ in positions]),
            np.array([depth for _, depth, _ in positions], np.uint16),
            np.array([len(visited) for *_, visited in positions], np.uint32),
            np.array([len(goal) for goal in goals], np.uint16),
            np.array([atom for goal in goals for atom in goal], np.int32).reshape(-1, 3),
        )
    )
    reader = StepReader(columns)
    return [reader.read(i) for i in range(len(positions))]


NUM_DRAWN: Final = 1_000
NUM_RUNS: Final = 2
"""The goals to draw at random for each run, and the runs."""

MOST_OF_STEP: Final = 24
MOST_INSTANCES: Final = 12_000
"""The instances to keep, of each step and in all."""

SAME: Final = 0.95
"""The share of two conditions' instances from which on they are one and the same, as in the score."""

_UNITS: Final = {"fact": Unit.FACT, "rule": Unit.RULE, "finish": Unit.STEP, "candidate": Unit.CANDIDATE}

Mask = NDArray[np.bool_]


class Sample(NamedTuple):
    """The instances of a graph at which a kind of fault may act.

    given:  the arguments of the fault's predicate
    values: float64 [n, F]
    """

    given: tuple[Any, ...]
    features: tuple[Feature, ...]
    values: NDArray[np.float64]


class _Watched(Prover):
    """A sound prover that notes in which step it asks a fault of some kind."""

    place = chosen = -1

    def watch(self, hook: str) -> list[tuple[int, Any]]:
        self.asked: list[tuple[int, Any]] = []
        self.place = self.chosen = -1
        self.fault = Fault("watch", hook, self._note)
        return self.asked

    def _note(self, *given: Any) -> bool:
        self.asked.append((self.place, given))
        return False

    def _run_stages(self, query: Any, visited: Any) -> Any:
        self.place += 1
        return super()._run_stages(query, visited)

    def _choose(self, goal: Any, depth: int, taken: Any) -> Any:
        # All steps of a batch are taken before any of them chooses.
        self.chosen += 1
        self.place = self.chosen
        return super()._choose(goal, depth, taken)


def why_alike(graph: str, limits: Limits, first: Fault, second: Fault) -> str:
    """Return why nobody can tell two faults apart; empty if that is possible."""
    sample = read_sample(graph, limits, first.hook)
    own = [np.array([bool(fault.holds(*given)) for given in sample.given], np.bool_) for fault in (first, second)]
    for fault, here, there in ((first, *own), (second, *own[::-1])):
        if not (here & ~there).any():
            return f"{fault.name} never acts alone"
    both = own[0] | own[1]
    if both.all():
        return "together they act everywhere"
    comparisons = list(_comparisons(sample, both))
    single = next((text for text, mask in comparisons if (mask == both).all()), "")
    return single or _find_two(comparisons, own[0], own[1])


def _find_two(comparisons: Sequence[tuple[str, Mask]], first: Mask, second: Mask) -> str:
    """Return two other comparisons of which one or the other holds exactly where one of the faults acts."""
    both = first | second
    pure = {mask.tobytes(): (text, mask) for text, mask in comparisons if not (mask & ~both).any()}
    texts = [text for text, _ in pure.values()]
    masks = np.array([mask[both] for _, mask in pure.values()], np.bool_).reshape(len(pure), -1)
    parts = first[both], second[both]
    sizes = masks.sum(1)
    for i in np.flatnonzero(sizes * 2 >= both.sum()).tolist():
        rest = ~masks[i]
        large = np.flatnonzero(sizes >= rest.sum())
        for j in large[masks[np.ix_(large, rest)].all(1)].tolist():
            pair = masks[i], masks[j]
            if not any(_is_same(pair[0], here) and _is_same(pair[1], there) for here, there in (parts, parts[::-1])):
                return f"{texts[i]} or {texts[j]}"
    return ""


def _is_same(mask: Mask, other: Mask) -> bool:
    both = (mask & other).sum()
    return bool(both >= SAME * mask.sum() and both >= SAME * other.sum())


def _comparisons(sample: Sample, wrong: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the comparisons that may hold for what goes wrong alone, in words: the widest of each feature."""
    for i, feature in enumerate(sample.features):
        x = sample.values[:, i]
        right, name = np.unique(x[~wrong]), feature.name
        for value in np.setdiff1d(np.unique(x[wrong]), right).tolist():
            yield f"{name} {value:g}", x == value
        if len(right) == 1:
            yield f"{name} other than {right[0]:g}", x != right[0]
        if feature.scale in (Scale.FLAG, Scale.ID):
            continue
        yield f"{name} above {right[-1]:g}", x > right[-1]
        yield f"{name} below {right[0]:g}", x < right[0]
        for modulus in MODULI if feature.scale is Scale.COUNT else ():
            if modulus > MOST_OF_MODULUS:
                break
            for remainder in np.setdiff1d(np.mod(x[wrong], modulus), np.mod(right, modulus)).tolist():
                yield f"{name} {remainder:g} modulo {modulus}", np.mod(x, modulus) == remainder


# The sample


@cache
def read_sample(graph: str, limits: Limits, hook: str) -> Sample:
    """Return the instances of a graph at which a kind of fault may act."""
    unit = _UNITS.get(hook, Unit.RESOLVENT)
    found = [
        each
        for seed in range(NUM_RUNS)
        for each in _ask(Run(load_graph(graph), limits, SHORTEST, num_queries=8, num_corruptions=10, seed=seed), hook)
    ]
    if len(found) > MOST_INSTANCES:
        found = Random(0).sample(found, MOST_INSTANCES)
    columns = [(feature, [feature.value(instance) for instance, _ in found]) for feature in features_of(unit)]
    known = [(feature, values) for feature, values in columns if all(v is not None and v == v for v in values)]
    return Sample(
        tuple(given for _, given in found),
        tuple(feature for feature, _ in known),
        np.array([list(map(float, values)) for _, values in known]).reshape(len(known), -1).T,  # type: ignore[arg-type]
    )


def _ask(run: Run, hook: str) -> Iterator[tuple[Instance, Any]]:
    """Yield the instances at which a fault is asked in a run, and in steps from random goals, with its arguments."""
    program = run.graph.program
    inference = OriginInference(Clauses(program, exclude_query=run.limits.exclude_query))
    engine = _Watched(program, run.limits, run.policy)
    candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    columns = engine.prove(candidates)
    reader = CandidateReader(columns.candidates, None, engine.info, inference)
    if hook == "candidate":
        num = len(candidates.query)
        for row in range(num):
            yield Instance(Unit.CANDIDATE, False, row, reader.read(row)), (candidates, row, num)
        return
    steps = StepReader(columns)
    problems = [
        (reader.read(row), tuple(canonical(steps.goal_of(steps.first_step[row] + k)) for k in range(i + 1)))
        for row, num in enumerate(columns.candidates.num_steps.tolist())
        for i in range(num)
    ]
    rng = Random(run.seed)
    problems += [_draw(rng, problems, inference, run.limits) for _ in range(NUM_DRAWN)]
    asked = engine.watch(hook)
    views = StepReader(engine.step(_positions(problems)))
    data = instances.Run(
        run.limits,
        inference,
        inference.at,
        has_scores=True,
        has_origins=True,
        has_counts=True,
        follows_semantics=True,
    )
    seen = [
        SeenStep(
            data,
            who,
            len(visited) - 1,
            views.read(i),
            None,
            inference.at(visited[-1], who.atom),
            tuple(tuple(Atom(*atom) for atom in goal) for goal in visited[:-1]),
        )
        for i, (who, visited) in enumerate(problems)
    ]
    by_step: dict[int, list[Any]] = {}
    for place, given in asked:
        by_step.setdefault(place, []).append(given)
    for place, every in by_step.items():
        for given in every if len(every) <= MOST_OF_STEP else rng.sample(every, MOST_OF_STEP):
            for instance in _instances(seen[place], hook, given):
                yield instance, given


def _instances(step: SeenStep, hook: str, given: Any) -> Iterator[Instance]:
    """Yield the instances of a step for which a fault is asked with some arguments."""
    if hook == "finish":
        yield Instance(Unit.STEP, False, None, step.candidate, step)
        return
    if hook in ("fact", "rule", "resolve"):
        clauses = [(int(given[0].clause.origin_kind), int(given[0].clause.origin))]
    elif hook == "prune":
        clauses = [c for c, made in step.made.items() if number_variables(iter(made.atoms)) == canonical(given[0])]
    else:
        clauses = [c for c, atoms in step.kept.items() if atoms == canonical(given[1 if hook == "score" else 0])]
    for clause in clauses:
        yield Instance(_UNITS.get(hook, Unit.RESOLVENT), False, clause, step.candidate, step, clause)


def _draw(
    rng: Random, problems: Sequence[tuple[Candidate, tuple[Atoms, ...]]], inference: OriginInference, limits: Limits
) -> tuple[Candidate, tuple[Atoms, ...]]:
    """Return a goal of facts, with variables for some of their constants, after goals of the run or instead of them."""
    who, visited = rng.choice(problems)
    facts = inference.clauses.facts
    atoms = []
    for i in range(rng.randint(1, limits.max_atoms or 3)):
        p, a, b = rng.choice(facts)
        atoms.append((p, -1 if rng.random() < 0.4 else a, -1 - rng.randrange(i + 2) if rng.random() < 0.4 else b))
    goal = number_variables(iter(atoms))
    depth = rng.randrange(limits.max_depth or 6)
    return who, (*(visited * (depth + 1))[:depth], goal)


def _positions(problems: Sequence[tuple[Candidate, tuple[Atoms, ...]]]) -> Positions:
    who = [candidate for candidate, _ in problems]
    return make_positions(
        CandidateSet(
            np.array([each.query for each in who], np.int32),
            np.array([each.side for each in who], np.int8),
            np.array([each.atom for each in who], np.int32).reshape(-1, 3),
        ),
        np.array([len(visited) - 1 for _, visited in problems]),
        [visited for _, visited in problems],
    )


# The score


SMALL: Final = Limits(max_depth=6, max_atoms=3, max_resolvents=8)
TIGHT: Final = Limits(max_depth=5, max_atoms=3, max_resolvents=4)
ARENAS: Final = (
    ("countries", Limits(), "shortest", 8, 12, 16),
    ("random:1", TIGHT, "shortest", 10, 8, 5),
    ("random:4", TIGHT, "shortest", 10, 8, 5),
    ("family", TIGHT, "shortest", 8, 6, 16),
)
"""Graph, limits, policy, queries, corruptions and slots, in the order in which a fault of the catalogue is tried."""

INEXPRESSIBLE: Final = {
    "stale-resolvents": "the step before decides, and its resolvents are not a feature",
    "bf16-scores": "the bits of a score before rounding, beside its tolerance",
    "tf32-scores": "needs weights",
    "stale-weights": "every score is wrong",
    "last-argmax": "every step is wrong that has a tie",
    "visited-leak": "what the slot before has visited by then, which rests on the order of the work within a step",
    "stale-excluded-atom": "the first candidate of the slot",
    "clamped-results": "when a slot becomes idle",
    "overwritten-output": "what the slot before does at the same time",
    "idle-slots": "the remainder of candidates by slots: one or two candidates",
    "chunk-boundary-doubled": "a candidate that only one side has",
    "stream-per-chunk": "a draw, not a derivation",
    "known-triples": "a draw, not a derivation",
    "swapped-arguments": "a draw, not a derivation",
    "padding-ranked": "a draw, not a derivation",
    "no-push-down": "a ranking, not a derivation",
    "optimistic-ties": "a ranking, not a derivation",
}
"""The faults of the catalogue whose condition cannot be said in the features, and why."""

MOST_SECOND_RUNS: Final = 4
"""The second runs to make, each with other queries, until one shows the fault."""

EXACT, NEARLY, WRONG, NONE, SILENT = "exact", "0.95", "wrong", "none", "does nothing"
MASKED: Final = "masked"
"""The result of a pair of faults of which one changes nothing that the other one leaves right: it proves nothing."""


PARTS: Final = ("catalogue", "further", "alone", "pairs", "lockstep")
"""The parts of the score; lockstep has pairs again."""


class Score(msgspec.Struct, kw_only=True):
    """The result of one trial.

    results:    of the first cause: exact, 0.95, wrong, none; of all causes: wrong if any condition is
    experiments: the verdicts of the experiments
    seconds:    CPU time that the conditions took
    alike:      why nobody can tell the two faults of a pair apart; empty if that is possible
    """

    name: str
    result: str
    graph: str = ""
    sentences: list[str] = []
    experiments: list[str] = []
    seconds: float = 0.0
    alike: str = ""


class Table(msgspec.Struct, kw_only=True):
    """Instances of a second run: columns by feature."""

    unit: str
    wrong: str
    columns: dict[str, list[float]]
    is_wrong: list[bool]


@contextmanager
def _recording(*, tests: bool) -> Iterator[tuple[list[Found], list[Cases]]]:
    """Record what the search finds, and among which instances. tests: whether experiments are made."""
    found: list[Found] = []
    cases: list[Cases] = []
    originals = describe.find_condition, describe.show, describe.confirm

    def find(stage: str, every: Any, own: Any = ()) -> Any:
        listed = list(every)
        cases.extend(listed)
        return originals[0](stage, listed, own)

    def show(stage: str, best: Found, experiment: Any = None) -> Any:
        if experiment is None or experiment.verdict != "refuted":
            found.append(best)
        return originals[1](stage, best, experiment)

    describe.find_condition, describe.show = find, show
    if not tests:
        describe.confirm = lambda stage, best, *given: Tested(best)
    try:
        yield found, cases
    finally:
        describe.find_condition, describe.show, describe.confirm = originals


def _verify(run: Run, actual: Pipeline, *, lockstep: bool = False) -> Any:
    sides = reference_pipeline(run), actual
    return verify(run, *sides, equality=Equality(lockstep=lockstep, determinism=False, minimum={})).report


def _tables(cases: Sequence[Cases]) -> list[Table]:
    tables = []
    for each in cases:
        if not any(i.is_wrong for i in each.instances):
            continue
        columns: dict[str, list[float]] = {}
        for feature in read_features():
            if each.unit in feature.of:
                values = [feature.value(i) for i in each.instances]
                if all(v is not None and v == v for v in values):
                    columns[feature.name] = [float(v) for v in values]  # type: ignore[arg-type]
        tables.append(
            Table(
                unit=each.unit.value, wrong=each.wrong, columns=columns, is_wrong=[i.is_wrong for i in each.instances]
            )
        )
    return tables


def judge(found: Found, tables: Sequence[Table]) -> str | None:
    """Return how a condition does in a second run; None if nothing there can be compared with it."""
    best = None
    for table in tables:
        if (table.unit, table.wrong) != (found.cases.unit.value, found.cases.wrong):
            continue
        used = found.condition.used
        names = [feature.name for feature in found.table.features]
        if any(names[i] not in table.columns for i in used):
            continue
        values = np.zeros((len(table.is_wrong), len(names)))
        for i in used:
            values[:, i] = table.columns[names[i]]
        inside, wrong = found.condition.holds(values), np.array(table.is_wrong)
        both = int((inside & wrong).sum())
        precision, recall = both / max(1, int(inside.sum())), both / max(1, int(wrong.sum()))
        share = min(precision, recall)
        best = share if best is None else max(best, share)
    if best is None:
        return None
    return EXACT if best == 1 else NEARLY if best >= 0.95 else WRONG


def _score(name: str, graph: str, makes: Any) -> tuple[Score, list[Table]]:
    """Run twice, and judge the conditions of the first run by the second one, which shows the fault as well."""
    began = time.process_time()
    with _recording(tests=True) as (found, _):
        report = makes(0)
    if not report.causes:
        return Score(name=name, result=SILENT, graph=graph), []
    tables: list[Table] = []
    for seed in range(1, MOST_SECOND_RUNS + 1):
        with _recording(tests=False) as (_, cases):
            makes(seed)
        if tables := _tables(cases):
            break
    verdicts = [judge(each, tables) for each in found if each.condition.tests and not each.is_partial]
    stated = [verdict for verdict in verdicts if verdict is not None]
    result = WRONG if WRONG in stated else EXACT if EXACT in stated else NEARLY if NEARLY in stated else NONE
    return Score(
        name=name,
        result=result,
        graph=graph,
        sentences=[f"{each.stage} {each.kind.value}: {each.condition}" for each in report.causes],
        experiments=[each.when.experiment.verdict for each in report.causes if each.when and each.when.experiment],
        seconds=time.process_time() - began,
    ), tables


def _first_judged(trials: Iterable[tuple[Score, list[Table]]]) -> tuple[Score, list[Table]]:
    """Return the first trial whose second run shows the fault; else the first in which it does anything, or any."""
    best: tuple[Score, list[Table]] | None = None
    for trial in trials:
        if trial[1]:
            return trial
        if best is None or best[0].result == SILENT:
            best = trial
    assert best is not None
    return best


def try_catalogued(name: str) -> tuple[Score, list[Table]]:
    """Plant a fault of the catalogue in the compiled evaluator, in the first arena in which both runs show it."""
    return _first_judged(_try_arenas(name))


def _try_arenas(name: str) -> Iterator[tuple[Score, list[Table]]]:
    for graph, limits, policy, queries, corruptions, slots in ARENAS:
        loaded = load_graph(graph)
        chosen = SHORTEST if policy == "shortest" else load_policy(policy, loaded, limits, 0)

        def make(seed: int, loaded=loaded, limits=limits, chosen=chosen, q=queries, c=corruptions, s=slots) -> Any:
            run = Run(loaded, limits, chosen, num_queries=q + 4 * seed, num_corruptions=c, seed=seed)
            return _verify(run, evaluator_pipeline(run, faults=[name], mode="eager", device="cpu", slots=s))

        yield _score(name, graph, make)


def _python_pipeline(run: Run, fault: Fault | None) -> Pipeline:
    engine = Prover(run.graph.program, run.limits, run.policy)
    engine.fault = fault
    return Pipeline(engine, draw_candidates, rank_candidates)


def try_further(fault: Fault) -> tuple[Score, list[Table]]:
    """Plant a further fault in the prover in Python, in the first graph in which both runs show it."""
    return _first_judged(_try_graphs(fault))


def _try_graphs(fault: Fault) -> Iterator[tuple[Score, list[Table]]]:
    for graph in ("countries", "random:1", "random:4", "family"):
        loaded = load_graph(graph)

        def make(seed: int, loaded=loaded) -> Any:
            run = Run(loaded, SMALL, SHORTEST, num_queries=5 + 3 * seed, num_corruptions=10, seed=seed)
            return _verify(run, _python_pipeline(run, fault))

        yield _score(fault.name, graph, make)


def _further(i: int) -> tuple[Score, list[Table]]:
    return try_further(FURTHER_FAULTS[i])


def _alone(i: int) -> tuple[Score, list[Table]]:
    """Try an engine without a fault, for even numbers, or one that errs at random in 1 % of cases."""
    hooks = ("fact", "rule", "resolve", "candidate", "score")
    hook = hooks[i // 2 % len(hooks)]

    def holds(*given: Any) -> bool:
        if hook in ("fact", "rule", "resolve"):
            given = (given[0].goal, given[0].clause, given[0].depth, given[0].engine.query)
        elif hook == "candidate":
            given = given[1:]
        return zlib.crc32(repr((i, given)).encode()) % 100 == 0

    fault = Fault(f"random {hook} {i}", hook, holds) if i % 2 else None
    loaded = load_graph(("countries", "random:1", "random:4")[i % 3])
    run = Run(loaded, SMALL, SHORTEST, num_queries=8, num_corruptions=10, seed=i)
    with _recording(tests=True) as (found, _):
        report = _verify(run, _python_pipeline(run, fault))
    stated = [each for each in found if each.is_exact and each.condition.tests]
    name = fault.name if fault else f"sound {i}"
    result = SILENT if not report.causes else EXACT if stated else NONE
    return Score(name=name, result=result, graph=loaded.name, sentences=[each.condition for each in report.causes]), []


def _pair(given: tuple[int, int, str, bool, Path]) -> tuple[Score, list[Table]]:
    """Plant two faults of one stage, and look for both conditions, each judged by the second run of its own fault."""
    i, j, graph, lockstep, folder = given
    first, second = FURTHER_FAULTS[i], FURTHER_FAULTS[j]
    both = Fault("both", first.hook, lambda *at: first.holds(*at) | second.holds(*at))
    name = f"{first.name} + {second.name}"
    run = Run(load_graph(graph), SMALL, SHORTEST, num_queries=8, num_corruptions=10, seed=0)
    if min(count_own(run, (first, second, both), lockstep=lockstep)) == 0:
        return Score(name=name, result=MASKED, graph=graph), []
    alike = why_alike(graph, SMALL, first, second)
    began = time.process_time()
    with _recording(tests=True) as (found, _):
        report = _verify(run, _python_pipeline(run, both), lockstep=lockstep)
    stated = [each for each in found if each.condition.tests]
    stated = [each._replace(condition=part) for each in stated for part in each.condition.parts]
    truths = [_read_trial(folder, "further", fault.name)[1] for fault in (first, second)]
    apart = [any(judge(each, tables) in (EXACT, NEARLY) for each in stated) for tables in truths]
    return Score(
        name=name,
        result=EXACT if all(apart) else NONE,
        graph=graph,
        alike=alike,
        sentences=[f"{each.stage} {each.kind.value}: {each.condition}" for each in report.causes],
        experiments=[each.when.experiment.verdict for each in report.causes if each.when and each.when.experiment],
        seconds=time.process_time() - began,
    ), []


class Trial(msgspec.Struct):
    """A finished trial: its score, and the instances of its second run."""

    score: Score
    tables: list[Table]


def _path(folder: Path, key: str, name: str) -> Path:
    return folder / f"{key}-{''.join(c if c.isalnum() else '_' for c in name)}.msgpack"


def _read_trial(folder: Path, key: str, name: str) -> tuple[Score, list[Table]]:
    trial = msgspec.msgpack.decode(_path(folder, key, name).read_bytes(), type=Trial)
    return trial.score, trial.tables


def _keep(task: tuple[Path, str, str, Callable[[Any], tuple[Score, list[Table]]], Any]) -> Score:
    """Return the score of a trial that the folder has, or make the trial and add it."""
    folder, key, name, make, given = task
    path = _path(folder, key, name)
    if not path.exists():
        trial = Trial(*make(given))
        partial_path = path.with_suffix(".partial")
        partial_path.write_bytes(msgspec.msgpack.encode(trial))
        partial_path.replace(path)
    return _read_trial(folder, key, name)[0]


def _share(num: int, of: int, target: float) -> tuple[str, bool]:
    return f"{num} of {of} ({100 * num / max(1, of):.0f} %)", of > 0 and num >= target * of


def figures(scores: dict[str, list[Score]]) -> list[tuple[str, str, str, bool]]:
    """Return each figure with its target, and whether it is met."""
    rows = []
    for key, title, exact, nearly in (
        ("catalogue", "faults of the catalogue", 0.8, 0.95),
        ("further", "60 further faults", 0.7, 0.9),
    ):
        every = [each for each in scores[key] if each.result != SILENT and each.name not in INEXPRESSIBLE]
        said = [sum(each.result in wanted for each in every) for wanted in ((EXACT,), (EXACT, NEARLY))]
        num_wrong = sum(each.result == WRONG for each in scores[key])
        rows.append((f"{title}: condition exact in a second run", *_with(said[0], len(every), exact)))
        rows.append((f"{title}: precision and recall of 0.95 there", *_with(said[1], len(every), nearly)))
        rows.append((f"{title}: wrong", f"{num_wrong}", "0", num_wrong == 0))
    none = [each for each in scores["alone"] if each.result == EXACT]
    num = len(scores["alone"])
    rows.append(("no fault, or 1 % at random: exact conditions", f"{len(none)} in {num} runs", "0", not none))
    tested = [verdict for key in ("catalogue", "further") for each in scores[key] for verdict in each.experiments]
    tested = [verdict for verdict in tested if verdict != "not testable"]
    rows.append(("confirmed by experiment, where one exists", *_with(tested.count("confirmed"), len(tested), 0.9)))
    for key, mode in (("pairs", "free-running"), ("lockstep", "lockstep")):
        drawn = [each for each in scores[key] if each.result != MASKED]
        counted = [each for each in drawn if not each.alike]
        title = f"pairs of faults in one stage told apart, {mode}"
        rows.append((title, *_with(sum(each.result == EXACT for each in counted), len(counted), 0.9)))
        left_out = f"{len(scores[key]) - len(drawn)} masked and {len(drawn) - len(counted)} alike"
        whole, _ = _share(sum(each.result == EXACT for each in drawn), len(drawn), 0.9)
        rows.append(
            (f"pairs left out of that, {mode}; told apart with those that are alike", f"{left_out}; {whole}", "", True)
        )
    return rows


def _with(num: int, of: int, target: float) -> tuple[str, str, bool]:
    text, is_met = _share(num, of, target)
    return text, f"{target:.0%}", is_met


def _draw_pairs(
    pool: ProcessPoolExecutor, folder: Path, scores: Sequence[Score], num: int, *, lockstep: bool
) -> Iterator[Score]:
    """Yield the scores of pairs, in a random order, until some number of them count."""
    usable = [i for i, score in enumerate(scores) if score.result == EXACT]
    choices = [
        (i, j)
        for i, j in combinations(usable, 2)
        if FURTHER_FAULTS[i].hook == FURTHER_FAULTS[j].hook and scores[i].graph == scores[j].graph
    ]
    random.Random(0).shuffle(choices)
    key = "lockstep" if lockstep else "pairs"
    while choices and num > 0:
        drawn, choices = choices[:num], choices[num:]
        tasks = [
            (
                folder,
                key,
                f"{FURTHER_FAULTS[i].name} + {FURTHER_FAULTS[j].name}",
                _pair,
                (i, j, scores[i].graph, lockstep, folder),
            )
            for i, j in drawn
        ]
        for score in pool.map(_keep, tasks):
            num -= score.result != MASKED and not score.alike
            yield score


def run_conditions(words: list[str]) -> int:
    """Score the conditions of causes: of the catalogue, sixty further faults, pairs, random faults, and none.

        python -m benchmarks conditions --jobs 2 --save condition-trials

    A later call with the same folder resumes. The truth is the behaviour of both engines in a second run, with other
    queries, which the search has not seen: a stated condition must hold there for everything that goes wrong and for
    nothing else. A pair of faults counts if each of them changes a step that the other one leaves right, which the
    engines themselves show, and if no condition of at most two comparisons says the same as both together, which a
    sample shows that the search has not seen. The table goes to standard output, with the pairs that nobody can tell
    apart; the exit code is 0 if every figure meets its target.
    """
    parser = make_parser(run_conditions)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; all if not given")
    parser.add_argument("--alone", type=int, default=40, help="runs without a fault, or with one that acts at random")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of faults, in each mode")
    parser.add_argument("--save", type=Path, required=True, help="a folder for finished trials, from which it resumes")
    given = parser.parse_args(words)
    parts, folder = given.only or PARTS, given.save
    folder.mkdir(parents=True, exist_ok=True)
    scores: dict[str, list[Score]] = {key: [] for key in PARTS}
    with ProcessPoolExecutor(given.jobs) as pool:

        def run(key: str, results: Iterable[Score]) -> None:
            for score in results:
                scores[key].append(score)
                print(
                    f"{score.name} [{score.graph}] {score.result} {score.experiments} {score.seconds:.1f}s",
                    file=sys.stderr,
                )
                print("".join(f"    {text}\n" for text in score.sentences), file=sys.stderr, end="", flush=True)

        if {"further", "pairs", "lockstep"} & set(parts):
            tasks = [(folder, "further", fault.name, _further, i) for i, fault in enumerate(FURTHER_FAULTS)]
            run("further", pool.map(_keep, tasks))
        if "alone" in parts:
            run("alone", pool.map(_keep, [(folder, "alone", str(i), _alone, i) for i in range(given.alone)]))
        if "catalogue" in parts:
            run("catalogue", pool.map(_keep, [(folder, "catalogue", name, try_catalogued, name) for name in CATALOGUE]))
        for key in ("pairs", "lockstep"):
            if key in parts:
                run(key, _draw_pairs(pool, folder, scores["further"], given.pairs, lockstep=key == "lockstep"))
    print("| figure | measured | target |\n|---|---|---|")
    rows = figures(scores)
    for title, text, target, _ in rows:
        print(f"| {title} | {text} | {target} |")
    alike = {each.name: each.alike for key in ("pairs", "lockstep") for each in scores[key] if each.alike}
    print("".join(f"\n- {name}: {why}" for name, why in alike.items()))
    return 0 if all(is_met for *_, is_met in rows) else 1
