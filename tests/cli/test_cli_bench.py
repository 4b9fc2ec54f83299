"""`kgverify bench`: what it prints and writes, and its exit codes."""

from pathlib import Path

import msgspec
import pytest
from cli_runs import Command

QUICK = ("bench", "--seconds", "0", "--device", "cpu")
TINY = (*QUICK, "--queries", "1", "--corruptions", "3", "--limits", "max_depth=6")
EAGER = ("--modes", "eager", "--slots", "8")


def test_the_modes_of_this_device_are_measured_and_written_as_json(command: Command, tmp_path: Path):
    done = command(*TINY, "--modes", "eager,native", "--json", tmp_path / "bench.json")
    assert done.code == 0, done.err
    assert done.out.startswith("MEASURED   8 candidates, size small")
    assert "8 as reference; 8 as eager" in done.out
    written = msgspec.json.decode((tmp_path / "bench.json").read_bytes())
    assert [each["name"] for each in written["measurements"]] == ["reference", "eager", "native"]
    assert all(len(each["seconds"]) == 3 for each in written["measurements"])
    assert written["machine"]["kgverify"]


def test_a_fault_is_wrong_and_has_no_speed(command: Command):
    done = command(*TINY, *EAGER, "--fault", "fact-cap")
    assert done.code == 1
    assert done.out.startswith("WRONG   8 candidates")
    assert "DIFFERS" in done.out


@pytest.mark.parametrize(
    ("size", "queries", "corruptions", "sample"),
    [("small", 10, 20, 128), ("medium", 50, 50, 256), ("large", 200, 100, 512), ("extreme", 5000, 100, 1024)],
)
def test_a_size_decides_how_much_is_measured(command: Command, size: str, queries: int, corruptions: int, sample: int):
    done = command(*QUICK, "--size", size, "--modes", "native", "--limits", "max_depth=1", "--json", "-")
    assert f"at most {queries:,} queries of test" in done.err, done.err
    assert f"{corruptions} corruptions" in done.err
    written = msgspec.json.decode(done.out)
    assert (written["num_queries"], written["num_corruptions"]) == (min(queries, 24), corruptions)
    assert written["measurements"][0]["num_candidates"] == min(sample, written["num_candidates"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--size", "smal"), "did you mean 'small'"),
        (("--modes", "fussed"), "did you mean 'fused'"),
        (("--modes", "native", "--fault", "fact-cap"), "--modes native: "),
        (("--fault", "fact-cup"), "fact-cap"),
        (("--json", "no/such/folder.json"), "cannot be written"),
        (("--engine", "reference", "--modes", "eager"), "are of the compiled evaluator"),
        (("--engine", "reference", "--precision", "bf16"), "is an option of the compiled evaluator"),
    ],
)
def test_mistakes_are_reported_with_a_fix(command: Command, options: tuple[str, ...], message: str):
    done = command(*TINY, *options)
    assert done.code == 2, done.out
    assert message in done.err
    assert "fix:" in done.err
