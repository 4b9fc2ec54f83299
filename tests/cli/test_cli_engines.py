"""Every command with every kind of pair: kgverify's engines swapped, a foreign engine, two foreign engines, broken ones."""

import re
import shutil
from pathlib import Path

import pytest
from invoked_commands import SMALL, invoke
from warm_commands import run_shell

import kgverify as kv

ENGINES = Path(__file__).with_name("two_engines.py")
OURS = "--engine compiled --reference two_engines:Slow --mode eager"
THEIRS = "--engine two_engines:Fast --reference two_engines.py:Slow"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(ENGINES, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.deep
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"diff --queries 1 --corruptions 2 --lockstep {OURS} --fault fact-cap", 1),
        (f"fuzz --examples 48 --jobs 2 --corpus corpus {THEIRS.replace('Fast', 'Capped')}", 1),
        ("evaluate --queries 1 --corruptions 2 --check 8 --engine reference --reference compiled --mode eager", 0),
    ],
)
def test_each_command_takes_each_pair(folder: Path, line: str, code: int):
    done = run_shell(f"kgverify {line}", folder)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_a_divergence_of_a_pair_is_shrunk_and_replayed_on_the_same_pair(folder: Path):
    done = run_shell(
        f"kgverify diff {' '.join(SMALL)} --save run {OURS} --fault fact-cap || test $? -eq 1;"
        " kgverify shrink run -o small.kg --pytest test_small.py --trust; kgverify replay small.kg --trust",
        folder,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "in the same way" in done.stdout
    assert "\nfaults: fact-cap\nreference: two_engines:Slow\n" in (folder / "small.kg").read_text()
    assert 'reference="two_engines:Slow"' in (folder / "test_small.py").read_text()
    # The engine agrees on another pair.
    other = run_shell("kgverify replay small.kg --engine two_engines:Fast --reference two_engines:Slow", folder)
    assert other.returncode == 0
    assert other.stdout.splitlines()[0] == "two_engines:Fast, compared with two_engines:Slow"
    # The code runs alone in a new process: it fails, and passes once the fault is repaired.
    code = run_shell("kgverify shrink run --trust --python", folder).stdout
    for text, returncode in ((code, 1), (code.replace(', faults=["fact-cap"]', ""), 0)):
        (folder / "minimal.py").write_text(text)
        alone = run_shell("PYTHONPATH=.:${PYTHONPATH-} python minimal.py", folder)
        assert alone.returncode == returncode, alone.stderr
        assert ("first divergence: match_facts" in alone.stderr) == returncode


@pytest.mark.deep
def test_a_campaign_resumes_with_the_same_pair_alone(folder: Path):
    fuzz = "kgverify fuzz --examples 32 --jobs 1 --corpus corpus"
    done = run_shell(f"{fuzz} {THEIRS}; {fuzz} {THEIRS}; {fuzz} --engine two_engines:Fast", folder)
    assert done.returncode == 0, done.stderr
    found = [line.partition("32 problems")[2] for line in done.stdout.splitlines() if line.startswith("NOTHING NEW")]
    assert found == ["", ", 32 of them earlier", ""]
    assert done.stdout.count("reference   two_engines.py:Slow") == 2


def test_a_crash_of_the_reference_is_attributed_to_the_reference(command, folder: Path):
    pair = ("--engine", "two_engines:Fast", "--reference", "two_engines:CrashesOnRules")
    found = command("fuzz", "--examples", "12", "--jobs", "1", "--corpus", "corpus", *pair)
    assert found.exit_code == 1
    assert re.search(
        r"crash ValueError of the reference .*\n   rules are not supported\n   from two_engines.py:\d+ in prove: raise",
        found.stdout,
    )
    stopped = command("diff", *SMALL, *pair)
    assert stopped.exit_code == 2
    failed = "--reference two_engines:CrashesOnRules: its `prove` failed: ValueError: rules are not supported"
    assert failed in stopped.stderr


WARNS = """
import logging
from kgverify.dialects import ReferenceEngine

def Engine(program, limits, policy):
    for name in ("_dynamo", "_inductor", "_dynamo", "_dynamo"):
        logging.getLogger(f"torch.{name}").warning("slow")
    return ReferenceEngine(program, limits, policy)
"""


def test_warnings_of_an_engine_are_printed_once_with_their_number(command, folder: Path):
    Path("warns.py").write_text(WARNS)
    done = command("diff", *SMALL, "--engine", "warns.py:Engine")
    printed = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    # The engine may be made several times.
    (num,) = (int(found) // 3 for found in re.findall(r"_dynamo: slow \((\d+) times\)", done.stderr))
    times = f" ({num} times)" if num > 1 else ""
    assert printed == [f"warning: torch._dynamo: slow ({3 * num} times)", f"warning: torch._inductor: slow{times}"]


HEAD = "import sys\nfrom kgverify.dialects import ReferenceEngine as Base\n"
MAKE = "def Engine(program, limits, policy): "
CLASS = "class Engine(Base):\n    "
PROVE = f"{CLASS}def prove(self, candidates, progress): "
CHANGED = f"{PROVE}\n        c = super().prove(candidates); s, r = c.steps, c.resolvents\n        return c._replace"
SHAPE = "(program, limits, policy)"
COLUMNS = "prove(candidates: CandidateSet, progress) -> Columns"

# The text of a module, the texts of the error, and the name of the engine if it is another one.
BROKEN = [
    ("", ["cannot import 'nowhere'", "path/to/file.py:NAME"], "nowhere:Engine"),
    ("", ["there is no file 'nowhere.py'", SHAPE], "./nowhere.py:Engine"),
    ("", ["cannot make the engine 'broken'", "MODULE:NAME or FILE.py:NAME"], "broken"),
    ("class Engine(Base): pass", ["no 'Engin'", "did you mean 'Engine'?"], "broken:Engin"),
    ("1 / 0", ["ZeroDivisionError", "broken.py:3", "must neither raise"]),
    ("sys.exit(0)", ["it ended the process (SystemExit: 0)"]),
    ("def :", ["SyntaxError", "broken.py:3"]),
    ("import nowhere_else", ["'nowhere_else'", "broken.py:3"]),
    ("Engine = 7", ["which cannot be called", SHAPE]),
    ("def Engine(program): ...", ["found Engine(program)", SHAPE]),
    (f"{MAKE}raise KeyError('weights')", ["KeyError: 'weights'", "broken.py:3 in Engine", SHAPE]),
    (f"{MAKE}sys.exit(0)", ["making the engine failed: it ended the process (SystemExit: 0)"]),
    (f"{MAKE}...", ["a method prove(candidates, progress) -> Columns"]),
    (f"{MAKE}raise NotImplementedError('shortest')", ["does not support this: shortest", "another --policy"]),
    ("def Engine(run, sizes): return 3", ["expected a pipeline, found int"]),
    (f"{CLASS}step = property()", ["a method step(positions) -> Columns"]),
    (f"{CLASS}def prove(self): ...", ["its `prove` failed: TypeError", COLUMNS]),
    (f"{PROVE}return self.none", ["its `prove` failed: AttributeError", "broken.py:4 in prove"]),
    (f"{PROVE}sys.exit()", ["its `prove` failed: it ended the process"]),
    (f"{PROVE}return {{}}", ["expected Columns, found dict", "-> Columns"]),
    (f"{CHANGED}(steps=s._replace(choice=s.choice.tolist()))", ["expected ndarray, found list"]),
    (f"{CHANGED}(steps=s._replace(goal_atoms=s.goal_atoms * 1.0))", ["steps.goal_atoms is float64", "int32 [n, 3]"]),
    (f"{CHANGED}(resolvents=r._replace(atoms=r.atoms[:, :2]))", ["resolvents.atoms is int32", "expected int32 [n, 3]"]),
    (f"{CHANGED}(steps=s._replace(choice=s.choice[1:]))", ["lengths differ"]),
    (f"{CLASS}@property\n    def info(self): raise OSError('no device')", ["OSError: no device"]),
    (
        f"{CLASS}def step(self, positions): ...",
        ["expected Columns, found NoneType", "step(positions: Positions) -> Columns"],
    ),
    (f"{CLASS}def draw(self, graph): ...", ["its `draw` failed: TypeError", "draw(graph, split, queries, "]),
    (f"{CLASS}def rank(self, *_): return []", ["expected Rankings, found list", "-> Rankings"]),
]


def write_broken(folder: Path, number: int) -> tuple[str, list[str]]:
    """Write the module of a broken engine; return the engine's name and texts of its error. Modules stay imported."""
    body, texts, name = (*BROKEN[number], "broken:Engine")[:3]
    stem = f"broken_{folder.name}_{number}"
    (folder / f"{stem}.py").write_text(f"{HEAD}{body}\n")
    return name.replace("broken", stem), [text.replace("broken", stem) for text in texts]


def check_refusal(words: list[object], folder: Path, where: str, texts: list[str]) -> None:
    done = invoke(words, folder)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(f"error: {where}")
    assert "\nfix: " in done.stderr
    assert "Traceback" not in done.stderr
    assert [text for text in texts if text not in done.stderr] == []


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_broken_engine_is_a_clear_error(tmp_path: Path, number: int):
    name, texts = write_broken(tmp_path, number)
    words = ("diff", "--queries", 1, "--corruptions", 1, "--lockstep", "--engine", name)
    check_refusal([*words], tmp_path, "--engine", texts)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("number", "words", "option"),
    [
        (0, "diff --engine reference", "--reference"),
        (17, "diff --engine reference", "--reference"),
        (4, "record -o x.h5", "--engine"),
        (12, "evaluate", "--engine"),
        (20, "evaluate", "--engine"),
    ],
)
def test_no_command_succeeds_with_a_broken_engine(tmp_path: Path, number: int, words: str, option: str):
    name, texts = write_broken(tmp_path, number)
    check_refusal([*words.split(), "--queries", 1, option, name], tmp_path, option, texts)


@pytest.mark.deep
@pytest.mark.parametrize(("number", "option"), [(10, "--engine"), (17, "--engine"), (20, "--reference")])
def test_in_a_campaign_a_broken_engine_is_an_error_or_a_divergence(tmp_path: Path, number: int, option: str):
    name, _ = write_broken(tmp_path, number)
    found = invoke(["fuzz", "--examples", 4, "--lockstep", "--jobs", 1, option, name], tmp_path)
    assert found.exit_code == 1 or (found.exit_code == 2 and "\nfix: " in found.stderr), found.output
    assert "Traceback" not in found.stderr


def test_the_functions_of_python_raise_the_same_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def raises(program, limits, policy):
        raise OSError("no weights")

    for call in (
        lambda: kv.verify("countries", raises, queries=1, corruptions=1),
        lambda: kv.verify("countries", "reference", reference=raises, queries=1, corruptions=1),
        lambda: kv.check_engine(raises),
        lambda: kv.record("countries", "x.h5", raises),
    ):
        with pytest.raises(kv.UserError, match="making the engine failed: OSError: no weights"):
            call()
    with pytest.raises(kv.UserError, match="can be imported by its name"):
        kv.fuzz("reference", reference=raises, corpus="corpus")
