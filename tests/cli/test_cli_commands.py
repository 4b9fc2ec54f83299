"""The output, files and exit codes of the commands."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from cli_runs import EAGER, SMALL, Command

import kgverify
from kgverify.cli.app import run
from kgverify.cli.entries import ENTRIES
from kgverify.errors import InternalError
from kgverify.report.report import report_schema
from kgverify.trace.read.trace_file import read_trace

SCHEMA = Path(kgverify.__file__).parents[1] / "docs" / "report.schema.json"

# `kgverify.cli.commands.diff` and `.show` are functions where they are imported by name.
DIFF, SHOW = (importlib.import_module(f"kgverify.cli.commands.{name}") for name in ("diff", "show"))


@pytest.fixture(scope="module")
def schema() -> dict:
    return json.loads(SCHEMA.read_text())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run by both engines."""
    folder = tmp_path_factory.mktemp("recorded")
    paths = folder / "expected.h5", folder / "actual.h5"
    for path, options in zip(paths, (("reference",), ("compiled", *EAGER)), strict=True):
        words = ["kgverify", "record", "--engine", *options, *SMALL, "-o", str(path)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            assert run() == 0
    return paths


def assert_is_a_report(text: str, schema: dict) -> dict:
    report = json.loads(text)
    jsonschema.validate(report, schema, jsonschema.Draft202012Validator)
    for key in ("verdict", "coverage", "metrics", "divergences", "first_cause", "environment"):
        assert key in report
    return report


def test_the_published_schema_is_that_of_the_report():
    current = json.dumps(report_schema(), indent=2) + "\n"
    assert SCHEMA.read_text() == current, "write json.dumps(report_schema(), indent=2) and a newline to docs/"
    jsonschema.Draft202012Validator.check_schema(report_schema())


def test_engines_that_agree_exit_with_0_and_say_what_was_compared(command: Command):
    finished = command("diff", *SMALL, *EAGER)
    assert finished.code == 0
    assert finished.out.startswith("AGREE   6 candidates, ")
    assert "both engines repeat themselves" in finished.out
    assert "reference (python, cpu, float64) against compiled (eager, cpu, float32)" in finished.out
    assert "mean_reciprocal_rank" in finished.out
    assert finished.err == ""


def test_a_planted_fault_exits_with_1_and_shows_the_first_divergence(command: Command, schema: dict, tmp_path: Path):
    path = tmp_path / "report.json"
    finished = command("diff", *SMALL, *EAGER, "--fault", "fact-cap", "--json", path)
    assert finished.code == 1
    assert finished.out.startswith("DIVERGE")
    assert "first divergence: match_facts at step 1" in finished.out
    assert "fact neighborOf(armenia, " in finished.out
    assert "\nnext\n  kgverify diff --queries 1 --corruptions 2 --mode eager" in finished.out
    assert (
        f"{' '.join(EAGER)} --fault fact-cap --save run   # then step through it: kgverify show run\n" in finished.out
    )
    assert "--fault fact-cap --lockstep   # every independent fault\n" in finished.out
    report = assert_is_a_report(path.read_text(), schema)
    assert report["verdict"] == "DIVERGE"
    assert report["first_cause"] == report["divergences"][0]
    assert report["first_cause"]["stage"] == "match_facts"
    assert report["environment"]["actual"]["faults"] == ["fact-cap"]
    assert report["command"] == " ".join(["kgverify diff", *SMALL, *EAGER, "--fault fact-cap"])
    first = "both.realistic.mean_reciprocal_rank"
    assert report["metrics"]["actual"][first] < report["metrics"]["expected"][first]


def test_json_on_standard_output_is_json_alone(command: Command, schema: dict):
    finished = command("diff", *SMALL, *EAGER, "--lockstep", "--no-determinism", "--json", "-")
    report = assert_is_a_report(finished.out, schema)
    assert (finished.code, report["verdict"], report["lockstep"]) == (0, "AGREE", True)
    assert (report["determinism"]["expected"], report["determinism"]["actual"]) == (None, None)
    assert finished.err.startswith("AGREE")


@pytest.mark.deep
def test_recorded_traces_compare_to_the_same_report(command: Command, recorded: tuple[Path, Path], schema: dict):
    finished = command("diff", *recorded, "--json", "-")
    report = assert_is_a_report(finished.out, schema)
    assert (finished.code, report["verdict"]) == (0, "AGREE")
    assert report["coverage"]["candidates"] == 6
    assert report["run"]["graph"] == "countries"


def test_traces_of_different_runs_exit_with_3_and_the_reason(
    command: Command, recorded: tuple[Path, Path], schema: dict, tmp_path: Path
):
    other = tmp_path / "other.h5"
    assert command("record", "--engine", "reference", *SMALL, "--seed", 1, "-o", other).code == 0
    finished = command("diff", recorded[0], other, "--json", tmp_path / "report.json")
    assert finished.code == 3
    assert "because the runs differ in seed: expected 0, actual 1" in finished.out
    assert_is_a_report((tmp_path / "report.json").read_text(), schema)


def test_a_saved_run_compares_again_from_its_folder(command: Command, schema: dict, tmp_path: Path):
    folder = tmp_path / "run"
    finished = command("diff", *SMALL, *EAGER, "--no-determinism", "--save", folder)
    assert finished.code == 0
    assert "\nnext" not in finished.out
    assert_is_a_report((folder / "report.json").read_text(), schema)
    assert command("diff", folder / "expected.h5", folder / "actual.h5").code == 0


def test_recording_says_what_it_recorded(command: Command, tmp_path: Path):
    path = tmp_path / "run.h5"
    finished = command("record", "--engine", "reference", *SMALL, "-o", path, "--json", "-")
    data = json.loads(finished.out)
    trace = read_trace(path)
    assert data == {
        "path": str(path),
        "num_candidates": len(trace.columns.candidates.query),
        "num_steps": len(trace.columns.steps.depth),
        "num_resumed": 0,
        "accepted": [],
    }
    assert finished.err == f"{path}: 6 candidates, {data['num_steps']} steps\n"


@pytest.mark.deep
def test_two_processes_record_and_compare_as_one_does(command: Command, recorded: tuple[Path, Path], tmp_path: Path):
    path = tmp_path / "other.h5"
    assert command("record", "--engine", "reference", *SMALL, "--jobs", 2, "-o", path).code == 0
    assert read_trace(path).root == read_trace(recorded[0]).root
    finished = command("diff", *SMALL, *EAGER, "--jobs", 2)
    assert finished.code == 0
    assert finished.out.startswith("AGREE")


def test_showing_a_trace_a_derivation_and_a_step(command: Command, recorded: tuple[Path, Path]):
    for path, engine in zip(recorded, ("reference", "compiled"), strict=True):
        whole, derivation, step = (
            command("show", path),
            command("show", path, "--candidate", 0),
            command("show", path, "--candidate", 0, "--step", 1),
        )
        assert (whole.code, derivation.code, step.code) == (0, 0, 0)
        assert whole.out.startswith(engine)
        assert "locatedInCR(armenia, asia)" in whole.out
        assert "root digest" in whole.out
        assert "neighborOf(armenia, X0), locatedInCR(X0, asia)" in derivation.out
        assert "fact neighborOf(armenia, iran) [train.txt:382]" in step.out
        assert "-> 0" in step.out


def test_what_is_shown_as_json_is_what_the_trace_holds(command: Command, recorded: tuple[Path, Path]):
    trace = read_trace(recorded[0])
    whole = json.loads(command("show", recorded[0], "--json", "-").out)
    assert whole["num_steps"] == len(trace.columns.steps.depth)
    assert whole["root_digest"] == f"{trace.root:016x}"
    assert len(whole["candidates"]) == 6
    derivation = json.loads(command("show", recorded[0], "--candidate", 0, "--json", "-").out)
    assert len(derivation["steps"]) == derivation["num_steps"] == trace.columns.candidates.num_steps[0]
    step = json.loads(command("show", recorded[0], "--candidate", 0, "--step", 1, "--json", "-").out)
    assert step["goal"] == ["neighborOf(armenia, X0)", "locatedInCR(X0, asia)"]
    assert {key: step[key] for key in derivation["steps"][1]} == derivation["steps"][1]


def test_names_that_look_like_markup_are_shown_as_they_are(command: Command, tmp_path: Path):
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "train.txt").write_text("[red]a\tp[/]\t[b]\n[b]\tp[/]\tc d\n")
    (folder / "test.txt").write_text("[red]a\tp[/]\tc d\n")
    path = tmp_path / "run.h5"
    assert command("record", "--engine", "reference", "--graph", folder, "-o", path).code == 0
    assert "p[/]([red]a, c d)" in command("show", path).out
    assert "p[/]([red]a, c d)" in command("show", path, "--candidate", 0).out
    assert "p[/]([red]a, c d)" in command("show", path, "--candidate", 0, "--step", 0).out


def test_the_warnings_of_a_graph_go_to_standard_error(command: Command, tmp_path: Path):
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "train.txt").write_text("a\tp\tb\n")
    (folder / "test.txt").write_text("a\tq\tb\n")
    (folder / "rules.txt").write_text("q(X,Y) :- nowhere(X,Y).\n")
    finished = command("record", "--engine", "reference", "--graph", folder, "-o", tmp_path / "run.h5")
    assert finished.code == 0
    assert "warning: " in finished.err
    assert "nowhere" in finished.err
    assert "warning: " not in finished.out


def test_the_version_and_the_help(command: Command):
    first, *others = command("--version").out.splitlines()
    assert first == f"kgverify {kgverify.__version__}"
    assert [line.split()[0] for line in others] == ["Python", "HDF5", "torch"]
    for arguments in (("--help",), ("-h",), ("diff", "--help"), ("record", "--help"), ("show", "-h")):
        finished = command(*arguments)
        assert finished.code == 0
        assert "Usage: kgverify" in finished.out
    shown = command("--help").out
    assert "Exit codes: 0 agree or done, 1" in " ".join(shown.split())
    groups = re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE)
    assert groups == ["Start here", "Look closer", "Measure and train", "Options", "Options of every command"]


def test_the_help_of_a_command_lists_its_options_in_groups(command: Command):
    shown = re.split(r"^([A-Z][a-z ]+):$", command("diff", "--help").out, flags=re.MULTILINE)
    groups = dict(zip(shown[1::2], shown[2::2], strict=True))
    assert list(groups) == ["Arguments", "Options", "Graph and queries", "Proofs", "Compiled evaluator", "Comparison"]
    expected = {
        "Arguments": {"EXPECTED", "ACTUAL"},
        "Options": {"--engine", "--save"},
        "Graph and queries": {"--graph", "--corruptions", "--seed"},
        "Proofs": {"--policy", "--limits"},
        "Compiled evaluator": {"--mode", "--tune", "--fault,"},
    }
    for title, names in expected.items():
        assert names <= set(groups[title].split()), title
    assert "\nCompiled evaluator:\n" in command("fuzz", "--help").out


def test_the_version_and_the_help_import_no_command():
    heavy = "('numpy', 'rich', 'cyclopts', 'msgspec', 'jinja2', 'kgverify.cli.options')"
    for option in ("--version", "--help"):
        code = (
            f"import sys; sys.argv = ['kgverify', {option!r}]\nfrom kgverify.cli import main\ntry:\n    main()\n"
            f"except SystemExit as end:\n    print(end.code, [name for name in {heavy} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.stdout.splitlines()[-1], done.stderr) == ("0 []", "")


def test_the_list_of_commands_has_whole_summaries_in_a_narrow_terminal(monkeypatch, command: Command):
    monkeypatch.setenv("COLUMNS", "80")
    shown = command("--help").out
    for name, entry in ENTRIES.items():
        assert re.search(rf"^  {name} +{re.escape(entry.summary)}$", shown, re.MULTILINE), name


def test_no_command_is_a_question_for_help(command: Command):
    finished = command()
    assert finished.code == 2
    assert "Usage: kgverify" in finished.out + finished.err


@pytest.mark.parametrize("error", [InternalError("an invariant does not hold"), ZeroDivisionError("by zero")])
def test_a_bug_of_ours_exits_with_70_and_its_trace(command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception):
    def fail(path: Path) -> None:
        raise error

    monkeypatch.setattr(SHOW, "open_view", fail)
    finished = command("show", "any.h5")
    assert finished.code == 70
    assert "Traceback" in finished.err
    assert str(error) in finished.err
    assert f"This is a bug in kgverify {kgverify.__version__}" in finished.err


def test_an_interrupt_is_no_verdict(command: Command, monkeypatch: pytest.MonkeyPatch):
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SHOW, "open_view", interrupt)
    finished = command("show", "any.h5")
    assert (finished.code, finished.out, finished.err) == (130, "", "interrupted\n")


def test_an_interrupt_while_options_are_read_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*args, **given):
        raise KeyboardInterrupt

    monkeypatch.setattr("kgverify.cli.configuration.find_file", interrupt)
    finished = command("show", "any.h5")
    assert (finished.code, finished.out, finished.err) == (130, "", "interrupted\n")


def test_an_early_end_of_file_does_not_end_with_the_code_of_a_verdict(
    command: Command, monkeypatch: pytest.MonkeyPatch
):
    def end(path: Path) -> None:
        raise EOFError("compressed file ended early")

    monkeypatch.setattr(SHOW, "open_view", end)
    finished = command("show", "any.h5")
    assert finished.code == 70
    assert "compressed file ended early" in finished.err


WITHOUT_ENGINES = """
import sys
import kgverify
assert not {"torch", "h5py"} & sys.modules.keys(), "import kgverify loads an engine or a file format"
from kgverify.cli import main

def run(*arguments):
    sys.argv = ["kgverify", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code

small = ["--queries", "1", "--corruptions", "1"]
run("record", "--engine", "reference", *small, "-o", "a.h5")
run("record", "--engine", "reference", *small, "-o", "b", "--shard-steps", "10")
run("show", "a.h5", "--candidate", "0", "--step", "0")
run("diff", "a.h5", "b")
assert "torch" not in sys.modules, "torch was loaded"
assert "h5py" in sys.modules
"""


@pytest.mark.deep
def test_recording_the_reference_showing_and_comparing_need_no_torch(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_ENGINES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "AGREE" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr == ""


def test_python_m_kgverify_is_the_command():
    done = subprocess.run([sys.executable, "-m", "kgverify", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.partition("\n")[0], done.stderr) == (0, f"kgverify {kgverify.__version__}", "")


def test_names_that_a_terminal_cannot_encode_are_shown_escaped(tmp_path: Path, command: Command):
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "train.txt").write_text("zürich\tliegtIn\tschweiz\n", encoding="utf-8")
    (tmp_path / "graph" / "test.txt").write_text("zürich\tliegtIn\tschweiz\n", encoding="utf-8")
    path = tmp_path / "run.h5"
    assert command("record", "--engine", "reference", "--graph", tmp_path / "graph", "-o", path).code == 0
    done = subprocess.run(
        [sys.executable, "-m", "kgverify", "show", str(path), "--json", "-"],
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert "zürich" in json.loads(done.stdout)["candidates"][0]["atom"]
    assert b"z\\xfcrich" in done.stderr
