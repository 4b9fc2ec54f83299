"""The programs of docs/found.md: SWI-Prolog and clingo both give the answers that their file expects."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "examples" / "found" / "programs.pl"
PROGRAMS = re.findall(r"^% [^\n]*\n([^%]*?)^\?- (.*?)\.  % (.*?)\n", FILE.read_text(), re.MULTILINE)
"""Clauses, query and answers; `none` or atoms with a semicolon between them."""


def expected_answers():
    """The answers of every program, sorted."""
    return [[] if answers == "none" else sorted(answers.split("; ")) for _, _, answers in PROGRAMS]


def test_every_program_has_a_query():
    assert len(PROGRAMS) == FILE.read_text().count("\n\n% ") > 10


def test_swi_prolog_gives_the_expected_answers(tmp_path):
    if shutil.which("swipl") is None:
        pytest.skip("swipl is not installed")
    goals = []
    for number, (clauses, query, _) in enumerate(PROGRAMS):
        heads = re.findall(r"^(\w+)(\(.*?\))?(?:\.| :-)", clauses, re.MULTILINE)
        tables = {f":- table {name}/{count_arguments(terms)}." for name, terms in heads}
        lines = [f":- module(m{number}, []).", ":- set_prolog_flag(unknown, fail).", *sorted(tables), clauses]
        (tmp_path / f"m{number}.pl").write_text("\n".join(lines))
        goals.append(
            f"use_module('{tmp_path}/m{number}.pl'),forall(m{number}:{query},(writeq({query}),nl)),writeln('.')"
        )
    ran = subprocess.run(
        ["swipl", "-q", "-t", "halt", "-g", ",".join(goals)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert [sorted(set(each.split())) for each in ran.stdout.split(".\n")[:-1]] == expected_answers(), ran.stderr


def count_arguments(terms):
    """The number of arguments of an atom, without those of terms within."""
    depths = [terms[:i].count("(") - terms[:i].count(")") for i in range(len(terms))]
    return 1 + sum(depth == 1 and sign == "," for depth, sign in zip(depths, terms, strict=True)) if terms else 0


def test_clingo_gives_the_expected_answers():
    clingo = pytest.importorskip("clingo")
    found = []
    for clauses, query, _ in PROGRAMS:
        control = clingo.Control(["--warn=none"])
        program = clauses.replace("\\+", "not").replace("\\==", "!=")
        control.add("base", [], f"{program}\n#show.\n#show {query} : {query}.\n")
        control.ground([("base", [])])
        with control.solve(yield_=True) as models:
            found.append([sorted(str(symbol) for symbol in model.symbols(shown=True)) for model in models])
    assert found == [[answers] for answers in expected_answers()]
