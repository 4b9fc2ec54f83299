"""The scripts that examine the installed torch."""

import subprocess
from itertools import islice, takewhile
from pathlib import Path

import pytest
import torch
from torch_conventions import find_conventions, observe_rule
from warm_commands import run_python

from benchmarks.step_fuzzing import draw_steps

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run_script(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = [str(BENCHMARKS / name), *options]
    start = f"import runpy, sys; sys.argv = {words!r}; sys.path[0] = {str(BENCHMARKS)!r}"
    return run_python(f"{start}; runpy.run_path({words[0]!r}, run_name='__main__')", BENCHMARKS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", ["eager", pytest.param("default", marks=pytest.mark.exhaustive)])
def test_argmax_takes_the_lowest_index_eager_and_compiled_and_topk_takes_any(mode: str):
    rules = find_conventions(torch.device("cpu"), mode)
    assert rules["argmax", "ties"] == "lowest index"
    assert rules["argmax", "NaN"] == "first NaN"
    assert rules["argmax", "all -inf"] == "index 0"
    if mode == "eager":
        assert rules["topk", "ties"] == "none"


def test_no_two_jobs_draw_one_step_and_together_they_draw_all_of_them():
    whole = list(islice(draw_steps(0), 2000))
    last = whole[-1][0]
    jobs = [list(takewhile(lambda each: each[0] <= last, draw_steps(0, job, 5))) for job in range(5)]
    assert min(map(len, jobs)) > 300
    assert sorted(each for job in jobs for each in job) == whole
    assert len({statements for _, statements in whole}) == len(whole)


def test_a_rule_is_read_off_the_indices():
    tied = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 0.0]])
    assert observe_rule(tied, torch.tensor([1, 0])) == "lowest index"
    assert observe_rule(tied, torch.tensor([2, 1])) == "highest index"
    assert observe_rule(tied, torch.tensor([2, 0])) == "none"


@pytest.mark.exhaustive
def test_the_script_of_conventions_prints_them():
    done = run_script("torch_conventions.py", "--device", "cpu", "--mode", "eager")
    assert done.returncode == 0, done.stderr
    assert "| argmax | ties | lowest index |" in done.stdout


@pytest.mark.exhaustive
def test_the_script_of_idioms_names_the_first_wrong_rung():
    done = run_script("torch_idioms.py", "rotate-at-once", "--device", "cpu", "--rung", "aot-eager", "--seconds", "0")
    assert done.returncode == 0, done.stderr
    assert "| rotate-at-once | #198033 | aot-eager |" in done.stdout


@pytest.mark.exhaustive
def test_an_unknown_idiom_is_reported():
    done = run_script("torch_idioms.py", "swap-bufers")
    assert done.returncode == 2
    assert "unknown idioms swap-bufers" in done.stderr
