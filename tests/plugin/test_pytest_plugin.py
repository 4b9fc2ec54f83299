"""The pytest plugin, run by pytest inside of a test; the page about it is executed."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from warm_commands import run_shell

import kgverify as kv
from kgverify import strategies

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")
TOY, TEST, REPLAY, DRAWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
REPORT, EXAMPLE = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
MISTAKE, REPAIR = "list(goal[1:])", "[bind(atom, bound) for atom in goal[1:]]"
# An environment that was installed before the entry point existed does not load the plugin.
IS_INSTALLED = any(each.value == "kgverify.pytest_plugin" for each in entry_points(group="pytest11"))
ARGUMENTS = ("-p", "no:cacheprovider", *(() if IS_INSTALLED else ("-p", "kgverify.pytest_plugin")))
FAILURE = (
    r"toy_engine does not agree.*first divergence: resolve.*candidate.*goal.*field.*difference.*expected.*actual.*"
)


@pytest.fixture
def run(pytester):
    """Run pytest with the plugin, beside the engine of the page and a repaired one."""
    pytester.makepyfile(toy_engine=TOY, repaired=TOY.replace(MISTAKE, REPAIR))
    return lambda *arguments: pytester.runpytest_subprocess(*ARGUMENTS, *arguments)


def test_the_plugin_is_declared_as_an_entry_point():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\nkgverify = "kgverify.pytest_plugin"' in text


@pytest.mark.deep
def test_the_page_is_true(pytester, run):
    pytester.makepyfile(test_toy=TEST)
    result = run("test_toy.py")
    result.assert_outcomes(failed=1)
    told = [line.removeprefix("E").strip() for line in result.outlines if line.startswith("E ")]
    shown = [line.strip() for line in REPORT.splitlines() if line]
    assert [line for line in told if line] == [f"kgverify.conformance.NotConforming: {shown[0]}", *shown[1:]]
    saved = pytester.path / "kgverify-failures" / "test_toy-test_my_engine.kg"
    section = result.outlines[next(i for i, line in enumerate(result.outlines) if "- kgverify -" in line) :]
    assert section[1:3] == ["first divergence: resolve at step 1", f"the problem: {saved}"]
    problem = kv.replay(saved, "compiled").reproducer.problem
    assert problem.size <= 5

    replay = pytester.makepyfile(replay_it=REPLAY)
    assert pytester.runpython(replay).stdout.lines[0].startswith("DIVERGE   still, and in the same way: resolve")
    # Repaired as the page says, it passes, and so does the problem that was saved.
    pytester.makepyfile(toy_engine=TOY.replace(MISTAKE, REPAIR))
    result = run("test_toy.py", "--kgverify-corpus", "kgverify-failures", "--kgverify-examples", "24")
    result.assert_outcomes(passed=1)
    assert pytester.runpython(replay).stdout.lines[0].startswith("AGREE")


@pytest.mark.deep
def test_the_page_shows_how_a_test_with_drawn_problems_fails(tmp_path: Path):
    (tmp_path / "toy_engine.py").write_text(TOY)
    (tmp_path / "test_drawn.py").write_text(DRAWN)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_drawn.py", "--hypothesis-seed=0"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    # Which example remains depends on Hypothesis's version and on the modules that it takes for the user's; its form does not.
    assert re.search(FAILURE, done.stdout, re.DOTALL), done.stdout
    assert re.search(r"problem=Problem:\n.*\? p\d\(.*% max_depth \d.*policy shortest", done.stdout, re.DOTALL)
    assert {"problem=Problem:", "? p1(c0, c0)"} <= {line.strip() for line in EXAMPLE.splitlines()}
    (replayed,) = [text for text in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "replay" in text]
    again = run_shell(replayed, tmp_path)
    assert again.returncode == 1, again.stderr
    assert "still, and in the same way: resolve" in again.stdout


def test_every_strategy_is_on_the_page():
    functions = [(name, value) for name, value in vars(strategies).items() if callable(value)]
    named = {name for name, value in functions if value.__module__ == strategies.__name__ and name[0] != "_"}
    assert named == set(re.findall(r"`(\w+)\(", PAGE.partition("### Strategies")[2].partition("\n## ")[0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "*no engine is named. fix: give --kgverify-engine*"),
        pytest.param(("--kgverify-engine", "toy"), "*expected module:factory, found 'toy'*", marks=pytest.mark.deep),
        pytest.param(
            ("--kgverify-engine", "reference", "--kgverify-examples", "many"),
            "*expected a whole number, found 'many'*",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_a_wrong_option_is_an_error(pytester, run, arguments, message):
    pytester.makepyfile("def test_it(assert_equivalent): assert_equivalent()")
    run(*arguments).stdout.fnmatch_lines([message])


@pytest.mark.deep
def test_engines_references_problems_and_graphs_come_from_options_marks_and_calls(pytester, run):
    pytester.makeini("[pytest]\nkgverify_engine = repaired:toy_engine")
    pytester.makepyfile(
        theirs="from repaired import toy_engine as Theirs",
        test_it="""
            import pytest
            import kgverify as kv
            from repaired import toy_engine

            @pytest.mark.kgverify(examples=4, time=5, minimum={})
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
                (tmp_path / "train.txt").write_text("ann\\tparent\\tbob\\nbob\\tparent\\tcid\\nann\\tparent\\tdan\\n")
                (tmp_path / "test.txt").write_text("ann\\tgrandparent\\tcid\\n")
                (tmp_path / "rules.pl").write_text("grandparent(X,Y) :- parent(X,Z), parent(Z,Y).\\n")
                assert_equivalent("compiled", graph=tmp_path)
                with pytest.raises(AssertionError, match="first divergence: match_facts") as raised:
                    assert_equivalent(kv.Evaluator(faults="last-fact-lost"), graph=tmp_path)
                assert "DIVERGE" in str(raised.value)

            def test_nothing(assert_equivalent):
                pass
            """,
    )
    result = run("-s", "--kgverify-reference", "theirs:Theirs", "--kgverify-examples", "8", "test_it.py")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*toy_engine 8 examples*"])
    result.stdout.fnmatch_lines(["*nothing was checked, since the test never calls assert_equivalent*"])
    wrong = ("--kgverify-reference", "theirs:Thiers", "test_it.py", "-k", "mark")
    run(*wrong).stdout.fnmatch_lines(["*--kgverify-reference: cannot load*did you mean 'Theirs'*"])
