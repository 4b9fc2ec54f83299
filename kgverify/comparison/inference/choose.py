"""The choice among the stages of which each alone explains a step."""

from collections.abc import Sequence

import msgspec

from kgverify.comparison.inference.step_difference import StepDifference
from kgverify.comparison.result import Divergence
from kgverify.program.stages import STEP_STAGES, Stage


def adopt_guess(divergence: Divergence, guess: StepDifference) -> Divergence:
    """Return the divergence with the stage and the class of a guess."""
    return msgspec.structs.replace(
        divergence, stage=guess.stage.value, kind=guess.kind, evidence=guess.evidence, confidence=guess.confidence
    )


def prefer_one_stage(guesses: Sequence[Sequence[StepDifference]]) -> list[StepDifference]:
    """Choose a guess for each of several steps: of the stage that explains all of them, or else the likeliest.

    Other stages that explain all of them are named in the evidence: the records cannot tell these apart.

    guesses: those of each step, the likeliest first; one or more
    """
    likeliest = [found[0] for found in guesses]
    common = set.intersection(*({each.stage for each in found} for found in guesses)) if guesses else set()
    if not common:
        return likeliest

    def rank(stage: Stage) -> tuple[int, int]:
        return sum([each.stage for each in found].index(stage) for found in guesses), STEP_STAGES.index(stage)

    stage = min(common, key=rank)
    if {each.stage for each in likeliest} == {likeliest[0].stage}:
        stage = likeliest[0].stage
    chosen = [next(each for each in found if each.stage is stage) for found in guesses]
    others = [each.value for each in STEP_STAGES if each in common - {stage}]
    if not others:
        return chosen
    return [each._replace(evidence=f"{each.evidence}; {name_others(others)}") for each in chosen]


def name_others(stages: Sequence[str]) -> str:
    """Name further stages of which each alone may be at fault."""
    return f"the recorded steps cannot tell it from a fault of {' or '.join(stages)}"
