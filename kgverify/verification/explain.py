"""The explanation of what differs between two engines: steps are replayed, causes get conditions and their share of the loss."""

from functools import partial

import msgspec

from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import Attribution, Cause, Comparison
from kgverify.conditions.describe import Replays, describe_conditions
from kgverify.conditions.experiment import Engines
from kgverify.conditions.features import Feature
from kgverify.verification.attribute import attribute_loss
from kgverify.verification.lockstep import Compared, Task
from kgverify.verification.planted_changes import check_attribution
from kgverify.verification.replay import Explainer, Replayed
from kgverify.verification.rerun import rerun


def explain(
    task: Task, compared: Compared, declared: tuple[Feature, ...], *, is_repeating: bool
) -> tuple[Comparison, tuple[Cause, ...], Attribution | None]:
    """Replay the divergent steps, compare the ranks, group the divergences, and find the conditions of their causes.

    The loss of the metric is split over the causes; it is None in lockstep, and without causes or ranks.
    """
    (expected, actual), comparer, comparison = compared.traces, compared.comparer, compared.comparison
    lockstep = task.equality.lockstep
    explainer = Explainer(
        expected,
        comparer,
        compared.views,
        task.engines,
        lockstep=lockstep,
        is_repeating=is_repeating,
        effort=task.effort,
    )
    with task.phase("replaying divergent steps", 0):
        replayed = explainer.replay(comparison.divergences)
    comparison = msgspec.structs.replace(comparison, divergences=tuple(each.divergence for each in replayed))
    comparison = compare_rankings(comparison, expected, actual, task.ranks)
    of_ranking = comparison.divergences[len(replayed) :]
    divergences, causes = explainer.group([*replayed, *(Replayed(each, None) for each in of_ranking)])
    divergences, causes = describe_conditions(
        causes,
        divergences,
        comparer,
        task.effort.explained,
        replays=Replays(compared.views, [each.outputs for each in replayed], lockstep),
        own=declared,
        engines=Engines(task.engines, partial(rerun, task.run, *task.pipelines, expected, comparer)),
    )
    comparison = msgspec.structs.replace(comparison, divergences=divergences)
    if lockstep or not causes or expected.rankings is None or actual.rankings is None:
        return comparison, causes, None
    with task.phase("splitting the loss over the causes", 0):
        found = attribute_loss(compared.traces, divergences, causes, task.ranks, effort=task.effort)
    check_attribution(found, expected, actual)
    return comparison, causes, found
