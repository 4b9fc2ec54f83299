"""What a list of problems exercises when the reference runs them; a feature that never occurs is a hole in the fuzzing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from kgverify.engines.protocol import ProbedEngine, positions_of, take_position
from kgverify.errors import InternalError
from kgverify.program.outcomes import Outcome
from kgverify.testing.checking.check import Batch, prepare_batches
from kgverify.testing.problems.features import (
    ALL_FEATURES,
    FEATURES_BY_TITLE,
    derivation_features,
    program_features,
    query_features,
    step_features,
)
from kgverify.testing.problems.problem import Problem
from kgverify.trace.model.columns import starts_of


@dataclass(frozen=True)
class Distribution:
    """How often each feature occurs, and how long and how wide derivations are.

    problems:   in which each feature occurs; every feature is listed, one that never occurs with 0
    num_problems, num_candidates, num_steps, num_resolvents: in all
    sizes:      facts + rules + body atoms of each problem
    steps:      of each candidate
    resolvents: of each step
    """

    problems: dict[str, int]
    num_problems: int
    num_candidates: int
    num_steps: int
    num_resolvents: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    resolvents: tuple[int, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """The features that never occur."""
        return tuple(name for name, count in self.problems.items() if not count)

    def render(self) -> str:
        """The report as a table of text."""
        width = max(map(len, ALL_FEATURES))
        lines = [
            f"{self.num_problems:,} problems, {self.num_candidates:,} candidates, {self.num_steps:,} steps,"
            f" {self.num_resolvents:,} resolvents",
            "",
            f"{'':{width}}   mean    p50    p99    max",
            *(
                f"{name:{width}} {_spread(values)}"
                for name, values in (
                    ("facts, rules and body atoms of a problem", self.sizes),
                    ("steps of a candidate", self.steps),
                    ("resolvents of a step", self.resolvents),
                )
            ),
        ]
        for title, features in FEATURES_BY_TITLE.items():
            lines += ["", f"{title:{width}} problems   share"]
            for name in features:
                count = self.problems[name]
                lines.append(f"{name:{width}} {count:8,} {count / max(1, self.num_problems):7.1%}")
        return "\n".join(lines) + "\n"


def measure_distribution(problems: Sequence[Problem]) -> Distribution:
    """Run the problems on the reference, every step with its stages watched, and count what occurs."""
    batches = prepare_batches(problems)
    counts: Counter[str] = Counter()
    for batch in batches:
        for features in _batch_features(batch):
            counts.update(features)
    columns = [batch.expected.columns for batch in batches]
    return Distribution(
        problems={name: counts[name] for name in ALL_FEATURES},
        num_problems=len(problems),
        num_candidates=sum(len(each.candidates.query) for each in columns),
        num_steps=sum(len(each.steps.depth) for each in columns),
        num_resolvents=sum(len(each.resolvents.kind) for each in columns),
        sizes=tuple(problem.size for problem in problems),
        steps=tuple(chain.from_iterable(each.candidates.num_steps.tolist() for each in columns)),
        resolvents=tuple(chain.from_iterable(each.steps.num_resolvents.tolist() for each in columns)),
    )


def _batch_features(batch: Batch) -> list[set[str]]:
    """The features of each problem of a batch."""
    problems = batch.merged.problems
    found = [{*program_features(problem), *query_features(problem)} for problem in problems]
    columns, rankings = batch.expected.columns, batch.expected.rankings
    candidates, steps = columns.candidates, columns.steps
    owner = batch.merged.owner[candidates.query].tolist()
    for place, outcome, num_steps in zip(
        owner, candidates.outcome.tolist(), candidates.num_steps.tolist(), strict=True
    ):
        found[place].update(derivation_features(outcome, num_steps, problems[place].limits))
    for place, count in Counter(owner).items():
        if count > problems[place].sizes.slots:
            found[place].add("more candidates than slots")

    engine = batch.pipeline.engine
    if not isinstance(engine, ProbedEngine):
        raise InternalError("the reference cannot be probed")
    positions = positions_of(columns)
    queries = list(map(tuple, candidates.atom.tolist()))
    atoms = list(map(tuple, steps.goal_atoms.tolist()))
    goals = [tuple(atoms[a:b]) for a, b in pairwise(starts_of(steps.num_atoms).tolist())]
    row = 0
    for candidate, num_steps in enumerate(candidates.num_steps.tolist()):
        place = owner[candidate]
        for _ in range(num_steps):
            outputs = engine.probe(take_position(positions, row))
            found[place].update(step_features(outputs, problems[place], queries[candidate], goals[row]))
            row += 1
        last = row - 1
        if candidates.outcome[candidate] == Outcome.FAILED and (
            steps.dropped_atoms[last] or steps.dropped_resolvents[last]
        ):
            found[place].add("FAILED by limits alone")
    if rankings is not None:
        for query in rankings.query[rankings.optimistic != rankings.pessimistic].tolist():
            found[int(batch.merged.owner[query])].add("ranks that tie")
    for place in _pushed_down(batch):
        found[place].add("an unproved candidate above a proved one, but for the push-down")
    return found


def _pushed_down(batch: Batch) -> set[int]:
    """The problems in which an unproved candidate has a higher log-probability than a proved one of its query and side."""
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


def _spread(values: Sequence[int]) -> str:
    numbers = np.array(values or (0,))
    return f"{numbers.mean():6.1f} {np.median(numbers):6.0f} {np.percentile(numbers, 99):6.0f} {numbers.max():6d}"
