"""The plain evaluator as an engine."""

import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.adapters.searching import collect_levels, collect_search
from kgverify.engines.adapters.stepwise import collect, read_positions
from kgverify.engines.plain.choice import PLAIN
from kgverify.engines.policy import Policy, check_policy
from kgverify.engines.protocol import Positions, StageOutputs, find_positives
from kgverify.program.fact_index import Ids
from kgverify.program.limits import OURS, Limits
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.step.clauses import Atoms, Clauses, number_variables
from kgverify.step.plain_step import (
    SOUND,
    Resolvent,
    Scores,
    Situation,
    Stages,
    TakenStep,
    derive,
    retake_step,
    score_shortest,
    show_stages,
)
from kgverify.step.search import ALL_SOUND, Level, Path, Searches, SearchStages, take_level
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.score_tolerance import bound_score_error


class PlainEngine:
    """An engine that takes the plain step, in every dialect, with scores in float64.

    stages:  the stages of the step; each of them may be replaced
    searching: the stages of a search with several paths; each of them may be replaced
    triples: int32 [n, 3] the split of the queries; it identifies the positives in a dialect that excludes only
             positives
    reasons: the reasons for the device, mode and precision, in words

    UserError if the policy does not fit the program.
    """

    def __init__(
        self,
        program: Program,
        limits: Limits,
        policy: Policy,
        *,
        stages: Stages = SOUND,
        searching: SearchStages = ALL_SOUND,
        triples: NDArray[np.int32] | None = None,
        faults: tuple[str, ...] = (),
        reasons: tuple[str, ...] = (),
    ) -> None:
        check_policy(policy, program, limits)
        scores: Scores = score_shortest
        if policy.scorer is not None:
            scores = partial(_score_by, policy)
        elif policy.name != "shortest":
            scores = score_two_tower(policy.weights, policy.num_blocks)
        clauses = Clauses(program, exclude_query=limits.exclude_query, dialect=limits.dialect)
        self._start = Situation(clauses, limits, None, (), scores=scores)
        self._stages, self._searching, self.triples, self.reasons = stages, searching, triples, reasons
        self.info = EngineInfo(
            name=PLAIN,
            mode=PLAIN,
            score_error=bound_score_error(policy.info, "float64"),
            versions={"python": platform.python_version(), "numpy": np.__version__},
            faults=faults,
            variables="canonical" if limits.dialect.forgets_names else "own",
        )

    @property
    def stages(self) -> Stages:
        """The functions of a step."""
        return self._stages

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end."""
        if self._start.dialect.search != OURS.search:
            return self._search(candidates, progress)
        derivations: list[list[TakenStep]] = []
        # A triple may be a corruption of several queries.
        known: dict[tuple[Atoms, Ids | None], list[TakenStep]] = {}
        for situation in self._situations(candidates):
            key = situation.goal, situation.excluded
            if key not in known:
                known[key] = list(derive(situation, self._stages))
            derivations.append(known[key])
            progress(1)
        return collect(candidates, derivations)

    def _search(self, candidates: CandidateSet, progress: Progress) -> Columns:
        situations = self._situations(candidates)
        searches = Searches(self._start.limits, [each.goal for each in situations])
        level = 0
        while searches.open:
            found = [self._take_level(situations[i], level, searches.beams[i][-1]) for i in searches.open]
            progress(searches.advance(found))
            level += 1
        conclude = partial(self._searching.aggregate, self._start.dialect)
        found_all = [searches.conclude(i, conclude) for i in range(len(situations))]
        return collect_search(candidates, self._start.limits, found_all)

    def take_beams(self, candidates: CandidateSet, beams: Sequence[Sequence[Path]]) -> Columns:
        """Take a level of each beam; return columns with a candidate for each, whose steps are its paths."""
        situations = self._situations(candidates)
        # Every path of a beam has taken as many steps as the beam has levels.
        levels = [
            self._take_level(each, len(beam[0].visited) - 1, beam) for each, beam in zip(situations, beams, strict=True)
        ]
        return collect_levels(candidates, self._start.limits, beams, levels)

    def _take_level(self, situation: Situation, level: int, beam: Sequence[Path]) -> Level:
        return take_level(situation, level, beam, self._stages, self._searching)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        steps = [[retake_step(each, self._stages).taken] for each in self._read_positions(positions)]
        return collect(positions.candidates, steps)

    def probe(self, position: Positions) -> StageOutputs:
        """Return the output of each stage of one step."""
        (situation,) = self._read_positions(position)
        return show_stages(retake_step(situation, self._stages))

    def _read_positions(self, positions: Positions) -> list[Situation]:
        _, visited = read_positions(positions)
        starts = self._situations(positions.candidates)
        return [
            start._replace(visited=goals, depth=depth)
            for start, goals, depth in zip(starts, visited, positions.depth.tolist(), strict=True)
        ]

    def _situations(self, candidates: CandidateSet) -> list[Situation]:
        """Return the situation from which each candidate starts."""
        positives = find_positives(self._start.dialect.exclusion, candidates, self.triples)
        situations = []
        for (predicate, first, second), is_positive in zip(candidates.atom.tolist(), positives, strict=True):
            query = predicate, first, second
            excluded = self._start.clauses.excluded(query) if is_positive else None
            situations.append(self._start._replace(excluded=excluded, visited=[number_variables([query])]))
        return situations


def _score_by(policy: Policy, goal: Atoms, resolvents: Sequence[Resolvent]) -> list[float]:
    return policy.score(goal, [each.atoms for each in resolvents])


Array = NDArray[np.float64]

_NORM_EPSILON = 1e-5


def score_two_tower(weights: Mapping[str, NDArray[Any]], num_blocks: int) -> Scores:
    """Return the scores of a `two_tower` with these weights (docs/semantics.md); 0 for a resolvent without atoms."""
    exact: dict[str, Array] = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    of_predicate, of_constant, of_variable = (exact[f"embedding.{of}"] for of in ("predicate", "constant", "variable"))

    def embed(term: int) -> Any:
        return of_constant[term] if term >= 0 else of_variable[-1 - term]

    @lru_cache(maxsize=1 << 16)
    def tower(goal: Atoms) -> Array:
        x: Array = np.mean([of_predicate[p] + embed(a) - embed(b) for p, a, b in goal], axis=0)
        x = exact["input.weight"] @ x + exact["input.bias"]
        for i in range(num_blocks):
            block = f"block.{i}"
            x = x + np.maximum(exact[f"{block}.weight"] @ x + exact[f"{block}.bias"], 0.0)
            x = (x - x.mean()) / np.sqrt(x.var() + _NORM_EPSILON)
            x = x * exact[f"{block}.norm.weight"] + exact[f"{block}.norm.bias"]
        return x

    def score(goal: Atoms, resolvents: Sequence[Resolvent]) -> list[float]:
        scale = float(np.sqrt(len(exact["input.bias"])))
        return [float(tower(goal) @ tower(each.atoms)) / scale if each.atoms else 0.0 for each in resolvents]

    return score
