"""`kgverify bench`: what it prints and writes, and its exit codes."""

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from cli_runs import Command

from kgverify.bench.result import BenchResult, decode_result, encode_result, read_result

TINY = ("bench", "--size", "queries=1,corruptions=3,slots=8,seconds=0", "--limits", "max_depth=6", "--device", "cpu")
TINY = (*TINY, "--repeats", "3", "--modes", "eager")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("saved") / "run.json"


def slow_down(result: BenchResult, by: float) -> BenchResult:
    measurements = tuple(
        msgspec.structs.replace(each, samples=tuple(sample * by for sample in each.samples))
        for each in result.measurements
    )
    return msgspec.structs.replace(result, measurements=measurements)


@pytest.mark.deep
def test_a_benchmark_is_printed_saved_drawn_and_compared(command: Command, tmp_path: Path):
    saved, picture = tmp_path / "run.json", tmp_path / "run.svg"
    done = command(*TINY, "--json", saved, "--plot", picture)
    assert done.code == 0, done.err
    assert done.out.startswith("MEASURED   8 candidates, 8 slots, size small")
    assert "agreed           eager: 8 candidates as reference" in done.out
    result = read_result(saved)
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")

    # So much faster and slower that no noise explains it.
    for factor, code, word in ((1e-3, 1, "SLOWER"), (1e3, 0, "faster")):
        saved.write_bytes(encode_result(slow_down(result, factor)))
        done = command(*TINY, "--compare", saved, "--fail-slower")
        assert (done.code, word in done.out) == (code, True), done.out
    assert command(*TINY, "--compare", saved).code == 0

    other = msgspec.structs.replace(
        result, environment=msgspec.structs.replace(result.environment, device_name="another")
    )
    saved.write_bytes(encode_result(other))
    done = command(*TINY, "--compare", saved, "--fail-slower", "--json", "-")
    assert done.code == 3
    assert "NOT COMPARED" in done.err
    assert decode_result(done.out.encode(), "-").work == result.work


def test_a_fault_is_wrong_and_its_speed_withheld(command: Command):
    done = command(*TINY, "--fault", "fact-cap")
    assert done.code == 1
    assert done.out.startswith("WRONG   8 candidates")
    assert "eager            WRONG, speed withheld: call 1 differs" in done.out
    assert not any(line.startswith("eager   ") and "differ" not in line and "WRONG" not in line for line in done.out)


def test_an_interrupted_benchmark_prints_and_saves_what_there_is(command: Command, tmp_path: Path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kgverify.bench.modes.prove_candidates", interrupt)
    saved = tmp_path / "run.json"
    done = command(*TINY, "--json", saved)
    assert done.code == 130
    assert done.out.startswith("MEASURED, INTERRUPTED")
    result = read_result(saved)
    assert not result.is_complete
    assert len(result.find("reference").samples) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--size", "smal"), "did you mean 'small'"),
        (("--modes", "fussed"), "did you mean 'fused'"),
        (("--compare", "none.json"), "none.json: cannot be read"),
        (("--fail-slower",), "give --compare FILE"),
        (("--fault", "fact-cup"), "fact-cap"),
        (("--fault", "ties-as-wins"), "--fault"),
        (("--json", "no/such/folder.json"), "cannot be written"),
    ],
)
def test_mistakes_are_reported_with_a_fix(command: Command, options, said):
    done = command(*TINY, *options)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(("size", "queries", "corruptions"), [("small", 10, 20), ("medium", 50, 50)])
def test_a_size_decides_how_much_is_measured(command: Command, size: str, queries: int, corruptions: int):
    few = (
        "--modes",
        "eager",
        "--repeats",
        "1",
        "--limits",
        "max_depth=2",
        "--device",
        "cpu",
    )
    done = command("bench", "--size", f"{size},seconds=0,sample=4", *few)
    assert f"at most {queries} queries of test, {corruptions} corruptions" in done.out, done.err
