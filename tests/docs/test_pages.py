"""Every block of the README and of the pages is executed in order: commands are run, outputs are compared, Python is run."""

import doctest
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from warm_commands import WITHOUT_EXPERIMENTS, run_python, run_shell

import kgverify as kv

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
SMALL = "--queries 2 --corruptions 5"
SET_UP = "python3 -m venv .venv && .venv/bin/pip install -q -e "


class Page(NamedTuple):
    """The way in which the blocks of a page are executed.

    before:     commands that make the files which the page presumes
    files:      names of files that blocks of a kind are written to
    parts:      texts at which a part begins whose blocks run in a new folder
    until:      the text at which another test goes on
    ignored:    kinds of blocks that are not executed
    has_shared: True if a block of Python uses the names of those before it
    printed:    patterns of what is printed, besides the page's own blocks of text
    """

    before: str = ""
    files: Mapping[str, str] = MappingProxyType({})
    parts: tuple[str, ...] = ()
    until: str = "\0"
    ignored: tuple[str, ...] = ()
    has_shared: bool = False
    printed: tuple[str, ...] = ()


PAGES = {
    "README.md": Page(
        parts=("## In Python", "## Your graph", "## Record", "The same in Python", "## Investigate"),
        printed=(r"AGREE\S* 22\s+DIVERGE .*DIVERGE", r"AGREE   22 candidates", r"\bAGREE\s+22\s"),
    ),
    "docs/agents.md": Page(printed=(r"KG101 resolve missing .*",)),
    "docs/ci.md": Page(printed=(r"INCONCLUSIVE.*AGREE   22 candidates.*DIVERGE.*::error",)),
    "docs/environments.md": Page(has_shared=True, printed=(r"AGREE 17 episodes ended\nDIVERGE True state",)),
    "docs/evaluating.md": Page(until="## Several machines", printed=(r"\[0 0 1 1",)),
    "docs/fuzzing.md": Page(
        files={"reproducer": "shown.kg"},
        parts=("## Shrink a divergence", "In Python, `kv.fuzz`", "## The file"),
    ),
    "docs/graphs.md": Page(has_shared=True),
    "docs/install.md": Page(ignored=("text", "toml"), printed=("kgverify",)),
    "docs/over-time.md": Page(
        parts=("## Watch a running engine", "## Record a training loop", "## Which commit broke it"),
        printed=(
            r"INCONCLUSIVE.*was missing.*AGREE   22 candidates.*DIVERGE.*match_facts",
            r"watched \d+ steps.*match_facts: missing.*s S stage",
            r"seed 3, slot 3, start 0, step 7: digests.sequence",
        ),
    ),
    "docs/reference.md": Page(printed=("DIVERGE", r"AGREE.*\Z")),
    # Its Python, and what it shows, are in tests/plugin/test_pytest_plugin.py.
    "docs/report.md": Page(has_shared=True),
    # Its Python is executed by tests/trace/test_trace_loop.py, on a trace of one candidate.
    "docs/traces.md": Page(
        before=f"kgverify trace import others.jsonl -o reference.h5\n"
        f"kgverify record --engine reference {SMALL} -o mine.h5",
        ignored=("python", "json"),
    ),
    "docs/verdicts.md": Page(
        before=f"kgverify record --engine reference {SMALL} -o eager.h5\n"
        f"kgverify record --engine compiled {SMALL} -o compiled.h5"
    ),
    "docs/which.md": Page(has_shared=True),
    "docs/your-engine.md": Page(
        printed=(
            r"DIVERGE match_rules",
            r"DIVERGE match_facts\nSlow \(provers.py:\d+\) agrees: compared with Slow, .*\n"
            r"\d+ laws not checked, since the semantics of the reference are unknown\n",
            r"DIVERGE match_facts \| 1 fact missing, none extra; with the expected value in place of this one, the rest of .*",
            r"first divergence: top_k at step 0.*DIVERGE match_rules",
        )
    ),
}
ELSEWHERE = {
    "docs/index.md": "tests/docs/test_pages.py",
    "docs/auditing.md": "stepaudit/tests/test_stepaudit_page.py",
    "docs/pytest.md": "tests/plugin/test_pytest_plugin.py",
    "docs/tutorial.md": "tests/docs/test_pages.py",
}
"""The test that executes the blocks of another page."""


def blocks_of(text: str) -> list[tuple[str, str, str]]:
    """Return the note, the kind and the text of each block."""
    return [(note or "", kind, block) for note, kind, block in BLOCK.findall(text)]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def squash(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def run_command(text: str, code: int, folder: Path) -> str:
    done = run_shell(text, folder)
    assert done.returncode == code, (text, done.stdout + done.stderr)
    return done.stdout


def check_output(block: str, printed: str) -> None:
    """Compare a block of text with what was printed, except for speeds."""
    for lines in re.split(r"^speed.*\n", block, flags=re.MULTILINE):
        assert squash(lines) in squash(printed), lines


def run_blocks(text: str, folder: Path, page: Page, capsys: pytest.CaptureFixture[str]) -> str:
    """Execute the blocks of a part of a page in a folder; return what they print."""
    printed, shown = "", []
    names: dict[str, object] = {"__name__": "page"}
    for note, kind, block in blocks_of(text):
        title, _, value = note.partition(": ")
        name = value if title == "file" else page.files.get(kind, "")
        if name:
            (folder / name).write_text(block)
        elif kind in page.ignored or block.startswith("python3 -m venv"):
            continue
        elif kind == "text":
            if title == "command":
                # Compiled ticks take a minute, and print the same.
                line = value.replace("--fault fact-cap", "--fault fact-cap --mode eager")
                found = run_shell(line, folder).stdout
                check_output(block, found)
                printed += found
            shown.append(block)
        elif kind == "console":
            printed += run_command(block, int(value) if title == "exit" else 0, folder)
        elif kind != "python":
            raise AssertionError(f"no test executes blocks of {kind}")
        elif block.startswith(">>>"):
            example = doctest.DocTestParser().get_doctest(block, names, "page", "page", 0)
            assert doctest.DocTestRunner().run(example).failed == 0
        elif page.has_shared:
            exec(compile(block, "page", "exec"), names)
            printed += capsys.readouterr().out
        else:
            done = run_python(block, folder)
            assert done.returncode == 0, done.stderr
            assert done.stdout or page.files
            printed += done.stdout
    for block in shown:
        check_output(block, printed)
    return printed


def test_every_page_with_blocks_has_a_test_that_executes_them():
    pages = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    assert sorted(page for page in pages if blocks_of(read(page))) == sorted({*PAGES, *ELSEWHERE})
    for page, test in ELSEWHERE.items():
        assert Path(page).name in read(test), page


@pytest.mark.deep
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # The tutorial shows what experiments confirm.
    monkeypatch.setenv(WITHOUT_EXPERIMENTS, "1")
    text, how, printed = read(page).partition(PAGES[page].until)[0], PAGES[page], ""
    starts = [0, *(text.index(part) for part in how.parts), len(text)]
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        for name in ("steps", "others"):
            lines = "".join(block for _, kind, block in blocks_of(text) if kind == "json")
            Path(f"{name}.jsonl").write_text(lines.replace("my-prover", name), encoding="utf-8")
        if how.before:
            run_command(how.before, 0, folder)
        printed += run_blocks(text[start:end], folder, how, capsys)
    for pattern in how.printed:
        assert re.search(pattern, printed, re.DOTALL), (pattern, printed)
    if page == "docs/fuzzing.md":
        assert kv.replay("shown.kg", "compiled").reproducer.signature.stage == "match_facts"
    if page == "docs/which.md":
        tables = re.findall(r"^\| `(\w+)` \| (`(?:candidate|query)`.*) \|$", text, re.MULTILINE)
        assert len(tables) == 4
        for table, columns in tables:
            held = list(kv.open_trace("run/expected.h5").to_pandas(table))
            assert [name for name in re.findall(r"\w+", columns) if name != "stages"] == held


@pytest.mark.deep
def test_the_first_command_of_the_readme_sets_everything_up_and_ends_in_agreement(tmp_path: Path):
    main_job, tests = (block for *_, block in blocks_of(read("README.md")) if block.startswith("python3 -m venv"))
    assert main_job.startswith(SET_UP)
    assert tests.startswith(SET_UP)
    command = main_job.rsplit(" && ", 1)[1].removeprefix(".venv/bin/")
    result = run_shell(command, tmp_path, is_warm=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("AGREE   1,120 candidates")
    # `.ci/run` takes the line of the tests from the README.
    assert "grep -E '^python3 -m venv .*pytest' README.md" in read(".ci/run")
    assert len(re.findall(r"^python3 -m venv .*pytest.*$", read("README.md"), re.MULTILINE)) == 1


@pytest.mark.deep
def test_the_tutorial_finds_both_bugs(tmp_path: Path):
    blocks = blocks_of(read("docs/tutorial.md"))
    engine, repair = (text for _, kind, text in blocks if kind == "python")
    (tmp_path / "my_engine.py").write_text(engine)
    printed = "".join(run_command(text, 0, tmp_path) for _, kind, text in blocks if kind == "console")
    shown = [text for _, kind, text in blocks if kind == "text"]
    shown += next(text for _, kind, text in blocks_of(read("docs/index.md")) if kind == "text").splitlines()
    for text in shown:
        check_output(text, printed)
    (tmp_path / "my_engine.py").write_text(re.sub(r"def bind\(.*?\n\n\n", repair + "\n\n", engine, flags=re.DOTALL))
    run_command("kgverify fuzz --engine my_engine.py:my_engine --examples 64 --jobs 1", 0, tmp_path)
