"""The judge of known pairs, and what it finds in words that a person can state."""

from collections import Counter
from typing import Any

from kgverify import Report
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.exercise.exercise import NO_MINIMUM
from kgverify.comparison.result import NO_CANDIDATE, Divergence
from kgverify.verification.judgement import LITTLE
from kgverify.verification.rebuild import Rebuilder
from kgverify.verification.recorded import judge_recorded


def judge(expected: Any, actual: Any, **options: Any) -> tuple[Comparer, Report]:
    """Compare two recorded traces as `kv.compare` does, in blocks of any size."""
    comparer = Comparer(expected, actual, Options(rebuilding=Rebuilder, explains=True, **options))
    comparer.compare()
    return comparer, judge_recorded(comparer, NO_MINIMUM, effort=LITTLE)


def describe(report: Report, divergence: Divergence) -> str:
    """Return the step, the stage and the class of a divergence, its level, the situation of its cause and the sentence."""
    step = f"{divergence.step}: " if divergence.step >= 0 else ""
    situation = report.causes[divergence.cause].situation if divergence.cause >= 0 else ""
    words = f"{step}{divergence.stage} {divergence.kind.value}, {divergence.level.value}"
    words += f" ({situation})" * bool(situation)
    return f"{words}: {divergence.evidence}" if divergence.evidence else words


def summarize(report: Report) -> str:
    """Return the verdict and the level of a report, the numbers of its divergences of each kind, near-ties and reasons.

    Known pairs are made up, and contradict themselves: these reasons are left out.
    """
    kinds = Counter(
        f"{each.stage} {each.kind.value}" + " (no such candidate)" * (each.expected == NO_CANDIDATE)
        for each in report.divergences
    )
    words = [f"{number} {kind}" for kind, number in kinds.items()]
    words += [f"near-ties {len(report.near_ties)}"] * bool(report.near_ties)
    words += [f"{each.num_steps} benign by {each.kind}" for each in report.benign]
    words += [each for each in report.reasons if "contradicts itself" not in each and "header names" not in each]
    level = f" {report.level.value}" if report.level else ""
    return f"{report.verdict.value}{level}: {'; '.join(words) or 'nothing differs'}"


def explain(report: Report) -> list[str]:
    """Return the verdict and the level, the near-ties and reasons, and of each cause its number, stage, class and sentence."""
    level = f" {report.level.value}" if report.level else ""
    ties = [f"{len(report.near_ties)} near-ties"] * bool(report.near_ties)
    found = [f"{report.verdict.value}{level}", *ties, *report.reasons]
    for cause in report.causes:
        first = report.divergences[cause.first]
        how = "replayed" if first.is_replayed else "inferred"
        found.append(
            f"{cause.num_divergences} {cause.stage} {cause.kind.value} {how}: {first.evidence.partition(';')[0]}"
        )
    return found
