"""Names of strangers command neither a CI runner nor a terminal, and hide nothing, at any width, whatever command prints them."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hostile_output import (
    ENGINES,
    FAST,
    FILES,
    NAMES,
    commands_of,
    execute,
    find_hidden,
    judge,
    judge_line,
    parse_command,
    refused_lines,
    unusable_lines,
    write_run,
)

from kgverify.escaping import (
    escape_cell,
    escape_data,
    escape_json,
    escape_markdown,
    escape_markdown_block,
    escape_markdown_code,
    escape_property,
    escape_script,
    find_escapes,
    make_lines_visible,
    make_visible,
)

WORST = "##[error]x\n::error::y\nFORGED\u202e\u200b\x1b[5m\x9b\x85=x[red]"
LONG = "aaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbb ::error::FORGED ##[error]x ::error::FORGED"
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the worst name in every text."""
    write_run(WORST, folder := tmp_path_factory.mktemp("worst"))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with ordinary names."""
    write_run("near", folder := tmp_path_factory.mktemp("plain"))
    return folder


def test_every_command_has_lines_that_show_names_of_strangers():
    commands = {" ".join(words) for words, _ in commands_of()}
    missing = {each for each in commands if not any(f"{line} ".startswith(f"{each} ") for line in FAST)}
    assert missing == set(), "add a line for each to FAST in tests/cli/hostile_output.py"


@pytest.mark.parametrize("line", [*FAST, *(pytest.param(line, marks=pytest.mark.deep) for line in ENGINES)])
def test_what_commands_print_commands_nobody_and_a_newline_in_a_name_is_no_line(folder: Path, line: str):
    done, findings = judge_line(line, folder, is_github=True)
    assert findings == [], f"escape the names that `kgverify {line}` prints, by kgverify/escaping.py"
    assert done.exit_code != 70, done.stderr
    if re.fullmatch(r"report run --\w+ -", line):
        assert not done.stdout.startswith("DIVERGE"), "add the format to `given` in kgverify/cli/commands/report.py"
    assert done.exit_code == 0 or not line.startswith(("report", "show", "trace export")), done.stderr
    shown = re.sub(r"\s+", "", done.output)
    escaped = re.findall(r"(?:\\n|&#92;n)FORGED", shown)
    # Columns beside each other, as of `show`, mix the parts of folded names.
    assert shown.count("FORGED") == len(escaped) or "show" in line.split()[:2]


@pytest.mark.parametrize("lines", [refused_lines, pytest.param(unusable_lines, marks=pytest.mark.deep)])
def test_a_refusal_quotes_what_was_typed_as_text(tmp_path: Path, lines):
    for words in lines(WORST):
        done, findings = judge_line(words, tmp_path)
        assert findings == [], words
        assert done.exit_code == 2, (words, done)


def test_names_of_files_are_shown_as_text(folder: Path):
    name = "./a\n::error::F ##[error]x\u202e"
    for suffix, source in ((".h5", "trace.h5"), (".jsonl", "lines.jsonl")):
        (folder / (name + suffix)).write_bytes((folder / source).read_bytes())
    for line in FILES:
        done, findings = judge_line([word.replace("{}", name) for word in line.split()], folder)
        assert findings == [], line
        assert done.exit_code in (0, 2, 3), (line, done)


@pytest.mark.deep
def test_no_width_makes_a_command(tmp_path: Path):
    write_run(LONG, tmp_path)
    for line in FAST:
        _, findings = judge_line(line, tmp_path, width=45, is_terminal=True)
        assert findings == [], line


@pytest.mark.sample(16, deep=10)
@pytest.mark.parametrize("line", FAST)
def test_a_command_respects_colours_that_were_declined_a_dumb_terminal_and_forty_columns(plain: Path, line: str):
    without_colours, _ = judge_line(line, plain, is_terminal=True, NO_COLOR="1")
    assert not COLOUR.search(without_colours.output)
    dumb, _ = judge_line(line, plain, is_terminal=True, TERM="dumb", width=40)
    assert "\x1b" not in dumb.output
    if not {"-", "--github"} & set(line.split()):
        # Commands and paths are for copying: they stay in one line.
        lines = [each for each in dumb.stdout.splitlines() if len(each) > 40]
        assert all("kgverify " in each or "/" in each for each in lines), lines


def test_the_same_command_has_colours_where_they_are_wanted(folder: Path):
    assert COLOUR.search(execute("report run", folder, is_terminal=True).stdout)


def test_the_help_of_a_command_fits_a_narrow_terminal(tmp_path: Path):
    for words in (*(" ".join(words) for words, _ in commands_of()), "trace", "audit", ""):
        shown = execute(f"{words} --help", tmp_path, width=40)
        assert shown.exit_code == 0
        assert [line for line in shown.stdout.splitlines() if len(line) > 40] == [], words


def test_programs_read_every_name_exactly(folder: Path):
    report = json.loads(execute("report run --json -", folder).stdout)
    assert report["notes"][0] == WORST
    candidate = json.loads(execute("show trace.h5 --candidate 0 --json -", folder).stdout)
    assert candidate["atom"].startswith(f"{WORST}_query")
    execute("trace export trace.h5 --to again.jsonl", folder)
    lines = (folder / "again.jsonl").read_text(encoding="utf-8")
    assert judge(lines) == []
    assert json.loads(lines.split("\n")[0])["atom"] == candidate["atom"]
    junit = ElementTree.fromstring(execute("report run --junit -", folder).stdout)
    assert r"\u202e" in junit[0].get("name")


def test_the_judges_find_what_they_look_for():
    for line, command in (
        (" \xa0::error file=a::x", "error"),
        ("\u200b:\u00ad:warning::", "warning"),
        ("text ##\u200b[group]x", "group"),
        ("##vso[task.setvariable a]", "##vso[task.setvariable a]"),
        ("x ::error::", ""),
        ("##[error", ""),
    ):
        assert parse_command(line) == command
    assert find_hidden("a\x1b[1;31mb\n\x1b[5m\u202e") == ["U+001B", "U+202E"]


@pytest.mark.parametrize(
    ("escape", "text", "escaped"),
    [
        (escape_markdown, "match_facts", "match_facts"),
        (escape_markdown, "_a_|<b>", "&#95;a&#95;&#124;&#60;b&#62;"),
        (escape_markdown, "two\nlines", "two&#92;nlines"),
        (escape_markdown, "@all", "&#64;<!-- -->all"),
        (escape_markdown, "[x](y) a\\|b", "&#91;x&#93;(y) a&#92;&#124;b"),
        (escape_markdown_code, "p(a, X0)", "`p(a, X0)`"),
        (escape_markdown_code, "a`b|c", "<code>a&#96;b&#124;c</code>"),
        (escape_markdown_code, "", ""),
        (escape_markdown_block, "x\n````\ny", "`````text\nx\n````\ny\n`````"),
        (escape_property, "a: b, 100%", "a%3A b%2C 100%25"),
        (escape_data, "x\r\n::warning::y%0A", "x\\r%0A\\x3a:warning::y%250A"),
    ],
)
def test_a_text_is_escaped_as_its_reader_expects(escape: Callable[[str], str], text: str, escaped: str):
    assert escape(text) == escaped


def test_a_script_holds_any_text():
    odd = {"key</script>": ["<!--", "a&b", "\u2028\u2029", "]]>", *NAMES]}
    script = escape_script(json.dumps(odd, ensure_ascii=False).encode())
    assert json.loads(script) == odd
    assert not set("<>&\u2028\u2029") & set(script)


def test_each_escaper_shows_a_name_once_and_in_one_line():
    for name in NAMES:
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
        for escape in (escape_data, escape_property, escape_markdown_code, escape_markdown_block, escape_cell):
            assert judge(escape(name)) == [], (escape, name)
        assert escape_cell(name)[0] not in "=+-@"
        encoded = json.dumps([name], ensure_ascii=False).encode()
        assert judge(escape_json(encoded).decode()) == []
        assert json.loads(escape_json(encoded)) == [name]


def test_every_character_without_a_glyph_is_shown_and_ordinary_text_stays():
    for code in (*range(0x3000), *range(0xD800, 0xE000), *range(0xFE00, 0x20000), *range(0xE0000, 0xE1000)):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert make_visible(f"a{character}b") != f"a{character}b", hex(code)
    for text in ("naïve", "北京", "e\u0301", "🙂", "a::b", "a # b", "C#[x]", "p(a, X0)", "a --- b", "a\xa0b"):
        assert make_visible(text) == text
