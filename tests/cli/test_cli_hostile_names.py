"""Names of strangers command neither a CI runner nor a terminal, and hide nothing, whatever command prints them."""

import json
import re
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hostile_output import (
    CASES,
    NAMES,
    Case,
    commands_of,
    execute,
    find_hidden,
    judge,
    judge_case,
    parse_command,
    record_once,
    refused_lines,
    rename,
    strange_lines,
    unusable_lines,
    write_run,
    write_strange_files,
)

from kgverify.escaping import (
    escape_cell,
    escape_data,
    escape_json,
    escape_markdown_block,
    escape_markdown_code,
    escape_property,
    find_escapes,
    make_lines_visible,
    make_visible,
)
from kgverify.verification.verify import Verification

WORST = "##[error]x\n::error::y\nFORGED\u202e\u200b\x1b[5m\x9b\x85=x[red]"
LONG = "aaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbb ::error::FORGED ##[error]x ::error::FORGED"


@pytest.fixture(scope="module")
def once() -> Verification:
    return record_once()


def test_every_command_has_lines_that_show_names_of_strangers():
    assert {name for name, _ in commands_of()} == set(CASES)


def test_what_commands_print_commands_nobody_and_a_newline_in_a_name_is_no_line(once: Verification, tmp_path: Path):
    write_run(once, WORST, tmp_path)
    for case in (each for cases in CASES.values() for each in cases if each.is_fast):
        done, findings = judge_case(case, tmp_path, is_github=True)
        assert findings == [], case.words
        assert done.code != 70, (case.words, done.err)
        shown = re.sub(r"\s+", "", done.out + done.err)
        escaped = re.findall(r"(?:\\n|&#92;n)FORGED", shown)
        # Columns beside each other, as of `show`, mix the parts of folded names.
        assert shown.count("FORGED") == len(escaped) or case.words[0] == "show", case.words


def test_a_refusal_quotes_what_was_typed_as_text(tmp_path: Path):
    for words in refused_lines(WORST):
        done, findings = judge_case(Case(words), tmp_path)
        assert findings == [], words
        assert done.code == 2, (words, done)


@pytest.mark.deep
def test_what_cannot_be_used_is_named_as_text(tmp_path: Path):
    for words in unusable_lines(WORST):
        done, findings = judge_case(Case(words), tmp_path)
        assert findings == [], words
        assert done.code == 2, (words, done)


def test_names_of_files_are_shown_as_text(once: Verification, tmp_path: Path):
    write_run(once, "plain", tmp_path)
    files = write_strange_files(tmp_path, "a\n::error::F ##[error]x\u202e")
    assert len(files) == 3
    for words in strange_lines(files):
        done, findings = judge_case(Case(words), tmp_path)
        assert findings == [], words
        assert done.code in (0, 2, 3), (words, done)


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize(("width", "is_terminal"), [(45, True), (80, False), (200, True)])
def test_no_width_makes_a_command(once: Verification, tmp_path: Path, width: int, is_terminal: bool):
    write_run(once, LONG, tmp_path)
    for case in (each for cases in CASES.values() for each in cases if each.is_fast):
        _, findings = judge_case(case, tmp_path, width=width, is_terminal=is_terminal)
        assert findings == [], case.words


@pytest.mark.exhaustive
def test_commands_that_run_engines_print_names_as_text(once: Verification, tmp_path: Path):
    write_run(once, "##[error]F::error::F", tmp_path)
    for case in (each for cases in CASES.values() for each in cases if not each.is_fast):
        done, findings = judge_case(case, tmp_path, is_github=True)
        assert findings == [], case.words
        assert done.code != 70, (case.words, done.err)


def test_programs_read_every_name_exactly(once: Verification, tmp_path: Path):
    write_run(once, WORST, tmp_path)
    report = json.loads(execute(("report", "run", "--json", "-"), tmp_path).out)
    assert report["notes"][0] == WORST
    candidate = json.loads(execute(("show", "trace.h5", "--candidate", "0", "--json", "-"), tmp_path).out)
    assert candidate["atom"].startswith(rename("stranger_query", WORST))
    execute(("trace", "export", "trace.h5", "--to", "steps.jsonl"), tmp_path)
    lines = (tmp_path / "steps.jsonl").read_text(encoding="utf-8")
    assert judge(lines) == []
    assert json.loads(lines.split("\n")[0])["atom"] == candidate["atom"]
    junit = ElementTree.fromstring(execute(("report", "run", "--junit", "-"), tmp_path).out)
    assert r"\u202e" in junit[0].get("name")


def test_the_judges_find_what_they_look_for():
    for line, command in (
        ("::error::x", "error"),
        (" \xa0::error file=a::x", "error"),
        ("\u200b:\u00ad:warning::", "warning"),
        ("text ##[group]x", "group"),
        ("##\u200b[add-mask]x", "add-mask"),
        ("##vso[task.setvariable a]", "##vso[task.setvariable a]"),
        ("x ::error::", ""),
        ("::error:", ""),
        ("##[error", ""),
    ):
        assert parse_command(line) == command
    assert find_hidden("a\x1b[1;31mb\n\x1b[5m\u202e") == ["U+001B", "U+202E"]


@pytest.mark.parametrize("name", NAMES)
def test_each_escaper_shows_a_name_once_and_in_one_line(name: str):
    shown = make_visible(name)
    assert judge(shown) == []
    assert "\n" not in shown
    assert make_visible(shown) == shown
    assert make_lines_visible(f"{name}\n{name}") == "\n".join(map(make_lines_visible, (name, name)))
    lines = f"x\n{name}\n{shown}"
    escapes = find_escapes(lines)
    found = judge("".join(escapes.get(i, each) for i, each in enumerate(lines)))
    assert [each for each in found if each.kind != "forged"] == []
    name = name.replace("\nAGREE", "\n AGREE")
    for escaped in (escape_data(name), escape_property(name), escape_markdown_code(name), escape_markdown_block(name)):
        assert judge(escaped) == []
    assert judge(escape_cell(name)) == []
    assert escape_cell(name)[0] not in "=+-@"
    encoded = json.dumps([name], ensure_ascii=False).encode()
    assert judge(escape_json(encoded).decode()) == []
    assert json.loads(escape_json(encoded)) == [name]


def test_every_character_without_a_glyph_is_shown():
    for code in (*range(0x3000), *range(0xD800, 0xE000), *range(0xFE00, 0x20000), *range(0xE0000, 0xE1000)):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert make_visible(f"a{character}b") != f"a{character}b", hex(code)


@pytest.mark.parametrize(
    "text", ["naïve", "北京", "e\u0301", "🙂", "a::b", "a # b", "C#[x]", "p(a, X0)", "a --- b", "a\xa0b"]
)
def test_ordinary_text_stays(text: str):
    assert make_visible(text) == text
