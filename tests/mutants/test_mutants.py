"""Mutants of our own checkers are killed or reviewed; a sample of them is tried here."""

import ast
import functools
import importlib
import os
import re
import subprocess
import sys
import tomllib
import types
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import mutant_coverage
import mutant_trial
import pytest
import torch
from mutant import MODULE, PARTS, ROOT, Mutant, generate, select
from mutant_coverage import PASSED, Coverage, LineRecorder, RecordedTest, read_runs
from mutant_edits import Edit, find_edits
from mutant_judges import NamedRound
from mutant_plant import module_name, plant
from mutant_pool import Task, run_tasks
from mutant_review import LIST, Survivor, check_review, read_review
from mutant_run import is_named_for, read_results
from mutant_trial import KILLED, SURVIVED, TIMED_OUT, Result, TimedJudge, find_killer, status_of
from mutant_warm import forget_caches
from semantic_mutant import check_lists, plant_copy, read_lists
from semantic_trial import NOTICED, SILENT, WRONG, Command, Outcome, judge

from kgverify.program.stages import Stage

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


@pytest.mark.exhaustive
def test_every_part_has_mutants_enough_each_with_a_name_of_its_own(mutants: dict[str, tuple[Mutant, ...]]):
    for part, every in mutants.items():
        assert len({each.key for each in every}) == len(every)
        assert len({each.digest for each in every}) == len(every)
        chosen = select(every)
        assert chosen == select(every[::-1])
        assert len(chosen) >= 90, part
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
            "predicate_ids[predicate] = len(predicate_ids)",
            "pass",
            "sys.modules['kgreference'].Program.from_names([('p', 'a', 'b')], queries=[('q', 'b', 'c')]).predicates",
            ("p",),
        ),
        (
            "comparison",
            "StepView.chosen",
            "return self.resolvents[self.choice].content if 0 <= self.choice < len(self.resolvents) else None",
            "return self.resolvents[self.choice].content if False else None",
            "module.StepView(0, (), (module.ResolventView(0, (), 1, 2, 0.0),), 0, 0, 0, 0).chosen",
            None,
        ),
    ],
)
def test_a_mutant_planted_is_what_runs(
    part: str,
    function: str,
    before: str,
    after: str,
    expression: str,
    value: object,
):
    found = [each for each in generate(part) if (each.function, each.before, each.after) == (function, before, after)]
    assert found
    for mutant in found:
        __import__(module_name(mutant.path))
        assert outcome_of(mutant, expression) == value


def test_a_process_that_says_nothing_was_killed_by_the_mutant_or_by_the_clock():
    assert status_of(("tests/x.py::y", 3), 0) == (KILLED, "tests/x.py::y", 3)
    assert status_of(("", 4), 0) == (SURVIVED, "", 4)
    assert status_of(None, -27)[0] == TIMED_OUT
    assert status_of(None, -11)[0] == KILLED


def test_what_does_not_end_is_ended_by_the_clock(tmp_path: Path):
    def turn() -> bool:
        while True:
            pass

    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(
        target=mutant_trial.record_judge, args=(NamedRound("16 problems", turn), 0.2, str(tmp_path), send)
    )
    process.start()
    process.join(timeout=120)
    assert not receive.poll()
    assert status_of(None, process.exitcode)[0] == TIMED_OUT


def test_a_run_resumes_after_an_incomplete_line(tmp_path: Path):
    result = Result(digest="ab", mutant="m", part="comparison", status=KILLED, judge="t", seconds=1.0)
    path = tmp_path / "mutants.jsonl"
    assert read_results(path) == {}
    path.write_bytes(msgspec.json.encode(result) + b'\n{"digest": "cd", "mut')
    assert read_results(path) == {"ab": result}


@pytest.mark.exhaustive
def test_a_list_is_checked_both_ways(mutants: dict[str, tuple[Mutant, ...]]):
    first, second = mutants["comparison"][:2]
    entry = Survivor(**dict(zip(Survivor.__struct_fields__, (*first.key, "equivalent: so it is"), strict=True)))
    assert check_review([entry], [first], [first, second]) == []
    assert check_review([entry], [first, second], [first, second]) == [f"survived and is not explained: {second}"]
    assert check_review([entry], [], [second])[0].startswith("no such mutant any more: ")
    assert check_review([entry, entry], [], [first])[0].startswith("listed twice: ")
    unexplained = msgspec.structs.replace(entry, reason="who knows")
    assert check_review([unexplained], [], [first])[0].startswith("no reason: ")


@pytest.mark.exhaustive
def test_every_entry_of_the_list_names_a_mutant_that_exists(mutants: dict[str, tuple[Mutant, ...]]):
    entries = read_review()
    assert entries, LIST
    assert check_review(entries, [], [each for every in mutants.values() for each in every]) == []


def test_a_mutant_is_judged_by_the_tests_that_execute_its_statement():
    runs = [
        RecordedTest(test="quick", status=PASSED, seconds=0.1, lines={"a.py": f"{1 << 4 | 1 << 70:x}"}),
        RecordedTest(test="slow", status=PASSED, seconds=9.0, lines={"a.py": f"{1 << 4:x}", "b.py": f"{1 << 5:x}"}),
        RecordedTest(test="broken", status="failed", seconds=0.1, lines={"a.py": f"{1 << 4:x}"}),
    ]
    coverage = Coverage(runs)
    mutant = Mutant("a.py", "f", "number", "x", "y", Edit("number", 0, 1, "y"), (4, 6))
    assert coverage.tests_of(mutant) == ["quick", "slow"]
    assert coverage.tests_of_lines([("a.py", 70)]) == ["quick"]
    assert coverage.tests_of_lines([("b.py", 5), ("c.py", 1)]) == ["slow"]


def test_the_statement_of_a_mutant_has_no_inner_statements():
    mutants = generate("evaluation")
    in_metric = [each for each in mutants if each.path == "kgverify/ranking/metric.py"]
    assert in_metric
    for mutant in in_metric:
        first, last = mutant.lines
        assert 0 < first <= last <= first + 6, mutant


def test_lines_are_recorded_in_all_threads_until_the_recorder_stops():
    path = "kgverify/runs/progress.py"
    module = importlib.import_module(module_name(path))
    first = module.silent_phase.__code__.co_firstlineno
    recorder = LineRecorder([path])
    recorder.start()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: module.silent_phase("", 1).__enter__()).result()
    lines = recorder.stop()
    assert int(lines[path], 16) >> first
    recorder = LineRecorder([path])
    recorder.start()
    assert recorder.stop() == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel is compiled here, not interpreted")
def test_lines_of_a_kernel_are_recorded_in_the_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    path = "kgverify/engines/compiled/fused/note_kernels.py"
    kernel = importlib.import_module(module_name(path)).move_base_kernel
    base = torch.tensor([5], dtype=torch.int64)
    recorder = LineRecorder([path])
    recorder.start()
    kernel[(1,)](torch.tensor([3], dtype=torch.int32), base, 2)
    lines = recorder.stop()
    assert base.item() == 7
    first, *_, last = (line for *_, line in kernel.fn.__code__.co_lines())
    assert int(lines[path], 16) & ((2 << last) - (2 << first))


def test_recorded_lines_follow_the_text_of_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.py").write_text("a\nb\nc\nd\n")
    monkeypatch.setattr(mutant_coverage, "ROOT", tmp_path)
    monkeypatch.setattr(mutant_coverage, "every_file", lambda: ["a.py"])
    path = tmp_path / "lines.jsonl"
    assert read_runs(path) == {}
    runs = [
        RecordedTest(test=f"{line}", status=PASSED, seconds=1.0, lines={"a.py": f"{1 << line:x}"}) for line in (1, 2, 4)
    ]
    with path.open("ab") as file:
        file.write(b"".join(msgspec.json.encode(run) + b"\n" for run in runs) + b'{"test": "u", "sta')
    assert read_runs(path) == {run.test: run for run in runs}
    # New lines before all; another second line, which is two now.
    (tmp_path / "a.py").write_text("x\ny\na\nB\nbb\nc\nd\n")
    for _ in range(2):
        lines = {
            name: [n for n in range(9) if int(run.lines["a.py"], 16) >> n & 1] for name, run in read_runs(path).items()
        }
        assert lines == {"1": [1, 2, 3], "2": [4, 5], "4": [7]}


def test_tests_are_named_for_modules():
    assert is_named_for("tests/trace/test_trace_digests.py::test_a[b]", "kgverify/trace/model/digests.py")
    assert is_named_for(
        "tests/comparison/test_comparison_every_column.py::test_a", "kgverify/comparison/equal_columns.py"
    )
    assert not is_named_for("tests/comparison/test_comparison_locate.py::test_rows", "kgverify/comparison/block.py")


def judge_of(name: str, *, notices: bool) -> TimedJudge:
    return TimedJudge(NamedRound(name, lambda: notices))


def test_the_first_judge_that_notices_something_is_the_killer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mutant_trial, "_start_clock", lambda more: None)
    judges = [judge_of("a", notices=False), judge_of("b", notices=True), judge_of("c", notices=True)]
    assert find_killer(judges, 9.0) == ("b", 2)
    assert find_killer(judges[:1], 9.0) == ("", 1)
    assert find_killer(judges, -1.0) == ("", 0)
    assert find_killer([TimedJudge(NamedRound("d", lambda: bool([][0])))], 9.0) == ("d: IndexError", 1)


def test_what_the_original_computed_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    module = types.ModuleType("kgverify.imagined")
    remembered = functools.cache(lambda: calls.append(0))
    vars(module)["remembered"] = remembered
    monkeypatch.setitem(sys.modules, module.__name__, module)
    remembered()
    forget_caches()
    remembered()
    assert len(calls) == 2


def test_a_process_answers_crashes_or_is_not_begun_after_the_deadline():
    ends: list[tuple[Any, int | None]] = []

    def end(answer: Any, code: int | None, seconds: float) -> None:
        ends.append((answer, code))

    def answer(folder: str, pipe: Any) -> None:
        # More than a pipe holds.
        pipe.send("x" * (1 << 20) + str(Path(folder).is_dir()))

    run_tasks([Task(answer, end), Task(lambda folder, pipe: os._exit(3), end)], 1)
    assert [(text and text[-4:], code) for text, code in ends] == [("True", 0), (None, 3)]
    run_tasks([Task(answer, end)], 1, deadline=0.0)
    assert len(ends) == 2


@pytest.mark.exhaustive
def test_every_semantic_mutant_applies_once_and_says_what_it_does():
    found = read_lists()
    assert check_lists(found, [stage.value for stage in Stage]) == []
    assert sum(each.list == "recorder" for each in found) >= 40
    page = (ROOT / "docs" / "tested.md").read_text(encoding="utf-8")
    (example,) = tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])["mutant"]
    assert example["old"] in {each.old for each in found}


def test_a_list_that_does_not_fit_the_source_is_refused():
    found = read_lists()[0]
    stale = msgspec.structs.replace(found, old="no such text anywhere")
    empty = msgspec.structs.replace(found, new=found.old, what="a")
    problems = check_lists([found, found, stale, empty, msgspec.structs.replace(found, stage="odd")], ["close"])
    for text in ("listed twice", "found 0 times", "changes nothing", "lacks a description", "unknown stage 'odd'"):
        assert any(text in problem for problem in problems), text


def test_a_copy_differs_in_the_mutated_file_alone(tmp_path: Path):
    mutant = read_lists()[0]
    plant_copy(mutant, tmp_path / "tree")
    changed = [
        path.relative_to(tmp_path / "tree")
        for path in (tmp_path / "tree").rglob("*.py")
        if not path.samefile(ROOT / path.relative_to(tmp_path / "tree"))
        and path.read_bytes() != (ROOT / path.relative_to(tmp_path / "tree")).read_bytes()
    ]
    assert changed == [Path(mutant.file)]
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1


def test_a_wrong_result_counts_as_noticed_only_if_the_exit_code_tells():
    chosen = [Command("diff", ("diff",)), Command("fact-cap", ("diff --fault",), is_sound=False)]
    sound = Outcome(command="diff", code=0, seconds=1.0, verdict="AGREE", numbers="{}")
    faulty = Outcome(command="fact-cap", code=1, seconds=1.0, verdict="DIVERGE", stages=("match_facts",))
    expected = {each.command: each for each in (sound, faulty)}
    mutant = msgspec.structs.replace(read_lists()[0], stage="close")

    def status(*outcomes: Outcome) -> tuple[str, str, str]:
        found = judge(mutant, outcomes, chosen, expected, 1.0)
        return found.status, found.by, found.named

    replace = msgspec.structs.replace
    assert status(sound, faulty) == (SILENT, "", "")
    assert status(replace(sound, code=1, stages=("close",))) == (NOTICED, "diff", "close")
    assert status(replace(sound, code=-9)) == (NOTICED, "diff", "")
    assert status(replace(sound, numbers='{"mrr": 1}'), faulty) == (WRONG, "diff", "")
    assert status(sound, replace(faulty, code=0, verdict="AGREE", stages=())) == (WRONG, "fact-cap", "")
    assert status(sound, replace(faulty, stages=("prune",))) == (WRONG, "fact-cap", "prune")
    assert status(sound, replace(faulty, code=70)) == (NOTICED, "fact-cap", "match_facts")
    assert status(Outcome(command="import", code=70, seconds=0.0)) == (NOTICED, "import", "")


@pytest.mark.exhaustive
@pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set")
@pytest.mark.parametrize(
    ("script", "arguments", "last"),
    [
        ("run_mutants.py", ["--part", "evaluation", "--only", "ranking/metric.py", "--tests", "ranking"], "all"),
        ("run_semantic.py", ["recorder", "--only", "one hash", "--fuzz-seconds", "2"], "recorder"),
    ],
)
def test_a_few_mutants_are_tried(script: str, arguments: list[str], last: str, tmp_path: Path):
    command = [sys.executable, str(Path(__file__).parent / script), *arguments, "--jobs", "2"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "results.jsonl")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{last} +[1-9]", done.stdout, re.MULTILINE), done.stdout
