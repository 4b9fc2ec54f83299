"""Shell completion: bash, zsh and fish complete the values of options, and importing torch is not needed for it."""

import subprocess
import sys

import pytest
import typer

from kgverify.cli import completion
from kgverify.cli.app import app
from kgverify.engines.policy import POLICY_NAMES
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.graphs.embedded import list_embedded
from kgverify.graphs.load import DATA_VARIABLE
from kgverify.prover.faults.catalogue import COMPOSITES, FAULTS
from kgverify.trace.model.levels import TraceLevel

FINITE = {
    "--fault": [*FAULTS, *COMPOSITES],
    "--mode": completion.MODES[1:],
    "--device": completion.DEVICES[1:],
    "--graph": list_embedded(),
    "--policy": ["shortest", "two_tower", "trained"],
    "--engine": ["compiled", "reference"],
    "--reference": ["compiled", "reference"],
    "--precision": completion.PRECISIONS,
    "--split": ["train", "valid", "test"],
    "--level": ["digests", "compact", "steps"],
    "--size": ["small", "large"],
    "--modes": completion.MODES[1:-1],
    "--modulo": ["names", "order", "duplicates", "none"],
    "--scope": ["tiny"],
    "--rung": completion.RUNGS,
}


def commands(command, words=()):
    """Yield every command of the application with its words."""
    if isinstance(command, typer.core.TyperGroup):
        for name, each in command.commands.items():
            yield from commands(each, (*words, name))
    else:
        yield " ".join(words), command


COMMANDS = dict(commands(typer.main.get_command(app)))
CASES = [
    (name, option)
    for name, each in COMMANDS.items()
    for parameter in each.params
    for option in parameter.opts
    if option in FINITE
]


def ask(command, monkeypatch, shell: str, line: str) -> tuple[int, list[str]]:
    """Return the exit code, and what a shell reads to complete a line."""
    monkeypatch.setenv("_KGVERIFY_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    found = command()
    return found.code, found.out.splitlines()


def test_the_options_with_finite_values_are_those_of_every_command():
    assert {option for _, option in CASES} == set(FINITE)
    assert len(CASES) > 50


@pytest.mark.parametrize("option", FINITE)
def test_every_command_completes_the_values_of_an_option(command, monkeypatch, option):
    for name in (name for name, each in CASES if each == option):
        code, lines = ask(command, monkeypatch, "bash", f"kgverify {name} {option} ")
        assert code == 0
        assert set(FINITE[option]) <= set(lines), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes_the_beginning_of_a_value(command, monkeypatch, shell):
    code, lines = ask(command, monkeypatch, shell, "kgverify diff --fault fact-c")
    (name,) = [each for each in FAULTS if each.startswith("fact-c")]
    assert code == 0
    assert name in " ".join(lines)
    assert not any(other in " ".join(lines) for other in FAULTS if not other.startswith("fact-c"))
    # Nothing fits: the shell completes the names of files.
    assert ask(command, monkeypatch, shell, "kgverify diff --graph ./my-gr")[1] in ([], [""], ["_files"])


def test_graphs_under_the_data_folder_are_completed(command, monkeypatch, tmp_path):
    for name in ("my-graph", ".hidden", "a b", "$(reboot)", "`reboot`", "a'b", 'a"b', "a\nb", "-x"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("KGVERIFY_DATA", str(tmp_path))
    assert [name for name, _ in completion.complete_graph("")] == [*list_embedded(), "my-graph"]
    monkeypatch.setenv("KGVERIFY_DATA", str(tmp_path / "none"))
    assert [name for name, _ in completion.complete_graph("")] == [*list_embedded()]


def test_a_list_is_completed_with_the_values_that_it_lacks():
    complete = completion.several_of(("names", "order", "none"))
    assert [value for value, _ in complete("names,")] == ["names,order", "names,none"]
    assert [value for value, _ in complete("names,o")] == ["names,order"]
    assert complete("other,x") == []


def test_values_that_are_completed_without_the_commands_are_those_of_every_command():
    others = set()
    for name, option in CASES:
        (parameter,) = (each for each in COMMANDS[name].params if option in each.opts)
        values = [each.value for each in parameter.shell_complete(typer.Context(COMMANDS[name]), "")]
        quick = completion.OF_EVERY_COMMAND.get(option)
        if quick is None or option in completion.OTHER_VALUES.get(name, ()):
            others.add((name, option))
        else:
            assert [value for value, _ in quick("")] == values, (name, option)
    assert len(CASES) > 40 + len(others)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_answered_without_the_commands_as_with_them(command, monkeypatch, capsys, shell):
    expected = ask(command, monkeypatch, shell, "kgverify diff --seed 7 --fault fact-")
    complete = completion.find_completion()
    assert complete is not None
    assert (complete(), capsys.readouterr().out.splitlines()) == expected
    for words in ("", "diff", "diff --gr", "diff --graph --mo", "fuzz --mode e", "diff --graph countries "):
        ask(command, monkeypatch, shell, f"kgverify {words}")
        assert completion.find_completion() is None, words


def test_a_shell_is_answered_without_the_import_of_the_commands():
    code = (
        "import os, sys; sys.argv = ['kgverify']; os.environ.update(_KGVERIFY_COMPLETE='complete_bash',"
        " COMP_WORDS='kgverify diff --fault ', COMP_CWORD='3')\n"
        "from kgverify.cli.start import import_command_line\n"
        "code = import_command_line()(); sys.exit(code or any(name in sys.modules for name in ('numpy', 'rich')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "fact-cap" in done.stdout) == (0, True), done.stderr


def test_the_names_of_policies_engines_and_levels_are_those_of_their_modules():
    assert (*POLICY_NAMES, "trained") == completion.POLICIES
    assert completion.ENGINES == (COMPILED, REFERENCE)
    assert tuple(TraceLevel) == completion.LEVELS
    assert completion.DATA_VARIABLE == DATA_VARIABLE


@pytest.mark.deep
def test_the_values_that_need_torch_are_those_of_the_evaluator():

    from kgverify.prover.execution.compilation import MODES
    from kgverify.prover.tower.precision import PRECISIONS

    assert sorted(completion.MODES) == sorted(("auto", *MODES, "plain"))
    assert completion.PRECISIONS == PRECISIONS
    assert pytest.importorskip("stepaudit").RUNG_NAMES == completion.RUNGS
