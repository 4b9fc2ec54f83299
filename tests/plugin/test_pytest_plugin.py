"""The pytest plugin, run by pytest inside of a test; the page about it is executed."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from kgverify.testing.reproducers.text_format import read_reproducer

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pytest.md").read_text(encoding="utf-8")
TOY, TEST, REPLAY, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
REPORT = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL).group(1)
MISTAKE, REPAIR = "list(goal[1:])", "[bind(atom, bound) for atom in goal[1:]]"
# An environment that was installed before the entry point existed does not load the plugin.
IS_INSTALLED = any(each.value == "kgverify.pytest_plugin" for each in entry_points(group="pytest11"))
ARGUMENTS = ("-p", "no:cacheprovider", *(() if IS_INSTALLED else ("-p", "kgverify.pytest_plugin")))


@pytest.fixture
def run(pytester):
    def run(*arguments):
        return pytester.runpytest_subprocess(*ARGUMENTS, *arguments)

    return run


@pytest.fixture
def toy(pytester):
    pytester.makepyfile(toy_engine=TOY, repaired=TOY.replace(MISTAKE, REPAIR))


def test_the_plugin_is_declared_as_an_entry_point():
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\nkgverify = "kgverify.pytest_plugin"' in text


def test_the_plugin_loads_nothing_heavy_at_the_start():
    heavy = "{'torch', 'numpy', 'hypothesis', 'h5py', 'rich'}"
    code = f"import sys, kgverify.pytest_plugin; print(*{heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.deep
def test_the_page_is_true(pytester, run, toy):
    pytester.makepyfile(test_toy=TEST)
    result = run("test_toy.py")
    result.assert_outcomes(failed=1)
    told = [line.removeprefix("E").strip() for line in result.outlines if line.startswith("E ")]
    assert [line for line in told if line] == [
        f"kgverify.conformance.NotConforming: {line}" if not i else line
        for i, line in enumerate(line.strip() for line in REPORT.splitlines() if line)
    ]
    assert len(TOY.splitlines()) <= 30
    saved = pytester.path / "kgverify-failures" / "test_toy-test_my_engine.kg"
    section = result.outlines[next(i for i, line in enumerate(result.outlines) if "- kgverify -" in line) :]
    assert section[1:3] == ["first divergence: resolve at step 1", f"the problem: {saved}"]
    problem = read_reproducer(saved).problem
    assert len(problem.facts) + len(problem.rules) + len(problem.unranked) + len(problem.queries) <= 5
    assert len(problem.facts) + len(problem.rules) == 2

    replay = pytester.makepyfile(replay_it=REPLAY)
    assert pytester.runpython(replay).stdout.lines[0].startswith("DIVERGE   still, and in the same way: resolve")
    # Repaired as the page says, it passes, and so does the problem that was saved.
    pytester.makepyfile(toy_engine=TOY.replace(MISTAKE, REPAIR))
    result = run("test_toy.py", "--kgverify-corpus", "kgverify-failures", "--kgverify-examples", "24")
    result.assert_outcomes(passed=1)
    assert pytester.runpython(replay).stdout.lines[0].startswith("AGREE")


@pytest.mark.exhaustive
def test_the_engine_comes_from_option_ini_file_or_conftest(pytester, run, toy):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kgverify(examples=4, time=5, minimum={})
        def test_it(assert_equivalent):
            report = assert_equivalent()
            print(report.engine, report.num_problems + report.num_skipped, "examples")
        """
    )
    run("-s", "--kgverify-engine", "repaired:toy_engine").stdout.fnmatch_lines(["*toy_engine 4 examples*"])
    result = run("-s", "--kgverify-engine", "reference", "--kgverify-examples", "3")
    result.stdout.fnmatch_lines(["*ReferenceEngine 3 examples*"])
    pytester.makeini("[pytest]\nkgverify_engine = repaired:toy_engine")
    run("-s").stdout.fnmatch_lines(["*toy_engine 4 examples*"])
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def kgverify_engine():
            from kgverify.engines.reference.engine import ReferenceEngine
            return ReferenceEngine
        """
    )
    run("-s").stdout.fnmatch_lines(["*ReferenceEngine 4 examples*"])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "*no engine is named. fix: give --kgverify-engine*"),
        (("--kgverify-engine", "nowhere:Engine"), "*cannot load 'nowhere:Engine'*"),
        (("--kgverify-engine", "toy_engine"), "*expected module:factory, found 'toy_engine'*"),
        (("--kgverify-engine", "reference", "--kgverify-examples", "many"), "*expected a whole number, found 'many'*"),
    ],
)
def test_a_wrong_option_is_an_error(pytester, run, arguments, message):
    pytester.makepyfile("def test_it(assert_equivalent): assert_equivalent()")
    run(*arguments).stdout.fnmatch_lines([message])


@pytest.mark.deep
def test_own_problems_and_engines(pytester, run, toy):
    pytester.makepyfile(
        """
        import pytest
        from kgverify.conformance import NotConforming
        from kgverify.runs.engine_makers import compiled_maker
        from kgverify.testing.problems.problem import Problem
        from kgverify.program.atoms import NamedAtom

        def test_problem(assert_equivalent):
            problem = Problem(facts=(NamedAtom("p", "a", "b"),), unranked=(NamedAtom("p", "a", "b"),))
            with pytest.raises(NotConforming, match="too little was exercised: 0 candidates proved"):
                assert_equivalent(compiled_maker(), problems=[problem], laws=False)
            report = assert_equivalent(compiled_maker(), problems=[problem], laws=False, minimum={})
            assert (report.num_problems, report.laws) == (1, ())
        """
    )
    run().assert_outcomes(passed=1)


@pytest.mark.deep
def test_own_graphs(pytester, run, toy):
    pytester.makepyfile(
        """
        import pytest
        from kgverify.runs.engine_makers import compiled_maker

        def test_graph(assert_equivalent, tmp_path):
            (tmp_path / "train.txt").write_text("ann\\tparent\\tbob\\nbob\\tparent\\tcid\\nann\\tparent\\tdan\\n")
            (tmp_path / "test.txt").write_text("ann\\tgrandparent\\tcid\\n")
            (tmp_path / "rules.pl").write_text("grandparent(X,Y) :- parent(X,Z), parent(Z,Y).\\n")
            assert_equivalent(compiled_maker(), graph=tmp_path)
            with pytest.raises(AssertionError, match="first divergence: match_facts") as raised:
                assert_equivalent(compiled_maker(faults=["last-fact-lost"]), graph=tmp_path)
            assert "DIVERGE" in str(raised.value)
        """
    )
    run().assert_outcomes(passed=1)


@pytest.mark.exhaustive
def test_the_reference_comes_from_option_fixture_or_call(pytester, run, toy):
    pytester.makepyfile(
        theirs="from repaired import toy_engine as Theirs",
        test_it="""
            from repaired import toy_engine

            def test_fixture(assert_equivalent):
                report = assert_equivalent()
                assert report.left_out

            def test_call(assert_equivalent):
                assert_equivalent(toy_engine, reference=toy_engine)
            """,
    )
    options = ("--kgverify-engine", "repaired:toy_engine", "--kgverify-examples", "8")
    run(*options, "--kgverify-reference", "theirs:Theirs", "test_it.py").assert_outcomes(passed=2)
    failed = run(
        *options, "--kgverify-reference", "toy_engine.py:toy_engine", "--kgverify-examples", "24", "test_it.py"
    )
    failed.assert_outcomes(passed=1, failed=1)
    (saved,) = (pytester.path / "kgverify-failures").glob("*.kg")
    made = read_reproducer(saved)
    assert (made.engine.name, made.reference.name) == ("repaired:toy_engine", "toy_engine.py:toy_engine")
    refused = run(*options, "--kgverify-reference", "theirs:Thiers", "test_it.py", "-k", "fixture")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*--kgverify-reference: cannot load*did you mean 'Theirs'*"])


@pytest.mark.deep
def test_a_test_that_never_calls_the_fixture_fails(pytester, run):
    pytester.makepyfile("def test_nothing(assert_equivalent): pass\n")
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*nothing was checked, since the test never calls assert_equivalent*"])
