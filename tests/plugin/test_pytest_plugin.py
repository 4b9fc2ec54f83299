"""The pytest plugin, run by pytest inside of a test; the page about it is executed."""

import inspect
import re
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from warm_commands import run_python, run_shell

import kgverify as kv
from kgverify import strategies

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")
TOY, TEST, REPLAY, DRAWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
REPORT, EXAMPLE = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
MISTAKE, REPAIR = "list(goal[1:])", "[bind(atom, bound) for atom in goal[1:]]"
# An environment that was installed before the entry point existed does not load the plugin.
IS_INSTALLED = any(each.value == "kgverify.pytest_plugin" for each in entry_points(group="pytest11"))
ARGUMENTS = ["-p", "no:cacheprovider", *([] if IS_INSTALLED else ["-p", "kgverify.pytest_plugin"])]
FAILURE = (
    r"toy_engine \(toy_engine.py:4\) does not agree\n.*"
    r"first divergence: resolve.*candidate.*goal.*field.*difference.*expected.*actual.*"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the engine of the page and a repaired one."""
    (tmp_path / "toy_engine.py").write_text(TOY)
    (tmp_path / "repaired.py").write_text(TOY.replace(MISTAKE, REPAIR))
    return tmp_path


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin in a forked process."""
    return run_python(f"import pytest, sys; sys.exit(pytest.main({[*ARGUMENTS, *arguments]!r}))", folder)


def test_the_plugin_is_declared_as_an_entry_point():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\nkgverify = "kgverify.pytest_plugin"' in text


@pytest.mark.deep
@pytest.mark.skipif(not IS_INSTALLED, reason="this pytest has not loaded the plugin")
def test_options_have_the_defaults_of_the_function_and_of_the_page(pytestconfig: pytest.Config):
    parameters = inspect.signature(kv.assert_equivalent).parameters
    defaults = {name: parameters[name].default for name in ("examples", "seconds", "seed")}
    assert {name: float(pytestconfig.getini(f"kgverify_{name}")) for name in defaults} == defaults
    stated = {name: float(value) for name, value in re.findall(r"`-(\w+)` \((\d+)\b", PAGE)}
    assert stated == {name: defaults[name] for name in ("examples", "seconds")}


def test_the_page_is_true(folder: Path):
    (folder / "test_toy.py").write_text(TEST)
    lines = run_pytest(folder, "test_toy.py").stdout.splitlines()
    assert "1 failed" in lines[-1]
    told = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    shown = [line.strip() for line in REPORT.splitlines() if line]
    assert [line for line in told if line] == [f"kgverify.conformance.NotConforming: {shown[0]}", *shown[1:]]
    saved = folder / "kgverify-failures" / "test_toy-test_my_engine.kg"
    section = lines[next(i for i, line in enumerate(lines) if "- kgverify -" in line) :]
    assert section[1:3] == ["first divergence: resolve at step 1", f"the problem: {saved}"]
    assert kv.replay(saved, "compiled").reproducer.problem.size <= 5
    assert run_python(REPLAY, folder).stdout.startswith("DIVERGE   still, and in the same way: resolve")
    # Repaired as the page says, it passes, and so does the problem that was saved.
    (folder / "repaired.py").replace(folder / "toy_engine.py")
    result = run_pytest(folder, "test_toy.py", "--kgverify-corpus", "kgverify-failures", "--kgverify-examples", "8")
    assert "1 passed" in result.stdout, result.stdout
    assert run_python(REPLAY, folder).stdout.startswith("AGREE")


@pytest.mark.deep
def test_the_page_shows_how_a_test_with_drawn_problems_fails(folder: Path):
    # Shrinking takes most of the time, and is Hypothesis's own.
    (folder / "test_drawn.py").write_text(DRAWN.replace("{Phase.explain}", "{Phase.explain, Phase.shrink}"))
    done = run_pytest(folder, "-q", "test_drawn.py", "--hypothesis-seed=0")
    assert done.returncode == 1, done.stdout
    # Which example remains depends on Hypothesis's version and on the modules that it takes for the user's; its form does not.
    assert re.search(FAILURE, done.stdout, re.DOTALL), done.stdout
    assert re.search(r"problem=Problem:\n.*\? p\d\(.*% max_depth \d.*policy shortest", done.stdout, re.DOTALL)
    assert {"problem=Problem:", "? p1(c0, c0)"} <= {line.strip() for line in EXAMPLE.splitlines()}
    (replayed,) = [text for text in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "replay" in text]
    again = run_shell(replayed, folder)
    assert again.returncode == 1, again.stderr
    assert "still, and in the same way: resolve" in again.stdout


def test_every_strategy_is_on_the_page():
    functions = [(name, value) for name, value in vars(strategies).items() if callable(value)]
    named = {name for name, value in functions if value.__module__ == strategies.__name__ and name[0] != "_"}
    assert named == set(re.findall(r"`(\w+)\(", PAGE.partition("### Strategies")[2].partition("\n## ")[0]))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no engine is named. fix: give --kgverify-engine"),
        (("--kgverify-engine", "toy"), "expected module:factory, found 'toy'"),
        (
            ("--kgverify-engine", "reference", "--kgverify-examples", "many"),
            "expected a whole number, found 'many'",
        ),
        (
            ("--kgverify-engine", "reference", "--kgverify-reference", "repaired:toy_engin"),
            "did you mean 'toy_engine'",
        ),
    ],
)
def test_a_wrong_option_is_an_error(folder: Path, arguments: tuple[str, ...], message: str):
    (folder / "test_it.py").write_text("def test_it(assert_equivalent): assert_equivalent()")
    done = run_pytest(folder, *arguments)
    assert done.returncode == 1
    assert message in done.stdout


CAUSES = """
from kgverify.dialects import ReferenceEngine

class DependsOnItsBatch(ReferenceEngine):
    def prove(self, candidates, progress=lambda num: None):
        columns = super().prove(candidates, progress)
        ends = columns.candidates
        return columns._replace(candidates=ends._replace(log_probability=ends.log_probability - len(ends.query)))

def crashes(program, limits, policy):
    engine = ReferenceEngine(program, limits, policy)
    engine.prove = lambda *given: 1 // 0
    return engine

class MarksAsLimited(ReferenceEngine):
    def prove(self, candidates, progress=lambda num: None):
        columns = super().prove(candidates, progress)
        ends = columns.candidates
        return columns._replace(candidates=ends._replace(is_limited=1 - ends.is_limited))

def test_a_law(assert_equivalent):
    assert_equivalent(DependsOnItsBatch, reference=DependsOnItsBatch)

def test_a_crash(assert_equivalent):
    assert_equivalent(crashes)

def test_a_difference(assert_equivalent):
    assert_equivalent(MarksAsLimited)
"""


def test_a_section_of_a_failed_test_names_the_first_cause_and_the_file_of_the_problem(folder: Path):
    (folder / "test_causes.py").write_text(CAUSES)
    printed = run_pytest(folder, "--kgverify-examples", "40", "test_causes.py").stdout
    assert re.findall(r"-+ kgverify -+\n([\w ]+): .*\nthe problem: .*/(.*)", printed) == [
        ("law broken", "test_causes-test_a_law.kg"),
        ("crash", "test_causes-test_a_crash.kg"),
        ("first divergence", "test_causes-test_a_difference.kg"),
    ], printed


CRASHES = """
import kgverify as kv
from kgverify.dialects import ReferenceEngine

class Crashes(ReferenceEngine):
    def prove(self, candidates, progress=None):
        raise LookupError("first line\\nthe point")

def test_it(assert_equivalent):
    assert_equivalent(Crashes)

def test_on_a_graph():
    kv.verify("countries", Crashes, queries=1, corruptions=1)
"""


def test_a_failure_shows_the_lines_of_the_user_and_the_whole_message_of_the_engine(folder: Path):
    (folder / "test_it.py").write_text(CRASHES)
    printed = run_pytest(folder, "--kgverify-examples", "4", "test_it.py").stdout
    # The summary repeats messages where the variable CI is set.
    printed = printed.partition("short test summary info")[0]
    assert set(re.findall(r"^(\S+\.py):\d+: ", printed, re.MULTILINE)) == {"test_it.py"}, printed
    assert printed.count('test_it.py:7 in prove: raise LookupError("first line') == 2
    assert len(re.findall(r"^E +the point$", printed, re.MULTILINE)) == 3


TESTS = r"""
from pathlib import Path

import pytest
import kgverify as kv
from repaired import toy_engine

@pytest.mark.kgverify(examples=4, seconds=5, minimum={})
def test_mark(assert_equivalent):
    report = assert_equivalent()
    print(report.engine, report.num_problems + report.num_skipped, "examples")
    assert report.left_out

def test_call(assert_equivalent):
    assert_equivalent(toy_engine, reference=toy_engine)

def test_problem(assert_equivalent):
    fact = kv.NamedAtom("p", "a", "b")
    problem = kv.Problem(facts=(fact,), unranked=(fact,))
    with pytest.raises(kv.NotConforming, match="too little was exercised: 0 candidates proved"):
        assert_equivalent("compiled", problems=[problem], laws=False)
    report = assert_equivalent("compiled", problems=[problem], laws=False, minimum={})
    assert (report.num_problems, report.laws) == (1, ())

def test_graph(assert_equivalent, tmp_path):
    (tmp_path / "train.txt").write_text("ann\tparent\tbob\nbob\tparent\tcid\nann\tparent\tdan\n")
    (tmp_path / "test.txt").write_text("ann\tgrandparent\tcid\n")
    (tmp_path / "rules.pl").write_text("grandparent(X,Y) :- parent(X,Z), parent(Z,Y).\n")
    assert_equivalent("compiled", graph=tmp_path)
    faulty = kv.Evaluator(mode="eager", faults="last-fact-lost")
    with pytest.raises(AssertionError, match="first divergence: match_facts") as raised:
        assert_equivalent(faulty, graph=tmp_path)
    assert raised.value.report.verdict is kv.Verdict.DIVERGE
    (saved,) = Path("kgverify-failures").glob("*test_graph.kg")
    assert kv.replay(saved, engine=faulty, trust=True).is_same

def test_nothing(assert_equivalent):
    pass
"""


@pytest.mark.deep
def test_engines_references_problems_and_graphs_come_from_options_marks_and_calls(folder: Path):
    (folder / "pytest.ini").write_text("[pytest]\nkgverify_engine = repaired:toy_engine")
    (folder / "theirs.py").write_text("from repaired import toy_engine as Theirs")
    (folder / "test_it.py").write_text(TESTS)
    options = "-s", "--kgverify-reference", "theirs:Theirs", "--kgverify-examples", "8"
    printed = run_pytest(folder, *options, "test_it.py").stdout
    assert "1 failed, 4 passed" in printed, printed
    assert "toy_engine 8 examples" in printed
    assert "nothing was checked, since the test never calls assert_equivalent" in printed


@pytest.mark.deep
def test_a_missing_golden_file_is_written_and_fails_the_test(folder: Path):
    page = (ROOT / "docs" / "over-time.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- file: test_golden.py -->\n```python\n(.*?)```", page, re.DOTALL)
    (folder / "test_golden.py").write_text(block + "\n\ndef test_nothing(assert_golden):\n    pass\n")
    printed = run_pytest(folder, "test_golden.py").stdout
    assert "2 failed" in printed
    assert re.search(
        r"NotConforming: INCONCLUSIVE.*countries\.golden was missing, and\s.*22 candidates", printed, re.DOTALL
    )
    assert "nothing was checked, since the test never calls assert_golden" in printed
    assert "1 failed, 1 passed" in run_pytest(folder, "test_golden.py").stdout
    golden = folder / "countries.golden"
    before = golden.read_text()
    golden.write_text(re.sub(r": [0-9a-f]{16}", ": 0123456789abcdef", before))
    printed = run_pytest(folder, "test_golden.py").stdout
    assert "2 failed" in printed
    assert "is stale: reference itself gives 2 candidates other steps" in re.sub(r"\s+E?\s*", " ", printed)
    assert "1 failed, 1 passed" in run_pytest(folder, "--kgverify-update", "test_golden.py").stdout
    assert golden.read_text() == before
