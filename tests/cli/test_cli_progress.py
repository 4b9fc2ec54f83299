"""The progress of long work."""

import re
import shutil
from pathlib import Path

import pytest
from invoked_commands import SMALL, invoke
from rich.progress import Progress
from run_engines import needs_compiler

from kgverify.cli.commands.diff import show_comparison
from kgverify.cli.entries import ENTRIES
from kgverify.cli.progress import show_phase
from kgverify.progress import slow_part

TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "160"}
NATIVE = "--mode native --device cpu --queries 4"


@pytest.mark.parametrize(
    ("line", "title", "total"),
    [
        ("evaluate --engine reference --queries 2 --corruptions 5 --part-size 5", "evaluating", 22),
        ("evaluate --engine reference --queries 2 --corruptions 5", "checking a sample", 512),
        ("record --engine reference --queries 2 --corruptions 5 -o a.h5", "recording reference", 22),
        pytest.param(f"diff {NATIVE} --corruptions 5", "actual: compiled", 44, marks=needs_compiler),
        pytest.param(f"evaluate {NATIVE} --corruptions 20 --rank-only", "evaluating", 104, marks=needs_compiler),
        pytest.param(f"evaluate {NATIVE} --corruptions all --rank-only", "evaluating", 873, marks=needs_compiler),
    ],
)
def test_every_bar_ends_at_its_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, title: str, total: int
) -> None:
    bars: list[Progress] = []
    monkeypatch.setattr(
        "kgverify.cli.progress.Progress", lambda *given, **options: bars.append(Progress(*given, **options)) or bars[-1]
    )
    done = invoke(line, tmp_path, **TERMINAL)
    assert done.exit_code in (0, 3), done.stderr
    tasks = [task for bar in bars for task in bar.tasks if task.total is not None]
    assert [(task.description, task.completed, task.total) for task in tasks if task.completed != task.total] == []
    assert (title, total) in [(task.description, task.total) for task in tasks]


def test_a_line_of_progress_leaves_room_for_the_echo_of_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TERMINAL, "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    with show_phase("a title " * 20, 10) as phase:
        assert phase._progress.console.width == 60 - len("^C")


def test_a_slow_part_names_the_time_it_takes_in_the_bar_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kgverify")
    with show_phase("actual", 10) as phase:
        task = phase._progress.tasks[0]
        left = phase._progress.columns[-1]
        with slow_part("compiling", "a minute"):
            assert (task.description, str(left.render(task))) == ("actual, compiling", "a minute")
        assert (task.description, str(left.render(task))) == ("actual", "")
        for _ in range(2):
            phase(1)
        assert str(left.render(task)).endswith(" left of this part")
    with slow_part("compiling", "a minute"):
        assert task.description == "actual"
    assert caplog.messages == ["compiling takes a minute"] * 2


def test_shrinking_shows_the_facts_and_rules_that_are_left(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("two_engines.py"), tmp_path)
    engine = ("--engine", "two_engines.py:Capped")
    assert invoke(["diff", *SMALL, *engine, "--no-determinism", "--save", "run"], tmp_path).exit_code == 1
    done = invoke(["shrink", "run", *engine, "-o", "small.kg", "--calls", 12], tmp_path, **TERMINAL)
    shown = re.sub(r"\x1b\[[\d;]*m", "", done.stderr)
    lines = re.findall(r"^  ([\w ]+?) +([\d,]+) facts?, ([\d,]+) rules?   ([\d,]+) runs?$", shown, re.MULTILINE)
    sizes = re.findall(r"(slice|minimum) +([\d,]+) facts?, ([\d,]+) rules?\b", done.stdout)
    assert lines[0][:3] == sizes[0]
    assert lines[-1][1:3] == sizes[1][1:]
    runs = [int(line[3]) for line in lines]
    assert runs == sorted(runs)
    assert runs[-1] <= 12


def test_the_progress_of_a_comparison_ends_at_its_total_however_often_columns_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kgverify.cli.progress.SECONDS_BETWEEN_LINES", 0)
    (tmp_path / "a.h5").write_bytes(bytes(3 << 20))
    with show_comparison(tmp_path / "a.h5") as advance:
        for _ in range(10):
            advance(1 << 20)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[2].partition(",")[0] for line in lines] == [f" MiB: {n} of 3" for n in (1, 2, 3)]
    assert lines[-1].endswith("0:00:00 left")


@pytest.mark.parametrize("name", ENTRIES)
def test_every_command_appends_what_it_prints_to_a_log(tmp_path: Path, name: str) -> None:
    for number in (1, 2):
        done = invoke([name, "--no-such-option", "-q", "-v", "--log", "log.txt"], tmp_path)
        assert done.exit_code == 2
        lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
        assert [line[20:] for line in lines].count(f"kgverify {name} --no-such-option") == number
        assert lines[-1] == "exit code 2"
    assert "".join(f"{line}\n" for line in lines if not line[:1].isdigit()).startswith(done.stderr)


def test_a_quiet_command_logs_the_whole_result_and_its_notes(tmp_path: Path) -> None:
    (tmp_path / "kgverify.toml").write_text('engine = "reference"\n')
    words = ["diff", *SMALL, "-q", "--json", "-", "--log=log.txt"]
    done = invoke(words, tmp_path, **TERMINAL)
    assert (done.exit_code, len(done.stderr.splitlines())) == (0, 1)
    logged = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert "\x1b" not in logged
    for text in ("configuration: ", "\nAGREE ", "\n  graph countries", "\nmean_reciprocal_rank ", "\nexit code 0\n"):
        assert text in logged
    refused = invoke([*words, "--log", "nowhere/log.txt"], tmp_path)
    assert (refused.exit_code, "nowhere/log.txt: cannot be written" in refused.stderr) == (2, True)
