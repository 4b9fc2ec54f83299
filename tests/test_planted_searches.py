"""The search engines with planted faults: the right ones agree with kgverify's own search, and each fault shows."""

from typing import Any

import pytest

import kgverify as kv
from benchmarks.searches.arrays import ArraySearch
from benchmarks.searches.faults import FAULTS, Fault, Settings
from benchmarks.searches.lists import ListSearch
from benchmarks.searches.play import list_differences, play
from kgverify.engines.plain.engine import PlainEngine
from kgverify.program.outcomes import Outcome, Stage

RIGHT = [
    Settings("beam(3)", "none", "sum", "shortest"),
    Settings("beam(6)", "sum", "noisy_or", stopping="where_no_terminal"),
    Settings("all(20)", "max", "max", max_depth=3),
    Settings("sample(5, 9)", "none", "sum", graph="countries"),
]


@pytest.mark.parametrize("engine", [ArraySearch, ListSearch])
@pytest.mark.parametrize("settings", RIGHT, ids=[each.search for each in RIGHT])
def test_a_right_search_equals_that_of_the_plain_evaluator(engine: Any, settings: Settings) -> None:
    expected = play(PlainEngine, settings)
    assert (expected.candidates.outcome == Outcome.PROVED).any()
    assert list_differences(expected, play(engine, settings)) == []


def test_the_faults_have_names_of_their_own_and_stages_that_exist() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
    assert {stage for fault in FAULTS for stage in fault.stages} <= set(Stage)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_changes_what_its_engine_records(fault: Fault) -> None:
    assert list_differences(play(PlainEngine, fault.settings), play(fault.wrong, fault.settings)) != []


def test_a_fault_of_a_search_names_a_search_that_shows_it() -> None:
    engine = kv.Evaluator(mode="plain", faults="merged-twice")
    with pytest.raises(kv.UserError, match="a fault of a search") as caught:
        kv.verify("countries", engine, queries=1, corruptions=1)
    assert caught.value.fix.endswith("--limits 'search=beam(4),merge=sum'")


def test_a_search_with_too_many_paths_is_refused() -> None:
    with pytest.raises(kv.UserError, match="k, n and limit from 1 to 999999999"):
        kv.Dialect(search="beam(1000000000)")
