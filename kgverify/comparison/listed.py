"""The divergences that a comparison lists, with the stage and the class of each. Loaded only when something differs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.block import BlockComparer
from kgverify.comparison.classify import Finding, Surroundings, classify, find_surroundings
from kgverify.comparison.inference.infer import adopt_guess, order_of_stages, prefer_one_stage
from kgverify.comparison.inference.step_difference import StepDifference
from kgverify.comparison.locate import first_difference, name_stage, starts_wrong
from kgverify.comparison.modulo import normalise_outputs
from kgverify.comparison.result import Divergence, move
from kgverify.program.atoms import Goal
from kgverify.program.limits import OURS
from kgverify.program.outcomes import STEP_STAGES, DifferenceClass, Stage
from kgverify.trace.model.stage_items import StageReader


class Listed(NamedTuple):
    """A divergence of the whole traces, with its class, or with its surroundings if other derivations decide the class.

    guesses: the stages that explain the step by their fault alone, the likeliest first
    """

    divergence: Divergence
    finding: Finding | None = None
    surroundings: Surroundings | None = None
    guesses: Sequence[StepDifference] = ()

    def choose(self, guess: StepDifference) -> "Listed":
        """Return the divergence with one of its guesses."""
        named = adopt_guess(self.divergence, guess)
        return self._replace(divergence=named, finding=Finding(guess.kind, guess.evidence, guess.confidence))

    def classify(self, known_goals: frozenset[Goal]) -> Finding:
        """Return its class, given the goals of other derivations."""
        if self.surroundings is not None:
            return classify(self.divergence, self.surroundings._replace(other_goals=known_goals))
        assert self.finding is not None
        return self.finding


def choose_guesses(found: Sequence[Listed], most: int | None) -> list[Listed]:
    """Return the first divergences, by candidate and step, each with the guess that fits the most of them."""
    listed = sorted(found, key=lambda each: (each.divergence.candidate, each.divergence.step))[:most]
    chosen = iter(prefer_one_stage([each.guesses for each in listed if each.guesses]))
    return [each.choose(next(chosen)) if each.guesses else each for each in listed]


def explain_unpaired(divergence: Divergence, draw: str) -> Listed:
    """Classify a candidate that only one trace has, given the evidence that its query drew other candidates."""
    return Listed(divergence, classify(divergence, Surroundings(None, None, draw=draw)))


def explain_block(block: BlockComparer, found: Sequence[Divergence], rows: NDArray[np.int64]) -> list[Listed]:
    """Return divergences of a block with their classes, given the rows of its candidates in the whole trace."""
    namer = StageNamer(block)
    return [namer.explain(each, rows) for each in found]


class StageNamer:
    """A namer of the stages of one block's divergences, by the outputs that both traces recorded at level `deep`."""

    def __init__(self, block: BlockComparer) -> None:
        self._block = block
        self._stages = StageReader(block.pair.expected.columns), StageReader(block.pair.actual.columns)
        self._is_recorded = all(reader.has_stages for reader in self._stages)

    def explain(self, found: Divergence, rows: NDArray[np.int64]) -> Listed:
        """Return a divergence of the block with its class, given the rows of its candidates in the whole trace."""
        block = self._block
        named, outputs = self.name(found)
        guesses = block.guesses.get((found.candidate, found.step), ())
        if guesses and named is not found:
            # Recorded outputs of stages are better evidence than a guess.
            guesses = ()
            named = msgspec.structs.replace(named, kind=DifferenceClass.UNCLASSIFIED, evidence="", confidence=0.0)
        around = find_surroundings(
            found,
            block.readers[0],
            block.views.get((found.candidate, found.step)),
            error_bound=2 * block.pair.score_tolerance,
            has_history=not block.lockstep,
            has_scores=block.pair.has_scores,
        )._replace(outputs=outputs)
        expected, actual = around.expected, around.actual
        moved = move(named, rows)
        if expected is not None and actual is not None and expected.goal != actual.goal:
            return Listed(moved, None, around)
        return Listed(moved, classify(named, around), guesses=guesses)

    def name(self, divergence: Divergence) -> tuple[Divergence, tuple[Any, Any] | None]:
        """Return the divergence with the earliest stage whose recorded outputs differ, and these outputs.

        If the stages of a step agree but the step differs, `recycle` is at fault: the machinery around the stages. The
        divergence stays as it is if a side has no such step or did not record the stages.
        """
        is_of_step = divergence.step >= 0 and divergence.field.startswith(("steps.", "resolvents."))
        if not self._is_recorded or not is_of_step:
            return divergence, None
        is_wrong_before = starts_wrong(divergence)
        if is_wrong_before and not divergence.step:
            # No earlier step can have gone wrong: the derivation began with the wrong goal.
            return divergence, None
        block = self._block
        step = 0 if block.lockstep else divergence.step - is_wrong_before
        expected, actual = (
            normalise_outputs(stages.read(reader.first_step[divergence.candidate] + step), block.pair.modulo)
            for stages, reader in zip(self._stages, block.readers, strict=True)
        )
        order = order_of_stages(block.pair.expected.header.limits.dialect or OURS)
        stage = first_difference(expected, actual, block.pair.score_tolerance, order)
        if stage is not None:
            outputs = expected[stage], actual[stage]
            return name_stage(divergence, stage, *outputs, block.names), outputs
        decisive = [Stage.ADVANCE] if is_wrong_before else STEP_STAGES
        if all(each in expected and each in actual for each in decisive):
            return msgspec.structs.replace(divergence, stage=Stage.RECYCLE.value), None
        return divergence, None
