"""The page about your own engine: every block is executed, in order, in one folder."""

import re
from pathlib import Path

import pytest
from warm_commands import run_python, run_shell

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "your-engine.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(PAGE)]


@pytest.mark.deep
def test_every_block_of_the_page_runs_and_prints_what_the_page_says(tmp_path):
    printed = ""
    for block in BLOCKS:
        note, text = block["note"] or "", block["text"]
        if note.startswith("file: "):
            (tmp_path / note.removeprefix("file: ")).write_text(text)
        elif block["kind"] == "console":
            done = run_shell(text, tmp_path)
            assert done.returncode == int(note.removeprefix("exit: ")), done.stdout + done.stderr
            printed = done.stdout
        elif block["kind"] == "text":
            assert text.strip() in printed
        else:
            done = run_python(text, tmp_path)
            assert done.returncode == 0, done.stderr
            lines = done.stdout.splitlines()
            assert lines[0] == "DIVERGE match_facts"
            assert lines[1].startswith("Slow agrees: compared with Slow, ")
            assert lines[2].startswith(
                "laws not checked, since the semantics of the reference are unknown: begins-at-candidate, "
            )
    connected = ["python", "console", "text", "console", "console", "python"]
    declared, proposed = ["toml", "python", "console", "console"], ["console", "text", "console"]
    assert [block["kind"] for block in BLOCKS] == [*connected, *declared, *proposed]


def test_the_names_on_the_page_exist():
    import kgverify as kv

    named = set(re.findall(r"\bkv\.(\w+)", PAGE))
    assert [name for name in named if not hasattr(kv, name)] == []
