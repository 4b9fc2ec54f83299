"""Every command with every kind of pair: kgverify's engines swapped, a foreign engine, two foreign engines."""

import shutil
from pathlib import Path

import pytest
import two_engines
from warm_commands import run_shell

import kgverify as kv
from kgverify.laws import LAWS
from kgverify.testing.reproducers.text_format import read_reproducer

ENGINES = Path(__file__).with_name("two_engines.py")

# The options of each pair that agrees, of one that diverges, and whether the compiled evaluator is in it.
PAIRS = {
    "swapped": (
        "--engine reference --reference compiled --mode eager",
        "--engine reference --reference compiled --mode eager --fault fact-cap",
    ),
    "foreign against ours": ("--engine two_engines:Fast", "--engine two_engines.py:Capped"),
    "ours against foreign": (
        "--engine compiled --reference two_engines:Slow --mode eager",
        "--reference two_engines:Slow --mode eager --fault fact-cap",
    ),
    "foreign against foreign": (
        "--engine two_engines:Fast --reference two_engines.py:Slow",
        "--engine two_engines:Capped --reference two_engines:Slow",
    ),
}
SMALL = "--queries 1 --corruptions 2"
COMMANDS = {
    "diff": f"kgverify diff {SMALL} {{}}",
    "diff in lockstep": f"kgverify diff {SMALL} --lockstep {{}}",
    "fuzz": "kgverify fuzz --examples 48 --jobs 1 --corpus corpus {}",
    "fuzz in processes": "kgverify fuzz --examples 48 --jobs 2 --corpus corpus {}",
    "bench": f"kgverify bench {SMALL} --seconds 0 {{}}",
    "evaluate": f"kgverify evaluate {SMALL} --check 8 {{}}",
}
DIVERGING = (
    f"kgverify diff {SMALL} --save run {{}} || test $? -eq 1; kgverify shrink run -o small.kg --pytest test_small.py"
    " --trust; kgverify replay small.kg --trust"
)
CASES = [(pair, name, wrong) for pair in PAIRS for name in COMMANDS for wrong in (False, True)]


@pytest.fixture
def folder(tmp_path):
    shutil.copy(ENGINES, tmp_path)
    return tmp_path


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize(("pair", "name", "wrong"), CASES)
def test_each_command_takes_each_pair(folder, pair, name, wrong):
    options = PAIRS[pair][wrong]
    if name == "bench":
        options = options.replace("--mode eager", "--modes eager" if "--engine reference" not in options else "")
    done = run_shell(COMMANDS[name].format(options), folder)
    assert done.returncode == int(wrong), done.stdout + done.stderr


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_divergence_of_each_pair_is_shrunk_and_replayed_on_the_same_pair(folder, pair):
    done = run_shell(DIVERGING.format(PAIRS[pair][True]), folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "in the same way" in done.stdout
    made = read_reproducer(folder / "small.kg")
    words = PAIRS[pair][True].split()
    for option, found in (("--engine", made.engine), ("--reference", made.reference)):
        if option in words:
            assert found.name == words[words.index(option) + 1]
    assert [each.faults for each in (made.engine, made.reference) if each.name == "compiled"] in ([], [("fact-cap",)])
    text = (folder / "test_small.py").read_text()
    assert f"engine: {made.engine.name}\n" in text
    assert f"reference: {made.reference.name}\n" in text
    # Another pair, on which it agrees.
    other = run_shell("kgverify replay small.kg --engine two_engines:Fast --reference two_engines:Slow", folder)
    assert (other.returncode, other.stdout.splitlines()[0]) == (
        0,
        "two_engines:Fast, compared with two_engines:Slow",
    )


@pytest.mark.deep
def test_recorded_traces_of_any_two_engines_are_compared(folder):
    done = run_shell(
        f"kgverify record --reference two_engines.py:Slow {SMALL} -o expected.h5;"
        f" kgverify record --engine two_engines:Capped {SMALL} -o actual.h5;"
        f" kgverify record --engine two_engines:Fast {SMALL} -o equal.h5;"
        " kgverify diff expected.h5 equal.h5 && kgverify diff expected.h5 actual.h5",
        folder,
    )
    assert done.returncode == 1, done.stderr
    assert "Slow (python, cpu, float64) against Fast" in done.stdout
    assert "reference" not in done.stdout


@pytest.mark.exhaustive
def test_a_report_names_both_engines_and_no_reference_prover(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    found = command("diff", *SMALL.split(), *PAIRS["foreign against foreign"][True].split())
    assert found.code == 1
    assert "Slow (python, cpu, float64) against Capped (python, cpu, float64)" in found.out
    assert "reference" not in found.out.split("next\n")[0]


@pytest.mark.deep
def test_a_campaign_resumes_with_the_same_pair_alone(folder):
    fuzz = "kgverify fuzz --examples 32 --jobs 1 --corpus corpus"
    first, other = PAIRS["foreign against foreign"][0], "--engine two_engines:Fast"
    done = run_shell(f"{fuzz} {first}; {fuzz} {first}; {fuzz} {other}", folder)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("NOTHING NEW")] == [
        "NOTHING NEW   32 problems",
        "NOTHING NEW   32 problems, 32 of them earlier",
        "NOTHING NEW   32 problems",
    ]
    assert done.stdout.count("reference   two_engines.py:Slow") == 2
    assert "features" not in done.stdout.split("NOTHING NEW")[1]


@pytest.mark.exhaustive
def test_every_problem_of_a_scope_is_compared_on_both_foreign_engines(folder):
    pair = PAIRS["foreign against foreign"]
    codes = [run_shell(f"kgverify fuzz --scope tiny --jobs 1 {options}", folder).returncode for options in (pair[0],)]
    assert codes == [0]


def test_a_crash_of_the_reference_is_attributed_to_the_reference(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    pair = ("--engine", "two_engines:Fast", "--reference", "two_engines:CrashesOnRules")
    found = command("fuzz", "--examples", "12", "--jobs", "1", "--corpus", "corpus", *pair)
    assert found.code == 1
    assert "crash ValueError of the reference" in found.out
    stopped = command("diff", *SMALL.split(), *pair)
    assert stopped.code == 2
    assert (
        "--reference two_engines:CrashesOnRules: its `prove` failed: ValueError: rules are not supported" in stopped.err
    )


def test_each_side_may_bring_its_own_corruptions_and_ranks(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    found = command("diff", *SMALL.split(), "--engine", "two_engines:OwnPipeline", "--reference", "two_engines:Slow")
    assert found.code == 1
    assert "corrupt" in found.out
    both = ("--engine", "two_engines:OwnPipeline", "--reference", "two_engines:OwnPipeline")
    assert command("diff", *SMALL.split(), *both).code == 0


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("diff --engine two_engines:Fast --mode eager", "--mode"),
        ("diff --engine two_engines:Fast --fault fact-cap", "--fault"),
        ("diff --engine two_engines:Fast --device cpu", "--device"),
        ("diff --engine two_engines:Fast --slots 4", "--slots"),
        ("diff --engine two_engines:Fast --precision bf16", "--precision"),
        ("diff --engine two_engines:Fast --reference two_engines:Slow --jobs 2", "--jobs"),
        ("diff a.h5 b.h5 --engine two_engines:Fast", "--engine"),
        ("record --engine two_engines:Fast --mode eager -o x.h5", "--mode"),
        ("record --engine two_engines:Fast --reference two_engines:Slow -o x.h5", "--reference"),
        ("record -o x.h5", "--engine"),
        ("fuzz --engine two_engines:Fast --fault fact-cap", "--fault"),
        ("fuzz --engine two_engines:Fast --mode fused", "--mode"),
        ("bench --engine two_engines:Fast --modes eager", "--modes"),
        ("bench --engine two_engines:Fast --fault fact-cap", "--fault"),
        ("evaluate --engine two_engines:Fast --memory 1GiB", "--memory"),
        ("evaluate --engine two_engines:Fast --rank-only", "--rank-only"),
    ],
)
def test_an_option_that_belongs_to_neither_side_is_refused(command, folder, monkeypatch, words, where):
    monkeypatch.chdir(folder)
    refused = command(*words.split())
    assert refused.code == 2
    assert refused.err.startswith(f"error: {where}: ")
    assert "fix: " in refused.err


def test_provers_of_another_semantics_are_judged_by_each_other_and_not_by_kgverifys():
    ours = kv.check_engine(two_engines.PrunesNothing, examples=24)
    theirs = kv.check_engine(two_engines.PrunesNothing, reference=two_engines.KeepsFacts, examples=24)
    assert not ours.is_conforming
    assert theirs.is_conforming, str(theirs)
    assert {"alone", "repetition", "reported-once"} < set(theirs.laws)
    assert {"made-by-clause", "sound", "score-formula", "ranks"} < set(theirs.left_out)
    assert set(theirs.laws) | set(theirs.left_out) == set(LAWS)
    assert "KeepsFacts" in str(theirs).splitlines()[0]
    assert (
        str(theirs).splitlines()[1].startswith("laws not checked, since the semantics of the reference are unknown: ")
    )
    kv.assert_equivalent(two_engines.PrunesNothing, reference=two_engines.KeepsFacts, examples=8)
    with pytest.raises(AssertionError, match="does not agree: compared with KeepsFacts"):
        kv.assert_equivalent(two_engines.Slow, reference=two_engines.KeepsFacts, examples=24)


def test_with_one_of_kgverifys_engines_as_the_reference_every_law_is_checked():
    found = kv.check_engine("reference", reference="compiled", examples=4)
    assert found.is_conforming, str(found)
    assert (set(found.laws), found.left_out) == (set(LAWS), {})
