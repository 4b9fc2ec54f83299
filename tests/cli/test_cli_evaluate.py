"""`kgverify evaluate`: what it prints and writes, its exit codes."""

import json
import re
from pathlib import Path

import pytest
from invoked_commands import EAGER

FEW = ("--queries", "3", "--corruptions", "6", *EAGER)


def test_an_evaluation_prints_metrics_counts_speed_and_what_was_checked(command, tmp_path: Path):
    finished = command("evaluate", *FEW, "--json", tmp_path / "found.json")
    assert (finished.exit_code, finished.stderr) == (0, "")
    assert finished.stdout.startswith("EVALUATED   36 candidates in 6 rankings\n")
    assert "graph countries, 3 queries of test, 6 corruptions, seed 0" in finished.stdout
    for word in ("mean_reciprocal_rank", "hits_at_10", "proved", "limited", "candidates/s", "µs each", "warm-up"):
        assert word in finished.stdout
    assert "36 also proved by the reference: 36 equal, 0 different" in finished.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["metrics"]["both.realistic.mean_reciprocal_rank"] > 0
    assert len(found["metrics"]) == 36
    assert sum(found["outcomes"].values()) == found["check"]["num_equal"] == found["num_candidates"] == 36


def test_json_on_standard_output_is_alone_there(command):
    finished = command("evaluate", *FEW, "--check", "0", "--json", "-")
    assert json.loads(finished.stdout)["check"] is None
    assert finished.exit_code == 3
    assert finished.stderr.startswith("INCONCLUSIVE")
    assert "because nothing was checked by the reference; to accept that: --minimum none" in finished.stderr
    assert "check         none" in finished.stderr


@pytest.mark.parametrize("option", [["--rank-only"], pytest.param([], marks=pytest.mark.deep)])
def test_a_fault_exits_with_1_and_says_how_to_find_the_step(command, option: list[str]):
    finished = command("evaluate", *FEW, *option, "--fault", "fact-cap")
    assert finished.exit_code == 1
    assert finished.stdout.startswith("DIVERGE")
    assert "results differ from the reference; the first\n  locatedInCR(armenia, asia)" in finished.stdout
    (hint,) = re.findall(r"^  kgverify (diff --queries 1 .*?)   #", finished.stdout, re.MULTILINE)
    assert "rank-only" not in hint
    assert command(*hint.split()).exit_code == 1


def test_an_evaluation_resumes_from_its_folder_and_refuses_that_of_another(command, tmp_path: Path):
    folder = tmp_path / "run"
    evaluate = ("evaluate", *FEW, "--part-size", "10", "--save", folder)
    first = command(*evaluate)
    assert (first.exit_code, first.stderr) == (0, "")
    (folder / "part-000001.npz").unlink()
    again = command(*evaluate)
    assert "1 of 3 parts in" in again.stdout
    assert "; 2 were finished before" in again.stdout
    assert "every part was finished before" in command(*evaluate, "--memory", "100MiB").stdout
    assert json.loads((folder / "summary.json").read_text())["num_parts_resumed"] == 3
    other = command(*evaluate, "--seed", "1")
    assert other.exit_code == 2
    assert "seed is 0 there and 1 here" in other.stderr
