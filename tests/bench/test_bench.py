"""`kgverify bench`: engines are compared before they are timed, and only those that agree have a speed; its page."""

import json
import re
import shlex
from pathlib import Path
from statistics import quantiles

import pytest
from invoked_commands import Invoked, invoke

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "evaluating.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("## Measure your machine")[2].partition("\n## ")[0]
TINY = "bench --size queries=1,corruptions=3,seconds=0 --limits max_depth=6"
UNSTEADY = """
import time
from kgverify.dialects import ReferenceEngine

class Unsteady(ReferenceEngine):
    num_calls = 0

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        time.sleep(0.5)

    def prove(self, candidates, progress=lambda num: None):
        self.num_calls += 1
        columns = super().prove(candidates, progress)
        ends = columns.candidates
        return columns._replace(candidates=ends._replace(log_probability=ends.log_probability - self.num_calls))
"""


def measure(options: str, folder: Path) -> tuple[Invoked, dict]:
    """Run the command, and return what it printed and the measurements by name."""
    done = invoke(f"{TINY} {options} --json bench.json", folder, COLUMNS="120")
    written = json.loads((folder / "bench.json").read_text())
    assert {"kgverify", "python", "processor"} <= written["machine"].keys()
    return done, {each["name"]: each for each in written["measurements"]}


def test_modes_that_agree_are_timed_and_compared_with_the_reference_and_the_first_one(tmp_path: Path):
    # Scores in float32 agree but for near-ties.
    done, found = measure("--modes eager,native --tune slots=8 --policy two_tower", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("MEASURED   8 candidates, size small")
    assert "8 as reference; 8 as eager" in done.stdout
    assert [*found] == ["reference", "eager", "native"]
    for each in found.values():
        assert each["state"] == "timed"
        assert len(each["seconds"]) == 3
        assert min(each["seconds"]) > 0
        assert each["warm_up_seconds"] > 0
        (row,) = (line.split() for line in done.stdout.splitlines() if line.split()[:1] == [each["name"]])
        low, median, high = (
            1e6 * part / each["num_candidates"] for part in quantiles(each["seconds"], n=4, method="inclusive")
        )
        shown = [f"{each['num_candidates']:,}", f"{median:,.4g}", f"{low:,.4g}", "to", f"{high:,.4g}", "3"]
        assert row[1:8] == [*shown, f"{each['warm_up_seconds']:,.3g}"]
    agreements = [(each["against"], each["num_compared"]) for each in found["native"]["agreements"]]
    assert agreements == [("reference", 8), ("eager", 8)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [("--device cpu --modes eager --fault fact-cap", ""), ("--engine unsteady.py:Unsteady", "repeat")],
)
def test_what_differs_from_the_reference_or_itself_has_no_speed(tmp_path: Path, options: str, reason: str):
    (tmp_path / "unsteady.py").write_text(UNSTEADY)
    done, found = measure(options, tmp_path)
    assert done.exit_code == 1
    assert done.stdout.startswith("WRONG   8 candidates")
    assert "DIFFERS" in done.stdout
    (wrong,) = (each for name, each in found.items() if name != "reference")
    assert (wrong["state"], wrong["seconds"]) == ("differs", [])
    assert reason in wrong["reason"]
    # Making the engine is a part of its warm-up.
    assert wrong["warm_up_seconds"] > 0.5 * ("unsteady" in options)


@pytest.mark.parametrize("size", ["small", "medium", "large", "extreme"])
def test_a_size_decides_how_much_is_measured_and_is_the_one_of_the_page(size: str):
    done = invoke(f"bench --size {size},seconds=0 --modes native --limits max_depth=1 --json -", COLUMNS="120")
    assert done.exit_code == 0, done.stderr
    table = PAGE.partition("| `--size` |")[2].partition("\n\n")[0]
    (cells,) = re.findall(rf"^\| `{size}` \|(.*)\|$", table, re.MULTILINE)
    queries, corruptions, sample, _ = (float(cell.replace(",", "")) for cell in cells.split("|"))
    assert f"at most {queries:,.0f} queries of test" in done.stderr, done.stderr
    written = json.loads(done.stdout)
    assert (written["num_queries"], written["num_corruptions"]) == (min(queries, 24), corruptions)
    assert written["measurements"][0]["num_candidates"] == min(sample, written["num_candidates"])


def test_every_command_of_the_page_is_understood():
    lines = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:2] == ["kgverify", "bench"]
        # The options are read before the file of the results is refused, and that is refused before anything runs.
        assert "no/such/folder.json: cannot be written" in invoke([*words[1:], "--json", "no/such/folder.json"]).stderr
