"""The command `stepaudit`: its options, its exit codes, its files, and its own page, `stepaudit/README.md`."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from test_stepaudit_report import Page

from stepaudit import AuditOptions, UserError, Verdict
from stepaudit.command import main, make_parser, run_command
from stepaudit.environment import describe_environment
from stepaudit.report import ReportBuilder

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STEP = """
import torch

def make(call):
    return (torch.full((3,), 0.5),)

class Search:
    def step(self, values):
        return values + 1.0 if torch.compiler.is_compiling() else values * 1

search = Search()
"""
BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("kgverify", "kgreference", "msgspec", "cyclopts", "h5py"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
import runpy
runpy.run_module("stepaudit", run_name="__main__")
"""
"""The command without kgverify and what only kgverify needs."""
WORDS = [
    "search.py:search.step",
    "--inputs",
    "search.py:make",
    "--rung",
    "backend-eager",
    "--calls",
    "1",
    "--seconds",
    "0",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a step, and examine no properties."""
    monkeypatch.setattr("stepaudit.audited_step.examine_properties", lambda *given, **options: None)
    monkeypatch.setattr("stepaudit.audited_step.warm_up_compiler", lambda: None)
    monkeypatch.chdir(tmp_path)
    Path("search.py").write_text(STEP, encoding="utf-8")
    return tmp_path


def test_every_option_of_an_audit_is_an_option_of_the_command():
    text = make_parser("stepaudit").format_help()
    named = {name.removeprefix("--").replace("-", "_") for name in re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)}
    fields = {each.name for each in dataclasses.fields(AuditOptions)}
    assert {name for name in fields if name not in named and name.removesuffix("s") not in named} == {"announce"}


def test_the_help_states_the_exit_codes_and_quiet_prints_a_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text = " ".join(make_parser("stepaudit").format_help().split()).partition("Exit codes: ")[2]
    codes = {words: int(code) for code, words in re.findall(r"(\d+) ([^,.]+)", text)}
    verdicts = {
        "clean": Verdict.AGREE,
        "with findings or over budget": Verdict.DIVERGE,
        "inconclusive": Verdict.INCONCLUSIVE,
    }
    for words, verdict in verdicts.items():
        report = dataclasses.replace(ReportBuilder().build("step", {"torch": "2"}), verdict=verdict)
        monkeypatch.setattr("stepaudit.command.audit_step", lambda *given, report=report, **options: report)
        capsys.readouterr()
        assert run_command(WORDS) == codes.pop(words)
        assert len(capsys.readouterr().out.splitlines()) > 1
        run_command([*WORDS, "--quiet"])
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(verdict.value)
    monkeypatch.setattr(sys, "argv", ["stepaudit", "none.py:step"])
    assert main() == codes.pop("bad input")
    assert codes == {"a bug in stepaudit": 70}


@dataclasses.dataclass
class MoreOptions:
    """Options with values of other types.

    Args:
        pairs: some pairs.
        names: some names.
        limit: a number.
    """

    pairs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names: Sequence[str] = ()
    limit: int | None = None


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("", {}),
        ("--dynamic", {"dynamic": True}),
        ("--no-dynamic", {"dynamic": False}),
        ("--fullgraph --no-dynamic", {"dynamic": False, "fullgraph": True}),
    ],
)
def test_what_is_asked_of_the_compiler_is_given_to_every_rung(words: str, given: dict[str, Any]):
    parsed = vars(make_parser("stepaudit").parse_args([*WORDS, *words.split()]))
    names = {name: value for name, value in parsed.items() if name in ("dynamic", "fullgraph")}
    assert names == given
    for rung in AuditOptions(**names).ladder:
        assert {name: value for name, value in rung.options.items() if name in ("dynamic", "fullgraph")} == given


def test_the_environment_has_the_threads_of_operations():
    before = torch.get_num_threads()
    try:
        for num in (before, torch.get_num_interop_threads() + 1):
            torch.set_num_threads(num)
            assert describe_environment()["threads"] == f"{num}"
    finally:
        torch.set_num_threads(before)


def test_an_option_of_several_values_is_repeated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stepaudit.command.AuditOptions", MoreOptions)
    parser = make_parser("stepaudit")
    words = "s.py:step --inputs s.py:make --pair max_fusion_size=1 --pair a.b=x=y --name one --name two --limit 3"
    given = vars(parser.parse_args(words.split()))
    assert given["pairs"] == {"max_fusion_size": 1, "a.b": "x=y"}
    assert (given["names"], given["limit"]) == (["one", "two"], 3)
    with pytest.raises(UserError, match="expected KEY=VALUE"):
        parser.parse_args([*words.split(), "--pair", "x"])


def test_a_report_is_written_in_every_form_with_equal_values(capsys: pytest.CaptureFixture[str]):
    assert run_command([*WORDS, "--json", "a.json", "--html", "a.html", "--junit", "a.xml"]) == 1
    held = json.loads(Path("a.json").read_text("utf-8"))
    assert (held["verdict"], [each["audit"] for each in held["findings"]]) == ("DIVERGE", ["values"])
    assert capsys.readouterr().out.startswith("DIVERGE   1 finding   step")
    values = held["sections"]["values"]["rows"]
    assert values[0] == {"index": "[0]", "eager": "0.5", "compiled": "1.5", "float64": "0.5", "ulps": "1.68e+07"}
    texts = Page(Path("a.html").read_text("utf-8")).texts
    assert texts["td"][: 5 * len(values)] == [cell for row in values for cell in row.values()]
    assert [text for text in held["listings"].values() if text] == texts["pre"]
    suite = ElementTree.parse("a.xml").getroot()[0]
    assert suite.get("failures") == "1"


def test_json_on_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str]):
    run_command([*WORDS, "--json", "-", "--quiet"])
    done = capsys.readouterr()
    assert json.loads(done.out)["verdict"] == "DIVERGE"
    assert done.err.splitlines() == ["DIVERGE   1 finding   step"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("search.py:search.step", "required: --inputs"),
        ("search.py:search.step --inputs search.py:make --ruin x", "unrecognized arguments: --ruin x"),
        ("search.py:serch --inputs search.py:make", "fix: did you mean 'search'?"),
        ("none.py:step --inputs search.py:make", "FILE.py:STEP: no such file 'none.py'"),
        ("search --inputs search.py:make", "expected FILE.py:NAME, found 'search'"),
        ("search.py:search.step --inputs search.py:make --calls many", "--calls: invalid int value: 'many'"),
        ("search.py:search.step --inputs search.py:make --calls 0", "--calls: expected at least 1 call, found 0"),
        ("search.py:search.step --inputs search.py:make --rung x", "--rung: unknown rung 'x'"),
        ("search.py:search.step --inputs search.py:make --html no/where.html", "--html: 'no/where.html' cannot be"),
    ],
)
def test_bad_input_is_refused_with_a_fix(words: str, says: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UserError) as raised:
        run_command(words.split())
    assert says in str(raised.value)
    assert "\nfix: " in str(raised.value)


@pytest.mark.parametrize("option", ["--rung", "--device", "--mode", "--budget", "--calls", "--reproducer", "--\x1b"])
def test_a_name_with_commands_to_a_terminal_is_shown_as_escapes(option: str):
    hostile = "\x1b[2J\u202e\n::error::"
    base = ["search.py:search.step", "--inputs", "search.py:make"]
    for words in ([*base, option, hostile], [f"{hostile}.py:step", *base[1:]], [*base[:2], f"search.py:{hostile}"]):
        with pytest.raises(UserError) as raised:
            run_command(words)
        lines = str(raised.value).split("\n")
        assert len(lines) == 2, lines
        assert all(line.isprintable() and not line.startswith("::") for line in lines)


def test_a_budget_that_is_a_pipe_or_a_device_is_refused_at_once(folder: Path):
    os.mkfifo(folder / "pipe")
    for path in ("pipe", "/dev/zero", "."):
        with pytest.raises(UserError, match="cannot be read"):
            run_command([*WORDS, "--budget", path])


def test_exit_codes_tell_bad_input_from_a_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["stepaudit", "none.py:step"])
    assert main() == 2
    assert capsys.readouterr().err.startswith("error: ")
    monkeypatch.setattr(sys, "argv", ["stepaudit", *WORDS])
    monkeypatch.setattr("stepaudit.command.audit_step", lambda *given, **options: 1 / 0)
    assert main() == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def run_words(words: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *prefix, *words.split()], capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_the_page_leads_from_its_step_to_the_line_the_cause_and_the_repair_without_kgverify():
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL))
    Path("step.py").write_text(blocks["python"], encoding="utf-8")
    install, audit, *others = blocks["console"].splitlines()
    assert (install, others) == ("pip install ./stepaudit", ["python wrong.py repaired"])
    done = run_words(audit.removeprefix("stepaudit "), "-c", BLOCKED)
    assert done.returncode == 1, done.stderr
    for line in blocks["text"].splitlines():
        assert " ".join(line.split()) in " ".join(done.stdout.split()), line
    assert run_words("wrong.py").returncode == 1
    assert run_words(others[0].removeprefix("python ")).returncode == 0
