"""Traces that differ in known ways, and engines that are wrong in known ways: what is said of each difference.

A second comparison, which shares no code, says the same of traces.
"""

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from known_pairs import RARE, known_pairs
from known_runs import known_runs, traces_of_runs
from pairs import DIFFERENCES, ERROR, Edits, pair_of
from second_opinion import can_be_checked, check_by_second, compare_again

from kgverify import Divergence, Equality, Report
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.exercise.exercise import NO_MINIMUM
from kgverify.comparison.result import NO_CANDIDATE
from kgverify.verification.judgement import LITTLE
from kgverify.verification.recorded import judge_recorded
from kgverify.verification.verify import verify

HERE = Path(__file__).parent
SAID = tomllib.loads((HERE / "pairs.toml").read_text("utf-8"))
SAID_OF_DIFFERENCES = tomllib.loads((HERE / "differences.toml").read_text("utf-8"))
SAID_OF_RUNS = tomllib.loads((HERE / "runs.toml").read_text("utf-8"))
PAIRS = {known.name: known for known in known_pairs()}
RUNS = {name: given for name, *given in known_runs()}
TRACES = {known.name: known for known in traces_of_runs()}


def judge(expected: Any, actual: Any, **options: Any) -> tuple[Comparer, Report]:
    """Compare two recorded traces as `kv.compare` does, in blocks of any size."""
    comparer = Comparer(expected, actual, Options(explains=True, **options))
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


@pytest.mark.parametrize(("name", "differences"), [("common", DIFFERENCES), ("rare", RARE)], ids=["common", "rare"])
@pytest.mark.parametrize("error", [0.0, ERROR], ids=["exact scores", "scores with an error"])
def test_each_difference_has_its_step_stage_class_level_and_sentence(
    name: str, differences: Sequence[tuple[Edits, Edits]], error: float
):
    report = judge(*pair_of(range(len(differences)), error=error, differences=differences))[1]
    found = {each.candidate: describe(report, each) for each in report.divergences}
    found |= {each.candidate: f"near-tie {each.step}" for each in report.near_ties}
    for number, said in enumerate(SAID_OF_DIFFERENCES[name]):
        expected = said[-1] if error else said[0]
        assert found.get(number, "")[: len(expected) or None] == expected, (number, found.get(number))
    assert len(SAID_OF_DIFFERENCES[name]) == len(differences)


@pytest.mark.parametrize("name", PAIRS)
def test_a_known_pair_is_compared_as_stated_and_as_by_the_second_comparison(name: str):
    known = PAIRS[name]
    comparer, report = judge(known.expected, known.actual, **known.options)
    assert summarize(report) == SAID[name]
    if can_be_checked(comparer):
        second = compare_again(known.expected, known.actual, comparer.score_tolerance, lockstep=comparer.lockstep)
        check_by_second(comparer.comparison, second, known.name)


@pytest.mark.parametrize("name", RUNS)
def test_a_wrong_engine_is_reported_as_stated(name: str):
    run, expected, actual, options = RUNS[name]
    equality = Equality(**{"determinism": False, "minimum": {}, **options})
    found = explain(verify(run, expected, actual, equality=equality, effort=LITTLE).report)
    assert sorted(found) == sorted(SAID_OF_RUNS[name])


@pytest.mark.parametrize("name", TRACES)
def test_its_recording_is_reported_as_stated(name: str):
    known = TRACES[name]
    assert sorted(explain(judge(known.expected, known.actual)[1])) == sorted(SAID_OF_RUNS[name])


def test_every_known_pair_and_run_is_stated():
    assert [*PAIRS] == [*SAID]
    assert [*RUNS, *TRACES] == [*SAID_OF_RUNS]
