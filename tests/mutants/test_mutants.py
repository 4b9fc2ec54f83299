"""Mutants of our own checkers are killed or reviewed; a sample of them is tried here."""

import ast
import os
import re
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import msgspec
import mutant_trial
import pytest
from mutant import MODULE, PARTS, ROOT, Mutant, generate, select
from mutant_edits import find_edits
from mutant_judges import NamedRound
from mutant_plant import module_name, plant
from mutant_review import LIST, Survivor, check_review, read_review
from mutant_run import read_results
from mutant_trial import KILLED, SURVIVED, TIMED_OUT, Result, status_of

SOURCE = '''
def clip(values: list[int], least: int = 0) -> list[int]:
    """Text."""
    if not values:
        raise ValueError(f"expected {1 + 1}, found {values}")
    kept = [max(value, least) for value in values if value > least and value != 7]
    return sorted(move(kept, least)[1:], key=abs)
'''


@pytest.fixture(scope="module")
def mutants() -> dict[str, tuple[Mutant, ...]]:
    return {part: generate(part) for part in PARTS}


def edited(source: str) -> list[tuple[str, str]]:
    """Return the operator of each edit of a function, and the line that results."""
    data = source.encode()
    (function,) = (node for node in ast.parse(data).body if isinstance(node, ast.FunctionDef))
    found = []
    for edit in find_edits(data, function):
        changed = (data[: edit.begin] + edit.text.encode() + data[edit.end :]).decode()
        (line,) = (new for old, new in zip(source.splitlines(), changed.splitlines(), strict=True) if old != new)
        found.append((edit.operator, line.strip()))
    return found


def test_every_kind_of_edit_is_made_and_texts_are_left_alone():
    made = edited(SOURCE)
    assert ("sign left out", "if  values:") in made
    assert ("condition fixed", "if True:") in made
    assert ("statement left out", "pass") in made
    assert ("number", "if value > least and value != 8]") not in made
    comprehension = "kept = [max(value, least) for value in values if {}]"
    for operator, condition in (
        ("comparison", "value >= least and value != 7"),
        ("comparison", "value < least and value != 7"),
        ("comparison", "value > least and value == 7"),
        ("and-or", "value > least or value != 7"),
        ("condition left out", "True and value != 7"),
        ("condition fixed", "True"),
        ("number", "value > least and value != 8"),
        ("number", "value > least and value != 6"),
    ):
        assert (operator, comprehension.format(condition)) in made
    plain = "value > least and value != 7"
    assert [line for operator, line in made if operator == "arguments swapped"] == [
        "return sorted(move(least, kept)[1:], key=abs)"
    ]
    assert ("other function", comprehension.format(plain).replace("max", "min")) in made
    assert ("bound left out", "return sorted(move(kept, least)[:], key=abs)") in made
    assert ("argument left out", "return sorted(move(kept, least)[1:])") in made
    assert ("other function", "return list(move(kept, least)[1:], key=abs)") in made
    assert not [line for _, line in made if line.startswith(("def", "raise"))]


def test_operators_are_found_among_brackets_and_comments():
    made = edited("def f(a, b):\n    return (a +  # not a - b\n        b) * ~(b)\n")
    assert [operator for operator, _ in made] == ["arithmetic", "arithmetic", "sign left out"]
    assert ("arithmetic", "return (a -  # not a - b") in made
    assert ("arithmetic", "b) + ~(b)") in made


@pytest.mark.deep
def test_every_part_has_mutants_enough_each_with_a_name_of_its_own(mutants: dict[str, tuple[Mutant, ...]]):
    for part, every in mutants.items():
        assert len({each.key for each in every}) == len(every)
        assert len({each.digest for each in every}) == len(every)
        chosen = select(every)
        assert chosen == select(every[::-1])
        assert len(chosen) >= 150, part
        assert len({each.operator for each in chosen}) >= 10
        assert {each.path for each in chosen} == {each.path for each in every}
        assert all(each.before != each.after for each in every)


def outcome_of(mutant: Mutant, expression: str) -> object:
    """Evaluate an expression in a process that runs the mutant."""
    context = get_context("fork")
    queue = context.SimpleQueue()

    def run() -> None:
        plant(mutant)
        queue.put(eval(expression, {"module": sys.modules[module_name(mutant.path)], "sys": sys}))

    process = context.Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == 0
    return queue.get()


@pytest.mark.deep
@pytest.mark.parametrize(
    ("part", "function", "before", "after", "expression", "value"),
    [
        (
            "reference",
            "choose",
            "return scores.index(max(scores))",
            "return scores.index(min(scores))",
            "sys.modules['kgreference'].take_step.__globals__['choose']([1, 2])",
            0,
        ),
        (
            "reference",
            MODULE,
            "NOT_PROVED_PENALTY: Final = 100.0",
            "NOT_PROVED_PENALTY: Final = 200.0",
            "sys.modules['kgreference'].ranking_score(-1.0, 2)",
            -201.0,
        ),
        (
            "reference",
            "Program.from_names",
            "atoms += queries",
            "pass",
            "sys.modules['kgreference'].Program.from_names([('p', 'a', 'b')], queries=[('p', 'b', 'c')]).constants",
            ("a", "b"),
        ),
        (
            "differ",
            "StepView.chosen",
            "return self.resolvents[self.choice].content if 0 <= self.choice < len(self.resolvents) else None",
            "return self.resolvents[self.choice].content if False else None",
            "module.StepView(0, (), (module.ResolventView(0, (), 1, 2, 0.0),), 0, 0, 0, 0).chosen",
            None,
        ),
    ],
)
def test_a_mutant_planted_is_what_runs(
    mutants: dict[str, tuple[Mutant, ...]],
    part: str,
    function: str,
    before: str,
    after: str,
    expression: str,
    value: object,
):
    found = [each for each in mutants[part] if (each.function, each.before, each.after) == (function, before, after)]
    assert found
    for mutant in found:
        __import__(module_name(mutant.path))
        assert outcome_of(mutant, expression) == value


def test_a_process_that_says_nothing_was_killed_by_the_mutant_or_by_the_clock():
    assert status_of("tests/x.py::y", 0) == (KILLED, "tests/x.py::y")
    assert status_of("", 0) == (SURVIVED, "")
    assert status_of(None, -27)[0] == TIMED_OUT
    assert status_of(None, -11)[0] == KILLED


def test_what_does_not_end_is_ended_by_the_clock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mutant_trial, "MOST_SECONDS", 0.2)

    def turn() -> bool:
        while True:
            pass

    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=mutant_trial.try_mutant, args=(None, [NamedRound(16, turn)], None, send))
    process.start()
    process.join(timeout=120)
    assert not receive.poll()
    assert status_of(None, process.exitcode) == (TIMED_OUT, "time")


def test_a_run_resumes_after_an_incomplete_line(tmp_path: Path):
    result = Result(digest="ab", mutant="m", part="differ", status=KILLED, judge="t", seconds=1.0)
    path = tmp_path / "mutants.jsonl"
    assert read_results(path) == {}
    path.write_bytes(msgspec.json.encode(result) + b'\n{"digest": "cd", "mut')
    assert read_results(path) == {"ab": result}


@pytest.mark.deep
def test_a_list_is_checked_both_ways(mutants: dict[str, tuple[Mutant, ...]]):
    first, second = mutants["differ"][:2]
    entry = Survivor(**dict(zip(Survivor.__struct_fields__, (*first.key, "equivalent: so it is"), strict=True)))
    assert check_review([entry], [first], [first, second]) == []
    assert check_review([entry], [first, second], [first, second]) == [f"survived and is not explained: {second}"]
    assert check_review([entry], [], [second])[0].startswith("no such mutant any more: ")
    assert check_review([entry, entry], [], [first])[0].startswith("listed twice: ")
    unexplained = msgspec.structs.replace(entry, reason="who knows")
    assert check_review([unexplained], [], [first])[0].startswith("no reason: ")


@pytest.mark.deep
def test_every_entry_of_the_list_names_a_mutant_that_exists(mutants: dict[str, tuple[Mutant, ...]]):
    entries = read_review()
    assert entries, LIST
    assert check_review(entries, [], [each for every in mutants.values() for each in every]) == []


@pytest.mark.exhaustive
def test_a_sample_of_the_mutants_is_killed(tmp_path: Path):
    command = [sys.executable, str(Path(__file__).parent / "run_mutants.py"), "--sample", "4", "--problems", "112"]
    done = subprocess.run(
        [*command, "--jobs", "2", "--results", str(tmp_path / "mutants.jsonl")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\w+) +(\d+) +(\d+) +(\d+) +(\d+)$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == list(PARTS)
    assert all((int(row[1]), int(row[4])) == (4, 0) for row in rows)
