"""The conditions of causes: the steps of each cause are compared with steps of both traces that agree."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from kgverify.comparison.compare import Comparer
from kgverify.comparison.inference.conditions import SeenStep, find_condition
from kgverify.comparison.result import Cause, Divergence
from kgverify.comparison.step_view import StepReader, StepView
from kgverify.program.stages import STEP_STAGES
from kgverify.trace.model.levels import has_goals

MOST_CANDIDATES: Final = 1_000
"""The number of candidates to read for each group: those of a cause, and those without a divergence."""

MOST_STEPS: Final = 2_000
"""The number of steps that agree to compare with."""

Views = Mapping[tuple[int, int], tuple[StepView, StepView]]


def describe_conditions(
    causes: tuple[Cause, ...], divergences: tuple[Divergence, ...], comparer: Comparer, views: Views | None = None
) -> tuple[Cause, ...]:
    """Return the causes with their conditions. Causes outside of steps, and traces without goals, have none.

    views: both steps of each divergence, where these are not the recorded ones: in lockstep
    """
    is_repeated = any(cause.num_divergences > 1 for cause in causes)
    if not is_repeated or not all(has_goals(source.header.level) for source in comparer.sources):
        return causes
    wrong: dict[int, list[Divergence]] = {}
    members: dict[int, list[Divergence]] = {}
    for each in divergences:
        wrong.setdefault(each.candidate, []).append(each)
        members.setdefault(each.cause, []).append(each)
    reader = _Reader(comparer, views)
    agreeing = list(reader.read_agreeing(wrong))
    if not agreeing:
        return causes
    differing = []
    for number, cause in enumerate(causes):
        of_cause = members.get(number, []) if cause.stage in STEP_STAGES else []
        differing.append(list(reader.read_differing(of_cause[:MOST_CANDIDATES])))
    described = []
    for number, cause in enumerate(causes):
        others = [step for i, steps in enumerate(differing) if i != number for step in steps]
        condition = ""
        if len(differing[number]) > 1:
            condition = find_condition(
                cause.kind, differing[number], agreeing, others, comparer.program.origins, comparer.names
            )
        described.append(msgspec.structs.replace(cause, condition=condition))
    return tuple(described)


class _Reader:
    """Reads steps of compared traces, with their inference."""

    def __init__(self, comparer: Comparer, views: Views | None) -> None:
        self._comparer = comparer
        self._views = views

    def read_agreeing(self, wrong: Mapping[int, list[Divergence]]) -> Iterator[SeenStep]:
        """Yield steps that agree: all of candidates without a divergence, and those before the first one of others."""
        num = self._comparer.sources[0].num_candidates
        if self._comparer.num_found > len(self._comparer.comparison.divergences):
            # Candidates after the last divergence that is listed may diverge as well.
            num = max(wrong)
        unpaired = {candidate for candidate, found in wrong.items() if found[0].step < 0}
        right = [candidate for candidate in range(num) if candidate not in wrong]
        started = [candidate for candidate in wrong if candidate not in unpaired and candidate < num]
        rows = np.array(sorted([*_thin(right), *_thin(started)]), np.int64)
        if not len(rows) or not self._is_paired(rows):
            return
        columns = self._comparer.pair_of(rows).expected.columns
        reader = StepReader(columns)
        left = MOST_STEPS
        for i, candidate in enumerate(rows.tolist()):
            end = int(columns.candidates.num_steps[i])
            if candidate in wrong:
                end = min(end, min(each.step for each in wrong[candidate]))
            for number in range(min(end, left)):
                yield self._see(columns, reader, i, number, None)
            left -= min(end, left)

    def read_differing(self, members: list[Divergence]) -> Iterator[SeenStep]:
        """Yield the steps of divergences from a goal that both sides have."""
        members = [each for each in members if each.step >= 0]
        rows = np.array(sorted({each.candidate for each in members}), np.int64)
        if not len(rows) or not self._is_paired(rows):
            return
        pair = self._comparer.pair_of(rows)
        sides = pair.expected.columns, pair.actual.columns
        readers = [StepReader(columns) for columns in sides]
        places = {candidate: i for i, candidate in enumerate(rows.tolist())}
        for each in members:
            i = places[each.candidate]
            if self._views is not None:
                views = self._views.get((each.candidate, each.step))
                actual = None if views is None else views[1]
            else:
                has_step = each.step < int(sides[1].candidates.num_steps[i])
                actual = readers[1].read(readers[1].first_step[i] + each.step) if has_step else None
            if actual is None or each.step >= int(sides[0].candidates.num_steps[i]):
                continue
            seen = self._see(sides[0], readers[0], i, each.step, actual)
            if seen.expected.goal == actual.goal:
                yield seen

    def _is_paired(self, rows: np.ndarray) -> bool:
        return int(rows[-1]) < self._comparer.sources[0].num_candidates

    def _see(self, columns: object, reader: StepReader, row: int, number: int, actual: StepView | None) -> SeenStep:
        expected = reader.read(reader.first_step[row] + number)
        query = reader.columns.candidates.atom[row].tolist()
        return SeenStep(number, expected, actual, self._comparer.program.at(expected.goal, query))


def _thin(candidates: list[int]) -> list[int]:
    """Return some of the candidates, evenly spread."""
    return candidates[:: max(1, -(-len(candidates) // MOST_CANDIDATES))]
