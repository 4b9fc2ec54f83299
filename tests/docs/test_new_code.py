"""New code is in the pages, the help and the tests that CONTRIBUTING.md names: the registries are asked what there is."""

import re
from pathlib import Path

import pytest

from kgverify.cli.command_line import list_commands, make_app
from kgverify.cli.entries import ENTRIES
from kgverify.graphs.formats.fields import NAMES, SEPARATORS
from kgverify.program.outcomes import STEP_STAGES
from kgverify.report.render.formats import FORMATS

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PAGES = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
COMMANDS = {" ".join(words): app for words, app in list_commands(make_app(*ENTRIES)).items()}
MODULES = {name: f"kgverify/cli/{each.place.partition(':')[0].replace('.', '/')}.py" for name, each in ENTRIES.items()}


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_the_files_that_the_page_for_contributors_names_exist():
    table = read("CONTRIBUTING.md").partition("## Where new code goes")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w.-]+(?:/[\w.*-]+)+/?|[A-Z]+\.md)`", table)
    assert len(paths) > 30
    assert [path for path in paths if not any(ROOT.glob(path))] == [], "correct the paths in CONTRIBUTING.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_help_text_for_each_option_a_place_in_a_page_and_a_line_of_the_changelog(name: str):
    described = COMMANDS[name].assemble_argument_collection(parse_docstring=True)
    missing = [each.name for each in described if each.parse and each.show and not each.parameter.help]
    assert missing == [], f"add them to `Args:` of the docstring in {MODULES[name.split()[0]]}"
    assert re.search(rf"\bkgverify {name}\b", PAGES), f"show `kgverify {name}` in docs/which.md or another page"
    is_written = re.search("write_json|json_path|show_result", read(MODULES[name.split()[0]]))
    without = ENTRIES[name.split()[0]].without_json
    assert is_written or name in without, f"put {name!r} into without_json in kgverify/cli/entries.py"
    assert f"kgverify {name.split()[0]}" in CHANGELOG, f"add a line on `kgverify {name}` to CHANGELOG.md"


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_of_reports_is_an_option_a_row_of_the_page_and_a_word_of_the_changelog(name: str):
    options = [each.name for each in COMMANDS["report"].assemble_argument_collection()]
    assert f"--{name}" in options, f"add the parameter `{name}` to kgverify/cli/commands/report.py"
    assert f"\n| `--{name}` | " in read("docs/report.md"), "add a row to the table of formats in docs/report.md"
    assert name in CHANGELOG.lower(), f"name the format {name} in CHANGELOG.md"


def test_a_format_of_triples_is_in_the_page_and_in_the_changelog():
    assert NAMES.keys() == SEPARATORS.keys(), "complete NAMES and SEPARATORS in kgverify/graphs/formats/fields.py"
    table = read("docs/graphs.md").partition("## Formats of triples")[2].partition("\n## ")[0]
    rows = [word for row in re.findall(r"^\| (.+?) \| .*`", table, re.MULTILINE) for word in row.split(", ")]
    assert {*SEPARATORS.values()} <= {*rows}, "add a row to the table of formats in docs/graphs.md"
    missing = [word for word in rows if word not in CHANGELOG and word not in ("saved", "in memory")]
    assert missing == [], "name the format of graphs in CHANGELOG.md"


def test_a_stage_of_a_step_is_in_the_pages_and_in_every_step():
    rows = re.findall(r"^\| `(\w+)` \|", read("docs/semantics.md").partition("## One step")[2], re.MULTILINE)
    assert rows[: len(STEP_STAGES)] == [*STEP_STAGES], "define the stage in the table of docs/semantics.md"
    assert f"1 `select` to {len(STEP_STAGES)} `finish`" in read("docs/traces.md"), "count the stages in docs/traces.md"
    ours = ("kgverify/step/plain_step.py", "kgverify/prover/stages/stage_functions.py")
    for file in (*ours, "reference/kgreference/step.py"):
        record = read(file).partition("class Stages(NamedTuple):")[2].partition("\n\n\n")[0]
        missing = [each for each in STEP_STAGES if not re.search(rf"^    {each}\w*: \w", record, re.MULTILINE)]
        assert missing == [], f"add the stage to `Stages` in {file}"
