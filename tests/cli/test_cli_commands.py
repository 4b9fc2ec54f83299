"""The output, files and exit codes of the commands."""

import importlib
import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from invoked_commands import EAGER, SMALL, invoke

import kgverify as kv
from kgverify.cli.command_line import list_commands, list_options, make_app
from kgverify.cli.entries import ENTRIES, HELP

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())
# `kgverify.cli.commands.show` is a function where it is imported by name.
SHOW = importlib.import_module("kgverify.cli.commands.show")
WORDS = {"queries": 1, "corruptions": 2}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run by both engines."""
    folder = tmp_path_factory.mktemp("recorded")
    for name, options in (("expected.h5", ("reference",)), ("actual.h5", ("compiled", *EAGER))):
        assert invoke(["record", "--engine", *options, *SMALL, "-o", name], folder).exit_code == 0
    return folder / "expected.h5", folder / "actual.h5"


def check_report(text: str) -> dict:
    report = json.loads(text)
    jsonschema.validate(report, SCHEMA, jsonschema.Draft202012Validator)
    return report


def test_a_planted_fault_exits_with_1_and_says_what_to_type_next(command, tmp_path: Path):
    path = tmp_path / "report.json"
    finished = command("diff", *SMALL, *EAGER, "--fault", "fact-cap", "--json", path)
    assert finished.exit_code == 1
    for text in (
        "first divergence: match_facts at step 1",
        "fact neighborOf(armenia, ",
        "\nnext\n  kgverify diff --queries 1 --corruptions 2 --mode eager",
        f"{' '.join(EAGER)} --fault fact-cap --save run   # then step through it: kgverify show run\n",
        "--fault fact-cap --lockstep   # every independent fault\n",
    ):
        assert text in finished.stdout
    report = check_report(path.read_text())
    printed = finished.stdout.partition("\nnext\n")[2].splitlines()
    commands = [each for each in report["next"] if "command" in each]
    assert printed == [f"  {shlex.join(each['command'][:-2])}   # {each['does']}" for each in commands]
    assert all(each["command"][-2:] == ["--json", "-"] for each in commands)
    assert report["first_cause"] == report["divergences"][0]
    assert report["environment"]["actual"]["faults"] == ["fact-cap"]
    assert report["command"] == " ".join(["kgverify diff", *SMALL, *EAGER, "--fault fact-cap"])


def test_the_catalogue_of_faults_is_printed_and_written_whole(command):
    finished = command("diff", "--fault", "list", "--json", "-")
    written = json.loads(finished.stdout)
    catalogue = tomllib.loads((Path(kv.__file__).parent / "prover" / "faults" / "catalogue.toml").read_text("utf-8"))
    for kind in ("faults", "composites"):
        assert [{key: of[key] for key in entry} for of, entry in zip(written[kind], catalogue[kind], strict=True)] == (
            catalogue[kind]
        )
        assert [each["name"] for each in written[kind] if each["name"] not in finished.stderr] == []


@pytest.mark.parametrize(("typed", "proposed"), [((), ["--save", "--lockstep"]), (("--lockstep",), ["--save"])])
def test_what_to_type_next_was_not_typed(command, typed: tuple[str, ...], proposed: list[str]):
    finished = command("diff", *SMALL, *EAGER, "--no-determinism", "--fault", "fact-cap", *typed)
    lines = finished.stdout.partition("\nnext\n")[2].splitlines()
    assert [re.findall(r"--(?:save|lockstep)", line)[-1] for line in lines] == proposed
    assert all(line.count("--lockstep") <= 1 for line in lines)


def test_json_on_standard_output_is_json_alone(command):
    finished = command("diff", *SMALL, *EAGER, "--lockstep", "--no-determinism", "--json", "-")
    report = check_report(finished.stdout)
    assert (finished.exit_code, report["verdict"], report["lockstep"]) == (0, "AGREE", True)
    assert (report["determinism"]["expected"], report["determinism"]["actual"]) == (None, None)
    assert finished.stderr.startswith("AGREE")


def test_traces_of_different_runs_exit_with_3_and_the_reason(command, recorded: tuple[Path, Path], tmp_path: Path):
    kv.record("countries", tmp_path / "other.h5", "reference", seed=1, **WORDS)
    finished = command("diff", recorded[0], tmp_path / "other.h5", "--json", tmp_path / "report.json")
    assert finished.exit_code == 3
    assert "because the runs differ in seed: expected 0, actual 1" in finished.stdout
    assert check_report((tmp_path / "report.json").read_text())["verdict"] == "INCONCLUSIVE"


def test_a_saved_run_compares_again_from_its_folder_and_quiet_prints_the_verdict_alone(command, tmp_path: Path):
    folder = tmp_path / "run"
    diff = ("diff", *SMALL, *EAGER, "--no-determinism", "--fault", "fact-cap", "--save", folder)
    quiet, whole = command(*diff, "-q"), command(*diff)
    assert (quiet.exit_code, quiet.stderr, whole.exit_code) == (1, "", 1)
    assert quiet.stdout == whole.stdout.splitlines()[0] + "\n"
    assert command("report", folder, "-q").stdout == quiet.stdout
    assert len(command("report", folder).stdout.splitlines()) > 10
    check_report((folder / "report.json").read_text())
    assert command("diff", folder / "expected.h5", folder / "actual.h5").exit_code == 1


def test_recording_says_what_it_recorded_and_overwrites_on_request_only(command, tmp_path: Path):
    path = tmp_path / "run.h5"
    options = ("record", "--engine", "reference", *SMALL, "-o", path)
    finished = command(*options, "--json", "-")
    trace = kv.open_trace(path)
    counts = {"num_candidates": 6, "num_steps": trace.num_steps, "num_resumed": 0}
    shown = {"does": "show it in names", "command": ["kgverify", "show", str(path), "--json", "-"]}
    assert json.loads(finished.stdout) == {"path": str(path), "accepted": [], **counts, "next": [shown]}
    assert finished.stderr == f"{path}: 6 candidates, {trace.num_steps} steps\n"
    before = path.read_bytes()
    assert command(*options, "--seed", 1).exit_code == 2
    assert path.read_bytes() == before
    assert command(*options, "--seed", 1, "--overwrite").exit_code == 0
    assert path.read_bytes() != before
    assert command(*options, "--resume").exit_code == 0


def test_a_trace_a_derivation_and_a_step_are_shown_and_written_as_json(command, recorded: tuple[Path, Path]):
    trace = kv.open_trace(recorded[1]).load()
    shown, data = [], []
    for words in ((), ("--candidate", 0), ("--candidate", 0, "--step", 1)):
        shown.append(command("show", recorded[1], *words).stdout)
        data.append(json.loads(command("show", recorded[1], *words, "--json", "-").stdout))
    assert shown[0].startswith("compiled")
    for text, of in (
        ("locatedInCR(armenia, asia)", shown[0]),
        ("root digest", shown[0]),
        ("neighborOf(armenia, X0), locatedInCR(X0, asia)", shown[1]),
        ("fact neighborOf(armenia, iran) [train.txt:382]", shown[2]),
        ("-> 0", shown[2]),
    ):
        assert text in of
    for each, name in zip(data, ("ShownTrace", "ShownDerivation", "ShownCandidateStep"), strict=True):
        schema = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
        jsonschema.validate(each, schema, jsonschema.Draft202012Validator)
    whole, derivation, step = data
    assert whole["next"][0]["command"][1:] == ["show", str(recorded[1]), "--candidate", "0", "--json", "-"]
    assert (whole["num_steps"], len(whole["candidates"])) == (len(trace.columns.steps.depth), 6)
    assert whole["root_digest"] == f"{trace.root:016x}"
    assert len(derivation["steps"]) == derivation["num_steps"] == trace.columns.candidates.num_steps[0]
    assert step["goal"] == ["neighborOf(armenia, X0)", "locatedInCR(X0, asia)"]
    assert {key: step[key] for key in derivation["steps"][1]} == derivation["steps"][1]


def record_graph(command, folder: Path, train: str, test: str, rules: str = "", **options: int):
    """Record a graph of these files; return what was printed."""
    for name, text in (("train.txt", train), ("test.txt", test), ("rules.txt", rules)):
        (folder / name).write_text(text, encoding="utf-8")
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return command("record", "--engine", "reference", "--graph", folder, *words, "-o", folder / "run.h5")


def test_names_that_a_terminal_cannot_encode_are_shown(command, tmp_path: Path):
    record_graph(command, tmp_path, "zü\tp\tb\nb\tp\tc d\n", "zü\tp\tc d\n")
    assert "p(zü, c d)" in command("show", tmp_path / "run.h5").stdout
    done = subprocess.run(
        [sys.executable, "-m", "kgverify", "show", "run.h5", "--json", "-"],
        env={"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert "zü" in json.loads(done.stdout)["candidates"][0]["atom"]
    assert b"z\\xfc" in done.stderr


def test_warnings_go_to_standard_error(command, tmp_path: Path):
    done = record_graph(command, tmp_path, "a\tp\tb\n", "a\tq\tb\n", "q(X,Y) :- nowhere(X,Y).\n", queries=1000)
    assert done.exit_code == 0
    assert re.search("warning: .*nowhere", done.stderr)
    assert "warning: --queries 1000: the split test has 1, and all are taken" in done.stderr
    assert "warning: " not in done.stdout


def test_the_stored_help_of_each_command_is_the_help_of_its_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    tool = Path(__file__).parents[2] / "tools" / "write_help.py"
    texts = runpy.run_path(str(tool))["render_help"]()
    assert {path.name: path.read_text("utf-8") for path in HELP.glob("*.txt")} == texts, f"run python {tool}"
    assert invoke(["trace", "join", "--help"]).stdout == texts["trace-join.txt"]


def test_the_version_and_the_help(command):
    first, *others = command("--version").stdout.splitlines()
    assert first == f"kgverify {kv.__version__}"
    assert [line.split()[0] for line in others] == ["Python", "HDF5", "torch"]
    shown = command("--help").stdout
    assert "Exit codes: 0 agree or done, 1" in " ".join(shown.split())
    groups = re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE)
    assert groups == ["Start here", "Look closer", "Measure", "Options", "Options of every command"]
    shown = re.split(r"^([A-Z][a-z ]+):$", command("diff", "-h").stdout, flags=re.MULTILINE)
    groups = dict(zip(shown[1::2], shown[2::2], strict=True))
    assert list(groups) == ["Arguments", "Options", "Graph and queries", "Proofs", "Compiled evaluator", "Comparison"]
    assert {"--mode", "--tune", "--fault"} <= set(groups["Compiled evaluator"].split())


@pytest.mark.parametrize("name", ENTRIES)
def test_the_help_states_the_default_of_every_option(name: str):
    for words, each in list_commands(make_app(name)).items():
        entries = re.split(r"(?m)^  (?=-|[A-Z])", invoke([*words, "--help"], COLUMNS="200").stdout)
        described = {entry.split()[0].strip(","): " ".join(entry.split()) for entry in entries[1:]}
        for option in list_options(each):
            default, spelled = option.field_info.default, option.name
            if default is True:
                assert "Do not: " in described[spelled.replace("--", "--no-", 1)], (words, spelled)
            elif spelled.startswith("-") and default not in (None, False, (), inspect.Parameter.empty):
                assert f" [default: {default}]" in described[spelled], (words, spelled)


@pytest.mark.parametrize(
    ("error", "code", "texts"),
    [
        (ZeroDivisionError("by zero"), 70, ["Traceback", "by zero", f"This is a bug in kgverify {kv.__version__}"]),
        # An early end of a file is no end of a program.
        (EOFError("compressed file ended early"), 70, ["Traceback", "compressed file ended early"]),
        (KeyboardInterrupt(), 130, ["interrupted\n"]),
        (SystemExit(0), 70, ["SystemExit: 0", "This is a bug"]),
    ],
)
@pytest.mark.parametrize("place", ["configuration", "command"])
def test_a_bug_of_ours_or_an_interrupt_is_no_verdict(
    command, monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException, code: int, texts: list[str]
):
    def fail(*_: object) -> None:
        raise error

    if place == "command":
        monkeypatch.setattr(SHOW, "open_view", fail)
    else:
        monkeypatch.setattr("kgverify.cli.configuration.find_file", fail)
    finished = command("show", "any.h5")
    assert (finished.exit_code, finished.stdout) == (code, "")
    assert [text for text in texts if text not in finished.stderr] == []
