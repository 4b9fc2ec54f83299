"""The defects of docs/found.md: each script shows its own, and the judges answer each program as expected."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from script_runner import RUN

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples" / "found").glob("*.py"))


def list_packages(path: Path) -> list[str]:
    """Return the packages of a script beside the standard library, numpy and torch; it is about the first of them."""
    names = re.findall(r"^(?:from|import) (\w+)|distribution\(\"(\w+)\"\)", path.read_text(), re.MULTILINE)
    known = {"numpy", "torch", *sys.stdlib_module_names}
    return [name for pair in names for name in pair if name and name not in known] or ["torch"]


def test_the_page_links_each_script_once_and_each_is_short_without_kgverify() -> None:
    links = re.findall(r"\]\(\.\./examples/found/(\w+\.py)\)", (ROOT / "docs" / "found.md").read_text())
    assert sorted(links) == [path.name for path in SCRIPTS]
    for path in SCRIPTS:
        assert "kgverify" not in path.read_text(), path
        assert len(path.read_text().splitlines()) <= 20, path


@pytest.mark.deep
@pytest.mark.parametrize("package", sorted({list_packages(path)[0] for path in SCRIPTS} - {"pykeen", "torch"}))
def test_the_scripts_of_a_package_show_their_defects(package: str) -> None:
    """Those about PyKEEN and torch take minutes; `python` runs each."""
    paths = [str(path) for path in SCRIPTS if list_packages(path)[0] == package]
    needed = {name for path in map(Path, paths) for name in list_packages(path)}
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    ran = subprocess.run([sys.executable, "-c", RUN, *paths], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    results = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert [path for path, _, _ in results] == paths
    for path, code, output in results:
        assert (code, "expected: " in output, "found: " in output) == (1, True, True), (path, output)


# The programs: clauses, a query, and its answers, which are `none` or atoms with a semicolon between them.

TEXT = (ROOT / "examples" / "found" / "programs.pl").read_text()
PROGRAMS = re.findall(r"^% [^\n]*\n([^%]*?)^\?- (.*?)\.  % (.*?)\n", TEXT, re.MULTILINE)
ANSWERS = [[] if answers == "none" else sorted(answers.split("; ")) for _, _, answers in PROGRAMS]


def count_arguments(terms: str) -> int:
    """Count the arguments of an atom, without those of terms within."""
    depths = [terms[:i].count("(") - terms[:i].count(")") for i in range(len(terms))]
    return 1 + sum(depth == 1 and sign == "," for depth, sign in zip(depths, terms, strict=True)) if terms else 0


def test_swi_prolog_gives_the_expected_answers(tmp_path: Path) -> None:
    assert len(PROGRAMS) == TEXT.count("\n\n% ") > 10
    if shutil.which("swipl") is None:
        pytest.skip("swipl is not installed")
    goals = []
    for number, (clauses, query, _) in enumerate(PROGRAMS):
        heads = re.findall(r"^(\w+)(\(.*?\))?(?:\.| :-)", clauses, re.MULTILINE)
        tables = {f":- table {name}/{count_arguments(terms)}." for name, terms in heads}
        lines = [f":- module(m{number}, []).", ":- set_prolog_flag(unknown, fail).", *sorted(tables), clauses]
        (tmp_path / f"m{number}.pl").write_text("\n".join(lines))
        shown = f"forall(m{number}:{query},(writeq({query}),nl))"
        goals.append(f"use_module('{tmp_path}/m{number}.pl'),{shown},writeln('.')")
    command = ["swipl", "-q", "-t", "halt", "-g", ",".join(goals)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [sorted(set(each.split())) for each in ran.stdout.split(".\n")[:-1]] == ANSWERS, ran.stderr


def test_clingo_gives_the_expected_answers() -> None:
    clingo = pytest.importorskip("clingo")
    found = []
    for clauses, query, _ in PROGRAMS:
        control = clingo.Control(["--warn=none"])
        program = clauses.replace("\\+", "not").replace("\\==", "!=")
        control.add("base", [], f"{program}\n#show.\n#show {query} : {query}.\n")
        control.ground([("base", [])])
        with control.solve(yield_=True) as models:
            found.append([sorted(str(symbol) for symbol in model.symbols(shown=True)) for model in models])
    assert found == [[answers] for answers in ANSWERS]
