"""Every block of commands or of Python on a page is executed: here, or by the test of the page."""

import doctest
import re
from pathlib import Path

import pytest
from warm_commands import run_shell

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SMALL = "--queries 2 --corruptions 5"
BEFORE = {
    "graphs.md": "",
    "report.md": "",
    "traces.md": f"kgverify trace import others.jsonl -o reference.h5\nkgverify record --engine reference {SMALL} -o mine.h5",
    "verdicts.md": f"kgverify record --engine reference {SMALL} -o eager.h5\n"
    f"kgverify record --engine compiled {SMALL} -o compiled.h5",
    "which.md": "",
}
"""The pages of this file, with commands that make the files which a page presumes."""
ELSEWHERE = {
    "auditing.md": "../stepaudit/tests/test_stepaudit_page.py",
    "ci.md": "docs/test_site.py",
    "evaluating.md": "cli/test_cli_evaluate.py",
    "fuzzing.md": "cli/test_cli_fuzz.py",
    "install.md": "docs/test_site.py",
    "performance.md": "bench/test_bench_page.py",
    "pytest.md": "plugin/test_pytest_plugin.py",
    "reference.md": "docs/test_site.py",
    "tutorial.md": "docs/test_site.py",
    "your-engine.md": "cli/test_your_engine_page.py",
}
"""The test that executes the blocks of another page."""


def blocks_of(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def test_every_page_with_blocks_has_a_test_that_executes_them():
    assert sorted(path.name for path in DOCS.glob("*.md") if blocks_of(path.name)) == sorted({*BEFORE, *ELSEWHERE})
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text(encoding="utf-8"), page


@pytest.mark.deep
@pytest.mark.parametrize("page", BEFORE)
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    if page == "traces.md":
        (lines,) = re.findall(r"```json\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
        for name in ("steps", "others"):
            Path(f"{name}.jsonl").write_text(lines.replace("my-prover", name), encoding="utf-8")
        # Its Python is executed by tests/trace/test_trace_loop.py, on a trace of one candidate.
        blocks = [block for block in blocks if block[0] == "console"]
    if BEFORE[page]:
        assert run_shell(BEFORE[page], tmp_path).returncode == 0
    names: dict[str, object] = {"__name__": "page"}
    for kind, text in blocks:
        if kind == "console":
            done = run_shell(text, tmp_path)
            assert done.returncode == 0, (text, done.stdout + done.stderr)
        elif text.startswith(">>>"):
            example = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
            assert doctest.DocTestRunner().run(example).failed == 0
        else:
            exec(compile(text, page, "exec"), names)
