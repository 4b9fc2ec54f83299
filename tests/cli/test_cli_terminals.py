"""Narrow terminals, terminals without colours, and terminals without any control codes: every command."""

import re
import shlex

import pytest
from hostile_output import CASES, execute, record_once, write_run

COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")
WIDTH = 40
FAST = [pytest.param(case, id=shlex.join(case.words)) for cases in CASES.values() for case in cases if case.is_fast]
HELP = [*CASES, "trace", "audit", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminals")
    write_run(record_once(), "near", folder)
    return folder


@pytest.mark.parametrize("case", FAST)
def test_a_command_respects_colours_that_were_declined_a_dumb_terminal_and_forty_columns(case, folder):
    without_colours = execute(case.words, folder, typed=case.typed, is_terminal=True, NO_COLOR="1")
    assert not COLOUR.search(without_colours.out + without_colours.err)
    dumb = execute(case.words, folder, typed=case.typed, is_terminal=True, TERM="dumb", width=WIDTH)
    assert "\x1b" not in dumb.out + dumb.err
    if not {"-", "--github"} & set(case.words):
        # Commands and paths are for copying: they stay in one line.
        lines = [line for line in dumb.out.splitlines() if len(line) > WIDTH]
        assert all("kgverify " in line or "/" in line for line in lines), lines


def test_the_same_command_has_colours_where_they_are_wanted(folder):
    assert COLOUR.search(execute(("report", "run"), folder, is_terminal=True).out)


def test_the_help_of_a_command_fits_a_narrow_terminal(folder):
    for command in HELP:
        shown = execute((*command.split(), "--help"), folder, width=WIDTH)
        assert shown.code == 0
        assert [line for line in shown.out.splitlines() if len(line) > WIDTH] == [], command
