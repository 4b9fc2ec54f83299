"""Decide without any search whether the behaviour of an engine distinguishes two faults of one stage.

A sound prover takes the steps of two runs, and steps from goals that are drawn at random. Each question that it asks a fault is
an instance, and the faults themselves answer which instances go wrong. Nobody can tell the two faults apart if one of them never
acts alone, if a single comparison says the same as both together, or if two other comparisons do.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.inference.origins import OriginInference
from kgverify.comparison.step_view import StepReader
from kgverify.conditions.batch import Candidate, CandidateReader
from kgverify.conditions.features import Feature, Scale, features_of
from kgverify.conditions.instances import Instance, Run, SeenStep, Unit, canonical
from kgverify.conditions.search import MODULI, MOST_OF_MODULUS
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Positions, make_positions
from kgverify.graphs.load import load_graph
from kgverify.program.atoms import Atom
from kgverify.program.limits import Limits
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run as Recording
from kgverify.step.clauses import Atoms, Clauses, number_variables
from kgverify.trace.model.columns import CandidateSet

from .further_faults import Fault, Prover

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
        for each in _ask(
            Recording(load_graph(graph), limits, SHORTEST, num_queries=8, num_corruptions=10, seed=seed), hook
        )
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


def _ask(run: Recording, hook: str) -> Iterator[tuple[Instance, Any]]:
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
    data = Run(
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
