"""Evaluations rank as the reference does, whichever engine proves, in whatever parts, and also for ranks alone."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_engines import needs_compiler
from saved_parts import COUNTS, EXACT, UNCHECKED, assert_equal, read_rankings, record_reference

import kgreference
import kgverify as kv
from kgverify.dialects import ReferenceEngine
from kgverify.laws import draw_problems

NATIVE = kv.Evaluator(mode="native")
EAGER = kv.Evaluator(mode="eager", device="cpu", slots=64)
ENGINES = {
    "the reference": "reference",
    "a foreign engine": ReferenceEngine,
    "the native evaluator": pytest.param(NATIVE, marks=needs_compiler),
    "the compiled evaluator": pytest.param(EAGER, marks=pytest.mark.deep),
}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_ranking_and_every_figure_is_that_of_the_reference(tmp_path: Path, engine: Any) -> None:
    run: dict[str, Any] = {"queries": 6, "corruptions": 40, "limits": kv.Limits(max_depth=4), "seed": 2**40 + 300}
    expected, ends = record_reference("countries", tmp_path / "trace.h5", **run)
    options = replace(UNCHECKED, part_size=130, check=60)
    report = kv.evaluate("countries", engine, options=options, save=tmp_path / "run", **run)
    assert report.num_parts > 2
    assert_equal(read_rankings(tmp_path / "run"), expected)
    counts = expected["num_outcomes"].sum(0).tolist()
    assert report.outcomes == {"proved": counts[1], "failed": counts[2], "depth_limit": counts[3], "open": 0}
    assert min(counts[1:]) > 0
    assert (report.num_candidates, report.num_limited) == (len(ends["outcome"]), (ends["is_limited"] != 0).sum())
    assert (report.num_rankings, report.num_left_out) == (12, 0)
    true = np.bincount(expected["outcome"], minlength=4)
    assert report.true_outcomes == dict(zip(("open", "proved", "failed", "depth_limit"), true, strict=True))
    low, high = expected["optimistic"].tolist(), expected["pessimistic"].tolist()
    ranks = [kgreference.Ranks(a, (a + b) / 2, b) for a, b in zip(low, high, strict=True)]
    assert report.metrics == pytest.approx(kgreference.metrics(ranks[::2], ranks[1::2]), rel=1e-12)
    assert report.is_sound
    assert report.check is not None
    assert report.check.num_checked == report.check.num_equal > 20


def evaluate_twice(folder: Path, graph: Any, engine: Any = NATIVE, check: int = 100, **options: Any) -> int:
    """Compare the ranks with those of a complete evaluation; return the number of candidates left out."""
    reports, rankings = [], []
    for rank_only in (False, True):
        save = folder / f"{len(list(folder.iterdir()))}"
        given = replace(UNCHECKED, rank_only=rank_only, part_size=1000, check=check)
        reports.append(kv.evaluate(graph, engine, options=given, save=save, **options))
        rankings.append(read_rankings(save))
    whole, ranked = reports
    assert_equal(rankings[1], rankings[0], EXACT)
    for name in COUNTS:
        assert (rankings[1][name] <= rankings[0][name]).all()
    for name in ("metrics", "num_candidates", "true_outcomes"):
        assert getattr(ranked, name) == getattr(whole, name), name
    assert (whole.num_left_out, whole.rank_only, ranked.rank_only) == (0, False, True)
    assert sum(ranked.outcomes.values()) == ranked.num_candidates - ranked.num_left_out
    assert ranked.outcomes["proved"] == whole.outcomes["proved"]
    assert check == 0 or (whole.is_sound and ranked.is_sound)
    return ranked.num_left_out


@needs_compiler
@pytest.mark.parametrize(
    ("policy", "corruptions", "max_depth"),
    [
        ("shortest", "all", 20),
        ("shortest", 20, 3),
        ("two_tower", "all", 3),
        ("two_tower", 12, 20),
        ("trained", "all", 20),
    ],
)
def test_the_ranks_of_countries_are_those_of_all_candidates(
    tmp_path: Path, policy: str, corruptions: int | str, max_depth: int
) -> None:
    run: dict[str, Any] = {"queries": 12, "corruptions": corruptions, "limits": kv.Limits(max_depth=max_depth)}
    num_left_out = evaluate_twice(tmp_path, "countries", policy=policy, **run)
    assert num_left_out > 0 or (policy, max_depth) == ("shortest", 3)


@pytest.mark.deep
@pytest.mark.parametrize("corruptions", ["all", 12])
def test_the_compiled_evaluator_has_the_ranks_of_all_candidates(tmp_path: Path, corruptions: int | str) -> None:
    assert evaluate_twice(tmp_path, "countries", EAGER, queries=3, corruptions=corruptions) > 0


@needs_compiler
@pytest.mark.parametrize("corruptions", ["all", 1000])
def test_the_ranks_of_generated_programs_are_those_of_all_candidates(tmp_path: Path, corruptions: int | str) -> None:
    left_out = []
    problems = (each for each in draw_problems(31) if each.queries and len(each.domain) <= 8)
    for problem in islice(problems, 30):
        graph = kv.KnowledgeGraph(
            "problem", problem.facts, test=problem.queries, rules=problem.rules, domains={"all": problem.domain}
        )
        left_out.append(evaluate_twice(tmp_path, graph, corruptions=corruptions, limits=problem.limits))
    assert sum(each > 0 for each in left_out) > 3
    assert 0 in left_out


def test_ranks_alone_are_refused_for_a_foreign_engine() -> None:
    with pytest.raises(kv.UserError, match="a foreign engine may not have") as caught:
        kv.evaluate("countries", ReferenceEngine, queries=1, options=replace(UNCHECKED, rank_only=True))
    assert (caught.value.where, caught.value.fix) == ("rank_only", "leave it out")
