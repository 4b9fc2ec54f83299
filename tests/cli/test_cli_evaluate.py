"""`kgverify evaluate`: what it prints and writes, its exit codes, and several processes."""

import json
import os
import re
import socket
import subprocess
import sys
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


def test_ranks_are_written_as_a_table_that_diff_reads_and_compared_with_earlier_ones(command, tmp_path: Path):
    few = ("--engine", "reference", "--queries", "3", "--corruptions", "6", "--check", "0", "--minimum", "none")
    first = command("evaluate", *few, "-o", tmp_path / "one.csv", "--json", tmp_path / "one.json")
    assert (first.exit_code, first.stderr) == (0, "")
    rows = (tmp_path / "one.csv").read_text().splitlines()
    assert (rows[0].split(",")[:5], len(rows)) == (["query", "head", "relation", "tail", "side"], 7)
    again = command(
        "evaluate", *few, "--limits", "max_depth=1", "-o", tmp_path / "two.csv", "--compare", tmp_path / "one.json"
    )
    assert again.exit_code == 0
    assert "COMPARED   3 queries of countries, test\n" in again.stdout
    (mrr,) = re.findall(r"mean_reciprocal_rank +\S+ +\S+ +(\S+) +\S+ to \S+ +\S+ +(\d)", again.stdout)
    ranks = [
        [1 / float(row.split(",")[7]) for row in (tmp_path / name).read_text().splitlines()[1:]]
        for name in ("one.csv", "two.csv")
    ]
    assert float(mrr[0]) == pytest.approx((sum(ranks[1]) - sum(ranks[0])) / 6, abs=1e-4)
    assert mrr[1] != "0"
    compared = command("diff", tmp_path / "one.csv", tmp_path / "two.csv", "--graph", "countries")
    assert compared.exit_code == 1
    for words, message in (
        (("-o", tmp_path / "one.txt"), "unknown format '.txt'"),
        (("-o", tmp_path / "new.csv", "--table", "ranks"), "unknown table 'ranks'"),
        (("--compare", tmp_path / "one.csv"), "is not an evaluation"),
        (("--aggregate", "max"), "leave engine and its options out"),
    ):
        refused = command("evaluate", *few, *words)
        assert (refused.exit_code, message in refused.stderr) == (2, True), refused.stderr


def test_an_evaluation_resumes_from_its_folder_and_refuses_that_of_another(command, tmp_path: Path):
    folder = tmp_path / "run"
    evaluate = ("evaluate", *FEW, "--part-size", "10", "--save", folder)
    first = command(*evaluate)
    assert (first.exit_code, first.stderr) == (0, "")
    (folder / "part-000001.npz").unlink()
    again = command(*evaluate)
    assert "1 of 3 parts in" in again.stdout
    assert "; 2 were finished before" in again.stdout
    assert "every part was finished before" in command(*evaluate, "--tune", "memory=100MiB").stdout
    assert json.loads((folder / "summary.json").read_text())["num_parts_resumed"] == 3
    other = command(*evaluate, "--seed", "1")
    assert other.exit_code == 2
    assert "seed is 0 there and 1 here" in other.stderr


def start(rank: int, port: int, *arguments: object) -> subprocess.Popen[str]:
    """Start one process of two, as torchrun does."""
    group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "kgverify", "evaluate", *map(str, arguments)],
        env=os.environ | group | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.deep
def test_two_processes_leave_the_parts_and_the_metrics_of_one(command, tmp_path: Path):
    arguments = ["--queries", "12", "--corruptions", "8", "--part-size", "30", "--check", "9", *EAGER[:4]]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    processes = [start(rank, port, *arguments, "--save", tmp_path / "two") for rank in range(2)]
    (out, err), silent = (process.communicate(timeout=300) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], err + silent[1]
    assert silent == ("", "")
    assert "by 2 processes" in out
    assert command("evaluate", *arguments, "--save", tmp_path / "one").exit_code == 0
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).glob("part-*")} for name in ("one", "two")]
    assert len(files[0]) > 5
    assert files[0] == files[1]
    metrics = [json.loads((tmp_path / name / "summary.json").read_text())["metrics"] for name in ("one", "two")]
    assert metrics[0] == metrics[1]
