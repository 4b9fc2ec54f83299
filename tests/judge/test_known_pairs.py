"""Traces that differ in known ways: what is said of each difference, and by a second comparison that shares no code."""

import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged import describe, judge, summarize
from known_pairs import known_pairs
from pairs import DIFFERENCES, ERROR, Edits, Known, at_level, pair_of
from rare_pairs import RARE
from second_opinion import can_be_checked, check_by_second, compare_again

import kgverify as kv
from kgverify.comparison.compare import Comparer, Options
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_columns

HERE = Path(__file__).parent
SAID = tomllib.loads((HERE / "pairs.toml").read_text("utf-8"))
SAID_OF_DIFFERENCES = tomllib.loads((HERE / "differences.toml").read_text("utf-8"))
PAIRS = {known.name: known for known in known_pairs()}


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
    compare_by_second(known, comparer)


def compare_by_second(known: Known, comparer: Comparer) -> None:
    if can_be_checked(comparer):
        second = compare_again(known.expected, known.actual, comparer.score_tolerance, lockstep=comparer.lockstep)
        check_by_second(comparer.comparison, second, known.name)


def test_every_known_pair_is_stated():
    assert [*PAIRS] == [*SAID]


ALTERATIONS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "one more": lambda values, row: values[row] + 1,
    "none": lambda values, row: 0,
    "many": lambda values, row: 99,
    "that of the first": lambda values, row: values[0],
}
COLUMNS = [
    f"{group}.{name}"
    for group, level in pair_of((0,))[0].columns._asdict().items()
    if group != "stages"
    for name in level._fields
]


@pytest.mark.parametrize("column", COLUMNS)
def test_an_altered_column_is_refused_or_diverges_as_by_the_second_comparison(column: str):
    sound, rng = pair_of((0, 17, 26, 46, 0))[0], random.Random(column)
    facts, rules = sound.facts, sound.rules
    assert facts is not None
    assert rules is not None
    num_seen = 0
    for name, alter in ALTERATIONS.items():
        altered = _alter(sound, column, alter, rng)
        try:
            check_columns(altered.columns, "altered", num_rules=len(rules), num_facts=len(facts))
        except kv.UserError:
            num_seen += 1
            continue
        comparer = Comparer(sound, altered, Options(explains=True))
        comparer.compare()
        compare_by_second(Known(f"{column}, {name}", sound, altered), comparer)
        num_seen += comparer.comparison.verdict is not kv.Verdict.AGREE
        compact = Comparer(at_level(sound, "compact"), at_level(altered, "compact"), Options())
        assert (compact.compare().verdict is kv.Verdict.AGREE) == (comparer.comparison.verdict is kv.Verdict.AGREE)
    assert num_seen >= 2


def _alter(trace: Trace, column: str, alter: Callable[[np.ndarray, int], Any], rng: random.Random) -> Trace:
    group, name = column.split(".")
    level = getattr(trace.columns, group)
    values = getattr(level, name).copy()
    flat = values.reshape(-1)
    row = rng.randrange(1, len(flat))
    flat[row] = alter(flat, row)
    columns = trace.columns._replace(**{group: level._replace(**{name: values})})
    try:
        digests = compute_digests(columns)
    except (IndexError, ValueError):
        # Counts that do not add up are refused.
        digests = trace.digests
    return replace(trace, columns=columns, digests=digests)
